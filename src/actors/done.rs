//! An answer that is sent when all who were asked are through.

use std::sync::Arc;
use tokio::sync::oneshot;

/// Answers when the last clone is dropped.
pub struct Done(Option<oneshot::Sender<()>>);

impl Done {
    /// Answers `to`.
    pub fn new(to: oneshot::Sender<()>) -> Arc<Done> {
        Arc::new(Done(Some(to)))
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        if let Some(to) = self.0.take() {
            // Nobody waits any more: the bus has closed.
            let _ = to.send(());
        }
    }
}
