//! What follows from the entries is written after them, and nobody notices: jobs are read as they
//! are committed, lists and statuses wait for what is committed, and a crash loses nothing. The
//! same goes for confirms, of which many share a row.

use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::world::LIMITS;
use workflow_manager::engine::{
    Column, Context, Definition, Dependency, Effect, Expression, Graph, Input, Job, JobId,
    JobState, Message, Origin, Reply, Sender, Step, StepIndex, Timestamp,
};
use workflow_manager::journal::{
    CellRefill, EndedCursor, JobFilter, JobNumber, JobRecords, Journal, JournalOptions,
    NEWEST_CURSOR, NewJob, Reader, Record, SearchOrder, SearchRecords, SqliteJournal,
};

const FIRST: StepIndex = StepIndex(0);

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().expect("a folder"))
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("j.db")
    }

    fn open(&self) -> SqliteJournal {
        open(&self.file())
    }

    fn count(&self, table: &str) -> i64 {
        let client = Connection::open(self.file()).expect("opens");
        client
            .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))
            .expect("a count")
    }

    /// The files as a process that ended now would leave them.
    fn crash(&self) -> Place {
        let copy = Place::new();
        for suffix in ["", "-wal"] {
            let name = format!("j.db{suffix}");
            std::fs::copy(self.0.path().join(&name), copy.0.path().join(&name)).expect("copied");
        }
        copy
    }
}

fn open(file: &Path) -> SqliteJournal {
    let options = JournalOptions {
        file: file.to_owned(),
        cache_bytes: 1 << 20,
        verify_bytes_max: 1 << 30,
        pages_max: 0,
    };
    let mut store = SqliteJournal::open(&options).expect("opens");
    store.create_status_tables(&[&*definition()]).expect("tables of statuses");
    store
}

fn definition() -> Arc<Definition> {
    let after = vec![Dependency::Step(FIRST)];
    let steps = vec![Step::with_name("a"), Step { depends: after, ..Step::with_name("b") }];
    Arc::new(Definition::new("w", vec![Graph::new("w".to_owned(), None, steps)]))
}

struct Live {
    number: JobNumber,
    job: Job,
}

impl Live {
    fn create(number: JobNumber, id: u128) -> (Live, Record) {
        Live::create_with(number, id, definition())
    }

    fn create_with(number: JobNumber, id: u128, definition: Arc<Definition>) -> (Live, Record) {
        let id = JobId(uuid::Uuid::from_u128(id));
        let origin = Origin::for_root_job(id, definition, Timestamp(number));
        let message = Message::parse(format!("{{\"n\":{number}}}").as_bytes()).expect("a message");
        let context =
            Context { now: Timestamp(number), limits: &LIMITS, pauses: None, spare: None };
        let (job, decision) = Job::create(origin.clone(), message, &context);
        let live = Live { number, job };
        let created = NewJob { origin: Arc::new(origin), root: number, parent: None };
        let record = live.record(decision, Some(created));
        (live, record)
    }

    fn take(&mut self, input: Input) -> Record {
        let context = Context { now: Timestamp(100), limits: &LIMITS, pauses: None, spare: None };
        let decision = self.job.handle_input(input, &context).expect("taken");
        self.record(decision, None)
    }

    fn record(
        &self,
        decision: workflow_manager::engine::Decision,
        created: Option<NewJob>,
    ) -> Record {
        Record::from_decision(self.number, created, decision)
    }

    fn confirm(&mut self, step: u16) -> Record {
        self.take(Input::Confirmed { step: StepIndex(step), attempt: 1, dispatch: None })
    }

    fn reply(&mut self, step: &str) -> Record {
        self.take_result(step, "{}")
    }

    fn take_result(&mut self, step: &str, output: &str) -> Record {
        let (step, reply) = (step.to_owned(), Reply::Result(output.to_owned().into()));
        self.take(Input::Reply { step, attempt: None, reply, from: Sender::Unknown })
    }

