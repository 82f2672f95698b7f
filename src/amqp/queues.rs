//! Checks whether queues exist, and declares them. It does so concurrently, on a few channels of
//! its own, for checking a missing queue closes the channel.

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

/// How many queues are checked concurrently.
const CHANNELS_MAX: usize = 16;

/// The result of checking or declaring a queue.
#[derive(Debug)]
pub enum QueueCheck {
    /// It exists, with whatever arguments.
    Exists {
        /// How many consumers it has.
        consumers: u32,
        /// How many messages wait in it.
        messages: u32,
    },
    /// It does not exist.
    Missing,
    /// It exists as an exclusive queue of another connection.
    Exclusive,
    /// The broker cannot tell or does not allow it, for this reason of its own.
    Refused(String),
    /// The connection or channel was lost.
    Lost(lapin::Error),
}

/// Checks and declares queues on one connection.
pub struct QueueDeclarer {
    connection: Rc<Connection>,
    idle_channels: RefCell<Vec<Channel>>,
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

    /// Declares `queue`. A queue that exists with other properties counts as existing: it is used
    /// as it is.
    pub async fn declare(&self, queue: &str, properties: QueueProperties) -> QueueCheck {
        let QueueProperties { durable, auto_delete, arguments } = properties;
        let options =
            QueueDeclareOptions { durable, auto_delete, ..QueueDeclareOptions::default() };
        self.send_declare(queue, options, arguments).await
    }

    /// Checks whether the reply queue exists, and declares it if it is missing.
    pub(super) async fn ensure_reply_queue(&self, settings: &AmqpSettings) -> QueueCheck {
        let found = self.check(&settings.reply_queue).await;
        if !matches!(found, QueueCheck::Missing) {
            return found;
        }
        tracing::info!(
            queue = settings.reply_queue,
            kind = ?settings.reply_queue_type,
            "declaring the reply queue"
        );
        let durable =
            |arguments: FieldTable| QueueProperties { arguments, ..QueueProperties::default() };
        let text = |text: &str| AMQPValue::LongString(LongString::from(text));
        let mut arguments = FieldTable::default();
        match settings.reply_queue_type {
            ReplyQueueType::Classic => {
                arguments.insert("x-queue-type".into(), text("classic"));
                self.declare(&settings.reply_queue, durable(arguments)).await
            }
            ReplyQueueType::Quorum => {
                arguments.insert("x-queue-type".into(), text("quorum"));
                arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
                let mut unlimited = arguments.clone();
                unlimited.insert("x-delivery-limit".into(), AMQPValue::LongInt(-1));
                match self.declare(&settings.reply_queue, durable(unlimited)).await {
                    // Brokers before 4.0 have no limit by default, and no value that means
                    // "unlimited".
                    QueueCheck::Refused(broker_text)
                        if broker_text.contains("x-delivery-limit") =>
                    {
                        self.declare(&settings.reply_queue, durable(arguments)).await
                    }
                    found @ (QueueCheck::Exists { .. }
                    | QueueCheck::Missing
                    | QueueCheck::Exclusive
                    | QueueCheck::Refused(_)
                    | QueueCheck::Lost(_)) => found,
                }
            }
        }
    }

    /// Declares `queue` once `journaled` is answered or dropped and no policy is being set; see
    /// [`QueueDeclarer::declare`].
    pub(super) async fn declare_after(
        &self,
        queue: &str,
        properties: QueueProperties,
        journaled: oneshot::Receiver<()>,
        policy_lock: &PolicyLock,
    ) -> QueueCheck {
        // If the sender was dropped, there is nothing to wait for.
        let _ = journaled.await;
        let _guard = policy_lock.lock_for_declare().await;
        self.declare(queue, properties).await
    }

    async fn send_declare(
        &self,
        queue: &str,
        options: QueueDeclareOptions,
        arguments: FieldTable,
    ) -> QueueCheck {
        // Nobody closes the semaphore, so there is no error.
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

    async fn acquire_channel(&self) -> lapin::Result<Channel> {
        let idle =
            self.idle_channels.borrow_mut().pop().filter(|channel| channel.status().connected());
        match idle {
            Some(channel) => Ok(channel),
            None => self.connection.create_channel().await,
        }
    }
}

#[allow(clippy::wildcard_enum_match_arm, reason = "whatever else the broker says is a refusal")]
fn check_from_error(error: &lapin::Error, passive: bool) -> QueueCheck {
    match channel_error(error) {
        // The home node of a queue may be down. Its messages are not lost then.
        Some((AMQPSoftError::NOTFOUND, broker_text)) if broker_text.contains("inaccessible") => {
            QueueCheck::Refused(broker_text.to_owned())
        }
        Some((AMQPSoftError::NOTFOUND, _)) if passive => QueueCheck::Missing,
        Some((AMQPSoftError::RESOURCELOCKED, _)) => QueueCheck::Exclusive,
        // Only an existing queue can have other arguments.
        Some((AMQPSoftError::PRECONDITIONFAILED, broker_text))
            if broker_text.contains("inequivalent arg") =>
        {
            QueueCheck::Exists { consumers: 0, messages: 0 }
        }
        Some((_, broker_text)) => QueueCheck::Refused(broker_text.to_owned()),
        None => QueueCheck::Lost(error.clone()),
    }
}

/// Converts to a short string of the protocol.
#[allow(
    clippy::expect_used,
    reason = "definitions and settings with longer names are not loaded, and an empty name would \
              send a message elsewhere"
)]
pub fn short_string(text: impl Into<String>) -> ShortString {
    ShortString::try_new(text.into()).expect("a text of at most 255 bytes")
}

/// A queue by name, with the result of its check.
pub(super) type CheckedQueue = (Arc<str>, QueueCheck);
