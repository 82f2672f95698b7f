//! The use of the reserve: a file beside the journal that keeps room on its disk. When the disk is
//! full, the reserve shrinks and the journal continues in the room that it frees: jobs are
//! cancelled and deleted, lists are projected, and commits go into pages that deletions have freed.
//! Each time, the `-wal`, which has taken the room, is written to the main file and emptied, and
//! the reserve grows again.
//!
//! While the disk is full, only what empties the journal may make the main file grow, and only by a
//! part of the reserve: the rest stays for the `-wal`.

use super::core::Core;
use super::place;
use super::reserve::{Reserve, Use};
use super::schema::{self, Options, WRITE_BUSY_TIMEOUT_MS};
use super::shm::Shm;
use crate::journal::error::{JournalError, Remedy};
use rustix::fs::statvfs;
use std::fs;
use std::time::Duration;

/// A write that empties the journal may make it grow by the target size divided by this.
const GROWTH_SHARE: u64 = 2;

/// The reserve shrinks for a write by its size divided by these: first by a little, then by more if
/// that is not enough. Whatever another program takes in between is lost.
const SHARES: [u64; 3] = [16, 4, 1];

/// The `-wal` is written to the main file when it is as large as the reserve divided by this. The
/// main file then grows by less than the reserve shrinks.
const WAL_SHARE: u64 = 4;

/// SQLite writes the `-wal` back after this many pages anyway.
const WAL_PAGES_MAX: u32 = 1_000;

/// How long emptying the `-wal` waits for readers, in milliseconds.
const READERS_WAIT_MS: u64 = 100;

/// SQLite's largest number of pages.
const NO_LIMIT: u32 = u32::MAX - 1;

/// The target size of the reserve, in bytes. Projecting 8,000 new jobs, about the most that can be
/// pending, takes 3.4 MB of `-wal`, and then as much of the main file. Deleting a job with 10,000
/// child jobs takes 1.4 MB of `-wal`.
const WHOLE_BYTES: u64 = 16 << 20;

/// On a small file system the target size is its size divided by this.
const SMALLEST_SHARE: u64 = 4;

impl Core {
    /// Opens a journal in the room of its reserve, if it could not be opened for want of room.
    pub(super) fn open_in_reserve(
        options: &Options,
        error: JournalError,
    ) -> Result<Core, JournalError> {
        // The process that opened the file has the lock, so the reserve belongs to nobody else.
        let (JournalError::Failed { .. }, Ok(path)) = (&error, place::real(&options.file)) else {
            return Err(error);
        };
        let mut reserve = Reserve::beside(&path);
        let has_room = error.remedy() != Remedy::WaitForRoom && !reserve.finds_no_room();
        if reserve.held == 0 || has_room {
            return Err(error);
        }
        tracing::warn!(
            journal = %path.display(),
            reserve_bytes = reserve.held,
            "no room on the disk: the journal is opened in that of its reserve"
        );
        reserve.whole = reserve.held;
        reserve.give_up(reserve.held);
        Core::open(options).inspect_err(|_| reserve.make())
    }
}

impl Core {
    /// Keeps a reserve from now on, and grows it as far as there is room. Further calls add what is
    /// missing.
    pub(super) fn keep_reserve(&mut self) {
        if self.reserve.whole == 0 {
            let disk = statvfs(self.path()).map_or(0, |disk| disk.f_blocks * disk.f_frsize);
            self.reserve.whole = WHOLE_BYTES.min(disk / SMALLEST_SHARE);
            let pages = self.reserve.whole / WAL_SHARE / self.page_bytes().unwrap_or(1).max(1);
            let pages = u32::try_from(pages).unwrap_or(WAL_PAGES_MAX).clamp(1, WAL_PAGES_MAX);
            if let Err(error) = self.connection.pragma_update(None, "wal_autocheckpoint", pages) {
                tracing::debug!(%error, "the -wal is written back as usual");
            }
            // A new journal stays in its -wal, so that a copy without the -wal has no tables and is
            // noticed.
            let missing = self.reserve.whole.saturating_sub(self.reserve.held);
            if missing > 0 && self.reserve.finds_no_room_for(missing) {
                self.empty_wal();
            }
        }
        self.reserve.make();
        if let Some(Err(error)) = self.shm.as_mut().map(Shm::take_room) {
            tracing::debug!(%error, "the -shm has the room that it had");
        }
    }

