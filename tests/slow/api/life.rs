//! A job's life as the API shows it.

use super::{book, job_count};
use crate::{
    amqp::Vhost,
    harness::{JobView, StepView, eventually, when},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeSet, HashSet},
    time::Instant,
};
use uuid::Uuid;

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
#[allow(clippy::too_many_lines, reason = "one life of one job")]
fn a_job_with_a_fan_out_is_shown_from_its_creation_to_its_end() {
    let vhost = Vhost::new();
    let daemon = book(&vhost);
    let api = &daemon.api;
    let client = vhost.client();

    let before_creation = Instant::now();
    let created = api
        .post("/api/workflow/book-word-counts", r#"{"filename":"/books/alice.txt"}"#)
        .expect(201);
    let since_creation = Instant::now();
    let id = created.id();
    assert!(created.header("content-type").starts_with("application/json"), "{created}");

    // Two steps run, and there is nothing else.
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
    // Its message was under way when the creation was answered, and the reply is not sent yet.
    let least = since_creation.elapsed();
    client.reply(&message, title);
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
    let sections = concat!(
        r#"{"filename":"/books/alice.txt","sections":[{"section":"I","end":54},"#,
        r#"{"section":"II","end":273},{"section":"III","end":478}]}"#,
    );
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

    // The children end in a different order from that in which they began.
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

    // Everything is done.
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
        concat!(
            r#"{"sum_splits":"/tmp/counts.tsv","filename":"/books/alice.txt","#,
            r#""title":"Alice\u2019s Adventures"}"#,
        )
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

fn names(steps: &[StepView]) -> BTreeSet<&str> {
    steps.iter().map(|step| step.name.as_str()).collect()
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
    let text = concat!(
        r#"{"uuid":"4d1f598a-0000-4000-8000-000000000000","state":"completed","#,
        r#""completed":[{"name":"a","startTime":"","message":{"k":1e400}}]}"#,
    );
    let job: JobView = serde_json::from_str(text).unwrap();
    assert_eq!(job.message_of("a"), r#"{"k":1e400}"#);
}
