//! Read-only queries. Readers see what is committed, and never block the writer (WAL mode).

use super::file_rows::{FileRows, UNPROJECTED};
use super::row_format::{EntryRow, ORIGIN_ID_SQL, to_journal_error};
use super::schema::open_read_only;
use super::unprojected::UnprojectedIds;
use super::writer::JournalWriter;
use crate::error::JournalError;
use crate::query::{EndedCursor, JobCreation, StoredJob, find_message};
use crate::record::JobNumber;
use crate::recover::{self, JobRows, Rebuilder, RecoveredJob};
use crate::traits::{ClusterRecords, JobRecords, Records};
use engine::{Definition, JobId, Timestamp};
use rusqlite::{Connection, InterruptHandle, OptionalExtension, params};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// A pool of read-only connections; clones share it.
#[derive(Clone)]
pub struct Reader {
    state: Arc<ReaderState>,
}

struct ReaderState {
    path: PathBuf,
    /// The name of the file, for errors.
    file: String,
    pool: Mutex<Pool>,
    /// Notified when a read has ended.
    read_ended: Condvar,
    /// The writing end in this process; `None` if there is none, so that nothing can be projected.
    writer: Option<WriterHandle>,
    /// A cache of definitions, by number. Parsing a definition takes longer than reading a job.
    definitions: Mutex<HashMap<i64, Arc<Definition>>>,
}

/// What readers use of the writing end.
struct WriterHandle {
    /// Gone once the journal is closed.
    writer: Weak<Mutex<JournalWriter>>,
    unprojected_ids: Arc<UnprojectedIds>,
}

/// The number of definitions from which the cache is cleared instead of growing further.
const CACHED_DEFINITIONS_MAX: usize = 1_000;

/// The most idle connections that are kept open.
const IDLE_CONNECTIONS_MAX: usize = 8;

/// How often active reads are interrupted while closing waits for them. A read may consist of
/// several statements, and each interrupt ends only one.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(10);

/// The connections of a reader, and its active reads.
#[derive(Default)]
struct Pool {
    idle: Vec<Connection>,
    /// The interrupt handle of each active read, by the number of the read.
    active: HashMap<u64, InterruptHandle>,
    /// The number of the next read.
    next_number: u64,
    /// Why reading has ended; `None` while it is allowed.
    close_reason: Option<Arc<str>>,
}

/// A guard that counts a read as active until it is dropped.
struct ActiveRead<'a> {
    state: &'a ReaderState,
    number: u64,
}

impl Drop for ActiveRead<'_> {
    fn drop(&mut self) {
        self.state.pool().active.remove(&self.number);
        self.state.read_ended.notify_all();
    }
}

impl ReaderState {
    /// Locks the pool.
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    /// Creates a reader of the journal at `path`, without its writing end. Jobs are up to date;
    /// lists, searches and statuses are as of the last projection.
    pub fn new(path: &Path) -> Reader {
        Reader::with_writer(path, None)
    }

    /// Creates a reader of an open journal. It projects what is committed before it reads projected
    /// tables.
    pub(super) fn for_writer(
        path: &Path,
        writer: Weak<Mutex<JournalWriter>>,
        unprojected_ids: Arc<UnprojectedIds>,
    ) -> Reader {
        Reader::with_writer(path, Some(WriterHandle { writer, unprojected_ids }))
    }

    fn with_writer(path: &Path, writer: Option<WriterHandle>) -> Reader {
        let state = ReaderState {
            path: path.to_owned(),
            file: path.to_string_lossy().into_owned(),
            pool: Mutex::default(),
            read_ended: Condvar::new(),
            writer,
            definitions: Mutex::default(),
        };
        Reader { state: Arc::new(state) }
    }

    /// Returns whether a job with this id may be among the rows that are not projected yet. Must be
    /// called before the read transaction begins. Otherwise a projection in the meantime could
    /// remove the id, although the transaction does not see the job in `jobs` yet.
    pub(super) fn may_be_unprojected(&self, id: JobId) -> bool {
        self.state.writer.as_ref().is_none_or(|writer| writer.unprojected_ids.contains(id))
    }

    /// Returns the number of the newest job with this id; `None` if there is no such job. With
    /// `may_be_unprojected`, the unprojected rows are searched too, because the job may be missing
    /// in `jobs`.
    pub(super) fn find_newest(
        &self,
        connection: &Connection,
        id: JobId,
        may_be_unprojected: bool,
    ) -> Result<Option<JobNumber>, JournalError> {
        if may_be_unprojected && let Some(first) = self.find_unprojected(connection, id)? {
            return Ok(Some(first.job));
        }
        connection
            .prepare_cached("SELECT number FROM jobs WHERE id = ?1 ORDER BY number DESC LIMIT 1")
            .and_then(|mut statement| {
                statement.query_row([id.0.as_bytes()], |row| row.get(0)).optional()
            })
            .map_err(|error| self.to_journal_error(error))
    }

