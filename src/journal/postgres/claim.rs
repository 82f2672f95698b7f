//! Which process is active: the tables `names`, `managers` and `fences`.
//!
//! A process registers in `managers` at its start, with a fence of its own. The active process of a
//! name is the owner in `names`. It beats: it changes its row in `managers` every two seconds. A
//! process that finds the beat unchanged for the whole lease, by its own monotonic clock and over
//! looks that all succeeded, declares the owner dead and takes the name over. No clocks of two
//! machines are compared.

use super::connection::{Connection, OpenError, params};
use super::fault::{no_answer, to_journal_error};
use super::io_thread::IoThread;
use super::last_beat::LastBeat;
use super::options::PostgresOptions;
use super::schema;
use crate::error::JournalError;
use crate::record::JobNumber;
use base::clock;
use engine::Timestamp;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};
use tokio_postgres::Error;
use uuid::Uuid;

/// How often the active process beats.
const BEAT_INTERVAL: Duration = Duration::from_secs(2);

/// How long the beat of the active process may stand still before another process takes over.
const LEASE: Duration = Duration::from_secs(10);

/// How long a look may take. A takeover waits for the open transaction of the dead process, which
/// the server ends after five seconds.
const LOOK_TIMEOUT: Duration = Duration::from_secs(9);

/// How often an ordinal is chosen for a new name.
const ORDINAL_ATTEMPTS_MAX: u32 = 5;

/// How long a beat may take before its connection is given up.
const BEAT_TIMEOUT: Duration = Duration::from_secs(5);

/// A process that has registered under a name.
pub(super) struct Candidate {
    pub(super) io: Arc<IoThread>,
    pub(super) options: Arc<PostgresOptions>,
    /// The id of this process.
    pub(super) manager: Uuid,
    /// When the active process beat last.
    pub(super) last_beat: Arc<LastBeat>,
    /// `None` after a look has failed.
    connection: Option<Connection>,
    /// The owner that was seen last, with its beat, and since when the beat has been the same.
    seen: Option<(Uuid, i64, Instant)>,
    /// Whether the last claim was to take the name from a dead process.
    pub(super) takes_over: bool,
}

/// What a database has, as far as it can hold a journal.
pub struct DatabaseInspection {
    /// Whether it has the tables of a journal. The first start creates them.
    pub has_tables: bool,
    /// Whether a manager of the name is active, or was killed a moment ago.
    pub is_active: bool,
}

/// The result of a look at who is active.
pub(super) enum Look {
    /// This process is active now.
    Active(TakenState),
    /// Another process is active.
    Standby(ActiveManager),
}

/// What the database holds when a process becomes active.
pub(super) struct TakenState {
    /// The epoch of this process, which is higher than that of every process before.
    pub(super) epoch: i64,
    /// When the newest record was decided, as far as it is known; `None` if there is none.
    pub(super) newest: Option<Timestamp>,
    /// The last row of `entries` of the newest job: its job and first entry.
    pub(super) last_row: Option<(JobNumber, i64)>,
}

/// The process that is active.
pub(super) struct ActiveManager {
    id: Uuid,
    beat: i64,
    api_address: Option<String>,
    since: Timestamp,
}

impl Candidate {
    /// Connects, checks the database, creates or migrates the tables, and registers this process.
    pub(super) fn register(options: PostgresOptions) -> Result<Candidate, JournalError> {
        let io = Arc::new(IoThread::start().map_err(|error| JournalError::Unreachable {
            file: options.server.to_string(),
            error,
        })?);
        let options = Arc::new(options);
        let manager = clock::new_id().0;
        let connection = io.run({
            let options = options.clone();
            async move {
                let journal = options.server.to_string();
                let to_error = |error: Error| to_journal_error(&journal, &error);
                let opened = Connection::open(&options).await;
                let connection = opened.map_err(|error| error.to_journal_error(&journal))?;
                schema::prepare(&connection, &journal).await?;
                register(&connection, &options, manager).await.map_err(to_error)?;
                Ok::<_, JournalError>(connection)
            }
        })?;
        let last_beat = Arc::new(LastBeat::new());
        let connection = Some(connection);
        let (seen, takes_over) = (None, false);
        Ok(Candidate { io, options, manager, last_beat, connection, seen, takes_over })
    }

