//! Workers over gRPC while the manager and they themselves are killed: nothing is lost, and what is
//! given out again is no more than what they had in hand.

use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use support::grpc::{GrpcWorker, try_connect};
use tokio::sync::watch;
use uuid::Uuid;
use workflow_manager::grpc::wire::Kind;
use workflow_manager::grpc::wire::to_worker::Say as Tell;
use workflow_manager::settings::Settings;

use crate::harness::{Daemon, Setup, free_port, when, within};
use crate::load::{LONG, create_through_crashes};

/// Lets a manager in this process listen on a port that the system chooses.
pub(crate) fn listen(settings: &mut Settings) {
    settings.grpc.listen = Some("127.0.0.1:0".parse().unwrap());
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    Running,
    /// Closes its half, and waits for the end.
    Farewell,
    /// Closes its connection, whatever it has in hand.
    Killed,
}

/// How soon a manager that is away is looked for again.
const AGAIN_AFTER: Duration = Duration::from_millis(5);

/// A worker on a thread of its own that connects again whenever its stream ends, and then sends
/// what was not answered once more. Dropped it says farewell.
pub(crate) struct Remote {
    until: watch::Sender<Until>,
    thread: Option<JoinHandle<()>>,
}

impl Remote {
    pub(crate) fn start(
        address: SocketAddr,
        queues: &[&'static str],
        credit: u32,
        work: impl Fn(&str, &[u8]) -> Vec<u8> + Send + 'static,
    ) -> Remote {
        let (until, seen) = watch::channel(Until::Running);
        let queues = queues.to_vec();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let (mut unanswered, mut seen) = (HashMap::new(), seen);
                while *seen.borrow() == Until::Running {
                    let manager = (address, &*queues, credit);
                    if serve(manager, &work, &mut unanswered, seen.clone()).await {
                        continue;
                    }
                    tokio::select! {
                        _ = seen.changed() => {}
                        () = tokio::time::sleep(AGAIN_AFTER) => {}
                    }
                }
            });
        });
        Remote { until, thread: Some(thread) }
    }

    pub(crate) fn kill(mut self) {
        self.end(Until::Killed);
    }

    fn end(&mut self, how: Until) {
        self.until.send_replace(how);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.end(Until::Farewell);
    }
}

/// One stream, until it ends; whether there was one.
async fn serve(
    (address, queues, credit): (SocketAddr, &[&str], u32),
    work: &impl Fn(&str, &[u8]) -> Vec<u8>,
    unanswered: &mut HashMap<String, Vec<u8>>,
    mut until: watch::Receiver<Until>,
) -> bool {
    let Some(client) = try_connect(address).await else { return false };
    let Ok(mut worker) = GrpcWorker::open(&client, queues).await else { return false };
    for (receipt, body) in unanswered.iter() {
        worker.reply(receipt, Kind::Result, body.clone());
    }
    worker.want(credit);
    loop {
        let heard = tokio::select! {
            heard = worker.receive() => heard,
            changed = until.changed() => {
                if changed.is_err() || *until.borrow() == Until::Killed {
                    return true;
                }
                worker.close();
                while let Ok(Some(_)) = worker.receive().await {}
                return true;
            }
        };
        match heard {
            Ok(Some(Tell::Message(message))) => {
                let body = work(&message.queue, &message.body);
                worker.reply(&message.receipt, Kind::Result, body.clone());
                unanswered.insert(message.receipt, body);
                worker.want(1);
            }
            Ok(Some(Tell::Taken(taken))) => drop(unanswered.remove(&taken.receipt)),
            Ok(Some(Tell::Lease(_) | Tell::Gone(_) | Tell::Drain(_))) => {}
            Ok(Some(Tell::Batches(_) | Tell::Batch(_))) => panic!("a batch that nobody asked for"),
            Ok(None) | Err(_) => return true,
        }
    }
}

const WORKFLOW: &str = "workflows: [ { name: chain, steps: [ { name: double, timeout: 5m }, \
                        { name: add, timeout: 5m, depends: [ double ] } ] } ]";

fn work(queue: &str, body: &[u8]) -> Vec<u8> {
    let input: Value = serde_json::from_slice(body).unwrap();
    let number = |key: &str| input[key].as_i64().unwrap_or(-1_000_000);
    let output = match queue {
        "double" => json!({ "n": number("n"), "doubled": number("n") * 2 }),
        _ => json!({ "n": number("n"), "result": number("doubled") + 1 }),
    };
    output.to_string().into_bytes()
}

