//! Checks whether queues exist, and declares them, concurrently. It uses separate channels,
//! because the broker closes a channel on which a missing queue is checked.

use super::connection::channel_error;
use super::policy_lock::PolicyLock;
use super::queue_properties::QueueProperties;
use super::settings::AmqpSettings;
use crate::section::ReplyQueueType;
use lapin::options::QueueDeclareOptions;
use lapin::protocol::AMQPSoftError;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{Channel, Connection};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{Semaphore, oneshot};

/// The delivery limit of a quorum reply queue: so often no reply comes back. RabbitMQ 4.0 has a
/// limit of 20 without it, and takes -1 for "none"; before 4.0 a message of a queue with -1 is
/// dropped when it comes back for the first time.
pub(super) const DELIVERY_LIMIT_UNREACHABLE: i32 = i32::MAX;

/// The most queues that are checked concurrently, each on its own channel.
const CHANNELS_MAX: usize = 16;

/// The result of checking or declaring a queue.
#[derive(Debug)]
pub enum QueueCheck {
    /// It exists, whatever its properties are.
    Exists {
        /// The number of its consumers; 0 if its properties differ from the declared ones.
        consumers: u32,
        /// The number of its ready messages; 0 if its properties differ from the declared ones.
        messages: u32,
    },
    /// It does not exist.
    Missing,
    /// It exists as an exclusive queue of another connection.
    Exclusive,
    /// It exists, and cannot be used for now, for this reason: the node that has it is away. What
    /// it holds is not lost.
    Unavailable(String),
    /// The broker refuses to check or declare it, for this reason.
    Refused(String),
    /// The connection or channel was lost.
    Lost(lapin::Error),
}

/// The name of a queue, with the result of its check.
pub(super) type CheckedQueue = (Arc<str>, QueueCheck);

/// Checks and declares queues on one connection.
pub struct QueueDeclarer {
    connection: Rc<Connection>,
    /// Open channels for the next checks.
    idle_channels: RefCell<Vec<Channel>>,
    /// Limits the concurrent checks to [`CHANNELS_MAX`].
    permits: Semaphore,
}

impl QueueDeclarer {
    /// Creates a declarer that opens channels on this connection.
    pub fn new(connection: Rc<Connection>) -> Rc<QueueDeclarer> {
        Rc::new(QueueDeclarer {
            connection,
            idle_channels: RefCell::default(),
            permits: Semaphore::new(CHANNELS_MAX),
        })
    }

