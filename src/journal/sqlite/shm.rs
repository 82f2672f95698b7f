//! The room on the disk of SQLite's `-shm`. SQLite maps that file and writes one byte for each
//! 4 KiB of it, to have the room. Where the blocks of the file system are smaller, most of the file
//! stays without: on a full disk the kernel then kills who writes there (SIGBUS).

use super::place;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// What SQLite takes to have its room with one byte, in bytes.
const TAKEN_FOR_WHOLE_BYTES: u64 = 4 << 10;

/// The room that is kept, also beyond the end: that of an index of 500 MB of `-wal`, in bytes.
pub(super) const KEPT_BYTES: u64 = 1 << 20;

/// The `-shm` of a journal.
pub(super) struct Shm {
    path: PathBuf,
    /// Open for as long as the connection is: whoever closes a file loses the locks of the whole
    /// process on it, those of SQLite too.
    file: Option<File>,
}

impl Shm {
    /// That of the journal at `path`. None is needed where SQLite has its room anyway.
    pub(super) fn beside(path: &Path) -> Option<Shm> {
        let directory = path.parent().unwrap_or(Path::new("/"));
        let block = statvfs(directory).map_or(TAKEN_FOR_WHOLE_BYTES, |disk| disk.f_frsize);
        let path = place::beside(path, "-shm");
        (block < TAKEN_FOR_WHOLE_BYTES).then_some(Shm { path, file: None })
    }

    /// Takes room for the whole file, which SQLite has made and mapped.
    ///
    /// # Errors
    ///
    /// There is no room, or the file is not there.
    pub(super) fn take_room(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            self.file = Some(OpenOptions::new().read(true).write(true).open(&self.path)?);
        }
        let Some(file) = &self.file else { return Ok(()) };
        let bytes = file.metadata()?.len() + KEPT_BYTES;
        match fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes) {
            // The file system knows no such call.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            allocated => Ok(allocated?),
        }
    }
}
