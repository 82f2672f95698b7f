//! What is committed while the disk has no room for all records that wait: first those of jobs that
//! are cancelled, which can be deleted then; otherwise as many of the first records as there is
//! room for.

use crate::actors::inputs::{Append, Outgoing};
use engine::JobState;
use journal::{JobNumber, Journal, JournalError, Record, Remedy};
use std::collections::BTreeSet;
use std::time::Instant;

/// A record, or what follows from none, that waits for the commit.
pub(super) struct WaitingRecord {
    pub(super) append: Append,
    pub(super) since: Instant,
}

/// The outcome of an append.
pub(super) struct CommitOutcome {
    /// How many of the first records are committed.
    pub(super) count: usize,
    /// The jobs among these that are deleted.
    pub(super) deleted: BTreeSet<JobNumber>,
    /// Why not all records are committed, if some are left.
    pub(super) disk_full: Option<JournalError>,
}

/// Commits the records that wait, or as many as there is room for.
///
/// # Errors
///
/// Nothing was committed.
pub(super) fn append_what_fits(
    store: &mut dyn Journal,
    waiting: &mut Vec<WaitingRecord>,
) -> Result<CommitOutcome, JournalError> {
    let mut disk_full = None;
    let mut count = waiting.len();
    loop {
        let appends = || waiting[..count].iter().map(|waiting| &waiting.append);
        let records: Vec<&Record> = appends().filter_map(|append| append.record.as_ref()).collect();
        let others: Vec<JobNumber> =
            appends().filter_map(|append| append.record.is_none().then_some(append.job)).collect();
        match store.append_and_check(&records, &others) {
            Ok(deleted) => return Ok(CommitOutcome { count, deleted, disk_full }),
            Err(error) if error.remedy() == Remedy::WaitForSpace && count > 1 => {
                let cancelled = if disk_full.is_none() { move_cancelled_first(waiting) } else { 0 };
                count = match cancelled {
                    first if (1..count).contains(&first) => first,
                    _ if store.is_disk_full() => count / 2,
                    _ => return Err(error),
                };
                disk_full = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Moves the records of cancelled jobs before those of others, and returns how many they are. The
/// records of a job keep their order, and between jobs there is none: what one job decides for
/// another comes after its commit.
fn move_cancelled_first(waiting: &mut Vec<WaitingRecord>) -> usize {
    let is_end = |waiting: &&WaitingRecord| {
        let record = waiting.append.record.as_ref();
        record.is_some_and(|record| record.state == Some(JobState::Cancelled))
    };
    let cancelled: BTreeSet<JobNumber> =
        waiting.iter().filter(is_end).map(|waiting| waiting.append.job).collect();
    let (mut first, mut rest): (Vec<_>, Vec<_>) = std::mem::take(waiting)
        .into_iter()
        .partition(|waiting| cancelled.contains(&waiting.append.job));
    // A latch that waits for all that was decided until then must still do so.
    if let Some(last) = rest.last_mut() {
        let is_latch = |outgoing: &mut Outgoing| matches!(outgoing, Outgoing::ReleaseLatch(_));
        for waiting in &mut first {
            last.append.outgoing.extend(waiting.append.outgoing.extract_if(.., is_latch));
        }
    }
    let count = first.len();
    first.append(&mut rest);
    *waiting = first;
    count
}
