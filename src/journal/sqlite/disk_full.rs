//! The use of the reserve: a file beside the journal that keeps room on its disk. When the disk is
//! full, the reserve shrinks and the journal continues in the room that it frees: jobs are
//! cancelled and deleted, lists are projected, and commits go into pages that deletions have freed.
//! Each time, the `-wal`, which has taken the room, is written to the main file and emptied, and
//! the reserve grows again.
//!
//! While the disk is full, only what empties the journal may make the main file grow, and only by a
//! part of the reserve: the rest stays for the `-wal`.

use super::files;
use super::reserve::{Reserve, WritePurpose};
use super::schema::{self, JournalOptions, WRITE_BUSY_TIMEOUT_MS};
use super::shm::Shm;
use super::writer::JournalWriter;
use crate::error::{JournalError, Remedy};
use rustix::fs::statvfs;
use std::fs;
use std::time::Duration;

/// A write that empties the journal may make it grow by the target size divided by this.
const GROWTH_DIVISOR: u64 = 2;

/// The reserve shrinks for a write by its size divided by these: first by a little, then by more if
/// that is not enough. Whatever another program takes in between is lost.
const SHRINK_DIVISORS: [u64; 3] = [16, 4, 1];

/// The `-wal` is written to the main file when it is as large as the reserve divided by this. The
/// main file then grows by less than the reserve shrinks.
const WAL_DIVISOR: u64 = 4;

/// SQLite writes the `-wal` back after this many pages anyway.
const WAL_PAGES_MAX: u32 = 1_000;

/// How long emptying the `-wal` waits for readers, in milliseconds.
const READERS_WAIT_MS: u64 = 100;

/// SQLite's largest number of pages.
const SQLITE_PAGES_MAX: u32 = u32::MAX - 1;

/// The target size of the reserve, in bytes. Projecting 8,000 new jobs, about the most that can be
/// pending, takes 3.4 MB of `-wal`, and then as much of the main file. Deleting a job with 10,000
/// child jobs takes 1.4 MB of `-wal`.
const RESERVE_BYTES: u64 = 16 << 20;

/// On a small file system the target size is its size divided by this.
const SMALL_DISK_DIVISOR: u64 = 4;

impl JournalWriter {
    /// Opens a journal in the room of its reserve, if it could not be opened for want of room.
    pub(super) fn open_in_reserve(
        options: &JournalOptions,
        error: JournalError,
    ) -> Result<JournalWriter, JournalError> {
        // The process that opened the file has the lock, so the reserve belongs to nobody else.
        let (JournalError::Failed { .. }, Ok(path)) = (&error, files::resolve(&options.file))
        else {
            return Err(error);
        };
        let mut reserve = Reserve::for_journal(&path);
        let has_space = error.remedy() != Remedy::WaitForSpace && !reserve.is_disk_full();
        if reserve.size == 0 || has_space {
            return Err(error);
        }
        tracing::warn!(
            journal = %path.display(),
            reserve_bytes = reserve.size,
            "no room on the disk: the journal is opened in that of its reserve"
        );
        reserve.target_size = reserve.size;
        reserve.shrink(reserve.size);
        JournalWriter::open(options).inspect_err(|_| reserve.grow_to_target())
    }
}

impl JournalWriter {
    /// Keeps a reserve from now on, and grows it as far as there is room. Further calls add what is
    /// missing.
    pub(super) fn fill_reserve(&mut self) {
        if self.reserve.target_size == 0 {
            let disk = statvfs(self.path()).map_or(0, |disk| disk.f_blocks * disk.f_frsize);
            self.reserve.target_size = RESERVE_BYTES.min(disk / SMALL_DISK_DIVISOR);
            let pages =
                self.reserve.target_size / WAL_DIVISOR / self.page_bytes().unwrap_or(1).max(1);
            let pages = u32::try_from(pages).unwrap_or(WAL_PAGES_MAX).clamp(1, WAL_PAGES_MAX);
            if let Err(error) = self.connection.pragma_update(None, "wal_autocheckpoint", pages) {
                tracing::debug!(%error, "the -wal is written back as usual");
            }
            // A new journal stays in its -wal, so that a copy without the -wal has no tables and is
            // noticed.
            let missing = self.reserve.target_size.saturating_sub(self.reserve.size);
            if missing > 0 && self.reserve.is_short_of(missing) {
                self.empty_wal();
            }
        }
        self.reserve.grow_to_target();
        if let Some(Err(error)) = self.shm.as_mut().map(Shm::allocate) {
            tracing::debug!(%error, "the -shm has the room that it had");
        }
    }

