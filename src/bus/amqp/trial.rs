//! A stub manager: the manager's side of the worker protocol over a real broker, for one worker
//! that is tested. It sends messages, receives replies, and runs a proxy between the worker and the
//! broker. The proxy observes in what order the worker publishes and acknowledges, and cuts its
//! connection on demand.

mod frames;
mod heard;
mod relay;
mod talk;

use super::connection::{BrokerAddress, close};
use super::inspect::queue_look;
use super::queues::{Queues, short};
use super::received::whole;
use super::settings::AmqpSettings;
use super::shapes::Shape;
use crate::bus::{QueueLook, Served};
use crate::clock;
use crate::engine::QueueDeclaration;
use crate::settings::{ReplyQueueType, UnreadableMessages};
use crate::trust::Authorities;
use bytes::Bytes;
use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, ByteArray, FieldArray, FieldTable, LongString};
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use relay::Relay;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::mpsc;

pub use heard::{Heard, TrialReply};
pub use talk::CutAt;

const DELIVERY_MODE_PERSISTENT: u8 = 2;

/// The most replies that are not acknowledged.
const PREFETCH: u16 = 100;

/// How long the broker may take to notice that connections were cut.
const CLEAR_WITHIN: Duration = Duration::from_secs(10);

/// How often that is checked.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A step message.
#[derive(Clone, Debug)]
pub struct TrialMessage {
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
    pub is_adorned: bool,
    /// The body.
    pub body: Vec<u8>,
}

/// The manager's side of the protocol, for one queue.
pub struct Trial {
    address: BrokerAddress,
    connection: Rc<Connection>,
    channel: Channel,
    queues: Rc<Queues>,
    queue: String,
    reply_queue: String,
    relay: Relay,
    /// Whether the stub manager declared the queue.
    is_ours: bool,
}

impl Trial {
    /// Connects, declares the queue if it is missing, and starts the proxy for the worker. What the
    /// worker does is sent to `events`. Must be called on an arbiter.
    ///
    /// # Errors
    ///
    /// Says in one sentence why the worker cannot be tested with this broker and queue.
    pub async fn open(
        server: &str,
        queue: &str,
        heard: mpsc::UnboundedSender<Heard>,
    ) -> Result<Trial, String> {
        let reply_queue = format!("workflow-manager-worker-test-{}", clock::new_id());
        let settings = settings(server, &reply_queue);
        let address = BrokerAddress::parse(&settings).map_err(|error| error.to_string())?;
        if address.is_tls() {
            return Err("worker-test sees nothing through TLS: name a broker with amqp://, such \
                        as one on this machine"
                .to_owned());
        }
        let connection = Rc::new(address.open("worker-test").await?);
        let queues = Queues::new(connection.clone());
        let is_ours = match queue_look(&address, queues.look(queue).await, None) {
            QueueLook::Missing => true,
            QueueLook::There { messages: 0, consumers: 0, .. } => false,
            QueueLook::There { messages, consumers, .. } => {
                close(&connection).await;
                return Err(format!(
                    "the queue has {messages} messages and {consumers} consumers: worker-test \
                     needs one that nobody else uses; take another queue or virtual host, and \
                     let the worker connect to the address that worker-test names"
                ));
            }
            QueueLook::Unknown(why) => return Err(why),
            QueueLook::Service { .. } => return Err("it is no queue of a broker".to_owned()),
        };
        if is_ours {
            let made = queue_look(&address, queues.declare(queue, Shape::default()).await, None);
            if let QueueLook::Unknown(why) = made {
                return Err(why);
            }
        }
        let explain = |error: lapin::Error| address.explain(&error);
        let channel = reply_channel(&connection, &reply_queue, heard.clone());
        let channel = channel.await.map_err(explain)?;
        let watched = talk::Watched { queue: queue.to_owned(), reply_queue: reply_queue.clone() };
        let relay = Relay::open(address.endpoint(), watched, heard)
            .await
            .map_err(|error| format!("cannot listen on loopback: {error}"))?;
        let queue = queue.to_owned();
        Ok(Trial { address, connection, channel, queues, queue, reply_queue, relay, is_ours })
    }

