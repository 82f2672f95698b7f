//! Consumes the queues of workflows, on which calls ask for jobs. Each has its own channel: a queue
//! that cannot be consumed holds up neither the others nor the replies.

use super::call_room::CallRoom;
use super::connection::{LastReason, channel_error, millis};
use super::lane::{Ended, Lane, Source};
use super::queues::{Found, Queues, short};
use super::shared::{Phase, Shared, reached};
use crate::bus::BusEvent;
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
const QUEUE_PAUSE: Duration = Duration::from_secs(5);

/// The delay before a queue is consumed with another prefetch.
const REFITTED_AFTER: Duration = Duration::from_secs(1);

/// Consumes all workflow queues on one connection. Dropping it aborts that.
pub(super) struct WorkflowQueues(actix_rt::task::JoinHandle<()>);

/// Starts to consume the workflow queues. A reload may add queues; those of removed workflows are
/// no longer consumed.
pub(super) fn consume(
    shared: &Rc<Shared>,
    connection: &Rc<Connection>,
    phases: &watch::Receiver<Phase>,
) -> WorkflowQueues {
    WorkflowQueues(actix_rt::spawn(consume_all(shared.clone(), connection.clone(), phases.clone())))
}

async fn consume_all(
    shared: Rc<Shared>,
    connection: Rc<Connection>,
    mut phases: watch::Receiver<Phase>,
) {
    let looks = Queues::new(connection.clone());
    let mut serving = shared.serving.subscribe();
    let mut consumers: BTreeMap<Arc<str>, QueueConsumer> = BTreeMap::new();
    loop {
        let queues = serving.borrow_and_update().calls.clone();
        // What is sent to a workflow that is no longer loaded waits in its queue.
        let (kept, removed): (BTreeMap<_, _>, BTreeMap<_, _>) =
            consumers.into_iter().partition(|(queue, _)| queues.contains(queue));
        consumers = kept;
        join_all(removed.into_values().map(QueueConsumer::end)).await;
        for queue in queues {
            let start = || {
                let consumed = WorkflowQueue {
                    shared: shared.clone(),
                    connection: connection.clone(),
                    queues: looks.clone(),
                    queue: queue.clone(),
                };
                let (phase, phases) = watch::channel(Phase::Open);
                QueueConsumer { running: actix_rt::spawn(consumed.run(phases)), phase }
            };
            consumers.entry(queue.clone()).or_insert_with(start);
        }
        tokio::select! {
            () = reached(&mut phases, Phase::EndConsuming) => break,
            changed = serving.changed() => if changed.is_err() { break },
        }
    }
    join_all(consumers.into_values().map(QueueConsumer::end)).await;
}

/// The task that consumes one workflow queue. Dropping it aborts the task.
struct QueueConsumer {
    running: actix_rt::task::JoinHandle<()>,
    phase: watch::Sender<Phase>,
}

impl QueueConsumer {
    /// Stops consuming, and waits until open deliveries are settled.
    async fn end(mut self) {
        self.phase.send_replace(Phase::EndConsuming);
        // An error means that the task panicked; it has ended in any case.
        let _ = (&mut self.running).await;
    }
}

impl Drop for QueueConsumer {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl WorkflowQueues {
    /// Waits in an orderly shutdown until open deliveries are settled; otherwise aborts.
    pub(super) async fn end(mut self, is_orderly: bool) {
        if is_orderly {
            // An error means that the task panicked; it has ended in any case.
            let _ = (&mut self.0).await;
        }
    }
}

impl Drop for WorkflowQueues {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct WorkflowQueue {
    shared: Rc<Shared>,
    connection: Rc<Connection>,
    queues: Rc<Queues>,
    queue: Arc<str>,
}

impl WorkflowQueue {
    async fn run(self, mut phases: watch::Receiver<Phase>) {
        let mut last_reason = LastReason::default();
        let settings = &self.shared.settings;
        let room = CallRoom::new(settings.replies_bytes_max, settings.prefetch);
        let mut lane = Lane::new(self.shared.clone(), Source::Calls(self.queue.clone(), room));
        while self.connection.status().connected() {
            let opened = tokio::select! {
                biased;
                () = reached(&mut phases, Phase::EndConsuming) => return,
                opened = self.open(lane.prefetch()) => opened,
            };
            let reason = match opened {
                Ok((channel, deliveries)) => {
                    last_reason = LastReason::default();
                    let ended = lane.serve(&channel, deliveries, None, &mut phases).await;
                    // Closing requeues what is not settled. An error means that the channel is
                    // closed already.
                    let _ = channel.close(200, "closed by workflow-manager".into()).await;
                    match ended {
                        Ended::Closed => return,
                        Ended::Refitted => {
                            // After this delay the requeued calls are no longer in memory.
                            tokio::select! {
                                () = reached(&mut phases, Phase::EndConsuming) => return,
                                () = tokio::time::sleep(REFITTED_AFTER) => continue,
                            }
                        }
                        Ended::Cancelled => {
                            "the broker ended the consumer: the queue was deleted or moved"
                                .to_owned()
                        }
                        Ended::Failed(error) => self.shared.address.explain(&error),
                    }
                }
                Err(reason) => reason,
            };
            if !self.connection.status().connected() {
                // The consumer of the replies reports the reason, and reconnects.
                return;
            }
            if last_reason.is_news(&reason) {
                tracing::warn!(
                    queue = %self.queue,
                    reason,
                    retry_in_ms = millis(QUEUE_PAUSE),
                    "a workflow's queue is not consumed"
                );
            } else {
                tracing::debug!(
                    queue = %self.queue,
                    reason,
                    retry_in_ms = millis(QUEUE_PAUSE),
                    "a workflow's queue is not consumed"
                );
            }
            tokio::select! {
                () = reached(&mut phases, Phase::EndConsuming) => return,
                () = tokio::time::sleep(QUEUE_PAUSE) => {}
            }
        }
    }

    async fn open(&self, prefetch: u16) -> Result<(Channel, lapin::Consumer), String> {
        let explain = |error: lapin::Error| match channel_error(&error) {
            Some((_, said)) => said.to_owned(),
            None => self.shared.address.explain(&error),
        };
        let found = match self.queues.look(&self.queue).await {
            Found::Missing => {
                // Steps may send to this queue as to a worker's queue. The messages that waited in
                // it are lost.
                let (taken, answered) = oneshot::channel();
                (self.shared.sink)(BusEvent::QueueMissing { queue: self.queue.clone(), taken });
                let shape = self.shared.shape_of(&self.queue);
                let turns = &self.shared.turns;
                self.queues.declare_after(&self.queue, shape, answered, turns).await
            }
            found @ (Found::There { .. } | Found::Locked | Found::Refused(_) | Found::Lost(_)) => {
                found
            }
        };
        match found {
            Found::There { .. } | Found::Missing => {}
            Found::Locked => {
                return Err("it is an exclusive queue of another connection".to_owned());
            }
            Found::Refused(said) => return Err(said),
            Found::Lost(error) => return Err(explain(error)),
        }
        let channel = self.connection.create_channel().await.map_err(explain)?;
        channel.basic_qos(prefetch, BasicQosOptions::default()).await.map_err(explain)?;
        let consuming = channel.basic_consume(
            short(&*self.queue),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let deliveries = consuming.await.map_err(explain)?;
        tracing::debug!(queue = %self.queue, "consuming a workflow's queue");
        Ok((channel, deliveries))
    }
}
