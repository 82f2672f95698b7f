//! When the stub manager cuts a worker's connection.

/// The time at which the connection is cut, relative to the reply to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CutTiming {
    /// Before the reply arrives.
    Reply,
    /// After the reply has arrived: over AMQP before the ack arrives, over HTTP before the response
    /// does.
    Ack,
}
