//! The transport over AMQP. Each message is handled in this order: call the function, publish its
//! reply, wait for the broker's confirm, acknowledge the message. So no message is lost: if
//! anything fails before the acknowledgement, the broker still has the message and delivers it
//! again.

use crate::backoff::Backoff;
use crate::processing::{BoxFuture, Disposition, Handler, Message, ProgressSender, Reply, process};
use crate::step::MessageInfo;
use crate::tls;
use crate::worker::{Error, WorkerConfig, address_error, display_address, wait_for_stop};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::SelectAll;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ErrorKind};
use rustls::ClientConfig;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// How long the broker may take to accept a connection, and then to open its channel.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the broker may take to confirm that a connection is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to retry a reply that the broker does not take, for example because its queue is
/// missing. After that the message is requeued.
const REPLY_RETRY_TIMEOUT: Duration = Duration::from_secs(60);

/// The interval at which the connection is checked. During a call this is needed because a call may
/// never end after its connection was lost.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The delivery mode of messages that survive a restart of the broker.
const DELIVERY_MODE_PERSISTENT: u8 = 2;

/// Serves until the worker stops. Whenever the connection is lost, reconnects with exponential
/// backoff.
pub(crate) async fn serve(
    config: WorkerConfig,
    mut stopping: watch::Receiver<bool>,
) -> Result<(), Error> {
    let address: AMQPUri =
        config.server.parse().map_err(|reason: String| address_error(&config.server, reason))?;
    let authorities = config.authorities.as_deref();
    let tls = match address.scheme {
        AMQPScheme::AMQP => None,
        AMQPScheme::AMQPS => Some(Arc::new(
            tls::client_config(authorities)
                .map_err(|reason| address_error(&config.server, reason))?,
        )),
    };
    let server = display_address(&config.server);
    let mut backoff = Backoff::new();
    while !*stopping.borrow() {
        let connection = tokio::select! {
            connection = ConsumerConnection::open(&address, tls.clone(), &config) => connection,
            () = wait_for_stop(&mut stopping) => break,
        };
        let result = match connection {
            Ok(connection) => {
                tracing::info!(server, queues = ?config.handlers.keys(), "consuming");
                backoff.reset();
                connection.run(&mut stopping).await
            }
            Err(reason) => Err(reason),
        };
        let Err(reason) = result else { break };
        let pause = backoff.next();
        tracing::warn!(server, ?pause, "no connection: {reason}");
        tokio::select! {
            () = sleep(pause) => {}
            () = wait_for_stop(&mut stopping) => {}
        }
    }
    Ok(())
}

/// The reason why a connection can no longer be used, for the log.
type ConnectionLost = String;

/// The parts of a connection that are needed to settle its messages.
#[derive(Clone)]
struct ChannelHandle {
    connection: Arc<Connection>,
    channel: Channel,
}

