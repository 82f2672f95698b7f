//! The broker of the tests, a plain AMQP client, and workers that know nothing but the worker
//! protocol.

mod node;

use std::{
    env,
    future::Future,
    process::Command,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    time::Duration,
};

use futures_util::StreamExt;
use lapin::{
    Acker, BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind,
    message::Delivery,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicGetOptions, BasicNackOptions,
        BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions, ExchangeDeclareOptions,
        QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
    },
    types::{AMQPValue, FieldTable, LongString},
};
use serde_json::Value;
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::harness::{DEADLINE, eventually, must_succeed};
pub(crate) use node::PrivateNode;

/// The name of the reply queue unless a test sets another.
pub(crate) const REPLY_QUEUE: &str = "workflow-manager";

const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
});

#[track_caller]
fn block_on<T>(what: &str, future: impl Future<Output = T>) -> T {
    let timed = RUNTIME.block_on(async { tokio::time::timeout(DEADLINE, future).await });
    timed.unwrap_or_else(|_| panic!("not within {DEADLINE:?}: {what}"))
}

// ---- the broker
// ------------------------------------------------------------------------------------------------

/// A RabbitMQ node.
#[derive(Clone)]
pub(crate) struct Broker {
    server: String,
    ctl: String,
    management: String,
}

impl Broker {
    /// The node that all tests share.
    pub(crate) fn shared() -> Broker {
        let named = |name: &str| {
            env::var(name).ok().filter(|value| !value.is_empty()).unwrap_or_else(|| {
                panic!("{name} is not set: these tests need a RabbitMQ. Use tests/run, or: tests/rabbitmq start DIR && . DIR/env (and later tests/rabbitmq stop DIR)")
            })
        };
        Broker {
            server: named("AMQP_SERVER"),
            ctl: named("RABBITMQCTL"),
            management: named("RABBITMQ_MANAGEMENT"),
        }
    }

    /// A new virtual host, which goes when the value goes.
    pub(crate) fn vhost(&self) -> Vhost {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("slow-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        self.management("PUT", &format!("/api/vhosts/{name}"), Some("{}"));
        let user = self.user();
        self.management(
            "PUT",
            &format!("/api/permissions/{name}/{user}"),
            Some(r#"{"configure":".*","write":".*","read":".*"}"#),
        );
        let url = self.url(&name);
        Vhost { broker: self.clone(), name, url }
    }

    /// The broker's address with another virtual host.
    pub(crate) fn url(&self, vhost: &str) -> String {
        format!(
            "{}/{vhost}",
            self.server.rsplit_once('/').expect("AMQP_SERVER ends with /<vhost>").0
        )
    }

    pub(crate) fn user(&self) -> &str {
        self.server
            .split_once("//")
            .and_then(|(_, rest)| rest.split_once(':'))
            .expect("AMQP_SERVER has a user name")
            .0
    }

    /// Runs rabbitmqctl.
    #[track_caller]
    pub(crate) fn ctl(&self, arguments: &[&str]) {
        let mut words = self.ctl.split_whitespace();
        must_succeed(
            Command::new(words.next().expect("RABBITMQCTL is a command"))
                .args(words)
                .args(arguments),
        );
    }

    #[track_caller]
    fn management(&self, method: &str, path: &str, body: Option<&str>) -> String {
        let sent = self.ask_management(method, path, body);
        let mut response = sent
            .unwrap_or_else(|error| panic!("RabbitMQ's management API: {method} {path}: {error}"));
        response.body_mut().read_to_string().unwrap()
    }

    fn ask_management(
        &self,
        method: &str,
        path: &str,
        body: Option<&str>,
    ) -> Result<ureq::http::Response<ureq::Body>, ureq::Error> {
        let config =
            ureq::Agent::config_builder().timeout_global(Some(DEADLINE)).proxy(None).build();
        let agent = ureq::Agent::from(config);
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.management))
            .header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=");
        match body {
            Some(text) => agent.run(request.header("Content-Type", "application/json").body(text)?),
            None => agent.run(request.body(())?),
        }
    }
}

/// A virtual host of one test.
pub(crate) struct Vhost {
    broker: Broker,
    pub(crate) name: String,
    pub(crate) url: String,
}

impl Vhost {
    pub(crate) fn new() -> Vhost {
        Broker::shared().vhost()
    }

    /// Messages in the queue, ready or delivered and not acknowledged.
    #[track_caller]
    pub(crate) fn messages(&self, queue: &str) -> Option<u64> {
        let answer =
            self.broker.management("GET", &format!("/api/queues/{}/{queue}", self.name), None);
        let json: Value = serde_json::from_str(&answer).unwrap();
        json["messages"].as_u64()
    }

