//! The writing end, as the manager has it. Its state is shared with the readers made from it: who
//! reads what is derived has that derived first.

use super::core::Core;
use super::reader::Reader;
use super::schema::Options;
use crate::engine::{Definition, Millis, Timestamp};
use crate::journal::error::{JournalError, Loss};
use crate::journal::record::{Deleted, JobNumber, NoticeNumber, Record};
use crate::journal::recover::Recovered;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The writing end of the journal. One per file over all processes: it holds a lock.
pub struct Store {
    core: Arc<Mutex<Core>>,
    file: Arc<str>,
    path: PathBuf,
}

impl Store {
    /// Opens or creates the journal: takes the lock, verifies, migrates, derives what a process
    /// before has left.
    ///
    /// # Errors
    ///
    /// It is in use, damaged, of something else, or cannot be read.
    pub fn open(options: &Options) -> Result<Store, JournalError> {
        let core = Core::open(options)?;
        let (file, path) = (core.file().clone(), core.path().to_owned());
        Ok(Store { core: Arc::new(Mutex::new(core)), file, path })
    }

    /// A reader that sees all that is committed.
    pub fn reader(&self) -> Reader {
        let new_ids = self.core().new_ids.clone();
        Reader::of(&self.path, Arc::downgrade(&self.core), new_ids)
    }

    /// The real file, without symbolic links: readers must not follow another.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The journal's file.
    pub fn file(&self) -> &Arc<str> {
        &self.file
    }

    /// Whether the files are still those that were opened. Once they are not, what is committed is
    /// gone with the process, and nothing is written to them any more.
    ///
    /// # Errors
    ///
    /// What has happened to them.
    pub fn look(&mut self) -> Result<(), Loss> {
        self.core().look()
    }

    /// The number after the highest in use.
    ///
    /// # Errors
    ///
    /// What SQLite says.
    pub fn next_number(&self) -> Result<JobNumber, JournalError> {
        self.core().next_number()
    }

    /// Commits records, in order, in one transaction: all or nothing. Records of a job that was
    /// deleted are void: a child job may still be about to start, or to hear that it is over, when
    /// its top-level job is deleted. Gives the numbers of such jobs.
    ///
    /// # Errors
    ///
    /// Nothing is committed.
    pub fn append<'a>(
        &mut self,
        records: impl IntoIterator<Item = &'a Record>,
    ) -> Result<BTreeSet<JobNumber>, JournalError> {
        self.core().append(&records.into_iter().collect::<Vec<_>>())
    }

    /// Whether lists, searches and statuses are behind what is committed.
    pub fn is_behind(&self) -> bool {
        !self.core().tail.is_empty()
    }

    /// Derives what is committed: lists, searches and statuses then show it.
    ///
    /// # Errors
    ///
    /// What is committed stays so, and is derived later.
    pub fn derive(&mut self) -> Result<(), JournalError> {
        self.core().derive()
    }

    /// Gives confirms that have waited since the last call a record of their own; whether some wait
    /// still.
    ///
    /// # Errors
    ///
    /// They stay where they are.
    pub fn carry(&mut self) -> Result<bool, JournalError> {
        self.core().carry()
    }

    /// Whether confirms wait for a record of their jobs.
    pub fn has_confirms(&self) -> bool {
        !self.core().confirms.is_empty()
    }

    /// All jobs that take input, parents before their children, with what is to be done for them.
    ///
    /// # Errors
    ///
    /// A row is damaged.
    pub fn recover(&self) -> Result<Vec<Recovered>, JournalError> {
        self.core().recover()
    }

    /// Makes what is missing of the tables of statuses. Called with the loaded definitions before
    /// their first jobs.
    ///
    /// # Errors
    ///
    /// What SQLite says; a job that a row follows from is damaged.
    pub fn relate<'a>(
        &mut self,
        definitions: impl IntoIterator<Item = &'a Definition>,
    ) -> Result<(), JournalError> {
        self.core().relate(definitions)
    }

    /// Deletes up to `limit` top-level jobs, with their children, that have been ended for longer
    /// than the definition which they started with keeps them, or, where that says nothing, for
    /// longer than `kept`.
    ///
    /// # Errors
    ///
    /// Nothing is deleted.
    pub fn delete_ended(
        &mut self,
        now: Timestamp,
        kept: Millis,
        limit: u32,
    ) -> Result<Deleted, JournalError> {
        self.core().delete_ended(now, kept, limit)
    }

    /// Deletes top-level jobs by number, with their children; not those that run.
    ///
    /// # Errors
    ///
    /// Nothing is deleted.
    pub fn delete(&mut self, roots: &[JobNumber]) -> Result<Deleted, JournalError> {
        self.core().delete(roots)
    }

    /// Deletes notices, in one transaction.
    ///
    /// # Errors
    ///
    /// Nothing is deleted.
    pub fn forget(&mut self, notices: &[NoticeNumber]) -> Result<(), JournalError> {
        self.core().forget(notices)
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        // After a panic the journal's actor ends the process.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
