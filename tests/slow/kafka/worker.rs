//! A worker under a consumer group that knows nothing but the worker protocol: it commits after its
//! reply is confirmed.

use super::Brokers;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{BorrowedMessage, Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A member without partitions joins its group anew after so long: where one leaves while another
/// joins, the broker of the tests may never come to an end with them.
const JOINED_WITHIN: Duration = Duration::from_secs(15);

/// How long one question for the partitions of a topic may take.
const METADATA_WITHIN: Duration = Duration::from_secs(5);

/// A step message, as a worker sees it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) key: Vec<u8>,
    pub(crate) partition: i32,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// Works on some topics until it is dropped.
pub(crate) struct Worker {
    seen: Arc<Mutex<Vec<Seen>>>,
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// The next offset of each partition of each topic.
pub(crate) type Places = Arc<Mutex<BTreeMap<(String, i32), i64>>>;

/// What a worker replies; none: it commits and never replies.
type Work = Arc<dyn Fn(&Seen) -> Option<Vec<u8>> + Send + Sync>;

/// What the threads of a worker share.
#[derive(Clone)]
struct Task {
    work: Work,
    seen: Arc<Mutex<Vec<Seen>>>,
    ends: Arc<AtomicBool>,
}

impl Task {
    fn has_ended(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    /// What the message says, which is remembered; and the reply.
    fn work(&self, message: &impl Message) -> (Seen, Option<Vec<u8>>) {
        let told = read(message);
        self.seen.lock().expect("no worker panics").push(told.clone());
        let reply = (self.work)(&told);
        (told, reply)
    }
}

impl Worker {
    pub(crate) fn start(
        broker: &impl Brokers,
        topics: &[&str],
        work: impl Fn(&Seen) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Worker {
        Worker::spawn(broker, topics, work, serve)
    }

    /// A worker in no group: it reads all partitions from these places, and keeps them itself. It
    /// does not depend on what the broker makes of members that come and go.
    pub(crate) fn alone(
        broker: &impl Brokers,
        topics: &[&str],
        places: &Places,
        work: impl Fn(&Seen) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Worker {
        let places = places.clone();
        Worker::spawn(broker, topics, work, move |topic, client, task| {
            serve_alone(topic, client, task, &places);
        })
    }

    fn spawn(
        broker: &impl Brokers,
        topics: &[&str],
        work: impl Fn(&Seen) -> Option<Vec<u8>> + Send + Sync + 'static,
        serve: impl Fn(&str, ClientConfig, &Task) + Clone + Send + 'static,
    ) -> Worker {
        let task = Task { work: Arc::new(work), seen: Arc::default(), ends: Arc::default() };
        // A member of a group that subscribed to one topic does not stop for those of another.
        let begin = |topic: &&str| {
            let (topic, client) = ((*topic).to_owned(), broker.client());
            let (task, serve) = (task.clone(), serve.clone());
            thread::spawn(move || serve(&topic, client, &task))
        };
        Worker { threads: topics.iter().map(begin).collect(), seen: task.seen, ends: task.ends }
    }

    /// Ends it, and tells all that it has seen.
    pub(crate) fn end(mut self) -> Vec<Seen> {
        self.ends.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
        self.seen()
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no worker panics").clone()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn serve(topic: &str, mut client: ClientConfig, task: &Task) {
    let producer = producer(&client);
    client
        .set("group.id", topic)
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .set("session.timeout.ms", "6000")
        .set("topic.metadata.refresh.interval.ms", "500");
    // It leaves before it joins again: where both happen at once the broker of the tests gives
    // neither member anything.
    while !task.has_ended() {
        let consumer: BaseConsumer = client.create().expect("a consumer");
        consumer.subscribe(&[topic]).expect("subscribed");
        serve_as_member(&consumer, &producer, task);
    }
}

/// Returns when the worker has ended, or when its member has been without partitions for too long.
fn serve_as_member(consumer: &BaseConsumer, producer: &BaseProducer, task: &Task) {
    let mut had_partitions = Instant::now();
    while !task.has_ended() && had_partitions.elapsed() <= JOINED_WITHIN {
        let message = polled(consumer);
        if message.is_some() || consumer.assignment().is_ok_and(|list| list.count() > 0) {
            had_partitions = Instant::now();
        }
        let Some(message) = message else { continue };
        let (told, reply) = task.work(&message);
        if reply.is_none_or(|reply| answer(producer, &told, &reply)) {
            // Where that fails the message comes again.
            let _ = consumer.commit_message(&message, CommitMode::Sync);
        }
    }
}

fn serve_alone(topic: &str, mut client: ClientConfig, task: &Task, places: &Places) {
    let producer = producer(&client);
    client.set("group.id", topic).set("enable.auto.commit", "false");
    let consumer: BaseConsumer = client.create().expect("a consumer");
    let place = |partition: i32| (topic.to_owned(), partition);
    let mut list = TopicPartitionList::new();
    while list.count() == 0 && !task.has_ended() {
        // An error means that the broker cannot tell now.
        let Ok(known) = consumer.fetch_metadata(Some(topic), METADATA_WITHIN) else { continue };
        let partitions = known.topics().iter().flat_map(|topic| topic.partitions());
        for id in partitions.map(|partition| partition.id()) {
            let next = places.lock().expect("no worker panics").get(&place(id)).copied();
            let from = Offset::Offset(next.unwrap_or_default());
            list.add_partition_offset(topic, id, from).expect("an offset");
        }
        // Until there is such a topic.
        drop(polled(&consumer));
    }
    consumer.assign(&list).expect("assigned");
    while !task.has_ended() {
        let Some(message) = polled(&consumer) else { continue };
        let (told, reply) = task.work(&message);
        if let Some(reply) = reply {
            assert!(answer(&producer, &told, &reply), "the client takes it");
        }
        let next = message.offset() + 1;
        places.lock().expect("no worker panics").insert(place(message.partition()), next);
    }
}

fn producer(client: &ClientConfig) -> BaseProducer {
    client.clone().set("acks", "all").set("linger.ms", "0").create().expect("a producer")
}

/// The next message, if there is one soon. An error is tried again by the library.
fn polled(consumer: &BaseConsumer) -> Option<BorrowedMessage<'_>> {
    consumer.poll(Duration::from_millis(50)).and_then(Result::ok)
}

fn read(message: &impl Message) -> Seen {
    let text = |value: &[u8]| String::from_utf8(value.to_vec()).expect("UTF-8");
    let headers = message.headers().map(|headers| {
        let each = headers
            .iter()
            .map(|header| (header.key.to_owned(), header.value.map(text).unwrap_or_default()));
        each.collect()
    });
    Seen {
        key: message.key().unwrap_or_default().to_vec(),
        partition: message.partition(),
        headers: headers.unwrap_or_default(),
        body: message.payload().unwrap_or_default().to_vec(),
    }
}

/// Whether the reply is confirmed.
fn answer(producer: &BaseProducer, told: &Seen, reply: &[u8]) -> bool {
    let header = |all: OwnedHeaders, name: &'static str| match told.headers.get(name) {
        Some(value) => all.insert(Header { key: name, value: Some(value) }),
        None => all,
    };
    let headers = ["correlation_id", "attempt"].into_iter().fold(OwnedHeaders::new(), header);
    let record = BaseRecord::to(&told.headers["reply_to"])
        .key(&told.key[..])
        .payload(reply)
        .headers(headers);
    if producer.send(record).is_err() {
        return false;
    }
    // `flush` would wait for a tenth of a second in any case. Without an end of its own, this ends
    // with the test.
    while producer.in_flight_count() > 0 {
        producer.poll(Duration::from_millis(1));
    }
    true
}
