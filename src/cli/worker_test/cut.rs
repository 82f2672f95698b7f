//! The point at which a connection is cut.

/// The point at which a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CutTiming {
    /// Before the reply arrives.
    Reply,
    /// After the reply has arrived: over AMQP before the ack arrives, over HTTP before the response
    /// does.
    Ack,
}
