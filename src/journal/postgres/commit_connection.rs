//! The commit connection: the one connection over which the active process writes. Each transaction
//! first locks the process's fence, and all its statements are sent at once.
//!
//! When the connection breaks during a commit, it is unknown whether the server has committed. Then
//! the same records are sent again over a new connection: at once, and later by the caller. All
//! keys are the client's, so what is there already stays as it is. The lock of the fence writes to
//! the server's log, so the second commit waits for the synchronous standby beyond the first one's
//! record.

use super::connection::{Connection, OpenError, Params, params};
use super::days;
use super::fault::{Fault, no_answer, to_journal_error};
use super::io_thread::IoThread;
use super::options::PostgresOptions;
use crate::error::{JournalError, Remedy};
use crate::numbers::Day;
use crate::record::JobNumber;
use futures_util::future::join_all;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Error, Row};
use uuid::Uuid;

/// How often a transaction is sent that meets deadlocks or serialization failures.
const CONFLICT_ATTEMPTS_MAX: u32 = 10;

/// How often a transaction is sent at once when its connection breaks. Then the caller waits.
const CONNECTION_ATTEMPTS_MAX: u32 = 2;

/// How long giving the name back may take. The process ends soon after.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long an operation is waited for. After it the caller is told, and asks again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Plans that are made while the tables are empty would scan them when they are large. All
/// statements find their rows by keys, for which the plan is made once for all values: the days
/// that a statement touches are found when it runs.
const COMMIT_SETTINGS: &str = "
SET enable_seqscan = off;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET plan_cache_mode = force_generic_plan";

/// How often a transaction is sent whose day does not exist.
const DAY_ATTEMPTS_MAX: u32 = 3;

/// Locks the fence of a process. It fails with a division by zero if the fence is dead.
const LOCK_FENCE: &str = "
WITH held AS (SELECT 1 FROM fences WHERE manager = $1 AND NOT dead FOR UPDATE)
SELECT 1 / count(*) FROM held";

/// A statement of a transaction.
pub(super) struct BatchStatement {
    pub(super) sql: Cow<'static, str>,
    pub(super) params: Params,
}

impl BatchStatement {
    pub(super) fn new(sql: &'static str, params: Params) -> BatchStatement {
        BatchStatement { sql: Cow::Borrowed(sql), params }
    }
}

/// The rows that each statement of a transaction has returned.
pub(super) type Results = Vec<Vec<Row>>;

/// The connection over which the active process writes.
pub(super) struct CommitConnection {
    io: Arc<IoThread>,
    options: Arc<PostgresOptions>,
    /// The id of this process.
    manager: Uuid,
    connection: Option<Arc<Connection>>,
    /// A row of `entries` that the server has committed, to detect a server that went back in time;
    /// `None` if there is none, or if it was deleted.
    committed_row: Option<(JobNumber, i64)>,
    /// The end of an operation that the server has not answered yet; `None` if there is none.
    unanswered: Option<mpsc::Receiver<()>>,
    /// The days that can take jobs, as far as it is known.
    days: BTreeSet<Day>,
}

/// Why a transaction has failed.
enum CommitError {
    /// Another process has taken the name.
    Fenced,
    /// The server's error.
    Server(Error),
    /// The server has committed without waiting for its synchronous standby.
    WaitCancelled,
    /// The server does not have a row that it had committed.
    GoneBack(JobNumber),
}

/// Why an operation has failed for good.
enum AttemptError {
    /// A day of its jobs does not exist.
    NoDay(JournalError),
    /// A statement has refused it, because of what is there or missing.
    Refused(JournalError),
    Other(JournalError),
}

impl From<JournalError> for AttemptError {
    fn from(error: JournalError) -> AttemptError {
        AttemptError::Other(error)
    }
}

impl AttemptError {
    fn into_journal_error(self) -> JournalError {
        match self {
            AttemptError::NoDay(error)
            | AttemptError::Refused(error)
            | AttemptError::Other(error) => error,
        }
    }
}

impl CommitConnection {
    pub(super) fn new(
        io: Arc<IoThread>,
        options: Arc<PostgresOptions>,
        manager: Uuid,
    ) -> CommitConnection {
        CommitConnection {
            io,
            options,
            manager,
            connection: None,
            committed_row: None,
            unanswered: None,
            days: BTreeSet::new(),
        }
    }

