//! `journal copy`: a journal in a file moves into a database and back, with jobs under way.

use crate::harness::{
    Api, Daemon, Ran, Running, Setup, command, eventually, must_succeed, run, variable, when,
};
use crate::old_journals::{self, add_running_jobs, write_journal};
use rusqlite::Connection;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::journal_rules::InDatabase;
use tempfile::TempDir;
use uuid::Uuid;

const ORDER: &str = "limits: [ { name: hourly, rate: 1/h, burst: 1 } ]
workflows:
  - { name: slow, steps: [ { name: pay, limit: hourly } ] }
  - name: order
    steps:
      - { name: first, queue: first }
      - { name: items, task: item, depends: [ first ] }
      - { name: last, queue: last, depends: [ items ] }
    tasks:
      - { name: item, itemListKey: list, steps: [ { name: each, queue: each } ] }";
const INPUT: &str = r#"{"list":[1,2.50,3]}"#;

fn copy(from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> Ran {
    run(command().args(["journal", "copy", "--from"]).arg(from).arg("--to").arg(to))
}

#[track_caller]
fn assert_copied(from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> Ran {
    let ran = copy(from, to);
    assert_eq!(ran.code, Some(0), "{ran}");
    ran
}

#[track_caller]
fn assert_refused(ran: &Ran, words: &[&str]) {
    assert_eq!(ran.code, Some(1), "{ran}");
    assert!(words.iter().all(|word| ran.stderr.contains(word)), "{words:?}: {ran}");
}

/// Takes a message of a queue: where it is answered, and its body. `None` if there is none.
fn receive(api: &Api, queue: &str) -> Option<(String, String)> {
    let message = api.post(&format!("/api/queue/{queue}/receive?wait=0s"), "");
    (message.status == 200).then(|| (message.header("reply-to").to_owned(), message.text.clone()))
}

/// Answers messages of a queue with what they are.
#[track_caller]
fn echo(api: &Api, queue: &str, count: usize) {
    for _ in 0..count {
        let (reply_to, body) = eventually("there is a message", || {
            receive(api, queue).ok_or(format!("none in {queue}"))
        });
        api.post(&format!("{reply_to}?type=result"), body).expect(200);
    }
}

/// What is told of all jobs: their records and statuses.
fn told(api: &Api, jobs: &[Uuid]) -> Vec<Value> {
    let records = jobs.iter().map(|job| format!("/api/job/{job}/entries"));
    let statuses = ["/api/status/order".to_owned()];
    records.chain(statuses).map(|path| api.get(&path).expect(200).json()).collect()
}

/// Checks that the hour's message was sent before a copy.
#[track_caller]
fn assert_waits_for_limit(api: &Api, job: Uuid) {
    eventually("it waits for its limit", || {
        let why = api.get(&format!("/api/job/{job}/why")).expect(200).json();
        when(why["cause"] == "limit", &why)
    });
}

/// What operators have changed, without how many steps that holds back at this moment.
fn controls_of(api: &Api) -> Value {
    let mut told = api.get("/api/controls").expect(200).json();
    for control in told["controls"].as_array_mut().expect("a list") {
        control.as_object_mut().expect("an object").remove("waiting");
    }
    told
}

#[test]
fn a_fan_out_under_way_goes_on_in_a_database_and_back_in_a_file() {
    let database = InDatabase::create();
    let mut daemon = Setup::new("", ORDER).set("embedded.lease", "10m").start();
    let jobs: Vec<Uuid> = (0..3).map(|_| daemon.api.create("order", INPUT)).collect();
    echo(&daemon.api, "first", 2);
    echo(&daemon.api, "each", 2);
    // A worker has it in hand all the while.
    let (lent, body) = receive(&daemon.api, "each").expect("a message");
    eventually("the fan-outs are under way", || {
        let shown = told(&daemon.api, &jobs);
        when(shown.iter().any(|record| record.to_string().contains("child.completed")), &shown[0])
    });
    daemon.api.create("slow", "{}");
    echo(&daemon.api, "pay", 1);
    daemon.api.post("/api/queue/last/pause?reason=moving", "").expect(200);
    let controls = controls_of(&daemon.api);
    assert!(daemon.stop().success());
    let before = daemon.database();
    let ran = assert_copied(&before, database.url());
    assert!(ran.stdout.contains("10 jobs and child jobs with"), "{ran}");
    assert!(ran.stdout.contains("7 to go on with"), "{ran}");

    daemon.set_setting("journal.url", &database.url());
    daemon.start_again();
    assert_eq!(controls_of(&daemon.api), controls, "it is copied");
    let slow = daemon.api.create("slow", "{}");
    assert_waits_for_limit(&daemon.api, slow);
    let view = database.query("SELECT first, items FROM \"status_order\" ORDER BY number");
    assert_eq!(view, "COMPLETED|PENDING\nCOMPLETED|PENDING\nPENDING|\n");
    daemon.api.post(&format!("{lent}?type=result"), body).expect(200);
    echo(&daemon.api, "each", 1);
    let in_database = told(&daemon.api, &jobs);
    assert!(daemon.stop().success());

    for suffix in ["", "-wal", "-shm"] {
        // Not all of them need be there.
        let _absent = fs::remove_file(format!("{}{suffix}", before.display()));
    }
    assert_copied(database.url(), &before);
    daemon.set_setting("journal.url", "");
    daemon.start_again();
    assert_eq!(told(&daemon.api, &jobs), in_database, "nothing is lost, and nothing invented");
    assert_eq!(controls_of(&daemon.api), controls, "it is copied back");
    assert_waits_for_limit(&daemon.api, slow);
    daemon.api.post("/api/queue/last/resume", "").expect(200);
    echo(&daemon.api, "first", 1);
    echo(&daemon.api, "each", 5);
    echo(&daemon.api, "last", 3);
    for job in &jobs {
        assert_eq!(daemon.api.await_result(*job), INPUT);
    }

    // The child jobs from before a rerun follow from what their parent was then.
    daemon.api.post(&format!("/api/job/{}/rerun?step=first", jobs[0]), "").expect(200);
    let (rerun, _) = receive(&daemon.api, "first").expect("a message");
    assert!(daemon.stop().success());
    let second = InDatabase::create();
    assert_copied(&before, second.url());
    daemon.set_setting("journal.url", &second.url());
    daemon.start_again();
    let other_input = r#"{"list":[4]}"#;
    daemon.api.post(&format!("{rerun}?type=result"), other_input).expect(200);
    echo(&daemon.api, "each", 1);
    echo(&daemon.api, "last", 1);
    assert_eq!(daemon.api.await_result(jobs[0]), other_input);
}

/// A folder with a journal of many jobs.
struct Original {
    dir: TempDir,
    file: PathBuf,
}

impl Original {
    fn with(jobs: i64, padding: usize) -> Original {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("journal.db");
        write_journal(old_journals::FIRST, &file, |journal| {
            add_running_jobs(journal, jobs, padding);
        });
        Original { dir, file }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// Begins a copy, and calls `interrupt` once it has written something.
fn begin(from: &OsStr, to: &OsStr, is_begun: impl Fn() -> bool, interrupt: impl Fn(&mut Running)) {
    let child = command()
        .args(["journal", "copy", "--from"])
        .arg(from)
        .arg("--to")
        .arg(to)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut running = Running(child);
    eventually("something is copied", || {
        assert!(running.0.try_wait().unwrap().is_none(), "it has ended too early");
        when(is_begun(), "nothing yet")
    });
    interrupt(&mut running);
    running.0.wait().unwrap();
}

fn kill(running: &mut Running) {
    running.0.kill().unwrap();
}

/// Whether the copy has rows already. They are there before they are compared with their originals.
fn has_entries(database: &InDatabase) -> bool {
    let tables = database.query("SELECT to_regclass('entries') IS NOT NULL");
    tables.trim() == "t" && database.query("SELECT EXISTS (SELECT 1 FROM entries)").trim() == "t"
}

#[track_caller]
fn assert_equal_jobs(file: &Path, database: &InDatabase) {
    let journal = Connection::open(file).unwrap();
    for table in ["jobs", "notices"] {
        let sql = format!("SELECT count(*) FROM {table}");
        let count: i64 = journal.query_row(&sql, [], |row| row.get(0)).unwrap();
        assert_eq!(database.query(&sql).trim(), count.to_string(), "{table}");
    }
}

#[test]
fn a_copy_into_a_database_that_was_killed_is_used_by_no_manager_and_begins_anew() {
    let database = InDatabase::create();
    let original = Original::with(5_000, 0);
    let url = database.url();
    begin(original.file.as_os_str(), url.as_ref(), || has_entries(&database), kill);
    let serve = |url: &str| {
        run(command()
            .args(["serve", "--listen", "127.0.0.1:0", "--db"])
            .arg(original.path("unused.db"))
            .env(variable("journal.url"), url))
    };
    assert_refused(&serve(&url), &["has not ended", "workflow-manager journal copy"]);
    let other = original.path("other.db");
    assert_refused(&copy(&url, &other), &["has not ended"]);
    assert_copied(&original.file, &url);
    assert_equal_jobs(&original.file, &database);
    assert_copied(&url, &other);
    assert_equal_jobs(&other, &database);
}

#[test]
fn a_copy_that_is_stopped_leaves_a_database_as_it_was() {
    let database = InDatabase::create();
    let original = Original::with(5_000, 0);
    let url = database.url();
    begin(
        original.file.as_os_str(),
        url.as_ref(),
        || has_entries(&database),
        |running| {
            must_succeed(Command::new("kill").args(["-INT", &running.0.id().to_string()]));
        },
    );
    let left = "SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM entries), \
                (SELECT count(*) FROM statuses), count(copied_from), count(owner) FROM names";
    assert_eq!(database.query(left).trim(), "0|0|0|0|0");
    assert_copied(&original.file, &url);
}

#[test]
fn a_copy_into_a_file_that_was_killed_leaves_no_journal_and_begins_anew() {
    let database = InDatabase::create();
    let original = Original::with(5_000, 0);
    assert_copied(&original.file, database.url());
    let target = original.path("back.db");
    let partial = original.path("back.db.partial");
    let has_jobs = || {
        let count = |journal: Connection| {
            journal.query_row("SELECT count(*) FROM entries", [], |row| row.get::<_, i64>(0))
        };
        partial.exists() && Connection::open(&partial).and_then(count).is_ok_and(|count| count > 0)
    };
    begin(database.url().as_ref(), target.as_os_str(), has_jobs, kill);
    assert!(!target.exists(), "nobody takes it for a journal");
    assert_copied(database.url(), &target);
    assert_equal_jobs(&target, &database);
    assert!(!partial.exists());
}

/// What the program needs for many jobs is far less than they have together.
#[test]
fn memory_is_bounded_however_much_is_copied() {
    const JOBS: i64 = 20_000;
    const PADDING: usize = 8_000;
    const MEMORY_MAX: u64 = 120 << 20;
    let database = InDatabase::create();
    let original = Original::with(JOBS, PADDING);
    assert!(fs::metadata(&original.file).unwrap().len() > MEMORY_MAX);
    // The first copy migrates the file, as a start does, with memory of its own.
    let of_migration = InDatabase::create();
    assert_copied(&original.file, of_migration.url());
    let ran = assert_copied(&original.file, database.url());
    assert!(ran.memory < MEMORY_MAX, "{} bytes", ran.memory);
    let ran = assert_copied(database.url(), original.path("back.db"));
    assert!(ran.memory < MEMORY_MAX, "{} bytes", ran.memory);
}

#[test]
fn what_cannot_be_copied_is_refused_with_what_to_do() {
    let database = InDatabase::create();
    let url = database.url();
    let original = Original::with(10, 0);
    let file = &original.file;
    assert_refused(&copy(file, original.path("b.db")), &["workflow-manager backup"]);
    assert_refused(&copy(&url, &url), &["pg_dump"]);
    assert_refused(&copy(original.path("none.db"), &url), &["there is no journal"]);
    assert_refused(&copy(&url, original.path("b.db")), &["it has no journal"]);
    assert!(!original.path("b.db").exists() && !original.path("b.db.lock").exists());
    let absent = copy(file, "@/nonexistent/url");
    assert_eq!(absent.code, Some(2), "{absent}");
    assert!(absent.stderr.contains("--to: cannot read /nonexistent/url"), "{absent}");

    // A damaged row, whose checksum does not fit.
    let damaged = original.path("damaged.db");
    fs::copy(file, &damaged).unwrap();
    let sql = "UPDATE entries SET body = replace(body, '4', '5') WHERE job = 100003";
    assert_eq!(Connection::open(&damaged).unwrap().execute(sql, []).unwrap(), 1);
    assert_refused(&copy(&damaged, &url), &["is damaged", "entries", "checksum"]);
    let no_tables = database.query("SELECT to_regclass('jobs') IS NULL");
    assert_eq!(no_tables.trim(), "t", "nothing was begun");

    // The address may be in a file.
    let address = original.path("address");
    fs::write(&address, format!("{url}\n")).unwrap();
    assert_copied(file, format!("@{}", address.display()));
    assert_refused(
        &copy(file, &url),
        &["it has a journal of the name default already", "createdb"],
    );
    assert_refused(&copy(&url, file), &["exists already"]);

    // A row of the database that is damaged.
    database.query(
        "UPDATE entries SET body = replace(body, '4', '5')
         WHERE first = 0 AND job = (SELECT max(job) FROM entries)",
    );
    assert_refused(&copy(&url, original.path("b.db")), &["is damaged", "entries", "checksum"]);
    let left: Vec<_> = fs::read_dir(original.dir.path()).unwrap().flatten().collect();
    assert!(!left.iter().any(|file| file.file_name().to_string_lossy().starts_with("b.db")));
}

#[test]
fn a_journal_that_a_manager_uses_is_not_copied() {
    let (used, free) = (InDatabase::create(), InDatabase::create());
    let in_file: Daemon = Setup::new("", ORDER).start();
    let ran = copy(in_file.database(), free.url());
    assert_refused(&ran, &["is in use by another process"]);
    let in_database = Setup::new("", ORDER).set("journal.url", &used.url()).start();
    let ran = copy(used.url(), in_database.dir().join("copy.db"));
    assert_refused(&ran, &["manager default is active", "stop it first"]);
    let original = Original::with(10, 0);
    let ran = copy(&original.file, used.url());
    assert_refused(&ran, &["manager default is active", "stop it first"]);
}

/// Two managers with files become two names of one database, one while the other works.
#[test]
fn a_copy_goes_beside_the_jobs_of_another_name() {
    let database = InDatabase::create();
    let mut other = Setup::new("", ORDER).set("journal.url", &database.url()).start();
    let job = other.api.create("order", INPUT);
    let before = told(&other.api, &[job]);
    let original = Original::with(10, 0);
    let jobs = "SELECT count(*) FROM jobs";
    let copy_as = |name: &str, arguments: [&OsStr; 2]| {
        let [from, to] = arguments;
        let mut copy = command();
        copy.args(["journal", "copy", "--from"]).arg(from).arg("--to").arg(to);
        run(copy.env(variable("cluster.name"), name))
    };
    let url = database.url();
    let ran = copy_as("second", [original.file.as_os_str(), url.as_ref()]);
    assert_eq!(ran.code, Some(0), "{ran}");
    assert_eq!(told(&other.api, &[job]), before);
    let all: i64 = database.query(jobs).trim().parse().unwrap();
    let back = original.path("back.db");
    let ran = copy_as("third", [url.as_ref(), back.as_os_str()]);
    assert_refused(&ran, &["no journal of the name third", "default, second"]);
    let ran = copy_as("second", [url.as_ref(), back.as_os_str()]);
    assert_eq!(ran.code, Some(0), "{ran}");
    let in_file: i64 =
        Connection::open(&back).unwrap().query_row(jobs, [], |row| row.get(0)).unwrap();
    assert_eq!(in_file, all - 1, "the jobs of the one name alone");
    assert!(other.stop().success());
}

/// A database that loses a row of what it is given, as a fault of this program would.
#[test]
fn a_copy_that_is_not_the_same_is_found_out_and_not_kept() {
    let database = InDatabase::create();
    let url = database.url();
    assert!(Setup::new("", ORDER).set("journal.url", &url).start().stop().success());
    database.query(
        "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           IF NEW.first > 0 AND NEW.body LIKE '%\"completed\"%' THEN RETURN NULL; END IF;
           RETURN NEW; END $$",
    );
    database
        .query("CREATE TRIGGER lose BEFORE INSERT ON entries FOR EACH ROW EXECUTE FUNCTION lose()");
    let original = Original::with(10, 0);
    let ran = copy(&original.file, &url);
    assert_refused(&ran, &["differs from it in job", "nothing of the copy is kept"]);
    assert_eq!(database.query("SELECT count(*) FROM jobs").trim(), "0");
    database.query("DROP TRIGGER lose ON entries");
    assert_copied(&original.file, &url);
}
