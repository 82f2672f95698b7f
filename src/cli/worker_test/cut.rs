//! Where a connection is cut.

/// Where a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CutAt {
    /// The reply is on its way, and does not arrive.
    Reply,
    /// The reply has arrived. Over AMQP the ack does not; over HTTP the answer does not.
    Ack,
}
