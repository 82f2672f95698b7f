//! The load on a cluster, and the oracle. Clients create jobs under ids of their own, workers
//! answer their messages, both over HTTP at whichever manager answers. At the end the journal is
//! asked by SQL:
//!
//! - every job that was answered 201 is there, and none that nobody asked for;
//! - every job is completed, with the result that follows from its message;
//! - every reply that a manager has taken is the one in the journal;
//! - no step has two results, and each record is without gaps;
//! - the queue is empty.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use super::query;
use crate::amqp::{self, REPLY_QUEUE, Vhost, Worker};
use crate::harness::{Answer, Api, Daemon, when, within};

/// Each step adds one, and its status is a word that its worker has made up.
pub(super) const WORKFLOWS: &str = "workflows: [{ name: chain, steps: [
    { name: first, queue: work, statusKey: status },
    { name: second, queue: work, statusKey: status, depends: [ first ] }] }]";

const QUEUE: &str = "work";

/// What the steps of a job add to the number of its message.
const STEPS: u64 = 2;

/// How long a client waits for an answer before it asks elsewhere.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// The pause of a client between two jobs, and of a worker that has no message.
const PAUSE: Duration = Duration::from_millis(25);

/// How long the jobs of a test may take to end.
pub(super) const LONG: Duration = Duration::from_secs(120);

/// How often a worker offers a reply to all managers.
const REPLY_ROUNDS: usize = 3;

const CLIENTS: usize = 2;
const WORKERS: usize = 2;

/// Clients and workers, until they are dropped.
pub(super) struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// The worker over RabbitMQ, if there is one.
    worker: Option<Worker>,
}

struct Shared {
    /// Those of all managers.
    apis: Vec<Api>,
    has_ended: AtomicBool,
    /// Whether clients create no more jobs.
    is_enough: AtomicBool,
    created: AtomicUsize,
    /// The number in the message of each job that was asked for.
    asked: Mutex<BTreeMap<Uuid, u64>>,
    /// The jobs that were answered 201.
    answered: Mutex<BTreeSet<Uuid>>,
    /// The status of each reply that a manager has taken.
    taken: Mutex<BTreeSet<String>>,
    /// How many messages workers have in hand.
    in_hand: AtomicUsize,
    /// How many replies were taken in all.
    taken_count: AtomicUsize,
    /// How many jobs were checked and forgotten, and the number of the last one.
    jobs_checked: AtomicUsize,
    last_checked: AtomicI64,
}

/// What came of a worker's look for a message.
enum Look {
    Served,
    Empty,
    Away,
}

impl Load {
    /// Starts a load on managers, with workers over HTTP.
    pub(super) fn start(managers: &[&Daemon]) -> Load {
        let mut load = Load::of_clients(managers);
        for _ in 0..WORKERS {
            let shared = load.shared.clone();
            load.threads.push(thread::spawn(move || shared.work()));
        }
        load
    }

    /// Starts a load on managers, with a worker over RabbitMQ. It counts each reply as taken.
    pub(super) fn start_over_amqp(managers: &[&Daemon], vhost: &Vhost) -> Load {
        let mut load = Load::of_clients(managers);
        let shared = load.shared.clone();
        load.worker = Some(Worker::start(&vhost.url, &[QUEUE], move |message| {
            shared.taken_count.fetch_add(1, Ordering::SeqCst);
            amqp::Answer::json(&make_reply(&message.json(), &new_word()))
        }));
        load
    }

    fn of_clients(managers: &[&Daemon]) -> Load {
        let apis = managers.iter().map(|manager| manager.api.with_timeout(ANSWER_TIMEOUT));
        let shared = Arc::new(Shared {
            apis: apis.collect(),
            has_ended: AtomicBool::new(false),
            is_enough: AtomicBool::new(false),
            created: AtomicUsize::new(0),
            asked: Mutex::default(),
            answered: Mutex::default(),
            taken: Mutex::default(),
            in_hand: AtomicUsize::new(0),
            taken_count: AtomicUsize::new(0),
            jobs_checked: AtomicUsize::new(0),
            last_checked: AtomicI64::new(0),
        });
        let clients = (0..CLIENTS).map(|_| {
            let shared = shared.clone();
            thread::spawn(move || shared.create_jobs())
        });
        Load { threads: clients.collect(), shared, worker: None }
    }

    /// How many creations were answered.
    pub(super) fn answered_count(&self) -> usize {
        self.shared.answered.lock().unwrap().len()
    }

    /// How many replies were taken.
    pub(super) fn taken_count(&self) -> usize {
        self.shared.taken_count.load(Ordering::SeqCst)
    }

    /// Waits until so many more replies were taken.
    #[track_caller]
    pub(super) fn await_more(&self, count: usize) {
        let until = self.taken_count() + count;
        within(LONG, "the load goes on", || {
            let taken = self.taken_count();
            let answered = self.answered_count();
            when(taken >= until, format!("{taken} replies of {until}, {answered} jobs"))
        });
    }

