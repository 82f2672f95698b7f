//! A load of jobs in which every step checks its input, and the account of it afterwards: what was
//! accepted, and what became of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use rusqlite::{Connection, OpenFlags};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::{
    amqp::{Answer, REPLY_QUEUE, StepMessage, Vhost, Worker},
    harness::{Api, Daemon, eventually, when, within},
};

/// The deadline for many jobs and several starts of the daemon.
pub(crate) const LONG: Duration = Duration::from_secs(180);

/// A chain, a diamond and a fan-out with a fan-in.
pub(crate) const WORKFLOWS: &str = "
workflows:
  - name: chain
    steps: [ { name: double }, { name: add, depends: [ double ] }, \
        { name: tell, depends: [ add ] } ]
  - name: diamond
    steps: [ { name: split }, { name: left, depends: [ split ] }, \
        { name: right, depends: [ split ] }, { name: join, depends: [ left, right ] } ]
  - name: fan
    steps: [ { name: each, task: square }, { name: sum, depends: [ each ] } ]
    tasks:
      - { name: square, itemListKey: values, steps: [ { name: multiply } ] }
";
pub(crate) const QUEUES: [&str; 9] =
    ["double", "add", "tell", "split", "left", "right", "join", "multiply", "sum"];
const NAMES: [&str; 3] = ["chain", "diamond", "fan"];
const ITEMS: u64 = 5;

/// One job of the load: which workflow it runs, and with what, follows from its number.
#[derive(Clone, Copy)]
struct Job {
    id: Uuid,
    n: u64,
}

impl Job {
    fn workflow(self) -> &'static str {
        NAMES[usize::try_from(self.n % 3).unwrap()]
    }

    fn message(self) -> Value {
        match self.workflow() {
            "fan" => json!({ "n": self.n, "values": (self.n..self.n + ITEMS).collect::<Vec<_>>() }),
            _ => json!({ "n": self.n }),
        }
    }

    fn result(self) -> Value {
        let n = self.n;
        match self.workflow() {
            "chain" => json!({ "n": n, "result": 2 * n + 1 }),
            "diamond" => json!({ "n": n, "total": 2 * n + 3 }),
            _ => json!({
                "n": n,
                "squares": (n..n + ITEMS).map(|value| value * value).collect::<Vec<_>>(),
            }),
        }
    }
}

/// The output of a step; an `Err` says what is wrong with its input.
fn work(step: &str, input: &Value) -> Result<Value, String> {
    let whole = |key: &str| {
        input[key]
            .as_u64()
            .ok_or_else(|| format!("{step}: no whole number under {key:?} in {input}"))
    };
    let must = |holds: bool| {
        if holds {
            Ok(())
        } else {
            Err(format!("{step}: not what its predecessor computed: {input}"))
        }
    };
    let n = whole("n")?;
    Ok(match step {
        "double" => json!({ "n": n, "doubled": n * 2 }),
        "add" => {
            must(whole("doubled")? == n * 2)?;
            json!({ "n": n, "added": n * 2 + 1 })
        }
        "tell" => json!({ "n": n, "result": whole("added")? }),
        "split" => json!({ "n": n, "half": n + 1 }),
        "left" => json!({ "n": n, "left": whole("half")? }),
        "right" => json!({ "n": n, "right": whole("half")? + 1 }),
        "join" => json!({ "n": n, "total": whole("left")? + whole("right")? }),
        "multiply" => {
            let value = whole("value")?;
            must((n..n + ITEMS).contains(&value))?;
            json!({ "n": n, "value": value * value })
        }
        "sum" => {
            let squares: Vec<u64> = (n..n + ITEMS).map(|value| value * value).collect();
            must(input["values"] == json!(squares))?;
            json!({ "n": n, "squares": squares })
        }
        other => return Err(format!("a message of the unknown step {other:?}")),
    })
}

/// Jobs offered to a daemon, and the worker that does them.
pub(crate) struct Load {
    url: String,
    worker: Mutex<Option<Worker>>,
    earlier: Mutex<Vec<StepMessage>>,
    wrong_inputs: Arc<Mutex<Vec<String>>>,
    accepted: Mutex<Vec<Job>>,
    numbers: AtomicU64,
}

impl Load {
    pub(crate) fn new(url: &str) -> Load {
        let load = Load {
            url: url.to_owned(),
            worker: Mutex::default(),
            earlier: Mutex::default(),
            wrong_inputs: Arc::default(),
            accepted: Mutex::default(),
            numbers: AtomicU64::new(0),
        };
        load.work();
        load
    }

