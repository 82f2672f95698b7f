//! Publishes events to a topic exchange, over a separate connection, so that its failures do not
//! affect step messages.
//!
//! Publishing is best effort. Events that are unconfirmed when the connection is lost are published
//! again, in order. An event is dropped if the broker nacks it, or if the buffer is full when it
//! comes. `close` first publishes the events in the buffer. If there is no connection then, or it
//! is lost, the events that are not confirmed are dropped.

use super::addresses::{BrokerAddresses, Reconnects};
use super::connection::{self, BrokerAddress, LastReason, channel_error, millis};
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

/// The largest number of unconfirmed events. Further ones wait in the buffer.
const UNCONFIRMED_MAX: usize = 1_000;

/// The delivery mode of messages that the broker stores on disk.
const DELIVERY_MODE_PERSISTENT: u8 = 2;

/// Validated settings of a topic exchange, ready to connect.
pub struct TopicConnector {
    addresses: BrokerAddresses,
    reconnects: Reconnects,
    exchange: String,
    buffer_max: usize,
}

impl TopicConnector {
    /// Validates the settings, without connecting. At most `buffer_max` events are buffered.
    ///
    /// # Errors
    ///
    /// Returns an error if the broker's address is invalid.
    pub fn new(
        settings: AmqpSettings,
        exchange: String,
        buffer_max: usize,
    ) -> Result<TopicConnector, AmqpError> {
        let addresses = BrokerAddresses::parse(&settings)?;
        let reconnects = Reconnects::new(settings.reconnect_min, settings.reconnect_max);
        Ok(TopicConnector { addresses, reconnects, exchange, buffer_max })
    }

    /// Starts to connect in the background. Reports to `sink` the outcomes of events. Must be
    /// called on an arbiter.
    pub fn connect(self, sink: PublishOutcomeSink) -> TopicExchange {
        let (event_sender, events) = mpsc::channel(self.buffer_max);
        let (shutdown_sender, shutdown) = watch::channel(false);
        let publisher = ExchangePublisher {
            addresses: self.addresses,
            reconnects: self.reconnects,
            exchange: self.exchange,
            sink,
            events,
            shutdown,
            unconfirmed: BTreeMap::new(),
            last_number: 0,
        };
        TopicExchange { event_sender, shutdown_sender, task: actix_rt::spawn(publisher.run()) }
    }
}

/// A topic exchange to which events are published.
pub struct TopicExchange {
    event_sender: mpsc::Sender<EventMessage>,
    /// Sends `true` once the exchange is being closed.
    shutdown_sender: watch::Sender<bool>,
    task: actix_rt::task::JoinHandle<()>,
}

impl EventTopic for TopicExchange {
    fn publish(&self, message: EventMessage) -> bool {
        self.event_sender.try_send(message).is_ok()
    }

    fn close(self: Box<Self>) -> LocalBoxFuture<'static, ()> {
        let TopicExchange { event_sender, shutdown_sender, task } = *self;
        Box::pin(async move {
            drop(event_sender);
            shutdown_sender.send_replace(true);
            // An error means that the task panicked; it has ended either way.
            let _ = task.await;
        })
    }
}

/// The task that publishes events, over any number of connections, until the exchange is closed.
struct ExchangePublisher {
    addresses: BrokerAddresses,
    exchange: String,
    reconnects: Reconnects,
    sink: PublishOutcomeSink,
    /// The buffer of events that were not published yet.
    events: mpsc::Receiver<EventMessage>,
    /// Receives `true` once the exchange is being closed.
    shutdown: watch::Receiver<bool>,
    /// Events that were published and are not confirmed, by number.
    unconfirmed: BTreeMap<u64, EventMessage>,
    /// The number of the last event that was published.
    last_number: u64,
}

/// Resolves to the number of an event, and whether the broker acked it.
type PendingConfirm = LocalBoxFuture<'static, (u64, lapin::Result<bool>)>;

