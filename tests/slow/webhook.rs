//! The webhook: each end of a top-level job is told at least once, whatever happens to either side.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::Sha256;
use uuid::Uuid;

use crate::{
    amqp::{Answer, Vhost, Worker},
    harness::{DEADLINE, Daemon, Setup, eventually, free_port, when},
};

const WORKFLOWS: &str = r"
workflows:
  - name: single
    steps: [ { name: work } ]
  - name: pieces
    steps: [ { name: each, task: piece } ]
    tasks: [ { name: piece, itemListKey: items, steps: [ { name: work } ] } ]
";

const SECRET: &str = "sesame-4711-open-it";

// ---- the other side

/// A call that came.
#[derive(Clone, Debug)]
struct Call {
    at: Instant,
    headers: HashMap<String, String>,
    body: String,
}

impl Call {
    fn event(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    fn job(&self) -> String {
        self.event()["data"]["job"].as_str().unwrap().to_owned()
    }
}

type Script = dyn FnMut(usize, &Call) -> String + Send;

/// An HTTP server that answers as its script says; once dropped, it takes no more connections.
struct Receiver {
    calls: Arc<Mutex<Vec<Call>>>,
    is_open: Arc<Mutex<bool>>,
    port: u16,
}

impl Receiver {
    /// `script` gets the number of the call, from 0, and answers with a status line's rest and
    /// headers.
    fn start(port: u16, script: impl FnMut(usize, &Call) -> String + Send + 'static) -> Receiver {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let (calls, is_open) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(true)));
        let (kept, open, script) = (calls.clone(), is_open.clone(), Arc::new(Mutex::new(script)));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if !*open.lock().unwrap() {
                    return;
                }
                let (kept, script) = (kept.clone(), script.clone());
                thread::spawn(move || answer(stream.unwrap(), &kept, &*script));
            }
        });
        Receiver { calls, is_open, port }
    }

    fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    #[track_caller]
    fn await_calls(&self, count: usize) -> Vec<Call> {
        eventually(&format!("{count} calls"), || {
            let calls = self.calls();
            if calls.len() >= count { Ok(calls) } else { Err(format!("{} calls", calls.len())) }
        })
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        *self.is_open.lock().unwrap() = false;
        // Wakes the thread that accepts.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

/// One call for each connection.
fn answer(mut stream: TcpStream, calls: &Mutex<Vec<Call>>, script: &Mutex<Script>) {
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        if line == "\r\n" {
            break;
        }
        lines.push(line.trim_end().to_owned());
    }
    assert!(lines[0].starts_with("POST /hook HTTP/1.1"), "{lines:?}");
    let headers: HashMap<String, String> = lines[1..]
        .iter()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let mut body = vec![0; headers["content-length"].parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    let call = Call { at: Instant::now(), headers, body: String::from_utf8(body).unwrap() };
    let number = {
        let mut calls = calls.lock().unwrap();
        calls.push(call.clone());
        calls.len() - 1
    };
    let status = (script.lock().unwrap())(number, &call);
    let _gone =
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
}

fn setup(vhost: &Vhost, port: u16) -> Setup {
    Setup::new(&vhost.url, WORKFLOWS)
        .set("events.webhook.url", &format!("http://127.0.0.1:{port}/hook"))
        .set("events.webhook.secret", SECRET)
        .set("events.webhook.backoff_min", "50ms")
        .set("events.webhook.backoff_max", "500ms")
}

#[track_caller]
fn await_metric(daemon: &Daemon, metric: &str, expected: u64) {
    eventually(&format!("{metric} is {expected}"), || {
        let value = daemon.api.metric(metric);
        when(value == expected, value)
    });
}

fn waiting_is(daemon: &Daemon, count: u64) {
    await_metric(daemon, "workflow_webhook_waiting", count);
}

fn ended(daemon: &Daemon, message: &str) -> Uuid {
    let id = daemon.api.create("single", message);
    daemon.api.await_state(id, "completed");
    id
}

// ---- the tests

#[test]
fn the_end_of_a_job_is_posted_signed_and_again_after_a_500() {
    let vhost = Vhost::new();
    let receiver = Receiver::start(free_port(), |number, _| {
        if number == 0 { "500 Oh".to_owned() } else { "200 OK".to_owned() }
    });
    let daemon = setup(&vhost, receiver.port).start();
    let _worker = Worker::echo(&vhost.url, &["work"]);
    let id = daemon.api.create("pieces", r#"{"items":[1,2]}"#);
    let calls = receiver.await_calls(2);
    assert_eq!(calls[0].body, calls[1].body);
    let event = calls[0].event();
    assert_eq!(
        (event["type"].as_str(), event["subject"].as_str()),
        (Some("workflow-manager.job.completed"), Some(&*id.to_string()))
    );
    assert_eq!(event["data"]["state"], "completed");

    let headers = &calls[0].headers;
    assert_eq!(headers["content-type"], "application/cloudevents+json");
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(format!("{}.{}", headers["x-signature-timestamp"], calls[0].body).as_bytes());
    let hex: String =
        mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(headers["x-signature-256"], format!("sha256={hex}"));

    waiting_is(&daemon, 0);
    await_metric(&daemon, r#"workflow_webhook_deliveries_total{outcome="delivered"}"#, 1);
    await_metric(&daemon, r#"workflow_webhook_deliveries_total{outcome="failed"}"#, 1);
    assert_eq!(receiver.calls().len(), 2, "child jobs have no call of their own");
    assert!(!daemon.log().contains(SECRET));
}

#[test]
fn failed_and_cancelled_jobs_are_told_with_the_reason() {
    let vhost = Vhost::new();
    let receiver = Receiver::start(free_port(), |_, _| "204 No Content".to_owned());
    let daemon = setup(&vhost, receiver.port).start();
    let cancelled = daemon.api.create("single", "{}");
    daemon.api.delete(&format!("/api/job/{cancelled}")).expect(200);
    assert_eq!(receiver.await_calls(1)[0].event()["type"], "workflow-manager.job.cancelled");
    let _worker = Worker::start(&vhost.url, &["work"], |_| Answer::Reply(b"[]".to_vec()));
    let failed = daemon.api.create("single", "{}");
    let call = &receiver.await_calls(2)[1];
    assert_eq!(
        (call.job(), &call.event()["type"]),
        (failed.to_string(), &Value::from("workflow-manager.job.failed"))
    );
    assert!(call.event()["data"]["reason"].as_str().unwrap().contains("work"), "{call:?}");
}

#[test]
fn an_end_outlives_kill_9_and_is_told_once_when_all_goes_well() {
    let vhost = Vhost::new();
    let port = free_port();
    let mut daemon = setup(&vhost, port).start();
    let _worker = Worker::echo(&vhost.url, &["work"]);
    let first = ended(&daemon, r#"{"k":1}"#);
    daemon.kill();

    let receiver = Receiver::start(port, |_, _| "200 OK".to_owned());
    daemon.start_again();
    assert_eq!(receiver.await_calls(1)[0].job(), first.to_string());
    waiting_is(&daemon, 0);
    let second = ended(&daemon, r#"{"k":2}"#);
    receiver.await_calls(2);
    waiting_is(&daemon, 0);
    assert!(daemon.stop().success());
    daemon.start_again();
    let third = ended(&daemon, r#"{"k":3}"#);
    let jobs: Vec<String> = receiver.await_calls(3).iter().map(Call::job).collect();
    assert_eq!(jobs, [first, second, third].map(|id| id.to_string()));
    waiting_is(&daemon, 0);
    assert_eq!(receiver.calls().len(), 3);
}

#[test]
fn while_the_other_side_is_down_jobs_go_on_and_their_ends_wait() {
    const JOBS: usize = 300;
    let vhost = Vhost::new();
    let port = free_port();
    let mut daemon = setup(&vhost, port).start();
    let _worker = Worker::echo(&vhost.url, &["work"]);
    let ids: Vec<Uuid> = (0..JOBS)
        .map(|number| daemon.api.create("single", &format!("{{\"k\":{number}}}")))
        .collect();
    ids.iter().for_each(|id| drop(daemon.api.await_state(*id, "completed")));
    waiting_is(&daemon, JOBS as u64);
    daemon.await_log(&["calls of the webhook fail"]);

    let receiver = Receiver::start(port, |_, _| "200 OK".to_owned());
    let mut told: Vec<String> = receiver.await_calls(JOBS).iter().map(Call::job).collect();
    waiting_is(&daemon, 0);
    told.sort();
    let mut expected: Vec<String> = ids.iter().map(Uuid::to_string).collect();
    expected.sort();
    assert_eq!(told, expected, "each once");

    // It is down again, and deleting a job does not delete its notice.
    drop(receiver);
    let last = ended(&daemon, r#"{"last":true}"#);
    daemon.api.delete(&format!("/api/job/{last}?erase=true")).expect(200);
    let begun = Instant::now();
    assert!(daemon.stop().success());
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    let receiver = Receiver::start(port, |_, _| "200 OK".to_owned());
    daemon.start_again();
    assert_eq!(receiver.await_calls(1)[0].job(), last.to_string());
}

#[test]
fn what_is_refused_is_not_sent_again_and_a_pause_that_is_asked_for_is_kept() {
    let vhost = Vhost::new();
    let receiver = Receiver::start(free_port(), |number, _| match number {
        0 => "422 No".to_owned(),
        1 => "429 Slow\r\nRetry-After: 2".to_owned(),
        _ => "200 OK".to_owned(),
    });
    let daemon = setup(&vhost, receiver.port).start();
    let _worker = Worker::echo(&vhost.url, &["work"]);
    let refused = ended(&daemon, r#"{"k":1}"#);
    waiting_is(&daemon, 0);
    await_metric(&daemon, r#"workflow_webhook_deliveries_total{outcome="refused"}"#, 1);
    daemon.await_log(&["refuses the end of a job", "422"]);
    let second = ended(&daemon, r#"{"k":2}"#);
    let calls = receiver.await_calls(3);
    let jobs: Vec<String> = calls.iter().map(Call::job).collect();
    assert_eq!(jobs, [refused, second, second].map(|id| id.to_string()));
    let pause = calls[2].at - calls[1].at;
    assert!(pause >= Duration::from_millis(1_900), "{pause:?}");
    waiting_is(&daemon, 0);
}

#[test]
fn calls_that_hang_are_bounded_and_hold_up_neither_jobs_nor_a_stop() {
    let vhost = Vhost::new();
    // The kernel takes the connections; nobody ever answers.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = deaf.local_addr().unwrap().port();
    let mut daemon = setup(&vhost, port).set("events.webhook.concurrency", "3").start();
    let _worker = Worker::echo(&vhost.url, &["work"]);
    let ids: Vec<String> =
        (0..9).map(|k| ended(&daemon, &format!("{{\"k\":{k}}}")).to_string()).collect();
    waiting_is(&daemon, 9);
    let begun = Instant::now();
    assert!(daemon.stop().success());
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    deaf.set_nonblocking(true).unwrap();
    let calls = std::iter::from_fn(|| deaf.accept().ok()).count();
    assert_eq!(calls, 3);

    drop(deaf);
    let receiver = Receiver::start(port, |_, _| "200 OK".to_owned());
    daemon.start_again();
    let mut told: Vec<String> = receiver.await_calls(9).iter().map(Call::job).collect();
    told.sort();
    let mut expected = ids;
    expected.sort();
    assert_eq!(told, expected, "each once");
}

#[test]
fn an_end_that_cannot_be_told_in_time_is_given_up() {
    let vhost = Vhost::new();
    let daemon = setup(&vhost, free_port()).set("events.webhook.age_max", "1s").start();
    let _worker = Worker::echo(&vhost.url, &["work"]);
    ended(&daemon, "{}");
    await_metric(&daemon, r#"workflow_webhook_deliveries_total{outcome="expired"}"#, 1);
    waiting_is(&daemon, 0);
    daemon.await_log(&["could not be delivered", "given up"]);
}

#[test]
fn an_address_that_is_none_is_refused_and_the_secret_is_masked() {
    let vhost = Vhost::new();
    let mut daemon = setup(&vhost, 1).set("events.webhook.url", "ftp://example/").spawn();
    assert!(!daemon.await_end().success());
    assert!(daemon.log().contains("events.webhook.url is ftp://example/"), "{}", daemon.log());
    let mut shown = setup(&vhost, 1).flag("--print-settings").spawn();
    assert!(shown.await_end().success());
    assert!(shown.log().contains("/hook") && !shown.log().contains(SECRET), "{}", shown.log());
}
