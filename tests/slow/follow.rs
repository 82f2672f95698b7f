//! `run` and `watch` follow a job whatever happens to the stream of its events: they do not miss
//! the end. On the embedded bus, without a broker.

use std::{
    net::{Shutdown, TcpListener, TcpStream},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use serde_json::{Value, json};
use uuid::Uuid;

use crate::events::Reading;
use crate::harness::{Daemon, Ran, Setup, command, eventually, free_port, run, when};

const WORKFLOWS: &str = "
workflows:
  - name: signed
    steps:
      - name: sign
        external: true
      - name: archive
        external: true
        depends: [ sign ]
";

const FAN: &str = "
workflows:
  - name: fan
    steps:
      - name: each
        task: piece
    tasks:
      - name: piece
        itemListKey: items
        steps: [ { name: by-hand, external: true } ]
";

// ---- a relay that can be cut

/// Passes connections on to the daemon, until it is told to cut them.
struct Relay {
    port: u16,
    is_cut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn before(daemon: &Daemon) -> Relay {
        let port = free_port();
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let (is_cut, open) =
            (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<TcpStream>>>::default());
        let target = daemon.url().replace("http://", "");
        let (cut, kept) = (is_cut.clone(), open.clone());
        thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                // Accepted and closed: what a proxy does whose upstream is gone.
                if cut.load(Ordering::SeqCst) {
                    continue;
                }
                let far = TcpStream::connect(&target).unwrap();
                kept.lock().unwrap().extend([near.try_clone().unwrap(), far.try_clone().unwrap()]);
                pump(near.try_clone().unwrap(), far.try_clone().unwrap());
                pump(far, near);
            }
        });
        Relay { port, is_cut, open }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        self.drop_connections();
    }

    fn drop_connections(&self) {
        for connection in self.open.lock().unwrap().drain(..) {
            let _gone = connection.shutdown(Shutdown::Both);
        }
    }

    fn mend(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream) {
    thread::spawn(move || {
        let _broken = std::io::copy(&mut from, &mut to);
        let _gone = to.shutdown(Shutdown::Write);
    });
}

// ---- what the tests do

/// A daemon that soon notices when a client has gone.
fn quick() -> Setup {
    Setup::new("", WORKFLOWS).set("http.event_heartbeat", "50ms")
}

fn in_background(mut command: Command) -> JoinHandle<Ran> {
    thread::spawn(move || run(&mut command))
}

fn start(server: &str, arguments: &[&str]) -> JoinHandle<Ran> {
    let mut following = command();
    following.args(arguments).args(["--server", server]);
    in_background(following)
}

fn await_streams(daemon: &Daemon, count: u32) {
    eventually("so many streams are open", || {
        let text = daemon.api.get("/metrics").expect(200).text;
        let line = format!("workflow_event_streams {count}\n");
        when(text.contains(&line), "another number")
    });
}

fn the_job(daemon: &Daemon, workflow: &str) -> Uuid {
    eventually("the job is there", || {
        let ids = daemon.api.get(&format!("/api/workflow/{workflow}")).expect(200).ids("running");
        ids.first().copied().ok_or("no job")
    })
}

fn complete(daemon: &Daemon, job: Uuid, step: &str, output: &str) {
    daemon.api.post(&format!("/api/job/{job}/step/{step}"), output).expect(200);
}