    /// Waits until the queue has nothing more, not even a message that is delivered and not
    /// acknowledged.
    #[track_caller]
    pub(crate) fn await_drained(&self, queue: &str) {
        eventually(&format!("the queue {queue} is drained"), || match self.messages(queue) {
            Some(0) => Ok(()),
            Some(count) => Err(format!("{count} messages")),
            None => Err("no figures yet".to_owned()),
        });
    }

    /// The policy that a queue has. Without statistics: those of an idle queue may never hear of a
    /// policy that is set later.
    #[track_caller]
    pub(crate) fn policy_of(&self, queue: &str) -> Option<String> {
        let path = format!("/api/queues/{}?columns=name,policy&disable_stats=true", self.name);
        let answer = self
            .broker
            .ask_management("GET", &path, None)
            .ok()?
            .body_mut()
            .read_to_string()
            .ok()?;
        let listed: Vec<Value> = serde_json::from_str(&answer).ok()?;
        listed.iter().find(|listed| listed["name"] == queue)?["policy"].as_str().map(str::to_owned)
    }

    /// Runs rabbitmqctl on this virtual host.
    #[track_caller]
    pub(crate) fn ctl(&self, command: &str, arguments: &[&str]) {
        self.broker.ctl(&[&["-p", &self.name, command], arguments].concat());
    }

    /// The address of the management API, with the credentials of `user`.
    pub(crate) fn management_url(&self, credentials: &str) -> String {
        self.broker.management.replace("://", &format!("://{credentials}@"))
    }

    /// Has the broker close all connections of the virtual host.
    pub(crate) fn close_connections(&self) {
        self.broker.ctl(&["close_all_connections", "--vhost", &self.name, "closed by a test"]);
    }

    /// Has the management API close the connections of that name; tells how many it lists.
    pub(crate) fn close_connection(&self, name: &str) -> usize {
        let listed =
            self.broker.management("GET", &format!("/api/vhosts/{}/connections", self.name), None);
        let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
        let named: Vec<_> = listed
            .iter()
            .filter(|connection| connection["client_properties"]["connection_name"] == name)
            .collect();
        for connection in &named {
            let id = connection["name"].as_str().unwrap().replace(' ', "%20").replace('>', "%3E");
            // One that has gone in the meantime answers 404.
            let _gone =
                self.broker.ask_management("DELETE", &format!("/api/connections/{id}"), None);
        }
        named.len()
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.url)
    }
}

impl Drop for Vhost {
    fn drop(&mut self) {
        // Also while a test fails: a second panic would hide the first.
        let config =
            ureq::Agent::config_builder().timeout_global(Some(DEADLINE)).proxy(None).build();
        let request = ureq::Agent::from(config)
            .delete(format!("{}/api/vhosts/{}", self.broker.management, self.name));
        let _left_behind = request.header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=").call();
    }
}

// ---- messages
// --------------------------------------------------------------------------------------------------

/// A message as a worker sees it.
#[derive(Clone, Debug)]
pub(crate) struct StepMessage {
    pub(crate) queue: String,
    pub(crate) body: Vec<u8>,
    pub(crate) properties: BasicProperties,
    pub(crate) redelivered: bool,
    acker: Acker,
}

impl StepMessage {
    fn new(delivery: Delivery) -> StepMessage {
        let Delivery { routing_key, redelivered, properties, data, acker, .. } = delivery;
        StepMessage { queue: routing_key.to_string(), body: data, properties, redelivered, acker }
    }

    #[track_caller]
    pub(crate) fn correlation_id(&self) -> String {
        self.properties
            .correlation_id()
            .as_ref()
            .unwrap_or_else(|| panic!("no correlation id: {self:?}"))
            .to_string()
    }

    #[track_caller]
    pub(crate) fn job(&self) -> Uuid {
        let id = self.correlation_id();
        let job = id.split_once(':').and_then(|(job, _)| job.parse().ok());
        job.unwrap_or_else(|| panic!("the correlation id {id:?} is not <UUID>:<step>"))
    }

    #[track_caller]
    pub(crate) fn step(&self) -> String {
        let id = self.correlation_id();
        id.split_once(':')
            .unwrap_or_else(|| panic!("the correlation id {id:?} is not <UUID>:<step>"))
            .1
            .to_owned()
    }

