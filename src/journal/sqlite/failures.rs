//! The table `failures`: the failed jobs and child jobs, for searches and counts by reason. It is a
//! projection, like the status tables.

use super::file_rows::FileRows;
use crate::failures::FailureChange;
use crate::record::JobNumber;
use engine::ReasonId;
use rusqlite::{Connection, params};

/// Writes a change, if the job exists.
pub(super) fn write(
    connection: &Connection,
    job: JobNumber,
    change: FailureChange,
) -> rusqlite::Result<()> {
    match change {
        FailureChange::Cleared => return delete(connection, job),
        FailureChange::Failed(ReasonId(reason)) => connection
            .prepare_cached(
                "INSERT OR REPLACE INTO failures(job, root, reason, workflow, ended)
                 SELECT number, root, ?2, workflow, ended FROM jobs
                 WHERE number = ?1 AND ended IS NOT NULL",
            )?
            .execute(params![job, reason])?,
    };
    Ok(())
}

/// Deletes the failure of a job.
pub(super) fn delete(connection: &Connection, job: JobNumber) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM failures WHERE job = ?1")?.execute([job]).map(|_| ())
}

/// Writes the failures of all failed jobs, in a file that was written before there was the table.
/// A job whose record is damaged is left out: it has to be found another way.
pub(super) fn fill(connection: &Connection, file: &str) -> rusqlite::Result<()> {
    let mut select = connection.prepare("SELECT number FROM jobs WHERE state = 'failed'")?;
    let mut rows = select.query([])?;
    let rows_of_jobs = FileRows { connection, file, is_projected: true };
    while let Some(row) = rows.next()? {
        let job = row.get(0)?;
        if let Ok(reason) = rows_of_jobs.end_reason(job) {
            write(connection, job, FailureChange::from_reason(reason.as_deref()))?;
        }
    }
    Ok(())
}
