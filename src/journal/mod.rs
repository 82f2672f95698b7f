//! The journal: the durable, ordered record from which all state can be rebuilt, in one SQLite file (SPEC §5).
//!
//! Table `entries` is the truth: one row for each decision of a job, its entries as JSON under a checksum. Table `jobs`
//! holds what never changes about a job, and what lists and filters need. A job's *number* orders creation and ties rows
//! together; its UUID may come back once the job that had it has ended. The tables `status_…` follow from the entries, for
//! users to read (`status`, `status_query`).

pub mod children;
mod notices;
pub mod read;
pub mod recover;
pub mod retention;
mod schema;
pub mod search;
mod status;
pub mod status_query;

use crate::engine::{Definition, Entry, JobId, JobState, Millis, Origin, StepIndex, Timestamp};
use crate::faults;
use rusqlite::{Connection, OptionalExtension, params};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use notices::{Notice, NoticeNumber};
pub use read::Reader;
pub use recover::Recovered;
pub use status::INDEXED_COLUMNS_MAX;
use status::{Changes, Failed, Relations};

/// A job's number in this journal: rising in the order of creation, a parent's below its children's.
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
    #[error("the journal {file} is in use by another process (lock {file}.lock): stop that one, or give this one a journal of its own with --db")]
    InUse {
        /// The journal's file.
        file: String,
    },
    /// The lock file cannot be used.
    #[error("cannot lock the journal with {file}.lock: {error}")]
    Lock {
        /// The journal's file.
        file: String,
        /// Why.
        error: std::io::Error,
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
    #[error("the journal {file} is damaged: {what}. Nothing was changed. Restore the file from a backup, or move it away to start empty")]
    Malformed {
        /// The journal's file.
        file: String,
        /// SQLite's findings.
        what: String,
    },
    /// Written by a later version.
    #[error("the journal {file} has schema version {found}, this program knows {known}: it was written by a newer version, run that one")]
    Newer {
        /// The journal's file.
        file: String,
        /// Its version.
        found: i64,
        /// The newest known.
        known: i64,
    },
    /// A SQLite database of something else.
    #[error("{file} is a SQLite database of another program (application id {found:#x}): give --db a file of its own")]
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
    /// An I/O error or anything unforeseen: what the kernel still holds cannot be trusted; end the process, recover at
    /// the next start.
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
    /// Definitions that are in the file, by content hash.
    definitions: HashMap<[u8; 32], i64>,
    /// The one looked up last: mostly the next one too, and its hash need not be made again.
    latest: Option<(Arc<Definition>, i64)>,
    relations: Relations,
    /// How long each definition, by its number, has its jobs kept.
    retentions: BTreeMap<i64, Option<Millis>>,
    _lock: File,
}

impl Store {
    /// Opens or creates the journal: takes the lock, verifies, migrates.
    pub fn open(options: &Options) -> Result<Store, JournalError> {
        let file: Arc<str> = options.file.to_string_lossy().into();
        let lock = lock(&options.file, &file)?;
        let connection = schema::open(options, &file)?;
        Ok(Store {
            connection,
            file,
            definitions: HashMap::new(),
            latest: None,
            relations: Relations::default(),
            retentions: BTreeMap::new(),
            _lock: lock,
        })
    }

    /// The journal's file.
    pub fn file(&self) -> &Arc<str> {
        &self.file
    }

    /// The number after the highest in use.
    pub fn next_number(&self) -> Result<JobNumber, JournalError> {
        self.connection.query_row("SELECT coalesce(max(number), 0) + 1 FROM jobs", [], |row| row.get(0)).map_err(|error| self.error(error))
    }

    /// Commits records, in order, in one transaction: all or nothing. Records of a job that was deleted are void: a child job
    /// may still be about to start, or to hear that it is over, when its top-level job is deleted. Gives the numbers of such jobs.
    pub fn append<'a>(&mut self, records: impl IntoIterator<Item = &'a Record, IntoIter: Clone>) -> Result<BTreeSet<JobNumber>, JournalError> {
        let records = records.into_iter();
        self.mending(|store| store.append_in_transaction(records.clone()))
    }

    fn append_in_transaction<'a>(&mut self, records: impl Iterator<Item = &'a Record>) -> Result<BTreeSet<JobNumber>, Failed> {
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
            let mut update_job = transaction.prepare_cached("UPDATE jobs SET state = ?2, ended = ?3, open = ?4 WHERE number = ?1")?;
            let mut set_open = transaction.prepare_cached("UPDATE jobs SET open = ?2 WHERE number = ?1")?;
            let mut find_job = transaction.prepare_cached("SELECT 1 FROM jobs WHERE number = ?1")?;
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
                    insert_entry.execute(params![record.job, body, checksum(record.job, &body)])? > 0
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
                    update_job.execute(params![record.job, state.word(), ended, i64::from(!record.closed)])?;
                } else if record.closed || record.entries.iter().any(|entry| matches!(entry, Entry::CallerJoined { .. })) {
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
    serde_json::to_string(entries).map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

/// The content hash that names a definition.
fn content_hash(body: &str) -> [u8; 32] {
    Sha256::digest(body.as_bytes()).into()
}

fn definition_number(connection: &Connection, known: &mut HashMap<[u8; 32], i64>, definition: &Definition) -> rusqlite::Result<i64> {
    let body = serde_json::to_string(definition).map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    let hash = content_hash(&body);
    if let Some(number) = known.get(&hash) {
        return Ok(*number);
    }
    let found = connection.query_row("SELECT number FROM definitions WHERE hash = ?1", [&hash[..]], |row| row.get(0)).optional()?;
    let number = match found {
        Some(number) => number,
        None => {
            connection.execute("INSERT INTO definitions(hash, body) VALUES (?1, ?2)", params![&hash[..], body])?;
            connection.last_insert_rowid()
        }
    };
    known.insert(hash, number);
    Ok(number)
}

fn lock(path: &Path, file: &str) -> Result<File, JournalError> {
    let failed = |error| JournalError::Lock { file: file.to_owned(), error };
    let lock_path = PathBuf::from(format!("{}.lock", path.display()));
    let lock = File::options().create(true).truncate(false).write(true).open(lock_path).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(JournalError::InUse { file: file.to_owned() }),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Lets tests make a write or commit fail: `full` as with a full disk, anything else as with a broken one.
fn fail_point(name: &'static str) -> rusqlite::Result<()> {
    let code = match faults::hit(name).as_deref() {
        None => return Ok(()),
        Some("full") => rusqlite::ffi::SQLITE_FULL,
        Some(_) => rusqlite::ffi::SQLITE_IOERR,
    };
    Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None))
}
