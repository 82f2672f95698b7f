//! Topics that are not as they should be: missing, deleted, made anew, kept for too short a time.

use super::{Broker, Brokers, Places, Worker, position, setup};
use crate::harness::{command, eventually, run, when};

const CHAIN: &str = "workflows: [ { name: chain, steps: [ { name: first, timeout: 1h }, \
                     { name: last, timeout: 1h, depends: [ first ] } ] } ]";

/// Gives back what it gets. It joins no group: with one whose member comes before its topic, the
/// broker of the tests may never come to an end.
fn echo(broker: &Broker, topics: &[&str]) -> Worker {
    Worker::alone(broker, topics, &Places::default(), |seen| Some(seen.body.clone()))
}

#[test]
fn a_topic_that_keeps_messages_for_less_than_a_step_waits_gets_none_and_others_go_on() {
    let broker = Broker::start();
    broker.create("short", 1, &[("retention.ms", "60000")]);
    let both = "workflows: [ { name: w, steps: [ { name: short, timeout: 1h } ] }, \
                { name: other, steps: [ { name: long, timeout: 1h } ] }, \
                { name: here, bus: embedded, steps: [ { name: local, timeout: 1h } ] } ]";
    let daemon = setup(&broker, both).launch();
    eventually("readiness says why", || {
        let answer = daemon.api.get("/readyz?verbose");
        let told = answer.status == 503
            && answer.text.contains("the topic short keeps messages for 1m")
            && answer.text.contains("retention.ms to 3600000");
        when(told, &answer)
    });
    let job = daemon.api.create("w", r#"{"n":1}"#);
    eventually("why says why", || {
        let why = daemon.api.get(&format!("/api/job/{job}/why"));
        when(why.text.contains("is not sent: the topic short keeps messages"), &why)
    });
    assert_eq!(broker.written("short"), 0);
    // The other queues of the bus, and other buses, go on.
    let _worker = Worker::start(&broker, &["long"], |seen| Some(seen.body.clone()));
    let other = daemon.api.create("other", r#"{"n":2}"#);
    assert_eq!(daemon.api.await_result(other), r#"{"n":2}"#);
    // The topic is mended, here by another one: the message goes out.
    broker.delete("short");
    eventually("it is written", || when(broker.written("short") == 1, broker.written("short")));
    let _worker = Worker::start(&broker, &["short"], |seen| Some(seen.body.clone()));
    assert_eq!(daemon.api.await_result(job), r#"{"n":1}"#);
    eventually("it is ready", || {
        let answer = daemon.api.get("/readyz");
        when(answer.status == 200, &answer)
    });
}

#[test]
fn messages_that_were_in_a_topic_that_is_deleted_are_sent_again() {
    let broker = Broker::start();
    let daemon = setup(&broker, CHAIN).start();
    let jobs: Vec<_> =
        (0..20).map(|n| daemon.api.create("chain", &format!(r#"{{"n":{n}}}"#))).collect();
    eventually("all are written", || when(broker.written("first") == 20, broker.written("first")));
    broker.delete("first");
    eventually("all are written again", || {
        when(broker.written("first") >= 20, broker.written("first"))
    });
    let _worker = Worker::start(&broker, &["first", "last"], |seen| Some(seen.body.clone()));
    for (n, job) in jobs.into_iter().enumerate() {
        assert_eq!(daemon.api.await_result(job), format!(r#"{{"n":{n}}}"#));
    }
}

/// The broker forgets step messages that wait, replies that were not read, and every topic.
#[test]
fn a_broker_that_forgets_everything_loses_no_job() {
    let mut broker = Broker::start();
    let daemon = setup(&broker, CHAIN).start();
    let create = |n: usize| daemon.api.create("chain", &format!(r#"{{"n":{n}}}"#));
    let before: Vec<_> = (0..20).map(create).collect();
    {
        let _worker = echo(&broker, &["first"]);
        eventually("all are at their second step", || {
            when(broker.written("last") == 20, broker.written("last"))
        });
    }
    broker.stop();
    eventually("it is not connected", || {
        let answer = daemon.api.get("/readyz?verbose");
        when(answer.status == 503 && answer.text.contains("not connected"), &answer)
    });
    let while_away: Vec<_> = (20..30).map(create).collect();
    broker.start_again();
    let _worker = echo(&broker, &["first", "last"]);
    for (n, job) in before.into_iter().chain(while_away).enumerate() {
        assert_eq!(daemon.api.await_result(job), format!(r#"{{"n":{n}}}"#));
    }
}

/// Replies that were to be read are gone with their topic, whether it is there again or not.
#[test]
fn steps_whose_replies_are_gone_before_they_were_read_are_sent_again() {
    let replies = "workflow-manager";
    let broker = Broker::start();
    let mut daemon = setup(&broker, CHAIN).start();
    let places = Places::default();
    let work =
        |topic: &str| Worker::alone(&broker, &[topic], &places, |seen| Some(seen.body.clone()));
    for is_made_anew in [true, false] {
        let read = daemon.api.create("chain", r#"{"n":0}"#);
        let (first, last) = (work("first"), work("last"));
        assert_eq!(daemon.api.await_result(read), r#"{"n":0}"#);
        first.end();
        eventually("the position is behind the replies", || {
            let found = (position(&daemon), broker.written(replies));
            when(found.0 == found.1, format!("{found:?}"))
        });
        let before = broker.written("first");
        let job = daemon.api.create("chain", r#"{"n":1}"#);
        eventually("it is written", || when(broker.written("first") == before + 1, "not yet"));
        assert!(daemon.stop().success());
        let given = broker.written(replies);
        let worker = work("first");
        eventually("the reply is there", || when(broker.written(replies) == given + 1, "not yet"));
        worker.end();
        broker.delete(replies);
        if is_made_anew {
            broker.create(replies, 1, &[]);
        }
        daemon.start_again();
        let _first = work("first");
        assert_eq!(daemon.api.await_result(job), r#"{"n":1}"#, "{is_made_anew}");
        assert_eq!(broker.written("first"), before + 2, "{is_made_anew}: it was sent again");
        drop(last);
    }
}

/// What the journal says was written tells a manager that starts that the broker has forgotten it.
#[test]
fn a_broker_that_forgot_while_the_manager_was_away_is_found_out_at_the_start() {
    let mut broker = Broker::start();
    let mut daemon = setup(&broker, CHAIN).start();
    let job = daemon.api.create("chain", r#"{"n":1}"#);
    eventually("it is written", || when(broker.written("first") == 1, broker.written("first")));
    assert!(daemon.stop().success());
    broker.start_again();
    // Made anew by somebody else: nothing is missing but the message.
    broker.create("first", 12, &[]);
    daemon.start_again();
    let _worker = echo(&broker, &["first", "last"]);
    assert_eq!(daemon.api.await_result(job), r#"{"n":1}"#);
}

#[test]
fn doctor_looks_at_brokers_and_topics() {
    let mut broker = Broker::start();
    broker.create("short", 1, &[("retention.ms", "60000")]);
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let settings = |request_timeout: &str| {
        let (journal, server) = (path("journal.db"), broker.servers());
        let settings = format!(
            "bus: kafka\njournal: {{ file: '{}' }}\n\
             kafka: {{ servers: [ '{server}' ], request_timeout: {request_timeout} }}\n",
            journal.display()
        );
        std::fs::write(path("settings.yaml"), settings).expect("written");
    };
    settings("1m");
    let workflows = "workflows: [ { name: w, steps: [ { name: short, timeout: 1h }, \
                     { name: absent, timeout: 1h } ] } ]";
    std::fs::write(path("workflows.yaml"), workflows).expect("written");
    let doctor = || {
        let mut asked = command();
        asked.arg("doctor").arg("--config").arg(path("settings.yaml"));
        run(asked.arg("--workflows").arg(path("workflows.yaml")))
    };
    let told = doctor();
    for words in ["the brokers answer", "topic \"short\"", "keeps messages for 1m", "absent"] {
        assert!(told.stdout.contains(words), "{words}: {told}");
    }
    assert!(!told.stdout.contains("no broker is set"), "{told}");
    assert!(told.stdout.contains(r#""absent" and "workflow-manager" not there yet"#), "{told}");
    assert_eq!(told.code, Some(1), "{told}");
    // What is missing is made by the manager, and no trouble.
    broker.delete("short");
    let told = doctor();
    assert!(
        told.stdout.contains(r#""absent", "short" and "workflow-manager" not there yet"#),
        "{told}"
    );
    for topic in ["short", "absent", "workflow-manager"] {
        broker.create(topic, 1, &[]);
    }
    let told = doctor();
    assert!(told.stdout.contains("all are there, and keep messages long enough"), "{told}");
    settings("2s");
    broker.stop();
    let told = doctor();
    assert!(told.stdout.contains("servers and properties"), "{told}");
    assert!(!told.stdout.contains("no broker is set"), "{told}");
}
