//! Read-only queries for the API. Readers see what is committed and never hold up the writer (WAL).

use super::changes::NewIds;
use super::core::Core;
use super::row::{EntryRow, ORIGIN_ID, damaged_or_failed};
use super::rows::{FileRows, TAIL};
use super::schema::read_only;
use crate::engine::{Definition, Entry, JobEntry, JobId, Timestamp};
use crate::journal::error::JournalError;
use crate::journal::query::{Creation, EndedCursor, KeptJob};
use crate::journal::record::JobNumber;
use crate::journal::recover::{self, Rebuild, Recovered, Rows};
use rusqlite::{Connection, InterruptHandle, OptionalExtension, params};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// A pool of read-only connections; clones share it.
#[derive(Clone)]
pub struct Reader {
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    file: String,
    pool: Mutex<Pool>,
    /// Notified when a read has ended.
    returned: Condvar,
    /// What is not projected, and who projects it. `None`: the file is only read.
    writer: Option<Writer>,
    /// A cache of definitions, by number: parsing one takes longer than reading a job.
    definitions: Mutex<HashMap<i64, Arc<Definition>>>,
}

/// The writing end, as far as readers use it.
struct Writer {
    core: Weak<Mutex<Core>>,
    new_ids: Arc<NewIds>,
}

/// The most definitions in the cache.
const DEFINITIONS_KEPT_MAX: usize = 1_000;

/// The most connections that are kept open while nobody reads.
const IDLE_MAX: usize = 8;

/// How often active reads are interrupted while closing waits for them: a read consists of several
/// statements.
const INTERRUPTED_EVERY: Duration = Duration::from_millis(10);

#[derive(Default)]
struct Pool {
    idle: Vec<Connection>,
    /// The interrupt handle of each active read, by the number of the read.
    reading: HashMap<u64, InterruptHandle>,
    next: u64,
    /// Why reading has ended; `None` while it is allowed.
    closed: Option<Arc<str>>,
}

/// An active read; dropping it ends the read.
struct Reading<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.shared.pool().reading.remove(&self.number);
        self.shared.returned.notify_all();
    }
}

impl Shared {
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    /// Makes a reader of the journal at `path`, which a [`super::SqliteJournal`] has open. Lists,
    /// searches and statuses are as of the last projection; jobs are up to date.
    pub fn new(path: &Path) -> Reader {
        Reader::made(path, None)
    }

    /// Makes a reader of an open journal, which projects what is read first.
    pub(super) fn of(path: &Path, core: Weak<Mutex<Core>>, new_ids: Arc<NewIds>) -> Reader {
        Reader::made(path, Some(Writer { core, new_ids }))
    }

    fn made(path: &Path, writer: Option<Writer>) -> Reader {
        let shared = Shared {
            path: path.to_owned(),
            file: path.to_string_lossy().into_owned(),
            pool: Mutex::default(),
            returned: Condvar::new(),
            writer,
            definitions: Mutex::default(),
        };
        Reader { shared: Arc::new(shared) }
    }

    /// Returns the newest job or child job with this id, rebuilt from its entries.
    pub(super) fn job(&self, id: JobId) -> Result<Option<KeptJob>, JournalError> {
        let is_new = self.may_be_new(id);
        self.with(|connection| {
            let Some(number) = self.newest(connection, id, is_new)? else { return Ok(None) };
            self.with_definitions(connection, |rebuild| {
                let Some(root) = rebuild.root(number)? else { return Ok(None) };
                Ok(rebuild.load(number)?.cloned().map(|job| KeptJob { number, root, job }))
            })
        })
    }

    /// Returns whether a job with this id may be among the rows that are not projected yet.
    pub(super) fn may_be_new(&self, id: JobId) -> bool {
        self.shared.writer.as_ref().is_none_or(|writer| writer.new_ids.has(id))
    }

    /// Returns the number of the newest job with this id.
    pub(super) fn newest(
        &self,
        connection: &Connection,
        id: JobId,
        may_be_new: bool,
    ) -> Result<Option<JobNumber>, JournalError> {
        if may_be_new && let Some(first) = self.new_row(connection, id)? {
            return Ok(Some(first.job));
        }
        connection
            .prepare_cached("SELECT number FROM jobs WHERE id = ?1 ORDER BY number DESC LIMIT 1")
            .and_then(|mut statement| {
                statement.query_row([id.0.as_bytes()], |row| row.get(0)).optional()
            })
            .map_err(|error| self.failed(error))
    }

