//! The state of the writing end: the connection, caches, and what is committed but not projected.

use super::confirms::PendingConfirms;
use super::file_rows::FileRows;
use super::file_watch::FileWatch;
use super::files::{self, FileLock, LockError};
use super::reserve::{Reserve, WritePurpose, is_write_failure};
use super::row_format::sqlite_error;
use super::schema::{self, JournalOptions, open_read_only};
use super::shm::{self, Shm};
use super::status_projection::StatusTables;
use super::status_table::{StatusTable, WriteError, is_table_error};
use super::unprojected::{Unprojected, UnprojectedIds};
use crate::error::{FileLoss, JournalError, Remedy};
use crate::record::{DiskUsage, JobNumber};
use crate::recover::{self, JobPartitions, JobRow, JobTreeHandler};
use base::faults;
use engine::{Definition, DefinitionHash, Millis};
use rusqlite::{Connection, ErrorCode};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Commits leave a part of the allowed pages free, for projections and deletions: the limit divided
/// by this.
const COMMIT_RESERVE_DIVISOR: u32 = 8;

/// The remaining jobs of partially deleted job trees, by root job, parents before their children.
/// New records of these jobs are ignored.
pub(super) type PartialDeletions = HashMap<JobNumber, Vec<JobNumber>>;

/// The writing end of the journal. There is one per file across all processes: it holds a lock.
pub(super) struct JournalWriter {
    pub(super) connection: Connection,
    /// The name of the file as the user gave it, for errors and logs.
    pub(super) file: Arc<str>,
    /// The path without symbolic links.
    path: PathBuf,
    /// A cache of the numbers of definitions, by content hash.
    pub(super) definitions: HashMap<DefinitionHash, i64>,
    /// The definition that was looked up last, with its number. The next one is usually the same,
    /// and then its hash is not computed again.
    pub(super) last_definition: Option<(Arc<Definition>, i64)>,
    pub(super) status_tables: StatusTables,
    pub(super) partial_deletions: PartialDeletions,
    /// The retention of each definition, by its number; `None` if the definition sets none.
    pub(super) retentions: BTreeMap<i64, Option<Millis>>,
    /// Declared after the connection, so that it is dropped after it: closing a watched file drops
    /// SQLite's locks on that file.
    watch: FileWatch,
    /// Declared after the connection for the same reason.
    pub(super) shm: Option<Shm>,
    lock: FileLock,
    pub(super) reserve: Reserve,
    /// Whether the files are not those that were opened, or must stay as they are because opening
    /// failed. Then dropping the writer writes nothing.
    is_lost: bool,
    /// The highest `seq` in `entries` and `confirmed`.
    pub(super) last_seq: i64,
    pub(super) unprojected: Unprojected,
    pub(super) unprojected_ids: Arc<UnprojectedIds>,
    pub(super) confirms: PendingConfirms,
    /// The value of `last_seq` at the last call of `write_confirms` that had at most one batch of
    /// jobs. The next call writes the confirms that have waited since then or longer.
    pub(super) confirms_written_to: i64,
    /// The most pages that the file may have; 0: no limit.
    pages_max: u32,
    /// Whether another program kept the file locked at the last attempt to write.
    pub(super) is_locked: Cell<bool>,
    /// Why nothing can be written any more; `None` while writing is possible.
    pub(super) broken_reason: Option<String>,
}

impl JournalWriter {
    /// Opens or creates the journal: acquires the lock, verifies and migrates the file, and
    /// projects what the previous process has left.
    pub(super) fn open(options: &JournalOptions) -> Result<JournalWriter, JournalError> {
        let file: Arc<str> = options.file.to_string_lossy().into();
        let unreachable_error = |error| JournalError::Unreachable { file: file.to_string(), error };
        let path = files::resolve(&options.file).map_err(unreachable_error)?;
        files::check_file(&path, &file)?;
        let lock = acquire_lock(&path, &file)?;
        let reserve = Reserve::for_journal(&path);
        let mut shm = Shm::for_journal(&path);
        let connection = match open_connection(&path, options, &file, (&reserve, shm.as_mut())) {
            Ok(connection) => connection,
            Err(error) => {
                lock.discard();
                return Err(error);
            }
        };
        let mut watch = FileWatch::start(&path).map_err(unreachable_error)?;
        watch.poll().map_err(|loss| JournalError::Lost { file: file.to_string(), loss })?;
        let mut writer = JournalWriter {
            connection,
            file,
            reserve,
            path,
            definitions: HashMap::new(),
            last_definition: None,
            status_tables: StatusTables::default(),
            partial_deletions: PartialDeletions::new(),
            retentions: BTreeMap::new(),
            watch,
            shm,
            lock,
            is_lost: false,
            last_seq: 0,
            unprojected: Unprojected::default(),
            unprojected_ids: Arc::default(),
            confirms: PendingConfirms::default(),
            confirms_written_to: 0,
            pages_max: options.pages_max,
            is_locked: Cell::new(false),
            broken_reason: None,
        };
        let result =
            writer.catch_up().and_then(|()| writer.set_pages_max(writer.commit_pages_max()));
        // A rejected journal must keep its bytes.
        writer.is_lost = result.is_err();
        result.map(|()| writer)
    }

