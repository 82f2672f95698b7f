//! Checks whether queues exist, and declares them. It does so concurrently, on a few channels of
//! its own, for checking a missing queue closes the channel.

use super::connection::channel_error;
use super::settings::AmqpSettings;
use super::shapes::Shape;
use super::turns::Turns;
use crate::settings::ReplyQueueType;
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
pub(super) enum Found {
    /// It exists, with whatever arguments.
    There {
        /// How many consumers it has.
        consumers: u32,
        /// How many messages wait in it.
        messages: u32,
    },
    /// It does not exist.
    Missing,
    /// It exists as an exclusive queue of another connection.
    Locked,
    /// The broker cannot tell or does not allow it, for this reason of its own.
    Refused(String),
    /// The connection or channel was lost.
    Lost(lapin::Error),
}

/// Checks and declares queues on one connection.
pub(super) struct Queues {
    connection: Rc<Connection>,
    idle: RefCell<Vec<Channel>>,
    permits: Semaphore,
}

impl Queues {
    pub(super) fn new(connection: Rc<Connection>) -> Rc<Queues> {
        Rc::new(Queues {
            connection,
            idle: RefCell::default(),
            permits: Semaphore::new(CHANNELS_MAX),
        })
    }

    /// Checks whether `queue` exists.
    pub(super) async fn look(&self, queue: &str) -> Found {
        self.ask(
            queue,
            QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() },
            FieldTable::default(),
        )
        .await
    }

    /// Declares `queue`. A queue that exists with other properties counts as existing: it is used
    /// as it is.
    pub(super) async fn declare(&self, queue: &str, shape: Shape) -> Found {
        let Shape { durable, auto_delete, arguments } = shape;
        let options =
            QueueDeclareOptions { durable, auto_delete, ..QueueDeclareOptions::default() };
        self.ask(queue, options, arguments).await
    }

    /// Checks whether the reply queue exists, and declares it if it is missing.
    pub(super) async fn reply_queue(&self, settings: &AmqpSettings) -> Found {
        let found = self.look(&settings.reply_queue).await;
        if !matches!(found, Found::Missing) {
            return found;
        }
        tracing::info!(
            queue = settings.reply_queue,
            kind = ?settings.reply_queue_type,
            "declaring the reply queue"
        );
        let durable = |arguments: FieldTable| Shape { arguments, ..Shape::default() };
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
                    Found::Refused(said) if said.contains("x-delivery-limit") => {
                        self.declare(&settings.reply_queue, durable(arguments)).await
                    }
                    found @ (Found::There { .. }
                    | Found::Missing
                    | Found::Locked
                    | Found::Refused(_)
                    | Found::Lost(_)) => found,
                }
            }
        }
    }

    /// Declares `queue` once `journaled` is answered or dropped and no policy is being set; see
    /// [`QueueDeclarer::declare`].
    pub(super) async fn declare_after(
        &self,
        queue: &str,
        shape: Shape,
        taken: oneshot::Receiver<()>,
        turns: &Turns,
    ) -> Found {
        // If the sender was dropped, there is nothing to wait for.
        let _ = taken.await;
        let _turn = turns.to_declare().await;
        self.declare(queue, shape).await
    }

    async fn ask(&self, queue: &str, options: QueueDeclareOptions, arguments: FieldTable) -> Found {
        // Nobody closes the semaphore, so there is no error.
        let _permit = self.permits.acquire().await;
        let channel = match self.channel().await {
            Ok(channel) => channel,
            Err(error) => return Found::Lost(error),
        };
        match channel.queue_declare(short(queue), options, arguments).await {
            Ok(declared) => {
                self.idle.borrow_mut().push(channel);
                Found::There {
                    consumers: declared.consumer_count(),
                    messages: declared.message_count(),
                }
            }
            Err(error) => found_by(&error, options.passive),
        }
    }

    async fn channel(&self) -> lapin::Result<Channel> {
        let idle = self.idle.borrow_mut().pop().filter(|channel| channel.status().connected());
        match idle {
            Some(channel) => Ok(channel),
            None => self.connection.create_channel().await,
        }
    }
}

#[allow(clippy::wildcard_enum_match_arm, reason = "whatever else the broker says is a refusal")]
fn found_by(error: &lapin::Error, passive: bool) -> Found {
    match channel_error(error) {
        // The home node of a queue may be down. Its messages are not lost then.
        Some((AMQPSoftError::NOTFOUND, said)) if said.contains("inaccessible") => {
            Found::Refused(said.to_owned())
        }
        Some((AMQPSoftError::NOTFOUND, _)) if passive => Found::Missing,
        Some((AMQPSoftError::RESOURCELOCKED, _)) => Found::Locked,
        // Only an existing queue can have other arguments.
        Some((AMQPSoftError::PRECONDITIONFAILED, said)) if said.contains("inequivalent arg") => {
            Found::There { consumers: 0, messages: 0 }
        }
        Some((_, said)) => Found::Refused(said.to_owned()),
        None => Found::Lost(error.clone()),
    }
}

/// Converts to a short string of the protocol. Longer names are rejected where definitions and
/// settings are loaded.
pub(super) fn short(text: impl Into<String>) -> ShortString {
    ShortString::try_new(text).unwrap_or_default()
}

/// A queue by name, with the result of its check.
pub(super) type Looked = (Arc<str>, Found);
