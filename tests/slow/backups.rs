//! `backup` and `restore`: copies that are taken while the manager works, and what becomes of the
//! jobs in them.

use crate::amqp::{Vhost, Worker};
use crate::harness::{Daemon, Ran, Setup, command, eventually, must_succeed, run, when};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use uuid::Uuid;

const CHAIN: &str = "workflows:
  - name: chain
    steps:
      - { name: first, timeout: 1h }
      - { name: items, task: item, depends: [ first ] }
      - { name: last, timeout: 1h, depends: [ items ] }
    tasks:
      - { name: item, itemListKey: list, steps: [ { name: each, timeout: 1h } ] }";
const QUEUES: [&str; 3] = ["first", "each", "last"];
const INPUT: &str = r#"{"list":[1,2,3]}"#;

fn backup(arguments: &[&OsStr]) -> Ran {
    run(command().arg("backup").args(arguments))
}

fn restore(arguments: &[&OsStr]) -> Ran {
    run(command().arg("restore").args(arguments))
}

/// How many jobs a manager would go on with.
#[track_caller]
fn open_jobs(file: &Path) -> u64 {
    let ran = restore(&[file.as_os_str(), "--check".as_ref(), "--json".as_ref()]);
    assert_eq!(ran.code, Some(0), "{ran}");
    serde_json::from_str::<Value>(&ran.stdout).unwrap()["openJobs"].as_u64().unwrap()
}

/// Ends the manager, and starts it again on what `copy` has of its journal.
fn start_from(copy: &Path, daemon: &mut Daemon) {
    daemon.kill();
    for suffix in ["", "-wal", "-shm"] {
        let _missing = fs::remove_file(daemon.dir().join(format!("journal.db{suffix}")));
    }
    let ran = restore(&[copy.as_os_str(), "--db".as_ref(), daemon.database().as_os_str()]);
    assert_eq!(ran.code, Some(0), "{ran}");
    daemon.start_again();
}

/// All that was accepted before the backup began is in it, and ends with the right result on a
/// manager that is started on it, though the one before worked on all the while.
#[test]
fn a_backup_taken_under_load_is_restored_and_every_job_in_it_ends() {
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, CHAIN).start();
    let worker = Worker::echo(&vhost.url, &QUEUES);
    let is_over = Arc::new(AtomicBool::new(false));
    let (api, ends) = (daemon.api.with_token(None), is_over.clone());
    let load = thread::spawn(move || {
        let mut ids: Vec<Uuid> = Vec::new();
        while !ends.load(Ordering::Relaxed) {
            ids.push(api.create("chain", INPUT));
        }
        ids
    });
    // What is not done when it is taken: nobody works on it.
    let waiting: Vec<Uuid> = {
        eventually("jobs are under way", || {
            let found =
                daemon.api.get("/api/jobs/search?state=completed&limit=20").expect(200).json();
            let ended = found["jobs"].as_array().unwrap().len();
            when(ended == 20, format!("{ended} have ended"))
        });
        drop(worker);
        (0..5).map(|_| daemon.api.create("chain", INPUT)).collect()
    };
    let copy = daemon.dir().join("backup.db");
    let journal = daemon.database();
    let ran = backup(&["--db".as_ref(), journal.as_os_str(), copy.as_os_str()]);
    assert_eq!(ran.code, Some(0), "{ran}");
    assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(open_jobs(&copy) >= 5);
    // It goes on working, and nothing is left beside the copy.
    let after = daemon.api.create("chain", INPUT);
    is_over.store(true, Ordering::Relaxed);
    let all = load.join().unwrap();
    let beside = fs::read_dir(daemon.dir()).unwrap().flatten();
    let beside: Vec<_> = beside.map(|file| file.file_name()).collect();
    assert!(!beside.iter().any(|name| name.to_string_lossy().contains("backup.db.")), "{beside:?}");

    start_from(&copy, &mut daemon);
    let _worker = Worker::echo(&vhost.url, &QUEUES);
    for id in waiting {
        assert_eq!(daemon.api.await_result(id), INPUT);
    }
    // What came before the backup is in it, and ends; what came after it is not.
    let kept: Vec<Uuid> = all
        .into_iter()
        .filter(|id| daemon.api.get(&format!("/api/job/{id}")).status == 200)
        .collect();
    assert!(kept.len() >= 20, "{}", kept.len());
    for id in kept {
        assert_eq!(daemon.api.await_result(id), INPUT);
    }
    daemon.api.get(&format!("/api/job/{after}")).expect(404);
}

/// The broker goes on after a backup: a reply that was taken since never comes again. So a step
/// whose message the broker had is dispatched again.
#[test]
fn a_step_that_was_answered_after_the_backup_runs_again_once_it_is_restored() {
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, CHAIN).start();
    let id = daemon.api.create("chain", INPUT);
    eventually("its message is journaled as confirmed", || {
        let record = daemon.api.get(&format!("/api/job/{id}/entries")).expect(200).json();
        let mut entries = record["entries"].as_array().unwrap().iter();
        when(entries.any(|entry| entry["kind"] == "step.confirmed"), record.to_string())
    });
    let (copy, journal) = (daemon.dir().join("backup.db"), daemon.database());
    let ran = backup(&["--db".as_ref(), journal.as_os_str(), copy.as_os_str()]);
    assert_eq!(ran.code, Some(0), "{ran}");
    let _worker = Worker::echo(&vhost.url, &QUEUES);
    assert_eq!(daemon.api.await_result(id), INPUT);

    start_from(&copy, &mut daemon);
    assert_eq!(daemon.api.await_result(id), INPUT);
}

