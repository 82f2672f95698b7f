//! The section of the settings file for an AMQP bus.

use base::values::{DurationSetting, ServerAddresses, deserialize_choice};
use engine::{QueueArguments, QueueDeclaration, QueueType, check_argument};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::time::Duration;

/// What is appended to the name of the reply queue to name the quarantine queue.
const QUARANTINE_SUFFIX: &str = ".unreadable";

/// The longest name of a queue in AMQP, in bytes.
const QUEUE_BYTES_MAX: usize = 255;

/// The longest name of a reply queue, in bytes. It leaves space for the suffix of the quarantine
/// queue.
pub(crate) const REPLY_QUEUE_BYTES_MAX: usize = QUEUE_BYTES_MAX - QUARANTINE_SUFFIX.len();

/// The lower bound of `lost_after`. The setting should be at least six times the interval at which
/// the broker collects statistics, which is 5 seconds by default.
const LOST_AFTER_MIN: Duration = Duration::from_secs(3);

/// Returns the name of the quarantine queue.
pub fn quarantine_queue(reply_queue: &str) -> String {
    format!("{reply_queue}{QUARANTINE_SUFFIX}")
}

/// The section `amqp`, or the section of an AMQP bus in `buses`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct AmqpSection {
    pub server: ServerAddresses,
    pub management: ServerAddresses,
    pub reply_queue: String,
    pub reply_queue_type: ReplyQueueType,
    pub queue_type: QueueTypeSetting,
    pub queue_arguments: QueueArguments,
    pub unreadable: UnreadableMessages,
    pub prefetch: u16,
    pub linger: DurationSetting,
    pub replies_bytes_max: usize,
    pub unconfirmed_max: usize,
    pub unconfirmed_bytes_max: usize,
    pub reconnect_min: DurationSetting,
    pub reconnect_max: DurationSetting,
    pub heartbeat: DurationSetting,
    pub replies_first: DurationSetting,
    pub lost_after: DurationSetting,
    pub redispatch_lost: bool,
}

impl AmqpSection {
    /// Returns whether the section configures a broker.
    pub fn has_server(&self) -> bool {
        !self.server.is_empty()
    }

    /// Returns the default declaration of worker queues.
    pub fn declaration(&self) -> QueueDeclaration {
        let QueueTypeSetting(kind) = self.queue_type;
        let arguments = (!self.queue_arguments.is_empty()).then(|| self.queue_arguments.clone());
        QueueDeclaration { kind, arguments }
    }

    /// Checks the section. `path` is its path in the settings, such as `amqp`.
    ///
    /// # Errors
    ///
    /// Returns an error if a setting is invalid. It names the setting and the expected value.
    pub fn check(&self, path: &str) -> Result<(), String> {
        let AmqpSection { heartbeat, reconnect_min, reconnect_max, lost_after, .. } = self;
        if self.reply_queue.is_empty() || self.reply_queue.len() > REPLY_QUEUE_BYTES_MAX {
            return Err(format!("{path}.reply_queue must have 1 to {REPLY_QUEUE_BYTES_MAX} bytes"));
        }
        for (name, value) in &self.queue_arguments {
            let key = format!("{path}.queue_type");
            if let Some(error) = check_argument(name, value, &key) {
                return Err(format!("{path}.queue_arguments: {error}"));
            }
        }
        if let Some(error) = self.declaration().check_consistency() {
            return Err(format!("{path}.queue_arguments: {error}"));
        }
        if heartbeat.0.subsec_nanos() > 0
            || !(1..=u64::from(u16::MAX)).contains(&heartbeat.0.as_secs())
        {
            return Err(format!(
                "{path}.heartbeat is {heartbeat}, expected whole seconds, 1s to {}s",
                u16::MAX
            ));
        }
        if reconnect_min.0 > reconnect_max.0 {
            return Err(format!(
                "{path}.reconnect_min is {reconnect_min}, expected at most {path}.reconnect_max, \
                 which is {reconnect_max}"
            ));
        }
        if lost_after.0 < LOST_AFTER_MIN {
            return Err(format!(
                "{path}.lost_after is {lost_after}, expected at least {}",
                DurationSetting(LOST_AFTER_MIN)
            ));
        }
        if self.redispatch_lost && self.management.is_empty() {
            return Err(format!(
                "{path}.redispatch_lost needs the management API, which alone reports what a \
                 queue holds: set {path}.management"
            ));
        }
        for (name, value) in [
            ("prefetch", u64::from(self.prefetch)),
            ("replies_bytes_max", self.replies_bytes_max as u64),
            ("unconfirmed_max", self.unconfirmed_max as u64),
            ("unconfirmed_bytes_max", self.unconfirmed_bytes_max as u64),
        ] {
            if value == 0 {
                return Err(format!("{path}.{name} is 0, expected at least 1"));
            }
        }
        Ok(())
    }
}

/// The type with which worker queues are declared; `None` if it is not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueTypeSetting(pub Option<QueueType>);

impl Serialize for QueueTypeSetting {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.map_or("", QueueType::name))
    }
}

impl<'de> Deserialize<'de> for QueueTypeSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let choices = [
            ("", QueueTypeSetting(None)),
            ("classic", QueueTypeSetting(Some(QueueType::Classic))),
            ("quorum", QueueTypeSetting(Some(QueueType::Quorum))),
        ];
        deserialize_choice(deserializer, &choices, "classic or quorum, or nothing")
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
    /// They are moved to the quarantine queue, `<amqp.reply_queue>.unreadable`.
    Keep,
    /// They are dropped.
    Drop,
}

impl<'de> Deserialize<'de> for ReplyQueueType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_choice(
            deserializer,
            &[("classic", ReplyQueueType::Classic), ("quorum", ReplyQueueType::Quorum)],
            "classic or quorum",
        )
    }
}

impl<'de> Deserialize<'de> for UnreadableMessages {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_choice(
            deserializer,
            &[("keep", UnreadableMessages::Keep), ("drop", UnreadableMessages::Drop)],
            "keep or drop",
        )
    }
}