    /// Returns the path without symbolic links.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the files are still those that were opened, and acquires the lock again if its
    /// file was removed. If the files are not the same, whatever is committed to them is lost when
    /// the process ends. Then the writer is marked as lost: dropping it writes nothing.
    pub(super) fn check_files(&mut self) -> Result<(), FileLoss> {
        let ensure_locked = |lock: &mut FileLock| match lock.ensure_locked() {
            Err(LockError::InUse) => Err(FileLoss::LockLost(lock.path().display().to_string())),
            // The next check tries again.
            Err(LockError::Failed(_)) | Ok(()) => Ok(()),
        };
        let result = self.watch.poll().and_then(|()| ensure_locked(&mut self.lock));
        self.is_lost |= result.is_err();
        result
    }

    /// Returns how much of the disk the files use now; `None` if that cannot be determined.
    pub(super) fn disk_usage(&self) -> Option<DiskUsage> {
        let main = std::fs::metadata(&self.path).ok()?.len();
        let free = self.read_pragma("freelist_count").ok()? * self.read_pragma("page_size").ok()?;
        Some(DiskUsage { main, wal: self.wal_bytes(), free })
    }

    /// Returns the highest number in use; 0 if there is none.
    pub(super) fn highest_job_number(&mut self) -> Result<JobNumber, JournalError> {
        // `jobs` has a new job only after its projection.
        self.project()?;
        self.connection
            .query_row("SELECT coalesce(max(number), 0) FROM jobs", [], |row| row.get(0))
            .map_err(|error| self.to_journal_error(error))
    }

    /// Returns the most pages that the file may have; 0: no limit.
    pub(super) fn pages_max(&self) -> u32 {
        self.pages_max
    }

    /// Returns the most pages that the file may have after a commit; 0: no limit.
    pub(super) fn commit_pages_max(&self) -> u32 {
        self.pages_max - self.pages_max / COMMIT_RESERVE_DIVISOR
    }

    /// Sets the most pages that the file may have. Existing pages beyond the limit are kept. 0
    /// changes nothing.
    pub(super) fn set_pages_max(&self, pages: u32) -> Result<(), JournalError> {
        if pages == 0 {
            return Ok(());
        }
        let result = self.connection.pragma_update(None, "max_page_count", pages);
        result.map_err(|error| self.to_journal_error(error))
    }

    /// Runs `write` like [`JournalWriter::write_with_repair`], and also lets it use the pages that
    /// commits leave free, as projections and deletions do. Otherwise a full journal could neither
    /// project a job nor delete one that is not projected.
    pub(super) fn write_in_reserve_with_repair<T>(
        &mut self,
        mut write: impl FnMut(&mut JournalWriter) -> Result<T, WriteError>,
    ) -> Result<T, JournalError> {
        self.write_in_reserve(|writer| writer.write_with_repair(&mut write))
    }

    /// Runs a write that frees space in the journal. It may use the pages that commits leave free,
    /// and the disk space of the reserve.
    pub(super) fn write_in_reserve<T>(
        &mut self,
        write: impl FnMut(&mut JournalWriter) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        self.set_pages_max(self.pages_max)?;
        let result = self.write_or_use_reserve(WritePurpose::FreeSpace, write);
        if self.pages_max > 0 {
            self.restore_commit_limit();
        }
        result
    }

