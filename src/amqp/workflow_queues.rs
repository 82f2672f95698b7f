//! Consumes the queues of workflows, on which calls ask for jobs. Each has its own channel: a queue
//! that cannot be consumed holds up neither the others nor the replies.

use super::call_budget::CallBudget;
use super::connection::{LastReason, channel_error, millis};
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

/// The delay before a queue that cannot be consumed is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// The delay before a queue is consumed with another prefetch.
const PREFETCH_CHANGE_DELAY: Duration = Duration::from_secs(1);

/// Consumes all workflow queues on one connection. Dropping it aborts that.
pub(super) struct WorkflowQueueConsumers(actix_rt::task::JoinHandle<()>);

/// Starts to consume the workflow queues. A reload may add queues; those of removed workflows are
/// no longer consumed.
pub(super) fn start(
    state: &Rc<AmqpState>,
    connection: &Rc<Connection>,
    phases: &watch::Receiver<ShutdownPhase>,
) -> WorkflowQueueConsumers {
    WorkflowQueueConsumers(actix_rt::spawn(run_consumers(
        state.clone(),
        connection.clone(),
        phases.clone(),
    )))
}

async fn run_consumers(
    state: Rc<AmqpState>,
    connection: Rc<Connection>,
    mut phases: watch::Receiver<ShutdownPhase>,
) {
    let declarer = QueueDeclarer::new(connection.clone());
    let mut active_queues = state.active_queues.subscribe();
    let mut consumers: BTreeMap<Arc<str>, ConsumerTask> = BTreeMap::new();
    loop {
        let queues = active_queues.borrow_and_update().call_queues.clone();
        // What is sent to a workflow that is no longer loaded waits in its queue.
        let (remaining, removed): (BTreeMap<_, _>, BTreeMap<_, _>) =
            consumers.into_iter().partition(|(queue, _)| queues.contains(queue));
        consumers = remaining;
        join_all(removed.into_values().map(ConsumerTask::stop)).await;
        for queue in queues {
            let start = || {
                let consumed = WorkflowQueueConsumer {
                    state: state.clone(),
                    connection: connection.clone(),
                    queues: declarer.clone(),
                    queue: queue.clone(),
                };
                let (phase, phases) = watch::channel(ShutdownPhase::Open);
                ConsumerTask { running: actix_rt::spawn(consumed.run(phases)), phase }
            };
            consumers.entry(queue.clone()).or_insert_with(start);
        }
        tokio::select! {
            () = wait_for_phase(&mut phases, ShutdownPhase::StopConsuming) => break,
            changed = active_queues.changed() => if changed.is_err() { break },
        }
    }
    join_all(consumers.into_values().map(ConsumerTask::stop)).await;
}

/// The task that consumes one workflow queue. Dropping it aborts the task.
struct ConsumerTask {
    running: actix_rt::task::JoinHandle<()>,
    phase: watch::Sender<ShutdownPhase>,
}

impl ConsumerTask {
    /// Stops consuming, and waits until open deliveries are settled.
    async fn stop(mut self) {
        self.phase.send_replace(ShutdownPhase::StopConsuming);
        // An error means that the task panicked; it has ended in any case.
        let _ = (&mut self.running).await;
    }
}

impl Drop for ConsumerTask {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl WorkflowQueueConsumers {
    /// Waits in an orderly shutdown until open deliveries are settled; otherwise aborts.
    pub(super) async fn stop(mut self, is_orderly: bool) {
        if is_orderly {
            // An error means that the task panicked; it has ended in any case.
            let _ = (&mut self.0).await;
        }
    }
}

impl Drop for WorkflowQueueConsumers {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct WorkflowQueueConsumer {
    state: Rc<AmqpState>,
    connection: Rc<Connection>,
    queues: Rc<QueueDeclarer>,
    queue: Arc<str>,
}

impl WorkflowQueueConsumer {
    async fn run(self, mut phases: watch::Receiver<ShutdownPhase>) {
        let mut last_reason = LastReason::default();
        let settings = &self.state.settings;
        let budget = CallBudget::new(settings.replies_bytes_max, settings.prefetch);
        let mut consumer =
            QueueConsumer::new(self.state.clone(), Source::Calls(self.queue.clone(), budget));
        while self.connection.status().connected() {
            let opened = tokio::select! {
                biased;
                () = wait_for_phase(&mut phases, ShutdownPhase::StopConsuming) => return,
                opened = self.open(consumer.prefetch()) => opened,
            };
            let reason = match opened {
                Ok((channel, deliveries)) => {
                    last_reason = LastReason::default();
                    let ended = consumer.serve(&channel, deliveries, None, &mut phases).await;
                    // Closing requeues what is not settled. An error means that the channel is
                    // closed already.
                    let _ = channel.close(200, "closed by workflow-manager".into()).await;
                    match ended {
                        ConsumeEnd::Closed => return,
                        ConsumeEnd::PrefetchChanged => {
                            // After this delay the requeued calls are no longer in memory.
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
                        ConsumeEnd::Failed(error) => self.state.address.explain(&error),
                    }
                }
                Err(reason) => reason,
            };
            if !self.connection.status().connected() {
                // The consumer of the replies reports the reason, and reconnects.
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

    async fn open(&self, prefetch: u16) -> Result<(Channel, lapin::Consumer), String> {
        let explain = |error: lapin::Error| match channel_error(&error) {
            Some((_, broker_text)) => broker_text.to_owned(),
            None => self.state.address.explain(&error),
        };
        let found = match self.queues.check(&self.queue).await {
            QueueCheck::Missing => {
                // Steps may send to this queue as to a worker's queue. The messages that waited in
                // it are lost.
                let (journaled, answered) = oneshot::channel();
                (self.state.sink)(BusEvent::QueueMissing { queue: self.queue.clone(), journaled });
                let queue_properties = self.state.properties_for(&self.queue);
                let policy_lock = &self.state.policy_lock;
                self.queues
                    .declare_after(&self.queue, queue_properties, answered, policy_lock)
                    .await
            }
            found @ (QueueCheck::Exists { .. }
            | QueueCheck::Exclusive
            | QueueCheck::Refused(_)
            | QueueCheck::Lost(_)) => found,
        };
        match found {
            QueueCheck::Exists { .. } | QueueCheck::Missing => {}
            QueueCheck::Exclusive => {
                return Err("it is an exclusive queue of another connection".to_owned());
            }
            QueueCheck::Refused(broker_text) => return Err(broker_text),
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