    /// Creates no more jobs, waits until all have ended, and asserts what the journal must hold.
    #[track_caller]
    pub(super) fn settle(self, url: &str, active: &Daemon) {
        self.rest_and_check(url);
        let answer = active.api.send("POST", "/api/queue/work/receive?wait=0s", &[], None);
        assert_eq!(answer.status, 204, "the queue is empty: {answer}");
    }

    /// As [`Load::settle`], over RabbitMQ.
    #[track_caller]
    pub(super) fn settle_over_amqp(self, url: &str, vhost: &Vhost) {
        self.rest_and_check(url);
        vhost.await_drained(QUEUE);
        vhost.await_drained(REPLY_QUEUE);
    }

    #[track_caller]
    fn rest_and_check(&self, url: &str) {
        within(LONG, "all jobs end", || self.try_rest(url));
        self.assert_sound(url);
    }

    /// Creates no more jobs. Returns an error while jobs go on.
    pub(super) fn try_rest(&self, url: &str) -> Result<(), String> {
        let asked = {
            // A client looks whether it is enough under the same lock.
            let asked = self.shared.asked.lock().unwrap();
            self.shared.is_enough.store(true, Ordering::SeqCst);
            asked.len()
        };
        // A client that got no answer asks again until it gets one.
        let unanswered = asked - self.answered_count();
        let sql = "SELECT count(*) FROM jobs WHERE parent IS NULL AND ended IS NULL";
        let open = query(url, sql);
        let in_hand = self.shared.in_hand.load(Ordering::SeqCst);
        when(
            open == "0" && unanswered == 0 && in_hand == 0,
            format!("{open} jobs of {asked} go on, {unanswered} are unanswered"),
        )
    }

    /// Lets clients create more jobs after a rest.
    pub(super) fn go_on(&self) {
        self.shared.is_enough.store(false, Ordering::SeqCst);
    }

    /// Forgets all jobs after they were checked: the next check is of those that come after them.
    pub(super) fn forget_checked(&self, url: &str) {
        let count = self.answered_count() + self.jobs_checked();
        let rows = query(url, "SELECT count(*), coalesce(max(number), 0) FROM jobs");
        let (jobs, last) = rows.split_once('|').unwrap();
        assert_eq!(jobs, count.to_string(), "no job that was checked before is gone");
        self.shared.jobs_checked.store(count, Ordering::SeqCst);
        self.shared.last_checked.store(last.parse().unwrap(), Ordering::SeqCst);
        self.shared.asked.lock().unwrap().clear();
        self.shared.answered.lock().unwrap().clear();
        self.shared.taken.lock().unwrap().clear();
    }

    /// How many jobs were checked and forgotten.
    pub(super) fn jobs_checked(&self) -> usize {
        self.shared.jobs_checked.load(Ordering::SeqCst)
    }

    /// Asserts what the journal must hold once all jobs have ended.
    #[track_caller]
    pub(super) fn assert_sound(&self, url: &str) {
        let violations = self.violations(url);
        assert!(violations.is_empty(), "{violations}");
    }

    /// What is wrong in the journal; empty if all is right.
    pub(super) fn violations(&self, url: &str) -> String {
        let mut wrong = String::new();
        let asked = self.shared.asked.lock().unwrap().clone();
        let answered = self.shared.answered.lock().unwrap().clone();
        let last = self.shared.last_checked.load(Ordering::SeqCst);
        let sql = format!(
            "SELECT j.id, j.state, e.element -> 'step' -> 1 -> 'completed' ->> 'n' FROM jobs j
             LEFT JOIN (SELECT job, element FROM entries,
                          jsonb_array_elements(body::jsonb) AS element
                        WHERE job > {last} AND element -> 'step' ->> 0 = '1'
                          AND element -> 'step' -> 1 ? 'completed') e ON e.job = j.number
             WHERE j.number > {last}"
        );
        let mut found = BTreeMap::new();
        for row in query(url, &sql).lines() {
            let mut columns = row.split('|');
            let [id, state, number] = [(); 3].map(|()| columns.next().unwrap());
            let id: Uuid = id.parse().unwrap();
            if state != "completed" {
                writeln!(wrong, "job {id} is {state}").unwrap();
            }
            if found.insert(id, number.to_owned()).is_some() {
                writeln!(wrong, "job {id} has two rows or two results").unwrap();
            }
            match asked.get(&id) {
                None => writeln!(wrong, "nobody asked for job {id}").unwrap(),
                Some(asked) if number != (asked + STEPS).to_string() => {
                    writeln!(wrong, "job {id} of {asked} has the result {number:?}").unwrap();
                }
                Some(_) => {}
            }
        }
        for id in answered.iter().filter(|id| !found.contains_key(id)) {
            writeln!(wrong, "job {id} was answered, and is not there").unwrap();
        }
        let words = query(url, &format!("SELECT word FROM statuses WHERE job > {last}"));
        let words: BTreeSet<String> = words.lines().map(str::to_owned).collect();
        for word in self.shared.taken.lock().unwrap().difference(&words) {
            writeln!(wrong, "the reply {word} was taken, and is not there").unwrap();
        }
        wrong + &broken_records(url, last)
    }
}

