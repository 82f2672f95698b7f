//! The worker library for Rust, judged by `worker-test`, and with real managers.

use super::{Kit, MUST_OF_HTTP, assert_passed, case, over_amqp};
use crate::amqp::{RUNTIME, Vhost};
use crate::harness::{DEADLINE, Daemon, Setup, eventually, when};
use serde_json::{Map, Value, json};
use std::future::Future;
use std::sync::mpsc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use workflow_worker::{Failure, Progress, RawJson, Step, Worker};

type Input = Map<String, Value>;

/// A worker that runs until this is dropped, or told to stop.
struct Running {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), workflow_worker::Error>>,
}

impl Running {
    fn start(worker: Worker) -> Running {
        let (stop, stopped) = oneshot::channel();
        let task = RUNTIME.spawn(worker.run_until(async {
            let _ = stopped.await;
        }));
        Running { stop: Some(stop), task }
    }

    /// It ends by itself once it is told to.
    #[track_caller]
    fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        let ended =
            RUNTIME.block_on(async { tokio::time::timeout(DEADLINE, &mut self.task).await });
        ended.expect("the worker stops").unwrap().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn echo(input: RawJson, _step: Step) -> Result<RawJson, Failure> {
    Ok(input)
}

#[test]
fn over_http_it_keeps_the_protocol() {
    let kit = Kit::start(&["price", "--within", "10s"]);
    let worker = Worker::new().server(&kit.address).queue("price", echo).prefetch(4);
    let worker = Running::start(worker);
    let ran = kit.end();
    worker.stop();
    assert_eq!(ran.code, Some(0), "{ran}");
    MUST_OF_HTTP.iter().for_each(|name| assert_passed(&ran, name));
    assert_passed(&ran, "keeps every digit, escapes and the order of keys");
    assert!(ran.stdout.contains("\n11 passed, 0 failed, 0 advised\n"), "{ran}");
}

#[test]
fn over_http_it_extends_leases_and_stops_when_its_attempt_is_over() {
    let kit = Kit::start(&["price", "--within", "10s"]);
    let work = async |input: RawJson, step: Step| -> Result<RawJson, Failure> {
        // As long as the shortest lease, which is extended six times meanwhile.
        tokio::select! {
            _ = step.ended() => Err(Failure::last("nobody hears it")),
            () = tokio::time::sleep(Duration::from_secs(1)) => Ok(input),
        }
    };
    let worker = Worker::new().server(&kit.address).lease(Duration::from_secs(1));
    let worker = Running::start(worker.prefetch(100).queue("price", work));
    let ran = kit.end();
    worker.stop();
    assert_eq!(ran.code, Some(0), "{ran}");
    for name in [
        "asks for more time, or reports progress, before its lease ends",
        "stops when its attempt is over",
    ] {
        let told = case(&ran, name);
        assert!(told[0].starts_with("ok ") && !told[0].contains("SKIP"), "{ran}");
    }
}

#[test]
fn over_amqp_it_keeps_the_protocol() {
    let vhost = Vhost::new();
    let (kit, address) = over_amqp(&vhost);
    let worker = Running::start(Worker::new().server(&address).queue("price", echo).prefetch(4));
    let ran = kit.end();
    worker.stop();
    assert_eq!(ran.code, Some(0), "{ran}");
    assert!(ran.stdout.contains(" passed, 0 failed, 0 advised\n"), "{ran}");
    for name in [
        "acknowledges only after the broker has confirmed the reply",
        "declares its queue again after it was deleted",
        "keeps every digit, escapes and the order of keys",
    ] {
        let told = case(&ran, name);
        assert!(told[0].starts_with("ok ") && !told[0].contains("SKIP"), "{ran}");
    }
}

/// What each job of `WORKFLOW` does with a message.
async fn do_as_told(input: Input, step: Step) -> Result<Value, Failure> {
    match input["do"].as_str() {
        Some("fail") => Err(Failure::last("no such article")),
        Some("try again") if step.attempt() == 1 => Err(std::io::Error::other("no disk"))?,
        Some("try again") => Ok(json!({ "attempt": step.attempt(), "delivery": step.delivery() })),
        Some("panic") => panic!("a bug"),
        Some("array") => Ok(json!([1])),
        Some("nothing") => Ok(Value::Null),
        Some("tell") => {
            let half = Progress { message: Some("half".to_owned()), ..0.5.into() };
            step.progress(half).await;
            let _ = step.ended().await;
            Ok(json!({}))
        }
        _ => Ok(json!({
            "id": step.id(),
            "name": step.name(),
            "job": step.job(),
            "workflow": step.workflow(),
            "queue": step.queue(),
        })),
    }
}

const WORKFLOW: &str = "workflows:
  - name: rust
    steps:
      - { name: work, queue: 'rust/queue', timeout: 1h, retry: { attempts: 2, backoff: 1ms } }";

fn result(daemon: &Daemon, what: &str) -> Value {
    let id = daemon.api.create("rust", &json!({ "do": what }).to_string());
    serde_json::from_str(&daemon.api.await_result(id)).unwrap()
}

fn failure(daemon: &Daemon, what: &str) -> String {
    let id = daemon.api.create("rust", &json!({ "do": what }).to_string());
    daemon.api.await_state(id, "failed").text
}

/// What a function gives, and what the manager makes of it, is the same over each transport.
fn works_for(daemon: &Daemon, address: &str) {
    let worker = Worker::new().server(address).lease(Duration::from_secs(3));
    let worker = Running::start(worker.queue("rust/queue", do_as_told));
    let told = result(daemon, "what there is to know");
    assert_eq!(told["name"], "work");
    assert_eq!((&told["job"], &told["workflow"]), (&told["id"], &json!("rust")));
    assert_eq!(told["queue"], "rust/queue");
    assert_eq!(result(daemon, "try again"), json!({ "attempt": 2, "delivery": 1 }));
    assert_eq!(result(daemon, "nothing"), json!({}));
    for (what, why) in [
        ("fail", "no such article"),
        ("panic", "the worker's function panicked: a bug"),
        ("array", "gives an object or nothing"),
    ] {
        let reason = failure(daemon, what);
        assert!(reason.contains(why), "{what}: {reason}");
    }
    let id = daemon.api.create("rust", r#"{"do":"tell"}"#);
    eventually("the progress is shown", || {
        let job = daemon.api.get(&format!("/api/job/{id}")).expect(200).json();
        let progress = &job["steps"][0]["progress"];
        when(*progress == json!(0.5), job.to_string())
    });
    if address.starts_with("http") {
        daemon.api.post(&format!("/api/job/{id}/cancel"), "").expect(200);
        // The function is told, ends, and the worker takes the next message.
        assert_eq!(result(daemon, "nothing"), json!({}));
    }
    drop(worker);
}

#[test]
fn over_http_every_end_of_a_function_is_told() {
    let daemon = Setup::new("", WORKFLOW).start();
    works_for(&daemon, &daemon.url());
}

#[test]
fn over_amqp_every_end_of_a_function_is_told() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, WORKFLOW).start();
    works_for(&daemon, &vhost.url);
}

