//! Messages that a queue has lost: what the manager says about them, and how they are sent again,
//! by hand and by the manager.

use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::amqp::{Vhost, Worker, arguments};
use crate::harness::{Daemon, Ran, Setup, command, eventually, run, when};
use crate::tokens::new_token;

const TWO: &str = "
workflows:
  - name: plain
    steps: [ { name: work } ]
  - name: fan
    steps: [ { name: each, task: t } ]
    tasks: [ { name: t, itemListKey: items, steps: [ { name: part, queue: work } ] } ]
  - { name: calling, steps: [ { name: call, queue: workflow.called } ] }
  - { name: called, steps: [ { name: sign, external: true } ] }
";

fn client(daemon: &Daemon, arguments: &[&str]) -> Ran {
    run(command().args(arguments).args(["--server", &daemon.url()]))
}

/// The queue is deleted, and a worker that begins declares it before the manager notices: its
/// messages are gone.
fn lose(vhost: &Vhost, queue: &str, messages: u32) {
    let client = vhost.client();
    client.await_count(queue, messages);
    client.delete(queue);
    client.declare(queue, arguments([]));
    client.await_count(queue, 0);
}

fn await_why(daemon: &Daemon, id: Uuid, cause: &str, words: &[&str]) {
    eventually(&format!("why {id}: {cause}"), || {
        let told = daemon.api.get(&format!("/api/job/{id}/why")).expect(200);
        let json = told.json();
        when(
            json["cause"] == cause
                && words
                    .iter()
                    .all(|word| json["why"].as_str().is_some_and(|why| why.contains(word))),
            told,
        )
    });
}

#[test]
fn what_a_deleted_queue_has_lost_is_sent_again_by_step_and_by_queue_child_jobs_included() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, TWO).start();
    let ids = [daemon.api.create("plain", "{}"), daemon.api.create("plain", "{}")];
    let fan = daemon.api.create("fan", r#"{"items":[1,2,3]}"#);
    // They are journaled as confirmed: only then can they be sent again.
    eventually("all are confirmed", || {
        let dry = daemon.api.post("/api/queue/work/redispatch?dryRun=true", "").expect(200).json();
        when(
            dry["steps"] == json!(5) && dry["jobs"] == json!(5) && dry["dryRun"] == json!(true),
            &dry,
        )
    });
    lose(&vhost, "work", 5);
    let first = ids[0].to_string();
    await_why(
        &daemon,
        ids[0],
        "no_consumer",
        &["no message in it", "workflow-manager redispatch", &first],
    );
    let worker = Worker::echo(&vhost.url, &["work"]);
    // Without the management API nobody can tell whether a worker has it: then the answer does not
    // say so.
    await_why(
        &daemon,
        ids[0],
        "working",
        &["most likely", "amqp.management", "lost with its queue", "workflow-manager redispatch"],
    );

    let sent = client(&daemon, &["redispatch", &first, "work"]);
    assert!(
        sent.code == Some(0)
            && sent.stdout.contains("as attempt 1")
            && sent.stdout.contains(&first),
        "{sent}"
    );
    daemon.api.await_result(ids[0]);
    assert_eq!(daemon.api.job(ids[1]).state, "running");
    let again = client(&daemon, &["redispatch", &first, "work"]);
    assert!(
        again.code == Some(1)
            && again.stderr.contains("409")
            && again.stderr.contains("is completed"),
        "{again}"
    );

    let dry = client(&daemon, &["redispatch", "--queue", "work", "--dry-run"]);
    assert!(
        dry.stdout.contains("4 step messages of 4 jobs would be sent again; nothing was done"),
        "{dry}"
    );
    assert_eq!(worker.seen_count(), 1);
    let all = client(&daemon, &["redispatch", "--queue", "work"]);
    assert!(
        all.code == Some(0) && all.stdout.contains("4 step messages of 4 jobs sent again"),
        "{all}"
    );
    daemon.api.await_result(ids[1]);
    assert_eq!(daemon.api.await_result(fan), r#"{"items":[1,2,3]}"#);
    assert_eq!(
        daemon.api.post("/api/queue/work/redispatch", "").expect(200).json()["steps"],
        json!(0)
    );

    daemon
        .api
        .post("/api/queue/wrk/redispatch", "")
        .expect_problem(404, &["no step waits on queue wrk", "did you mean \"work\"?"]);
    daemon
        .api
        .post("/api/queue/work/redispatch?vhost=x", "")
        .expect_problem(404, &["of virtual host x"]);
    daemon
        .api
        .post("/api/queue/work/redispatch?dry=true", "")
        .expect_problem(400, &["unknown parameter \"dry\""]);
    for wrong in [
        &["redispatch"][..],
        &["redispatch", &first],
        &["redispatch", &first, "work", "--queue", "work"],
        &["redispatch", "--dry-run"],
    ] {
        assert_eq!(client(&daemon, wrong).code, Some(2), "{wrong:?}");
    }
}

#[cfg(feature = "failpoints")]
/// What was asked of a job, as its record has it: operation, step, reason, and by whom.
fn asked(daemon: &Daemon, id: Uuid) -> Vec<[Value; 4]> {
    let record = daemon.api.get(&format!("/api/job/{id}/entries")).expect(200).json();
    let entries = record["entries"].as_array().unwrap().clone();
    let asked = entries.into_iter().filter(|entry| entry["kind"] == "job.asked");
    asked.map(|entry| ["operation", "step", "reason", "by"].map(|key| entry[key].clone())).collect()
}

#[test]
fn the_record_of_each_job_says_who_had_its_queue_sent_again_and_why() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.yaml");
    let token = new_token(&file, "ada", "admin");
    let vhost = Vhost::new();
    let mut daemon =
        Setup::new(&vhost.url, TWO).set("http.tokens_file", file.to_str().unwrap()).start();
    daemon.api = daemon.api.with_token(Some(&token));
    let (plain, other) = (daemon.api.create("plain", "{}"), daemon.api.create("plain", "{}"));
    let queue = "/api/queue/work/redispatch";
    eventually("both are confirmed", || {
        let dry =
            daemon.api.post(&format!("{queue}?dryRun=true&reason=why"), "").expect(200).json();
        when(dry["steps"] == json!(2), dry)
    });
    let sent = run(command()
        .args(["redispatch", "--queue", "work", "--reason", "it was purged"])
        .args(["--server", &daemon.url(), "--token", &token]));
    assert_eq!(sent.code, Some(0), "{sent}");
    for id in [plain, other] {
        let told = [json!("redispatch"), json!("work"), json!("it was purged"), json!("ada")];
        assert_eq!(asked(&daemon, id), [told], "and the dry run left nothing");
    }
    let long = "x".repeat(201);
    let told = daemon.api.post(&format!("{queue}?reason={long}"), "");
    told.expect_problem(400, &["reason has 201 characters"]);
}

