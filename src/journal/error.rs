//! The errors of a journal, and the remedy for each.

use engine::Timestamp;
use std::sync::Arc;

/// An error of a journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process has the journal open.
    #[error(
        "the journal {file} is in use by another process (lock {lock}): stop that one, or give \
         this one a journal of its own with --db"
    )]
    InUse {
        /// The journal's file.
        file: String,
        /// The path of the lock file.
        lock: String,
    },
    /// The lock file cannot be used.
    #[error(
        "cannot lock the journal with {lock}: {error}. Its directory must exist, and be writable \
         by this user"
    )]
    Lock {
        /// The path of the lock file.
        lock: String,
        /// The cause.
        error: std::io::Error,
    },
    /// The path does not exist, or access is denied.
    #[error(
        "cannot open the journal {file}: {error}. Its directory must exist, and be writable by \
         this user"
    )]
    Unreachable {
        /// The journal's file.
        file: String,
        /// The cause.
        error: std::io::Error,
    },
    /// The file can be read, but not written to.
    #[error(
        "the journal {file} can be read, but not written: chmod 600 it, and chown it to the user \
         of the manager"
    )]
    ReadOnly {
        /// The journal's file.
        file: String,
    },
    /// The path does not lead to a regular file.
    #[error(
        "cannot open the journal {file}: it is not a regular file. Give --db the name of a \
         file, which need not exist yet"
    )]
    NotAFile {
        /// The journal's file.
        file: String,
    },
    /// The file has several hard links: each name would have its own lock and `-wal`.
    #[error(
        "the journal {file} has {names} names (hard links), and under each of them SQLite looks \
         for the newest commits in another place. Find them with: find DIRECTORY -xdev \
         -samefile {file}; keep the one that has a -wal beside it, and remove the others"
    )]
    HardLinked {
        /// The journal's file.
        file: String,
        /// The number of its hard links.
        names: u64,
    },
    /// Reading has ended: the manager stops, or has lost the journal.
    #[error("the journal {file} is closed: {reason}")]
    Closed {
        /// The journal's file.
        file: String,
        /// The reason.
        reason: Arc<str>,
    },
    /// The journal's files were changed while it was being opened.
    #[error("the journal {file} changed while it was opened: {loss}")]
    Lost {
        /// The journal's file.
        file: String,
        /// What happened to the files.
        loss: FileLoss,
    },
    /// A row's checksum or content is wrong.
    #[error(
        "the journal {file} is damaged: table {table}, row {row}: {problem}. Nothing was changed. \
         {}",
        repair_advice(file)
    )]
    Damaged {
        /// The journal's file, or the address of its database.
        file: String,
        /// The table of the row.
        table: &'static str,
        /// The row's key.
        row: i64,
        /// What is wrong with the row.
        problem: String,
    },
    /// SQLite finds the file itself damaged.
    #[error(
        "the journal {file} is damaged: {problem}. Nothing was changed. Restore the file from a \
         backup, or move it away to start empty"
    )]
    Malformed {
        /// The journal's file.
        file: String,
        /// SQLite's findings.
        problem: String,
    },
    /// The file has tables, triggers or other objects that this program does not create.
    #[error(
        "the journal {file} is not as this program makes it: it has {differences}. That can change \
         or hide what is read and written, so nothing was opened or changed. If you have added it \
         yourself, drop it while no manager runs (sqlite3 {file} 'DROP …'), and keep what is yours \
         in a file of its own, from which ATTACH reaches the journal. If not, do not use the file: \
         take a backup that you trust"
    )]
    UnexpectedSchema {
        /// The journal's file.
        file: String,
        /// The unexpected, redefined and missing objects.
        differences: String,
    },
    /// The file was written by a later version.
    #[error(
        "the journal {file} has schema version {file_version}, this program knows \
         {newest_version}: it was written by a newer version, run that one"
    )]
    Newer {
        /// The journal's file.
        file: String,
        /// The schema version of the file.
        file_version: i64,
        /// The newest known schema version.
        newest_version: i64,
    },
    /// The file was written by a program before the first release.
    #[error(
        "the journal {file} has schema version {file_version}, this program reads \
         {oldest_version} and later: it was written by a program before version 0.1.0. Nothing was \
         changed. Start version 0.1.0 on it once, which migrates it (workflow-manager serve --db \
         {file}), then this one"
    )]
    Unreleased {
        /// The journal's file.
        file: String,
        /// The schema version of the file.
        file_version: i64,
        /// The oldest schema version that this program reads.
        oldest_version: i64,
    },
    /// The file was written by an earlier version, and is opened only for reading.
    #[error(
        "the journal {file} has schema version {file_version}, this program reads \
         {newest_version}: start the manager on it once, which migrates it (workflow-manager serve \
         --db {file})"
    )]
    Older {
        /// The journal's file.
        file: String,
        /// The schema version of the file.
        file_version: i64,
        /// The newest known schema version.
        newest_version: i64,
    },
    /// There is no such file.
    #[error(
        "there is no journal {file}: name the file that the manager has as --db \
         (setting journal.file)"
    )]
    Missing {
        /// The path of the file.
        file: String,
    },
    /// Something exists where a new file is to be created.
    #[error("{file} exists already: name another file, or move it away")]
    Exists {
        /// The path of the file.
        file: String,
    },
    /// The file is a SQLite database of another program.
    #[error(
        "{file} is a SQLite database of another program (application id {application_id:#x}): \
         give --db a file of its own"
    )]
    Foreign {
        /// The path of the file.
        file: String,
        /// The application id in the file.
        application_id: i64,
    },
    /// Another process of this name is active.
    #[error(
        "the journal {file} has an active manager named {name}: {manager} at {}. This one stands \
         by until that one ends",
        address.as_deref().unwrap_or("no API address")
    )]
    ActiveElsewhere {
        /// The database.
        file: String,
        /// The manager's name.
        name: String,
        /// The id of the active process.
        manager: String,
        /// The address of its API; `None` if it has none.
        address: Option<String>,
        /// Since when it has been active, by the clock of the database.
        since: Timestamp,
    },
    /// Another process has taken this process's name, and writes the journal now.
    #[error(
        "another manager has taken the name {name} on the journal {file}: this one ({manager}) \
         has not beaten for too long, and writes no more"
    )]
    Fenced {
        /// The database.
        file: String,
        /// The manager's name.
        name: String,
        /// The id of this process.
        manager: String,
    },
    /// Any other error of the database.
    #[error("journal {file}: {problem}")]
    Failed {
        /// The journal's file.
        file: String,
        /// SQLite's message, with advice.
        problem: String,
        /// What to do about the error.
        remedy: Remedy,
    },
}