/// The steps with several results, and the gaps, in the records of jobs after this number.
pub(super) fn broken_records(url: &str, last: i64) -> String {
    let mut wrong = String::new();
    let repeated = format!(
        "SELECT e.job, element -> 'step' -> 0, count(*)
         FROM entries e, jsonb_array_elements(e.body::jsonb) AS element
         WHERE e.job > {last} AND element -> 'step' -> 1 ? 'completed'
         GROUP BY 1, 2 HAVING count(*) <> 1"
    );
    let gaps = format!(
        "SELECT job, first, expected FROM (
           SELECT job, first, coalesce(lag(first + jsonb_array_length(body::jsonb))
             OVER (PARTITION BY job ORDER BY first), 0) AS expected
           FROM entries WHERE job > {last}) e
         WHERE first <> expected"
    );
    for (what, sql) in [("a step has several results", &repeated), ("a gap", &gaps)] {
        let rows = query(url, sql);
        if !rows.is_empty() {
            writeln!(wrong, "{what}: {rows}").unwrap();
        }
    }
    wrong
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ended = thread.join();
        }
    }
}

/// A status that no other reply has.
fn new_word() -> String {
    Uuid::new_v4().simple().to_string()
}

/// The reply to a step message.
fn make_reply(message: &Value, word: &str) -> Value {
    json!({ "n": message["n"].as_u64().unwrap() + 1, "status": word })
}

impl Shared {
    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    fn create_jobs(&self) {
        let mut current = 0;
        while !self.has_ended() {
            thread::sleep(PAUSE);
            let Some((id, number)) = self.next_job() else { continue };
            let (path, body) = (format!("/api/workflow/chain?id={id}"), json!({ "n": number }));
            // Without an answer the same job is asked for again.
            while !self.has_ended() {
                match self.post(current, &path, &body) {
                    Some(answer) if answer.status == 201 => {
                        self.answered.lock().unwrap().insert(id);
                        break;
                    }
                    Some(_) | None => {
                        current += 1;
                        thread::sleep(PAUSE);
                    }
                }
            }
        }
    }

    /// The id and the number of another job; `None` if there are enough.
    fn next_job(&self) -> Option<(Uuid, u64)> {
        let mut asked = self.asked.lock().unwrap();
        if self.is_enough.load(Ordering::SeqCst) {
            return None;
        }
        let index = self.created.fetch_add(1, Ordering::SeqCst);
        let (id, number) = (Uuid::new_v4(), u64::try_from(index).unwrap() * 10);
        asked.insert(id, number);
        Some((id, number))
    }

    fn work(&self) {
        let mut current = 0;
        while !self.has_ended() {
            match self.serve_one(current) {
                Look::Served => {}
                Look::Empty => thread::sleep(PAUSE),
                Look::Away => {
                    current += 1;
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Answers a message of a manager, if it has one.
    fn serve_one(&self, current: usize) -> Look {
        let path = "/api/queue/work/receive?wait=0s";
        let api = &self.apis[current % self.apis.len()];
        let message = match api.try_send("POST", path, &[], None) {
            Ok(answer) if answer.status == 204 => return Look::Empty,
            Ok(answer) if answer.status == 200 => answer,
            Ok(_) | Err(_) => return Look::Away,
        };
        self.in_hand.fetch_add(1, Ordering::SeqCst);
        let look = self.answer(current, &message);
        self.in_hand.fetch_sub(1, Ordering::SeqCst);
        look
    }

    /// Answers a message at whichever manager takes the reply.
    fn answer(&self, current: usize, message: &Answer) -> Look {
        let word = new_word();
        let reply = make_reply(&message.json(), &word);
        let reply_to = format!("{}?type=result", message.header("reply-to"));
        for other in 0..self.apis.len() * REPLY_ROUNDS {
            if let Some(answer) = self.post(current + other, &reply_to, &reply)
                && answer.status == 200
            {
                if answer.json()["taken"] == json!(true) {
                    self.taken.lock().unwrap().insert(word);
                    self.taken_count.fetch_add(1, Ordering::SeqCst);
                }
                return Look::Served;
            }
            if self.has_ended() {
                break;
            }
        }
        // The message is lent again.
        Look::Away
    }

    fn post(&self, current: usize, path: &str, body: &Value) -> Option<Answer> {
        let api = &self.apis[current % self.apis.len()];
        api.try_send("POST", path, &[], Some(body.to_string().as_bytes())).ok()
    }
}
