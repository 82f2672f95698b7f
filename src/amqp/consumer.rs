//! The consuming connection: it consumes the reply queue and the queues of workflows.

use super::addresses::Reconnects;
use super::connection::{self, BrokerAddress, ReconnectBackoff, channel_error};
use super::inspect;
use super::policy;
use super::queue_consumer::{ConsumeEnd, QueueConsumer, Source};
use super::queues::{QueueCheck, QueueDeclarer, reply_queue_unavailable, short_string};
use super::state::{AmqpState, ShutdownPhase, Side, wait_for_phase};
use super::wire::delivery_budget::DeliveryFlow;
use super::wire::filtered_stream::ConnectionHooks;
use super::workflow_queues;
use base::clock;
use bus::BusEvent;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::protocol::AMQPSoftError;
use lapin::types::FieldTable;
use lapin::{Channel, Connection};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long a connection waits for another consumer to end while this process has consumed nothing.
/// The broker may not have noticed yet that the previous process was killed.
const PREDECESSOR_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest delay between two checks for another consumer.
const PREDECESSOR_RETRY_DELAY: Duration = Duration::from_millis(250);

/// The interval at which the delivery budget is checked for capacity.
const BUDGET_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The state of a bus that does not consume for now.
const SUSPENDED: &str = "no message is taken in until this process is known to be the active one";

/// The tag of the consumer of the reply queue.
const CONSUMER_TAG: &str = "workflow-manager";

/// Consumes the reply queue and the workflow queues, and reconnects, until the bus is closed.
pub(super) async fn run(state: Rc<AmqpState>, mut phases: watch::Receiver<ShutdownPhase>) {
    let mut reconnects =
        Reconnects::new(state.settings.reconnect_min, state.settings.reconnect_max);
    let mut consumer = Consumer {
        reply_consumer: QueueConsumer::new(state.clone(), Source::Replies),
        state: state.clone(),
    };
    loop {
        let address = state.addresses.current();
        let result = tokio::select! {
            biased;
            () = wait_for_phase(&mut phases, ShutdownPhase::StopConsuming) => break,
            result = Box::pin(consumer.open_when_consuming(&address)) => result,
        };
        let end = match result {
            Ok(open_consumer) => {
                let connected_at = clock::timer_now();
                tracing::info!(
                    server = %address,
                    queue = state.settings.reply_queue,
                    "consuming replies"
                );
                state.report_up(Side::Consumer, &address);
                let end = consumer.consume(open_consumer, &mut phases).await;
                if connected_at.elapsed() >= state.settings.reconnect_min {
                    reconnects.reset();
                }
                end
            }
            Err(end) => end,
        };
        match end {
            ConsumerEnd::Closed => break,
            ConsumerEnd::Suspended => {
                tracing::warn!(server = %address, "the consumers are closed for now");
                state.state_reporter.set_down(Side::Consumer, SUSPENDED);
            }
            ConsumerEnd::Fatal(reason) => {
                tracing::error!(
                    server = %address,
                    reason,
                    "the reply queue cannot be consumed"
                );
                state.state_reporter.set_down(Side::Consumer, &reason);
                (state.sink)(BusEvent::Fatal(reason));
                return;
            }
            ConsumerEnd::Lost(reason) => {
                let delay = reconnects.next_delay(&state.addresses, &address);
                state.report_down(Side::Consumer, &address, &reason, delay);
                tokio::select! {
                    () = wait_for_phase(&mut phases, ShutdownPhase::StopConsuming) => break,
                    () = tokio::time::sleep(delay) => {}
                }
            }
        }
    }
    state.state_reporter.set_down(Side::Consumer, "closed");
}

/// Why a connection stopped consuming, or never started.
enum ConsumerEnd {
    /// The bus is closed.
    Closed,
    /// The bus does not consume for now.
    Suspended,
    /// The connection is lost, for this reason. Another attempt may succeed.
    Lost(String),
    /// No further attempt of this process can succeed, for this reason.
    Fatal(String),
}

/// The consuming side of the bus.
struct Consumer {
    state: Rc<AmqpState>,
    reply_consumer: QueueConsumer,
}

