//! The journal: the durable, ordered record from which all state can be rebuilt, in one SQLite file
//! (SPEC §5).
//!
//! Table `entries` is the truth: one row for each decision of a job, its entries as JSON under a
//! checksum. Table `jobs` holds what never changes about a job, and what lists and filters need. A
//! job's *number* orders creation and ties rows together; its UUID may come back once the job that
//! had it has ended. The tables `status_…` follow from the entries, for users to read (`status`,
//! `status_query`).

pub mod children;
mod notices;
mod place;
pub mod read;
pub mod recover;
pub mod retention;
mod schema;
pub mod search;
mod status;
pub mod status_query;
mod watch;

use crate::engine::{Definition, Entry, JobId, JobState, Millis, Origin, StepIndex, Timestamp};
use crate::faults;
use place::{Lock, NotTaken};
use rusqlite::{Connection, OptionalExtension, params};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use notices::{Notice, NoticeNumber};
pub use read::Reader;
pub use recover::Recovered;
pub use status::INDEXED_COLUMNS_MAX;
use status::{Changes, Failed, Relations};
pub use watch::Loss;
use watch::Watch;

/// A job's number in this journal: rising in the order of creation, a parent's below its
/// children's.
pub type JobNumber = i64;

/// What goes into the journal together for one job.
#[derive(Debug)]
pub struct Record {
    /// The job.
    pub job: JobNumber,
    /// Set with the first record of a job.
    pub created: Option<Created>,
    /// What was decided.
    pub entries: Vec<Entry>,
    /// The new state, if it changed, and when.
    pub state: Option<(JobState, Timestamp)>,
    /// Whether the job takes no more input.
    pub closed: bool,
    /// The new statuses of a top-level job's steps.
    pub statuses: Vec<(StepIndex, Arc<str>)>,
    /// What the webhook is to be told of it.
    pub notice: Option<Notice>,
}

/// The parts of a new job's row that its entries do not hold.
#[derive(Clone, Debug)]
pub struct Created {
    /// Where the job comes from.
    pub origin: Arc<Origin>,
    /// The top-level job's number.
    pub root: JobNumber,
    /// The parent's number.
    pub parent: Option<JobNumber>,
}

/// What goes wrong with a journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process has the file.
    #[error(
        "the journal {file} is in use by another process (lock {lock}): stop that one, or give this one a journal of its own with --db"
    )]
    InUse {
        /// The journal's file.
        file: String,
        /// The lock's file, beside the real one.
        lock: String,
    },
    /// The lock file cannot be used.
    #[error("cannot lock the journal with {lock}: {error}")]
    Lock {
        /// The lock's file.
        lock: String,
        /// Why.
        error: std::io::Error,
    },
    /// There is no such place, or it may not be used.
    #[error(
        "cannot open the journal {file}: {error}. Its directory must be there, and writable for this user"
    )]
    Unreachable {
        /// The journal's file.
        file: String,
        /// Why.
        error: std::io::Error,
    },
    /// A directory, a device, or another thing that holds no data.
    #[error(
        "cannot open the journal {file}: it is no regular file. Give --db the name of a file, which need not be there yet"
    )]
    NoFile {
        /// The journal's file.
        file: String,
    },
    /// The file has several names: each would have a lock and a `-wal` of its own.
    #[error(
        "the journal {file} has {names} names (hard links), and under each of them SQLite looks for the newest commits in another place. \
         Find them with: find DIRECTORY -xdev -samefile {file}; keep the one that has a -wal beside it, and remove the others"
    )]
    Linked {
        /// The journal's file.
        file: String,
        /// How many it has.
        names: u64,
    },
    /// It is read no more: the manager stops, or has lost it.
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
        "the journal {file} is damaged: table {table}, row {row}: {what}. Nothing was changed. Restore the file from a backup, or move it away to start empty"
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
        "the journal {file} is damaged: {what}. Nothing was changed. Restore the file from a backup, or move it away to start empty"
    )]
    Malformed {
        /// The journal's file.
        file: String,
        /// SQLite's findings.
        what: String,
    },
    /// Written by a later version.
    #[error(
        "the journal {file} has schema version {found}, this program knows {known}: it was written by a newer version, run that one"
    )]
    Newer {
        /// The journal's file.
        file: String,
        /// Its version.
        found: i64,
        /// The newest known.
        known: i64,
    },
    /// A SQLite database of something else.
    #[error(
        "{file} is a SQLite database of another program (application id {found:#x}): give --db a file of its own"
    )]
    Foreign {
        /// The file.
        file: String,
        /// The application id found.
        found: i64,
    },
    /// Anything else from SQLite.
    #[error("journal {file}: {error}")]
    Sqlite {
        /// The journal's file.
        file: String,
        /// SQLite's error.
        error: rusqlite::Error,
    },
}

