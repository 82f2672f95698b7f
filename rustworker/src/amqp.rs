//! The transport over AMQP. The order gives the guarantee: call the function, publish its reply,
//! wait for the broker's confirm, acknowledge the message. If anything fails in between, the broker
//! still has the message and delivers it again.

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

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a reply that the broker cannot route is sent again, before its message is requeued.
const UNROUTABLE_MAX: Duration = Duration::from_secs(60);

/// How often the connection is checked during a call: a call may never end if its connection was
/// lost.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

const PERSISTENT: u8 = 2;

/// Serves until the worker stops, and reconnects whenever the broker was lost.
pub(crate) async fn serve(
    config: WorkerConfig,
    mut stopping: watch::Receiver<bool>,
) -> Result<(), Error> {
    let address: AMQPUri =
        config.server.parse().map_err(|why: String| address_error(&config.server, why))?;
    let authorities = config.authorities.as_deref();
    let tls = match address.scheme {
        AMQPScheme::AMQP => None,
        AMQPScheme::AMQPS => Some(Arc::new(
            tls::client_config(authorities).map_err(|why| address_error(&config.server, why))?,
        )),
    };
    let server = display_address(&config.server);
    let mut backoff = Backoff::new();
    while !*stopping.borrow() {
        let opened = tokio::select! {
            opened = ConsumerConnection::open(&address, tls.clone(), &config) => opened,
            () = wait_for_stop(&mut stopping) => break,
        };
        let ended = match opened {
            Ok(session) => {
                tracing::info!(server, queues = ?config.handlers.keys(), "consuming");
                backoff.reset();
                session.run(&mut stopping).await
            }
            Err(why) => Err(why),
        };
        let Err(why) = ended else { break };
        let pause = backoff.next();
        tracing::warn!(server, ?pause, "no connection: {why}");
        tokio::select! {
            () = sleep(pause) => {}
            () = wait_for_stop(&mut stopping) => {}
        }
    }
    Ok(())
}

/// The reason why a connection can no longer be used.
type ConnectionLost = String;

/// The parts of a connection that are needed to settle its messages.
#[derive(Clone)]
struct ChannelHandle {
    connection: Arc<Connection>,
    channel: Channel,
}

impl ChannelHandle {
    /// Waits for a call. Returns an error if it fails, or if the connection is lost meanwhile.
    async fn or_lost<T>(
        &self,
        future: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, ConnectionLost> {
        let mut call = std::pin::pin!(future);
        loop {
            if let Ok(result) = timeout(CHECK_INTERVAL, &mut call).await {
                return result.map_err(|error| error.to_string());
            }
            if !self.connection.status().connected() || !self.channel.status().connected() {
                return Err("the connection was lost".to_owned());
            }
        }
    }

    async fn ack(&self, delivery: &Delivery) -> Result<(), ConnectionLost> {
        self.or_lost(delivery.acker.ack(BasicAckOptions::default())).await.map(drop)
    }

    async fn nack(&self, delivery: &Delivery, requeue: bool) -> Result<(), ConnectionLost> {
        let options = BasicNackOptions { requeue, ..BasicNackOptions::default() };
        self.or_lost(delivery.acker.nack(options)).await.map(drop)
    }

    /// Declares a queue. A refused declaration closes its channel, so each has its own.
    async fn declare(&self, queue: &str) -> Result<(), ConnectionLost> {
        let declaration = async {
            let channel = self.connection.create_channel().await?;
            let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
            channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
            channel.close(200, "declared".into()).await
        };
        let declared = async {
            match declaration.await {
                Err(error) if is_refused(&error) => {
                    tracing::info!(queue, %error, "the queue is used as it is");
                    Ok(())
                }
                declared => declared,
            }
        };
        self.or_lost(declared).await
    }

    /// Publishes a reply or progress. Returns whether the broker has it.
    async fn publish(
        &self,
        address: &ReplyAddress,
        kind: Option<&str>,
        body: &[u8],
    ) -> Result<bool, ConnectionLost> {
        let mut properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_delivery_mode(PERSISTENT)
            .with_headers(address.headers.clone());
        if let Some(id) = &address.correlation_id {
            properties = properties.with_correlation_id(id.clone());
        }
        if let Some(kind) = kind {
            properties = properties.with_type(kind.into());
        }
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let reply_to = address.reply_to.clone();
        self.or_lost(async {
            let channel = &self.channel;
            channel.basic_publish("".into(), reply_to, options, body, properties).await?.await
        })
        .await
        .map(|confirmation| matches!(confirmation, Confirmation::Ack(None)))
    }
}

/// Where the replies to a message go.
#[derive(Clone)]
struct ReplyAddress {
    reply_to: ShortString,
    correlation_id: Option<ShortString>,
    /// The header `attempt` of the message, so that a late error does not count for another
    /// attempt.
    headers: FieldTable,
}

/// A connection with its consumers, and the tasks of its messages.
struct ConsumerConnection {
    handle: ChannelHandle,
    consumers: SelectAll<DeliveryStream>,
    handlers: BTreeMap<String, Handler>,
    tasks: JoinSet<Result<(), ConnectionLost>>,
    /// Tells running functions that their messages will be delivered again.
    end_reason: watch::Sender<Option<Arc<str>>>,
}

/// The deliveries of a queue. The stream ends with `None` when the consumer ends.
type DeliveryStream = std::pin::Pin<
    Box<dyn futures_util::Stream<Item = (String, Option<lapin::Result<Delivery>>)> + Send>,
>;

impl ConsumerConnection {
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
        let opening = async {
            match tls {
                None => Connection::connect_uri(address.clone(), properties).await,
                Some(config) => tls::connect(address.clone(), properties, config).await,
            }
        };
        let connection = timeout(CONNECT_TIMEOUT, opening)
            .await
            .map_err(|_| format!("no answer within {CONNECT_TIMEOUT:?}"))?;
        let connection = Arc::new(connection.map_err(|error| error.to_string())?);
        let opening = connection.create_channel();
        let channel =
            timeout(CONNECT_TIMEOUT, opening).await.map_err(|_| "no channel".to_owned())?;
        let channel = channel.map_err(|error| error.to_string())?;
        let handle = ChannelHandle { connection, channel };
        handle.or_lost(handle.channel.confirm_select(ConfirmSelectOptions::default())).await?;
        let mut session = ConsumerConnection {
            handle,
            consumers: SelectAll::new(),
            handlers: config.handlers.clone(),
            tasks: JoinSet::new(),
            end_reason: watch::channel(None).0,
        };
        let qos = session.handle.channel.basic_qos(config.prefetch, BasicQosOptions::default());
        session.handle.or_lost(qos).await?;
        for queue in config.handlers.keys() {
            session.consume(queue).await?;
        }
        Ok(session)
    }

