//! Queues that vanish while the manager is connected, and queues that are more than durable: their
//! types and arguments.

use uuid::Uuid;

use crate::amqp::{Client, Vhost, arguments, text_argument};
use crate::harness::{Daemon, Setup, eventually, when};
use lapin::types::AMQPValue;

const WORKFLOWS: &str = "
workflows:
  - { name: leaving, steps: [ { name: gone } ] }
  - { name: idle, steps: [ { name: expired } ] }
  - { name: asking, steps: [ { name: ask, queue: workflow.elsewhere } ] }
  - { name: unused, steps: [ { name: nobody } ] }
";

/// How long a queue of these tests lives without a consumer, in milliseconds.
const EXPIRES_MS: i32 = 2_000;

#[track_caller]
fn await_missed(daemon: &Daemon, queue: &str) {
    daemon.await_log(&["the queue is not there", &format!("\"{queue}\"")]);
}

#[test]
fn a_queue_that_goes_with_its_worker_or_expires_is_declared_and_its_steps_are_sent_again() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, WORKFLOWS).set("log.format", "json").start();
    let client = vhost.client();
    let expires = || arguments([("x-expires", AMQPValue::LongInt(EXPIRES_MS))]);
    for queue in ["gone", "expired", "workflow.elsewhere", "nobody"] {
        eventually("the queue is declared at the connection", || {
            when(client.count(queue).is_some(), queue)
        });
        client.delete(queue);
    }
    client.declare_auto_delete("gone");
    client.declare("expired", expires());
    client.declare("workflow.elsewhere", expires());
    let create = |workflow: &str| -> Vec<Uuid> {
        (0..3).map(|_| daemon.api.create(workflow, "{}")).collect()
    };
    let jobs = [create("leaving"), create("idle"), create("asking")].concat();
    client.await_count("gone", 3);
    // From here on nobody publishes, and no connection is lost. A look would keep the others.
    client.come_and_go("gone");
    for queue in ["gone", "expired", "workflow.elsewhere"] {
        await_missed(&daemon, queue);
        client.await_count(queue, 3);
    }
    assert_eq!(client.count("nobody"), None, "nothing waits on it: nobody lost anything");
    for queue in ["gone", "expired", "workflow.elsewhere"] {
        for _ in 0..3 {
            client.reply(&client.take(queue), "{}");
        }
        assert!(client.take_now(queue).is_none(), "{queue}: each was sent once more, not twice");
    }
    for id in jobs {
        daemon.api.await_result(id);
    }
}

// ---- types and arguments

const ORDERS: &str = "
workflows:
  - name: orders
    queueType: quorum
    steps:
      - { name: price, queueArguments: { x-delivery-limit: 7, x-overflow: reject-publish } }
      - { name: ship, queueType: classic, queueArguments: { x-max-priority: 9 }, priority: 9 }
      - { name: plain, queue: workflow.elsewhere }
";

fn limit() -> (&'static str, AMQPValue) {
    ("x-delivery-limit", AMQPValue::LongInt(7))
}

/// Its worker declares its queue so, and is not locked out.
#[track_caller]
fn worker_declares(client: &Client, queue: &str, given: &[(&str, AMQPValue)]) {
    let mut table = lapin::types::FieldTable::default();
    for (name, value) in given {
        table.insert((*name).into(), value.clone());
    }
    client.declare(queue, table);
}

#[test]
fn a_manager_that_starts_first_declares_queues_as_their_workers_do() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, ORDERS).start();
    let client = vhost.client();
    let id = daemon.api.create("orders", "{}");
    client.await_count("price", 1);
    client.await_count("ship", 1);
    let overflow = ("x-overflow", text_argument("reject-publish"));
    let quorum = ("x-queue-type", text_argument("quorum"));
    let classic = ("x-queue-type", text_argument("classic"));
    let priority = ("x-max-priority", AMQPValue::LongInt(9));
    worker_declares(&client, "price", &[quorum.clone(), limit(), overflow]);
    worker_declares(&client, "ship", &[classic, priority]);
    worker_declares(&client, "workflow.orders", &[quorum]);
    worker_declares(&client, "workflow.elsewhere", &[]);
    for queue in ["price", "ship", "workflow.elsewhere"] {
        client.reply(&client.take(queue), "{}");
    }
    daemon.api.await_result(id);
}

#[test]
fn a_queue_that_its_worker_declared_comes_back_as_it_was() {
    let vhost = Vhost::new();
    let workflows = "workflows: [ { name: w, steps: [ { name: a }, { name: b } ] } ]";
    let client = vhost.client();
    let quorum = ("x-queue-type", text_argument("quorum"));
    worker_declares(&client, "a", &[quorum.clone(), limit()]);
    client.declare_auto_delete("b");
    let daemon = Setup::new(&vhost.url, workflows)
        .set("amqp.management", &vhost.management_url("guest:guest"))
        .set("amqp.lost_after", "3s")
        .start();
    let id = daemon.api.create("w", "{}");
    client.await_count("a", 1);
    client.await_count("b", 1);
    // By then it has asked the management API many times.
    daemon.await_log(&["no other policy keeps dead letters"]);
    client.delete("a");
    client.come_and_go("b");
    client.await_count("a", 1);
    client.await_count("b", 1);
    worker_declares(&client, "a", &[quorum, limit()]);
    client.declare_auto_delete("b");
    for queue in ["a", "b"] {
        client.reply(&client.take(queue), "{}");
    }
    daemon.api.await_result(id);
}

#[test]
fn a_queue_that_is_declared_otherwise_is_used_as_it_is() {
    let vhost = Vhost::new();
    let client = vhost.client();
    worker_declares(&client, "price", &[]);
    let daemon = Setup::new(&vhost.url, ORDERS).start();
    let id = daemon.api.create("orders", "{}");
    for queue in ["price", "ship", "workflow.elsewhere"] {
        client.reply(&client.take(queue), "{}");
    }
    daemon.api.await_result(id);
    worker_declares(&client, "price", &[]);
}

// ---- full queues

#[test]
fn why_says_that_a_queue_is_full_and_its_message_goes_when_there_is_room() {
    let vhost = Vhost::new();
    let workflows = "workflows: [ { name: w, steps: [ { name: narrow } ] } ]";
    let client = vhost.client();
    let one = ("x-max-length", AMQPValue::LongInt(1));
    worker_declares(&client, "narrow", &[one, ("x-overflow", text_argument("reject-publish"))]);
    let daemon = Setup::new(&vhost.url, workflows).start();
    let first = daemon.api.create("w", "{}");
    client.await_count("narrow", 1);
    let second = daemon.api.create("w", "{}");
    eventually("the cause is that the queue is full", || {
        let told = daemon.api.get(&format!("/api/job/{second}/why")).expect(200).json();
        let text = told["why"].as_str().unwrap_or_default().to_owned();
        let says = |words: &str| text.contains(words);
        let fits = says("queue full") && says("1 message waits") && says("0 consumers");
        when(told["cause"] == "queue_full" && fits, told)
    });
    let queue = eventually("the queue is told to be full", || {
        let told = daemon.api.get("/api/queue/narrow").expect(200).json();
        when(told["full"] == true, &told).map(|()| told)
    });
    assert_eq!(queue["messages"], 1, "{queue}");
    for id in [first, second] {
        client.reply(&client.take("narrow"), "{}");
        daemon.api.await_result(id);
    }
    eventually("it is not full any more", || {
        let told = daemon.api.get("/api/queue/narrow").expect(200).json();
        when(told["full"].is_null(), told)
    });
}