    #[track_caller]
    pub(crate) fn message_id(&self) -> String {
        self.properties
            .message_id()
            .as_ref()
            .unwrap_or_else(|| panic!("no message id: {self:?}"))
            .to_string()
    }

    #[track_caller]
    pub(crate) fn reply_to(&self) -> String {
        self.properties
            .reply_to()
            .as_ref()
            .unwrap_or_else(|| panic!("no reply_to: {self:?}"))
            .to_string()
    }

    #[track_caller]
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a step message is UTF-8")
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("a step message that is not JSON ({error}): {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<AMQPValue> {
        self.properties.headers().as_ref().and_then(|headers| headers.inner().get(name)).cloned()
    }

    /// A header that is text.
    #[track_caller]
    pub(crate) fn header_text(&self, name: &str) -> String {
        match self.header(name) {
            Some(AMQPValue::LongString(text)) => {
                String::from_utf8(text.as_bytes().to_vec()).unwrap()
            }
            other => panic!("the header {name} is not a text but {other:?}"),
        }
    }
}

/// What an ordinary worker's reply says beside its body.
pub(crate) fn json_properties() -> BasicProperties {
    BasicProperties::default().with_content_type("application/json".into()).with_delivery_mode(2)
}

/// The arguments of a queue.
pub(crate) fn arguments<const N: usize>(pairs: [(&str, AMQPValue); N]) -> FieldTable {
    let mut table = FieldTable::default();
    for (key, value) in pairs {
        table.insert(key.into(), value);
    }
    table
}

pub(crate) fn text_argument(text: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(text))
}

// ---- a client that does one thing at a time
// --------------------------------------------------------------------

/// An AMQP client that does what it is told, one call at a time.
pub(crate) struct Client {
    connection: Connection,
    channel: Channel,
}

impl Client {
    #[track_caller]
    pub(crate) fn connect(url: &str) -> Client {
        block_on("a client connects", async {
            let connection =
                Connection::connect(url, ConnectionProperties::default()).await.unwrap();
            let channel = connection.create_channel().await.unwrap();
            channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
            Client { connection, channel }
        })
    }

