//! One connection to the server: its prepared statements, and what the server says beside its
//! answers.

use super::fault::{no_answer, to_journal_error};
use super::options::{AnyConnection, PostgresOptions};
use crate::error::JournalError;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Error, Row, Statement};

/// The parameters of a statement. Several statements can share them.
pub(super) type Params = Vec<Arc<dyn ToSql + Sync + Send>>;

/// Makes the parameters of a statement.
macro_rules! params {
    ($($value:expr),* $(,)?) => {
        {
            let params: $crate::postgres::connection::Params =
                vec![$(std::sync::Arc::new($value)),*];
            params
        }
    };
}
pub(super) use params;

/// Converts a text to one that PostgreSQL stores: it has no character U+0000.
pub(super) fn to_sql_text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// What a new session is set to. A commit is answered once it is on the server's disk, and on that
/// of its synchronous standby. A stopped process holds its locks for five seconds at most. No
/// statement runs so long that compiling it would pay, although those over many days look so.
const SESSION_SETTINGS: &str = "
SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit')
         WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false),
       set_config('idle_in_transaction_session_timeout', '5s', false),
       set_config('statement_timeout', '0', false),
       set_config('lock_timeout', '0', false),
       set_config('jit', 'off', false),
       set_config('client_min_messages', 'warning', false),
       set_config('timezone', 'UTC', false)";

/// Lets the server notice a client that is gone also while a statement waits. Servers on some
/// systems do not know it.
const CHECK_CLIENT: &str = "SET client_connection_check_interval = '2s'";

/// The function of the server that waits for the synchronous standby. A notice of it says that a
/// commit did not wait.
const SYNC_WAIT_ROUTINE: &str = "SyncRepWaitForLSN";

/// How long connecting may take in all: to each address of the server, with TLS and the login.
const OPEN_TIMEOUT: Duration = Duration::from_secs(15);

/// The most statements that a connection keeps prepared. Searches have one for each combination of
/// filters.
const STATEMENTS_MAX: usize = 200;

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum OpenError {
    /// The server's error.
    Server(Error),
    /// The server has not answered for [`OPEN_TIMEOUT`].
    Timeout,
}

impl From<Error> for OpenError {
    fn from(error: Error) -> OpenError {
        OpenError::Server(error)
    }
}

impl OpenError {
    /// Converts the error, and adds advice and a remedy. `journal` is the address.
    pub(super) fn to_journal_error(&self, journal: &str) -> JournalError {
        match self {
            OpenError::Server(error) => to_journal_error(journal, error),
            OpenError::Timeout => no_answer(journal, OPEN_TIMEOUT),
        }
    }
}

/// A connection to the server. It is closed when this is dropped.
pub(super) struct Connection {
    client: Client,
    /// Moves the bytes. It is aborted on drop, because a statement that waits would keep it open.
    task: AbortHandle,
    statements: Mutex<HashMap<String, Statement>>,
    /// Whether a commit was answered although the synchronous standby does not have it.
    is_wait_cancelled: Arc<AtomicBool>,
}

impl Connection {
    /// Connects, and sets the session up.
    pub(super) async fn open(options: &PostgresOptions) -> Result<Connection, OpenError> {
        let opened = tokio::time::timeout(OPEN_TIMEOUT, Connection::open_unbounded(options)).await;
        opened.map_err(|_| OpenError::Timeout)?.map_err(OpenError::Server)
    }

    async fn open_unbounded(options: &PostgresOptions) -> Result<Connection, Error> {
        let (client, connection) = options.server.connect(&options.authorities).await?;
        let is_wait_cancelled = Arc::<AtomicBool>::default();
        let task = tokio::spawn(poll_connection(connection, is_wait_cancelled.clone()));
        let task = task.abort_handle();
        let connection =
            Connection { client, task, statements: Mutex::default(), is_wait_cancelled };
        connection.client.query(SESSION_SETTINGS, &[]).await?;
        if let Err(error) = connection.client.batch_execute(CHECK_CLIENT).await {
            tracing::debug!(%error, "the server does not look for clients that are gone");
        }
        Ok(connection)
    }

    /// Returns whether the connection is known to be broken.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Returns whether the server has answered a commit without waiting for its synchronous
    /// standby, and forgets it.
    pub(super) fn take_wait_cancelled(&self) -> bool {
        self.is_wait_cancelled.swap(false, Ordering::SeqCst)
    }

    /// Returns a handle that cancels the active statement.
    pub(super) fn cancel_token(&self) -> tokio_postgres::CancelToken {
        self.client.cancel_token()
    }

    /// Runs statements without parameters.
    pub(super) async fn batch_execute(&self, sql: &str) -> Result<(), Error> {
        self.client.batch_execute(sql).await
    }

    /// Runs a statement that is prepared once for each connection.
    pub(super) async fn query(&self, sql: &str, params: &Params) -> Result<Vec<Row>, Error> {
        let statement = self.prepare(sql).await?;
        self.query_prepared(&statement, params).await
    }

    /// Runs a prepared statement. It is sent when the future is first polled, so several of them
    /// can be under way at once.
    pub(super) async fn query_prepared(
        &self,
        statement: &Statement,
        params: &Params,
    ) -> Result<Vec<Row>, Error> {
        let params: Vec<&(dyn ToSql + Sync)> =
            params.iter().map(|param| &**param as &(dyn ToSql + Sync)).collect();
        self.client.query(statement, &params).await
    }

    /// Prepares a statement, or returns the one that was prepared before.
    pub(super) async fn prepare(&self, sql: &str) -> Result<Statement, Error> {
        let lock = || self.statements.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(statement) = lock().get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await?;
        remember(&mut lock(), sql, statement.clone());
        Ok(statement)
    }
}

/// Keeps a prepared statement. If there are too many, those before are forgotten: the server does
/// so too, once nothing uses them any more.
fn remember<T>(statements: &mut HashMap<String, T>, sql: &str, statement: T) {
    if statements.len() >= STATEMENTS_MAX {
        statements.clear();
    }
    statements.insert(sql.to_owned(), statement);
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Moves bytes between the client and the socket until either end is closed.
async fn poll_connection(mut connection: AnyConnection, is_wait_cancelled: Arc<AtomicBool>) {
    loop {
        match poll_fn(|context| connection.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notice(notice))) => {
                if notice.routine() == Some(SYNC_WAIT_ROUTINE) {
                    is_wait_cancelled.store(true, Ordering::SeqCst);
                }
                tracing::debug!(notice = notice.message(), "PostgreSQL");
            }
            Some(Ok(_)) => {}
            // Whoever uses the client gets the error too.
            Some(Err(_)) | None => return,
        }
    }
}

impl AnyConnection {
    fn poll_message(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<AsyncMessage, Error>>> {
        match self {
            AnyConnection::Plain(connection) => connection.poll_message(context),
            AnyConnection::Tls(connection) => connection.poll_message(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_keeps_a_bounded_number_of_statements() {
        let mut statements = HashMap::new();
        for number in 0..3 * STATEMENTS_MAX {
            let sql = format!("SELECT {number}");
            remember(&mut statements, &sql, number);
            assert_eq!(statements.get(&sql), Some(&number));
            assert!(statements.len() <= STATEMENTS_MAX);
        }
    }
}
