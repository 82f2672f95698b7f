//! Journals of earlier versions: their entries are written anew when they are opened, and their
//! jobs go on.

use rusqlite::{Connection, params};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use workflow_manager::engine::{
    Caller, CallerEntry, Context, Definition, Dependency, Effect, Entry, FanOutEntry, FanOutKeys,
    Graph, Input, Instruction, Job, JobEntry, JobId, JobState, Limits, Message, Millis, Order,
    Origin, Reply, Retry, Sender, Step, StepEntry, StepIndex, Timestamp, UnreadReplies,
};
use workflow_manager::journal::{
    JobRecords, Journal, JournalError, JournalOptions, NewJob, Reader, Record, SqliteJournal,
};

/// What was decided, in order; confirms stand in the row behind them.
const DECISIONS: &str = "SELECT seq, job, first, at, body FROM entries UNION ALL
    SELECT seq, job, told.value ->> 0, told.value ->> 1, told.value -> 2 \
      FROM entries, json_each(confirms) AS told
    ORDER BY seq, first";

/// Writes the entries of a journal as versions before schema 6 did.
pub(crate) fn downgrade(file: &Path) {
    let connection = Connection::open(file).expect("opens");
    let read = |row: &rusqlite::Row<'_>| -> rusqlite::Result<(i64, i64, i64, String)> {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
    };
    let rows: Vec<(i64, i64, i64, String)> = connection
        .prepare(&format!("SELECT row_number() OVER (), job, at, body FROM ({DECISIONS})"))
        .and_then(|mut statement| statement.query_map([], read)?.collect())
        .expect("reads");
    connection
        .execute_batch(
            "DROP TABLE bus_positions; DROP INDEX jobs_top_by_state; DROP TABLE entries; \
               DROP TABLE places; DROP TABLE derived; DROP TABLE confirmed;
             CREATE TABLE entries(
               seq INTEGER PRIMARY KEY,
               job INTEGER NOT NULL,
               body TEXT NOT NULL,
               checksum INTEGER NOT NULL
             ) STRICT;
             CREATE INDEX entries_by_job ON entries(job);
             PRAGMA user_version = 5;",
        )
        .expect("as it was");
    for (seq, job, at, body) in rows {
        let entries: Vec<Entry> = serde_json::from_str(&body).expect("entries");
        let former: Vec<String> =
            entries.iter().map(|entry| written_before(entry, Timestamp(at))).collect();
        let body = format!("[{}]", former.join(","));
        let sum = crc32fast::hash(&[&job.to_le_bytes()[..], body.as_bytes()].concat());
        connection
            .execute("INSERT INTO entries VALUES (?1, ?2, ?3, ?4)", params![seq, job, body, sum])
            .expect("inserts");
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("serialises")
}

/// An object of the fields that are there.
fn object(kind: &str, fields: &[(&str, String)]) -> String {
    let fields = fields.iter().filter(|(_, value)| !matches!(value.as_str(), "null" | "[]"));
    let fields: Vec<String> = fields.map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{\"{kind}\":{{{}}}}}", fields.join(","))
}

fn written_before(entry: &Entry, at: Timestamp) -> String {
    let at = ("at", json(&at));
    match entry {
        Entry::Job(entry) => job_before(entry, at),
        Entry::Step(step, entry) => step_before(("step", json(step)), entry, at),
        Entry::FanOut(step, entry) => fan_out_before(("step", json(step)), entry, at),
        Entry::Caller(CallerEntry::Joined(caller)) => {
            object("caller_joined", &[("caller", json(caller))])
        }
        Entry::Caller(CallerEntry::Answered(caller)) => {
            object("caller_answered", &[("caller", json(caller))])
        }
    }
}