    /// Returns the first row of the newest job with this id, if it is not projected yet.
    fn find_unprojected(
        &self,
        connection: &Connection,
        id: JobId,
    ) -> Result<Option<EntryRow>, JournalError> {
        let condition = format!("{UNPROJECTED} AND {ORIGIN_ID_SQL} = ?1");
        Ok(self.rows(connection).entry_rows(&condition, [id.to_string()])?.pop())
    }

    /// Returns the rows of the file, read over a connection of the pool.
    pub(super) fn rows<'a>(&'a self, connection: &'a Connection) -> FileRows<'a> {
        FileRows { connection, file: &self.state.file, is_projected: false }
    }

    /// Calls `read` with a rebuilder that has the cached definitions. Caches the definitions that
    /// it loads, or clears the cache if it has grown too large.
    pub(super) fn rebuild<T>(
        &self,
        connection: &Connection,
        read: impl FnOnce(&mut Rebuilder<'_>) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        let rows = self.rows(connection);
        let mut rebuilder = Rebuilder::new(&rows);
        rebuilder.definitions = self.definitions().clone();
        let cached_count = rebuilder.definitions.len();
        let value = read(&mut rebuilder)?;
        if rebuilder.definitions.len() > cached_count {
            *self.definitions() = if cached_count < CACHED_DEFINITIONS_MAX {
                rebuilder.definitions
            } else {
                HashMap::new()
            };
        }
        Ok(value)
    }

    /// Runs a query that selects the numbers and ids of jobs.
    fn query_ids(
        &self,
        sql: &str,
        values: impl rusqlite::Params,
    ) -> Result<Vec<(JobNumber, JobId)>, JournalError> {
        self.read_projected(|connection| {
            let read = || -> rusqlite::Result<Vec<(JobNumber, JobId)>> {
                let mut statement = connection.prepare_cached(sql)?;
                let rows =
                    statement.query_map(values, |row| Ok((row.get(0)?, to_job_id(row.get(1)?))))?;
                rows.collect()
            };
            read().map_err(|error| self.to_journal_error(error))
        })
    }

    /// Projects what is committed, and then calls `read` like [`Reader::read`]. Without a writing
    /// end in this process, nothing is projected.
    ///
    /// # Errors
    ///
    /// Also returns an error if the projection fails, because a list would then be incomplete.
    pub(super) fn read_projected<T>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        if let Some(writer) = self.state.writer.as_ref().and_then(|handle| handle.writer.upgrade())
        {
            writer.lock().unwrap_or_else(PoisonError::into_inner).project_all()?;
        }
        self.read(read)
    }

    /// Calls `read` with a connection of the pool, in one read transaction.
    ///
    /// # Errors
    ///
    /// Returns an error if the reader is closed, or if the read fails.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        // In a statement of its own, so that the pool is not locked while connecting.
        let idle_connection = self.state.pool().idle.pop();
        let connection = match idle_connection {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let _active_read = self.begin_read(&connection)?;
        // The transaction gives the closure one snapshot.
        let result = connection
            .execute_batch("BEGIN")
            .map_err(|error| self.to_journal_error(error))
            .and_then(|()| read(&connection));
        if connection.execute_batch("ROLLBACK").is_ok() {
            let mut pool = self.state.pool();
            if pool.close_reason.is_none() && pool.idle.len() < IDLE_CONNECTIONS_MAX {
                pool.idle.push(connection);
            }
        }
        result
    }

    /// Registers an active read, so that [`close`](JobRecords::close) interrupts it and waits for
    /// it.
    fn begin_read(&self, connection: &Connection) -> Result<ActiveRead<'_>, JournalError> {
        let mut pool = self.state.pool();
        self.check_open(&pool)?;
        let number = pool.next_number;
        pool.next_number += 1;
        pool.active.insert(number, connection.get_interrupt_handle());
        Ok(ActiveRead { state: &self.state, number })
    }

    /// Returns an error if the reader is closed.
    fn check_open(&self, pool: &Pool) -> Result<(), JournalError> {
        match &pool.close_reason {
            Some(reason) => {
                Err(JournalError::Closed { file: self.state.file.clone(), reason: reason.clone() })
            }
            None => Ok(()),
        }
    }

    /// Locks the cache of definitions.
    fn definitions(&self) -> MutexGuard<'_, HashMap<i64, Arc<Definition>>> {
        self.state.definitions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the name of the file, for errors.
    pub(super) fn file(&self) -> &str {
        &self.state.file
    }

    fn connect(&self) -> Result<Connection, JournalError> {
        // Once the reader is closed, the path may lead to another file.
        self.check_open(&self.state.pool())?;
        open_read_only(&self.state.path).map_err(|error| self.to_journal_error(error))
    }

    pub(super) fn to_journal_error(&self, error: rusqlite::Error) -> JournalError {
        to_journal_error(&self.state.file, error)
    }
}

