//! An answer that is sent when everybody who was asked is through.

use std::sync::Arc;
use tokio::sync::oneshot;

/// Answers when the last [`Arc`] of it is dropped. Each of those who are asked holds one until it
/// is through.
pub struct AnswerOnDrop(Option<oneshot::Sender<()>>);

impl AnswerOnDrop {
    /// Answers `to`.
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
