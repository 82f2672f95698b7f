//! The daemon on a journal in PostgreSQL: kills, takeovers, stops, a server that goes away, and
//! what the start refuses.

mod faults;
pub(crate) mod server;
mod standby;
mod tls;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use support::journal_rules::InDatabase;
use uuid::Uuid;

use self::server::Server;
use crate::harness::{
    Api, Daemon, Ran, Setup, command, eventually, must_succeed, run, variable, when,
};

pub(crate) const CHAIN: &str = "workflows: [{ name: chain, steps: [{ name: first, queue: work }, \
                     { name: second, queue: work, depends: [ first ] }] }]";

/// How long a worker pauses when no manager had a message.
const WORKER_PAUSE: Duration = Duration::from_millis(20);

/// How many jobs are under way at a fault.
pub(crate) const JOBS: usize = 40;

pub(crate) fn on(url: &str) -> Setup {
    let setup = Setup::new("", CHAIN).set("journal.url", url).set("journal.full_retry", "100ms");
    // A message whose reply was lost with its manager is lent again after this.
    setup.set("embedded.lease", "2s")
}

/// A worker over HTTP that answers every message of the queue `work`, at whichever of the managers
/// answers.
pub(crate) struct HttpWorker {
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl HttpWorker {
    pub(crate) fn start(apis: Vec<Api>) -> HttpWorker {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stop = is_stopped.clone();
        let thread = thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                let answered = apis.iter().filter(|api| answer_one(api)).count();
                if answered == 0 {
                    // A manager that is away answers at once.
                    thread::sleep(WORKER_PAUSE);
                }
            }
        });
        HttpWorker { is_stopped, thread: Some(thread) }
    }
}

impl Drop for HttpWorker {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

/// Answers a message, if there is one. Returns whether there was.
fn answer_one(api: &Api) -> bool {
    let path = "/api/queue/work/receive?wait=0s";
    let Ok(message) = api.try_send("POST", path, &[], None) else { return false };
    if message.status != 200 {
        return false;
    }
    let reply_to = format!("{}?type=result", message.header("reply-to"));
    // After a reply that is lost the message is lent again.
    let _answer = api.try_send("POST", &reply_to, &[], Some(b"{\"done\":true}"));
    true
}

/// Sends a signal to a daemon.
pub(crate) fn signal(name: &str, daemon: &Daemon) {
    let pid = daemon.pid().to_string();
    must_succeed(Command::new("kill").args([&format!("-{name}"), &pid]));
}

/// Returns how often the daemon has taken over from one that did not beat.
pub(crate) fn takeovers(daemon: &Daemon) -> usize {
    daemon.log().lines().filter(|line| line.contains("this one takes over")).count()
}

pub(crate) fn create_jobs(daemon: &Daemon, count: usize) -> Vec<Uuid> {
    (0..count).map(|index| daemon.api.create("chain", &format!("{{\"index\":{index}}}"))).collect()
}

/// Waits until all jobs are completed, and checks the journal by SQL: no job is missing, and no
/// step has two results.
#[track_caller]
pub(crate) fn assert_all_completed(daemon: &Daemon, database: &InDatabase, jobs: &[Uuid]) {
    for job in jobs {
        daemon.api.await_state(*job, "completed");
    }
    let count = database.query("SELECT count(*) FROM \"status_chain\" WHERE state = 'completed'");
    assert_eq!(count.trim(), jobs.len().to_string());
    assert_records_sound(database);
    let view =
        "SELECT DISTINCT first, second, created > now() - interval '1 hour', updated >= created
                FROM \"status_chain\"";
    assert_eq!(database.query(view).trim(), "COMPLETED|COMPLETED|t|t");
}

/// Checks by SQL that each step has one result, and that each record is without gaps.
#[track_caller]
pub(crate) fn assert_records_sound(database: &InDatabase) {
    let repeated = "SELECT e.job, element -> 'step' -> 0
                    FROM entries e, jsonb_array_elements(e.body::jsonb) AS element
                    WHERE element -> 'step' -> 1 ? 'completed' GROUP BY 1, 2 HAVING count(*) <> 1";
    assert_eq!(database.query(repeated), "");
    let gaps = "SELECT job FROM (
                  SELECT job, first, coalesce(lag(first + jsonb_array_length(body::jsonb))
                    OVER (PARTITION BY job ORDER BY first), 0) AS expected FROM entries) e
                WHERE first <> expected";
    assert_eq!(database.query(gaps), "");
}