#[test]
fn a_redispatch_that_a_crash_cut_off_goes_out_after_the_restart() {
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, TWO).start();
    let id = daemon.api.create("plain", "{}");
    eventually("it is confirmed", || {
        let dry = daemon.api.post("/api/queue/work/redispatch?dryRun=true", "").expect(200).json();
        when(dry["steps"] == json!(1), &dry)
    });
    eventually("its confirm is journaled", || {
        let journal =
            Connection::open_with_flags(daemon.database(), OpenFlags::SQLITE_OPEN_READ_ONLY)
                .unwrap();
        let sql = "SELECT count(*) FROM (SELECT body || coalesce(confirms, '') AS body \
                   FROM entries
                     UNION ALL SELECT body FROM confirmed) WHERE body LIKE '%\"confirmed\"%'";
        let confirmed: i64 = journal.query_row(sql, [], |row| row.get(0)).unwrap();
        when(confirmed > 0, confirmed)
    });
    daemon.set_faults(Some("outbox::dispatch=return(abort)"));
    daemon.kill();
    // While nobody looks: otherwise the daemon may find the queue missing and send the message by
    // itself.
    lose(&vhost, "work", 1);
    daemon.start_again();
    drop(daemon.api.try_send(
        "POST",
        &format!("/api/job/{id}/step/work/redispatch"),
        &[],
        Some(b""),
    ));
    daemon.await_end();
    daemon.set_faults(None);
    daemon.start_again();
    let _worker = Worker::echo(&vhost.url, &["work"]);
    daemon.api.await_result(id);
}

fn with_management(vhost: &Vhost) -> Setup {
    // The test broker's statistics are a second old.
    Setup::new(&vhost.url, TWO)
        .set("amqp.management", &vhost.management_url("guest:guest"))
        .set("amqp.lost_after", "8s")
}