/// What the caller has to do about an error of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Retry when the disk or the file has free space. The transaction was rolled back.
    WaitForSpace,
    /// Retry when another program has released its lock on the file. The transaction was rolled
    /// back.
    WaitForLock,
    /// Retry when the server of the database can be reached again. The transaction may have been
    /// committed: the same records must be sent again, alone or before others.
    WaitForServer,
    /// Retry when the process has memory again. The transaction was rolled back.
    WaitForMemory,
    /// Exit the process: after an I/O error, the kernel's page cache cannot be trusted. The next
    /// start recovers the journal from the disk.
    Exit,
}

impl Remedy {
    /// Returns whether the commit can be retried.
    pub fn is_retryable(self) -> bool {
        match self {
            Remedy::WaitForSpace
            | Remedy::WaitForLock
            | Remedy::WaitForServer
            | Remedy::WaitForMemory => true,
            Remedy::Exit => false,
        }
    }
}

/// Returns what to do about a damaged row.
fn repair_advice(journal: &str) -> &'static str {
    if journal.starts_with("postgres://") {
        "Restore the database from a backup (docs/how-to/use-postgresql.md), or let journal.url \
         name an empty one to start anew"
    } else {
        "Restore the file from a backup, or move it away to start empty"
    }
}

impl JournalError {
    /// Creates the error of a damaged row.
    pub(super) fn damaged_row(
        file: &str,
        table: &'static str,
        row: i64,
        problem: String,
    ) -> JournalError {
        JournalError::Damaged { file: file.to_owned(), table, row, problem }
    }

    /// Returns what to do about the error.
    pub fn remedy(&self) -> Remedy {
        match self {
            JournalError::Failed { remedy, .. } => *remedy,
            JournalError::InUse { .. }
            | JournalError::Lock { .. }
            | JournalError::Unreachable { .. }
            | JournalError::ReadOnly { .. }
            | JournalError::NotAFile { .. }
            | JournalError::HardLinked { .. }
            | JournalError::Closed { .. }
            | JournalError::Lost { .. }
            | JournalError::Damaged { .. }
            | JournalError::Malformed { .. }
            | JournalError::UnexpectedSchema { .. }
            | JournalError::Newer { .. }
            | JournalError::Unreleased { .. }
            | JournalError::Older { .. }
            | JournalError::Missing { .. }
            | JournalError::Exists { .. }
            | JournalError::ActiveElsewhere { .. }
            | JournalError::Fenced { .. }
            | JournalError::Foreign { .. } => Remedy::Exit,
        }
    }

    /// Returns whether another process has taken this process's name.
    pub fn is_fenced(&self) -> bool {
        matches!(self, JournalError::Fenced { .. })
    }
}

/// What happened to the files of an open journal. Its commits since then are lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileLoss {
    /// There is no file at the path any more.
    #[error("{0} was removed or renamed")]
    Removed(String),
    /// Another file is at the path.
    #[error("{0} was replaced by another file")]
    Replaced(String),
    /// The file is shorter than it must be.
    #[error("{file} was truncated to {bytes} bytes, it had {expected}")]
    Truncated {
        /// The path of the file.
        file: String,
        /// The size of the file, in bytes.
        bytes: u64,
        /// The size that the file must have at least, in bytes.
        expected: u64,
    },
    /// Another program has written to the file.
    #[error("{0} was overwritten by another program")]
    Overwritten(String),
    /// Another process has taken this process's name.
    #[error("another manager has taken the name {name} on the journal {journal}")]
    TakenOver {
        /// The database.
        journal: String,
        /// The manager's name.
        name: String,
    },
    /// The lock file was removed, and another process has acquired the lock since.
    #[error("the lock {0} was removed, and another process has taken it since")]
    LockLost(String),
}
