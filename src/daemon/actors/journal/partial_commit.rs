//! Partial commits, for when the disk has too little space for all waiting records. The records of
//! cancelled jobs are committed first, because these jobs can then be deleted to free space. If
//! there are none, or they do not fit either, the number of records is halved until they fit.

use crate::actors::inputs::{Append, Outgoing};
use engine::JobState;
use journal::{JobNumber, Journal, JournalError, Record, Remedy};
use std::collections::BTreeSet;
use std::time::Instant;

/// An [`Append`] that waits for the next commit.
pub(super) struct WaitingRecord {
    pub(super) append: Append,
    /// When the journal actor received it.
    pub(super) since: Instant,
}

/// The outcome of a commit.
pub(super) struct CommitOutcome {
    /// How many of the waiting records were committed, counted from the first.
    pub(super) count: usize,
    /// The jobs of these records that were deleted before the commit.
    pub(super) deleted: BTreeSet<JobNumber>,
    /// Why not all records were committed; `None`: all were.
    pub(super) disk_full_error: Option<JournalError>,
}

/// Commits the waiting records, or some of them if the disk is too full for all. Can reorder them.
///
/// # Errors
///
/// Returns an error if nothing was committed.
pub(super) fn append_what_fits(
    store: &mut dyn Journal,
    waiting_records: &mut Vec<WaitingRecord>,
) -> Result<CommitOutcome, JournalError> {
    let mut disk_full_error = None;
    let mut count = waiting_records.len();
    loop {
        let appends = || waiting_records[..count].iter().map(|waiting| &waiting.append);
        let records: Vec<&Record> = appends().filter_map(|append| append.record.as_ref()).collect();
        let jobs_without_record: Vec<JobNumber> =
            appends().filter_map(|append| append.record.is_none().then_some(append.job)).collect();
        match store.append_and_check(&records, &jobs_without_record) {
            Ok(deleted) => return Ok(CommitOutcome { count, deleted, disk_full_error }),
            Err(error) if error.remedy() == Remedy::WaitForSpace && count > 1 => {
                let is_first_failure = disk_full_error.is_none();
                let cancelled_count =
                    if is_first_failure { move_cancelled_first(waiting_records) } else { 0 };
                if (1..count).contains(&cancelled_count) {
                    count = cancelled_count;
                } else if store.is_disk_full() {
                    count /= 2;
                } else {
                    return Err(error);
                }
                disk_full_error = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Moves the records of cancelled jobs before those of other jobs, and returns their number. The
/// records of one job keep their order. The order between jobs does not matter, because an effect
/// of one job on another is sent only after its commit.
fn move_cancelled_first(waiting_records: &mut Vec<WaitingRecord>) -> usize {
    let is_cancellation = |waiting: &&WaitingRecord| {
        let record = waiting.append.record.as_ref();
        record.is_some_and(|record| record.state == Some(JobState::Cancelled))
    };
    let cancelled_jobs: BTreeSet<JobNumber> =
        waiting_records.iter().filter(is_cancellation).map(|waiting| waiting.append.job).collect();
    let (mut cancelled_records, mut other_records): (Vec<_>, Vec<_>) =
        std::mem::take(waiting_records)
            .into_iter()
            .partition(|waiting| cancelled_jobs.contains(&waiting.append.job));
    // A latch waits for the commit of all earlier records, so it moves to the last record.
    if let Some(last_record) = other_records.last_mut() {
        let is_latch = |outgoing: &mut Outgoing| matches!(outgoing, Outgoing::ReleaseLatch(_));
        for cancelled in &mut cancelled_records {
            let latches = cancelled.append.outgoing.extract_if(.., is_latch);
            last_record.append.outgoing.extend(latches);
        }
    }
    let count = cancelled_records.len();
    cancelled_records.append(&mut other_records);
    *waiting_records = cancelled_records;
    count
}