    /// Puts a worker on all the queues, if none is there.
    pub(crate) fn work(&self) {
        let mut worker = self.worker.lock().unwrap();
        if worker.is_none() {
            let wrong = Arc::clone(&self.wrong_inputs);
            *worker = Some(Worker::start(&self.url, &QUEUES, move |message| {
                match work(&message.step(), &message.json()) {
                    Ok(output) => Answer::json(&output),
                    Err(what) => {
                        wrong.lock().unwrap().push(what);
                        Answer::Silence
                    }
                }
            }));
        }
    }

    /// Takes the worker away: messages wait in their queues.
    pub(crate) fn rest(&self) {
        if let Some(worker) = self.worker.lock().unwrap().take() {
            self.earlier.lock().unwrap().extend(worker.seen());
        }
    }

    /// Offers this many jobs, from some clients at once, each again and again until it is accepted.
    pub(crate) fn offer(&self, api: &Api, clients: usize, count: usize) {
        thread::scope(|scope| {
            for client in 0..clients {
                let count = count / clients + usize::from(client < count % clients);
                scope.spawn(move || (0..count).for_each(|_| self.offer_one(api)));
            }
        });
    }

    /// Offers jobs until it is told to stop.
    pub(crate) fn offer_until(&self, api: &Api, clients: usize, stop: &AtomicBool) {
        thread::scope(|scope| {
            for _ in 0..clients {
                scope.spawn(|| {
                    while !stop.load(Ordering::SeqCst) {
                        self.offer_one(api);
                    }
                });
            }
        });
    }

    fn offer_one(&self, api: &Api) {
        let job = Job { id: Uuid::new_v4(), n: self.numbers.fetch_add(1, Ordering::SeqCst) };
        create_through_crashes(api, job.workflow(), job.id, &job.message().to_string());
        self.accepted.lock().unwrap().push(job);
    }

    pub(crate) fn accepted_count(&self) -> usize {
        self.accepted.lock().unwrap().len()
    }

    /// All messages that workers have received.
    pub(crate) fn seen(&self) -> Vec<StepMessage> {
        let mut seen = self.earlier.lock().unwrap().clone();
        seen.extend(self.worker.lock().unwrap().as_ref().map(Worker::seen).unwrap_or_default());
        seen
    }

    pub(crate) fn seen_count(&self) -> usize {
        self.earlier.lock().unwrap().len()
            + self.worker.lock().unwrap().as_ref().map_or(0, Worker::seen_count)
    }

    /// Waits until the workers have received this many messages.
    #[track_caller]
    pub(crate) fn await_seen(&self, count: usize) {
        within(LONG, "the jobs go on", || {
            let seen = self.seen_count();
            when(seen >= count, format!("{seen} of {count} messages"))
        });
    }

    /// Waits until the workers have received this many more messages.
    #[track_caller]
    pub(crate) fn await_more(&self, count: usize) {
        self.await_seen(self.seen_count() + count);
    }

    /// Waits until every accepted job has ended, looks at every job and at the journal, and asserts
    /// that nothing was lost.
    #[track_caller]
    pub(crate) fn settle(&self, daemon: &Daemon, vhost: &Vhost) -> Account {
        self.await_quiet(daemon);
        vhost.await_drained(REPLY_QUEUE);
        let account = self.account(daemon);
        account.assert_sound();
        account
    }

    /// Waits until no job is under way.
    #[track_caller]
    pub(crate) fn await_quiet(&self, daemon: &Daemon) {
        within(LONG, "all jobs end", || match daemon.api.try_send("GET", "/api/jobs", &[], None) {
            Ok(answer) => {
                let running = answer.expect(200).ids("jobs");
                when(
                    running.is_empty(),
                    format!(
                        "{} under way, as {:?}; {:?}",
                        running.len(),
                        running.first(),
                        self.wrong_inputs.lock().unwrap()
                    ),
                )
            }
            Err(error) => Err(error.to_string()),
        });
    }