impl ChannelHandle {
    /// Waits for the result of a call to the broker. Returns an error if the call fails, or if the
    /// connection is lost meanwhile.
    async fn wait_for_call<T>(
        &self,
        call: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, ConnectionLost> {
        let mut call = std::pin::pin!(call);
        loop {
            if let Ok(result) = timeout(CHECK_INTERVAL, &mut call).await {
                return result.map_err(|error| error.to_string());
            }
            if !self.connection.status().connected() || !self.channel.status().connected() {
                return Err("the connection was lost".to_owned());
            }
        }
    }

    /// Acknowledges a delivery.
    async fn ack(&self, delivery: &Delivery) -> Result<(), ConnectionLost> {
        self.wait_for_call(delivery.acker.ack(BasicAckOptions::default())).await.map(drop)
    }

    /// Rejects a delivery.
    async fn nack(&self, delivery: &Delivery, requeue: bool) -> Result<(), ConnectionLost> {
        let options = BasicNackOptions { requeue, ..BasicNackOptions::default() };
        self.wait_for_call(delivery.acker.nack(options)).await.map(drop)
    }

    /// Declares a durable queue. If the broker refuses the declaration, the queue is used as it is.
    /// Each declaration has a channel of its own, which a refusal closes.
    async fn declare(&self, queue: &str) -> Result<(), ConnectionLost> {
        let declaration = async {
            let channel = self.connection.create_channel().await?;
            let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
            channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
            channel.close(200, "declared".into()).await
        };
        let accept_refusal = async {
            match declaration.await {
                Err(error) if is_refused(&error) => {
                    tracing::info!(queue, %error, "the queue is used as it is");
                    Ok(())
                }
                result => result,
            }
        };
        self.wait_for_call(accept_refusal).await
    }

    /// Publishes a reply or progress. Returns whether the broker has routed it to a queue and
    /// confirmed it. `kind` becomes the property `type`: `None` for a result.
    async fn publish(
        &self,
        address: &ReplyAddress,
        kind: Option<&str>,
        body: &[u8],
    ) -> Result<bool, ConnectionLost> {
        let mut properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_delivery_mode(DELIVERY_MODE_PERSISTENT)
            .with_headers(address.headers.clone());
        if let Some(id) = &address.correlation_id {
            properties = properties.with_correlation_id(id.clone());
        }
        if let Some(kind) = kind {
            properties = properties.with_type(kind.into());
        }
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let reply_to = address.reply_to.clone();
        self.wait_for_call(async {
            let channel = &self.channel;
            channel.basic_publish("".into(), reply_to, options, body, properties).await?.await
        })
        .await
        .map(|confirmation| matches!(confirmation, Confirmation::Ack(None)))
    }
}

/// Where the replies to a message are sent, and the properties that they repeat.
#[derive(Clone)]
struct ReplyAddress {
    /// The reply queue. Empty if the message names none.
    reply_to: ShortString,
    correlation_id: Option<ShortString>,
    /// The header `attempt` of the message, if it has one: it prevents a late error from counting
    /// for a later attempt.
    headers: FieldTable,
}

/// A connection with its consumers, and the tasks of its messages.
struct ConsumerConnection {
    handle: ChannelHandle,
    consumers: SelectAll<DeliveryStream>,
    /// The handlers by queue.
    handlers: BTreeMap<String, Handler>,
    /// One task for each message in flight.
    tasks: JoinSet<Result<(), ConnectionLost>>,
    /// `None` until the connection is lost. Then running functions read here why their results are
    /// no longer wanted.
    end_reason: watch::Sender<Option<Arc<str>>>,
}

/// The deliveries of one consumer, each with the name of its queue. When the consumer ends, the
/// stream yields `None` for the delivery and then ends, too.
type DeliveryStream = std::pin::Pin<
    Box<dyn futures_util::Stream<Item = (String, Option<lapin::Result<Delivery>>)> + Send>,
>;

impl ConsumerConnection {
    /// Connects, and consumes from all queues.
    async fn open(
        address: &AMQPUri,
        tls: Option<Arc<ClientConfig>>,
        config: &WorkerConfig,
    ) -> Result<ConsumerConnection, ConnectionLost> {
        let name = format!(
            "workflow-worker: {}",
            config.handlers.keys().cloned().collect::<Vec<_>>().join(",")
        );
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let connecting = async {
            match tls {
                None => Connection::connect_uri(address.clone(), properties).await,
                Some(config) => tls::connect(address.clone(), properties, config).await,
            }
        };
        let connection = timeout(CONNECT_TIMEOUT, connecting)
            .await
            .map_err(|_| format!("no answer within {CONNECT_TIMEOUT:?}"))?;
        let connection = Arc::new(connection.map_err(|error| error.to_string())?);
        let channel = timeout(CONNECT_TIMEOUT, connection.create_channel())
            .await
            .map_err(|_| "no channel".to_owned())?
            .map_err(|error| error.to_string())?;
        let handle = ChannelHandle { connection, channel };
        handle
            .wait_for_call(handle.channel.confirm_select(ConfirmSelectOptions::default()))
            .await?;
        let mut consumer_connection = ConsumerConnection {
            handle,
            consumers: SelectAll::new(),
            handlers: config.handlers.clone(),
            tasks: JoinSet::new(),
            end_reason: watch::channel(None).0,
        };
        let handle = &consumer_connection.handle;
        let qos = handle.channel.basic_qos(config.prefetch, BasicQosOptions::default());
        handle.wait_for_call(qos).await?;
        for queue in config.handlers.keys() {
            consumer_connection.consume(queue).await?;
        }
        Ok(consumer_connection)
    }

