//! The event log of the stub manager over AMQP, which identifies messages by their correlation ids.

use super::super::event_log::{EventLog, ObservedEvent, Reply};
use crate::text::Text;
use engine::text::shorten;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// An event log that finds the number of a message by its correlation id. Clones share the log.
#[derive(Clone, Default)]
pub(super) struct MessageLog {
    log: EventLog,
    /// The numbers of the messages of the test, by correlation id.
    numbers: Rc<RefCell<HashMap<String, usize>>>,
}

impl MessageLog {
    pub(super) fn new(log: EventLog) -> MessageLog {
        MessageLog { log, ..MessageLog::default() }
    }

    /// Registers a message of the test.
    pub(super) fn register(&self, correlation_id: String, number: usize) {
        self.numbers.borrow_mut().insert(correlation_id, number);
    }

    /// Logs an event of a message, unless the message is not one of the test.
    pub(super) fn add(&self, correlation_id: &str, event: ObservedEvent) {
        if let Some(number) = self.numbers.borrow().get(correlation_id) {
            self.log.add(Some(*number), event);
        }
    }

    /// Logs a reply. A reply to an unknown message is logged as unexpected.
    pub(super) fn add_reply(&self, correlation_id: &str, reply: Reply) {
        if self.numbers.borrow().contains_key(correlation_id) {
            self.add(correlation_id, ObservedEvent::Replied(reply));
        } else {
            let id = shorten(correlation_id);
            self.add_unexpected(&format!("a reply with the correlation_id {id:?}"));
        }
    }

    /// Logs that a worker consumes from the queue or gets a message from it.
    pub(super) fn add_connected(&self) {
        self.log.add(None, ObservedEvent::Connected);
    }

    /// Logs what no worker should do.
    pub(super) fn add_unexpected(&self, description: &str) {
        self.log.add(None, ObservedEvent::Unexpected(Text::new(description)));
    }
}