#[test]
fn run_does_not_miss_an_end_that_comes_while_the_stream_is_cut() {
    let daemon = quick().start();
    let relay = Relay::before(&daemon);
    let following = start(&relay.url(), &["run", "signed", "--json"]);
    await_streams(&daemon, 1);
    let job = the_job(&daemon, "signed");
    complete(&daemon, job, "sign", "{}");
    relay.cut();
    await_streams(&daemon, 0);
    complete(&daemon, job, "archive", r#"{"place":7}"#);
    relay.mend();
    let ran = following.join().unwrap();
    assert_eq!(ran.code, Some(0), "{ran}");
    let told: Value = serde_json::from_str(&ran.stdout).unwrap();
    let expected =
        json!({ "id": job, "state": "completed", "reason": null, "result": { "place": 7 } });
    assert_eq!(told, expected);
}

#[test]
fn run_outlives_a_crash_of_the_manager() {
    let mut daemon = Setup::new("", WORKFLOWS).start();
    let following = start(&daemon.url(), &["run", "signed"]);
    await_streams(&daemon, 1);
    let job = the_job(&daemon, "signed");
    daemon.kill();
    daemon.start_again();
    await_streams(&daemon, 1);
    complete(&daemon, job, "sign", "{}");
    complete(&daemon, job, "archive", r#"{"place":8}"#);
    let ran = following.join().unwrap();
    assert_eq!((ran.code, ran.stdout.trim()), (Some(0), r#"{"place":8}"#), "{ran}");
}

#[test]
fn watch_opens_a_stream_again_and_says_that_it_was_cut() {
    let daemon = quick().start();
    let relay = Relay::before(&daemon);
    let job = daemon.api.create("signed", "{}");
    let one = start(&relay.url(), &["watch", &job.to_string()]);
    let all = start(&relay.url(), &["watch"]);
    await_streams(&daemon, 2);
    complete(&daemon, job, "sign", "{}");
    relay.cut();
    await_streams(&daemon, 0);
    relay.mend();
    await_streams(&daemon, 2);
    complete(&daemon, job, "archive", "{}");
    let ran = one.join().unwrap();
    assert_eq!(ran.code, Some(0), "{ran}");
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines.last().is_some_and(|line| line.ends_with("job completed")), "{ran}");
    assert!(ran.stdout.contains("step archive completed"), "{ran}");
    assert_eq!(ran.stderr.matches("the stream of events was cut").count(), 1, "{ran}");
    relay.cut();
    drop(daemon);
    let ran = all.join().unwrap();
    assert_eq!(ran.code, Some(3), "{ran}");
    assert!(ran.stdout.contains("step archive completed"), "{ran}");
    assert!(ran.stderr.contains("has not answered for 15s"), "{ran}");
}

#[test]
fn where_no_more_streams_are_to_be_had_the_light_view_is_looked_at() {
    let daemon = Setup::new("", WORKFLOWS).set("http.event_streams_max", "1").start();
    let _the_only_one = Reading::open(&daemon, "/api/events");
    let job = daemon.api.create("signed", "{}");
    let watched = start(&daemon.url(), &["watch", &job.to_string()]);
    let following = start(&daemon.url(), &["run", "signed", "--id", &Uuid::nil().to_string()]);
    for job in [Uuid::nil(), job] {
        eventually("the job is there", || {
            when(daemon.api.get(&format!("/api/job/{job}")).status == 200, "no job")
        });
        complete(&daemon, job, "sign", "{}");
        complete(&daemon, job, "archive", r#"{"place":9}"#);
    }
    let ran = following.join().unwrap();
    assert_eq!((ran.code, ran.stdout.trim()), (Some(0), r#"{"place":9}"#), "{ran}");
    let ran = watched.join().unwrap();
    assert_eq!(ran.code, Some(0), "{ran}");
    assert!(ran.stdout.contains("step archive completed"), "{ran}");
    assert!(ran.stdout.lines().last().is_some_and(|line| line.ends_with("job completed")), "{ran}");
}

#[test]
fn watch_without_child_jobs_tells_of_the_job_alone() {
    let daemon = Setup::new("", FAN).start();
    let job = daemon.api.create("fan", r#"{"items":[1]}"#);
    let child = eventually("the child job is there", || {
        let page = daemon.api.get(&format!("/api/job/{job}/children")).expect(200).json();
        page["children"][0]["job"].as_str().map(|id| id.parse::<Uuid>().unwrap()).ok_or("none")
    });
    let own = start(&daemon.url(), &["watch", &job.to_string(), "--no-children"]);
    await_streams(&daemon, 1);
    complete(&daemon, child, "by-hand", r#"{"item":1}"#);
    let ran = own.join().unwrap();
    assert_eq!(ran.code, Some(0), "{ran}");
    assert!(!ran.stdout.contains(&child.to_string()) && ran.stdout.lines().count() == 2, "{ran}");
}
