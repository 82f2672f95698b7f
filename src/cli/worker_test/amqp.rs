//! A stub manager over AMQP, which plays the manager's part of the worker protocol over a real
//! broker.
//!
//! It sends messages, receives replies, and runs a proxy between the worker under test and the
//! broker. The proxy observes in what order the worker publishes and acknowledges, and cuts its
//! connection on demand.

mod conversation;
mod frames;
mod message_log;
mod proxy;

use super::cut::CutTiming;
use super::event_log::{EventLog, Properties, Reply, ReplyKind};
use super::messages::{TestMessage, WORKFLOW};
use crate::error::ClientError;
use crate::text::Text;
use amqp::{
    BrokerAddress, QueueDeclarer, QueueProperties, close_connection, parse_number_header,
    queue_status, short_string,
};
use base::trust::Authorities;
use base::{clock, times};
use bus::QueueStatus;
use bytes::Bytes;
use conversation::WatchedQueues;
use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, ByteArray, FieldArray, FieldTable, LongString, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use message_log::MessageLog;
use proxy::Proxy;
use std::rc::Rc;
use std::time::Duration;

/// The maximum length of a property in AMQP, in bytes.
const PROPERTY_BYTES_MAX: usize = 255;

/// The maximum length of the queue's name, in bytes. The property `message_id` is
/// `<UUID>:<queue>:<attempt>`, with a UUID of 36 bytes and an attempt of one digit.
const QUEUE_BYTES_MAX: usize = PROPERTY_BYTES_MAX - 36 - 3;

/// The delivery mode of persistent messages.
const DELIVERY_MODE_PERSISTENT: u8 = 2;

/// The maximum number of unacknowledged replies.
const PREFETCH: u16 = 100;

/// The heartbeat of the connection to the broker.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// How long to wait until the broker has noticed that the worker's connections were closed.
const CLEAR_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the consumers are counted during that time.
const CLEAR_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A stub manager that uses one queue of a broker.
pub(super) struct AmqpStub {
    address: BrokerAddress,
    connection: Rc<Connection>,
    /// The channel on which messages are published, with publisher confirms.
    channel: Channel,
    declarer: Rc<QueueDeclarer>,
    /// The queue from which the worker consumes.
    queue: String,
    reply_queue: String,
    proxy: Proxy,
    log: MessageLog,
    /// Whether the queue was missing at the start. Then the stub manager declares it, and may
    /// delete it.
    has_declared_queue: bool,
}

impl AmqpStub {
    /// Connects, declares the queue if it is missing, and starts the proxy for the worker. What the
    /// worker does is added to `log`. Must be called on an arbiter.
    ///
    /// # Errors
    ///
    /// Returns an error if the worker cannot be tested with this broker and queue.
    pub(super) async fn open(
        server: &str,
        queue: &str,
        log: EventLog,
    ) -> Result<AmqpStub, ClientError> {
        let refuse = |reason: &str| Err(ClientError::Refused(reason.to_owned()));
        if queue.len() > QUEUE_BYTES_MAX {
            return Err(ClientError::Usage(format!(
                "the queue's name has more than {QUEUE_BYTES_MAX} bytes"
            )));
        }
        let authorities = Authorities::default();
        let address = BrokerAddress::parse_server(server, None, HEARTBEAT, &authorities)
            .map_err(|error| ClientError::Refused(error.to_string()))?;
        if address.is_tls() {
            return refuse(
                "worker-test sees nothing through TLS: name a broker with amqp://, such as one on \
                 this machine",
            );
        }
        let connection = Rc::new(address.open("worker-test").await.map_err(ClientError::Refused)?);
        let declarer = QueueDeclarer::new(connection.clone());
        let has_declared_queue = match queue_status(&address, declarer.check(queue).await) {
            QueueStatus::Missing => true,
            QueueStatus::Exists { messages: 0, consumers: 0, .. } => false,
            QueueStatus::Exists { messages, consumers, .. } => {
                close_connection(&connection).await;
                return refuse(&format!(
                    "the queue has {messages} messages and {consumers} consumers: worker-test \
                     needs one that nobody else uses; take another queue or virtual host, and \
                     let the worker connect to the address that worker-test names"
                ));
            }
            QueueStatus::Unknown(reason) => return refuse(&reason),
            QueueStatus::Endpoint { .. } => return refuse("it is not a queue of a broker"),
        };
        let reply_queue = format!("workflow-manager-worker-test-{}", clock::new_id());
        let log = MessageLog::new(log);
        let channel = open_channel(&connection, &reply_queue, log.clone())
            .await
            .map_err(|error| ClientError::Refused(address.explain(&error)))?;
        let watched_queues =
            WatchedQueues { queue: queue.to_owned(), reply_queue: reply_queue.clone() };
        let proxy = Proxy::open(address.host_and_port(), watched_queues, log.clone())
            .await
            .map_err(|error| ClientError::Refused(format!("cannot listen on loopback: {error}")))?;
        let stub = AmqpStub {
            address,
            connection,
            channel,
            declarer,
            queue: queue.to_owned(),
            reply_queue,
            proxy,
            log,
            has_declared_queue,
        };
        stub.declare().await?;
        Ok(stub)
    }

