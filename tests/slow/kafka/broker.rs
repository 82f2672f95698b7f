//! A broker that speaks Kafka's protocol: a process of its own, on a port of its own. It keeps
//! everything in memory, so one that is started again has forgotten all.

use crate::harness::{eventually, free_port};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const ASKED: Duration = Duration::from_secs(10);

/// Brokers that clients reach.
pub(crate) trait Brokers {
    /// Their addresses, with commas between them.
    fn servers(&self) -> String;

    /// The properties of a client.
    fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.servers());
        config.set("allow.auto.create.topics", "false");
        config
    }

    /// How many partitions a topic has; none: it is not there.
    fn partitions(&self, topic: &str) -> Option<usize> {
        let consumer: BaseConsumer = self.client().create().expect("a client");
        let found = consumer.fetch_metadata(Some(topic), ASKED).expect("answered");
        let found = found.topics().iter().find(|found| found.name() == topic)?;
        (found.error().is_none() && !found.partitions().is_empty())
            .then(|| found.partitions().len())
    }

    /// How many messages were ever written to a topic.
    fn written(&self, topic: &str) -> i64 {
        let consumer: BaseConsumer = self.client().create().expect("a client");
        let partitions = 0..self.partitions(topic).unwrap_or_default();
        let end = |partition: usize| {
            let partition = i32::try_from(partition).expect("small");
            consumer.fetch_watermarks(topic, partition, ASKED).expect("answered").1
        };
        partitions.map(end).sum()
    }

    /// Writes a message.
    fn write(
        &self,
        topic: &str,
        key: Option<&[u8]>,
        headers: &[(&str, Option<&[u8]>)],
        body: Option<&[u8]>,
    ) {
        self.write_to((topic, 0), key, headers, body);
    }

    /// Writes a message to a partition.
    fn write_to(
        &self,
        (topic, partition): (&str, i32),
        key: Option<&[u8]>,
        headers: &[(&str, Option<&[u8]>)],
        body: Option<&[u8]>,
    ) {
        let producer: BaseProducer = self.client().create().expect("a client");
        let with = |all: OwnedHeaders, (key, value): &(&str, Option<&[u8]>)| {
            all.insert(Header { key, value: *value })
        };
        let headers = headers.iter().fold(OwnedHeaders::new(), with);
        let mut record = BaseRecord::<[u8], [u8]>::to(topic).partition(partition).headers(headers);
        (record.key, record.payload) = (key, body);
        producer.send(record).map_err(|(error, _)| error).expect("handed over");
        producer.flush(ASKED).expect("written");
    }
}

pub(crate) struct Broker {
    port: u16,
    child: Option<Child>,
}

impl Broker {
    pub(crate) fn start() -> Broker {
        let mut broker = Broker { port: free_port(), child: None };
        broker.start_again();
        broker
    }

    /// Starts it on the same port, without anything that it had.
    pub(crate) fn start_again(&mut self) {
        self.stop();
        let program = std::env::var("KAFKA_BROKER")
            .expect("KAFKA_BROKER is not set: these tests need a broker; see tests/kafka");
        let listener = format!("tcp://127.0.0.1:{}", self.port);
        let mut command = Command::new(program);
        command.args(["broker", "--listener-url", &listener]);
        command.args(["--advertised-listener-url", &listener]);
        command.args(["--storage-engine", "memory://tansu/"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().expect("the broker starts"));
        eventually("the broker listens", || TcpStream::connect(("127.0.0.1", self.port)));
    }

    pub(crate) fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("killed");
            child.wait().expect("reaped");
        }
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.client().create().expect("a client")
    }

    fn wait<T>(future: impl Future<Output = T>) -> T {
        crate::amqp::RUNTIME.block_on(future)
    }

    pub(crate) fn create(&self, topic: &str, partitions: i32, settings: &[(&str, &str)]) {
        let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(-1));
        let new = settings.iter().fold(new, |new, (name, value)| new.set(name, value));
        let admin = self.admin();
        let created = Broker::wait(admin.create_topics([&new], &AdminOptions::new()));
        created.expect("answered").pop().expect("one").expect("created");
    }

    pub(crate) fn delete(&self, topic: &str) {
        let admin = self.admin();
        let deleted = Broker::wait(admin.delete_topics(&[topic], &AdminOptions::new()));
        deleted.expect("answered").pop().expect("one").expect("deleted");
    }

    /// How far a group has committed the first partition of a topic.
    pub(crate) fn committed(&self, group: &str, topic: &str) -> Option<i64> {
        let mut config = self.client();
        let consumer: BaseConsumer = config.set("group.id", group).create().expect("a client");
        let mut list = TopicPartitionList::new();
        list.add_partition(topic, 0);
        let committed = consumer.committed_offsets(list, ASKED).expect("answered");
        let Offset::Offset(offset) = committed.elements()[0].offset() else { return None };
        Some(offset)
    }

    /// The setting of a topic.
    pub(crate) fn setting(&self, topic: &str, name: &str) -> Option<String> {
        let admin = self.admin();
        let wanted = [ResourceSpecifier::Topic(topic)];
        let described = Broker::wait(admin.describe_configs(&wanted, &AdminOptions::new()));
        let described = described.expect("answered").pop().expect("one").expect("described");
        described.get(name).and_then(|entry| entry.value.clone())
    }
}

impl Brokers for Broker {
    fn servers(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop();
    }
}
