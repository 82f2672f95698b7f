//! Consumes one queue: passes its deliveries to the manager, and settles them at the broker.

use super::acks::{Acknowledgement, Window};
use super::call_room::{CallRoom, Place};
use super::connection::fail_point;
use super::pace::Pace;
use super::received::{Aside, Unreadable, called, received, unreadable};
use super::shared::{Phase, Shared, reached};
use super::wire::room::Flow;
use crate::bus::{BusEvent, Settled, Settlement};
use futures_util::{FutureExt, StreamExt};
use lapin::Channel;
use lapin::options::{BasicAckOptions, BasicCancelOptions, BasicNackOptions};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// How long acks may wait behind a delivery that is not settled.
const EARLY_ACKS_WAIT: Duration = Duration::from_millis(500);

/// How long closing waits until deliveries are settled. Those that are not are redelivered.
const VERDICTS_WITHIN: Duration = Duration::from_secs(3);

/// How often to check whether a queue can be consumed with its whole prefetch again.
const WIDENED_AFTER: Duration = Duration::from_secs(60);

/// How many deliveries are taken before settlements are handled again.
const DELIVERED_MAX: u32 = 64;

/// What a queue contains.
pub(super) enum Source {
    /// Replies of workers.
    Replies,
    /// Calls on this queue, with their budget.
    Calls(Arc<str>, CallRoom),
}

/// Consumes one queue, over any number of channels.
pub(super) struct Lane {
    shared: Rc<Shared>,
    source: Source,
    settle: mpsc::UnboundedSender<Settled>,
    verdicts: mpsc::UnboundedReceiver<Settled>,
    /// Counts the channels on which it has consumed.
    epoch: u64,
}

/// Why a channel stopped consuming.
pub(super) enum Ended {
    /// The bus is closed.
    Closed,
    /// The broker ended the consumer: the queue was deleted or moved.
    Cancelled,
    /// The queue must be consumed anew, with another prefetch.
    Refitted,
    Failed(lapin::Error),
}

impl Lane {
    pub(super) fn new(shared: Rc<Shared>, source: Source) -> Lane {
        let (settle, verdicts) = mpsc::unbounded_channel();
        Lane { shared, source, settle, verdicts, epoch: 0 }
    }

    /// Returns the prefetch to consume with.
    pub(super) fn prefetch(&self) -> u16 {
        match &self.source {
            Source::Replies => self.shared.settings.prefetch,
            Source::Calls(_, room) => room.prefetch(),
        }
    }

    /// Returns whether it has consumed before.
    pub(super) fn is_old(&self) -> bool {
        self.epoch > 0
    }

    /// Consumes until the channel is useless. After that its deliveries are void.
    pub(super) async fn serve(
        &mut self,
        channel: &Channel,
        deliveries: lapin::Consumer,
        flow: Option<&Arc<Flow>>,
        phases: &mut watch::Receiver<Phase>,
    ) -> Ended {
        self.epoch += 1;
        let ended = self.consume(channel, deliveries, flow, phases).await;
        (self.settle, self.verdicts) = mpsc::unbounded_channel();
        ended
    }

    async fn consume(
        &mut self,
        channel: &Channel,
        mut deliveries: lapin::Consumer,
        flow: Option<&Arc<Flow>>,
        phases: &mut watch::Receiver<Phase>,
    ) -> Ended {
        let mut window = Window::new(usize::from(self.shared.settings.prefetch) / 4);
        let mut early_acks = tokio::time::interval(EARLY_ACKS_WAIT);
        let mut pace = Pace::new(self.shared.settings.linger);
        let mut widened = tokio::time::interval(WIDENED_AFTER);
        widened.reset();
        loop {
            let sent = tokio::select! {
                () = reached(phases, Phase::EndConsuming) => {
                    self.finish(channel, &deliveries, &mut window).await;
                    return Ended::Closed;
                }
                delivery = async { pace.wait().await; deliveries.next().await } => {
                    let taken = self.deliver_all(delivery, &mut deliveries, flow, &mut window);
                    taken.map(|count| pace.took(count, count < DELIVERED_MAX))
                }
                Some(verdict) = self.verdicts.recv() => {
                    self.settle(verdict, channel, &mut window).map_err(Ended::Failed)
                }
                _ = widened.tick(), if window.unsettled() == 0 => self.widen().map_or(Ok(()), Err),
                _ = early_acks.tick(), if window.owes() => {
                    let mut answers = Vec::new();
                    window.flush(true, &mut answers);
                    tell(channel, &answers).map_err(Ended::Failed)
                }
            };
            if let Err(ended) = sent {
                if matches!(ended, Ended::Refitted) {
                    self.acknowledge_all(channel, &mut window);
                }
                return ended;
            }
        }
    }

    /// Ends consuming if the prefetch was reduced, so that the queue is consumed with the whole
    /// prefetch again.
    fn widen(&mut self) -> Option<Ended> {
        let Source::Calls(_, room) = &mut self.source else { return None };
        room.is_narrow().then(|| {
            room.widen();
            Ended::Refitted
        })
    }

    /// Sends all acks that the broker is owed.
    fn acknowledge_all(&mut self, channel: &Channel, window: &mut Window) {
        let mut answers = Vec::new();
        window.flush(true, &mut answers);
        // Deliveries whose acks are not sent are redelivered.
        let _ = tell(channel, &answers);
    }

