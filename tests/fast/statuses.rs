//! The tables of statuses: what any SQLite client reads in them while the journal is open.

mod columns;
mod damage;
mod retention;

use rusqlite::{Connection, OpenFlags};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use workflow_manager::engine::{
    Context, Decision, Definition, Dependency, FanOutKeys, Graph, Input, Job, JobId, JobState,
    Limits, Message, Millis, Operation, Origin, Reply, Retry, Sender, Step, StepIndex, Timestamp,
    UnreadReplies,
};
use workflow_manager::journal::DeletedJob;
use workflow_manager::journal::{JobFilter, Journal, StatusRecords};
use workflow_manager::journal::{JobNumber, JournalOptions, NewJob, Reader, Record, SqliteJournal};
use workflow_manager::journal::{NEWEST_CURSOR, StatusFilter};

const LIMITS: Limits = Limits {
    step_message_bytes_max: 1 << 20,
    reply_bytes_max: 1 << 20,
    depth_max: 32,
    window: 100,
    window_bytes: 1 << 26,
};

/// A journal in a folder of its own.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { folder: tempfile::tempdir().expect("a folder") }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("j.db")
    }

    fn options(&self) -> JournalOptions {
        JournalOptions {
            file: self.file(),
            cache_bytes: 1 << 20,
            verify_bytes_max: 1 << 30,
            pages_max: 0,
        }
    }

    /// As at a start with these definitions.
    fn open(&self, definitions: &[&Definition]) -> SqliteJournal {
        let mut store = SqliteJournal::open(&self.options()).expect("opens");
        store.create_status_tables(definitions).expect("tables of statuses");
        store
    }

    fn reader(&self) -> Reader {
        Reader::new(&self.file())
    }

    /// Rows as any client sees them: the columns that `select *` gives.
    fn rows(&self, sql: &str) -> Vec<Vec<String>> {
        rows(&self.file(), sql)
    }

    fn change(&self, sql: &str) {
        Connection::open(self.file()).expect("opens").execute_batch(sql).expect(sql);
    }
}

fn rows(file: &Path, sql: &str) -> Vec<Vec<String>> {
    let client =
        Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).expect("opens");
    let mut statement = client.prepare(sql).expect("a query");
    let width = statement.column_count();
    let rows = statement.query_map([], |row| {
        (0..width).map(|at| row.get::<_, rusqlite::types::Value>(at).map(shown)).collect()
    });
    rows.expect("rows").collect::<rusqlite::Result<_>>().expect("rows")
}

fn shown(value: rusqlite::types::Value) -> String {
    match value {
        rusqlite::types::Value::Text(text) => text,
        rusqlite::types::Value::Integer(number) => number.to_string(),
        other @ (rusqlite::types::Value::Null
        | rusqlite::types::Value::Real(_)
        | rusqlite::types::Value::Blob(_)) => format!("{other:?}"),
    }
}

/// Steps in a row, each after the one before.
fn chain(name: &str, steps: &[&str]) -> Definition {
    let after = |at: usize| {
        if at == 0 {
            Vec::new()
        } else {
            vec![Dependency::Step(StepIndex(u16::try_from(at - 1).expect("few")))]
        }
    };
    let steps = steps
        .iter()
        .enumerate()
        .map(|(at, step)| Step { depends: after(at), ..Step::with_name(step) })
        .collect();
    Definition::new(name, vec![Graph::new(name.to_owned(), None, steps)])
}

/// A job with the time that it lives in, and what it has not journaled yet.
struct Live {
    number: JobNumber,
    job: Job,
    now: i64,
    records: Vec<Record>,
}

impl Live {
    fn create(number: JobNumber, definition: &Definition) -> Live {
        let id = JobId(uuid::Uuid::from_u128(0xa_0000_0000 + number as u128));
        let now = number * 60_000_000_000;
        let definition = Arc::new(definition.clone());
        let origin = Origin::for_root_job(id, definition, Timestamp(now));
        let context = Context { now: Timestamp(now), limits: &LIMITS, pauses: None, spare: None };
        let (job, decision) = Job::create(origin.clone(), Message::default(), &context);
        let mut live = Live { number, job, now, records: Vec::new() };
        live.keep(decision, Some(NewJob { origin: Arc::new(origin), root: number, parent: None }));
        live
    }

    fn take(&mut self, input: Input) -> &mut Live {
        self.now += 1_500_000_000;
        let context =
            Context { now: Timestamp(self.now), limits: &LIMITS, pauses: None, spare: None };
        let decision = self.job.handle_input(input, &context).expect("taken");
        self.keep(decision, None);
        self
    }

    fn reply(&mut self, step: &str, body: &str) -> &mut Live {
        self.take(Input::Reply {
            step: step.to_owned(),
            attempt: None,
            reply: Reply::Result(body.to_owned().into()),
            from: Sender::Unknown,
        })
    }

