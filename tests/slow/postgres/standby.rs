//! A manager that stands by: what it serves and refuses, and how it becomes active.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::Value;
use support::grpc::connect;
use support::journal_rules::InDatabase;
use workflow_manager::grpc::wire::ReceiveRequest;

use super::{HttpWorker, JOBS, assert_all_completed, create_jobs, on, signal};
use crate::harness::{Daemon, Setup, command, eventually, free_port, run, when};

/// The addresses by which the managers are known to others.
const FIRST: &str = "http://first.example:8088";
const SECOND: &str = "http://second.example:8088";

fn known_as(setup: Setup, address: &str) -> Setup {
    setup.set("http.public_url", address).set("http.hosts", "127.0.0.1,localhost")
}

/// Starts a manager and one that stands by.
fn start_both(database: &InDatabase, change: impl Fn(Setup) -> Setup) -> (Daemon, Daemon) {
    let first = change(known_as(on(&database.url()), FIRST)).start();
    let mut second = change(known_as(on(&database.url()), SECOND)).spawn();
    second.await_alive();
    (first, second)
}

#[test]
fn a_standby_serves_what_is_stored_and_names_the_active_one_for_all_else() {
    let database = InDatabase::create();
    let (first, mut second) = start_both(&database, |setup| setup);
    let job = create_jobs(&first, 1)[0];
    // Reads are of the database, so they show at once what is answered.
    let seen = second.api.job(job);
    assert_eq!(seen.state, "running");
    for path in [
        "/api/workflows?all=true&stats=1h",
        "/api/workflow/chain",
        "/api/jobs",
        "/api/jobs/search?state=running",
        "/api/status/chain",
        "/api/definitions?workflow=chain",
        "/api/settings",
        "/api/whoami",
        "/openapi.json",
        "/metrics",
        "/livez",
        "/",
    ] {
        second.api.get(path).expect(200);
    }
    let csv = second.api.send("GET", "/api/status/chain", &[("Accept", "text/csv")], None);
    assert!(csv.expect(200).text.contains(&job.to_string()));
    for part in ["", "/entries", "/children", "/step/first", "/message", "/why"] {
        second.api.get(&format!("/api/job/{job}{part}")).expect(200);
    }
    let why = second.api.get(&format!("/api/job/{job}/why")).json();
    assert!(why["why"].as_str().unwrap().contains("stands by; active is"), "{why}");
    let words = ["stands by; active is http://first.example:8088 since 20"];
    for (method, path) in [
        ("POST", "/api/workflow/chain".to_owned()),
        ("POST", format!("/api/job/{job}/cancel")),
        ("POST", "/api/jobs/cancel?state=running".to_owned()),
        ("DELETE", format!("/api/job/{job}")),
        ("POST", "/api/reload".to_owned()),
        ("POST", "/api/queue/work/receive".to_owned()),
        ("POST", "/api/queue/work/redispatch".to_owned()),
        ("GET", "/api/events".to_owned()),
        ("GET", format!("/api/job/{job}/events")),
        ("GET", "/api/queues".to_owned()),
        ("GET", "/api/queue/work".to_owned()),
    ] {
        let answer = second.api.send(method, &path, &[], Some(b"{}"));
        let answer = answer.expect_problem(503, &words);
        assert_eq!(answer.header("workflow-manager-active"), FIRST, "{method} {path}");
        assert_eq!(answer.header("retry-after"), "1", "{method} {path}");
        assert_eq!(answer.json()["active"], FIRST, "{method} {path}");
    }
    let unready = second.api.get("/readyz").expect(503);
    assert!(unready.text.contains(words[0]), "{unready}");
    assert!(!first.api.get("/readyz?verbose").expect(200).text.contains("stands by"));
    assert_eq!(second.api.metric("workflow_cluster_active"), 0);
    assert_eq!(first.api.metric("workflow_cluster_active"), 1);
    for daemon in [&first, &second] {
        assert!(daemon.api.metric("workflow_cluster_beat_age_seconds") < 10);
    }
    assert_eq!(second.stop().code(), Some(0));
}

