//! Which process is active: the tables `names`, `managers` and `fences`.
//!
//! A process registers in `managers` at its start, with a fence of its own. The active process of a
//! name is the owner in `names`. It beats: it changes its row in `managers` every two seconds. A
//! process that finds the beat unchanged for the whole lease, by its own monotonic clock and over
//! looks that all succeeded, declares the owner dead and takes the name over. No clocks of two
//! machines are compared.

use super::connection::{Connection, params};
use super::fault::{no_answer, to_journal_error};
use super::io_thread::IoThread;
use super::options::PostgresOptions;
use super::schema;
use crate::error::{JournalError, Remedy};
use crate::last_instant::LastInstant;
use crate::numbers::{NAMES_MAX, NameOrdinal, RESERVED_NUMBERS};
use crate::ownership::LEASE;
use crate::record::JobNumber;
use base::{clock, faults};
use engine::Timestamp;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_postgres::Error;
use uuid::Uuid;

/// How long a look may take. A takeover waits for the open transaction of the dead process, which
/// the server ends after five seconds.
const LOOK_TIMEOUT: Duration = Duration::from_secs(9);

/// How often an ordinal is chosen for a new name.
const ORDINAL_ATTEMPTS_MAX: u32 = 5;

/// The state of a process that has announced that it gives its name back.
pub(super) const LEAVING: &str = "leaving";

/// What stands in `managers.broker` of an active process that has lost its broker.
pub(super) const BROKER_LOST: &str = "lost";

/// What stands in `managers.broker` of a standby that reaches the broker.
const BROKER_REACHED: &str = "reached";

/// What a process wants to be active for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To run jobs.
    Serve,
    /// To copy the journal. The copy may begin anew where an earlier one has ended.
    Copy,
}

/// A process that has registered under a name.
pub(super) struct Candidate {
    pub(super) io: Arc<IoThread>,
    pub(super) options: Arc<PostgresOptions>,
    /// The id of this process.
    pub(super) manager: Uuid,
    purpose: Purpose,
    /// The ordinal of its name.
    pub(super) ordinal: NameOrdinal,
    /// When the active process beat last.
    pub(super) last_beat: Arc<LastInstant>,
    /// `None` after a look has failed.
    pub(super) connection: Option<Connection>,
    /// The owner that was seen last, with its beat, and since when the beat has been the same.
    seen: Option<(Uuid, i64, Instant)>,
    /// What the owner that was seen last has announced.
    pub(super) announced: Announcement,
    /// Whether this process reaches the broker; `None`: it has not tried lately.
    pub(super) reaches_broker: Option<bool>,
    /// Whether the last claim was to take the name from a dead process.
    pub(super) takes_over: bool,
}

/// What the owner of a name has announced to its standbys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Announcement {
    /// It gives the name back soon.
    pub is_leaving: bool,
    /// It has lost its broker.
    pub is_broker_lost: bool,
}

/// What a database has, as far as it can hold a journal.
pub struct DatabaseInspection {
    /// Whether it has the tables of a journal. The first start creates them.
    pub has_tables: bool,
    /// Whether a manager of the name is active, or was killed a moment ago.
    pub is_active: bool,
    /// The names of its managers, sorted.
    pub names: Vec<String>,
}

/// The result of a look at who is active.
pub(super) enum Look {
    /// This process is active now.
    Active(TakenState),
    /// Another process is active.
    Standby(ActiveManager),
    /// Nobody is active, and this process, which does not reach the broker, leaves the name to
    /// another one that does.
    LeftTo(BetterStandby),
    /// Under this name there is the beginning of a copy of this journal: nobody may become active.
    HalfCopied(String),
}

/// What the database holds when a process becomes active.
pub(super) struct TakenState {
    /// The epoch of this process, which is higher than that of every process before.
    pub(super) epoch: i64,
    /// No job of the name has a higher number.
    pub(super) high: JobNumber,
    /// When the newest record was decided, as far as it is known; `None` if there is none.
    pub(super) newest: Option<Timestamp>,
    /// The last row of `entries` of the name's newest job: its job and first entry.
    pub(super) last_row: Option<(JobNumber, i64)>,
}

/// The process that is active.
pub(super) struct ActiveManager {
    id: Uuid,
    beat: i64,
    announced: Announcement,
    api_address: Option<String>,
    since: Timestamp,
}

/// A standby that should take a free name.
pub(super) struct BetterStandby {
    id: Uuid,
    api_address: Option<String>,
}

/// What a name has in `names`.
#[derive(Default)]
struct NameState {
    /// The process that owns it; `None` if nobody does.
    owner: Option<ActiveManager>,
    /// The journal whose copy under this name has begun and not ended; `None` if there is none.
    copied_from: Option<String>,
}

