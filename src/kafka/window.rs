//! Tracks which records of a partition are not settled. The settled offset follows from them: all
//! before it is done.

use std::collections::BTreeSet;

/// The records of one partition.
#[derive(Debug)]
pub(super) struct PartitionWindow {
    /// The offset after the last record that was read.
    next: i64,
    /// The records that are not settled.
    unsettled: BTreeSet<i64>,
    /// The settled offset that was reported last; `None`: it must be reported.
    reported: Option<i64>,
}

impl PartitionWindow {
    /// Creates a window before its first record, which has this offset or a higher one.
    /// `is_journaled` says whether the journal has the offset.
    pub(super) fn new(next: i64, is_journaled: bool) -> PartitionWindow {
        PartitionWindow { next, unsettled: BTreeSet::new(), reported: is_journaled.then_some(next) }
    }

    /// Records that a record was read. Returns `false` if it was read before.
    pub(super) fn record_read(&mut self, offset: i64) -> bool {
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
    pub(super) fn settled_offset(&self) -> i64 {
        self.unsettled.first().copied().unwrap_or(self.next)
    }

    /// Returns whether all records are settled.
    pub(super) fn is_settled(&self) -> bool {
        self.unsettled.is_empty()
    }

    /// Returns the settled offset if it has changed since the last report.
    pub(super) fn take_change(&mut self) -> Option<i64> {
        let position = self.settled_offset();
        (self.reported.replace(position) != Some(position)).then_some(position)
    }
}

/// Where reading of a partition starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartOffset {
    /// At the journaled offset, or, if there is none, at the first record.
    At(i64),
    /// At the first record, because the records that were to be read are lost.
    AfterLoss(i64),
}

impl StartOffset {
    /// Returns where to start with this journaled offset, in a partition with the records from
    /// `low` up to, and without, `high`.
    pub(super) fn from_known(known: Option<i64>, low: i64, high: i64) -> StartOffset {
        match known {
            None => StartOffset::At(low),
            Some(known) if known < low || known > high => StartOffset::AfterLoss(low),
            Some(known) => StartOffset::At(known),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settled_offset_does_not_pass_an_unsettled_record() {
        let mut window = PartitionWindow::new(10, true);
        assert_eq!(window.take_change(), None);
        for offset in [10, 11, 14, 15] {
            assert!(window.record_read(offset));
        }
        window.settle(11);
        window.settle(15);
        assert_eq!((window.settled_offset(), window.next()), (10, 16));
        assert_eq!(window.take_change(), None);
        window.settle(10);
        assert_eq!((window.take_change(), window.take_change()), (Some(14), None));
        window.settle(14);
        assert_eq!((window.take_change(), window.is_settled()), (Some(16), true));
    }

    #[test]
    fn a_record_is_read_once() {
        let mut window = PartitionWindow::new(0, false);
        assert_eq!(
            window.take_change(),
            Some(0),
            "a position that the journal does not have is told"
        );
        assert!(window.record_read(3) && !window.record_read(3) && !window.record_read(2));
        window.settle(3);
        assert!(!window.record_read(3));
        assert_eq!(window.settled_offset(), 4);
    }

    #[test]
    fn records_before_the_log_and_a_log_that_is_shorter_than_before_are_lost() {
        assert_eq!(StartOffset::from_known(None, 5, 9), StartOffset::At(5));
        assert_eq!(StartOffset::from_known(Some(5), 5, 9), StartOffset::At(5));
        assert_eq!(StartOffset::from_known(Some(9), 5, 9), StartOffset::At(9));
        assert_eq!(
            StartOffset::from_known(Some(4), 5, 9),
            StartOffset::AfterLoss(5),
            "retention took them"
        );
        assert_eq!(
            StartOffset::from_known(Some(10), 5, 9),
            StartOffset::AfterLoss(5),
            "the topic was recreated"
        );
        assert_eq!(StartOffset::from_known(Some(1), 0, 0), StartOffset::AfterLoss(0));
    }
}
