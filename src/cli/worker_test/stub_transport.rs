//! The transport of the stub manager, which hands messages to the worker.

use super::super::error::ClientError;
use super::amqp::AmqpStub;
use super::cut::CutTiming;
use super::http::HttpStub;
use super::messages::TestMessage;

/// The transport by which the worker receives its messages.
pub(super) enum StubTransport {
    Http(HttpStub),
    Amqp(Box<AmqpStub>),
}

impl StubTransport {
    /// Puts a message into the queue.
    pub(super) async fn send(&self, message: &TestMessage) -> Result<(), ClientError> {
        match self {
            StubTransport::Http(http) => {
                http.send(message);
                Ok(())
            }
            StubTransport::Amqp(amqp) => amqp.send(message).await,
        }
    }

    /// Cuts the worker's connection once, at this message.
    pub(super) fn cut(&self, message: &TestMessage, at: CutTiming) {
        match self {
            StubTransport::Http(http) => http.cut(message.number, at),
            StubTransport::Amqp(amqp) => amqp.cut(message, at),
        }
    }

    /// Ends the attempt of this message. Over HTTP the worker learns it when it extends its lease;
    /// over AMQP the message is no longer requeued.
    pub(super) fn end_attempt(&self, message: &TestMessage) {
        match self {
            StubTransport::Http(http) => http.end_attempt(message.number),
            StubTransport::Amqp(amqp) => amqp.prevent_requeue(message),
        }
    }

    /// Ends the attempt as soon as a worker has the message. It has no effect over AMQP, where a
    /// worker cannot be told.
    pub(super) fn cancel_when_delivered(&self, message: &TestMessage) {
        match self {
            StubTransport::Http(http) => http.cancel_when_leased(message.number),
            StubTransport::Amqp(_) => {}
        }
    }

    /// Removes all messages that are not settled.
    pub(super) async fn clear(&self) -> Result<(), ClientError> {
        match self {
            StubTransport::Http(http) => {
                http.clear();
                Ok(())
            }
            StubTransport::Amqp(amqp) => amqp.clear().await,
        }
    }

    /// Deletes the queue if there is one that may be deleted. Returns whether it did.
    pub(super) async fn delete_queue(&self) -> Result<bool, ClientError> {
        match self {
            StubTransport::Http(_) => Ok(false),
            StubTransport::Amqp(amqp) => amqp.delete().await,
        }
    }

    /// Returns whether the queue exists and has a consumer.
    pub(super) async fn has_consumers(&self) -> bool {
        match self {
            StubTransport::Http(_) => true,
            StubTransport::Amqp(amqp) => amqp.has_consumers().await,
        }
    }

    pub(super) async fn close(self) {
        match self {
            StubTransport::Http(http) => http.close().await,
            StubTransport::Amqp(amqp) => amqp.close().await,
        }
    }
}
