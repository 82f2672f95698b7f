//! The HTTP API as existing clients use it, and what is new in it.

mod ids;
mod life;
mod lists;

use crate::{
    amqp::{Vhost, Worker},
    harness::{Api, Daemon, Setup, eventually, when},
};
use std::collections::BTreeSet;
use uuid::Uuid;

const BOOK: &str = concat!(
    include_str!("../../examples/word-counts/workflow.yaml"),
    "  - name: other
    steps: [ { name: other-step } ]
"
);

fn book(vhost: &Vhost) -> Daemon {
    Setup::new(&vhost.url, BOOK).start()
}

// ---- what is refused

#[test]
fn bad_requests_are_answered_with_the_right_problem() {
    let vhost = Vhost::new();
    let daemon = book(&vhost);
    let api = &daemon.api;
    let unknown = Uuid::new_v4();

    api.get("/api/job/nonsense").expect_problem(400, &["nonsense"]);
    api.get("/api/job/").expect_problem(400, &[]);
    api.get(&format!("/api/job/{unknown}")).expect_problem(404, &[&unknown.to_string()]);
    api.get("/api/workflow/nope").expect_problem(404, &["nope"]);
    api.get("/api/workflow/book-word-counts?vhost=x").expect_problem(404, &["x/book-word-counts"]);
    api.post("/api/workflow/nope", "{}").expect_problem(404, &["nope"]);
    api.post("/api/workflow/other?vhost=x", "{}").expect_problem(404, &["x/other"]);
    api.delete("/api/job/nonsense").expect_problem(400, &["nonsense"]);
    api.delete(&format!("/api/job/{unknown}")).expect_problem(404, &[&unknown.to_string()]);

    for body in [
        "nonsense",
        "{",
        r#"{"k":}"#,
        r#"{"k":1} more"#,
        r#"{"k":1,}"#,
        "[1]",
        r#""x""#,
        "7",
        "true",
    ] {
        api.post("/api/workflow/other", body).expect_problem(400, &[]);
    }
    api.post("/api/workflow/other", b"{\"k\":\"\xff\xfe\"}").expect_problem(400, &[]);
    for query in ["interval=x", "interval=-1", "limit=x", "limit=-1", "cursor=%21nonsense"] {
        api.get(&format!("/api/workflow/other?{query}")).expect_problem(400, &[]);
    }
    let nested = format!(r#"{{"k":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    let deep = api.post("/api/workflow/other", nested);
    assert!([400, 422].contains(&deep.status), "nesting of 100,000 levels is refused: {deep}");

    assert!(
        api.get("/api/jobs").expect(200).ids("jobs").is_empty(),
        "nothing of what was refused runs"
    );
    api.create("other", "{}");
}

#[test]
fn paths_and_methods_that_are_not_there_say_so() {
    let vhost = Vhost::new();
    let daemon = book(&vhost);
    let api = &daemon.api;

    for (method, path) in [
        ("PUT", "/api/workflows"),
        ("PUT", "/api/workflow/other"),
        ("POST", "/api/jobs"),
        ("POST", "/api/job/x"),
        ("DELETE", "/api/jobs"),
    ] {
        let body: Option<&[u8]> = if method == "DELETE" { None } else { Some(b"{}") };
        let answer = api.send(method, path, &[], body).expect(405);
        assert!(answer.header("allow").contains("GET"), "405 names what is allowed: {answer}");
    }
    for path in ["/api/zzz", "/api/", "/zzz"] {
        api.get(path).expect_problem(404, &[]);
    }
    let moved = api.get("/api").expect(301);
    assert!(moved.header("location").ends_with("/api/"), "{moved}");
}

#[test]
fn a_body_over_the_limit_is_refused() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, BOOK).set("http.body_bytes_max", "10000").start();
    let of_size = |size: usize| format!(r#"{{"k":"{}"}}"#, "x".repeat(size - 8));
    daemon.api.post("/api/workflow/other", of_size(10_001)).expect_problem(413, &["10000"]);
    daemon.api.post("/api/workflow/other", of_size(10_000)).expect(201);
}

