//! The files of the journal as operators handle them: copied, linked, removed under the process and
//! rescued. Mostly on the embedded bus, without workers: the broker plays little part in this.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::{Command, Stdio},
};

use uuid::Uuid;

use crate::amqp::{REPLY_QUEUE, Vhost};
use crate::harness::{
    Api, Daemon, Ran, Running, Setup, command, eventually, free_port, must_succeed, run, when,
};

const IDLE: &str = "workflows: [ { name: idle, steps: [ { name: work } ] } ]";

fn started() -> Daemon {
    Setup::new("", IDLE).start()
}

fn running(daemon: &Daemon) -> usize {
    daemon.api.get("/api/jobs").expect(200).ids("jobs").len()
}

/// `serve` that must refuse to start.
fn refused(dir: &Path, arguments: &[&str]) -> Ran {
    let ran = run(command().current_dir(dir).arg("serve").args(arguments));
    assert_eq!(ran.code, Some(1), "{ran}");
    ran
}

#[test]
fn after_sigterm_the_main_file_alone_has_all_that_was_accepted() {
    let mut daemon = started();
    let ids: Vec<Uuid> =
        (0..3).map(|n| daemon.api.create("idle", &format!(r#"{{"n":{n}}}"#))).collect();
    assert_eq!(running(&daemon), 3);
    assert!(daemon.stop().success());
    let wal = daemon.dir().join("journal.db-wal");
    assert_eq!(fs::metadata(&wal).map_or(0, |wal| wal.len()), 0);

    let mut copy = started();
    assert!(copy.stop().success());
    for suffix in ["", "-wal", "-shm"] {
        let _missing = fs::remove_file(copy.dir().join(format!("journal.db{suffix}")));
    }
    fs::copy(daemon.database(), copy.database()).unwrap();
    copy.start_again();
    for (n, id) in ids.into_iter().enumerate() {
        assert_eq!(copy.api.job(id).message_of("__start__"), format!(r#"{{"n":{n}}}"#));
    }
    assert!(!copy.log().contains("has no tables"));
}

#[test]
fn a_start_on_a_copy_without_its_wal_says_what_is_missing() {
    let daemon = started();
    daemon.api.create("idle", "{}");
    let copy = daemon.dir().join("copy.db");
    fs::copy(daemon.database(), &copy).unwrap();
    let mut other = Setup::new("", IDLE).spawn();
    other.kill_if_alive();
    for suffix in ["", "-wal", "-shm"] {
        let _missing = fs::remove_file(other.dir().join(format!("journal.db{suffix}")));
    }
    fs::rename(&copy, other.database()).unwrap();
    other.start_again();
    other.await_log(&["has no tables", "-wal"]);
}

#[test]
fn a_second_process_is_refused_whatever_name_it_gives_the_file() {
    let daemon = started();
    let dir = daemon.dir();
    symlink("journal.db", dir.join("link.db")).unwrap();
    symlink(".", dir.join("here")).unwrap();
    for name in ["journal.db", "link.db", "here/journal.db", "./here/link.db"] {
        let ran = refused(dir, &["--listen", "127.0.0.1:0", "--db", name]);
        assert!(
            ran.stderr.contains("in use by another process")
                && ran.stderr.contains("journal.db.lock"),
            "{name}: {ran}"
        );
    }
    fs::hard_link(dir.join("journal.db"), dir.join("hard.db")).unwrap();
    let ran = refused(dir, &["--listen", "127.0.0.1:0", "--db", "hard.db"]);
    assert!(ran.stderr.contains("hard links"), "{ran}");
    assert!(daemon.api.get("/readyz").status == 200, "the first goes on");
    for suffix in ["", "-wal", "-shm", ".lock"] {
        let mode =
            fs::metadata(dir.join(format!("journal.db{suffix}"))).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{suffix}");
    }
}

fn remove(daemon: &Daemon) {
    for suffix in ["", "-wal", "-shm"] {
        fs::remove_file(daemon.dir().join(format!("journal.db{suffix}"))).unwrap();
    }
}

/// As docs/how-to/back-up.md says, for files that have no name any more.
fn rescue(daemon: &Daemon) {
    let open = Path::new("/proc").join(daemon.pid().to_string()).join("fd");
    for name in ["journal.db", "journal.db-wal"] {
        let is_it = |entry: &fs::DirEntry| {
            fs::read_link(entry.path())
                .is_ok_and(|target| target.ends_with(format!("{name} (deleted)")))
        };
        let found = fs::read_dir(&open).unwrap().map(Result::unwrap).find(is_it).unwrap();
        fs::copy(found.path(), daemon.dir().join(name)).unwrap();
    }
}

#[test]
fn a_reply_that_comes_after_the_loss_stays_in_the_broker_for_the_next_start() {
    const TWO: &str = "workflows: [ { name: two, steps: [ { name: first }, \
                       { name: second, depends: [ first ] } ] } ]";
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, TWO).start();
    let id = daemon.api.create("two", r#"{"n":1}"#);
    let client = vhost.client();
    let message = client.take("first");
    remove(&daemon);
    eventually("readiness tells", || when(daemon.api.get("/readyz").status == 503, "ready"));
    client.reply(&message, r#"{"n":2}"#);
    client.ack(&message);
    eventually("the reply is taken", || {
        let (waiting, _) = client.count(REPLY_QUEUE).unwrap();
        when(waiting == 0, format!("{waiting} wait"))
    });
    assert_eq!(
        client.count("second").map(|(messages, _)| messages),
        Some(0),
        "nothing follows from it"
    );
    rescue(&daemon);
    assert!(daemon.stop().success());
    client.await_count(REPLY_QUEUE, 1);

    daemon.start_again();
    let next = client.take("second");
    assert_eq!(next.text(), r#"{"n":2}"#);
    client.reply(&next, r#"{"n":3}"#);
    client.ack(&next);
    assert_eq!(daemon.api.await_result(id), r#"{"n":3}"#);
}

#[test]
fn a_journal_that_was_removed_is_told_and_can_be_rescued_as_documented() {
    let mut daemon = started();
    let id = daemon.api.create("idle", r#"{"kept":true}"#);
    remove(&daemon);
    let answer = daemon.api.post("/api/workflow/idle", "{}");
    assert!(answer.status == 503 && answer.text.contains("was removed"), "{answer}");
    let ready = daemon.api.get("/readyz");
    assert!(ready.status == 503 && ready.text.contains("journal.db was removed"), "{ready}");
    assert_eq!(daemon.api.get("/livez").status, 200);
    assert_eq!(daemon.api.get(&format!("/api/job/{id}")).status, 503);
    assert_eq!(daemon.api.delete(&format!("/api/job/{id}")).status, 503);
    daemon.await_log(&["the journal is lost", "back-up.md"]);

    rescue(&daemon);
    assert!(daemon.stop().success());
    daemon.start_again();
    assert_eq!(daemon.api.job(id).message_of("__start__"), r#"{"kept":true}"#);
    assert_eq!(running(&daemon), 1, "the refused one was not kept");
}

#[test]
fn a_journal_that_another_file_replaces_is_told_while_nothing_is_asked() {
    let daemon = started();
    fs::write(daemon.dir().join("other"), "something else").unwrap();
    fs::rename(daemon.dir().join("other"), daemon.database()).unwrap();
    eventually("readiness tells", || {
        let ready = daemon.api.get("/readyz");
        when(ready.status == 503 && ready.text.contains("replaced by another file"), ready)
    });
}

#[test]
fn what_came_from_elsewhere_is_told_its_flag() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("workflow.yaml"), IDLE).unwrap();
    let ran = refused(dir.path(), &["--config", "workflow.yaml"]);
    assert!(ran.stderr.contains("did you mean --workflows workflow.yaml?"), "{ran}");
    let ran = refused(dir.path(), &["--db", "sqlite3:jobs.db"]);
    assert!(ran.stderr.contains("did you mean --db jobs.db?"), "{ran}");
    let ran = refused(dir.path(), &["--listen", ":8088"]);
    assert!(ran.stderr.contains("0.0.0.0:8088") && ran.stderr.contains("token"), "{ran}");
    fs::write(
        dir.path().join("notes.txt"),
        "notes, and enough of them to be longer than the header of a database: a hundred \
         bytes and some more",
    )
    .unwrap();
    let ran = refused(dir.path(), &["--listen", "127.0.0.1:0", "--db", "notes.txt"]);
    assert!(ran.stderr.contains("not a SQLite database"), "{ran}");
    assert!(!dir.path().join("notes.txt.lock").exists());
}

#[test]
fn check_reads_standard_input() {
    let check = |text: &str| {
        let program = env!("CARGO_BIN_EXE_workflow-manager");
        let mut shell = Command::new("sh");
        run(shell
            .args(["-c", &format!("printf '%s' '{text}' | \"{program}\" check -")])
            .stdin(Stdio::null()))
    };
    let valid = check(IDLE);
    assert!(valid.code == Some(0) && valid.stdout.contains("idle"), "{valid}");
    let wrong = check("workflows: [ { nam: idle } ]");
    assert!(wrong.code == Some(1) && wrong.stdout.contains("standard input:1:"), "{wrong}");
}

#[test]
fn in_memory_nothing_is_kept_and_that_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let (temporary, port, log) = (dir.path().join("tmp"), free_port(), dir.path().join("log"));
    fs::create_dir(&temporary).unwrap();
    fs::write(dir.path().join("workflow.yaml"), IDLE).unwrap();
    let mut serve = command();
    serve
        .current_dir(dir.path())
        .env("TMPDIR", &temporary)
        .stdin(Stdio::null())
        .stderr(fs::File::create(&log).unwrap());
    serve.args([
        "serve",
        "--db",
        ":memory:",
        "--workflows",
        "workflow.yaml",
        "--listen",
        &format!("localhost:{port}"),
    ]);
    let mut running = Running(serve.spawn().unwrap());
    let api = Api::new(&format!("http://127.0.0.1:{port}"), None);
    eventually("it is alive", || api.try_send("GET", "/livez", &[], None).map(drop));
    let id = api.create("idle", r#"{"n":1}"#);
    assert_eq!(api.job(id).message_of("__start__"), r#"{"n":1}"#);
    assert!(fs::read_to_string(&log).unwrap().contains("keeps nothing"));
    must_succeed(Command::new("sh").args(["-c", &format!("kill -TERM {}", running.0.id())]));
    let status = eventually("it ends", || running.0.try_wait().unwrap().ok_or("it runs"));
    assert!(status.success());
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "its journal is gone");
    assert!(!dir.path().join(":memory:").exists());
}