    /// Declares a queue, durable.
    #[track_caller]
    pub(crate) fn declare(&self, queue: &str, arguments: FieldTable) {
        let declared = block_on(
            "a queue is declared",
            self.channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), arguments),
        );
        declared.unwrap_or_else(|error| panic!("the declaration of {queue}: {error}"));
    }

    /// Declares a queue that belongs to this connection alone.
    #[track_caller]
    pub(crate) fn declare_exclusive(&self, queue: &str) {
        let options = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
        block_on(
            "a queue is declared",
            self.channel.queue_declare(queue.into(), options, FieldTable::default()),
        )
        .unwrap();
    }

    #[track_caller]
    pub(crate) fn declare_exchange(&self, exchange: &str, kind: &str) {
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let declared = self.channel.exchange_declare(
            exchange.into(),
            ExchangeKind::Custom(kind.to_owned()),
            options,
            FieldTable::default(),
        );
        block_on("an exchange is declared", declared).unwrap();
    }

    #[track_caller]
    pub(crate) fn bind(&self, queue: &str, exchange: &str, key: &str) {
        let bound = self.channel.queue_bind(
            queue.into(),
            exchange.into(),
            key.into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        );
        block_on("a queue is bound", bound).unwrap();
    }

    #[track_caller]
    pub(crate) fn delete(&self, queue: &str) {
        block_on(
            "a queue is deleted",
            self.channel.queue_delete(queue.into(), QueueDeleteOptions::default()),
        )
        .unwrap();
    }

    /// How many messages are ready and how many consumers there are; `None`: there is no such
    /// queue.
    pub(crate) fn count(&self, queue: &str) -> Option<(u32, u32)> {
        block_on("a queue is looked at", async {
            // A queue that is missing closes the channel.
            let channel = self.connection.create_channel().await.unwrap();
            let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
            let queue =
                channel.queue_declare(queue.into(), passive, FieldTable::default()).await.ok()?;
            let _closed = channel.close(200, "OK".into()).await;
            Some((queue.message_count(), queue.consumer_count()))
        })
    }

    #[track_caller]
    pub(crate) fn await_count(&self, queue: &str, messages: u32) {
        eventually(&format!("{messages} messages wait in {queue}"), || match self.count(queue) {
            Some((count, _)) if count == messages => Ok(()),
            Some((count, _)) => Err(format!("{count} messages")),
            None => Err("no such queue".to_owned()),
        });
    }

    /// Takes the next message of a queue, waiting for it; it stays unacknowledged.
    #[track_caller]
    pub(crate) fn take(&self, queue: &str) -> StepMessage {
        eventually(&format!("a message in {queue}"), || self.take_now(queue).ok_or("none"))
    }

    /// Takes the next message of a queue if there is one.
    pub(crate) fn take_now(&self, queue: &str) -> Option<StepMessage> {
        self.count(queue)?;
        let got = block_on(
            "a message is asked for",
            self.channel.basic_get(queue.into(), BasicGetOptions::default()),
        )
        .unwrap();
        got.map(|message| StepMessage::new(message.delivery))
    }

    /// Publishes to a queue, and waits for the broker's confirm.
    #[track_caller]
    pub(crate) fn publish(&self, queue: &str, body: impl AsRef<[u8]>, properties: BasicProperties) {
        block_on("a message is confirmed", async {
            let sent = self
                .channel
                .basic_publish(
                    "".into(),
                    queue.into(),
                    BasicPublishOptions::default(),
                    body.as_ref(),
                    properties,
                )
                .await;
            let confirm = sent.unwrap().await.unwrap();
            assert!(confirm.is_ack(), "the broker refused a message: {confirm:?}");
        });
    }

    /// Replies to a step message, then acknowledges it.
    #[track_caller]
    pub(crate) fn reply(&self, message: &StepMessage, body: impl AsRef<[u8]>) {
        self.say(message, body, json_properties());
        self.ack(message);
    }

    /// Replies with these properties and the message's correlation id; acknowledges nothing.
    #[track_caller]
    pub(crate) fn say(
        &self,
        message: &StepMessage,
        body: impl AsRef<[u8]>,
        properties: BasicProperties,
    ) {
        self.publish(
            &message.reply_to(),
            body,
            properties.with_correlation_id(message.correlation_id().into()),
        );
    }

    #[track_caller]
    pub(crate) fn ack(&self, message: &StepMessage) {
        block_on("an ack", message.acker.ack(BasicAckOptions::default())).unwrap();
    }

    /// Gives a message back to its queue.
    #[track_caller]
    pub(crate) fn requeue(&self, message: &StepMessage) {
        block_on(
            "a nack",
            message.acker.nack(BasicNackOptions { requeue: true, ..BasicNackOptions::default() }),
        )
        .unwrap();
    }

    /// Refuses a message for good.
    #[track_caller]
    pub(crate) fn nack(&self, message: &StepMessage) {
        block_on(
            "a nack",
            message.acker.nack(BasicNackOptions { requeue: false, ..BasicNackOptions::default() }),
        )
        .unwrap();
    }
}

// ---- a worker
// --------------------------------------------------------------------------------------------------

/// What a worker does with a message.
pub(crate) enum Answer {
    /// Replies with the body, and acknowledges when the broker has confirmed the reply.
    Reply(Vec<u8>),
    /// Acknowledges and replies never.
    Silence,
    /// Keeps the message, and neither acknowledges nor replies.
    Hold,
    /// Refuses the message for good.
    Nack,
}

impl Answer {
    pub(crate) fn json(value: &Value) -> Answer {
        Answer::Reply(value.to_string().into_bytes())
    }
}