/// A connection that consumes the reply queue.
struct OpenConsumer {
    connection: Rc<Connection>,
    /// The node that it is connected to.
    address: Arc<BrokerAddress>,
    /// Counts the replies of this connection in the delivery budget.
    flow: Arc<DeliveryFlow>,
    channel: Channel,
    deliveries: lapin::Consumer,
}

/// Why the reply queue could not be consumed.
enum OpenError {
    /// Another process consumes it, as this evidence shows.
    InUse(String),
    /// Another reason.
    Other(String),
}

impl Consumer {
    /// Opens a connection once the bus consumes.
    async fn open_when_consuming(
        &self,
        address: &Arc<BrokerAddress>,
    ) -> Result<OpenConsumer, ConsumerEnd> {
        let mut is_consuming = self.state.is_consuming.subscribe();
        // The sender is in the state, so this does not fail.
        let _ = is_consuming.wait_for(|is_consuming| *is_consuming).await;
        self.open_within_budget(address).await
    }

    /// Opens a connection once the delivery budget has capacity again. The unsettled deliveries of
    /// an earlier connection, which use the budget, are redelivered on the new one.
    async fn open_within_budget(
        &self,
        address: &Arc<BrokerAddress>,
    ) -> Result<OpenConsumer, ConsumerEnd> {
        while !self.state.delivery_budget.has_capacity() {
            tokio::time::sleep(BUDGET_POLL_INTERVAL).await;
        }
        self.open(address).await
    }

    /// Opens a connection. Until this process has consumed replies, waits a short time for a
    /// previous process to end.
    async fn open(&self, address: &Arc<BrokerAddress>) -> Result<OpenConsumer, ConsumerEnd> {
        let flow = DeliveryFlow::new(&self.state.delivery_budget);
        let opening = address.open_with_hooks(
            "replies",
            ConnectionHooks { flow: Some(flow.clone()), ..ConnectionHooks::default() },
        );
        let connection = Rc::new(opening.await.map_err(ConsumerEnd::Lost)?);
        let in_use_deadline = clock::timer_now() + PREDECESSOR_TIMEOUT;
        // The jitter breaks the tie between two processes that backed off for each other.
        let mut backoff =
            ReconnectBackoff::new(PREDECESSOR_RETRY_DELAY / 2, PREDECESSOR_RETRY_DELAY);
        loop {
            match self.try_consume(address, &connection, &flow).await {
                Ok(open_consumer) => return Ok(open_consumer),
                Err(OpenError::Other(reason)) => return Err(ConsumerEnd::Lost(reason)),
                Err(OpenError::InUse(evidence)) => {
                    let queue = &self.state.settings.reply_queue;
                    let reason = format!(
                        "another process consumes the reply queue \"{queue}\" of {} ({evidence}); \
                         stop it, or give this process a reply queue of its own with the setting \
                         amqp.reply_queue",
                        address
                    );
                    if self.reply_consumer.has_consumed() {
                        return Err(ConsumerEnd::Lost(reason));
                    }
                    if clock::timer_now() >= in_use_deadline {
                        return Err(if self.state.settings.waits_for_consumer {
                            ConsumerEnd::Lost(reason)
                        } else {
                            ConsumerEnd::Fatal(reason)
                        });
                    }
                    tokio::time::sleep(backoff.next_delay()).await;
                }
            }
        }
    }

