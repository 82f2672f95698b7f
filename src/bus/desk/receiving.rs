//! How a worker receives the next message: it waits for the message, and for the budget to send it.

use super::{Borrower, Counted, Desk, Loan};
use crate::room::{Room, Taken};
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The result of one try to lease a message.
pub(super) enum Next {
    Loan(Loan),
    /// A message of this many bytes waits, for which this budget has no room now. It is not leased.
    NoRoom(Room, usize),
    None,
}

/// Passes the notification of a waiting message on to another worker when it is dropped.
struct News<'d>(Option<&'d Notify>);

impl Drop for News<'_> {
    fn drop(&mut self) {
        if let Some(changed) = self.0 {
            changed.notify_one();
        }
    }
}

impl Desk {
    /// Leases the next message of a queue as soon as there is one and the budget has room for it.
    /// Returns `None` at the time `until`, or if the lease queue is closed.
    pub async fn receive(
        &self,
        queue: &Arc<str>,
        borrower: &Borrower,
        until: Instant,
    ) -> Option<Loan> {
        let (changed, _counted) = {
            let mut state = self.state();
            let queue = state.queue(queue);
            let waits = borrower.line.is_none().then(|| Counted::new(&queue.receivers));
            (queue.changed.clone(), waits)
        };
        let mut news = News(None);
        let mut taken: Option<(usize, Taken)> = None;
        loop {
            let arrives = changed.notified();
            tokio::pin!(arrives);
            // From here on no arrival is missed. A worker that goes away passes the notification
            // on.
            arrives.as_mut().enable();
            if self.state().is_closed {
                return None;
            }
            let (room, bytes) = match self.lend(queue, borrower, taken.take()) {
                Next::Loan(loan) => return Some(loan),
                Next::NoRoom(room, bytes) => (room, bytes),
                Next::None => {
                    news.0 = None;
                    tokio::select! {
                        () = arrives => {}
                        () = tokio::time::sleep_until(until) => return None,
                    }
                    continue;
                }
            };
            // A notification that arrives now may stand for several messages, of which this worker
            // takes one.
            news.0 = Some(&*changed);
            tokio::select! {
                free = room.wait(bytes) => taken = free.map(|free| (bytes, free)),
                () = arrives => {}
                () = tokio::time::sleep_until(until) => return None,
            }
        }
    }
}