    /// Checks the database, and changes nothing.
    pub(super) fn inspect(options: PostgresOptions) -> Result<DatabaseInspection, JournalError> {
        let journal = options.server.to_string();
        let io = IoThread::start()
            .map_err(|error| JournalError::Unreachable { file: journal.clone(), error })?;
        io.run(async move {
            let to_error = |error: Error| to_journal_error(&journal, &error);
            let opened = Connection::open(&options).await;
            let connection = opened.map_err(|error| error.to_journal_error(&journal))?;
            let has_tables = schema::inspect(&connection, &journal).await?;
            let owner = if has_tables {
                load_owner(&connection, &options.name).await.map_err(to_error)?
            } else {
                None
            };
            Ok(DatabaseInspection { has_tables, is_active: owner.is_some() })
        })
    }

    /// Takes the name if nobody owns it, or if its owner's beat has stood still for the lease.
    pub(super) fn try_claim(mut self) -> (Candidate, Result<Look, JournalError>) {
        let io = self.io.clone();
        io.run(async move {
            let journal = self.options.server.to_string();
            let result = match tokio::time::timeout(LOOK_TIMEOUT, self.look_once()).await {
                Ok(result) => result.map_err(|error| error.to_journal_error(&journal)),
                Err(_) => Err(no_answer(&journal, LOOK_TIMEOUT)),
            };
            if result.is_err() {
                // A beat counts as unchanged only over looks that all succeeded: after an outage of
                // the server nobody is declared dead.
                self.connection = None;
                self.seen = None;
            }
            (self, result)
        })
    }

    async fn look_once(&mut self) -> Result<Look, OpenError> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(&self.options).await?,
        };
        let look = self.look_over(&connection).await?;
        self.connection = Some(connection);
        Ok(look)
    }

    async fn look_over(&mut self, connection: &Connection) -> Result<Look, Error> {
        // A look writes, so it succeeds only while the server commits. Otherwise a server that
        // waits for its synchronous standby would make the active process look dead.
        let sql = "UPDATE managers SET beat = beat + 1, seen = now() WHERE id = $1 RETURNING id";
        if connection.query(sql, &params![self.manager]).await?.is_empty() {
            register(connection, &self.options, self.manager).await?;
        }
        let Some(owner) = load_owner(connection, &self.options.name).await? else {
            self.takes_over = false;
            return self.claim(connection, None).await;
        };
        if owner.id == self.manager {
            // The claim of an earlier look was committed, and its answer was lost.
            let sql = "SELECT epoch FROM names WHERE owner = $1";
            let rows = connection.query(sql, &params![self.manager]).await?;
            if let Some(row) = rows.first() {
                return load_state(connection, row.get(0)).await.map(Look::Active);
            }
        }
        let now = clock::instant();
        let since = match self.seen {
            Some((id, beat, since)) if (id, beat) == (owner.id, owner.beat) => since,
            Some(_) | None => {
                self.last_beat.touch();
                now
            }
        };
        self.seen = Some((owner.id, owner.beat, since));
        if now.duration_since(since) < LEASE {
            return Ok(Look::Standby(owner));
        }
        tracing::warn!(
            name = self.options.name,
            manager = %owner.id,
            "the active manager has not beaten for {} s: this one takes over",
            LEASE.as_secs()
        );
        self.takes_over = true;
        self.claim(connection, Some(owner)).await
    }

    /// Takes the name in one transaction, from `owner` if there is one. The lock of the owner's
    /// fence waits for its open transaction, and makes every later one fail.
    async fn claim(
        &self,
        connection: &Connection,
        owner: Option<ActiveManager>,
    ) -> Result<Look, Error> {
        // A takeover that waits for a lock must not keep the owner's beat waiting.
        connection.batch_execute("BEGIN; SET LOCAL lock_timeout = '7s'").await?;
        let result = self.claim_in_transaction(connection, owner.as_ref()).await;
        let is_committed = matches!(result, Ok(Some(_)));
        let end = connection.batch_execute(if is_committed { "COMMIT" } else { "ROLLBACK" });
        let end_result = end.await;
        match (result?, owner) {
            (Some(epoch), _) => {
                end_result?;
                load_state(connection, epoch).await.map(Look::Active)
            }
            // Another process was faster, or the owner beats again.
            (None, Some(owner)) => Ok(Look::Standby(owner)),
            (None, None) => match load_owner(connection, &self.options.name).await? {
                Some(owner) => Ok(Look::Standby(owner)),
                None => Box::pin(self.claim(connection, None)).await,
            },
        }
    }

    /// Returns the new epoch; `None` if the name cannot be taken now.
    async fn claim_in_transaction(
        &self,
        connection: &Connection,
        owner: Option<&ActiveManager>,
    ) -> Result<Option<i64>, Error> {
        let owner_id = owner.map(|owner| owner.id);
        if let Some(owner) = owner {
            // An owner without a row in `managers` cannot beat.
            let sql = "WITH dead AS (UPDATE managers SET state = 'dead'
                         WHERE id = $1 AND beat = $2 AND state = 'active' RETURNING id)
                       SELECT EXISTS (SELECT 1 FROM dead)
                           OR NOT EXISTS (SELECT 1 FROM managers WHERE id = $1)";
            let rows = connection.query(sql, &params![owner.id, owner.beat]).await?;
            if !rows.first().is_some_and(|row| row.get(0)) {
                return Ok(None);
            }
            let sql = "UPDATE fences SET dead = true WHERE manager = $1";
            connection.query(sql, &params![owner.id]).await?;
        }
        let sql = "UPDATE names SET owner = $2, epoch = epoch + 1, api_address = $3,
                          since = now()
                   WHERE name = $1 AND (owner IS NULL OR owner = $4) RETURNING epoch";
        let (name, address) = (self.options.name.clone(), self.options.api_address.clone());
        let params = params![name, self.manager, address, owner_id];
        let Some(row) = connection.query(sql, &params).await?.into_iter().next() else {
            return Ok(None);
        };
        let sql = "UPDATE managers SET state = 'active' WHERE id = $1";
        connection.query(sql, &params![self.manager]).await?;
        Ok(Some(row.get(0)))
    }

    /// Begins to beat in the background. The beat stops while `is_alive` says that the process
    /// hangs.
    pub(super) fn start_beat(self, is_alive: Arc<dyn Fn() -> bool + Send + Sync>) -> Beat {
        let Candidate { io, options, manager, last_beat, connection, .. } = self;
        // The claim was the first beat.
        last_beat.touch();
        let state = Arc::new(BeatState {
            newest: AtomicI64::new(i64::MIN),
            last_beat,
            is_fenced: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
        });
        let beat = Beat { state: state.clone() };
        io.spawn(run_beat(options, manager, connection, state, is_alive));
        beat
    }
}