    /// Declares a queue, and consumes from it.
    async fn consume(&mut self, queue: &str) -> Result<(), ConnectionLost> {
        self.handle.declare(queue).await?;
        let consumer = self.handle.channel.basic_consume(
            queue.into(),
            // The broker chooses the consumer tag.
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let consumer = self.handle.wait_for_call(consumer).await?;
        let (delivery_queue, end_queue) = (queue.to_owned(), queue.to_owned());
        let deliveries = consumer.map(move |delivery| (delivery_queue.clone(), Some(delivery)));
        let end = futures_util::stream::once(async move { (end_queue, None) });
        self.consumers.push(Box::pin(deliveries.chain(end)));
        Ok(())
    }

    /// Consumes messages until the worker stops and nothing is in flight, or the connection is
    /// lost.
    async fn run(mut self, stopping: &mut watch::Receiver<bool>) -> Result<(), ConnectionLost> {
        let result = match self.consume_until_stopped(stopping).await {
            Ok(()) => self.drain().await,
            Err(reason) => Err(reason),
        };
        if result.is_err() {
            let reason = "the connection to the broker was lost; the message is delivered again";
            self.end_reason.send_replace(Some(reason.into()));
            // Functions that do not check for this continue until they return. Their results are
            // dropped.
            self.tasks.detach_all();
        }
        // Closing fails if the connection is lost.
        let _ = timeout(CLOSE_TIMEOUT, self.handle.connection.close(200, "done".into())).await;
        result
    }

    /// Starts a task for each delivery. Returns `Ok` when the worker is asked to stop.
    async fn consume_until_stopped(
        &mut self,
        stopping: &mut watch::Receiver<bool>,
    ) -> Result<(), ConnectionLost> {
        loop {
            tokio::select! {
                biased;
                () = wait_for_stop(stopping) => return Ok(()),
                Some(join_result) = self.tasks.join_next() => flatten_task_result(join_result)?,
                Some((queue, delivery)) = self.consumers.next() => match delivery {
                    Some(delivery) => {
                        let delivery = delivery.map_err(|error| error.to_string())?;
                        self.start_task(&queue, delivery, stopping);
                    }
                    None => self.consume_again(&queue).await?,
                },
                () = sleep(CHECK_INTERVAL) => {
                    if !self.handle.connection.status().connected() {
                        return Err("the connection was lost".to_owned());
                    }
                }
            }
        }
    }

    /// Consumes from a queue again after its consumer has ended. The broker ends a consumer when
    /// its queue is deleted. If the connection was lost instead, returns an error.
    async fn consume_again(&mut self, queue: &str) -> Result<(), ConnectionLost> {
        if !self.handle.connection.status().connected() || !self.handle.channel.status().connected()
        {
            return Err("the connection was lost".to_owned());
        }
        tracing::warn!(queue, "the queue was deleted; it is declared again");
        self.consume(queue).await
    }

    /// Starts the task that processes a delivery and settles it.
    fn start_task(&mut self, queue: &str, delivery: Delivery, stopping: &watch::Receiver<bool>) {
        let Some(handler) = self.handlers.get(queue).cloned() else { return };
        let (handle, end_reason) = (self.handle.clone(), self.end_reason.subscribe());
        self.tasks.spawn(process_delivery(
            handle,
            handler,
            queue.to_owned(),
            delivery,
            end_reason,
            stopping.clone(),
        ));
    }

    /// Stops consuming, and waits for the messages in flight. Once the connection is closed, the
    /// broker requeues prefetched messages that no task has started on.
    async fn drain(&mut self) -> Result<(), ConnectionLost> {
        // Consumers are cancelled on drop.
        self.consumers.clear();
        while let Some(join_result) = self.tasks.join_next().await {
            flatten_task_result(join_result)?;
        }
        Ok(())
    }
}

/// Returns the result of a task. A panic of the task counts as a lost connection: its message is
/// not settled, and only a new connection makes the broker deliver it again.
fn flatten_task_result(
    join_result: Result<Result<(), ConnectionLost>, tokio::task::JoinError>,
) -> Result<(), ConnectionLost> {
    join_result.unwrap_or_else(|error| Err(error.to_string()))
}

/// Returns whether the broker refused a declaration: the queue has other properties, or the user
/// may not declare it.
#[allow(clippy::wildcard_enum_match_arm, reason = "lapin's errors are non-exhaustive")]
fn is_refused(error: &lapin::Error) -> bool {
    let ErrorKind::ProtocolError(error) = error.kind() else { return false };
    match error.kind() {
        AMQPErrorKind::Soft(soft) => {
            matches!(soft, AMQPSoftError::PRECONDITIONFAILED | AMQPSoftError::ACCESSREFUSED)
        }
        _ => false,
    }
}

/// Processes a delivery, and settles it unless its result is no longer wanted.
async fn process_delivery(
    handle: ChannelHandle,
    handler: Handler,
    queue: String,
    mut delivery: Delivery,
    end_reason: watch::Receiver<Option<Arc<str>>>,
    stopping: watch::Receiver<bool>,
) -> Result<(), ConnectionLost> {
    let body = Bytes::from(std::mem::take(&mut delivery.data));
    let address = reply_address(&delivery);
    let message = Message {
        info: message_info(queue.clone(), &delivery),
        body,
        has_reply_to: !address.reply_to.as_str().is_empty(),
        progress_sender: Arc::new(AmqpProgress {
            handle: handle.clone(),
            address: address.clone(),
        }),
        end_reason: end_reason.clone(),
    };
    match process(&handler, message).await {
        Disposition::Reply(reply) => settle(&handle, &address, &delivery, reply, stopping).await,
        Disposition::Rejected => handle.nack(&delivery, false).await,
        Disposition::Dropped => Ok(()),
    }
}

/// Publishes the reply, and then acknowledges the message. If the broker does not take the reply,
/// retries, and finally requeues the message.
async fn settle(
    handle: &ChannelHandle,
    address: &ReplyAddress,
    delivery: &Delivery,
    reply: Reply,
    mut stopping: watch::Receiver<bool>,
) -> Result<(), ConnectionLost> {
    let kind = reply.is_error.then_some("error");
    let (start_time, mut backoff) = (Instant::now(), Backoff::new());
    loop {
        // Acknowledged only after the confirm. Otherwise a crash in between would lose the reply.
        if handle.publish(address, kind, &reply.body).await? {
            return handle.ack(delivery).await;
        }
        let queue = address.reply_to.as_str();
        if *stopping.borrow() || start_time.elapsed() > REPLY_RETRY_TIMEOUT {
            tracing::error!(queue, "the reply queue takes no reply: the message is put back");
            return handle.nack(delivery, true).await;
        }
        let pause = backoff.next();
        tracing::warn!(queue, ?pause, "the reply queue takes no reply");
        tokio::select! {
            () = sleep(pause) => {}
            () = wait_for_stop(&mut stopping) => {}
        }
    }
}

/// Returns the address for the replies to a delivery.
fn reply_address(delivery: &Delivery) -> ReplyAddress {
    let properties = &delivery.properties;
    let mut headers = FieldTable::default();
    let attempt = properties.headers().as_ref().and_then(|headers| headers.inner().get("attempt"));
    if let Some(attempt) = attempt.filter(|value| to_u32(value).is_some()) {
        headers.insert("attempt".into(), attempt.clone());
    }
    ReplyAddress {
        reply_to: properties.reply_to().clone().unwrap_or_default(),
        correlation_id: properties.correlation_id().clone(),
        headers,
    }
}

/// Returns the properties of a delivery. Missing ones become empty, missing numbers 1.
fn message_info(queue: String, delivery: &Delivery) -> MessageInfo {
    let properties = &delivery.properties;
    let header = |name: &str| properties.headers().as_ref()?.inner().get(name);
    let text = |name: &str| match header(name) {
        Some(AMQPValue::LongString(text)) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
        _ => String::new(),
    };
    let read_count = |name: &str| header(name).and_then(to_u32);
    // A quorum queue counts the earlier deliveries in this header. A classic queue only says
    // whether there were any.
    let earlier_deliveries =
        read_count("x-delivery-count").unwrap_or_else(|| u32::from(delivery.redelivered));
    let correlation_id = properties.correlation_id().as_ref();
    MessageInfo {
        queue,
        correlation_id: correlation_id.map_or_else(String::new, |id| id.as_str().to_owned()),
        attempt: read_count("attempt").unwrap_or(1),
        job: text("job"),
        workflow: text("workflow"),
        delivery: earlier_deliveries.saturating_add(1),
    }
}

/// Converts an integer of any AMQP type. `None` if the value is no integer, or out of range.
#[allow(clippy::wildcard_enum_match_arm, reason = "all other values are no numbers")]
fn to_u32(value: &AMQPValue) -> Option<u32> {
    match value {
        AMQPValue::ShortShortInt(number) => u32::try_from(*number).ok(),
        AMQPValue::ShortShortUInt(number) => Some(u32::from(*number)),
        AMQPValue::ShortInt(number) => u32::try_from(*number).ok(),
        AMQPValue::ShortUInt(number) => Some(u32::from(*number)),
        AMQPValue::LongInt(number) => u32::try_from(*number).ok(),
        AMQPValue::LongUInt(number) => Some(*number),
        AMQPValue::LongLongInt(number) => u32::try_from(*number).ok(),
        _ => None,
    }
}

/// Sends progress over AMQP.
struct AmqpProgress {
    handle: ChannelHandle,
    address: ReplyAddress,
}

impl ProgressSender for AmqpProgress {
    fn progress(&self, body: Bytes) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let queue = self.address.reply_to.as_str();
            match self.handle.publish(&self.address, Some("progress"), &body).await {
                Ok(true) => {}
                Ok(false) => tracing::warn!(queue, "the reply queue takes no progress"),
                Err(reason) => tracing::warn!(queue, "progress could not be sent: {reason}"),
            }
        })
    }
}
