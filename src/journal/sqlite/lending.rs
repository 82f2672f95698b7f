//! The reserve: a file beside the journal that keeps room on its disk. When the disk is full, the
//! journal works on in the room that the file gives up: jobs are cancelled and deleted, lists are
//! derived, and commits go into the pages that deletions have freed. Each time the `-wal`, which
//! has taken the room, is written into the main file and emptied, and the reserve is made again.
//!
//! Only what empties the journal may make the main file grow then, and only by a part of the
//! reserve: the rest stays for the `-wal`.

use super::core::Core;
use super::place;
use super::reserve::{Reserve, Use};
use super::schema::{self, Options, WRITE_BUSY_TIMEOUT_MS};
use super::shm::Shm;
use crate::journal::error::{JournalError, Remedy};
use rustix::fs::statvfs;
use std::fs;
use std::time::Duration;

/// What empties the journal may make it grow by one part in so many of the whole reserve.
const GROWTH_SHARE: u64 = 2;

/// What of the reserve is given up for a write: one part in so many, and more if that is not
/// enough. What another program takes in between is gone.
const SHARES: [u64; 3] = [16, 4, 1];

/// The `-wal` is written into the main file when it has one part in so many of the reserve: what
/// the main file has to grow by then is less than what the reserve gives up.
const WAL_SHARE: u64 = 4;

/// SQLite writes it back after so many pages anyway.
const WAL_PAGES_MAX: u32 = 1_000;

/// How long an emptying of the `-wal` waits for readers, in milliseconds.
const READERS_WAIT_MS: u64 = 100;

/// SQLite's largest number of pages.
const NO_LIMIT: u32 = u32::MAX - 1;

/// The size of a whole reserve, in bytes. To derive 8,000 new jobs, about the most that can be left
/// to derive, takes 3.4 MB of `-wal`, and then as much of the main file. To delete a job with
/// 10,000 child jobs takes 1.4 MB of `-wal`.
const WHOLE_BYTES: u64 = 16 << 20;

/// Of a small file system it is one part in so many.
const SMALLEST_SHARE: u64 = 4;

impl Core {
    /// Opens a journal that cannot be opened for want of room, in that of its reserve.
    pub(super) fn open_in_reserve(
        options: &Options,
        error: JournalError,
    ) -> Result<Core, JournalError> {
        // It has the lock: the reserve is nobody else's.
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
    /// Keeps a reserve from now on, and makes it as far as there is room. Called again, it makes
    /// what is missing.
    pub(super) fn keep_reserve(&mut self) {
        if self.reserve.whole == 0 {
            let disk = statvfs(self.path()).map_or(0, |disk| disk.f_blocks * disk.f_frsize);
            self.reserve.whole = WHOLE_BYTES.min(disk / SMALLEST_SHARE);
            let pages = self.reserve.whole / WAL_SHARE / self.page_bytes().unwrap_or(1).max(1);
            let pages = u32::try_from(pages).unwrap_or(WAL_PAGES_MAX).clamp(1, WAL_PAGES_MAX);
            if let Err(error) = self.connection.pragma_update(None, "wal_autocheckpoint", pages) {
                tracing::debug!(%error, "the -wal is written back as usual");
            }
            // A new journal stays in its -wal: so a copy without that has no tables, and says so.
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

    /// Does `write`. If it finds no room on the disk, it is done once more in the room of the
    /// reserve.
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

    /// Whether it is the disk that has no room, and not the file that has as many pages as it may.
    pub(super) fn is_disk_full(&self) -> bool {
        self.reserve.whole > 0 && self.reserve.finds_no_room_for(self.reserve.whole)
    }

    /// Whether the room of the reserve can help a write that found none.
    fn can_help(&self, purpose: Use) -> bool {
        let has_free = || self.number("freelist_count").is_ok_and(|pages| pages > 0);
        self.reserve.held > 0
            && self.is_disk_full()
            && (purpose == Use::Empty || has_free() || self.wal_bytes() > 0)
    }

    /// Lets the file grow by so many bytes, and no further than it may for this.
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

    /// Writes the `-wal` into the main file and empties it, if what that grows by is less than
    /// `room`.
    fn write_back_within(&self, room: u64) {
        let grows = || -> rusqlite::Result<u64> {
            let bytes = self.number("page_count")? * self.page_bytes()?;
            Ok(bytes.saturating_sub(fs::metadata(self.path()).map_or(0, |main| main.len())))
        };
        if grows().is_ok_and(|bytes| bytes <= room) {
            self.empty_wal();
        }
    }

    /// Writes the `-wal` into the main file and empties it, as far as nobody reads it.
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
