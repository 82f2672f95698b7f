//! A latch that completes when all participants of an operation are done.

use std::sync::Arc;
use tokio::sync::oneshot;

/// Completes when its last [`Arc`] is dropped. Each participant of an operation holds a clone until
/// it is done.
pub struct CompletionLatch(Option<oneshot::Sender<()>>);

impl CompletionLatch {
    /// Creates a latch that notifies `sender` when it completes.
    pub fn new(sender: oneshot::Sender<()>) -> Arc<CompletionLatch> {
        Arc::new(CompletionLatch(Some(sender)))
    }
}

impl Drop for CompletionLatch {
    fn drop(&mut self) {
        if let Some(sender) = self.0.take() {
            // An error means that the receiver was dropped.
            let _ = sender.send(());
        }
    }
}
