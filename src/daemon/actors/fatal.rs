//! Ends the process in order when an actor finds a reason to.

use tokio::sync::mpsc;

/// Reports why the process has to end.
#[derive(Clone)]
pub struct FatalReporter(mpsc::UnboundedSender<String>);

impl FatalReporter {
    /// Creates a reporter, and where its reports arrive.
    pub fn new() -> (FatalReporter, mpsc::UnboundedReceiver<String>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (FatalReporter(sender), receiver)
    }

    /// Ends the process in order, for this reason.
    pub fn report(&self, reason: String) {
        // Closed only when the process is ending already.
        let _ = self.0.send(reason);
    }
}
