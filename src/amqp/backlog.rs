//! The publications that wait to be sent. They outlive connections.

use super::publisher_connection::PendingPublication;
use bus::Publication;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use tokio::time::Instant;

/// A command to the publisher. Commands are applied in order.
pub(super) enum PublisherCommand {
    Publish(Box<Publication>),
    /// Withdraws the message with this id unless it was sent.
    Withdraw(String),
}

/// The publications that wait to be sent, and what is known of their queues.
pub(super) struct Backlog {
    /// Messages to send as soon as possible, in order.
    pub(super) waiting: VecDeque<PendingPublication>,
    /// Messages that wait until their queue is known to exist, by queue.
    pub(super) parked: HashMap<Arc<str>, VecDeque<PendingPublication>>,
    /// Messages to send again later, by time and a unique number.
    pub(super) delayed: BTreeMap<(Instant, u64), PendingPublication>,
    /// The queues to check after each reconnect.
    pub(super) known_queues: HashSet<Arc<str>>,
    /// Queues that lost their messages, and whose loss is not yet reported to the manager.
    pub(super) lost_queues: HashSet<Arc<str>>,
}

impl Backlog {
    /// Creates an empty backlog that knows these queues.
    pub(super) fn new(queues: &[Arc<str>]) -> Backlog {
        Backlog {
            waiting: VecDeque::new(),
            parked: HashMap::new(),
            delayed: BTreeMap::new(),
            known_queues: queues.iter().cloned().collect(),
            lost_queues: HashSet::new(),
        }
    }

    /// Applies commands in order. Passes the ids of withdrawn messages to `on_withdrawn`, because
    /// some may have been sent already. Returns how many messages were removed from the backlog.
    ///
    /// Withdrawals are collected, because each removal scans the whole backlog.
    pub(super) fn apply(
        &mut self,
        commands: impl IntoIterator<Item = PublisherCommand>,
        mut on_withdrawn: impl FnMut(&HashSet<String>),
    ) -> usize {
        let mut withdrawn_ids = HashSet::new();
        let mut removed_count = 0;
        for command in commands {
            match command {
                PublisherCommand::Withdraw(id) => drop(withdrawn_ids.insert(id)),
                PublisherCommand::Publish(message) => {
                    // A later message may reuse the id of a withdrawn one.
                    if withdrawn_ids.contains(&message.id) {
                        on_withdrawn(&withdrawn_ids);
                        removed_count += self.remove(&withdrawn_ids);
                        withdrawn_ids.clear();
                    }
                    self.waiting.push_back(PendingPublication::new(*message));
                }
            }
        }
        if !withdrawn_ids.is_empty() {
            on_withdrawn(&withdrawn_ids);
            removed_count += self.remove(&withdrawn_ids);
        }
        removed_count
    }

    /// Removes the messages with these ids. Returns how many there were.
    fn remove(&mut self, ids: &HashSet<String>) -> usize {
        let is_match = |pending: &PendingPublication| ids.contains(&pending.message.id);
        let mut removed_count = 0;
        for queue in self.parked.values_mut().chain([&mut self.waiting]) {
            let len_before = queue.len();
            queue.retain(|pending| !is_match(pending));
            removed_count += len_before - queue.len();
        }
        let len_before = self.delayed.len();
        self.delayed.retain(|_, pending| !is_match(pending));
        removed_count + len_before - self.delayed.len()
    }
}
