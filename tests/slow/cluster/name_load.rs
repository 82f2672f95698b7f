//! The load on several names over RabbitMQ, and its oracle. Each name has a workflow of its own,
//! and `one` calls `two`, which calls `three`. Clients create jobs of all three at whichever
//! manager of the name answers. At the end the journal is asked by SQL:
//!
//! - every job that was answered 201 is there, under its own name, and so is the one job that each
//!   call asks for; there is no other;
//! - every job is completed, with the result that follows from its message;
//! - no step has two results, and each record is without gaps;
//! - all queues are empty.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::load::{ANSWER_TIMEOUT, broken_records};
use super::query;
use crate::amqp::{Answer, Vhost, Worker};
use crate::harness::{Api, Daemon, when};

/// The names, each with a workflow of the same name. Each calls the next one.
pub(super) const NAMES: [&str; 3] = ["one", "two", "three"];

/// The pause of a client between two jobs.
const PAUSE: Duration = Duration::from_millis(120);

/// The numbers of two jobs differ by at least this. A called job has the number of its caller's
/// message plus one.
const NUMBER_STEP: u64 = 10;

/// The workflow of a name. Its own step adds one, and the workflow that it calls the rest.
pub(super) fn workflow(name: usize) -> String {
    let own = NAMES[name];
    let call = NAMES.get(name + 1).map_or_else(String::new, |called| {
        format!(", {{ name: ask, queue: workflow.{called}, depends: [ add ] }}")
    });
    format!("workflows: [{{ name: {own}, steps: [{{ name: add, queue: work.{own} }}{call}] }}]")
}

/// What the steps of a job of a name add to the number of its message, with those of called jobs.
fn steps(name: usize) -> u64 {
    u64::try_from(NAMES.len() - name).unwrap()
}

/// Clients and a worker, until they are dropped.
pub(super) struct NameLoad {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    _worker: Worker,
}

struct Shared {
    /// Those of the managers of each name.
    apis: Vec<Vec<Api>>,
    has_ended: AtomicBool,
    /// Whether clients create no more jobs.
    is_enough: AtomicBool,
    created: AtomicU64,
    /// The name and the number of each job that was asked for.
    asked: Mutex<BTreeMap<Uuid, (usize, u64)>>,
    answered: Mutex<BTreeSet<Uuid>>,
    /// How many messages of each name's queue were worked on.
    worked: [AtomicUsize; NAMES.len()],
}

impl NameLoad {
    /// Starts a load on the managers of each name.
    pub(super) fn start(managers: &[Vec<Daemon>], vhost: &Vhost) -> NameLoad {
        let to_apis = |managers: &Vec<Daemon>| {
            managers.iter().map(|manager| manager.api.with_timeout(ANSWER_TIMEOUT)).collect()
        };
        let shared = Arc::new(Shared {
            apis: managers.iter().map(to_apis).collect(),
            has_ended: AtomicBool::new(false),
            is_enough: AtomicBool::new(false),
            created: AtomicU64::new(0),
            asked: Mutex::default(),
            answered: Mutex::default(),
            worked: [const { AtomicUsize::new(0) }; NAMES.len()],
        });
        let threads = (0..NAMES.len()).map(|name| {
            let shared = shared.clone();
            thread::spawn(move || shared.create_jobs(name))
        });
        let queues = NAMES.map(|name| format!("work.{name}"));
        let threads = threads.collect();
        let seen = shared.clone();
        let worker = Worker::forgetful(&vhost.url, &queues, move |message| {
            let name = NAMES.iter().position(|name| message.queue == format!("work.{name}"));
            seen.worked[name.unwrap()].fetch_add(1, Ordering::SeqCst);
            let number = message.json()["n"].as_u64().unwrap();
            Answer::json(&json!({ "n": number + 1 }))
        });
        NameLoad { shared, threads, _worker: worker }
    }

    /// How many messages of each name's queue were worked on.
    pub(super) fn worked(&self) -> [usize; NAMES.len()] {
        std::array::from_fn(|name| self.shared.worked[name].load(Ordering::SeqCst))
    }

    /// How many creations were answered.
    pub(super) fn answered_count(&self) -> usize {
        self.shared.answered.lock().unwrap().len()
    }

    /// Creates no more jobs. Returns an error while jobs go on.
    pub(super) fn try_rest(&self, url: &str) -> Result<(), String> {
        let asked = {
            // A client looks whether it is enough under the same lock.
            let asked = self.shared.asked.lock().unwrap();
            self.shared.is_enough.store(true, Ordering::SeqCst);
            asked.len()
        };
        let unanswered = asked - self.answered_count();
        let open = query(url, "SELECT workflow, count(*) FROM jobs WHERE ended IS NULL GROUP BY 1");
        let details = format!("{unanswered} of {asked} are unanswered, these go on: {open}");
        when(open.is_empty() && unanswered == 0, details)
    }

