//! The interface of a bus.

use crate::publication::Publication;
use crate::queue_status::{QueueDepth, QueueStatus};
use engine::QueueDeclaration;
use futures_util::future::LocalBoxFuture;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    /// It was answered: by the worker that has the message, or by another one.
    Answered,
    /// It failed, most likely by its timeout: no worker should continue with it.
    Failed,
    /// It was cancelled: no worker should continue with it.
    Cancelled,
}

/// The queues that a bus serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedQueues {
    /// The queues of workers.
    pub worker_queues: Vec<Arc<str>>,
    /// The workflow queues, on which calls ask for jobs.
    pub workflow_queues: Vec<Arc<str>>,
    /// The longest timeout of the steps of each worker queue.
    pub reply_timeouts: BTreeMap<Arc<str>, Duration>,
    /// How missing queues are declared, for queues of which a workflow file says so.
    pub declarations: BTreeMap<Arc<str>, QueueDeclaration>,
}

/// A message transport. Implementations run on the arbiter of their `BusActor`.
pub trait Bus {
    /// Accepts a message and keeps it until it is confirmed, over any number of connections. Never
    /// blocks.
    fn publish(&mut self, message: Publication);

    /// Withdraws the message of an attempt that has ended, if the bus can do that.
    fn withdraw(&mut self, _queue: &Arc<str>, _id: &str, _end: AttemptEnd) {}

    /// Returns the number of accepted messages that are not confirmed.
    fn unconfirmed(&self) -> usize;

    /// Inspects queues without changing anything, and returns their statuses in the same order.
    fn inspect(&mut self, queues: Vec<Arc<str>>) -> LocalBoxFuture<'static, Vec<QueueStatus>>;

    /// Checks queues on which steps wait. Each missing queue is reported as
    /// [`crate::BusEvent::QueueMissing`] and then declared, as after connecting.
    fn ensure_queues(&mut self, _queues: Vec<Arc<str>>) {}

    /// Returns the depth of each queue of the virtual host.
    ///
    /// # Errors
    ///
    /// Returns an error that says why the depths are unknown.
    fn poll_depths(&mut self) -> LocalBoxFuture<'static, Result<Vec<QueueDepth>, String>> {
        Box::pin(std::future::ready(Err("nobody counts the messages of this bus".to_owned())))
    }

    /// Sets whether the bus takes in deliveries and lends messages to workers. While it does not,
    /// other processes get them. Buses from which no other process is kept ignore this.
    fn set_consuming(&mut self, _is_consuming: bool) {}

    /// Replaces the served queues after a reload of workflows.
    fn set_served(&mut self, served: ServedQueues);

    /// Stops consuming, waits for confirms until the returned future is dropped, and closes the
    /// connections.
    fn close(&mut self) -> LocalBoxFuture<'static, ()>;
}