impl ActiveManager {
    /// Creates the error of a process that finds this one active.
    pub(super) fn to_error(&self, options: &PostgresOptions) -> JournalError {
        JournalError::ActiveElsewhere {
            file: options.server.to_string(),
            name: options.name.clone(),
            manager: self.id.to_string(),
            address: self.api_address.clone(),
            since: self.since,
        }
    }
}

/// The beat of the active process.
pub(super) struct Beat {
    state: Arc<BeatState>,
}

struct BeatState {
    /// When the newest record was decided, in nanoseconds since 1970; `i64::MIN`: there is none.
    newest: AtomicI64,
    last_beat: Arc<LastBeat>,
    /// Whether another process has taken the name.
    is_fenced: AtomicBool,
    is_stopped: AtomicBool,
}

impl Beat {
    /// Returns whether another process has taken the name.
    pub(super) fn is_fenced(&self) -> bool {
        self.state.is_fenced.load(Ordering::Relaxed)
    }

    /// Stores when the newest record was decided, for the next beat.
    pub(super) fn set_newest(&self, newest: Timestamp) {
        self.state.newest.fetch_max(newest.0, Ordering::Relaxed);
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        self.state.is_stopped.store(true, Ordering::Relaxed);
    }
}

/// Returns what the database holds for the process with this epoch.
async fn load_state(connection: &Connection, epoch: i64) -> Result<TakenState, Error> {
    let sql = "SELECT greatest((SELECT max(newest) FROM managers),
                               (SELECT created FROM jobs ORDER BY number DESC LIMIT 1))";
    let rows = connection.query(sql, &params![]).await?;
    let newest = rows.first().and_then(|row| row.get::<_, Option<i64>>(0)).map(Timestamp);
    let sql = "SELECT job, first FROM entries WHERE job = (SELECT max(number) FROM jobs)
               ORDER BY first DESC LIMIT 1";
    let rows = connection.query(sql, &params![]).await?;
    let last_row = rows.first().map(|row| (row.get(0), row.get(1)));
    Ok(TakenState { epoch, newest, last_row })
}

