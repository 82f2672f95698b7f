//! The connections of readers. They are apart from that of commits, so that no reader can take the
//! connection of a commit.

use super::claim::Candidate;
use super::connection::{Connection, OpenError, Params};
use super::fault::to_journal_error;
use super::io_thread::IoThread;
use super::options::PostgresOptions;
use crate::error::JournalError;
use crate::last_instant::LastInstant;
use crate::numbers::NameOrdinal;
use base::clock;
use engine::Definition;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio_postgres::Row;

/// The most definitions in the cache.
const CACHED_DEFINITIONS_MAX: usize = 1_000;

/// The most connections that are kept while nothing reads. How many read at once is bounded by who
/// reads: the API by `http.reads_max`. A bound here would let slow reads of the API keep those
/// waiting that a creation or a reply waits for.
const IDLE_CONNECTIONS_MAX: usize = 8;

/// How often active reads are cancelled while closing waits for them. A read consists of several
/// statements, and each cancel request ends only one.
const CANCEL_INTERVAL: Duration = Duration::from_millis(50);

/// Rebuilding jobs may take its time between two queries of a transaction. Readers hold no lock
/// that others wait for.
const READER_SETTINGS: &str = "SET idle_in_transaction_session_timeout = '10min'";

/// A read transaction sees one snapshot.
const BEGIN_READ: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// The connections of readers.
pub(super) struct ReaderPool {
    io: Arc<IoThread>,
    options: Arc<PostgresOptions>,
    /// The address of the database, for messages.
    pub(super) journal: String,
    /// The ordinal of this manager's name.
    pub(super) ordinal: NameOrdinal,
    /// When the active process beat last.
    pub(super) last_beat: Arc<LastInstant>,
    state: Mutex<PoolState>,
    /// Notified when a read has ended.
    read_ended: Condvar,
    /// A cache of definitions, by number.
    definitions: Mutex<HashMap<i64, Arc<Definition>>>,
}

#[derive(Default)]
struct PoolState {
    idle: Vec<Arc<Connection>>,
    /// The connection of each active read, by the number of the read.
    active: HashMap<u64, Arc<Connection>>,
    /// The number of reads that are being connected.
    connecting: usize,
    /// The number of the next read.
    next_number: u64,
    /// Why reading has ended; `None` while it is allowed.
    close_reason: Option<Arc<str>>,
}

/// A read transaction.
pub(super) struct Session<'a> {
    pool: &'a ReaderPool,
    connection: Arc<Connection>,
    number: u64,
}

impl Session<'_> {
    /// Runs a query.
    pub(super) fn query(&self, sql: &str, params: Params) -> Result<Vec<Row>, JournalError> {
        let (connection, sql) = (self.connection.clone(), sql.to_owned());
        let result = self.pool.io.run(async move { connection.query(&sql, &params).await });
        result.map_err(|error| to_journal_error(&self.pool.journal, &error))
    }

    /// Returns the ordinal of this manager's name.
    pub(super) fn ordinal(&self) -> NameOrdinal {
        self.pool.ordinal
    }

    /// Returns the SQL condition that a column has the number of a job of this manager's name.
    pub(super) fn own(&self, column: &str) -> String {
        self.pool.ordinal.condition(column)
    }

    /// Returns the address of the database, for messages.
    pub(super) fn journal(&self) -> &str {
        &self.pool.journal
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        let connection = self.connection.clone();
        let result = self.pool.io.run(async move { connection.batch_execute("ROLLBACK").await });
        let mut state = self.pool.state();
        state.active.remove(&self.number);
        let is_kept = state.close_reason.is_none() && state.idle.len() < IDLE_CONNECTIONS_MAX;
        if result.is_ok() && is_kept {
            state.idle.push(self.connection.clone());
        }
        self.pool.read_ended.notify_all();
    }
}

impl ReaderPool {
    /// Creates the pool of a process that has registered.
    pub(super) fn of_candidate(candidate: &Candidate) -> ReaderPool {
        ReaderPool {
            io: candidate.io.clone(),
            journal: candidate.options.server.to_string(),
            options: candidate.options.clone(),
            ordinal: candidate.ordinal,
            last_beat: candidate.last_beat.clone(),
            state: Mutex::default(),
            read_ended: Condvar::new(),
            definitions: Mutex::default(),
        }
    }

    /// Begins a read transaction.
    ///
    /// # Errors
    ///
    /// Returns an error if the pool is closed, or if the server cannot be reached.
    pub(super) fn begin(&self) -> Result<Session<'_>, JournalError> {
        loop {
            let idle = self.take_idle()?;
            let is_new = idle.is_none();
            let options = self.options.clone();
            let begun = self.io.run(async move {
                let connection = match idle {
                    Some(connection) => connection,
                    None => {
                        let connection = Connection::open(&options).await?;
                        connection.batch_execute(READER_SETTINGS).await?;
                        Arc::new(connection)
                    }
                };
                connection.batch_execute(BEGIN_READ).await?;
                Ok::<_, OpenError>(connection)
            });
            let mut state = self.state();
            state.connecting -= 1;
            match begun {
                Ok(connection) => {
                    let number = state.next_number;
                    state.next_number += 1;
                    state.active.insert(number, connection.clone());
                    return Ok(Session { pool: self, connection, number });
                }
                // An idle connection may have broken since its last use: another is tried.
                Err(_) if !is_new => self.read_ended.notify_all(),
                Err(error) => {
                    self.read_ended.notify_all();
                    return Err(error.to_journal_error(&self.journal));
                }
            }
        }
    }

    /// Counts a read that begins. Returns an idle connection; `None` if there is none.
    fn take_idle(&self) -> Result<Option<Arc<Connection>>, JournalError> {
        let mut state = self.state();
        if let Some(reason) = &state.close_reason {
            return Err(JournalError::Closed {
                file: self.journal.clone(),
                reason: reason.clone(),
            });
        }
        state.connecting += 1;
        Ok(state.idle.pop())
    }

    /// Refuses new reads for this reason, cancels active ones, and waits up to `timeout` for their
    /// end. Returns whether all have ended.
    pub(super) fn close(&self, reason: &str, timeout: Duration) -> bool {
        let deadline = clock::instant() + timeout;
        let mut state = self.state();
        state.close_reason.get_or_insert_with(|| reason.into());
        state.idle.clear();
        self.read_ended.notify_all();
        loop {
            let count = state.active.len() + state.connecting;
            if count == 0 || clock::instant() >= deadline {
                return count == 0;
            }
            for connection in state.active.values() {
                let token = connection.cancel_token();
                // A lost request is repeated.
                let options = self.options.clone();
                self.io.spawn(async move { drop(options.cancel(token).await) });
            }
            let waited = self.read_ended.wait_timeout(state, CANCEL_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns the cached definitions, by number.
    pub(super) fn cached_definitions(&self) -> HashMap<i64, Arc<Definition>> {
        self.definitions.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the cached definitions. A cache that has grown too large is cleared.
    pub(super) fn cache_definitions(&self, definitions: HashMap<i64, Arc<Definition>>) {
        let is_small = definitions.len() <= CACHED_DEFINITIONS_MAX;
        let cached = if is_small { definitions } else { HashMap::new() };
        *self.definitions.lock().unwrap_or_else(PoisonError::into_inner) = cached;
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