    /// What became of every job.
    #[track_caller]
    pub(crate) fn account(&self, daemon: &Daemon) -> Account {
        let accepted = self.accepted.lock().unwrap().clone();
        let ledger = Ledger::read(&daemon.database());
        let mut account = Account {
            accepted: accepted.len(),
            wrong: self.wrong_inputs.lock().unwrap().clone(),
            ..Account::default()
        };
        for job in accepted {
            let answer = daemon.api.get(&format!("/api/job/{}", job.id));
            if answer.status == 404 {
                account.lost.push(job.id);
                continue;
            }
            let view = crate::harness::JobView::read(&answer.expect(200));
            let result: Value = if view.state == "completed" {
                serde_json::from_str(&view.message_of("__end__")).unwrap()
            } else {
                Value::Null
            };
            if result != job.result() {
                account.wrong.push(format!("expected {}: {}", job.result(), view.text));
            }
        }
        account.finished_twice = ledger.finished_twice();
        let seen = self.seen();
        account.messages = seen.len();
        account.redelivered = seen.iter().filter(|message| message.redelivered).count();
        account.repeated = repeated(&seen);
        account
    }
}

/// Ends an offering, even if what goes on next to it panics.
pub(crate) struct StopOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What became of a load.
#[derive(Default)]
pub(crate) struct Account {
    pub(crate) accepted: usize,
    pub(crate) lost: Vec<Uuid>,
    pub(crate) wrong: Vec<String>,
    /// Jobs and steps that the journal has ending more than once.
    pub(crate) finished_twice: Vec<String>,
    pub(crate) messages: usize,
    /// Deliveries that the broker made again: a worker had them and did not acknowledge.
    pub(crate) redelivered: usize,
    /// The ids of messages that the daemon published again.
    pub(crate) repeated: BTreeSet<String>,
}

impl Account {
    #[track_caller]
    pub(crate) fn assert_sound(&self) {
        assert!(self.accepted > 0, "there was no load");
        let sound = self.lost.is_empty() && self.wrong.is_empty() && self.finished_twice.is_empty();
        let shown = |list: &[String]| list.iter().take(3).cloned().collect::<Vec<_>>().join("\n");
        assert!(
            sound,
            "{self}\nlost: {:?}\nwrong: {}\ntwice: {}",
            self.lost,
            shown(&self.wrong),
            shown(&self.finished_twice)
        );
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} accepted, {} lost, {} wrong, {} finished twice; {} messages, {} published again, \
             {} redelivered by the broker",
            self.accepted,
            self.lost.len(),
            self.wrong.len(),
            self.finished_twice.len(),
            self.messages,
            self.repeated.len(),
            self.redelivered
        )
    }
}

/// The ids of messages that were published more than once: delivered again without the broker's
/// calling them redelivered.
pub(crate) fn repeated(seen: &[StepMessage]) -> BTreeSet<String> {
    let mut first = BTreeSet::new();
    let fresh = seen.iter().filter(|message| !message.redelivered).map(StepMessage::message_id);
    fresh.filter(|id| !first.insert(id.clone())).collect()
}

/// Creates a job again and again, as a client must when it got no answer, until it is accepted.
pub(crate) fn create_through_crashes(api: &Api, workflow: &str, id: Uuid, message: &str) {
    let path = format!("/api/workflow/{workflow}?id={id}");
    within(LONG, "a job is accepted", || {
        match api.try_send("POST", &path, &[], Some(message.as_bytes())) {
            Ok(answer) if answer.status == 201 => Ok(()),
            // Stopping or overloaded: it says so and is asked again.
            Ok(answer) if answer.status == 503 => Err(answer.to_string()),
            Ok(answer) => panic!("{answer}"),
            Err(error) => Err(error.to_string()),
        }
    });
}

// ---- the journal's own words

/// What the journal's file says, whether or not a daemon has it open.
pub(crate) struct Ledger {
    /// How often each job, and each step of each job, ended.
    ends: BTreeMap<String, usize>,
    /// Step messages, by id, that must not be sent again: the broker has confirmed them, or their
    /// step is settled.
    pub(crate) safe: BTreeSet<String>,
}