/// What to do about a commit that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// No room: the transaction is rolled back; try again when there is room.
    WaitForRoom,
    /// An I/O error or anything unforeseen: what the kernel still holds cannot be trusted; end the
    /// process, recover at the next start.
    Exit,
}

impl JournalError {
    /// What to do about it.
    pub fn remedy(&self) -> Remedy {
        let full = matches!(self, JournalError::Sqlite { error, .. } if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull));
        if full { Remedy::WaitForRoom } else { Remedy::Exit }
    }
}

/// How to open a journal.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file.
    pub file: PathBuf,
    /// SQLite's page cache, in bytes.
    pub cache_bytes: u64,
    /// Up to this file size every row is verified at start, in bytes.
    pub verify_bytes_max: u64,
    /// The most pages the file may have; 0: no limit.
    pub pages_max: u32,
}

/// The writing end of the journal. One per file over all processes: it holds a lock.
pub struct Store {
    connection: Connection,
    file: Arc<str>,
    path: PathBuf,
    /// Definitions that are in the file, by content hash.
    definitions: HashMap<[u8; 32], i64>,
    /// The one looked up last: mostly the next one too, and its hash need not be made again.
    latest: Option<(Arc<Definition>, i64)>,
    relations: Relations,
    /// How long each definition, by its number, has its jobs kept.
    retentions: BTreeMap<i64, Option<Millis>>,
    /// Dropped behind the connection, as what it holds open must be.
    watch: Watch,
    lock: Lock,
    is_lost: bool,
}

impl Store {
    /// Opens or creates the journal: takes the lock, verifies, migrates.
    pub fn open(options: &Options) -> Result<Store, JournalError> {
        let file: Arc<str> = options.file.to_string_lossy().into();
        let unreachable = |error| JournalError::Unreachable { file: file.to_string(), error };
        let path = place::real(&options.file).map_err(unreachable)?;
        place::check(&path, &file)?;
        let lock = lock(&path, &file)?;
        let connection = match schema::open(&path, options, &file) {
            Ok(connection) => connection,
            Err(error) => {
                lock.give_up();
                return Err(error);
            }
        };
        let mut watch = Watch::begin(&path).map_err(unreachable)?;
        watch.look().map_err(|loss| JournalError::Lost { file: file.to_string(), loss })?;
        Ok(Store {
            connection,
            file,
            path,
            definitions: HashMap::new(),
            latest: None,
            relations: Relations::default(),
            retentions: BTreeMap::new(),
            watch,
            lock,
            is_lost: false,
        })
    }

    /// The real file, without symbolic links: readers must not follow another.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the files are still those that were opened. Once they are not, what is committed is
    /// gone with the process, and nothing is written to them any more when this is dropped.
    pub fn look(&mut self) -> Result<(), Loss> {
        let held = |lock: &mut Lock| match lock.hold() {
            Err(NotTaken::InUse) => Err(Loss::Locked(lock.path().display().to_string())),
            // As it was; the next look tries again.
            Err(NotTaken::Failed(_)) | Ok(()) => Ok(()),
        };
        let found = self.watch.look().and_then(|()| held(&mut self.lock));
        self.is_lost |= found.is_err();
        found
    }

    /// The journal's file.
    pub fn file(&self) -> &Arc<str> {
        &self.file
    }

    /// The number after the highest in use.
    pub fn next_number(&self) -> Result<JobNumber, JournalError> {
        self.connection
            .query_row("SELECT coalesce(max(number), 0) + 1 FROM jobs", [], |row| row.get(0))
            .map_err(|error| self.error(error))
    }

