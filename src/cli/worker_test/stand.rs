//! The transport of the stub manager, which hands messages to the worker.

use super::super::error::ClientError;
use super::amqp::Amqp;
use super::cut::CutAt;
use super::http::Http;
use super::messages::Message;

/// The transport by which the worker receives its messages.
pub(super) enum Stand {
    Http(Http),
    Amqp(Box<Amqp>),
}

impl Stand {
    /// Puts a message into the queue.
    pub(super) async fn send(&self, message: &Message) -> Result<(), ClientError> {
        match self {
            Stand::Http(http) => {
                http.send(message);
                Ok(())
            }
            Stand::Amqp(amqp) => amqp.send(message).await,
        }
    }

    /// Cuts the worker's connection once, at this message.
    pub(super) fn cut(&self, message: &Message, at: CutAt) {
        match self {
            Stand::Http(http) => http.cut(message.number, at),
            Stand::Amqp(amqp) => amqp.cut(message, at),
        }
    }

    /// Ends the attempt of this message. Over HTTP the worker learns it when it extends its lease;
    /// over AMQP the message is no longer requeued.
    pub(super) fn give_up(&self, message: &Message) {
        match self {
            Stand::Http(http) => http.give_up(message.number),
            Stand::Amqp(amqp) => amqp.tame(message),
        }
    }

    /// Ends the attempt as soon as a worker has the message. It has no effect over AMQP, where a
    /// worker cannot be told.
    pub(super) fn cancel_when_given(&self, message: &Message) {
        match self {
            Stand::Http(http) => http.cancel_when_lent(message.number),
            Stand::Amqp(_) => {}
        }
    }

    /// Removes all messages that are not settled.
    pub(super) async fn clear(&self) -> Result<(), ClientError> {
        match self {
            Stand::Http(http) => {
                http.clear();
                Ok(())
            }
            Stand::Amqp(amqp) => amqp.clear().await,
        }
    }

    /// Deletes the queue if there is one that may be deleted. Returns whether it did.
    pub(super) async fn delete_queue(&self) -> Result<bool, ClientError> {
        match self {
            Stand::Http(_) => Ok(false),
            Stand::Amqp(amqp) => amqp.delete().await,
        }
    }

    /// Returns whether the queue exists and has a consumer.
    pub(super) async fn is_consumed(&self) -> bool {
        match self {
            Stand::Http(_) => true,
            Stand::Amqp(amqp) => amqp.consumers().await.is_some_and(|consumers| consumers > 0),
        }
    }

    pub(super) async fn close(self) {
        match self {
            Stand::Http(http) => http.close().await,
            Stand::Amqp(amqp) => amqp.close().await,
        }
    }
}
