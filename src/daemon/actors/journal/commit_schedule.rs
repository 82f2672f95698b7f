//! Decides when the next commit is due.

/// If the last commit had at least this many records, the next one waits for more: a commit costs
/// almost the same for a hundred as for ten.
const BATCH_UNDER_LOAD: usize = 8;

/// When the next commit is due.
pub(super) struct CommitSchedule {
    state: State,
    /// How many records the last commit had.
    last_batch_records: usize,
    /// Whether another attempt is scheduled.
    is_retry_scheduled: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing waits.
    Idle,
    /// After the lag, unless an urgent record comes.
    Lagging,
    /// As soon as the mailbox is empty; under load, after `journal.linger`.
    Due,
    /// When there may be room on the disk again, or another program may have released the file.
    Blocked,
    /// Never again: the journal's file is lost.
    Lost,
}

/// What a commit is scheduled behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommitTimer {
    /// The inputs that wait already: their records are the group of the group commit.
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

    /// Notes that something waits for a commit. Returns the timer to start, unless one runs.
    pub(super) fn request(&mut self, is_urgent: bool) -> Option<CommitTimer> {
        match (self.state, is_urgent) {
            (State::Idle | State::Lagging, true) => {
                self.state = State::Due;
                let is_loaded = self.last_batch_records >= BATCH_UNDER_LOAD;
                Some(if is_loaded { CommitTimer::Linger } else { CommitTimer::Mailbox })
            }
            (State::Idle, false) => {
                self.state = State::Lagging;
                Some(CommitTimer::ConfirmLag)
            }
            (State::Lagging, false) | (State::Due | State::Blocked | State::Lost, _) => None,
        }
    }

    /// Returns whether the commit behind this timer is still to be made.
    pub(super) fn is_due(&self, timer: CommitTimer) -> bool {
        match timer {
            CommitTimer::Mailbox | CommitTimer::Linger => self.state == State::Due,
            CommitTimer::ConfirmLag => self.state == State::Lagging,
        }
    }

    /// Returns whether a timer for the next commit runs.
    pub(super) fn is_requested(&self) -> bool {
        matches!(self.state, State::Due | State::Lagging)
    }

    /// Notes that all that waits is being committed.
    pub(super) fn begin_commit(&mut self) {
        self.state = State::Idle;
    }

    /// Notes how many records were committed.
    pub(super) fn end_commit(&mut self, records: usize) {
        self.last_batch_records = records;
    }

    /// Notes that the journal has to wait. Returns whether another attempt must be scheduled.
    pub(super) fn block(&mut self) -> bool {
        self.state = State::Blocked;
        !std::mem::replace(&mut self.is_retry_scheduled, true)
    }

    /// Notes that the scheduled attempt is made.
    pub(super) fn begin_retry(&mut self) {
        self.is_retry_scheduled = false;
    }

    /// Returns whether the journal has to wait.
    pub(super) fn is_blocked(&self) -> bool {
        self.state == State::Blocked
    }

    /// Notes that the journal is lost.
    pub(super) fn lose(&mut self) {
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
    fn one_timer_runs_and_an_urgent_record_overtakes_the_lag() {
        let mut schedule = CommitSchedule::new();
        assert_eq!(schedule.request(false), Some(CommitTimer::ConfirmLag));
        assert_eq!(schedule.request(false), None, "the timer runs");
        assert_eq!(schedule.request(true), Some(CommitTimer::Mailbox));
        assert_eq!(schedule.request(true), None);
        assert!(!schedule.is_due(CommitTimer::ConfirmLag) && schedule.is_due(CommitTimer::Mailbox));
        schedule.begin_commit();
        assert!(!schedule.is_due(CommitTimer::Mailbox), "what was due is committed");
    }

    #[test]
    fn after_a_large_commit_the_next_one_waits_for_more() {
        let mut schedule = CommitSchedule::new();
        for (records, timer) in
            [(BATCH_UNDER_LOAD, CommitTimer::Linger), (BATCH_UNDER_LOAD - 1, CommitTimer::Mailbox)]
        {
            schedule.begin_commit();
            schedule.end_commit(records);
            assert_eq!(schedule.request(true), Some(timer));
        }
    }

    #[test]
    fn while_it_is_blocked_one_attempt_is_scheduled_and_once_it_is_lost_none() {
        let mut schedule = CommitSchedule::new();
        assert!(schedule.block() && !schedule.block() && schedule.is_blocked());
        assert_eq!(schedule.request(true), None, "the attempt commits it");
        schedule.begin_retry();
        assert!(schedule.block(), "it has failed again");
        schedule.lose();
        assert!(schedule.is_lost() && schedule.request(true).is_none());
    }
}