    /// Commits records, in order, in one transaction: all or nothing. Records of a job that was
    /// deleted are void: a child job may still be about to start, or to hear that it is over, when
    /// its top-level job is deleted. Gives the numbers of such jobs.
    pub fn append<'a>(
        &mut self,
        records: impl IntoIterator<Item = &'a Record, IntoIter: Clone>,
    ) -> Result<BTreeSet<JobNumber>, JournalError> {
        let records = records.into_iter();
        self.mending(|store| store.append_in_transaction(records.clone()))
    }

    fn append_in_transaction<'a>(
        &mut self,
        records: impl Iterator<Item = &'a Record>,
    ) -> Result<BTreeSet<JobNumber>, Failed> {
        let transaction = self.connection.transaction()?;
        let mut changes = Changes::default();
        let mut gone = BTreeSet::new();
        {
            let mut insert_job = transaction.prepare_cached(
                "INSERT INTO jobs(number, id, workflow, definition, graph, root, parent, step, item, depth, created, state, open, checksum)
                 SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, 'running', 1, ?12
                 WHERE ?7 IS NULL OR EXISTS (SELECT 1 FROM jobs WHERE number = ?7)",
            )?;
            let mut insert_entry = transaction
                .prepare_cached("INSERT INTO entries(job, body, checksum) SELECT ?1, ?2, ?3 WHERE EXISTS (SELECT 1 FROM jobs WHERE number = ?1)")?;
            let mut update_job = transaction.prepare_cached(
                "UPDATE jobs SET state = ?2, ended = ?3, open = ?4 WHERE number = ?1",
            )?;
            let mut set_open =
                transaction.prepare_cached("UPDATE jobs SET open = ?2 WHERE number = ?1")?;
            let mut find_job =
                transaction.prepare_cached("SELECT 1 FROM jobs WHERE number = ?1")?;
            for record in records {
                fail_point("journal::write")?;
                let mut definition = None;
                if let Some(created) = &record.created {
                    let used = &created.origin.definition;
                    let used_number = match &self.latest {
                        Some((latest, number)) if Arc::ptr_eq(latest, used) => *number,
                        _ => definition_number(&transaction, &mut self.definitions, used)?,
                    };
                    self.latest = Some((used.clone(), used_number));
                    definition = Some(used_number);
                    let row = JobRow::new(record.job, created, used_number);
                    insert_job.execute(params![
                        row.number,
                        row.id.0.as_bytes(),
                        created.origin.definition.full_name(),
                        row.definition,
                        row.graph,
                        row.root,
                        row.parent,
                        row.step,
                        row.item,
                        row.depth,
                        row.created.0,
                        row.checksum()
                    ])?;
                }
                let is_there = if record.entries.is_empty() {
                    find_job.exists([record.job])?
                } else {
                    let body = encode(&record.entries)?;
                    insert_entry.execute(params![record.job, body, checksum(record.job, &body)])?
                        > 0
                };
                if !is_there {
                    gone.insert(record.job);
                    continue;
                }
                if let Some(notice) = &record.notice {
                    notices::insert(&transaction, notice)?;
                }
                if let Some((state, at)) = record.state {
                    let ended = state.is_ended().then_some(at.0);
                    update_job.execute(params![
                        record.job,
                        state.word(),
                        ended,
                        i64::from(!record.closed)
                    ])?;
                } else if record.closed
                    || record
                        .entries
                        .iter()
                        .any(|entry| matches!(entry, Entry::CallerJoined { .. }))
                {
                    // An ended job is open again for a caller that is to be answered.
                    set_open.execute(params![record.job, i64::from(!record.closed)])?;
                }
                changes.add(record, definition);
            }
        }
        self.relations.write(&transaction, &self.file, &changes)?;
        fail_point("journal::commit")?;
        transaction.commit()?;
        Ok(gone)
    }

    fn error(&self, error: rusqlite::Error) -> JournalError {
        JournalError::Sqlite { file: self.file.to_string(), error }
    }
}

/// The checked columns of a row of `jobs`.
struct JobRow {
    number: JobNumber,
    id: JobId,
    definition: i64,
    graph: u16,
    root: JobNumber,
    parent: Option<JobNumber>,
    step: Option<u16>,
    item: Option<u32>,
    depth: u16,
    created: Timestamp,
}

