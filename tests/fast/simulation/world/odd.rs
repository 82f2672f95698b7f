//! What workers and strangers send that they should not, and the messages of callers.

use super::super::broker::{Broker, CallProperties, Reply};
use super::{Turn, World};

impl World {
    /// A worker that answers twice, that dies before or after its answer, or that takes the newest
    /// first.
    pub(super) fn odd_worker(&mut self) -> Option<Turn> {
        if self.broker.working.is_empty() {
            return None;
        }
        let at = self.rng.usize(0..self.broker.working.len());
        let (answers, dies) = match self.rng.u32(0..3) {
            0 => (2, false),
            1 => (1, true),
            _ => (0, true),
        };
        let held = self.broker.working.swap_remove(at);
        let replies = (0..answers).filter_map(|_| Broker::reply(&held));
        replies.for_each(|reply| self.broker.take(reply));
        if dies && let Some(queue) = self.broker.queues.get_mut(&held.queue) {
            queue.push_front(held);
        } else if answers == 0 {
            // Its queue is gone, and so is the message: it would be dispatched again once that is
            // noticed.
            self.broker.working.push(held);
        }
        None
    }

    /// A reply that must change nothing.
    pub(super) fn odd_reply(&mut self) -> Reply {
        let known: Vec<String> =
            self.broker.working.iter().map(|held| held.correlation_id.to_string()).collect();
        let some = known.first().cloned().unwrap_or_default();
        let (job, step) = some.split_once(':').unwrap_or(("", "s0"));
        let correlation_id = match self.rng.u32(0..5) {
            0 => None,
            1 => Some("no correlation id of ours".to_owned()),
            2 => Some(format!("6f1c1f0e-9a30-4c1f-8d3a-0b8d2a52c1ff:{step}")),
            3 => Some(format!("{job}:no-such-step")),
            _ => {
                return Reply {
                    correlation_id: Some(some),
                    attempt: None,
                    kind: Some("progress".to_owned()),
                    dead_letter: None,
                    body: "{\"progress\":0.5}".into(),
                    redelivered: false,
                    call: None,
                    offset: None,
                };
            }
        };
        Reply {
            correlation_id,
            attempt: None,
            kind: None,
            dead_letter: None,
            body: "{\"forged\":true}".into(),
            redelivered: false,
            call: None,
            offset: None,
        }
    }
}

/// The correlation id of whoever asks for a job on its workflow's queue.
pub(super) fn caller_id(call: &CallProperties) -> String {
    format!("caller of {}", call.message_id)
}

/// A message on a workflow's queue.
pub(super) fn call_message(correlation_id: String, body: Vec<u8>, call: CallProperties) -> Reply {
    Reply {
        correlation_id: Some(correlation_id),
        attempt: None,
        kind: None,
        dead_letter: None,
        body: body.into(),
        redelivered: false,
        call: Some(call),
        offset: None,
    }
}