#[test]
fn where_the_management_api_tells_it_is_said_that_messages_are_lost() {
    let vhost = Vhost::new();
    let daemon = with_management(&vhost).start();
    let ids = [daemon.api.create("plain", "{}"), daemon.api.create("plain", "{}")];
    // Its message is acknowledged before the reply: that is no loss.
    let calling = daemon.api.create("calling", "{}");
    await_why(&daemon, calling, "working", &["the workflow \"called\" has it"]);
    let consumer = vhost.client();
    lose(&vhost, "work", 2);
    // A message that a worker has is not lost.
    let held = daemon.api.create("plain", "{}");
    let message = consumer.take("work");
    assert_eq!(message.job(), held);
    let _worker = Worker::start(&vhost.url, &["work"], |_| crate::amqp::Answer::Silence);
    await_why(
        &daemon,
        ids[0],
        "lost",
        &["held at most 1 message", "3 steps wait", "workflow-manager redispatch", "--queue work"],
    );
    let metrics = daemon.api.get("/metrics").expect(200).text;
    assert!(
        metrics.contains("workflow_queue_messages_lost{bus=\"amqp\",queue=\"work\",vhost=\"\"} 2"),
        "{metrics}"
    );
    assert!(!metrics.contains("queue=\"workflow.called\""), "{metrics}");
    await_why(&daemon, calling, "working", &["the workflow \"called\" has it"]);
    daemon.await_log(&["warn", "the queue has lost messages"]);
    assert_eq!(
        daemon.api.job(ids[0]).state,
        "running",
        "nothing is sent again that was not asked for"
    );
}

#[test]
fn with_the_setting_what_is_lost_is_sent_again_by_itself() {
    let vhost = Vhost::new();
    let daemon = with_management(&vhost).set("amqp.redispatch_lost", "true").start();
    let id = daemon.api.create("plain", "{}");
    let fan = daemon.api.create("fan", r#"{"items":[1,2]}"#);
    lose(&vhost, "work", 3);
    let worker = Worker::echo(&vhost.url, &["work"]);
    daemon.api.await_result(id);
    assert_eq!(daemon.api.await_result(fan), r#"{"items":[1,2]}"#);
    assert!(
        worker.seen().iter().all(|message| message.message_id().ends_with(":1")),
        "as the same attempts"
    );
    let why = asked(&daemon, id).pop().unwrap();
    assert!(why[2].as_str().is_some_and(|why| why.contains("amqp.redispatch_lost")), "{why:?}");
    let metrics = daemon.api.get("/metrics").expect(200).text;
    assert!(
        metrics.contains("workflow_steps_redispatched_total{step=\"work\",workflow=\"plain\"} 1"),
        "{metrics}"
    );
}

#[test]
fn what_is_lost_of_jobs_at_rest_is_told_and_sent_again() {
    let vhost = Vhost::new();
    let daemon = with_management(&vhost)
        .set("amqp.redispatch_lost", "true")
        // Whatever only waits rests.
        .set("limits.jobs_bytes_max", "1")
        .start();
    let ids = [1, 2].map(|number| {
        eventually("the one before rests", || {
            let body = format!("{{\"n\":{number}}}");
            let answer = daemon.api.post("/api/workflow/plain", &body);
            if answer.status == 201 { Ok(answer.id()) } else { Err(answer.text) }
        })
    });
    eventually("both are at rest", || {
        let metrics = daemon.api.get("/metrics").expect(200).text;
        when(metrics.contains("\nworkflow_jobs_at_rest 2\n"), metrics)
    });
    lose(&vhost, "work", 2);
    daemon.await_log(&["warn", "the queue has lost messages", "\"waiting\":2"]);
    let _worker = Worker::echo(&vhost.url, &["work"]);
    for id in ids {
        daemon.api.await_result(id);
        let why = asked(&daemon, id).pop().unwrap();
        assert!(why[2].as_str().is_some_and(|why| why.contains("amqp.redispatch_lost")), "{why:?}");
    }
}

#[test]
fn each_queue_is_told_with_what_the_broker_says_of_it() {
    let vhost = Vhost::new();
    let daemon = with_management(&vhost).start();
    let _worker = Worker::start(&vhost.url, &["workflow.called"], |_| crate::amqp::Answer::Silence);
    for _ in 0..3 {
        daemon.api.create("plain", "{}");
    }
    let client = vhost.client();
    client.take("work");
    eventually("a worker has one, two wait, and nobody consumes", || {
        let told = daemon.api.get("/api/queues").expect(200).json();
        let queues = told["queues"].as_array().expect("a list");
        let work = queues.iter().find(|queue| queue["queue"] == "work").expect("it is used");
        let counts = ["messages", "unacknowledged", "consumers"].map(|key| work[key].as_u64());
        let uses = json!([{"workflow": "fan", "task": "t", "step": "part"},
                          {"workflow": "plain", "step": "work"}]);
        when(counts == [Some(2), Some(1), Some(0)] && work["usedBy"] == uses, &told)
    });
    client.delete("work");
    eventually("the queue is declared again, and has the messages of all three", || {
        let told = daemon.api.get("/api/queues").expect(200).json();
        let queues = told["queues"].as_array().expect("a list");
        let work = queues.iter().find(|queue| queue["queue"] == "work").expect("it is used");
        let counts = ["messages", "unacknowledged", "consumers"].map(|key| work[key].as_u64());
        when(counts == [Some(3), Some(0), Some(0)], &told)
    });
}