/// A worker that consumes from some queues until it is dropped. It survives the end of its
/// connection, as a worker must.
pub(crate) struct Worker {
    seen: Arc<Mutex<Vec<StepMessage>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Worker {
    /// Returns when the worker consumes from all the queues.
    #[track_caller]
    pub(crate) fn start(
        url: &str,
        queues: &[impl AsRef<str>],
        work: impl FnMut(&StepMessage) -> Answer + Send + 'static,
    ) -> Worker {
        Worker::begin(url, queues, true, Box::new(work))
    }

    /// One that keeps nothing of what it receives, however large that is.
    #[track_caller]
    pub(crate) fn forgetful(
        url: &str,
        queues: &[impl AsRef<str>],
        work: impl FnMut(&StepMessage) -> Answer + Send + 'static,
    ) -> Worker {
        Worker::begin(url, queues, false, Box::new(work))
    }

    #[track_caller]
    fn begin(
        url: &str,
        queues: &[impl AsRef<str>],
        keeps: bool,
        work: Box<dyn FnMut(&StepMessage) -> Answer + Send>,
    ) -> Worker {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (ready, is_ready) = mpsc::channel();
        let duties = Duties {
            url: url.to_owned(),
            queues: queues.iter().map(|queue| queue.as_ref().to_owned()).collect(),
            seen: Arc::clone(&seen),
            keeps,
            work,
            ready,
        };
        let task = RUNTIME.spawn(duties.run_for_ever());
        is_ready
            .recv_timeout(DEADLINE)
            .expect("the worker's consumers are there within the deadline");
        Worker { seen, task }
    }

    /// A worker that gives its input back.
    #[track_caller]
    pub(crate) fn echo(url: &str, queues: &[impl AsRef<str>]) -> Worker {
        Worker::start(url, queues, |message| Answer::Reply(message.body.clone()))
    }

    /// All that it has received, in order.
    pub(crate) fn seen(&self) -> Vec<StepMessage> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn seen_count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Duties {
    url: String,
    queues: Vec<String>,
    seen: Arc<Mutex<Vec<StepMessage>>>,
    keeps: bool,
    work: Box<dyn FnMut(&StepMessage) -> Answer + Send>,
    ready: mpsc::Sender<()>,
}

impl Duties {
    async fn run_for_ever(mut self) {
        loop {
            if let Err(_lost) = self.run_on_one_connection().await {
                tokio::time::sleep(RECONNECT_PAUSE).await;
            }
        }
    }

    async fn run_on_one_connection(&mut self) -> lapin::Result<()> {
        let connection = Connection::connect(&self.url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        channel.basic_qos(50, BasicQosOptions::default()).await?;
        let mut consumers = futures_util::stream::SelectAll::new();
        for queue in &self.queues {
            channel
                .queue_declare(
                    queue.as_str().into(),
                    QueueDeclareOptions::durable(),
                    FieldTable::default(),
                )
                .await?;
            consumers.push(
                channel
                    .basic_consume(
                        queue.as_str().into(),
                        "".into(),
                        BasicConsumeOptions::default(),
                        FieldTable::default(),
                    )
                    .await?,
            );
        }
        let _nobody_waits = self.ready.send(());

        while let Some(delivery) = consumers.next().await {
            let message = StepMessage::new(delivery?);
            let answer = (self.work)(&message);
            match answer {
                Answer::Reply(body) => reply_and_ack(&channel, &message, &body).await?,
                Answer::Silence => {
                    message.acker.ack(BasicAckOptions::default()).await.map(|_acked| ())?
                }
                Answer::Hold => {}
                Answer::Nack => message
                    .acker
                    .nack(BasicNackOptions { requeue: false, ..BasicNackOptions::default() })
                    .await
                    .map(|_nacked| ())?,
            }
            if self.keeps {
                self.seen.lock().unwrap().push(message);
            }
        }
        Ok(())
    }
}

/// The confirm is awaited beside the next messages' work.
async fn reply_and_ack(channel: &Channel, message: &StepMessage, body: &[u8]) -> lapin::Result<()> {
    let mut properties = json_properties();
    if let Some(id) = message.properties.correlation_id() {
        properties = properties.with_correlation_id(id.clone());
    }
    let reply_to = message.properties.reply_to().clone().unwrap_or_default();
    let confirm = channel
        .basic_publish("".into(), reply_to, BasicPublishOptions::default(), body, properties)
        .await?;
    let acker = message.acker.clone();
    tokio::spawn(async move {
        if confirm.await.is_ok_and(|confirmation| confirmation.is_ack()) {
            let _connection_lost = acker.ack(BasicAckOptions::default()).await;
        }
    });
    Ok(())
}

/// The suite's own tools, without a daemon: what fails here fails everywhere.
#[test]
fn a_worker_of_this_suite_replies_to_whoever_asks() {
    let vhost = Vhost::new();
    let client = vhost.client();
    client.declare("answers", FieldTable::default());
    let worker = Worker::echo(&vhost.url, &["questions"]);
    let asked = json_properties().with_reply_to("answers".into());
    client.publish("questions", r#"{"k":1}"#, asked.clone().with_correlation_id("one:step".into()));
    let answer = client.take("answers");
    assert_eq!((answer.text(), answer.step().as_str()), (r#"{"k":1}"#, "step"));
    client.ack(&answer);

    // A worker outlives its connection.
    vhost.close_connections();
    let client = vhost.client();
    eventually("the worker is back", || {
        client.count("questions").filter(|count| count.1 == 1).ok_or("no consumer")
    });
    client.publish("questions", r#"{"k":2}"#, asked.with_correlation_id("two:step".into()));
    assert_eq!(client.take("answers").text(), r#"{"k":2}"#);
    assert_eq!(worker.seen_count(), 2);
    assert_eq!(client.count("no such queue"), None);
    drop(client);
    vhost.await_drained("questions");
}