    /// Returns the first row of the newest job with this id, if it is not projected yet.
    fn new_row(
        &self,
        connection: &Connection,
        id: JobId,
    ) -> Result<Option<EntryRow>, JournalError> {
        let condition = format!("{TAIL} AND {ORIGIN_ID} = ?1");
        Ok(self.rows(connection).entry_rows(&condition, [id.to_string()])?.pop())
    }

    pub(super) fn rows<'a>(&'a self, connection: &'a Connection) -> FileRows<'a> {
        FileRows { connection, file: &self.shared.file, is_derived: false }
    }

    /// Rebuilds jobs with the cached definitions, and caches those that were loaded.
    pub(super) fn with_definitions<T>(
        &self,
        connection: &Connection,
        read: impl FnOnce(&mut Rebuild<'_>) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        let rows = self.rows(connection);
        let mut rebuild = Rebuild::new(&rows);
        rebuild.definitions = self.definitions().clone();
        let known = rebuild.definitions.len();
        let found = read(&mut rebuild)?;
        if rebuild.definitions.len() > known {
            *self.definitions() =
                if known < DEFINITIONS_KEPT_MAX { rebuild.definitions } else { HashMap::new() };
        }
        Ok(found)
    }

    /// Returns the size in bytes of the entries from which the newest job with this id is rebuilt,
    /// including those of its ancestors.
    pub(super) fn job_bytes(&self, id: JobId) -> Result<Option<usize>, JournalError> {
        let is_new = self.may_be_new(id);
        self.with(|connection| {
            let Some(newest) = self.newest(connection, id, is_new)? else { return Ok(None) };
            let rows = self.rows(connection);
            let (mut bytes, mut next) = (0, Some(newest));
            while let Some(number) = next {
                bytes += rows.bytes_of(number)?;
                // A parent is older; if not, that is damage, which the fold reports.
                let parent = rows.job(number)?.and_then(|row| row.parent);
                next = parent.filter(|parent| *parent < number);
            }
            Ok(Some(bytes))
        })
    }

    /// Returns how the newest job with this id was created: its number, workflow and message. A
    /// child job has no message.
    pub(super) fn creation(&self, id: JobId) -> Result<Option<Creation>, JournalError> {
        let is_new = self.may_be_new(id);
        self.with(|connection| {
            let rows = self.rows(connection);
            let Some(number) = self.newest(connection, id, is_new)? else { return Ok(None) };
            let Some(job) = rows.job(number)? else { return Ok(None) };
            let first = rows.first_of(number)?;
            let entries = first.map(|row| row.entries());
            let message = entries.into_iter().flatten().find_map(|entry| match entry {
                Entry::Job(JobEntry::Created { message, .. }) => message,
                Entry::Job(_) | Entry::Step(..) | Entry::FanOut(..) | Entry::Caller(_) => None,
            });
            let workflow = self
                .with_definitions(connection, |rebuild| rebuild.definition(job.definition))?
                .full_name();
            Ok(Some(Creation { number, workflow, is_child: job.parent.is_some(), message }))
        })
    }

    /// Returns the number of a job's child job with this id.
    pub(super) fn child(
        &self,
        parent: JobNumber,
        id: JobId,
    ) -> Result<Option<JobNumber>, JournalError> {
        let is_new = self.may_be_new(id);
        self.with(|connection| {
            if is_new
                && let Some(EntryRow { job, origin: Some(origin), .. }) =
                    self.new_row(connection, id)?
                && origin.parent == Some(parent)
            {
                return Ok(Some(job));
            }
            connection
                .prepare_cached(
                    "SELECT number FROM jobs WHERE id = ?1 AND parent = ?2 ORDER BY number DESC \
                     LIMIT 1",
                )
                .and_then(|mut statement| {
                    statement
                        .query_row(params![id.0.as_bytes(), parent], |row| row.get(0))
                        .optional()
                })
                .map_err(|error| self.failed(error))
        })
    }

    /// Returns the number of the newest job or child job with this id.
    pub(super) fn number(&self, id: JobId) -> Result<Option<JobNumber>, JournalError> {
        let is_new = self.may_be_new(id);
        self.with(|connection| self.newest(connection, id, is_new))
    }

    /// Rebuilds those of these jobs that exist, with their open effects, as at a start. Everything
    /// committed for them and their job trees must be projected before.
    pub(super) fn recover_some(
        &self,
        numbers: &[JobNumber],
    ) -> Result<HashMap<JobNumber, Recovered>, JournalError> {
        self.with(|connection| {
            self.with_definitions(connection, |rebuild| recover::some(rebuild, numbers))
        })
    }

    /// Rebuilds those of these jobs of one job tree that exist, with their open effects, as at a
    /// start. Everything committed for them must be projected before.
    pub(super) fn recover_family(
        &self,
        numbers: &[JobNumber],
    ) -> Result<Vec<Recovered>, JournalError> {
        self.with(|connection| {
            self.with_definitions(connection, |rebuild| recover::family(rebuild, numbers))
        })
    }

    /// Returns the running root jobs of a workflow with a number above `after`, the oldest first,
    /// with their states.
    pub(super) fn running(
        &self,
        workflow: &str,
        after: JobNumber,
        limit: u32,
    ) -> Result<Vec<(JobNumber, JobId, String)>, JournalError> {
        let sql = "SELECT number, id, state FROM jobs WHERE workflow = ?1 AND parent IS NULL \
                   AND ended IS NULL AND number > ?2 ORDER BY number LIMIT ?3";
        self.with_derived(|connection| {
            let read = || -> rusqlite::Result<Vec<(JobNumber, JobId, String)>> {
                let mut statement = connection.prepare_cached(sql)?;
                let rows = statement.query_map(params![workflow, after, limit], |row| {
                    Ok((row.get(0)?, id_of(row.get(1)?), row.get(2)?))
                })?;
                rows.collect()
            };
            read().map_err(|error| self.failed(error))
        })
    }

    /// Returns the running jobs and child jobs of all workflows with a number above `after`, the
    /// oldest first.
    pub(super) fn all_running(
        &self,
        after: JobNumber,
        limit: u32,
    ) -> Result<Vec<(JobNumber, JobId)>, JournalError> {
        self.ids(
            "SELECT number, id FROM jobs WHERE open = 1 AND ended IS NULL AND number > ?1 \
             ORDER BY number LIMIT ?2",
            params![after, limit],
        )
    }

    /// Returns the root jobs of a workflow that ended at or after `since`, beyond the cursor, the
    /// newest end first, with their states.
    pub(super) fn ended(
        &self,
        workflow: &str,
        since: Timestamp,
        beyond: EndedCursor,
        limit: u32,
    ) -> Result<Vec<(EndedCursor, JobId, String)>, JournalError> {
        let sql = "SELECT ended, number, id, state FROM jobs WHERE workflow = ?1 \
                     AND parent IS NULL AND ended IS NOT NULL AND ended >= ?2
                   AND (ended, number) < (?3, ?4) ORDER BY ended DESC, number DESC LIMIT ?5";
        self.with_derived(|connection| {
            let read = || -> rusqlite::Result<Vec<(EndedCursor, JobId, String)>> {
                let mut statement = connection.prepare_cached(sql)?;
                let rows = statement.query_map(
                    params![workflow, since.0, beyond.ended.0, beyond.number, limit],
                    |row| {
                        Ok((
                            EndedCursor { ended: Timestamp(row.get(0)?), number: row.get(1)? },
                            id_of(row.get(2)?),
                            row.get(3)?,
                        ))
                    },
                )?;
                rows.collect()
            };
            read().map_err(|error| self.failed(error))
        })
    }

    /// Returns the number of running root jobs by workflow.
    pub(super) fn running_counts(&self) -> Result<Vec<(String, i64)>, JournalError> {
        self.with_derived(|connection| {
            let read = || -> rusqlite::Result<Vec<(String, i64)>> {
                let mut statement = connection.prepare_cached(
                    "SELECT workflow, count(*) FROM jobs WHERE parent IS NULL AND ended IS NULL \
                     GROUP BY workflow",
                )?;
                let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
                rows.collect()
            };
            read().map_err(|error| self.failed(error))
        })
    }

    fn ids(
        &self,
        sql: &str,
        values: impl rusqlite::Params,
    ) -> Result<Vec<(JobNumber, JobId)>, JournalError> {
        self.with_derived(|connection| {
            let read = || -> rusqlite::Result<Vec<(JobNumber, JobId)>> {
                let mut statement = connection.prepare_cached(sql)?;
                let rows =
                    statement.query_map(values, |row| Ok((row.get(0)?, id_of(row.get(1)?))))?;
                rows.collect()
            };
            read().map_err(|error| self.failed(error))
        })
    }

    /// Reads projected tables, after projecting what is committed by now.
    ///
    /// # Errors
    ///
    /// Returns an error also if that cannot be projected: lists without it would be wrong.
    pub(super) fn with_derived<T>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        if let Some(core) = self.shared.writer.as_ref().and_then(|writer| writer.core.upgrade()) {
            core.lock().unwrap_or_else(PoisonError::into_inner).derive_all()?;
        }
        self.with(read)
    }

