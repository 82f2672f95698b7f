//! Limits of jobs while the process is killed again and again under load: nobody holds a place that
//! another one has, no place is leaked, everybody who waits has a turn, and a job is cancelled only
//! for a newer one that exists.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use uuid::Uuid;
use workflow_manager::engine::{Entry, JobEntry, JobId, Recorded};
use workflow_manager::journal::{HistoryRecords as _, Reader};

use crate::harness::{Api, Daemon, Setup, eventually, when, within};
use crate::kills::{await_replies, count_jobs, kill_again_and_again, kill_count};
use crate::load::{LONG, StopOnDrop, create_through_crashes};

const WORKFLOWS: &str = "
limits:
  - { name: customer, concurrency: 1, key: job.customer }
  - { name: environment, concurrency: 1 }
workflows:
  - name: orders
    limit: { use: customer, then: wait }
    steps: [ { name: pay }, { name: ship, depends: [ pay ] } ]
  - name: deploys
    limit: { use: environment, then: replace }
    steps: [ { name: deploy } ]
";
const CUSTOMERS: usize = 5;
const ORDERS_PER_KILL: usize = 15;
const DEPLOYS_PER_KILL: usize = 8;

#[test]
fn jobs_keep_their_places_when_the_process_is_killed_again_and_again() {
    let kills = kill_count(10);
    let mut daemon = Setup::new("", WORKFLOWS).set("embedded.lease", "1s").start();
    let new_ids = |count: usize| (0..count).map(|_| Uuid::new_v4()).collect::<Vec<Uuid>>();
    let (orders, deploys) = (new_ids(ORDERS_PER_KILL * kills), new_ids(DEPLOYS_PER_KILL * kills));
    let (stop, replies, created) =
        (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        let _stopped = StopOnDrop(&stop);
        let (api, orders_to_create) = (daemon.api.anew(), &orders);
        scope.spawn(move || {
            for (n, id) in orders_to_create.iter().enumerate() {
                let message = format!(r#"{{"customer":"c{}"}}"#, n % CUSTOMERS);
                create_through_crashes(&api, "orders", *id, &message);
            }
        });
        let (api, deploys_to_create) = (daemon.api.anew(), &deploys);
        let (replies_seen, created_count) = (&replies, &created);
        // Some come at once, after each part of the orders.
        let goal_of = |n: usize| orders.len() * (n / DEPLOYS_PER_KILL) / kills;
        scope.spawn(move || {
            for (n, id) in deploys_to_create.iter().enumerate() {
                await_replies(replies_seen, goal_of(n));
                create_through_crashes(&api, "deploys", *id, "{}");
                created_count.fetch_add(1, Ordering::SeqCst);
            }
        });
        for queue in ["pay", "ship", "deploy"] {
            let (api, stop, replies) = (daemon.api.anew(), &stop, &replies);
            let created_count = &created;
            scope.spawn(move || {
                // Of the first deploys none is done before all are there, so that they replace
                // each other.
                within(LONG, "the first deploys are there", || {
                    let count = created_count.load(Ordering::SeqCst);
                    when(queue != "deploy" || count >= DEPLOYS_PER_KILL, format!("{count}"))
                });
                work(&api, queue, stop, replies);
            });
        }
        kill_again_and_again(&mut daemon, kills, &replies, orders.len());
        within(LONG, "all jobs have ended", || {
            let count = |workflow, state| count_jobs(&daemon, workflow, state);
            let completed = count("orders", "completed");
            let ended = count("deploys", "completed") + count("deploys", "cancelled");
            let is_done = completed == orders.len() as u64 && ended == deploys.len() as u64;
            when(is_done, format!("{completed} orders and {ended} deploys"))
        });
        stop.store(true, Ordering::SeqCst);
    });
    eventually("all places are free", || {
        let told = daemon.api.get("/api/limits").expect(200).json();
        let limits = told["limits"].as_array().expect("a list");
        let is_free = limits.iter().all(|limit| limit["held"] == 0 && limit["waiting"] == 0);
        when(is_free, told.to_string())
    });
    check(&daemon, &orders, &deploys);
    assert!(daemon.stop().success());
}

