//! A stub manager: the manager's side of the worker protocol over a real broker, for one worker
//! that is tested. It sends messages, receives replies, and runs a proxy between the worker and the
//! broker. The proxy observes in what order the worker publishes and acknowledges, and cuts its
//! connection on demand.

mod conversation;
mod frames;
mod proxy;
mod worker_event;

use super::connection::{BrokerAddress, close};
use super::inspect::queue_status;
use super::queue_properties::QueueProperties;
use super::queues::{QueueDeclarer, short_string};
use super::received::parse_number_header;
use super::settings::AmqpSettings;
use crate::section::{ReplyQueueType, UnreadableMessages};
use base::trust::Authorities;
use base::{clock, times};
use bus::{QueueStatus, ServedQueues};
use bytes::Bytes;
use engine::QueueDeclaration;
use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, ByteArray, FieldArray, FieldTable, LongString};
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use proxy::Proxy;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::mpsc;

pub use conversation::CutPoint;
pub use worker_event::{ReceivedReply, WorkerEvent};

const DELIVERY_MODE_PERSISTENT: u8 = 2;

/// The most replies that are not acknowledged.
const PREFETCH: u16 = 100;

/// How long the broker may take to notice that connections were cut.
const CLEAR_TIMEOUT: Duration = Duration::from_secs(10);

/// How often that is checked.
const CLEAR_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A step message.
#[derive(Clone, Debug)]
pub struct StubMessage {
    /// The property `message_id`.
    pub id: String,
    /// The property `correlation_id`.
    pub correlation_id: String,
    /// The header `workflow`.
    pub workflow: String,
    /// The header `job`.
    pub job: String,
    /// The header `attempt`.
    pub attempt: u32,
    /// The header `traceparent`.
    pub traceparent: String,
    /// Whether a reply is expected.
    pub has_reply_to: bool,
    /// Whether it has headers of every type that the protocol does not know.
    pub has_extra_headers: bool,
    /// The body.
    pub body: Vec<u8>,
}

/// The manager's side of the protocol, for one queue.
pub struct StubManager {
    address: BrokerAddress,
    connection: Rc<Connection>,
    channel: Channel,
    queues: Rc<QueueDeclarer>,
    queue: String,
    reply_queue: String,
    proxy: Proxy,
    /// Whether the stub manager declared the queue.
    is_queue_ours: bool,
}

impl StubManager {
    /// Connects, declares the queue if it is missing, and starts the proxy for the worker. What the
    /// worker does is sent to `events`. Must be called on an arbiter.
    ///
    /// # Errors
    ///
    /// Says in one sentence why the worker cannot be tested with this broker and queue.
    pub async fn open(
        server: &str,
        queue: &str,
        events: mpsc::UnboundedSender<WorkerEvent>,
    ) -> Result<StubManager, String> {
        let reply_queue = format!("workflow-manager-worker-test-{}", clock::new_id());
        let settings = settings(server, &reply_queue);
        let address = BrokerAddress::parse(&settings).map_err(|error| error.to_string())?;
        if address.is_tls() {
            return Err("worker-test sees nothing through TLS: name a broker with amqp://, such \
                        as one on this machine"
                .to_owned());
        }
        let connection = Rc::new(address.open("worker-test").await?);
        let queues = QueueDeclarer::new(connection.clone());
        let is_ours = match queue_status(&address, queues.check(queue).await, None) {
            QueueStatus::Missing => true,
            QueueStatus::Exists { messages: 0, consumers: 0, .. } => false,
            QueueStatus::Exists { messages, consumers, .. } => {
                close(&connection).await;
                return Err(format!(
                    "the queue has {messages} messages and {consumers} consumers: worker-test \
                     needs one that nobody else uses; take another queue or virtual host, and \
                     let the worker connect to the address that worker-test names"
                ));
            }
            QueueStatus::Unknown(why) => return Err(why),
            QueueStatus::Endpoint { .. } => return Err("it is no queue of a broker".to_owned()),
        };
        if is_ours {
            let declared = queue_status(
                &address,
                queues.declare(queue, QueueProperties::default()).await,
                None,
            );
            if let QueueStatus::Unknown(why) = declared {
                return Err(why);
            }
        }
        let explain = |error: lapin::Error| address.explain(&error);
        let channel = reply_channel(&connection, &reply_queue, events.clone());
        let channel = channel.await.map_err(explain)?;
        let watched_queues = conversation::WatchedQueues {
            queue: queue.to_owned(),
            reply_queue: reply_queue.clone(),
        };
        let proxy = Proxy::open(address.host_and_port(), watched_queues, events)
            .await
            .map_err(|error| format!("cannot listen on loopback: {error}"))?;
        let queue = queue.to_owned();
        Ok(StubManager {
            address,
            connection,
            channel,
            queues,
            queue,
            reply_queue,
            proxy,
            is_queue_ours: is_ours,
        })
    }

