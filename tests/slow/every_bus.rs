//! One suite for every bus: the manager in this process, on the embedded bus with workers in the
//! process and over gRPC, on RabbitMQ and with web services that it calls, with the same workflows
//! and the same workers.

use std::path::Path;
use workflow_manager::api::state::ApiState;

use bytes::Bytes;
use std::sync::{Arc, Mutex};
use workflow_manager::actors::bus_starter::{BusOptions, settings_bus_provider};
use workflow_manager::actors::manager::{self, Manager};
use workflow_manager::bus::embedded::{WorkerError, Workers};
use workflow_manager::bus::{
    Address, Addressee, BusEvent, BusKey, ConfirmPayload, ConfirmToken, EventSink, Header,
    Lifetime, Publication, ServedQueues,
};
use workflow_manager::engine::{Job, JobId, JobState, Message};
use workflow_manager::grpc::GrpcServer;
use workflow_manager::load::load_text;
use workflow_manager::settings::{
    AmqpSection, BusSettings, EndpointSettings, PushBusSection, ServerAddresses, Settings,
};
#[cfg(feature = "kafka")]
use {std::time::Duration, workflow_manager::settings::DurationSetting};

use crate::amqp::{Answer, Vhost, Worker};
use crate::grpc::{self, Remote};
use crate::harness::eventually;
#[cfg(feature = "kafka")]
use crate::kafka::{self, Brokers};
use crate::load::LONG;
use support::service::{self, Service};

const WORKFLOWS: &str = "
workflows:
  - name: chain
    steps: [ { name: echo }, { name: mark, depends: [ echo ] }, \
        { name: last, queue: echo, depends: [ mark ] } ]
  - name: diamond
    steps:
      - { name: top, queue: echo }
      - { name: left, queue: left, depends: [ top ] }
      - { name: right, queue: right, depends: [ top ] }
      - { name: both, queue: echo, depends: [ right, left ] }
  - name: fan
    steps: [ { name: each, task: item } ]
    tasks:
      - { name: item, itemListKey: items, steps: [ { name: mark }, \
          { name: inner, task: part, depends: [ mark ] } ] }
      - { name: part, itemListKey: parts, steps: [ { name: echo } ] }
  - name: bad
    steps: [ { name: no-object } ]
  - name: held
    steps: [ { name: gate }, { name: echo, depends: [ gate ] } ]
";

const QUEUES: [&str; 6] = ["echo", "mark", "left", "right", "no-object", "gate"];

