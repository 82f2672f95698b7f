//! Settings of the bus over AMQP.

use super::{ServerAddress, Span, one_of};
use serde::{Deserialize, Deserializer, Serialize};

/// The longest name of a reply queue, in bytes: with `.unreadable` appended it names another queue,
/// and AMQP allows 255.
pub const REPLY_QUEUE_BYTES_MAX: usize = 255 - ".unreadable".len();

/// The queue for messages that cannot be read.
pub fn unreadable_queue(reply_queue: &str) -> String {
    format!("{reply_queue}.unreadable")
}

/// Section `amqp`.
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
