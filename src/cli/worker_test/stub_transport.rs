//! The transports over which the stub manager delivers messages to the worker.

use super::super::error::ClientError;
use super::amqp::AmqpStub;
use super::cut::CutTiming;
use super::lease_queue::LeaseStub;
use super::messages::TestMessage;

/// The stub manager of one transport. Messages are delivered to the worker by it.
pub(super) enum StubTransport {
    /// Over HTTP or gRPC.
    Leases(LeaseStub),
    Amqp(Box<AmqpStub>),
}

impl StubTransport {
    /// Puts a message into the queue.
    pub(super) async fn send(&self, message: &TestMessage) -> Result<(), ClientError> {
        match self {
            StubTransport::Leases(stub) => {
                stub.send(message);
                Ok(())
            }
            StubTransport::Amqp(amqp) => amqp.send(message).await,
        }
    }

    /// Makes the stub manager cut the worker's connection once, at this message.
    pub(super) fn cut(&self, message: &TestMessage, timing: CutTiming) {
        match self {
            StubTransport::Leases(stub) => stub.cut(message.number, timing),
            StubTransport::Amqp(amqp) => amqp.cut(message, timing),
        }
    }

    /// Ends the attempt of this message. Over HTTP and gRPC the worker learns of it when it extends
    /// its lease. Over AMQP a requeue becomes a rejection.
    pub(super) fn end_attempt(&self, message: &TestMessage) {
        match self {
            StubTransport::Leases(stub) => stub.end_attempt(message.number),
            StubTransport::Amqp(amqp) => amqp.prevent_requeue(message),
        }
    }

    /// Makes the attempt end as soon as the message is delivered. This has no effect over AMQP,
    /// where a worker cannot learn of it.
    pub(super) fn cancel_when_delivered(&self, message: &TestMessage) {
        match self {
            StubTransport::Leases(stub) => stub.cancel_when_leased(message.number),
            StubTransport::Amqp(_) => {}
        }
    }

    /// Removes all messages that are not settled.
    pub(super) async fn clear(&self) -> Result<(), ClientError> {
        match self {
            StubTransport::Leases(stub) => {
                stub.clear();
                Ok(())
            }
            StubTransport::Amqp(amqp) => amqp.clear().await,
        }
    }

    /// Deletes the queue if the stub manager has declared it. Returns whether it has. Always false
    /// over HTTP and gRPC, where no queue is declared.
    pub(super) async fn delete_queue(&self) -> Result<bool, ClientError> {
        match self {
            StubTransport::Leases(_) => Ok(false),
            StubTransport::Amqp(amqp) => amqp.delete().await,
        }
    }

    /// Returns whether the queue exists and has a consumer. Always true over HTTP and gRPC.
    pub(super) async fn has_consumers(&self) -> bool {
        match self {
            StubTransport::Leases(_) => true,
            StubTransport::Amqp(amqp) => amqp.has_consumers().await,
        }
    }

    /// Stops the stub manager.
    pub(super) async fn close(self) {
        match self {
            StubTransport::Leases(stub) => stub.close().await,
            StubTransport::Amqp(amqp) => amqp.close().await,
        }
    }
}