    #[track_caller]
    fn assert_read_by(&self, reader: &Reader, what: &str) {
        let found = reader.load_job(self.job.id()).expect("reads").expect(what);
        assert_eq!(found.number, self.number, "{what}");
        assert!(found.job == self.job, "{what}: the job that is read is another");
    }
}

#[test]
fn a_commit_writes_entries_alone_and_every_reader_sees_it() {
    let place = Place::new();
    let mut store = place.open();
    let (waiting, reading) = (store.reader(), Reader::new(&place.file()));
    let (mut live, created) = Live::create(1, 7);
    store.append(&[&created]).expect("commits");
    store.append(&[&live.reply("a"), &live.reply("b")]).expect("commits");
    assert!(store.has_unprojected());
    assert_eq!((place.count("entries"), place.count("jobs"), place.count("places")), (3, 0, 0));
    for reader in [&waiting, &reading] {
        live.assert_read_by(reader, "a job that is not derived yet");
        let creation = reader.load_creation(live.job.id()).expect("reads").expect("is there");
        assert_eq!((creation.number, &*creation.workflow, creation.is_child), (1, "w", false));
        assert_eq!(creation.message.expect("top-level").to_text(), "{\"n\":1}");
        assert!(reader.rebuild_bytes(live.job.id()).expect("reads").expect("is there") > 10);
    }
    assert_eq!(place.count("jobs"), 0, "jobs are read without deriving them");
    let none = reading
        .search(&JobFilter::default(), SearchOrder::NewestFirst, NEWEST_CURSOR, 9)
        .expect("reads");
    assert!(none.is_empty(), "a reader of its own takes what is derived");
    let found = waiting
        .search(&JobFilter::default(), SearchOrder::NewestFirst, NEWEST_CURSOR, 9)
        .expect("reads");
    assert_eq!(found[0].state, JobState::Completed.as_str(), "what is listed is derived first");
    assert!(!store.has_unprojected());
    assert_eq!((place.count("entries"), place.count("jobs"), place.count("places")), (3, 1, 3));
    let ended =
        waiting.load_ended_root_jobs("w", Timestamp(0), EndedCursor::NEWEST, 9).expect("reads");
    assert_eq!(ended[0].0.ended, Timestamp(100));
    live.assert_read_by(&reading, "a job that is derived");
}

#[test]
fn what_a_crash_leaves_behind_is_derived_at_the_next_start() {
    let place = Place::new();
    let mut store = place.open();
    let (mut first, created) = Live::create(1, 1);
    store.append(&[&created]).expect("commits");
    store.project().expect("derives");
    let (mut second, of_second) = Live::create(2, 2);
    let (third, of_third) = Live::create(3, 3);
    store.append(&[&of_second, &of_third, &first.reply("a")]).expect("commits");
    store.append(&[&first.reply("b"), &second.reply("a")]).expect("commits");
    let copy = place.crash();
    let again = copy.open();
    assert!(!again.has_unprojected());
    let numbers: Vec<JobNumber> =
        again.recover().expect("recovers").iter().map(|recovered| recovered.number).collect();
    assert_eq!(numbers, [2, 3], "the first has ended");
    for live in [&first, &second, &third] {
        live.assert_read_by(&Reader::new(&copy.file()), "after the crash");
    }
    drop((store, again));
    for table in ["jobs", "places", "derived", "status_w"] {
        let rows = |place: &Place| -> Vec<Vec<rusqlite::types::Value>> {
            let client = Connection::open(place.file()).expect("opens");
            let mut statement = client
                .prepare(&format!("SELECT * FROM {table} ORDER BY 1, 2"))
                .or_else(|_| client.prepare(&format!("SELECT * FROM {table}")));
            let statement = statement.as_mut().expect("a query");
            let width = statement.column_count();
            let rows = statement.query_map([], |row| (0..width).map(|at| row.get(at)).collect());
            rows.expect("rows").collect::<rusqlite::Result<_>>().expect("rows")
        };
        assert_eq!(rows(&copy), rows(&place), "{table}: derived at a start, and on the way");
    }
}

