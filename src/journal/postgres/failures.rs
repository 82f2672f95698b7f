//! The table `failures`: the failed jobs and child jobs, for searches and counts by reason; and the
//! table `tolerated`: the completed jobs with failed items.

use super::commit_connection::BatchStatement;
use super::connection::{Connection, params};
use crate::failures::FailureChange;
use crate::record::JobNumber;
use engine::{Entry, ReasonId};
use std::collections::{BTreeMap, HashMap};
use tokio_postgres::Error;

/// Sets the failures of jobs that exist.
const SET_FAILURES: &str = "
INSERT INTO failures(job, root, reason, workflow, ended)
SELECT u.job, j.root, u.reason, j.workflow, j.ended
FROM unnest($1::bigint[], $2::bigint[]) AS u(job, reason)
CROSS JOIN LATERAL (
  SELECT j.root, j.workflow, j.ended FROM jobs j
  WHERE j.number = u.job AND j.number BETWEEN $3::bigint AND $4::bigint
    AND j.ended IS NOT NULL OFFSET 0) j
ON CONFLICT (job) DO UPDATE SET reason = excluded.reason, ended = excluded.ended";

/// Sets that jobs which exist have completed with failed items.
const SET_TOLERATED: &str = "
INSERT INTO tolerated(job, workflow, is_root)
SELECT u.job, j.workflow, j.parent IS NULL FROM unnest($1::bigint[]) AS u(job)
CROSS JOIN LATERAL (
  SELECT j.workflow, j.parent FROM jobs j
  WHERE j.number = u.job AND j.number BETWEEN $2::bigint AND $3::bigint OFFSET 0) j
ON CONFLICT (job) DO NOTHING";

/// How many failed jobs are looked at together when the table is new: as many rows are in memory.
const FILL_BATCH: i64 = 100;

/// Selects failed jobs in the order of their numbers.
const SELECT_FAILED: &str =
    "SELECT number FROM jobs WHERE state = 'failed' AND number > $1 ORDER BY number LIMIT $2";

/// Selects the last row of each of these jobs, before one of its rows.
const SELECT_LAST_ROWS: &str = "
SELECT u.job, e.first, e.body FROM unnest($1::bigint[], $2::bigint[]) AS u(job, before)
CROSS JOIN LATERAL (
  SELECT body, first FROM entries e
  WHERE e.job = u.job AND e.first < u.before AND e.job BETWEEN $3::bigint AND $4::bigint
  ORDER BY first DESC LIMIT 1) e";

/// Changes of failures by job. The last change of a job counts.
#[derive(Default)]
pub(super) struct FailureChanges(BTreeMap<JobNumber, FailureChange>);

impl FailureChanges {
    pub(super) fn add(&mut self, job: JobNumber, change: FailureChange) {
        self.0.insert(job, change);
    }

    /// Returns the statements. They come after those that change the jobs.
    pub(super) fn statements(self) -> Vec<BatchStatement> {
        let (mut job, mut reason, mut tolerated) = (Vec::new(), Vec::new(), Vec::new());
        let (mut not_failed, mut not_tolerated) = (Vec::new(), Vec::new());
        for (number, change) in self.0 {
            match change {
                FailureChange::Failed(ReasonId(id)) => {
                    job.push(number);
                    reason.push(id);
                    not_tolerated.push(number);
                }
                FailureChange::Tolerated => {
                    tolerated.push(number);
                    not_failed.push(number);
                }
                FailureChange::Cleared => {
                    not_failed.push(number);
                    not_tolerated.push(number);
                }
            }
        }
        let mut statements = Vec::new();
        if !job.is_empty() {
            let (lowest, highest) = bounds(&job);
            let params = params![job, reason, lowest, highest];
            statements.push(BatchStatement::new(SET_FAILURES, params));
        }
        if !tolerated.is_empty() {
            let (lowest, highest) = bounds(&tolerated);
            let params = params![tolerated, lowest, highest];
            statements.push(BatchStatement::new(SET_TOLERATED, params));
        }
        if !not_failed.is_empty() {
            let sql = "DELETE FROM failures WHERE job = ANY($1::bigint[])";
            statements.push(BatchStatement::new(sql, params![not_failed]));
        }
        if !not_tolerated.is_empty() {
            let sql = "DELETE FROM tolerated WHERE job = ANY($1::bigint[])";
            statements.push(BatchStatement::new(sql, params![not_tolerated]));
        }
        statements
    }
}

/// Writes the failures of all failed jobs, after the table was created. A job whose record is
/// damaged is left out: it has to be found another way.
pub(super) async fn fill(connection: &Connection) -> Result<(), Error> {
    let mut last = JobNumber::MIN;
    loop {
        let rows = connection.query(SELECT_FAILED, &params![last, FILL_BATCH]).await?;
        let jobs: Vec<JobNumber> = rows.iter().map(|row| row.get(0)).collect();
        let Some(newest) = jobs.last().copied() else { return Ok(()) };
        last = newest;
        let mut changes = HashMap::new();
        let mut lasts: Vec<(JobNumber, i64)> = jobs.iter().map(|job| (*job, i64::MAX)).collect();
        // Most ends are in the last row of their job, and few rows may follow one.
        while !lasts.is_empty() {
            lasts = load_ends(connection, &lasts, &mut changes).await?;
        }
        let failed = changes.into_iter().filter_map(|(job, change)| match change {
            FailureChange::Failed(ReasonId(id)) => Some((job, id)),
            FailureChange::Tolerated | FailureChange::Cleared => None,
        });
        let (jobs, reasons): (Vec<JobNumber>, Vec<i64>) = failed.unzip();
        let (lowest, highest) = bounds(&jobs);
        connection.query(SET_FAILURES, &params![jobs, reasons, lowest, highest]).await?;
    }
}

/// Reads one row of each of these jobs, which failed, before the one that is named. Adds what
/// follows from those with their ends, and returns the others with what was read of them.
async fn load_ends(
    connection: &Connection,
    lasts: &[(JobNumber, i64)],
    ends: &mut HashMap<JobNumber, FailureChange>,
) -> Result<Vec<(JobNumber, i64)>, Error> {
    let (jobs, before): (Vec<JobNumber>, Vec<i64>) = lasts.iter().copied().unzip();
    let (lowest, highest) = bounds(&jobs);
    let mut without_end = Vec::new();
    for row in connection.query(SELECT_LAST_ROWS, &params![jobs, before, lowest, highest]).await? {
        let (job, first): (JobNumber, i64) = (row.get(0), row.get(1));
        let entries: Vec<Entry> = serde_json::from_str(row.get(2)).unwrap_or_default();
        match entries.iter().rev().find(|entry| entry.job_state().is_some()) {
            Some(end) => {
                let change = FailureChange::from_reason(end.reason().map(|reason| &**reason));
                ends.insert(job, change);
            }
            None => without_end.push((job, first)),
        }
    }
    Ok(without_end)
}

/// Returns the lowest and the highest of these numbers. A statement that names them looks only at
/// the days between them.
fn bounds(numbers: &[JobNumber]) -> (JobNumber, JobNumber) {
    (numbers.iter().copied().min().unwrap_or(0), numbers.iter().copied().max().unwrap_or(0))
}
