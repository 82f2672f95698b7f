//! Explains what a step waits for after its message was sent to a Kafka topic. The brokers report
//! the members of a consumer group and its committed offsets, but not which member has which
//! message.

use crate::settings::KafkaSection;
use bus::QueueStatus;

/// Where a message most likely is.
pub(super) enum MessageLocation {
    /// On its way to the topic.
    Sending,
    /// In the topic, whose consumer group has no member.
    WithoutWorker,
    /// With a worker, or behind messages that workers have.
    WithWorkers,
    /// The brokers do not report the state of the topic.
    Unknown,
}

/// A step whose message was sent to a topic.
pub(super) struct TopicStep<'a> {
    pub(super) name: &'a str,
    pub(super) queue: &'a str,
    /// The phrase that says when the step times out.
    pub(super) timeout: &'a str,
    /// Whether the brokers have confirmed the message.
    pub(super) is_confirmed: bool,
}

impl TopicStep<'_> {
    /// Locates the message from the status of its topic. Returns the location, and a sentence that
    /// explains what the step waits for.
    pub(super) fn locate(
        &self,
        section: &KafkaSection,
        status: QueueStatus,
    ) -> (MessageLocation, String) {
        let TopicStep { name, queue, timeout, is_confirmed } = self;
        let (topic, group) = (section.topic(queue), section.group(queue));
        match status {
            QueueStatus::Exists { .. } if !is_confirmed => (
                MessageLocation::Sending,
                format!(
                    "on its way: the brokers have not confirmed the message of step \"{name}\" to \
                     the topic {topic} yet; the manager keeps it, and sends it again until then"
                ),
            ),
            QueueStatus::Exists { consumers: 0, messages, .. } => (
                MessageLocation::WithoutWorker,
                format!(
                    "no worker of the group {group} is there: start one for step \"{name}\" on the \
                     topic {topic}, of which the group has {messages} messages still to commit; \
                     {timeout}"
                ),
            ),
            QueueStatus::Exists { consumers, messages: 0, .. } => (
                MessageLocation::WithWorkers,
                format!(
                    "the {consumers} workers of the group {group} have committed all of the \
                     topic {topic}: the reply of step \"{name}\" is on its way, or its message was \
                     passed over; {timeout}"
                ),
            ),
            QueueStatus::Exists { consumers, messages, .. } => (
                MessageLocation::WithWorkers,
                format!(
                    "the {consumers} workers of the group {group} have {messages} messages of the \
                     topic {topic} still to commit; that of step \"{name}\" is with one of them, \
                     or waits; {timeout}"
                ),
            ),
            QueueStatus::Missing => (
                MessageLocation::WithoutWorker,
                format!("the topic {topic} of step \"{name}\" is missing: it is created soon"),
            ),
            QueueStatus::Unknown(reason) => (
                MessageLocation::Unknown,
                format!(
                    "step \"{name}\" waits for a reply to its message in the topic {topic}, about \
                     which the brokers tell nothing: {reason}"
                ),
            ),
            // This cannot happen: only the queues of push buses have this status.
            QueueStatus::Endpoint { .. } => {
                (MessageLocation::Unknown, format!("{topic} is a web service"))
            }
        }
    }
}