impl Candidate {
    /// Connects, checks the database, creates or migrates the tables, and registers this process.
    pub(super) fn register(
        options: PostgresOptions,
        purpose: Purpose,
    ) -> Result<Candidate, JournalError> {
        let io = Arc::new(IoThread::start().map_err(|error| JournalError::Unreachable {
            file: options.server.to_string(),
            error,
        })?);
        let options = Arc::new(options);
        let manager = clock::new_id().0;
        let (connection, ordinal) = io.run({
            let options = options.clone();
            async move {
                let journal = options.server.to_string();
                let to_error = |error: Error| to_journal_error(&journal, &error);
                let opened = Connection::open(&options).await;
                let connection = opened.map_err(|error| error.to_journal_error(&journal))?;
                schema::prepare(&connection, &journal).await?;
                let is_required = options.require_synchronous;
                schema::check_synchronous(&connection, &journal, is_required).await?;
                let state = load_name(&connection, &options.name).await.map_err(to_error)?;
                if purpose == Purpose::Serve
                    && let Some(from) = state.copied_from
                {
                    return Err(half_copied_error(journal, &from));
                }
                let ordinal = register(&connection, &options, manager).await.map_err(to_error)?;
                let ordinal = ordinal.ok_or_else(|| too_many_names(&journal, &options.name))?;
                Ok::<_, JournalError>((connection, ordinal))
            }
        })?;
        Ok(Candidate {
            io,
            options,
            manager,
            purpose,
            ordinal,
            connection: Some(connection),
            seen: None,
            announced: Announcement::default(),
            reaches_broker: None,
            last_beat: Arc::new(LastInstant::never()),
            takes_over: false,
        })
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
            if !has_tables {
                let names = Vec::new();
                return Ok(DatabaseInspection { has_tables, is_active: false, names });
            }
            let state = load_name(&connection, &options.name).await.map_err(to_error)?;
            if let Some(from) = state.copied_from {
                return Err(half_copied_error(journal, &from));
            }
            let names = load_names(&connection).await.map_err(to_error)?;
            Ok(DatabaseInspection { has_tables, is_active: state.owner.is_some(), names })
        })
    }

    /// Takes the name if nobody owns it, or if its owner's beat has stood still for the lease.
    pub(super) fn try_claim(mut self) -> (Candidate, Result<Look, JournalError>) {
        let io = self.io.clone();
        io.run(async move {
            let journal = self.options.server.to_string();
            let look = tokio::time::timeout(LOOK_TIMEOUT, self.look_once(&journal)).await;
            let result = look.unwrap_or_else(|_| Err(no_answer(&journal, LOOK_TIMEOUT)));
            if result.is_err() {
                // A beat counts as unchanged only over looks that all succeeded: after an outage of
                // the server nobody is declared dead.
                self.connection = None;
                self.seen = None;
            }
            (self, result)
        })
    }

    /// Looks once. `journal` is the address, for messages.
    async fn look_once(&mut self, journal: &str) -> Result<Look, JournalError> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let opened = Connection::open(&self.options).await;
                opened.map_err(|error| error.to_journal_error(journal))?
            }
        };
        // A newer program may have changed the tables while this one stood by.
        schema::check_format(&connection, journal).await?;
        let look = self.look_over(&connection).await;
        let look = look.map_err(|error| to_journal_error(journal, &error))?;
        self.connection = Some(connection);
        Ok(look)
    }

    async fn look_over(&mut self, connection: &Connection) -> Result<Look, Error> {
        // A look writes, so it succeeds only while the server commits. Otherwise a server that
        // waits for its synchronous standby would make the active process look dead.
        let sql = "UPDATE managers SET beat = beat + 1, seen = now(), broker = $2 WHERE id = $1
                   RETURNING id";
        let broker = self.reaches_broker.map(|is_reached| match is_reached {
            true => BROKER_REACHED,
            false => BROKER_LOST,
        });
        if connection.query(sql, &params![self.manager, broker]).await?.is_empty() {
            register(connection, &self.options, self.manager).await?;
        }
        let NameState { owner, copied_from } = load_name(connection, &self.options.name).await?;
        if self.purpose == Purpose::Serve
            && let Some(from) = copied_from
        {
            return Ok(Look::HalfCopied(from));
        }
        let Some(owner) = owner else {
            self.takes_over = false;
            if let Some(better) = self.find_better(connection).await? {
                return Ok(Look::LeftTo(better));
            }
            return self.claim(connection, None).await;
        };
        self.announced = owner.announced;
        if owner.id == self.manager {
            // The claim of an earlier look was committed, and its answer was lost.
            return self.load_state(connection).await.map(Look::Active);
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

    /// Returns the standby that should take a free name instead of this one: this one does not
    /// reach the broker, and the other one does. `None`: there is none.
    async fn find_better(&self, connection: &Connection) -> Result<Option<BetterStandby>, Error> {
        if self.reaches_broker != Some(false) {
            return Ok(None);
        }
        let sql = "SELECT id, api_address FROM managers
                   WHERE name = $1 AND id <> $2 AND state = 'standby' AND broker = $3
                     AND seen > now() - interval '5 s' LIMIT 1";
        let params = params![self.options.name.clone(), self.manager, BROKER_REACHED];
        let rows = connection.query(sql, &params).await?;
        Ok(rows.first().map(|row| BetterStandby { id: row.get(0), api_address: row.get(1) }))
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
        faults::hit("claim::begun");
        let result = self.claim_in_transaction(connection, owner.as_ref()).await;
        let is_committed = matches!(result, Ok(true));
        let end = connection.batch_execute(if is_committed { "COMMIT" } else { "ROLLBACK" });
        let end_result = end.await;
        faults::hit("claim::committed");
        match (result?, owner) {
            (true, _) => {
                end_result?;
                self.load_state(connection).await.map(Look::Active)
            }
            // Another process was faster, or the owner beats again.
            (false, Some(owner)) => Ok(Look::Standby(owner)),
            (false, None) => match load_name(connection, &self.options.name).await?.owner {
                Some(owner) => Ok(Look::Standby(owner)),
                None => Box::pin(self.claim(connection, None)).await,
            },
        }
    }

    /// Returns whether the name is taken. Otherwise it cannot be taken now.
    async fn claim_in_transaction(
        &self,
        connection: &Connection,
        owner: Option<&ActiveManager>,
    ) -> Result<bool, Error> {
        let owner_id = owner.map(|owner| owner.id);
        if let Some(owner) = owner {
            // An owner without a row in `managers` cannot beat.
            let sql = "WITH dead AS (UPDATE managers SET state = 'dead'
                         WHERE id = $1 AND beat = $2 AND state IN ('active', 'leaving')
                         RETURNING id)
                       SELECT EXISTS (SELECT 1 FROM dead)
                           OR NOT EXISTS (SELECT 1 FROM managers WHERE id = $1)";
            let rows = connection.query(sql, &params![owner.id, owner.beat]).await?;
            if !rows.first().is_some_and(|row| row.get(0)) {
                return Ok(false);
            }
            faults::hit("claim::declared");
            let sql = "UPDATE fences SET dead = true WHERE manager = $1";
            connection.query(sql, &params![owner.id]).await?;
            faults::hit("claim::fenced");
        }
        let sql = "UPDATE names SET owner = $2, epoch = epoch + 1, api_address = $3,
                          since = now(), workflows = '{}'
                   WHERE name = $1 AND (owner IS NULL OR owner = $4) RETURNING name";
        let (name, address) = (self.options.name.clone(), self.options.api_address.clone());
        let params = params![name, self.manager, address, owner_id];
        if connection.query(sql, &params).await?.is_empty() {
            return Ok(false);
        }
        faults::hit("claim::named");
        let sql = "UPDATE managers SET state = 'active' WHERE id = $1";
        connection.query(sql, &params![self.manager]).await?;
        faults::hit("claim::complete");
        Ok(true)
    }

    /// Returns what the database holds for this process, which owns its name.
    async fn load_state(&self, connection: &Connection) -> Result<TakenState, Error> {
        let sql = "SELECT epoch, high, (SELECT max(newest) FROM managers WHERE name = $1)
                   FROM names WHERE name = $1";
        let rows = connection.query(sql, &params![self.options.name.clone()]).await?;
        // The row of a name is never deleted.
        let (epoch, high, beaten): (i64, JobNumber, Option<i64>) =
            rows.first().map_or((1, 0, None), |row| (row.get(0), row.get(1), row.get(2)));
        // The newest job lies within the numbers that were reserved last.
        let sql = format!(
            "SELECT number, created FROM jobs WHERE number > $1 AND number <= $2 AND {} \
             ORDER BY number DESC LIMIT 1",
            self.ordinal.condition("number")
        );
        let rows = connection.query(&sql, &params![high - RESERVED_NUMBERS, high]).await?;
        let newest_job: Option<(JobNumber, i64)> = rows.first().map(|row| (row.get(0), row.get(1)));
        let newest = beaten.max(newest_job.map(|(_, created)| created)).map(Timestamp);
        let sql = "SELECT job, first FROM entries WHERE job = $1 ORDER BY first DESC LIMIT 1";
        let rows = connection.query(sql, &params![newest_job.map(|(number, _)| number)]).await?;
        let last_row = rows.first().map(|row| (row.get(0), row.get(1)));
        Ok(TakenState { epoch, high, newest, last_row })
    }
}

