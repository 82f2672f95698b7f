//! Who is active when a process hangs, is cut off from its database or its broker, or leaves: the
//! daemon on a real PostgreSQL and a real RabbitMQ, with a relay where a cable is cut.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::grpc::{GrpcWorker, connect};
use support::journal_rules::InDatabase;
use workflow_manager::grpc::wire::Kind;
use workflow_manager::grpc::wire::to_worker::Say;

use crate::amqp::{Answer as WorkerAnswer, Broker, Worker};
use crate::harness::{DEADLINE, Daemon, Setup, command, eventually, free_port, run, when, within};
use crate::postgres::{CHAIN, HttpWorker, JOBS, assert_all_completed, create_jobs, on, takeovers};

/// A lost broker is waited for this long, and tried every few seconds.
const STEP_DOWN_DEADLINE: Duration = Duration::from_secs(120);

/// How long a client that was refused waits before it asks again.
const CLIENT_PAUSE: Duration = Duration::from_millis(20);

/// A cable to a server, which can be cut and mended.
struct Relay {
    port: u16,
    is_cut: Arc<AtomicBool>,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn start(server: &str) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay {
            port: listener.local_addr().unwrap().port(),
            is_cut: Arc::default(),
            sockets: Arc::default(),
        };
        let (is_cut, sockets) = (relay.is_cut.clone(), relay.sockets.clone());
        let server = server.to_owned();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if is_cut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(&server) else { continue };
                let ends = [client.try_clone().unwrap(), server.try_clone().unwrap()];
                sockets.lock().unwrap().extend(ends);
                forward(client.try_clone().unwrap(), server.try_clone().unwrap());
                forward(server, client);
            }
        });
        relay
    }

    fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        for socket in self.sockets.lock().unwrap().drain(..) {
            let _closed = socket.shutdown(Shutdown::Both);
        }
    }

    fn mend(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }

    /// An address of the server with the relay in its place.
    fn lead(&self, url: &str) -> String {
        let (scheme, rest) = url.split_once("://").unwrap();
        let (authority, path) = rest.split_once('/').unwrap();
        let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
        format!("{scheme}://{user}@127.0.0.1:{}/{path}", self.port)
    }
}

/// Moves bytes one way until either end is closed.
fn forward(mut from: TcpStream, mut to: TcpStream) {
    thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _closed: [io::Result<()>; 2] =
            [from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both)];
    });
}

/// The host and port of an address.
fn host(url: &str) -> String {
    let authority = url.split_once("://").unwrap().1.split('/').next().unwrap();
    authority.rsplit_once('@').map_or(authority, |(_, host)| host).to_owned()
}

/// A daemon on a database and a broker.
fn over_amqp(amqp: &str, workflows: &str, url: &str) -> Setup {
    Setup::new(amqp, workflows).set("journal.url", url).set("journal.full_retry", "100ms")
}

fn amqp_worker(url: &str) -> Worker {
    Worker::start(url, &["work"], |_| WorkerAnswer::json(&serde_json::json!({ "done": true })))
}

/// A manager that starts, and hangs: another one takes over.
#[cfg(feature = "failpoints")]
#[track_caller]
fn hangs_and_is_taken_over(hangs: &str) {
    let database = InDatabase::create();
    let mut first = on(&database.url()).faults(hangs).spawn();
    first.await_log(&["its beat stands still"]);
    let mut second = on(&database.url()).start();
    assert_eq!(takeovers(&second), 1);
    assert_eq!(first.await_end().code(), Some(75), "it is started again, and stands by");
    let _worker = HttpWorker::start(vec![second.api.anew()]);
    let jobs = create_jobs(&second, 2);
    assert_all_completed(&second, &database, &jobs);
    assert_eq!(second.stop().code(), Some(0));
}

#[cfg(feature = "failpoints")]
#[test]
fn a_manager_whose_router_hangs_is_taken_over_and_ends() {
    hangs_and_is_taken_over("router::round=3*off->1*delay(600000)");
}

#[cfg(feature = "failpoints")]
#[test]
fn a_manager_that_hangs_from_its_first_round_on_is_taken_over_and_ends() {
    hangs_and_is_taken_over("router::round=1*delay(600000)");
}

#[test]
fn a_manager_cut_off_from_the_database_alone_lets_go_of_its_consumers() {
    let database = InDatabase::create();
    let vhost = Broker::shared().vhost();
    let relay = Relay::start(&host(&database.url()));
    let mut first = over_amqp(&vhost.url, CHAIN, &relay.lead(&database.url())).start();
    let mut second = over_amqp(&vhost.url, CHAIN, &database.url()).spawn();
    second.await_standby();
    let jobs = create_jobs(&first, JOBS);
    relay.cut();
    let _worker = amqp_worker(&vhost.url);
    second.await_ready();
    assert_all_completed(&second, &database, &jobs);
    assert!(first.ended().is_none(), "the cut off one runs, and keeps nothing from the other");
    first.await_log(&["lets go of its consumers"]);
    relay.mend();
    assert_eq!(first.await_end().code(), Some(75));
}

