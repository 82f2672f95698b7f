//! Decides which acks to send to the broker: as few as possible, by acknowledging whole prefixes of
//! deliveries at once.

use crate::bus::Verdict;
use std::collections::BTreeMap;

/// What to send to the broker about one delivery, or about a prefix of deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acknowledgement {
    /// Acknowledges this delivery.
    Ack(u64),
    /// Acknowledges this delivery and all before it.
    AckUpTo(u64),
    /// Requeues this delivery.
    Requeue(u64),
}

/// The deliveries of one channel. Their tags count from 1 without gaps.
#[derive(Debug)]
pub(super) struct Window {
    delivered: u64,
    /// Every delivery up to this tag is settled at the broker.
    settled_to: u64,
    /// Deliveries that were settled after an unsettled one, each with whether its ack is still
    /// pending.
    early: BTreeMap<u64, bool>,
    owed: usize,
    owed_max: usize,
}

impl Window {
    /// Creates a window without deliveries. When more than `pending_acks_max` acks wait behind an
    /// unsettled delivery, they are sent one by one.
    pub(super) fn new(owed_max: usize) -> Window {
        Window { delivered: 0, settled_to: 0, early: BTreeMap::new(), owed: 0, owed_max }
    }

    pub(super) fn deliver(&mut self, tag: u64) {
        self.delivered = tag;
    }

    /// Returns how many deliveries are not settled.
    pub(super) fn unsettled(&self) -> usize {
        usize::try_from(self.delivered - self.settled_to).unwrap_or(usize::MAX) - self.early.len()
    }

    /// Returns whether acks wait behind an unsettled delivery.
    pub(super) fn owes(&self) -> bool {
        self.owed > 0
    }

    /// Settles a delivery. What must be sent at once is pushed to `answers`.
    pub(super) fn settle(
        &mut self,
        tag: u64,
        verdict: Verdict,
        answers: &mut Vec<Acknowledgement>,
    ) {
        match verdict {
            Verdict::Ack => {
                self.early.insert(tag, true);
                self.owed += 1;
            }
            Verdict::Requeue => {
                self.early.insert(tag, false);
                answers.push(Acknowledgement::Requeue(tag));
            }
        }
    }

    /// Ends a burst of settlements, and pushes what must be sent now to `answers`. With `all`, no
    /// ack is held back.
    pub(super) fn flush(&mut self, all: bool, answers: &mut Vec<Acknowledgement>) {
        let mut acked = None;
        while let Some(owed) = self.early.remove(&(self.settled_to + 1)) {
            self.settled_to += 1;
            if owed {
                self.owed -= 1;
                // A requeued delivery must never be acknowledged: the broker no longer knows its
                // tag and would close the channel.
                acked = Some(self.settled_to);
            }
        }
        answers.extend(acked.map(Acknowledgement::AckUpTo));
        if all || self.owed > self.owed_max {
            for (tag, owed) in self.early.iter_mut().filter(|(_, owed)| **owed) {
                *owed = false;
                answers.push(Acknowledgement::Ack(*tag));
            }
            self.owed = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(delivered: u64, owed_max: usize) -> Window {
        let mut window = Window::new(owed_max);
        (1..=delivered).for_each(|tag| window.deliver(tag));
        window
    }

    fn take(window: &mut Window, verdicts: &[(u64, Verdict)], all: bool) -> Vec<Acknowledgement> {
        let mut answers = Vec::new();
        verdicts.iter().for_each(|(tag, verdict)| window.settle(*tag, *verdict, &mut answers));
        window.flush(all, &mut answers);
        answers
    }

    #[test]
    fn a_prefix_is_acknowledged_at_once() {
        let mut window = window(5, 10);
        assert_eq!(
            take(&mut window, &[(2, Verdict::Ack), (1, Verdict::Ack), (3, Verdict::Ack)], false),
            [Acknowledgement::AckUpTo(3)]
        );
        assert_eq!(window.unsettled(), 2);
    }

    #[test]
    fn acks_behind_a_gap_wait_for_it_to_close() {
        let mut window = window(5, 10);
        assert_eq!(take(&mut window, &[(2, Verdict::Ack), (4, Verdict::Ack)], false), []);
        assert!(window.owes());
        assert_eq!(take(&mut window, &[(1, Verdict::Ack)], false), [Acknowledgement::AckUpTo(2)]);
        assert_eq!(take(&mut window, &[(3, Verdict::Ack)], false), [Acknowledgement::AckUpTo(4)]);
        assert!(!window.owes());
    }

    #[test]
    fn too_many_acks_behind_a_gap_go_out_one_by_one() {
        let mut window = window(5, 2);
        assert_eq!(
            take(&mut window, &[(3, Verdict::Ack), (5, Verdict::Ack), (2, Verdict::Ack)], false),
            [Acknowledgement::Ack(2), Acknowledgement::Ack(3), Acknowledgement::Ack(5)]
        );
        assert_eq!(take(&mut window, &[(1, Verdict::Ack)], false), [Acknowledgement::AckUpTo(1)]);
        assert_eq!((window.unsettled(), window.owes()), (1, false));
    }

    #[test]
    fn a_requeued_delivery_is_told_at_once_and_never_acknowledged() {
        let mut window = window(3, 10);
        assert_eq!(
            take(&mut window, &[(1, Verdict::Ack), (2, Verdict::Requeue)], false),
            [Acknowledgement::Requeue(2), Acknowledgement::AckUpTo(1)]
        );
        assert_eq!(
            take(&mut window, &[(3, Verdict::Requeue)], false),
            [Acknowledgement::Requeue(3)]
        );
        assert_eq!(window.unsettled(), 0);
    }

    #[test]
    fn at_the_end_nothing_stays_behind() {
        let mut window = window(3, 10);
        assert_eq!(take(&mut window, &[(3, Verdict::Ack)], true), [Acknowledgement::Ack(3)]);
        assert_eq!((window.unsettled(), window.owes()), (2, false));
    }
}
