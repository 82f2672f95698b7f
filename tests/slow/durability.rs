//! What was accepted is not lost: the daemon is killed and stopped at bad moments, queues go away,
//! connections break.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    amqp::{Answer, REPLY_QUEUE, StepMessage, Vhost, Worker},
    harness::{Daemon, Setup, eventually, when, within},
    load::{LONG, create_through_crashes, repeated},
};

const CHAIN: &str = r"
workflows:
  - name: chain
    steps:
      - name: double
      - name: add
        depends: [ double ]
      - name: tell
        depends: [ add ]
";
const STEPS: [&str; 3] = ["double", "add", "tell"];

const SINGLE: &str = "workflows: [ { name: single, steps: [ { name: work } ] }, \
                      { name: probe, steps: [ { name: look } ] } ]";

/// Computes `(n * 2) + 1` in three steps; every step checks what it is given.
fn chain_worker(vhost: &Vhost) -> Worker {
    Worker::start(&vhost.url, &STEPS, |message| {
        let input = message.json();
        let number = |key: &str| input[key].as_i64().unwrap_or(-1_000_000);
        let output = match message.step().as_str() {
            "double" => json!({ "n": number("n"), "doubled": number("n") * 2 }),
            "add" => json!({ "n": number("n"), "sum": number("doubled") + 1 }),
            _ => json!({ "n": number("n"), "result": number("sum") }),
        };
        Answer::json(&output)
    })
}

fn chain_result(n: usize) -> Value {
    json!({ "n": n, "result": n * 2 + 1 })
}

// ---- kill -9

#[test]
fn kill_five_times_in_the_middle_of_300_chain_jobs() {
    const JOBS: usize = 300;
    const KILLS: usize = 5;
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, CHAIN).start();
    let worker = chain_worker(&vhost);
    let ids: Vec<Uuid> = (0..JOBS).map(|_| Uuid::new_v4()).collect();

    thread::scope(|scope| {
        let api = daemon.api.clone();
        let ids = &ids;
        scope.spawn(move || {
            for (n, id) in ids.iter().enumerate() {
                create_through_crashes(&api, "chain", *id, &json!({ "n": n }).to_string());
            }
        });
        for kill in 1..=KILLS {
            let threshold = JOBS * STEPS.len() * kill / (KILLS + 1);
            within(LONG, "the jobs go on", || {
                let count = worker.seen_count();
                when(count >= threshold, format!("{count} of {threshold} messages"))
            });
            daemon.kill();
            daemon.start_again();
        }
    });

    for (n, id) in ids.iter().enumerate() {
        let result: Value = serde_json::from_str(&daemon.api.await_result(*id)).unwrap();
        assert_eq!(result, chain_result(n));
    }
    vhost.await_drained(REPLY_QUEUE);
    assert!(daemon.api.get("/api/jobs").expect(200).ids("jobs").is_empty());
    let seen = worker.seen();
    let repeated = repeated(&seen).len();
    eprintln!(
        "{} messages for {} steps, {repeated} of them sent again after {KILLS} kills",
        seen.len(),
        JOBS * STEPS.len()
    );
    assert!(
        repeated <= JOBS,
        "only what was not confirmed is sent again: {repeated} of {} messages",
        seen.len()
    );
}

