//! The phases of the gRPC server, from its start to its stop.

/// The phase that the server is in. Its streams watch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerPhase {
    /// Calls and streams are served.
    Serving,
    /// No more messages are leased, but workers may still reply.
    Draining,
    /// All streams are closed.
    Stopping,
}
