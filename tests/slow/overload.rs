//! More is asked for than can be done: the daemon says so and does not grow.

use std::{
    collections::BTreeSet,
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use serde_json::json;
use uuid::Uuid;

use crate::{
    amqp::{Answer, REPLY_QUEUE, Vhost, Worker},
    harness::{Daemon, Setup, when, within},
    load::LONG,
};

const SINGLE: &str = "workflows: [ { name: single, steps: [ { name: work } ] } ]";
const CLIENTS: usize = 8;
const MEBIBYTE: u64 = 1024 * 1024;

/// Offers this many jobs once each; gives the ids of the accepted ones and the number of the
/// refused ones, each refused as it must be.
#[track_caller]
pub(crate) fn offer(daemon: &Daemon, count: usize, body: &str) -> (BTreeSet<Uuid>, usize) {
    let (next, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let accepted = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    let mut accepted = Vec::new();
                    while next.fetch_add(1, Ordering::SeqCst) < count {
                        let answer = daemon.api.post("/api/workflow/single", body);
                        if answer.status == 201 {
                            accepted.push(answer.id());
                        } else {
                            let answer = answer.expect_problem(503, &["setting limits."]);
                            assert!(
                                answer.header("retry-after").parse::<u32>().is_ok(),
                                "{answer}"
                            );
                            refused.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                    accepted
                })
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    (accepted, refused.into_inner())
}

/// Waits until nothing is under way.
#[track_caller]
fn await_quiet(daemon: &Daemon) {
    within(LONG, "all jobs end", || {
        let running = daemon.api.get("/api/jobs").expect(200).ids("jobs").len();
        when(running == 0, format!("{running} under way"))
    });
}

/// The offers of [`more_jobs_than_fit_are_refused_and_memory_stays`], also in its long form.
#[track_caller]
pub(crate) fn offer_to_a_worker_that_never_answers(
    offered: usize,
    running_max: usize,
) -> (usize, u64) {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, SINGLE)
        .set("limits.jobs_running_max", &running_max.to_string())
        .start();
    let mute = Worker::start(&vhost.url, &["work"], |_| Answer::Silence);
    let (accepted, refused) = offer(
        &daemon,
        offered,
        r#"{"k":"a message of ordinary size, which is kept until its job has ended"}"#,
    );
    // Creations that were under way side by side may exceed the limit by their number.
    assert!(
        (running_max..running_max + CLIENTS).contains(&accepted.len()),
        "{} accepted",
        accepted.len()
    );
    assert_eq!(accepted.len() + refused, offered);
    within(LONG, "the worker has taken all messages", || {
        when(mute.seen_count() >= accepted.len(), mute.seen_count())
    });
    let peak = daemon.memory_peak();

    // The limit is on what runs: when something ends, something new is taken.
    let id = accepted.iter().next().unwrap();
    daemon.api.delete(&format!("/api/job/{id}")).expect(200);
    within(LONG, "there is room for one more", || {
        let status = daemon.api.post("/api/workflow/single", "{}").status;
        when(status == 201 || accepted.len() > running_max, status)
    });
    (accepted.len(), peak)
}

#[test]
fn more_jobs_than_fit_are_refused_and_memory_stays() {
    let (accepted, peak) = offer_to_a_worker_that_never_answers(20_000, 500);
    eprintln!("20000 jobs offered, {accepted} accepted; at most {} MiB", peak / MEBIBYTE);
    assert!(peak < 200 * MEBIBYTE, "at most {} MiB", peak / MEBIBYTE);
}

/// With a slow journal, creations wait; beyond the limit they are refused.
#[cfg(feature = "failpoints")]
/// A huge page holds 2 MiB as soon as a byte of them is used.
#[test]
fn the_daemon_asks_for_no_huge_pages() {
    let given = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    // Where they are given to everybody, or to nobody, nothing can be seen.
    if !given.is_ok_and(|given| given.contains("[madvise]")) {
        return;
    }
    let daemon = Setup::new("", SINGLE).start();
    let memory = fs::read_to_string(format!("/proc/{}/smaps_rollup", daemon.pid())).unwrap();
    let huge = memory.lines().find_map(|line| line.strip_prefix("AnonHugePages:")).unwrap();
    assert_eq!(huge.trim(), "0 kB", "{memory}");
}

#[test]
fn more_creations_than_may_wait_are_refused() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, SINGLE)
        .set("limits.creations_waiting_max", "4")
        .faults("journal::commit=sleep(100)")
        .start();
    let worker = Worker::echo(&vhost.url, &["work"]);
    let (accepted, refused) = offer(&daemon, 400, r#"{"k":1}"#);
    assert!(refused > 0 && !accepted.is_empty(), "{} accepted, {refused} refused", accepted.len());
    await_quiet(&daemon);
    for id in &accepted {
        assert_eq!(daemon.api.job(*id).state, "completed");
    }
    vhost.await_drained(REPLY_QUEUE);
    assert!(worker.seen_count() >= accepted.len());
}

