//! Reserves disk blocks for SQLite's `-shm`. SQLite maps that file and writes one byte in each 4
//! KiB of it to allocate the blocks. Where the file system has smaller blocks, most of the file
//! remains unallocated: on a full disk the kernel then kills whoever writes there (SIGBUS).

use super::files;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// The block size in which one written byte allocates everything that SQLite needs, in bytes.
const SQLITE_BLOCK_BYTES: u64 = 4 << 10;

/// The room that is allocated beyond the end of the file: enough for the index of 500 MB of `-wal`;
/// in bytes.
pub(super) const EXTRA_BYTES: u64 = 1 << 20;

pub(super) struct Shm {
    path: PathBuf,
    /// Open for as long as the connection: closing any descriptor of a file drops all locks of the
    /// process on it, SQLite's too.
    file: Option<File>,
}

impl Shm {
    /// Returns the `-shm` of the journal at `path`; `None` where SQLite allocates its blocks
    /// anyway.
    pub(super) fn for_journal(path: &Path) -> Option<Shm> {
        let directory = path.parent().unwrap_or(Path::new("/"));
        let block = statvfs(directory).map_or(SQLITE_BLOCK_BYTES, |disk| disk.f_frsize);
        let path = files::sibling(path, "-shm");
        (block < SQLITE_BLOCK_BYTES).then_some(Shm { path, file: None })
    }

    /// Allocates blocks for the whole file, which SQLite has created and mapped.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no room, or no file.
    pub(super) fn allocate(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            self.file = Some(OpenOptions::new().read(true).write(true).open(&self.path)?);
        }
        let Some(file) = &self.file else { return Ok(()) };
        let bytes = file.metadata()?.len() + EXTRA_BYTES;
        match fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes) {
            // The file system does not support the call.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            allocated => Ok(allocated?),
        }
    }
}
