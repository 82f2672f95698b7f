//! Consumes one queue: passes its deliveries to the manager, and settles them with the broker.

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

/// The interval at which acks are sent that wait behind an unsettled delivery.
const EARLY_ACK_INTERVAL: Duration = Duration::from_millis(500);

/// How long closing waits until deliveries are settled. Those still unsettled are redelivered.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);

/// The interval at which a reduced prefetch is restored, if no delivery is unsettled.
const PREFETCH_RESTORE_INTERVAL: Duration = Duration::from_secs(60);

/// The most deliveries in a burst. Settlements are handled between bursts.
const DELIVERIES_PER_TURN: u32 = 64;

/// Pending acks may take up to this part of the prefetch: a quarter. Above that they are sent one
/// by one, so that the broker sends further deliveries.
const PENDING_ACKS_DIVISOR: usize = 4;

/// What the messages of a consumed queue are.
pub(super) enum Source {
    /// Replies of workers.
    Replies,
    /// Calls on this workflow queue, with their budget.
    Calls(Arc<str>, CallBudget),
}

/// Consumes one queue, over any number of channels.
pub(super) struct QueueConsumer {
    state: Rc<AmqpState>,
    source: Source,
    /// Cloned into each delivery. Replaced when a channel ends, which makes its deliveries stale.
    command_sender: mpsc::UnboundedSender<SettleCommand>,
    commands: mpsc::UnboundedReceiver<SettleCommand>,
    /// How many channels it has consumed on. It marks the deliveries of each channel.
    epoch: u64,
}

/// Why a channel stopped consuming.
pub(super) enum ConsumeEnd {
    /// The bus is closed, or the queue is no longer served.
    Closed,
    /// The broker cancelled the consumer: the queue was deleted or moved.
    Cancelled,
    /// The queue must be consumed again, with another prefetch.
    PrefetchChanged,
    /// The channel or connection failed.
    Failed(lapin::Error),
}

impl QueueConsumer {
    /// Creates a consumer that has no channel yet.
    pub(super) fn new(state: Rc<AmqpState>, source: Source) -> QueueConsumer {
        let (command_sender, commands) = mpsc::unbounded_channel();
        QueueConsumer { state, source, command_sender, commands, epoch: 0 }
    }

    /// Returns the prefetch with which to consume the queue.
    pub(super) fn prefetch(&self) -> u16 {
        match &self.source {
            Source::Replies => self.state.settings.prefetch,
            Source::Calls(_, budget) => budget.prefetch(),
        }
    }

    /// Returns whether it has consumed on any channel yet.
    pub(super) fn has_consumed(&self) -> bool {
        self.epoch > 0
    }

    /// Consumes on a channel until consuming ends. After that, its deliveries can no longer be
    /// settled, and the broker redelivers them. `flow` counts replies in the delivery budget;
    /// `None` for calls, which have their own budget.
    pub(super) async fn serve(
        &mut self,
        channel: &Channel,
        deliveries: lapin::Consumer,
        flow: Option<&Arc<DeliveryFlow>>,
        phases: &mut watch::Receiver<ShutdownPhase>,
    ) -> ConsumeEnd {
        self.epoch += 1;
        let end = self.consume(channel, deliveries, flow, phases).await;
        (self.command_sender, self.commands) = mpsc::unbounded_channel();
        end
    }

    /// Delivers and settles messages until consuming ends.
    async fn consume(
        &mut self,
        channel: &Channel,
        mut deliveries: lapin::Consumer,
        flow: Option<&Arc<DeliveryFlow>>,
        phases: &mut watch::Receiver<ShutdownPhase>,
    ) -> ConsumeEnd {
        let pending_acks_max = usize::from(self.state.settings.prefetch) / PENDING_ACKS_DIVISOR;
        let mut window = AckWindow::new(pending_acks_max);
        let mut early_ack_interval = tokio::time::interval(EARLY_ACK_INTERVAL);
        let mut pacer = DeliveryPacer::new(self.state.settings.linger);
        let mut restore_interval = tokio::time::interval(PREFETCH_RESTORE_INTERVAL);
        restore_interval.reset();
        loop {
            let result = tokio::select! {
                () = wait_for_phase(phases, ShutdownPhase::StopConsuming) => {
                    self.drain(channel, &deliveries, &mut window).await;
                    return ConsumeEnd::Closed;
                }
                delivery = async { pacer.wait().await; deliveries.next().await } => {
                    self.deliver_burst(delivery, &mut deliveries, flow, &mut window)
                        .map(|count| pacer.record(count, count < DELIVERIES_PER_TURN))
                }
                Some(command) = self.commands.recv() => {
                    self.settle(command, channel, &mut window).map_err(ConsumeEnd::Failed)
                }
                _ = restore_interval.tick(), if window.unsettled() == 0 => {
                    self.restore_prefetch().map_or(Ok(()), Err)
                }
                _ = early_ack_interval.tick(), if window.has_pending_acks() => {
                    let mut acknowledgements = Vec::new();
                    window.flush(true, &mut acknowledgements);
                    send_acks(channel, &acknowledgements).map_err(ConsumeEnd::Failed)
                }
            };
            if let Err(end) = result {
                if matches!(end, ConsumeEnd::PrefetchChanged) {
                    self.flush_acks(channel, &mut window);
                }
                return end;
            }
        }
    }

