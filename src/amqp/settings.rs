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
    /// The addresses of the broker's nodes, `amqp://user:password@host:port/vhost` or `amqps://`,
    /// in the order in which they are tried.
    pub servers: Vec<String>,
    /// The virtual host; `None` for the one in the address.
    pub vhost: Option<String>,
    /// The addresses of the broker's management API, `http://user:password@host:port`, in the order
    /// in which they are tried; empty if it is not used.
    pub management: Vec<String>,
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
    /// Whether another consumer of the reply queue is waited for from the start, instead of
    /// stopping the process: the bus was added to a running process, or the journal is in a
    /// database, which alone says which process is the manager of this name. The other one is then
    /// its dead predecessor, of which the broker does not know yet.
    pub waits_for_consumer: bool,
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
        waits_for_consumer: bool,
    ) -> AmqpSettings {
        AmqpSettings {
            servers: section.server.to_texts(),
            vhost: (!vhost.is_empty()).then(|| vhost.to_owned()),
            management: section.management.to_texts(),
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
            waits_for_consumer,
        }
    }
}

impl fmt::Debug for AmqpSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpSettings")
            .field("servers", &mask_all(&self.servers))
            .field("vhost", &self.vhost)
            .field("management", &mask_all(&self.management))
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
            .field("waits_for_consumer", &self.waits_for_consumer)
            .finish()
    }
}

fn mask_all(addresses: &[String]) -> Vec<String> {
    addresses.iter().map(|address| mask_credentials(address)).collect()
}

/// An invalid setting. The message begins with the name of the setting in its section.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AmqpError {
    /// The broker's address is invalid.
    #[error(
        "server{entry} {address:?} is not an address of a broker: {reason}; expected \
         amqp://user:password@host:port/vhost or amqps://…, with the characters / ? # @ : of a \
         user name or password written %2F %3F %23 %40 %3A"
    )]
    Address {
        /// Which entry of a list it is, as text between two words; empty if it is alone.
        entry: String,
        /// The address, without credentials.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The address of the management API is invalid.
    #[error(
        "management{entry} {address:?} is not an address of a management API: {reason}; expected \
         http://user:password@host:15672"
    )]
    Management {
        /// Which entry of a list it is, as text between two words; empty if it is alone.
        entry: String,
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

impl AmqpError {
    /// Names the entry of a list in the error about its address. `position` counts from 0.
    pub(super) fn of_entry(mut self, position: usize, count: usize) -> AmqpError {
        match &mut self {
            AmqpError::Address { entry, .. } | AmqpError::Management { entry, .. } if count > 1 => {
                *entry = format!(", entry {} of {count},", position + 1);
            }
            AmqpError::Address { .. } | AmqpError::Management { .. } | AmqpError::ReplyQueue(_) => {
            }
        }
        self
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns valid settings.
    pub(crate) fn settings() -> AmqpSettings {
        AmqpSettings {
            servers: vec!["amqp://me:secret@host:5672/v".to_owned()],
            vhost: None,
            management: vec!["http://me:secret@host:15672".to_owned()],
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
            waits_for_consumer: false,
        }
    }
}
