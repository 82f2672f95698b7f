//! The writing end of a journal in a file, shared with its readers: before a reader queries
//! projected tables, it lets the writing end project what is committed.

use super::controls;
use super::reader::Reader;
use super::schema::JournalOptions;
use super::writer::JournalWriter;
use crate::error::{FileLoss, JournalError};
use crate::numbers::JobNumbers;
use crate::query::CellRefill;
use crate::record::{
    Deletion, DiskUsage, JobNumber, NoticeNumber, Record, StoredLedger, StoredOffset, StoredTrend,
};
use crate::recover::JobTreeHandler;
use crate::traits::{Journal, Records};
use engine::{Control, ControlKey, Definition, Millis, RateMark, Timestamp};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The writing end of a journal in a file. There is one per file across all processes: it holds a
/// lock.
pub struct SqliteJournal {
    writer: Arc<Mutex<JournalWriter>>,
    path: PathBuf,
}

impl SqliteJournal {
    /// Opens or creates the journal: acquires the lock, verifies and migrates the file, and
    /// projects what the previous process has left.
    ///
    /// # Errors
    ///
    /// Returns an error if the journal is in use, damaged, unreadable, or of another program or
    /// version.
    pub fn open(options: &JournalOptions) -> Result<SqliteJournal, JournalError> {
        let writer = JournalWriter::open(options)
            .or_else(|error| JournalWriter::open_in_reserve(options, error))?;
        let path = writer.path().to_owned();
        Ok(SqliteJournal { writer: Arc::new(Mutex::new(writer)), path })
    }

    /// Keeps a reserve from now on: a file beside the journal that holds disk space back, so that
    /// jobs can be deleted when the disk is full.
    pub fn with_reserve(self) -> SqliteJournal {
        self.writer().fill_reserve();
        self
    }

    /// Returns the path without symbolic links. Readers must use this path, because SQLite keeps
    /// the `-wal` beside it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a reader that sees everything that is committed.
    pub fn reader(&self) -> Reader {
        let unprojected_ids = self.writer().unprojected_ids.clone();
        Reader::for_writer(&self.path, Arc::downgrade(&self.writer), unprojected_ids)
    }

    /// Locks the writing end.
    fn writer(&self) -> MutexGuard<'_, JournalWriter> {
        // The lock is only poisoned by a panic, after which the journal actor ends the process.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Journal for SqliteJournal {
    fn records(&self) -> Arc<dyn Records> {
        Arc::new(self.reader())
    }

    fn check_files(&mut self) -> Result<(), FileLoss> {
        self.writer().check_files()
    }

    fn disk_usage(&mut self) -> Option<DiskUsage> {
        self.writer().disk_usage()
    }

    fn is_disk_full(&self) -> bool {
        self.writer().is_disk_full()
    }

    fn fill_reserve(&mut self) {
        self.writer().fill_reserve();
    }

    fn job_numbers(&mut self) -> Result<JobNumbers, JournalError> {
        self.writer().highest_job_number().map(JobNumbers::counted)
    }

    fn append_and_check(
        &mut self,
        records: &[&Record],
        others: &[JobNumber],
    ) -> Result<BTreeSet<JobNumber>, JournalError> {
        self.writer().append(records, others)
    }

    fn has_unprojected(&self) -> bool {
        !self.writer().unprojected.is_empty()
    }

    fn project(&mut self) -> Result<(), JournalError> {
        self.writer().project()
    }

    fn has_pending_confirms(&self) -> bool {
        !self.writer().confirms.is_empty()
    }

    fn write_confirms(&mut self) -> Result<bool, JournalError> {
        self.writer().write_confirms()
    }

    fn store_offsets(&mut self, offsets: &[StoredOffset]) -> Result<(), JournalError> {
        self.writer().store_offsets(offsets)
    }

    fn store_ledgers(&mut self, ledgers: &[StoredLedger]) -> Result<(), JournalError> {
        self.writer().store_ledgers(ledgers)
    }

    fn store_trends(
        &mut self,
        trends: &[StoredTrend],
        forgotten: &[Arc<str>],
    ) -> Result<(), JournalError> {
        self.writer().store_trends(trends, forgotten)
    }

    fn for_each_job_tree(&self, handler: JobTreeHandler<'_>) -> Result<(), JournalError> {
        self.writer().for_each_job_tree(handler)
    }

    fn create_status_tables(&mut self, definitions: &[&Definition]) -> Result<(), JournalError> {
        self.writer().create_status_tables(definitions.iter().copied())
    }

    fn refill_cells(
        &mut self,
        definition: &Definition,
        refills: &[CellRefill],
    ) -> Result<BTreeSet<JobNumber>, JournalError> {
        self.writer().refill_cells(definition, refills)
    }

    fn load_rate_marks(&mut self) -> Result<Vec<RateMark>, JournalError> {
        self.writer().load_rate_marks()
    }

    fn store_control(&mut self, control: &Control) -> Result<(), JournalError> {
        self.writer().store_control(control)
    }

    fn delete_control(&mut self, key: &ControlKey) -> Result<(), JournalError> {
        self.writer().delete_control(key)
    }

    fn load_controls(&mut self) -> Result<Vec<Control>, JournalError> {
        let writer = self.writer();
        controls::load(&writer.connection, &writer.file)
    }

    fn newest_record_time(&self) -> Result<Option<Timestamp>, JournalError> {
        self.writer().newest_record_time()
    }

    fn count_expired(
        &mut self,
        now: Timestamp,
        default_retention: Millis,
    ) -> Result<u64, JournalError> {
        self.writer().count_expired(now, default_retention)
    }

    fn delete_expired(
        &mut self,
        now: Timestamp,
        default_retention: Millis,
        rows_max: u32,
    ) -> Result<Deletion, JournalError> {
        self.writer().delete_expired(now, default_retention, rows_max)
    }

    fn delete_jobs(
        &mut self,
        roots: &[JobNumber],
        rows_max: u32,
    ) -> Result<Deletion, JournalError> {
        self.writer().delete_jobs(roots, rows_max)
    }

    fn delete_notices(&mut self, notices: &[NoticeNumber]) -> Result<(), JournalError> {
        self.writer().delete_notices(notices)
    }
}