#[test]
fn what_a_refill_has_set_is_there_after_a_crash_that_left_more_behind() {
    let with_columns = |label: &str, total: &str| {
        let mut definition = (*definition()).clone();
        definition.columns.label = Some(Expression::parse(label).expect(label));
        let value = Expression::parse(total).expect(total);
        definition.columns.list.push(Column { name: "total".into(), value });
        definition
    };
    let own = Arc::new(with_columns("'old ' + string(job.n)", "steps.b.output.cents"));
    let mut new = with_columns("'new ' + string(job.n)", "steps.b.output.cents");
    let value = Expression::parse("'more ' + string(job.n)").expect("a column");
    new.columns.list.push(Column { name: "more".into(), value });
    let place = Place::new();
    let mut store = place.open();
    store.create_status_tables(&[&*own, &new]).expect("tables of statuses");
    let (mut live, created) = Live::create_with(1, 1, own);
    store.append(&[&created]).expect("commits");
    let cells = live.job.refilled_cells(&new.columns).cells;
    let refill = CellRefill { job: 1, entries: live.job.entry_count(), cells };
    assert!(store.refill_cells(&new, &[refill]).expect("writes").is_empty());
    store.append(&[&live.reply("a"), &live.take_result("b", r#"{"cents":7}"#)]).expect("commits");
    let copy = place.crash();
    drop((copy.open(), store));
    for (place, what) in [(&copy, "derived at a start"), (&place, "derived on the way")] {
        let client = Connection::open(place.file()).expect("opens");
        let select = |sql: &str| -> Vec<Option<String>> {
            let row = |row: &rusqlite::Row<'_>| (0..3).map(|at| row.get(at)).collect();
            client.query_row(sql, [], row).expect(sql)
        };
        let expected = ["new 1", "more 1", "7"].map(|text| Some(text.to_owned()));
        assert_eq!(select("SELECT label, more, total FROM status_w"), expected, "{what}");
        let sql = "SELECT max(value) FILTER (WHERE name = 'label'),
                          max(value) FILTER (WHERE name = 'more'),
                          max(value) FILTER (WHERE name = 'total') FROM cells";
        assert_eq!(select(sql), expected, "{what}");
    }
}

#[test]
fn numbers_go_on_behind_what_is_deleted() {
    let place = Place::new();
    let (mut live, created) = Live::create(1, 1);
    let mut store = place.open();
    store.append(&[&created, &live.reply("a"), &live.reply("b")]).expect("commits");
    assert_eq!(store.delete_jobs(&[1], u32::MAX).expect("deletes").roots, 1);
    assert_eq!((place.count("entries"), place.count("places")), (0, 0));
    drop(store);
    let mut store = place.open();
    let (live, created) = Live::create(1, 2);
    store.append(&[&created]).expect("commits");
    live.assert_read_by(&store.reader(), "not taken for what was derived before");
    drop(store);
    assert_eq!(place.open().recover().expect("recovers").len(), 1);
}

/// Whether a restart would send the message of the first step again.
fn is_sent_again(store: &SqliteJournal, number: JobNumber) -> bool {
    let recovered = store.recover().expect("recovers");
    let job = recovered.iter().find(|recovered| recovered.number == number).expect("runs");
    job.effects.iter().any(|effect| matches!(effect, Effect::Dispatch { step: FIRST, .. }))
}

#[test]
fn confirms_of_one_commit_share_a_row_until_records_have_them() {
    let place = Place::new();
    let mut store = place.open();
    let (mut jobs, created): (Vec<Live>, Vec<Record>) =
        (1..=3).map(|number| Live::create(number, number as u128)).unzip();
    store.append(&created.iter().collect::<Vec<_>>()).expect("commits");
    assert!(is_sent_again(&store, 1), "nothing is confirmed yet");
    let confirms: Vec<Record> = jobs.iter_mut().map(|live| live.confirm(0)).collect();
    store.append(&confirms.iter().collect::<Vec<_>>()).expect("commits");
    assert_eq!((place.count("entries"), place.count("confirmed")), (3, 1));
    for reader in [store.reader(), Reader::new(&place.file())] {
        jobs.iter().for_each(|live| live.assert_read_by(&reader, "confirmed"));
    }
    assert!(!is_sent_again(&store, 1), "the confirm counts, in its group");
    assert!(!is_sent_again(&place.crash().open(), 1), "and after a crash");

    let (first, second) = (jobs[0].reply("a"), jobs[0].reply("b"));
    store.append(&[&first, &jobs[1].reply("a"), &second]).expect("commits");
    assert_eq!(place.count("entries"), 6, "a reply is one row, the first with the confirm");
    store.project().expect("derives");
    assert_eq!(place.count("confirmed"), 1, "one job has no record behind it yet");
    store.append(&[&jobs[2].reply("a")]).expect("commits");
    store.project().expect("derives");
    assert_eq!(place.count("confirmed"), 0);
    for reader in [store.reader(), Reader::new(&place.file()), place.crash().open().reader()] {
        jobs.iter().for_each(|live| live.assert_read_by(&reader, "its rows are whole"));
    }
}

#[test]
fn a_confirm_before_a_record_in_one_commit_needs_no_row() {
    let place = Place::new();
    let mut store = place.open();
    let (mut live, created) = Live::create(1, 1);
    store.append(&[&created]).expect("commits");
    store.append(&[&live.confirm(0), &live.reply("a"), &live.confirm(1)]).expect("commits");
    assert_eq!((place.count("entries"), place.count("confirmed")), (2, 1), "the last waits");
    live.assert_read_by(&store.reader(), "in order");
    live.assert_read_by(&Reader::new(&place.crash().file()), "after a crash");
}

#[test]
fn confirms_that_no_record_follows_get_one_of_their_own() {
    let place = Place::new();
    let mut store = place.open();
    let (mut live, created) = Live::create(1, 1);
    let (mut other, of_other) = Live::create(2, 2);
    store.append(&[&created, &of_other]).expect("commits");
    store.append(&[&live.confirm(0)]).expect("commits");
    assert!(store.has_pending_confirms());
    assert!(store.write_confirms().expect("writes confirms"), "a young one may yet have company");
    store.append(&[&other.confirm(0)]).expect("commits");
    assert!(store.write_confirms().expect("writes confirms"), "the second is young");
    assert_eq!(place.count("entries"), 3);
    store.project().expect("derives");
    assert_eq!(place.count("confirmed"), 1);
    assert!(!store.write_confirms().expect("writes confirms"));
    store.project().expect("derives");
    assert_eq!((place.count("entries"), place.count("confirmed")), (4, 0));
    [&live, &other].into_iter().for_each(|live| live.assert_read_by(&store.reader(), "derived"));
    drop(store);
    let store = place.open();
    assert!(!is_sent_again(&store, 1) && !is_sent_again(&store, 2));
}

#[test]
fn a_confirm_of_a_deleted_job_is_void_and_its_number_is_free_of_it() {
    let place = Place::new();
    let mut store = place.open();
    let (mut live, created) = Live::create(1, 1);
    let (mut other, of_other) = Live::create(2, 2);
    store.append(&[&of_other, &created, &live.reply("a"), &live.reply("b")]).expect("commits");
    assert_eq!(store.delete_jobs(&[1], u32::MAX).expect("deletes").roots, 1);
    let (mut late, _) = Live::create(1, 1);
    let gone = store.append(&[&late.confirm(0), &other.confirm(0)]).expect("commits");
    assert_eq!(gone.into_iter().collect::<Vec<_>>(), [1]);
    assert!(store.reader().load_job(late.job.id()).expect("reads").is_none());
    let copy = place.crash().open();
    assert!(!is_sent_again(&copy, 2), "the other's counts");
    assert_eq!(copy.recover().expect("recovers").len(), 1);
}
