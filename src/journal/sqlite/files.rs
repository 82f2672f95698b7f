//! The files of a journal: resolves symbolic links, sets permissions, and holds the lock that
//! excludes other processes.
//!
//! The lock file and SQLite's other files are beside the resolved path, so they are the same for
//! every symbolic link to the journal. A file with several hard links has several resolved paths,
//! so it is refused.

use crate::error::JournalError;
use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The permissions of new files: only the owner can read and write them. SQLite gives the files
/// that it creates beside the main file the same permissions.
const MODE: u32 = 0o600;

/// The permission bits of users who are neither the owner nor in the group.
const OTHERS_MODE: u32 = 0o007;

/// The most symbolic links that are followed to a file that does not exist yet, as Linux limits
/// them.
const LINKS_FOLLOWED_MAX: u32 = 40;

/// The most attempts to acquire the lock while other programs remove its file.
const LOCK_ATTEMPTS_MAX: u32 = 10;

/// How often a lock that is held is tried again, in all for a second. A program that this process
/// is starting holds its open files until it runs: a lock that was released here is held for that
/// moment longer.
const LOCK_RETRIES_MAX: u32 = 100;

/// How long to wait between two tries.
const LOCK_POLL: Duration = Duration::from_millis(10);

/// Identifies a file independently of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl From<&Metadata> for FileIdentity {
    fn from(metadata: &Metadata) -> FileIdentity {
        FileIdentity { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// Returns the path without symbolic links. Its directory must exist; the file need not.
pub(super) fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_FOLLOWED_MAX {
        match path.canonicalize() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => return result,
        }
        let directory =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match fs::read_link(&path) {
            // The link's target does not exist. SQLite would create the file there.
            Ok(target) => path = directory.join(target),
            Err(_) => {
                let name = path.file_name().ok_or(io::ErrorKind::NotFound)?;
                return Ok(directory.canonicalize()?.join(name));
            }
        }
    }
    Err(io::Error::other("its symbolic links form a loop"))
}

/// Returns the path of the file's sibling with `suffix` appended to its name.
pub(super) fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Checks that the file at `path` can be a journal, and warns if every user can open it. A missing
/// file is accepted.
pub(super) fn check_file(path: &Path, file: &str) -> Result<(), JournalError> {
    let Ok(metadata) = fs::metadata(path) else { return Ok(()) };
    if !metadata.is_file() {
        return Err(JournalError::NotAFile { file: file.to_owned() });
    }
    if metadata.nlink() > 1 {
        return Err(JournalError::HardLinked { file: file.to_owned(), names: metadata.nlink() });
    }
    let mode = metadata.permissions().mode();
    if mode & OTHERS_MODE != 0 {
        tracing::warn!(
            file,
            mode = format!("{:o}", mode & 0o777),
            "every user of this machine can open the journal, and with it the messages of all \
             jobs: chmod 600 it, its -wal and its -shm"
        );
    }
    Ok(())
}

/// Creates the file if it is missing. If SQLite created it, the umask would decide its permissions.
pub(super) fn create_if_missing(path: &Path) -> io::Result<()> {
    // Only a new file is opened: closing an existing one would drop SQLite's locks on it.
    match create_options().create_new(true).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

fn create_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).truncate(false).mode(MODE);
    options
}

/// The lock on a journal, held until it is dropped.
pub(super) struct FileLock {
    path: PathBuf,
    /// Keeps the lock: closing the file releases it.
    _file: File,
    identity: FileIdentity,
    /// Whether this process created the lock file.
    is_new: bool,
}

/// Why a lock could not be acquired.
pub(super) enum LockError {
    /// Another process holds it.
    InUse,
    /// The lock file cannot be used.
    Failed(io::Error),
}

