//! A broker of three nodes, of which one at a time is killed, cut off from the others, or silent.

use crate::{
    amqp::{Client, PrivateCluster, arguments, text_argument},
    harness::{Daemon, Setup, command, eventually, free_port, run, when, within},
    load::{LONG, WORKFLOWS},
};
use serde_json::Value;

const CLASSIC: &str = "
  - { name: alone, queueType: classic, steps: [ { name: classic } ] }
";

/// One cluster for all phases, since it takes long to start; each phase leaves all its jobs ended,
/// and all nodes there.
#[test]
fn a_broker_of_three_nodes_has_a_dead_address_and_loses_the_home_of_a_queue() {
    let cluster = PrivateCluster::start();
    let dead = format!("amqp://guest:guest@127.0.0.1:{}/%2f", free_port());
    let servers = format!("{dead},{}", cluster.urls());
    let mut daemon = Setup::new(&servers, &format!("{WORKFLOWS}{CLASSIC}"))
        .set("amqp.reply_queue_type", "quorum")
        .set("amqp.queue_type", "quorum")
        .set("amqp.heartbeat", "2s")
        .set(
            "amqp.management",
            &format!("http://guest:guest@{},{}", host(&dead), cluster.management_urls()),
        )
        .start();
    the_first_address_is_dead(&daemon, &servers, &dead);
    the_home_of_a_classic_queue_is_away(&cluster, &daemon);
    assert!(daemon.ended().is_none());
    assert!(daemon.stop().success());
}

/// The host and port of an address.
fn host(server: &str) -> &str {
    server.rsplit_once('@').unwrap().1.rsplit_once('/').unwrap().0
}

/// The position of the node that the daemon uses, once it uses one alone.
fn node_in_use(cluster: &PrivateCluster, daemon: &Daemon) -> usize {
    within(LONG, "the daemon uses one node", || {
        let answer = daemon.api.get("/readyz?verbose");
        let told = answer.text.split("connected to ").nth(1).unwrap_or_default().to_owned();
        let mut words = told.split_whitespace();
        let authority = words.next().unwrap_or_default();
        let is_alone = words.next() != Some("and");
        cluster.position_of(authority).filter(|_| is_alone).ok_or(answer)
    })
}

fn the_first_address_is_dead(daemon: &Daemon, servers: &str, dead: &str) {
    let answer = daemon.api.get("/readyz?verbose").expect(200);
    assert!(answer.text.contains("connected to 127.0.0.1:"), "{answer}");
    let address = host(dead);
    daemon.await_log(&["warn", address, "refused"]);
    daemon.await_log(&["the dead-letter policy is set"]);
    let ran = run(command().arg("doctor").args(["--amqp-server", servers]));
    let text = ran.text();
    assert!(text.contains(&format!("{address} does not answer")), "{ran}");
    for server in servers.split(',').skip(1) {
        assert!(text.contains(&format!("{} answers", host(server))), "{ran}");
    }
}

/// A message that lies in the queue is not lost, and is not sent once more.
fn the_home_of_a_classic_queue_is_away(cluster: &PrivateCluster, daemon: &Daemon) {
    // The daemon has declared it at its start, on the node that it uses.
    let home = node_in_use(cluster, daemon);
    let client = Client::connect(cluster.node(home).address());
    client.declare("classic", arguments([("x-queue-type", text_argument("classic"))]));
    let redispatched = || {
        daemon.api.metric("workflow_steps_redispatched_total{workflow=\"alone\",step=\"classic\"}")
    };
    let first = daemon.api.create("alone", r#"{"n":1}"#);
    client.await_count("classic", 1);
    drop(client);
    cluster.kill(home);
    let second = daemon.api.create("alone", r#"{"n":2}"#);
    daemon.await_log(&["warn", "the queue cannot be used", "down or inaccessible"]);
    eventually("why tells that the node is away", || {
        let told = daemon.api.get(&format!("/api/job/{second}/why")).expect(200);
        when(told.text.contains("down or inaccessible"), &told)
    });
    cluster.start_again(home);
    let client = Client::connect(cluster.node(home).address());
    for _ in [first, second] {
        let message = client.take("classic");
        client.reply(&message, &message.body);
        client.ack(&message);
    }
    for (id, n) in [(first, 1), (second, 2)] {
        let result: Value = serde_json::from_str(&daemon.api.await_result(id)).unwrap();
        assert_eq!(result["n"], n);
    }
    assert_eq!(client.count("classic").map(|count| count.0), Some(0));
    assert_eq!(redispatched(), 0);
}
