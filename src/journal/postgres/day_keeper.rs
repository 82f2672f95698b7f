//! What is known of the days: which are being dropped, and what is under way in the background.

use super::day_survey::Survey;
use crate::numbers::Day;
use crate::record::JobNumber;
use base::clock;
use std::collections::BTreeSet;
use std::sync::mpsc;
use std::time::Instant;

/// The state of the days.
pub(super) struct DayKeeper {
    /// The days that are being dropped. Their jobs take no more input.
    pub(super) closing: BTreeSet<Day>,
    pub(super) work: Work,
    /// When the days were surveyed last, or the journal was opened.
    pub(super) surveyed: Instant,
    /// The newest day for which the server's statistics were updated.
    pub(super) analyzed: Day,
}

/// What is under way in the background. A receiver is disconnected if it has failed.
pub(super) enum Work {
    None,
    Survey(mpsc::Receiver<Survey>),
    /// The result is the days that can be dropped.
    Detach(mpsc::Receiver<BTreeSet<Day>>),
}

impl DayKeeper {
    pub(super) fn new() -> DayKeeper {
        let today = Day::of_time(clock::now());
        DayKeeper {
            closing: BTreeSet::new(),
            work: Work::None,
            surveyed: clock::instant(),
            analyzed: today,
        }
    }

    /// Returns whether a survey counts jobs now.
    pub(super) fn is_surveying(&self) -> bool {
        matches!(self.work, Work::Survey(_))
    }

    /// Returns whether a job is of a day that is being dropped.
    pub(super) fn is_closing(&self, job: JobNumber) -> bool {
        self.closing.contains(&Day::of_number(job))
    }

    /// Returns an SQL condition that a job is of no day that is being dropped.
    pub(super) fn kept_condition(&self) -> String {
        let outside =
            |day: &Day| format!(" AND NOT (number >= {} AND number < {})", day.first(), day.end());
        self.closing.iter().map(outside).collect()
    }
}
