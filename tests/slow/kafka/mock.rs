//! What brokers refuse, for a time or for good: the mock cluster of the client library gives the
//! answers that no broker of the tests can be made to give. It creates no topics by itself, and
//! tells nothing of their settings.

use super::{Brokers, Worker, metric, setup};
use crate::harness::{Daemon, Setup, eventually, when};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use std::time::Duration;

const CHAIN: &str = "workflows: [ { name: chain, steps: [ { name: first, timeout: 1h }, \
                     { name: last, timeout: 1h, depends: [ first ] } ] } ]";

const REPLIES: &str = "workflow-manager";

/// The only broker.
const BROKER: i32 = 1;

struct Mock(MockCluster<'static, DefaultProducerContext>);

impl Mock {
    fn start() -> Mock {
        let mock = Mock(MockCluster::new(1).expect("it starts"));
        [REPLIES, "first", "last"].iter().for_each(|topic| mock.create(topic));
        mock
    }

    fn create(&self, topic: &str) {
        self.0.create_topic(topic, 1, 1).expect("created");
    }

    /// The next requests of this kind get these answers.
    fn refuse(&self, api: RDKafkaApiKey, errors: &[RDKafkaRespErr]) {
        self.0.request_errors(api, errors);
    }

    /// A daemon that sends in batches, as usual, for these brokers tell ends as they are; its looks
    /// at topics do not wait long for what they never tell.
    fn setup(&self) -> Setup {
        setup(self, CHAIN)
            .set("kafka.properties.batch_num_messages", "1000")
            .set("kafka.request_timeout", "1s")
    }

    fn worker(&self) -> Worker {
        Worker::start(self, &["first", "last"], |seen| Some(seen.body.clone()))
    }

    /// Replies to a step as a worker does.
    fn reply(&self, id: &str, body: &str) {
        self.write(REPLIES, Some(id.as_bytes()), &[], Some(body.as_bytes()));
    }
}

impl Brokers for Mock {
    fn servers(&self) -> String {
        self.0.bootstrap_servers()
    }
}

fn create(daemon: &Daemon, n: usize) -> uuid::Uuid {
    daemon.api.create("chain", &format!(r#"{{"n":{n}}}"#))
}

fn await_all(daemon: &Daemon, jobs: &[uuid::Uuid]) {
    for (n, job) in jobs.iter().enumerate() {
        assert_eq!(daemon.api.await_result(*job), format!(r#"{{"n":{n}}}"#));
    }
}

#[test]
fn what_is_refused_for_a_time_is_taken_once_it_is_not() {
    use RDKafkaRespErr::{
        RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE, RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT, RD_KAFKA_RESP_ERR_THROTTLING_QUOTA_EXCEEDED,
    };
    let mock = Mock::start();
    let daemon = mock.setup().start();
    let errors = [
        RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE,
        RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        RD_KAFKA_RESP_ERR_THROTTLING_QUOTA_EXCEEDED,
    ];
    mock.refuse(RDKafkaApiKey::Produce, &errors);
    let jobs: Vec<_> = (0..20).map(|n| create(&daemon, n)).collect();
    eventually("all are written", || when(mock.written("first") >= 20, mock.written("first")));
    let _worker = mock.worker();
    await_all(&daemon, &jobs);
    assert_eq!(mock.written("first"), 20, "none was doubled by a refusal");
}

#[test]
fn what_brokers_refuse_for_good_costs_its_attempt_and_no_other() {
    use RDKafkaRespErr::{
        RD_KAFKA_RESP_ERR_INVALID_RECORD, RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE,
        RD_KAFKA_RESP_ERR_POLICY_VIOLATION,
    };
    let mock = Mock::start();
    let daemon = mock.setup().start();
    let large = format!(r#"{{"text":"{}"}}"#, "x".repeat(200_000));
    let size: &[&str] = &[
        "the step message has 200",
        "more than the topic first takes, although the setting message_bytes_max is 1048576",
        "raise the topic's max.message.bytes, or pass large data by reference",
    ];
    let refused: &[&str] = &["the broker refuses the step message"];
    for (error, message, told) in [
        (RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE, large.as_str(), size),
        (RD_KAFKA_RESP_ERR_INVALID_RECORD, "{}", refused),
        (RD_KAFKA_RESP_ERR_POLICY_VIOLATION, "{}", refused),
    ] {
        mock.refuse(RDKafkaApiKey::Produce, &[error]);
        let job = daemon.api.create("chain", message);
        let failed = daemon.api.await_state(job, "failed").text;
        assert!(told.iter().all(|words| failed.contains(words)), "{error:?}: {failed}");
    }
    let _worker = mock.worker();
    let jobs: Vec<_> = (0..5).map(|n| create(&daemon, n)).collect();
    await_all(&daemon, &jobs);
    assert_eq!(mock.written("first"), 5, "no other was lost or doubled");
}

/// A batch of small messages may be too large, where the broker's limit is below it.
#[test]
fn small_messages_that_were_in_a_batch_that_is_too_large_are_sent_again() {
    use RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE as TOO_LARGE;
    let mock = Mock::start();
    let daemon = mock.setup().start();
    mock.refuse(RDKafkaApiKey::Produce, &[TOO_LARGE, TOO_LARGE]);
    let jobs: Vec<_> = (0..5).map(|n| create(&daemon, n)).collect();
    eventually("all are written", || when(mock.written("first") == 5, mock.written("first")));
    let _worker = mock.worker();
    await_all(&daemon, &jobs);
}

#[test]
fn a_topic_that_may_not_be_written_is_told_until_it_may() {
    use RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    let mock = Mock::start();
    let daemon = mock.setup().set("kafka.checked_every", "5s").start();
    mock.refuse(RDKafkaApiKey::Produce, &[RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED]);
    let job = create(&daemon, 0);
    eventually("readiness says why", || {
        let answer = daemon.api.get("/readyz?verbose");
        when(answer.status == 503 && answer.text.contains("the brokers refuse"), &answer)
    });
    // It is tried again when the topic is looked at.
    let _worker = mock.worker();
    await_all(&daemon, &[job]);
    eventually("it is ready", || {
        let answer = daemon.api.get("/readyz");
        when(answer.status == 200, &answer)
    });
}

#[test]
fn a_producer_that_cannot_go_on_is_replaced_until_one_can() {
    use RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED;
    let mock = Mock::start();
    let refusals = [RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED; 1_000];
    mock.refuse(RDKafkaApiKey::InitProducerId, &refusals);
    let daemon = mock.setup().launch();
    let job = create(&daemon, 0);
    eventually("readiness says why", || {
        let answer = daemon.api.get("/readyz?verbose");
        let told = answer.text.contains("the brokers reject the producer");
        when(answer.status == 503 && told, &answer)
    });
    daemon.await_log(&["the producer is replaced by a new one"]);
    mock.0.clear_request_errors(RDKafkaApiKey::InitProducerId);
    let _worker = mock.worker();
    await_all(&daemon, &[job]);
    eventually("it is ready", || {
        let answer = daemon.api.get("/readyz");
        when(answer.status == 200, &answer)
    });
}

/// These brokers create no topics, as those that do not let the manager.
#[test]
fn topics_that_are_missing_and_cannot_be_created_are_told_and_others_go_on() {
    let mock = Mock(MockCluster::new(1).expect("it starts"));
    mock.create("first");
    let daemon = mock.setup().launch();
    let told = |words: &str| {
        eventually(words, || {
            let answer = daemon.api.get("/readyz?verbose");
            when(answer.status == 503 && answer.text.contains(words), &answer)
        });
    };
    told("the reply topic workflow-manager is missing and cannot be created");
    mock.create(REPLIES);
    told("the topic last is missing and cannot be created");
    let job = create(&daemon, 0);
    mock.reply(&format!("{job}:first"), r#"{"n":0}"#);
    eventually("why says why", || {
        let why = daemon.api.get(&format!("/api/job/{job}/why"));
        when(why.text.contains("is not sent: the topic last is missing"), &why)
    });
    mock.create("last");
    let _worker = mock.worker();
    await_all(&daemon, &[job]);
}

/// Nothing is given up because the answers are late; what was taken twice counts once.
#[test]
fn answers_that_come_too_late_lose_nothing() {
    let mock = Mock::start();
    let daemon = mock.setup().set("kafka.properties.socket_timeout_ms", "300").start();
    // The topic is known by then.
    let mut jobs = vec![create(&daemon, 0)];
    eventually("it is written", || when(mock.written("first") == 1, mock.written("first")));
    mock.0.broker_round_trip_time(BROKER, Duration::from_millis(700)).expect("set");
    jobs.extend((1..10).map(|n| create(&daemon, n)));
    // No request is answered in time any more, whatever becomes of it.
    daemon.await_log(&["not connected to the brokers"]);
    mock.0.broker_round_trip_time(BROKER, Duration::ZERO).expect("set");
    let _worker = mock.worker();
    await_all(&daemon, &jobs);
}

#[test]
fn errors_of_reading_lose_no_reply_and_repeat_none() {
    use RDKafkaRespErr::{
        RD_KAFKA_RESP_ERR_BROKER_NOT_AVAILABLE, RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR,
        RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION, RD_KAFKA_RESP_ERR_OFFSET_NOT_AVAILABLE,
        RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE, RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
        RD_KAFKA_RESP_ERR_UNKNOWN, RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
    };
    let mock = Mock::start();
    let daemon = mock.setup().start();
    let mut jobs = Vec::new();
    for (n, error) in [
        RD_KAFKA_RESP_ERR_UNKNOWN,
        RD_KAFKA_RESP_ERR_BROKER_NOT_AVAILABLE,
        RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR,
        RD_KAFKA_RESP_ERR_OFFSET_NOT_AVAILABLE,
        RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
        RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
        RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE,
    ]
    .into_iter()
    .enumerate()
    {
        let job = create(&daemon, n);
        mock.refuse(RDKafkaApiKey::Fetch, &[error, error]);
        for step in ["first", "last"] {
            mock.reply(&format!("{job}:{step}"), &format!(r#"{{"n":{n}}}"#));
            eventually(&format!("{step} is read after {error:?}"), || {
                let found = daemon.api.job(job);
                when(
                    found.text.contains(&format!(r#""name":"{step}","state":"completed""#)),
                    found.text,
                )
            });
        }
        jobs.push(job);
    }
    await_all(&daemon, &jobs);
    assert_eq!(metric(&daemon, "workflow_replies_rejected_total"), 0);
}

#[test]
fn brokers_that_go_and_come_lose_nothing_and_positions_hold() {
    const ROUNDS: usize = 4;
    const EACH: usize = 10;
    let mock = Mock::start();
    let mut daemon = mock.setup().start();
    let mut worker = mock.worker();
    let mut jobs = Vec::new();
    for round in 0..ROUNDS {
        let first = jobs.len();
        jobs.extend((first..first + EACH).map(|n| create(&daemon, n)));
        mock.0.broker_down(BROKER).expect("down");
        eventually("it is not connected", || {
            let answer = daemon.api.get("/readyz?verbose");
            when(answer.text.contains("not connected"), &answer)
        });
        jobs.extend((first + EACH..first + 2 * EACH).map(|n| create(&daemon, n)));
        if round % 2 == 1 {
            daemon.kill();
            daemon.spawn_again();
            daemon.await_alive();
        }
        mock.0.broker_up(BROKER).expect("up");
    }
    await_all(&daemon, &jobs);
    worker.end();
    worker = mock.worker();
    let last = create(&daemon, 0);
    await_all(&daemon, &[last]);
    worker.end();
    assert!(daemon.stop().success());
    daemon.start_again();
    eventually("it is ready", || {
        let answer = daemon.api.get("/readyz");
        when(answer.status == 200, &answer)
    });
    assert_eq!(metric(&daemon, "workflow_replies_rejected_total"), 0, "nothing is read again");
}