// ---- cancel and delete

#[test]
fn delete_cancels_a_running_job_with_its_children_and_erases_an_ended_one_only_if_asked_to() {
    let vhost = Vhost::new();
    let daemon = book(&vhost);
    let api = &daemon.api;
    let client = vhost.client();
    let id = api.create("book-word-counts", "{}");
    client.reply(&client.take("book-split"), r#"{"sections":[1,2]}"#);
    let late = [client.take("segment-word-counts"), client.take("segment-word-counts")];
    let children: Vec<Uuid> = late.iter().map(|message| message.job()).collect();

    api.delete(&format!("/api/job/{id}?erase=true"))
        .expect_problem(409, &["is running", "only an ended job can be erased"]);
    let cancelled = api.delete(&format!("/api/job/{id}")).expect(200).json();
    assert_eq!(cancelled["state"], "cancelled", "{cancelled}");
    api.await_state(id, "cancelled");
    for &child in &children {
        api.await_state(child, "cancelled");
    }
    for message in &late {
        client.reply(message, r#"{"section":"too late"}"#);
    }
    vhost.await_drained("workflow-manager");
    let job = api.await_state(id, "cancelled");
    assert!(!job.text.contains("too late"), "a cancelled job takes no more replies: {}", job.text);
    assert!(api.get("/api/jobs").expect(200).ids("jobs").is_empty());
    assert!(client.take_now("sum-splits").is_none());

    // A call that a client sends once more because it got no answer changes nothing.
    for id in [id, children[0]] {
        assert_eq!(api.delete(&format!("/api/job/{id}")).expect(200).json()["state"], "cancelled");
        assert_eq!(api.job(id).state, "cancelled");
    }
    api.delete(&format!("/api/job/{}?erase=true", children[0]))
        .expect_problem(409, &["ended child job"]);
    api.delete(&format!("/api/job/{id}?erase=perhaps")).expect_problem(400, &["erase"]);
    let deleted = api.delete(&format!("/api/job/{id}?erase=true")).expect(200).json();
    assert_eq!(deleted["state"], "deleted", "{deleted}");
    eventually("the deleted job is unknown", || {
        let answer = api.get(&format!("/api/job/{id}"));
        when(answer.status == 404, &answer)
    });
    for child in children {
        eventually("its children are unknown too", || {
            let answer = api.get(&format!("/api/job/{child}"));
            when(answer.status == 404, &answer)
        });
    }
    for query in ["", "?erase=true"] {
        api.delete(&format!("/api/job/{id}{query}")).expect_problem(404, &[&id.to_string()]);
    }
}

// ---- virtual hosts

#[test]
fn a_workflow_runs_once_per_virtual_host() {
    let (own, left, right) = (Vhost::new(), Vhost::new(), Vhost::new());
    let workflows = format!(
        "workflows:\n  - name: spread\n    vhosts: [ {}, {} ]\n    steps: [ {{ name: work }} ]\n",
        left.name, right.name
    );
    let daemon = Setup::new(&own.url, &workflows).start();
    let api = &daemon.api;

    let listed = api.get("/api/workflows").expect(200).json();
    let hosts: BTreeSet<&str> =
        listed.as_array().unwrap().iter().map(|entry| entry["vhost"].as_str().unwrap()).collect();
    assert_eq!(hosts, [left.name.as_str(), right.name.as_str()].into(), "{listed}");

    let by_path = api
        .post(&format!("/api/workflow/{}/spread", left.name), r#"{"at":"left"}"#)
        .expect(201)
        .id();
    let by_query = api
        .post(&format!("/api/workflow/spread?vhost={}", right.name), r#"{"at":"right"}"#)
        .expect(201)
        .id();
    let _workers = (Worker::echo(&left.url, &["work"]), Worker::echo(&right.url, &["work"]));
    assert_eq!(api.await_result(by_path), r#"{"at":"left"}"#);
    assert_eq!(api.await_result(by_query), r#"{"at":"right"}"#);
    assert_eq!(
        api.get(&format!("/api/workflow/spread?vhost={}", left.name)).expect(200).ids("completed"),
        [by_path]
    );
    assert_eq!(
        api.get(&format!("/api/workflow/{}/spread", right.name)).expect(200).ids("completed"),
        [by_query]
    );
    assert!(
        own.client().count("work").is_none(),
        "nothing was sent in a virtual host that the workflow does not name"
    );
    api.post("/api/workflow/spread?vhost=nowhere", "{}").expect_problem(404, &["nowhere/spread"]);
}

// ---- health, figures, token

#[test]
fn health_and_figures() {
    let vhost = Vhost::new();
    let daemon = book(&vhost);
    let api = &daemon.api;
    let _worker = Worker::echo(&vhost.url, &["other-step"]);
    let id = api.create("other", "{}");
    api.await_result(id);

    api.get("/livez").expect(200);
    api.get("/readyz").expect(200);
    let verbose = api.get("/readyz?verbose").expect(200);
    for part in ["journal", "bus"] {
        assert!(
            verbose.text.to_lowercase().contains(part),
            "/readyz?verbose tells of the {part}: {verbose}"
        );
    }

    let metrics = api.get("/metrics").expect(200);
    assert!(metrics.header("content-type").starts_with("text/plain"), "{metrics}");
    for actor in ["router", "journal", "bus", "job"] {
        let start = format!("workflow_actor_mailbox_depth{{actor=\"{actor}\"");
        assert!(
            metrics.text.lines().any(|line| line.starts_with(&start)),
            "no {start} in {}",
            metrics.text
        );
    }
    for name in [
        "workflow_jobs{",
        "workflow_steps_dispatched_total{",
        "workflow_step_duration_seconds",
        "workflow_build_info{",
    ] {
        assert!(
            metrics.text.lines().any(|line| line.starts_with(name)),
            "no {name} in {}",
            metrics.text
        );
    }
    let dispatched = metrics.text.lines().find(|line| {
        line.starts_with("workflow_steps_dispatched_total{") && line.contains("\"other-step\"")
    });
    assert!(
        dispatched.is_some_and(|line| line.ends_with(" 1")),
        "one step was dispatched: {dispatched:?}"
    );
    for line in metrics.text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        assert!(
            line.starts_with("workflow_") || line.starts_with("process_"),
            "a metric without the prefix: {line}"
        );
    }
    assert!(!metrics.text.contains(&id.to_string()), "ids are no labels");
}

#[test]
fn with_a_token_every_call_but_health_needs_it() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, BOOK).set("http.token", "sesame-4711-open-it").start();
    let (none, wrong) = (daemon.api.with_token(None), daemon.api.with_token(Some("sesame-4712")));

    for path in
        ["/api/workflows", "/api/jobs", "/metrics", "/api/job/nonsense", "/api/workflow/nope"]
    {
        for api in [&none, &wrong] {
            let refused = api.get(path);
            assert!([401, 403].contains(&refused.status), "{refused}");
            assert!(
                refused.header("content-type").starts_with("application/problem+json"),
                "{refused}"
            );
        }
    }
    let refused = none.post("/api/workflow/other", "{}").expect_problem(401, &["token"]);
    assert!(refused.header("www-authenticate").starts_with("Bearer"), "{refused}");
    none.get("/livez").expect(200);
    none.get("/readyz").expect(200);

    daemon.api.create("other", "{}");
    assert_eq!(daemon.api.get("/api/jobs").expect(200).ids("jobs").len(), 1);
    assert!(!daemon.log().contains("sesame-open-yourself"), "a token has no place in the log");
}

#[track_caller]
fn job_count(api: &Api, workflow: &str) -> u64 {
    let answer = api.get("/api/workflows").expect(200);
    let list = answer.json();
    let entry =
        list.as_array().and_then(|list| list.iter().find(|entry| entry["name"] == workflow));
    entry
        .and_then(|entry| entry["job_count"].as_u64())
        .unwrap_or_else(|| panic!("no job_count of {workflow}: {answer}"))
}
