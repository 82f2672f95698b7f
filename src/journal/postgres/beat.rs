//! The beat of the active process: every two seconds it changes its row in `managers`, and reads
//! what it must know of its name. While it hangs, it changes no counter, and still reads.

use super::claim::{BROKER_LOST, Candidate, LEAVING};
use super::connection::{Connection, OpenError, params};
use super::options::PostgresOptions;
use crate::last_instant::LastInstant;
use crate::ownership::{BeatAnswer, Ownership};
use base::clock;
use engine::Timestamp;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;
use uuid::Uuid;

/// How often the active process beats.
const BEAT_INTERVAL: Duration = Duration::from_secs(2);

/// How long a beat may take before its connection is given up.
const BEAT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a beat may take to compare the clock with the server's.
const CLOCK_READING_MAX: Duration = Duration::from_millis(500);

/// Changes the row of the active process, and reads what it must know. A standby looks every
/// second, so one that was not seen for five is gone.
const BEAT: &str = "
WITH beat AS (
  UPDATE managers SET beat = beat + $4, seen = now(), newest = greatest(newest, $3), state = $5,
                      broker = $6
  WHERE id = $1 AND state IN ('active', 'leaving') RETURNING id),
standbys AS (
  SELECT broker FROM managers
  WHERE name = $2 AND id <> $1 AND state = 'standby' AND seen > now() - interval '5 s')
SELECT EXISTS (SELECT 1 FROM names WHERE name = $2 AND owner = $1)
         AND EXISTS (SELECT 1 FROM beat),
       (SELECT count(*) FROM standbys),
       (SELECT count(*) FROM standbys WHERE broker = 'reached'),
       current_setting('synchronous_standby_names') <> '',
       (extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// The beat of the active process.
pub(super) struct Beat {
    state: Arc<BeatState>,
}

struct BeatState {
    ownership: Arc<Ownership>,
    last_beat: Arc<LastInstant>,
    /// When the newest record was decided, in nanoseconds since 1970; `i64::MIN`: there is none.
    newest: AtomicI64,
    is_stopped: AtomicBool,
}

impl Beat {
    /// Begins to beat in the background. The counter stands still while the process gives no sign
    /// of life.
    pub(super) fn start(candidate: Candidate) -> Beat {
        let Candidate { io, options, manager, last_beat, connection, .. } = candidate;
        // The claim was the first beat.
        last_beat.touch();
        let state = Arc::new(BeatState {
            ownership: Arc::new(Ownership::new()),
            last_beat,
            newest: AtomicI64::new(i64::MIN),
            is_stopped: AtomicBool::new(false),
        });
        let beat = Beat { state: state.clone() };
        io.spawn(run_beat(options, manager, connection, state));
        beat
    }

    /// Returns what is known of the ownership of this process.
    pub(super) fn ownership(&self) -> &Arc<Ownership> {
        &self.state.ownership
    }

    /// Stores when the newest record was decided, for the next beat.
    pub(super) fn set_newest(&self, newest: Timestamp) {
        self.state.newest.fetch_max(newest.0, Ordering::Relaxed);
    }

    /// Stops to beat: the name is about to be given back.
    pub(super) fn stop(&self) {
        self.state.is_stopped.store(true, Ordering::Relaxed);
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn run_beat(
    options: Arc<PostgresOptions>,
    manager: Uuid,
    mut connection: Option<Connection>,
    state: Arc<BeatState>,
) {
    let mut has_beaten = true;
    while !state.is_stopped.load(Ordering::Relaxed) {
        let is_alive = state.ownership.is_alive();
        if !is_alive && std::mem::replace(&mut has_beaten, false) {
            tracing::error!(
                name = options.name,
                "a thread of this manager hangs: its beat stands still, and a standby takes over"
            );
        }
        has_beaten |= is_alive;
        let sent = clock::instant();
        let beat = beat_once(&options, manager, &mut connection, &state, is_alive);
        match tokio::time::timeout(BEAT_TIMEOUT, beat).await {
            // A beat that was under way when the name was given back tells nothing.
            Ok(Ok(_)) if state.is_stopped.load(Ordering::Relaxed) => return,
            Ok(Ok(answer)) => {
                if is_alive && answer.is_owner {
                    state.last_beat.touch();
                }
                state.ownership.publish_beat(sent, is_alive, &answer);
            }
            Ok(Err(error)) => {
                let error = error.to_journal_error(&options.server.to_string());
                tracing::debug!(%error, "the beat of this manager fails");
                connection = None;
            }
            Err(_) => connection = None,
        }
        tokio::select! {
            () = tokio::time::sleep(BEAT_INTERVAL) => {}
            () = state.ownership.wait_for_announcement() => {}
        }
    }
}

/// Beats once. Without `is_alive` the counter stands still.
async fn beat_once(
    options: &Arc<PostgresOptions>,
    manager: Uuid,
    connection: &mut Option<Connection>,
    state: &BeatState,
    is_alive: bool,
) -> Result<BeatAnswer, OpenError> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(Connection::open(options).await?),
    };
    let newest = Some(state.newest.load(Ordering::Relaxed)).filter(|newest| *newest > i64::MIN);
    let ownership = &state.ownership;
    let params = params![
        manager,
        options.name.clone(),
        newest,
        i64::from(is_alive),
        if ownership.is_leaving() { LEAVING } else { "active" },
        ownership.is_broker_lost().then_some(BROKER_LOST),
    ];
    let sent = clock::instant();
    let rows = connection.query(BEAT, &params).await?;
    // A slow answer does not tell the time.
    let is_prompt = sent.elapsed() < CLOCK_READING_MAX;
    let ahead_ms = |server_ms: i64| clock::now().0 / 1_000_000 - server_ms;
    let count = |row: &tokio_postgres::Row, column| {
        u32::try_from(row.get::<_, i64>(column)).unwrap_or(u32::MAX)
    };
    Ok(match rows.first() {
        None => BeatAnswer::default(),
        Some(row) => BeatAnswer {
            is_owner: row.get(0),
            standbys: count(row, 1),
            standbys_at_broker: count(row, 2),
            has_synchronous_standby: row.get(3),
            clock_ahead_ms: is_prompt.then(|| ahead_ms(row.get(4))),
        },
    })
}
