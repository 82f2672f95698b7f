//! Publishes events on a topic exchange, over its own connection: whatever happens to that, step
//! messages continue.
//!
//! Publishing is best effort. Events that are unconfirmed when the connection is lost are published
//! again, in order. Events that arrive while the buffer is full are dropped, and so are those that
//! still wait when the process ends.

use super::connection::{self, BrokerAddress, LastReason, ReconnectBackoff, channel_error, millis};
use super::queues::short_string;
use super::settings::{AmqpError, AmqpSettings};
use bus::event_topic::{EventMessage, EventTopic, PublishOutcome, PublishOutcomeSink};
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Confirmation, Connection, ExchangeKind};
use std::collections::BTreeMap;
use tokio::sync::{mpsc, watch};

/// The most events that are published and not confirmed.
const UNCONFIRMED_MAX: usize = 1_000;

const DELIVERY_MODE_PERSISTENT: u8 = 2;

/// Validated settings of a topic exchange, ready to connect.
pub struct TopicConnector {
    address: BrokerAddress,
    backoff: ReconnectBackoff,
    exchange: String,
    buffer_max: usize,
}

impl TopicConnector {
    /// Validates the settings. It does not connect yet. At most `buffer_max` events wait.
    pub fn new(
        settings: AmqpSettings,
        exchange: String,
        buffer_max: usize,
    ) -> Result<TopicConnector, AmqpError> {
        let address = BrokerAddress::parse(&settings)?;
        let backoff = ReconnectBackoff::new(settings.reconnect_min, settings.reconnect_max);
        Ok(TopicConnector { address, backoff, exchange, buffer_max })
    }

    /// Starts to connect, without waiting for it. Must be called on an arbiter.
    pub fn connect(self, sink: PublishOutcomeSink) -> TopicExchange {
        let (outbox, inbox) = mpsc::channel(self.buffer_max);
        let (closing, is_closing) = watch::channel(false);
        let publisher = ExchangePublisher {
            address: self.address,
            backoff: self.backoff,
            exchange: self.exchange,
            sink,
            inbox,
            is_closing,
            unconfirmed: BTreeMap::new(),
            last_number: 0,
        };
        TopicExchange { outbox, closing, task: actix_rt::spawn(publisher.run()) }
    }
}

/// A topic exchange.
pub struct TopicExchange {
    outbox: mpsc::Sender<EventMessage>,
    closing: watch::Sender<bool>,
    task: actix_rt::task::JoinHandle<()>,
}

impl EventTopic for TopicExchange {
    fn publish(&self, message: EventMessage) -> bool {
        self.outbox.try_send(message).is_ok()
    }

    fn close(self: Box<Self>) -> LocalBoxFuture<'static, ()> {
        let TopicExchange { outbox, closing, task: publishing } = *self;
        Box::pin(async move {
            drop(outbox);
            closing.send_replace(true);
            // An error means that the task panicked; it has ended in any case.
            let _ = publishing.await;
        })
    }
}

/// Publishes over any number of connections, until it is closed.
struct ExchangePublisher {
    address: BrokerAddress,
    exchange: String,
    backoff: ReconnectBackoff,
    sink: PublishOutcomeSink,
    inbox: mpsc::Receiver<EventMessage>,
    is_closing: watch::Receiver<bool>,
    /// Events published and not confirmed, in order.
    unconfirmed: BTreeMap<u64, EventMessage>,
    last_number: u64,
}

/// The confirm of a numbered event: whether the broker acked it.
type PendingConfirm = LocalBoxFuture<'static, (u64, lapin::Result<bool>)>;

