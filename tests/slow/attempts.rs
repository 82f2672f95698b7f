//! Nobody is late with a message that nobody was sent: a broker that blocks, and a network that has
//! stopped, cost no attempt; what an attempt that is over has not sent is not sent.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use uuid::Uuid;

use crate::{
    amqp::{PrivateNode, Vhost, Worker},
    harness::{Daemon, Setup, eventually, when, within},
    load::LONG,
};

/// The timeout is less than what the broker is away for, and far more than a worker needs.
const WORKFLOWS: &str = "
workflows:
  - name: timed
    steps: [ { name: price, timeout: 5s } ]
  - name: bounded
    steps: [ { name: price, startWithin: 500ms, timeout: 1m } ]
";

/// How long the broker, or the network, stands still after all messages wait for it.
const STANDS_STILL: Duration = Duration::from_secs(7);

fn step(daemon: &Daemon, id: Uuid) -> Value {
    daemon.api.get(&format!("/api/job/{id}/step/price")).expect(200).json()
}

/// All of these run, in their first attempt, however long they have waited.
#[track_caller]
fn assert_waiting(daemon: &Daemon, ids: &[Uuid]) {
    for id in ids {
        let step = step(daemon, *id);
        assert_eq!((&step["state"], &step["attempt"]), (&"running".into(), &1.into()), "{step}");
    }
}

/// Some of them are cancelled, and `again` lets the broker have messages: the others end in their
/// first attempts, and no message of the former comes.
#[track_caller]
fn cancel_some_and_go_on(daemon: &mut Daemon, vhost: &Vhost, ids: &[Uuid], again: impl FnOnce()) {
    let (cancelled, kept) = ids.split_at(ids.len() / 2);
    for id in cancelled {
        daemon.api.post(&format!("/api/job/{id}/cancel"), "").expect(200);
    }
    // The time of an attempt begins with its message: the worker is there before.
    let worker = Worker::echo(&vhost.url, &["price"]);
    again();
    daemon.await_ready();
    for id in kept {
        daemon.api.await_state(*id, "completed");
        assert_eq!(step(daemon, *id)["attempt"], 1);
    }
    // What comes is in order: whatever was sent before this has come.
    let last = daemon.api.create("timed", "{}");
    daemon.api.await_state(last, "completed");
    let seen: Vec<Uuid> = worker.seen().iter().map(|message| message.job()).collect();
    assert!(!cancelled.iter().any(|id| seen.contains(id)), "{cancelled:?} in {seen:?}");
    assert_eq!(seen.len(), kept.len() + 2, "each once: {seen:?}");
}

#[test]
fn a_broker_that_blocks_costs_no_attempt() {
    let node = PrivateNode::start();
    let vhost = node.broker.vhost();
    let mut daemon = Setup::new(&vhost.url, WORKFLOWS).start();
    node.broker.ctl(&["set_vm_memory_high_watermark", "0.0000001"]);
    // The broker says so once it is sent something; that is on its way then.
    let first = daemon.api.create("timed", "{}");
    eventually("readiness says that it is blocked", || {
        let answer = daemon.api.get("/readyz?verbose");
        when(answer.status == 503 && answer.text.contains("blocked"), &answer)
    });
    let ids: Vec<Uuid> = (0..10).map(|_| daemon.api.create("timed", "{}")).collect();
    let bounded = daemon.api.create("bounded", "{}");
    let job = daemon.api.await_state(bounded, "failed");
    assert!(job.text.contains("not taken within its startWithin of 500ms"), "{}", job.text);
    thread::sleep(STANDS_STILL);
    assert_waiting(&daemon, &ids);
    let why = daemon.api.get(&format!("/api/job/{}/why", ids[0])).expect(200).json();
    let text = why["why"].as_str().unwrap_or_default();
    assert_eq!(why["cause"], "broker_blocked", "{why}");
    assert!(text.contains("its timeout of 5s has not begun"), "{why}");
    cancel_some_and_go_on(&mut daemon, &vhost, &ids, || {
        node.broker.ctl(&["set_vm_memory_high_watermark", "0.4"]);
    });
    daemon.api.await_state(first, "completed");
    assert!(daemon.stop().success());
}

/// What passes between a manager and its broker. Nothing does while it stands still, and both ends
/// stay open.
struct Network {
    port: u16,
    stands_still: Arc<AtomicBool>,
    cuts: Arc<AtomicBool>,
}

impl Network {
    fn to(broker: String) -> Network {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (stands_still, cuts) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (still, cut) = (stands_still.clone(), cuts.clone());
        thread::spawn(move || {
            for near in listener.incoming() {
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(&broker)) else { return };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (still, cut) = (still.clone(), cut.clone());
                    thread::spawn(move || pass(from, to, &still, &cut));
                }
            }
        });
        Network { port, stands_still, cuts }
    }

    fn stand_still(&self, still: bool) {
        self.stands_still.store(still, Ordering::SeqCst);
    }

    /// Ends all connections; what was on its way is lost.
    fn cut(&self) {
        self.cuts.store(true, Ordering::SeqCst);
        thread::sleep(10 * LOOKS_EVERY);
        self.stand_still(false);
        self.cuts.store(false, Ordering::SeqCst);
    }
}

