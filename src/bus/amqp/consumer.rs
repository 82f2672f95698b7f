//! The consumer: takes deliveries from the reply queue and gives the verdicts on them back to the broker.

use super::acks::{Answer, Window};
use super::connection::{self, Pauses, channel_error, fail_point};
use super::queues::{Found, Queues, short};
use super::{Common, Phase, Side, reached};
use crate::bus::{BusEvent, DeadLetter, Delivery, Settled, Settlement};
use crate::engine::CorrelationId;
use bytes::Bytes;
use futures_util::StreamExt;
use lapin::options::{BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions};
use lapin::protocol::AMQPSoftError;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// How long the first connection of a process waits for another consumer to go: the broker may not have noticed yet that a
/// predecessor was killed.
const PREDECESSOR_GOES_WITHIN: Duration = Duration::from_secs(5);
const PREDECESSOR_PAUSE: Duration = Duration::from_millis(250);

/// How long acks may wait behind a delivery without a verdict.
const EARLY_ACKS_WAIT: Duration = Duration::from_millis(500);

/// How long a closing waits for verdicts on what was delivered; what gets none is delivered again.
const VERDICTS_WITHIN: Duration = Duration::from_secs(3);

const CONSUMER_TAG: &str = "workflow-manager";

/// Consumes until the bus is closed, over any number of connections.
pub(super) async fn run(common: Rc<Common>, mut phases: watch::Receiver<Phase>) {
    let mut pauses = Pauses::new(common.settings.reconnect_min, common.settings.reconnect_max);
    let (settle, verdicts) = mpsc::unbounded_channel();
    let mut consumer = Consumer { common: common.clone(), settle, verdicts, epoch: 0 };
    loop {
        let opened = tokio::select! {
            biased;
            () = reached(&mut phases, Phase::EndConsuming) => break,
            opened = Box::pin(consumer.open()) => opened,
        };
        let end = match opened {
            Ok(session) => {
                let since = Instant::now();
                tracing::info!(server = %common.address, queue = common.settings.reply_queue, "consuming replies");
                common.board.up(Side::Consumer);
                let end = consumer.consume(session, &mut phases).await;
                if since.elapsed() >= common.settings.reconnect_min {
                    pauses.reset();
                }
                end
            }
            Err(end) => end,
        };
        match end {
            End::Closed => break,
            End::Refused(reason) => {
                tracing::error!(server = %common.address, reason, "the reply queue cannot be consumed");
                common.board.down(Side::Consumer, &reason);
                (common.sink)(BusEvent::Refused(reason));
                return;
            }
            End::Lost(reason) => {
                let pause = pauses.next();
                tracing::warn!(server = %common.address, reason, retry_in_ms = pause.as_millis(), "not consuming replies");
                common.board.down(Side::Consumer, &reason);
                tokio::select! {
                    () = reached(&mut phases, Phase::EndConsuming) => break,
                    () = tokio::time::sleep(pause) => {}
                }
            }
        }
    }
    common.board.down(Side::Consumer, "closed");
}

enum End {
    /// The bus is closed.
    Closed,
    /// There is no connection; another attempt may help.
    Lost(String),
    /// Nothing that this process could try again helps.
    Refused(String),
}

struct Consumer {
    common: Rc<Common>,
    settle: mpsc::UnboundedSender<Settled>,
    verdicts: mpsc::UnboundedReceiver<Settled>,
    /// Counts the connections that consumed.
    epoch: u64,
}

struct Session {
    connection: Rc<Connection>,
    channel: Channel,
    deliveries: lapin::Consumer,
}

/// Why a connection does not consume.
enum Obstacle {
    /// Someone else does; how that was seen.
    Taken(String),
    Other(String),
}