    /// Returns the address of the database, for messages.
    pub(super) fn journal(&self) -> String {
        self.options.server.to_string()
    }

    /// Runs statements in one transaction. Returns the rows of each statement.
    ///
    /// # Errors
    ///
    /// After an error with [`Remedy::WaitForServer`] the transaction may have been committed: the
    /// caller runs it again. After any other error it was not.
    pub(super) fn transact(
        &mut self,
        statements: Vec<BatchStatement>,
    ) -> Result<Results, JournalError> {
        self.transact_on(&BTreeSet::new(), statements)
    }

    /// Runs statements in one transaction, as [`transact`](Self::transact) does, after it has made
    /// the days of their new jobs.
    pub(super) fn transact_on(
        &mut self,
        days: &BTreeSet<Day>,
        statements: Vec<BatchStatement>,
    ) -> Result<Results, JournalError> {
        self.attempt_on(days, statements).map_err(AttemptError::into_journal_error)
    }

    /// Runs statements in one transaction, as [`transact_on`](Self::transact_on) does. Returns
    /// `None` if one of them has refused it, because of what is there or missing. Then nothing was
    /// committed.
    pub(super) fn transact_unless_refused(
        &mut self,
        days: &BTreeSet<Day>,
        statements: Vec<BatchStatement>,
    ) -> Result<Option<Results>, JournalError> {
        match self.attempt_on(days, statements) {
            Ok(results) => Ok(Some(results)),
            Err(AttemptError::Refused(error)) => {
                tracing::debug!(%error, "the transaction is refused");
                Ok(None)
            }
            Err(error) => Err(error.into_journal_error()),
        }
    }

    fn attempt_on(
        &mut self,
        days: &BTreeSet<Day>,
        statements: Vec<BatchStatement>,
    ) -> Result<Results, AttemptError> {
        let statements = Arc::new(statements);
        let manager = self.manager;
        let mut attempt = 0;
        loop {
            attempt += 1;
            if !days.is_subset(&self.days) {
                self.make_days(days.clone())?;
            }
            let statements = statements.clone();
            let result = self.attempt(move |connection| {
                let statements = statements.clone();
                async move { run_transaction(&connection, manager, &statements).await }
            });
            match result {
                // The day was dropped since it was seen.
                Err(AttemptError::NoDay(_)) if attempt < DAY_ATTEMPTS_MAX => self.days.clear(),
                result => return result,
            }
        }
    }

    /// Makes days.
    pub(super) fn make_days(&mut self, days: BTreeSet<Day>) -> Result<(), JournalError> {
        let days = Arc::new(days);
        let made = self.attempt(move |connection| {
            let days = days.clone();
            async move { days::make_days(&connection, &days).await.map_err(CommitError::Server) }
        });
        self.days = made.map_err(AttemptError::into_journal_error)?;
        Ok(())
    }

    /// Runs a query outside of a transaction.
    pub(super) fn query(
        &mut self,
        sql: impl Into<Cow<'static, str>>,
        params: Params,
    ) -> Result<Vec<Row>, JournalError> {
        let statement = Arc::new(BatchStatement { sql: sql.into(), params });
        let rows = self.attempt(move |connection| {
            let statement = statement.clone();
            async move {
                let rows = connection.query(&statement.sql, &statement.params).await;
                rows.map_err(CommitError::Server)
            }
        });
        rows.map_err(AttemptError::into_journal_error)
    }

