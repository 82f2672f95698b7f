//! The reserve: a file beside the journal that holds disk space back for when the disk is full. The
//! module `disk_full` uses it.

use super::files;
use rusqlite::ffi;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The step of allocations, in bytes: about the smallest growth of the reserve on a nearly full
/// disk, and the size of the trial allocation that finds out whether the disk is full.
const STEP_BYTES: u64 = 64 << 10;

/// The permissions of the reserve's file: only its owner reads and writes it.
const MODE: u32 = 0o600;

/// The purpose of a write. It decides how much of the reserve the write may use on a full disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WritePurpose {
    /// To let jobs continue: the write may only use pages that are free within the main file.
    Continue,
    /// To free space in the journal: the write may make the main file grow.
    FreeSpace,
}

/// A file that holds disk space back, to be freed when the disk is full.
pub(super) struct Reserve {
    path: PathBuf,
    /// The current size of the file, in bytes.
    pub(super) size: u64,
    /// The size of the file while the disk has enough space, in bytes; 0: the file does not grow.
    pub(super) target_size: u64,
}

impl Reserve {
    /// Returns the reserve of the journal at `path`, as the previous process left it.
    pub(super) fn for_journal(path: &Path) -> Reserve {
        let path = files::sibling(path, ".reserve");
        let size = fs::metadata(&path).map_or(0, |metadata| metadata.len());
        Reserve { path, size, target_size: 0 }
    }

    /// Shrinks the file by `bytes`, at most to nothing. If that fails, the file stays as it is.
    pub(super) fn shrink(&mut self, bytes: u64) {
        let size = self.size.saturating_sub(bytes);
        match self.open_file().and_then(|file| file.set_len(size)) {
            Ok(()) => self.size = size,
            Err(error) => tracing::debug!(%error, "the reserve cannot be shrunk"),
        }
    }

    /// Grows the file to its target size, or as far as the disk allows.
    pub(super) fn grow_to_target(&mut self) {
        while self.size < self.target_size {
            let mut step = self.target_size - self.size;
            let result = loop {
                match self.grow(step) {
                    Err(error) if is_storage_full(&error) && step / 2 >= STEP_BYTES => step /= 2,
                    result => break result,
                }
            };
            if let Err(error) = result {
                if !is_storage_full(&error) {
                    tracing::debug!(%error, "the reserve cannot grow");
                }
                return;
            }
        }
    }

    /// Opens the file, or creates it.
    fn open_file(&self) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(false).mode(MODE).open(&self.path)
    }

    /// Grows the file by `bytes`, or leaves it as it is and returns an error.
    fn grow(&mut self, bytes: u64) -> io::Result<()> {
        let file = self.open_file()?;
        let result = allocate(&file, self.size, bytes);
        if result.is_err() {
            // Free what was allocated before the error.
            file.set_len(self.size)?;
        }
        result?;
        self.size += bytes;
        Ok(())
    }

    /// Returns whether the disk or a quota has less than `bytes` free, by a trial allocation.
    pub(super) fn is_short_of(&self, bytes: u64) -> bool {
        let result = self.open_file().and_then(|file| {
            let result = allocate(&file, self.size, bytes);
            file.set_len(self.size).and(result)
        });
        result.is_err_and(|error| is_storage_full(&error))
    }

    /// Returns whether the disk has less than [`STEP_BYTES`] free.
    pub(super) fn is_disk_full(&self) -> bool {
        self.is_short_of(STEP_BYTES)
    }
}

fn is_storage_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Allocates `bytes` of disk space for a file, starting at this offset.
fn allocate(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), offset, bytes) {
        // The file system does not support the call.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        result => return result.map_err(io::Error::from),
    }
    // Write the bytes instead, in a pattern: some file systems do not store blocks of zeros.
    let block: Vec<u8> = (0..STEP_BYTES).map(|index| (index % 251) as u8).collect();
    let mut bytes_written = 0;
    while bytes_written < bytes {
        let length = usize::try_from(bytes - bytes_written).unwrap_or(usize::MAX).min(block.len());
        file.write_all_at(&block[..length], offset + bytes_written)?;
        bytes_written += length as u64;
    }
    file.sync_data()
}

/// Returns whether SQLite could not write, or could not grow the `-shm` that it maps. SQLite
/// reports an exhausted quota as one of these I/O errors.
pub(super) fn is_write_failure(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| {
        [ffi::SQLITE_IOERR_WRITE, ffi::SQLITE_IOERR_SHMSIZE].contains(&error.extended_code)
    })
}
