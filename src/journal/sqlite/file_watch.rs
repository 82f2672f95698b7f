//! Watches the files of an open journal: SQLite goes on writing to a file that was removed,
//! replaced or truncated, and whatever it commits there is lost when the process ends.
//!
//! The names must lead to the files that were opened. The `-wal` must have the frames that SQLite's
//! index of it counts. In WAL mode only checkpoints write the main file, and the index counts them
//! too, so the file must not change without one. The layout of the index is described at
//! sqlite.org/walformat.html; an index of another version is not read.

use super::files::{FileIdentity, sibling};
use crate::error::FileLoss;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The version of the index whose layout is known here.
const INDEX_VERSION: u32 = 3_007_000;

/// The size of the header, its copy, and the checkpoint information, in bytes.
const INDEX_BYTES: usize = 136;

/// The size of the header of the `-wal`, and of the header of each of its frames, in bytes.
const WAL_HEADER_BYTES: u64 = 32;
const FRAME_HEADER_BYTES: u64 = 24;

/// Watches the files of an open journal.
pub(super) struct FileWatch {
    main: WatchedFile,
    /// `None` where SQLite could not create one.
    wal: Option<WatchedFile>,
    shm: Option<(WatchedFile, File)>,
    /// The main file as it was while no checkpoint was running, and the checkpoints until then.
    stable: Option<(FileState, CheckpointState)>,
}

/// A file that was opened.
struct WatchedFile {
    path: PathBuf,
    identity: FileIdentity,
}

/// The attributes that change when a file is written.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileState {
    bytes: u64,
    modified: (i64, i64),
}

/// How far checkpoints have come.
#[derive(Clone, Copy, PartialEq, Eq)]
struct CheckpointState {
    salt: [u8; 8],
    done: u32,
}

/// SQLite's index of the `-wal`.
#[derive(PartialEq, Eq)]
struct WalIndex {
    page_bytes: u64,
    frames: u64,
    checkpoints: CheckpointState,
    /// How far the latest checkpoint intends to go.
    attempted: u32,
}

impl FileWatch {
    /// Starts to watch the journal at `path`, which this process has opened and read.
    ///
    /// # Errors
    ///
    /// Returns an error if the files cannot be inspected.
    pub(super) fn start(path: &Path) -> io::Result<FileWatch> {
        let (wal, shm) = (sibling(path, "-wal"), sibling(path, "-shm"));
        // Stays open as long as the journal: closing it would drop SQLite's own locks on it.
        let index = File::open(&shm).ok();
        Ok(FileWatch {
            main: WatchedFile::open(path)?,
            wal: WatchedFile::open(&wal).ok(),
            shm: WatchedFile::open(&shm).ok().zip(index),
            stable: None,
        })
    }

    /// Checks the files once.
    pub(super) fn poll(&mut self) -> Result<(), FileLoss> {
        let before = self.read_index();
        let main = self.main.poll()?;
        let wal = match &self.wal {
            Some(wal) => wal.poll()?,
            None => None,
        };
        if let Some((shm, _)) = &self.shm {
            shm.poll()?;
        }
        // Another program may be writing or checkpointing; the next check sees the result.
        let (Some(main), Some(wal), Some(index)) = (main, wal, before) else { return Ok(()) };
        if self.read_index().as_ref() != Some(&index) {
            return Ok(());
        }
        let expected = if index.frames == 0 {
            0
        } else {
            WAL_HEADER_BYTES + index.frames * (FRAME_HEADER_BYTES + index.page_bytes)
        };
        if let Some(seen) = self.wal.as_ref().filter(|_| wal.len() < expected) {
            return Err(seen.truncated_loss(wal.len(), expected));
        }
        if index.attempted != index.checkpoints.done {
            self.stable = None;
            return Ok(());
        }
        let content = FileState { bytes: main.len(), modified: (main.mtime(), main.mtime_nsec()) };
        match self.stable.replace((content, index.checkpoints)) {
            Some((known, at)) if at == index.checkpoints && known != content => {
                self.stable = Some((known, at));
                Err(if content.bytes < known.bytes {
                    self.main.truncated_loss(content.bytes, known.bytes)
                } else {
                    FileLoss::Overwritten(self.main.name())
                })
            }
            Some(_) | None => Ok(()),
        }
    }

    fn read_index(&self) -> Option<WalIndex> {
        let (_, file) = self.shm.as_ref()?;
        let mut bytes = [0; INDEX_BYTES];
        file.read_exact_at(&mut bytes, 0).ok()?;
        WalIndex::parse(&bytes)
    }
}

impl WalIndex {
    /// Parses the index; `None` if it is of another version, or being written.
    fn parse(bytes: &[u8; INDEX_BYTES]) -> Option<WalIndex> {
        let number = |at: usize| bytes[at..].first_chunk().copied().map(u32::from_ne_bytes);
        let page_bytes = bytes[14..].first_chunk().copied().map(u16::from_ne_bytes)?;
        if bytes[..48] != bytes[48..96] || number(0)? != INDEX_VERSION {
            return None;
        }
        Some(WalIndex {
            // A size that does not fit is stored as 1.
            page_bytes: if page_bytes == 1 { 1 << 16 } else { page_bytes.into() },
            frames: number(16)?.into(),
            checkpoints: CheckpointState {
                salt: bytes[32..].first_chunk().copied()?,
                done: number(96)?,
            },
            attempted: number(128)?,
        })
    }
}

impl WatchedFile {
    fn open(path: &Path) -> io::Result<WatchedFile> {
        Ok(WatchedFile {
            path: path.to_owned(),
            identity: FileIdentity::from(&fs::metadata(path)?),
        })
    }

    /// Checks whether the name still leads to this file; `None` if that cannot be determined.
    fn poll(&self) -> Result<Option<Metadata>, FileLoss> {
        match fs::metadata(&self.path) {
            Ok(metadata) if FileIdentity::from(&metadata) == self.identity => Ok(Some(metadata)),
            Ok(_) => Err(FileLoss::Replaced(self.name())),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Err(FileLoss::Removed(self.name()))
            }
            // SQLite's own calls will report the error.
            Err(_) => Ok(None),
        }
    }

    fn truncated_loss(&self, bytes: u64, expected: u64) -> FileLoss {
        FileLoss::Truncated { file: self.name(), bytes, expected }
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}
