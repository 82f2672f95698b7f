//! Fills the statistics of workflows with what happened to root jobs before the process started. It
//! is read from the journal once, after the start, the newest first.

use super::inputs::Definitions;
use crate::telemetry::rates::{JobRates, RETENTION_NS};
use base::clock;
use engine::Timestamp;
use journal::{EndedCursor, JournalError, NEWEST_CURSOR, Records};
use std::sync::Arc;

/// How many rows are read at once: a read holds up the deletion of what it sees.
const ROWS_AT_ONCE: u32 = 10_000;

/// The most creations that are read, and the most ends. If there are more, the newest are read.
const ROWS_MAX: u32 = 2_000_000;

/// What is read, and where it is counted.
pub(super) struct RatesBackfill {
    pub(super) reader: Arc<dyn Records>,
    pub(super) rates: Arc<JobRates>,
    /// The loaded workflows.
    pub(super) definitions: Arc<Definitions>,
    /// When the process started: what happened since is counted as it happens.
    pub(super) started: Timestamp,
}

/// Starts to read, on a thread of its own.
pub(super) fn start(backfill: RatesBackfill) {
    let spawned = std::thread::Builder::new().name("refill".to_owned()).spawn(move || {
        let started = clock::instant();
        match read(&backfill) {
            Ok(jobs) => {
                let elapsed_ms = started.elapsed().as_millis();
                tracing::debug!(jobs, elapsed_ms, "statistics read from the journal");
            }
            // Also when the manager stops meanwhile. Nothing depends on it.
            Err(error) => tracing::debug!(%error, "statistics not read from the journal"),
        }
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "no thread for the statistics of before");
    }
}

/// Reads the journal and returns how many jobs were counted.
fn read(backfill: &RatesBackfill) -> Result<u32, JournalError> {
    let RatesBackfill { reader, rates, definitions: known, started: began } = backfill;
    let since = Timestamp(began.0.saturating_sub(RETENTION_NS));
    let is_before = |at: Timestamp| at >= since && at < *began;
    let (mut jobs, mut below) = (0, NEWEST_CURSOR);
    while jobs < ROWS_MAX {
        let mut is_recent = false;
        let last = reader.for_each_creation(below, ROWS_AT_ONCE, &mut |workflow, created| {
            jobs += 1;
            is_recent |= created >= since;
            if is_before(created) {
                rates.record_past_created(workflow, created);
            }
        })?;
        match last {
            // They are in the order of their creation, except where the clock was set.
            Some(last) if is_recent => below = last,
            Some(_) | None => break,
        }
    }
    let mut workflows: Vec<String> = known.keys().cloned().collect();
    let running = reader.count_running_root_jobs()?;
    workflows
        .extend(running.into_iter().map(|(name, _)| name).filter(|name| !known.contains_key(name)));
    let mut ended = 0;
    for workflow in workflows {
        let mut beyond = EndedCursor::NEWEST;
        while ended < ROWS_MAX {
            let last = reader.for_each_end(
                &workflow,
                since,
                beyond,
                ROWS_AT_ONCE,
                &mut |state, created, at| {
                    ended += 1;
                    if is_before(at) {
                        rates.record_past_ended(&workflow, at, state, at.0 - created.0);
                    }
                },
            )?;
            let Some(last) = last else { break };
            beyond = last;
        }
    }
    Ok(jobs)
}