/// A slow copy is of one moment: what is committed meanwhile does not begin it anew.
#[test]
fn a_slow_backup_ends_although_the_manager_writes_on() {
    let daemon = Setup::new("", CHAIN).start();
    let large = format!(r#"{{"list":[],"text":"{}"}}"#, "x".repeat(100_000));
    for _ in 0..30 {
        daemon.api.create("chain", &large);
    }
    let copy = daemon.dir().join("backup.db");
    let mut backing_up = command();
    backing_up.args(["backup", "--rate", "1", "--db"]).arg(daemon.database()).arg(&copy);
    let mut backing_up = backing_up.spawn().unwrap();
    let mut meanwhile = 0;
    while backing_up.try_wait().unwrap().is_none() {
        daemon.api.create("chain", INPUT);
        meanwhile += 1;
    }
    assert!(backing_up.wait().unwrap().success());
    assert!(open_jobs(&copy) < 30 + meanwhile, "{meanwhile}");
}

fn stopped() -> Daemon {
    let mut daemon = Setup::new("", CHAIN).start();
    daemon.api.create("chain", INPUT);
    assert!(daemon.stop().success());
    daemon
}

#[test]
fn what_cannot_be_backed_up_or_restored_is_told_and_nothing_is_written() {
    let daemon = stopped();
    let (journal, dir) = (daemon.database(), daemon.dir());
    let (journal, copy) = (journal.as_os_str(), dir.join("copy.db"));
    let db: &OsStr = "--db".as_ref();
    let missing = dir.join("missing.db");
    let ran = backup(&[db, missing.as_os_str(), copy.as_os_str()]);
    assert!(ran.code == Some(1) && ran.stderr.contains("there is no journal"), "{ran}");
    let ran = backup(&[db, journal, journal]);
    assert!(ran.code == Some(1) && ran.stderr.contains("exists already"), "{ran}");
    let nowhere = dir.join("no/such/copy.db");
    let ran = backup(&[db, journal, nowhere.as_os_str()]);
    assert!(ran.code == Some(1) && ran.stderr.contains("Its directory must exist"), "{ran}");
    fs::write(dir.join("text"), "no journal").unwrap();
    let text = dir.join("text");
    let ran = backup(&[db, text.as_os_str(), copy.as_os_str()]);
    assert!(ran.code == Some(1) && ran.stderr.contains("database"), "{ran}");
    assert!(!copy.exists());

    let ran = backup(&[db, journal, copy.as_os_str()]);
    assert!(
        ran.code == Some(0) && ran.stdout.contains(" 1 jobs and child jobs to go on with"),
        "{ran}"
    );
    assert_eq!(open_jobs(&copy), 1);
    let ran = restore(&[copy.as_os_str(), db, journal]);
    assert!(ran.code == Some(1) && ran.stderr.contains("exists already"), "{ran}");
    let ran = restore(&[copy.as_os_str()]);
    assert_eq!(ran.code, Some(2), "{ran}");

    // A byte of a row is another one.
    let file = opened(&copy);
    file.execute("UPDATE entries SET body = replace(body, 'list', 'LIST')", []).unwrap();
    drop(file);
    let ran = restore(&[copy.as_os_str(), "--check".as_ref()]);
    assert!(
        ran.code == Some(1) && ran.stderr.contains("is damaged: table entries, row 1"),
        "{ran}"
    );
    let restored = dir.join("restored.db");
    let ran = restore(&[copy.as_os_str(), db, restored.as_os_str()]);
    assert!(ran.code == Some(1) && !restored.exists(), "{ran}");
    let left: Vec<_> = fs::read_dir(dir).unwrap().flatten().map(|file| file.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("partial")), "{left:?}");
}

fn opened(file: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(file).unwrap()
}

/// A backup that an earlier version has written is brought up when it is restored.
#[test]
fn a_backup_of_an_earlier_version_is_restored() {
    let folder = tempfile::tempdir().unwrap();
    let journals = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/journals");
    let mut count = 0;
    for file in fs::read_dir(journals).unwrap().flatten() {
        let path = file.path();
        if path.extension().is_none_or(|extension| extension != "sql") {
            continue;
        }
        count += 1;
        let backup = folder.path().join(format!("backup-{count}"));
        opened(&backup).execute_batch(&fs::read_to_string(&path).unwrap()).unwrap();
        let path = backup;
        let before = fs::read(&path).unwrap();
        let restored = folder.path().join(format!("restored-{count}"));
        let mut restoring = command();
        restoring.arg("restore").arg(&path).arg("--db").arg(&restored);
        must_succeed(&mut restoring);
        assert!(restored.exists());
        assert_eq!(fs::read(&path).unwrap(), before, "{path:?}");
    }
    assert!(count > 0, "there are journals of earlier versions");
}
