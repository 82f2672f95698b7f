//! Watches the files of an open journal. SQLite continues to write to a file that was removed,
//! replaced or truncated, and whatever it commits there is lost when the process ends.
//!
//! Three things are checked. The paths must lead to the files that were opened. The `-wal` must
//! have at least as many frames as SQLite's WAL index (the `-shm`) counts. The main file must not
//! change without a checkpoint: in WAL mode only checkpoints write to it, and the WAL index records
//! their progress. sqlite.org/walformat.html describes the layout of the WAL index. An index of
//! another version is ignored.

use super::files::{FileIdentity, sibling};
use crate::error::FileLoss;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The version of the WAL index that can be read.
const INDEX_VERSION: u32 = 3_007_000;

/// How much of the WAL index is read, in bytes: the header, its copy, and the checkpoint
/// information.
const INDEX_BYTES: usize = 136;

/// The size of the header of the WAL index, which its copy follows, in bytes.
const INDEX_HEADER_BYTES: usize = 48;

/// The offsets of fields in the WAL index, in bytes, with SQLite's names of them.
mod index_offset {
    /// `iVersion`.
    pub(super) const VERSION: usize = 0;
    /// `szPage`.
    pub(super) const PAGE_BYTES: usize = 14;
    /// `mxFrame`.
    pub(super) const FRAMES: usize = 16;
    /// `aSalt`.
    pub(super) const SALT: usize = 32;
    /// `nBackfill`.
    pub(super) const COMPLETED_FRAMES: usize = 96;
    /// `nBackfillAttempted`.
    pub(super) const ATTEMPTED_FRAMES: usize = 128;
}

/// The size of the header of the `-wal`, in bytes.
const WAL_HEADER_BYTES: u64 = 32;

/// The size of the header of each frame of the `-wal`, in bytes.
const FRAME_HEADER_BYTES: u64 = 24;

/// Watches the files of an open journal.
pub(super) struct FileWatch {
    main: WatchedFile,
    /// The `-wal`; `None` if there is no such file.
    wal: Option<WatchedFile>,
    /// The file of the WAL index; `None` if there is no such file.
    shm: Option<(WatchedFile, File)>,
    /// The main file at the last check, and the progress of checkpoints then; `None` before the
    /// first check, and while a checkpoint is unfinished.
    stable: Option<(FileState, CheckpointState)>,
}

/// A file of the journal, as it was when the journal was opened.
struct WatchedFile {
    path: PathBuf,
    identity: FileIdentity,
}

/// The attributes that change when a file is written.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileState {
    bytes: u64,
    /// The modification time, in seconds and nanoseconds.
    modified: (i64, i64),
}

/// The progress of checkpoints.
#[derive(Clone, Copy, PartialEq, Eq)]
struct CheckpointState {
    /// Changes whenever the `-wal` is reset, so that frames are written from its beginning again.
    salt: [u8; 8],
    /// The number of frames that are already in the main file.
    completed_frames: u32,
}

/// What the watch needs of SQLite's WAL index.
#[derive(PartialEq, Eq)]
struct WalIndex {
    page_bytes: u64,
    /// The number of frames in the `-wal`.
    frames: u64,
    checkpoints: CheckpointState,
    /// The number of frames that the latest checkpoint has tried to write to the main file.
    attempted_frames: u32,
}

impl FileWatch {
    /// Starts to watch the journal at `path`, which this process has opened and read.
    ///
    /// # Errors
    ///
    /// Returns an error if the files cannot be inspected.
    pub(super) fn start(path: &Path) -> io::Result<FileWatch> {
        let (wal, shm) = (sibling(path, "-wal"), sibling(path, "-shm"));
        // It stays open until the journal is closed: closing it would drop SQLite's locks on it.
        let index_file = File::open(&shm).ok();
        Ok(FileWatch {
            main: WatchedFile::open(path)?,
            wal: WatchedFile::open(&wal).ok(),
            shm: WatchedFile::open(&shm).ok().zip(index_file),
            stable: None,
        })
    }

