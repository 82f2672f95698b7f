//! The HTTP API as existing clients use it, and what is new in it.

use std::{
    collections::{BTreeSet, HashSet},
    thread,
    time::Instant,
};

use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    amqp::{Vhost, Worker},
    harness::{Api, Daemon, JobView, Setup, eventually, when},
};

const BOOK: &str = concat!(
    include_str!("../../examples/word-counts/workflow.yaml"),
    "  - name: other
    steps: [ { name: other-step } ]
"
);

fn book(vhost: &Vhost) -> Daemon {
    Setup::new(&vhost.url, BOOK).start()
}

// ---- a job's life as the API shows it
// --------------------------------------------------------------------------

#[test]
fn before_anything_ran_the_lists_are_empty() {
    let vhost = Vhost::new();
    let daemon = book(&vhost);

    let workflows = daemon.api.get("/api/workflows").expect(200);
    assert!(workflows.header("content-type").starts_with("application/json"), "{workflows}");
    let list = workflows.json();
    let first = &list[0];
    assert_eq!(
        (&first["vhost"], &first["name"], &first["job_count"]),
        (&json!(""), &json!("book-word-counts"), &json!(0)),
        "{workflows}"
    );
    assert_eq!(list.as_array().map(Vec::len), Some(2), "{workflows}");
    assert_eq!(
        daemon.api.get("/api/workflows/x").expect(200).json(),
        list,
        "a path below /api/workflows is the same list"
    );
    let jobs = daemon.api.get("/api/jobs").expect(200);
    assert_eq!(jobs.json()["jobs"], json!([]), "{jobs}");
    let workflow = daemon.api.get("/api/workflow/book-word-counts").expect(200);
    assert!(
        workflow.ids("running").is_empty() && workflow.ids("completed").is_empty(),
        "{workflow}"
    );
}

