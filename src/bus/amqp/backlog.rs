//! The publications that wait, whichever connection there is.

use super::link::Held;
use crate::bus::Publication;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use tokio::time::Instant;

/// A command of the bus's owner. Commands are applied in order.
pub(super) enum Order {
    Publish(Box<Publication>),
    /// Withdraws the message with this id, unless it was sent.
    Withdraw(String),
}

/// The publications that wait, and the queues that they go to.
pub(super) struct Backlog {
    pub(super) waiting: VecDeque<Held>,
    /// Messages whose queue is being checked.
    pub(super) parked: HashMap<Arc<str>, VecDeque<Held>>,
    pub(super) delayed: BTreeMap<(Instant, u64), Held>,
    /// The queues to check after each reconnect.
    pub(super) queues: HashSet<Arc<str>>,
    /// Queues that lost their messages, which is not reported to the manager yet.
    pub(super) lost: HashSet<Arc<str>>,
}

impl Backlog {
    pub(super) fn of(queues: &[Arc<str>]) -> Backlog {
        let queues = queues.iter().cloned().collect();
        Backlog {
            waiting: VecDeque::new(),
            parked: HashMap::new(),
            delayed: BTreeMap::new(),
            queues,
            lost: HashSet::new(),
        }
    }

    /// Applies commands. Passes the ids of withdrawn messages to `on_withdrawn`, for those may be
    /// on their way. Returns how many waiting messages were removed.
    pub(super) fn follow(
        &mut self,
        orders: impl IntoIterator<Item = Order>,
        mut is_withdrawn: impl FnMut(&HashSet<String>),
    ) -> usize {
        let (mut withdrawn, mut forgotten) = (HashSet::new(), 0);
        for order in orders {
            match order {
                Order::Withdraw(id) => drop(withdrawn.insert(id)),
                Order::Publish(message) => {
                    // A later message may have the id of a withdrawn one.
                    if withdrawn.contains(&message.id) {
                        is_withdrawn(&withdrawn);
                        forgotten += self.forget(&withdrawn);
                        withdrawn.clear();
                    }
                    self.waiting.push_back(Held::new(*message));
                }
            }
        }
        if !withdrawn.is_empty() {
            is_withdrawn(&withdrawn);
            forgotten += self.forget(&withdrawn);
        }
        forgotten
    }

    fn forget(&mut self, ids: &HashSet<String>) -> usize {
        let is_meant = |held: &Held| ids.contains(&held.message.id);
        let mut forgotten = 0;
        for queue in self.parked.values_mut().chain([&mut self.waiting]) {
            let before = queue.len();
            queue.retain(|held| !is_meant(held));
            forgotten += before - queue.len();
        }
        let before = self.delayed.len();
        self.delayed.retain(|_, held| !is_meant(held));
        forgotten + before - self.delayed.len()
    }
}
