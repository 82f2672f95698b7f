//! A chain of three steps over a real broker, against the raw round trip of the same broker in the
//! same run.
//!
//! `AMQP_SERVER` names the broker (`tests/rabbitmq start DIR; . DIR/env`). The raw figure publishes
//! a persistent message with a confirm to a durable queue, takes it, acknowledges it, and answers
//! the same way: what one step costs at least.

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

use bytes::Bytes;
use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use std::io::Write;
use std::time::{Duration, Instant};
use workflow_manager::actors::outbox::Answer;
use workflow_manager::actors::supervisor::{self, Manager};
use workflow_manager::bus::Publication;
use workflow_manager::bus::embedded::{WorkerError, Workers};
use workflow_manager::engine::Message;
use workflow_manager::load::load_text;
use workflow_manager::settings::{ServerAddress, Settings};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CHAIN: &str = "workflows: [{name: chain, steps: [{name: bench-a}, {name: bench-b, depends: [bench-a]}, {name: bench-c, depends: [bench-b]}]}]";
const QUEUES: [&str; 3] = ["bench-a", "bench-b", "bench-c"];
const STEPS: usize = 3;
const JOBS: usize = 5_000;
/// Jobs under way at once.
const AT_ONCE: usize = 500;
const BODY: &[u8] = br#"{"filename":"/data/book.txt","n":1}"#;

async fn channel(server: &str) -> Channel {
    let connection = Connection::connect(server, ConnectionProperties::default())
        .await
        .expect("a broker at AMQP_SERVER");
    let channel = connection.create_channel().await.expect("a channel");
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
    channel.basic_qos(2_000, BasicQosOptions::default()).await.expect("a prefetch");
    // Kept open for the whole run.
    std::mem::forget(connection);
    channel
}

async fn declare(channel: &Channel, queue: &str) {
    channel
        .queue_declare(
            queue.into(),
            QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() },
            FieldTable::default(),
        )
        .await
        .expect("a queue");
}

/// Echoes every message of `queue` to its `reply_to`, then acknowledges.
async fn echo(server: String, queue: &'static str) {
    let channel = channel(&server).await;
    declare(&channel, queue).await;
    let mut consumer = channel
        .basic_consume(
            queue.into(),
            queue.into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        )
        .await
        .expect("a consumer");
    while let Some(Ok(delivery)) = consumer.next().await {
        let properties = delivery.properties.clone();
        let Some(reply_to) = properties.reply_to().clone() else { continue };
        let Some(correlation_id) = properties.correlation_id().clone() else { continue };
        let answer =
            BasicProperties::default().with_delivery_mode(2).with_correlation_id(correlation_id);
        let _confirm = channel
            .basic_publish(
                "".into(),
                reply_to,
                BasicPublishOptions::default(),
                &delivery.data,
                answer,
            )
            .await
            .expect("published");
        delivery.ack(BasicAckOptions::default()).await.expect("acknowledged");
    }
}

/// Round trips per second of the broker alone: `AT_ONCE` under way, each confirmed and acknowledged
/// both ways.
async fn raw(server: &str) -> f64 {
    let channel = channel(server).await;
    declare(&channel, "bench-replies").await;
    let mut consumer = channel
        .basic_consume(
            "bench-replies".into(),
            "raw".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        )
        .await
        .expect("a consumer");
    let total = JOBS * STEPS;
    let started = Instant::now();
    let mut sent = 0;
    let mut confirms = Vec::new();
    let publish = async |number: usize| {
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_reply_to("bench-replies".into())
            .with_correlation_id(number.to_string().into());
        channel
            .basic_publish(
                "".into(),
                QUEUES[number % STEPS].into(),
                BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() },
                BODY,
                properties,
            )
            .await
    };
    while sent < AT_ONCE {
        confirms.push(publish(sent).await.expect("published"));
        sent += 1;
    }
    for _ in 0..total {
        let delivery = consumer.next().await.expect("a reply").expect("a reply");
        delivery.ack(BasicAckOptions::default()).await.expect("acknowledged");
        if sent < total {
            confirms.push(publish(sent).await.expect("published"));
            sent += 1;
        }
    }
    for confirm in confirms {
        confirm.await.expect("confirmed");
    }
    total as f64 / started.elapsed().as_secs_f64()
}