impl FileLock {
    /// Acquires the lock with the lock file `path`.
    pub(super) fn acquire(path: &Path) -> Result<FileLock, LockError> {
        for _ in 0..LOCK_ATTEMPTS_MAX {
            let (file, is_new) = match create_options().create_new(true).open(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    (create_options().create(true).open(path), false)
                }
                result => (result, true),
            };
            let file = file.map_err(LockError::Failed)?;
            lock_soon(&file)?;
            let identity = FileIdentity::from(&file.metadata().map_err(LockError::Failed)?);
            // If the file was removed between opening and locking it, its lock excludes no process.
            if is_same_file(path, identity) {
                // Whoever can open the file can lock it. If it belongs to another user, its
                // permissions stay as they are.
                let _ = file.set_permissions(Permissions::from_mode(MODE));
                return Ok(FileLock { path: path.to_owned(), _file: file, identity, is_new });
            }
        }
        Err(LockError::Failed(io::Error::other("its file keeps being removed")))
    }

    /// Acquires the lock again if its file was removed or replaced.
    pub(super) fn ensure_locked(&mut self) -> Result<(), LockError> {
        if is_same_file(&self.path, self.identity) {
            return Ok(());
        }
        *self = FileLock::acquire(&self.path)?;
        tracing::warn!(
            lock = %self.path.display(),
            "the journal's lock was removed while it is in use: it is taken again"
        );
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Releases the lock of a file that is not a usable journal, and removes the lock file if it is
    /// new.
    pub(super) fn discard(self) {
        if self.is_new {
            // The lock is still held here. A process that has opened the file meanwhile notices
            // that it was removed, and creates another.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Locks a file, and waits for a moment if it is locked.
fn lock_soon(file: &File) -> Result<(), LockError> {
    for _ in 0..LOCK_RETRIES_MAX {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_POLL),
            Err(TryLockError::Error(error)) => return Err(LockError::Failed(error)),
        }
    }
    Err(LockError::InUse)
}

/// Returns whether the path leads to the file with this identity.
fn is_same_file(path: &Path, identity: FileIdentity) -> bool {
    fs::metadata(path).is_ok_and(|metadata| FileIdentity::from(&metadata) == identity)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_followed_even_to_missing_files() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let root = directory.path().canonicalize().expect("the directory exists");
        fs::create_dir(root.join("data")).expect("the directory is created");
        symlink("data", root.join("link")).expect("the link is created");
        symlink("link/j.db", root.join("a.db")).expect("the link is created");
        let expected = root.join("data/j.db");
        for name in ["data/j.db", "link/j.db", "a.db", "data/../link/j.db"] {
            assert_eq!(resolve(&root.join(name)).expect(name), expected);
        }
        fs::write(&expected, "").expect("the file is written");
        assert_eq!(resolve(&root.join("a.db")).expect("the link is followed"), expected);
        symlink("y.db", root.join("x.db")).expect("the link is created");
        symlink("x.db", root.join("y.db")).expect("the link is created");
        assert!(resolve(&root.join("x.db")).is_err(), "the links form a loop");
        assert!(resolve(&root.join("missing/j.db")).is_err(), "the directory does not exist");
    }

    #[test]
    fn a_lock_that_is_released_within_a_moment_is_waited_for() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("j.db.lock");
        let file = create_options().create(true).open(&path).expect("opens");
        file.lock().expect("locks");
        // As a program that is being started holds it: a copy of the open file.
        let copy = file.try_clone().expect("a copy");
        drop(file);
        assert!(create_options().open(&path).expect("opens").try_lock().is_err(), "it is locked");
        let release = thread::spawn(move || {
            thread::sleep(LOCK_POLL * 3);
            drop(copy);
        });
        FileLock::acquire(&path).ok().expect("the lock is waited for");
        release.join().expect("the thread ends");
    }

    #[test]
    fn a_lock_whose_file_was_removed_is_reacquired_unless_another_process_holds_it() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("j.db.lock");
        let mut lock = FileLock::acquire(&path).ok().expect("the lock is free");
        assert!(matches!(FileLock::acquire(&path), Err(LockError::InUse)));
        fs::remove_file(&path).expect("the lock file exists");
        lock.ensure_locked().ok().expect("the lock is acquired again");
        assert!(matches!(FileLock::acquire(&path), Err(LockError::InUse)));
        fs::remove_file(&path).expect("the lock file exists");
        let _other = FileLock::acquire(&path).ok().expect("the lock is free for another");
        assert!(matches!(lock.ensure_locked(), Err(LockError::InUse)));
    }
}