    /// Returns the address for the worker: `server` with the proxy's host and port.
    pub fn address_for_worker(&self, server: &str) -> String {
        let (scheme, rest) = server.split_once("://").unwrap_or(("amqp", server));
        let (authority, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let user = authority.rsplit_once('@').map_or(String::new(), |(user, _)| format!("{user}@"));
        format!("{scheme}://{user}127.0.0.1:{}{behind}", self.proxy.port())
    }

    /// Returns whether the stub manager declared the queue, and so may delete it.
    pub fn is_queue_ours(&self) -> bool {
        self.is_queue_ours
    }

    /// Sends a message as the manager does.
    ///
    /// # Errors
    ///
    /// Says why the broker did not confirm it.
    pub async fn send(&self, message: StubMessage) -> Result<(), String> {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let properties = properties(&message, &self.reply_queue);
        let publishing = self.channel.basic_publish(
            "".into(),
            short_string(&*self.queue),
            options,
            &message.body,
            properties,
        );
        let explain = |error: lapin::Error| self.address.explain(&error);
        match publishing.await.map_err(explain)?.await.map_err(explain)? {
            Confirmation::Ack(None) => Ok(()),
            Confirmation::Ack(Some(_)) => Err("the queue is missing".to_owned()),
            Confirmation::Nack(_) | Confirmation::NotRequested => {
                Err("the broker did not take a message".to_owned())
            }
        }
    }

    /// Makes the proxy cut the worker's connection once, at this message.
    pub fn cut_at(&self, correlation_id: &str, at: CutPoint) {
        self.proxy.interventions().cut_at(correlation_id, at);
    }

    /// Keeps this message from being requeued from now on: the proxy turns a requeue into a
    /// rejection.
    pub fn prevent_requeue(&self, correlation_id: &str) {
        self.proxy.interventions().prevent_requeue(correlation_id);
    }

    /// Removes the messages that wait in the queue or are in flight.
    ///
    /// # Errors
    ///
    /// Says why that failed.
    pub async fn clear(&self) -> Result<(), String> {
        self.proxy.pause();
        let until = clock::timer_now() + CLEAR_TIMEOUT;
        // Messages in flight are in the queue again when their consumers are gone.
        while matches!(self.inspect().await, QueueStatus::Exists { consumers: 1.., .. })
            && clock::timer_now() < until
        {
            tokio::time::sleep(CLEAR_POLL_INTERVAL).await;
        }
        self.declare().await?;
        let purging =
            self.channel.queue_purge(short_string(&*self.queue), QueuePurgeOptions::default());
        purging.await.map_err(|error| self.address.explain(&error))?;
        self.proxy.resume();
        Ok(())
    }

    /// Returns the status of the queue.
    pub async fn inspect(&self) -> QueueStatus {
        queue_status(&self.address, self.queues.check(&self.queue).await, None)
    }

    /// Declares the queue, if it is missing.
    ///
    /// # Errors
    ///
    /// Says why that failed.
    pub async fn declare(&self) -> Result<(), String> {
        if self.inspect().await != QueueStatus::Missing {
            return Ok(());
        }
        let found = self.queues.declare(&self.queue, QueueProperties::default()).await;
        match queue_status(&self.address, found, None) {
            QueueStatus::Unknown(why) => Err(why),
            QueueStatus::Exists { .. } | QueueStatus::Missing | QueueStatus::Endpoint { .. } => {
                Ok(())
            }
        }
    }

    /// Deletes the queue.
    ///
    /// # Errors
    ///
    /// Says why that failed.
    pub async fn delete(&self) -> Result<(), String> {
        let deleting =
            self.channel.queue_delete(short_string(&*self.queue), QueueDeleteOptions::default());
        deleting.await.map(drop).map_err(|error| self.address.explain(&error))
    }

    /// Closes all connections, and deletes what was declared: the queue if it is ours, and the
    /// reply queue, which is exclusive to the connection.
    pub async fn close(self) {
        self.proxy.pause();
        if self.is_queue_ours {
            // Without a connection nothing can be done about the queue.
            let _ = self.delete().await;
        }
        close(&self.connection).await;
    }
}

fn settings(server: &str, reply_queue: &str) -> AmqpSettings {
    AmqpSettings {
        server: server.to_owned(),
        vhost: None,
        management: String::new(),
        reply_queue: reply_queue.to_owned(),
        reply_queue_type: ReplyQueueType::Classic,
        declaration: QueueDeclaration::default(),
        unreadable: UnreadableMessages::Drop,
        prefetch: PREFETCH,
        linger: Duration::ZERO,
        replies_bytes_max: 0,
        unconfirmed_max: 0,
        unconfirmed_bytes_max: 0,
        reconnect_min: Duration::from_secs(1),
        reconnect_max: Duration::from_secs(1),
        heartbeat: Duration::from_secs(30),
        served: ServedQueues::default(),
        authorities: Authorities::default(),
        is_added_later: true,
    }
}

/// Opens a channel to publish on, which also consumes the replies from an exclusive queue.
async fn reply_channel(
    connection: &Connection,
    reply_queue: &str,
    events: mpsc::UnboundedSender<WorkerEvent>,
) -> lapin::Result<Channel> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    let options = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(short_string(reply_queue), options, FieldTable::default()).await?;
    let mut replies = channel
        .basic_consume(
            short_string(reply_queue),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        )
        .await?;
    actix_rt::spawn(async move {
        while let Some(Ok(delivery)) = replies.next().await {
            let acker = delivery.acker.clone();
            // The receiver and the connection both end with the stub manager.
            let _ = events.send(parse_reply(delivery));
            let _ = acker.ack(BasicAckOptions::default()).await;
        }
    });
    Ok(channel)
}

