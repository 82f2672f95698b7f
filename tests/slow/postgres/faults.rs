//! What the server answers when something is wrong with it, and what the manager does then.

use super::server::Server;
use super::{CHAIN, HttpWorker, JOBS, assert_all_completed, create_jobs, on, refused, takeovers};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use support::journal_rules::InDatabase;
use tempfile::TempDir;

use crate::harness::{Daemon, Setup, eventually, must_succeed, when};

/// Lets the next commits of a database fail with an SQLSTATE. Sequences count also what is rolled
/// back.
fn fail_commits(database: &InDatabase, count: u32, code: &str) {
    database.query(&format!(
        "CREATE SEQUENCE faults;
         CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN
             IF nextval('faults') <= {count} THEN
               RAISE EXCEPTION 'a test' USING ERRCODE = '{code}';
             END IF;
             RETURN NULL;
           END $$;
         CREATE TRIGGER fail AFTER INSERT ON entries EXECUTE FUNCTION fail()"
    ));
}

#[test]
fn a_commit_that_meets_a_deadlock_or_a_serialization_failure_is_sent_again() {
    for code in ["40P01", "40001"] {
        let database = InDatabase::create();
        let daemon = on(&database.url()).start();
        fail_commits(&database, 6, code);
        let jobs = create_jobs(&daemon, 3);
        let _worker = HttpWorker::start(vec![daemon.api.anew()]);
        assert_all_completed(&daemon, &database, &jobs);
        let attempts = database.query("SELECT last_value > 6 FROM faults");
        assert_eq!(attempts.trim(), "t", "{code}");
        let metric = daemon.api.metric("workflow_journal_failures_total{kind=\"unreachable\"}");
        assert_eq!(metric, 0, "{code}: nobody has to wait");
    }
}

#[test]
fn a_commit_whose_end_is_unknown_or_that_took_too_long_is_sent_again() {
    for code in ["40003", "25P04"] {
        let database = InDatabase::create();
        let daemon = on(&database.url()).start();
        fail_commits(&database, 6, code);
        let jobs = create_jobs(&daemon, 1);
        let _worker = HttpWorker::start(vec![daemon.api.anew()]);
        assert_all_completed(&daemon, &database, &jobs);
        assert_eq!(database.query("SELECT last_value > 6 FROM faults").trim(), "t", "{code}");
    }
}

/// Creations are refused, and the manager is not ready, for a reason with these words.
fn assert_waits(daemon: &Daemon, words: &str) {
    let api = daemon.api.anew();
    // Its commit meets the fault. Whether it counts is unknown until the server is well again.
    std::thread::spawn(move || drop(api.try_send("POST", "/api/workflow/chain", &[], Some(b"{}"))));
    eventually("it is not ready", || {
        let answer = daemon.api.get("/readyz");
        when(answer.status == 503 && answer.text.contains(words), format!("{answer}"))
    });
    eventually("a creation is refused", || {
        let answer = daemon.api.post("/api/workflow/chain", "{}");
        when(answer.status == 503 && answer.text.contains(words), format!("{answer}"))
    });
}

#[test]
fn a_server_that_becomes_read_only_is_waited_for() {
    let database = InDatabase::create();
    let daemon = on(&database.url()).start();
    let jobs = create_jobs(&daemon, JOBS);
    let name = database.query("SELECT current_database()");
    let alter = |what: &str| {
        database.query(&format!(
            "BEGIN READ WRITE; ALTER DATABASE {} {what}; COMMIT;
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()",
            name.trim()
        ));
    };
    alter("SET default_transaction_read_only = on");
    assert_waits(&daemon, "database server");
    alter("RESET default_transaction_read_only");
    let _worker = HttpWorker::start(vec![daemon.api.anew()]);
    for job in &jobs {
        daemon.api.await_state(*job, "completed");
    }
    assert_eq!(database.query("SELECT epoch FROM names").trim(), "1", "nobody has taken over");
}

/// A file system in memory for a tablespace.
struct SmallDisk(TempDir);

impl SmallDisk {
    /// None, and a word about it, where nothing may be mounted.
    fn mount() -> Option<SmallDisk> {
        let disk = SmallDisk(tempfile::tempdir().unwrap());
        let arguments = ["-t", "tmpfs", "-o", "size=40m", "tmpfs"];
        let mounted = Command::new("mount").args(arguments).arg(disk.0.path()).output().unwrap();
        if !mounted.status.success() {
            eprintln!("SKIPPED: no tmpfs can be mounted here (root only)");
            return None;
        }
        must_succeed(Command::new("chown").arg("postgres").arg(disk.0.path()));
        Some(disk)
    }

