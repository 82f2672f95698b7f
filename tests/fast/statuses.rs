//! The relations of statuses: what any SQLite client reads in them, while the journal is open.

mod retention;

use crate::former;
use rusqlite::{Connection, OpenFlags};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use workflow_manager::engine::{
    Context, Decision, Definition, Dependency, Graph, Input, Job, JobId, JobState, Limits, Message,
    Millis, Operation, Origin, Reply, Retry, Step, StepIndex, Timestamp,
};
use workflow_manager::journal::Filter;
use workflow_manager::journal::Open;
use workflow_manager::journal::{Created, JobNumber, Options, Reader, Record, Store};
use workflow_manager::journal::{NEWEST, StatusFilter};

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

    fn options(&self) -> Options {
        Options { file: self.file(), cache_bytes: 1 << 20, verify_bytes_max: 1 << 30, pages_max: 0 }
    }

    /// As at a start with these definitions.
    fn open(&self, definitions: &[&Definition]) -> Store {
        let mut store = Store::open(&self.options()).expect("opens");
        store.relate(definitions.iter().copied()).expect("relates");
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
        .map(|(at, step)| Step { depends: after(at), ..Step::named(step) })
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
        let origin = Origin::top_level(id, definition, Timestamp(now));
        let context = Context { now: Timestamp(now), limits: &LIMITS };
        let (job, decision) = Job::create(origin.clone(), Message::default(), &context);
        let mut live = Live { number, job, now, records: Vec::new() };
        live.keep(decision, Some(Created { origin: Arc::new(origin), root: number, parent: None }));
        live
    }

    fn take(&mut self, input: Input) -> &mut Live {
        self.now += 1_500_000_000;
        let context = Context { now: Timestamp(self.now), limits: &LIMITS };
        let decision = self.job.take(input, &context).expect("taken");
        self.keep(decision, None);
        self
    }

    fn reply(&mut self, step: &str, body: &str) -> &mut Live {
        self.take(Input::Reply {
            step: step.to_owned(),
            attempt: None,
            reply: Reply::Result(body.to_owned().into()),
        })
    }

    fn fail(&mut self, step: &str) -> &mut Live {
        self.take(Input::Reply {
            step: step.to_owned(),
            attempt: None,
            reply: Reply::Error(r#"{"error":"no"}"#.into()),
        })
    }

    fn keep(&mut self, decision: Decision, created: Option<Created>) {
        self.records.push(Record::of(self.number, created, decision));
    }

    fn commit(&mut self, store: &mut Store) {
        store.append(&std::mem::take(&mut self.records)).expect("commits");
        store.derive().expect("derives");
    }

    /// The row that its table must have.
    fn row(&self) -> Vec<String> {
        let mut row = vec![self.job.id().to_string(), self.job.state().word().to_owned()];
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
fn a_table_is_there_and_empty_before_the_first_job() {
    let place = Place::new();
    let _store = place.open(&[&chain("job-application", &["application", "background-check"])]);
    let columns = place.rows("SELECT name, type, \"notnull\" FROM pragma_table_info('status_job-application') ORDER BY cid");
    let names: Vec<&str> = columns.iter().map(|column| column[0].as_str()).collect();
    assert_eq!(names, ["job", "state", "created", "updated", "application", "background-check"]);
    assert!(columns.iter().all(|column| column[1] == "TEXT" && column[2] == "1"), "{columns:?}");
    assert!(
        place
            .rows(r#"select * from "status_job-application" where "background-check" = 'FAILED'"#)
            .is_empty()
    );
    let plan = place.rows(r#"explain query plan select * from "status_job-application" where "background-check" = 'FAILED'"#);
    assert!(plan[0].join(" ").contains("USING INDEX"), "{plan:?}");
}

#[test]
fn every_entry_leaves_the_row_as_the_job_is() {
    let mut definition = chain("w", &["a", "b", "c"]);
    definition.graphs[0].steps[1].retry = Some(Retry { attempts: 2, ..Retry::default() });
    definition.graphs[0].steps[1].status.key = Some("word".into());
    definition.graphs[0].steps[1].status.words = ["OPEN", "GOOD", "BAD"].map(Arc::from).to_vec();
    let place = Place::new();
    let mut store = place.open(&[&definition]);
    let mut live = Live::create(1, &definition);
    type Act = for<'l> fn(&'l mut Live) -> &'l mut Live;
    let acts: [(&str, Act); 12] = [
        ("created", |live| live),
        ("completed, the next one runs", |live| live.reply("a", "{}")),
        ("confirmed", |live| live.take(Input::Confirmed { step: StepIndex(1), attempt: 1 })),
        ("paused", |live| live.take(Input::Operate(Operation::Pause))),
        ("resumed", |live| live.take(Input::Operate(Operation::Resume))),
        ("progress", |live| {
            let reply = Reply::Progress(r#"{"status":"GOOD","progress":0.5}"#.into());
            live.take(Input::Reply { step: "b".to_owned(), attempt: None, reply })
        }),
        ("an attempt failed", |live| live.fail("b")),
        ("the next attempt", |live| {
            live.now += 600_000_000_000;
            let due = Timestamp(live.now);
            live.take(Input::Timer { due, deaf_to: None })
        }),
        ("failed", |live| live.fail("b")),
        ("retried", |live| live.take(Input::Operate(Operation::Retry))),
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
    cancelled.reply("a", "{}").take(Input::Operate(Operation::Cancel { reason: "no more".into() }));
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
fn a_batch_writes_each_row_once() {
    let place = Place::new();
    let definition = chain("w", &["a", "b"]);
    let mut store = place.open(&[&definition]);
    let (mut first, mut second) = (Live::create(1, &definition), Live::create(2, &definition));
    first.commit(&mut store);
    place.change(
        "CREATE TABLE written(n); CREATE TRIGGER i AFTER INSERT ON status_w BEGIN INSERT INTO written VALUES (new._rowid_); END;
         CREATE TRIGGER u AFTER UPDATE ON status_w BEGIN INSERT INTO written VALUES (new._rowid_); END",
    );
    first.reply("a", "{}").reply("b", "{}");
    second.reply("a", "{}");
    let (one, other) = (first.records.remove(0), first.records.remove(0));
    let records: Vec<Record> =
        [one].into_iter().chain(second.records.drain(..)).chain([other]).collect();
    store.append(&records).expect("commits");
    store.derive().expect("derives");
    assert_eq!(place.rows("SELECT n FROM written ORDER BY n"), [["1"], ["2"]]);
    assert_eq!(
        place.rows("SELECT job, state, a, b FROM status_w ORDER BY _rowid_"),
        [first.row(), second.row()]
    );
}

#[test]
fn what_a_crash_leaves_agrees_with_the_entries() {
    let place = Place::new();
    let definition = chain("w", &["a", "b"]);
    let mut store = place.open(&[&definition]);
    for number in 1..20 {
        let mut live = Live::create(number, &definition);
        if number % 2 == 0 {
            live.reply("a", "{}");
        }
        store.append(&live.records).expect("commits");
        if number == 9 {
            store.derive().expect("derives");
        }
    }
    // The files as a process that ends now leaves them.
    let copy = Place::new();
    for suffix in ["", "-wal"] {
        let name = format!("j.db{suffix}");
        std::fs::copy(place.folder.path().join(&name), copy.folder.path().join(&name))
            .expect("copied");
    }
    assert_eq!(copy.rows("SELECT count(*) FROM status_w"), [["9"]], "some are not derived yet");
    drop(copy.open(&[&definition]));
    store.derive().expect("derives");
    assert_eq!(copy.rows("SELECT * FROM status_w"), place.rows("SELECT * FROM status_w"));
    assert_as_rebuilt(&copy, &definition);
}

#[test]
fn a_batch_without_room_leaves_no_row() {
    let place = Place::new();
    let definition = chain("w", &["a"]);
    drop(place.open(&[&definition]));
    let mut store = Store::open(&Options { pages_max: 60, ..place.options() }).expect("opens");
    store.relate([&definition]).expect("relates");
    let records: Vec<Record> =
        (1..2_000).flat_map(|number| Live::create(number, &definition).records).collect();
    store.append(&records).expect_err("there is no room");
    assert!(place.rows("SELECT * FROM status_w").is_empty());
    store.append(&records[..3]).expect("a small batch has room");
    store.derive().expect("and what follows from it");
    assert_eq!(place.rows("SELECT a FROM status_w"), [["PENDING"], ["PENDING"], ["PENDING"]]);
}

#[test]
fn a_new_step_gets_a_column_and_one_that_is_gone_keeps_its_own() {
    let place = Place::new();
    let (old, new) = (chain("w", &["a", "b"]), chain("w", &["A", "c"]));
    let mut store = place.open(&[&old]);
    let mut running = Live::create(1, &old);
    running.commit(&mut store);
    drop(store);
    let mut store = place.open(&[&new]);
    assert_eq!(place.rows("SELECT * FROM status_w")[0][4..], ["PENDING", "", ""]);
    // The job that runs keeps its definition.
    running.reply("a", "{}").commit(&mut store);
    let mut other = Live::create(2, &new);
    other.reply("A", "{}").commit(&mut store);
    assert_eq!(
        place.rows("SELECT a, b, c FROM status_w"),
        [["COMPLETED", "PENDING", ""], ["COMPLETED", "", "PENDING"]]
    );
    let plan = place.rows("explain query plan select * from status_w where c = 'FAILED'");
    assert!(plan[0].join(" ").contains("USING INDEX"), "{plan:?}");
    // Made anew, it has the columns of all the jobs that there are.
    drop(store);
    place.change("DROP TABLE status_w");
    drop(place.open(&[&new]));
    assert_eq!(
        place.rows("SELECT a, b, c FROM status_w"),
        [["COMPLETED", "PENDING", ""], ["COMPLETED", "", "PENDING"]]
    );
}

#[test]
fn a_definition_that_was_not_related_is_when_its_job_is_created() {
    let place = Place::new();
    let definition = chain("w", &["a", "rowid"]);
    let mut store = place.open(&[]);
    let (mut first, mut second) = (Live::create(1, &definition), Live::create(2, &definition));
    first.reply("a", "{}").commit(&mut store);
    second.commit(&mut store);
    first.reply("rowid", "{}").commit(&mut store);
    assert_eq!(
        place.rows("SELECT job, state, a, \"rowid\" FROM status_w ORDER BY _rowid_"),
        [first.row(), second.row()]
    );
    drop(store);
    assert_as_rebuilt(&place, &definition);
    // SQLite adds no column of a name that it has for its own row numbers.
    let later = chain("w", &["a", "rowid", "OID", "b"]);
    let mut store = place.open(&[&later]);
    let mut third = Live::create(3, &later);
    third.reply("a", "{}").reply("rowid", "{}").commit(&mut store);
    assert_eq!(
        place.rows("SELECT job, state, a, \"rowid\", oid, b FROM status_w WHERE _rowid_ = 3"),
        [third.row()]
    );
    assert_eq!(place.rows("SELECT _rowid_ FROM status_w ORDER BY 1"), [["1"], ["2"], ["3"]]);
    let filter = Filter {
        workflow: Some("w".to_owned()),
        statuses: vec![("rowid".to_owned(), "COMPLETED".to_owned())],
        ..Filter::default()
    };
    let found = place.reader().search(&filter, NEWEST, 9).expect("reads");
    assert_eq!(found.iter().map(|hit| hit.number).collect::<Vec<_>>(), [3, 1]);
}

#[test]
fn what_was_dropped_or_altered_is_made_anew() {
    for harm in [
        "DROP TABLE status_w",
        "ALTER TABLE status_w DROP COLUMN updated",
        "ALTER TABLE status_w RENAME COLUMN state TO stat",
        "DROP TABLE status_w; CREATE VIEW status_w AS SELECT 1 AS job",
        "DROP TABLE status_w; CREATE TABLE status_w(job TEXT NOT NULL, state TEXT NOT NULL, created INTEGER NOT NULL, updated TEXT NOT NULL)",
        "CREATE TRIGGER no BEFORE UPDATE ON status_w BEGIN SELECT RAISE(ABORT, 'no'); END",
    ] {
        let definition = chain("w", &["a", "b"]);
        let full =
            |live: &[&Live]| -> Vec<Vec<String>> { live.iter().map(|live| live.row()).collect() };
        // While it runs: with the next record.
        let place = Place::new();
        let mut store = place.open(&[&definition]);
        let (mut first, mut second) = (Live::create(1, &definition), Live::create(2, &definition));
        first.commit(&mut store);
        second.commit(&mut store);
        place.change(harm);
        second.reply("a", "{}").commit(&mut store);
        second.reply("b", "{}").commit(&mut store);
        assert_eq!(
            place.rows("SELECT job, state, a, b FROM status_w"),
            full(&[&first, &second]),
            "{harm}"
        );
        // While it does not: at the next start.
        drop(store);
        place.change(harm);
        let mut store = place.open(&[&definition]);
        first.reply("a", "{}").commit(&mut store);
        assert_eq!(
            place.rows("SELECT job, state, a, b FROM status_w"),
            full(&[&first, &second]),
            "{harm}"
        );
        assert_eq!(store.recover().expect("recovers").len(), 1, "{harm}");
    }
}

#[test]
fn a_table_that_cannot_be_made_stops_nothing_but_itself() {
    let place = Place::new();
    let (definition, other) = (chain("w", &["a"]), chain("v", &["a"]));
    drop(place.open(&[]));
    place.change("CREATE TABLE \"index a of w\"(what)");
    let mut store = place.open(&[&definition, &other]);
    let (mut live, mut neighbour) = (Live::create(1, &definition), Live::create(2, &other));
    live.reply("a", "{}").commit(&mut store);
    neighbour.commit(&mut store);
    assert_eq!(place.rows("SELECT job, state, a FROM status_v"), [neighbour.row()]);
    assert_eq!(place.rows("SELECT state FROM jobs"), [["completed"], ["running"]]);
    store.delete(&[1]).expect("deletes");
    drop(store);
    place.change("DROP TABLE \"index a of w\"");
    let mut store = place.open(&[&definition, &other]);
    let mut later = Live::create(3, &definition);
    later.commit(&mut store);
    assert_eq!(place.rows("SELECT job, state, a FROM status_w"), [later.row()]);
}

#[test]
fn rows_that_are_missing_or_numbered_anew_are_found_at_the_start() {
    let place = Place::new();
    let definition = chain("w", &["a"]);
    let mut store = place.open(&[&definition]);
    (3..9).for_each(|number| Live::create(number, &definition).commit(&mut store));
    drop(store);
    let whole = place.rows("SELECT _rowid_, * FROM status_w");
    for harm in [
        "DELETE FROM status_w WHERE _rowid_ = 5",
        "UPDATE status_w SET _rowid_ = _rowid_ - 2",
        "DELETE FROM status_w",
        "VACUUM",
    ] {
        place.change(harm);
        drop(place.open(&[&definition]));
        assert_eq!(place.rows("SELECT _rowid_, * FROM status_w"), whole, "{harm}");
    }
}

/// Overwrites the first page of a table or index.
fn smash(file: &Path, name: &str) {
    let page: u64 =
        rows(file, &format!("SELECT rootpage FROM sqlite_schema WHERE name = '{name}'"))[0][0]
            .parse()
            .expect("a number");
    let mut bytes = std::fs::read(file).expect("readable");
    let at = usize::try_from((page - 1) * 4096).expect("small");
    bytes[at..at + 4096].fill(0xee);
    std::fs::write(file, bytes).expect("writable");
}

#[test]
fn a_damaged_table_is_made_anew_and_damage_elsewhere_is_refused() {
    let place = Place::new();
    let definition = chain("w", &["a", "b"]);
    let mut store = place.open(&[&definition]);
    (1..400).for_each(|number| Live::create(number, &definition).commit(&mut store));
    drop(store);
    let whole = place.rows("SELECT * FROM status_w");
    for name in ["status_w", "index a of w"] {
        smash(&place.file(), name);
        // Twice: the pages that are left in the file do no harm.
        for _ in 0..2 {
            let store = place.open(&[&definition]);
            assert_eq!(store.recover().expect("recovers").len(), 399);
            drop(store);
            assert_eq!(place.rows("SELECT * FROM status_w"), whole);
        }
    }
    // Unverified, it shows at the first write.
    smash(&place.file(), "status_w");
    let mut store =
        Store::open(&Options { verify_bytes_max: 0, ..place.options() }).expect("opens");
    Live::create(400, &definition).commit(&mut store);
    assert_eq!(place.rows("SELECT * FROM status_w").len(), 400);
    drop(store);
    smash(&place.file(), "places");
    let before = std::fs::read(place.file()).expect("readable");
    let error = Store::open(&place.options()).map(drop).expect_err("is damaged").to_string();
    assert!(error.contains("is damaged"), "{error}");
    assert!(
        std::fs::read(place.file()).expect("readable") == before,
        "a refused journal keeps its bytes"
    );
}

#[test]
fn a_journal_of_an_earlier_version_gets_its_tables() {
    let place = Place::new();
    let definition = chain("w", &["a"]);
    let mut store = place.open(&[&definition]);
    let mut ended = Live::create(1, &definition);
    ended.reply("a", "{}").commit(&mut store);
    Live::create(2, &definition).commit(&mut store);
    drop(store);
    former::downgrade(&place.file());
    place.change(
        "DROP TABLE status_w; DROP TABLE notices; DROP INDEX jobs_top; DROP INDEX jobs_by_state; DROP INDEX jobs_retained; DROP INDEX jobs_children_failed;
         PRAGMA user_version = 1;
         CREATE INDEX jobs_retained ON jobs(ended) WHERE parent IS NULL AND ended IS NOT NULL;",
    );
    let mut store = place.open(&[&definition]);
    assert_eq!(
        place.rows("SELECT state, a FROM status_w"),
        [["completed", "COMPLETED"], ["running", "PENDING"]]
    );
    assert_eq!(store.delete_ended(Timestamp(i64::MAX), Millis(0), 10).expect("deletes").roots, 1);
    assert_eq!(place.rows("SELECT state, a FROM status_w"), [["running", "PENDING"]]);
}

#[test]
fn each_workflow_has_its_own_table_whatever_its_name() {
    let place = Place::new();
    let in_vhost =
        |vhost: &str, name: &str| Definition { vhost: vhost.to_owned(), ..chain(name, &["only"]) };
    let definitions = [
        chain("w", &["a"]),
        in_vhost("/", "w"),
        in_vhost(r#"it's "x" of q"#, "w"),
        chain("w_by_id", &["status_w"]),
        in_vhost("", "jobs"),
        in_vhost("prod/eu", "entries"),
    ];
    let all: Vec<&Definition> = definitions.iter().collect();
    let mut store = place.open(&all);
    let mut lives = Vec::new();
    for (number, definition) in (1..).zip(&definitions) {
        let mut live = Live::create(number, definition);
        live.commit(&mut store);
        let table = format!("status_{}", definition.full_name()).replace('"', "\"\"");
        let steps = &definition.graph().steps[0].name;
        assert_eq!(
            place.rows(&format!("SELECT job, state, \"{steps}\" FROM \"{table}\"")),
            [live.row()],
            "{table}"
        );
        let reader = place.reader();
        let columns =
            reader.status_columns(&definition.full_name()).expect("reads").expect("is there");
        let rows = reader
            .statuses(&definition.full_name(), &columns, &StatusFilter::default(), NEWEST, 10)
            .expect("reads");
        assert_eq!((rows.len(), rows[0].job.as_str()), (1, &*live.job.id().to_string()));
        lives.push(live);
    }
    drop(store);
    let mut store = place.open(&all);
    assert_eq!(store.recover().expect("recovers").len(), definitions.len());
    lives[2].take(Input::Operate(Operation::Cancel { reason: "a test".into() })).commit(&mut store);
    store.delete(&[3]).expect("deletes");
    let left: usize = definitions
        .iter()
        .map(|d| {
            place
                .rows(&format!("SELECT * FROM \"status_{}\"", d.full_name().replace('"', "\"\"")))
                .len()
        })
        .sum();
    assert_eq!(left, definitions.len() - 1);
}

#[test]
fn names_that_differ_in_case_share_a_table_and_lose_nothing() {
    let place = Place::new();
    let (old, new) = (chain("Order", &["a"]), chain("order", &["a", "b"]));
    let mut store = place.open(&[&old]);
    let mut first = Live::create(1, &old);
    first.commit(&mut store);
    drop(store);
    let mut store = place.open(&[&new]);
    let mut second = Live::create(2, &new);
    second.commit(&mut store);
    first.reply("a", "{}").commit(&mut store);
    let both = [["COMPLETED", ""], ["PENDING", ""]];
    assert_eq!(place.rows("SELECT a, b FROM status_order"), both);
    drop(store);
    place.change("DROP TABLE status_order");
    drop(place.open(&[&new]));
    assert_eq!(place.rows("SELECT a, b FROM status_order"), both);
}

#[test]
fn more_columns_than_have_an_index() {
    let place = Place::new();
    let names: Vec<String> = (0..1_000).map(|at| format!("s{at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let definition = chain("w", &names);
    let mut store = place.open(&[&definition]);
    let mut live = Live::create(1, &definition);
    live.reply("s0", "{}").commit(&mut store);
    let indexes = place
        .rows("SELECT count(*) FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'status_w'");
    assert_eq!(indexes, [["66"]]);
    assert_eq!(
        place.rows("SELECT s0, s1, s999 FROM status_w WHERE s99 = ''"),
        [["COMPLETED", "PENDING", ""]]
    );
}

#[test]
fn a_step_beyond_what_a_table_can_have_gets_no_column() {
    let place = Place::new();
    drop(place.open(&[]));
    // As a long life of changing definitions leaves it.
    let columns: String =
        (0..1_899).map(|at| format!(", s{at} TEXT NOT NULL DEFAULT ''")).collect();
    let own =
        "job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL";
    place.change(&format!("CREATE TABLE status_w({own}{columns}) STRICT"));
    let definition = chain("w", &["t0", "t1", "t2"]);
    let mut store = place.open(&[&definition]);
    let mut live = Live::create(2, &definition);
    live.commit(&mut store);
    live.take(Input::Operate(Operation::Cancel { reason: "enough".into() })).commit(&mut store);
    assert_eq!(place.rows("SELECT state, s0, t0 FROM status_w"), [["cancelled", "", "CANCELLED"]]);
    assert_eq!(place.rows("SELECT count(*) FROM pragma_table_info('status_w')"), [["1904"]]);
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
    let columns = reader.status_columns("w").expect("reads").expect("is there");
    let asked = |filter: StatusFilter, before, limit| -> Vec<JobNumber> {
        reader
            .statuses("w", &columns, &filter, before, limit)
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
    assert_eq!(asked(StatusFilter::default(), NEWEST, 3), [10, 9, 8]);
    assert_eq!(asked(StatusFilter::default(), 8, 3), [7, 6, 5]);
    assert_eq!(asked(steps(&[("a", "COMPLETED")]), 9, 10), [8, 6, 4, 2]);
    assert_eq!(asked(steps(&[("a", "COMPLETED"), ("b", "FAILED")]), NEWEST, 10), [10]);
    assert_eq!(asked(steps(&[("a", "COMPLETED"), ("a", "FAILED")]), NEWEST, 10), [0; 0]);
    assert_eq!(asked(steps(&[("b", "")]), NEWEST, 2), [9, 7]);
    assert_eq!(
        asked(
            StatusFilter { state: Some(JobState::Failed), ..StatusFilter::default() },
            NEWEST,
            10
        ),
        [10, 5]
    );
    let job = Some(JobId(uuid::Uuid::from_u128(0xa_0000_0000 + 4)));
    assert_eq!(asked(StatusFilter { job, ..StatusFilter::default() }, NEWEST, 10), [4]);
    assert_eq!(asked(StatusFilter { job, ..steps(&[("a", "FAILED")]) }, NEWEST, 10), [0; 0]);
    assert!(reader.status_columns("other").expect("reads").is_none());
}