    /// Lets clients create more jobs after a rest.
    pub(super) fn go_on(&self) {
        self.shared.is_enough.store(false, Ordering::SeqCst);
    }

    /// What is wrong in the journal once all jobs have ended; empty if all is right.
    pub(super) fn violations(&self, url: &str) -> String {
        let mut wrong = String::new();
        let asked = self.shared.asked.lock().unwrap().clone();
        // Each job that must be there, by the name and its result. The id of a called job is not
        // known.
        let mut expected: BTreeMap<(usize, u64), Option<Uuid>> = BTreeMap::new();
        for (id, (asked_name, number)) in &asked {
            for name in *asked_name..NAMES.len() {
                // The caller's own step has added one by then; a result has what all steps add.
                let input = number + u64::try_from(name - asked_name).unwrap();
                let own_id = (name == *asked_name).then_some(*id);
                expected.insert((name, input + steps(name)), own_id);
            }
        }
        let sql = "SELECT j.workflow, n.name, j.id, j.state,
                          e.element -> 'step' -> 1 -> 'completed' ->> 'n'
             FROM jobs j JOIN names n ON n.ordinal = (j.number >> 12) & 1023
             LEFT JOIN (SELECT job, element FROM entries,
                          jsonb_array_elements(body::jsonb) AS element
                        WHERE element -> 'step' -> 1 ? 'completed') e
               ON e.job = j.number AND e.element -> 'step' ->> 0
                  = CASE j.workflow WHEN 'three' THEN '0' ELSE '1' END";
        for row in query(url, sql).lines() {
            let mut columns = row.split('|');
            let [workflow, name, id, state, result] = [(); 5].map(|()| columns.next().unwrap());
            let id: Uuid = id.parse().unwrap();
            if workflow != name || state != "completed" {
                writeln!(wrong, "job {id} of {workflow} is of {name}, and {state}").unwrap();
            }
            let index = NAMES.iter().position(|name| *name == workflow).unwrap();
            let found = result.parse().ok().and_then(|result| expected.remove(&(index, result)));
            match found {
                Some(Some(own_id)) if own_id != id => {
                    writeln!(wrong, "job {id} has the result of job {own_id}").unwrap();
                }
                Some(_) => {}
                None => writeln!(wrong, "job {id} of {workflow} with {result:?} is one too many")
                    .unwrap(),
            }
        }
        for ((name, result), id) in expected {
            let name = NAMES[name];
            writeln!(wrong, "the job {id:?} of {name} with the result {result} is missing")
                .unwrap();
        }
        wrong + &broken_records(url, 0)
    }

    /// Asserts that no message is left.
    pub(super) fn assert_drained(&self, vhost: &Vhost) {
        for name in NAMES {
            for queue in ["work", "workflow", "workflow-manager"] {
                vhost.await_drained(&format!("{queue}.{name}"));
            }
        }
    }
}

impl Drop for NameLoad {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ended = thread.join();
        }
    }
}

impl Shared {
    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    fn create_jobs(&self, name: usize) {
        let mut current = 0;
        while !self.has_ended() {
            thread::sleep(PAUSE);
            let Some((id, number)) = self.next_job(name) else { continue };
            let path = format!("/api/workflow/{}?id={id}", NAMES[name]);
            let body = json!({ "n": number }).to_string();
            // Without an answer the same job is asked for again.
            while !self.has_ended() {
                let apis = &self.apis[name];
                let api = &apis[current % apis.len()];
                let answer = api.try_send("POST", &path, &[], Some(body.as_bytes()));
                if answer.is_ok_and(|answer| answer.status == 201) {
                    self.answered.lock().unwrap().insert(id);
                    break;
                }
                current += 1;
                thread::sleep(PAUSE);
            }
        }
    }

    /// The id and the number of another job; `None` if there are enough.
    fn next_job(&self, name: usize) -> Option<(Uuid, u64)> {
        let mut asked = self.asked.lock().unwrap();
        if self.is_enough.load(Ordering::SeqCst) {
            return None;
        }
        let number = self.created.fetch_add(1, Ordering::SeqCst) * NUMBER_STEP;
        let id = Uuid::new_v4();
        asked.insert(id, (name, number));
        Some((id, number))
    }
}
