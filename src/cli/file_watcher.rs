//! Notices that files have changed, by looking at them again and again. That works for any file
//! system and any way in which an editor writes a file.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often the files should be looked at.
pub(super) const WATCH_INTERVAL: Duration = Duration::from_millis(150);

/// What differs between two states of a file: its number, its size, and when it was modified, in
/// seconds and nanoseconds. `None` if there is no such file.
type FileStamp = Option<(u64, u64, i64, i64)>;

/// Watches some files.
pub(super) struct FileWatcher {
    files: Vec<PathBuf>,
    /// The states that were reported.
    reported: Vec<FileStamp>,
    /// The states when the files were looked at last.
    latest: Vec<FileStamp>,
}

impl FileWatcher {
    /// Watches these files from their states of now.
    pub(super) fn new(files: Vec<PathBuf>) -> FileWatcher {
        let stamps: Vec<FileStamp> = files.iter().map(|file| read_stamp(file)).collect();
        FileWatcher { files, reported: stamps.clone(), latest: stamps }
    }

    /// Looks at the files, and returns those that have changed since they were reported. While a
    /// file still changes, nothing is returned: two calls in a row must see the same.
    pub(super) fn poll(&mut self) -> Vec<PathBuf> {
        let stamps: Vec<FileStamp> = self.files.iter().map(|file| read_stamp(file)).collect();
        if stamps != self.latest {
            self.latest = stamps;
            return Vec::new();
        }
        let before = std::mem::replace(&mut self.reported, stamps);
        let states = before.iter().zip(&self.reported);
        let changed = self.files.iter().zip(states).filter(|(_, (before, after))| before != after);
        changed.map(|(file, _)| file.clone()).collect()
    }
}

fn read_stamp(file: &Path) -> FileStamp {
    let metadata = fs::metadata(file).ok()?;
    Some((metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_reported_once_and_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
        fs::write(&one, "a").unwrap();
        let mut watcher = FileWatcher::new(vec![one.clone(), other.clone()]);
        assert!(watcher.poll().is_empty(), "nothing has changed");
        fs::write(&one, "ab").unwrap();
        assert!(watcher.poll().is_empty(), "it may still be written");
        fs::write(&one, "abc").unwrap();
        assert!(watcher.poll().is_empty(), "and was");
        assert_eq!(watcher.poll(), std::slice::from_ref(&one));
        assert!(watcher.poll().is_empty(), "once");
        // Editors write a new file and rename it; others remove the file first.
        fs::write(&other, "abc").unwrap();
        fs::rename(&other, &one).unwrap();
        watcher.poll();
        assert_eq!(watcher.poll(), std::slice::from_ref(&one));
        fs::remove_file(&one).unwrap();
        watcher.poll();
        assert_eq!(watcher.poll(), [one]);
    }
}
