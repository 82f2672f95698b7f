//! Consumes the workflow queues, on which calls ask for jobs.
//!
//! Each queue has its own channel, so that a queue that cannot be consumed blocks neither the other
//! queues nor the replies.

use super::call_budget::CallBudget;
use super::connection::{
    BrokerAddress, CLOSE_TEXT, LastReason, REPLY_SUCCESS, channel_error, millis,
};
use super::queue_consumer::{ConsumeEnd, QueueConsumer, Source};
use super::queues::{QueueCheck, QueueDeclarer, short_string};
use super::state::{AmqpState, ShutdownPhase, wait_for_phase};
use bus::BusEvent;
use futures_util::future::join_all;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// The delay before the next attempt to consume a queue.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// The delay before a queue is consumed with another prefetch.
const PREFETCH_CHANGE_DELAY: Duration = Duration::from_secs(1);

/// The task that runs the consumers of all workflow queues on one connection. Dropping it aborts
/// the task.
pub(super) struct AllConsumersTask(actix_rt::task::JoinHandle<()>);

/// Starts to consume the workflow queues. A reload may add queues, and remove those of removed
/// workflows.
pub(super) fn start(
    state: &Rc<AmqpState>,
    connection: &Rc<Connection>,
    address: &Arc<BrokerAddress>,
    phases: &watch::Receiver<ShutdownPhase>,
) -> AllConsumersTask {
    AllConsumersTask(actix_rt::spawn(run_consumers(
        state.clone(),
        connection.clone(),
        address.clone(),
        phases.clone(),
    )))
}

/// Runs one consumer for each workflow queue until the bus is closed.
async fn run_consumers(
    state: Rc<AmqpState>,
    connection: Rc<Connection>,
    address: Arc<BrokerAddress>,
    mut phases: watch::Receiver<ShutdownPhase>,
) {
    let declarer = QueueDeclarer::new(connection.clone());
    let mut active_queues = state.active_queues.subscribe();
    let mut consumers: BTreeMap<Arc<str>, ConsumerTask> = BTreeMap::new();
    loop {
        let queues = active_queues.borrow_and_update().workflow_queues.clone();
        // Calls to a workflow that is no longer loaded wait in its queue.
        let (served_consumers, removed_consumers): (BTreeMap<_, _>, BTreeMap<_, _>) =
            consumers.into_iter().partition(|(queue, _)| queues.contains(queue));
        consumers = served_consumers;
        join_all(removed_consumers.into_values().map(ConsumerTask::stop)).await;
        for queue in queues {
            let start_consumer = || {
                let consumer = WorkflowQueueConsumer {
                    state: state.clone(),
                    connection: connection.clone(),
                    address: address.clone(),
                    declarer: declarer.clone(),
                    queue: queue.clone(),
                };
                let (phase_sender, phases) = watch::channel(ShutdownPhase::Open);
                ConsumerTask { task: actix_rt::spawn(consumer.run(phases)), phase_sender }
            };
            consumers.entry(queue.clone()).or_insert_with(start_consumer);
        }
        tokio::select! {
            () = wait_for_phase(&mut phases, ShutdownPhase::StopConsuming) => break,
            result = active_queues.changed() => if result.is_err() { break },
        }
    }
    join_all(consumers.into_values().map(ConsumerTask::stop)).await;
}

/// The task that runs the consumer of one workflow queue. Dropping it aborts the task.
struct ConsumerTask {
    task: actix_rt::task::JoinHandle<()>,
    phase_sender: watch::Sender<ShutdownPhase>,
}

impl ConsumerTask {
    /// Stops consuming, and waits until the task has ended. Deliveries that are not settled within
    /// a short time are redelivered.
    async fn stop(mut self) {
        self.phase_sender.send_replace(ShutdownPhase::StopConsuming);
        // An error means that the task panicked; it has ended either way.
        let _ = (&mut self.task).await;
    }
}

impl Drop for ConsumerTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl AllConsumersTask {
    /// Stops the consumers. If `is_graceful`, which needs a bus that is being closed, waits until
    /// the task has ended. Deliveries that are not settled within a short time are redelivered.
    /// Otherwise aborts the task.
    pub(super) async fn stop(mut self, is_graceful: bool) {
        if is_graceful {
            // An error means that the task panicked; it has ended either way.
            let _ = (&mut self.0).await;
        }
    }
}

impl Drop for AllConsumersTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The consumer of one workflow queue. It uses a [`QueueConsumer`], and opens a new channel for it
/// after each failure.
struct WorkflowQueueConsumer {
    state: Rc<AmqpState>,
    connection: Rc<Connection>,
    /// The node that it is connected to.
    address: Arc<BrokerAddress>,
    declarer: Rc<QueueDeclarer>,
    queue: Arc<str>,
}

