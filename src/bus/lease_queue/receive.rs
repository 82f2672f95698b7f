//! Receives messages for workers: waits for the next message, and for a permit of the budget.

use super::LeaseQueue;
use super::queues::Lending;
use super::types::{LeaseResult, LeasedMessage, ReceiveOptions, WorkerCountGuard};
use base::budget::Permit;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A guard that wakes another worker for a waiting message when the guard is dropped; with `None`,
/// it wakes none.
struct WakeOtherOnDrop<'n>(Option<&'n Notify>);

impl Drop for WakeOtherOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(notify) = self.0 {
            notify.notify_one();
        }
    }
}

impl LeaseQueue {
    /// Leases the next message of a queue as soon as there is one and the budget has a permit for
    /// it (long poll). Returns `None` at the `deadline`, or if messages are
    /// not lent now.
    pub async fn receive(
        &self,
        queue: &Arc<str>,
        options: &ReceiveOptions,
        deadline: Instant,
    ) -> Option<LeasedMessage> {
        let (receiver_wakeup, _count_guard) = {
            let mut state = self.state();
            let queue_state = state.queue_or_new(queue);
            let has_session = options.revocations.is_some();
            let guard = (!has_session).then(|| WorkerCountGuard::new(&queue_state.receivers));
            (queue_state.receiver_wakeup.clone(), guard)
        };
        let mut wake_other = WakeOtherOnDrop(None);
        // The permit for a message for which none was free before, with its size in bytes.
        let mut acquired_permit: Option<(usize, Permit)> = None;
        loop {
            let arrival = receiver_wakeup.notified();
            tokio::pin!(arrival);
            // From here on, no arrival is missed. If this future is dropped after a notification,
            // tokio passes the notification on to another waiter.
            arrival.as_mut().enable();
            if self.state().lending != Lending::Open {
                return None;
            }
            let (budget, bytes) = match self.try_lease(queue, options, acquired_permit.take()) {
                LeaseResult::Leased(message) => return Some(message),
                LeaseResult::OverBudget(budget, bytes) => (budget, bytes),
                LeaseResult::Empty => {
                    wake_other.0 = None;
                    tokio::select! {
                        () = arrival => {}
                        () = tokio::time::sleep_until(deadline) => return None,
                    }
                    continue;
                }
            };
            // This worker may have been notified, and may yet return without the message: at its
            // deadline, or because this future is dropped. Several messages may also wait, of which
            // it takes only one. In each case another worker is woken. Without a waiting message
            // there is nothing to pass on.
            wake_other.0 = Some(&*receiver_wakeup);
            tokio::select! {
                permit = budget.acquire(bytes) => {
                    acquired_permit = permit.map(|permit| (bytes, permit));
                }
                () = arrival => {}
                () = tokio::time::sleep_until(deadline) => return None,
            }
        }
    }
}