fn parse_reply(delivery: Delivery) -> WorkerEvent {
    let properties = &delivery.properties;
    let text = |property: &Option<lapin::types::ShortString>| {
        property.as_ref().map(|text| text.as_str().to_owned())
    };
    let Some(correlation_id) = text(properties.correlation_id()) else {
        return WorkerEvent::Violation("a reply came without correlation_id".to_owned());
    };
    let reply = ReceivedReply {
        kind: text(properties.kind()),
        attempt: properties
            .headers()
            .as_ref()
            .and_then(|headers| parse_number_header(headers, "attempt")),
        is_persistent: *properties.delivery_mode() == Some(DELIVERY_MODE_PERSISTENT),
        content_type: text(properties.content_type()),
        body: Bytes::from(delivery.data),
    };
    WorkerEvent::ReplyReceived(correlation_id, reply)
}

/// Returns the properties of a message, as the manager sets them.
fn properties(message: &StubMessage, reply_queue: &str) -> BasicProperties {
    let text = |text: &str| AMQPValue::LongString(LongString::from(text));
    let mut headers = FieldTable::default();
    headers.insert("workflow".into(), text(&message.workflow));
    headers.insert("job".into(), text(&message.job));
    headers.insert("attempt".into(), AMQPValue::LongLongInt(i64::from(message.attempt)));
    headers.insert("traceparent".into(), text(&message.traceparent));
    if message.has_extra_headers {
        let mut inner = FieldTable::default();
        inner.insert("what".into(), text("nobody knows"));
        let list = vec![AMQPValue::Boolean(true), AMQPValue::Void, text("\u{e4}")];
        for (name, value) in [
            ("x-worker-test-table", AMQPValue::FieldTable(inner)),
            ("x-worker-test-list", AMQPValue::FieldArray(FieldArray::from(list))),
            ("x-worker-test-bytes", AMQPValue::ByteArray(ByteArray::from(&[0xff, 0][..]))),
            ("x-worker-test-double", AMQPValue::Double(0.5)),
            ("x-worker-test-time", AMQPValue::Timestamp(1)),
            ("x-worker-test-small", AMQPValue::ShortShortInt(-1)),
            ("x-worker-test-nothing", AMQPValue::Void),
        ] {
            headers.insert(name.into(), value);
        }
    }
    let timestamp_s = times::unix_seconds(clock::now());
    let mut properties = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_delivery_mode(DELIVERY_MODE_PERSISTENT)
        .with_message_id(short_string(&*message.id))
        .with_correlation_id(short_string(&*message.correlation_id))
        .with_app_id("workflow-manager".into())
        .with_timestamp(timestamp_s)
        .with_headers(headers);
    if message.has_reply_to {
        properties = properties.with_reply_to(short_string(reply_queue));
    }
    properties
}
