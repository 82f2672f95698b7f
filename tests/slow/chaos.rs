//! Real parts are broken under load: the process is killed, the broker ends, blocks or loses
//! queues, the disk is full, bytes of the journal change.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Instant,
};

use rusqlite::Connection;
use serde_json::Value;

use crate::{
    amqp::{PrivateNode, REPLY_QUEUE, Vhost, Worker},
    harness::{Daemon, Setup, eventually, when, within},
    load::{Account, LONG, Ledger, Load, StopOnDrop, WORKFLOWS},
};

/// Does something bad while jobs are offered and done; after it everything must end well.
#[track_caller]
fn under_load(
    vhost: &Vhost,
    setup: Setup,
    bad: impl FnOnce(&mut Daemon, &Load),
) -> (Daemon, Account) {
    let load = Load::new(&vhost.url);
    let mut daemon = setup.start();
    let (stop, api) = (AtomicBool::new(false), daemon.api.clone());
    thread::scope(|scope| {
        let offer = scope.spawn(|| load.offer_until(&api, 2, &stop));
        // Even if the bad thing panics: otherwise the offering would go on for ever.
        let _stopped = StopOnDrop(&stop);
        load.await_seen(50);
        bad(&mut daemon, &load);
        stop.store(true, Ordering::SeqCst);
        offer.join().unwrap();
    });
    let account = load.settle(&daemon, vhost);
    eprintln!("{account}");
    (daemon, account)
}

fn setup(vhost: &Vhost) -> Setup {
    Setup::new(&vhost.url, WORKFLOWS).set("limits.jobs_running_max", "600")
}

/// The load goes on: that many more messages reach the workers.
#[track_caller]
fn await_more(load: &Load, more: usize) {
    load.await_seen(load.seen_count() + more);
}

// ---- connections and queues

#[test]
fn connections_are_closed_one_by_one_by_the_management_api() {
    const ROUNDS: usize = 3;
    let vhost = Vhost::new();
    let mut closed = 0;
    let (_daemon, account) = under_load(&vhost, setup(&vhost), |daemon, load| {
        for _ in 0..ROUNDS {
            for role in ["replies", "step messages"] {
                closed += eventually("the management API lists the connection", || {
                    match vhost.close_connection(&format!("workflow-manager: {role}")) {
                        0 => Err("none"),
                        count => Ok(count),
                    }
                });
                daemon.await_ready();
                await_more(load, 30);
            }
        }
    });
    assert!(closed >= 2 * ROUNDS && account.accepted > 0, "{closed} connections were closed");
}

#[test]
fn queues_are_deleted_under_running_steps() {
    let vhost = Vhost::new();
    let (_daemon, account) = under_load(&vhost, Setup::new(&vhost.url, WORKFLOWS), |_, load| {
        // The queues that new jobs go to: the next message to one is returned, and that is how the
        // daemon notices. A worker that declared it before would hide the loss.
        for queue in ["double", "split", "multiply"] {
            load.rest();
            let client = vhost.client();
            eventually("messages wait in the queue", || match client.count(queue) {
                Some((waiting, _)) if waiting >= 10 => Ok(()),
                other => Err(format!("{other:?}")),
            });
            client.delete(queue);
            eventually("the daemon declares the queue again", || {
                client.count(queue).ok_or("it is missing")
            });
            load.work();
            await_more(load, 50);
        }
    });
    assert!(account.accepted > 0 && account.lost.is_empty());
}

// ---- the broker

/// One node for all phases, since a node takes long to start.
#[test]
fn the_broker_is_killed_and_blocks_under_load() {
    let node = PrivateNode::start();
    let vhost = node.broker.vhost();

    let (mut daemon, _) = under_load(&vhost, setup(&vhost), |daemon, load| {
        // Many messages are in the broker when it is killed, and more jobs are accepted while it is
        // away.
        load.rest();
        let accepted = load.accepted_count();
        within(LONG, "jobs are accepted", || {
            when(load.accepted_count() >= accepted + 200, load.accepted_count())
        });
        node.kill();
        let accepted = load.accepted_count();
        within(LONG, "jobs are accepted without a broker", || {
            when(load.accepted_count() >= accepted + 100, load.accepted_count())
        });
        node.start_again();
        let begun = Instant::now();
        daemon.await_ready();
        eprintln!("ready {:.1} s after the broker's return", begun.elapsed().as_secs_f32());
        load.work();
        await_more(load, 100);
    });
    assert!(daemon.stop().success());

    // There is room for more jobs than run when it is blocked.
    let roomy = setup(&vhost)
        .set("amqp.reply_queue", "other-replies")
        .set("limits.jobs_running_max", "5000");
    let (mut daemon, _) = under_load(&vhost, roomy, |daemon, load| {
        node.broker.ctl(&["set_vm_memory_high_watermark", "0.0000001"]);
        eventually("the daemon says that it is blocked", || {
            let answer = daemon.api.get("/readyz?verbose");
            when(answer.status == 503 && answer.text.contains("blocked"), &answer)
        });
        let accepted = load.accepted_count();
        within(LONG, "jobs are accepted while it is blocked", || {
            when(load.accepted_count() >= accepted + 50, load.accepted_count())
        });
        node.broker.ctl(&["set_vm_memory_high_watermark", "0.4"]);
        daemon.await_ready();
        await_more(load, 100);
    });
    assert!(daemon.stop().success());
}