impl ExchangePublisher {
    async fn run(mut self) {
        let mut last_reason = LastReason::default();
        loop {
            let mut shutdown = self.shutdown.clone();
            let address = self.addresses.current();
            let result = tokio::select! {
                biased;
                _ = shutdown.wait_for(|is_requested| *is_requested) => break,
                result = Box::pin(open(&address, &self.exchange)) => result,
            };
            let reason = match result {
                Ok((connection, channel)) => {
                    tracing::info!(
                        server = %address,
                        exchange = self.exchange,
                        "publishing events"
                    );
                    self.reconnects.reset();
                    last_reason = LastReason::default();
                    let result = Box::pin(self.serve(&channel)).await;
                    connection::close(&connection).await;
                    match result {
                        Ok(()) => break,
                        Err(error) => address.explain(&error),
                    }
                }
                Err(reason) => reason,
            };
            let delay = self.reconnects.next_delay(&self.addresses, &address);
            if last_reason.record_if_new(&reason) {
                tracing::warn!(
                    server = %address,
                    exchange = self.exchange,
                    reason,
                    retry_in_ms = millis(delay),
                    "not publishing events"
                );
            } else {
                tracing::debug!(
                    server = %address,
                    exchange = self.exchange,
                    reason,
                    retry_in_ms = millis(delay),
                    "not publishing events"
                );
            }
            tokio::select! {
                _ = shutdown.wait_for(|is_requested| *is_requested) => break,
                () = tokio::time::sleep(delay) => {}
            }
        }
        let lost_count = self.unconfirmed.len() + self.events.len();
        if lost_count > 0 {
            tracing::warn!(events = lost_count, "events that were not confirmed are lost");
            (self.sink)(PublishOutcome::Dropped(lost_count as u64));
        }
    }

    /// Publishes until the exchange is closed and all events are confirmed.
    ///
    /// # Errors
    ///
    /// Returns an error if the channel or connection is lost.
    async fn serve(&mut self, channel: &Channel) -> lapin::Result<()> {
        let mut confirms: FuturesUnordered<PendingConfirm> = FuturesUnordered::new();
        for (number, event) in &self.unconfirmed {
            confirms.push(self.publish(channel, *number, event));
        }
        let mut has_more_events = true;
        while has_more_events || !confirms.is_empty() {
            tokio::select! {
                event = self.events.recv(),
                    if has_more_events && confirms.len() < UNCONFIRMED_MAX => match event {
                        Some(event) => {
                            self.last_number += 1;
                            confirms.push(self.publish(channel, self.last_number, &event));
                            self.unconfirmed.insert(self.last_number, event);
                        }
                        None => has_more_events = false,
                    },
                Some((number, result)) = confirms.next() => {
                    // A nacked event is dropped, because a retry would most likely be nacked too.
                    let is_ack = result?;
                    let outcome = if is_ack {
                        PublishOutcome::Published
                    } else {
                        PublishOutcome::Dropped(1)
                    };
                    self.unconfirmed.remove(&number);
                    (self.sink)(outcome);
                }
            }
        }
        Ok(())
    }

    /// Returns a future that publishes an event when it is first polled, and resolves to its
    /// confirm.
    fn publish(&self, channel: &Channel, number: u64, event: &EventMessage) -> PendingConfirm {
        let properties = BasicProperties::default()
            .with_content_type(event.content_type.into())
            .with_delivery_mode(DELIVERY_MODE_PERSISTENT)
            .with_message_id(short_string(event.id.clone()))
            .with_type(short_string(event.kind.clone()))
            .with_app_id("workflow-manager".into())
            .with_timestamp(event.timestamp_s);
        let (channel, exchange, key, body) = (
            channel.clone(),
            short_string(self.exchange.clone()),
            short_string(event.key.clone()),
            event.body.clone(),
        );
        let confirm = async move {
            channel
                .basic_publish(exchange, key, BasicPublishOptions::default(), &body, properties)
                .await?
                .await
        };
        Box::pin(confirm.map(move |result| {
            (number, result.map(|confirmation: Confirmation| confirmation.is_ack()))
        }))
    }
}

/// Connects and declares the exchange.
///
/// # Errors
///
/// Returns the reason, as a sentence for the user, if either fails.
async fn open(address: &BrokerAddress, exchange: &str) -> Result<(Connection, Channel), String> {
    let connection = address.open("events").await?;
    let channel = async {
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
    match channel.await {
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
