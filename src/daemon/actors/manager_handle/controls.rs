//! Requests of operators that change something for a time: pauses, and other values of limits.

use super::ManagerHandle;
use crate::actors::inputs::{ControlChange, JournalInput, RouterInput};
use engine::{Control, ControlKey};
use tokio::sync::oneshot;

impl ManagerHandle {
    /// Puts a control in force, instead of an earlier one with its key. Returns after the commit,
    /// and, for a pause, once everything has been sent that was decided before.
    ///
    /// # Errors
    ///
    /// Returns the reason if it cannot be stored now.
    pub async fn set_control(&self, control: Control) -> Result<(), String> {
        self.change_control(control.key.clone(), Some(control)).await
    }

    /// Ends a control. Returns after the commit.
    ///
    /// # Errors
    ///
    /// Returns the reason if that cannot be stored now.
    pub async fn end_control(&self, key: ControlKey) -> Result<(), String> {
        self.change_control(key, None).await
    }

    async fn change_control(
        &self,
        key: ControlKey,
        control: Option<Control>,
    ) -> Result<(), String> {
        let (answer, receiver) = oneshot::channel();
        let change = ControlChange { key, control, answer };
        self.0.journal.send(JournalInput::ChangeControl(Box::new(change)));
        receiver.await.unwrap_or_else(|_| Err("the manager is stopping".to_owned()))
    }

    /// Returns the controls in force, ordered by their keys.
    pub async fn controls(&self) -> Vec<Control> {
        let (sender, receiver) = oneshot::channel();
        self.0.router.send(RouterInput::ListControls(sender));
        // An error means that the manager is stopping.
        receiver.await.unwrap_or_default()
    }

    /// Returns how many steps each pause of a queue or workflow holds back. Its time grows with the
    /// number of steps that wait or hold places.
    pub async fn count_held_back(&self) -> Vec<(ControlKey, usize)> {
        let (sender, receiver) = oneshot::channel();
        self.0.router.send(RouterInput::CountHeldBack(sender));
        // An error means that the manager is stopping.
        receiver.await.unwrap_or_default()
    }
}
