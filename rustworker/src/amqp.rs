//! The transport over AMQP. The order gives the guarantee: call the function, publish its reply,
//! wait for the broker's confirm, acknowledge the message. If anything fails in between, the broker
//! still has the message and delivers it again.

use crate::backoff::Backoff;
use crate::step::Facts;
use crate::tls;
use crate::work::{Boxed, Handler, Message, Outcome, Post, Reply, perform};
use crate::worker::{Error, Plan, refused, shown, stopped};
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

const CONNECT_WITHIN: Duration = Duration::from_secs(10);
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// How long a reply that the broker cannot route is sent again, before its message is requeued.
const UNROUTABLE_MAX: Duration = Duration::from_secs(60);

/// How often the connection is checked during a call: a call may never end if its connection was
/// lost.
const LOOK_EVERY: Duration = Duration::from_millis(250);

const PERSISTENT: u8 = 2;

/// Serves until the worker stops, and reconnects whenever the broker was lost.
pub(crate) async fn serve(plan: Plan, mut stopping: watch::Receiver<bool>) -> Result<(), Error> {
    let address: AMQPUri = plan.server.parse().map_err(|why: String| refused(&plan.server, why))?;
    let authorities = plan.authorities.as_deref();
    let tls = match address.scheme {
        AMQPScheme::AMQP => None,
        AMQPScheme::AMQPS => {
            Some(Arc::new(tls::client(authorities).map_err(|why| refused(&plan.server, why))?))
        }
    };
    let server = shown(&plan.server);
    let mut backoff = Backoff::new();
    while !*stopping.borrow() {
        let opened = tokio::select! {
            opened = Session::open(&address, tls.clone(), &plan) => opened,
            () = stopped(&mut stopping) => break,
        };
        let ended = match opened {
            Ok(session) => {
                tracing::info!(server, queues = ?plan.handlers.keys(), "consuming");
                backoff.reset();
                session.serve(&mut stopping).await
            }
            Err(why) => Err(why),
        };
        let Err(why) = ended else { break };
        let pause = backoff.next();
        tracing::warn!(server, ?pause, "no connection: {why}");
        tokio::select! {
            () = sleep(pause) => {}
            () = stopped(&mut stopping) => {}
        }
    }
    Ok(())
}

/// The reason why a connection can no longer be used.
type Lost = String;

/// The parts of a connection that are needed to settle its messages.
#[derive(Clone)]
struct Link {
    connection: Arc<Connection>,
    channel: Channel,
}

impl Link {
    /// Waits for a call. Returns an error if it fails, or if the connection is lost meanwhile.
    async fn unless_lost<T>(
        &self,
        call: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, Lost> {
        let mut call = std::pin::pin!(call);
        loop {
            if let Ok(done) = timeout(LOOK_EVERY, &mut call).await {
                return done.map_err(|error| error.to_string());
            }
            if !self.connection.status().connected() || !self.channel.status().connected() {
                return Err("the connection was lost".to_owned());
            }
        }
    }

    async fn ack(&self, delivery: &Delivery) -> Result<(), Lost> {
        self.unless_lost(delivery.acker.ack(BasicAckOptions::default())).await.map(drop)
    }

    async fn nack(&self, delivery: &Delivery, requeue: bool) -> Result<(), Lost> {
        let options = BasicNackOptions { requeue, ..BasicNackOptions::default() };
        self.unless_lost(delivery.acker.nack(options)).await.map(drop)
    }

    /// Declares a queue. A refused declaration closes its channel, so each has its own.
    async fn declare(&self, queue: &str) -> Result<(), Lost> {
        let declaring = async {
            let channel = self.connection.create_channel().await?;
            let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
            channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
            channel.close(200, "declared".into()).await
        };
        let unless_refused = async {
            match declaring.await {
                Err(error) if is_refusal(&error) => {
                    tracing::info!(queue, %error, "the queue is used as it is");
                    Ok(())
                }
                declared => declared,
            }
        };
        self.unless_lost(unless_refused).await
    }

    /// Publishes a reply or progress. Returns whether the broker has it.
    async fn publish(&self, to: &Address, kind: Option<&str>, body: &[u8]) -> Result<bool, Lost> {
        let mut properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_delivery_mode(PERSISTENT)
            .with_headers(to.headers.clone());
        if let Some(id) = &to.correlation_id {
            properties = properties.with_correlation_id(id.clone());
        }
        if let Some(kind) = kind {
            properties = properties.with_type(kind.into());
        }
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let reply_to = to.reply_to.clone();
        self.unless_lost(async {
            let channel = &self.channel;
            channel.basic_publish("".into(), reply_to, options, body, properties).await?.await
        })
        .await
        .map(|confirmation| matches!(confirmation, Confirmation::Ack(None)))
    }
}

/// Where the replies to a message go.
#[derive(Clone)]
struct Address {
    reply_to: ShortString,
    correlation_id: Option<ShortString>,
    /// The header `attempt` of the message, so that a late error does not count for another
    /// attempt.
    headers: FieldTable,
}

/// A connection with its consumers, and the tasks of its messages.
struct Session {
    link: Link,
    consumers: SelectAll<Deliveries>,
    handlers: BTreeMap<String, Handler>,
    tasks: JoinSet<Result<(), Lost>>,
    /// Tells running functions that their messages will be delivered again.
    end: watch::Sender<Option<Arc<str>>>,
}

/// The deliveries of a queue. The stream ends with `None` when the consumer ends.
type Deliveries = std::pin::Pin<
    Box<dyn futures_util::Stream<Item = (String, Option<lapin::Result<Delivery>>)> + Send>,
>;

impl Session {
    async fn open(
        address: &AMQPUri,
        tls: Option<Arc<ClientConfig>>,
        plan: &Plan,
    ) -> Result<Session, Lost> {
        let name = format!(
            "workflow-worker: {}",
            plan.handlers.keys().cloned().collect::<Vec<_>>().join(",")
        );
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let opening = async {
            match tls {
                None => Connection::connect_uri(address.clone(), properties).await,
                Some(config) => tls::connect(address.clone(), properties, config).await,
            }
        };
        let connection = timeout(CONNECT_WITHIN, opening)
            .await
            .map_err(|_| format!("no answer within {CONNECT_WITHIN:?}"))?;
        let connection = Arc::new(connection.map_err(|error| error.to_string())?);
        let opening = connection.create_channel();
        let channel =
            timeout(CONNECT_WITHIN, opening).await.map_err(|_| "no channel".to_owned())?;
        let channel = channel.map_err(|error| error.to_string())?;
        let link = Link { connection, channel };
        link.unless_lost(link.channel.confirm_select(ConfirmSelectOptions::default())).await?;
        let mut session = Session {
            link,
            consumers: SelectAll::new(),
            handlers: plan.handlers.clone(),
            tasks: JoinSet::new(),
            end: watch::channel(None).0,
        };
        let qos = session.link.channel.basic_qos(plan.prefetch, BasicQosOptions::default());
        session.link.unless_lost(qos).await?;
        for queue in plan.handlers.keys() {
            session.subscribe(queue).await?;
        }
        Ok(session)
    }

