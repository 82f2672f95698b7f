//! Consumes one queue: passes its deliveries to the manager, and settles them at the broker.

use super::acks::{AckWindow, Acknowledgement};
use super::call_budget::{CallAdmission, CallBudget};
use super::connection::fail_point;
use super::delivery_pacer::DeliveryPacer;
use super::received::{
    QuarantineRequest, UnreadableContent, find_unreadable, parse_call, parse_reply,
};
use super::state::{AmqpState, ShutdownPhase, wait_for_phase};
use super::wire::delivery_budget::DeliveryFlow;
use bus::{BusEvent, SettleCommand, Settlement};
use futures_util::{FutureExt, StreamExt};
use lapin::Channel;
use lapin::options::{BasicAckOptions, BasicCancelOptions, BasicNackOptions};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// How long acks may wait behind a delivery that is not settled.
const EARLY_ACK_INTERVAL: Duration = Duration::from_millis(500);

/// How long closing waits until deliveries are settled. Those that are not are redelivered.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);

/// How often to check whether a queue can be consumed with its whole prefetch again.
const PREFETCH_RESTORE_INTERVAL: Duration = Duration::from_secs(60);

/// How many deliveries are taken before settlements are handled again.
const DELIVERIES_PER_TURN: u32 = 64;

/// What a queue contains.
pub(super) enum Source {
    /// Replies of workers.
    Replies,
    /// Calls on this queue, with their budget.
    Calls(Arc<str>, CallBudget),
}

/// Consumes one queue, over any number of channels.
pub(super) struct QueueConsumer {
    state: Rc<AmqpState>,
    source: Source,
    command_sender: mpsc::UnboundedSender<SettleCommand>,
    commands: mpsc::UnboundedReceiver<SettleCommand>,
    /// Counts the channels on which it has consumed.
    epoch: u64,
}

/// Why a channel stopped consuming.
pub(super) enum ConsumeEnd {
    /// The bus is closed.
    Closed,
    /// The broker ended the consumer: the queue was deleted or moved.
    Cancelled,
    /// The queue must be consumed anew, with another prefetch.
    PrefetchChanged,
    Failed(lapin::Error),
}

impl QueueConsumer {
    pub(super) fn new(state: Rc<AmqpState>, source: Source) -> QueueConsumer {
        let (command_sender, commands) = mpsc::unbounded_channel();
        QueueConsumer { state, source, command_sender, commands, epoch: 0 }
    }

    /// Returns the prefetch to consume with.
    pub(super) fn prefetch(&self) -> u16 {
        match &self.source {
            Source::Replies => self.state.settings.prefetch,
            Source::Calls(_, budget) => budget.prefetch(),
        }
    }

    /// Returns whether it has consumed before.
    pub(super) fn has_consumed(&self) -> bool {
        self.epoch > 0
    }

    /// Consumes until the channel is useless. After that its deliveries are void.
    pub(super) async fn serve(
        &mut self,
        channel: &Channel,
        deliveries: lapin::Consumer,
        flow: Option<&Arc<DeliveryFlow>>,
        phases: &mut watch::Receiver<ShutdownPhase>,
    ) -> ConsumeEnd {
        self.epoch += 1;
        let ended = self.consume(channel, deliveries, flow, phases).await;
        (self.command_sender, self.commands) = mpsc::unbounded_channel();
        ended
    }

    async fn consume(
        &mut self,
        channel: &Channel,
        mut deliveries: lapin::Consumer,
        flow: Option<&Arc<DeliveryFlow>>,
        phases: &mut watch::Receiver<ShutdownPhase>,
    ) -> ConsumeEnd {
        let mut window = AckWindow::new(usize::from(self.state.settings.prefetch) / 4);
        let mut early_acks = tokio::time::interval(EARLY_ACK_INTERVAL);
        let mut pace = DeliveryPacer::new(self.state.settings.linger);
        let mut restore_interval = tokio::time::interval(PREFETCH_RESTORE_INTERVAL);
        restore_interval.reset();
        loop {
            let sent = tokio::select! {
                () = wait_for_phase(phases, ShutdownPhase::StopConsuming) => {
                    self.drain(channel, &deliveries, &mut window).await;
                    return ConsumeEnd::Closed;
                }
                delivery = async { pace.wait().await; deliveries.next().await } => {
                    let delivered =
                        self.deliver_burst(delivery, &mut deliveries, flow, &mut window);
                    delivered.map(|count| pace.record(count, count < DELIVERIES_PER_TURN))
                }
                Some(command) = self.commands.recv() => {
                    self.settle(command, channel, &mut window).map_err(ConsumeEnd::Failed)
                }
                _ = restore_interval.tick(), if window.unsettled() == 0 => {
                    self.restore_prefetch().map_or(Ok(()), Err)
                }
                _ = early_acks.tick(), if window.has_pending_acks() => {
                    let mut answers = Vec::new();
                    window.flush(true, &mut answers);
                    send_acks(channel, &answers).map_err(ConsumeEnd::Failed)
                }
            };
            if let Err(ended) = sent {
                if matches!(ended, ConsumeEnd::PrefetchChanged) {
                    self.flush_acks(channel, &mut window);
                }
                return ended;
            }
        }
    }

    /// Ends consuming if the prefetch was reduced, so that the queue is consumed with the whole
    /// prefetch again.
    fn restore_prefetch(&mut self) -> Option<ConsumeEnd> {
        let Source::Calls(_, budget) = &mut self.source else { return None };
        budget.is_reduced().then(|| {
            budget.restore_prefetch();
            ConsumeEnd::PrefetchChanged
        })
    }