type Field = (&'static str, String);

fn job_before(entry: &JobEntry, at: Field) -> String {
    match entry {
        JobEntry::Created { message, deadline, trace: _, trace_state: _ } => {
            object("job_created", &[("message", json(message)), ("deadline", json(deadline))])
        }
        JobEntry::Completed => object("job_completed", &[at]),
        JobEntry::Failed { reason, expired, step } => {
            let rest = [("reason", json(reason)), ("expired", json(expired)), ("step", json(step))];
            object("job_failed", &[&[at], &rest[..]].concat())
        }
        JobEntry::Paused => object("job_paused", &[at]),
        JobEntry::Resumed => object("job_resumed", &[at]),
        JobEntry::Retried { round, deadline } => {
            object("job_retried", &[at, ("round", json(round)), ("deadline", json(deadline))])
        }
        JobEntry::Rerun { step, deadline } => {
            object("job_rerun", &[at, ("step", json(step)), ("deadline", json(deadline))])
        }
        JobEntry::Cancelled { reason, .. } => {
            object("job_cancelled", &[at, ("reason", json(reason))])
        }
        JobEntry::ToldAgain | JobEntry::Asked { .. } => panic!("no version before wrote {entry:?}"),
    }
}

fn step_before(step: Field, entry: &StepEntry, at: Field) -> String {
    match entry {
        StepEntry::Started { attempt, deadline } => {
            let rest = [("attempt", json(attempt)), ("deadline", json(deadline))];
            object("step_started", &[&[step, at], &rest[..]].concat())
        }
        StepEntry::Confirmed => object("step_confirmed", &[step]),
        StepEntry::Leased(_) | StepEntry::Begun => panic!("no version before wrote {entry:?}"),
        // The first version did not tell when.
        StepEntry::Unconfirmed => object("step_unconfirmed", &[step]),
        StepEntry::Completed(output) => {
            object("step_completed", &[step, at, ("output", json(output))])
        }
        StepEntry::Progressed { progress, deadline } => {
            let rest = [("progress", json(progress)), ("deadline", json(deadline))];
            object("step_progressed", &[&[step, at], &rest[..]].concat())
        }
        StepEntry::AttemptFailed { attempt, failure, retry_at } => {
            let rest = [
                ("attempt", json(attempt)),
                ("failure", json(failure)),
                ("retry_at", json(retry_at)),
            ];
            object("attempt_failed", &[&[step, at], &rest[..]].concat())
        }
        StepEntry::Skipped => object("step_skipped", &[step, at]),
        StepEntry::Cancelled => object("step_cancelled", &[step, at]),
        StepEntry::Failed(failure) => {
            object("step_failed", &[step, at, ("failure", json(failure))])
        }
    }
}

fn fan_out_before(step: Field, entry: &FanOutEntry, at: Field) -> String {
    match entry {
        FanOutEntry::Started { items, warning, deadline } => {
            let rest =
                [("items", json(items)), ("warning", json(warning)), ("deadline", json(deadline))];
            object("fan_out_started", &[&[step, at], &rest[..]].concat())
        }
        FanOutEntry::Restarted { attempt, deadline } => {
            let rest = [("attempt", json(attempt)), ("deadline", json(deadline))];
            object("fan_out_restarted", &[&[step, at], &rest[..]].concat())
        }
        FanOutEntry::ChildrenStarted { from, count, own_ids } => {
            let rest = [("from", json(from)), ("count", json(count)), ("own_ids", json(own_ids))];
            object("children_started", &[&[step], &rest[..]].concat())
        }
        FanOutEntry::ChildCompleted { index, item, others } => {
            let rest = [("index", json(index)), ("item", json(item)), ("others", json(others))];
            object("child_completed", &[&[step], &rest[..]].concat())
        }
        FanOutEntry::ChildFailed { index } => {
            object("child_failed", &[step, ("index", json(index))])
        }
        FanOutEntry::Completed => object("fan_out_completed", &[step, at]),
        FanOutEntry::ChildStarted { .. } => panic!("no version before wrote {entry:?}"),
    }
}

const LIMITS: Limits = Limits {
    step_message_bytes_max: 1 << 20,
    reply_bytes_max: 1 << 20,
    depth_max: 32,
    window: 2,
    window_bytes: 1 << 26,
};

fn context(now: i64) -> Context<'static> {
    Context { now: Timestamp(now), limits: &LIMITS }
}

