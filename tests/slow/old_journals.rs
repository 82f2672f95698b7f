//! Journals as earlier versions wrote them, with jobs of every kind under way: this version opens
//! them, and every job goes on. The files, one for each version of the schema, were made by
//! `tests/journals/make` with the programs of their time.

use rusqlite::{Connection, params};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use uuid::Uuid;

use crate::amqp::{Vhost, Worker, arguments};
use crate::harness::{Daemon, Setup, eventually, when, within};

/// The newest version of the schema of which there is a file.
const NEWEST: i64 = 8;

/// Thirty thousand steps take their time on a busy machine.
const LONG: Duration = Duration::from_secs(300);

const QUEUES: [&str; 9] = ["a", "b", "c", "split", "weigh", "mark", "join", "last", "tell"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/journals")
}

fn job(number: u32) -> Uuid {
    format!("00000000-0000-4000-8000-{number:012}").parse().expect("a uuid")
}

fn workflows() -> String {
    let read = |name| fs::read_to_string(folder().join(name)).expect("readable");
    // Both files together are one list of workflows.
    read("workflows.yaml") + read("later.yaml").trim_start_matches("workflows:\n")
}

/// A daemon on the journal of a version, to which something is added before, with workers that send
/// back what they are given.
fn goes_on_with(version: i64, add: impl FnOnce(&Connection)) -> (Daemon, Vhost, Worker) {
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, &workflows()).start();
    daemon.kill();
    let file = daemon.database();
    for suffix in ["", "-wal", "-shm"] {
        drop(fs::remove_file(format!("{}{suffix}", file.display())));
    }
    let sql = fs::read_to_string(folder().join(format!("schema-{version}.sql"))).expect("readable");
    let journal = Connection::open(&file).expect("made");
    journal.execute_batch(&sql).expect("a journal");
    add(&journal);
    drop(journal);
    // A caller's queue is its own affair.
    vhost.client().declare("answers", arguments([]));
    daemon.start_again();
    let worker = Worker::echo(&vhost.url, &QUEUES);
    // The messages that their old broker had confirmed are not in this broker.
    for queue in ["a", "b", "c", "split", "weigh", "mark", "join"] {
        drop(daemon.api.post(&format!("/api/queue/{queue}/redispatch"), ""));
    }
    (daemon, vhost, worker)
}

fn ends_with(daemon: &Daemon, number: u32, result: &str) {
    assert_eq!(daemon.api.await_result(job(number)), result, "job {number}");
}

fn post(daemon: &Daemon, path: &str, body: &str) {
    daemon.api.post(path, body).expect(200);
}

