//! How far the shutdown of the server has come, for the server and its streams.

/// How far the shutdown has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerPhase {
    Serving,
    /// No more messages are leased; workers may send finished work.
    Draining,
    /// Streams end now.
    Stopping,
}
