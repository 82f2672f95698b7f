//! What goes out and what comes back: messages, topics, sizes, odd replies.

use super::{Broker, Brokers, Worker, metric, position, setup};
use crate::harness::{eventually, when, within};
use crate::load::LONG;
use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const CHAIN: &str = "workflows: [ { name: chain, steps: [ { name: first, timeout: 1h }, \
                     { name: last, timeout: 1h, depends: [ first ] } ] } ]";

const WEEK_MS: u64 = 7 * 24 * 3600 * 1000;

#[test]
fn a_step_message_has_its_properties_as_headers_and_topics_are_made_for_it() {
    let broker = Broker::start();
    let workflow = "workflows: [ { name: w, steps: [ { name: price, timeout: 12d } ] } ]";
    let daemon = setup(&broker, workflow).set("kafka.prefix", "orders.").start();
    let worker = Worker::start(&broker, &["orders.price"], |seen| Some(seen.body.clone()));
    let message = r#"{"n":12345678901234567890,"x":0.10}"#;
    let job = daemon.api.create("w", message);
    assert_eq!(daemon.api.await_result(job), message, "every digit is kept");
    let seen = &worker.seen()[0];
    let correlation_id = format!("{job}:price");
    assert_eq!(seen.key, correlation_id.as_bytes());
    let header = |name: &str| seen.headers.get(name).map(String::as_str);
    for (name, value) in [
        ("correlation_id", correlation_id.as_str()),
        ("kafka_correlationId", &correlation_id),
        ("reply_to", "workflow-manager"),
        ("kafka_replyTopic", "workflow-manager"),
        ("message_id", &format!("{correlation_id}:1")),
        ("content_type", "application/json"),
        ("app_id", "workflow-manager"),
        ("workflow", "w"),
        ("job", &job.to_string()),
        ("attempt", "1"),
    ] {
        assert_eq!(header(name), Some(value), "{name} in {:?}", seen.headers);
    }
    assert!(header("traceparent").is_some_and(|value| value.starts_with("00-")));
    // A day longer than the step waits.
    assert_eq!(
        broker.setting("orders.price", "retention.ms"),
        Some((WEEK_MS / 7 * 13).to_string())
    );
    assert_eq!(broker.partitions("orders.price"), Some(12));
    assert_eq!(broker.setting("workflow-manager", "retention.ms"), Some(WEEK_MS.to_string()));
    assert_eq!(broker.partitions("workflow-manager"), Some(1));
}

#[test]
fn why_tells_how_far_the_workers_of_a_topic_are_behind() {
    let broker = Broker::start();
    let daemon = setup(&broker, CHAIN).start();
    let job = daemon.api.create("chain", "{}");
    let told = |words: &str| {
        eventually(words, || {
            let why = daemon.api.get(&format!("/api/job/{job}/why")).text;
            when(why.contains(words), why)
        });
    };
    told("no worker of the group first is there: start one");
    told("the group has 1 messages still to commit");
    let _worker = Worker::start(&broker, &["first"], |_| None);
    told("1 workers of the group first have committed all of the topic first");
}

#[test]
fn messages_go_round_the_partitions() {
    let broker = Broker::start();
    let daemon = setup(&broker, CHAIN).set("kafka.partitions", "4").start();
    let worker = Worker::start(&broker, &["first"], |_| None);
    let jobs: Vec<_> = (0..8).map(|_| daemon.api.create("chain", "{}")).collect();
    eventually("all have come", || when(worker.seen().len() >= jobs.len(), worker.seen().len()));
    let used: BTreeSet<i32> = worker.seen().iter().map(|seen| seen.partition).collect();
    assert_eq!(used.len(), 4);
}