#[test]
fn consumers_come_back_after_an_outage_of_the_database() {
    let mixed = "workflows: [{ name: chain, steps: [{ name: first, queue: work, bus: amqp }, \
                 { name: second, queue: here, bus: embedded, depends: [ first ] }] }]";
    let database = InDatabase::create();
    let vhost = Broker::shared().vhost();
    let relay = Relay::start(&host(&database.url()));
    let mut daemon = over_amqp(&vhost.url, mixed, &relay.lead(&database.url())).start();
    let receive = "/api/queue/here/receive?wait=30s";
    let waiting = daemon.api.clone();
    let poll = thread::spawn(move || waiting.send("POST", receive, &[], None).status);
    relay.cut();
    daemon.await_log(&["lets go of its consumers"]);
    assert_eq!(poll.join().unwrap(), 503, "a worker that waits is sent away");
    assert_eq!(daemon.api.send("POST", receive, &[], None).status, 503);
    relay.mend();
    daemon.await_log(&["beats again", "still the active one"]);
    daemon.await_ready();
    let _worker = amqp_worker(&vhost.url);
    let job = daemon.api.create("chain", "{}");
    let message = eventually("the second step is received", || {
        let message = daemon.api.send("POST", receive, &[], None);
        if message.status == 200 { Ok(message) } else { Err(message) }
    });
    let reply_to = format!("{}?type=result", message.header("reply-to"));
    daemon.api.post(&reply_to, "{}").expect(200);
    daemon.api.await_state(job, "completed");
    assert_eq!(daemon.stop().code(), Some(0));
}

/// Asserts that a stream ends because another manager may be active.
async fn assert_sent_away(worker: &mut GrpcWorker) {
    let end = tokio::time::timeout(DEADLINE, worker.receive()).await;
    let status = end.expect("the stream ends").expect_err("the stream is closed");
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
    assert!(status.message().contains("another one may be active"), "{status}");
}

#[test]
fn a_manager_cut_off_from_the_database_alone_lets_go_of_its_streams_over_grpc() {
    let database = InDatabase::create();
    let relay = Relay::start(&host(&database.url()));
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let setup = on(&relay.lead(&database.url())).set("grpc.listen", &address.to_string());
    let daemon = setup.set("embedded.lease", "5m").start();
    let job = daemon.api.create("chain", "{}");
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let client = connect(address).await;
        // One has a message in hand and wants no other; one waits for a message.
        let mut busy = GrpcWorker::open(&client, &["work"]).await.unwrap();
        busy.want(1);
        let message = busy.message().await;
        let mut idle = GrpcWorker::open(&client, &["work"]).await.unwrap();
        idle.want(1);
        relay.cut();
        assert_sent_away(&mut idle).await;
        assert_sent_away(&mut busy).await;
        let mut early = GrpcWorker::open(&client, &["work"]).await.unwrap();
        early.want(1);
        assert_sent_away(&mut early).await;
        relay.mend();
        let beats = || daemon.log().contains("still the active one");
        eventually("it beats again", || when(beats(), "not yet"));
        // What was in hand is settled on the next stream.
        let mut next = GrpcWorker::open(&client, &["work"]).await.unwrap();
        next.reply(&message.receipt, Kind::Result, "{}");
        let taken = next.receive().await.unwrap();
        assert!(matches!(&taken, Some(Say::Taken(taken)) if taken.changed), "{taken:?}");
        next.want(1);
        let second = next.message().await;
        next.reply(&second.receipt, Kind::Result, "{}");
        assert!(matches!(next.receive().await, Ok(Some(Say::Taken(_)))));
    });
    daemon.api.await_state(job, "completed");
}

#[test]
fn a_manager_without_its_broker_steps_down_for_a_standby_that_reaches_it() {
    let database = InDatabase::create();
    let vhost = Broker::shared().vhost();
    let [first_relay, second_relay] = [(); 2].map(|()| Relay::start(&host(&vhost.url)));
    let on_relay = |relay: &Relay| over_amqp(&relay.lead(&vhost.url), CHAIN, &database.url());
    let mut first = on_relay(&first_relay).start();
    let mut second = on_relay(&second_relay).spawn();
    second.await_standby();
    let jobs = create_jobs(&first, JOBS);
    first_relay.cut();
    second_relay.cut();
    let broker = |state: &str| {
        database.query(&format!("SELECT broker FROM managers WHERE state = '{state}'"))
    };
    eventually("both say that they have lost the broker", || {
        let seen = (broker("active"), broker("standby"));
        when(seen.0.trim() == "lost" && seen.1.trim() == "lost", format!("{seen:?}"))
    });
    second_relay.mend();
    let ended = within(STEP_DOWN_DEADLINE, "the first one steps down", || {
        first.ended().ok_or("it still runs")
    });
    assert_eq!(ended.code(), Some(75), "it is started again, and stands by");
    assert!(first.log().contains("a standby reaches it"));
    second.await_ready();
    assert_eq!(takeovers(&second), 0, "the name was given back");
    let _worker = amqp_worker(&vhost.url);
    assert_all_completed(&second, &database, &jobs);
}

