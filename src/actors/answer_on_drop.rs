//! A latch that is released when all who were asked are done.

use std::sync::Arc;
use tokio::sync::oneshot;

/// Sends an answer when its last [`Arc`] is dropped. Everybody who is asked holds one until they
/// are done.
pub struct AnswerOnDrop(Option<oneshot::Sender<()>>);

impl AnswerOnDrop {
    /// Creates a latch that answers `to`.
    pub fn new(to: oneshot::Sender<()>) -> Arc<AnswerOnDrop> {
        Arc::new(AnswerOnDrop(Some(to)))
    }
}

impl Drop for AnswerOnDrop {
    fn drop(&mut self) {
        if let Some(to) = self.0.take() {
            // An error means that nobody waits any more.
            let _ = to.send(());
        }
    }
}
