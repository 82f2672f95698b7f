//! A broker of three nodes, of which one at a time is killed, cut off from the others, or
//! restarted.

use crate::{
    amqp::{Client, PrivateCluster, REPLY_QUEUE, arguments, text_argument},
    harness::{Daemon, Setup, command, eventually, free_port, run, when, within},
    load::{LONG, Load, QUEUES, StopOnDrop, WORKFLOWS},
};
use serde_json::Value;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

/// The pause after each job that is offered: what is asked is that nothing is lost, not how fast
/// three nodes on one machine are.
const PACE: Duration = Duration::from_millis(20);

const CLASSIC: &str = "
  - { name: alone, queueType: classic, steps: [ { name: classic } ] }
";

/// A daemon on a broker of three nodes whose queues are quorum queues.
fn start_daemon(cluster: &PrivateCluster) -> Daemon {
    Setup::new(&cluster.urls(), WORKFLOWS)
        .set("amqp.reply_queue_type", "quorum")
        .set("amqp.queue_type", "quorum")
        .set("amqp.heartbeat", "2s")
        .set("amqp.management", &cluster.management_urls())
        .start()
}

/// Each queue's leader is killed and comes back, twice.
#[test]
fn the_leader_of_the_quorum_queues_is_killed_under_load_and_comes_back() {
    let cluster = PrivateCluster::start();
    let mut daemon = start_daemon(&cluster);
    let load = Load::new(&cluster.urls());
    for _ in 0..2 {
        let killed = leader_of(&cluster, REPLY_QUEUE, 0);
        let led: Vec<&str> = QUEUES
            .into_iter()
            .filter(|queue| leader_of(&cluster, queue, 0) == killed)
            .chain([REPLY_QUEUE])
            .collect();
        under_load(&cluster, &daemon, &load, || {
            cluster.kill(killed);
            load.await_more(200);
            let asked = (killed + 1) % 3;
            for queue in &led {
                assert_ne!(leader_of(&cluster, queue, asked), killed, "{queue}");
            }
            cluster.start_again(killed);
        });
        await_all_nodes(&cluster);
    }
    assert!(daemon.ended().is_none());
    assert!(daemon.stop().success());
}

/// The node in use, on which daemon and worker are, is cut off from the others.
#[test]
fn the_node_in_use_is_in_a_minority_under_load() {
    let cluster = PrivateCluster::start();
    let mut daemon = start_daemon(&cluster);
    let load = Load::new(&cluster.urls());
    let cut_off = node_in_use(&cluster, &daemon);
    under_load(&cluster, &daemon, &load, || {
        cluster.cut_off(cut_off, true);
        within(LONG, "the daemon goes to the majority", || {
            let other = node_in_use(&cluster, &daemon);
            when(other != cut_off, "it stays")
        });
        load.await_more(200);
        cluster.cut_off(cut_off, false);
    });
    await_all_nodes(&cluster);
    assert!(daemon.ended().is_none());
    assert!(daemon.stop().success());
}

/// One node after the other is stopped and started, as for an upgrade.
#[test]
fn the_three_nodes_are_restarted_one_after_the_other_under_load() {
    let cluster = PrivateCluster::start();
    let mut daemon = start_daemon(&cluster);
    let load = Load::new(&cluster.urls());
    under_load(&cluster, &daemon, &load, || {
        for node in 0..3 {
            cluster.restart(node);
            await_all_nodes(&cluster);
            load.await_more(50);
        }
    });
    assert!(daemon.ended().is_none());
    assert!(daemon.stop().success());
}

/// Offers jobs while `trouble` happens, and some afterwards; all must end as they should, and leave
/// nothing in a queue.
fn under_load(cluster: &PrivateCluster, daemon: &Daemon, load: &Load, trouble: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                load.offer(&daemon.api, 1, 1);
                thread::sleep(PACE);
            }
        });
        load.await_more(200);
        trouble();
        // Work that was not under way before.
        load.await_more(200);
    });
    load.await_quiet(daemon);
    load.account(daemon).assert_sound();
    within(LONG, "all queues are empty", || {
        let filled: Vec<Value> = QUEUES
            .into_iter()
            .chain([REPLY_QUEUE])
            .map(|queue| cluster.try_read_queue(queue).unwrap_or_default())
            .filter(|queue| queue["messages"] != 0)
            .collect();
        when(filled.is_empty(), format!("{filled:?}"))
    });
}

/// The position of the node that leads the queue, as soon as one does.
fn leader_of(cluster: &PrivateCluster, queue: &str, asked: usize) -> usize {
    within(LONG, "the queue has a leader", || cluster.leader_of(queue, asked).ok_or("none yet"))
}

/// Waits until every node sees every member of the reply queue.
fn await_all_nodes(cluster: &PrivateCluster) {
    for asked in 0..3 {
        within(LONG, "all nodes are there", || {
            let queue = cluster.node(asked).try_read_queue(REPLY_QUEUE).unwrap_or_default();
            let online = queue["online"].as_array().map_or(0, Vec::len);
            when(online == 3, &queue)
        });
    }
}

/// One cluster for both, since it takes long to start.
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
