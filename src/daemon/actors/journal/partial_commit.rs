//! Partial commits: if the disk has too little space for all waiting records, it commits those of
//! cancelled jobs, so that these jobs can be deleted. If that is not possible, it commits as many
//! of the first records as fit.

use crate::actors::inputs::{Append, Outgoing};
use engine::JobState;
use journal::{JobNumber, Journal, JournalError, Record, Remedy};
use std::collections::BTreeSet;
use std::time::Instant;

/// A record that waits for the commit, or effects without a record that wait for it.
pub(super) struct WaitingRecord {
    pub(super) append: Append,
    /// When the journal actor received it.
    pub(super) since: Instant,
}

/// The outcome of a commit.
pub(super) struct CommitOutcome {
    /// How many of the first records were committed.
    pub(super) count: usize,
    /// The jobs of these records that were deleted before.
    pub(super) deleted: BTreeSet<JobNumber>,
    /// Why not all records were committed; `None`: all were.
    pub(super) disk_full: Option<JournalError>,
}

/// Commits the waiting records, or as many of them as fit on the disk.
///
/// # Errors
///
/// Returns an error if nothing was committed.
pub(super) fn append_what_fits(
    store: &mut dyn Journal,
    waiting: &mut Vec<WaitingRecord>,
) -> Result<CommitOutcome, JournalError> {
    let mut disk_full = None;
    let mut count = waiting.len();
    loop {
        let appends = || waiting[..count].iter().map(|waiting| &waiting.append);
        let records: Vec<&Record> = appends().filter_map(|append| append.record.as_ref()).collect();
        let jobs_without_record: Vec<JobNumber> =
            appends().filter_map(|append| append.record.is_none().then_some(append.job)).collect();
        match store.append_and_check(&records, &jobs_without_record) {
            Ok(deleted) => return Ok(CommitOutcome { count, deleted, disk_full }),
            Err(error) if error.remedy() == Remedy::WaitForSpace && count > 1 => {
                let cancelled_count =
                    if disk_full.is_none() { move_cancelled_first(waiting) } else { 0 };
                if (1..count).contains(&cancelled_count) {
                    count = cancelled_count;
                } else if store.is_disk_full() {
                    count /= 2;
                } else {
                    return Err(error);
                }
                disk_full = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Moves the records of cancelled jobs before those of other jobs, and returns how many they are.
/// The records of one job keep their order. The order between jobs does not matter, because an
/// effect of one job on another is sent only after its commit.
fn move_cancelled_first(waiting: &mut Vec<WaitingRecord>) -> usize {
    let is_cancellation = |waiting: &&WaitingRecord| {
        let record = waiting.append.record.as_ref();
        record.is_some_and(|record| record.state == Some(JobState::Cancelled))
    };
    let cancelled_jobs: BTreeSet<JobNumber> =
        waiting.iter().filter(is_cancellation).map(|waiting| waiting.append.job).collect();
    let (mut cancelled, mut others): (Vec<_>, Vec<_>) = std::mem::take(waiting)
        .into_iter()
        .partition(|waiting| cancelled_jobs.contains(&waiting.append.job));
    // A latch waits for the commit of all records before it, so it is moved to the last record.
    if let Some(last) = others.last_mut() {
        let is_latch = |outgoing: &mut Outgoing| matches!(outgoing, Outgoing::ReleaseLatch(_));
        for waiting in &mut cancelled {
            last.append.outgoing.extend(waiting.append.outgoing.extract_if(.., is_latch));
        }
    }
    let count = cancelled.len();
    cancelled.append(&mut others);
    *waiting = cancelled;
    count
}
