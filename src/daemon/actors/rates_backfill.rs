//! The backfill of the workflow statistics: after a start, the creations and ends of root jobs from
//! the time before the start are read from the journal, the newest first.

use super::inputs::Definitions;
use crate::telemetry::rates::{JobRates, RETENTION_NS};
use base::clock;
use engine::Timestamp;
use journal::{EndedCursor, JournalError, NEWEST_CURSOR, Records};
use std::sync::Arc;

/// How many rows one read transaction covers. A long transaction would block checkpoints of the
/// `-wal`.
const ROWS_PER_READ: u32 = 10_000;

/// The most creations that are read, and the most ends. If there are more creations, only the
/// newest are read. The ends are read workflow by workflow until the limit is reached.
const ROWS_MAX: u32 = 2_000_000;

/// The source and the target of the backfill.
pub(super) struct RatesBackfill {
    pub(super) reader: Arc<dyn Records>,
    pub(super) rates: Arc<JobRates>,
    /// The loaded workflows.
    pub(super) definitions: Arc<Definitions>,
    /// When the process started. Later creations and ends are counted by the job actors.
    pub(super) process_started: Timestamp,
}

/// Starts the backfill on a thread of its own.
pub(super) fn start(backfill: RatesBackfill) {
    let result = std::thread::Builder::new().name("refill".to_owned()).spawn(move || {
        let started = clock::instant();
        match read_journal(&backfill) {
            Ok(jobs) => {
                let elapsed_ms = started.elapsed().as_millis();
                tracing::debug!(jobs, elapsed_ms, "statistics read from the journal");
            }
            // This also happens if the manager is stopped during the backfill. It only makes the
            // statistics incomplete.
            Err(error) => tracing::debug!(%error, "statistics not read from the journal"),
        }
    });
    if let Err(error) = result {
        tracing::warn!(%error, "no thread for the statistics of the time before the start");
    }
}

/// Reads the creations and ends, and returns how many creations were read.
fn read_journal(backfill: &RatesBackfill) -> Result<u32, JournalError> {
    let RatesBackfill { reader, rates, definitions, process_started } = backfill;
    let period_start = Timestamp(process_started.0.saturating_sub(RETENTION_NS));
    let is_in_period = |time: Timestamp| time >= period_start && time < *process_started;
    let (mut creation_count, mut cursor) = (0, NEWEST_CURSOR);
    while creation_count < ROWS_MAX {
        let mut has_recent = false;
        let next_cursor =
            reader.for_each_creation(cursor, ROWS_PER_READ, &mut |workflow, created| {
                creation_count += 1;
                has_recent |= created >= period_start;
                if is_in_period(created) {
                    rates.record_past_created(workflow, created);
                }
            })?;
        match next_cursor {
            // The rows are in the order of creation, the newest first. If no row of a page is
            // recent, no older row is, unless the clock was set.
            Some(next_cursor) if has_recent => cursor = next_cursor,
            Some(_) | None => break,
        }
    }
    let mut workflows: Vec<String> = definitions.keys().cloned().collect();
    // Workflows that are no longer loaded can still have jobs.
    let running = reader.count_running_root_jobs()?;
    workflows.extend(
        running.into_iter().map(|(name, _)| name).filter(|name| !definitions.contains_key(name)),
    );
    let mut end_count = 0;
    for workflow in workflows {
        let mut cursor = EndedCursor::NEWEST;
        while end_count < ROWS_MAX {
            let next_cursor = reader.for_each_end(
                &workflow,
                period_start,
                cursor,
                ROWS_PER_READ,
                &mut |state, created, ended| {
                    end_count += 1;
                    if is_in_period(ended) {
                        rates.record_past_ended(&workflow, ended, state, ended.0 - created.0);
                    }
                },
            )?;
            let Some(next_cursor) = next_cursor else { break };
            cursor = next_cursor;
        }
    }
    Ok(creation_count)
}
