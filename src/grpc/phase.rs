//! The lifecycle of the gRPC server.

/// The phase that the server is in. Its streams watch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerPhase {
    /// Calls and streams are served.
    Serving,
    /// No more messages are leased; workers may still reply.
    Draining,
    /// All streams are closed.
    Stopping,
}