    /// Delivers this message and some of those that have arrived already. Returns how many they
    /// were.
    fn deliver_all(
        &mut self,
        first: Option<lapin::Result<lapin::message::Delivery>>,
        deliveries: &mut lapin::Consumer,
        flow: Option<&Arc<Flow>>,
        window: &mut Window,
    ) -> Result<u32, Ended> {
        let mut next = first;
        for taken in 1..=DELIVERED_MAX {
            match next {
                None => return Err(Ended::Cancelled),
                Some(Err(error)) => return Err(Ended::Failed(error)),
                Some(Ok(delivery)) => {
                    fail_point("amqp::deliver").map_err(Ended::Failed)?;
                    self.deliver(delivery, flow, window)?;
                }
            }
            // A message that is taken from the stream must be delivered, so the last round takes
            // none.
            if taken == DELIVERED_MAX {
                break;
            }
            let Some(come) = deliveries.next().now_or_never() else { return Ok(taken) };
            next = come;
        }
        Ok(DELIVERED_MAX)
    }

    fn put_aside(
        &self,
        unreadable: Unreadable,
        delivery: lapin::message::Delivery,
        settlement: Settlement,
    ) {
        let room = &self.shared.aside_room;
        let Some(taken) = room.take(delivery.data.len()) else {
            return room.turn_away(settlement.into());
        };
        let queue = match &self.source {
            Source::Replies => self.shared.settings.reply_queue.as_str().into(),
            Source::Calls(queue, _) => queue.clone(),
        };
        let settlement = settlement.holding(Some(taken));
        let delivery = received(delivery, settlement, self.shared.address.user());
        // The receiver is gone only if the bus is. The delivery is requeued then.
        let _ = self.shared.aside.send(Aside { queue, unreadable, delivery });
    }

    fn deliver(
        &mut self,
        delivery: lapin::message::Delivery,
        flow: Option<&Arc<Flow>>,
        window: &mut Window,
    ) -> Result<(), Ended> {
        window.deliver(delivery.delivery_tag);
        let hold = flow.map(|flow| flow.take(delivery.data.len()));
        let settlement = Settlement::new(delivery.delivery_tag, self.epoch, self.settle.clone());
        if let Some(unreadable) = unreadable(&delivery) {
            self.put_aside(unreadable, delivery, settlement);
            return Ok(());
        }
        let manager = self.shared.address.user();
        let event = match &mut self.source {
            Source::Replies => {
                BusEvent::Reply(received(delivery, settlement.holding(hold), manager))
            }
            Source::Calls(queue, room) => {
                let is_alone = window.unsettled() <= 1;
                let Place::Taken(taken) = room.place(delivery.data.len(), is_alone) else {
                    tracing::info!(
                        %queue,
                        bytes = delivery.data.len(),
                        prefetch = room.prefetch(),
                        "calls wait that are large: the queue is consumed with a smaller prefetch"
                    );
                    return Err(Ended::Refitted);
                };
                let delivery = called(delivery, settlement.holding(taken), manager);
                BusEvent::Call { queue: queue.clone(), delivery }
            }
        };
        (self.shared.sink)(event);
        Ok(())
    }

    /// Applies this command and all others that are ready, then sends the acks.
    fn settle(
        &mut self,
        first: Settled,
        channel: &Channel,
        window: &mut Window,
    ) -> lapin::Result<()> {
        let mut answers = Vec::new();
        let mut next = Some(first);
        while let Some(verdict) = next {
            // Deliveries of an earlier connection were requeued when that was lost.
            if verdict.epoch == self.epoch {
                window.settle(verdict.tag, verdict.verdict, &mut answers);
            }
            next = self.verdicts.try_recv().ok();
        }
        window.flush(false, &mut answers);
        tell(channel, &answers)
    }

    /// Stops consuming, and waits a short time until the open deliveries are settled.
    async fn finish(
        &mut self,
        channel: &Channel,
        deliveries: &lapin::Consumer,
        window: &mut Window,
    ) {
        let verdicts = async {
            channel.basic_cancel(deliveries.tag(), BasicCancelOptions::default()).await?;
            while window.unsettled() > 0 {
                let Some(verdict) = self.verdicts.recv().await else { break };
                self.settle(verdict, channel, window)?;
            }
            lapin::Result::Ok(())
        };
        match tokio::time::timeout(VERDICTS_WITHIN, verdicts).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(
                error = self.shared.address.explain(&error),
                "deliveries under way come again"
            ),
            Err(_) => tracing::warn!(
                unsettled = window.unsettled(),
                "deliveries without a verdict come again"
            ),
        }
        let mut answers = Vec::new();
        window.flush(true, &mut answers);
        // Deliveries whose acks are not sent are redelivered.
        let _ = tell(channel, &answers);
    }
}

/// Hands acks to the library without waiting until they are written. Deliveries whose acks are
/// never written are redelivered, and a closed channel is noticed where deliveries are taken.
fn tell(channel: &Channel, answers: &[Acknowledgement]) -> lapin::Result<()> {
    for answer in answers {
        fail_point("amqp::ack")?;
        let handed = match answer {
            Acknowledgement::Ack(tag) => {
                channel.basic_ack(*tag, BasicAckOptions { multiple: false }).now_or_never()
            }
            Acknowledgement::AckUpTo(tag) => {
                channel.basic_ack(*tag, BasicAckOptions { multiple: true }).now_or_never()
            }
            Acknowledgement::Requeue(tag) => channel
                .basic_nack(*tag, BasicNackOptions { multiple: false, requeue: true })
                .now_or_never(),
        };
        handed.unwrap_or(Ok(()))?;
    }
    Ok(())
}