    fn fail(&mut self, step: &str) -> &mut Live {
        self.take(Input::Reply {
            step: step.to_owned(),
            attempt: None,
            reply: Reply::Error(r#"{"error":"no"}"#.into()),
            from: Sender::Unknown,
        })
    }

    fn keep(&mut self, decision: Decision, created: Option<NewJob>) {
        self.records.push(Record::from_decision(self.number, created, decision));
    }

    fn commit(&mut self, store: &mut SqliteJournal) {
        let records = std::mem::take(&mut self.records);
        store.append(&records.iter().collect::<Vec<_>>()).expect("commits");
        store.project().expect("derives");
    }

    /// The row that its table must have.
    fn row(&self) -> Vec<String> {
        let mut row = vec![self.job.id().to_string(), self.job.state().as_str().to_owned()];
        row.extend(self.job.graph().indices().map(|step| self.job.status(step).to_owned()));
        row
    }
}

/// The table made anew from the entries is the one that was written with them.
#[track_caller]
fn assert_as_rebuilt(place: &Place, definition: &Definition) {
    let sql = format!("SELECT _rowid_, * FROM \"status_{}\" ORDER BY 1", definition.full_name());
    let before = place.rows(&sql);
    assert!(!before.is_empty());
    place.change(&format!("DROP TABLE \"status_{}\"", definition.full_name()));
    drop(place.open(&[definition]));
    assert_eq!(place.rows(&sql), before, "the table made anew is another");
}

#[test]
fn every_entry_leaves_the_row_as_the_job_is() {
    let mut definition = chain("w", &["a", "b", "c"]);
    let step = &mut Arc::make_mut(&mut definition.graphs)[0].steps[1];
    step.retry = Some(Retry { attempts: 2, ..Retry::default() });
    step.status.key = Some("word".into());
    step.status.words = ["OPEN", "GOOD", "BAD"].map(Arc::from).to_vec();
    let place = Place::new();
    let mut store = place.open(&[&definition]);
    let mut live = Live::create(1, &definition);
    type Act = for<'l> fn(&'l mut Live) -> &'l mut Live;
    let acts: [(&str, Act); 12] = [
        ("created", |live| live),
        ("completed, the next one runs", |live| live.reply("a", "{}")),
        ("confirmed", |live| {
            live.take(Input::Confirmed { step: StepIndex(1), attempt: 1, dispatch: None })
        }),
        ("paused", |live| live.take(Input::from_request(Operation::Pause))),
        ("resumed", |live| live.take(Input::from_request(Operation::Resume))),
        ("progress", |live| {
            let reply = Reply::Progress(r#"{"status":"GOOD","progress":0.5}"#.into());
            live.take(Input::Reply {
                step: "b".to_owned(),
                attempt: None,
                reply,
                from: Sender::Unknown,
            })
        }),
        ("an attempt failed", |live| live.fail("b")),
        ("the next attempt", |live| {
            live.now += 600_000_000_000;
            let due = Timestamp(live.now);
            live.take(Input::Timer { due, unread: UnreadReplies::new() })
        }),
        ("failed", |live| live.fail("b")),
        ("retried", |live| live.take(Input::from_request(Operation::Retry))),
        ("a word", |live| live.reply("b", r#"{"word":"BAD"}"#)),
        ("completed", |live| live.reply("c", "{}")),
    ];
    for (what, act) in acts {
        act(&mut live);
        live.commit(&mut store);
        assert_eq!(place.rows("SELECT job, state, a, b, c FROM status_w"), [live.row()], "{what}");
    }
    assert_eq!(
        place.rows("SELECT state, a, b, c FROM status_w"),
        [["completed", "COMPLETED", "BAD", "COMPLETED"]]
    );
    let mut cancelled = Live::create(2, &definition);
    cancelled
        .reply("a", "{}")
        .take(Input::from_request(Operation::Cancel { reason: "no more".into() }));
    cancelled.commit(&mut store);
    let row = place.rows("SELECT state, created, updated, a, b, c FROM status_w WHERE _rowid_ = 2");
    assert_eq!(
        row,
        [[
            "cancelled",
            "1970-01-01T00:02:00.000Z",
            "1970-01-01T00:02:03.000Z",
            "COMPLETED",
            "CANCELLED",
            ""
        ]]
    );
    drop(store);
    assert_as_rebuilt(&place, &definition);
}

#[test]
fn a_trigger_that_somebody_adds_meanwhile_does_not_run() {
    let place = Place::new();
    let definition = chain("w", &["a", "b"]);
    let mut store = place.open(&[&definition]);
    let (mut first, mut second) = (Live::create(1, &definition), Live::create(2, &definition));
    first.commit(&mut store);
    place.change(
        "CREATE TABLE written(n); CREATE TRIGGER i AFTER INSERT ON status_w BEGIN \
           INSERT INTO written VALUES (new._rowid_); END;
         CREATE TRIGGER u AFTER UPDATE ON status_w BEGIN INSERT INTO written VALUES (new._rowid_); \
           END",
    );
    first.reply("a", "{}").reply("b", "{}");
    second.reply("a", "{}");
    let (one, other) = (first.records.remove(0), first.records.remove(0));
    let records: Vec<Record> =
        [one].into_iter().chain(second.records.drain(..)).chain([other]).collect();
    store.append(&records.iter().collect::<Vec<_>>()).expect("commits");
    store.project().expect("derives");
    assert!(place.rows("SELECT n FROM written").is_empty());
    assert_eq!(
        place.rows("SELECT job, state, a, b FROM status_w ORDER BY _rowid_"),
        [first.row(), second.row()]
    );
}

#[test]
fn a_batch_without_room_leaves_no_row() {
    let place = Place::new();
    let definition = chain("w", &["a"]);
    drop(place.open(&[&definition]));
    let mut store =
        SqliteJournal::open(&JournalOptions { pages_max: 60, ..place.options() }).expect("opens");
    store.create_status_tables(&[&definition]).expect("tables of statuses");
    let records: Vec<Record> =
        (1..2_000).flat_map(|number| Live::create(number, &definition).records).collect();
    store.append(&records.iter().collect::<Vec<_>>()).expect_err("there is no room");
    assert!(place.rows("SELECT * FROM status_w").is_empty());
    store.append(&records[..3].iter().collect::<Vec<_>>()).expect("a small batch has room");
    store.project().expect("and what follows from it");
    assert_eq!(place.rows("SELECT a FROM status_w"), [["PENDING"], ["PENDING"], ["PENDING"]]);
}

#[test]
fn rows_are_read_in_pages_by_what_is_asked() {
    let place = Place::new();
    let definition = chain("w", &["a", "b"]);
    let mut store = place.open(&[&definition]);
    for number in 1..=10 {
        let mut live = Live::create(number, &definition);
        if number % 2 == 0 {
            live.reply("a", "{}");
        }
        if number % 5 == 0 {
            live.fail(if number % 2 == 0 { "b" } else { "a" });
        }
        live.commit(&mut store);
    }
    let reader = place.reader();
    let columns = reader.load_status_columns("w").expect("reads").expect("is there");
    let asked = |filter: StatusFilter, before, limit| -> Vec<JobNumber> {
        reader
            .load_statuses("w", &columns, &filter, before, limit)
            .expect("reads")
            .into_iter()
            .map(|row| row.number)
            .collect()
    };
    let steps = |steps: &[(&str, &str)]| StatusFilter {
        steps: steps
            .iter()
            .map(|(step, status)| ((*step).to_owned(), (*status).to_owned()))
            .collect(),
        ..StatusFilter::default()
    };
    assert_eq!(asked(StatusFilter::default(), NEWEST_CURSOR, 3), [10, 9, 8]);
    assert_eq!(asked(StatusFilter::default(), 8, 3), [7, 6, 5]);
    assert_eq!(asked(steps(&[("a", "COMPLETED")]), 9, 10), [8, 6, 4, 2]);
    assert_eq!(asked(steps(&[("a", "COMPLETED"), ("b", "FAILED")]), NEWEST_CURSOR, 10), [10]);
    assert_eq!(asked(steps(&[("a", "COMPLETED"), ("a", "FAILED")]), NEWEST_CURSOR, 10), [0; 0]);
    assert_eq!(asked(steps(&[("b", "")]), NEWEST_CURSOR, 2), [9, 7]);
    assert_eq!(
        asked(
            StatusFilter { state: Some(JobState::Failed), ..StatusFilter::default() },
            NEWEST_CURSOR,
            10
        ),
        [10, 5]
    );
    let job = Some(JobId(uuid::Uuid::from_u128(0xa_0000_0000 + 4)));
    assert_eq!(asked(StatusFilter { job, ..StatusFilter::default() }, NEWEST_CURSOR, 10), [4]);
    assert_eq!(asked(StatusFilter { job, ..steps(&[("a", "FAILED")]) }, NEWEST_CURSOR, 10), [0; 0]);
    assert!(reader.load_status_columns("other").expect("reads").is_none());
}

/// A step with a task has no reply that could fail for its word. An empty list completes it at
/// once, with its input as its output.
#[test]
fn a_word_that_a_task_cannot_have_fails_nothing_and_is_not_told() {
    let mut step = Step { task: Some(1), ..Step::with_name("each") };
    step.status.key = Some("word".into());
    step.status.words = ["OPEN", "GOOD"].map(Arc::from).to_vec();
    let keys = FanOutKeys::new("items", "item");
    let task = Graph::new("piece".to_owned(), Some(keys), vec![Step::with_name("work")]);
    let graph = Graph::new("w".to_owned(), None, vec![step]);
    let definition = Arc::new(Definition::new("w", vec![graph, task]));
    for (word, status) in [("GOOD", "GOOD"), ("BAD", "COMPLETED")] {
        let message = format!(r#"{{"items":[],"word":"{word}"}}"#);
        let message = Message::parse(message.as_bytes()).expect("an object");
        let origin =
            Origin::for_root_job(JobId(uuid::Uuid::from_u128(1)), definition.clone(), Timestamp(0));
        let context = Context { now: Timestamp(0), limits: &LIMITS, pauses: None, spare: None };
        let (job, _) = Job::create(origin, message, &context);
        assert_eq!((job.state(), job.status(StepIndex(0))), (JobState::Completed, status));
    }
}
