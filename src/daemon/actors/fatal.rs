//! The orderly shutdown of the process that a part of the manager asks for: after a fatal error, or
//! to leave its name to a standby.

use tokio::sync::mpsc;

/// Why the manager asks the program to shut the process down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// It cannot continue, for this reason.
    Failed(String),
    /// It leaves its name to a standby, for this reason.
    StepDown(String),
}

/// Reports fatal errors of actors to the program, which then shuts the process down.
#[derive(Clone)]
pub struct FatalReporter(mpsc::UnboundedSender<StopReason>);

impl FatalReporter {
    /// Creates a reporter, and the receiver of its reports.
    pub fn new() -> (FatalReporter, mpsc::UnboundedReceiver<StopReason>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (FatalReporter(sender), receiver)
    }

    /// Requests an orderly shutdown, for this reason.
    pub fn report(&self, reason: String) {
        // The channel is closed only if the process shuts down already.
        let _ = self.0.send(StopReason::Failed(reason));
    }

    /// Requests an orderly shutdown that leaves the name to a standby, for this reason.
    pub fn request_step_down(&self, reason: String) {
        // The channel is closed only if the process shuts down already.
        let _ = self.0.send(StopReason::StepDown(reason));
    }
}