fn options(file: &Path) -> JournalOptions {
    JournalOptions {
        file: file.to_owned(),
        cache_bytes: 1 << 20,
        verify_bytes_max: 1 << 30,
        pages_max: 0,
    }
}

/// A step that is tried twice, then one with child jobs, then one for a person.
fn definition() -> Arc<Definition> {
    let after = |on: u16| vec![Dependency::Step(StepIndex(on))];
    let retry = Some(Retry { attempts: 2, ..Retry::default() });
    let steps = vec![
        Step { retry, timeout: Some(Millis(60_000)), ..Step::with_name("first") },
        Step { depends: after(0), task: Some(1), ..Step::with_name("each") },
        Step { depends: after(1), external: true, ..Step::with_name("sign") },
    ];
    let task = Graph::new(
        "t".to_owned(),
        Some(FanOutKeys::new("items", "item")),
        vec![Step::with_name("work")],
    );
    Arc::new(Definition::new("w", vec![Graph::new("w".to_owned(), None, steps), task]))
}

/// Jobs, and what was committed of them.
struct Live {
    store: SqliteJournal,
    jobs: Vec<Job>,
    now: i64,
}

impl Live {
    fn create(&mut self, origin: Origin, message: Message, parent: Option<i64>) -> usize {
        self.now += 1;
        let number = i64::try_from(self.jobs.len()).expect("few") + 1;
        let caller =
            Caller { reply_to: "me".into(), bus: None, correlation_id: None, attempt: Some(2) };
        let caller = parent.is_none().then_some(caller);
        let (job, decision) =
            Job::create_for_caller(origin.clone(), message, caller, &context(self.now));
        let root = if parent.is_some() { 1 } else { number };
        let created = NewJob { origin: Arc::new(origin), root, parent };
        self.store
            .append(&[&Record::from_decision(number, Some(created), decision)])
            .expect("commits");
        self.jobs.push(job);
        self.jobs.len() - 1
    }

    fn take(&mut self, at: usize, input: Input) -> Vec<Effect> {
        self.now += 1;
        let mut decision = self.jobs[at].handle_input(input, &context(self.now)).expect("taken");
        let effects = std::mem::take(&mut decision.effects);
        let number = i64::try_from(at).expect("few") + 1;
        self.store.append(&[&Record::from_decision(number, None, decision)]).expect("commits");
        effects
    }

    fn reply(&mut self, at: usize, step: &str, reply: Reply) -> Vec<Effect> {
        self.take(
            at,
            Input::Reply { step: step.to_owned(), attempt: None, reply, from: Sender::Unknown },
        )
    }
}

