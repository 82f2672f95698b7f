//! Positions: what is read again after a crash, and what is not.

use super::{Broker, Brokers, Places, Seen, Worker, metric, position, setup};
use crate::harness::{DEADLINE, Daemon, eventually, when, within};
use crate::load::{LONG, create_through_crashes};
use rusqlite::Connection;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::sync::Mutex;
use uuid::Uuid;
use workflow_manager::engine::{JobId, StepRun, StepState};
use workflow_manager::journal::{JobRecords, Reader, StoredJob};

const CHAIN: &str = "workflows: [ { name: chain, steps: [ { name: double, timeout: 1h }, \
                     { name: add, timeout: 1h, depends: [ double ] } ] } ]";

/// How many messages the manager has written.
fn sent(broker: &Broker) -> i64 {
    broker.written("double") + broker.written("add")
}

fn work(queue: &str, body: &[u8]) -> Vec<u8> {
    let input: Value = serde_json::from_slice(body).expect("JSON");
    let number = |key: &str| input[key].as_i64().unwrap_or(-1_000_000);
    let output = match queue {
        "double" => json!({ "n": number("n"), "doubled": number("n") * 2 }),
        _ => json!({ "n": number("n"), "result": number("doubled") + 1 }),
    };
    output.to_string().into_bytes()
}

fn start_worker(broker: &Broker, places: &Places) -> Worker {
    Worker::alone(broker, &["double", "add"], places, worked_on)
}

fn worked_on(seen: &Seen) -> Option<Vec<u8>> {
    let queue = seen.headers["message_id"].split(':').nth(1).expect("a step");
    Some(work(queue, &seen.body))
}

/// How many replies this process has only counted.
fn duplicates(daemon: &Daemon) -> i64 {
    i64::try_from(metric(daemon, "workflow_replies_rejected_total")).expect("small")
}

/// How many replies workers have given. One that its group takes for dead gives some twice.
fn replies(broker: &Broker) -> i64 {
    broker.written("workflow-manager")
}

/// Ends the worker, and waits until the journal has the position behind all that it has said.
fn settle(broker: &Broker, daemon: &Daemon, worker: Worker) {
    worker.end();
    eventually("the position is behind all replies", || {
        let found = (position(daemon), replies(broker));
        when(found.0 == found.1, format!("{found:?}"))
    });
}

/// A manager that was killed before its position was written reads again what it has, and only
/// counts that.
#[test]
fn replies_that_are_read_twice_are_duplicates() {
    let broker = Broker::start();
    let mut daemon = setup(&broker, CHAIN).start();
    let places = Places::default();
    let worker = start_worker(&broker, &places);
    let jobs: Vec<Uuid> =
        (0..10).map(|n| daemon.api.create("chain", &json!({ "n": n }).to_string())).collect();
    jobs.iter().for_each(|job| drop(daemon.api.await_result(*job)));
    settle(&broker, &daemon, worker);
    let (given, sent_before) = (replies(&broker), sent(&broker));
    daemon.kill();
    // As if it had been killed a moment earlier: the position lags.
    let journal = Connection::open(daemon.database()).expect("opens");
    journal
        .execute_batch("DELETE FROM bus_positions WHERE topic = 'workflow-manager'")
        .expect("deleted");
    drop(journal);
    daemon.start_again();
    eventually("all are read again", || when(duplicates(&daemon) == given, duplicates(&daemon)));
    assert_eq!((sent_before, sent(&broker)), (20, 20), "no message was sent again");
    jobs.iter().for_each(|job| assert_eq!(daemon.api.job(*job).state, "completed"));
}

