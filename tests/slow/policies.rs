//! Timeouts, retries, deadlines, conditions, and what people do with jobs: end to end, across
//! restarts.

use serde_json::{Value, json};
use std::time::{Duration, Instant};
use uuid::Uuid;

use crate::amqp::{Answer, Client, StepMessage, Vhost, Worker, json_properties};
use crate::harness::{Api, Daemon, Setup, eventually, when};

fn start(vhost: &Vhost, workflows: &str) -> (Daemon, Client) {
    (Setup::new(&vhost.url, workflows).start(), vhost.client())
}

/// What the API shows about a step.
#[track_caller]
fn step(api: &Api, id: Uuid, name: &str) -> Value {
    let job: Value = serde_json::from_str(&api.job(id).text).expect("JSON");
    let steps = job["steps"].as_array().expect("steps");
    steps
        .iter()
        .find(|step| step["name"] == name)
        .cloned()
        .unwrap_or_else(|| panic!("no step {name} in {job}"))
}

#[track_caller]
fn await_step(api: &Api, id: Uuid, name: &str, key: &str, value: &Value) {
    eventually(&format!("{key} of {name} is {value}"), || {
        let step = step(api, id, name);
        when(step[key] == *value, step)
    });
}

#[track_caller]
fn why(api: &Api, id: Uuid) -> Value {
    api.get(&format!("/api/job/{id}/why")).expect(200).json()
}

/// The cause comes first in the sentence, and is also given as a word.
#[track_caller]
fn await_why(api: &Api, id: Uuid, cause: &str, words: &[&str]) {
    eventually(&format!("the cause is {cause} with {words:?}"), || {
        let told = why(api, id);
        let text = told["why"].as_str().unwrap_or_default().to_owned();
        when(told["cause"] == cause && words.iter().all(|word| text.contains(word)), told)
    });
}

#[track_caller]
fn operate(api: &Api, id: Uuid, operation: &str, state: &str) {
    let answer = api.post(&format!("/api/job/{id}/{operation}"), "").expect(200).json();
    assert_eq!(answer["state"], state, "{answer}");
}

fn attempt(message: &StepMessage) -> String {
    message.message_id().rsplit(':').next().unwrap_or_default().to_owned()
}

// ---- time

