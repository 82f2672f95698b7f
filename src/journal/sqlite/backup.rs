//! Backs up a journal, even while a manager runs on it, and restores backups.

use super::files;
use super::row_format::sqlite_error;
use super::schema::{self, JournalOptions, open_read_only};
use super::store::SqliteJournal;
use crate::error::JournalError;
use crate::record::Record;
use crate::recover::RecoveredJob;
use crate::traits::Journal;
use base::clock;
use engine::{Decision, Entry, Recorded, StepEntry};
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use std::fs::{self, File};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How many pages are copied in one step.
const STEP_PAGES: u16 = 256;

/// How many records are committed together to a restored journal.
const RECORD_BATCH: usize = 1_000;

/// The size and content of a copy of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupSummary {
    /// The size of the copy's file, in bytes.
    pub bytes: u64,
    /// The number of jobs and child jobs that take input: a manager continues these.
    pub open_jobs: usize,
}

/// Copies the journal at `from`, as it is now, to the new file `to`, and verifies the copy. At most
/// `bytes_per_second` are copied; `None`: no limit. With `is_vacuumed`, the free pages of the file
/// are left out. The copy gets its name only when it is complete and verified.
///
/// A manager may run on the journal meanwhile. It is not blocked, but its `-wal` grows.
///
/// # Errors
///
/// Returns an error if there is no such journal, if `to` exists or cannot be written, or if the
/// copy cannot be read.
pub fn back_up(
    from: &Path,
    to: &Path,
    bytes_per_second: Option<NonZero<u64>>,
    is_vacuumed: bool,
) -> Result<BackupSummary, JournalError> {
    let copy = PendingFile::copy_of(from, to, bytes_per_second)?;
    if is_vacuumed {
        copy.vacuum()?;
    }
    let open_jobs = copy.open()?.recover()?.len();
    copy.finish(open_jobs)
}

/// Restores a backup as the new journal `to`, which is verified and migrated to the newest schema.
///
/// The confirms of running steps are revoked, so that the next start dispatches these steps again.
/// Otherwise they could wait in vain: the replies to messages that were sent before the backup may
/// have been consumed since.
///
/// # Errors
///
/// Returns an error if the backup cannot be read, or if `to` exists or cannot be written.
pub fn restore(backup: &Path, to: &Path) -> Result<BackupSummary, JournalError> {
    let copy = PendingFile::copy_of(backup, to, None)?;
    let mut journal = copy.open()?;
    let jobs = journal.recover()?;
    let records: Vec<Record> = jobs.iter().filter_map(revoke_confirms).collect();
    for records in records.chunks(RECORD_BATCH) {
        journal.append(&records.iter().collect::<Vec<_>>())?;
    }
    drop(journal);
    copy.finish(jobs.len())
}

/// Returns the record that revokes the confirms of a job's running steps; `None` if it has none.
fn revoke_confirms(recovered: &RecoveredJob) -> Option<Record> {
    let RecoveredJob { number, job, .. } = recovered;
    let confirmed_steps = job.confirmed_steps();
    let entries: Vec<Entry> =
        confirmed_steps.map(|step| Entry::Step(step, StepEntry::Unconfirmed)).collect();
    let recorded = Recorded { first: job.entry_count(), at: clock::now(), entries };
    let decision = Decision { recorded, ..Decision::default() };
    (!decision.recorded.entries.is_empty()).then(|| Record::from_decision(*number, None, decision))
}

/// Verifies a backup, and returns its size and content after a restore. The backup is not changed:
/// it is restored to a temporary file in `directory`.
///
/// # Errors
///
/// Returns an error if the backup cannot be read, or if there is no disk space for the copy.
pub fn inspect_backup(backup: &Path, directory: &Path) -> Result<BackupSummary, JournalError> {
    let name = format!("workflow-manager-{}.db", clock::new_id());
    let copy = directory.join(name);
    let result = restore(backup, &copy);
    remove_all(&copy);
    result
}

/// A journal that is being written under a temporary name. Dropping it removes the temporary file.
pub(super) struct PendingFile {
    /// The path that the complete file gets.
    path: PathBuf,
    /// The path until then.
    pub(super) partial: PathBuf,
}

impl PendingFile {
    /// Copies the journal at `from` to a file that will get the name `to`.
    fn copy_of(
        from: &Path,
        to: &Path,
        bytes_per_second: Option<NonZero<u64>>,
    ) -> Result<PendingFile, JournalError> {
        if !from.is_file() {
            return Err(JournalError::Missing { file: from.display().to_string() });
        }
        let copy = PendingFile::create(to)?;
        copy_pages(from, &copy.partial, bytes_per_second)?;
        Ok(copy)
    }