#[test]
fn an_orderly_end_reads_nothing_again() {
    let broker = Broker::start();
    let mut daemon = setup(&broker, CHAIN).start();
    let places = Places::default();
    let worker = start_worker(&broker, &places);
    let job = daemon.api.create("chain", r#"{"n":1}"#);
    drop(daemon.api.await_result(job));
    worker.end();
    assert!(daemon.stop().success());
    assert_eq!(position(&daemon), replies(&broker));
    let committed = broker.committed("workflow-manager", "workflow-manager");
    assert_eq!(committed, None, "the brokers keep no position of the manager");
    daemon.start_again();
    let before = replies(&broker);
    let worker = start_worker(&broker, &places);
    let job = daemon.api.create("chain", r#"{"n":2}"#);
    assert_eq!(daemon.api.await_result(job), r#"{"n":2,"result":5}"#);
    settle(&broker, &daemon, worker);
    assert_eq!(duplicates(&daemon), replies(&broker) - before - 2);
}

/// A copy of the journal from before: the manager reads exactly the replies that it lacks.
#[test]
fn a_restored_journal_reads_the_replies_that_it_lacks() {
    let broker = Broker::start();
    let mut daemon = setup(&broker, CHAIN).start();
    let jobs: Vec<Uuid> =
        (0..10).map(|n| daemon.api.create("chain", &json!({ "n": n }).to_string())).collect();
    eventually("all messages are out", || {
        when(broker.written("double") == 10, broker.written("double"))
    });
    assert!(daemon.stop().success());
    let copy = fs::read(daemon.database()).expect("read");
    daemon.start_again();
    let worker = start_worker(&broker, &Places::default());
    jobs.iter().for_each(|job| drop(daemon.api.await_result(*job)));
    worker.end();
    daemon.kill();
    for suffix in ["-wal", "-shm"] {
        drop(fs::remove_file(format!("{}{suffix}", daemon.database().display())));
    }
    fs::write(daemon.database(), copy).expect("restored");
    // Nobody works: the results of both steps come from the topic alone.
    daemon.start_again();
    for (n, job) in jobs.iter().enumerate() {
        let result: Value = serde_json::from_str(&daemon.api.await_result(*job)).expect("JSON");
        assert_eq!(result, json!({ "n": n, "result": n * 2 + 1 }));
    }
    assert_eq!(duplicates(&daemon), replies(&broker) - 20, "it had none of them");
}

/// What a crash may have done again, as the journal and the broker tell right behind it.
#[derive(Default)]
struct Owed {
    /// Steps whose messages have no confirm in the journal: those are sent again.
    messages: i64,
    /// Replies behind the position in the journal: those are read again.
    replies: i64,
}

impl Owed {
    fn add(&mut self, daemon: &Daemon, broker: &Broker, ids: &[Uuid]) {
        let journal = Reader::new(&daemon.database());
        let jobs = ids.iter().filter_map(|id| journal.load_job(JobId(*id)).expect("reads"));
        let unconfirmed = |kept: StoredJob| {
            let is_owed = |step: &StepRun| step.state == StepState::Running && !step.confirmed;
            kept.job.steps().filter(|(_, run)| is_owed(run)).count()
        };
        self.messages += i64::try_from(jobs.map(unconfirmed).sum::<usize>()).expect("small");
        self.replies += replies(broker) - position(daemon);
    }
}

#[test]
fn kill_the_manager_and_the_worker_at_random_in_the_middle_of_300_jobs() {
    const JOBS: usize = 300;
    const MESSAGES: i64 = 600;
    const KILLS: usize = 6;
    let broker = Broker::start();
    let mut daemon = setup(&broker, CHAIN).start();
    let ids: Vec<Uuid> = (0..JOBS).map(|_| Uuid::new_v4()).collect();
    let seen: Mutex<Vec<Seen>> = Mutex::default();
    let (mut owed, mut read_again, places) = (Owed::default(), 0, Places::default());
    std::thread::scope(|scope| {
        let (api, ids) = (daemon.api.clone(), &ids);
        scope.spawn(move || {
            for (n, id) in ids.iter().enumerate() {
                create_through_crashes(&api, "chain", *id, &json!({ "n": n }).to_string());
            }
        });
        let start = || start_worker(&broker, &places);
        let end = |worker: Worker| seen.lock().expect("one thread").extend(worker.end());
        let mut worker = start();
        for kill in 1..=KILLS {
            let threshold = i64::try_from(JOBS * 2 * kill / (KILLS + 2)).expect("small");
            within(LONG, "the jobs go on", || {
                let count = replies(&broker);
                when(count >= threshold, format!("{count} of {threshold} replies"))
            });
            read_again += duplicates(&daemon);
            daemon.kill();
            owed.add(&daemon, &broker, ids);
            if kill % 2 == 0 {
                end(worker);
                worker = start();
            }
            daemon.start_again();
        }
        within(LONG * 2, "all jobs are done", || {
            let done = ids.iter().filter(|id| daemon.api.job(**id).state == "completed").count();
            when(done == JOBS, format!("{done} of {JOBS}"))
        });
        end(worker);
    });
    read_again += duplicates(&daemon);
    for (n, id) in ids.iter().enumerate() {
        let result: Value = serde_json::from_str(&daemon.api.await_result(*id)).expect("JSON");
        assert_eq!(result, json!({ "n": n, "result": n * 2 + 1 }), "none lost, none wrong");
    }
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for seen in seen.into_inner().expect("one thread") {
        *times.entry(seen.headers["message_id"].clone()).or_default() += 1;
    }
    assert_eq!(times.len(), JOBS * 2, "each step went out as one attempt");
    let came_again: usize = times.values().map(|times| times - 1).sum();
    let sent_again = sent(&broker) - MESSAGES;
    let replied_again = replies(&broker) - MESSAGES;
    let came_again = i64::try_from(came_again).expect("small");
    eprintln!(
        "sent again: {sent_again} of {} without a confirm; came again: {came_again}; read again: \
         {read_again} of {}; replied again: {replied_again}",
        owed.messages, owed.replies
    );
    assert!(sent_again <= owed.messages, "only what had no confirm in the journal is sent again");
    assert!(came_again <= sent_again, "and nothing else comes again");
    let rejected_max = owed.replies + replied_again;
    assert!(read_again <= rejected_max, "only what is behind the position is read again");
}

#[test]
fn a_reply_that_lies_in_the_topic_comes_before_the_timeout_that_has_passed_meanwhile() {
    let broker = Broker::start();
    let workflow = "workflows: [ { name: w, steps: [ { name: slow, timeout: 5s } ] } ]";
    let mut daemon = setup(&broker, workflow).start();
    let [answered, silent] = [1, 2].map(|n| daemon.api.create("w", &json!({ "n": n }).to_string()));
    eventually("both are written", || when(broker.written("slow") == 2, broker.written("slow")));
    daemon.kill();
    // Much that is for nobody comes first.
    (0..50).for_each(|_| broker.write("workflow-manager", Some(b"no id"), &[], Some(b"{}")));
    let id = format!("{answered}:slow");
    broker.write("workflow-manager", Some(id.as_bytes()), &[], Some(br#"{"done":true}"#));
    let begun = std::time::Instant::now();
    eventually("the timeout has passed", || {
        when(begun.elapsed() > std::time::Duration::from_secs(5), "not yet")
    });
    daemon.start_again();
    assert_eq!(daemon.api.await_result(answered), r#"{"done":true}"#);
    let failed = daemon.api.await_state(silent, "failed").text;
    assert!(failed.contains("no reply within its timeout"), "{failed}");
}

/// What a stop waits for is bounded, whatever the broker does.
#[test]
fn it_stops_in_time_without_a_broker() {
    let mut broker = Broker::start();
    let mut daemon = setup(&broker, CHAIN).set("shutdown.grace", "10s").start();
    let _with = daemon.api.create("chain", "{}");
    broker.stop();
    let _without = daemon.api.create("chain", "{}");
    let begun = std::time::Instant::now();
    assert!(daemon.stop().success());
    assert!(begun.elapsed() < DEADLINE, "{:?}", begun.elapsed());
}