    /// Sends all acks that the broker is owed.
    fn flush_acks(&mut self, channel: &Channel, window: &mut AckWindow) {
        let mut answers = Vec::new();
        window.flush(true, &mut answers);
        // Deliveries whose acks are not sent are redelivered.
        let _ = send_acks(channel, &answers);
    }

    /// Delivers this message and some of those that have arrived already. Returns how many they
    /// were.
    fn deliver_burst(
        &mut self,
        first: Option<lapin::Result<lapin::message::Delivery>>,
        deliveries: &mut lapin::Consumer,
        flow: Option<&Arc<DeliveryFlow>>,
        window: &mut AckWindow,
    ) -> Result<u32, ConsumeEnd> {
        let mut next = first;
        for count in 1..=DELIVERIES_PER_TURN {
            match next {
                None => return Err(ConsumeEnd::Cancelled),
                Some(Err(error)) => return Err(ConsumeEnd::Failed(error)),
                Some(Ok(delivery)) => {
                    fail_point("amqp::deliver").map_err(ConsumeEnd::Failed)?;
                    self.deliver(delivery, flow, window)?;
                }
            }
            // A message that is taken from the stream must be delivered, so the last round takes
            // none.
            if count == DELIVERIES_PER_TURN {
                break;
            }
            let Some(following) = deliveries.next().now_or_never() else { return Ok(count) };
            next = following;
        }
        Ok(DELIVERIES_PER_TURN)
    }

    fn quarantine(
        &self,
        unreadable: UnreadableContent,
        delivery: lapin::message::Delivery,
        settlement: Settlement,
    ) {
        let budget = &self.state.quarantine_budget;
        let Some(permit) = budget.try_acquire(delivery.data.len()) else {
            return budget.defer(settlement.into());
        };
        let queue = match &self.source {
            Source::Replies => self.state.settings.reply_queue.as_str().into(),
            Source::Calls(queue, _) => queue.clone(),
        };
        let settlement = settlement.with_guard(Some(permit));
        let delivery = parse_reply(delivery, settlement, self.state.address.user());
        // The receiver is gone only if the bus is. The delivery is requeued then.
        let _ = self.state.quarantine.send(QuarantineRequest { queue, unreadable, delivery });
    }

    fn deliver(
        &mut self,
        delivery: lapin::message::Delivery,
        flow: Option<&Arc<DeliveryFlow>>,
        window: &mut AckWindow,
    ) -> Result<(), ConsumeEnd> {
        window.record_delivery(delivery.delivery_tag);
        let permit = flow.map(|flow| flow.acquire(delivery.data.len()));
        let settlement =
            Settlement::new(delivery.delivery_tag, self.epoch, self.command_sender.clone());
        if let Some(unreadable) = find_unreadable(&delivery) {
            self.quarantine(unreadable, delivery, settlement);
            return Ok(());
        }
        let manager = self.state.address.user();
        let event = match &mut self.source {
            Source::Replies => {
                BusEvent::Reply(parse_reply(delivery, settlement.with_guard(permit), manager))
            }
            Source::Calls(queue, budget) => {
                let is_alone = window.unsettled() <= 1;
                let CallAdmission::Admitted(call_permit) =
                    budget.admit(delivery.data.len(), is_alone)
                else {
                    tracing::info!(
                        %queue,
                        bytes = delivery.data.len(),
                        prefetch = budget.prefetch(),
                        "calls wait that are large: the queue is consumed with a smaller prefetch"
                    );
                    return Err(ConsumeEnd::PrefetchChanged);
                };
                let delivery = parse_call(delivery, settlement.with_guard(call_permit), manager);
                BusEvent::Call { queue: queue.clone(), delivery }
            }
        };
        (self.state.sink)(event);
        Ok(())
    }

    /// Applies this command and all others that are ready, then sends the acks.
    fn settle(
        &mut self,
        first: SettleCommand,
        channel: &Channel,
        window: &mut AckWindow,
    ) -> lapin::Result<()> {
        let mut answers = Vec::new();
        let mut next = Some(first);
        while let Some(command) = next {
            // Deliveries of an earlier connection were requeued when that was lost.
            if command.epoch == self.epoch {
                window.settle(command.tag, command.disposition, &mut answers);
            }
            next = self.commands.try_recv().ok();
        }
        window.flush(false, &mut answers);
        send_acks(channel, &answers)
    }

    /// Stops consuming, and waits a short time until the open deliveries are settled.
    async fn drain(
        &mut self,
        channel: &Channel,
        deliveries: &lapin::Consumer,
        window: &mut AckWindow,
    ) {
        let settling = async {
            channel.basic_cancel(deliveries.tag(), BasicCancelOptions::default()).await?;
            while window.unsettled() > 0 {
                let Some(command) = self.commands.recv().await else { break };
                self.settle(command, channel, window)?;
            }
            lapin::Result::Ok(())
        };
        match tokio::time::timeout(SETTLE_TIMEOUT, settling).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(
                error = self.state.address.explain(&error),
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
        let _ = send_acks(channel, &answers);
    }
}

/// Hands acks to the library without waiting until they are written. Deliveries whose acks are
/// never written are redelivered, and a closed channel is noticed where deliveries are taken.
fn send_acks(channel: &Channel, answers: &[Acknowledgement]) -> lapin::Result<()> {
    for answer in answers {
        fail_point("amqp::ack")?;
        let sent = match answer {
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
        sent.unwrap_or(Ok(()))?;
    }
    Ok(())
}