    /// Runs `work` in the background, over a connection of its own. The receiver gets the result,
    /// or is disconnected if it has failed.
    pub(super) fn start_work<T, F>(
        &self,
        work: impl FnOnce(Connection) -> F + Send + 'static,
    ) -> mpsc::Receiver<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (sender, receiver) = mpsc::sync_channel(1);
        let options = self.options.clone();
        self.io.spawn(async move {
            let journal = options.server.to_string();
            let result = match Connection::open(&options).await {
                Ok(connection) => work(connection).await,
                Err(OpenError::Server(error)) => Err(error),
                Err(OpenError::Timeout) => return,
            };
            match result {
                // An error means that nobody waits for it any more.
                Ok(value) => drop(sender.send(value)),
                Err(error) => {
                    let error = to_journal_error(&journal, &error);
                    tracing::warn!(%error, "the days of the journal have to wait");
                }
            }
        });
        receiver
    }

    /// Gives the name back, if the server can be reached. `highest` is the highest number of a job.
    /// It waits at most [`GOODBYE_TIMEOUT`].
    pub(super) fn say_goodbye(&mut self, highest: JobNumber) {
        if self.unanswered.is_some() {
            return self.report_kept_name();
        }
        let (connection, options) = (self.connection.take(), self.options.clone());
        let (manager, name) = (self.manager, self.options.name.clone());
        let statements = [
            BatchStatement::new(
                "UPDATE names SET owner = NULL, high = $3 WHERE name = $2 AND owner = $1",
                params![manager, name, highest],
            ),
            BatchStatement::new(
                "UPDATE managers SET state = 'left' WHERE id = $1",
                params![manager],
            ),
        ];
        let goodbye = async move {
            let connection = match connection {
                Some(connection) => connection,
                None => Arc::new(Connection::open(&options).await.ok()?),
            };
            run_transaction(&connection, manager, &statements).await.ok()
        };
        let goodbye = async { tokio::time::timeout(GOODBYE_TIMEOUT, goodbye).await };
        match self.io.run(goodbye) {
            Ok(Some(_)) => tracing::info!(name = self.options.name, "the name is free"),
            Ok(None) | Err(_) => self.report_kept_name(),
        }
    }

    fn report_kept_name(&self) {
        tracing::warn!(
            name = self.options.name,
            "the name could not be given back: another manager takes over when the lease is over"
        );
    }

    /// Remembers a row of `entries` that was committed.
    pub(super) fn set_committed_row(&mut self, row: Option<(JobNumber, i64)>) {
        self.committed_row = row;
    }

    /// Returns a row of `entries` that was committed.
    pub(super) fn committed_row(&self) -> Option<(JobNumber, i64)> {
        self.committed_row
    }

    /// Runs `operation`, and again after a conflict or over a new connection.
    fn attempt<T, F>(&mut self, operation: impl Fn(Arc<Connection>) -> F) -> Result<T, AttemptError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, CommitError>> + Send + 'static,
    {
        self.await_unanswered()?;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let result = match self.connect()? {
                Ok(connection) => self.run_within(operation(connection))?,
                Err(error) => Err(error),
            };
            let journal = self.journal();
            let waits_for_server = |what: String| JournalError::Failed {
                file: journal.clone(),
                problem: what,
                remedy: Remedy::WaitForServer,
            };
            match result {
                Ok(value) => return Ok(value),
                Err(CommitError::Fenced) => return Err(self.fenced_error().into()),
                Err(CommitError::GoneBack(job)) => return Err(gone_back_error(journal, job).into()),
                Err(CommitError::WaitCancelled) => {
                    let what = "the server has committed without its synchronous standby, because \
                                the wait was cancelled: the commit is sent again";
                    return Err(waits_for_server(what.to_owned()).into());
                }
                Err(CommitError::Server(error)) => {
                    let fault = Fault::of_error(&error);
                    if fault == Fault::Connection {
                        self.connection = None;
                    }
                    let attempts_max = match fault {
                        Fault::Conflict => CONFLICT_ATTEMPTS_MAX,
                        Fault::Connection => CONNECTION_ATTEMPTS_MAX,
                        Fault::NoDay => {
                            return Err(AttemptError::NoDay(to_journal_error(&journal, &error)));
                        }
                        Fault::Refused => {
                            let error = to_journal_error(&journal, &error);
                            return Err(AttemptError::Refused(error));
                        }
                        Fault::DiskFull | Fault::Permanent => 1,
                    };
                    if attempt >= attempts_max {
                        return Err(to_journal_error(&journal, &error).into());
                    }
                    tracing::debug!(journal, %error, "the transaction is sent again");
                }
            }
        }
    }

    /// Runs an operation. If the server does not answer within [`ANSWER_TIMEOUT`], as while its
    /// synchronous standby is away, returns an error, and the operation goes on.
    fn run_within<T, F>(&mut self, operation: F) -> Result<T, JournalError>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (sender, receiver) = mpsc::sync_channel(1);
        let (end_sender, end) = mpsc::sync_channel(1);
        self.io.spawn(async move {
            // An error means that nobody waits for it any more.
            let _ = sender.send(operation.await);
            let _ = end_sender.send(());
        });
        receiver.recv_timeout(ANSWER_TIMEOUT).map_err(|_| {
            self.unanswered = Some(end);
            no_answer(&self.journal(), ANSWER_TIMEOUT)
        })
    }

    /// Waits for the end of the operation that was not answered. Its result does not matter: the
    /// caller runs it again.
    fn await_unanswered(&mut self) -> Result<(), JournalError> {
        let Some(end) = &self.unanswered else { return Ok(()) };
        if end.recv_timeout(ANSWER_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            return Err(no_answer(&self.journal(), ANSWER_TIMEOUT));
        }
        self.unanswered = None;
        Ok(())
    }

    /// Returns the connection, and opens it again if it is broken.
    fn connect(&mut self) -> Result<Result<Arc<Connection>, CommitError>, JournalError> {
        if let Some(connection) = self.connection.as_ref().filter(|open| !open.is_closed()) {
            return Ok(Ok(connection.clone()));
        }
        let (options, row) = (self.options.clone(), self.committed_row);
        let opened = self.run_within(async move {
            let connection = Connection::open(&options).await?;
            connection.batch_execute(COMMIT_SETTINGS).await?;
            let has_row = has_committed_row(&connection, row).await?;
            Ok::<_, OpenError>((Arc::new(connection), has_row))
        })?;
        let (connection, has_row) = match opened {
            Ok(opened) => opened,
            Err(OpenError::Server(error)) => return Ok(Err(CommitError::Server(error))),
            Err(error @ OpenError::Timeout) => return Err(error.to_journal_error(&self.journal())),
        };
        if !has_row {
            return Ok(Err(CommitError::GoneBack(row.map_or(0, |(job, _)| job))));
        }
        self.connection = Some(connection.clone());
        Ok(Ok(connection))
    }

    fn fenced_error(&self) -> JournalError {
        JournalError::Fenced {
            file: self.journal(),
            name: self.options.name.clone(),
            manager: self.manager.to_string(),
        }
    }
}

