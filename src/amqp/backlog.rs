//! The publications that wait, whichever connection there is.

use super::publisher_connection::PendingPublication;
use bus::Publication;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use tokio::time::Instant;

/// A command of the bus's owner. Commands are applied in order.
pub(super) enum PublisherCommand {
    Publish(Box<Publication>),
    /// Withdraws the message with this id, unless it was sent.
    Withdraw(String),
}

/// The publications that wait, and the queues that they go to.
pub(super) struct Backlog {
    pub(super) waiting: VecDeque<PendingPublication>,
    /// Messages whose queue is being checked.
    pub(super) parked: HashMap<Arc<str>, VecDeque<PendingPublication>>,
    pub(super) delayed: BTreeMap<(Instant, u64), PendingPublication>,
    /// The queues to check after each reconnect.
    pub(super) known_queues: HashSet<Arc<str>>,
    /// Queues that lost their messages, which is not reported to the manager yet.
    pub(super) lost_queues: HashSet<Arc<str>>,
}

impl Backlog {
    pub(super) fn new(queues: &[Arc<str>]) -> Backlog {
        let queues = queues.iter().cloned().collect();
        Backlog {
            waiting: VecDeque::new(),
            parked: HashMap::new(),
            delayed: BTreeMap::new(),
            known_queues: queues,
            lost_queues: HashSet::new(),
        }
    }

    /// Applies commands. Passes the ids of withdrawn messages to `on_withdrawn`, for those may be
    /// on their way. Returns how many waiting messages were removed.
    pub(super) fn apply(
        &mut self,
        commands: impl IntoIterator<Item = PublisherCommand>,
        mut on_withdrawn: impl FnMut(&HashSet<String>),
    ) -> usize {
        let (mut withdrawn, mut removed) = (HashSet::new(), 0);
        for command in commands {
            match command {
                PublisherCommand::Withdraw(id) => drop(withdrawn.insert(id)),
                PublisherCommand::Publish(message) => {
                    // A later message may have the id of a withdrawn one.
                    if withdrawn.contains(&message.id) {
                        on_withdrawn(&withdrawn);
                        removed += self.remove(&withdrawn);
                        withdrawn.clear();
                    }
                    self.waiting.push_back(PendingPublication::new(*message));
                }
            }
        }
        if !withdrawn.is_empty() {
            on_withdrawn(&withdrawn);
            removed += self.remove(&withdrawn);
        }
        removed
    }

    fn remove(&mut self, ids: &HashSet<String>) -> usize {
        let is_match = |pending: &PendingPublication| ids.contains(&pending.message.id);
        let mut removed = 0;
        for queue in self.parked.values_mut().chain([&mut self.waiting]) {
            let before = queue.len();
            queue.retain(|pending| !is_match(pending));
            removed += before - queue.len();
        }
        let before = self.delayed.len();
        self.delayed.retain(|_, pending| !is_match(pending));
        removed + before - self.delayed.len()
    }
}
