//! The file beside the journal that keeps room on its disk; `disk_full` describes its use.

use super::files;
use rusqlite::ffi;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The smallest growth of the reserve, and how much is allocated on trial to find out whether there
/// is room; in bytes.
const STEP_BYTES: u64 = 64 << 10;

/// The permissions of the file: owner only.
const MODE: u32 = 0o600;

/// The purpose of a write that finds no room on the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WritePurpose {
    /// Jobs go on: the write uses pages that are free within the file.
    Continue,
    /// The journal is emptied: the write may make the file grow.
    FreeSpace,
}

/// The file that keeps room on the disk.
pub(super) struct Reserve {
    path: PathBuf,
    /// The file's size now, in bytes.
    pub(super) size: u64,
    /// The file's size while there is enough room, in bytes; 0: none is kept.
    pub(super) target_size: u64,
}

impl Reserve {
    /// Returns the reserve of the journal at `path`, as the previous process left it.
    pub(super) fn for_journal(path: &Path) -> Reserve {
        let path = files::sibling(path, ".reserve");
        let size = fs::metadata(&path).map_or(0, |metadata| metadata.len());
        Reserve { path, size, target_size: 0 }
    }

    /// Shrinks the file by this many bytes; the file itself stays.
    pub(super) fn shrink(&mut self, bytes: u64) {
        let left = self.size.saturating_sub(bytes);
        match self.file().and_then(|file| file.set_len(left)) {
            Ok(()) => self.size = left,
            Err(error) => tracing::debug!(%error, "the reserve cannot be given up"),
        }
    }

    /// Grows the file to its target size, or as far as there is room.
    pub(super) fn grow_to_target(&mut self) {
        while self.size < self.target_size {
            let mut step = self.target_size - self.size;
            let grown = loop {
                match self.grow(step) {
                    Err(error) if is_storage_full(&error) && step / 2 >= STEP_BYTES => step /= 2,
                    grown => break grown,
                }
            };
            if let Err(error) = grown {
                if !is_storage_full(&error) {
                    tracing::debug!(%error, "the reserve cannot be made");
                }
                return;
            }
        }
    }

    fn file(&self) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(false).mode(MODE).open(&self.path)
    }

    /// Grows the file by this many bytes, or leaves it as it is.
    fn grow(&mut self, bytes: u64) -> io::Result<()> {
        let file = self.file()?;
        let grown = allocate(&file, self.size, bytes);
        if grown.is_err() {
            // This part was allocated before the room ran out.
            file.set_len(self.size)?;
        }
        grown?;
        self.size += bytes;
        Ok(())
    }

    /// Returns whether the disk or a quota has no room for this many bytes more.
    pub(super) fn is_short_of(&self, bytes: u64) -> bool {
        let tried = self.file().and_then(|file| {
            let tried = allocate(&file, self.size, bytes);
            file.set_len(self.size).and(tried)
        });
        tried.is_err_and(|error| is_storage_full(&error))
    }

    /// Returns whether there is no room for anything.
    pub(super) fn is_disk_full(&self) -> bool {
        self.is_short_of(STEP_BYTES)
    }
}

fn is_storage_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Allocates a part of a file beyond its end.
fn allocate(file: &File, from: u64, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), from, bytes) {
        // The file system does not support the call.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        allocated => return allocated.map_err(io::Error::from),
    }
    // Zeros would not do: some file systems store none.
    let piece: Vec<u8> = (0..STEP_BYTES).map(|at| (at % 251) as u8).collect();
    let mut written = 0;
    while written < bytes {
        let next = usize::try_from(bytes - written).unwrap_or(usize::MAX).min(piece.len());
        file.write_all_at(&piece[..next], from + written)?;
        written += next as u64;
    }
    file.sync_data()
}

/// Returns whether SQLite could not write. It reports an exhausted quota as an I/O error, and a
/// file that cannot grow when it maps it.
pub(super) fn is_write_failure(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| {
        [ffi::SQLITE_IOERR_WRITE, ffi::SQLITE_IOERR_SHMSIZE].contains(&error.extended_code)
    })
}