/// Creates jobs at whichever manager answers, until it is told to stop. Returns them, and the
/// longest time without a success.
fn create_always(
    managers: [crate::harness::Api; 2],
    is_stopped: &AtomicBool,
) -> (Vec<uuid::Uuid>, Duration) {
    let (mut jobs, mut longest, mut last) = (Vec::new(), Duration::ZERO, Instant::now());
    let mut id = uuid::Uuid::new_v4();
    while !is_stopped.load(Ordering::SeqCst) {
        // Without an answer the client asks again under the same id.
        let path = format!("/api/workflow/chain?id={id}");
        let created = managers.iter().find_map(|api| {
            let answer = api.anew().try_send("POST", &path, &[], Some(b"{}"));
            answer.ok().filter(|answer| matches!(answer.status, 200 | 201))
        });
        match created {
            Some(answer) => {
                jobs.push(answer.id());
                id = uuid::Uuid::new_v4();
                longest = longest.max(last.elapsed());
                last = Instant::now();
            }
            None => thread::sleep(CLIENT_PAUSE),
        }
    }
    (jobs, longest)
}

/// Lets `leave` make the first of two managers leave under load. Every job is completed.
fn leave_under_load(leave: impl FnOnce(&mut Daemon), code: i32) {
    let database = InDatabase::create();
    let mut first = on(&database.url()).start();
    let mut second = on(&database.url()).spawn();
    second.await_standby();
    let _worker = HttpWorker::start(vec![first.api.anew(), second.api.anew()]);
    let is_stopped = AtomicBool::new(false);
    let (jobs, longest) = thread::scope(|scope| {
        let managers = [first.api.anew(), second.api.anew()];
        let client = scope.spawn(|| create_always(managers, &is_stopped));
        eventually("a standby is counted", || {
            let standbys = database.query("SELECT count(*) FROM managers WHERE state = 'standby'");
            let jobs = database.query("SELECT count(*) FROM jobs");
            when(standbys.trim() == "1" && jobs.trim() != "0", format!("{standbys} {jobs}"))
        });
        leave(&mut first);
        assert_eq!(first.await_end().code(), Some(code));
        second.await_ready();
        let before = database.query("SELECT count(*) FROM jobs");
        eventually("jobs are created at the second", || {
            when(database.query("SELECT count(*) FROM jobs") != before, "none")
        });
        is_stopped.store(true, Ordering::SeqCst);
        client.join().unwrap()
    });
    eprintln!("the longest time without a job created: {longest:?}");
    assert_eq!(takeovers(&second), 0, "the name was given back");
    assert_all_completed(&second, &database, &jobs);
}

#[test]
fn a_stop_under_load_leaves_the_name_to_a_standby() {
    leave_under_load(|daemon| daemon.ask_to_stop(), 0);
}

fn step_down(daemon: &Daemon, arguments: &[&str]) -> (Option<i32>, String) {
    let mut step_down = command();
    step_down.args(["cluster", "step-down", "--server", &daemon.url()]).args(arguments);
    let ran = run(&mut step_down);
    (ran.code, ran.text())
}

#[test]
fn a_step_down_under_load_leaves_the_name_to_a_standby() {
    leave_under_load(
        |daemon| {
            let (code, text) = step_down(daemon, &[]);
            assert!(code == Some(2) && text.contains("--yes"), "{text}");
            let (code, text) = step_down(daemon, &["--yes", "--name", "other"]);
            assert!(code == Some(1) && text.contains("\"default\", not \"other\""), "{text}");
            let (code, text) = step_down(daemon, &["--yes", "--name", "default"]);
            assert!(code == Some(0) && text.contains("1 standby can take over"), "{text}");
        },
        75,
    );
}

#[test]
fn a_step_down_without_a_standby_is_refused() {
    let alone = Setup::new("", CHAIN).start();
    let (code, text) = step_down(&alone, &["--yes", "--force"]);
    assert!(code == Some(1) && text.contains("is a file"), "{text}");
    let database = InDatabase::create();
    let mut daemon = on(&database.url()).start();
    let (code, text) = step_down(&daemon, &["--yes"]);
    assert!(code == Some(1) && text.contains("nobody would take over"), "{text}");
    let answer = daemon.api.post("/api/manager/step-down?force", "").expect(202);
    let view: Value = serde_json::from_str(&answer.text).unwrap();
    assert_eq!(view, serde_json::json!({ "name": "default", "standbys": 0 }));
    assert_eq!(daemon.await_end().code(), Some(75));
    assert_eq!(database.query("SELECT count(owner) FROM names").trim(), "0");
}
