//! The orderly shutdown of the process after a fatal error of an actor.

use tokio::sync::mpsc;

/// Reports fatal errors of actors to the program, which then shuts the process down.
#[derive(Clone)]
pub struct FatalReporter(mpsc::UnboundedSender<String>);

impl FatalReporter {
    /// Creates a reporter, and the receiver of its reports.
    pub fn new() -> (FatalReporter, mpsc::UnboundedReceiver<String>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (FatalReporter(sender), receiver)
    }

    /// Requests an orderly shutdown, for this reason.
    pub fn report(&self, reason: String) {
        // The channel is closed only if the process shuts down already.
        let _ = self.0.send(reason);
    }
}
