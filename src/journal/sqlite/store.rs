//! The writing end: records of many jobs, one transaction.

use super::place::{self, Lock, NotTaken};
use super::relation::{Failed, Relation, is_of_relation};
use super::row::{
    self, content_hash, damaged_entry, encode, entry_checksum, failed, insert_notice, job_checksum,
};
use super::rows::FileRows;
use super::schema::{self, Options};
use super::status::{Changes, Relations};
use super::watch::Watch;
use crate::engine::{CallerEntry, Definition, Entry, Millis};
use crate::faults;
use crate::journal::error::{JournalError, Loss};
use crate::journal::record::{JobNumber, Record};
use crate::journal::recover::{self, JobRow, Recovered};
use rusqlite::{Connection, ErrorCode, OptionalExtension, params};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The writing end of the journal. One per file over all processes: it holds a lock.
pub struct Store {
    pub(super) connection: Connection,
    pub(super) file: Arc<str>,
    path: PathBuf,
    /// Definitions that are in the file, by content hash.
    pub(super) definitions: HashMap<[u8; 32], i64>,
    /// The one looked up last: mostly the next one too, and its hash need not be made again.
    pub(super) latest: Option<(Arc<Definition>, i64)>,
    pub(super) relations: Relations,
    /// How long each definition, by its number, has its jobs kept.
    pub(super) retentions: BTreeMap<i64, Option<Millis>>,
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
    /// its top-level job is deleted. Gives the numbers of such jobs. A record that is in the journal
    /// already, by its job and its place, changes nothing.
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
                 WHERE ?7 IS NULL OR EXISTS (SELECT 1 FROM jobs WHERE number = ?7)
                 ON CONFLICT(number) DO NOTHING",
            )?;
            let mut insert_entry = transaction.prepare_cached(
                "INSERT INTO entries(job, first, at, body, checksum) SELECT ?1, ?2, ?3, ?4, ?5
                 WHERE EXISTS (SELECT 1 FROM jobs WHERE number = ?1)
                 ON CONFLICT(job, first) DO NOTHING",
            )?;
            let mut find_entry = transaction.prepare_cached(
                "SELECT seq, checksum FROM entries WHERE job = ?1 AND first = ?2",
            )?;
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
                        job_checksum(&row)
                    ])?;
                }
                let recorded = &record.recorded;
                let is_there = if recorded.entries.is_empty() {
                    find_job.exists([record.job])?
                } else {
                    let (job, at) = (record.job, recorded.at);
                    let body = encode(&recorded.entries)?;
                    let sum = entry_checksum(job, recorded.first, at, &body);
                    let first = row::place(recorded.first);
                    let is_new = insert_entry.execute(params![job, first, at.0, body, sum])? > 0;
                    let known: Option<(i64, u32)> = if is_new {
                        None
                    } else {
                        let mut place = find_entry.query(params![job, first])?;
                        place
                            .next()?
                            .map(|row| Ok::<_, Failed>((row.get(0)?, row.get(1)?)))
                            .transpose()?
                    };
                    match known {
                        Some((_, known)) if known == sum => continue,
                        Some((seq, _)) => {
                            let what = "another decision is to be written in its place".to_owned();
                            return Err(damaged_entry(&self.file, seq, what).into());
                        }
                        None => is_new,
                    }
                };
                if !is_there {
                    gone.insert(record.job);
                    continue;
                }
                if let Some(notice) = &record.notice {
                    insert_notice(&transaction, notice)?;
                }
                if let Some(state) = record.state {
                    let ended = state.is_ended().then_some(recorded.at.0);
                    update_job.execute(params![
                        record.job,
                        state.word(),
                        ended,
                        i64::from(!record.closed)
                    ])?;
                } else if record.closed
                    || recorded
                        .entries
                        .iter()
                        .any(|entry| matches!(entry, Entry::Caller(CallerEntry::Joined(_))))
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

    /// Does `write`. A relation that stands in its way is taken down and `write` done again, which
    /// makes it anew; one that does so again is done without until the next start.
    pub(super) fn mending<T>(
        &mut self,
        mut write: impl FnMut(&mut Store) -> Result<T, Failed>,
    ) -> Result<T, JournalError> {
        let mut mended = HashSet::new();
        loop {
            let failed = match write(self) {
                Ok(done) => return Ok(done),
                Err(failed) => failed,
            };
            // The transaction is gone, and with it what it may have added.
            self.definitions.clear();
            self.latest = None;
            self.relations.layouts.clear();
            let (relation, error) = match failed {
                Failed::Sqlite(error) => return Err(self.error(error)),
                Failed::Journal(error) => return Err(error),
                Failed::Relation(relation, error) => (relation, error),
            };
            let workflow = &relation.workflow;
            let is_damaged = error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt);
            if mended.insert(relation.key()) && self.discarded(&relation, is_damaged)? {
                tracing::warn!(workflow, %error, "the table of statuses cannot be used: it is made anew");
            } else {
                tracing::error!(workflow, %error, "the table of statuses cannot be made: until the next start it is not written");
                self.relations.given_up.insert(relation.key());
            }
        }
    }

    /// Takes a relation down; false if that fails in the relation itself.
    fn discarded(&mut self, relation: &Relation, is_damaged: bool) -> Result<bool, JournalError> {
        let mut discard = || {
            let transaction = self.connection.transaction()?;
            relation.discard(&transaction, is_damaged)?;
            transaction.commit()
        };
        match discard() {
            Ok(()) => Ok(true),
            Err(error) if is_of_relation(&error) => Ok(false),
            Err(error) => Err(self.error(error)),
        }
    }

    /// All jobs that take input, parents before their children, with what is to be done for them.
    pub fn recover(&self) -> Result<Vec<Recovered>, JournalError> {
        recover::all(&self.rows())
    }

    fn rows(&self) -> FileRows<'_> {
        FileRows { connection: &self.connection, file: &self.file }
    }

    pub(super) fn error(&self, error: rusqlite::Error) -> JournalError {
        failed(&self.file, &error)
    }
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