/// The largest replies, all at once, of jobs that were all under way.
#[track_caller]
pub(crate) fn large_replies(count: u64, bytes: usize) -> u64 {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, SINGLE).start();
    let (accepted, _) = offer(&daemon, usize::try_from(count).unwrap(), "{}");
    let body = format!(r#"{{"large":"{}"}}"#, "x".repeat(bytes - 12)).into_bytes();
    let _worker = Worker::start(&vhost.url, &["work"], move |_| Answer::Reply(body.clone()));
    await_quiet(&daemon);
    vhost.await_drained(REPLY_QUEUE);
    // Reading them has a bound, and a test, of its own.
    let peak = daemon.memory_peak();
    for id in &accepted {
        assert_eq!(daemon.api.job(*id).message_of("__end__").len(), bytes);
    }
    peak
}

#[test]
fn large_replies_do_not_pile_up() {
    const COUNT: u64 = 64;
    const BYTES: u64 = 16 * MEBIBYTE;
    // Some copies of what `amqp.replies_bytes_max` has room for, on each of the threads that it
    // passes; all replies are 1,024 MiB.
    const PEAK_MAX: u64 = 400 * MEBIBYTE;
    let peak = large_replies(COUNT, usize::try_from(BYTES).unwrap());
    eprintln!("{COUNT} replies of {} MiB: at most {} MiB", BYTES / MEBIBYTE, peak / MEBIBYTE);
    assert!(peak < PEAK_MAX, "at most {} MiB", peak / MEBIBYTE);
}

const FAN: &str = "workflows: [ { name: fan, steps: [ { name: each, task: t } ], \
                   tasks: [ { name: t, itemListKey: items, steps: [ { name: work } ] } ] } ]";

/// The items of a list share everything else in their message: none has a copy of its own before it
/// is sent, nor after a restart.
#[test]
fn a_large_value_that_all_items_share_is_held_once() {
    const ITEMS: usize = 10_000;
    const BLOB_BYTES: usize = 300_000;
    const PEAK_MAX: u64 = 400 * MEBIBYTE;
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, FAN).start();
    let list: Vec<usize> = (0..ITEMS).collect();
    let message = json!({ "items": list, "blob": "x".repeat(BLOB_BYTES) }).to_string();
    let id = daemon.api.create("fan", &message);
    // Nobody works yet: as many messages as may be under way at once wait in the queue.
    let client = vhost.client();
    within(LONG, "as many as have room wait for a worker", || {
        let waiting =
            client.count("work").map_or(0, |(messages, _)| messages as usize * BLOB_BYTES);
        when(waiting > 60 * 1024 * 1024, waiting)
    });
    let first = daemon.memory_peak();
    daemon.kill();
    daemon.start_again();
    let done = Arc::new(AtomicUsize::new(0));
    let counted = done.clone();
    // What follows the large value: `"item":17}`.
    let _worker = Worker::forgetful(&vhost.url, &["work"], move |message| {
        counted.fetch_add(1, Ordering::SeqCst);
        let item = message.body.rsplit(|byte| *byte == b',').next().unwrap_or_default();
        Answer::Reply([b"{", item].concat())
    });
    // Three gigabytes take their time on a busy machine: the test waits as long as it goes on.
    for goal in (ITEMS / 20..=ITEMS).step_by(ITEMS / 20) {
        within(LONG, "it goes on", || {
            when(done.load(Ordering::SeqCst) >= goal, done.load(Ordering::SeqCst))
        });
    }
    await_quiet(&daemon);
    assert_eq!(daemon.api.await_result(id), json!({ "items": list }).to_string());
    let second = daemon.memory_peak();
    eprintln!(
        "{ITEMS} items that share {BLOB_BYTES} bytes: at most {} MiB, after kill -9 {} MiB",
        first / MEBIBYTE,
        second / MEBIBYTE
    );
    assert!(first.max(second) < PEAK_MAX, "{} MiB, {} MiB", first / MEBIBYTE, second / MEBIBYTE);
}
