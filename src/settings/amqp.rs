//! Settings of the bus over AMQP.

use super::values::one_of;
use super::{ServerAddress, Span};
use serde::{Deserialize, Deserializer, Serialize};
use std::time::Duration;

/// The longest name of a reply queue, in bytes: with `.unreadable` appended it names another queue,
/// and AMQP allows 255.
pub const REPLY_QUEUE_BYTES_MAX: usize = 255 - ".unreadable".len();

/// The shortest `lost_after`: a broker's statistics are up to 5 seconds old unless it is told
/// otherwise.
const LOST_AFTER_MIN: Duration = Duration::from_secs(3);

/// The queue for messages that cannot be read.
pub fn unreadable_queue(reply_queue: &str) -> String {
    format!("{reply_queue}.unreadable")
}

/// Section `amqp`, or a bus of this kind in section `buses`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct AmqpSection {
    pub server: ServerAddress,
    pub management: ServerAddress,
    pub reply_queue: String,
    pub reply_queue_type: ReplyQueueType,
    pub unreadable: UnreadableMessages,
    pub prefetch: u16,
    pub linger: Span,
    pub replies_bytes_max: usize,
    pub unconfirmed_max: usize,
    pub unconfirmed_bytes_max: usize,
    pub reconnect_min: Span,
    pub reconnect_max: Span,
    pub heartbeat: Span,
    pub replies_first: Span,
    pub lost_after: Span,
    pub redispatch_lost: bool,
}

impl AmqpSection {
    /// Whether it has a broker.
    pub fn has_server(&self) -> bool {
        !self.server.0.is_empty()
    }

    /// What is wrong with it; it stands at `place`.
    pub(super) fn validate(&self, place: &str) -> Result<(), String> {
        let AmqpSection { heartbeat, reconnect_min, reconnect_max, lost_after, .. } = self;
        if self.reply_queue.is_empty() || self.reply_queue.len() > REPLY_QUEUE_BYTES_MAX {
            return Err(format!(
                "{place}.reply_queue must have 1 to {REPLY_QUEUE_BYTES_MAX} bytes"
            ));
        }
        if heartbeat.0.subsec_nanos() > 0
            || !(1..=u64::from(u16::MAX)).contains(&heartbeat.0.as_secs())
        {
            return Err(format!(
                "{place}.heartbeat is {heartbeat}, expected whole seconds, 1s to {}s",
                u16::MAX
            ));
        }
        if reconnect_min.0 > reconnect_max.0 {
            return Err(format!(
                "{place}.reconnect_min is {reconnect_min}, expected at most {place}.reconnect_max, \
                 which is {reconnect_max}"
            ));
        }
        if lost_after.0 < LOST_AFTER_MIN {
            return Err(format!(
                "{place}.lost_after is {lost_after}, expected at least {}",
                Span(LOST_AFTER_MIN)
            ));
        }
        if self.redispatch_lost && self.management.0.is_empty() {
            return Err(format!(
                "{place}.redispatch_lost needs the management API, which alone tells what a queue \
                 holds: set {place}.management"
            ));
        }
        for (name, value) in [
            ("prefetch", u64::from(self.prefetch)),
            ("replies_bytes_max", self.replies_bytes_max as u64),
            ("unconfirmed_max", self.unconfirmed_max as u64),
            ("unconfirmed_bytes_max", self.unconfirmed_bytes_max as u64),
        ] {
            if value == 0 {
                return Err(format!("{place}.{name} is 0, expected at least 1"));
            }
        }
        Ok(())
    }
}

/// The types that the reply queue may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplyQueueType {
    /// A classic queue with an exclusive consumer.
    Classic,
    /// A quorum queue with a single active consumer and no delivery limit.
    Quorum,
}

/// What happens to messages whose headers cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum UnreadableMessages {
    /// They go to the queue `<amqp.reply_queue>.unreadable`.
    Keep,
    /// They are dropped.
    Drop,
}

impl<'de> Deserialize<'de> for ReplyQueueType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        one_of(
            deserializer,
            &[("classic", ReplyQueueType::Classic), ("quorum", ReplyQueueType::Quorum)],
            "classic or quorum",
        )
    }
}

impl<'de> Deserialize<'de> for UnreadableMessages {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        one_of(
            deserializer,
            &[("keep", UnreadableMessages::Keep), ("drop", UnreadableMessages::Drop)],
            "keep or drop",
        )
    }
}