impl Records for Reader {}

impl ClusterRecords for Reader {}

impl JobRecords for Reader {
    fn load_job(&self, id: JobId) -> Result<Option<StoredJob>, JournalError> {
        let may_be_unprojected = self.may_be_unprojected(id);
        self.read(|connection| {
            let Some(number) = self.find_newest(connection, id, may_be_unprojected)? else {
                return Ok(None);
            };
            self.rebuild(connection, |rebuilder| {
                let Some(root) = rebuilder.load_root(number)? else { return Ok(None) };
                Ok(rebuilder.load(number)?.cloned().map(|job| StoredJob { number, root, job }))
            })
        })
    }

    fn rebuild_bytes(&self, id: JobId) -> Result<Option<usize>, JournalError> {
        let may_be_unprojected = self.may_be_unprojected(id);
        self.read(|connection| {
            let Some(newest) = self.find_newest(connection, id, may_be_unprojected)? else {
                return Ok(None);
            };
            let rows = self.rows(connection);
            let (mut bytes, mut next_job) = (0, Some(newest));
            while let Some(number) = next_job {
                bytes += rows.entry_bytes(number)?;
                // A parent has a lower number. Otherwise the row is damaged: the loop must end, and
                // rebuilding the job reports the damage.
                let parent = rows.find_job(number)?.and_then(|row| row.parent);
                next_job = parent.filter(|parent| *parent < number);
            }
            Ok(Some(bytes))
        })
    }

    fn load_creation(&self, id: JobId) -> Result<Option<JobCreation>, JournalError> {
        let may_be_unprojected = self.may_be_unprojected(id);
        self.read(|connection| {
            let rows = self.rows(connection);
            let Some(number) = self.find_newest(connection, id, may_be_unprojected)? else {
                return Ok(None);
            };
            let Some(job) = rows.find_job(number)? else { return Ok(None) };
            let first_row = rows.first_row(number)?;
            let entries = first_row.map(|row| row.parse_entries(self.file())).transpose()?;
            let message = entries.and_then(find_message);
            let workflow = self
                .rebuild(connection, |rebuilder| rebuilder.load_definition(job.definition))?
                .full_name();
            Ok(Some(JobCreation { number, workflow, is_child: job.parent.is_some(), message }))
        })
    }

    fn find_child_number(
        &self,
        parent: JobNumber,
        id: JobId,
    ) -> Result<Option<JobNumber>, JournalError> {
        let may_be_unprojected = self.may_be_unprojected(id);
        self.read(|connection| {
            if may_be_unprojected
                && let Some(EntryRow { job, origin: Some(origin), .. }) =
                    self.find_unprojected(connection, id)?
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
                .map_err(|error| self.to_journal_error(error))
        })
    }

    fn find_job_number(&self, id: JobId) -> Result<Option<JobNumber>, JournalError> {
        let may_be_unprojected = self.may_be_unprojected(id);
        self.read(|connection| self.find_newest(connection, id, may_be_unprojected))
    }

    fn recover_jobs(
        &self,
        numbers: &[JobNumber],
    ) -> Result<HashMap<JobNumber, RecoveredJob>, JournalError> {
        self.read(|connection| {
            self.rebuild(connection, |rebuilder| recover::recover_jobs(rebuilder, numbers))
        })
    }

    fn recover_job_tree(&self, numbers: &[JobNumber]) -> Result<Vec<RecoveredJob>, JournalError> {
        self.read(|connection| {
            self.rebuild(connection, |rebuilder| recover::recover_job_tree(rebuilder, numbers))
        })
    }

    fn load_running_root_jobs(
        &self,
        workflow: &str,
        after: JobNumber,
        limit: u32,
    ) -> Result<Vec<(JobNumber, JobId, String)>, JournalError> {
        let sql = "SELECT number, id, state FROM jobs WHERE workflow = ?1 AND parent IS NULL \
                   AND ended IS NULL AND number > ?2 ORDER BY number LIMIT ?3";
        self.read_projected(|connection| {
            let read = || -> rusqlite::Result<Vec<(JobNumber, JobId, String)>> {
                let mut statement = connection.prepare_cached(sql)?;
                let rows = statement.query_map(params![workflow, after, limit], |row| {
                    Ok((row.get(0)?, to_job_id(row.get(1)?), row.get(2)?))
                })?;
                rows.collect()
            };
            read().map_err(|error| self.to_journal_error(error))
        })
    }