impl Ledger {
    pub(crate) fn read(database: &Path) -> Ledger {
        let mut ledger = Ledger { ends: BTreeMap::new(), safe: BTreeSet::new() };
        let connection =
            Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
        // Counts what is committed, whether derived already or not, and confirms, whether in a
        // record already or not.
        let sql = "WITH jobs(number, id, definition, graph) AS (
                       SELECT number, lower(hex(id)), definition, graph FROM main.jobs
                       UNION SELECT job, replace(substr(origin, 3, 36), '-', ''), origin ->> 1, \
                         origin ->> 2 FROM main.entries
                       WHERE origin IS NOT NULL AND seq > (SELECT upto FROM derived)),
                   entries(seq, own, job, body) AS (
                       SELECT seq, 1, job, body FROM main.entries
                       UNION ALL SELECT seq, 0, job, told.value -> 2 FROM main.entries, \
                         json_each(confirms) AS told
                       UNION ALL SELECT confirmed.seq, 0, job.value ->> 0, told.value -> 2
                       FROM confirmed, json_each(confirmed.body) AS job, json_each(job.value -> 1) \
                         AS told)
                   SELECT jobs.id, definitions.body -> ('$.graphs[' || jobs.graph || '].steps'), \
                     entries.body
                   FROM entries JOIN jobs ON jobs.number = entries.job \
                     JOIN definitions ON definitions.number = jobs.definition
                   ORDER BY entries.seq, entries.own";
        let mut statement = connection.prepare(sql).unwrap();
        let mut rows = statement.query([]).unwrap();
        let mut attempts: BTreeMap<String, u64> = BTreeMap::new();
        while let Some(row) = rows.next().unwrap() {
            let job: Uuid = row.get::<_, String>(0).unwrap().parse().unwrap();
            let steps: Vec<Value> =
                serde_json::from_str(&row.get::<_, String>(1).unwrap()).unwrap();
            let entries: Vec<Map<String, Value>> =
                serde_json::from_str(&row.get::<_, String>(2).unwrap()).unwrap();
            // `{"step":[0,"confirmed"]}`, `{"step":[0,{"started":{…}}]}`, `{"job":"completed"}`
            for (about, said) in entries.iter().flatten() {
                let name = said[0].as_u64().map(|step| {
                    steps[usize::try_from(step).unwrap()]["name"].as_str().unwrap().to_owned()
                });
                let entry = if name.is_some() { &said[1] } else { said };
                let named = entry.as_object().and_then(|entry| entry.iter().next());
                let (kind, entry) = named.map_or_else(
                    || (entry.as_str().unwrap(), &Value::Null),
                    |(kind, entry)| (kind.as_str(), entry),
                );
                let kind = format!("{about}_{kind}");
                ledger.enter(job, &kind, name.as_deref(), entry, &mut attempts);
            }
        }
        ledger
    }

    fn enter(
        &mut self,
        job: Uuid,
        kind: &str,
        step: Option<&str>,
        entry: &Value,
        attempts: &mut BTreeMap<String, u64>,
    ) {
        let place = format!("{job}:{}", step.unwrap_or_default());
        let message = format!("{place}:{}", attempts.get(&place).copied().unwrap_or_default());
        match kind {
            "step_started" => drop(attempts.insert(place, entry["attempt"].as_u64().unwrap())),
            "step_confirmed" => drop(self.safe.insert(message)),
            "step_unconfirmed" => drop(self.safe.remove(&message)),
            "step_completed" | "step_failed" => {
                self.safe.insert(message);
                *self.ends.entry(place).or_default() += 1;
            }
            "fan_out_completed" | "job_completed" | "job_failed" | "job_cancelled" => {
                *self.ends.entry(place).or_default() += 1
            }
            _ => {}
        }
    }

    fn finished_twice(&self) -> Vec<String> {
        self.ends
            .iter()
            .filter(|(_, count)| **count > 1)
            .map(|(place, count)| format!("{place} {count} times"))
            .collect()
    }
}

/// Tests the account itself: a load without any fault is sound, and each step's end was seen once.
#[test]
fn a_load_without_faults_is_sound() {
    let vhost = Vhost::new();
    let daemon = crate::harness::Setup::new(&vhost.url, WORKFLOWS).start();
    let load = Load::new(&vhost.url);
    load.offer(&daemon.api, 2, 9);
    let account = load.settle(&daemon, &vhost);
    // Three chains of 3 messages, three diamonds of 4, three fan-outs of 5 and one more.
    assert_eq!(
        (account.accepted, account.messages, account.repeated.len()),
        (9, 3 * (3 + 4 + 6), 0)
    );
    let ledger = Ledger::read(&daemon.database());
    // Each job, each of its plain steps, each fan-out step, each child job and its step.
    assert_eq!(ledger.ends.len(), 3 * 4 + 3 * 5 + 3 * (3 + 2 * 5));
    eventually("all is confirmed or settled", || {
        when(Ledger::read(&daemon.database()).safe.len() == 3 * (3 + 4 + 6), "less")
    });
}
