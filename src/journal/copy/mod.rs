//! Copies a journal from a file into a database, or back, while no manager runs on either.
//!
//! Definitions, jobs, decisions, notices and offsets are copied as they are stored. What follows
//! from the decisions of a job, its state and the statuses of its steps, is derived again from the
//! copy. Every job of the copy is read back and compared with its original (`check`). Only then is
//! the copy complete: until then no manager starts on it.
//!
//! [`CopyReader`] and [`CopyWriter`] are implemented for both storages.

mod check;
mod progress;
mod transfer;

use crate::error::{JournalError, Remedy};
use crate::postgres::{self, PostgresOptions};
use crate::record::{JobNumber, Notice, NoticeNumber, StoredOffset};
use crate::recover::{JobRow, JobRows};
use crate::sqlite;
use engine::{Definition, JobId, JobState, Timestamp};
use std::path::PathBuf;
use std::sync::Arc;

pub use progress::{CopyCounts, CopyProgress};

/// Where a journal is.
pub enum JournalPlace {
    /// In a file.
    File(PathBuf),
    /// In a database.
    Database(Box<PostgresOptions>),
}

/// What a copy has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopySummary {
    /// The number of jobs and child jobs.
    pub jobs: u64,
    /// The number of decisions in their records.
    pub decisions: u64,
    /// The number of jobs and child jobs that take input: a manager continues these.
    pub open_jobs: u64,
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

/// Copies everything, and compares the copy with its original. Returns what the copy has.
pub(crate) fn copy_and_check(
    source: &dyn CopyReader,
    target: &mut dyn CopyWriter,
    progress: &CopyProgress,
) -> Result<CopySummary, JournalError> {
    progress.set_total(source.count_jobs()?);
    let original = transfer::transfer(source, target, progress)?;
    check::check(source.journal(), &original, target, progress)?;
    Ok(original.summary)
}

fn refuse(journal: String, problem: &str) -> JournalError {
    JournalError::Failed { file: journal, problem: problem.to_owned(), remedy: Remedy::Exit }
}

/// A decision, with the JSON of its entries as it is stored.
pub(crate) struct DecisionText {
    pub(crate) job: JobNumber,
    /// The number of its first entry, counted from 0 within the job.
    pub(crate) first: u64,
    pub(crate) at: Timestamp,
    pub(crate) body: String,
}

/// A row of `jobs`.
pub(crate) struct StoredJobRow {
    pub(crate) row: JobRow,
    pub(crate) state: JobState,
    /// When the job ended; `None`: it has not ended.
    pub(crate) ended: Option<Timestamp>,
    /// Whether the job takes input.
    pub(crate) is_open: bool,
}

/// A row of `jobs` that is inserted, with the full name of its workflow.
pub(crate) struct NewJobRow {
    pub(crate) job: StoredJobRow,
    pub(crate) workflow: Arc<str>,
}

/// The statuses of a root job, derived from its decisions.
pub(crate) struct DerivedStatuses {
    pub(crate) job: JobNumber,
    pub(crate) id: JobId,
    pub(crate) created: Timestamp,
    /// The number of its definition.
    pub(crate) definition: i64,
    pub(crate) state: JobState,
    /// When its state or a status last changed.
    pub(crate) updated: Timestamp,
    /// The status of each step, in the order of the definition.
    pub(crate) words: Vec<Arc<str>>,
}

/// The order in which jobs are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobOrder {
    /// By number, so in the order of their creation.
    ByNumber,
    /// By root job, then by number.
    ByTree,
}

/// The order in which decisions are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecisionOrder {
    /// In the order of their commits.
    ByCommit,
    /// By job, then by entry.
    ByJob,
}

/// A callback that receives one row after another. An error of it ends the reading.
pub(crate) type RowHandler<'a, T> = &'a mut dyn FnMut(T) -> Result<(), JournalError>;

/// Reads all of a journal, in one snapshot. Each row is verified when it is read.
pub(crate) trait CopyReader {
    /// Returns the name of the journal, for messages.
    fn journal(&self) -> &str;
    /// Returns the rows from which jobs are rebuilt.
    fn rows(&self) -> &dyn JobRows;
    /// Says which jobs will be rebuilt next, in this order.
    fn announce(&self, jobs: &[StoredJobRow]);
    fn count_jobs(&self) -> Result<u64, JournalError>;
    /// Calls `handler` with the number and the JSON of each definition, ordered by number.
    fn for_each_definition(
        &self,
        handler: RowHandler<'_, (i64, String)>,
    ) -> Result<(), JournalError>;
    fn for_each_job(
        &self,
        order: JobOrder,
        handler: RowHandler<'_, StoredJobRow>,
    ) -> Result<(), JournalError>;
    fn for_each_decision_text(
        &self,
        order: DecisionOrder,
        handler: RowHandler<'_, DecisionText>,
    ) -> Result<(), JournalError>;
    /// Returns at most `limit` notices with numbers above `after`, in order.
    fn load_notices(
        &self,
        after: NoticeNumber,
        limit: u32,
    ) -> Result<Vec<(NoticeNumber, Notice)>, JournalError>;
    /// Returns the offsets of all buses, ordered by bus, topic and partition.
    fn load_all_offsets(&self) -> Result<Vec<StoredOffset>, JournalError>;
}

/// Writes a journal that no manager can start on yet.
pub(crate) trait CopyWriter {
    /// Calls `read` with what is written.
    fn read_back(
        &mut self,
        read: &mut dyn FnMut(&dyn CopyReader, &mut dyn StatusWriter) -> Result<(), JournalError>,
    ) -> Result<(), JournalError>;
    /// Inserts a definition with this JSON, and returns its number.
    fn insert_definition(
        &mut self,
        definition: &Definition,
        body: &str,
    ) -> Result<i64, JournalError>;
    /// Returns the number that a job has in this journal. Called in the order of the numbers in the
    /// original, and returns increasing numbers.
    fn number_job(&mut self, original: &JobRow) -> JobNumber;
    fn insert_jobs(&mut self, jobs: &[NewJobRow]) -> Result<(), JournalError>;
    /// Inserts decisions of jobs that are inserted, in the order of their commits.
    fn insert_decisions(&mut self, decisions: &[DecisionText]) -> Result<(), JournalError>;
    /// Inserts notices behind the first `before` ones.
    fn insert_notices(&mut self, notices: &[Notice], before: u64) -> Result<(), JournalError>;
    fn insert_offsets(&mut self, offsets: &[StoredOffset]) -> Result<(), JournalError>;
    /// Stores when the newest decision was made.
    fn set_newest(&mut self, newest: Timestamp) -> Result<(), JournalError>;
}

/// Writes what is derived from the decisions of root jobs.
pub(crate) trait StatusWriter {
    fn insert_statuses(&mut self, statuses: &[DerivedStatuses]) -> Result<(), JournalError>;
}
