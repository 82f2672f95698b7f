//! Limits while the process is killed again and again under load: no window is exceeded, nobody
//! holds a place that another one has, no place is leaked, and the work ends.

use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use uuid::Uuid;
use workflow_manager::engine::{Entry, JobId, Recorded, StepEntry};
use workflow_manager::journal::{HistoryRecords as _, Reader};

use crate::harness::{Api, Daemon, Setup, eventually, when, within};
use crate::kills::{count_jobs, kill_again_and_again, kill_count};
use crate::load::{LONG, StopOnDrop, create_through_crashes};

const WORKFLOWS: &str = "
limits:
  - { name: bank, rate: 50/s, burst: 5 }
  - { name: license, concurrency: 3 }
  - { name: customer, concurrency: 1, key: job.customer }
  - { name: quota, rate: 1/d, burst: 3, key: job.customer }
workflows:
  - name: orders
    steps:
      - { name: pay, limit: [ bank, license ], retry: { attempts: 50, backoff: 10ms } }
      - { name: ship, limit: customer, depends: [ pay ] }
  - { name: gifts, steps: [ { name: wrap, limit: quota } ] }
";
const BANK_RATE: f64 = 50.0;
const BANK_BURST: f64 = 5.0;
const LICENSES: i64 = 3;
const QUOTA: usize = 3;
const CUSTOMERS: usize = 7;
/// More than their quotas allow: the last ones of each customer wait for a day.
const GIFTS: usize = 5 * CUSTOMERS;

/// How much later than its admission a message is decided to be sent, at most, on a busy machine.
const DECISION_LAG_S: f64 = 2.0;

const ORDERS_PER_KILL: usize = 20;

/// The workers, by the queues that they take messages from.
const WORKERS: [&str; 6] = ["pay", "pay", "pay", "ship", "ship", "wrap"];

#[test]
fn limits_hold_when_the_process_is_killed_again_and_again() {
    let kills = kill_count(15);
    let mut daemon = Setup::new("", WORKFLOWS).set("embedded.lease", "1s").start();
    let new_ids = |count: usize| (0..count).map(|_| Uuid::new_v4()).collect::<Vec<Uuid>>();
    let (orders, gifts) = (new_ids(ORDERS_PER_KILL * kills), new_ids(GIFTS));
    let (stop, replies) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let _stopped = StopOnDrop(&stop);
        for (workflow, ids) in [("orders", &orders), ("gifts", &gifts)] {
            let api = daemon.api.anew();
            scope.spawn(move || {
                for (n, id) in ids.iter().enumerate() {
                    let message = format!(r#"{{"customer":"c{}"}}"#, n % CUSTOMERS);
                    create_through_crashes(&api, workflow, *id, &message);
                }
            });
        }
        for queue in WORKERS {
            let (api, stop, replies) = (daemon.api.anew(), &stop, &replies);
            scope.spawn(move || work(&api, queue, stop, replies));
        }
        kill_again_and_again(&mut daemon, kills, &replies, orders.len());
        within(LONG, "all orders are completed", || {
            let done =
                ["orders", "gifts"].map(|workflow| count_jobs(&daemon, workflow, "completed"));
            let goal = [orders.len(), QUOTA * CUSTOMERS].map(|count| count as u64);
            when(done == goal, format!("{done:?} of {goal:?}"))
        });
        // All places are free, and only the quotas have somebody who waits.
        for (limit, held, waiting) in read_limits(&daemon) {
            let waits_for_days = if limit == "quota" { GIFTS - QUOTA * CUSTOMERS } else { 0 };
            assert_eq!((held, waiting), (0, waits_for_days), "{limit}");
        }
        // Everybody who asks gets the places that were held.
        let last = daemon.api.create("orders", r#"{"customer":"c0"}"#);
        daemon.api.await_state(last, "completed");
        stop.store(true, Ordering::SeqCst);
    });
    for id in &gifts {
        drop(daemon.api.post(&format!("/api/job/{id}/cancel"), ""));
    }
    eventually("nobody waits any more", || {
        let limits = read_limits(&daemon);
        when(limits.iter().all(|(_, held, waiting)| held + waiting == 0), format!("{limits:?}"))
    });
    Account::read(&daemon, &orders, &gifts).check(orders.len());
    assert!(daemon.stop().success());
}