    /// Runs `write`. If it finds no room on the disk, runs it again in the room of the reserve.
    pub(super) fn write_or_use_reserve<T>(
        &mut self,
        purpose: WritePurpose,
        mut write: impl FnMut(&mut JournalWriter) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        let mut written = match write(self) {
            Err(error)
                if error.remedy() == Remedy::WaitForSpace && self.can_reserve_help(purpose) =>
            {
                Err(error)
            }
            done => return done,
        };
        let available = self.reserve.size;
        for divisor in SHRINK_DIVISORS {
            let released = available / divisor;
            let may_grow = match purpose {
                WritePurpose::Continue => 0,
                WritePurpose::FreeSpace => available
                    .saturating_sub(self.reserve.target_size / GROWTH_DIVISOR)
                    .min(released),
            };
            self.reserve.shrink(released);
            self.checkpoint_within(released);
            written = self.limit_growth(may_grow, purpose).and_then(|()| write(self));
            self.checkpoint_within(released);
            let is_used_up = self.reserve.is_disk_full();
            let unlimited = match self.commit_pages_max() {
                0 => self.set_pages_max(SQLITE_PAGES_MAX),
                pages => self.set_pages_max(pages),
            };
            self.reserve.grow_to_target();
            unlimited?;
            match &written {
                Err(error) if error.remedy() == Remedy::WaitForSpace && is_used_up => {}
                _ => break,
            }
        }
        written
    }

    /// Returns whether the disk is full, and not only the file.
    pub(super) fn is_disk_full(&self) -> bool {
        self.reserve.target_size > 0 && self.reserve.is_short_of(self.reserve.target_size)
    }

    /// Returns whether the room of the reserve can help a write that found none.
    fn can_reserve_help(&self, purpose: WritePurpose) -> bool {
        let has_free = || self.read_pragma("freelist_count").is_ok_and(|pages| pages > 0);
        self.reserve.size > 0
            && self.is_disk_full()
            && (purpose == WritePurpose::FreeSpace || has_free() || self.wal_bytes() > 0)
    }

    /// Lets the file grow by this many bytes, within the limit for this purpose.
    fn limit_growth(&self, bytes: u64, purpose: WritePurpose) -> Result<(), JournalError> {
        let failed = |error| self.to_journal_error(error);
        let (pages, each) = (self.read_pragma("page_count"), self.page_bytes());
        let grown = pages.map_err(failed)? + bytes / each.map_err(failed)?.max(1);
        let most = match (self.pages_max(), purpose) {
            (0, _) => SQLITE_PAGES_MAX,
            (_, WritePurpose::Continue) => self.commit_pages_max(),
            (pages, WritePurpose::FreeSpace) => pages,
        };
        self.set_pages_max(u32::try_from(grown).unwrap_or(SQLITE_PAGES_MAX).clamp(1, most))
    }

    /// Writes the `-wal` to the main file and empties it, if that makes the file grow by at most
    /// `room` bytes.
    fn checkpoint_within(&self, growth_max: u64) {
        let grows = || -> rusqlite::Result<u64> {
            let bytes = self.read_pragma("page_count")? * self.page_bytes()?;
            Ok(bytes.saturating_sub(fs::metadata(self.path()).map_or(0, |main| main.len())))
        };
        if grows().is_ok_and(|bytes| bytes <= growth_max) {
            self.empty_wal();
        }
    }

    /// Writes the `-wal` to the main file and empties it, as far as no reader needs it.
    fn empty_wal(&self) {
        let wait = |millis| self.connection.busy_timeout(Duration::from_millis(millis));
        let emptied = wait(READERS_WAIT_MS)
            .and_then(|()| schema::checkpoint(&self.connection, schema::Checkpoint::Truncate));
        if let Err(error) = emptied.and(wait(WRITE_BUSY_TIMEOUT_MS)) {
            tracing::debug!(%error, "the -wal stays as it is for now");
        }
    }

    /// Returns the size of the `-wal` in bytes; 0 if there is none.
    pub(super) fn wal_bytes(&self) -> u64 {
        fs::metadata(files::sibling(self.path(), "-wal")).map_or(0, |wal| wal.len())
    }

    fn page_bytes(&self) -> rusqlite::Result<u64> {
        self.read_pragma("page_size")
    }

    /// Returns the number that a pragma of SQLite has.
    pub(super) fn read_pragma(&self, pragma: &str) -> rusqlite::Result<u64> {
        let sql = format!("PRAGMA {pragma}");
        self.connection.query_row(&sql, [], |row| row.get::<_, u32>(0)).map(u64::from)
    }
}