impl Consumer {
    async fn open(&self) -> Result<Session, End> {
        let connection = Rc::new(self.common.address.open("replies").await.map_err(End::Lost)?);
        let taken_until = Instant::now() + PREDECESSOR_GOES_WITHIN;
        // Jittered, so that of two processes that gave way to each other one comes first the next time.
        let mut pauses = Pauses::new(PREDECESSOR_PAUSE / 2, PREDECESSOR_PAUSE);
        loop {
            match self.attempt(&connection).await {
                Ok(session) => return Ok(session),
                Err(Obstacle::Other(reason)) => return Err(End::Lost(reason)),
                Err(Obstacle::Taken(how)) => {
                    let queue = &self.common.settings.reply_queue;
                    let reason = format!(
                        "another process consumes the reply queue \"{queue}\" of {} ({how}); stop it, or give this process a reply queue of its own with the setting amqp.reply_queue",
                        self.common.address
                    );
                    if self.epoch > 0 {
                        return Err(End::Lost(reason));
                    }
                    if Instant::now() >= taken_until {
                        return Err(End::Refused(reason));
                    }
                    tokio::time::sleep(pauses.next()).await;
                }
            }
        }
    }

    async fn attempt(&self, connection: &Rc<Connection>) -> Result<Session, Obstacle> {
        let settings = &self.common.settings;
        let queue = settings.reply_queue.as_str();
        let lost = |error: lapin::Error| Obstacle::Other(self.common.address.explain(&error));
        let queues = Queues::new(connection.clone());
        match queues.reply_queue(settings).await {
            Found::There { consumers: 0, .. } => {}
            Found::There { consumers, .. } => return Err(Obstacle::Taken(format!("consumers: {consumers}"))),
            Found::Locked => return Err(Obstacle::Taken("it is an exclusive queue of another connection".to_owned())),
            Found::Missing => return Err(Obstacle::Other(format!("the reply queue \"{queue}\" was deleted while it was being declared"))),
            Found::Refused(said) => return Err(Obstacle::Other(format!("the broker refuses the reply queue \"{queue}\": {said}"))),
            Found::Lost(error) => return Err(lost(error)),
        }
        // A queue with a single active consumer takes no exclusive one: there the count alone must tell.
        for exclusive in [true, false] {
            let channel = connection.create_channel().await.map_err(lost)?;
            channel.basic_qos(settings.prefetch, BasicQosOptions::default()).await.map_err(lost)?;
            let options = BasicConsumeOptions { exclusive, ..BasicConsumeOptions::default() };
            match channel.basic_consume(short(queue), CONSUMER_TAG.into(), options, FieldTable::default()).await {
                // Two processes may have found it free at the same time: then both give way.
                Ok(deliveries) => match queues.look(queue).await {
                    Found::There { consumers, .. } if consumers > 1 => return Err(Obstacle::Taken(format!("consumers: {consumers}"))),
                    Found::Lost(error) => return Err(lost(error)),
                    Found::There { .. } | Found::Missing | Found::Locked | Found::Refused(_) => {
                        return Ok(Session { connection: connection.clone(), channel, deliveries });
                    }
                },
                Err(error) => match channel_error(&error) {
                    Some((AMQPSoftError::ACCESSREFUSED, said)) if said.contains("in exclusive use") => return Err(Obstacle::Taken(said.to_owned())),
                    Some((AMQPSoftError::ACCESSREFUSED, _)) if exclusive => {}
                    _ => return Err(lost(error)),
                },
            }
        }
        Err(Obstacle::Other(format!("the broker does not let this user consume the reply queue \"{queue}\"")))
    }

    async fn consume(&mut self, session: Session, phases: &mut watch::Receiver<Phase>) -> End {
        self.epoch += 1;
        let Session { connection, channel, mut deliveries } = session;
        let mut window = Window::new(usize::from(self.common.settings.prefetch) / 4);
        let mut early_acks = tokio::time::interval(EARLY_ACKS_WAIT);
        loop {
            let sent = tokio::select! {
                () = reached(phases, Phase::EndConsuming) => {
                    self.finish(&channel, &mut window).await;
                    connection::close(&connection).await;
                    return End::Closed;
                }
                delivery = deliveries.next() => match delivery {
                    Some(Ok(delivery)) => fail_point("amqp::deliver").map(|()| self.deliver(delivery, &mut window)),
                    Some(Err(error)) => return End::Lost(self.common.address.explain(&error)),
                    None => {
                        connection::close(&connection).await;
                        return End::Lost("the broker ended the consumer: the reply queue was deleted or moved".to_owned());
                    }
                },
                Some(verdict) = self.verdicts.recv() => self.settle(verdict, &channel, &mut window).await,
                _ = early_acks.tick(), if window.owes() => {
                    let mut answers = Vec::new();
                    window.flush(true, &mut answers);
                    tell(&channel, &answers).await
                }
            };
            if let Err(error) = sent {
                // It may be the channel alone that is gone.
                connection::close(&connection).await;
                return End::Lost(self.common.address.explain(&error));
            }
        }
    }