/// Takes messages of a queue, and replies.
fn work(api: &Api, queue: &str, stop: &AtomicBool, replies: &AtomicUsize) {
    let receive = format!("/api/queue/{queue}/receive?wait=500ms");
    while !stop.load(Ordering::SeqCst) {
        let message = api.try_send("POST", &receive, &[], None).ok();
        let Some(message) = message.filter(|message| message.status == 200) else {
            thread::sleep(Duration::from_millis(20));
            continue;
        };
        // A reply that is lost with the process is sent by whoever gets the message next.
        let _lost = api.try_send("POST", message.header("reply-to"), &[], Some(b"{}"));
        replies.fetch_add(1, Ordering::SeqCst);
    }
}

/// What the record of a job says of its place.
#[derive(Debug, Default)]
struct Stay {
    claims: usize,
    /// When it began.
    began: Option<i64>,
    /// When it ended.
    ended: i64,
    /// Why it was cancelled.
    reason: Option<String>,
}

impl Stay {
    fn read(reader: &Reader, id: Uuid) -> Stay {
        let mut stay = Stay::default();
        let mut take = |row: Recorded| {
            for entry in row.entries {
                match entry {
                    Entry::Job(JobEntry::Claimed { .. }) => stay.claims += 1,
                    Entry::Job(JobEntry::Admitted) => {
                        assert_eq!(stay.began.replace(row.at.0), None, "job {id} began twice");
                    }
                    Entry::Job(JobEntry::Completed) => stay.ended = row.at.0,
                    Entry::Job(JobEntry::Cancelled { reason, .. }) => {
                        (stay.ended, stay.reason) = (row.at.0, Some(reason.to_string()));
                    }
                    Entry::Job(_) | Entry::Step(..) | Entry::FanOut(..) | Entry::Caller(_) => {}
                }
            }
        };
        reader.for_each_row(JobId(id), &mut take).expect("reads").expect("the job is there");
        assert_eq!(stay.claims, 1, "job {id} claims its place once");
        stay
    }
}

/// Checks that nobody held a place that another one had, and who was cancelled for whom.
fn check(daemon: &Daemon, orders: &[Uuid], deploys: &[Uuid]) {
    let reader = Reader::open(&daemon.database()).expect("opens");
    let mut places: BTreeMap<String, Vec<(i64, i64)>> = BTreeMap::new();
    for (n, id) in orders.iter().enumerate() {
        let stay = Stay::read(&reader, *id);
        assert_eq!(stay.reason, None, "an order gives way to nobody");
        let began = stay.began.expect("a completed order has begun");
        places.entry(format!("c{}", n % CUSTOMERS)).or_default().push((began, stay.ended));
    }
    let stays: Vec<Stay> = deploys.iter().map(|id| Stay::read(&reader, *id)).collect();
    let mut cancelled_count = 0;
    for (n, stay) in stays.iter().enumerate() {
        if let Some(began) = stay.began {
            places.entry("environment".to_owned()).or_default().push((began, stay.ended));
        }
        if let Some(reason) = &stay.reason {
            cancelled_count += 1;
            let newer = deploys[n + 1..].iter().any(|id| reason.contains(&id.to_string()));
            assert!(newer, "{reason}: no job that was created after number {n}");
        }
    }
    assert_eq!(stays.last().and_then(|stay| stay.reason.as_ref()), None, "the last one stays");
    assert!(cancelled_count >= DEPLOYS_PER_KILL - 1, "{cancelled_count} were replaced");
    assert_eq!(places.len(), CUSTOMERS + 1);
    for (place, mut spans) in places {
        spans.sort_unstable();
        for pair in spans.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "two held {place} at once: {pair:?}");
        }
    }
}