/// The workers, for every bus the same.
fn work(queue: &str, body: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(body).unwrap();
    let with = |pair: &str| {
        if text == "{}" {
            format!("{{{pair}}}")
        } else {
            format!("{},{pair}}}", &text[..text.len() - 1])
        }
    };
    let output = match queue {
        "mark" => with(r#""marked":1.50"#),
        "left" | "right" => format!(r#"{{"from":"{queue}","only_{queue}":[1,  2]}}"#),
        "no-object" => "[1]".to_owned(),
        _ => text.to_owned(),
    };
    output.into_bytes()
}

/// The transports, each with its workers.
enum Transport {
    Embedded,
    Grpc,
    Amqp(Vhost),
    Push,
    #[cfg(feature = "kafka")]
    Kafka(kafka::Broker, kafka::Places),
}

/// The workers of a broker.
#[allow(dead_code, reason = "they are kept until the end of a test")]
enum Other {
    Amqp(Worker),
    #[cfg(feature = "kafka")]
    Kafka(kafka::Worker),
}

#[cfg(feature = "kafka")]
fn over_kafka() -> Transport {
    Transport::Kafka(kafka::Broker::start(), kafka::Places::default())
}

/// A bus on this broker that notices soon what has changed there.
#[cfg(feature = "kafka")]
fn kafka_bus(broker: &kafka::Broker) -> BusSettings {
    let mut section = Settings::defaults().unwrap().kafka;
    section.servers.0.push(broker.servers());
    (section.reconnect_min, section.reconnect_max) =
        (DurationSetting(Duration::from_millis(50)), DurationSetting(Duration::from_millis(500)));
    section.partitions = 3;
    // This broker tells the first record of the last batch for the end of a topic.
    section.properties.0.insert("batch.num.messages".to_owned(), "1".to_owned());
    BusSettings::Kafka(Box::new(section))
}

/// What keeps the workers of a manager at work.
#[derive(Default)]
struct Others {
    _of_brokers: Vec<Other>,
    grpc: Option<(GrpcServer, Remote)>,
}

impl Others {
    async fn stop(self) {
        if let Some((server, worker)) = self.grpc {
            server.stop().await;
            drop(worker);
        }
    }
}

/// A web service that does the work of each queue under a path of its name. While the gate is shut
/// it takes no messages for that queue.
fn services(gate_is_open: bool) -> BusSettings {
    let service = Service::start(move |called| match &called.path[1..] {
        "gate" if !gate_is_open => service::status(503),
        queue => service::ok(work(queue, &called.body)),
    });
    let endpoint = |queue: &str| {
        let url = format!("http://127.0.0.1:{}/{queue}", service.port);
        (queue.to_owned(), EndpointSettings::from_url(&url))
    };
    BusSettings::Push(PushBusSection { endpoints: QUEUES.into_iter().map(endpoint).collect() })
}

impl Transport {
    fn settings(&self) -> Settings {
        let mut settings = Settings::defaults().unwrap();
        match self {
            Transport::Embedded => {}
            Transport::Grpc => grpc::listen(&mut settings),
            Transport::Amqp(vhost) => settings.amqp.server = vhost.url.as_str().into(),
            #[cfg(feature = "kafka")]
            Transport::Kafka(broker, _) => {
                settings.bus = "events".to_owned();
                settings.buses.insert("events".to_owned(), kafka_bus(broker));
            }
            Transport::Push => {
                settings.bus = "hooks".to_owned();
                settings.buses.insert("hooks".to_owned(), services(true));
            }
        }
        settings
    }

    /// Starts a manager on the journal in `folder`; while the gate is shut nobody works on the
    /// queue of that name.
    async fn start(&self, folder: &Path, gate_is_open: bool) -> (Manager, Others) {
        let settings = {
            let mut settings = self.settings();
            settings.journal.file = folder.join("journal.db");
            settings
                .buses
                .entry("hooks".to_owned())
                .and_modify(|bus| *bus = services(gate_is_open));
            settings
        };
        let definitions = load_text("suite.yaml", WORKFLOWS).unwrap().definitions;
        let mut embedded = Workers::new();
        let (mut others, mut remote) = (Vec::new(), Vec::new());
        for queue in QUEUES {
            if queue == "gate" && !gate_is_open {
                continue;
            }
            match self {
                Transport::Embedded => {
                    let work = move |message: &Publication| -> Result<Bytes, WorkerError> {
                        Ok(work(queue, &message.body.to_bytes()).into())
                    };
                    embedded = embedded.with_worker(queue, 2, work);
                }
                Transport::Grpc => remote.push(queue),
                Transport::Amqp(vhost) => {
                    others.push(Other::Amqp(Worker::start(&vhost.url, &[queue], move |message| {
                        Answer::Reply(work(queue, &message.body))
                    })))
                }
                #[cfg(feature = "kafka")]
                Transport::Kafka(broker, places) => {
                    let work = move |seen: &kafka::Seen| Some(work(queue, &seen.body));
                    others.push(Other::Kafka(kafka::Worker::alone(broker, &[queue], places, work)))
                }
                Transport::Push => {}
            }
        }
        let manager = manager::start(settings, definitions, embedded).await.unwrap();
        let grpc = match workflow_manager::grpc::start(ApiState::new(&manager)).await.unwrap() {
            Some(server) => {
                let worker = Remote::start(server.address, &remote, 16, work);
                Some((server, worker))
            }
            None => None,
        };
        (manager, Others { _of_brokers: others, grpc })
    }
}

/// A workflow for each ordered pair of ways to workers, with steps on the first, then on the
/// second: alone, and in the child jobs of a fan-out. A way is a bus, and what its queues' names
/// begin with.
fn pairs(ways: &[(&str, &str)]) -> (String, Vec<String>) {
    let (mut text, mut names) = ("workflows:\n".to_owned(), Vec::new());
    for (way, next) in ways.iter().flat_map(|way| ways.iter().map(move |next| (way, next))) {
        let ((one, first), (other, second)) = (way, next);
        let name = format!("{first}{one}-{second}{other}");
        text.push_str(&format!(
            "
  - name: {name}
    bus: {one}
    steps:
      - {{ name: mark, queue: {first}mark }}
      - {{ name: each, task: item, depends: [ mark ] }}
      - {{ name: left, queue: {second}left, bus: {other}, depends: [ each, mark ] }}
      - {{ name: echo, queue: {first}echo, depends: [ each, left, mark ] }}
    tasks:
      - name: item
        itemListKey: items
        steps: [ {{ name: here, queue: {first}echo }}, {{ name: there, queue: {second}mark, \
            bus: {other}, depends: [ here ] }} ]
"
        ));
        names.push(name);
    }
    (text, names)
}

#[test]
fn all_ordered_pairs_of_buses_in_one_job_give_the_same_bytes() {
    let (first, second) = (Vhost::new(), Vhost::new());
    let mut settings = Settings::defaults().unwrap();
    let folder = tempfile::tempdir().unwrap();
    settings.journal.file = folder.path().join("journal.db");
    settings.amqp.server = first.url.as_str().into();
    let server = ServerAddresses::from(second.url.as_str());
    let other = AmqpSection { server, reply_queue: "answers".to_owned(), ..settings.amqp.clone() };
    settings.buses.insert("second".to_owned(), BusSettings::Amqp(Box::new(other)));
    settings.buses.insert("hooks".to_owned(), services(true));
    #[cfg(feature = "kafka")]
    let broker = kafka::Broker::start();
    #[cfg(feature = "kafka")]
    settings.buses.insert("events".to_owned(), kafka_bus(&broker));
    grpc::listen(&mut settings);
    let mut ways = vec![
        ("embedded", ""),
        ("embedded", "remote-"),
        ("amqp", ""),
        ("second", ""),
        ("hooks", ""),
    ];
    ways.extend(cfg!(feature = "kafka").then_some(("events", "")));
    let (text, names) = pairs(&ways);
    assert_eq!(names.len(), ways.len() * ways.len());
    let definitions = load_text("pairs.yaml", &text).unwrap().definitions;
    actix_rt::System::new().block_on(async {
        let mut embedded = Workers::new();
        let mut others = Vec::new();
        for queue in ["echo", "mark", "left"] {
            let work = move |body: &[u8]| work(queue, body);
            embedded = embedded
                .with_worker(queue, 2, move |message| Ok(work(&message.body.to_bytes()).into()));
            for vhost in [&first, &second] {
                others.push(Other::Amqp(Worker::start(&vhost.url, &[queue], move |message| {
                    Answer::Reply(work(&message.body))
                })));
            }
            #[cfg(feature = "kafka")]
            others.push(Other::Kafka(kafka::Worker::alone(
                &broker,
                &[queue],
                &kafka::Places::default(),
                move |seen| Some(work(&seen.body)),
            )));
        }
        let manager = manager::start(settings, definitions, embedded).await.unwrap();
        let server = workflow_manager::grpc::start(ApiState::new(&manager)).await.unwrap();
        let server = server.expect("it is on");
        let queues = ["remote-echo", "remote-mark", "remote-left"];
        let remote = Remote::start(server.address, &queues, 16, |queue, body| {
            work(queue.trim_start_matches("remote-"), body)
        });
        let digits =
            r#"{"z":12345678901234567890123,"a":0.10,"items":[1e400,{ "b" : [ 1 ] },"\u00e9"]}"#;
        let mut jobs = Vec::new();
        for name in &names {
            jobs.push(create(&manager, name, digits).await);
        }
        let results: Vec<String> =
            jobs.iter().map(|id| ended(&manager, *id).result().to_text()).collect();
        assert!(results[0].contains("1e400") && results[0].contains(r#"{ "b" : [ 1 ] }"#));
        assert!(results[0].contains(r#""marked":1.50"#) && results[0].contains("only_left"));
        for (name, result) in names.iter().zip(&results) {
            assert_eq!(result, &results[0], "{name}");
        }
        server.stop().await;
        drop(remote);
        manager.stop().await;
    });
}

async fn create(manager: &Manager, workflow: &str, text: &str) -> JobId {
    let answer =
        manager.handle().create(workflow, None, Message::parse(text.as_bytes()).unwrap()).await;
    answer.expect("created").id()
}

fn ended(manager: &Manager, id: JobId) -> Job {
    eventually(&format!("job {id} ends"), || {
        let job = manager.core().reader.load_job(id).unwrap().unwrap().job;
        if job.state() == JobState::Running { Err("it runs") } else { Ok(job) }
    })
}

async fn suite(transport: Transport) {
    let folder = tempfile::tempdir().unwrap();
    let (manager, workers) = transport.start(folder.path(), false).await;
    let digits = r#"{"z":12345678901234567890123,"a":0.10,"m":1e400,"nested":{ "b" : [ 1 ] }}"#;
    let marked = format!(r#"{},"marked":1.50}}"#, &digits[..digits.len() - 1]);
    let cases = [
        ("chain", digits, marked.as_str()),
        ("chain", "{}", r#"{"marked":1.50}"#),
        ("diamond", digits, r#"{"from":"right","only_right":[1,  2],"only_left":[1,  2]}"#),
        (
            "fan",
            r#"{"k":1,"items":["a",{ "b":2.0 },null],"parts":[]}"#,
            r#"{"k":1,"items":["a",{ "b":2.0 },null],"parts":[],"marked":1.50}"#,
        ),
        (
            "fan",
            r#"{"items":[1,2],"parts":[7,8.0]}"#,
            r#"{"items":[1,2],"parts":[7,8.0],"marked":1.50}"#,
        ),
        ("fan", r#"{"items":[]}"#, r#"{"items":[]}"#),
    ];
    let mut jobs = Vec::new();
    for (workflow, message, result) in cases {
        jobs.push((create(&manager, workflow, message).await, result));
    }
    let bad = create(&manager, "bad", "{}").await;
    let held = create(&manager, "held", digits).await;
    for (id, result) in jobs {
        let job = ended(&manager, id);
        assert_eq!((job.state(), job.result().to_text().as_str()), (JobState::Completed, result));
    }
    let job = ended(&manager, bad);
    assert_eq!(job.state(), JobState::Failed);
    assert!(job.reason().unwrap().contains("not a JSON object"), "{:?}", job.reason());

    // Stopped in the middle, and started again: the job goes on where it was.
    workers.stop().await;
    manager.stop().await;
    let (manager, workers) = transport.start(folder.path(), true).await;
    assert_eq!(ended(&manager, held).result().to_text(), digits);
    workers.stop().await;
    manager.stop().await;
}

/// What is sent along with a message, known to the sender alone.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Mark(u32);

impl ConfirmPayload for Mark {
    fn try_clone(&self) -> Option<ConfirmToken> {
        Some(ConfirmToken::new(Mark(self.0)))
    }
}

/// What a bus said about the messages with these marks, and the ids of the replies that it brought.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    taken: Vec<Mark>,
    unroutable: Vec<Mark>,
    replies: Vec<String>,
    calls: Vec<(String, String)>,
}

fn published(queue: &str, addressee: Addressee, number: u32) -> Publication {
    let bus = BusKey { name: "any".into(), vhost: "".into() };
    Publication {
        address: Address { bus, queue: queue.into() },
        addressee,
        id: format!("id {number}"),
        correlation_id: Some(format!("to {number}").into()),
        kind: None,
        priority: None,
        timestamp_s: 1_700_000_000,
        headers: vec![Header::from_number("attempt", number)],
        body: Bytes::from_static(b"{}").into(),
        lease: None,
        sets_user_id: false,
        lifetime: Lifetime::default(),
        confirm_token: ConfirmToken::new(Mark(number)),
    }
}

/// A bus gives each receipt back once, as it came, and reports a message that nobody can have as
/// unroutable; incoming messages are told apart by the queue that they came on.
async fn receipts(transport: Transport) {
    let said = Arc::new(Mutex::new(Said::default()));
    let heard = said.clone();
    let sink: EventSink = Arc::new(move |event| {
        let mut said = heard.lock().unwrap();
        match event {
            BusEvent::Confirmed(receipt) => said.taken.push(receipt.downcast().unwrap()),
            BusEvent::Unroutable(receipt) => said.unroutable.push(receipt.downcast().unwrap()),
            BusEvent::Reply(delivery) => {
                said.replies.push(delivery.correlation_id.clone().unwrap());
                delivery.ack();
            }
            BusEvent::Call { queue, delivery } => {
                said.calls.push((queue.to_string(), delivery.message_id.clone().unwrap()));
                delivery.ack();
            }
            // As if the answer were journaled at once.
            BusEvent::QueueMissing { journaled: taken, .. } => drop(taken.send(())),
            BusEvent::State(_)
            | BusEvent::Notice(_)
            | BusEvent::Leased { .. }
            | BusEvent::HandedOver(_)
            | BusEvent::EndpointCalled { .. }
            | BusEvent::OffsetReached(_) => {}
            BusEvent::Unreadable { .. } | BusEvent::Fatal(_) => panic!("{event:?}"),
        }
    });
    let settings = transport.settings();
    let served =
        ServedQueues { workflow_queues: vec!["workflow.chain".into()], ..ServedQueues::default() };
    let key = BusKey { name: settings.default_bus().into(), vhost: "".into() };
    let opening = BusOptions { served, ..BusOptions::default() };
    let make =
        settings_bus_provider(Workers::new(), std::sync::Arc::default())(&settings, &key, opening)
            .unwrap();
    let mut bus = make(sink);
    bus.publish(published("workflow-manager", Addressee::Caller, 1));
    bus.publish(published("nowhere", Addressee::Caller, 2));
    bus.publish(published("workflow.chain", Addressee::Worker, 3));
    // No worker's message is confirmed by the embedded bus.
    let on_queues = |taken: Vec<Mark>| Said {
        taken,
        unroutable: vec![Mark(2)],
        replies: vec!["to 1".to_owned()],
        calls: vec![("workflow.chain".to_owned(), "id 3".to_owned())],
    };
    let expected = match transport {
        Transport::Embedded | Transport::Grpc => on_queues(vec![Mark(1)]),
        Transport::Amqp(_) => on_queues(vec![Mark(1), Mark(3)]),
        // Nobody asks for jobs there, so nobody waits there for their ends.
        #[cfg(feature = "kafka")]
        Transport::Kafka(..) => {
            Said { taken: vec![Mark(3)], unroutable: vec![Mark(1), Mark(2)], ..Said::default() }
        }
        // Web services are no queues of others, and ask for no jobs.
        Transport::Push => Said { unroutable: vec![Mark(1), Mark(2)], ..Said::default() },
    };
    let deadline = std::time::Instant::now() + LONG;
    loop {
        said.lock().unwrap().taken.sort();
        if *said.lock().unwrap() == expected {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{:?}", said.lock().unwrap());
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    bus.close().await;
}

#[test]
fn the_embedded_bus_gives_receipts_back() {
    actix_rt::System::new().block_on(receipts(Transport::Embedded));
}

#[test]
fn rabbitmq_gives_receipts_back() {
    actix_rt::System::new().block_on(receipts(Transport::Amqp(Vhost::new())));
}

#[test]
fn web_services_give_receipts_back() {
    actix_rt::System::new().block_on(receipts(Transport::Push));
}

#[test]
fn web_services_that_are_called_keep_the_rules() {
    actix_rt::System::new().block_on(suite(Transport::Push));
}

#[cfg(feature = "kafka")]
#[test]
fn kafka_gives_receipts_back() {
    actix_rt::System::new().block_on(receipts(over_kafka()));
}

#[cfg(feature = "kafka")]
#[test]
fn kafka_keeps_the_rules() {
    actix_rt::System::new().block_on(suite(over_kafka()));
}

#[test]
fn the_embedded_bus_keeps_the_rules() {
    actix_rt::System::new().block_on(suite(Transport::Embedded));
}

#[test]
fn workers_over_grpc_keep_the_rules() {
    actix_rt::System::new().block_on(suite(Transport::Grpc));
}

#[test]
fn rabbitmq_keeps_the_rules() {
    actix_rt::System::new().block_on(suite(Transport::Amqp(Vhost::new())));
}
