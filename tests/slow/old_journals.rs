//! Journals as released versions wrote them, with jobs of every kind under way: this version opens
//! them, and every job goes on. The files, one for each version of the schema, were made by
//! `tests/journals/make` with the programs of their time.

use rusqlite::{Connection, params};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use support::journal_rules::InDatabase;
use uuid::Uuid;

use crate::amqp::{Vhost, Worker, arguments};
use crate::harness::{Daemon, Setup, command, eventually, run, when, within};

/// The schema version of version 0.1.0.
pub(crate) const FIRST: i64 = 9;

/// The schema version before there were limits.
const BEFORE_LIMITS: i64 = 10;

/// The schema version before failed items ran again alone.
const BEFORE_FAILED_ITEMS: i64 = 13;

/// Thirty thousand steps take their time on a busy machine.
const LONG: Duration = Duration::from_secs(300);

const QUEUES: [&str; 11] =
    ["a", "b", "c", "split", "weigh", "mark", "join", "last", "tell", "slow", "weld"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/journals")
}

fn job(number: u32) -> Uuid {
    format!("00000000-0000-4000-8000-{number:012}").parse().expect("a uuid")
}

/// A daemon on the journal of a version, to which something is added before, with workers that send
/// back what they are given.
fn goes_on_with(version: i64, add: impl FnOnce(&Connection)) -> (Daemon, Vhost, Worker) {
    goes_on_after(version, add, |_| ())
}

/// The same; something is done to the journal before the daemon starts on it.
fn goes_on_after(
    version: i64,
    add: impl FnOnce(&Connection),
    prepare: impl FnOnce(&mut Daemon),
) -> (Daemon, Vhost, Worker) {
    let vhost = Vhost::new();
    let workflows = fs::read_to_string(folder().join("workflows.yaml")).expect("readable");
    // Its jobs ended when the file was made.
    let setup = Setup::new(&vhost.url, &workflows).set("journal.retention", "36500d");
    let mut daemon = setup.start();
    daemon.kill();
    let file = daemon.database();
    for suffix in ["", "-wal", "-shm"] {
        drop(fs::remove_file(format!("{}{suffix}", file.display())));
    }
    write_journal(version, &file, add);
    prepare(&mut daemon);
    // A caller's queue is its own affair.
    vhost.client().declare("answers", arguments([]));
    daemon.start_again();
    let worker = Worker::echo(&vhost.url, &QUEUES);
    // The messages that their old broker had confirmed are not in this broker.
    for queue in ["a", "b", "c", "split", "weigh", "mark", "join", "slow"] {
        drop(daemon.api.post(&format!("/api/queue/{queue}/redispatch"), ""));
    }
    (daemon, vhost, worker)
}