    fn deliver(&self, delivery: lapin::message::Delivery, window: &mut Window) {
        window.deliver(delivery.delivery_tag);
        let settlement = Settlement::new(delivery.delivery_tag, self.epoch, self.settle.clone());
        (self.common.sink)(BusEvent::Delivered(received(delivery, settlement)));
    }

    /// Takes this verdict and all others that are there already, then tells the broker.
    async fn settle(&mut self, first: Settled, channel: &Channel, window: &mut Window) -> lapin::Result<()> {
        let mut answers = Vec::new();
        let mut next = Some(first);
        while let Some(verdict) = next {
            // The deliveries of an earlier connection went back to the queue with it.
            if verdict.epoch == self.epoch {
                window.settle(verdict.tag, verdict.verdict, &mut answers);
            }
            next = self.verdicts.try_recv().ok();
        }
        window.flush(false, &mut answers);
        tell(channel, &answers).await
    }

    /// Takes no more deliveries, and waits a little for the verdicts on those under way.
    async fn finish(&mut self, channel: &Channel, window: &mut Window) {
        let verdicts = async {
            channel.basic_cancel(CONSUMER_TAG.into(), BasicCancelOptions::default()).await?;
            while window.unsettled() > 0 {
                let Some(verdict) = self.verdicts.recv().await else { break };
                self.settle(verdict, channel, window).await?;
            }
            lapin::Result::Ok(())
        };
        match tokio::time::timeout(VERDICTS_WITHIN, verdicts).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error = self.common.address.explain(&error), "replies under way are delivered again"),
            Err(_) => tracing::warn!(unsettled = window.unsettled(), "replies without a verdict are delivered again"),
        }
        let mut answers = Vec::new();
        window.flush(true, &mut answers);
        // What cannot be told any more is delivered again.
        let _ = tokio::time::timeout(VERDICTS_WITHIN, tell(channel, &answers)).await;
    }
}

async fn tell(channel: &Channel, answers: &[Answer]) -> lapin::Result<()> {
    for answer in answers {
        fail_point("amqp::ack")?;
        match answer {
            Answer::Ack(tag) => channel.basic_ack(*tag, BasicAckOptions { multiple: false }).await?,
            Answer::AckUpTo(tag) => channel.basic_ack(*tag, BasicAckOptions { multiple: true }).await?,
            Answer::Requeue(tag) => channel.basic_nack(*tag, BasicNackOptions { multiple: false, requeue: true }).await?,
        }
    }
    Ok(())
}

fn received(delivery: lapin::message::Delivery, settlement: Settlement) -> Delivery {
    let properties = &delivery.properties;
    let text = |property: &Option<lapin::types::ShortString>| property.as_ref().map(|text| text.as_str().to_owned());
    let (correlation_id, kind) = (text(properties.correlation_id()), text(properties.kind()));
    let dead_letter = properties.headers().as_ref().and_then(dead_letter);
    let told = properties.headers().as_ref().and_then(attempt);
    // A dead letter is a step message of ours, whatever took its headers away.
    let of_dead_letter = || properties.message_id().as_ref().filter(|_| dead_letter.is_some()).and_then(|id| attempt_in(id.as_str()));
    let attempt = told.or_else(of_dead_letter);
    let mut received = Delivery::new(correlation_id, Bytes::from(delivery.data), settlement);
    received.kind = kind;
    received.attempt = attempt;
    received.dead_letter = dead_letter;
    received.redelivered = delivery.redelivered;
    received
}