#[test]
fn a_killed_manager_goes_on_after_its_lease_with_every_job() {
    let database = InDatabase::create();
    let mut daemon = on(&database.url()).start();
    let jobs = create_jobs(&daemon, JOBS);
    let worker = HttpWorker::start(vec![daemon.api.anew()]);
    daemon.api.await_state(jobs[0], "completed");
    daemon.kill();
    drop(worker);
    daemon.start_again();
    assert_eq!(takeovers(&daemon), 1, "the lease was waited for");
    let _worker = HttpWorker::start(vec![daemon.api.anew()]);
    assert_all_completed(&daemon, &database, &jobs);
    assert_eq!(daemon.stop().code(), Some(0));
    let owners = database.query("SELECT count(owner) FROM names");
    assert_eq!(owners.trim(), "0", "a stop gives the name back");
    daemon.start_again();
    assert_eq!(takeovers(&daemon), 1, "nothing is waited for");
}

#[test]
fn a_standby_takes_over_from_a_killed_manager_and_at_once_from_a_stopped_one() {
    let database = InDatabase::create();
    let mut first = on(&database.url()).start();
    let mut second = on(&database.url()).spawn();
    second.await_standby();
    let _worker = HttpWorker::start(vec![first.api.anew(), second.api.anew()]);
    let mut jobs = create_jobs(&first, JOBS);
    first.api.await_state(jobs[0], "completed");
    first.kill();
    second.await_ready();
    assert_eq!(takeovers(&second), 1, "the lease was waited for");
    jobs.extend(create_jobs(&second, JOBS));
    first.spawn_again();
    first.await_standby();
    assert_eq!(second.stop().code(), Some(0));
    first.await_ready();
    assert_eq!(takeovers(&first), 0, "the name was free");
    assert_all_completed(&first, &database, &jobs);
}

#[test]
fn a_manager_that_was_stopped_for_too_long_writes_no_more_and_ends() {
    let database = InDatabase::create();
    let mut first = on(&database.url()).start();
    let jobs = create_jobs(&first, JOBS);
    signal("STOP", &first);
    let mut second = on(&database.url()).spawn();
    second.await_ready();
    let _worker = HttpWorker::start(vec![second.api.anew()]);
    let entries = || database.query("SELECT count(*) FROM entries");
    assert_all_completed(&second, &database, &jobs);
    let before = entries();
    signal("CONT", &first);
    assert_eq!(first.await_end().code(), Some(75), "it is started again, and stands by");
    assert_eq!(entries(), before, "it has written nothing");
}

#[test]
fn while_the_server_is_away_everything_waits_and_then_goes_on() {
    let server = Server::start();
    let daemon = on(&server.url).start();
    let jobs = create_jobs(&daemon, JOBS);
    let _worker = HttpWorker::start(vec![daemon.api.anew()]);
    daemon.api.await_state(jobs[0], "completed");
    server.kill();
    let words = ["database server"];
    // One that came before the server's absence was noticed waits for its commit.
    let impatient = daemon.api.with_timeout(Duration::from_secs(3));
    eventually("a creation is refused", || {
        match impatient.try_send("POST", "/api/workflow/chain", &[], Some(b"{}")) {
            Ok(answer) => {
                when(answer.status == 503 && answer.text.contains(words[0]), format!("{answer}"))
            }
            Err(error) => when(false, error.to_string()),
        }
    });
    eventually("it is not ready", || {
        let answer = daemon.api.get("/readyz");
        when(answer.status == 503 && answer.text.contains(words[0]), format!("{answer}"))
    });
    assert!(daemon.api.metric("workflow_journal_failures_total{kind=\"unreachable\"}") > 0);
    server.start_again();
    for job in &jobs {
        daemon.api.await_state(*job, "completed");
    }
    daemon.await_log(&["answers again"]);
}

#[test]
fn connections_that_are_cut_in_the_middle_of_commits_lose_and_repeat_nothing() {
    let database = InDatabase::create();
    let daemon = on(&database.url()).start();
    let _worker = HttpWorker::start(vec![daemon.api.anew()]);
    let mut jobs = Vec::new();
    for _ in 0..JOBS {
        jobs.push(daemon.api.create("chain", "{}"));
        // Those of commits, of the beat and of the readers.
        database.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()",
        );
    }
    assert_all_completed(&daemon, &database, &jobs);
    let epoch = database.query("SELECT epoch FROM names");
    assert_eq!(epoch.trim(), "1", "nobody has taken over");
}

#[test]
fn a_standby_that_has_waited_for_days_still_takes_over() {
    let database = InDatabase::create();
    let mut first = on(&database.url()).start();
    let mut second = on(&database.url()).spawn();
    second.await_standby();
    // A start removes the rows of processes that were not seen for a day.
    signal("STOP", &second);
    database.query("UPDATE managers SET seen = now() - interval '2 days'");
    let mut third = on(&database.url()).spawn();
    third.await_standby();
    signal("CONT", &second);
    third.kill();
    let jobs = create_jobs(&first, 2);
    first.kill();
    second.await_ready();
    let _worker = HttpWorker::start(vec![second.api.anew()]);
    assert_all_completed(&second, &database, &jobs);
}

