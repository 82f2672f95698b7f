//! Which records of a partition have no verdict. They tell the position: all before it is done.

use std::collections::BTreeSet;

/// The records of one partition.
#[derive(Debug)]
pub(super) struct Window {
    /// The offset behind the last record that was read.
    next: i64,
    /// The records without a verdict.
    unsettled: BTreeSet<i64>,
    /// The position that was told last; none: it must be told.
    told: Option<i64>,
}

impl Window {
    /// Nothing is read yet; the first record has this offset, or a higher one. `is_told`: the
    /// journal knows.
    pub(super) fn new(next: i64, is_told: bool) -> Window {
        Window { next, unsettled: BTreeSet::new(), told: is_told.then_some(next) }
    }

    /// A record was read. False: it was before, and a verdict will come or has come.
    pub(super) fn read(&mut self, offset: i64) -> bool {
        if offset < self.next {
            return false;
        }
        // Offsets have gaps, where records were of transactions or compacted away.
        self.next = offset.saturating_add(1);
        self.unsettled.insert(offset);
        true
    }

    /// A record is done.
    pub(super) fn settle(&mut self, offset: i64) {
        self.unsettled.remove(&offset);
    }

    /// Where reading goes on.
    pub(super) fn next(&self) -> i64 {
        self.next
    }

    /// All before it is done.
    pub(super) fn position(&self) -> i64 {
        self.unsettled.first().copied().unwrap_or(self.next)
    }

    /// Whether nothing waits for a verdict.
    pub(super) fn is_settled(&self) -> bool {
        self.unsettled.is_empty()
    }

    /// The position, if it is another than the one told last.
    pub(super) fn news(&mut self) -> Option<i64> {
        let position = self.position();
        (self.told.replace(position) != Some(position)).then_some(position)
    }
}

/// Where the reading of a partition begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// At the position that is known, or, where none is, with the first record.
    At(i64),
    /// With the first record; those that were to be read are gone.
    Lost(i64),
}

impl Begin {
    /// With the position that is known, in a partition that has the records from `low` up to
    /// `high`, which it does not have.
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
