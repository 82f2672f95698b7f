//! The settings of a bus over AMQP, and the errors in them that prevent any connection.

use super::credentials::mask_credentials;
use crate::section::{AmqpSection, REPLY_QUEUE_BYTES_MAX, ReplyQueueType, UnreadableMessages};
use base::trust::Authorities;
use bus::ServedQueues;
use engine::QueueDeclaration;
use std::fmt;
use std::time::Duration;

/// The settings of a bus over AMQP.
#[derive(Clone)]
pub struct AmqpSettings {
    /// `amqp://user:password@host:port/vhost`, or `amqps://`.
    pub server: String,
    /// A virtual host that replaces the one in the address.
    pub vhost: Option<String>,
    /// The broker's management API, `http://user:password@host:port`; empty if there is none.
    pub management: String,
    /// The queue that workers reply to.
    pub reply_queue: String,
    /// The type with which the reply queue is declared if it does not exist yet.
    pub reply_queue_type: ReplyQueueType,
    /// How worker queues are declared of which nothing else is known.
    pub declaration: QueueDeclaration,
    /// What happens to messages that cannot be read.
    pub unreadable: UnreadableMessages,
    /// The most unsettled deliveries.
    pub prefetch: u16,
    /// How long deliveries wait for more of them under load.
    pub linger: Duration,
    /// The most bytes of unsettled replies. One more reply is taken than fits.
    pub replies_bytes_max: usize,
    /// The most published messages that are not confirmed.
    pub unconfirmed_max: usize,
    /// The most bytes of the bodies of these. One more message is published than fits.
    pub unconfirmed_bytes_max: usize,
    /// The pause before the first attempt to reconnect.
    pub reconnect_min: Duration,
    /// The longest pause between two attempts.
    pub reconnect_max: Duration,
    /// The interval of heartbeats, in whole seconds.
    pub heartbeat: Duration,
    /// The queues that the bus serves. After each reconnect it checks the worker queues, and those
    /// published to.
    pub served: ServedQueues,
    /// The certificate authorities that are trusted.
    pub authorities: Authorities,
    /// Whether the process already ran without this bus. A reply queue with another consumer does
    /// not stop the process then.
    pub is_added_later: bool,
}

impl AmqpSettings {
    /// Returns these settings with other trusted authorities.
    pub fn with_authorities(self, authorities: Authorities) -> AmqpSettings {
        AmqpSettings { authorities, ..self }
    }

    /// Creates the settings of a bus from their section, for a virtual host; if empty, the one of
    /// the address.
    pub fn from_section(
        section: &AmqpSection,
        vhost: &str,
        served: ServedQueues,
        is_added_later: bool,
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
            is_added_later,
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
            .field("joins", &self.is_added_later)
            .finish()
    }
}

/// Why these settings can never connect. The text begins with the name of the setting in its
/// section.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AmqpError {
    /// The broker's address.
    #[error(
        "server {address:?} is no address of a broker: {why}; expected \
         amqp://user:password@host:port/vhost or amqps://…, with the characters / ? # @ : of a \
         user name or password written %2F %3F %23 %40 %3A"
    )]
    Address {
        /// The address, without credentials.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// The address of the management API.
    #[error(
        "management {address:?} is no address of a management API: {why}; expected \
         http://user:password@host:15672"
    )]
    Management {
        /// The address, without credentials.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// The reply queue's name.
    #[error(
        "reply_queue has {0} bytes, expected 1 to {REPLY_QUEUE_BYTES_MAX}: with .unreadable \
         appended it names another queue"
    )]
    ReplyQueue(usize),
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

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
            is_added_later: false,
        }
    }
}
