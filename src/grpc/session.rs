//! Opens the session of a worker: its Hello, and what follows from that.

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

/// Returns the first message of a worker, which must be Hello.
pub(super) fn expect_hello(first: Option<FromWorker>) -> Result<Hello, Problem> {
    match first {
        Some(FromWorker { say: Some(Say::Hello(hello)) }) => Ok(hello),
        Some(FromWorker { .. }) | None => {
            Err(Problem::malformed("the first thing a worker says is Hello".to_owned()))
        }
    }
}

/// A worker's session: the queues whose messages it receives.
pub(super) struct Session {
    pub(super) queues: Vec<Arc<str>>,
    pub(super) vhost: String,
    pub(super) lease_queue: Arc<LeaseQueue>,
    pub(super) options: ReceiveOptions,
    /// Notified when a lease is revoked.
    pub(super) revocations: RevocationSender,
    /// Counts the session as a worker of each queue.
    _count_guards: Vec<WorkerCountGuard>,
}

impl Session {
    /// Opens the session that a Hello asks for, with the receiver of its revoked leases.
    pub(super) async fn open(
        api: &Arc<ApiState>,
        caller: &Authenticated,
        hello: Hello,
    ) -> Result<(Session, mpsc::UnboundedReceiver<LeaseRevocation>), Problem> {
        let Hello { queues: mut names, worker, lease, vhost } = hello;
        let limit = api.settings.grpc.stream_queues_max;
        if !(1..=limit).contains(&names.len()) {
            return Err(Problem::malformed(format!(
                "Hello has {} queues, expected 1 to {limit} (setting grpc.stream_queues_max)",
                names.len()
            )));
        }
        names.sort();
        names.dedup();
        let (revocations, revoked) = mpsc::unbounded_channel();
        let lease = parse_duration("lease", lease, LEASE_BOUNDS)?;
        let options = ReceiveOptions {
            lease,
            worker: parse_optional_worker_name(&worker)?,
            revocations: Some(revocations.clone()),
            budget: Some(api.budgets.messages.clone()),
        };
        let mut queues = Vec::new();
        for name in &names {
            caller.check_queue_access(name, &vhost)?;
            queues.push(leases::find_queue(api, name, &vhost, TRANSPORT).await?.0);
        }
        let lease_queue = find_lease_queue(api, &vhost)?;
        let count_guards = queues.iter().map(|queue| lease_queue.register_session(queue)).collect();
        Ok((
            Session {
                queues,
                vhost,
                lease_queue,
                options,
                revocations,
                _count_guards: count_guards,
            },
            revoked,
        ))
    }
}