    /// Creates the empty temporary file.
    pub(super) fn create(path: &Path) -> Result<PendingFile, JournalError> {
        let file_name = path.display().to_string();
        let unreachable_error =
            |error| JournalError::Unreachable { file: file_name.clone(), error };
        let path = files::resolve(path).map_err(unreachable_error)?;
        for existing in ["", "-wal", "-shm"].map(|suffix| files::sibling(&path, suffix)) {
            if fs::symlink_metadata(&existing).is_ok() {
                return Err(JournalError::Exists { file: existing.display().to_string() });
            }
        }
        let partial = files::sibling(&path, ".partial");
        // An earlier backup that was killed has left them.
        remove_all(&partial);
        files::create_if_missing(&partial).map_err(unreachable_error)?;
        Ok(PendingFile { path, partial })
    }

    /// Removes the free pages.
    fn vacuum(&self) -> Result<(), JournalError> {
        let vacuum = || Connection::open(&self.partial)?.execute_batch("VACUUM");
        vacuum().map_err(|error| sqlite_error(&self.partial.display().to_string(), &error))
    }

    /// Opens, verifies and migrates the journal.
    fn open(&self) -> Result<SqliteJournal, JournalError> {
        SqliteJournal::open(&JournalOptions {
            file: self.partial.clone(),
            cache_bytes: 0,
            verify_bytes_max: u64::MAX,
            pages_max: 0,
        })
    }

    /// Renames the complete file to its path.
    pub(super) fn finish(self, open_jobs: usize) -> Result<BackupSummary, JournalError> {
        let file_name = self.path.display().to_string();
        let unreachable_error =
            |error| JournalError::Unreachable { file: file_name.clone(), error };
        let bytes = fs::metadata(&self.partial).map_err(unreachable_error)?.len();
        File::open(&self.partial).and_then(|file| file.sync_all()).map_err(unreachable_error)?;
        // The journal is closed, so the files beside it are empty. They are removed on drop.
        fs::rename(&self.partial, &self.path).map_err(unreachable_error)?;
        let directory = self.path.parent().unwrap_or(Path::new("."));
        File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(unreachable_error)?;
        Ok(BackupSummary { bytes, open_jobs })
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        remove_all(&self.partial);
    }
}

/// Removes a journal with the files that SQLite and the lock create beside it.
fn remove_all(path: &Path) {
    for suffix in ["", "-wal", "-shm", ".lock"] {
        // Most of these files usually do not exist.
        let _ = fs::remove_file(files::sibling(path, suffix));
    }
}

/// Copies the pages of the journal at `from`, as they are now, to the empty file `to`.
fn copy_pages(
    from: &Path,
    to: &Path,
    bytes_per_second: Option<NonZero<u64>>,
) -> Result<(), JournalError> {
    let (file, copy) = (from.display().to_string(), to.display().to_string());
    let source_error = |error: rusqlite::Error| sqlite_error(&file, &error);
    let copy_error = |error: rusqlite::Error| sqlite_error(&copy, &error);
    let source = open_read_only(from).map_err(source_error)?;
    let version = schema::read_version(&source, &file)?;
    if version == 0 {
        return Err(JournalError::Missing { file });
    }
    schema::check_objects(&source, version, &file)?;
    // The transaction keeps one snapshot: otherwise each commit of the manager restarts the copy.
    source.execute_batch("BEGIN; SELECT count(*) FROM sqlite_schema").map_err(source_error)?;
    let page_bytes: u32 =
        source.query_row("PRAGMA page_size", [], |row| row.get(0)).map_err(source_error)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut target = Connection::open_with_flags(to, flags).map_err(copy_error)?;
    let started = clock::timer_now();
    let backup = Backup::new(&source, &mut target).map_err(copy_error)?;
    let mut steps = 0;
    loop {
        if backup.step(STEP_PAGES.into()).map_err(copy_error)? == StepResult::Done {
            return Ok(());
        }
        steps += 1;
        if let Some(rate) = bytes_per_second {
            let bytes = steps * u64::from(STEP_PAGES) * u64::from(page_bytes);
            let minimum_duration = Duration::from_secs_f64(bytes as f64 / rate.get() as f64);
            std::thread::sleep(minimum_duration.saturating_sub(started.elapsed()));
        }
    }
}