fn settings(server: &str, folder: &std::path::Path) -> Settings {
    let mut settings = Settings::defaults().expect("defaults");
    settings.journal.file = folder.join("j.db");
    settings.amqp.server = ServerAddress(server.to_owned());
    settings.amqp.reply_queue = "bench-manager".to_owned();
    settings
}

/// Jobs per second with `AT_ONCE` under way, and the 99th percentile of a job's time.
async fn jobs(manager: &Manager) -> (f64, Duration) {
    let started = Instant::now();
    let mut running: Vec<(workflow_manager::engine::JobId, Instant)> = Vec::new();
    let mut times = Vec::with_capacity(JOBS);
    let mut created = 0;
    let message = Message::parse(BODY).expect("a message");
    while times.len() < JOBS {
        let room = (AT_ONCE - running.len()).min(JOBS - created);
        let begun = Instant::now();
        let answers = futures_util::future::join_all(
            (0..room).map(|_| manager.create("chain", None, message.clone())),
        )
        .await;
        for answer in answers {
            let Answer::Created(id) = answer else { panic!("not created: {answer:?}") };
            running.push((id, begun));
            created += 1;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        running.retain(|(id, begun)| {
            let runs = manager.shared().routes.find(*id).is_some();
            if !runs {
                times.push(begun.elapsed());
            }
            runs
        });
    }
    let rate = JOBS as f64 / started.elapsed().as_secs_f64();
    times.sort();
    (rate, times[times.len() * 99 / 100])
}

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> =
        stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks =
        |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or_default();
    (ticks(11) + ticks(12)) / 100.0
}

async fn measure(server: String) {
    let out = &mut std::io::stdout();
    for queue in QUEUES {
        actix_rt::spawn(echo(server.clone(), queue));
    }
    let before = raw(&server).await;
    let folder = tempfile::tempdir_in(".").expect("a folder");
    let definitions = load_text("chain.yaml", CHAIN).expect("valid").definitions;
    let manager =
        supervisor::start(settings(&server, folder.path()), definitions.clone(), Workers::new())
            .await
            .expect("starts");
    jobs(&manager).await;
    let cpu = cpu_seconds();
    let (rate, p99) = jobs(&manager).await;
    let cpu_us = (cpu_seconds() - cpu) * 1e6 / (JOBS * STEPS) as f64;
    manager.stop().await;
    let after = raw(&server).await;
    let raw = f64::midpoint(before, after);
    let steps = rate * STEPS as f64;
    writeln!(out, "raw round trips of the broker        {raw:>8.0} /s   (before {before:.0}, after {after:.0})").expect("written");
    writeln!(
        out,
        "steps of chain jobs, journaled       {steps:>8.0} /s   {:.2} of the raw round trip",
        steps / raw
    )
    .expect("written");
    writeln!(out, "jobs of three steps                  {rate:>8.0} /s   p99 {:.0} ms with {AT_ONCE} under way", p99.as_secs_f64() * 1e3)
        .expect("written");
    writeln!(out, "CPU per step, bench workers included {cpu_us:>8.0} µs").expect("written");

    let mut embedded = Settings::defaults().expect("defaults");
    embedded.journal.file = folder.path().join("e.db");
    let work =
        |message: &Publication| -> Result<Bytes, WorkerError> { Ok(message.body.to_bytes()) };
    let workers = QUEUES.iter().fold(Workers::new(), |workers, queue| workers.with(queue, 1, work));
    let manager = supervisor::start(embedded, definitions, workers).await.expect("starts");
    let (rate, _) = jobs(&manager).await;
    manager.stop().await;
    writeln!(out, "steps on the embedded bus, journaled {:>8.0} /s", rate * STEPS as f64)
        .expect("written");
}

fn main() {
    let server = std::env::var("AMQP_SERVER")
        .expect("AMQP_SERVER names a broker: tests/rabbitmq start DIR; . DIR/env");
    actix_rt::System::new().block_on(measure(server));
}
