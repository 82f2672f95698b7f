//! How a worker gets the next message: it waits for one, and for the room that it takes on its way.

use super::{Borrower, Counted, Desk, Loan};
use crate::room::{Room, Taken};
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::time::Instant;

/// What there is for a worker.
pub(super) enum Next {
    Loan(Loan),
    /// A message of so many bytes waits, for which this room has no place now. It is not lent.
    NoRoom(Room, usize),
    None,
}

/// The news that messages wait, which goes on to another worker when this one is through.
struct News<'d>(Option<&'d Notify>);

impl Drop for News<'_> {
    fn drop(&mut self) {
        if let Some(changed) = self.0 {
            changed.notify_one();
        }
    }
}

impl Desk {
    /// Lends the next message of a queue as soon as there is one, and room for it; none: the time
    /// is over, or the desk is closed.
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
            // From here on an arrival is not missed. Whoever goes away passes it on.
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
            // What this worker hears from now on may be of more than one message, and it takes one.
            news.0 = Some(&*changed);
            tokio::select! {
                free = room.wait(bytes) => taken = free.map(|free| (bytes, free)),
                () = arrives => {}
                () = tokio::time::sleep_until(until) => return None,
            }
        }
    }
}
