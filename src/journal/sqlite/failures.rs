//! The table `failures`: the failed jobs and child jobs, for searches and counts by reason; and the
//! table `tolerated`: the completed jobs with failed items. They are projections, like the status
//! tables.

use super::file_rows::FileRows;
use crate::failures::FailureChange;
use crate::record::JobNumber;
use crate::recover::JobRows;
use crate::tree_rebuilder::TreeRebuilder;
use engine::ReasonId;
use rusqlite::{Connection, params};

const INSERT_FAILURE: &str = "INSERT INTO failures(job, root, reason, workflow, ended)
  SELECT number, root, ?2, workflow, ended FROM jobs WHERE number = ?1 AND ended IS NOT NULL";

const INSERT_TOLERATED: &str = "INSERT INTO tolerated(job, workflow, is_root)
  SELECT number, workflow, parent IS NULL FROM jobs WHERE number = ?1";

/// Selects the completed jobs with child jobs that have no result, tree by tree.
const SELECT_SUSPECTS: &str = "SELECT number FROM jobs WHERE state = 'completed'
  AND number IN (
    SELECT parent FROM jobs WHERE parent IS NOT NULL AND state IN ('failed', 'cancelled'))
  ORDER BY root, number";

/// Writes a change, if the job exists.
pub(super) fn write(
    connection: &Connection,
    job: JobNumber,
    change: FailureChange,
) -> rusqlite::Result<()> {
    delete(connection, job)?;
    match change {
        FailureChange::Cleared => 0,
        FailureChange::Tolerated => connection.prepare_cached(INSERT_TOLERATED)?.execute([job])?,
        FailureChange::Failed(ReasonId(reason)) => {
            connection.prepare_cached(INSERT_FAILURE)?.execute(params![job, reason])?
        }
    };
    Ok(())
}

/// Deletes what the tables have of a job.
pub(super) fn delete(connection: &Connection, job: JobNumber) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM failures WHERE job = ?1")?.execute([job])?;
    connection.prepare_cached("DELETE FROM tolerated WHERE job = ?1")?.execute([job]).map(|_| ())
}

/// Writes the failures of all failed jobs, in a file that was written before there was the table.
/// A job whose record is damaged is left out: it has to be found another way.
pub(super) fn fill(connection: &Connection, file: &str) -> rusqlite::Result<()> {
    let mut insert = connection.prepare(INSERT_FAILURE)?;
    let mut select = connection.prepare("SELECT number FROM jobs WHERE state = 'failed'")?;
    let mut rows = select.query([])?;
    let rows_of_jobs = FileRows { connection, file, is_projected: true };
    while let Some(row) = rows.next()? {
        let job: JobNumber = row.get(0)?;
        if let Ok(reason) = rows_of_jobs.end_reason(job)
            && let FailureChange::Failed(ReasonId(id)) =
                FailureChange::from_reason(reason.as_deref())
        {
            insert.execute(params![job, id])?;
        }
    }
    Ok(())
}

/// Writes the completed jobs with failed items, in a file that was written before there was the
/// table. Jobs with damaged records are left out here too.
pub(super) fn fill_tolerated(connection: &Connection, file: &str) -> rusqlite::Result<()> {
    let suspects = connection
        .prepare(SELECT_SUSPECTS)?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<JobNumber>>>()?;
    if !suspects.is_empty() {
        tracing::info!(file, jobs = suspects.len(), "jobs with failed items are searched");
    }
    let rows = FileRows { connection, file, is_projected: true };
    let mut rebuilder = TreeRebuilder::new(&rows);
    for job in suspects {
        if let Ok(Some(row)) = rows.find_job(job)
            && let Ok(snapshot) = rebuilder.rebuild(&row)
            && snapshot.job.has_failed_items()
        {
            connection.execute(INSERT_TOLERATED, [job])?;
        }
    }
    Ok(())
}