#[test]
fn a_status_with_a_character_that_postgres_cannot_store_is_stored_without_it() {
    let database = InDatabase::create();
    let with_status = CHAIN.replace("name: first,", "name: first, statusKey: status,");
    let setup = Setup::new("", &with_status).set("journal.url", &database.url());
    let daemon = setup.start();
    let job = daemon.api.create("chain", "{}");
    let message = daemon.api.send("POST", "/api/queue/work/receive?wait=30s", &[], None);
    let reply_to = format!("{}?type=result", message.expect(200).header("reply-to"));
    daemon.api.post(&reply_to, "{\"status\":\"a\\u0000b\"}").expect(200);
    let _worker = HttpWorker::start(vec![daemon.api.anew()]);
    daemon.api.await_state(job, "completed");
    let status = database.query("SELECT first FROM \"status_chain\"");
    assert_eq!(status.trim(), "a\u{fffd}b");
}

#[test]
fn a_report_that_reads_a_view_for_long_keeps_no_start_waiting() {
    let database = InDatabase::create();
    drop(on(&database.url()).start());
    let psql = Path::new(&std::env::var("POSTGRES_BIN").unwrap()).join("psql");
    let sql = "BEGIN; SELECT count(*) FROM \"status_chain\"; SELECT pg_sleep(600)";
    let mut report = Command::new(psql)
        .args([database.url().as_str(), "-c", sql])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    eventually("the report reads the view", || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%'
                   AND state = 'active' AND pid <> pg_backend_pid()
                   AND EXISTS (SELECT 1 FROM pg_locks WHERE relation = 'status_chain'::regclass)";
        when(database.query(sql).trim() == "1", "not yet")
    });
    let third = "depends: [ first ] }, { name: third, queue: work, depends: [ second ] }";
    let more = CHAIN.replace("depends: [ first ] }", third);
    let setup = Setup::new("", &more).set("journal.url", &database.url());
    let daemon = setup.set("embedded.lease", "2s").start();
    let _worker = HttpWorker::start(vec![daemon.api.anew()]);
    let job = daemon.api.create("chain", "{}");
    daemon.api.await_state(job, "completed");
    daemon.await_log(&["the view of statuses cannot be created now"]);
    report.kill().unwrap();
    report.wait().unwrap();
}

#[test]
fn doctor_checks_the_database() {
    let database = InDatabase::create();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("workflows.yaml");
    std::fs::write(&file, CHAIN).unwrap();
    let doctor = |url: &str| {
        let mut doctor = command();
        doctor.arg("doctor").arg("--workflows").arg(&file);
        doctor.env(variable("journal.url"), url).current_dir(dir.path());
        run(&mut doctor).text()
    };
    assert!(doctor(&database.url()).contains("is empty: the first start creates the tables"));
    drop(on(&database.url()).start());
    assert!(doctor(&database.url()).contains("has a journal"));
    let text = doctor("postgres://a:hidden@127.0.0.1:1/b");
    assert!(text.contains("Check that the server runs") && !text.contains("hidden"), "{text}");
}

/// What the start says about a journal that it cannot use.
#[track_caller]
fn refused(url: &str, words: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("workflows.yaml");
    std::fs::write(&file, CHAIN).unwrap();
    let mut serve = command();
    serve.arg("serve").arg("--workflows").arg(&file).args(["--listen", "127.0.0.1:0"]);
    serve.env(variable("journal.url"), url).current_dir(dir.path());
    let ran: Ran = run(&mut serve);
    let text = ran.text();
    assert_eq!(ran.code, Some(1), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
    assert!(!text.contains("hidden"), "the password is shown: {text}");
}

#[test]
fn a_database_that_cannot_hold_a_journal_is_refused_with_what_to_do() {
    refused("mysql://a:hidden@b/c", &["journal.url", "postgres://"]);
    refused("postgres://a:hidden@b", &["journal.url", "database"]);
    let database = InDatabase::create();
    let missing = format!("{}x", database.url());
    refused(&missing, &["does not exist", "createdb"]);
    refused("postgres://a:hidden@127.0.0.1:1/b", &["127.0.0.1:1/b", "Check that the server runs"]);

    database.query("CREATE TABLE customers(name text)");
    refused(&database.url(), &["customers", "database of its own", "Nothing was changed"]);
    assert_eq!(
        database.query("SELECT count(*) FROM pg_tables WHERE tablename = 'jobs'").trim(),
        "0"
    );

    let latin = InDatabase::with_options("ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'");
    refused(&latin.url(), &["LATIN1", "UTF8"]);

    let role = format!("reader_{}", Uuid::new_v4().simple());
    let foreign = InDatabase::create();
    foreign.query(&format!("CREATE ROLE {role} LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC"));
    let url = foreign.url().replace("workflow@", &format!("{role}@"));
    refused(&url, &["permission denied", "GRANT CREATE"]);
    foreign.query(&format!("DROP ROLE {role}"));

    let newer = InDatabase::create();
    drop(on(&newer.url()).start());
    newer.query("UPDATE cluster SET format = 99");
    refused(&newer.url(), &["99", "newer version"]);
}