/// Makes the journal of a version as the new file `file`, and adds something to it.
pub(crate) fn write_journal(version: i64, file: &Path, add: impl FnOnce(&Connection)) {
    let sql = fs::read_to_string(folder().join(format!("schema-{version}.sql"))).expect("readable");
    let journal = Connection::open(file).expect("made");
    journal.execute_batch(&sql).expect("a journal");
    add(&journal);
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

fn what_workers_have_in_hand_goes_on(daemon: &Daemon) {
    ends_with(daemon, 13, r#"{"n":13}"#);
    // Its lease ended long ago, and its reply counts.
    let reply = format!("/api/queue/held/message/{}:held:1/1/reply", job(14));
    post(daemon, &reply, r#"{"n":14.0}"#);
    ends_with(daemon, 14, r#"{"n":14.0}"#);
}

#[test]
fn a_journal_of_version_0_1_0_opens_and_goes_on() {
    let (daemon, vhost, _worker) = goes_on_with(FIRST, |_| ());
    all_goes_on(&daemon, &vhost);
}

#[test]
fn a_journal_from_before_the_limits_opens_and_goes_on() {
    let (daemon, vhost, _worker) = goes_on_with(BEFORE_LIMITS, |_| ());
    all_goes_on(&daemon, &vhost);
}

#[test]
fn a_journal_from_before_failed_items_ran_again_alone_tells_its_own() {
    let (daemon, vhost, _worker) = goes_on_with(BEFORE_FAILED_ITEMS, |_| ());
    all_goes_on(&daemon, &vhost);
    failed_items_run_again(&daemon);
}

/// Job 15 had completed, and one of its items had failed: it is found, and mended.
fn failed_items_run_again(daemon: &Daemon) {
    let search = "/api/jobs/search?failedItems=true";
    let found = daemon.api.get(search).expect(200).json();
    assert_eq!(found["jobs"].as_array().map(Vec::len), Some(1), "{found}");
    assert_eq!(found["jobs"][0]["job"], job(15).to_string());
    post(daemon, &format!("/api/job/{}/rerun?step=parts&items=failed", job(15)), "");
    ends_with(daemon, 15, r#"{"parts":["done",2]}"#);
    assert_eq!(daemon.api.get(search).expect(200).json()["jobs"], json!([]));
}

/// Every job of a kept journal goes on in a database as it does in its file.
#[test]
fn every_kept_journal_goes_on_in_a_database_that_it_is_copied_into() {
    for version in kept_versions() {
        let database = InDatabase::create();
        let (daemon, vhost, _worker) = goes_on_after(
            version,
            |_| (),
            |daemon| {
                let ran = run(command()
                    .args(["journal", "copy", "--to", &database.url(), "--from"])
                    .arg(daemon.database()));
                assert_eq!(ran.code, Some(0), "{ran}");
                daemon.set_setting("journal.url", &database.url());
            },
        );
        all_goes_on(&daemon, &vhost);
        if version == BEFORE_FAILED_ITEMS {
            failed_items_run_again(&daemon);
        }
    }
}

fn all_goes_on(daemon: &Daemon, vhost: &Vhost) {
    chains_and_fan_outs_go_on(daemon);
    what_was_operated_on_goes_on(daemon, vhost);
    what_workers_have_in_hand_goes_on(daemon);
    // What lists and statuses say follows from the same rows.
    eventually("all are completed", || {
        let found = daemon.api.get("/api/jobs/search?state=running").expect(200).json();
        when(found["jobs"].as_array().is_some_and(Vec::is_empty), &found)
    });
    let statuses = daemon.api.get("/api/status/chain").expect(200).to_string();
    assert!(statuses.contains("COMPLETED") && !statuses.contains("PENDING"), "{statuses}");
}

#[test]
fn every_file_is_of_the_version_that_its_name_says_and_has_a_test() {
    assert_eq!(kept_versions(), [FIRST, BEFORE_LIMITS, BEFORE_FAILED_ITEMS]);
}

/// The versions of the kept journals, by what the files say.
fn kept_versions() -> Vec<i64> {
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
    versions
}

/// Jobs that are like job 4 of the file of version 0.1.0 when it had begun, as that version leaves
/// them when it is killed: their rows of `entries` are committed, and nothing else. The body of
/// each is longer by `padding` blanks.
pub(crate) fn add_running_jobs(journal: &Connection, count: i64, padding: usize) {
    const SAMPLE: i64 = 4;
    let of_sample = "SELECT at, body, origin FROM entries WHERE job = ?1 AND first = 0";
    let (at, body, origin): (i64, String, String) = journal
        .query_row(of_sample, [SAMPLE], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .expect("the sample");
    let origin: Value = serde_json::from_str(&origin).expect("JSON");
    let body = body.replacen('[', &format!("[{}", " ".repeat(padding)), 1);
    let last: i64 =
        journal.query_row("SELECT upto FROM derived", [], |row| row.get(0)).expect("the last row");
    journal.execute_batch("BEGIN").expect("begins");
    for (seq, number) in (last + 1..).zip(FIRST_ADDED..FIRST_ADDED + count) {
        let mut origin = origin.clone();
        origin[0] = job(u32::try_from(number).expect("small")).to_string().into();
        origin[3] = number.into();
        let origin = origin.to_string();
        let mut sum = crc32fast::Hasher::new();
        [number, 0, at].iter().for_each(|part| sum.update(&part.to_le_bytes()));
        sum.update(body.as_bytes());
        sum.update(&[0xff]);
        sum.update(origin.as_bytes());
        journal
            .execute(
                "INSERT INTO entries(seq, job, first, at, body, checksum, origin)
                 VALUES (?1, ?2, 0, ?3, ?4, ?5, ?6)",
                params![seq, number, at, body, sum.finalize(), origin],
            )
            .expect("its start");
    }
    journal.execute_batch("COMMIT").expect("commits");
}

const FIRST_ADDED: i64 = 100_000;

#[test]
fn ten_thousand_running_jobs_of_version_0_1_0_are_completed() {
    const COUNT: i64 = 10_000;
    let (daemon, _vhost, _worker) =
        goes_on_with(FIRST, |journal| add_running_jobs(journal, COUNT, 0));
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
