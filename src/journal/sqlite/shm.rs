//! Allocates disk blocks for SQLite's `-shm`, so that a full disk does not kill the process. SQLite
//! maps that file into memory, and writes one byte in each 4 KiB of it to allocate its blocks. If
//! the file system has smaller blocks, most of the file stays sparse. On a full disk, a write to an
//! unallocated block of the mapping raises SIGBUS.

use super::files;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// The largest distance between the bytes that SQLite writes to allocate the `-shm`, in bytes. A
/// file system with blocks of at least this size allocates the whole file.
const SQLITE_BLOCK_BYTES: u64 = 4 << 10;

/// How much is allocated beyond the end of the file, in bytes: enough to index a further 500 MB of
/// `-wal`.
pub(super) const EXTRA_BYTES: u64 = 1 << 20;

/// The `-shm` of an open journal, on a file system with small blocks.
pub(super) struct Shm {
    path: PathBuf,
    /// The open file; `None` before the first allocation. It stays open until the connection is
    /// closed: when a process closes any descriptor of a file, it loses all its POSIX locks on the
    /// file, including SQLite's.
    file: Option<File>,
}

impl Shm {
    /// Returns the `-shm` of the journal at `path`; `None` if SQLite itself allocates all its
    /// blocks.
    pub(super) fn for_journal(path: &Path) -> Option<Shm> {
        let directory = path.parent().unwrap_or(Path::new("/"));
        let block_bytes = statvfs(directory).map_or(SQLITE_BLOCK_BYTES, |disk| disk.f_frsize);
        let path = files::sibling(path, "-shm");
        (block_bytes < SQLITE_BLOCK_BYTES).then_some(Shm { path, file: None })
    }

    /// Allocates blocks for the whole file, which SQLite has created and mapped.
    ///
    /// # Errors
    ///
    /// Returns an error if the disk is full, or if the file does not exist.
    pub(super) fn allocate(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            self.file = Some(OpenOptions::new().read(true).write(true).open(&self.path)?);
        }
        let Some(file) = &self.file else { return Ok(()) };
        let bytes = file.metadata()?.len() + EXTRA_BYTES;
        match fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes) {
            // The file system does not support the call.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            result => Ok(result?),
        }
    }
}
