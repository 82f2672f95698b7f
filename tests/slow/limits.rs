//! Limits while the process is killed again and again under load: no window is exceeded, no place
//! is held twice, none is leaked, and the work ends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use uuid::Uuid;
use workflow_manager::engine::{Entry, Recorded, StepEntry};
use workflow_manager::journal::{HistoryRecords as _, Reader};

use crate::{
    harness::{Api, Daemon, Setup, when, within},
    load::{LONG, StopOnDrop, create_through_crashes},
};

const WORKFLOWS: &str = "
limits:
  - { name: bank, rate: 50/s, burst: 5 }
  - { name: license, concurrency: 3 }
  - { name: customer, concurrency: 1, key: job.customer }
workflows:
  - name: orders
    steps:
      - { name: pay, limit: [ bank, license ], retry: { attempts: 5, backoff: 10ms } }
      - { name: ship, limit: customer, depends: [ pay ] }
";
const RATE: f64 = 50.0;
const BURST: f64 = 5.0;

/// How much later than its admission a message is decided to be sent, at most.
const DECISION_LAG_S: f64 = 0.25;

const KILLS: usize = 20;
const JOBS: usize = 300;

#[test]
fn limits_hold_when_the_process_is_killed_again_and_again() {
    let mut daemon = Setup::new("", WORKFLOWS).set("embedded.lease", "1s").start();
    let ids: Vec<Uuid> = (0..JOBS).map(|_| Uuid::new_v4()).collect();
    let (stop, replies) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let _stopped = StopOnDrop(&stop);
        let (api, offered) = (daemon.api.clone(), &ids);
        scope.spawn(move || {
            for (n, id) in offered.iter().enumerate() {
                let message = format!(r#"{{"customer":"c{}"}}"#, n % 7);
                create_through_crashes(&api, "orders", *id, &message);
            }
        });
        for queue in ["pay", "pay", "pay", "ship", "ship"] {
            let (api, stop, replies) = (daemon.api.anew(), &stop, &replies);
            scope.spawn(move || work(&api, queue, stop, replies));
        }
        for kill in 1..=KILLS {
            let goal = JOBS * kill / (KILLS + 1);
            within(LONG, "the work goes on", || {
                let count = replies.load(Ordering::SeqCst);
                when(count >= goal, format!("{count} of {goal} replies"))
            });
            daemon.kill();
            daemon.start_again();
        }
        for id in &ids {
            daemon.api.await_state(*id, "completed");
        }
        stop.store(true, Ordering::SeqCst);
    });
    check(&daemon, &ids);
    // No place was leaked: all of them are free.
    let begun = Instant::now();
    let (last, stop) =
        (daemon.api.create("orders", r#"{"customer":"c0"}"#), AtomicBool::new(false));
    thread::scope(|scope| {
        let _stopped = StopOnDrop(&stop);
        for queue in ["pay", "ship"] {
            let (api, stop, replies) = (daemon.api.anew(), &stop, &replies);
            scope.spawn(move || work(&api, queue, stop, replies));
        }
        daemon.api.await_state(last, "completed");
        stop.store(true, Ordering::SeqCst);
    });
    eprintln!("{JOBS} jobs, {KILLS} kills; the last job took {:?}", begun.elapsed());
    assert!(daemon.stop().success());
}

/// Takes messages of a queue, and replies; every seventh one with an error.
fn work(api: &Api, queue: &str, stop: &AtomicBool, replies: &AtomicUsize) {
    let receive = format!("/api/queue/{queue}/receive?wait=500ms");
    while !stop.load(Ordering::SeqCst) {
        let Ok(message) = api.try_send("POST", &receive, &[], None) else {
            thread::sleep(Duration::from_millis(20));
            continue;
        };
        if message.status != 200 {
            continue;
        }
        let reply_to = message.header("reply-to").to_owned();
        let is_error = queue == "pay" && replies.load(Ordering::SeqCst) % 7 == 6;
        let (path, body) = if is_error {
            (format!("{reply_to}?type=error"), r#"{"error":"no"}"#)
        } else {
            (reply_to, "{}")
        };
        // A reply that is lost with the process is sent by whoever gets the message next.
        let _lost = api.try_send("POST", &path, &[], Some(body.as_bytes()));
        replies.fetch_add(1, Ordering::SeqCst);
    }
}

/// Reads from the records when messages were sent and places were held, and compares with the
/// limits.
fn check(daemon: &Daemon, ids: &[Uuid]) {
    let reader = Reader::open(&daemon.database()).expect("opens");
    let (mut sent, mut pay_holds) = (Vec::new(), Vec::new());
    let mut ship_holds: BTreeMap<String, Vec<(i64, i64)>> = BTreeMap::new();
    for id in ids {
        let job: Value = daemon.api.get(&format!("/api/job/{id}")).expect(200).json();
        let customer = job["message"]["customer"].to_string();
        let mut began: BTreeMap<u16, i64> = BTreeMap::new();
        let mut take = |row: Recorded| {
            for entry in &row.entries {
                let Entry::Step(step, entry) = entry else { continue };
                let is_pay = step.0 == 0;
                match entry {
                    StepEntry::Started { .. } | StepEntry::Unconfirmed => {
                        if is_pay {
                            sent.push(row.at.0);
                        }
                        began.entry(step.0).or_insert(row.at.0);
                    }
                    StepEntry::Completed(_)
                    | StepEntry::AttemptFailed { .. }
                    | StepEntry::Failed(_) => {
                        let hold = began.remove(&step.0).map(|since| (since, row.at.0));
                        match hold {
                            Some(hold) if is_pay => pay_holds.push(hold),
                            Some(hold) => {
                                ship_holds.entry(customer.clone()).or_default().push(hold)
                            }
                            None => {}
                        }
                    }
                    _ => {}
                }
            }
        };
        let id = workflow_manager::engine::JobId(*id);
        reader.for_each_row(id, &mut take).expect("reads").expect("the job is there");
    }
    assert!(sent.len() >= JOBS, "{} messages", sent.len());
    sent.sort_unstable();
    for first in 0..sent.len() {
        for last in first..sent.len() {
            let seconds = (sent[last] - sent[first]) as f64 / 1e9;
            let count = (last - first + 1) as f64;
            let allowed = BURST + RATE * (seconds + DECISION_LAG_S);
            assert!(count <= allowed, "{count} messages in {seconds} s, {allowed} are allowed");
        }
    }
    assert!(overlap(&pay_holds) <= 3, "{} hold the license", overlap(&pay_holds));
    for (customer, holds) in &ship_holds {
        assert_eq!(overlap(holds), 1, "of customer {customer}");
    }
}

/// Returns how many of the spans of time overlap at most. One that begins when another ends does
/// not overlap it.
fn overlap(spans: &[(i64, i64)]) -> i64 {
    let mut changes: Vec<(i64, i64)> = Vec::new();
    for (begin, end) in spans {
        changes.extend([(*begin, 1), (*end, -1)]);
    }
    changes.sort_unstable();
    let (mut count, mut most) = (0, 0);
    for (_, change) in changes {
        count += change;
        most = most.max(count);
    }
    most
}
