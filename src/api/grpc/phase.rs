//! How far a stop of the manager has come, as the server and its streams see it.

/// How far a stop has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Serving,
    /// No more messages are lent; workers may send what they have finished.
    Draining,
    /// Streams end now.
    Ending,
}
