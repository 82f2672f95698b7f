//! Whether queues exist. They are looked at side by side, on a few channels of their own: a look at
//! a missing queue costs its channel.

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

/// How many queues are looked at side by side.
const CHANNELS_MAX: usize = 16;

/// What is known of a queue.
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
    /// It exists, as an exclusive queue of another connection.
    Locked,
    /// The broker cannot tell, or does not allow it; in its words.
    Refused(String),
    /// The connection or channel was lost.
    Lost(lapin::Error),
}

/// Looks at queues and declares them.
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

    /// Whether `queue` exists.
    pub(super) async fn look(&self, queue: &str) -> Found {
        self.ask(
            queue,
            QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() },
            FieldTable::default(),
        )
        .await
    }

    /// Declares `queue`. One that was declared otherwise in the meantime counts as there: it is
    /// used as it is.
    pub(super) async fn declare(&self, queue: &str, shape: Shape) -> Found {
        let Shape { durable, auto_delete, arguments } = shape;
        let options =
            QueueDeclareOptions { durable, auto_delete, ..QueueDeclareOptions::default() };
        self.ask(queue, options, arguments).await
    }

    /// Whether the reply queue exists; it is declared if it is missing.
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
                    // Brokers before 4.0 have no limit by default, and no value that means "none".
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

    /// As [`Queues::declare`], after `taken` was answered or dropped, and in its turn.
    pub(super) async fn declare_after(
        &self,
        queue: &str,
        shape: Shape,
        taken: oneshot::Receiver<()>,
        turns: &Turns,
    ) -> Found {
        // If it was dropped, nobody answers: there is nothing to wait for.
        let _ = taken.await;
        let _turn = turns.to_declare().await;
        self.declare(queue, shape).await
    }

    async fn ask(&self, queue: &str, options: QueueDeclareOptions, arguments: FieldTable) -> Found {
        // An error would mean that the semaphore was closed. Nobody closes it.
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
        // The home node of a queue may be down: then its messages are not lost.
        Some((AMQPSoftError::NOTFOUND, said)) if said.contains("inaccessible") => {
            Found::Refused(said.to_owned())
        }
        Some((AMQPSoftError::NOTFOUND, _)) if passive => Found::Missing,
        Some((AMQPSoftError::RESOURCELOCKED, _)) => Found::Locked,
        // Only an existing queue has arguments that can differ.
        Some((AMQPSoftError::PRECONDITIONFAILED, said)) if said.contains("inequivalent arg") => {
            Found::There { consumers: 0, messages: 0 }
        }
        Some((_, said)) => Found::Refused(said.to_owned()),
        None => Found::Lost(error.clone()),
    }
}

/// A short text of the protocol. Longer names are refused where definitions and settings are read.
pub(super) fn short(text: impl Into<String>) -> ShortString {
    ShortString::try_new(text).unwrap_or_default()
}

/// One of many queues: its name, and what was found.
pub(super) type Looked = (Arc<str>, Found);
