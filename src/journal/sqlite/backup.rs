//! Backups of a journal: made while a manager runs on it, and restored.

use super::place;
use super::row::failed;
use super::schema::{self, Options, read_only};
use super::store::Store;
use crate::clock;
use crate::engine::{Decision, Entry, Recorded, StepEntry};
use crate::journal::error::JournalError;
use crate::journal::record::Record;
use crate::journal::recover::Recovered;
use crate::journal::traits::Journal;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use std::fs::{self, File};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How many pages are copied at once.
const STEP_PAGES: u16 = 256;

/// How many records are committed at once to a restored journal.
const RECORDS_AT_ONCE: usize = 1_000;

/// Describes a copy of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
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
) -> Result<Copied, JournalError> {
    let new = New::copied(from, to, bytes_a_second)?;
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
pub fn restore(backup: &Path, to: &Path) -> Result<Copied, JournalError> {
    let new = New::copied(backup, to, None)?;
    let mut store = new.open()?;
    let jobs = store.recover()?;
    let records: Vec<Record> = jobs.iter().filter_map(unconfirmed).collect();
    for records in records.chunks(RECORDS_AT_ONCE) {
        store.append(&records.iter().collect::<Vec<_>>())?;
    }
    drop(store);
    new.finish(jobs.len())
}

/// Returns the record that revokes the confirms of a job's running steps, if it has any.
fn unconfirmed(recovered: &Recovered) -> Option<Record> {
    let Recovered { number, job, .. } = recovered;
    let confirmed = job.confirmed_steps();
    let entries: Vec<Entry> =
        confirmed.map(|step| Entry::Step(step, StepEntry::Unconfirmed)).collect();
    let recorded = Recorded { first: job.length(), at: clock::now(), entries };
    let decision = Decision { recorded, ..Decision::default() };
    (!decision.recorded.entries.is_empty()).then(|| Record::of(*number, None, decision))
}

/// Describes a backup. The backup is not changed: a copy of it in `directory` is inspected.
///
/// # Errors
///
/// Returns an error if the backup cannot be read, or if there is no room for the copy.
pub fn check(backup: &Path, directory: &Path) -> Result<Copied, JournalError> {
    let name = format!("workflow-manager-{}.db", clock::new_id());
    let copy = directory.join(name);
    let checked = restore(backup, &copy);
    remove_all(&copy);
    checked
}

/// A file that gets its name once it is complete.
struct New {
    path: PathBuf,
    partial: PathBuf,
}

impl New {
    /// Copies the journal at `from` to a file that will get the name `to`.
    fn copied(
        from: &Path,
        to: &Path,
        bytes_a_second: Option<NonZero<u64>>,
    ) -> Result<New, JournalError> {
        if !from.is_file() {
            return Err(JournalError::Missing { file: from.display().to_string() });
        }
        let new = New::beside(to)?;
        copy(from, &new.partial, bytes_a_second)?;
        Ok(new)
    }

    fn beside(path: &Path) -> Result<New, JournalError> {
        let shown = path.display().to_string();
        let unreachable = |error| JournalError::Unreachable { file: shown.clone(), error };
        let path = place::real(path).map_err(unreachable)?;
        for taken in ["", "-wal", "-shm"].map(|suffix| place::beside(&path, suffix)) {
            if fs::symlink_metadata(&taken).is_ok() {
                return Err(JournalError::Exists { file: taken.display().to_string() });
            }
        }
        let partial = place::beside(&path, ".partial");
        // Left by an attempt that was cut off.
        remove_all(&partial);
        place::make(&partial).map_err(unreachable)?;
        Ok(New { path, partial })
    }

    /// Removes the free pages.
    fn vacuum(&self) -> Result<(), JournalError> {
        let vacuum = || Connection::open(&self.partial)?.execute_batch("VACUUM");
        vacuum().map_err(|error| failed(&self.partial.display().to_string(), &error))
    }

    /// Opens and verifies the journal, as at a start.
    fn open(&self) -> Result<Store, JournalError> {
        Store::open(&Options {
            file: self.partial.clone(),
            cache_bytes: 0,
            verify_bytes_max: u64::MAX,
            pages_max: 0,
        })
    }

    /// Gives the file its name.
    fn finish(self, open_jobs: usize) -> Result<Copied, JournalError> {
        let shown = self.path.display().to_string();
        let unreachable = |error| JournalError::Unreachable { file: shown.clone(), error };
        let bytes = fs::metadata(&self.partial).map_err(unreachable)?.len();
        File::open(&self.partial).and_then(|file| file.sync_all()).map_err(unreachable)?;
        // The files beside it are empty by now, and are removed when this is dropped.
        fs::rename(&self.partial, &self.path).map_err(unreachable)?;
        let directory = self.path.parent().unwrap_or(Path::new("."));
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(unreachable)?;
        Ok(Copied { bytes, open_jobs })
    }
}

impl Drop for New {
    fn drop(&mut self) {
        remove_all(&self.partial);
    }
}

/// Removes a file with what SQLite and the lock leave beside it.
fn remove_all(path: &Path) {
    for suffix in ["", "-wal", "-shm", ".lock"] {
        // It usually does not exist.
        let _ = fs::remove_file(place::beside(path, suffix));
    }
}

fn copy(from: &Path, to: &Path, bytes_a_second: Option<NonZero<u64>>) -> Result<(), JournalError> {
    let (file, copy) = (from.display().to_string(), to.display().to_string());
    let of_source = |error: rusqlite::Error| failed(&file, &error);
    let of_copy = |error: rusqlite::Error| failed(&copy, &error);
    let source = read_only(from).map_err(of_source)?;
    let version = schema::version(&source, &file)?;
    if version == 0 {
        return Err(JournalError::Missing { file });
    }
    schema::check_objects(&source, version, &file)?;
    // One snapshot for the whole copy: otherwise each commit of the manager would restart it.
    source.execute_batch("BEGIN; SELECT count(*) FROM sqlite_schema").map_err(of_source)?;
    let page: u32 =
        source.query_row("PRAGMA page_size", [], |row| row.get(0)).map_err(of_source)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut target = Connection::open_with_flags(to, flags).map_err(of_copy)?;
    let begun = clock::ticks();
    let backup = Backup::new(&source, &mut target).map_err(of_copy)?;
    let mut steps = 0;
    loop {
        if backup.step(STEP_PAGES.into()).map_err(of_copy)? == StepResult::Done {
            return Ok(());
        }
        steps += 1;
        if let Some(rate) = bytes_a_second {
            let bytes = steps * u64::from(STEP_PAGES) * u64::from(page);
            let due = Duration::from_secs_f64(bytes as f64 / rate.get() as f64);
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
    }
}
