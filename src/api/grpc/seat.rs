//! Opens the session of a worker: its Hello, and what follows from that.

use super::super::lending::{self, desk_of};
use super::super::problem::Problem;
use super::super::token::Caller;
use super::said::{LEASES, WAY, name_of};
use super::spans::span;
use super::wire::from_worker::Say;
use super::wire::{FromWorker, Hello};
use crate::actors::ways::Ways;
use crate::bus::desk::{Borrower, Counted, Desk, Ended, Line};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Returns the first message of a worker, which must be Hello.
pub(super) fn greeting(said: Option<FromWorker>) -> Result<Hello, Problem> {
    match said {
        Some(FromWorker { say: Some(Say::Hello(hello)) }) => Ok(hello),
        Some(FromWorker { .. }) | None => {
            Err(Problem::malformed("the first thing a worker says is Hello".to_owned()))
        }
    }
}

/// A worker's session: the queues whose messages it receives.
pub(super) struct Seat {
    pub(super) queues: Vec<Arc<str>>,
    pub(super) vhost: String,
    pub(super) desk: Arc<Desk>,
    pub(super) borrower: Borrower,
    /// Notified when a lease is revoked.
    pub(super) line: Line,
    /// Counts the session as a worker of each queue.
    _counted: Vec<Counted>,
}

impl Seat {
    /// Opens the session that a Hello asks for, with the receiver of its revoked leases.
    pub(super) async fn of(
        ways: &Ways,
        caller: &Caller,
        hello: Hello,
    ) -> Result<(Seat, mpsc::UnboundedReceiver<Ended>), Problem> {
        let Hello { queues: mut names, worker, lease, vhost } = hello;
        let limit = ways.common.settings.grpc.stream_queues_max;
        if !(1..=limit).contains(&names.len()) {
            return Err(Problem::malformed(format!(
                "Hello has {} queues, expected 1 to {limit} (setting grpc.stream_queues_max)",
                names.len()
            )));
        }
        names.sort();
        names.dedup();
        let (line, ended) = mpsc::unbounded_channel();
        let lease = span("lease", lease, LEASES)?;
        let borrower = Borrower {
            lease,
            worker: name_of(&worker)?,
            line: Some(line.clone()),
            room: Some(ways.common.rooms.messages.clone()),
        };
        let mut queues = Vec::new();
        for name in &names {
            caller.may_use(name, &vhost)?;
            queues.push(lending::queue_of(ways, name, &vhost, WAY).await?.0);
        }
        let desk = desk_of(ways, &vhost)?;
        let counted = queues.iter().map(|queue| desk.attend(queue)).collect();
        Ok((Seat { queues, vhost, desk, borrower, line, _counted: counted }, ended))
    }
}
