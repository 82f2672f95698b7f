//! Every workflow is a worker: a message on its queue asks for a job, and the job's end is the
//! reply.

use lapin::BasicProperties;
use lapin::types::AMQPValue;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use uuid::Uuid;
use workflow_manager::actors::manager;
use workflow_manager::bus::embedded::{WorkerError, Workers};
use workflow_manager::engine::{Definition, Graph, JobState, Message, Millis, Retry, Step};
use workflow_manager::settings::Settings;

use crate::amqp::{
    Answer, Client, REPLY_QUEUE, StepMessage, Vhost, Worker, arguments, json_properties,
    text_argument,
};
use crate::harness::{Daemon, Setup, eventually, when};

const CHAIN: &str = "workflows: [ { name: chain, steps: [ { name: first }, \
                     { name: second, depends: [ first ] } ] } ]";
const ANSWERS: &str = "answers";

/// `a` asks `b`, `b` asks `c`, `c` asks a worker.
const THREE: &str = "
workflows:
  - { name: a, steps: [ { name: ask-b, queue: workflow.b }, \
      { name: last, queue: echo, depends: [ ask-b ] } ] }
  - { name: b, steps: [ { name: ask-c, queue: workflow.c } ] }
  - { name: c, steps: [ { name: work } ] }
";

fn asks(correlation_id: &str, message_id: &str) -> BasicProperties {
    json_properties()
        .with_correlation_id(correlation_id.into())
        .with_message_id(message_id.into())
        .with_reply_to(ANSWERS.into())
}

/// A daemon with the workflow `chain`, and a client that asks for jobs.
fn chain(vhost: &Vhost) -> (Daemon, Client) {
    let client = vhost.client();
    client.declare(ANSWERS, arguments([]));
    (Setup::new(&vhost.url, CHAIN).start(), client)
}

/// Publishes once the queue is there.
fn ask(client: &Client, workflow: &str, body: &str, properties: BasicProperties) {
    let queue = format!("workflow.{workflow}");
    eventually("the workflow's queue is consumed", || {
        client.count(&queue).filter(|(_, consumers)| *consumers > 0).ok_or("not yet")
    });
    client.publish(&queue, body, properties);
}

#[track_caller]
fn take_answer(client: &Client, correlation_id: &str) -> StepMessage {
    let answer = client.take(ANSWERS);
    client.ack(&answer);
    assert_eq!(answer.correlation_id(), correlation_id);
    answer
}

fn kind(message: &StepMessage) -> Option<String> {
    message.properties.kind().as_ref().map(ToString::to_string)
}

#[track_caller]
fn assert_error(answer: &StepMessage, words: &str, retryable: bool) {
    assert_eq!(kind(answer).as_deref(), Some("error"), "{answer:?}");
    let body: Value = answer.json();
    assert!(body["error"].as_str().unwrap_or_default().contains(words), "{body}");
    assert_eq!(body["retryable"], retryable, "{body}");
}