fn chains_and_fan_outs_go_on(daemon: &Daemon) {
    ends_with(daemon, 1, r#"{"n":1.1}"#);
    ends_with(daemon, 2, r#"{"sum":6}"#);
    assert_eq!(daemon.api.job(job(3)).state, "failed");
    post(daemon, &format!("/api/job/{}/retry", job(3)), "");
    ends_with(daemon, 3, r#"{"n":3}"#);
    ends_with(daemon, 4, r#"{"n":4}"#);
    ends_with(daemon, 11, r#"{"kg":2}"#);
    let gathered: Value = serde_json::from_str(&daemon.api.await_result(job(10))).expect("JSON");
    let sections = gathered["sections"].as_array().expect("a list");
    // Their order in the queue decided which items had been weighed and marked before.
    let count = |wanted: fn(&Value) -> bool| sections.iter().filter(|item| wanted(item)).count();
    let marked = count(|item| *item == json!({ "kg": 2, "good": true }));
    let weighed = count(|item| *item == json!({ "kg": 2 }));
    assert_eq!((marked, weighed, count(Value::is_number)), (2, 1, 2), "{gathered}");
}

fn what_was_operated_on_goes_on(daemon: &Daemon, vhost: &Vhost) {
    assert_eq!(daemon.api.job(job(5)).state, "paused");
    post(daemon, &format!("/api/job/{}/resume", job(5)), "");
    ends_with(daemon, 5, r#"{"n":5}"#);
    assert_eq!(daemon.api.job(job(6)).state, "cancelled");
    ends_with(daemon, 7, r#"{"n":7}"#);
    // The pause before its second attempt takes years.
    post(daemon, &format!("/api/job/{}/step/late", job(8)), r#"{"done":"by hand"}"#);
    ends_with(daemon, 8, r#"{"done":"by hand"}"#);
    let decision = r#"{"status":"APPROVED"}"#;
    post(daemon, &format!("/api/job/{}/step/review", job(9)), decision);
    ends_with(daemon, 9, decision);
    ends_with(daemon, 12, r#"{"n":12}"#);
    vhost.client().await_count("answers", 1);
}

fn opens_and_goes_on(version: i64) {
    let (daemon, vhost, _worker) = goes_on_with(version, |_| ());
    chains_and_fan_outs_go_on(&daemon);
    if version >= 4 {
        what_was_operated_on_goes_on(&daemon, &vhost);
    }
    // What lists and statuses say follows from the same rows.
    eventually("all are completed", || {
        let found = daemon.api.get("/api/jobs/search?state=running").expect(200).json();
        when(found["jobs"].as_array().is_some_and(Vec::is_empty), &found)
    });
    let statuses = daemon.api.get("/api/status/chain").expect(200).to_string();
    assert!(statuses.contains("COMPLETED") && !statuses.contains("PENDING"), "{statuses}");
}

#[test]
fn a_journal_of_schema_1_opens_and_goes_on() {
    opens_and_goes_on(1);
}

#[test]
fn a_journal_of_schema_2_opens_and_goes_on() {
    opens_and_goes_on(2);
}

#[test]
fn a_journal_of_version_0_1_0_opens_and_goes_on() {
    opens_and_goes_on(4);
}

#[test]
fn a_journal_of_schema_5_opens_and_goes_on() {
    opens_and_goes_on(5);
}

#[test]
fn a_journal_of_schema_7_opens_and_goes_on() {
    opens_and_goes_on(7);
}

#[test]
fn a_journal_of_schema_8_opens_and_goes_on() {
    opens_and_goes_on(8);
}

#[test]
fn every_file_is_of_the_version_that_its_name_says_and_has_a_test() {
    let mut versions: Vec<i64> = Vec::new();
    for entry in fs::read_dir(folder()).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "sql") {
            continue;
        }
        let journal = Connection::open_in_memory().expect("opens");
        journal.execute_batch(&fs::read_to_string(&path).expect("readable")).expect("a journal");
        let version: i64 =
            journal.pragma_query_value(None, "user_version", |row| row.get(0)).expect("a version");
        assert!(path.ends_with(format!("schema-{version}.sql")), "{}", path.display());
        versions.push(version);
    }
    versions.sort_unstable();
    // No program with schema 3 or 6 was ever released.
    assert_eq!(versions, [1, 2, 4, 5, 7, NEWEST]);
}

/// Jobs that are like job 4 of the file of version 0.1.0 when it had begun, each with rows of its
/// own, as that version wrote them.
fn add_running_jobs(journal: &Connection, count: i64) {
    const SAMPLE: i64 = 4;
    let (definition, created): (i64, i64) = journal
        .query_row("SELECT definition, created FROM jobs WHERE number = ?1", [SAMPLE], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .expect("the sample");
    let of_sample = "SELECT body FROM entries WHERE job = ?1 ORDER BY seq LIMIT 1";
    let body: String = journal.query_row(of_sample, [SAMPLE], |row| row.get(0)).expect("its start");
    journal.execute_batch("BEGIN").expect("begins");
    for number in FIRST_ADDED..FIRST_ADDED + count {
        let id = job(u32::try_from(number).expect("small"));
        let mut sum = crc32fast::Hasher::new();
        sum.update(id.as_bytes());
        for part in [number, definition, 0, number, -1, -1, -1, 0, created] {
            sum.update(&part.to_le_bytes());
        }
        journal
            .execute(
                "INSERT INTO jobs(number, id, workflow, definition, graph, root, depth, created, \
                   state, open, checksum)
                 VALUES (?1, ?2, 'chain', ?3, 0, ?1, 0, ?4, 'running', 1, ?5)",
                params![number, id.as_bytes(), definition, created, sum.finalize()],
            )
            .expect("a job");
        let sum = crc32fast::hash(&[&number.to_le_bytes()[..], body.as_bytes()].concat());
        journal
            .execute(
                "INSERT INTO entries(job, body, checksum) VALUES (?1, ?2, ?3)",
                params![number, body, sum],
            )
            .expect("its start");
    }
    journal.execute_batch("COMMIT").expect("commits");
}

const FIRST_ADDED: i64 = 100_000;

#[test]
fn ten_thousand_running_jobs_of_version_0_1_0_are_completed() {
    const COUNT: i64 = 10_000;
    let (daemon, _vhost, _worker) = goes_on_with(4, |journal| add_running_jobs(journal, COUNT));
    let journal = Connection::open(daemon.database()).expect("opens");
    within(LONG, "all that were running are completed", || {
        let done: i64 = journal
            .query_row(
                "SELECT count(*) FROM jobs WHERE number BETWEEN ?1 AND ?2 AND state = 'completed'",
                [FIRST_ADDED, FIRST_ADDED + COUNT - 1],
                |row| row.get(0),
            )
            .expect("reads");
        when(done == COUNT, done)
    });
    for at in [0, 4_711, COUNT - 1] {
        let number = u32::try_from(FIRST_ADDED + at).expect("small");
        ends_with(&daemon, number, r#"{"n":4}"#);
    }
}
