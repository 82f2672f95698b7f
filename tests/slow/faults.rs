//! The daemon is broken at every point where it writes, commits, acknowledges, publishes or
//! connects (see `src/faults.rs`), and nothing is lost.

use std::{
    collections::BTreeSet,
    fmt,
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    amqp::{REPLY_QUEUE, Vhost, Worker},
    harness::{Daemon, Setup, eventually, when, within},
    load::{Account, Ledger, Load, WORKFLOWS, create_through_crashes},
};
use uuid::Uuid;

/// Jobs of the load under each fault.
const JOBS: usize = 24;
/// Daemons that run side by side.
const DAEMONS: usize = 4;
const EXIT_IO_ERROR: i32 = 74;

/// The lives of one daemon: the points at which it breaks, and how that ends. After them it lives
/// once more, unbroken.
#[derive(Clone, Copy)]
struct Case(&'static [(&'static str, Ends)]);

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// As if killed.
    Aborted,
    /// By itself, with this exit code.
    Exited(i32),
    /// Not because of the fault. The log has these words.
    GoesOn(&'static str),
}
use Ends::{Aborted, Exited, GoesOn};

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.iter().map(|(faults, _)| faults).collect::<Vec<_>>())
    }
}

#[test]
fn it_dies_at_any_point_and_loses_nothing() {
    side_by_side(&[
        Case(&[("journal::write=25*off->return(abort)", Aborted)]),
        Case(&[("journal::commit=8*off->return(abort)", Aborted)]),
        Case(&[("journal::committed=8*off->return(abort)", Aborted)]),
        Case(&[("outbox::answer=7*off->return(abort)", Aborted)]),
        Case(&[("outbox::dispatch=12*off->return(abort)", Aborted)]),
        Case(&[("outbox::ack=12*off->return(abort)", Aborted)]),
        Case(&[("job::take=15*off->return(abort)", Aborted)]),
        Case(&[("amqp::connect=return(abort)", Aborted)]),
        Case(&[("amqp::connect=1*off->return(abort)", Aborted)]),
        Case(&[("amqp::publish=12*off->return(abort)", Aborted)]),
        Case(&[("amqp::confirm=3*off->return(abort)", Aborted)]),
        Case(&[("amqp::deliver=12*off->return(abort)", Aborted)]),
        Case(&[("amqp::ack=3*off->return(abort)", Aborted)]),
        // Several lives in a row: the first commits, publishes and confirms after a recovery break
        // too.
        Case(&[
            ("journal::committed=12*off->return(abort)", Aborted),
            ("journal::commit=return(abort)", Aborted),
            ("journal::committed=return(abort)", Aborted),
            ("amqp::publish=return(abort)", Aborted),
            ("amqp::confirm=return(abort)", Aborted),
        ]),
    ]);
}

#[test]
fn an_error_at_any_point_loses_nothing() {
    side_by_side(&[
        Case(&[("journal::write=25*off->return(io)", Exited(EXIT_IO_ERROR))]),
        Case(&[
            ("journal::commit=8*off->return(io)", Exited(EXIT_IO_ERROR)),
            ("journal::commit=return(io)", Exited(EXIT_IO_ERROR)),
        ]),
        Case(&[("journal::commit=8*off->panic", Exited(EXIT_IO_ERROR))]),
        Case(&[("outbox::ack=12*off->panic", Exited(EXIT_IO_ERROR))]),
        Case(&[(
            "journal::write=25*off->1*return(full)->10*off->2*return(full)",
            GoesOn("no room on the disk: nothing is accepted"),
        )]),
        Case(&[(
            "journal::commit=4*off->1*return(full)->4*off->2*return(full)",
            GoesOn("no room on the disk: nothing is accepted"),
        )]),
        Case(&[("job::take=5*off->1*return->9*off->2*return", GoesOn("the job's actor panicked"))]),
        Case(&[("amqp::connect=4*return", GoesOn("failpoint amqp::connect"))]),
        Case(&[(
            "amqp::publish=5*off->1*return->15*off->3*return",
            GoesOn("failpoint amqp::publish"),
        )]),
        Case(&[(
            "amqp::confirm=2*off->1*return->2*off->2*return",
            GoesOn("failpoint amqp::confirm"),
        )]),
        Case(&[(
            "amqp::deliver=5*off->1*return->15*off->3*return",
            GoesOn("failpoint amqp::deliver"),
        )]),
        Case(&[("amqp::ack=2*off->1*return->2*off->2*return", GoesOn("failpoint amqp::ack"))]),
        // At random, and once for sure.
        Case(&[(
            "amqp::publish=2%return;amqp::deliver=30*off->1*return->2%return;\
             amqp::confirm=2%return;amqp::connect=20%return",
            GoesOn("failpoint amqp::"),
        )]),
    ]);
}

