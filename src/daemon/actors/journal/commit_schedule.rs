//! The schedule of group commits: when the next one is due.

/// The journal is under load if the last commit had at least this many records. Then the next
/// commit waits for more records, because a commit of a hundred costs hardly more than one of ten.
const RECORDS_UNDER_LOAD: usize = 8;

/// Decides when the next commit is due. The journal actor starts the timers.
pub(super) struct CommitSchedule {
    state: State,
    /// How many records the last commit had.
    last_batch_records: usize,
    /// Whether a retry of the blocked commit is scheduled.
    is_retry_scheduled: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// No record waits.
    Idle,
    /// The commit is due after `journal.confirm_lag`, unless an urgent record arrives before.
    Lagging,
    /// The commit is due after the inputs that wait in the mailbox; under load, after
    /// `journal.linger`.
    Due,
    /// The disk is full, or another program holds the lock. A retry commits the records.
    Blocked,
    /// The journal's files are lost. There is no further commit.
    Lost,
}

/// What the commit waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommitTimer {
    /// The inputs that are already in the mailbox: their records belong to the same group commit.
    Mailbox,
    /// The setting `journal.linger`.
    Linger,
    /// The setting `journal.confirm_lag`.
    ConfirmLag,
}

impl CommitSchedule {
    pub(super) fn new() -> CommitSchedule {
        CommitSchedule { state: State::Idle, last_batch_records: 0, is_retry_scheduled: false }
    }

    /// Requests a commit. Returns the timer that the caller must start; `None`: a timer or a retry
    /// is scheduled already, or the journal is lost.
    pub(super) fn request(&mut self, is_urgent: bool) -> Option<CommitTimer> {
        match (self.state, is_urgent) {
            (State::Idle | State::Lagging, true) => {
                self.state = State::Due;
                let is_under_load = self.last_batch_records >= RECORDS_UNDER_LOAD;
                Some(if is_under_load { CommitTimer::Linger } else { CommitTimer::Mailbox })
            }
            (State::Idle, false) => {
                self.state = State::Lagging;
                Some(CommitTimer::ConfirmLag)
            }
            (State::Lagging, false) | (State::Due | State::Blocked | State::Lost, _) => None,
        }
    }

    /// Returns whether the commit that this timer was started for is still due.
    pub(super) fn is_due(&self, timer: CommitTimer) -> bool {
        match timer {
            CommitTimer::Mailbox | CommitTimer::Linger => self.state == State::Due,
            CommitTimer::ConfirmLag => self.state == State::Lagging,
        }
    }

    /// Returns whether a timer for the next commit is active.
    pub(super) fn is_requested(&self) -> bool {
        matches!(self.state, State::Due | State::Lagging)
    }

    /// Clears the schedule, because a commit begins that takes all waiting records.
    pub(super) fn begin_commit(&mut self) {
        self.state = State::Idle;
    }

    /// Records how many records the commit had.
    pub(super) fn end_commit(&mut self, records: usize) {
        self.last_batch_records = records;
    }

    /// Marks the commit as blocked. Returns whether the caller must schedule a retry.
    pub(super) fn block(&mut self) -> bool {
        self.state = State::Blocked;
        !std::mem::replace(&mut self.is_retry_scheduled, true)
    }

    /// Marks the scheduled retry as begun.
    pub(super) fn begin_retry(&mut self) {
        self.is_retry_scheduled = false;
    }

    /// Returns whether the commit is blocked.
    pub(super) fn is_blocked(&self) -> bool {
        self.state == State::Blocked
    }

    /// Marks the journal as lost.
    pub(super) fn mark_lost(&mut self) {
        self.state = State::Lost;
    }

    /// Returns whether the journal is lost.
    pub(super) fn is_lost(&self) -> bool {
        self.state == State::Lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_timer_is_active_and_an_urgent_record_is_committed_without_the_confirm_lag() {
        let mut schedule = CommitSchedule::new();
        assert_eq!(schedule.request(false), Some(CommitTimer::ConfirmLag));
        assert_eq!(schedule.request(false), None, "a timer is active");
        assert_eq!(schedule.request(true), Some(CommitTimer::Mailbox));
        assert_eq!(schedule.request(true), None);
        assert!(!schedule.is_due(CommitTimer::ConfirmLag) && schedule.is_due(CommitTimer::Mailbox));
        schedule.begin_commit();
        assert!(!schedule.is_due(CommitTimer::Mailbox), "the records are committed already");
    }

    #[test]
    fn after_a_large_commit_the_next_one_waits_for_more_records() {
        let mut schedule = CommitSchedule::new();
        for (records, timer) in [
            (RECORDS_UNDER_LOAD, CommitTimer::Linger),
            (RECORDS_UNDER_LOAD - 1, CommitTimer::Mailbox),
        ] {
            schedule.begin_commit();
            schedule.end_commit(records);
            assert_eq!(schedule.request(true), Some(timer));
        }
    }

    #[test]
    fn a_blocked_commit_has_one_retry_and_a_lost_journal_has_no_commit() {
        let mut schedule = CommitSchedule::new();
        assert!(schedule.block() && !schedule.block() && schedule.is_blocked());
        assert_eq!(schedule.request(true), None, "the retry will commit the record");
        schedule.begin_retry();
        assert!(schedule.block(), "the retry was blocked too");
        schedule.mark_lost();
        assert!(schedule.is_lost() && schedule.request(true).is_none());
    }
}