    pub(super) fn with<T>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        let pooled = self.shared.pool().idle.pop();
        let connection = match pooled {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let _reading = self.begin(&connection)?;
        // One snapshot for everything that the closure reads.
        let result = connection
            .execute_batch("BEGIN")
            .map_err(|error| self.failed(error))
            .and_then(|()| read(&connection));
        if connection.execute_batch("ROLLBACK").is_ok() {
            let mut pool = self.shared.pool();
            if pool.closed.is_none() && pool.idle.len() < IDLE_MAX {
                pool.idle.push(connection);
            }
        }
        result
    }

    fn begin(&self, connection: &Connection) -> Result<Reading<'_>, JournalError> {
        let mut pool = self.shared.pool();
        self.unless_closed(&pool)?;
        let number = pool.next;
        pool.next += 1;
        pool.reading.insert(number, connection.get_interrupt_handle());
        Ok(Reading { shared: &self.shared, number })
    }

    fn unless_closed(&self, pool: &Pool) -> Result<(), JournalError> {
        pool.closed
            .clone()
            .map_or(Ok(()), |why| Err(JournalError::Closed { file: self.shared.file.clone(), why }))
    }

    /// Ends all reading. Interrupts active reads and waits for them up to `timeout`. Refuses new
    /// ones with `why` as the reason. Returns whether no read is left.
    pub(super) fn close(&self, why: &str, patience: Duration) -> bool {
        let mut pool = self.shared.pool();
        pool.closed.get_or_insert_with(|| why.into());
        pool.idle.clear();
        let mut left = patience;
        loop {
            if pool.reading.is_empty() {
                return true;
            }
            pool.reading.values().for_each(InterruptHandle::interrupt);
            if left.is_zero() {
                return false;
            }
            let pause = left.min(INTERRUPTED_EVERY);
            left -= pause;
            let waited = self
                .shared
                .returned
                .wait_timeout_while(pool, pause, |pool| !pool.reading.is_empty());
            pool = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn definitions(&self) -> MutexGuard<'_, HashMap<i64, Arc<Definition>>> {
        self.shared.definitions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn file(&self) -> &str {
        &self.shared.file
    }

    fn connect(&self) -> Result<Connection, JournalError> {
        // Once the reader is closed, the name may lead to another file.
        self.unless_closed(&self.shared.pool())?;
        read_only(&self.shared.path).map_err(|error| self.failed(error))
    }

    pub(super) fn failed(&self, error: rusqlite::Error) -> JournalError {
        damaged_or_failed(&self.shared.file, error)
    }
}

pub(super) fn id_of(bytes: [u8; 16]) -> JobId {
    JobId(uuid::Uuid::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn closing_interrupts_what_is_read_and_refuses_what_comes() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("j.db");
        Connection::open(&file)
            .and_then(|connection| connection.execute_batch("CREATE TABLE t(a)"))
            .expect("made");
        let reader = Reader::new(&file);
        let (begun, has_begun) = mpsc::channel();
        let endless = std::thread::spawn({
            let reader = reader.clone();
            move || {
                reader.with(|connection| {
                    begun.send(()).expect("somebody waits");
                    let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) \
                               SELECT count(*) FROM n";
                    connection
                        .query_row(sql, [], |row| row.get::<_, i64>(0))
                        .map_err(|error| reader.failed(error))
                })
            }
        });
        has_begun.recv().expect("it reads");
        assert!(reader.close("enough", Duration::from_secs(60)), "no read is left");
        assert!(endless.join().expect("no panic").is_err(), "interrupted");
        let refused = reader.with(|_| Ok(())).expect_err("closed");
        assert!(
            matches!(refused, JournalError::Closed { .. })
                && refused.to_string().contains("enough"),
            "{refused}"
        );
        assert!(reader.close("again", Duration::ZERO), "nothing is left to wait for");
    }
}