/// The limits, each with how many hold it and how many wait for it.
fn read_limits(daemon: &Daemon) -> Vec<(String, usize, usize)> {
    let limits = daemon.api.get("/api/limits").expect(200).json();
    let count = |value: &Value| usize::try_from(value.as_u64().expect("a number")).expect("small");
    let limits = limits["limits"].as_array().expect("a list").iter();
    limits
        .map(|limit| {
            let name = limit["limit"].as_str().expect("a name").to_owned();
            (name, count(&limit["held"]), count(&limit["waiting"]))
        })
        .collect()
}

/// Takes messages of a queue, and replies; to every seventh of `pay` with an error.
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

/// From when to when a place was held, in nanoseconds.
type Hold = (i64, i64);

/// What the records say: when messages were sent, and when places were held.
#[derive(Default)]
struct Account {
    payments: Vec<i64>,
    licenses: Vec<Hold>,
    /// By customer.
    ships: BTreeMap<String, Vec<Hold>>,
    gifts: BTreeMap<String, usize>,
}

impl Account {
    fn read(daemon: &Daemon, orders: &[Uuid], gifts: &[Uuid]) -> Account {
        let reader = Reader::open(&daemon.database()).expect("opens");
        let mut account = Account::default();
        let mut read = |id: Uuid, is_gift: bool, n: usize| {
            let customer = format!("c{}", n % CUSTOMERS);
            let mut began: BTreeMap<u16, i64> = BTreeMap::new();
            let mut take = |row: Recorded| {
                for entry in &row.entries {
                    if let Entry::Step(step, entry) = entry {
                        let step = if is_gift { None } else { Some(step.0) };
                        account.take(&customer, step, entry, row.at.0, &mut began);
                    }
                }
            };
            let found = reader.for_each_row(JobId(id), &mut take).expect("reads");
            found.expect("the job is there");
        };
        orders.iter().enumerate().for_each(|(n, id)| read(*id, false, n));
        gifts.iter().enumerate().for_each(|(n, id)| read(*id, true, n));
        account
    }

    /// Takes an entry of a step of an order, or of a gift (`None`).
    fn take(
        &mut self,
        customer: &str,
        step: Option<u16>,
        entry: &StepEntry,
        at: i64,
        began: &mut BTreeMap<u16, i64>,
    ) {
        let is_sent = matches!(entry, StepEntry::Started { .. } | StepEntry::Unconfirmed);
        let Some(step) = step else {
            *self.gifts.entry(customer.to_owned()).or_default() += usize::from(is_sent);
            return;
        };
        let is_payment = step == 0;
        let is_settled = matches!(
            entry,
            StepEntry::Completed(_) | StepEntry::AttemptFailed { .. } | StepEntry::Failed(_)
        );
        if is_sent {
            self.payments.extend(is_payment.then_some(at));
            began.entry(step).or_insert(at);
        } else if is_settled && let Some(since) = began.remove(&step) {
            let holds = if is_payment {
                &mut self.licenses
            } else {
                self.ships.entry(customer.to_owned()).or_default()
            };
            holds.push((since, at));
        }
    }

    fn check(mut self, orders: usize) {
        let sent = &mut self.payments;
        assert!(sent.len() >= orders, "{} payments", sent.len());
        sent.sort_unstable();
        for first in 0..sent.len() {
            for last in first..sent.len() {
                let seconds = (sent[last] - sent[first]) as f64 / 1e9;
                let count = (last - first + 1) as f64;
                let allowed = BANK_BURST + BANK_RATE * (seconds + DECISION_LAG_S);
                assert!(count <= allowed, "{count} payments in {seconds} s, not {allowed}");
            }
        }
        let licenses = count_overlap(&self.licenses);
        assert!(licenses <= LICENSES, "{licenses} hold the license");
        assert_eq!(self.ships.len(), CUSTOMERS);
        for (customer, holds) in &self.ships {
            assert_eq!(count_overlap(holds), 1, "of customer {customer}");
        }
        assert!(self.gifts.values().all(|count| *count == QUOTA), "{:?}", self.gifts);
    }
}

/// Returns how many of the spans of time overlap at most. One that begins when another ends does
/// not overlap it.
fn count_overlap(spans: &[Hold]) -> i64 {
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