#[test]
fn a_delay_at_any_point_loses_nothing() {
    side_by_side(&[
        Case(&[("journal::write=30%sleep(10);journal::commit=30%sleep(50)", GoesOn("ready"))]),
        Case(&[("journal::committed=30%sleep(50);outbox::answer=30%sleep(50)", GoesOn("ready"))]),
        Case(&[("outbox::dispatch=10%sleep(50);outbox::ack=10%sleep(50)", GoesOn("ready"))]),
        Case(&[("job::take=20%sleep(50)", GoesOn("ready"))]),
        Case(&[("amqp::connect=sleep(500)", GoesOn("ready"))]),
        Case(&[("amqp::publish=20%sleep(50);amqp::confirm=20%sleep(50)", GoesOn("ready"))]),
        Case(&[("amqp::deliver=20%sleep(50);amqp::ack=20%sleep(50)", GoesOn("ready"))]),
    ]);
}

/// Runs the cases, some daemons at a time.
fn side_by_side(cases: &[Case]) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..DAEMONS {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::SeqCst)) {
                    run(*case);
                }
            });
        }
    });
}

fn run(case: Case) {
    let begun = Instant::now();
    let _named = Named(case);
    let vhost = Vhost::new();
    let load = Load::new(&vhost.url);
    let mut daemon = Setup::new(&vhost.url, WORKFLOWS)
        .set("journal.full_retry", "200ms")
        .faults(case.0[0].0)
        .spawn();
    let safe = thread::scope(|scope| {
        let api = daemon.api.clone();
        let load = &load;
        let offer = scope.spawn(move || load.offer(&api, 2, JOBS));
        let mut safe = BTreeSet::new();
        for (life, (faults, ends)) in case.0.iter().enumerate() {
            if life > 0 {
                daemon.set_faults(Some(faults));
                daemon.spawn_again();
            }
            if let GoesOn(words) = ends {
                daemon.await_log(&[words]);
                continue;
            }
            assert_ended(daemon.await_end(), *ends, case, &daemon);
            safe = Ledger::read(&daemon.database()).safe;
        }
        if !matches!(case.0.last(), Some((_, GoesOn(_)))) {
            daemon.set_faults(None);
            daemon.start_again();
        }
        offer.join().unwrap();
        safe
    });
    let account = load.settle(&daemon, &vhost);
    assert_eq!(account.accepted, JOBS);
    assert_repeats(&account, &safe, case);
    assert!(daemon.stop().success(), "{case}: it stops in order");
    eprintln!("{case}: {account}; {:.1} s", begun.elapsed().as_secs_f32());
}

/// Says which case it was that failed.
struct Named(Case);

impl Drop for Named {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("---- that was the case {}", self.0);
        }
    }
}

#[track_caller]
fn assert_ended(status: ExitStatus, ends: Ends, case: Case, daemon: &Daemon) {
    const SIGABRT: i32 = 6;
    let as_expected = match ends {
        Aborted => status.signal() == Some(SIGABRT),
        Exited(code) => status.code() == Some(code),
        GoesOn(_) => false,
    };
    assert!(as_expected, "{case}: {ends:?}, but it ended by {status}:\n{}", daemon.log());
}