// ---- the process

#[test]
fn it_is_killed_and_stopped_by_turns_under_load() {
    const ENDS: u32 = 6;
    let vhost = Vhost::new();
    let mut safe = BTreeSet::new();
    let (_daemon, account) = under_load(&vhost, setup(&vhost), |daemon, load| {
        for end in 0..ENDS {
            if end % 2 == 0 {
                daemon.kill();
                if end == 0 {
                    safe = Ledger::read(&daemon.database()).safe;
                }
            } else {
                assert!(daemon.stop().success());
            }
            daemon.start_again();
            await_more(load, 40);
        }
    });
    assert!(
        !safe.is_empty() && account.repeated.is_disjoint(&safe),
        "only what was not confirmed is sent again"
    );
}

#[cfg(feature = "failpoints")]
#[test]
fn the_clock_goes_back_and_forth() {
    let vhost = Vhost::new();
    let skewed =
        setup(&vhost).faults("clock::now=20%return(86400)->20%return(-86400)->20%return(-3600)");
    let mut safe = BTreeSet::new();
    let (mut daemon, account) = under_load(&vhost, skewed, |daemon, load| {
        await_more(load, 200);
        daemon.kill();
        safe = Ledger::read(&daemon.database()).safe;
        daemon.set_faults(Some("clock::now=return(-3600)"));
        daemon.start_again();
        await_more(load, 200);
    });
    assert!(
        !safe.is_empty() && account.repeated.is_disjoint(&safe),
        "only what was not confirmed is sent again"
    );
    assert!(daemon.stop().success());
}

// ---- the disk

/// The file reaches its largest size; deleting ended jobs makes room, and it goes on by itself.
#[test]
fn a_journal_that_is_really_full_goes_on_when_jobs_are_deleted() {
    const PAGES: &str = "300";
    let vhost = Vhost::new();
    let mut daemon =
        Setup::new(&vhost.url, "workflows: [ { name: single, steps: [ { name: work } ] } ]")
            .set("journal.pages_max", PAGES)
            .set("journal.full_retry", "200ms")
            .start();
    let worker = Worker::echo(&vhost.url, &["work"]);
    let body = format!(r#"{{"text":"{}"}}"#, "x".repeat(10_000));
    let (accepted, stop, api) =
        (Mutex::new(Vec::new()), AtomicBool::new(false), daemon.api.clone());
    thread::scope(|scope| {
        let _stopped = StopOnDrop(&stop);
        // The creation that finds no room is answered once there is some; those after it are
        // refused.
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                let answer = api.post("/api/workflow/single", &body);
                if answer.status != 201 {
                    return drop(answer.expect_problem(503, &["room"]));
                }
                accepted.lock().unwrap().push(answer.id());
                assert!(
                    accepted.lock().unwrap().len() < 1000,
                    "the file has at most {PAGES} pages, yet takes job after job"
                );
            }
        });
        eventually("readiness is red", || {
            let answer = daemon.api.get("/readyz?verbose");
            when(answer.status == 503 && answer.text.contains("no room on the disk"), &answer)
        });
        stop.store(true, Ordering::SeqCst);
        assert!(
            !daemon
                .api
                .post("/api/workflow/single", "{}")
                .expect_problem(503, &["room"])
                .header("retry-after")
                .is_empty()
        );
        let ended: Vec<_> = accepted
            .lock()
            .unwrap()
            .iter()
            .copied()
            .filter(|id| daemon.api.job(*id).state == "completed")
            .collect();
        assert!(!ended.is_empty());
        for id in ended {
            let answer = daemon.api.delete(&format!("/api/job/{id}?erase=true"));
            assert!(
                answer.status < 300,
                "an ended job can be deleted while the disk is full: {answer}"
            );
            accepted.lock().unwrap().retain(|kept| *kept != id);
        }
    });
    daemon.await_ready();
    for id in accepted.into_inner().unwrap() {
        assert_eq!(daemon.api.await_result(id), body);
    }
    let id = daemon.api.create("single", &body);
    assert_eq!(daemon.api.await_result(id), body);
    vhost.await_drained(REPLY_QUEUE);
    assert!(worker.seen_count() > 1 && daemon.stop().success());
}