/// What the header `x-death` says: a list, the latest death first.
pub fn dead_letter(headers: &FieldTable) -> Option<DeadLetter> {
    let AMQPValue::FieldArray(deaths) = headers.inner().get("x-death")? else { return None };
    let AMQPValue::FieldTable(latest) = deaths.as_slice().first()? else { return None };
    let text = |key: &str| match latest.inner().get(key) {
        Some(AMQPValue::LongString(text)) => Some(String::from_utf8_lossy(text.as_bytes()).into_owned()),
        Some(AMQPValue::ShortString(text)) => Some(text.as_str().to_owned()),
        #[allow(clippy::wildcard_enum_match_arm, reason = "no other type of value is a text")]
        _ => None,
    };
    Some(DeadLetter { queue: text("queue")?, reason: text("reason")? })
}

/// What the header `attempt` says: a whole number of any type, or its digits.
#[allow(clippy::wildcard_enum_match_arm, reason = "no other type of value is a whole number or a text")]
fn attempt(headers: &FieldTable) -> Option<u32> {
    match headers.inner().get("attempt")? {
        AMQPValue::ShortShortInt(number) => u32::try_from(*number).ok(),
        AMQPValue::ShortShortUInt(number) => Some(u32::from(*number)),
        AMQPValue::ShortInt(number) => u32::try_from(*number).ok(),
        AMQPValue::ShortUInt(number) => Some(u32::from(*number)),
        AMQPValue::LongInt(number) => u32::try_from(*number).ok(),
        AMQPValue::LongUInt(number) => Some(*number),
        AMQPValue::LongLongInt(number) => u32::try_from(*number).ok(),
        AMQPValue::ShortString(text) => digits(text.as_str()),
        AMQPValue::LongString(text) => digits(std::str::from_utf8(text.as_bytes()).ok()?),
        _ => None,
    }
}

/// The attempt in the id of a step message, `<UUID>:<step>:<attempt>`.
fn attempt_in(message_id: &str) -> Option<u32> {
    let (correlation_id, attempt) = message_id.rsplit_once(':')?;
    correlation_id.parse::<CorrelationId>().ok()?;
    digits(attempt)
}

/// Digits alone: no sign, no space.
fn digits(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapin::types::{LongString, ShortString};

    fn told(value: AMQPValue) -> Option<u32> {
        let mut headers = FieldTable::default();
        headers.insert("attempt".into(), value);
        attempt(&headers)
    }

    #[test]
    fn an_attempt_is_told_by_a_number_of_any_type_or_by_digits() {
        let text = |text: &str| AMQPValue::LongString(LongString::from(text));
        let taken = [
            AMQPValue::ShortShortInt(7),
            AMQPValue::ShortShortUInt(7),
            AMQPValue::ShortInt(7),
            AMQPValue::ShortUInt(7),
            AMQPValue::LongInt(7),
            AMQPValue::LongUInt(7),
            AMQPValue::LongLongInt(7),
            AMQPValue::ShortString(ShortString::from("7")),
            text("7"),
        ];
        taken.into_iter().for_each(|value| assert_eq!(told(value.clone()), Some(7), "{value:?}"));
        let refused = [AMQPValue::LongInt(-1), AMQPValue::LongLongInt(1 << 40), AMQPValue::Double(7.0), AMQPValue::Boolean(true), AMQPValue::Void];
        let texts = ["", "none", "+7", " 7", "7.0", "99999999999"].map(text);
        refused.into_iter().chain(texts).for_each(|value| assert_eq!(told(value.clone()), None, "{value:?}"));
    }

    #[test]
    fn the_id_of_a_step_message_tells_its_attempt() {
        let id = "f557697b-f911-401c-86b7-6d9b62f1f2bb";
        assert_eq!(attempt_in(&format!("{id}:split:12")), Some(12));
        for other in ["", ":", "split:1", &format!("{id}:1"), &format!("{id}:split"), &format!("{id}:split:x"), &format!("{id}:split:")] {
            assert_eq!(attempt_in(other), None, "{other:?}");
        }
    }
}
