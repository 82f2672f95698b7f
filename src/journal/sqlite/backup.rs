//! Backups of a journal: made while a manager runs on it, and restored.

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

/// How many pages are copied at once.
const STEP_PAGES: u16 = 256;

/// How many records are committed at once to a restored journal.
const RECORD_BATCH: usize = 1_000;

/// Describes a copy of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupSummary {
    /// The size of the copy's file, in bytes.
    pub bytes: u64,
    /// How many jobs and child jobs take input: a manager continues with these.
    pub open_jobs: usize,
}

/// Copies the journal at `from`, as it is now, to a new file, at most `bytes_a_second`. A manager
/// may run on it and is not held up; its `-wal` grows meanwhile. The copy gets its name only after
/// it is verified. `is_vacuumed` leaves out the free pages of the file.
///
/// # Errors
///
/// Returns an error if there is no such journal, if `to` exists or cannot be written, or if the
/// copy cannot be read.
pub fn back_up(
    from: &Path,
    to: &Path,
    bytes_a_second: Option<NonZero<u64>>,
    is_vacuumed: bool,
) -> Result<BackupSummary, JournalError> {
    let new = PendingFile::copy_of(from, to, bytes_a_second)?;
    if is_vacuumed {
        new.vacuum()?;
    }
    let open_jobs = new.open()?.recover()?.len();
    new.finish(open_jobs)
}

/// Restores a backup to a place where no journal is: verified, migrated to this version, and
/// without the confirms of running steps. A broker has gone on since the backup: the reply to a
/// message that it had then may be lost by now. So the next start dispatches these steps again.
///
/// # Errors
///
/// Returns an error if the backup cannot be read, or if `to` exists or cannot be written.
pub fn restore(backup: &Path, to: &Path) -> Result<BackupSummary, JournalError> {
    let new = PendingFile::copy_of(backup, to, None)?;
    let mut store = new.open()?;
    let jobs = store.recover()?;
    let records: Vec<Record> = jobs.iter().filter_map(revoke_confirms).collect();
    for records in records.chunks(RECORD_BATCH) {
        store.append(&records.iter().collect::<Vec<_>>())?;
    }
    drop(store);
    new.finish(jobs.len())
}

/// Returns the record that revokes the confirms of a job's running steps, if it has any.
fn revoke_confirms(recovered: &RecoveredJob) -> Option<Record> {
    let RecoveredJob { number, job, .. } = recovered;
    let confirmed = job.confirmed_steps();
    let entries: Vec<Entry> =
        confirmed.map(|step| Entry::Step(step, StepEntry::Unconfirmed)).collect();
    let recorded = Recorded { first: job.entry_count(), at: clock::now(), entries };
    let decision = Decision { recorded, ..Decision::default() };
    (!decision.recorded.entries.is_empty()).then(|| Record::from_decision(*number, None, decision))
}

/// Describes a backup. The backup is not changed: a copy of it in `directory` is inspected.
///
/// # Errors
///
/// Returns an error if the backup cannot be read, or if there is no room for the copy.
pub fn inspect_backup(backup: &Path, directory: &Path) -> Result<BackupSummary, JournalError> {
    let name = format!("workflow-manager-{}.db", clock::new_id());
    let copy = directory.join(name);
    let checked = restore(backup, &copy);
    remove_all(&copy);
    checked
}

/// A file that gets its name once it is complete.
struct PendingFile {
    path: PathBuf,
    partial: PathBuf,
}

impl PendingFile {
    /// Copies the journal at `from` to a file that will get the name `to`.
    fn copy_of(
        from: &Path,
        to: &Path,
        bytes_a_second: Option<NonZero<u64>>,
    ) -> Result<PendingFile, JournalError> {
        if !from.is_file() {
            return Err(JournalError::Missing { file: from.display().to_string() });
        }
        let new = PendingFile::create(to)?;
        copy_pages(from, &new.partial, bytes_a_second)?;
        Ok(new)
    }

    fn create(path: &Path) -> Result<PendingFile, JournalError> {
        let file_name = path.display().to_string();
        let unreachable = |error| JournalError::Unreachable { file: file_name.clone(), error };
        let path = files::resolve(path).map_err(unreachable)?;
        for existing in ["", "-wal", "-shm"].map(|suffix| files::sibling(&path, suffix)) {
            if fs::symlink_metadata(&existing).is_ok() {
                return Err(JournalError::Exists { file: existing.display().to_string() });
            }
        }
        let partial = files::sibling(&path, ".partial");
        // Left by an attempt that was cut off.
        remove_all(&partial);
        files::create_if_missing(&partial).map_err(unreachable)?;
        Ok(PendingFile { path, partial })
    }

    /// Removes the free pages.
    fn vacuum(&self) -> Result<(), JournalError> {
        let vacuum = || Connection::open(&self.partial)?.execute_batch("VACUUM");
        vacuum().map_err(|error| sqlite_error(&self.partial.display().to_string(), &error))
    }

    /// Opens and verifies the journal, as at a start.
    fn open(&self) -> Result<SqliteJournal, JournalError> {
        SqliteJournal::open(&JournalOptions {
            file: self.partial.clone(),
            cache_bytes: 0,
            verify_bytes_max: u64::MAX,
            pages_max: 0,
        })
    }

    /// Gives the file its name.
    fn finish(self, open_jobs: usize) -> Result<BackupSummary, JournalError> {
        let file_name = self.path.display().to_string();
        let unreachable = |error| JournalError::Unreachable { file: file_name.clone(), error };
        let bytes = fs::metadata(&self.partial).map_err(unreachable)?.len();
        File::open(&self.partial).and_then(|file| file.sync_all()).map_err(unreachable)?;
        // The files beside it are empty by now, and are removed when this is dropped.
        fs::rename(&self.partial, &self.path).map_err(unreachable)?;
        let directory = self.path.parent().unwrap_or(Path::new("."));
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(unreachable)?;
        Ok(BackupSummary { bytes, open_jobs })
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        remove_all(&self.partial);
    }
}

/// Removes a file with what SQLite and the lock leave beside it.
fn remove_all(path: &Path) {
    for suffix in ["", "-wal", "-shm", ".lock"] {
        // It usually does not exist.
        let _ = fs::remove_file(files::sibling(path, suffix));
    }
}

fn copy_pages(
    from: &Path,
    to: &Path,
    bytes_a_second: Option<NonZero<u64>>,
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
    // One snapshot for the whole copy: otherwise each commit of the manager would restart it.
    source.execute_batch("BEGIN; SELECT count(*) FROM sqlite_schema").map_err(source_error)?;
    let page: u32 =
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
        if let Some(rate) = bytes_a_second {
            let bytes = steps * u64::from(STEP_PAGES) * u64::from(page);
            let due = Duration::from_secs_f64(bytes as f64 / rate.get() as f64);
            std::thread::sleep(due.saturating_sub(started.elapsed()));
        }
    }
}