fn open_jobs(daemon: &Daemon) -> i64 {
    let connection = rusqlite::Connection::open_with_flags(
        daemon.database(),
        rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY,
    )
    .unwrap();
    // And what is not derived yet.
    let sql = "SELECT (SELECT count(*) FROM jobs WHERE open = 1)
                    + (SELECT count(*) FROM entries WHERE seq > (SELECT upto FROM derived))";
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

fn await_closed(daemon: &Daemon) {
    eventually("all jobs are closed", || {
        let open = open_jobs(daemon);
        when(open == 0, format!("{open} open"))
    });
}

#[test]
fn a_message_on_its_queue_asks_for_a_job_and_its_end_is_the_reply() {
    let vhost = Vhost::new();
    let (daemon, client) = chain(&vhost);
    let id = Uuid::new_v4();
    let headers =
        arguments([("attempt", AMQPValue::LongInt(4)), ("x-own", text_argument("kept by nobody"))]);
    ask(
        &client,
        "chain",
        r#"{"k":1.50}"#,
        asks("my own id", &id.to_string()).with_headers(headers),
    );
    let first = client.take("first");
    assert_eq!((first.job(), first.text()), (id, r#"{"k":1.50}"#));
    vhost.await_drained("workflow.chain");
    client.reply(&first, r#"{"k":2}"#);
    client.reply(&client.take("second"), r#"{"z":1e400,"a":[ ]}"#);

    let answer = take_answer(&client, "my own id");
    assert_eq!((answer.text(), kind(&answer)), (r#"{"z":1e400,"a":[ ]}"#, None));
    assert_eq!(*answer.properties.delivery_mode(), Some(2), "answers are persistent");
    assert_eq!(answer.message_id(), format!("{id}:__end__:0:0"));
    assert_eq!(
        (answer.header_text("job"), answer.header_text("workflow")),
        (id.to_string(), "chain".to_owned())
    );
    assert_eq!(answer.header("attempt"), Some(AMQPValue::LongLongInt(4)), "given back");
    assert_eq!(daemon.api.await_result(id), answer.text());
    await_closed(&daemon);

    let failing = Uuid::new_v4();
    ask(&client, "chain", "", asks("second", &failing.to_string()));
    let first = client.take("first");
    assert_eq!(first.text(), "{}", "an empty body is an empty message");
    client.say(&first, r#"{"error":"no flour"}"#, json_properties().with_type("error".into()));
    client.ack(&first);
    assert_error(&take_answer(&client, "second"), "no flour", true);

    let cancelled = Uuid::new_v4();
    ask(&client, "chain", "{}", asks("third", &cancelled.to_string()));
    client.ack(&client.take("first"));
    daemon.api.delete(&format!("/api/job/{cancelled}")).expect(200);
    assert_error(&take_answer(&client, "third"), "cancelled", false);
    await_closed(&daemon);
}

#[test]
fn a_message_that_comes_again_starts_no_second_job_and_is_answered_again() {
    let vhost = Vhost::new();
    let (mut daemon, client) = chain(&vhost);
    let id = Uuid::new_v4().to_string();
    // A UUID, the id of another manager's step message, and no id at all.
    let unnamed = json_properties().with_correlation_id("c".into()).with_reply_to(ANSWERS.into());
    let messages = [asks("a", &id), asks("b", &format!("{id}:step:2")), unnamed];
    for properties in messages.iter().chain(&messages) {
        ask(&client, "chain", r#"{"k":1}"#, properties.clone());
    }
    vhost.await_drained("workflow.chain");
    assert_eq!(daemon.api.get("/api/jobs").expect(200).ids("jobs").len(), 3);
    let worker = Worker::echo(&vhost.url, &["first", "second"]);
    let mut answered: Vec<String> = (0..3)
        .map(|_| client.take(ANSWERS))
        .inspect(|answer| client.ack(answer))
        .map(|answer| answer.correlation_id())
        .collect();
    answered.sort();
    assert_eq!(answered, ["a", "b", "c"]);
    await_closed(&daemon);

    // Long after the end, and after a crash before the answer, the answer is the same.
    ask(&client, "chain", r#"{"k":1}"#, asks("a", &id));
    assert_eq!(take_answer(&client, "a").text(), r#"{"k":1}"#);
    await_closed(&daemon);
    daemon.kill();
    daemon.set_faults(Some("outbox::dispatch=return(abort)"));
    daemon.start_again();
    client.publish("workflow.chain", r#"{"k":1}"#, asks("late", &id));
    daemon.await_end();
    daemon.set_faults(None);
    daemon.start_again();
    assert_eq!(take_answer(&client, "late").text(), r#"{"k":1}"#);
    await_closed(&daemon);
    assert_eq!(worker.seen_count(), 6, "nothing was done twice");
}

#[test]
fn what_gets_no_job_is_refused_and_what_cannot_be_told_is_counted() {
    let vhost = Vhost::new();
    let (daemon, client) = chain(&vhost);
    for (number, body) in ["[1]", "nonsense", "{"].into_iter().enumerate() {
        ask(&client, "chain", body, asks(&number.to_string(), ""));
        assert_error(&take_answer(&client, &number.to_string()), "not a JSON object", false);
    }
    let id = Uuid::new_v4();
    ask(&client, "chain", r#"{"k":1}"#, asks("first", &id.to_string()));
    ask(&client, "chain", r#"{"k":2}"#, asks("other", &id.to_string()));
    assert_error(&take_answer(&client, "other"), "another message", false);
    // Nobody waits, or the queue does not exist.
    ask(&client, "chain", "[]", json_properties());
    ask(&client, "chain", r#"{"k":3}"#, json_properties());
    ask(&client, "chain", r#"{"k":4}"#, asks("nowhere", "").with_reply_to("not-there".into()));
    let _worker = Worker::echo(&vhost.url, &["first", "second"]);
    assert_eq!(take_answer(&client, "first").text(), r#"{"k":1}"#);
    await_closed(&daemon);
    vhost.await_drained("workflow.chain");
    daemon.await_log(&["the queue that a caller waits at is not there"]);
    let metrics = daemon.api.get("/metrics").expect(200).text;
    for line in [
        r#"workflow_calls_refused_total{reason="malformed_call",workflow="chain"} 4"#,
        r#"workflow_calls_refused_total{reason="conflict",workflow="chain"} 1"#,
        r#"kind="unanswerable",vhost=""} 1"#,
        r#"workflow_jobs_created_total{workflow="chain"} 3"#,
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}

#[test]
fn the_managers_own_reply_queue_is_no_callers() {
    let vhost = Vhost::new();
    let client = vhost.client();
    let daemon = Setup::new(&vhost.url, THREE).start();
    let running = daemon.api.create("c", "{}");
    let message = client.take("work");
    let unknown = format!("{}:ask-c", Uuid::new_v4());
    // None of them is the message of a step that runs and asks for `c`: this one's goes to another
    // queue.
    for place in ["", "nonsense", &unknown, &message.correlation_id()] {
        let properties = asks(place, &format!("{place}:1")).with_reply_to(REPLY_QUEUE.into());
        ask(&client, "c", "{}", properties);
    }
    let metrics = || daemon.api.get("/metrics").expect(200).text;
    eventually("all are refused", || {
        let refused = r#"workflow_calls_refused_total{reason="own_reply_queue",workflow="c"} 4"#;
        when(metrics().contains(refused), metrics())
    });
    vhost.await_drained("workflow.c");
    let log = daemon.log();
    assert_eq!(
        log.lines().filter(|line| line.contains("the manager's own reply queue")).count(),
        1,
        "{log}"
    );
    // A step of a workflow asks as before.
    let worker = Worker::echo(&vhost.url, &["work", "echo"]);
    assert_eq!(daemon.api.await_result(daemon.api.create("a", r#"{"k":1}"#)), r#"{"k":1}"#);
    client.reply(&message, r#"{"k":2}"#);
    assert_eq!(daemon.api.await_result(running), r#"{"k":2}"#);
    assert_eq!(worker.seen_count(), 2, "no other job was made");
    assert!(
        !metrics().contains("workflow_replies_rejected_total{"),
        "nobody was answered: {}",
        metrics()
    );
}

#[test]
fn calls_wait_while_no_job_can_be_taken() {
    let vhost = Vhost::new();
    let client = vhost.client();
    client.declare(ANSWERS, arguments([]));
    let daemon = Setup::new(&vhost.url, CHAIN).set("limits.jobs_running_max", "1").start();
    for number in 0..3 {
        ask(
            &client,
            "chain",
            &format!(r#"{{"n":{number}}}"#),
            asks(&number.to_string(), &Uuid::new_v4().to_string()),
        );
    }
    for number in 0..3 {
        let first = client.take("first");
        assert_eq!(first.text(), format!(r#"{{"n":{number}}}"#), "in their order");
        assert!(client.take_now("first").is_none(), "one at a time");
        client.reply(&first, "{}");
        client.reply(&client.take("second"), "{}");
        take_answer(&client, &number.to_string());
    }
    await_closed(&daemon);
}

#[test]
fn calls_that_are_too_large_together_wait_in_the_broker() {
    const CALLS: usize = 8;
    let vhost = Vhost::new();
    let client = vhost.client();
    client.declare(ANSWERS, arguments([]));
    let daemon = Setup::new(&vhost.url, CHAIN)
        .set("limits.jobs_running_max", "1")
        // Two of them.
        .set("amqp.replies_bytes_max", "70000")
        .start();
    for number in 0..CALLS {
        let body = format!(r#"{{"n":{number},"text":"{}"}}"#, "x".repeat(30_000));
        ask(&client, "chain", &body, asks(&number.to_string(), &Uuid::new_v4().to_string()));
    }
    // The job of one runs, and the manager has at most two others.
    for _ in 0..10 {
        eventually("the others lie in the broker", || {
            let seen = client.count("workflow.chain");
            seen.filter(|(ready, consumers)| *ready as usize >= CALLS - 3 && *consumers == 1)
                .ok_or(format!("{seen:?}"))
        });
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let mut answered: Vec<u64> = (0..CALLS)
        .map(|_| {
            let first = client.take("first");
            let asked: Value = serde_json::from_str(first.text()).expect("JSON");
            let number = asked["n"].as_u64().expect("a number");
            client.reply(&first, "{}");
            client.reply(&client.take("second"), "{}");
            take_answer(&client, &number.to_string());
            number
        })
        .collect();
    answered.sort_unstable();
    assert_eq!(answered, (0..CALLS as u64).collect::<Vec<_>>(), "each once");
    await_closed(&daemon);
}

// ---- workflows that ask workflows

#[test]
fn three_workflows_in_a_chain_lose_nothing_over_kills() {
    const JOBS: u32 = 30;
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, THREE).start();
    let message = |n: u32| format!(r#"{{"n":{n},"digits":1.50}}"#);
    let jobs: Vec<(Uuid, String)> =
        (0..JOBS).map(|n| (daemon.api.create("a", &message(n)), message(n))).collect();
    vhost.client().await_count("work", JOBS);
    // First an orderly stop: confirmed messages are journaled as confirmed, and none is dispatched
    // again, which would count among the faults.
    daemon.stop();
    daemon.start_again();
    daemon.kill();
    // The innermost jobs end, and the daemon dies while it tells their ends.
    let faults = [
        "outbox::dispatch=20*off->return(abort)",
        "amqp::publish=9*off->return(abort)",
        "amqp::confirm=1*off->return(abort)",
    ];
    daemon.set_faults(Some(faults[0]));
    daemon.start_again();
    let _worker = Worker::echo(&vhost.url, &["work", "echo"]);
    for faults in faults.iter().skip(1).copied().map(Some).chain([None]) {
        daemon.await_end();
        daemon.set_faults(faults);
        daemon.spawn_again();
    }
    daemon.await_ready();
    for (id, message) in jobs {
        assert_eq!(daemon.api.await_result(id), message);
    }
    await_closed(&daemon);
    ["workflow.b", "workflow.c", REPLY_QUEUE].iter().for_each(|queue| vhost.await_drained(queue));
    let metrics = daemon.api.get("/metrics").expect(200).text;
    assert!(!metrics.contains(r#"kind="unanswerable""#), "{metrics}");
}

/// An inner job that fails is a failed attempt of the step that asked for it: the next attempt asks
/// for another job.
async fn retried(on: Option<&Vhost>) {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = Settings::defaults().unwrap();
    settings.journal.file = folder.path().join("journal.db");
    let retry = Retry { attempts: 3, backoff: Millis(20), ..Retry::default() };
    let ask = Step { queue: "workflow.inner".into(), retry: Some(retry), ..Step::with_name("ask") };
    let graph = |name: &str, step: Step| {
        Arc::new(Definition::new(name, vec![Graph::new(name.to_owned(), None, vec![step])]))
    };
    let definitions = vec![graph("outer", ask), graph("inner", Step::with_name("work"))];
    // The third time it works.
    let times = Arc::new(AtomicU32::new(0));
    let counted = times.clone();
    let _worker = on.map(|vhost| {
        settings.amqp.server = vhost.url.as_str().into();
        let body = |time: u32| if time == 3 { r#"{"done":true}"# } else { "[]" };
        Worker::start(&vhost.url, &["work"], move |_| {
            Answer::Reply(body(times.fetch_add(1, Ordering::SeqCst) + 1).into())
        })
    });
    let workers = Workers::new().with_worker("work", 1, move |_| {
        let is_third = counted.fetch_add(1, Ordering::SeqCst) == 2;
        if is_third {
            Ok(r#"{"done":true}"#.into())
        } else {
            Err(WorkerError { reason: "not yet".to_owned() })
        }
    });
    let manager = manager::start(settings, definitions, workers).await.unwrap();
    let answer = manager.handle().create("outer", None, Message::default()).await;
    let id = answer.expect("created").id();
    let job = eventually("the job ends", || {
        let job = manager.core().reader.load_job(id).unwrap().unwrap().job;
        if job.state() == JobState::Running { Err("it runs") } else { Ok(job) }
    });
    assert_eq!(
        (job.state(), job.result().to_text().as_str()),
        (JobState::Completed, r#"{"done":true}"#),
        "{:?}",
        job.reason()
    );
    let counted = manager.core().metrics.jobs_created.with_label_values(&["inner"]).get();
    assert_eq!(counted, 3, "each attempt is a job of its own");
    manager.stop().await;
}

#[test]
fn an_inner_job_that_fails_is_a_failed_attempt_on_rabbitmq() {
    let vhost = Vhost::new();
    actix_rt::System::new().block_on(retried(Some(&vhost)));
}

#[test]
fn an_inner_job_that_fails_is_a_failed_attempt_on_the_embedded_bus() {
    actix_rt::System::new().block_on(retried(None));
}

/// The queue is like any worker's: what is lost with it is sent again.
#[test]
fn a_workflows_queue_that_is_deleted_is_declared_again_and_its_steps_dispatched_again() {
    let vhost = Vhost::new();
    let client = vhost.client();
    client.declare("workflow.b", arguments([("x-max-priority", AMQPValue::LongInt(5))]));
    let mut daemon = Setup::new(&vhost.url, THREE).start();
    let id = daemon.api.create("a", r#"{"k":1}"#);
    let held = client.take("work");
    daemon.kill();
    client.delete("workflow.b");
    daemon.start_again();
    let _worker = Worker::echo(&vhost.url, &["work", "echo"]);
    client.reply(&held, r#"{"k":1}"#);
    assert_eq!(daemon.api.await_result(id), r#"{"k":1}"#);
    await_closed(&daemon);
}

#[test]
fn messages_wait_in_the_queue_of_a_workflow_that_a_reload_has_taken_away() {
    let vhost = Vhost::new();
    let (daemon, client) = chain(&vhost);
    let _worker = Worker::echo(&vhost.url, &["first", "second", "third"]);
    ask(&client, "chain", r#"{"n":1}"#, asks("before", ""));
    take_answer(&client, "before");
    daemon.write_workflows("workflows: [ { name: other, steps: [ { name: first } ] } ]");
    daemon.api.post("/api/reload", "").expect(200);
    let state = || client.count("workflow.chain");
    eventually("its queue is left", || {
        state().filter(|(_, consumers)| *consumers == 0).ok_or("not yet")
    });
    client.publish("workflow.chain", r#"{"n":2}"#, asks("meanwhile", ""));
    eventually("it waits there", || {
        state().filter(|(messages, _)| *messages == 1).ok_or("not yet")
    });
    daemon.write_workflows(CHAIN);
    daemon.api.post("/api/reload", "").expect(200);
    assert_eq!(take_answer(&client, "meanwhile").text(), r#"{"n":2}"#);
}

#[test]
fn a_call_that_waited_over_a_lost_connection_starts_one_job() {
    let vhost = Vhost::new();
    let client = vhost.client();
    let daemon = Setup::new(&vhost.url, CHAIN).set("limits.jobs_running_max", "1").start();
    let finish = |first: &StepMessage| {
        client.reply(first, "{}");
        client.reply(&client.take("second"), "{}");
    };
    daemon.api.create("chain", "{}");
    let first = client.take("first");
    // Nothing distinguishes it from another one like it.
    ask(&client, "chain", r#"{"n":1}"#, json_properties());
    daemon.await_log(&["calls wait"]);
    for _ in 0..3 {
        eventually("the manager is connected", || {
            when(vhost.close_connection("workflow-manager: replies") > 0, "not yet")
        });
        eventually("it has the message again", || {
            let count = client.count("workflow.chain");
            when(count == Some((0, 1)), format!("{count:?}"))
        });
    }
    finish(&first);
    let first = client.take("first");
    assert_eq!(first.text(), r#"{"n":1}"#);
    finish(&first);
    vhost.await_drained("workflow.chain");
    eventually("all jobs have ended", || {
        let jobs = daemon.api.get("/api/workflow/chain").json();
        when(
            jobs["completed"].as_array().is_some_and(|jobs| jobs.len() == 2)
                && jobs["running"].as_array().is_none_or(Vec::is_empty),
            jobs,
        )
    });
    assert!(client.take_now("first").is_none(), "no third job has begun");
}