    /// Checks whether `queue` exists.
    pub async fn check(&self, queue: &str) -> QueueCheck {
        self.send_declare(
            queue,
            QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() },
            FieldTable::default(),
        )
        .await
    }

    /// Declares `queue`. A queue with other properties counts as existing, and is used as it is.
    pub async fn declare(&self, queue: &str, properties: QueueProperties) -> QueueCheck {
        let QueueProperties { durable, auto_delete, arguments } = properties;
        let options =
            QueueDeclareOptions { durable, auto_delete, ..QueueDeclareOptions::default() };
        self.send_declare(queue, options, arguments).await
    }

    /// Checks whether the reply queue exists, and declares it if it is missing.
    pub(super) async fn ensure_reply_queue(&self, settings: &AmqpSettings) -> QueueCheck {
        let check = self.check(&settings.reply_queue).await;
        if !matches!(check, QueueCheck::Missing) {
            return check;
        }
        tracing::info!(
            queue = settings.reply_queue,
            kind = ?settings.reply_queue_type,
            "declaring the reply queue"
        );
        let with_arguments =
            |arguments: FieldTable| QueueProperties { arguments, ..QueueProperties::default() };
        let long_string = |text: &str| AMQPValue::LongString(LongString::from(text));
        let mut arguments = FieldTable::default();
        match settings.reply_queue_type {
            ReplyQueueType::Classic => {
                arguments.insert("x-queue-type".into(), long_string("classic"));
            }
            ReplyQueueType::Quorum => {
                arguments.insert("x-queue-type".into(), long_string("quorum"));
                arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
                arguments.insert(
                    "x-delivery-limit".into(),
                    AMQPValue::LongInt(DELIVERY_LIMIT_UNREACHABLE),
                );
            }
        }
        self.declare(&settings.reply_queue, with_arguments(arguments)).await
    }

    /// Declares `queue` once `journaled` has resolved and no policy is being set; see
    /// [`QueueDeclarer::declare`].
    pub(super) async fn declare_after(
        &self,
        queue: &str,
        properties: QueueProperties,
        journaled: oneshot::Receiver<()>,
        policy_lock: &PolicyLock,
    ) -> QueueCheck {
        // An error means that the sender was dropped. Then there is nothing to wait for.
        let _ = journaled.await;
        let _guard = policy_lock.lock_for_declare().await;
        self.declare(queue, properties).await
    }

    /// Sends `queue.declare`, and converts the result.
    async fn send_declare(
        &self,
        queue: &str,
        options: QueueDeclareOptions,
        arguments: FieldTable,
    ) -> QueueCheck {
        // The semaphore is never closed, so this does not fail.
        let _permit = self.permits.acquire().await;
        let channel = match self.acquire_channel().await {
            Ok(channel) => channel,
            Err(error) => return QueueCheck::Lost(error),
        };
        match channel.queue_declare(short_string(queue), options, arguments).await {
            Ok(declared) => {
                self.idle_channels.borrow_mut().push(channel);
                QueueCheck::Exists {
                    consumers: declared.consumer_count(),
                    messages: declared.message_count(),
                }
            }
            Err(error) => check_from_error(&error, options.passive),
        }
    }

    /// Returns an idle channel, or opens one.
    async fn acquire_channel(&self) -> lapin::Result<Channel> {
        let idle_channel =
            self.idle_channels.borrow_mut().pop().filter(|channel| channel.status().connected());
        match idle_channel {
            Some(channel) => Ok(channel),
            None => self.connection.create_channel().await,
        }
    }
}

/// Explains that the reply queue exists, and cannot be used for now.
pub(super) fn reply_queue_unavailable(queue: &str, broker_text: &str) -> String {
    format!("the reply queue \"{queue}\" waits for the node that has it: {broker_text}")
}

/// Converts the error of a declaration. `is_passive`: the queue was only checked.
#[allow(clippy::wildcard_enum_match_arm, reason = "every other code is a refusal")]
fn check_from_error(error: &lapin::Error, is_passive: bool) -> QueueCheck {
    match channel_error(error) {
        // "home node '…' of durable queue '…' in vhost '…' is down or inaccessible", whether it is
        // checked or declared
        Some((AMQPSoftError::NOTFOUND, broker_text)) if broker_text.contains("inaccessible") => {
            QueueCheck::Unavailable(broker_text.to_owned())
        }
        Some((AMQPSoftError::NOTFOUND, _)) if is_passive => QueueCheck::Missing,
        Some((AMQPSoftError::RESOURCELOCKED, _)) => QueueCheck::Exclusive,
        // The queue exists with other properties. The error carries no counts.
        Some((AMQPSoftError::PRECONDITIONFAILED, broker_text))
            if broker_text.contains("inequivalent arg") =>
        {
            QueueCheck::Exists { consumers: 0, messages: 0 }
        }
        Some((_, broker_text)) => QueueCheck::Refused(broker_text.to_owned()),
        None => QueueCheck::Lost(error.clone()),
    }
}

/// Converts a text to a short string of AMQP.
///
/// # Panics
///
/// Panics if the text is longer than 255 bytes.
#[allow(
    clippy::expect_used,
    reason = "definitions and settings with longer names are not loaded, and a message to an \
              empty name would go to another queue"
)]
pub fn short_string(text: impl Into<String>) -> ShortString {
    ShortString::try_new(text.into()).expect("a text of at most 255 bytes")
}