    /// Checks the files once.
    ///
    /// # Errors
    ///
    /// Returns an error that says what happened to the files.
    pub(super) fn poll(&mut self) -> Result<(), FileLoss> {
        let index_before = self.read_index();
        let main = self.main.poll()?;
        let wal = match &self.wal {
            Some(wal) => wal.poll()?,
            None => None,
        };
        if let Some((shm, _)) = &self.shm {
            shm.poll()?;
        }
        let (Some(main), Some(wal), Some(index)) = (main, wal, index_before) else {
            return Ok(());
        };
        // If a write has changed the index meanwhile, the metadata may not match it. The next check
        // decides.
        if self.read_index().as_ref() != Some(&index) {
            return Ok(());
        }
        let expected_bytes = if index.frames == 0 {
            0
        } else {
            WAL_HEADER_BYTES + index.frames * (FRAME_HEADER_BYTES + index.page_bytes)
        };
        if let Some(file) = self.wal.as_ref().filter(|_| wal.len() < expected_bytes) {
            return Err(file.truncated_loss(wal.len(), expected_bytes));
        }
        let is_checkpoint_unfinished = index.attempted_frames != index.checkpoints.completed_frames;
        if is_checkpoint_unfinished {
            self.stable = None;
            return Ok(());
        }
        let current_state =
            FileState { bytes: main.len(), modified: (main.mtime(), main.mtime_nsec()) };
        match self.stable.replace((current_state, index.checkpoints)) {
            Some((previous_state, checkpoints))
                if checkpoints == index.checkpoints && previous_state != current_state =>
            {
                // Keep the old state, so that further checks find the same difference.
                self.stable = Some((previous_state, checkpoints));
                Err(if current_state.bytes < previous_state.bytes {
                    self.main.truncated_loss(current_state.bytes, previous_state.bytes)
                } else {
                    FileLoss::Overwritten(self.main.name())
                })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Reads the WAL index; `None` if there is none, or none that can be parsed.
    fn read_index(&self) -> Option<WalIndex> {
        let (_, file) = self.shm.as_ref()?;
        let mut bytes = [0; INDEX_BYTES];
        file.read_exact_at(&mut bytes, 0).ok()?;
        WalIndex::parse(&bytes)
    }
}

impl WalIndex {
    /// Parses the start of a WAL index. Returns `None` if the index has another version, or if its
    /// header is being written and differs from its copy.
    fn parse(bytes: &[u8; INDEX_BYTES]) -> Option<WalIndex> {
        let read_u32 =
            |offset: usize| bytes[offset..].first_chunk().copied().map(u32::from_ne_bytes);
        let page_bytes =
            bytes[index_offset::PAGE_BYTES..].first_chunk().copied().map(u16::from_ne_bytes)?;
        let header = &bytes[..INDEX_HEADER_BYTES];
        let header_copy = &bytes[INDEX_HEADER_BYTES..2 * INDEX_HEADER_BYTES];
        if header != header_copy || read_u32(index_offset::VERSION)? != INDEX_VERSION {
            return None;
        }
        Some(WalIndex {
            // The size 65,536 does not fit, and is stored as 1.
            page_bytes: if page_bytes == 1 { 1 << 16 } else { page_bytes.into() },
            frames: read_u32(index_offset::FRAMES)?.into(),
            checkpoints: CheckpointState {
                salt: bytes[index_offset::SALT..].first_chunk().copied()?,
                completed_frames: read_u32(index_offset::COMPLETED_FRAMES)?,
            },
            attempted_frames: read_u32(index_offset::ATTEMPTED_FRAMES)?,
        })
    }
}

impl WatchedFile {
    /// Starts to watch the file that the path leads to.
    fn open(path: &Path) -> io::Result<WatchedFile> {
        Ok(WatchedFile {
            path: path.to_owned(),
            identity: FileIdentity::from(&fs::metadata(path)?),
        })
    }

    /// Checks that the path still leads to this file, and returns its metadata; `None` if that
    /// cannot be determined.
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
            // SQLite's own system calls will report the error.
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