    /// Returns the address for the worker: `server` with the proxy's host and port.
    pub(super) fn address_for_worker(&self, server: &str) -> String {
        let (scheme, after_scheme) = server.split_once("://").unwrap_or(("amqp", server));
        let (authority, path) =
            after_scheme.split_at(after_scheme.find(['/', '?', '#']).unwrap_or(after_scheme.len()));
        let user = authority.rsplit_once('@').map_or(String::new(), |(user, _)| format!("{user}@"));
        format!("{scheme}://{user}127.0.0.1:{}{path}", self.proxy.port())
    }

    /// Sends a message as the manager does, and waits for the broker's confirm.
    pub(super) async fn send(&self, message: &TestMessage) -> Result<(), ClientError> {
        self.log.register(message.correlation_id(), message.number);
        let publish = self.channel.basic_publish(
            "".into(),
            self.queue_name(),
            BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() },
            &message.body,
            properties(message, &self.reply_queue),
        );
        let confirm = publish.await.map_err(|error| self.explain(&error))?;
        let problem = match confirm.await.map_err(|error| self.explain(&error))? {
            Confirmation::Ack(None) => return Ok(()),
            Confirmation::Ack(Some(_)) => "the queue is missing",
            Confirmation::Nack(_) | Confirmation::NotRequested => {
                "the broker did not take a message"
            }
        };
        Err(ClientError::Refused(problem.to_owned()))
    }

    /// Makes the proxy cut the worker's connection once, at this message.
    pub(super) fn cut(&self, message: &TestMessage, timing: CutTiming) {
        self.proxy.interventions().schedule_cut(message.correlation_id(), timing);
    }

    /// Prevents this message from being requeued: the proxy turns a requeue into a rejection.
    pub(super) fn prevent_requeue(&self, message: &TestMessage) {
        self.proxy.interventions().prevent_requeue(message.correlation_id());
    }

    /// Removes the messages that wait in the queue or are in flight. The worker is disconnected
    /// first, and may connect again afterwards.
    pub(super) async fn clear(&self) -> Result<(), ClientError> {
        self.proxy.pause();
        let deadline = clock::timer_now() + CLEAR_TIMEOUT;
        // The broker requeues messages in flight once it has noticed that their consumers are gone.
        while self.has_consumers().await && clock::timer_now() < deadline {
            tokio::time::sleep(CLEAR_POLL_INTERVAL).await;
        }
        self.declare().await?;
        let purge = self.channel.queue_purge(self.queue_name(), QueuePurgeOptions::default());
        purge.await.map_err(|error| self.explain(&error))?;
        self.proxy.resume();
        Ok(())
    }

    /// Returns whether the queue exists and workers consume from it.
    pub(super) async fn has_consumers(&self) -> bool {
        matches!(self.inspect().await, QueueStatus::Exists { consumers: 1.., .. })
    }

    /// Returns the status of the queue.
    async fn inspect(&self) -> QueueStatus {
        queue_status(&self.address, self.declarer.check(&self.queue).await)
    }

    /// Declares the queue, if it is missing.
    async fn declare(&self) -> Result<(), ClientError> {
        if self.inspect().await != QueueStatus::Missing {
            return Ok(());
        }
        let check = self.declarer.declare(&self.queue, QueueProperties::default()).await;
        match queue_status(&self.address, check) {
            QueueStatus::Unknown(reason) => Err(ClientError::Refused(reason)),
            QueueStatus::Exists { .. } | QueueStatus::Missing | QueueStatus::Endpoint { .. } => {
                Ok(())
            }
        }
    }

    /// Deletes the queue if the stub manager has declared it. Returns whether it did.
    pub(super) async fn delete(&self) -> Result<bool, ClientError> {
        if self.has_declared_queue {
            let delete =
                self.channel.queue_delete(self.queue_name(), QueueDeleteOptions::default());
            delete.await.map_err(|error| self.explain(&error))?;
        }
        Ok(self.has_declared_queue)
    }

    /// Closes all connections, and deletes the queue if the stub manager has declared it. The
    /// broker deletes the reply queue, which is exclusive to the connection.
    pub(super) async fn close(self) {
        self.proxy.pause();
        // Deleting fails if the connection is lost. Then the queue remains.
        let _ = self.delete().await;
        close_connection(&self.connection).await;
    }

    fn queue_name(&self) -> ShortString {
        short_string(&*self.queue)
    }

    /// Converts an error of the AMQP client to one that the user understands.
    fn explain(&self, error: &lapin::Error) -> ClientError {
        ClientError::Refused(self.address.explain(error))
    }
}