const LOOKS_EVERY: Duration = Duration::from_millis(20);

fn pass(mut from: TcpStream, mut to: TcpStream, still: &AtomicBool, cut: &AtomicBool) {
    from.set_read_timeout(Some(LOOKS_EVERY)).unwrap();
    let mut bytes = [0; 65_536];
    loop {
        if cut.load(Ordering::SeqCst) {
            break;
        }
        if still.load(Ordering::SeqCst) {
            thread::sleep(LOOKS_EVERY);
            continue;
        }
        match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => {
                // What was read while it came to a stand goes no further.
                while still.load(Ordering::SeqCst) && !cut.load(Ordering::SeqCst) {
                    thread::sleep(LOOKS_EVERY);
                }
                if cut.load(Ordering::SeqCst) || to.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    // An error means that the other direction has ended it.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// `host:port` of an address.
fn host(server: &str) -> String {
    let rest = server.split_once("://").map_or(server, |(_, rest)| rest);
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    rest.split(['/', '?']).next().unwrap_or_default().to_owned()
}

#[test]
fn a_network_that_stands_still_costs_no_attempt() {
    let vhost = Vhost::new();
    let broker = host(&vhost.url);
    let network = Network::to(broker.clone());
    let server = vhost.url.replace(&broker, &format!("127.0.0.1:{}", network.port));
    let mut daemon = Setup::new(&server, WORKFLOWS).start();
    // The queue is known.
    let worker = Worker::echo(&vhost.url, &["price"]);
    let first = daemon.api.create("timed", "{}");
    daemon.api.await_state(first, "completed");
    drop(worker);
    network.stand_still(true);
    let begun = Instant::now();
    let ids: Vec<Uuid> = (0..20).map(|_| daemon.api.create("timed", "{}")).collect();
    let bounded = daemon.api.create("bounded", "{}");
    let job = daemon.api.await_state(bounded, "failed");
    assert!(job.text.contains("not taken within its startWithin of 500ms"), "{}", job.text);
    within(LONG, "readiness says that the broker is silent", || {
        let answer = daemon.api.get("/readyz?verbose");
        when(answer.status == 503 && answer.text.contains("confirmed nothing"), &answer)
    });
    assert!(begun.elapsed() > STANDS_STILL);
    assert_waiting(&daemon, &ids);
    let why = daemon.api.get(&format!("/api/job/{}/why", ids[0])).expect(200).json();
    assert_eq!(why["cause"], "broker_blocked", "{why}");
    assert!(why["why"].as_str().unwrap_or_default().contains("confirmed nothing"), "{why}");
    // What was on its way is lost with the connections, so the manager sends it again: but for
    // what is void by then.
    let (cancelled, kept) = ids.split_at(10);
    for id in cancelled {
        daemon.api.post(&format!("/api/job/{id}/cancel"), "").expect(200);
    }
    let worker = Worker::echo(&vhost.url, &["price"]);
    network.cut();
    daemon.await_ready();
    for id in kept {
        daemon.api.await_state(*id, "completed");
        assert_eq!(step(&daemon, *id)["attempt"], 1);
    }
    let last = daemon.api.create("timed", "{}");
    daemon.api.await_state(last, "completed");
    let seen: Vec<Uuid> = worker.seen().iter().map(|message| message.job()).collect();
    let void = cancelled.iter().chain([&bounded]);
    assert!(!void.into_iter().any(|id| seen.contains(id)), "{seen:?}");
    assert!(daemon.stop().success());
}

#[test]
fn a_message_that_nobody_took_in_time_goes_and_its_attempt_fails_once() {
    const NAMED: &str = "
workflows:
  - name: timed
    steps: [ { name: price, timeout: 2s, retry: { attempts: 2, backoff: 1ms } } ]
";
    for has_policy in [false, true] {
        let vhost = Vhost::new();
        let setup = Setup::new(&vhost.url, NAMED);
        let daemon = if has_policy {
            setup.set("amqp.management", &vhost.management_url("guest:guest")).start()
        } else {
            setup.start()
        };
        let id = daemon.api.create("timed", "{}");
        let job = daemon.api.await_state(id, "failed");
        let record = daemon.api.get(&format!("/api/job/{id}/entries")).expect(200);
        let failures = record.text.matches("step.attempt-failed").count();
        assert_eq!((failures, &step(&daemon, id)["attempt"]), (1, &2.into()), "{}", job.text);
        // Both are gone. The broker is asked itself: its statistics are behind.
        vhost.client().await_count("price", 0);
    }
}
