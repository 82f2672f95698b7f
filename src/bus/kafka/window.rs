//! Tracks which records of a partition are not settled. The settled offset follows from them: all
//! before it is done.

use std::collections::BTreeSet;

/// The records of one partition.
#[derive(Debug)]
pub(super) struct Window {
    /// The offset after the last record that was read.
    next: i64,
    /// The records that are not settled.
    unsettled: BTreeSet<i64>,
    /// The settled offset that was reported last; `None`: it must be reported.
    told: Option<i64>,
}

impl Window {
    /// Creates a window before its first record, which has this offset or a higher one.
    /// `is_journaled` says whether the journal has the offset.
    pub(super) fn new(next: i64, is_told: bool) -> Window {
        Window { next, unsettled: BTreeSet::new(), told: is_told.then_some(next) }
    }

    /// Records that a record was read. Returns `false` if it was read before.
    pub(super) fn read(&mut self, offset: i64) -> bool {
        if offset < self.next {
            return false;
        }
        // Offsets have gaps where transactions ended or records were compacted away.
        self.next = offset.saturating_add(1);
        self.unsettled.insert(offset);
        true
    }

    /// Records that a record is settled.
    pub(super) fn settle(&mut self, offset: i64) {
        self.unsettled.remove(&offset);
    }

    /// Returns the offset at which reading continues.
    pub(super) fn next(&self) -> i64 {
        self.next
    }

    /// Returns the offset before which all records are settled.
    pub(super) fn position(&self) -> i64 {
        self.unsettled.first().copied().unwrap_or(self.next)
    }

    /// Returns whether all records are settled.
    pub(super) fn is_settled(&self) -> bool {
        self.unsettled.is_empty()
    }

    /// Returns the settled offset if it has changed since the last report.
    pub(super) fn news(&mut self) -> Option<i64> {
        let position = self.position();
        (self.told.replace(position) != Some(position)).then_some(position)
    }
}

/// Where reading of a partition starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// At the journaled offset, or, if there is none, at the first record.
    At(i64),
    /// At the first record, because the records that were to be read are lost.
    Lost(i64),
}

impl Begin {
    /// Returns where to start with this journaled offset, in a partition with the records from
    /// `low` up to, and without, `high`.
    pub(super) fn of(known: Option<i64>, low: i64, high: i64) -> Begin {
        match known {
            None => Begin::At(low),
            Some(known) if known < low || known > high => Begin::Lost(low),
            Some(known) => Begin::At(known),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_position_does_not_pass_a_record_without_a_verdict() {
        let mut window = Window::new(10, true);
        assert_eq!(window.news(), None);
        for offset in [10, 11, 14, 15] {
            assert!(window.read(offset));
        }
        window.settle(11);
        window.settle(15);
        assert_eq!((window.position(), window.next()), (10, 16));
        assert_eq!(window.news(), None);
        window.settle(10);
        assert_eq!((window.news(), window.news()), (Some(14), None));
        window.settle(14);
        assert_eq!((window.news(), window.is_settled()), (Some(16), true));
    }

    #[test]
    fn a_record_is_read_once() {
        let mut window = Window::new(0, false);
        assert_eq!(window.news(), Some(0), "a position that the journal does not have is told");
        assert!(window.read(3) && !window.read(3) && !window.read(2));
        window.settle(3);
        assert!(!window.read(3));
        assert_eq!(window.position(), 4);
    }

    #[test]
    fn records_before_the_log_and_a_log_that_is_shorter_than_before_are_lost() {
        assert_eq!(Begin::of(None, 5, 9), Begin::At(5));
        assert_eq!(Begin::of(Some(5), 5, 9), Begin::At(5));
        assert_eq!(Begin::of(Some(9), 5, 9), Begin::At(9));
        assert_eq!(Begin::of(Some(4), 5, 9), Begin::Lost(5), "retention took them");
        assert_eq!(Begin::of(Some(10), 5, 9), Begin::Lost(5), "the topic was made anew");
        assert_eq!(Begin::of(Some(1), 0, 0), Begin::Lost(0));
    }
}