/// Returns whether the server has a row that it had committed.
async fn has_committed_row(
    connection: &Connection,
    row: Option<(JobNumber, i64)>,
) -> Result<bool, Error> {
    let Some((job, first)) = row else { return Ok(true) };
    let sql = "SELECT EXISTS (SELECT 1 FROM entries WHERE job = $1 AND first = $2)";
    let rows = connection.query(sql, &params![job, first]).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

/// Creates the error of a server that does not have a commit of this job that it had answered, as
/// after a failover to an asynchronous standby. What this process has in memory does not follow
/// from such a database.
fn gone_back_error(journal: String, job: JobNumber) -> JournalError {
    let what = format!(
        "the database has lost a commit of job {job} that it had answered, as after a failover to \
         an asynchronous standby. The next start goes on from what the database has"
    );
    JournalError::Failed { file: journal, problem: what, remedy: Remedy::Exit }
}

/// Runs a transaction in one round trip. It is committed only if every statement has succeeded:
/// after an error, the server answers COMMIT without an error, and rolls back.
async fn run_transaction(
    connection: &Connection,
    manager: Uuid,
    statements: &[BatchStatement],
) -> Result<Results, CommitError> {
    let fence_params = params![manager];
    let fence = connection.prepare(LOCK_FENCE).await.map_err(CommitError::Server)?;
    let mut prepared = Vec::with_capacity(statements.len());
    for statement in statements {
        prepared.push(connection.prepare(&statement.sql).await.map_err(CommitError::Server)?);
    }
    connection.take_wait_cancelled();
    let begin = connection.batch_execute("BEGIN");
    let lock = connection.query_prepared(&fence, &fence_params);
    let pairs = prepared.iter().zip(statements);
    let queries = join_all(
        pairs.map(|(prepared, statement)| connection.query_prepared(prepared, &statement.params)),
    );
    let commit = connection.batch_execute("COMMIT");
    let (begin, lock, queries, commit) = tokio::join!(biased; begin, lock, queries, commit);
    begin.map_err(CommitError::Server)?;
    if let Err(error) = lock {
        let is_fenced = error.code() == Some(&SqlState::DIVISION_BY_ZERO);
        return Err(if is_fenced { CommitError::Fenced } else { CommitError::Server(error) });
    }
    let results = queries.into_iter().collect::<Result<Results, Error>>();
    let results = results.map_err(CommitError::Server)?;
    commit.map_err(CommitError::Server)?;
    if connection.take_wait_cancelled() {
        return Err(CommitError::WaitCancelled);
    }
    Ok(results)
}
