//! Workers that do only what the protocol asks of them, or less; and replies that should never have
//! been sent.

use std::time::{SystemTime, UNIX_EPOCH};

use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable},
};
use serde_json::json;
use uuid::Uuid;

use crate::{
    amqp::{
        Client, REPLY_QUEUE, StepMessage, Vhost, Worker, arguments, json_properties, text_argument,
    },
    harness::{Daemon, Setup, eventually, when},
    postgres::signal,
};

const CHAIN: &str = r"
workflows:
  - name: chain
    steps:
      - name: first
      - name: second
        depends: [ first ]
";

fn chain(vhost: &Vhost) -> Daemon {
    Setup::new(&vhost.url, CHAIN).start()
}

/// A whole job by an ordinary worker: the daemon is alive and well.
#[track_caller]
fn assert_jobs_still_work(daemon: &Daemon, client: &Client) {
    let id = daemon.api.create("chain", r#"{"still":"well"}"#);
    let message = take_of(client, "first", id);
    client.reply(&message, r#"{"first":1}"#);
    let message = take_of(client, "second", id);
    client.reply(&message, r#"{"second":2}"#);
    assert_eq!(daemon.api.await_result(id), r#"{"second":2}"#);
}

/// The message of this job; those of other jobs are acknowledged and dropped.
#[track_caller]
fn take_of(client: &Client, queue: &str, id: Uuid) -> StepMessage {
    loop {
        let message = client.take(queue);
        if message.job() == id {
            return message;
        }
        client.ack(&message);
    }
}

// ---- the step message

#[test]
fn a_step_message_says_all_that_the_protocol_promises() {
    let vhost = Vhost::new();
    let workflows = r"
workflows:
  - name: outer
    steps:
      - name: prepare
        queue: prepare-here
      - name: each
        task: inner
        depends: [ prepare ]
    tasks:
      - name: inner
        itemListKey: items
        steps: [ { name: inside } ]
";
    let daemon =
        Setup::new(&vhost.url, workflows).set("amqp.reply_queue", "replies-come-here").start();
    let client = vhost.client();
    let begun = now_seconds();
    let id = daemon.api.create("outer", r#"{"k":1}"#);

    let message = client.take("prepare-here");
    assert_eq!(message.text(), r#"{"k":1}"#);
    assert!(!message.redelivered);
    let properties = &message.properties;
    assert_eq!(
        properties.content_type().as_ref().map(|text| text.as_str()),
        Some("application/json")
    );
    assert_eq!(*properties.delivery_mode(), Some(2), "step messages are persistent");
    assert_eq!(message.correlation_id(), format!("{id}:prepare"));
    assert_eq!(message.reply_to(), "replies-come-here");
    assert_eq!(message.message_id(), format!("{id}:prepare:1"));
    assert_eq!(properties.app_id().as_ref().map(|text| text.as_str()), Some("workflow-manager"));
    let timestamp = properties.timestamp().expect("a step message has a timestamp");
    assert!(
        (begun..=now_seconds()).contains(&timestamp),
        "the timestamp {timestamp} is in seconds, not before {begun}"
    );
    assert_eq!(message.header_text("workflow"), "outer");
    assert_eq!(message.header_text("job"), id.to_string());
    assert_eq!(whole_number(message.header("attempt")), Some(1), "{:?}", message.header("attempt"));
    let trace = trace_id(&message.header_text("traceparent"));

    client.reply(&message, r#"{"items":["a"]}"#);
    let inside = client.take("inside");
    assert_ne!(inside.job(), id, "a child job has an id of its own");
    assert_eq!(inside.correlation_id(), format!("{}:inside", inside.job()));
    assert_eq!(inside.message_id(), format!("{}:inside:1", inside.job()));
    assert_eq!(inside.header_text("job"), id.to_string(), "the header names the top-level job");
    assert_eq!(inside.header_text("workflow"), "outer");
    assert_eq!(trace_id(&inside.header_text("traceparent")), trace, "a job is one trace");
    client.reply(&inside, r#"{"item":"A"}"#);
    assert_eq!(daemon.api.await_result(id), r#"{"items":["A"]}"#);
}

fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "the client library's type, of which only the whole numbers are of interest"
)]
fn whole_number(value: Option<AMQPValue>) -> Option<i64> {
    match value? {
        AMQPValue::ShortShortInt(number) => Some(number.into()),
        AMQPValue::ShortShortUInt(number) => Some(number.into()),
        AMQPValue::ShortInt(number) => Some(number.into()),
        AMQPValue::ShortUInt(number) => Some(number.into()),
        AMQPValue::LongInt(number) => Some(number.into()),
        AMQPValue::LongUInt(number) => Some(number.into()),
        AMQPValue::LongLongInt(number) => Some(number),
        _ => None,
    }
}

/// `00-<32 hex digits>-<16 hex digits>-<2 hex digits>`, neither id all zeros.
#[track_caller]
fn trace_id(traceparent: &str) -> String {
    let parts: Vec<&str> = traceparent.split('-').collect();
    let is_hex = |text: &str, length: usize| {
        text.len() == length
            && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let is_id = |text: &str, length: usize| is_hex(text, length) && text.bytes().any(|b| b != b'0');
    let [version, trace, parent, flags] = parts.as_slice() else {
        panic!("not a traceparent: {traceparent}")
    };
    assert!(
        *version == "00" && is_id(trace, 32) && is_id(parent, 16) && is_hex(flags, 2),
        "not a traceparent: {traceparent}"
    );
    (*trace).to_owned()
}

// ---- queues

#[test]
fn a_worker_and_the_daemon_declare_the_same_queue_whoever_comes_first() {
    let vhost = Vhost::new();
    let client = vhost.client();
    client.declare("first", FieldTable::default());
    let daemon = chain(&vhost);
    // The queues are there for a worker that only consumes, before any job.
    eventually("the daemon has declared the other queue", || {
        client.count("second").ok_or("no such queue")
    });
    client.declare("second", FieldTable::default());
    client.declare("first", FieldTable::default());
    assert_jobs_still_work(&daemon, &client);
}

#[test]
fn a_queue_with_other_arguments_is_used_as_it_is() {
    let vhost = Vhost::new();
    let client = vhost.client();
    client.declare("first", arguments([("x-max-priority", AMQPValue::LongInt(5))]));
    client.declare("second", arguments([("x-queue-type", text_argument("quorum"))]));
    let daemon = chain(&vhost);
    assert_jobs_still_work(&daemon, &client);
    // The same after connecting again.
    vhost.close_connections();
    assert_jobs_still_work(&daemon, &vhost.client());
}

#[test]
fn the_reply_queue_may_be_a_quorum_queue() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, CHAIN).set("amqp.reply_queue_type", "quorum").start();
    let client = vhost.client();
    assert_jobs_still_work(&daemon, &client);
    vhost.await_drained(REPLY_QUEUE);
}

/// What the broker has given to a daemon that dies before it acknowledges comes again.
#[test]
fn a_quorum_reply_queue_keeps_what_a_killed_daemon_had() {
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, CHAIN).set("amqp.reply_queue_type", "quorum").start();
    let client = vhost.client();
    let id = daemon.api.create("chain", "{}");
    let message = take_of(&client, "first", id);
    // It takes in nothing more, and its connection stays.
    signal("STOP", &daemon);
    client.reply(&message, r#"{"first":1}"#);
    eventually("the broker has given the reply to the daemon", || {
        let count = client.count(REPLY_QUEUE);
        when(count == Some((0, 1)), format!("{count:?}"))
    });
    daemon.kill();
    daemon.start_again();
    let message = take_of(&client, "second", id);
    client.reply(&message, r#"{"second":2}"#);
    assert_eq!(daemon.api.await_result(id), r#"{"second":2}"#);
}

#[test]
fn the_reply_queue_outlives_the_daemon() {
    let vhost = Vhost::new();
    let mut daemon = chain(&vhost);
    let client = vhost.client();
    assert_eq!(client.count(REPLY_QUEUE), Some((0, 1)), "one consumer");
    assert!(daemon.stop().success());
    eventually("the queue is there without a consumer", || {
        let count = client.count(REPLY_QUEUE);
        when(count == Some((0, 0)), format!("{count:?}"))
    });
    // Durable and with no arguments but its type, as a worker would have to declare it.
    client.declare(REPLY_QUEUE, arguments([("x-queue-type", text_argument("classic"))]));
}

// ---- odd workers

#[test]
fn a_worker_may_acknowledge_before_it_replies() {
    let vhost = Vhost::new();
    let daemon = chain(&vhost);
    let client = vhost.client();
    let id = daemon.api.create("chain", "{}");
    for step in ["first", "second"] {
        let message = client.take(step);
        client.ack(&message);
        client.say(&message, format!(r#"{{"by":"{step}"}}"#), json_properties());
    }
    assert_eq!(daemon.api.await_result(id), r#"{"by":"second"}"#);
}

#[test]
fn a_reply_needs_nothing_but_its_correlation_id() {
    let vhost = Vhost::new();
    let daemon = chain(&vhost);
    let client = vhost.client();
    let id = daemon.api.create("chain", "{}");
    // No content type, not persistent.
    let message = client.take("first");
    client.say(&message, r#"{"bare":true}"#, BasicProperties::default());
    client.ack(&message);
    // A wrong content type, and whatever else a client library may add.
    let message = client.take("second");
    assert_eq!(message.text(), r#"{"bare":true}"#);
    let odd = BasicProperties::default()
        .with_content_type("text/plain; charset=latin1".into())
        .with_content_encoding("utf-8".into())
        .with_priority(9)
        .with_expiration("600000".into())
        .with_app_id("some worker".into())
        .with_headers(arguments([
            ("x-own", AMQPValue::Boolean(true)),
            ("attempt", text_argument("none")),
        ]));
    client.say(&message, "  {\"odd\" : true}\n", odd);
    client.ack(&message);
    let result: serde_json::Value = serde_json::from_str(&daemon.api.await_result(id)).unwrap();
    assert_eq!(result, json!({ "odd": true }));
}

#[test]
fn a_reply_may_say_that_it_is_a_result_and_progress_completes_nothing() {
    let vhost = Vhost::new();
    let daemon = chain(&vhost);
    let client = vhost.client();
    let id = daemon.api.create("chain", "{}");
    let message = client.take("first");
    client.say(
        &message,
        r#"{"progress":0.5,"message":"half way"}"#,
        json_properties().with_type("progress".into()),
    );
    vhost.await_drained(REPLY_QUEUE);
    assert!(
        daemon.api.job(id).running.iter().any(|step| step.name == "first"),
        "progress does not complete the step"
    );
    client.say(&message, r#"{"first":true}"#, json_properties().with_type("result".into()));
    client.ack(&message);
    let message = client.take("second");
    assert_eq!(message.text(), r#"{"first":true}"#);
    client.reply(&message, "{}");
    assert_eq!(daemon.api.await_result(id), "{}");
}

#[test]
fn a_worker_may_report_an_error() {
    let vhost = Vhost::new();
    let daemon = chain(&vhost);
    let client = vhost.client();
    let id = daemon.api.create("chain", "{}");
    let message = client.take("first");
    client.say(
        &message,
        r#"{"error":"the oven is cold","retryable":false}"#,
        json_properties().with_type("error".into()),
    );
    client.ack(&message);
    let job = daemon.api.await_state(id, "failed");
    assert!(job.text.contains("the oven is cold"), "{}", job.text);
    assert_jobs_still_work(&daemon, &client);
}

#[test]
fn a_dead_lettered_message_is_a_failed_attempt() {
    let vhost = Vhost::new();
    let client = vhost.client();
    let to_reply_queue = [
        ("x-dead-letter-exchange", text_argument("")),
        ("x-dead-letter-routing-key", text_argument(REPLY_QUEUE)),
    ];
    client.declare("first", arguments(to_reply_queue));
    let daemon = chain(&vhost);
    let id = daemon.api.create("chain", r#"{"k":1}"#);
    client.nack(&client.take("first"));
    // The reply is the step message itself: an object, and yet not a result.
    let job = daemon.api.await_state(id, "failed");
    assert!(job.text.contains("rejected"), "the reason is told: {}", job.text);
    assert!(client.take_now("second").is_none());
}

// ---- replies that do no harm

#[test]
fn a_second_reply_is_harmless() {
    let vhost = Vhost::new();
    let daemon = chain(&vhost);
    let client = vhost.client();
    let id = daemon.api.create("chain", "{}");
    let first = client.take("first");
    client.reply(&first, r#"{"reply":"one"}"#);
    client.say(&first, r#"{"reply":"two"}"#, json_properties());
    client.say(&first, "not even JSON", json_properties());
    let second = client.take("second");
    assert_eq!(second.text(), r#"{"reply":"one"}"#);
    client.reply(&second, r#"{"result":"one"}"#);
    assert_eq!(daemon.api.await_result(id), r#"{"result":"one"}"#);

    client.say(&second, r#"{"result":"two"}"#, json_properties());
    vhost.await_drained(REPLY_QUEUE);
    assert_eq!(daemon.api.await_result(id), r#"{"result":"one"}"#, "an ended job stays as it is");
    assert_eq!(daemon.api.job(id).message_of("first"), r#"{"reply":"one"}"#);
    assert!(client.take_now("second").is_none(), "nothing was dispatched twice");
    assert_jobs_still_work(&daemon, &client);
}

#[test]
fn forged_and_malformed_replies_are_harmless() {
    let vhost = Vhost::new();
    let mut daemon = chain(&vhost);
    let client = vhost.client();
    let ended = daemon.api.create("chain", "{}");
    client.reply(&client.take("first"), r#"{"k":1}"#);
    client.reply(&client.take("second"), r#"{"k":2}"#);
    daemon.api.await_result(ended);
    let running = daemon.api.create("chain", "{}");
    let message = client.take("first");

    let mut forged: Vec<String> = [
        "",
        "nonsense",
        ":",
        ":first",
        "x:y",
        "::::",
        "\u{0}",
        "é:é",
        "%s%n",
        "../../etc",
        "' or 1=1 --",
    ]
    .map(str::to_owned)
    .into();
    forged.extend([
        "x".repeat(255),
        running.to_string(),
        format!("{running}:"),
        format!("{running}:nope"),
        format!("{running}:second"),
        format!("{running}:__start__"),
        format!("{running}:__end__"),
        format!("{running}:first:1"),
        format!("{running} :first"),
        format!("{running}first"),
        format!("{}:first", Uuid::new_v4()),
        format!("{}:first", Uuid::nil()),
        format!("{ended}:first"),
        format!("{ended}:second"),
    ]);
    let count = forged.len();
    for (number, id) in forged.into_iter().enumerate() {
        for body in [&br#"{"forged":true}"#[..], b"garbage \xff\x00", b""] {
            let kind = ["result", "progress", "error", "no such type"][number % 4];
            client.publish(
                REPLY_QUEUE,
                body,
                json_properties().with_correlation_id(id.clone().into()).with_type(kind.into()),
            );
            client.publish(
                REPLY_QUEUE,
                body,
                json_properties().with_correlation_id(id.clone().into()),
            );
        }
    }
    client.publish(REPLY_QUEUE, r#"{"forged":true}"#, BasicProperties::default());
    client.publish(REPLY_QUEUE, b"\xff", BasicProperties::default());

    vhost.await_drained(REPLY_QUEUE);
    assert!(daemon.ended().is_none(), "the daemon is alive after {count} forged ids");
    let job = daemon.api.job(running);
    assert_eq!(job.state, "running", "{}", job.text);
    assert!(!job.text.contains("forged"), "{}", job.text);
    client.reply(&message, r#"{"true":1}"#);
    let message = client.take("second");
    assert_eq!(
        message.text(),
        r#"{"true":1}"#,
        "a reply that came before its step ran was dropped"
    );
    client.reply(&message, r#"{"true":2}"#);
    assert_eq!(daemon.api.await_result(running), r#"{"true":2}"#);
    assert_eq!(daemon.api.await_result(ended), r#"{"k":2}"#);
    assert_jobs_still_work(&daemon, &client);
}

#[test]
fn a_thousand_forged_replies_do_not_flood_the_log() {
    let vhost = Vhost::new();
    let daemon = chain(&vhost);
    let client = vhost.client();
    for _ in 0..1000 {
        client.publish(
            REPLY_QUEUE,
            "{}",
            json_properties().with_correlation_id(format!("{}:first", Uuid::new_v4()).into()),
        );
    }
    vhost.await_drained(REPLY_QUEUE);
    let lines = daemon.log().lines().count();
    assert!(lines < 200, "one line per kind and minute, not {lines} lines");
    assert_jobs_still_work(&daemon, &client);
}

// ---- sizes

#[test]
fn a_reply_of_20_megabytes_fails_its_attempt_and_the_text_names_the_sizes() {
    const SIZE: usize = 20 * 1024 * 1024;
    let vhost = Vhost::new();
    let daemon = chain(&vhost);
    let client = vhost.client();
    let id = daemon.api.create("chain", "{}");
    let message = client.take("first");
    client.reply(&message, format!(r#"{{"k":"{}"}}"#, "x".repeat(SIZE - 8)));
    let job = daemon.api.await_state(id, "failed");
    assert_names_size(&job.text, "20971520", "20 MiB");
    assert_names_size(&job.text, "16777216", "16 MiB");
    assert!(
        job.text.len() < 100_000,
        "what is kept of it for the reader is bounded, not {} bytes",
        job.text.len()
    );
    vhost.await_drained(REPLY_QUEUE);
    assert_jobs_still_work(&daemon, &client);
}

#[test]
fn a_step_message_over_the_limit_fails_its_step_and_the_text_names_the_sizes() {
    let vhost = Vhost::new();
    let workflows = r"
workflows:
  - name: chain
    steps: [ { name: first }, { name: second, depends: [ first ] } ]
  - name: join
    steps: [ { name: left }, { name: right }, { name: both, depends: [ left, right ] } ]
";
    let daemon =
        Setup::new(&vhost.url, workflows).set("limits.step_message_bytes_max", "100000").start();
    let client = vhost.client();
    let id = daemon.api.create("join", "{}");
    for step in ["left", "right"] {
        client.reply(&client.take(step), format!(r#"{{"{step}":"{}"}}"#, "x".repeat(60_000)));
    }
    let job = daemon.api.await_state(id, "failed");
    assert!(
        job.text.contains("100000") || job.text.contains("100,000"),
        "the limit is named: {}",
        shortened(&job.text)
    );
    assert!(
        job.text.contains("1200") || job.text.contains("120,0"),
        "the size is named: {}",
        shortened(&job.text)
    );
    assert!(client.take_now("both").is_none());
    assert_jobs_still_work(&daemon, &client);
}

#[track_caller]
fn assert_names_size(text: &str, bytes: &str, short: &str) {
    let grouped: Vec<u8> = bytes
        .bytes()
        .rev()
        .enumerate()
        .flat_map(|(i, b)| if i > 0 && i % 3 == 0 { vec![b',', b] } else { vec![b] })
        .collect();
    let grouped: String = grouped.into_iter().rev().map(char::from).collect();
    let ways = [bytes, grouped.as_str(), short];
    assert!(
        ways.iter().any(|way| text.contains(way)),
        "none of {ways:?} is in {}",
        shortened(text)
    );
}

fn shortened(text: &str) -> String {
    if text.len() < 4000 {
        text.to_owned()
    } else {
        format!("{} … {}", &text[..2000], &text[text.len() - 2000..])
    }
}

// ---- many

#[test]
fn two_hundred_jobs_by_two_workers_on_each_queue() {
    const JOBS: usize = 200;
    let vhost = Vhost::new();
    let daemon = chain(&vhost);
    let _workers = [
        Worker::echo(&vhost.url, &["first", "second"]),
        Worker::echo(&vhost.url, &["second", "first"]),
    ];
    let ids: Vec<(Uuid, String)> = (0..JOBS)
        .map(|number| {
            let message = format!(r#"{{"number":{number}}}"#);
            (daemon.api.create("chain", &message), message)
        })
        .collect();
    for (id, message) in ids {
        assert_eq!(daemon.api.await_result(id), message);
    }
}

#[test]
fn items_wait_in_their_queue_in_the_order_of_the_list() {
    const ITEMS: u32 = 1_000;
    let workflows = "workflows: [ { name: fan, steps: [ { name: each, task: t } ], \
                     tasks: [ { name: t, itemListKey: items, steps: [ { name: work } ] } ] } ]";
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, workflows).start();
    let list: Vec<u32> = (0..ITEMS).collect();
    let id = daemon.api.create("fan", &json!({ "items": list }).to_string());
    vhost.client().await_count("work", ITEMS);
    let worker = Worker::echo(&vhost.url, &["work"]);
    assert_eq!(daemon.api.await_result(id), json!({ "items": list }).to_string());
    let seen: Vec<u64> =
        worker.seen().iter().map(|message| message.json()["item"].as_u64().unwrap()).collect();
    assert_eq!(seen, (0..u64::from(ITEMS)).collect::<Vec<_>>());
}
