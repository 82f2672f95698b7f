//! A chain of five steps whose workers echo their messages, for benches of several transports.

use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use std::time::{Duration, Instant};
use workflow_manager::actors::manager::Manager;
use workflow_manager::engine::{JobId, Message};

/// The workflow `chain`.
pub(crate) const CHAIN: &str = "workflows: [{name: chain, steps: [{name: bench-a}, \
                                {name: bench-b, depends: [bench-a]}, \
                                {name: bench-c, depends: [bench-b]}, \
                                {name: bench-d, depends: [bench-c]}, \
                                {name: bench-e, depends: [bench-d]}]}]";
/// The queues of the steps.
pub(crate) const QUEUES: [&str; 5] = ["bench-a", "bench-b", "bench-c", "bench-d", "bench-e"];
/// How many jobs, or round trips, run at once.
pub(crate) const CONCURRENCY: usize = 512;
/// The message of each job.
pub(crate) const BODY: &[u8] = br#"{"filename":"/data/book.txt","n":1}"#;

/// Opens a channel with confirms, on a connection of its own.
pub(crate) async fn open_channel(server: &str) -> Channel {
    let connection = Connection::connect(server, ConnectionProperties::default())
        .await
        .expect("a broker at AMQP_SERVER");
    let channel = connection.create_channel().await.expect("a channel");
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
    channel.basic_qos(2_000, BasicQosOptions::default()).await.expect("a prefetch");
    // The connection stays open for the whole run.
    std::mem::forget(connection);
    channel
}

async fn declare(channel: &Channel, queue: &str) {
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.into(), options, FieldTable::default()).await.expect("a queue");
}

/// Declares a queue, and consumes from it.
pub(crate) async fn consume(channel: &Channel, queue: &str) -> lapin::Consumer {
    declare(channel, queue).await;
    let options = BasicConsumeOptions::default();
    channel
        .basic_consume(queue.into(), queue.into(), options, FieldTable::default())
        .await
        .expect("a consumer")
}

/// Echoes every message of `queue` to its `reply_to`, then acknowledges it.
pub(crate) async fn echo(server: String, queue: &'static str) {
    let channel = open_channel(&server).await;
    let mut consumer = consume(&channel, queue).await;
    while let Some(Ok(delivery)) = consumer.next().await {
        let properties = delivery.properties.clone();
        let Some(reply_to) = properties.reply_to().clone() else { continue };
        let Some(correlation_id) = properties.correlation_id().clone() else { continue };
        let answer =
            BasicProperties::default().with_delivery_mode(2).with_correlation_id(correlation_id);
        let options = BasicPublishOptions::default();
        let _confirm = channel
            .basic_publish("".into(), reply_to, options, &delivery.data, answer)
            .await
            .expect("published");
        delivery.ack(BasicAckOptions::default()).await.expect("acknowledged");
    }
}

/// Runs this many jobs, at most `concurrency` at once. Returns the time of each.
pub(crate) async fn run_jobs(manager: &Manager, total: usize, concurrency: usize) -> Vec<Duration> {
    let mut running: Vec<(JobId, Instant)> = Vec::new();
    let (mut times, mut created) = (Vec::with_capacity(total), 0);
    let message = Message::parse(BODY).expect("a message");
    while times.len() < total {
        let free = (concurrency - running.len()).min(total - created);
        let begun = Instant::now();
        let created_now =
            (0..free).map(|_| manager.handle().create("chain", None, message.clone()));
        for answer in futures_util::future::join_all(created_now).await {
            let id = answer.expect("created").id();
            running.push((id, begun));
            created += 1;
        }
        // The manager runs on other threads.
        std::thread::sleep(Duration::from_micros(if concurrency == 1 { 50 } else { 5_000 }));
        running.retain(|(id, begun)| {
            let is_running = manager.core().routes.is_active(*id);
            if !is_running {
                times.push(begun.elapsed());
            }
            is_running
        });
    }
    times
}