    fn fill(&self) {
        let mut file = File::create(self.0.path().join("filler")).unwrap();
        for size in [1 << 20, 1 << 12] {
            while file.write_all(&vec![1; size]).is_ok() {}
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Without it the folder cannot be removed, which says so.
        let _ended = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[test]
fn while_the_disk_of_the_server_is_full_everything_waits_and_then_goes_on() {
    let Some(disk) = SmallDisk::mount() else { return };
    // The checkpoints of the whole server fail too.
    let server = Server::start();
    server.query(&format!("CREATE TABLESPACE small LOCATION '{}'", disk.0.path().display()));
    server.query("CREATE DATABASE jobs TABLESPACE small");
    let daemon = on(&server.url.replace("/postgres", "/jobs")).start();
    let jobs = create_jobs(&daemon, 3);
    disk.fill();
    // It cannot be compressed, so it needs new pages.
    let text: String = (0..3_000).map(|_| uuid::Uuid::new_v4().to_string()).collect();
    let large = format!("{{\"text\":\"{text}\"}}");
    let api = daemon.api.anew();
    let creation = std::thread::spawn(move || api.create("chain", &large));
    eventually("it is not ready", || {
        let answer = daemon.api.get("/readyz");
        when(answer.status == 503 && answer.text.contains("no room"), format!("{answer}"))
    });
    assert_eq!(daemon.api.post("/api/workflow/chain", "{}").status, 503);
    assert!(daemon.api.metric("workflow_journal_failures_total{kind=\"full\"}") > 0);
    std::fs::remove_file(disk.0.path().join("filler")).unwrap();
    let _worker = HttpWorker::start(vec![daemon.api.anew()]);
    let waited = creation.join().expect("the creation that met the full disk counts");
    for job in jobs.iter().chain([&waited]) {
        daemon.api.await_state(*job, "completed");
    }
}

#[test]
fn a_database_that_went_back_ends_the_manager() {
    let server = Server::start();
    let mut daemon = on(&server.url).start();
    create_jobs(&daemon, 3);
    server.stop();
    let (data, copy) = (server.dir.path().join("data"), server.dir.path().join("copy"));
    let copy_folder = |from: &Path, to: &Path| {
        must_succeed(Command::new("cp").arg("-a").arg(from).arg(to));
    };
    copy_folder(&data, &copy);
    server.start_again();
    eventually("the database is there again", || {
        let answer = daemon.api.post("/api/workflow/chain", "{}");
        when(answer.status == 201, format!("{answer}"))
    });
    server.kill();
    std::fs::remove_dir_all(&data).unwrap();
    copy_folder(&copy, &data);
    server.start_again();
    // Its commit needs the connection.
    let api = daemon.api.anew();
    std::thread::spawn(move || drop(api.try_send("POST", "/api/workflow/chain", &[], Some(b"{}"))));
    assert_eq!(daemon.await_end().code(), Some(74));
    daemon.await_log(&["the database has lost a commit"]);
}

/// How long the name of an active manager that does not beat is kept.
const LEASE: Duration = Duration::from_secs(10);

#[test]
fn while_the_synchronous_standby_is_away_commits_wait_and_nobody_is_buried() {
    let server = Server::start();
    let first = on(&server.url).start();
    let second = on(&server.url).spawn();
    second.await_standby();
    let jobs = create_jobs(&first, JOBS);
    server.query("ALTER SYSTEM SET synchronous_standby_names = 'away'");
    server.query("SELECT pg_reload_conf()");
    let started = Instant::now();
    // The server's processes take the new setting up one by one: one of these commits meets it.
    let api = first.api.anew();
    std::thread::spawn(move || {
        let mut began = Instant::now();
        let create = || api.try_send("POST", "/api/workflow/chain", &[], Some(b"{}"));
        while create().is_ok_and(|answer| answer.status == 201)
            && began.elapsed() < Duration::from_secs(1)
        {
            began = Instant::now();
        }
    });
    assert_waits(&first, "database server");
    // A wait that an operator cancels is no answer: the commit is sent again, and waits again.
    let cancel = "SELECT count(pg_cancel_backend(pid)) > 0 FROM pg_stat_activity
                  WHERE wait_event = 'SyncRep'";
    eventually("waits are cancelled", || when(server.query(cancel).trim() == "t", "none waits"));
    eventually("the lease is over", || when(started.elapsed() > 2 * LEASE, "not yet"));
    assert_waits(&first, "database server");
    assert_eq!(takeovers(&second), 0, "nobody is buried");
    server.query("ALTER SYSTEM RESET synchronous_standby_names");
    server.query("SELECT pg_reload_conf()");
    let _worker = HttpWorker::start(vec![first.api.anew()]);
    for job in &jobs {
        first.api.await_state(*job, "completed");
    }
    first.await_log(&["answers again"]);
    assert_eq!(server.query("SELECT epoch FROM names").trim(), "1");
}

#[test]
fn a_server_without_a_synchronous_standby_is_refused_if_one_is_required() {
    let database = InDatabase::create();
    let setup = Setup::new("", CHAIN).set("journal.url", &database.url());
    let mut daemon = setup.set("journal.require_synchronous", "true").spawn();
    assert_eq!(daemon.await_end().code(), Some(1));
    daemon.await_log(&["journal.require_synchronous", "synchronous_standby_names"]);
    refused("postgres://a:hidden@127.0.0.1:1/b", &["Check that the server runs"]);
}

#[test]
fn a_clock_that_differs_from_the_servers_is_told() {
    let database = InDatabase::create();
    let told = |seconds: i64, status: u16| {
        let setup = Setup::new("", CHAIN).set("journal.url", &database.url());
        let mut daemon = setup.faults(&format!("clock::now=return({seconds})")).spawn();
        daemon.await_alive();
        daemon.await_log(&["that of the database server"]);
        eventually("readiness", || {
            let answer = daemon.api.get("/readyz");
            when(answer.status == status, format!("{answer}"))
        });
        let answer = daemon.api.get("/readyz").text;
        assert_eq!(answer.contains("clock of this machine"), status == 503, "{answer}");
        assert_eq!(daemon.stop().code(), Some(0));
    };
    told(5, 200);
    told(-60, 503);
}