impl ExchangePublisher {
    async fn run(mut self) {
        let mut last_reason = LastReason::default();
        loop {
            let mut is_closing = self.is_closing.clone();
            let opened = tokio::select! {
                biased;
                _ = is_closing.wait_for(|closing| *closing) => break,
                opened = Box::pin(open(&self.address, &self.exchange)) => opened,
            };
            let reason = match opened {
                Ok((connection, channel)) => {
                    tracing::info!(
                        server = %self.address,
                        exchange = self.exchange,
                        "publishing events"
                    );
                    self.backoff.reset();
                    last_reason = LastReason::default();
                    let served = Box::pin(self.serve(&channel)).await;
                    connection::close(&connection).await;
                    match served {
                        Ok(()) => break,
                        Err(error) => self.address.explain(&error),
                    }
                }
                Err(reason) => reason,
            };
            let pause = self.backoff.next_delay();
            if last_reason.record_if_new(&reason) {
                tracing::warn!(
                    server = %self.address,
                    exchange = self.exchange,
                    reason,
                    retry_in_ms = millis(pause),
                    "not publishing events"
                );
            } else {
                tracing::debug!(
                    server = %self.address,
                    exchange = self.exchange,
                    reason,
                    retry_in_ms = millis(pause),
                    "not publishing events"
                );
            }
            tokio::select! {
                _ = is_closing.wait_for(|closing| *closing) => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        let lost = self.unconfirmed.len() + self.inbox.len();
        if lost > 0 {
            tracing::warn!(events = lost, "events that were not published are lost");
            (self.sink)(PublishOutcome::Dropped(lost as u64));
        }
    }

    /// Publishes until all events are confirmed after closing, or the connection is lost.
    async fn serve(&mut self, channel: &Channel) -> lapin::Result<()> {
        let mut confirms: FuturesUnordered<PendingConfirm> = FuturesUnordered::new();
        for (number, message) in &self.unconfirmed {
            confirms.push(self.publish(channel, *number, message));
        }
        let mut is_open = true;
        while is_open || !confirms.is_empty() {
            tokio::select! {
                message = self.inbox.recv(),
                    if is_open && confirms.len() < UNCONFIRMED_MAX => match message {
                        Some(received) => {
                            self.last_number += 1;
                            confirms.push(self.publish(channel, self.last_number, &received));
                            self.unconfirmed.insert(self.last_number, received);
                        }
                        None => is_open = false,
                    },
                Some((number, answer)) = confirms.next() => {
                    // A nacked event is dropped: a second attempt would fare no better.
                    let outcome =
                        match answer? {
                            true => PublishOutcome::Published,
                            false => PublishOutcome::Dropped(1),
                        };
                    self.unconfirmed.remove(&number);
                    (self.sink)(outcome);
                }
            }
        }
        Ok(())
    }

    fn publish(&self, channel: &Channel, number: u64, message: &EventMessage) -> PendingConfirm {
        let properties = BasicProperties::default()
            .with_content_type(message.content_type.into())
            .with_delivery_mode(DELIVERY_MODE_PERSISTENT)
            .with_message_id(short_string(message.id.clone()))
            .with_type(short_string(message.kind.clone()))
            .with_app_id("workflow-manager".into())
            .with_timestamp(message.timestamp_s);
        let (channel, exchange, key, body) = (
            channel.clone(),
            short_string(self.exchange.clone()),
            short_string(message.key.clone()),
            message.body.clone(),
        );
        let confirmed = async move {
            channel
                .basic_publish(exchange, key, BasicPublishOptions::default(), &body, properties)
                .await?
                .await
        };
        Box::pin(confirmed.map(move |answer| {
            (number, answer.map(|confirmation: Confirmation| confirmation.is_ack()))
        }))
    }
}

/// Connects and declares the exchange.
///
/// # Errors
///
/// A sentence for the user says why that failed.
async fn open(address: &BrokerAddress, exchange: &str) -> Result<(Connection, Channel), String> {
    let connection = address.open("events").await?;
    let prepared = async {
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        channel
            .exchange_declare(
                short_string(exchange),
                ExchangeKind::Topic,
                options,
                FieldTable::default(),
            )
            .await?;
        Ok(channel)
    };
    match prepared.await {
        Ok(channel) => Ok((connection, channel)),
        Err(error) => {
            connection::close(&connection).await;
            Err(match channel_error(&error) {
                Some((_, broker_text)) => {
                    format!("the broker refuses the topic exchange \"{exchange}\": {broker_text}")
                }
                None => address.explain(&error),
            })
        }
    }
}
