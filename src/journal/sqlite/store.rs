//! The writing end of a journal in a file. It shares its state with the readers made from it:
//! before a reader queries projected tables, it brings them up to date.

use super::core::Core;
use super::reader::Reader;
use super::schema::Options;
use crate::engine::{Definition, Millis, Timestamp};
use crate::journal::error::{JournalError, Loss};
use crate::journal::record::{Deleted, JobNumber, NoticeNumber, Position, Record, Sizes};
use crate::journal::recover::EachFamily;
use crate::journal::recover::Recovered;
use crate::journal::traits::{Journal, Records};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The writing end of a journal in a file. There is one per file across all processes: it holds a
/// lock.
pub struct Store {
    core: Arc<Mutex<Core>>,
    path: PathBuf,
}

impl Store {
    /// Opens or creates the journal: takes the lock, verifies, migrates, and projects what the
    /// previous process has left.
    ///
    /// # Errors
    ///
    /// Returns an error if the journal is in use, damaged, unreadable, or of another program.
    pub fn open(options: &Options) -> Result<Store, JournalError> {
        let core = Core::open(options).or_else(|error| Core::open_in_reserve(options, error))?;
        let path = core.path().to_owned();
        Ok(Store { core: Arc::new(Mutex::new(core)), path })
    }

    /// Keeps a reserve on the disk from now on, in a file beside the journal, for emptying it when
    /// the disk is full.
    pub fn keeping_reserve(self) -> Store {
        self.core().keep_reserve();
        self
    }

    /// Returns the path without symbolic links; readers must not follow another.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a reader that sees everything that is committed.
    pub fn reader(&self) -> Reader {
        let new_ids = self.core().new_ids.clone();
        Reader::of(&self.path, Arc::downgrade(&self.core), new_ids)
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        // After a panic the journal actor ends the process.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Journal for Store {
    fn records(&self) -> Arc<dyn Records> {
        Arc::new(self.reader())
    }

    fn check_files(&mut self) -> Result<(), Loss> {
        self.core().check_files()
    }

    fn sizes(&mut self) -> Option<Sizes> {
        self.core().sizes()
    }

    fn is_disk_full(&self) -> bool {
        self.core().is_disk_full()
    }

    fn keep_reserve(&mut self) {
        self.core().keep_reserve();
    }

    fn next_number(&mut self) -> Result<JobNumber, JournalError> {
        self.core().next_number()
    }

    fn append(&mut self, records: &[&Record]) -> Result<BTreeSet<JobNumber>, JournalError> {
        self.core().append(records)
    }

    fn is_behind(&self) -> bool {
        !self.core().tail.is_empty()
    }

    fn derive(&mut self) -> Result<(), JournalError> {
        self.core().derive()
    }

    fn has_confirms(&self) -> bool {
        !self.core().confirms.is_empty()
    }

    fn write_confirms(&mut self) -> Result<bool, JournalError> {
        self.core().write_confirms()
    }

    fn write_positions(&mut self, positions: &[Position]) -> Result<(), JournalError> {
        self.core().write_positions(positions)
    }

    fn recover(&self) -> Result<Vec<Recovered>, JournalError> {
        self.core().recover()
    }

    fn each_family(&self, each: EachFamily<'_>) -> Result<(), JournalError> {
        self.core().each_family(each)
    }

    fn make_status_tables(&mut self, definitions: &[&Definition]) -> Result<(), JournalError> {
        self.core().make_status_tables(definitions.iter().copied())
    }

    fn newest(&self) -> Result<Option<Timestamp>, JournalError> {
        self.core().newest()
    }

    fn count_ended(&mut self, now: Timestamp, kept: Millis) -> Result<u64, JournalError> {
        self.core().count_ended(now, kept)
    }

    fn delete_ended(
        &mut self,
        now: Timestamp,
        kept: Millis,
        rows_max: u32,
    ) -> Result<Deleted, JournalError> {
        self.core().delete_ended(now, kept, rows_max)
    }

    fn delete(&mut self, roots: &[JobNumber], rows_max: u32) -> Result<Deleted, JournalError> {
        self.core().delete(roots, rows_max)
    }

    fn forget(&mut self, notices: &[NoticeNumber]) -> Result<(), JournalError> {
        self.core().forget(notices)
    }
}