#[test]
fn a_message_that_is_too_large_fails_its_step_and_names_both_sizes() {
    let broker = Broker::start();
    let daemon = setup(&broker, CHAIN).set("kafka.message_bytes_max", "10000").start();
    let large = daemon.api.create("chain", &format!(r#"{{"text":"{}"}}"#, "x".repeat(10_000)));
    daemon.api.await_state(large, "failed");
    let told = daemon.api.get(&format!("/api/job/{large}")).text;
    assert!(told.contains("more than the 10000 that the bus takes"), "{told}");
    assert!(told.contains("the step message has 10"), "{told}");
    // Others go on.
    let _worker = Worker::start(&broker, &["first", "last"], |seen| Some(seen.body.clone()));
    let job = daemon.api.create("chain", r#"{"n":1}"#);
    assert_eq!(daemon.api.await_result(job), r#"{"n":1}"#);
    let bytes = broker.setting("first", "max.message.bytes");
    assert_eq!(bytes.as_deref(), Some("10000"));
}

#[test]
fn whatever_is_in_the_reply_topic_costs_itself_at_most() {
    let broker = Broker::start();
    let daemon = setup(&broker, CHAIN).start();
    let replies = "workflow-manager";
    let job = daemon.api.create("chain", r#"{"n":1}"#);
    let correlation_id = format!("{job}:first");
    let id = Some(correlation_id.as_bytes());
    let (long, many) = (vec![b'x'; 100_000], vec![("h", Some(&b"1"[..])); 300]);
    broker.write(replies, None, &[], None);
    broker.write(replies, Some(&long), &[], Some(b"{}"));
    broker.write(replies, None, &[("correlation_id", None), ("type", None)], Some(b"\xff\x00"));
    broker.write(replies, None, &[("correlation_id", Some(b"\xff\xfe"))], Some(b"{}"));
    broker.write(replies, None, &[("correlation_id", Some(&long))], Some(b"{}"));
    broker.write(replies, None, &[("correlation_id", Some(b"no id"))], Some(b"{}"));
    broker.write(replies, id, &[("attempt", Some(b"many")), ("type", Some(b"odd"))], Some(b"{}"));
    broker.write(replies, id, &many, Some(br#"{"n":"of too many headers"}"#));
    broker.write(replies, None, &[], Some(&[b'x'; 900_000]));
    // A null is an empty reply; the key alone tells whose it is.
    broker.write(replies, id, &[], None);
    let worker = Worker::start(&broker, &["last"], |seen| Some(seen.body.clone()));
    assert_eq!(daemon.api.await_result(job), "{}");
    assert_eq!(metric(&daemon, "workflow_messages_unreadable_total"), 1);
    drop(worker);
    // Nothing of it holds up the position either.
    eventually("the position is behind all of it", || {
        let found = (position(&daemon), broker.written(replies));
        when(found.0 == found.1, format!("{found:?}"))
    });
}

#[test]
fn replies_in_all_partitions_of_the_topic_are_read() {
    let broker = Broker::start();
    broker.create("workflow-manager", 3, &[]);
    let daemon = setup(&broker, CHAIN).start();
    for partition in 0..3 {
        let job = daemon.api.create("chain", "{}");
        for step in ["first", "last"] {
            let id = format!("{job}:{step}");
            let topic = ("workflow-manager", partition);
            broker.write_to(topic, Some(id.as_bytes()), &[], Some(b"{}"));
            eventually(&format!("{step} has its reply in partition {partition}"), || {
                let found = daemon.api.job(job).text;
                when(found.contains(&format!(r#""name":"{step}","state":"completed""#)), found)
            });
        }
    }
}

#[test]
fn an_error_a_progress_and_a_silence_are_told_as_over_other_buses() {
    let broker = Broker::start();
    let workflows = "workflows: [ { name: w, steps: [ { name: odd, timeout: 1h, \
                     retry: { attempts: 2, backoff: 1ms } } ] }, \
                     { name: unanswered, steps: [ { name: silent, timeout: 1s } ] } ]";
    let daemon = setup(&broker, workflows).start();
    let job = daemon.api.create("w", "{}");
    let id = format!("{job}:odd");
    let with = |kind: &str, body: &str| {
        let headers = [("correlation_id", Some(id.as_bytes())), ("type", Some(kind.as_bytes()))];
        broker.write("workflow-manager", None, &headers, Some(body.as_bytes()));
    };
    with("progress", r#"{"progress":0.5,"message":"half"}"#);
    eventually("the progress is shown", || {
        let shown = daemon.api.get(&format!("/api/job/{job}")).text;
        when(shown.contains("half"), shown)
    });
    with("error", r#"{"error":"no luck"}"#);
    daemon.await_log(&["attempt failed, another follows", "no luck"]);
    eventually("the second attempt is sent", || {
        when(broker.written("odd") == 2, broker.written("odd"))
    });
    with("error", r#"{"error":"none again"}"#);
    assert!(daemon.api.await_state(job, "failed").text.contains("none again"));
    let silent = daemon.api.create("unanswered", "{}");
    let failed = daemon.api.await_state(silent, "failed").text;
    assert!(failed.contains("no reply within its timeout of 1s"), "{failed}");
}

/// The example of docs/reference/worker-protocol-transports.md, in Python: killed while it works,
/// it loses nothing.
#[test]
fn a_worker_in_python_is_killed_and_started_again() {
    const BEFORE: usize = 20;
    const AFTER: usize = 40;
    const STANDS_STILL_AFTER: Duration = Duration::from_secs(25);
    let broker = Broker::start();
    let workflow = "workflows: [ { name: w, steps: [ { name: price, timeout: 1h } ] } ]";
    let daemon = setup(&broker, workflow).set("kafka.partitions", "1").start();
    let python = std::env::var("KAFKA_PYTHON").expect("KAFKA_PYTHON is not set; see tests/venv");
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/workers/python-kafka/worker.py");
    let start = || {
        let mut command = Command::new(&python);
        command.args([example, &broker.servers(), "price"]).stdin(Stdio::null());
        Ending(command.spawn().expect("it starts"))
    };
    let create = |n: usize| daemon.api.create("w", &format!(r#"{{"n":{n}}}"#));
    let worker = start();
    let mut jobs: Vec<_> = (0..BEFORE).map(create).collect();
    eventually("it works", || {
        let replies = broker.written("workflow-manager");
        when(replies > 5, replies)
    });
    // In the middle of the first messages, or right behind them; the others are for another one.
    drop(worker);
    jobs.extend((BEFORE..BEFORE + AFTER).map(create));
    // The broker of the tests may never come to an end with a group whose member has died: then
    // another worker takes the place of one that gets nothing, as a supervisor would see to it.
    let (mut worker, mut replies, mut since) = (start(), 0, Instant::now());
    within(LONG, "all are worked on", || {
        let now = broker.written("workflow-manager");
        if now > replies {
            (replies, since) = (now, Instant::now());
        } else if since.elapsed() > STANDS_STILL_AFTER {
            drop(std::mem::replace(&mut worker, start()));
            since = Instant::now();
        }
        let done = jobs.iter().filter(|job| daemon.api.job(**job).state == "completed").count();
        when(done == jobs.len(), format!("{done} jobs of {}", jobs.len()))
    });
    for (n, job) in jobs.into_iter().enumerate() {
        assert_eq!(daemon.api.await_result(job), format!(r#"{{"n":{n},"worked":true}}"#));
    }
    drop(worker);
}

/// A process that is killed when this is dropped.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}