    /// Restores a reduced prefetch. Returns why consuming must end; `None` if nothing changed.
    fn restore_prefetch(&mut self) -> Option<ConsumeEnd> {
        let Source::Calls(_, budget) = &mut self.source else { return None };
        budget.is_reduced().then(|| {
            budget.restore_prefetch();
            ConsumeEnd::PrefetchChanged
        })
    }

    /// Sends all pending acks.
    fn flush_acks(&mut self, channel: &Channel, window: &mut AckWindow) {
        let mut acknowledgements = Vec::new();
        window.flush(true, &mut acknowledgements);
        // Deliveries whose acks are not sent are redelivered.
        let _ = send_acks(channel, &acknowledgements);
    }

    /// Delivers the first message and those that have arrived already, up to
    /// [`DELIVERIES_PER_TURN`]. Returns their number.
    fn deliver_burst(
        &mut self,
        first_delivery: Option<lapin::Result<lapin::message::Delivery>>,
        deliveries: &mut lapin::Consumer,
        flow: Option<&Arc<DeliveryFlow>>,
        window: &mut AckWindow,
    ) -> Result<u32, ConsumeEnd> {
        let mut next_delivery = first_delivery;
        for count in 1..=DELIVERIES_PER_TURN {
            match next_delivery {
                None => return Err(ConsumeEnd::Cancelled),
                Some(Err(error)) => return Err(ConsumeEnd::Failed(error)),
                Some(Ok(delivery)) => {
                    fail_point("amqp::deliver").map_err(ConsumeEnd::Failed)?;
                    self.deliver(delivery, flow, window)?;
                }
            }
            // A message taken from the stream must be delivered, so the last iteration takes none.
            if count == DELIVERIES_PER_TURN {
                break;
            }
            let Some(delivery) = deliveries.next().now_or_never() else { return Ok(count) };
            next_delivery = delivery;
        }
        Ok(DELIVERIES_PER_TURN)
    }

    /// Passes an unreadable message to the quarantine, or defers it if it does not fit the budget.
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
        let delivery = parse_reply(delivery, settlement, self.state.addresses.user());
        // Sending fails only if the quarantine task has ended. Then the delivery is requeued.
        let _ =
            self.state.quarantine_sender.send(QuarantineRequest { queue, unreadable, delivery });
    }

    /// Passes a delivery to the manager, or to the quarantine.
    ///
    /// # Errors
    ///
    /// Returns [`ConsumeEnd::PrefetchChanged`] if the delivery is a call that is not admitted.
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
        let manager_user = self.state.addresses.user();
        let event = match &mut self.source {
            Source::Replies => {
                BusEvent::Reply(parse_reply(delivery, settlement.with_guard(permit), manager_user))
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
                        "the waiting calls are large: the queue is consumed with a smaller prefetch"
                    );
                    return Err(ConsumeEnd::PrefetchChanged);
                };
                let delivery =
                    parse_call(delivery, settlement.with_guard(call_permit), manager_user);
                BusEvent::Call { queue: queue.clone(), delivery }
            }
        };
        (self.state.sink)(event);
        Ok(())
    }

    /// Applies this command and all others that are ready, then sends the resulting acks.
    fn settle(
        &mut self,
        first_command: SettleCommand,
        channel: &Channel,
        window: &mut AckWindow,
    ) -> lapin::Result<()> {
        let mut acknowledgements = Vec::new();
        let mut next_command = Some(first_command);
        while let Some(command) = next_command {
            // The broker has requeued the deliveries of earlier channels.
            if command.epoch == self.epoch {
                window.settle(command.tag, command.disposition, &mut acknowledgements);
            }
            next_command = self.commands.try_recv().ok();
        }
        window.flush(false, &mut acknowledgements);
        send_acks(channel, &acknowledgements)
    }

    /// Stops consuming, and waits a short time until all deliveries are settled.
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
                %error,
                "unsettled deliveries are redelivered: the channel failed"
            ),
            Err(_) => tracing::warn!(
                unsettled = window.unsettled(),
                "deliveries that were not settled in time are redelivered"
            ),
        }
        self.flush_acks(channel, window);
    }
}

/// Queues acks in lapin without waiting until they are written. The first poll of each future
/// queues it. Deliveries whose acks are not written are redelivered. A closed channel is noticed
/// when deliveries are received.
fn send_acks(channel: &Channel, acknowledgements: &[Acknowledgement]) -> lapin::Result<()> {
    for acknowledgement in acknowledgements {
        fail_point("amqp::ack")?;
        let result = match acknowledgement {
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
        result.unwrap_or(Ok(()))?;
    }
    Ok(())
}
