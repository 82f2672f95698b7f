//! A worker under a consumer group that knows nothing but the worker protocol: it commits after its
//! reply is confirmed.

use super::Brokers;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
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

impl Worker {
    pub(crate) fn start(
        broker: &impl Brokers,
        topics: &[&str],
        work: impl Fn(&Seen) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Worker {
        let (seen, ends) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let work: Work = Arc::new(work);
        // A member of a group that subscribed to one topic does not stop for those of another.
        let begin = |topic: &&str| {
            let (topic, client) = ((*topic).to_owned(), broker.client());
            let (work, seen, ends) = (work.clone(), seen.clone(), ends.clone());
            thread::spawn(move || serve(&topic, client, &work, &seen, &ends))
        };
        Worker { threads: topics.iter().map(begin).collect(), seen, ends }
    }

    /// A worker in no group: it reads all partitions from these places, and keeps them itself. It
    /// does not depend on what the broker makes of members that come and go.
    pub(crate) fn alone(
        broker: &impl Brokers,
        topics: &[&str],
        places: &Places,
        work: impl Fn(&Seen) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Worker {
        let (seen, ends) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let work: Work = Arc::new(work);
        let begin = |topic: &&str| {
            let (topic, client, places) = ((*topic).to_owned(), broker.client(), places.clone());
            let (work, seen, ends) = (work.clone(), seen.clone(), ends.clone());
            thread::spawn(move || serve_alone(&topic, client, &work, &seen, (&places, &ends)))
        };
        let threads = topics.iter().map(begin).collect();
        Worker { threads, seen, ends }
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

fn serve(
    topic: &str,
    mut client: ClientConfig,
    work: &Work,
    seen: &Mutex<Vec<Seen>>,
    ends: &AtomicBool,
) {
    let producer: BaseProducer =
        client.clone().set("acks", "all").set("linger.ms", "0").create().expect("a producer");
    client
        .set("group.id", topic)
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .set("session.timeout.ms", "6000")
        .set("topic.metadata.refresh.interval.ms", "500");
    let mut consumer = join(topic, &client);
    let mut had_partitions = Instant::now();
    while !ends.load(Ordering::Relaxed) {
        // An error is tried again by the library.
        let polled = consumer.poll(Duration::from_millis(50)).and_then(Result::ok);
        let Some(message) = polled else {
            let assigned = consumer.assignment().map_or(0, |list| list.count());
            if assigned > 0 {
                had_partitions = Instant::now();
            } else if had_partitions.elapsed() > JOINED_WITHIN {
                consumer = join(topic, &client);
                had_partitions = Instant::now();
            }
            continue;
        };
        let told = read(&message);
        seen.lock().expect("no worker panics").push(told.clone());
        if let Some(reply) = work(&told)
            && !answer(&producer, &told, &reply)
        {
            continue;
        }
        // Where that fails the message comes again.
        let _ = consumer.commit_message(&message, CommitMode::Sync);
    }
}

fn serve_alone(
    topic: &str,
    mut client: ClientConfig,
    work: &Work,
    seen: &Mutex<Vec<Seen>>,
    (places, ends): (&Places, &AtomicBool),
) {
    let producer: BaseProducer =
        client.clone().set("acks", "all").set("linger.ms", "0").create().expect("a producer");
    client.set("group.id", topic).set("enable.auto.commit", "false");
    let consumer: BaseConsumer = client.create().expect("a consumer");
    let place = |partition: i32| (topic.to_owned(), partition);
    let mut list = TopicPartitionList::new();
    while list.count() == 0 && !ends.load(Ordering::Relaxed) {
        // An error means that the broker cannot tell now.
        let Ok(known) = consumer.fetch_metadata(Some(topic), METADATA_WITHIN) else { continue };
        let partitions = known.topics().iter().flat_map(|topic| topic.partitions());
        for id in partitions.map(|partition| partition.id()) {
            let next = places.lock().expect("no worker panics").get(&place(id)).copied();
            let from = Offset::Offset(next.unwrap_or_default());
            list.add_partition_offset(topic, id, from).expect("an offset");
        }
        // Until there is such a topic.
        drop(consumer.poll(Duration::from_millis(50)));
    }
    consumer.assign(&list).expect("assigned");
    while !ends.load(Ordering::Relaxed) {
        // An error is tried again by the library.
        let polled = consumer.poll(Duration::from_millis(50)).and_then(Result::ok);
        let Some(message) = polled else { continue };
        let told = read(&message);
        seen.lock().expect("no worker panics").push(told.clone());
        if let Some(reply) = work(&told) {
            assert!(answer(&producer, &told, &reply), "the client takes it");
        }
        let next = message.offset() + 1;
        places.lock().expect("no worker panics").insert(place(message.partition()), next);
    }
}

/// A new member of the topic's group.
fn join(topic: &str, client: &ClientConfig) -> BaseConsumer {
    let consumer: BaseConsumer = client.create().expect("a consumer");
    consumer.subscribe(&[topic]).expect("subscribed");
    consumer
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