#[test]
fn a_fan_out_under_way_survives_kills_and_gathers_in_item_order() {
    const ITEMS: usize = 200;
    let vhost = Vhost::new();
    let workflows = "
workflows:
  - name: fan
    steps: [ { name: each, task: one }, { name: after, depends: [ each ] } ]
    tasks:
      - { name: one, itemListKey: items, steps: [ { name: prepare }, \
          { name: finish, depends: [ prepare ] } ] }
";
    let mut daemon = Setup::new(&vhost.url, workflows).start();
    let worker =
        Worker::start(&vhost.url, &["prepare", "finish", "after"], |message| {
            match message.step().as_str() {
                "finish" => Answer::json(
                    &json!({ "item": message.json()["item"].as_u64().map_or(0, |n| n * n) }),
                ),
                _ => Answer::Reply(message.body.clone()),
            }
        });
    let id =
        daemon.api.create("fan", &json!({ "items": (0..ITEMS).collect::<Vec<_>>() }).to_string());
    for threshold in [ITEMS / 4, ITEMS, ITEMS * 7 / 4] {
        within(LONG, "the children go on", || {
            let count = worker.seen_count();
            when(count >= threshold, format!("{count} of {threshold} messages"))
        });
        daemon.kill();
        daemon.start_again();
    }
    let result: Value = serde_json::from_str(&daemon.api.await_result(id)).unwrap();
    assert_eq!(result, json!({ "items": (0..ITEMS).map(|n| n * n).collect::<Vec<_>>() }));
    let seen = worker.seen();
    let prepared: BTreeSet<Uuid> =
        seen.iter().filter(|message| message.step() == "prepare").map(StepMessage::job).collect();
    assert_eq!(prepared.len(), ITEMS, "a child keeps its id over a restart");
    assert_eq!(
        seen.iter()
            .filter(|message| message.step() == "after")
            .map(StepMessage::message_id)
            .collect::<BTreeSet<_>>()
            .len(),
        1
    );
}