/// Returns the owner of a name; `None` if nobody owns it.
async fn load_owner(connection: &Connection, name: &str) -> Result<Option<ActiveManager>, Error> {
    let sql = "SELECT n.owner, coalesce(m.beat, 0), n.api_address,
                      coalesce((extract(epoch FROM n.since) * 1000000)::bigint, 0) * 1000
               FROM names n LEFT JOIN managers m ON m.id = n.owner
               WHERE n.name = $1 AND n.owner IS NOT NULL";
    let rows = connection.query(sql, &params![name.to_owned()]).await?;
    Ok(rows.first().map(|row| ActiveManager {
        id: row.get(0),
        beat: row.get(1),
        api_address: row.get(2),
        since: Timestamp(row.get(3)),
    }))
}

/// Registers this process, and its name if it is new.
async fn register(
    connection: &Connection,
    options: &PostgresOptions,
    manager: Uuid,
) -> Result<(), Error> {
    // Two new names may choose the same ordinal at the same time.
    for _ in 0..ORDINAL_ATTEMPTS_MAX {
        let sql = "INSERT INTO names(name, ordinal)
                   SELECT $1, coalesce((SELECT max(ordinal) + 1 FROM names), 0)
                   ON CONFLICT DO NOTHING";
        connection.query(sql, &params![options.name.clone()]).await?;
        let sql = "SELECT 1 FROM names WHERE name = $1";
        if !connection.query(sql, &params![options.name.clone()]).await?.is_empty() {
            break;
        }
    }
    let sql = "WITH fence AS (
                 INSERT INTO fences(manager, dead) VALUES ($1, false) ON CONFLICT DO NOTHING)
               INSERT INTO managers(id, name, version, beat, state, api_address)
               VALUES ($1, $2, $3, 0, 'standby', $4) ON CONFLICT DO NOTHING";
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let address = options.api_address.clone();
    connection.query(sql, &params![manager, options.name.clone(), version, address]).await?;
    // Rows of processes that have ended are of no use any more. A standby is seen at each look.
    let sql = "WITH ended AS (
                 DELETE FROM managers m WHERE m.id <> $1 AND m.seen < now() - interval '1 day'
                   AND m.state <> 'active'
                   AND NOT EXISTS (SELECT 1 FROM names n WHERE n.owner = m.id) RETURNING m.id)
               DELETE FROM fences f USING ended WHERE f.manager = ended.id";
    connection.query(sql, &params![manager]).await.map(drop)
}

async fn run_beat(
    options: Arc<PostgresOptions>,
    manager: Uuid,
    mut connection: Option<Connection>,
    state: Arc<BeatState>,
    is_alive: Arc<dyn Fn() -> bool + Send + Sync>,
) {
    while !state.is_stopped.load(Ordering::Relaxed) {
        if is_alive() {
            let beat = beat_once(&options, manager, &mut connection, &state);
            match tokio::time::timeout(BEAT_TIMEOUT, beat).await {
                Ok(Ok(is_owner)) => {
                    state.last_beat.touch();
                    state.is_fenced.store(!is_owner, Ordering::Relaxed);
                }
                Ok(Err(error)) => {
                    let error = error.to_journal_error(&options.server.to_string());
                    tracing::debug!(%error, "the beat of this manager fails");
                    connection = None;
                }
                Err(_) => connection = None,
            }
        }
        tokio::time::sleep(BEAT_INTERVAL).await;
    }
}

/// Beats once. Returns whether this process is still the owner of its name.
async fn beat_once(
    options: &Arc<PostgresOptions>,
    manager: Uuid,
    connection: &mut Option<Connection>,
    state: &BeatState,
) -> Result<bool, OpenError> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(Connection::open(options).await?),
    };
    let newest = Some(state.newest.load(Ordering::Relaxed)).filter(|newest| *newest > i64::MIN);
    let sql = "WITH beat AS (
                 UPDATE managers SET beat = beat + 1, seen = now(), newest = greatest(newest, $3)
                 WHERE id = $1 AND state = 'active' RETURNING id)
               SELECT EXISTS (SELECT 1 FROM names WHERE name = $2 AND owner = $1)
                  AND EXISTS (SELECT 1 FROM beat)";
    let rows = connection.query(sql, &params![manager, options.name.clone(), newest]).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}
