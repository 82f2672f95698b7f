//! Web services that are called, while the manager is killed: nothing is lost, and what a service
//! has taken over is not sent again.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::harness::{Daemon, Setup, when, within};
use crate::load::{LONG, create_through_crashes};
use crate::tls::{Authority, serve_with_tls};
use support::service::{Act, Call, Service, ok, status};

/// The addresses at which replies are due, with the replies.
type Replies = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

fn workflow(service: &Service) -> String {
    let url = |path: &str| format!("http://127.0.0.1:{}/{path}", service.port);
    format!(
        "workflows: [ {{ name: chain, steps: [ {{ name: double, queue: '{}', timeout: 5m }}, \
         {{ name: add, queue: '{}', timeout: 5m, depends: [ double ] }} ] }} ]",
        url("double"),
        url("add")
    )
}

fn work(called: &Call) -> Vec<u8> {
    let input: Value = serde_json::from_slice(&called.body).unwrap();
    let number = |key: &str| input[key].as_i64().unwrap_or(-1_000_000);
    let output = match called.path.as_str() {
        "/double" => json!({ "n": number("n"), "doubled": number("n") * 2 }),
        _ => json!({ "n": number("n"), "result": number("doubled") + 1 }),
    };
    output.to_string().into_bytes()
}

fn setup(service: &Service) -> Setup {
    Setup::new("", &workflow(service)).set("push.retry_min", "50ms")
}

#[test]
fn kill_five_times_in_the_middle_of_200_jobs_of_web_services() {
    const JOBS: usize = 200;
    const KILLS: usize = 5;
    let service = Service::start(|called| {
        // Some do not get through, some break.
        match called.number % 11 {
            3 => status(503),
            7 => Act::Answer(429, &[("Retry-After", "0")], Vec::new()),
            _ => Act::Later(Duration::from_millis(10), Box::new(ok(work(called)))),
        }
    });
    let mut daemon = setup(&service).start();
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
                let count = service.calls().len();
                when(count >= threshold, format!("{count} of {threshold} calls"))
            });
            daemon.kill();
            daemon.start_again();
        }
    });
    for (n, id) in ids.iter().enumerate() {
        let result: Value = serde_json::from_str(&daemon.api.await_result(*id)).unwrap();
        assert_eq!(result, json!({ "n": n, "result": n * 2 + 1 }));
    }
    // Whatever is sent again is the same message: a service can tell by its key.
    let calls = service.calls();
    let keys: BTreeSet<&str> =
        calls.iter().map(|called| called.header("idempotency-key")).collect();
    assert_eq!(keys.len(), JOBS * 2, "no attempt was used up");
    eprintln!("{} calls for {} steps and {KILLS} kills", calls.len(), JOBS * 2);
    assert!(daemon.stop().success());
}

#[test]
fn what_was_taken_over_is_not_sent_again_over_a_kill_and_the_reply_is_taken_after_it() {
    const JOBS: usize = 20;
    let replies: Replies = Arc::default();
    let (later, taken_over) = (replies.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = taken_over.clone();
    let service = Service::start(move |called| {
        if called.path == "/add" {
            return ok(work(called));
        }
        later.lock().unwrap().push((called.header("reply-to").to_owned(), work(called)));
        counted.fetch_add(1, Ordering::SeqCst);
        status(202)
    });
    let mut daemon = setup(&service)
        .set("http.public_url", "http://manager.example")
        .set("http.token", "hunter2-and-hunter3")
        .start();
    let ids: Vec<Uuid> =
        (0..JOBS).map(|n| daemon.api.create("chain", &json!({ "n": n }).to_string())).collect();
    within(LONG, "all are taken over and confirmed", || {
        let known = ids.iter().filter(|id| is_taken_over(&daemon, **id)).count();
        when(known == JOBS, format!("{known} of {JOBS}"))
    });
    daemon.kill();
    daemon.start_again();
    assert_eq!(taken_over.load(Ordering::SeqCst), JOBS);
    for (address, body) in replies.lock().unwrap().drain(..) {
        let path = address.strip_prefix("http://manager.example").unwrap();
        let answer = daemon.api.post(path, std::str::from_utf8(&body).unwrap()).expect(200).json();
        assert_eq!(answer["taken"], true, "{answer}");
    }
    for (n, id) in ids.iter().enumerate() {
        let result: Value = serde_json::from_str(&daemon.api.await_result(*id)).unwrap();
        assert_eq!(result, json!({ "n": n, "result": n * 2 + 1 }));
    }
    assert_eq!(taken_over.load(Ordering::SeqCst), JOBS, "none was sent again");
    assert!(daemon.stop().success());
}

#[test]
fn a_service_with_tls_is_called_if_an_authority_of_the_machine_vouches_for_it() {
    let service = Service::start(|called| ok(work(called)));
    let authority = Authority::new();
    let authorities = authority.file();
    let identity = authority.vouch("service", "localhost", 2099);
    let port = serve_with_tls(&identity, format!("127.0.0.1:{}", service.port));
    let workflow = format!(
        "workflows: [ {{ name: w, steps: [ {{ name: a, queue: 'https://localhost:{port}/add', \
         timeout: 5m }} ] }} ]"
    );
    let message = r#"{"n":1,"doubled":2}"#;

    let stranger = Setup::new("", &workflow).start();
    let id = stranger.api.create("w", message);
    within(LONG, "the certificate is refused", || {
        let why = stranger.api.get(&format!("/api/job/{id}/why")).expect(200).json();
        let why = why["why"].as_str().unwrap().to_owned();
        when(why.contains("not delivered") && why.contains("certificate"), why)
    });
    assert!(service.calls().is_empty());

    let friend = Setup::new("", &workflow).trusting(&authorities).start();
    let id = friend.api.create("w", message);
    let result: Value = serde_json::from_str(&friend.api.await_result(id)).unwrap();
    assert_eq!(result, json!({ "n": 1, "result": 3 }));
}

/// Whether the journal knows that the message of a job's step was taken over.
fn is_taken_over(daemon: &Daemon, id: Uuid) -> bool {
    let why = daemon.api.get(&format!("/api/job/{id}/why")).expect(200).json();
    why["why"].as_str().unwrap().contains("over (202)")
}
