//! The backlog of a stream: the messages that wait to be sent to its worker.

use crate::outbound::OutboundPermit;
use crate::wire::ToWorkerBatch;
use crate::wire::to_worker::Say as ToWorkerMessage;
use prost::Message;
use std::collections::VecDeque;
use std::sync::Arc;

/// The length of the queue at which no further message is leased, so that a lease begins only
/// shortly before its message is sent.
const LEASED_AHEAD_MAX: usize = 4;

/// The same for a worker that takes batches: so many messages are sent together.
const LEASED_AHEAD_IN_BATCHES_MAX: usize = 32;

/// How many answers and messages a batch has at most.
const BATCH_MAX: usize = 100;

/// The size of a batch, in bytes, at which nothing further is added to it. Clients of gRPC take
/// 4 MiB unless they are told otherwise.
const BATCH_BYTES_MAX: usize = 256 * 1024;

/// The total size of the queued bodies, in bytes, at which no further message is leased.
const LEASED_AHEAD_BYTES_MAX: usize = 64 * 1024;

/// The messages that wait to be sent to the worker, in order.
pub(super) struct OutboundQueue {
    items: VecDeque<Outbound>,
    /// Whether the worker takes batches.
    batches: bool,
    /// The total size of the queued bodies of step messages.
    bytes: usize,
}

/// A message that waits to be sent.
pub(super) struct Outbound {
    pub(super) message: ToWorkerMessage,
    /// What is known of a step message; `None`: it is another message.
    pub(super) leased: Option<LeasedAhead>,
}

/// A leased step message that waits to be sent.
pub(super) struct LeasedAhead {
    pub(super) id: Arc<str>,
    /// The size of its body, in bytes.
    pub(super) bytes: usize,
    /// The permit for the memory of the message; `None`: it needs none.
    pub(super) permit: Option<OutboundPermit>,
}

impl OutboundQueue {
    pub(super) fn new(batches: bool) -> OutboundQueue {
        OutboundQueue { items: VecDeque::new(), batches, bytes: 0 }
    }

    pub(super) fn push(&mut self, outbound: Outbound) {
        self.bytes += outbound.leased.as_ref().map_or(0, |leased| leased.bytes);
        self.items.push_back(outbound);
    }

    /// Removes and returns what is sent next: a message, or all that can go with it in one batch.
    /// `on_leased` is called for each step message in it.
    pub(super) fn pop(
        &mut self,
        mut on_leased: impl FnMut(LeasedAhead),
    ) -> Option<ToWorkerMessage> {
        let length = if self.batches { self.next_batch_length() } else { 1 };
        let mut batch = ToWorkerBatch::default();
        for _ in 0..length.max(1) {
            let Outbound { message, leased } = self.pop_one()?;
            if let Some(leased) = leased {
                on_leased(leased);
            }
            match message {
                ToWorkerMessage::Taken(taken) if length > 1 => batch.taken.push(taken),
                ToWorkerMessage::Message(message) if length > 1 => batch.messages.push(message),
                message @ (ToWorkerMessage::Taken(_)
                | ToWorkerMessage::Message(_)
                | ToWorkerMessage::Lease(_)
                | ToWorkerMessage::Gone(_)
                | ToWorkerMessage::Drain(_)
                | ToWorkerMessage::Batches(_)
                | ToWorkerMessage::Batch(_)) => return Some(message),
            }
        }
        Some(ToWorkerMessage::Batch(batch))
    }

    /// Returns how many of the next messages can be one batch: answers, and then step messages.
    fn next_batch_length(&self) -> usize {
        let (mut bytes, mut has_messages) = (0, false);
        let fits = |outbound: &&Outbound| {
            let (is_message, message_bytes) = match &outbound.message {
                ToWorkerMessage::Taken(taken) => (false, taken.encoded_len()),
                ToWorkerMessage::Message(message) => (true, message.encoded_len()),
                ToWorkerMessage::Lease(_)
                | ToWorkerMessage::Gone(_)
                | ToWorkerMessage::Drain(_)
                | ToWorkerMessage::Batches(_)
                | ToWorkerMessage::Batch(_) => return false,
            };
            bytes += message_bytes;
            let is_in_order = is_message || !has_messages;
            has_messages = is_message;
            is_in_order && bytes <= BATCH_BYTES_MAX
        };
        self.items.iter().take(BATCH_MAX).take_while(fits).count()
    }