    /// Runs `write` without waiting for the disk. If a crash undoes the write, something later must
    /// write it again.
    pub(super) fn write_without_sync<T>(
        &mut self,
        write: impl FnOnce(&mut JournalWriter) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        self.set_synchronous("NORMAL")?;
        let result = write(self);
        if let Err(error) = self.set_synchronous("FULL") {
            // A commit must not be acknowledged before it is on the disk.
            self.broken_reason = Some(error.to_string());
            return result.and(Err(error));
        }
        result
    }

    /// Sets SQLite's pragma `synchronous`.
    fn set_synchronous(&self, mode: &str) -> Result<(), JournalError> {
        let result = self.connection.pragma_update(None, "synchronous", mode);
        result.map_err(|error| self.to_journal_error(error))
    }

    /// Runs `write`. If it fails because of a status table, drops that table and runs `write`
    /// again, which recreates it. A table that fails again, or cannot be dropped, is not written
    /// until the next start.
    pub(super) fn write_with_repair<T>(
        &mut self,
        mut write: impl FnMut(&mut JournalWriter) -> Result<T, WriteError>,
    ) -> Result<T, JournalError> {
        let mut dropped_tables = HashSet::new();
        loop {
            let write_error = match write(self) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            // The transaction was rolled back, including definitions that it inserted.
            self.clear_definitions();
            self.status_tables.layouts.clear();
            let (table, error) = match write_error {
                WriteError::Sqlite(error) => return Err(self.to_journal_error(error)),
                WriteError::Journal(error) => return Err(error),
                WriteError::StatusTable(table, error) => (table, error),
            };
            let workflow = &table.workflow;
            let is_damaged = error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt);
            if dropped_tables.insert(table.key()) && self.drop_status_table(&table, is_damaged)? {
                tracing::warn!(
                    workflow,
                    %error,
                    "the table of statuses cannot be used: it is recreated"
                );
            } else {
                tracing::error!(
                    workflow,
                    %error,
                    "the table of statuses cannot be created: until the next start it is not \
                     written"
                );
                self.status_tables.unusable.insert(table.key());
            }
        }
    }

    /// Drops a status table. Returns false if an error of the table itself prevents that.
    fn drop_status_table(
        &mut self,
        table: &StatusTable,
        is_damaged: bool,
    ) -> Result<bool, JournalError> {
        let mut drop_table = || {
            let transaction = self.connection.transaction()?;
            table.drop_if_exists(&transaction, is_damaged)?;
            transaction.commit()
        };
        match drop_table() {
            Ok(()) => Ok(true),
            Err(error) if is_table_error(&error) => Ok(false),
            Err(error) => Err(self.to_journal_error(error)),
        }
    }

    /// Calls `handler` with the jobs of every job tree that take input. The job trees are split
    /// into partitions, up to one for each CPU core, which threads rebuild in parallel.
    pub(super) fn for_each_job_tree(
        &mut self,
        handler: JobTreeHandler<'_>,
    ) -> Result<(), JournalError> {
        self.project()?;
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let JobPartitions { mut jobs, definitions } =
            JobPartitions::from_rows(&self.rows(), cores)?;
        let own_partition = jobs.pop().expect("there is at least one partition");
        let (path, file, is_projected) = (&self.path, &*self.file, self.is_all_projected());
        std::thread::scope(|scope| {
            let spawn_partition = |jobs: Vec<JobRow>| {
                let definitions = definitions.clone();
                scope.spawn(move || {
                    let connection =
                        open_read_only(path).map_err(|error| sqlite_error(file, &error))?;
                    let rows = FileRows { connection: &connection, file, is_projected };
                    recover::recover_job_trees(&rows, jobs, definitions, handler)
                })
            };
            let threads: Vec<_> = jobs.into_iter().map(spawn_partition).collect();
            recover::recover_job_trees(&self.rows(), own_partition, definitions.clone(), handler)?;
            for thread in threads {
                thread.join().unwrap_or_else(|panic| resume_unwind(panic))?;
            }
            Ok(())
        })
    }

    /// Returns whether everything is projected and no confirms are pending.
    fn is_all_projected(&self) -> bool {
        self.unprojected.is_empty() && self.confirms.is_empty()
    }

    /// Returns the rows of the file, read over the connection of the writer.
    fn rows(&self) -> FileRows<'_> {
        FileRows {
            connection: &self.connection,
            file: &self.file,
            is_projected: self.is_all_projected(),
        }
    }

    /// Clears the caches of definitions after a transaction that was rolled back: it may have
    /// inserted some of them.
    pub(super) fn clear_definitions(&mut self) {
        self.definitions.clear();
        self.last_definition = None;
    }

    /// Returns an error if nothing can be written any more, as after an I/O error.
    pub(super) fn check_not_broken(&self) -> Result<(), JournalError> {
        match &self.broken_reason {
            Some(reason) => Err(JournalError::Failed {
                file: self.file.to_string(),
                problem: reason.clone(),
                remedy: Remedy::Exit,
            }),
            None => Ok(()),
        }
    }

    /// Converts an error of a write. Records whether another program keeps the file locked, unless
    /// the disk is full.
    pub(super) fn to_journal_error(&self, error: rusqlite::Error) -> JournalError {
        if is_write_failure(&error) && self.reserve.is_disk_full() {
            return JournalError::Failed {
                file: self.file.to_string(),
                problem: format!(
                    "{error}. It needs room on its disk, or a larger quota for its user"
                ),
                remedy: Remedy::WaitForSpace,
            };
        }
        let error = sqlite_error(&self.file, &error);
        self.is_locked.set(error.remedy() == Remedy::WaitForLock);
        error
    }
}