impl WorkflowQueueConsumer {
    /// Consumes over any number of channels, until it is stopped or the connection is lost.
    async fn run(self, mut phases: watch::Receiver<ShutdownPhase>) {
        let mut last_reason = LastReason::default();
        let settings = &self.state.settings;
        let budget = CallBudget::new(settings.replies_bytes_max, settings.prefetch);
        let mut consumer =
            QueueConsumer::new(self.state.clone(), Source::Calls(self.queue.clone(), budget));
        while self.connection.status().connected() {
            let result = tokio::select! {
                biased;
                () = wait_for_phase(&mut phases, ShutdownPhase::StopConsuming) => return,
                result = self.open(consumer.prefetch()) => result,
            };
            let reason = match result {
                Ok((channel, deliveries)) => {
                    last_reason = LastReason::default();
                    let end = consumer.serve(&channel, deliveries, None, &mut phases).await;
                    // Closing requeues unsettled deliveries. An error means that the channel is
                    // closed already.
                    let _ = channel.close(REPLY_SUCCESS, CLOSE_TEXT.into()).await;
                    match end {
                        ConsumeEnd::Closed => return,
                        ConsumeEnd::PrefetchChanged => {
                            // During the delay, the manager drops the requeued calls from memory.
                            tokio::select! {
                                () = wait_for_phase(
                                    &mut phases,
                                    ShutdownPhase::StopConsuming,
                                ) => return,
                                () = tokio::time::sleep(PREFETCH_CHANGE_DELAY) => continue,
                            }
                        }
                        ConsumeEnd::Cancelled => {
                            "the broker ended the consumer: the queue was deleted or moved"
                                .to_owned()
                        }
                        ConsumeEnd::Failed(error) => self.address.explain(&error),
                    }
                }
                Err(reason) => reason,
            };
            if !self.connection.status().connected() {
                // The consumer of the replies reports the reason and reconnects.
                return;
            }
            if last_reason.record_if_new(&reason) {
                tracing::warn!(
                    queue = %self.queue,
                    reason,
                    retry_in_ms = millis(RETRY_DELAY),
                    "a workflow's queue is not consumed"
                );
            } else {
                tracing::debug!(
                    queue = %self.queue,
                    reason,
                    retry_in_ms = millis(RETRY_DELAY),
                    "a workflow's queue is not consumed"
                );
            }
            tokio::select! {
                () = wait_for_phase(&mut phases, ShutdownPhase::StopConsuming) => return,
                () = tokio::time::sleep(RETRY_DELAY) => {}
            }
        }
    }

    /// Starts to consume the queue on a new channel. Declares the queue if it is missing.
    ///
    /// # Errors
    ///
    /// Returns the reason, as a sentence for the user, if the queue cannot be consumed.
    async fn open(&self, prefetch: u16) -> Result<(Channel, lapin::Consumer), String> {
        let explain = |error: lapin::Error| match channel_error(&error) {
            Some((_, broker_text)) => broker_text.to_owned(),
            None => self.address.explain(&error),
        };
        let check = match self.declarer.check(&self.queue).await {
            QueueCheck::Missing => {
                // Steps may send to this queue as to a worker queue. The messages in it are lost.
                let (journaled_sender, journaled) = oneshot::channel();
                (self.state.sink)(BusEvent::QueueMissing {
                    queue: self.queue.clone(),
                    journaled: journaled_sender,
                });
                let queue_properties = self.state.properties_for(&self.queue);
                let policy_lock = &self.state.policy_lock;
                self.declarer
                    .declare_after(&self.queue, queue_properties, journaled, policy_lock)
                    .await
            }
            check @ (QueueCheck::Exists { .. }
            | QueueCheck::Exclusive
            | QueueCheck::Unavailable(_)
            | QueueCheck::Refused(_)
            | QueueCheck::Lost(_)) => check,
        };
        match check {
            // If the queue is missing again, consuming it fails, with the broker's reason.
            QueueCheck::Exists { .. } | QueueCheck::Missing => {}
            QueueCheck::Exclusive => {
                return Err("it is an exclusive queue of another connection".to_owned());
            }
            QueueCheck::Unavailable(broker_text) | QueueCheck::Refused(broker_text) => {
                return Err(broker_text);
            }
            QueueCheck::Lost(error) => return Err(explain(error)),
        }
        let channel = self.connection.create_channel().await.map_err(explain)?;
        channel.basic_qos(prefetch, BasicQosOptions::default()).await.map_err(explain)?;
        let consuming = channel.basic_consume(
            short_string(&*self.queue),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let deliveries = consuming.await.map_err(explain)?;
        tracing::debug!(queue = %self.queue, "consuming a workflow's queue");
        Ok((channel, deliveries))
    }
}
