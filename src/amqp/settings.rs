//! The settings of an AMQP bus, and the errors for invalid ones.

use super::credentials::mask_credentials;
use crate::section::{AmqpSection, REPLY_QUEUE_BYTES_MAX, ReplyQueueType, UnreadableMessages};
use base::trust::Authorities;
use bus::ServedQueues;
use engine::QueueDeclaration;
use std::fmt;
use std::time::Duration;

/// The settings of an AMQP bus.
#[derive(Clone)]
pub struct AmqpSettings {
    /// `amqp://user:password@host:port/vhost`, or `amqps://`.
    pub server: String,
    /// The virtual host; `None` for the one in the address.
    pub vhost: Option<String>,
    /// The address of the broker's management API, `http://user:password@host:port`; empty if it is
    /// not used.
    pub management: String,
    /// The queue that workers reply to.
    pub reply_queue: String,
    /// The type with which the reply queue is declared if it does not exist.
    pub reply_queue_type: ReplyQueueType,
    /// The default declaration of worker queues.
    pub declaration: QueueDeclaration,
    /// What happens to messages that cannot be read.
    pub unreadable: UnreadableMessages,
    /// The most unsettled deliveries of one consumed queue.
    pub prefetch: u16,
    /// How long deliveries are batched under load.
    pub linger: Duration,
    /// The most bytes of unsettled replies. The last reply may exceed it.
    pub replies_bytes_max: usize,
    /// The most unconfirmed messages.
    pub unconfirmed_max: usize,
    /// The most bytes in the bodies of unconfirmed messages. The last message may exceed it.
    pub unconfirmed_bytes_max: usize,
    /// The delay before the first attempt to reconnect.
    pub reconnect_min: Duration,
    /// The longest delay between two attempts.
    pub reconnect_max: Duration,
    /// The interval of heartbeats, in whole seconds.
    pub heartbeat: Duration,
    /// The queues that the bus serves. After each reconnect it checks the worker queues among them,
    /// and all others to which it has published.
    pub served: ServedQueues,
    /// The trusted certificate authorities.
    pub authorities: Authorities,
    /// Whether the bus waits while another process consumes the reply queue, instead of stopping
    /// the process: it was added to a running one, or has taken over from one that still runs.
    pub waits_for_reply_queue: bool,
}

impl AmqpSettings {
    /// Returns these settings with other trusted authorities.
    pub fn with_authorities(self, authorities: Authorities) -> AmqpSettings {
        AmqpSettings { authorities, ..self }
    }

    /// Creates the settings from their section. `vhost` replaces the virtual host of the address
    /// unless it is empty.
    pub fn from_section(
        section: &AmqpSection,
        vhost: &str,
        served: ServedQueues,
        waits_for_reply_queue: bool,
    ) -> AmqpSettings {
        AmqpSettings {
            server: section.server.0.clone(),
            vhost: (!vhost.is_empty()).then(|| vhost.to_owned()),
            management: section.management.0.clone(),
            reply_queue: section.reply_queue.clone(),
            reply_queue_type: section.reply_queue_type,
            declaration: section.declaration(),
            unreadable: section.unreadable,
            prefetch: section.prefetch,
            linger: section.linger.0,
            replies_bytes_max: section.replies_bytes_max,
            unconfirmed_max: section.unconfirmed_max,
            unconfirmed_bytes_max: section.unconfirmed_bytes_max,
            reconnect_min: section.reconnect_min.0,
            reconnect_max: section.reconnect_max.0,
            heartbeat: section.heartbeat.0,
            served,
            authorities: Authorities::default(),
            waits_for_reply_queue,
        }
    }
}

impl fmt::Debug for AmqpSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpSettings")
            .field("server", &mask_credentials(&self.server))
            .field("vhost", &self.vhost)
            .field("management", &mask_credentials(&self.management))
            .field("reply_queue", &self.reply_queue)
            .field("reply_queue_type", &self.reply_queue_type)
            .field("declaration", &self.declaration)
            .field("unreadable", &self.unreadable)
            .field("prefetch", &self.prefetch)
            .field("linger", &self.linger)
            .field("replies_bytes_max", &self.replies_bytes_max)
            .field("unconfirmed_max", &self.unconfirmed_max)
            .field("unconfirmed_bytes_max", &self.unconfirmed_bytes_max)
            .field("reconnect_min", &self.reconnect_min)
            .field("reconnect_max", &self.reconnect_max)
            .field("heartbeat", &self.heartbeat)
            .field("served", &self.served)
            .field("waits_for_reply_queue", &self.waits_for_reply_queue)
            .finish()
    }
}

/// An invalid setting. The message begins with the name of the setting in its section.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AmqpError {
    /// The broker's address is invalid.
    #[error(
        "server {address:?} is not an address of a broker: {reason}; expected \
         amqp://user:password@host:port/vhost or amqps://…, with the characters / ? # @ : of a \
         user name or password written %2F %3F %23 %40 %3A"
    )]
    Address {
        /// The address, without credentials.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The address of the management API is invalid.
    #[error(
        "management {address:?} is not an address of a management API: {reason}; expected \
         http://user:password@host:15672"
    )]
    Management {
        /// The address, without credentials.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The reply queue's name is too long or empty. The field is its length in bytes.
    #[error(
        "reply_queue has {0} bytes, expected 1 to {REPLY_QUEUE_BYTES_MAX}: with .unreadable \
         appended it names another queue"
    )]
    ReplyQueue(usize),
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns valid settings.
    pub(crate) fn settings() -> AmqpSettings {
        AmqpSettings {
            server: "amqp://me:secret@host:5672/v".to_owned(),
            vhost: None,
            management: "http://me:secret@host:15672".to_owned(),
            reply_queue: "replies".to_owned(),
            reply_queue_type: ReplyQueueType::Classic,
            declaration: QueueDeclaration::default(),
            unreadable: UnreadableMessages::Keep,
            prefetch: 100,
            linger: Duration::from_millis(5),
            replies_bytes_max: 1 << 20,
            unconfirmed_max: 100,
            unconfirmed_bytes_max: 1 << 20,
            reconnect_min: Duration::from_secs(1),
            reconnect_max: Duration::from_secs(30),
            heartbeat: Duration::from_secs(30),
            served: ServedQueues::default(),
            authorities: Authorities::default(),
            waits_for_reply_queue: false,
        }
    }
}