/// A manager that listens for workers over gRPC, and where. Its leases are short: a message that
/// was lent, and had not left the manager when it was killed, is lent again only once its lease
/// ends.
fn daemon() -> (Daemon, SocketAddr) {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let setup = Setup::new("", WORKFLOW).set("grpc.listen", &address.to_string());
    (setup.set("embedded.lease", "10s").start(), address)
}

#[test]
fn kill_manager_and_workers_in_the_middle_of_300_jobs_over_grpc() {
    const JOBS: usize = 300;
    const KILLS: usize = 6;
    const CREDIT: usize = 16;
    const WORKERS: usize = 3;
    let (mut daemon, address) = daemon();
    let done = Arc::new(AtomicUsize::new(0));
    let start = || {
        let done = done.clone();
        Remote::start(address, &["double", "add"], CREDIT as u32, move |queue, body| {
            done.fetch_add(1, Ordering::SeqCst);
            // Work that takes a while, so that something is in hand at a kill.
            std::thread::sleep(Duration::from_millis(1));
            work(queue, body)
        })
    };
    let mut workers: Vec<Remote> = (0..WORKERS).map(|_| start()).collect();
    let ids: Vec<Uuid> = (0..JOBS).map(|_| Uuid::new_v4()).collect();
    std::thread::scope(|scope| {
        let (api, ids) = (daemon.api.clone(), &ids);
        scope.spawn(move || {
            for (n, id) in ids.iter().enumerate() {
                create_through_crashes(&api, "chain", *id, &json!({ "n": n }).to_string());
            }
        });
        for kill in 1..=KILLS {
            let threshold = JOBS * 2 * kill / (KILLS + 1);
            within(LONG, "the jobs go on", || {
                let count = done.load(Ordering::SeqCst);
                when(count >= threshold, format!("{count} of {threshold} messages"))
            });
            if kill % 2 == 0 {
                workers.remove(0).kill();
                workers.push(start());
            } else {
                daemon.kill();
                daemon.start_again();
            }
        }
    });
    for (n, id) in ids.iter().enumerate() {
        let result: Value = serde_json::from_str(&daemon.api.await_result(*id)).unwrap();
        assert_eq!(result, json!({ "n": n, "result": n * 2 + 1 }));
        let job = daemon.api.get(&format!("/api/job/{id}")).expect(200).json();
        for step in job["steps"].as_array().unwrap() {
            assert_eq!(step["attempts"].as_u64().unwrap_or(1), 1, "no attempt was used up: {step}");
        }
    }
    let given = done.load(Ordering::SeqCst);
    eprintln!("{given} messages were worked on for {} steps and {KILLS} kills", JOBS * 2);
    // A kill of the manager takes the leases of all workers, that of a worker its own.
    let in_hand = KILLS / 2 * CREDIT * WORKERS + KILLS / 2 * CREDIT;
    assert!(given <= JOBS * 2 + in_hand, "{given}");
    drop(workers);
    assert!(daemon.stop().success());
}

#[test]
fn a_stop_tells_workers_and_waits_for_what_they_have_finished() {
    let (mut daemon, address) = daemon();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = seen.clone();
    let worker = Remote::start(address, &["double", "add"], 4, move |queue, body| {
        told.lock().unwrap().push(queue.to_owned());
        work(queue, body)
    });
    let id = daemon.api.create("chain", r#"{"n":4}"#);
    assert_eq!(daemon.api.await_result(id), r#"{"n":4,"result":9}"#);
    assert!(daemon.stop().success());
    let log = daemon.log();
    assert!(log.contains("listening for workers over gRPC"), "{log}");
    daemon.start_again();
    let id = daemon.api.create("chain", r#"{"n":5}"#);
    assert_eq!(daemon.api.await_result(id), r#"{"n":5,"result":11}"#);
    drop(worker);
    assert_eq!(*seen.lock().unwrap(), ["double", "add", "double", "add"], "each once");
    assert!(daemon.stop().success());
}

#[test]
fn an_address_that_is_taken_is_told() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut daemon = Setup::new("", WORKFLOW).set("grpc.listen", &address).spawn();
    assert!(!daemon.await_end().success());
    let words = ["cannot listen on", &address, "grpc.listen"];
    daemon.await_log(&words);
}
