//! What goes wrong with a journal, and what to do about it.

use std::sync::Arc;

/// What goes wrong with a journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process has the file.
    #[error(
        "the journal {file} is in use by another process (lock {lock}): stop that one, or give \
         this one a journal of its own with --db"
    )]
    InUse {
        /// The journal's file.
        file: String,
        /// The lock's file, beside the real one.
        lock: String,
    },
    /// The lock file cannot be used.
    #[error(
        "cannot lock the journal with {lock}: {error}. Its directory must be there, and writable \
         for this user"
    )]
    Lock {
        /// The lock's file.
        lock: String,
        /// Why.
        error: std::io::Error,
    },
    /// There is no such place, or it may not be used.
    #[error(
        "cannot open the journal {file}: {error}. Its directory must be there, and writable for \
         this user"
    )]
    Unreachable {
        /// The journal's file.
        file: String,
        /// Why.
        error: std::io::Error,
    },
    /// It can be read, but not written.
    #[error(
        "the journal {file} can be read, but not written: chmod 600 it, and chown it to the user \
         of the manager"
    )]
    ReadOnly {
        /// The journal's file.
        file: String,
    },
    /// A directory, a device, or another thing that holds no data.
    #[error(
        "cannot open the journal {file}: it is no regular file. Give --db the name of a file, \
         which need not be there yet"
    )]
    NoFile {
        /// The journal's file.
        file: String,
    },
    /// The file has several names: each would have a lock and a `-wal` of its own.
    #[error(
        "the journal {file} has {names} names (hard links), and under each of them SQLite looks \
         for the newest commits in another place. Find them with: find DIRECTORY -xdev \
         -samefile {file}; keep the one that has a -wal beside it, and remove the others"
    )]
    Linked {
        /// The journal's file.
        file: String,
        /// How many it has.
        names: u64,
    },
    /// It is no longer read: the manager stops, or has lost it.
    #[error("the journal {file} is closed: {why}")]
    Closed {
        /// The journal's file.
        file: String,
        /// Why.
        why: Arc<str>,
    },
    /// Something was done to its files while it was opened.
    #[error("the journal {file} changed while it was opened: {loss}")]
    Lost {
        /// The journal's file.
        file: String,
        /// What.
        loss: Loss,
    },
    /// A row's checksum, or its content, is wrong.
    #[error(
        "the journal {file} is damaged: table {table}, row {row}: {what}. Nothing was changed. \
         Restore the file from a backup, or move it away to start empty"
    )]
    Damaged {
        /// The journal's file.
        file: String,
        /// The table.
        table: &'static str,
        /// The row's key.
        row: i64,
        /// What is wrong.
        what: String,
    },
    /// SQLite finds the file itself damaged.
    #[error(
        "the journal {file} is damaged: {what}. Nothing was changed. Restore the file from a \
         backup, or move it away to start empty"
    )]
    Malformed {
        /// The journal's file.
        file: String,
        /// SQLite's findings.
        what: String,
    },
    /// It has tables, triggers or the like that this program does not make.
    #[error(
        "the journal {file} is not as this program makes it: it has {what}. That can change or \
         hide what is read and written, so nothing was opened or changed. If you have added it \
         yourself, drop it while no manager runs (sqlite3 {file} 'DROP …'), and keep what is yours \
         in a file of its own, from which ATTACH reaches the journal. If not, do not use the file: \
         take a backup that you trust"
    )]
    Altered {
        /// The journal's file.
        file: String,
        /// What it has, or has not.
        what: String,
    },
    /// Written by a later version.
    #[error(
        "the journal {file} has schema version {found}, this program knows {known}: it was written \
         by a newer version, run that one"
    )]
    Newer {
        /// The journal's file.
        file: String,
        /// Its version.
        found: i64,
        /// The newest known.
        known: i64,
    },
    /// Written by an earlier version, and to be read only.
    #[error(
        "the journal {file} has schema version {found}, this program reads {known}: start the \
         manager on it once, which brings it up (workflow-manager serve --db {file})"
    )]
    Older {
        /// The journal's file.
        file: String,
        /// Its version.
        found: i64,
        /// The newest known.
        known: i64,
    },
    /// There is no such file.
    #[error(
        "there is no journal {file}: name the file that the manager has as --db \
         (setting journal.file)"
    )]
    Missing {
        /// The file.
        file: String,
    },
    /// Something is where a new file is to be.
    #[error("{file} is there already: name another file, or move it away")]
    Exists {
        /// The file.
        file: String,
    },
    /// A SQLite database of something else.
    #[error(
        "{file} is a SQLite database of another program (application id {found:#x}): give --db a \
         file of its own"
    )]
    Foreign {
        /// The file.
        file: String,
        /// The application id found.
        found: i64,
    },
    /// Anything else that its database says.
    #[error("journal {file}: {what}")]
    Failed {
        /// The journal's file.
        file: String,
        /// What the database says.
        what: String,
        /// What to do about it.
        remedy: Remedy,
    },
}

/// What to do about a commit that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// No room: the transaction is rolled back; try again when there is room.
    WaitForRoom,
    /// Another program keeps the file locked, which is no damage: the transaction is rolled back;
    /// try again when it has let go.
    WaitForLock,
    /// An I/O error or anything unforeseen: what the kernel still holds cannot be trusted; end the
    /// process, recover at the next start.
    Exit,
}

impl Remedy {
    /// Whether it can be tried again.
    pub fn is_wait(self) -> bool {
        match self {
            Remedy::WaitForRoom | Remedy::WaitForLock => true,
            Remedy::Exit => false,
        }
    }
}

impl JournalError {
    /// The error of a row that is not as it was written.
    pub(super) fn damaged_row(
        file: &str,
        table: &'static str,
        row: i64,
        what: String,
    ) -> JournalError {
        JournalError::Damaged { file: file.to_owned(), table, row, what }
    }

    /// What to do about it.
    pub fn remedy(&self) -> Remedy {
        match self {
            JournalError::Failed { remedy, .. } => *remedy,
            JournalError::InUse { .. }
            | JournalError::Lock { .. }
            | JournalError::Unreachable { .. }
            | JournalError::ReadOnly { .. }
            | JournalError::NoFile { .. }
            | JournalError::Linked { .. }
            | JournalError::Closed { .. }
            | JournalError::Lost { .. }
            | JournalError::Damaged { .. }
            | JournalError::Malformed { .. }
            | JournalError::Altered { .. }
            | JournalError::Newer { .. }
            | JournalError::Older { .. }
            | JournalError::Missing { .. }
            | JournalError::Exists { .. }
            | JournalError::Foreign { .. } => Remedy::Exit,
        }
    }
}

/// What has happened to a journal that is in use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    /// Its name leads nowhere.
    #[error("{0} was removed or renamed")]
    Removed(String),
    /// Its name leads to another file.
    #[error("{0} was replaced by another file")]
    Replaced(String),
    /// It is shorter than it was.
    #[error("{file} was truncated to {bytes} bytes, it had {expected}")]
    Truncated {
        /// The file.
        file: String,
        /// Its size.
        bytes: u64,
        /// The size that it must have at least.
        expected: u64,
    },
    /// Somebody else has written into it.
    #[error("{0} was overwritten by another program")]
    Overwritten(String),
    /// Its lock was removed, and another process has taken it since.
    #[error("the lock {0} was removed, and another process has taken it since")]
    Locked(String),
}