    fn pop_one(&mut self) -> Option<Outbound> {
        let outbound = self.items.pop_front()?;
        self.bytes -= outbound.leased.as_ref().map_or(0, |leased| leased.bytes);
        Some(outbound)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns whether another message may be leased.
    pub(super) fn has_capacity(&self) -> bool {
        let length_max = if self.batches { LEASED_AHEAD_IN_BATCHES_MAX } else { LEASED_AHEAD_MAX };
        self.items.len() < length_max && self.bytes < LEASED_AHEAD_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Drain, StepMessage, Taken};

    fn verdict(receipt: &str) -> Outbound {
        let taken = Taken { receipt: receipt.to_owned(), ..Taken::default() };
        Outbound { message: ToWorkerMessage::Taken(taken), leased: None }
    }

    fn message(receipt: &str, bytes: usize) -> Outbound {
        let (receipt, body) = (receipt.to_owned(), vec![b'x'; bytes].into());
        let message = StepMessage { receipt: receipt.clone(), body, ..StepMessage::default() };
        let leased = Some(LeasedAhead { id: receipt.into(), bytes, permit: None });
        Outbound { message: ToWorkerMessage::Message(message), leased }
    }

    /// What is sent, with a word for each message; those that go together stand together.
    fn sent(batches: bool, items: impl IntoIterator<Item = Outbound>) -> Vec<String> {
        let mut queue = OutboundQueue::new(batches);
        items.into_iter().for_each(|item| queue.push(item));
        let (mut sent, mut leased) = (Vec::new(), Vec::new());
        while let Some(message) = queue.pop(|ahead| leased.push(ahead.id.to_string())) {
            let batch = match message {
                ToWorkerMessage::Batch(batch) => batch,
                ToWorkerMessage::Taken(taken) => {
                    ToWorkerBatch { taken: vec![taken], messages: Vec::new() }
                }
                ToWorkerMessage::Message(message) => {
                    ToWorkerBatch { taken: Vec::new(), messages: vec![message] }
                }
                ToWorkerMessage::Lease(_)
                | ToWorkerMessage::Gone(_)
                | ToWorkerMessage::Drain(_)
                | ToWorkerMessage::Batches(_) => ToWorkerBatch::default(),
            };
            let mut receipts: Vec<_> = batch.taken.into_iter().map(|taken| taken.receipt).collect();
            let messages: Vec<_> = batch.messages.into_iter().map(|sent| sent.receipt).collect();
            assert_eq!(leased, messages, "each step message is marked, and no other");
            leased.clear();
            receipts.extend(messages);
            sent.push(receipts.join(" "));
        }
        assert_eq!(queue.bytes, 0);
        sent
    }

    #[test]
    fn what_waits_goes_together_in_its_order() {
        let items = || {
            let drain = Outbound { message: ToWorkerMessage::Drain(Drain {}), leased: None };
            [
                verdict("a"),
                verdict("b"),
                message("c", 1),
                message("d", 1),
                verdict("e"),
                drain,
                verdict("f"),
            ]
        };
        assert_eq!(sent(true, items()), ["a b c d", "e", "", "f"]);
        assert_eq!(sent(false, items()), ["a", "b", "c", "d", "e", "", "f"]);
    }

    #[test]
    fn a_batch_is_bounded_in_bytes_and_in_length() {
        let half = BATCH_BYTES_MAX / 2;
        let items = [message("a", half), message("b", half), message("c", 4 * half), verdict("d")];
        assert_eq!(sent(true, items), ["a", "b", "c", "d"]);
        let many = sent(true, (0..BATCH_MAX + 2).map(|_| verdict("x")));
        let lengths: Vec<_> = many.iter().map(|batch| batch.split(' ').count()).collect();
        assert_eq!(lengths, [BATCH_MAX, 2]);
    }
}
