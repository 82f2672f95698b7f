//! How a worker receives the next message: it waits for the message, and for the budget to send it.

use super::LeaseQueue;
use super::types::{LeaseResult, LeasedMessage, ReceiveOptions, WorkerCountGuard};
use base::budget::Permit;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Passes the notification of a waiting message on to another worker when it is dropped.
struct PassOnWakeup<'d>(Option<&'d Notify>);

impl Drop for PassOnWakeup<'_> {
    fn drop(&mut self) {
        if let Some(changed) = self.0 {
            changed.notify_one();
        }
    }
}

impl LeaseQueue {
    /// Leases the next message of a queue as soon as there is one and the budget has room for it.
    /// Returns `None` at the time `until`, or if the lease queue is closed.
    pub async fn receive(
        &self,
        queue: &Arc<str>,
        options: &ReceiveOptions,
        until: Instant,
    ) -> Option<LeasedMessage> {
        let (changed, _counted) = {
            let mut state = self.state();
            let queue = state.queue(queue);
            let waits =
                options.revocations.is_none().then(|| WorkerCountGuard::new(&queue.receivers));
            (queue.message_arrived.clone(), waits)
        };
        let mut wakeup = PassOnWakeup(None);
        let mut acquired: Option<(usize, Permit)> = None;
        loop {
            let arrives = changed.notified();
            tokio::pin!(arrives);
            // From here on no arrival is missed. A worker that goes away passes the notification
            // on.
            arrives.as_mut().enable();
            if self.state().is_closed {
                return None;
            }
            let (budget, bytes) = match self.try_lease(queue, options, acquired.take()) {
                LeaseResult::Leased(message) => return Some(message),
                LeaseResult::OverBudget(exceeded, bytes) => (exceeded, bytes),
                LeaseResult::Empty => {
                    wakeup.0 = None;
                    tokio::select! {
                        () = arrives => {}
                        () = tokio::time::sleep_until(until) => return None,
                    }
                    continue;
                }
            };
            // A notification that arrives now may stand for several messages, of which this worker
            // takes one.
            wakeup.0 = Some(&*changed);
            tokio::select! {
                free = budget.acquire(bytes) => acquired = free.map(|free| (bytes, free)),
                () = arrives => {}
                () = tokio::time::sleep_until(until) => return None,
            }
        }
    }
}