    fn load_running_jobs(
        &self,
        after: JobNumber,
        limit: u32,
    ) -> Result<Vec<(JobNumber, JobId)>, JournalError> {
        self.query_ids(
            "SELECT number, id FROM jobs WHERE open = 1 AND ended IS NULL AND number > ?1 \
             ORDER BY number LIMIT ?2",
            params![after, limit],
        )
    }

    fn load_ended_root_jobs(
        &self,
        workflow: &str,
        since: Timestamp,
        after: EndedCursor,
        limit: u32,
    ) -> Result<Vec<(EndedCursor, JobId, String)>, JournalError> {
        let sql = "SELECT ended, number, id, state FROM jobs WHERE workflow = ?1 \
                     AND parent IS NULL AND ended IS NOT NULL AND ended >= ?2
                   AND (ended, number) < (?3, ?4) ORDER BY ended DESC, number DESC LIMIT ?5";
        self.read_projected(|connection| {
            let read = || -> rusqlite::Result<Vec<(EndedCursor, JobId, String)>> {
                let mut statement = connection.prepare_cached(sql)?;
                let rows = statement.query_map(
                    params![workflow, since.0, after.ended.0, after.number, limit],
                    |row| {
                        Ok((
                            EndedCursor { ended: Timestamp(row.get(0)?), number: row.get(1)? },
                            to_job_id(row.get(2)?),
                            row.get(3)?,
                        ))
                    },
                )?;
                rows.collect()
            };
            read().map_err(|error| self.to_journal_error(error))
        })
    }

    fn count_running_root_jobs(&self) -> Result<Vec<(String, i64)>, JournalError> {
        self.read_projected(|connection| {
            let read = || -> rusqlite::Result<Vec<(String, i64)>> {
                let mut statement = connection.prepare_cached(
                    "SELECT workflow, count(*) FROM jobs WHERE parent IS NULL AND ended IS NULL \
                     GROUP BY workflow",
                )?;
                let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
                rows.collect()
            };
            read().map_err(|error| self.to_journal_error(error))
        })
    }

    fn close(&self, reason: &str, timeout: Duration) -> bool {
        let mut pool = self.state.pool();
        pool.close_reason.get_or_insert_with(|| reason.into());
        pool.idle.clear();
        let mut remaining = timeout;
        loop {
            if pool.active.is_empty() {
                return true;
            }
            pool.active.values().for_each(InterruptHandle::interrupt);
            if remaining.is_zero() {
                return false;
            }
            let interval = remaining.min(INTERRUPT_INTERVAL);
            remaining -= interval;
            let wait_result = self
                .state
                .read_ended
                .wait_timeout_while(pool, interval, |pool| !pool.active.is_empty());
            pool = wait_result.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn ensure_projected(&self) -> Result<(), JournalError> {
        self.read_projected(|_| Ok(()))
    }
}

/// Converts the bytes of a UUID, as `jobs` stores them.
pub(super) fn to_job_id(bytes: [u8; 16]) -> JobId {
    JobId(uuid::Uuid::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn closing_interrupts_active_reads_and_refuses_new_ones() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("j.db");
        Connection::open(&file)
            .and_then(|connection| connection.execute_batch("CREATE TABLE t(a)"))
            .expect("the table is created");
        let reader = Reader::new(&file);
        let (started_sender, started_receiver) = mpsc::channel();
        let endless_read = std::thread::spawn({
            let reader = reader.clone();
            move || {
                reader.read(|connection| {
                    started_sender.send(()).expect("the test waits");
                    let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) \
                               SELECT count(*) FROM n";
                    connection
                        .query_row(sql, [], |row| row.get::<_, i64>(0))
                        .map_err(|error| reader.to_journal_error(error))
                })
            }
        });
        started_receiver.recv().expect("the read has started");
        assert!(reader.close("enough", Duration::from_secs(60)), "no read is active");
        assert!(endless_read.join().expect("no panic").is_err(), "the read is interrupted");
        let error = reader.read(|_| Ok(())).expect_err("the reader is closed");
        assert!(
            matches!(error, JournalError::Closed { .. }) && error.to_string().contains("enough"),
            "{error}"
        );
        assert!(reader.close("again", Duration::ZERO), "no read is active");
    }
}