#[test]
fn a_job_that_was_answered_201_exists_after_an_immediate_kill() {
    const LOOPS: usize = 20;
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, SINGLE).start();
    let mut ids = Vec::new();
    for n in 0..LOOPS {
        let id = daemon.api.create("single", &format!(r#"{{"n":{n}}}"#));
        daemon.kill();
        ids.push(id);
        daemon.spawn_again();
        daemon.await_alive();
        let job = daemon.api.job(id);
        assert_eq!(
            (job.state.as_str(), job.message_of("__start__")),
            ("running", format!(r#"{{"n":{n}}}"#))
        );
    }
    let worker = Worker::echo(&vhost.url, &["work"]);
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(daemon.api.await_result(*id), format!(r#"{{"n":{n}}}"#));
    }
    let worked: BTreeSet<Uuid> = worker.seen().iter().map(StepMessage::job).collect();
    assert_eq!(worked, ids.into_iter().collect());
}

#[test]
fn every_job_that_was_answered_under_load_exists_after_a_kill() {
    const ROUNDS: usize = 4;
    const CLIENTS: usize = 8;
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, SINGLE).start();
    let mut answered: Vec<(Uuid, String)> = Vec::new();
    for round in 0..ROUNDS {
        let count = AtomicUsize::new(0);
        let api = daemon.api.clone();
        let accepted: Vec<(Uuid, String)> = thread::scope(|scope| {
            let (api, count) = (&api, &count);
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    scope.spawn(move || {
                        let mut accepted = Vec::new();
                        for n in 0.. {
                            let message =
                                format!(r#"{{"round":{round},"client":{client},"n":{n}}}"#);
                            // No answer: the daemon was killed, and it is unknown what it made of
                            // the request.
                            let Ok(answer) = api.try_send(
                                "POST",
                                "/api/workflow/single",
                                &[],
                                Some(message.as_bytes()),
                            ) else {
                                break;
                            };
                            accepted.push((answer.expect(201).id(), message));
                            count.fetch_add(1, Ordering::SeqCst);
                        }
                        accepted
                    })
                })
                .collect();
            within(LONG, "there is load", || {
                let accepted = count.load(Ordering::SeqCst);
                when(
                    accepted >= 10 * CLIENTS || clients.iter().any(|client| client.is_finished()),
                    accepted,
                )
            });
            daemon.kill();
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
        });
        answered.extend(accepted);
        daemon.start_again();
        for (id, message) in &answered {
            assert_eq!(daemon.api.job(*id).message_of("__start__"), *message);
        }
    }
    let worker = Worker::echo(&vhost.url, &["work"]);
    for (id, message) in &answered {
        assert_eq!(daemon.api.await_result(*id), *message);
    }
    let jobs: BTreeSet<Uuid> = worker.seen().iter().map(StepMessage::job).collect();
    assert!(answered.iter().all(|(id, _)| jobs.contains(id)));
}

#[test]
fn replies_wait_while_the_daemon_is_down() {
    const JOBS: u32 = 50;
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, SINGLE).start();
    let client = vhost.client();
    let ids: Vec<Uuid> =
        (0..JOBS).map(|n| daemon.api.create("single", &format!(r#"{{"n":{n}}}"#))).collect();
    client.await_count("work", JOBS);
    daemon.kill();

    let _worker = Worker::echo(&vhost.url, &["work"]);
    client.await_count(REPLY_QUEUE, JOBS);
    daemon.start_again();
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(daemon.api.await_result(*id), format!(r#"{{"n":{n}}}"#));
    }
    vhost.await_drained(REPLY_QUEUE);
}

#[test]
fn confirmed_messages_are_not_sent_again_after_a_restart() {
    const JOBS: u32 = 100;
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, SINGLE).start();
    let client = vhost.client();
    let _prober = Worker::echo(&vhost.url, &["look"]);
    for _ in 0..JOBS {
        daemon.api.create("single", "{}");
    }
    client.await_count("work", JOBS);
    // A confirm may be journaled late, but not later than everything that two jobs do after it.
    let probe = |daemon: &Daemon| {
        for _ in 0..2 {
            daemon.api.await_result(daemon.api.create("probe", "{}"));
        }
    };
    for end in
        [Daemon::kill as fn(&mut Daemon), |daemon: &mut Daemon| assert!(daemon.stop().success())]
    {
        probe(&daemon);
        end(&mut daemon);
        daemon.start_again();
        probe(&daemon);
        assert_eq!(client.count("work").map(|(messages, _)| messages), Some(JOBS));
    }
}

#[test]
fn a_running_job_keeps_the_definition_it_started_with() {
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, CHAIN).start();
    let client = vhost.client();
    let id = daemon.api.create("chain", r#"{"n":1}"#);
    client.reply(&client.take("double"), r#"{"n":1,"doubled":2}"#);
    client.await_count("add", 1);
    daemon.kill();

    daemon.write_workflows("workflows: [ { name: chain, steps: [ { name: only } ] } ]");
    daemon.start_again();
    let new = daemon.api.create("chain", r#"{"new":true}"#);
    client.reply(&client.take("add"), r#"{"n":1,"sum":3}"#);
    client.reply(&client.take("tell"), r#"{"n":1,"result":3}"#);
    assert_eq!(daemon.api.await_result(id), r#"{"n":1,"result":3}"#);
    client.reply(&client.take("only"), r#"{"new":"done"}"#);
    assert_eq!(daemon.api.await_result(new), r#"{"new":"done"}"#);
}

// ---- SIGTERM

#[test]
fn sigterm_under_load_ends_well_and_loses_nothing() {
    const GRACE: Duration = Duration::from_secs(10);
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, CHAIN).set("shutdown.grace", "10s").start();
    let worker = chain_worker(&vhost);
    let stopping = AtomicBool::new(false);
    let accepted_count = AtomicUsize::new(0);

    let accepted = thread::scope(|scope| {
        let poster = scope.spawn(|| {
            let mut accepted = Vec::new();
            for n in 0.. {
                let body = json!({ "n": n }).to_string();
                match daemon.api.try_send("POST", "/api/workflow/chain", &[], Some(body.as_bytes()))
                {
                    Ok(answer) if answer.status == 201 => accepted.push((n, answer.id())),
                    Ok(answer) => {
                        assert!(stopping.load(Ordering::SeqCst) && answer.status == 503, "{answer}")
                    }
                    Err(error) => {
                        assert!(
                            stopping.load(Ordering::SeqCst),
                            "the daemon gave no answer: {error}"
                        );
                        break;
                    }
                }
                accepted_count.store(accepted.len(), Ordering::SeqCst);
            }
            accepted
        });
        within(LONG, "there is load", || {
            let (jobs, messages) = (accepted_count.load(Ordering::SeqCst), worker.seen_count());
            when(
                (jobs >= 100 && messages >= 150) || poster.is_finished(),
                format!("{jobs} jobs, {messages} messages"),
            )
        });
        stopping.store(true, Ordering::SeqCst);
        daemon.ask_to_stop();
        poster.join().unwrap()
    });
    let begun = Instant::now();
    let status = daemon.await_end();
    assert_eq!(status.code(), Some(0));
    assert!(begun.elapsed() < GRACE + Duration::from_secs(2), "it took {:?}", begun.elapsed());

    daemon.start_again();
    for (n, id) in accepted {
        let result: Value = serde_json::from_str(&daemon.api.await_result(id)).unwrap();
        assert_eq!(result, chain_result(n));
    }
    vhost.await_drained(REPLY_QUEUE);
}

#[test]
fn sigterm_at_rest_ends_it_at_once() {
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, SINGLE).start();
    let begun = Instant::now();
    assert_eq!(daemon.stop().code(), Some(0));
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "nothing was to be waited for, yet it took {:?}",
        begun.elapsed()
    );
    let left: Vec<_> =
        std::fs::read_dir(daemon.dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        !left.iter().any(|name| name.to_string_lossy().ends_with("-wal")),
        "the journal was closed in order: {left:?}"
    );
}

// ---- queues and connections

#[test]
fn a_queue_that_was_deleted_is_declared_again_and_its_steps_are_dispatched_again() {
    const JOBS: u32 = 20;
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, SINGLE).start();
    let client = vhost.client();
    let mut ids: Vec<Uuid> = (0..JOBS).map(|_| daemon.api.create("single", "{}")).collect();

    // The daemon notices by the next message, which the broker returns as unroutable.
    client.await_count("work", JOBS);
    client.delete("work");
    ids.push(daemon.api.create("single", "{}"));
    client.await_count("work", JOBS + 1);

    // The daemon notices when it connects again.
    client.delete("work");
    vhost.close_connections();
    let client = vhost.client();
    client.await_count("work", JOBS + 1);

    let worker = Worker::echo(&vhost.url, &["work"]);
    for id in &ids {
        daemon.api.await_result(*id);
    }
    assert_eq!(
        worker.seen().iter().map(StepMessage::job).collect::<BTreeSet<_>>(),
        ids.into_iter().collect()
    );
}

#[test]
fn a_queue_that_was_deleted_while_the_daemon_was_down_is_noticed() {
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, SINGLE).start();
    let client = vhost.client();
    let ids: Vec<Uuid> = (0..5).map(|_| daemon.api.create("single", "{}")).collect();
    client.await_count("work", 5);
    assert!(daemon.stop().success());
    client.delete("work");
    daemon.start_again();
    client.await_count("work", 5);
    let _worker = Worker::echo(&vhost.url, &["work"]);
    for id in ids {
        daemon.api.await_result(id);
    }
}

#[test]
fn the_reply_queue_may_be_deleted() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, SINGLE).start();
    let client = vhost.client();
    client.delete(REPLY_QUEUE);
    eventually("the reply queue is there again with its consumer", || {
        let count = client.count(REPLY_QUEUE);
        when(matches!(count, Some((_, 1))), format!("{count:?}"))
    });
    let id = daemon.api.create("single", r#"{"k":1}"#);
    client.reply(&client.take("work"), r#"{"k":2}"#);
    assert_eq!(daemon.api.await_result(id), r#"{"k":2}"#);
}

#[test]
fn connections_that_break_again_and_again_lose_nothing() {
    const JOBS: usize = 100;
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, CHAIN).start();
    let worker = chain_worker(&vhost);
    let ids: Vec<Uuid> = thread::scope(|scope| {
        let api = &daemon.api;
        let poster = scope.spawn(move || {
            (0..JOBS)
                .map(|n| api.create("chain", &json!({ "n": n }).to_string()))
                .collect::<Vec<_>>()
        });
        for threshold in [JOBS / 2, JOBS, JOBS * 2] {
            within(LONG, "the jobs go on", || {
                let count = worker.seen_count();
                when(count >= threshold, format!("{count} of {threshold} messages"))
            });
            vhost.close_connections();
        }
        poster.join().unwrap()
    });
    for (n, id) in ids.into_iter().enumerate() {
        let result: Value = serde_json::from_str(&daemon.api.await_result(id)).unwrap();
        assert_eq!(result, chain_result(n));
    }
    eventually("the daemon is ready again", || {
        let answer = daemon.api.get("/readyz");
        when(answer.status == 200, &answer)
    });
}
