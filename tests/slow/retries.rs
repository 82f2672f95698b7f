//! What a retry finds: child jobs whose ids others have taken, or that were never created; and what
//! it leaves alone.

use serde_json::json;
use uuid::Uuid;

use crate::amqp::{Answer, Client, StepMessage, Vhost, Worker, json_properties};
use crate::harness::{Daemon, Setup, eventually, when};
use workflow_manager::journal::{JournalOptions, SqliteJournal};

const FAN: &str = "
workflows:
  - name: fan
    steps: [ { name: each, task: t } ]
    tasks: [ { name: t, itemListKey: items, steps: [ { name: work } ] } ]
";

fn fail(client: &Client, message: &StepMessage) {
    client.say(message, r#"{"error":"not yet"}"#, json_properties().with_type("error".into()));
}

fn retry(daemon: &Daemon, id: Uuid) {
    daemon.api.post(&format!("/api/job/{id}/retry"), "").expect(200);
}

/// A message whose only item brings its child job's id; a failed job of it; and a later one, whose
/// child job has the id now.
fn two_jobs_of(item: &str, vhost: &Vhost) -> (Daemon, Client, Uuid, Uuid) {
    let daemon = Setup::new(&vhost.url, FAN).start();
    let client = vhost.client();
    let first = daemon.api.create("fan", item);
    fail(&client, &client.take("work"));
    daemon.api.await_state(first, "failed");
    let second = daemon.api.create("fan", item);
    (daemon, client, first, second)
}

/// A worker takes the next message and replies with it; the job completes with this result.
fn complete(daemon: &Daemon, client: &Client, id: Uuid, result: &str) -> StepMessage {
    let message = client.take("work");
    client.reply(&message, message.text());
    assert_eq!(daemon.api.await_result(id), result);
    message
}

#[test]
fn a_retry_reaches_its_own_child_job_though_another_has_had_its_id_since() {
    let item = r#"{"items":["6f0d1c9e-58a4-4e0e-8d0a-3f4a0f0f7b11"]}"#;
    let vhost = Vhost::new();
    let (daemon, client, first, second) = two_jobs_of(item, &vhost);
    let message = complete(&daemon, &client, second, item);
    assert_eq!(message.job().to_string(), "6f0d1c9e-58a4-4e0e-8d0a-3f4a0f0f7b11");
    retry(&daemon, first);
    let message = complete(&daemon, &client, first, item);
    assert!(message.message_id().ends_with(":work:2"), "{}", message.message_id());
}

#[test]
fn a_retry_whose_child_jobs_id_is_in_use_fails_with_that_reason_and_leaves_the_other_alone() {
    let item = r#"{"items":["6f0d1c9e-58a4-4e0e-8d0a-3f4a0f0f7b12"]}"#;
    let vhost = Vhost::new();
    let (daemon, client, first, second) = two_jobs_of(item, &vhost);
    let message = client.take("work");
    retry(&daemon, first);
    eventually("the retry fails", || {
        let reason = daemon.api.job(first).text;
        when(reason.contains("its id belongs to another job by now"), reason)
    });
    client.reply(&message, message.text());
    assert_eq!(daemon.api.await_result(second), item);
    retry(&daemon, first);
    complete(&daemon, &client, first, item);
}

#[test]
fn a_child_job_whose_start_was_lost_starts_when_its_parent_is_retried() {
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, FAN).start();
    let client = vhost.client();
    let id = daemon.api.create("fan", r#"{"items":[1,2,3]}"#);
    let messages = [client.take("work"), client.take("work"), client.take("work")];
    fail(&client, &messages[0]);
    daemon.api.await_state(id, "failed");
    let lost = messages[2].job();
    daemon.kill();
    // As if the process had ended before the last child job was in the journal.
    let options = JournalOptions {
        file: daemon.database(),
        cache_bytes: 1 << 20,
        verify_bytes_max: 1 << 30,
        pages_max: 0,
    };
    drop(SqliteJournal::open(&options).expect("opens, and derives what is committed"));
    let journal = rusqlite::Connection::open(daemon.database()).expect("opens");
    let number: i64 = journal
        .query_row("SELECT number FROM jobs WHERE id = ?1", [lost.as_bytes()], |row| row.get(0))
        .expect("is there");
    for sql in [
        "DELETE FROM entries WHERE job = ?1",
        "DELETE FROM places WHERE job = ?1",
        "DELETE FROM jobs WHERE number = ?1",
    ] {
        journal.execute(sql, [number]).expect("deletes");
    }
    drop(journal);
    daemon.start_again();
    retry(&daemon, id);
    let _worker = Worker::echo(&vhost.url, &["work"]);
    messages[1..].iter().for_each(|message| client.requeue(message));
    assert_eq!(daemon.api.await_result(id), r#"{"items":[1,2,3]}"#);
}

#[test]
fn a_step_that_calls_a_workflow_does_not_wait_for_its_own_job_to_end() {
    let workflows = "
workflows:
  - { name: outer, steps: [ { name: ask, queue: workflow.inner } ] }
  - { name: inner, steps: [ { name: work } ] }
";
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, workflows).set("limits.jobs_running_max", "1").start();
    let _worker = Worker::echo(&vhost.url, &["work"]);
    let id = daemon.api.create("outer", r#"{"n":1}"#);
    assert_eq!(daemon.api.await_result(id), r#"{"n":1}"#);
}

#[test]
fn a_reply_that_waits_in_the_reply_queue_comes_before_the_timeout_that_has_passed_meanwhile() {
    let workflows = "workflows: [ { name: w, steps: [ { name: slow, timeout: 5s } ] } ]";
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, workflows).start();
    let client = vhost.client();
    let answered = daemon.api.create("w", r#"{"n":1}"#);
    let message = client.take("slow");
    let silent = daemon.api.create("w", r#"{"n":2}"#);
    let _held = client.take("slow");
    daemon.kill();
    client.reply(&message, r#"{"done":true}"#);
    let begun = std::time::Instant::now();
    eventually("the timeout has passed", || {
        when(begun.elapsed() > std::time::Duration::from_secs(5), "not yet")
    });
    daemon.start_again();
    assert_eq!(daemon.api.await_result(answered), r#"{"done":true}"#);
    assert!(daemon.api.await_state(silent, "failed").text.contains("no reply within its timeout"));
}

#[test]
fn a_job_of_a_virtual_host_that_is_no_longer_loaded_cannot_be_retried_and_says_why() {
    let (here, there) = (Vhost::new(), Vhost::new());
    let workflow = |vhost: &Vhost| {
        format!(
            "workflows: [ {{ name: w, vhosts: [ {} ], steps: [ {{ name: work }} ] }} ]",
            vhost.name
        )
    };
    let mut daemon = Setup::new(&here.url, &workflow(&there)).start();
    let _worker = Worker::start(&there.url, &["work"], |_| Answer::Reply(b"[]".to_vec()));
    let id =
        daemon.api.post(&format!("/api/workflow/w?vhost={}", there.name), "{}").expect(201).id();
    daemon.api.await_state(id, "failed");
    daemon.write_workflows(&workflow(&here));
    daemon.stop();
    daemon.start_again();
    daemon
        .api
        .post(&format!("/api/job/{id}/retry"), "")
        .expect_problem(409, &["no workflow of the virtual host", &there.name]);
    assert_eq!(daemon.api.get(&format!("/api/job/{id}")).json()["state"], json!("failed"));
}

#[test]
fn a_reload_into_a_virtual_host_whose_reply_queue_is_consumed_by_another_process_ends_nothing() {
    let (here, there) = (Vhost::new(), Vhost::new());
    let in_both = format!(
        "workflows: [ {{ name: w, steps: [ {{ name: work }} ] }}, \
         {{ name: v, vhosts: [ {} ], steps: [ {{ name: work }} ] }} ]",
        there.name
    );
    let mut other = Setup::new(&there.url, FAN).start();
    let mut daemon =
        Setup::new(&here.url, "workflows: [ { name: w, steps: [ { name: work } ] } ]").start();
    daemon.write_workflows(&in_both);
    daemon.api.post("/api/reload", "").expect(200);
    daemon.await_log(&["another process consumes the reply queue"]);
    let _worker = Worker::echo(&here.url, &["work"]);
    let id = daemon.api.create("w", r#"{"n":1}"#);
    assert_eq!(daemon.api.await_result(id), r#"{"n":1}"#);
    // It takes the queue over when the other has gone.
    other.stop();
    let _there = Worker::echo(&there.url, &["work"]);
    let id = daemon
        .api
        .post(&format!("/api/workflow/v?vhost={}", there.name), r#"{"n":2}"#)
        .expect(201)
        .id();
    assert_eq!(daemon.api.await_result(id), r#"{"n":2}"#);
    assert!(daemon.ended().is_none());
}

#[test]
fn a_failed_job_that_is_past_its_retention_at_a_start_leaves_nothing_behind() {
    let vhost = Vhost::new();
    let workflows =
        "workflows: [ { name: w, retention: 1ms, steps: [ { name: a }, { name: b } ] } ]";
    let mut daemon = Setup::new(&vhost.url, workflows).start();
    let client = vhost.client();
    let path = "/api/workflow/w?id=6f0d1c9e-58a4-4e0e-8d0a-3f4a0f0f7b13";
    let id = daemon.api.post(path, "{}").expect(201).id();
    let _kept = client.take("b");
    fail(&client, &client.take("a"));
    daemon.api.await_state(id, "failed");
    daemon.kill();
    daemon.start_again();
    eventually("it is deleted", || {
        let answer = daemon.api.get(&format!("/api/job/{id}"));
        when(answer.status == 404, answer.text)
    });
    // Its id is free: whoever asks for it now gets a job.
    assert_eq!(daemon.api.post(path, "{}").expect(201).id(), id);
    assert_eq!(daemon.api.job(id).state, "running");
}