/// Opens a channel with publisher confirms, declares the exclusive reply queue, and consumes from
/// it in a task that logs the replies.
async fn open_channel(
    connection: &Connection,
    reply_queue: &str,
    log: MessageLog,
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
            log_reply(delivery, &log);
            // Acknowledging fails once the stub manager has closed the connection.
            let _ = acker.ack(BasicAckOptions::default()).await;
        }
    });
    Ok(channel)
}

/// Logs a reply with its properties.
fn log_reply(delivery: Delivery, log: &MessageLog) {
    let properties = &delivery.properties;
    let Some(correlation_id) = properties.correlation_id() else {
        return log.add_unexpected("a reply came without correlation_id");
    };
    let kind_name = properties.kind().as_ref().map(ShortString::as_str);
    let headers = properties.headers().as_ref();
    let attempt = headers.and_then(|headers| parse_number_header(headers, "attempt"));
    let reply = Reply {
        kind: kind_name.map_or(ReplyKind::Result, ReplyKind::from_name),
        properties: Properties {
            attempt: attempt.map(i64::from),
            is_persistent: *properties.delivery_mode() == Some(DELIVERY_MODE_PERSISTENT),
            content_type: properties
                .content_type()
                .as_ref()
                .map(|content_type| Text::new(content_type.as_str())),
        },
        body: Bytes::from(delivery.data),
    };
    log.add_reply(correlation_id.as_str(), reply);
}

/// Returns the properties of a message, as the manager sets them.
fn properties(message: &TestMessage, reply_queue: &str) -> BasicProperties {
    let long_string = |text: &str| AMQPValue::LongString(LongString::from(text));
    let mut headers = FieldTable::default();
    headers.insert("workflow".into(), long_string(WORKFLOW));
    headers.insert("job".into(), long_string(&message.job.to_string()));
    headers.insert("attempt".into(), AMQPValue::LongLongInt(i64::from(message.attempt)));
    headers.insert("traceparent".into(), long_string(&message.traceparent()));
    if message.has_extra_headers {
        let mut table = FieldTable::default();
        table.insert("what".into(), long_string("nobody knows"));
        let list = vec![AMQPValue::Boolean(true), AMQPValue::Void, long_string("\u{e4}")];
        for (name, value) in [
            ("x-worker-test-table", AMQPValue::FieldTable(table)),
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
        .with_message_id(short_string(message.id()))
        .with_correlation_id(short_string(message.correlation_id()))
        .with_app_id("workflow-manager".into())
        .with_timestamp(timestamp_s)
        .with_headers(headers);
    if message.has_reply_to {
        properties = properties.with_reply_to(short_string(reply_queue));
    }
    properties
}