#[test]
fn an_attempt_without_a_reply_times_out_and_the_first_result_wins() {
    let workflows = "workflows: [ { name: w, steps: [ { name: slow, timeout: 700ms, \
                     retry: { attempts: 3, backoff: 100ms } } ] } ]";
    let vhost = Vhost::new();
    let (daemon, client) = start(&vhost, workflows);
    let id = daemon.api.create("w", "{}");
    let first = client.take("slow");
    assert_eq!(attempt(&first), "1");
    let second = client.take("slow");
    assert_eq!(
        (attempt(&second), second.correlation_id()),
        ("2".to_owned(), first.correlation_id())
    );
    // The header shows that the failure is an earlier attempt's: it is late, and changes nothing.
    let mut headers = lapin::types::FieldTable::default();
    headers.insert("attempt".into(), lapin::types::AMQPValue::LongInt(1));
    client.say(
        &first,
        r#"{"error":"too late"}"#,
        json_properties().with_type("error".into()).with_headers(headers),
    );
    // A result of an earlier attempt settles the step.
    client.reply(&first, r#"{"from":"the first attempt"}"#);
    assert_eq!(daemon.api.await_result(id), r#"{"from":"the first attempt"}"#);
    let metrics = daemon.api.get("/metrics").expect(200).text;
    assert!(metrics.contains("workflow_replies_rejected_total{reason=\"late\"} 1"), "{metrics}");
}

#[test]
fn a_step_whose_attempts_are_spent_fails_with_the_last_reason() {
    let workflows = "workflows: [ { name: w, steps: [ { name: bad, retry: { attempts: 3, \
                     backoff: 50ms } }, { name: mild, onFailure: continue } ] } ]";
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, workflows).start();
    let worker = Worker::start(&vhost.url, &["bad", "mild"], |_| Answer::Reply(b"[1]".to_vec()));
    let id = daemon.api.create("w", "{}");
    let failed = daemon.api.await_state(id, "failed");
    assert!(failed.text.contains("the reply is not a JSON object"), "{}", failed.text);
    let of_bad: Vec<String> =
        worker.seen().iter().filter(|message| message.step() == "bad").map(attempt).collect();
    assert_eq!(of_bad, ["1", "2", "3"]);
    assert_eq!(
        step(&daemon.api, id, "mild")["state"],
        "failed",
        "it fails without failing its job"
    );
}

#[test]
fn an_error_that_is_not_retryable_is_the_last() {
    let workflows = "workflows: [ { name: w, steps: [ { name: bad, retry: { attempts: 5, \
                     backoff: 10ms } } ] } ]";
    let vhost = Vhost::new();
    let (daemon, client) = start(&vhost, workflows);
    let id = daemon.api.create("w", "{}");
    client.say(
        &client.take("bad"),
        r#"{"error":"no such customer","retryable":false}"#,
        json_properties().with_type("error".into()),
    );
    assert!(daemon.api.await_state(id, "failed").text.contains("no such customer"));
    assert_eq!(step(&daemon.api, id, "bad")["attempt"], 1);
}

#[test]
fn progress_is_shown_and_restarts_the_timeout() {
    let workflows = "workflows: [ { name: w, steps: [ { name: long, timeout: 4s, \
                     statusKey: status, statuses: [ PENDING, HALF, DONE ] } ] } ]";
    let vhost = Vhost::new();
    let (daemon, client) = start(&vhost, workflows);
    let id = daemon.api.create("w", "{}");
    let message = client.take("long");
    await_step(&daemon.api, id, "long", "status", &json!("PENDING"));
    let begun = Instant::now();
    // This takes longer than the timeout: four reports, each within it.
    for share in 1..=4 {
        let told = format!(r#"{{"status":"HALF","progress":0.{share},"message":"{share} of 4"}}"#);
        client.say(&message, told, json_properties().with_type("progress".into()));
        await_step(&daemon.api, id, "long", "message", &json!(format!("{share} of 4")));
        let next = begun + share * Duration::from_millis(1500);
        eventually("more time has passed", || when(Instant::now() >= next, "not yet"));
    }
    await_step(&daemon.api, id, "long", "status", &json!("HALF"));
    client.reply(&message, r#"{"status":"DONE"}"#);
    daemon.api.await_result(id);
    assert_eq!(step(&daemon.api, id, "long")["status"], "DONE");
}

#[test]
fn a_restart_in_the_middle_of_a_back_off_changes_nothing() {
    let workflows = "workflows: [ { name: w, steps: [ { name: bad, retry: { attempts: 2, \
                     backoff: 20s, maxBackoff: 20s } } ] } ]";
    let vhost = Vhost::new();
    let (mut daemon, client) = start(&vhost, workflows);
    // Full jitter: some of several jobs wait long enough for a restart in between.
    let ids: Vec<Uuid> = (0..8).map(|_| daemon.api.create("w", "{}")).collect();
    for _ in &ids {
        let message = client.take("bad");
        client.say(&message, r#"{"error":"not yet"}"#, json_properties().with_type("error".into()));
        client.ack(&message);
    }
    let planned: Vec<Value> = ids
        .iter()
        .map(|id| {
            eventually("the attempt has failed", || {
                let step = step(&daemon.api, *id, "bad");
                when(step["reason"].is_string(), step)
            });
            step(&daemon.api, *id, "bad")["retryAt"].clone()
        })
        .collect();
    assert!(planned.iter().filter(|at| at.is_string()).count() > 4, "{planned:?}");
    daemon.kill();
    daemon.start_again();
    for (id, before) in ids.iter().zip(&planned) {
        let now = step(&daemon.api, *id, "bad");
        assert!(
            now["attempt"] == 2 || now["retryAt"] == *before,
            "planned for {before}, now {now}"
        );
    }
    for _ in &ids {
        let message = client.take("bad");
        assert_eq!(attempt(&message), "2");
        client.reply(&message, "{}");
        client.ack(&message);
    }
    ids.iter().for_each(|id| drop(daemon.api.await_result(*id)));
}

#[test]
fn a_deadline_passes_while_the_daemon_is_down() {
    let workflows = "workflows: [ { name: w, deadline: 2s, steps: [ { name: slow } ] } ]";
    let vhost = Vhost::new();
    let (mut daemon, client) = start(&vhost, workflows);
    let id = daemon.api.create("w", "{}");
    let message = client.take("slow");
    daemon.kill();
    let down = Instant::now();
    eventually("the deadline has passed", || {
        when(down.elapsed() > Duration::from_secs(2), "not yet")
    });
    daemon.start_again();
    let failed = daemon.api.await_state(id, "failed");
    assert!(failed.text.contains("deadline of 2s"), "{}", failed.text);
    assert_eq!(step(&daemon.api, id, "slow")["state"], "cancelled");
    // It takes no more replies.
    client.reply(&message, "{}");
    vhost.await_drained("workflow-manager");
    assert_eq!(daemon.api.job(id).state, "failed");
    // A retry has a deadline of its own.
    operate(&daemon.api, id, "retry", "running");
    client.reply(&client.take("slow"), r#"{"done":1}"#);
    assert_eq!(daemon.api.await_result(id), r#"{"done":1}"#);
}

// ---- people

const CHAIN: &str = "workflows: [ { name: chain, steps: [ { name: first }, \
                     { name: second, depends: [ first ] }, \
                     { name: third, depends: [ second ] } ] } ]";

#[test]
fn a_paused_job_takes_replies_and_dispatches_nothing_across_a_restart() {
    let vhost = Vhost::new();
    let (mut daemon, client) = start(&vhost, CHAIN);
    let id = daemon.api.create("chain", "{}");
    let first = client.take("first");
    operate(&daemon.api, id, "pause", "paused");
    client.reply(&first, r#"{"n":1}"#);
    await_step(&daemon.api, id, "first", "state", &json!("completed"));
    daemon.kill();
    daemon.start_again();
    assert_eq!(daemon.api.job(id).state, "paused");
    await_why(&daemon.api, id, "paused", &["paused"]);
    assert!(client.take_now("second").is_none(), "nothing new is dispatched");
    daemon
        .api
        .post(&format!("/api/job/{id}/pause"), "")
        .expect_problem(409, &["only a running job can be paused"]);
    operate(&daemon.api, id, "resume", "running");
    client.reply(&client.take("second"), r#"{"n":2}"#);
    client.reply(&client.take("third"), r#"{"n":3}"#);
    assert_eq!(daemon.api.await_result(id), r#"{"n":3}"#);
}

const FAN: &str = "
workflows:
  - name: fan
    steps: [ { name: each, task: t }, { name: after, depends: [ each ] } ]
    tasks: [ { name: t, itemListKey: items, steps: [ { name: work } ] } ]
";

#[test]
fn a_retry_runs_only_what_failed_in_children_too() {
    let vhost = Vhost::new();
    let (mut daemon, client) = start(&vhost, FAN);
    let id = daemon.api.create("fan", r#"{"items":[1,2,3,4]}"#);
    let messages: Vec<StepMessage> = (0..4).map(|_| client.take("work")).collect();
    for message in &messages {
        match message.json()["item"].as_i64() {
            Some(2) => client.say(
                message,
                r#"{"error":"broken","retryable":false}"#,
                json_properties().with_type("error".into()),
            ),
            _ => client.reply(message, format!(r#"{{"item":{}0}}"#, message.json()["item"])),
        }
        client.ack(message);
    }
    daemon.api.await_state(id, "failed");
    vhost.await_drained("workflow-manager");
    // Also long after, and by another process.
    daemon.kill();
    daemon.start_again();
    operate(&daemon.api, id, "retry", "running");
    let again = client.take("work");
    assert_eq!((again.json()["item"].as_i64(), attempt(&again)), (Some(2), "2".to_owned()));
    client.reply(&again, r#"{"item":20}"#);
    let after = client.take("after");
    assert_eq!(after.text(), r#"{"items":[10,20,30,40]}"#);
    assert!(client.take_now("work").is_none(), "what is complete is kept");
    client.reply(&after, after.text());
    assert_eq!(daemon.api.await_result(id), r#"{"items":[10,20,30,40]}"#);
}

#[test]
fn a_rerun_does_a_step_and_all_that_depends_on_it_once_more() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, FAN).start();
    let worker = Worker::echo(&vhost.url, &["work", "after"]);
    let id = daemon.api.create("fan", r#"{"items":["a","b"]}"#);
    daemon.api.await_result(id);
    daemon
        .api
        .post(&format!("/api/job/{id}/rerun"), "")
        .expect_problem(400, &["rerun needs ?step=NAME"]);
    daemon
        .api
        .post(&format!("/api/job/{id}/rerun?step=nope"), "")
        .expect_problem(404, &["no step \"nope\"", "each, after"]);
    operate(&daemon.api, id, "rerun?step=each", "running");
    assert_eq!(daemon.api.await_result(id), r#"{"items":["a","b"]}"#);
    let jobs: std::collections::BTreeSet<Uuid> = worker
        .seen()
        .iter()
        .filter(|message| message.step() == "work")
        .map(StepMessage::job)
        .collect();
    assert_eq!(jobs.len(), 4, "the child jobs of the rerun are others");
    operate(&daemon.api, id, "rerun?step=after", "running");
    daemon.api.await_result(id);
    // The worker counts a message once its reply is settled, which may be behind the job's end.
    eventually("the worker has counted the last one", || {
        when(worker.seen_count() >= 7, worker.seen_count())
    });
    assert_eq!(worker.seen_count(), 7, "the first step is kept");
}

#[test]
fn an_external_step_is_completed_by_a_call_and_refuses_what_makes_no_sense() {
    let workflows = "
workflows:
  - name: w
    steps:
      - { name: sign, external: true, statusKey: status, statuses: [ OPEN, SIGNED ] }
      - { name: send, depends: [ sign ] }
";
    let vhost = Vhost::new();
    let (mut daemon, client) = start(&vhost, workflows);
    let id = daemon.api.create("w", r#"{"to":"x"}"#);
    await_step(&daemon.api, id, "sign", "status", &json!("OPEN"));
    await_why(&daemon.api, id, "person", &["waiting for a person", "sign"]);
    daemon.kill();
    daemon.start_again();
    let path = format!("/api/job/{id}/step");
    daemon
        .api
        .post(&format!("{path}/send"), "{}")
        .expect_problem(409, &["is waiting", "only a running step"]);
    daemon
        .api
        .post(&format!("{path}/nope"), "{}")
        .expect_problem(404, &["no step \"nope\"", "sign, send"]);
    daemon
        .api
        .post(&format!("{path}/sign"), "[1]")
        .expect_problem(422, &["nothing was changed", "expected a JSON object"]);
    daemon.api.post(&format!("{path}/sign?type=result"), r#"{"status":"SIGNED"}"#).expect(200);
    daemon.api.post(&format!("{path}/sign"), "{}").expect_problem(409, &["is completed"]);
    // Any running step can be completed in its worker's place, whose reply then comes too late.
    let message = client.take("send");
    daemon.api.post(&format!("{path}/send"), r#"{"by":"hand"}"#).expect(200);
    client.reply(&message, r#"{"by":"worker"}"#);
    assert_eq!(daemon.api.await_result(id), r#"{"by":"hand"}"#);
    let failing = daemon.api.create("w", "{}");
    daemon
        .api
        .post(&format!("/api/job/{failing}/step/sign?type=error"), r#"{"error":"refused to sign"}"#)
        .expect(200);
    assert!(daemon.api.await_state(failing, "failed").text.contains("refused to sign"));
}

#[test]
fn operations_in_bulk_have_a_filter_and_a_dry_run() {
    let workflows = "
workflows:
  - { name: one, steps: [ { name: sign, external: true } ] }
  - { name: two, steps: [ { name: sign, external: true } ] }
";
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, workflows).start();
    let api = &daemon.api;
    let ones: Vec<Uuid> = (0..5).map(|_| api.create("one", "{}")).collect();
    let other = api.create("two", "{}");
    api.post("/api/jobs/cancel", "").expect_problem(400, &["needs a filter"]);
    api.post("/api/jobs/cancel?stat=running", "")
        .expect_problem(400, &["unknown parameter \"stat\""]);
    api.post("/api/jobs/explode?state=running", "")
        .expect_problem(404, &["no operation \"explode\""]);
    let dry =
        api.post("/api/jobs/cancel?workflow=one&state=running&dryRun=true", "").expect(200).json();
    assert_eq!(
        (&dry["matched"], dry["jobs"].as_array().map(Vec::len)),
        (&json!(5), Some(5)),
        "{dry}"
    );
    assert_eq!(api.job(ones[0]).state, "running", "a dry run does nothing");
    let page = api.post("/api/jobs/pause?workflow=one&limit=2", "").expect(200).json();
    assert_eq!((&page["done"], page["next"].is_string()), (&json!(2), true), "{page}");
    let done = api.post("/api/jobs/cancel?workflow=one", "").expect(200).json();
    assert_eq!(
        (&done["matched"], &done["done"], &done["refused"]),
        (&json!(5), &json!(5), &json!(0)),
        "{done}"
    );
    ones.iter().for_each(|id| assert_eq!(api.job(*id).state, "cancelled"));
    assert_eq!(api.job(other).state, "running");
    let again = api.post("/api/jobs/retry?workflow=one", "").expect(200).json();
    assert_eq!(&again["refused"], &json!(5), "{again}");
    assert!(
        again["refusals"][0]["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("only a failed job can be retried")),
        "{again}"
    );
    let found = api.get("/api/jobs/search?state=cancelled&after=1h").expect(200).json();
    assert_eq!(found["jobs"].as_array().map(Vec::len), Some(5), "{found}");
    let none = api.get("/api/jobs/search?workflow=one&before=1h").expect(200).json();
    assert_eq!(none["jobs"].as_array().map(Vec::len), Some(0), "{none}");
    let waiting = api.get("/api/jobs/search?workflow=two&status.sign=PENDING").expect(200).json();
    assert_eq!(waiting["jobs"][0]["job"], json!(other), "{waiting}");
    let deleted = api.post("/api/jobs/delete?workflow=one", "").expect(200).json();
    assert_eq!(&deleted["done"], &json!(5), "{deleted}");
    ones.iter().for_each(|id| drop(api.get(&format!("/api/job/{id}")).expect(404)));
    let kept = api.post("/api/jobs/delete?workflow=two", "").expect(200).json();
    assert_eq!(&kept["refused"], &json!(1), "{kept}");
}

// ---- conditions

#[test]
fn a_condition_that_cannot_be_evaluated_fails_its_step() {
    let workflows = "workflows: [ { name: w, steps: [ { name: a, when: input.n > 3 } ] } ]";
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, workflows).start();
    let id = daemon.api.create("w", r#"{"m":1}"#);
    let failed = daemon.api.await_state(id, "failed");
    assert!(failed.text.contains("`when: input.n > 3` cannot be evaluated"), "{}", failed.text);
    let skipped = daemon.api.create("w", r#"{"n":1}"#);
    daemon.api.await_result(skipped);
    await_why(&daemon.api, skipped, "condition", &["condition", "input.n > 3"]);
}

// ---- reload

#[test]
fn a_reload_is_all_or_nothing_and_running_jobs_keep_their_definition() {
    let vhost = Vhost::new();
    let (daemon, client) = start(&vhost, CHAIN);
    let before = daemon.api.create("chain", "{}");
    daemon.write_workflows("workflows: [ { name: chain, steps: [ { nam: x } ] } ]");
    daemon
        .api
        .post("/api/reload", "")
        .expect_problem(422, &["nothing was changed", "did you mean \"name\""]);
    daemon.api.create("chain", "{}");
    daemon.write_workflows(
        "workflows: [ { name: chain, steps: [ { name: only } ] }, \
         { name: new, steps: [ { name: fresh } ] } ]",
    );
    let told = daemon.api.post("/api/reload", "").expect(200).json();
    assert_eq!((&told["changed"], &told["added"]), (&json!(["chain"]), &json!(["new"])), "{told}");
    let after = daemon.api.create("chain", "{}");
    client.reply(&client.take("only"), r#"{"new":1}"#);
    assert_eq!(daemon.api.await_result(after), r#"{"new":1}"#);
    let _worker = Worker::echo(&vhost.url, &["first", "second", "third"]);
    daemon.api.await_result(before);
    // The workflow that came with the reload is a worker, too.
    eventually("its queue is consumed", || {
        client.count("workflow.new").filter(|(_, consumers)| *consumers > 0).ok_or("not yet")
    });
    daemon.api.get("/api/status/new").expect(200);
    daemon.write_workflows("workflows: [ { name: new, steps: [ { name: fresh } ] } ]");
    let pid = daemon.pid().to_string();
    crate::harness::must_succeed(std::process::Command::new("kill").args(["-HUP", &pid]));
    eventually("the reload has removed the workflow", || {
        let answer = daemon.api.post("/api/workflow/chain", "{}");
        when(answer.status == 404, answer)
    });
}

// ---- why

#[test]
fn why_names_the_cause_first() {
    let workflows = "
workflows:
  - { name: chain, steps: [ { name: first } ] }
  - { name: flaky, steps: [ { name: bad, retry: { attempts: 2, backoff: 1h, maxBackoff: 1h } } ] }
  - name: fan
    steps: [ { name: each, task: t } ]
    tasks: [ { name: t, itemListKey: items, maxConcurrency: 1, steps: [ { name: work } ] } ]
";
    let vhost = Vhost::new();
    let (daemon, client) = start(&vhost, workflows);
    let api = &daemon.api;

    let id = api.create("chain", "{}");
    await_why(api, id, "no_consumer", &["no consumer on queue \"first\""]);
    let silent = Worker::start(&vhost.url, &["first"], |_| Answer::Silence);
    await_why(api, id, "working", &["a worker has it"]);
    drop(silent);
    // It takes 50 messages at once, and keeps them.
    let busy = Worker::start(&vhost.url, &["first"], |_| Answer::Hold);
    let many: Vec<Uuid> = (0..70).map(|_| api.create("chain", "{}")).collect();
    await_why(api, many[69], "all_busy", &["all busy", "queue \"first\""]);
    drop(busy);

    let flaky = api.create("flaky", "{}");
    client.say(
        &client.take("bad"),
        r#"{"error":"the disk is on fire"}"#,
        json_properties().with_type("error".into()),
    );
    await_why(api, flaky, "back_off", &["backing off until", "the disk is on fire"]);

    let fan = api.create("fan", r#"{"items":[1,2,3]}"#);
    await_why(api, fan, "no_consumer", &["no consumer on queue \"work\"", "0 of 3"]);
    let held = Worker::start(&vhost.url, &["work"], |_| Answer::Silence);
    await_why(api, fan, "window_full", &["window full", "2 child jobs wait for a place"]);
    drop(held);

    operate(api, fan, "cancel", "cancelled");
    await_why(api, fan, "ended", &["cancelled"]);
    api.get(&format!("/api/job/{}/why", Uuid::new_v4())).expect(404);
}

#[test]
fn why_tells_of_a_broker_that_is_gone_or_blocks() {
    let node = crate::amqp::PrivateNode::start();
    let daemon =
        Setup::new(node.url(), "workflows: [ { name: chain, steps: [ { name: first } ] } ]")
            .start();
    let blocked = {
        node.broker.ctl(&["set_vm_memory_high_watermark", "0.0000001"]);
        let id = daemon.api.create("chain", "{}");
        await_why(&daemon.api, id, "broker_blocked", &["the broker blocks publishing"]);
        node.broker.ctl(&["set_vm_memory_high_watermark", "0.4"]);
        id
    };
    await_why(&daemon.api, blocked, "no_consumer", &["no consumer"]);
    node.stop();
    await_why(&daemon.api, blocked, "broker_gone", &["the broker is gone"]);
}
