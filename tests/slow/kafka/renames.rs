//! A rename of a step, of its queue or of its workflow, while a job runs: the job goes on over the
//! topics that its own definition names.

use super::{Broker, Brokers, Worker, setup};
use crate::harness::{eventually, when};
use std::collections::BTreeSet;

/// The workflow, its first step, the topic of that, its last step.
fn workflows(workflow: &str, first: &str, topic: &str, last: &str) -> String {
    format!(
        "workflows: [ {{ name: {workflow}, steps: [ \
         {{ name: {first}, queue: {topic}, timeout: 1h }}, \
         {{ name: {last}, timeout: 1h, depends: [ {first} ] }} ] }} ]"
    )
}

#[test]
fn a_job_goes_on_over_its_own_topics_when_a_reload_has_renamed_them() {
    for (what, [workflow, first, topic, last], restarts) in [
        ("the queue", ["w", "first", "other", "last"], false),
        ("the steps", ["w", "begin", "old", "end"], true),
        ("the workflow", ["v", "first", "old", "last"], false),
        ("all", ["v", "begin", "other", "end"], true),
    ] {
        let broker = Broker::start();
        let mut daemon = setup(&broker, &workflows("w", "first", "old", "last")).start();
        let waiting = daemon.api.create("w", r#"{"n":1}"#);
        eventually("its message is in the topic", || {
            let written = broker.partitions("old").map_or(0, |_| broker.written("old"));
            when(written == 1, written)
        });
        daemon.write_workflows(&workflows(workflow, first, topic, last));
        daemon.api.post("/api/reload", "").expect(200);
        let fresh = daemon.api.create(workflow, r#"{"n":2}"#);
        eventually("its message is in its topic", || {
            let written = broker.partitions(topic).map_or(0, |_| broker.written(topic));
            when(written == if topic == "old" { 2 } else { 1 }, written)
        });
        if restarts {
            daemon.stop();
            daemon.start_again();
        }

        // The step behind the first is sent after the reload, by the definition from before.
        let topics = BTreeSet::from(["old", "last", topic, last]);
        let topics: Vec<&str> = topics.into_iter().collect();
        let worker = Worker::start(&broker, &topics, |seen| Some(seen.body.clone()));
        assert_eq!(daemon.api.await_result(waiting), r#"{"n":1}"#, "{what}");
        assert_eq!(daemon.api.await_result(fresh), r#"{"n":2}"#, "{what}");
        let seen = worker.end();
        for (job, steps) in [(waiting, ["first", "last"]), (fresh, [first, last])] {
            for step in steps {
                let key = format!("{job}:{step}");
                let count = seen.iter().filter(|seen| seen.key == key.as_bytes()).count();
                assert_eq!(count, 1, "{what}: the message of {key} is sent once");
            }
        }
    }
}
