//! Opens the session of a worker from its Hello.

use super::conversions::{LEASE_BOUNDS, TRANSPORT, parse_optional_worker_name};
use super::times::parse_duration;
use super::wire::from_worker::Say;
use super::wire::{FromWorker, Hello};
use bus::lease_queue::{
    LeaseQueue, LeaseRevocation, ReceiveOptions, RevocationSender, WorkerCountGuard,
};
use daemon::api::leases::{self, find_lease_queue};
use daemon::api::problem::Problem;
use daemon::api::state::ApiState;
use daemon::api::token::Authenticated;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Returns the Hello, which must be the first message of a worker.
pub(super) fn expect_hello(message: Option<FromWorker>) -> Result<Hello, Problem> {
    match message {
        Some(FromWorker { say: Some(Say::Hello(hello)) }) => Ok(hello),
        Some(FromWorker { .. }) | None => {
            Err(Problem::malformed("the first message must be Hello".to_owned()))
        }
    }
}

/// A worker's session: the queues whose messages it receives, and how they are leased to it.
pub(super) struct Session {
    pub(super) queues: Vec<Arc<str>>,
    pub(super) vhost: String,
    pub(super) lease_queue: Arc<LeaseQueue>,
    /// Whether the worker takes batches.
    pub(super) batches: bool,
    pub(super) options: ReceiveOptions,
    /// The sender with which the lease queue notifies the session of revoked leases. It also
    /// identifies the session to the lease queue.
    pub(super) revocations: RevocationSender,
    /// Guards that count the session as a worker of each queue until they are dropped.
    _count_guards: Vec<WorkerCountGuard>,
}

impl Session {
    /// Opens the session that a Hello requests. Returns it with the receiver of its revocations.
    pub(super) async fn open(
        api: &Arc<ApiState>,
        principal: &Authenticated,
        hello: Hello,
    ) -> Result<(Session, mpsc::UnboundedReceiver<LeaseRevocation>), Problem> {
        leases::check_in_touch(api)?;
        let Hello { queues: mut queue_names, worker, lease, vhost, batches } = hello;
        let limit = api.settings.grpc.stream_queues_max;
        if !(1..=limit).contains(&queue_names.len()) {
            return Err(Problem::malformed(format!(
                "Hello has {} queues, expected 1 to {limit} (setting grpc.stream_queues_max)",
                queue_names.len()
            )));
        }
        queue_names.sort();
        queue_names.dedup();
        let (revocations, revocation_receiver) = mpsc::unbounded_channel();
        let lease = parse_duration("lease", lease, LEASE_BOUNDS)?;
        let options = ReceiveOptions {
            lease,
            worker: parse_optional_worker_name(&worker)?,
            revocations: Some(revocations.clone()),
            budget: Some(api.budgets.messages.clone()),
        };
        let mut queues = Vec::new();
        for name in &queue_names {
            principal.check_queue_access(name, &vhost)?;
            queues.push(leases::find_queue(api, name, &vhost, TRANSPORT).await?.0);
        }
        let lease_queue = find_lease_queue(api, &vhost)?;
        let count_guards = queues.iter().map(|queue| lease_queue.register_session(queue)).collect();
        Ok((
            Session {
                queues,
                vhost,
                lease_queue,
                batches,
                options,
                revocations,
                _count_guards: count_guards,
            },
            revocation_receiver,
        ))
    }
}