    /// Starts to consume the reply queue, unless another process does.
    async fn try_consume(
        &self,
        address: &Arc<BrokerAddress>,
        connection: &Rc<Connection>,
        flow: &Arc<DeliveryFlow>,
    ) -> Result<OpenConsumer, OpenError> {
        let settings = &self.state.settings;
        let queue = settings.reply_queue.as_str();
        let to_open_error = |error: lapin::Error| OpenError::Other(address.explain(&error));
        let declarer = QueueDeclarer::new(connection.clone());
        self.check_unused(address, declarer.ensure_reply_queue(settings).await)?;
        // A queue with a single active consumer allows no exclusive consumer. There, only the
        // number of consumers shows whether another process consumes it.
        for is_exclusive in [true, false] {
            let channel = connection.create_channel().await.map_err(to_open_error)?;
            channel
                .basic_qos(settings.prefetch, BasicQosOptions::default())
                .await
                .map_err(to_open_error)?;
            flow.set_channel(channel.id());
            let options =
                BasicConsumeOptions { exclusive: is_exclusive, ..BasicConsumeOptions::default() };
            match channel
                .basic_consume(
                    short_string(queue),
                    CONSUMER_TAG.into(),
                    options,
                    FieldTable::default(),
                )
                .await
            {
                // Two processes may have found the queue unused at the same time. Then both back
                // off.
                Ok(deliveries) => match declarer.check(queue).await {
                    QueueCheck::Exists { consumers, .. } if consumers > 1 => {
                        return Err(OpenError::InUse(format!("consumers: {consumers}")));
                    }
                    QueueCheck::Lost(error) => return Err(to_open_error(error)),
                    QueueCheck::Exists { .. }
                    | QueueCheck::Missing
                    | QueueCheck::Exclusive
                    | QueueCheck::Unavailable(_)
                    | QueueCheck::Refused(_) => {
                        return Ok(OpenConsumer {
                            connection: connection.clone(),
                            address: address.clone(),
                            flow: flow.clone(),
                            channel,
                            deliveries,
                        });
                    }
                },
                Err(error) => match channel_error(&error) {
                    Some((AMQPSoftError::ACCESSREFUSED, broker_text))
                        if broker_text.contains("in exclusive use") =>
                    {
                        return Err(OpenError::InUse(broker_text.to_owned()));
                    }
                    Some((AMQPSoftError::ACCESSREFUSED, _)) if is_exclusive => {}
                    _ => return Err(to_open_error(error)),
                },
            }
        }
        Err(OpenError::Other(format!(
            "the broker does not let this user consume the reply queue \"{queue}\""
        )))
    }

    /// Returns an error unless the reply queue exists and has no consumer.
    fn check_unused(&self, address: &BrokerAddress, check: QueueCheck) -> Result<(), OpenError> {
        let queue = &self.state.settings.reply_queue;
        Err(match check {
            QueueCheck::Exists { consumers: 0, .. } => return Ok(()),
            QueueCheck::Exists { consumers, .. } => {
                OpenError::InUse(format!("consumers: {consumers}"))
            }
            QueueCheck::Exclusive => {
                OpenError::InUse("it is an exclusive queue of another connection".to_owned())
            }
            QueueCheck::Missing => OpenError::Other(format!(
                "the reply queue \"{queue}\" was deleted while it was being declared"
            )),
            QueueCheck::Refused(broker_text) => OpenError::Other(format!(
                "the broker refuses the reply queue \"{queue}\": {broker_text}"
            )),
            QueueCheck::Unavailable(broker_text) => {
                OpenError::Other(reply_queue_unavailable(queue, &broker_text))
            }
            QueueCheck::Lost(error) => OpenError::Other(address.explain(&error)),
        })
    }

    /// Consumes until the bus is closed or the connection is lost.
    async fn consume(
        &mut self,
        open_consumer: OpenConsumer,
        phases: &mut watch::Receiver<ShutdownPhase>,
    ) -> ConsumerEnd {
        let OpenConsumer { connection, address, flow, channel, deliveries } = open_consumer;
        let workflow_queues = workflow_queues::start(&self.state, &connection, &address, phases);
        let policy_task = actix_rt::spawn(policy::maintain(self.state.clone()));
        let properties_task = actix_rt::spawn(inspect::record_all_properties(self.state.clone()));
        let mut is_consuming = self.state.is_consuming.subscribe();
        let end = tokio::select! {
            end = self.reply_consumer.serve(&channel, deliveries, Some(&flow), phases) => Some(end),
            _ = is_consuming.wait_for(|is_consuming| !*is_consuming) => None,
        };
        policy_task.abort();
        properties_task.abort();
        workflow_queues.stop(matches!(end, Some(ConsumeEnd::Closed))).await;
        // If only the channel failed, the connection is still open.
        connection::close(&connection).await;
        let Some(end) = end else { return ConsumerEnd::Suspended };
        match end {
            ConsumeEnd::Closed => ConsumerEnd::Closed,
            // Only workflow queues change their prefetch.
            ConsumeEnd::PrefetchChanged | ConsumeEnd::Cancelled => ConsumerEnd::Lost(
                "the broker ended the consumer: the reply queue was deleted or moved".to_owned(),
            ),
            ConsumeEnd::Failed(error) => ConsumerEnd::Lost(address.explain(&error)),
        }
    }
}