/// A journal with a job that was retried and has child jobs under way, and one that failed.
fn written(file: &Path) -> Live {
    let mut live = Live {
        store: SqliteJournal::open(&options(file)).expect("opens"),
        jobs: Vec::new(),
        now: 1_000,
    };
    let definition = definition();
    let origin = |number: u128| {
        let id = JobId(uuid::Uuid::from_u128(number));
        Origin::for_root_job(id, definition.clone(), Timestamp(999))
    };
    let (step, message) = (StepIndex(0), Message::parse(br#"{"n":1e400}"#).expect("a message"));
    let job = live.create(origin(1), message.clone(), None);
    live.take(job, Input::Confirmed { step, attempt: 1, dispatch: None });
    live.take(job, Input::QueueMissing(vec![StepIndex(0)]));
    live.reply(
        job,
        "first",
        Reply::Progress(br#"{"status":"HALF","progress":0.5}"#.as_slice().into()),
    );
    live.reply(job, "first", Reply::Error(br#"{"error":"no"}"#.as_slice().into()));
    let due = live.jobs[job].next_timer().expect("the next attempt");
    live.take(job, Input::Timer { due, unread: UnreadReplies::new() });
    let id = uuid::Uuid::from_u128(77);
    let items = format!(r#"{{"items":["a",{{"id":"{id}"}},3],"k":0.10}}"#);
    let started = live.reply(job, "first", Reply::Result(items.into()));
    let mut children = Vec::new();
    for effect in started {
        if let Effect::StartChild { mut origin, message } = effect {
            origin.created = Timestamp(live.now);
            children.push(live.create(*origin, message, Some(1)));
        }
    }
    let ended = live.reply(
        children[0],
        "work",
        Reply::Result(br#"{"item":1,"x":[1.0]}"#.as_slice().into()),
    );
    for effect in ended {
        if let Effect::NotifyParent(place, ended) = effect {
            live.take(job, Input::ChildEnded { step: place.step, index: place.index, ended });
        }
    }
    // It did not write who asked.
    for what in [Instruction::Pause, Instruction::Resume] {
        live.take(job, Input::Order(Order { round: 0, instruction: what }));
    }
    let other = live.create(origin(9), message, None);
    for _ in 0..2 {
        let timer = live.jobs[other]
            .next_timer()
            .filter(|_| live.jobs[other].step(step).retry_at().is_some());
        if let Some(due) = timer {
            live.take(other, Input::Timer { due, unread: UnreadReplies::new() });
        }
        live.reply(other, "first", Reply::Result(b"[1]".as_slice().into()));
    }
    assert_eq!(live.jobs[other].state(), JobState::Failed);
    live
}

#[test]
fn a_journal_of_an_earlier_version_is_written_anew_and_its_jobs_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let Live { store, jobs, .. } = written(&file);
    drop(store);
    let rows = |file: &Path| -> Vec<(i64, i64, i64, String)> {
        let connection = Connection::open(file).expect("opens");
        let sql = format!("SELECT job, first, length(body), body FROM ({DECISIONS})");
        let mut statement = connection.prepare(&sql).expect("prepares");
        let rows =
            statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)));
        rows.expect("reads").collect::<Result<_, _>>().expect("rows")
    };
    let before = rows(&file);
    downgrade(&file);
    let store = SqliteJournal::open(&options(&file)).expect("opens the former version");
    assert_eq!(rows(&file), before, "the same rows in the same places");
    let recovered = store.recover().expect("recovers");
    assert_eq!(recovered.iter().map(|job| job.number).collect::<Vec<_>>(), [1, 3, 4]);
    for recovered in &recovered {
        let live = &jobs[usize::try_from(recovered.number).expect("positive") - 1];
        assert!(recovered.job == *live, "{:#?}\n{live:#?}", recovered.job);
    }
    drop(store);
    let reader = Reader::new(&file);
    for job in &jobs {
        let found = reader.load_job(job.id()).expect("reads").expect("is kept");
        assert!(found.job == *job, "{:#?}\n{job:#?}", found.job);
    }
    assert!(SqliteJournal::open(&options(&file)).is_ok(), "opens once more, as it is now");
}

#[test]
fn a_row_of_an_earlier_version_that_is_no_entry_is_refused_and_the_file_stays_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    drop(written(&file));
    downgrade(&file);
    let connection = Connection::open(&file).expect("opens");
    let body = r#"[{"step_vanished":{"step":0}}]"#;
    let sum = crc32fast::hash(&[&1i64.to_le_bytes()[..], body.as_bytes()].concat());
    connection
        .execute("UPDATE entries SET body = ?1, checksum = ?2 WHERE seq = 2", params![body, sum])
        .expect("updates");
    drop(connection);
    let before = std::fs::read(&file).expect("readable");
    let error = SqliteJournal::open(&options(&file)).err().expect("refused");
    let JournalError::Damaged { table, row, what, .. } = &error else { panic!("{error}") };
    assert_eq!((*table, *row), ("entries", 2));
    assert!(what.contains("step_vanished"), "{what}");
    let connection = Connection::open(&file).expect("opens");
    let version: i64 =
        connection.query_row("PRAGMA user_version", [], |row| row.get(0)).expect("reads");
    assert_eq!(version, 5, "nothing was changed");
    drop(connection);
    assert!(std::fs::read(&file).expect("readable") == before, "not a byte");
}