    /// Runs `write`. If it finds no room on the disk, runs it again in the room of the reserve.
    pub(super) fn or_in_reserve<T>(
        &mut self,
        purpose: Use,
        mut write: impl FnMut(&mut Core) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        let mut written = match write(self) {
            Err(error) if error.remedy() == Remedy::WaitForRoom && self.can_help(purpose) => {
                Err(error)
            }
            done => return done,
        };
        let held = self.reserve.held;
        for share in SHARES {
            let given = held / share;
            let may_grow = match purpose {
                Use::GoOn => 0,
                Use::Empty => held.saturating_sub(self.reserve.whole / GROWTH_SHARE).min(given),
            };
            self.reserve.give_up(given);
            self.write_back_within(given);
            written = self.limit_growth(may_grow, purpose).and_then(|()| write(self));
            self.write_back_within(given);
            let is_used_up = self.reserve.finds_no_room();
            let unlimited = match self.for_commits() {
                0 => self.allow(NO_LIMIT),
                pages => self.allow(pages),
            };
            self.reserve.make();
            unlimited?;
            match &written {
                Err(error) if error.remedy() == Remedy::WaitForRoom && is_used_up => {}
                _ => break,
            }
        }
        written
    }

    /// Returns whether the disk is full, and not only the file.
    pub(super) fn is_disk_full(&self) -> bool {
        self.reserve.whole > 0 && self.reserve.finds_no_room_for(self.reserve.whole)
    }

    /// Returns whether the room of the reserve can help a write that found none.
    fn can_help(&self, purpose: Use) -> bool {
        let has_free = || self.number("freelist_count").is_ok_and(|pages| pages > 0);
        self.reserve.held > 0
            && self.is_disk_full()
            && (purpose == Use::Empty || has_free() || self.wal_bytes() > 0)
    }

    /// Lets the file grow by this many bytes, within the limit for this purpose.
    fn limit_growth(&self, bytes: u64, purpose: Use) -> Result<(), JournalError> {
        let failed = |error| self.error(error);
        let (pages, each) = (self.number("page_count"), self.page_bytes());
        let grown = pages.map_err(failed)? + bytes / each.map_err(failed)?.max(1);
        let most = match (self.pages_max(), purpose) {
            (0, _) => NO_LIMIT,
            (_, Use::GoOn) => self.for_commits(),
            (pages, Use::Empty) => pages,
        };
        self.allow(u32::try_from(grown).unwrap_or(NO_LIMIT).clamp(1, most))
    }

    /// Writes the `-wal` to the main file and empties it, if that makes the file grow by at most
    /// `room` bytes.
    fn write_back_within(&self, room: u64) {
        let grows = || -> rusqlite::Result<u64> {
            let bytes = self.number("page_count")? * self.page_bytes()?;
            Ok(bytes.saturating_sub(fs::metadata(self.path()).map_or(0, |main| main.len())))
        };
        if grows().is_ok_and(|bytes| bytes <= room) {
            self.empty_wal();
        }
    }

    /// Writes the `-wal` to the main file and empties it, as far as no reader needs it.
    fn empty_wal(&self) {
        let wait = |millis| self.connection.busy_timeout(Duration::from_millis(millis));
        let emptied = wait(READERS_WAIT_MS)
            .and_then(|()| schema::checkpoint(&self.connection, schema::Checkpoint::All));
        if let Err(error) = emptied.and(wait(WRITE_BUSY_TIMEOUT_MS)) {
            tracing::debug!(%error, "the -wal stays as it is for now");
        }
    }

    fn wal_bytes(&self) -> u64 {
        fs::metadata(place::beside(self.path(), "-wal")).map_or(0, |wal| wal.len())
    }

    fn page_bytes(&self) -> rusqlite::Result<u64> {
        self.number("page_size")
    }

    fn number(&self, pragma: &str) -> rusqlite::Result<u64> {
        let sql = format!("PRAGMA {pragma}");
        let number: i64 = self.connection.query_row(&sql, [], |row| row.get(0))?;
        Ok(u64::try_from(number).unwrap_or_default())
    }
}
