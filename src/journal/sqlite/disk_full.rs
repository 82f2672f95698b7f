//! The use of the reserve: a file beside the journal that holds disk space back. When the disk is
//! full, the reserve shrinks, and the journal writes into the space that this frees: it cancels and
//! deletes jobs, projects entries, and commits into pages that deletions have freed. It is mainly
//! the `-wal` that needs that space. After each write, a checkpoint truncates the `-wal`, and the
//! reserve grows again.
//!
//! While the disk is full, only writes that free space in the journal may make the main file grow,
//! and only by a part of the reserve: the remainder is for the `-wal`.

use super::files;
use super::reserve::{Reserve, WritePurpose};
use super::schema::{self, JournalOptions, WRITE_BUSY_TIMEOUT_MS};
use super::shm::Shm;
use super::writer::{JournalWriter, hit_fail_point};
use crate::error::{JournalError, Remedy};
use rustix::fs::statvfs;
use std::fs;
use std::time::Duration;

/// A write that frees space in the journal may use a part of the reserve for the growth of the main
/// file: what the reserve has beyond its target size divided by this.
const GROWTH_DIVISOR: u64 = 2;

/// The reserve shrinks for a write by its size divided by each of these in turn, until the write
/// succeeds. It shrinks by little at first, because another program may take the freed space before
/// the reserve grows again.
const SHRINK_DIVISORS: [u64; 3] = [16, 4, 1];

/// SQLite's autocheckpoint runs when the `-wal` is as large as the reserve's target size divided by
/// this. So the main file grows by less than the reserve can shrink.
const AUTOCHECKPOINT_DIVISOR: u64 = 4;

/// The most pages in the `-wal` before the autocheckpoint: SQLite's default.
const AUTOCHECKPOINT_PAGES_MAX: u32 = 1_000;

/// The busy timeout of truncating the `-wal`, in milliseconds: how long it waits for readers.
const TRUNCATE_BUSY_TIMEOUT_MS: u64 = 100;

/// The most pages that SQLite allows in a file.
const SQLITE_PAGES_MAX: u32 = u32::MAX - 1;

/// The target size of the reserve, in bytes. Projecting 8,000 new jobs, about the most that can be
/// unprojected, takes 3.4 MB of `-wal`, and then as much of the main file. Deleting a job with
/// 10,000 child jobs takes 1.4 MB of `-wal`.
const RESERVE_BYTES: u64 = 16 << 20;

/// The target size is at most the size of the file system divided by this.
const SMALL_DISK_DIVISOR: u64 = 4;