    /// Returns the address for the worker: `server` with the proxy's host and port.
    pub fn address_for_worker(&self, server: &str) -> String {
        let (scheme, rest) = server.split_once("://").unwrap_or(("amqp", server));
        let (authority, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let user = authority.rsplit_once('@').map_or(String::new(), |(user, _)| format!("{user}@"));
        format!("{scheme}://{user}127.0.0.1:{}{behind}", self.relay.port())
    }

    /// Returns whether the stub manager declared the queue, and so may delete it.
    pub fn is_queue_ours(&self) -> bool {
        self.is_ours
    }

    /// Sends a message as the manager does.
    ///
    /// # Errors
    ///
    /// Says why the broker did not confirm it.
    pub async fn send(&self, message: TrialMessage) -> Result<(), String> {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let properties = properties(&message, &self.reply_queue);
        let publishing = self.channel.basic_publish(
            "".into(),
            short(&*self.queue),
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
    pub fn cut(&self, correlation_id: &str, at: CutAt) {
        self.relay.orders().cut(correlation_id, at);
    }

    /// Keeps this message from being requeued from now on: the proxy turns a requeue into a
    /// rejection.
    pub fn tame(&self, correlation_id: &str) {
        self.relay.orders().tame(correlation_id);
    }

    /// Removes the messages that wait in the queue or are in flight.
    ///
    /// # Errors
    ///
    /// Says why that failed.
    pub async fn clear(&self) -> Result<(), String> {
        self.relay.pause();
        let until = clock::ticks() + CLEAR_WITHIN;
        // Messages in flight are in the queue again when their consumers are gone.
        while matches!(self.look().await, QueueLook::There { consumers: 1.., .. })
            && clock::ticks() < until
        {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.declare().await?;
        let purging = self.channel.queue_purge(short(&*self.queue), QueuePurgeOptions::default());
        purging.await.map_err(|error| self.address.explain(&error))?;
        self.relay.resume();
        Ok(())
    }

    /// Returns the status of the queue.
    pub async fn look(&self) -> QueueLook {
        queue_look(&self.address, self.queues.look(&self.queue).await, None)
    }

    /// Declares the queue, if it is missing.
    ///
    /// # Errors
    ///
    /// Says why that failed.
    pub async fn declare(&self) -> Result<(), String> {
        if self.look().await != QueueLook::Missing {
            return Ok(());
        }
        let found = self.queues.declare(&self.queue, Shape::default()).await;
        match queue_look(&self.address, found, None) {
            QueueLook::Unknown(why) => Err(why),
            QueueLook::There { .. } | QueueLook::Missing | QueueLook::Service { .. } => Ok(()),
        }
    }

    /// Deletes the queue.
    ///
    /// # Errors
    ///
    /// Says why that failed.
    pub async fn delete(&self) -> Result<(), String> {
        let deleting =
            self.channel.queue_delete(short(&*self.queue), QueueDeleteOptions::default());
        deleting.await.map(drop).map_err(|error| self.address.explain(&error))
    }

    /// Closes all connections, and deletes what was declared: the queue if it is ours, and the
    /// reply queue, which is exclusive to the connection.
    pub async fn close(self) {
        self.relay.pause();
        if self.is_ours {
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
        served: Served::default(),
        authorities: Authorities::default(),
        joins: true,
    }
}

/// Opens a channel to publish on, which also consumes the replies from an exclusive queue.
async fn reply_channel(
    connection: &Connection,
    reply_queue: &str,
    heard: mpsc::UnboundedSender<Heard>,
) -> lapin::Result<Channel> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    let options = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(short(reply_queue), options, FieldTable::default()).await?;
    let mut replies = channel
        .basic_consume(
            short(reply_queue),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        )
        .await?;
    actix_rt::spawn(async move {
        while let Some(Ok(delivery)) = replies.next().await {
            let acker = delivery.acker.clone();
            // The receiver and the connection both end with the stub manager.
            let _ = heard.send(replied(delivery));
            let _ = acker.ack(BasicAckOptions::default()).await;
        }
    });
    Ok(channel)
}

fn replied(delivery: Delivery) -> Heard {
    let properties = &delivery.properties;
    let text = |property: &Option<lapin::types::ShortString>| {
        property.as_ref().map(|text| text.as_str().to_owned())
    };
    let Some(of) = text(properties.correlation_id()) else {
        return Heard::Strange("a reply came without correlation_id".to_owned());
    };
    let reply = TrialReply {
        kind: text(properties.kind()),
        attempt: properties.headers().as_ref().and_then(|headers| whole(headers, "attempt")),
        is_persistent: *properties.delivery_mode() == Some(DELIVERY_MODE_PERSISTENT),
        content_type: text(properties.content_type()),
        body: Bytes::from(delivery.data),
    };
    Heard::Replied(of, reply)
}

/// Returns the properties of a message, as the manager sets them.
fn properties(message: &TrialMessage, reply_queue: &str) -> BasicProperties {
    let text = |text: &str| AMQPValue::LongString(LongString::from(text));
    let mut headers = FieldTable::default();
    headers.insert("workflow".into(), text(&message.workflow));
    headers.insert("job".into(), text(&message.job));
    headers.insert("attempt".into(), AMQPValue::LongLongInt(i64::from(message.attempt)));
    headers.insert("traceparent".into(), text(&message.traceparent));
    if message.is_adorned {
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
    let timestamp_s = u64::try_from(clock::now().0 / 1_000_000_000).unwrap_or_default();
    let mut properties = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_delivery_mode(DELIVERY_MODE_PERSISTENT)
        .with_message_id(short(&*message.id))
        .with_correlation_id(short(&*message.correlation_id))
        .with_app_id("workflow-manager".into())
        .with_timestamp(timestamp_s)
        .with_headers(headers);
    if message.has_reply_to {
        properties = properties.with_reply_to(short(reply_queue));
    }
    properties
}
