//! Explains why a step does not move whose message went to a Kafka topic. A topic shows how far its
//! workers have committed, and who they are, but not who has which message.

use crate::settings::KafkaSection;
use bus::QueueStatus;

/// Where a message most likely is.
pub(super) enum MessageLocation {
    /// On its way to the topic.
    Sending,
    /// In the topic, with no worker to take it.
    WithoutWorker,
    /// With a worker, or behind messages that workers have.
    WithWorkers,
    /// The brokers do not tell.
    Unknown,
}

/// A step whose message went to a topic: its name, its queue, when it times out, and whether the
/// brokers have confirmed the message.
pub(super) struct TopicStep<'a> {
    pub(super) name: &'a str,
    pub(super) queue: &'a str,
    pub(super) timeout: &'a str,
    pub(super) is_confirmed: bool,
}

impl TopicStep<'_> {
    /// Locates the message, and explains what is known about it.
    pub(super) fn locate(
        &self,
        section: &KafkaSection,
        found: QueueStatus,
    ) -> (MessageLocation, String) {
        let TopicStep { name, queue, timeout, is_confirmed } = self;
        let (topic, group) = (section.topic(queue), section.group(queue));
        match found {
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
            // No topic is a web service.
            QueueStatus::Endpoint { .. } => {
                (MessageLocation::Unknown, format!("{topic} is a web service"))
            }
        }
    }
}
