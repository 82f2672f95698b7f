//! A broker that is missing, stops, comes back or blocks. These tests stop their broker, so they
//! have one of their own.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    amqp::{Answer, PrivateNode, REPLY_QUEUE, Worker},
    harness::{Setup, eventually, when},
};

const WORKFLOWS: &str = r"
workflows:
  - name: chain
    steps: [ { name: first }, { name: second, depends: [ first ] } ]
";

/// One node for all phases, since a node takes long to start; each phase leaves all its jobs ended.
#[test]
fn a_broker_that_comes_and_goes() {
    let node = PrivateNode::start();
    node.stop();
    the_broker_is_absent_at_the_start(&node);
    the_broker_restarts_with_messages_in_flight(&node);
    the_broker_blocks_publishers(&node);
}

fn work(node: &PrivateNode) -> Worker {
    Worker::start(node.url(), &["first", "second"], |message| {
        let mut output = message.json();
        output[message.step()] = Value::Bool(true);
        Answer::json(&output)
    })
}

#[track_caller]
fn assert_all_end(daemon: &crate::harness::Daemon, ids: &[Uuid]) {
    for (n, id) in ids.iter().enumerate() {
        let result: Value = serde_json::from_str(&daemon.api.await_result(*id)).unwrap();
        assert_eq!(result, json!({ "n": n, "first": true, "second": true }));
    }
}

fn create(daemon: &crate::harness::Daemon, count: usize) -> Vec<Uuid> {
    (0..count).map(|n| daemon.api.create("chain", &json!({ "n": n }).to_string())).collect()
}

fn the_broker_is_absent_at_the_start(node: &PrivateNode) {
    let mut daemon = Setup::new(node.url(), WORKFLOWS).launch();
    eventually("the daemon says that it is not ready, and why", || {
        let answer = daemon.api.get("/readyz?verbose");
        let told = answer.text.to_lowercase();
        when(
            answer.status == 503 && (told.contains("refused") || told.contains("connect")),
            &answer,
        )
    });
    eventually("the log says that the broker is not reached", || {
        let log = daemon.log().to_lowercase();
        when(log.contains("broker") && log.contains("refused"), "nothing of it")
    });
    let ids = create(&daemon, 10);
    assert!(daemon.ended().is_none());
    let address = node.url().rsplit_once('@').unwrap().1.rsplit_once('/').unwrap().0.to_owned();
    assert!(daemon.log().contains(&address), "the log names the address {address}");

    node.start_again();
    daemon.await_ready();
    let _worker = work(node);
    assert_all_end(&daemon, &ids);
    assert!(daemon.stop().success());
}

fn the_broker_restarts_with_messages_in_flight(node: &PrivateNode) {
    let mut daemon = Setup::new(node.url(), WORKFLOWS).start();
    // No worker yet: the messages are in the broker. Some more jobs are created while it is away.
    let mut ids = create(&daemon, 100);
    node.stop();
    eventually("the daemon notices", || {
        let answer = daemon.api.get("/readyz");
        when(answer.status == 503, &answer)
    });
    for n in ids.len()..150 {
        ids.push(daemon.api.create("chain", &json!({ "n": n }).to_string()));
    }
    node.start_again();
    let worker = work(node);
    eventually("the jobs go on", || when(worker.seen_count() >= 60, worker.seen_count()));
    // Now with workers and replies under way.
    node.restart();
    assert_all_end(&daemon, &ids);
    assert!(daemon.stop().success());
}

fn the_broker_blocks_publishers(node: &PrivateNode) {
    let mut daemon = Setup::new(node.url(), WORKFLOWS).start();
    let ids = create(&daemon, 20);
    let client = crate::amqp::Client::connect(node.url());
    client.await_count("first", 20);
    daemon.kill();
    let replies: Vec<_> = (0..20).map(|_| client.take("first")).collect();
    for message in &replies {
        let mut output = message.json();
        output["first"] = Value::Bool(true);
        client.reply(message, output.to_string());
    }
    client.await_count(REPLY_QUEUE, 20);

    node.broker.ctl(&["set_vm_memory_high_watermark", "0.0000001"]);
    daemon.spawn_again();
    daemon.await_alive();
    // A connection is blocked only when it publishes; replies are still taken and acknowledged.
    let more: Vec<Uuid> =
        (20..25).map(|n| daemon.api.create("chain", &json!({ "n": n }).to_string())).collect();
    for id in &ids {
        eventually("replies are taken while publishers are blocked", || {
            let job = daemon.api.job(*id);
            when(job.completed.iter().any(|step| step.name == "first"), &job.text)
        });
    }
    node.broker.ctl(&["set_vm_memory_high_watermark", "0.4"]);
    let _worker = work(node);
    let all: Vec<Uuid> = ids.into_iter().chain(more).collect();
    assert_all_end(&daemon, &all);
    assert!(daemon.stop().success());
}
