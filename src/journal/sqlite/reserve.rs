//! The file beside the journal that keeps room on its disk; `lending` says what for.

use super::place;
use rusqlite::ffi;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The reserve grows by so much at least, and so much is tried for to learn whether there is room;
/// in bytes.
const STEP_BYTES: u64 = 64 << 10;

/// The access that the file gets: its owner's.
const MODE: u32 = 0o600;

/// What a write is for that finds no room on the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Jobs go on: in pages that are free within the file.
    GoOn,
    /// The journal is emptied: what has to be written for that may make the file grow.
    Empty,
}

/// The file that keeps room.
pub(super) struct Reserve {
    path: PathBuf,
    /// Its size now, in bytes.
    pub(super) held: u64,
    /// Its size while there is room; 0: none is kept.
    pub(super) whole: u64,
}

impl Reserve {
    /// The reserve of the journal at `path`, as a process before has left it.
    pub(super) fn beside(path: &Path) -> Reserve {
        let path = place::beside(path, ".reserve");
        let held = fs::metadata(&path).map_or(0, |metadata| metadata.len());
        Reserve { path, held, whole: 0 }
    }

    /// Gives so many bytes of its room up; the file stays.
    pub(super) fn give_up(&mut self, bytes: u64) {
        let left = self.held.saturating_sub(bytes);
        match self.file().and_then(|file| file.set_len(left)) {
            Ok(()) => self.held = left,
            Err(error) => tracing::debug!(%error, "the reserve cannot be given up"),
        }
    }

    /// Makes it as large as it is to be, or as there is room for.
    pub(super) fn make(&mut self) {
        while self.held < self.whole {
            let mut step = self.whole - self.held;
            let grown = loop {
                match self.grow(step) {
                    Err(error) if is_no_room(&error) && step / 2 >= STEP_BYTES => step /= 2,
                    grown => break grown,
                }
            };
            if let Err(error) = grown {
                if !is_no_room(&error) {
                    tracing::debug!(%error, "the reserve cannot be made");
                }
                return;
            }
        }
    }

    fn file(&self) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(false).mode(MODE).open(&self.path)
    }

    /// Makes it larger by so many bytes, or leaves it as it is.
    fn grow(&mut self, bytes: u64) -> io::Result<()> {
        let file = self.file()?;
        let grown = allocate(&file, self.held, bytes);
        if grown.is_err() {
            // What was allocated before the room was over.
            file.set_len(self.held)?;
        }
        grown?;
        self.held += bytes;
        Ok(())
    }

    /// Whether there is no room for so many bytes more, of the disk or of a quota.
    pub(super) fn finds_no_room_for(&self, bytes: u64) -> bool {
        let tried = self.file().and_then(|file| {
            let tried = allocate(&file, self.held, bytes);
            file.set_len(self.held).and(tried)
        });
        tried.is_err_and(|error| is_no_room(&error))
    }

    /// Whether there is no room for anything.
    pub(super) fn finds_no_room(&self) -> bool {
        self.finds_no_room_for(STEP_BYTES)
    }
}

fn is_no_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Allocates a part of a file behind its end.
fn allocate(file: &File, from: u64, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), from, bytes) {
        // The file system knows no such call.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        allocated => return allocated.map_err(io::Error::from),
    }
    // Not zeros, which some keep no room for.
    let piece: Vec<u8> = (0..STEP_BYTES).map(|at| (at % 251) as u8).collect();
    let mut written = 0;
    while written < bytes {
        let next = usize::try_from(bytes - written).unwrap_or(usize::MAX).min(piece.len());
        file.write_all_at(&piece[..next], from + written)?;
        written += next as u64;
    }
    file.sync_data()
}

/// Whether SQLite could not write. It takes a quota that is used up for an I/O error, and a file
/// that cannot grow when it maps it.
pub(super) fn is_unwritten(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| {
        [ffi::SQLITE_IOERR_WRITE, ffi::SQLITE_IOERR_SHMSIZE].contains(&error.extended_code)
    })
}