#[test]
fn a_manager_tells_of_all_that_share_its_database() {
    let database = InDatabase::create();
    let (first, second) = start_both(&database, |setup| setup);
    let told = |daemon: &Daemon| daemon.api.get("/api/manager").expect(200).json();
    for (daemon, role, ready) in [(&first, "active", true), (&second, "standby", false)] {
        let manager = told(daemon);
        assert_eq!(manager["ready"], Value::Bool(ready), "{manager}");
        let cluster = &manager["cluster"];
        assert_eq!((&cluster["name"], &cluster["role"]), (&"default".into(), &role.into()));
        assert_eq!(cluster["active"]["address"], FIRST, "{cluster}");
        assert_eq!(cluster["names"][0]["epoch"], 1, "{cluster}");
        let mut states: Vec<(&str, &str)> = cluster["managers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| (one["state"].as_str().unwrap(), one["address"].as_str().unwrap()))
            .collect();
        states.sort_unstable();
        assert_eq!(states, [("active", FIRST), ("standby", SECOND)], "{cluster}");
    }
    for daemon in [&first, &second] {
        let list = |more: &[&str]| {
            run(command().args(["cluster", "--server", &daemon.url()]).args(more)).text()
        };
        let text = list(&["-o", "wide"]);
        assert!(text.contains(FIRST) && text.contains(SECOND), "{text}");
        assert!(text.contains("standby") && text.contains(env!("CARGO_PKG_VERSION")), "{text}");
        let json: Value = serde_json::from_str(&list(&["-o", "json"])).unwrap();
        assert_eq!(json["managers"].as_array().unwrap().len(), 2, "{json}");
    }
    let workflows = run(command().args(["workflows", "--stats", "1h", "--server", &second.url()]));
    assert!(workflows.text().contains("chain"), "{}", workflows.text());
    let of_a_file = Setup::new("", super::CHAIN).start();
    assert!(told(&of_a_file).get("cluster").is_none());
    let refused = run(command().args(["cluster", "--server", &of_a_file.url()])).text();
    assert!(refused.contains("journal is a file"), "{refused}");
}

#[test]
fn a_standby_goes_on_at_its_address_without_refusing_a_connection() {
    let database = InDatabase::create();
    let (mut first, mut second) = start_both(&database, |setup| setup);
    let mut jobs = create_jobs(&first, JOBS);
    let is_over = Arc::new(AtomicBool::new(false));
    let client = {
        let (api, is_over) = (second.api.clone(), is_over.clone());
        thread::spawn(move || {
            let (mut answered, mut refused) = (0, Vec::new());
            while !is_over.load(Ordering::SeqCst) {
                // Each call has a connection of its own.
                match api.anew().try_send("GET", "/api/jobs", &[], None) {
                    Ok(answer) if answer.status == 200 => answered += 1,
                    Ok(answer) => refused.push(answer.to_string()),
                    Err(error) => refused.push(error.to_string()),
                }
            }
            (answered, refused)
        })
    };
    first.kill();
    second.await_ready();
    jobs.extend(create_jobs(&second, JOBS));
    is_over.store(true, Ordering::SeqCst);
    let (answered, refused) = client.join().unwrap();
    assert!(refused.is_empty(), "beside {answered}: {refused:?}");
    assert!(answered > 0);
    assert_eq!(second.api.metric("workflow_cluster_takeovers_total"), 1);
    assert_eq!(second.api.metric("workflow_cluster_active"), 1);
    let _worker = HttpWorker::start(vec![second.api.anew()]);
    assert_all_completed(&second, &database, &jobs);
}

#[test]
fn a_token_that_was_taken_away_while_standing_by_stays_away() {
    let database = InDatabase::create();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens.yaml");
    let write = |token: &str| {
        let text = format!("tokens: {{ a: {{ token: {token}, scope: admin }} }}");
        std::fs::write(&file, text).unwrap();
    };
    write("before-before-before");
    let tokens_file = file.to_str().unwrap();
    let (mut first, mut second) =
        start_both(&database, |setup| setup.set("http.tokens_file", tokens_file));
    let status_of =
        |daemon: &Daemon, token: &str| daemon.api.with_token(Some(token)).get("/api/jobs").status;
    assert_eq!(status_of(&second, "before-before-before"), 200);
    write("after-after-after-after");
    signal("HUP", &second);
    eventually("the standby takes the new token", || {
        when(status_of(&second, "after-after-after-after") == 200, "not yet")
    });
    assert_eq!(status_of(&second, "before-before-before"), 401);
    first.stop();
    second.await_ready();
    assert_eq!(status_of(&second, "before-before-before"), 401);
    assert_eq!(status_of(&second, "after-after-after-after"), 200);
}

#[test]
fn a_standby_refuses_workers_over_grpc_and_takes_them_once_it_is_active() {
    let database = InDatabase::create();
    let ports = [free_port(), free_port()];
    let start = |index: usize, address: &str| {
        let listen = format!("127.0.0.1:{}", ports[index]);
        known_as(on(&database.url()), address).set("grpc.listen", &listen)
    };
    let mut first = start(0, FIRST).start();
    let mut second = start(1, SECOND).spawn();
    second.await_alive();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let receive = || {
        runtime.block_on(async {
            let mut client = connect(SocketAddr::from(([127, 0, 0, 1], ports[1]))).await;
            let request = ReceiveRequest { queue: "work".to_owned(), ..ReceiveRequest::default() };
            client.receive(request).await
        })
    };
    let status = receive().expect_err("it stands by");
    assert_eq!(status.code(), tonic::Code::Unavailable);
    let words = "stands by; active is http://first.example:8088";
    assert!(status.message().starts_with(words), "{status}");
    first.stop();
    second.await_ready();
    second.api.create("chain", "{}");
    let answer = receive().expect("it is active").into_inner();
    assert_eq!(answer.messages.len(), 1);
}