impl JournalWriter {
    /// Frees the reserve and opens the journal again, if opening it has failed with `error` because
    /// the disk is full. Otherwise returns `error`.
    pub(super) fn open_in_reserve(
        options: &JournalOptions,
        error: JournalError,
    ) -> Result<JournalWriter, JournalError> {
        // `Failed` means that the lock was free: no other process uses the reserve.
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
            "no room on the disk: the journal is opened in the space of its reserve"
        );
        reserve.target_size = reserve.size;
        reserve.shrink(reserve.size);
        JournalWriter::open(options).inspect_err(|_| reserve.grow_to_target())
    }

    /// Grows the reserve to its target size, or as far as the disk allows. The first call also sets
    /// the target size and the limit of the autocheckpoint.
    pub(super) fn fill_reserve(&mut self) {
        if self.reserve.target_size == 0 {
            let disk_bytes = statvfs(self.path()).map_or(0, |disk| disk.f_blocks * disk.f_frsize);
            self.reserve.target_size = RESERVE_BYTES.min(disk_bytes / SMALL_DISK_DIVISOR);
            let pages = self.reserve.target_size
                / AUTOCHECKPOINT_DIVISOR
                / self.page_bytes().unwrap_or(1).max(1);
            let pages = u32::try_from(pages)
                .unwrap_or(AUTOCHECKPOINT_PAGES_MAX)
                .clamp(1, AUTOCHECKPOINT_PAGES_MAX);
            if let Err(error) = self.connection.pragma_update(None, "wal_autocheckpoint", pages) {
                tracing::debug!(%error, "the autocheckpoint of the -wal keeps SQLite's default");
            }
            // The -wal is truncated only if the reserve needs its space. A new journal stays in its
            // -wal, so that a copy without the -wal has no tables, and its start reports that.
            let missing_bytes = self.reserve.target_size.saturating_sub(self.reserve.size);
            if missing_bytes > 0 && self.reserve.is_short_of(missing_bytes) {
                self.truncate_wal();
            }
        }
        self.reserve.grow_to_target();
        if let Some(Err(error)) = self.shm.as_mut().map(Shm::allocate) {
            tracing::debug!(%error, "no more disk space can be allocated for the -shm");
        }
    }

    /// Runs `write`. If the disk is full, shrinks the reserve step by step and runs `write` again
    /// in the space that this frees.
    pub(super) fn write_or_use_reserve<T>(
        &mut self,
        purpose: WritePurpose,
        mut write: impl FnMut(&mut JournalWriter) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        let mut result = write(self);
        let is_out_of_space = |result: &Result<T, JournalError>| {
            result.as_ref().is_err_and(|error| error.remedy() == Remedy::WaitForSpace)
        };
        if !is_out_of_space(&result) || !self.can_reserve_help(purpose) {
            return result;
        }
        let size_before = self.reserve.size;
        for divisor in SHRINK_DIVISORS {
            let freed = size_before / divisor;
            let growth_max = match purpose {
                WritePurpose::Continue => 0,
                WritePurpose::FreeSpace => {
                    size_before.saturating_sub(self.reserve.target_size / GROWTH_DIVISOR).min(freed)
                }
            };
            self.reserve.shrink(freed);
            self.checkpoint_within(freed);
            result = self.limit_growth(growth_max, purpose).and_then(|()| write(self));
            self.checkpoint_within(freed);
            let is_used_up = self.reserve.is_disk_full();
            self.restore_commit_limit();
            self.reserve.grow_to_target();
            if !is_out_of_space(&result) || !is_used_up {
                break;
            }
        }
        result
    }

    /// Returns whether the disk has less free space than the target size of the reserve; false if
    /// the reserve has no target size yet. The limit of the journal's pages does not matter.
    pub(super) fn is_disk_full(&self) -> bool {
        self.reserve.target_size > 0 && self.reserve.is_short_of(self.reserve.target_size)
    }

    /// Returns whether shrinking the reserve can help a write that failed for lack of space. A
    /// write that continues jobs also needs free pages in the file, or a `-wal` that can be
    /// truncated.
    fn can_reserve_help(&self, purpose: WritePurpose) -> bool {
        let has_free_pages = || self.read_pragma("freelist_count").is_ok_and(|pages| pages > 0);
        self.reserve.size > 0
            && self.is_disk_full()
            && (purpose == WritePurpose::FreeSpace || has_free_pages() || self.wal_bytes() > 0)
    }

    /// Lets the main file grow by at most `growth_max` bytes, within the limit of pages for this
    /// purpose.
    fn limit_growth(&self, growth_max: u64, purpose: WritePurpose) -> Result<(), JournalError> {
        let to_error = |error| self.to_journal_error(error);
        let page_count = self.read_pragma("page_count").map_err(to_error)?;
        let page_bytes = self.page_bytes().map_err(to_error)?;
        let pages = page_count + growth_max / page_bytes.max(1);
        let limit = match (self.pages_max(), purpose) {
            (0, _) => SQLITE_PAGES_MAX,
            (_, WritePurpose::Continue) => self.commit_pages_max(),
            (pages_max, WritePurpose::FreeSpace) => pages_max,
        };
        self.set_pages_max(u32::try_from(pages).unwrap_or(SQLITE_PAGES_MAX).clamp(1, limit))
    }

    /// Lets the file have as many pages again as commits may use. An error does not undo the write
    /// for which the limit was changed, so it is only logged: the next commits may use more or
    /// fewer pages than they should.
    pub(super) fn restore_commit_limit(&self) {
        let pages = match self.commit_pages_max() {
            0 => SQLITE_PAGES_MAX,
            pages => pages,
        };
        let result = hit_fail_point("journal::limit")
            .map_err(|error| self.to_journal_error(error))
            .and_then(|()| self.set_pages_max(pages));
        if let Err(error) = result {
            tracing::warn!(%error, "the reserve of the journal is not kept for now");
        }
    }

    /// Runs a checkpoint that truncates the `-wal`, if the main file then grows by at most
    /// `growth_max` bytes.
    fn checkpoint_within(&self, growth_max: u64) {
        let growth = || -> rusqlite::Result<u64> {
            let bytes = self.read_pragma("page_count")? * self.page_bytes()?;
            Ok(bytes.saturating_sub(fs::metadata(self.path()).map_or(0, |main| main.len())))
        };
        if growth().is_ok_and(|bytes| bytes <= growth_max) {
            self.truncate_wal();
        }
    }

    /// Runs a checkpoint that truncates the `-wal`. It gives up if a reader still needs the `-wal`.
    fn truncate_wal(&self) {
        let set_busy_timeout = |millis| self.connection.busy_timeout(Duration::from_millis(millis));
        let result = set_busy_timeout(TRUNCATE_BUSY_TIMEOUT_MS)
            .and_then(|()| schema::checkpoint(&self.connection, schema::Checkpoint::Truncate));
        // Reset it even after a failed checkpoint, for the next write.
        let reset_result = set_busy_timeout(WRITE_BUSY_TIMEOUT_MS);
        if let Err(error) = result.and(reset_result) {
            tracing::debug!(%error, "the -wal stays as it is for now");
        }
    }

    /// Returns the size of the `-wal` in bytes; 0 if there is none.
    pub(super) fn wal_bytes(&self) -> u64 {
        fs::metadata(files::sibling(self.path(), "-wal")).map_or(0, |wal| wal.len())
    }

    /// Returns the size of a page in bytes.
    fn page_bytes(&self) -> rusqlite::Result<u64> {
        self.read_pragma("page_size")
    }

    /// Returns the value of a numeric pragma.
    pub(super) fn read_pragma(&self, pragma: &str) -> rusqlite::Result<u64> {
        let sql = format!("PRAGMA {pragma}");
        self.connection.query_row(&sql, [], |row| row.get::<_, u32>(0)).map(u64::from)
    }
}
