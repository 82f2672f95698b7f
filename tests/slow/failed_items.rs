//! The failed items of a completed job run again alone: over the API and the command line, in both
//! journals, and across crashes.

use serde_json::{Value, json};
use std::collections::BTreeSet;
use support::journal_rules::InDatabase;
use uuid::Uuid;

use crate::amqp::{Client, StepMessage, Vhost, json_properties};
use crate::harness::{Daemon, Setup, command, run};

const FAN: &str = "
workflows:
  - name: fan
    steps: [ { name: each, task: t }, { name: after, depends: [ each ] } ]
    tasks: [ { name: t, itemListKey: items, tolerate: 2, steps: [ { name: work } ] } ]
";

fn fail(client: &Client, message: &StepMessage) {
    let error = json_properties().with_type("error".into());
    client.say(message, r#"{"error":"broken","retryable":false}"#, error);
    client.ack(message);
}

fn complete(client: &Client, message: &StepMessage) {
    let item = message.json()["item"].as_i64().expect("an item");
    client.reply(message, format!(r#"{{"item":{}}}"#, 10 * item));
}

/// The jobs that are found with failed items.
#[track_caller]
fn with_failed_items(daemon: &Daemon) -> Vec<Value> {
    let found = daemon.api.get("/api/jobs/search?failedItems=true&count=true").expect(200).json();
    let jobs = found["jobs"].as_array().expect("a list");
    assert_eq!(found["count"], jobs.len(), "{found}");
    // Every list tells them from others.
    let all = daemon.api.get("/api/jobs/search").expect(200).json();
    let all = all["jobs"].as_array().expect("a list");
    let told: Vec<&Value> = all.iter().filter(|job| job["failedItems"] == true).collect();
    assert_eq!(told, jobs.iter().collect::<Vec<_>>());
    jobs.iter().map(|job| job["job"].clone()).collect()
}

/// A job of four items, of which two have failed.
fn completed(daemon: &Daemon, client: &Client) -> Uuid {
    let id = daemon.api.create("fan", r#"{"items":[1,2,3,4]}"#);
    for _ in 0..4 {
        let message = client.take("work");
        match message.json()["item"].as_i64() {
            Some(2 | 4) => fail(client, &message),
            _ => complete(client, &message),
        }
    }
    let after = client.take("after");
    client.reply(&after, after.text());
    assert_eq!(daemon.api.await_result(id), r#"{"items":[10,null,30,null]}"#);
    id
}

fn failed_items_run_again(setup: Setup, vhost: &Vhost) {
    let mut daemon = setup.start();
    let client = vhost.client();
    let id = completed(&daemon, &client);
    assert_eq!(with_failed_items(&daemon), [json!(id.to_string())]);
    let job = format!("/api/job/{id}");
    let post = |path: &str| daemon.api.post(&format!("{job}/{path}"), "");
    post("rerun?step=each&items=all").expect_problem(400, &["items is \"all\"", "expected failed"]);
    post("retry?items=failed").expect_problem(400, &["retry takes no items; rerun does"]);
    post("rerun?step=after&items=failed")
        .expect_problem(409, &["step \"after\"", "runs no child jobs"]);

    let answer = post("rerun?step=each&items=failed").expect(200).json();
    assert_eq!(answer["state"], "running");
    // Its orders to the child jobs may not have arrived.
    daemon.kill();
    daemon.start_again();
    assert_eq!(with_failed_items(&daemon), [] as [Value; 0]);
    let mut again = BTreeSet::new();
    let mut killed = false;
    // A message whose confirm was lost with the process comes twice.
    while again.len() < 2 {
        let message = client.take("work");
        assert!(message.message_id().ends_with(":2"), "{}", message.message_id());
        again.insert(message.json()["item"].as_i64().expect("an item"));
        complete(&client, &message);
        if !std::mem::replace(&mut killed, true) {
            daemon.kill();
            daemon.start_again();
        }
    }
    assert_eq!(again, BTreeSet::from([2, 4]), "what had completed is kept");
    let after = client.take("after");
    assert_eq!(after.text(), r#"{"items":[10,20,30,40]}"#);
    client.reply(&after, after.text());
    assert_eq!(daemon.api.await_result(id), r#"{"items":[10,20,30,40]}"#);
    assert_eq!(with_failed_items(&daemon), [] as [Value; 0]);
    daemon
        .api
        .post(&format!("/api/job/{id}/rerun?step=each&items=failed"), "")
        .expect_problem(409, &["no item of step \"each\"", "has failed"]);
}

#[test]
fn failed_items_of_a_completed_job_run_again_alone_across_crashes() {
    let vhost = Vhost::new();
    failed_items_run_again(Setup::new(&vhost.url, FAN), &vhost);
}

#[test]
fn failed_items_run_again_in_a_database_too() {
    let (vhost, database) = (Vhost::new(), InDatabase::create());
    let setup = Setup::new(&vhost.url, FAN).set("journal.url", &database.url());
    failed_items_run_again(setup, &vhost);
}

/// All that were found are mended with one command.
#[test]
fn the_command_line_finds_jobs_with_failed_items_and_mends_them() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, FAN).start();
    let client = vhost.client();
    let ids = [completed(&daemon, &client), completed(&daemon, &client)];
    let ask = |arguments: &[&str]| run(command().args(arguments).args(["--server", &daemon.url()]));
    let found = ask(&["search", "--failed-items", "--state", "completed"]);
    assert!(ids.iter().all(|id| found.stdout.contains(&id.to_string())), "{found}");
    assert_eq!(found.stdout.matches("some items failed").count(), 2, "{found}");
    let bulk = ["rerun", "--failed-items", "--step", "each", "--items", "failed"];
    let done = ask(&bulk);
    assert!(done.stdout.contains("rerun: 2 of 2 jobs done, 0 refused"), "{done}");
    for _ in 0..4 {
        complete(&client, &client.take("work"));
    }
    for _ in ids {
        let after = client.take("after");
        client.reply(&after, after.text());
    }
    for id in ids {
        assert_eq!(daemon.api.await_result(id), r#"{"items":[10,20,30,40]}"#);
    }
    let none = ask(&bulk);
    assert!(none.stdout.contains("rerun: no jobs are found; nothing was done"), "{none}");
}