/// Opens the file, and allocates the blocks of its `-shm` if SQLite does not do so itself (`shm`).
fn open_connection(
    path: &Path,
    options: &JournalOptions,
    file: &str,
    (reserve, shm): (&Reserve, Option<&mut Shm>),
) -> Result<Connection, JournalError> {
    let Some(shm) = shm else { return schema::open(path, options, file) };
    let no_space_error = || JournalError::Failed {
        file: file.to_owned(),
        problem: "no room on its disk for SQLite's -shm".to_owned(),
        remedy: Remedy::WaitForSpace,
    };
    if reserve.is_short_of(shm::EXTRA_BYTES) {
        return Err(no_space_error());
    }
    let connection = schema::open(path, options, file)?;
    shm.allocate().map_err(|_| no_space_error())?;
    Ok(connection)
}

/// Acquires the lock of the journal at `path`.
pub(super) fn acquire_lock(path: &Path, file: &str) -> Result<FileLock, JournalError> {
    let lock = files::sibling(path, ".lock");
    FileLock::acquire(&lock).map_err(|lock_error| match lock_error {
        LockError::InUse => {
            JournalError::InUse { file: file.to_owned(), lock: lock.display().to_string() }
        }
        LockError::Failed(error) => JournalError::Lock { lock: lock.display().to_string(), error },
    })
}

impl Drop for JournalWriter {
    /// Projects what is committed, and truncates the `-wal` by a checkpoint, so that the main file
    /// can be copied alone.
    fn drop(&mut self) {
        if self.is_lost {
            // Closing must not remove the -wal: the path may lead to another program's file.
            if let Err(error) = schema::set_keep_wal(&self.connection, true) {
                tracing::error!(%error, "the journal may be written once more when it is closed");
            }
            return;
        }
        if std::thread::panicking() {
            return;
        }
        if let Err(error) = self.project() {
            tracing::warn!(
                journal = &*self.file,
                %error,
                "the newest commits are projected at the next start"
            );
        }
        let is_complete = self.write_or_use_reserve(WritePurpose::FreeSpace, |writer| {
            schema::checkpoint(&writer.connection, schema::Checkpoint::TruncateOnClose)
                .map_err(|error| writer.to_journal_error(error))
        });
        match is_complete {
            Ok(true) => {}
            Ok(false) => tracing::warn!(
                journal = &*self.file,
                "another program reads the journal: the newest commits stay in its -wal. \
                 To copy it, copy all its files, or wait until that program ends"
            ),
            Err(error) => {
                tracing::warn!(
                    journal = &*self.file,
                    %error,
                    "the newest commits stay in the -wal: to copy the journal, copy all its files"
                )
            }
        }
        self.reserve.grow_to_target();
    }
}

/// Fails if a test has configured the failpoint `name`: with the action `full` as on a full disk,
/// with `memory` as without memory, with any other action as on a broken disk.
pub(super) fn hit_fail_point(name: &'static str) -> rusqlite::Result<()> {
    let code = match faults::hit(name).as_deref() {
        None => return Ok(()),
        Some("full") => rusqlite::ffi::SQLITE_FULL,
        Some("memory") => rusqlite::ffi::SQLITE_NOMEM,
        Some(_) => rusqlite::ffi::SQLITE_IOERR,
    };
    Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None))
}