#[test]
fn a_job_with_a_fan_out_is_shown_from_its_creation_to_its_end() {
    let vhost = Vhost::new();
    let daemon = book(&vhost);
    let api = &daemon.api;
    let client = vhost.client();

    let before_creation = Instant::now();
    let created = api
        .post("/api/workflow/book-word-counts", r#"{"filename":"/books/alice.txt"}"#)
        .expect(201);
    let id = created.id();
    assert!(created.header("content-type").starts_with("application/json"), "{created}");

    // Two steps run, nothing else is there.
    let job = api.job(id);
    assert_eq!(job.uuid, id);
    assert_eq!(job.state, "running");
    assert_eq!(names(&job.running), ["book-split", "store-title"].into());
    assert_eq!(names(&job.completed), ["__start__"].into());
    assert_eq!(job.message_of("__start__"), r#"{"filename":"/books/alice.txt"}"#);
    for step in job.running.iter().chain(&job.completed) {
        assert_is_utc_with_nanoseconds(&step.start_time);
    }
    let split = job.running_step("book-split");
    assert!(
        split.message.is_none() && split.tasks.is_empty(),
        "a plain step that runs has neither message nor tasks: {}",
        job.text
    );
    assert!(!job.text.contains("\"tasks\":[]"), "empty tasks are left out: {}", job.text);
    assert_eq!(job_count(api, "book-word-counts"), 1);
    assert_eq!(api.get("/api/workflow/book-word-counts").expect(200).ids("running"), [id]);
    assert_eq!(api.get("/api/jobs").expect(200).ids("jobs"), [id]);

    // A worker's reply is shown byte for byte; the time it took is in nanoseconds.
    let title = r#"{"filename":"/books/alice.txt","title":"Alice\u2019s Adventures"}"#;
    let message = client.take("store-title");
    let taken = Instant::now();
    client.reply(&message, title);
    let least = taken.elapsed();
    let job = eventually("store-title is completed", || {
        let job = api.job(id);
        when(names(&job.completed).contains("store-title"), &job.text).map(|()| job)
    });
    let most = before_creation.elapsed();
    let step = job.completed_step("store-title");
    assert_eq!(job.message_of("store-title"), title);
    let range = least.as_nanos() as u64 / 2..=most.as_nanos() as u64;
    assert!(
        range.contains(&step.elapsed),
        "elapsed is in nanoseconds, here within {range:?}: {}",
        job.text
    );

    // The fan-out: the step shows its input and its children, in item order.
    let sections = r#"{"filename":"/books/alice.txt","sections":[{"section":"I","end":54},{"section":"II","end":273},{"section":"III","end":478}]}"#;
    client.reply(&client.take("book-split"), sections);
    let job = eventually("the fan-out has its children", || {
        let job = api.job(id);
        let count = job
            .running
            .iter()
            .find(|step| step.name == "section-counts")
            .map_or(0, |step| step.tasks.len());
        when(count == 3, &job.text).map(|()| job)
    });
    let fan_out = job.running_step("section-counts");
    assert_eq!(
        fan_out.message.as_ref().map(|raw| raw.get()),
        Some(sections),
        "a step with a task shows its input while it runs: {}",
        job.text
    );
    let children = fan_out.tasks.clone();
    let all: HashSet<Uuid> = children.iter().copied().chain([id]).collect();
    eventually("GET /api/jobs lists the job and its children", || {
        let listed = api.get("/api/jobs").expect(200).ids("jobs");
        when(
            listed.len() == 4 && listed.iter().copied().collect::<HashSet<_>>() == all,
            format!("{listed:?}"),
        )
    });
    assert_eq!(
        api.get("/api/workflow/book-word-counts").expect(200).ids("running"),
        [id],
        "child jobs are not listed under the workflow"
    );
    assert_eq!(job_count(api, "book-word-counts"), 1, "child jobs are not counted");

    // A child that runs.
    let child = api.job(children[1]);
    assert_eq!((child.uuid, child.state.as_str()), (children[1], "running"));
    assert_eq!(names(&child.running), ["segment-word-counts"].into());
    assert_eq!(
        child.message_of("__start__"),
        r#"{"filename":"/books/alice.txt","section":{"section":"II","end":273}}"#
    );
    let parent: Value = serde_json::from_str(&child.text).unwrap();
    assert!(
        parent["parent"].to_string().contains(&id.to_string()),
        "a child names its parent: {}",
        child.text
    );

    // The children end in another order than they began.
    let messages = [
        client.take("segment-word-counts"),
        client.take("segment-word-counts"),
        client.take("segment-word-counts"),
    ];
    for message in messages.iter().rev() {
        let section = message.json()["section"]["section"].as_str().unwrap().to_owned();
        client.reply(message, json!({ "section": format!("/tmp/{section}.bin") }).to_string());
    }
    let sum = client.take("sum-splits");
    assert_eq!(sum.text(), r#"{"sections":["/tmp/I.bin","/tmp/II.bin","/tmp/III.bin"]}"#);
    client.reply(&sum, r#"{"sum_splits":"/tmp/counts.tsv"}"#);

    // All is done.
    let job = api.await_state(id, "completed");
    assert!(job.running.is_empty(), "{}", job.text);
    assert_eq!(
        names(&job.completed),
        ["__start__", "book-split", "section-counts", "sum-splits", "store-title", "__end__"]
            .into()
    );
    assert_eq!(job.completed_step("section-counts").tasks, children);
    assert_eq!(
        job.message_of("section-counts"),
        r#"{"sections":["/tmp/I.bin","/tmp/II.bin","/tmp/III.bin"]}"#
    );
    assert_eq!(
        job.message_of("__end__"),
        r#"{"sum_splits":"/tmp/counts.tsv","filename":"/books/alice.txt","title":"Alice\u2019s Adventures"}"#
    );
    assert_eq!(api.get("/api/jobs").expect(200).json()["jobs"], json!([]));
    let listed = api.get("/api/workflow/book-word-counts").expect(200);
    assert_eq!((listed.ids("running"), listed.ids("completed")), (vec![], vec![id]));
    assert_eq!(
        api.get("/api/workflow/book-word-counts?interval=0").expect(200).ids("completed"),
        [id]
    );

    // A child that has ended.
    let child = api.job(children[1]);
    assert_eq!(child.state, "completed");
    assert_eq!(names(&child.completed), ["__start__", "segment-word-counts", "__end__"].into());
    assert_eq!(child.message_of("__end__"), r#"{"section":"/tmp/II.bin"}"#);
}

#[test]
fn the_message_may_be_left_out_or_null() {
    let vhost = Vhost::new();
    let daemon = book(&vhost);
    let client = vhost.client();
    for body in [Some("".as_bytes()), Some(b"null"), Some(b" {} "), None] {
        let answer = daemon.api.send("POST", "/api/workflow/other", &[], body).expect(201);
        let message = client.take("other-step");
        assert_eq!(
            (message.job(), message.text()),
            (answer.id(), "{}"),
            "the body {body:?} is an empty message"
        );
        client.ack(&message);
    }
}

#[test]
fn a_failed_step_is_shown_with_its_reason() {
    let vhost = Vhost::new();
    let daemon = book(&vhost);
    let client = vhost.client();
    let id = daemon.api.create("other", "{}");
    client.reply(&client.take("other-step"), "[1,2] is no object: marker-4711");
    let job = daemon.api.await_state(id, "failed");
    assert!(
        job.text.contains("marker-4711"),
        "the reply that could not be read is kept for the reader: {}",
        job.text
    );
    assert!(
        !job.completed.iter().any(|step| step.name == "__end__"),
        "a failed job has no end: {}",
        job.text
    );
    assert!(daemon.api.get("/api/workflow/other").expect(200).ids("running").is_empty());
}

// ---- ids
// -------------------------------------------------------------------------------------------------------

#[test]
fn a_job_may_bring_its_id() {
    let vhost = Vhost::new();
    let daemon = book(&vhost);
    let api = &daemon.api;
    let (query, body, both) = (Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4());

    assert_eq!(api.post(&format!("/api/workflow/other?id={query}"), "{}").expect(201).id(), query);
    assert_eq!(
        api.post("/api/workflow/other", format!(r#"{{"id":"{body}","k":1}}"#)).expect(201).id(),
        body
    );
    assert_eq!(
        api.job(body).message_of("__start__"),
        format!(r#"{{"id":"{body}","k":1}}"#),
        "the id stays in the message"
    );
    let upper = both.to_string().to_uppercase();
    assert_eq!(
        api.post(&format!("/api/workflow/other?id={upper}"), format!(r#"{{"id":"{both}"}}"#))
            .expect(201)
            .id(),
        both,
        "case is no difference"
    );
    assert_eq!(api.get(&format!("/api/job/{upper}")).expect(200).json()["uuid"], json!(both));

    let different = format!("/api/workflow/other?id={}", Uuid::new_v4());
    api.post(&different, format!(r#"{{"id":"{}"}}"#, Uuid::new_v4()))
        .expect_problem(400, &["id", "query", "body"]);
    api.post("/api/workflow/other?id=zzz", "{}").expect_problem(400, &["zzz"]);
    api.post("/api/workflow/other", r#"{"id":"abc"}"#).expect_problem(400, &["abc"]);
    api.post("/api/workflow/other", r#"{"id":7}"#).expect_problem(400, &["7"]);
    assert_eq!(
        api.get("/api/workflow/other").expect(200).ids("running").len(),
        3,
        "nothing of what was refused runs"
    );
}

#[test]
fn the_same_creation_is_answered_as_before_and_another_one_is_a_conflict() {
    let vhost = Vhost::new();
    let daemon = book(&vhost);
    let api = &daemon.api;
    let client = vhost.client();
    let id = Uuid::new_v4();
    let path = format!("/api/workflow/other?id={id}");

    let first = api.post(&path, r#"{"k":1}"#).expect(201);
    let again = api.post(&path, r#"{"k":1}"#);
    assert_eq!((again.status, again.json()), (first.status, first.json()), "{again}");
    api.post(&path, r#"{"k":2}"#).expect_problem(409, &[&id.to_string()]);
    api.post(&format!("/api/workflow/book-word-counts?id={id}"), r#"{"k":1}"#)
        .expect_problem(409, &[&id.to_string()]);

    let message = client.take("other-step");
    client.reply(&message, r#"{"done":true}"#);
    assert_eq!(api.await_result(id), r#"{"done":true}"#);
    let ended = api.post(&path, r#"{"k":1}"#);
    assert_eq!(
        (ended.status, ended.json()),
        (first.status, first.json()),
        "also when it has ended: {ended}"
    );
    api.post(&path, r#"{"k":2}"#).expect_problem(409, &[&id.to_string()]);

    // Whatever was dispatched by then would lie before this one's message.
    let marker = api.create("other", r#"{"marker":true}"#);
    assert_eq!(client.take("other-step").job(), marker, "the repeated creation started nothing");
}

#[test]
fn creations_at_the_same_time_with_the_same_id_start_one_job() {
    let vhost = Vhost::new();
    let daemon = book(&vhost);
    let id = Uuid::new_v4();
    let path = format!("/api/workflow/other?id={id}");
    thread::scope(|scope| {
        let posts: Vec<_> =
            (0..20).map(|_| scope.spawn(|| daemon.api.post(&path, r#"{"k":1}"#))).collect();
        for post in posts {
            assert_eq!(post.join().unwrap().expect(201).id(), id);
        }
    });
    let client = vhost.client();
    assert_eq!(client.take("other-step").job(), id);
    let marker = daemon.api.create("other", "{}");
    assert_eq!(client.take("other-step").job(), marker);
    assert_eq!(job_count(&daemon.api, "other"), 2);
}

// ---- what is refused
// -------------------------------------------------------------------------------------------

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
// -----------------------------------------------------------------------------------------

#[test]
fn delete_cancels_a_running_job_with_its_children_and_erases_an_ended_one_only_where_that_is_asked_for()
 {
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

    // A call that is sent once more, by whoever got no answer, changes nothing.
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
// ---------------------------------------------------------------------------------------------

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

// ---- long lists
// ------------------------------------------------------------------------------------------------

#[test]
fn long_lists_come_in_pages() {
    const JOBS: usize = 25;
    let vhost = Vhost::new();
    let daemon = book(&vhost);
    let api = &daemon.api;
    let ids: Vec<Uuid> = (0..JOBS).map(|_| api.create("other", "{}")).collect();
    let expected: BTreeSet<Uuid> = ids.iter().copied().collect();

    assert_eq!(
        all_pages(api, "/api/jobs?limit=10", "jobs").into_iter().collect::<BTreeSet<_>>(),
        expected
    );
    assert_eq!(
        all_pages(api, "/api/workflow/other?limit=10", "running")
            .into_iter()
            .collect::<BTreeSet<_>>(),
        expected
    );

    let worker = Worker::echo(&vhost.url, &["other-step"]);
    eventually("all jobs have ended", || {
        let left = api.get("/api/jobs").expect(200).ids("jobs");
        when(left.is_empty(), format!("{} run", left.len()))
    });
    drop(worker);
    let ended = all_pages(api, "/api/workflow/other?limit=10", "completed");
    assert_eq!(ended.iter().copied().collect::<BTreeSet<_>>(), expected);
    assert_eq!(ended.len(), JOBS, "no job is on two pages");
    let whole = api.get("/api/workflow/other").expect(200).ids("completed");
    assert_eq!(whole, ended, "the pages keep the order of the whole list");
}

#[test]
fn ended_jobs_are_listed_newest_first() {
    let vhost = Vhost::new();
    let daemon = book(&vhost);
    let _worker = Worker::echo(&vhost.url, &["other-step"]);
    let mut ids = Vec::new();
    for _ in 0..4 {
        let id = daemon.api.create("other", "{}");
        daemon.api.await_result(id);
        ids.insert(0, id);
    }
    assert_eq!(daemon.api.get("/api/workflow/other").expect(200).ids("completed"), ids);
}

/// Follows `next` to the end; every page has at most ten entries.
#[track_caller]
fn all_pages(api: &Api, path: &str, key: &str) -> Vec<Uuid> {
    let mut all = Vec::new();
    let mut cursor = String::new();
    for _ in 0..20 {
        let page = api.get(&format!("{path}{cursor}")).expect(200);
        let ids = page.ids(key);
        assert!(ids.len() <= 10, "a page has at most the limit: {page}");
        all.extend(ids);
        match &page.json()["next"] {
            Value::String(next) => cursor = format!("&cursor={next}"),
            Value::Null => return all,
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                panic!("\"next\" is a string or missing: {page}")
            }
        }
    }
    panic!("the pages of {path} do not end");
}

// ---- health, figures, token
// ------------------------------------------------------------------------------------

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
    let daemon = Setup::new(&vhost.url, BOOK).set("http.token", "sesame-4711").start();
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
    assert!(!daemon.log().contains("sesame"), "a token has no place in the log");
}

// ---- small ones
// ------------------------------------------------------------------------------------------------

fn names(steps: &[crate::harness::StepView]) -> BTreeSet<&str> {
    steps.iter().map(|step| step.name.as_str()).collect()
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

/// As `2026-11-21T07:23:53.153352997Z`.
#[track_caller]
fn assert_is_utc_with_nanoseconds(time: &str) {
    let pattern: String = time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(
        pattern, "0000-00-00T00:00:00.000000000Z",
        "{time} is not RFC 3339 with nanoseconds in UTC"
    );
}

#[test]
fn a_view_keeps_a_jobs_messages_as_text() {
    let text = r#"{"uuid":"4d1f598a-0000-4000-8000-000000000000","state":"completed","completed":[{"name":"a","startTime":"","message":{"k":1e400}}]}"#;
    let job: JobView = serde_json::from_str(text).unwrap();
    assert_eq!(job.message_of("a"), r#"{"k":1e400}"#);
}