/// Creates the error of a database that has the beginning of a copy of the journal `from`.
pub(super) fn half_copied_error(journal: String, from: &str) -> JournalError {
    let problem = format!(
        "the copy of the journal {from} into it has not ended, so jobs are missing. Run the same \
         workflow-manager journal copy again, which begins anew"
    );
    JournalError::Failed { file: journal, problem, remedy: Remedy::Exit }
}

impl BetterStandby {
    /// Creates the error of a process that leaves the name to this one.
    pub(super) fn to_error(&self, options: &PostgresOptions) -> JournalError {
        let address = self.api_address.as_deref().unwrap_or("no API address");
        let problem = format!(
            "nobody is active as {}. This one does not reach the broker, and leaves the name to \
             manager {} at {address}, which does",
            options.name, self.id
        );
        let file = options.server.to_string();
        JournalError::Failed { file, problem, remedy: Remedy::WaitForServer }
    }
}

impl ActiveManager {
    /// Returns whether this is the same process, and it has not beaten since.
    pub(super) fn is_as_before(&self, before: &ActiveManager) -> bool {
        (self.id, self.beat) == (before.id, before.beat)
    }

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

/// Creates the error of a database that has no room for another name.
fn too_many_names(journal: &str, name: &str) -> JournalError {
    let problem = format!(
        "it has {NAMES_MAX} names of managers already, which is the most: give {name:?} a database \
         of its own, or use one of the names (setting cluster.name)"
    );
    JournalError::Failed { file: journal.to_owned(), problem, remedy: Remedy::Exit }
}

/// Returns all names, sorted.
async fn load_names(connection: &Connection) -> Result<Vec<String>, Error> {
    let rows = connection.query("SELECT name FROM names ORDER BY name", &params![]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Returns what a name has; nothing if it is new.
async fn load_name(connection: &Connection, name: &str) -> Result<NameState, Error> {
    let sql = "SELECT n.owner, coalesce(m.beat, 0), n.api_address, m.state, m.broker,
                      coalesce((extract(epoch FROM n.since) * 1000000)::bigint, 0) * 1000,
                      n.copied_from
               FROM names n LEFT JOIN managers m ON m.id = n.owner WHERE n.name = $1";
    let rows = connection.query(sql, &params![name.to_owned()]).await?;
    let Some(row) = rows.first() else { return Ok(NameState::default()) };
    let owner = row.get::<_, Option<Uuid>>(0).map(|id| ActiveManager {
        id,
        beat: row.get(1),
        api_address: row.get(2),
        announced: Announcement {
            is_leaving: row.get::<_, Option<&str>>(3) == Some(LEAVING),
            is_broker_lost: row.get::<_, Option<&str>>(4) == Some(BROKER_LOST),
        },
        since: Timestamp(row.get(5)),
    });
    Ok(NameState { owner, copied_from: row.get(6) })
}

/// Registers this process, and its name if it is new. Returns the ordinal of the name; `None` if
/// there are too many names.
async fn register(
    connection: &Connection,
    options: &PostgresOptions,
    manager: Uuid,
) -> Result<Option<NameOrdinal>, Error> {
    let mut ordinal = None;
    // Two new names may choose the same ordinal at the same time.
    for _ in 0..ORDINAL_ATTEMPTS_MAX {
        let sql = "INSERT INTO names(name, ordinal)
                   SELECT $1, next FROM (
                     SELECT coalesce(max(ordinal) + 1, 0)::smallint AS next FROM names) n
                   WHERE next < $2 ON CONFLICT DO NOTHING";
        connection.query(sql, &params![options.name.clone(), NAMES_MAX]).await?;
        let sql = "SELECT ordinal FROM names WHERE name = $1";
        let rows = connection.query(sql, &params![options.name.clone()]).await?;
        ordinal = rows.first().map(|row| NameOrdinal(row.get(0)));
        if ordinal.is_some() {
            break;
        }
    }
    if ordinal.is_none() {
        return Ok(None);
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
                   AND m.state NOT IN ('active', 'leaving')
                   AND NOT EXISTS (SELECT 1 FROM names n WHERE n.owner = m.id) RETURNING m.id)
               DELETE FROM fences f USING ended WHERE f.manager = ended.id";
    connection.query(sql, &params![manager]).await?;
    Ok(ordinal)
}