/// Messages that were confirmed or settled in the journal when the daemon last ended are not
/// published again.
#[track_caller]
fn assert_repeats(account: &Account, safe: &BTreeSet<String>, case: Case) {
    if case.0.iter().all(|(_, ends)| *ends == Aborted) && case.0.len() == 1 {
        let needless: Vec<_> = account.repeated.intersection(safe).collect();
        assert!(
            needless.is_empty(),
            "{case}: {} of {} messages that the broker had confirmed: {needless:?}",
            needless.len(),
            account.messages
        );
    }
    if case.0.iter().all(|(faults, _)| {
        faults.starts_with("journal::") && faults.contains("full") || faults.contains("sleep")
    }) {
        assert!(
            account.repeated.is_empty(),
            "{case}: nothing was lost, yet {:?} went out again",
            account.repeated
        );
    }
}

// ---- an actor that panics

const TWO: &str = "workflows: [ { name: broken, steps: [ { name: bad } ] }, \
                   { name: sound, steps: [ { name: good } ] } ]";

#[test]
fn a_job_whose_actor_panics_again_and_again_fails_and_no_other_notices() {
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, TWO).faults("job::take=4*return").start();
    let client = vhost.client();
    let others: Vec<Uuid> =
        (0..10).map(|n| daemon.api.create("sound", &format!(r#"{{"n":{n}}}"#))).collect();
    client.await_count("good", 10);
    let broken = daemon.api.create("broken", "{}");
    client.reply(&client.take("bad"), "{}");
    let failed = daemon.api.await_state(broken, "failed");
    assert!(
        failed.text.contains("panicked 4 times"),
        "the reason says what happened: {}",
        failed.text
    );
    assert!(
        daemon
            .api
            .get("/metrics")
            .expect(200)
            .text
            .contains("workflow_actor_restarts_total{actor=\"job\"} 4")
    );

    let _worker = Worker::echo(&vhost.url, &["good"]);
    for (n, id) in others.iter().enumerate() {
        assert_eq!(daemon.api.await_result(*id), format!(r#"{{"n":{n}}}"#));
    }
    vhost.await_drained(REPLY_QUEUE);
    assert!(daemon.stop().success());
}

#[test]
fn a_job_whose_actor_panics_once_goes_on() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, TWO).faults("job::take=1*return").start();
    let worker = Worker::echo(&vhost.url, &["bad"]);
    let id = daemon.api.create("broken", r#"{"k":1}"#);
    assert_eq!(daemon.api.await_result(id), r#"{"k":1}"#);
    vhost.await_drained(REPLY_QUEUE);
    assert!(
        worker.seen_count() <= 2,
        "the step is done again only if its message was not confirmed: {}",
        worker.seen_count()
    );
    assert!(
        daemon
            .api
            .get("/metrics")
            .expect(200)
            .text
            .contains("workflow_actor_restarts_total{actor=\"job\"} 1")
    );
}

/// A loop of the bus that panicked cannot be left dead behind a daemon that looks alive.
#[test]
fn a_panic_in_the_bus_ends_the_process_and_the_next_start_recovers() {
    side_by_side(&[
        Case(&[("amqp::publish=9*off->1*panic", Exited(1))]),
        Case(&[("amqp::deliver=9*off->1*panic", Exited(1))]),
    ]);
}

// ---- a full disk

#[test]
fn while_the_disk_is_full_nothing_is_accepted_or_acknowledged_and_then_it_goes_on() {
    const WAITING: u64 = 20;
    let vhost = Vhost::new();
    // The creations and the confirms are committed; what follows finds no room, for about 8 s.
    let mut daemon = Setup::new(&vhost.url, TWO)
        .set("journal.full_retry", "200ms")
        .set("journal.confirm_lag", "1ms")
        .start();
    let client = vhost.client();
    let ids: Vec<Uuid> =
        (0..WAITING).map(|n| daemon.api.create("sound", &format!(r#"{{"n":{n}}}"#))).collect();
    client.await_count("good", u32::try_from(WAITING).unwrap());
    assert!(daemon.stop().success());
    daemon.set_faults(Some("journal::commit=40*return(full)"));
    daemon.start_again();
    let worker = Worker::echo(&vhost.url, &["good"]);

    let begun = Instant::now();
    eventually("readiness is red and says why", || {
        let answer = daemon.api.get("/readyz?verbose");
        when(answer.status == 503 && answer.text.contains("no room on the disk"), &answer)
    });
    assert_eq!(daemon.api.get("/livez").status, 200, "it lives on");
    let refused = daemon.api.post("/api/workflow/sound", "{}").expect_problem(503, &["room"]);
    assert!(!refused.header("retry-after").is_empty(), "{refused}");
    within(Duration::from_secs(8), "the replies wait in the broker", || {
        let waiting = vhost.messages(REPLY_QUEUE);
        when(waiting == Some(WAITING), format!("{waiting:?}"))
    });

    let id = Uuid::new_v4();
    create_through_crashes(&daemon.api, "sound", id, r#"{"late":true}"#);
    let full = begun.elapsed();
    daemon.await_ready();
    assert_eq!(daemon.api.await_result(id), r#"{"late":true}"#);
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(daemon.api.await_result(*id), format!(r#"{{"n":{n}}}"#));
    }
    vhost.await_drained(REPLY_QUEUE);
    assert_eq!(worker.seen_count(), ids.len() + 1, "no step was done again");
    assert!(daemon.log().contains("there is room on the disk again"));
    assert!(daemon.ended().is_none(), "it went on by itself, after {full:?}");
    assert!(daemon.stop().success());
}

// ---- the first start

/// The broker would drop a reply to a queue that does not exist: nothing is sent before the reply
/// queue exists.
#[test]
fn the_reply_queue_is_there_before_the_first_step_message() {
    let vhost = Vhost::new();
    let worker = Worker::echo(&vhost.url, &["good"]);
    // The consumer is opened first, and fails; the publisher is there long before it.
    let daemon = Setup::new(&vhost.url, TWO)
        .faults("amqp::connect=1*return->1*off->5*return")
        .set("amqp.reconnect_max", "300ms")
        .launch();
    let id = daemon.api.create("sound", r#"{"k":1}"#);
    assert_eq!(daemon.api.await_result(id), r#"{"k":1}"#);
    assert_eq!(worker.seen_count(), 1);
}

// ---- a thread that never ends

/// `delay` spins, `sleep` does not: neither holds up the end of the process, and the next start
/// goes on with what it was doing. If it is the thread that stops the others, the end is cut off.
#[test]
fn a_thread_that_does_not_end_does_not_hold_up_the_end_of_the_process() {
    const ENDS_WITHIN: Duration = Duration::from_secs(20);
    const CUT_OFF: &str = "manager::stop=sleep(600000)";
    for faults in [
        "job::take=delay(600000)",
        "job::take=sleep(600000)",
        "journal::commit=1*off->sleep(600000)",
        CUT_OFF,
    ] {
        let vhost = Vhost::new();
        let mut daemon =
            Setup::new(&vhost.url, TWO).set("shutdown.grace", "1s").faults(faults).start();
        let client = vhost.client();
        let id = daemon.api.create("broken", r#"{"k":1}"#);
        client.reply(&client.take("bad"), r#"{"k":2}"#);
        eventually("the reply is delivered", || {
            let count = client.count(REPLY_QUEUE);
            when(count == Some((0, 1)), format!("{count:?}"))
        });
        if faults != CUT_OFF {
            // What is shown of a job comes from its actor; after a second, from the journal.
            let path = format!("/api/job/{id}/step/bad");
            eventually("a thread stands still", || {
                let is_answered = daemon.api.answers_within(&path, Duration::from_millis(500));
                when(!is_answered, "the job is shown")
            });
        }
        let begun = Instant::now();
        let code = daemon.stop().code();
        assert!(code == Some(1) || (code == Some(0) && faults != CUT_OFF), "{faults}: {code:?}");
        assert!(begun.elapsed() < ENDS_WITHIN, "{faults}: it took {:?}", begun.elapsed());
        daemon.await_log(&["thread", "not end"]);
        daemon.set_faults(None);
        daemon.start_again();
        assert_eq!(daemon.api.await_result(id), r#"{"k":2}"#);
        assert!(daemon.stop().success());
    }
}