// ---- a damaged journal

/// Whatever byte is changed, and wherever the file is cut off: either it does not matter, or the
/// start is refused and the file is left as it is.
#[test]
fn a_journal_that_is_cut_off_or_changed_anywhere_is_refused_or_whole() {
    const CHANGES: usize = 24;
    let vhost = Vhost::new();
    let mut daemon = setup(&vhost).start();
    let load = Load::new(&vhost.url);
    load.offer(&daemon.api, 2, 30);
    load.settle(&daemon, &vhost);
    assert!(daemon.stop().success());
    let database = daemon.database();
    Connection::open(&database).unwrap().pragma_update(None, "wal_checkpoint", "TRUNCATE").unwrap();
    let sound = fs::read(&database).unwrap();

    let mut refusals = 0;
    for change in 0..CHANGES {
        let mut damaged = sound.clone();
        match change % 4 {
            // The step is a prime, so that the places are spread over all pages and over all their
            // parts.
            0..=2 => damaged[(change + 1) * 7919 * 13 % sound.len()] ^= 0x11,
            _ => damaged.truncate(sound.len() * (change + 1) / (CHANGES + 2)),
        }
        fs::write(&database, &damaged).unwrap();
        remove_side_files(&database);
        daemon.spawn_again();
        if starts(&mut daemon) {
            load.account(&daemon).assert_sound();
            daemon.kill();
        } else {
            refusals += 1;
            assert!(
                daemon.log().lines().last().unwrap_or_default().contains("journal.db"),
                "the file is named:\n{}",
                daemon.log()
            );
            assert!(fs::read(&database).unwrap() == damaged, "the file is left as it was");
        }
        assert!(change % 4 != 3 || refusals > 0, "a file that is cut off is refused");
    }
    eprintln!("{refusals} of {CHANGES} changes were refused, the others changed nothing");
    fs::write(&database, &sound).unwrap();
    remove_side_files(&database);
    daemon.start_again();
    load.account(&daemon).assert_sound();
}

fn remove_side_files(database: &Path) {
    for suffix in ["-wal", "-shm"] {
        let _missing = fs::remove_file(format!("{}{suffix}", database.display()));
    }
}

/// Whether the daemon comes up; false if it ended with a failure.
fn starts(daemon: &mut Daemon) -> bool {
    let up = eventually("it starts or ends", || {
        match (daemon.ended(), daemon.api.try_send("GET", "/livez", &[], None)) {
            (Some(_), _) => Ok(false),
            (None, Ok(answer)) => when(answer.status == 200, answer).map(|()| true),
            (None, Err(error)) => Err(error.to_string()),
        }
    });
    if !up {
        assert!(!daemon.await_end().success());
    }
    up
}

#[test]
fn a_write_ahead_log_that_is_cut_off_loses_the_end_alone() {
    let vhost = Vhost::new();
    let mut daemon =
        Setup::new(&vhost.url, "workflows: [ { name: single, steps: [ { name: work } ] } ]")
            .start();
    let ids: Vec<_> =
        (0..40).map(|n| daemon.api.create("single", &format!(r#"{{"n":{n}}}"#))).collect();
    daemon.kill();
    let wal = daemon.database().with_file_name("journal.db-wal");
    let bytes = fs::read(&wal).unwrap();
    fs::write(&wal, &bytes[..bytes.len() * 2 / 3]).unwrap();
    daemon.start_again();
    // Data that a disk promised to keep and then lost cannot come back; everything before it is
    // whole.
    let found: Vec<bool> =
        ids.iter().map(|id| daemon.api.get(&format!("/api/job/{id}")).status == 200).collect();
    let kept = found.iter().filter(|is_there| **is_there).count();
    assert!(
        kept > 0 && kept < ids.len() && found[..kept].iter().all(|is_there| *is_there),
        "{kept} of {}: {found:?}",
        ids.len()
    );
    let running = daemon.api.get("/api/jobs").expect(200);
    assert_eq!(
        running.ids("jobs").len(),
        kept,
        "{}",
        serde_json::from_str::<Value>(&running.text).unwrap()
    );
}