#[test]
fn a_worker_that_stops_finishes_what_it_has_in_hand() {
    let vhost = Vhost::new();
    let broker = Setup::new(&vhost.url, WORKFLOW).start();
    let http = Setup::new("", WORKFLOW).start();
    for (daemon, address) in [(&broker, vhost.url.clone()), (&http, http.url())] {
        let (tell, begun) = mpsc::channel();
        let (go, gate) = tokio::sync::watch::channel(false);
        let work = move |_: Input,
                         _: Step|
              -> std::pin::Pin<
            Box<dyn Future<Output = Result<Value, Failure>> + Send>,
        > {
            let (tell, mut gate) = (tell.clone(), gate.clone());
            Box::pin(async move {
                tell.send(()).unwrap();
                gate.wait_for(|is_open| *is_open).await?;
                Ok(json!({ "is": "done" }))
            })
        };
        let worker = Running::start(Worker::new().server(&address).queue("rust/queue", work));
        let id = daemon.api.create("rust", "{}");
        begun.recv_timeout(DEADLINE).unwrap();
        let stopping = std::thread::spawn(move || worker.stop());
        go.send_replace(true);
        stopping.join().unwrap();
        assert_eq!(daemon.api.await_result(id), r#"{"is":"done"}"#);
    }
}

#[test]
fn a_lost_connection_is_opened_again_although_a_function_does_not_end() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, WORKFLOW).start();
    let (tell, begun) = mpsc::channel();
    let work = move |_: Input, step: Step| {
        let tell = tell.clone();
        async move {
            tell.send(step.delivery()).unwrap();
            if step.delivery() == 1 {
                std::future::pending::<()>().await;
            }
            Ok(json!({ "delivery": step.delivery() }))
        }
    };
    let _worker = Running::start(Worker::new().server(&vhost.url).queue("rust/queue", work));
    let id = daemon.api.create("rust", "{}");
    begun.recv_timeout(DEADLINE).unwrap();
    vhost.close_connections();
    assert_eq!(daemon.api.await_result(id), r#"{"delivery":2}"#);
}

#[test]
fn an_address_that_cannot_be_used_is_told_without_its_password() {
    for (address, why) in [
        ("http://u:secret@b/", "WORKFLOW_MANAGER_TOKEN"),
        ("u:secret@b", "begins neither"),
        ("amqp://u:secret@b:port/", ""),
        ("amqps://u:secret@b:port/", ""),
    ] {
        let ran = RUNTIME.block_on(
            Worker::new().server(address).queue("q", echo).run_until(std::future::pending()),
        );
        let told = ran.unwrap_err().to_string();
        assert!(told.contains(why) && !told.contains("secret"), "{told}");
    }
    let ran = RUNTIME.block_on(Worker::new().run_until(std::future::pending()));
    assert!(ran.unwrap_err().to_string().contains("no queue"));
}