    async fn subscribe(&mut self, queue: &str) -> Result<(), Lost> {
        self.link.declare(queue).await?;
        let consumer = self.link.channel.basic_consume(
            queue.into(),
            // The broker chooses the consumer tag.
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let consumer = self.link.unless_lost(consumer).await?;
        let (each, last) = (queue.to_owned(), queue.to_owned());
        let deliveries = consumer.map(move |delivery| (each.clone(), Some(delivery)));
        let end = futures_util::stream::once(async move { (last, None) });
        self.consumers.push(Box::pin(deliveries.chain(end)));
        Ok(())
    }

    /// Consumes messages until the worker stops and nothing is in flight, or the connection is
    /// lost.
    async fn serve(mut self, stopping: &mut watch::Receiver<bool>) -> Result<(), Lost> {
        let served = self.take_until(stopping).await;
        let ended = match served {
            Ok(()) => self.finish().await,
            Err(why) => Err(why),
        };
        if ended.is_err() {
            let why = "the connection to the broker was lost; the message is delivered again";
            self.end.send_replace(Some(why.into()));
            // Functions that do not check for this run to their end. Their results are dropped.
            self.tasks.detach_all();
        }
        // Closing fails if the connection is lost.
        let _ = timeout(CLOSE_WITHIN, self.link.connection.close(200, "done".into())).await;
        ended
    }

    async fn take_until(&mut self, stopping: &mut watch::Receiver<bool>) -> Result<(), Lost> {
        loop {
            tokio::select! {
                biased;
                () = stopped(stopping) => return Ok(()),
                Some(settled) = self.tasks.join_next() => ended(settled)?,
                Some((queue, delivery)) = self.consumers.next() => match delivery {
                    Some(delivery) => {
                        let delivery = delivery.map_err(|error| error.to_string())?;
                        self.take(&queue, delivery, stopping);
                    }
                    None => self.subscribe_again(&queue).await?,
                },
                () = sleep(LOOK_EVERY) => {
                    if !self.link.connection.status().connected() {
                        return Err("the connection was lost".to_owned());
                    }
                }
            }
        }
    }

    /// Consumes again after the broker has ended a consumer, which it does when the queue is
    /// deleted. If the connection was lost, all consumers end.
    async fn subscribe_again(&mut self, queue: &str) -> Result<(), Lost> {
        if !self.link.connection.status().connected() || !self.link.channel.status().connected() {
            return Err("the connection was lost".to_owned());
        }
        tracing::warn!(queue, "the queue was deleted; it is declared again");
        self.subscribe(queue).await
    }

    fn take(&mut self, queue: &str, delivery: Delivery, stopping: &watch::Receiver<bool>) {
        let Some(handler) = self.handlers.get(queue).cloned() else { return };
        let (link, end) = (self.link.clone(), self.end.subscribe());
        self.tasks.spawn(work(link, handler, queue.to_owned(), delivery, end, stopping.clone()));
    }

    /// Stops consuming, and waits for the messages in flight. Messages that the broker has sent
    /// meanwhile are delivered again once the connection is closed.
    async fn finish(&mut self) -> Result<(), Lost> {
        // Consumers are cancelled on drop.
        self.consumers.clear();
        while let Some(settled) = self.tasks.join_next().await {
            ended(settled)?;
        }
        Ok(())
    }
}

/// Returns the result of a task. The message of a task that panicked is not settled.
fn ended(settled: Result<Result<(), Lost>, tokio::task::JoinError>) -> Result<(), Lost> {
    settled.unwrap_or_else(|error| Err(error.to_string()))
}

#[allow(clippy::wildcard_enum_match_arm, reason = "lapin's errors are non-exhaustive")]
fn is_refusal(error: &lapin::Error) -> bool {
    let ErrorKind::ProtocolError(error) = error.kind() else { return false };
    match error.kind() {
        AMQPErrorKind::Soft(soft) => {
            matches!(soft, AMQPSoftError::PRECONDITIONFAILED | AMQPSoftError::ACCESSREFUSED)
        }
        _ => false,
    }
}

async fn work(
    link: Link,
    handler: Handler,
    queue: String,
    mut delivery: Delivery,
    end: watch::Receiver<Option<Arc<str>>>,
    stopping: watch::Receiver<bool>,
) -> Result<(), Lost> {
    let body = Bytes::from(std::mem::take(&mut delivery.data));
    let address = address(&delivery);
    let message = Message {
        facts: facts(queue.clone(), &delivery),
        body,
        is_answerable: !address.reply_to.as_str().is_empty(),
        post: Arc::new(Said { link: link.clone(), address: address.clone() }),
        end: end.clone(),
    };
    match perform(&handler, message).await {
        Outcome::Reply(reply) => settle(&link, &address, &delivery, reply, stopping).await,
        Outcome::Refused => link.nack(&delivery, false).await,
        Outcome::Dropped => Ok(()),
    }
}

async fn settle(
    link: &Link,
    address: &Address,
    delivery: &Delivery,
    reply: Reply,
    mut stopping: watch::Receiver<bool>,
) -> Result<(), Lost> {
    let kind = reply.is_error.then_some("error");
    let (begun, mut backoff) = (Instant::now(), Backoff::new());
    loop {
        // Only after the confirm: if the worker died before it, the reply would be lost.
        if link.publish(address, kind, &reply.body).await? {
            return link.ack(delivery).await;
        }
        let queue = address.reply_to.as_str();
        if *stopping.borrow() || begun.elapsed() > UNROUTABLE_MAX {
            tracing::error!(queue, "the reply queue takes no reply: the message is put back");
            return link.nack(delivery, true).await;
        }
        let pause = backoff.next();
        tracing::warn!(queue, ?pause, "the reply queue takes no reply");
        tokio::select! {
            () = sleep(pause) => {}
            () = stopped(&mut stopping) => {}
        }
    }
}

fn address(delivery: &Delivery) -> Address {
    let properties = &delivery.properties;
    let mut headers = FieldTable::default();
    let given = properties.headers().as_ref().and_then(|headers| headers.inner().get("attempt"));
    if let Some(attempt) = given.filter(|value| number(value).is_some()) {
        headers.insert("attempt".into(), attempt.clone());
    }
    Address {
        reply_to: properties.reply_to().clone().unwrap_or_default(),
        correlation_id: properties.correlation_id().clone(),
        headers,
    }
}

fn facts(queue: String, delivery: &Delivery) -> Facts {
    let properties = &delivery.properties;
    let header = |name: &str| properties.headers().as_ref()?.inner().get(name);
    let text = |name: &str| match header(name) {
        Some(AMQPValue::LongString(text)) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
        _ => String::new(),
    };
    let count = |name: &str| header(name).and_then(number);
    // The header of a quorum queue counts the deliveries before this one.
    let before = count("x-delivery-count").unwrap_or_else(|| u32::from(delivery.redelivered));
    let id = properties.correlation_id().as_ref();
    Facts {
        queue,
        correlation_id: id.map_or_else(String::new, |id| id.as_str().to_owned()),
        attempt: count("attempt").unwrap_or(1),
        job: text("job"),
        workflow: text("workflow"),
        delivery: before.saturating_add(1),
    }
}

#[allow(clippy::wildcard_enum_match_arm, reason = "all other values are no numbers")]
fn number(value: &AMQPValue) -> Option<u32> {
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
struct Said {
    link: Link,
    address: Address,
}

impl Post for Said {
    fn progress(&self, body: Bytes) -> Boxed<'_, ()> {
        Box::pin(async move {
            let queue = self.address.reply_to.as_str();
            match self.link.publish(&self.address, Some("progress"), &body).await {
                Ok(true) => {}
                Ok(false) => tracing::warn!(queue, "the reply queue takes no progress"),
                Err(why) => tracing::warn!(queue, "progress was not told: {why}"),
            }
        })
    }
}
