//! Copies a journal from a file into a database, or back, while no manager runs on either.
//!
//! Definitions, jobs, decisions, notices, offsets, ledgers, trends, rates of limits and controls
//! are copied as they are stored. What follows from the decisions of a job, its state and the
//! statuses of its steps, is derived again from the copy. Every job of the copy is read back and
//! compared with its original (`check`). Only then is the copy complete: until then no manager
//! starts on it.
//!
//! The traits in `rows` are implemented for both storages.

mod check;
pub(crate) mod progress;
pub(crate) mod rows;
pub(crate) mod run;
mod transfer;

use crate::error::{JournalError, Remedy};
use crate::postgres::{self, PostgresOptions};
use crate::sqlite;
use std::path::PathBuf;

pub use progress::{CopyCounts, CopyProgress};
pub use rows::CopySummary;

/// Where a journal is.
pub enum JournalPlace {
    /// In a file.
    File(PathBuf),
    /// In a database.
    Database(Box<PostgresOptions>),
}

/// Copies the journal at `from` to the new journal at `to`, and compares the two. One of them is a
/// file, the other a database. The original is opened as by a start of the manager, which migrates
/// a file of an earlier version, and is not changed otherwise. A copy that fails or is stopped
/// leaves nothing behind. One that was killed leaves something that no manager starts on, and that
/// the next copy removes.
///
/// # Errors
///
/// Returns an error if either journal is in use, if the original is damaged, if there is a journal
/// at `to` already, if both are of one kind, or if the copy was stopped.
pub fn copy_journal(
    from: &JournalPlace,
    to: &JournalPlace,
    progress: &CopyProgress,
) -> Result<CopySummary, JournalError> {
    match (from, to) {
        (JournalPlace::File(from), JournalPlace::Database(to)) => {
            let source = sqlite::FileCopySource::open(from)?;
            postgres::copy_into_database(&source.reader(), (**to).clone(), progress)
        }
        (JournalPlace::Database(from), JournalPlace::File(to)) => {
            postgres::copy_from_database((**from).clone(), |source, bytes| {
                sqlite::copy_into_file(source, to, bytes, progress)
            })
        }
        (JournalPlace::File(from), JournalPlace::File(_)) => Err(refuse(
            from.display().to_string(),
            "both journals are files: use workflow-manager backup, which also works while a \
             manager runs",
        )),
        (JournalPlace::Database(from), JournalPlace::Database(_)) => Err(refuse(
            from.server.to_string(),
            "both journals are databases: stop the manager, and use pg_dump and pg_restore",
        )),
    }
}

fn refuse(journal: String, problem: &str) -> JournalError {
    JournalError::Failed { file: journal, problem: problem.to_owned(), remedy: Remedy::Exit }
}
