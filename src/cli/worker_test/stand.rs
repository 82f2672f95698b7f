//! Where the messages go: the way that a worker takes them.

use super::super::error::ClientError;
use super::amqp::Amqp;
use super::cut::CutAt;
use super::http::Http;
use super::messages::Message;

/// The way that a worker takes its messages.
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

    /// The attempt of this message is over from now on; over HTTP the worker hears of it when it
    /// asks for more time, over AMQP the message no longer goes back to its queue.
    pub(super) fn give_up(&self, message: &Message) {
        match self {
            Stand::Http(http) => http.give_up(message.number),
            Stand::Amqp(amqp) => amqp.tame(message),
        }
    }

    /// Gives the message up as soon as a worker has it. Over AMQP nobody can tell the worker.
    pub(super) fn cancel_when_given(&self, message: &Message) {
        match self {
            Stand::Http(http) => http.cancel_when_lent(message.number),
            Stand::Amqp(_) => {}
        }
    }

    /// Takes away what is not done.
    pub(super) async fn clear(&self) -> Result<(), ClientError> {
        match self {
            Stand::Http(http) => {
                http.clear();
                Ok(())
            }
            Stand::Amqp(amqp) => amqp.clear().await,
        }
    }

    /// Deletes the queue, where there is one that may be deleted; whether it did.
    pub(super) async fn delete_queue(&self) -> Result<bool, ClientError> {
        match self {
            Stand::Http(_) => Ok(false),
            Stand::Amqp(amqp) => amqp.delete().await,
        }
    }

    /// Whether the queue is there, and somebody takes from it.
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
