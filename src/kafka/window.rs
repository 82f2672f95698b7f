//! Tracks which records of a partition are unsettled. The settled offset, before which all records
//! are settled, follows from them.

use std::collections::BTreeSet;

/// The unsettled records of one partition.
#[derive(Debug)]
pub(super) struct PartitionWindow {
    /// The offset after the last record that was read.
    next_offset: i64,
    /// The offsets of the records that were read and are not settled.
    unsettled: BTreeSet<i64>,
    /// The settled offset that was reported last; `None` before the first report.
    reported_offset: Option<i64>,
}

impl PartitionWindow {
    /// Creates an empty window of a partition that is read from `next_offset`. `is_journaled` says
    /// whether the journal already has that offset, so that it need not be reported.
    pub(super) fn new(next_offset: i64, is_journaled: bool) -> PartitionWindow {
        PartitionWindow {
            next_offset,
            unsettled: BTreeSet::new(),
            reported_offset: is_journaled.then_some(next_offset),
        }
    }

    /// Adds a record that was read. Returns `false` if it was read before.
    pub(super) fn record_read(&mut self, offset: i64) -> bool {
        if offset < self.next_offset {
            return false;
        }
        // Offsets have gaps where transactions ended or records were compacted away.
        self.next_offset = offset.saturating_add(1);
        self.unsettled.insert(offset);
        true
    }

    /// Marks a record as settled.
    pub(super) fn settle(&mut self, offset: i64) {
        self.unsettled.remove(&offset);
    }

    /// Returns the offset at which reading continues.
    pub(super) fn next_offset(&self) -> i64 {
        self.next_offset
    }

    /// Returns the offset before which all records are settled.
    pub(super) fn settled_offset(&self) -> i64 {
        self.unsettled.first().copied().unwrap_or(self.next_offset)
    }

    /// Returns the settled offset if it has changed since the last report, and counts as that
    /// report.
    pub(super) fn take_changed_offset(&mut self) -> Option<i64> {
        let offset = self.settled_offset();
        (self.reported_offset.replace(offset) != Some(offset)).then_some(offset)
    }
}

/// Where reading of a partition starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartOffset {
    /// At the next offset to read, or, if that is unknown, at the first record.
    At(i64),
    /// At the first record, because unread records were lost.
    AfterLoss(i64),
}

impl StartOffset {
    /// Returns where to start, given the next offset to read (`None`: unknown) and the watermarks
    /// of the partition. The low watermark is the first offset, the high one is the offset after
    /// the last record.
    pub(super) fn from_watermarks(next_offset: Option<i64>, low: i64, high: i64) -> StartOffset {
        match next_offset {
            None => StartOffset::At(low),
            Some(offset) if offset < low || offset > high => StartOffset::AfterLoss(low),
            Some(offset) => StartOffset::At(offset),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settled_offset_does_not_pass_an_unsettled_record() {
        let mut window = PartitionWindow::new(10, true);
        assert_eq!(window.take_changed_offset(), None);
        for offset in [10, 11, 14, 15] {
            assert!(window.record_read(offset));
        }
        window.settle(11);
        window.settle(15);
        assert_eq!((window.settled_offset(), window.next_offset()), (10, 16));
        assert_eq!(window.take_changed_offset(), None);
        window.settle(10);
        assert_eq!((window.take_changed_offset(), window.take_changed_offset()), (Some(14), None));
        window.settle(14);
        assert_eq!(window.take_changed_offset(), Some(16));
    }

    #[test]
    fn a_record_is_read_once() {
        let mut window = PartitionWindow::new(0, false);
        assert_eq!(
            window.take_changed_offset(),
            Some(0),
            "an offset that is not journaled is reported"
        );
        assert!(window.record_read(3) && !window.record_read(3) && !window.record_read(2));
        window.settle(3);
        assert!(!window.record_read(3));
        assert_eq!(window.settled_offset(), 4);
    }

    #[test]
    fn records_before_the_log_and_a_log_that_is_shorter_than_before_are_lost() {
        assert_eq!(StartOffset::from_watermarks(None, 5, 9), StartOffset::At(5));
        assert_eq!(StartOffset::from_watermarks(Some(5), 5, 9), StartOffset::At(5));
        assert_eq!(StartOffset::from_watermarks(Some(9), 5, 9), StartOffset::At(9));
        assert_eq!(
            StartOffset::from_watermarks(Some(4), 5, 9),
            StartOffset::AfterLoss(5),
            "the retention deleted the records"
        );
        assert_eq!(
            StartOffset::from_watermarks(Some(10), 5, 9),
            StartOffset::AfterLoss(5),
            "the topic was recreated"
        );
        assert_eq!(StartOffset::from_watermarks(Some(1), 0, 0), StartOffset::AfterLoss(0));
    }
}