    async fn consume(&mut self, queue: &str) -> Result<(), ConnectionLost> {
        self.handle.declare(queue).await?;
        let consumer = self.handle.channel.basic_consume(
            queue.into(),
            // The broker chooses the consumer tag.
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let consumer = self.handle.or_lost(consumer).await?;
        let (each, last) = (queue.to_owned(), queue.to_owned());
        let deliveries = consumer.map(move |delivery| (each.clone(), Some(delivery)));
        let end = futures_util::stream::once(async move { (last, None) });
        self.consumers.push(Box::pin(deliveries.chain(end)));
        Ok(())
    }

    /// Consumes messages until the worker stops and nothing is in flight, or the connection is
    /// lost.
    async fn run(mut self, stopping: &mut watch::Receiver<bool>) -> Result<(), ConnectionLost> {
        let consumed = self.consume_until_stopped(stopping).await;
        let ended = match consumed {
            Ok(()) => self.drain().await,
            Err(why) => Err(why),
        };
        if ended.is_err() {
            let why = "the connection to the broker was lost; the message is delivered again";
            self.end_reason.send_replace(Some(why.into()));
            // Functions that do not check for this run to their end. Their results are dropped.
            self.tasks.detach_all();
        }
        // Closing fails if the connection is lost.
        let _ = timeout(CLOSE_TIMEOUT, self.handle.connection.close(200, "done".into())).await;
        ended
    }

    async fn consume_until_stopped(
        &mut self,
        stopping: &mut watch::Receiver<bool>,
    ) -> Result<(), ConnectionLost> {
        loop {
            tokio::select! {
                biased;
                () = wait_for_stop(stopping) => return Ok(()),
                Some(settled) = self.tasks.join_next() => task_result(settled)?,
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

    /// Consumes again after the broker has ended a consumer, which it does when the queue is
    /// deleted. If the connection was lost, all consumers end.
    async fn consume_again(&mut self, queue: &str) -> Result<(), ConnectionLost> {
        if !self.handle.connection.status().connected() || !self.handle.channel.status().connected()
        {
            return Err("the connection was lost".to_owned());
        }
        tracing::warn!(queue, "the queue was deleted; it is declared again");
        self.consume(queue).await
    }

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

    /// Stops consuming, and waits for the messages in flight. Messages that the broker has sent
    /// meanwhile are delivered again once the connection is closed.
    async fn drain(&mut self) -> Result<(), ConnectionLost> {
        // Consumers are cancelled on drop.
        self.consumers.clear();
        while let Some(settled) = self.tasks.join_next().await {
            task_result(settled)?;
        }
        Ok(())
    }
}

/// Returns the result of a task. The message of a task that panicked is not settled.
fn task_result(
    settled: Result<Result<(), ConnectionLost>, tokio::task::JoinError>,
) -> Result<(), ConnectionLost> {
    settled.unwrap_or_else(|error| Err(error.to_string()))
}

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

async fn settle(
    handle: &ChannelHandle,
    address: &ReplyAddress,
    delivery: &Delivery,
    reply: Reply,
    mut stopping: watch::Receiver<bool>,
) -> Result<(), ConnectionLost> {
    let kind = reply.is_error.then_some("error");
    let (begun, mut backoff) = (Instant::now(), Backoff::new());
    loop {
        // Only after the confirm: if the worker died before it, the reply would be lost.
        if handle.publish(address, kind, &reply.body).await? {
            return handle.ack(delivery).await;
        }
        let queue = address.reply_to.as_str();
        if *stopping.borrow() || begun.elapsed() > UNROUTABLE_MAX {
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

fn message_info(queue: String, delivery: &Delivery) -> MessageInfo {
    let properties = &delivery.properties;
    let header = |name: &str| properties.headers().as_ref()?.inner().get(name);
    let text = |name: &str| match header(name) {
        Some(AMQPValue::LongString(text)) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
        _ => String::new(),
    };
    let read_count = |name: &str| header(name).and_then(to_u32);
    // The header of a quorum queue counts the deliveries before this one.
    let before = read_count("x-delivery-count").unwrap_or_else(|| u32::from(delivery.redelivered));
    let id = properties.correlation_id().as_ref();
    MessageInfo {
        queue,
        correlation_id: id.map_or_else(String::new, |id| id.as_str().to_owned()),
        attempt: read_count("attempt").unwrap_or(1),
        job: text("job"),
        workflow: text("workflow"),
        delivery: before.saturating_add(1),
    }
}

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
                Err(why) => tracing::warn!(queue, "progress was not told: {why}"),
            }
        })
    }
}