impl JobRow {
    fn new(number: JobNumber, created: &Created, definition: i64) -> JobRow {
        let origin = &created.origin;
        JobRow {
            number,
            id: origin.id,
            definition,
            graph: origin.graph,
            root: created.root,
            parent: created.parent,
            step: origin.parent.map(|parent| parent.step.0),
            item: origin.parent.map(|parent| parent.index),
            depth: origin.depth,
            created: origin.created,
        }
    }

    fn checksum(&self) -> u32 {
        let mut hash = crc32fast::Hasher::new();
        hash.update(self.id.0.as_bytes());
        let numbers = [
            self.number,
            self.definition,
            i64::from(self.graph),
            self.root,
            self.parent.unwrap_or(-1),
            self.step.map_or(-1, i64::from),
            self.item.map_or(-1, i64::from),
            i64::from(self.depth),
            self.created.0,
        ];
        numbers.iter().for_each(|number| hash.update(&number.to_le_bytes()));
        hash.finalize()
    }
}

/// The checksum of a row of `entries`, which ties the body to its job.
fn checksum(job: JobNumber, body: &str) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    hash.update(&job.to_le_bytes());
    hash.update(body.as_bytes());
    hash.finalize()
}

fn encode(entries: &[Entry]) -> rusqlite::Result<String> {
    serde_json::to_string(entries)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

/// The content hash that names a definition.
fn content_hash(body: &str) -> [u8; 32] {
    Sha256::digest(body.as_bytes()).into()
}

fn definition_number(
    connection: &Connection,
    known: &mut HashMap<[u8; 32], i64>,
    definition: &Definition,
) -> rusqlite::Result<i64> {
    let body = serde_json::to_string(definition)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    let hash = content_hash(&body);
    if let Some(number) = known.get(&hash) {
        return Ok(*number);
    }
    let found = connection
        .query_row("SELECT number FROM definitions WHERE hash = ?1", [&hash[..]], |row| row.get(0))
        .optional()?;
    let number = match found {
        Some(number) => number,
        None => {
            connection.execute(
                "INSERT INTO definitions(hash, body) VALUES (?1, ?2)",
                params![&hash[..], body],
            )?;
            connection.last_insert_rowid()
        }
    };
    known.insert(hash, number);
    Ok(number)
}

fn lock(path: &Path, file: &str) -> Result<Lock, JournalError> {
    let lock = place::beside(path, ".lock");
    Lock::take(&lock).map_err(|not_taken| match not_taken {
        NotTaken::InUse => {
            JournalError::InUse { file: file.to_owned(), lock: lock.display().to_string() }
        }
        NotTaken::Failed(error) => JournalError::Lock { lock: lock.display().to_string(), error },
    })
}

impl Drop for Store {
    /// Puts all that is committed into the main file, so that it can be copied alone.
    fn drop(&mut self) {
        if self.is_lost {
            // The name may lead to the file of somebody else, whose -wal would be removed.
            if let Err(error) = schema::leave_wal(&self.connection, true) {
                tracing::error!(%error, "the journal may be written once more when it is closed");
            }
            return;
        }
        if std::thread::panicking() {
            return;
        }
        match schema::checkpoint(&self.connection, schema::Checkpoint::Whole) {
            Ok(true) => {}
            Ok(false) => tracing::warn!(
                journal = &*self.file,
                "another program reads the journal: the newest commits stay in its -wal. To copy it, copy all its files, or wait until that program ends"
            ),
            Err(error) => {
                tracing::warn!(journal = &*self.file, %error, "the newest commits stay in the -wal: to copy the journal, copy all its files")
            }
        }
    }
}

/// Lets tests make a write or commit fail: `full` as with a full disk, anything else as with a
/// broken one.
fn fail_point(name: &'static str) -> rusqlite::Result<()> {
    let code = match faults::hit(name).as_deref() {
        None => return Ok(()),
        Some("full") => rusqlite::ffi::SQLITE_FULL,
        Some(_) => rusqlite::ffi::SQLITE_IOERR,
    };
    Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None))
}
