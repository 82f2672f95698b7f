//! A latch that is released when all who were asked are done.

use std::sync::Arc;
use tokio::sync::oneshot;

/// Sends an answer when its last [`Arc`] is dropped. Everybody who is asked holds one until they
/// are done.
pub struct CompletionLatch(Option<oneshot::Sender<()>>);

impl CompletionLatch {
    /// Creates a latch that answers `to`.
    pub fn new(to: oneshot::Sender<()>) -> Arc<CompletionLatch> {
        Arc::new(CompletionLatch(Some(to)))
    }
}

impl Drop for CompletionLatch {
    fn drop(&mut self) {
        if let Some(to) = self.0.take() {
            // An error means that nobody waits any more.
            let _ = to.send(());
        }
    }
}
