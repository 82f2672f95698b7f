//! Stores what operators change for a time, and then tells the router.

use super::JournalActor;
use crate::actors::inputs::{ControlChange, RouterInput};

impl JournalActor {
    /// Stores a control, or that it has ended, and tells the router. The client gets the reason if
    /// that cannot be stored now.
    pub(super) fn change_control(&mut self, change: ControlChange) {
        if self.commit_schedule.is_lost() || self.detect_loss() {
            // An error means that the receiver was dropped.
            let _ = change.answer.send(Err("the journal cannot be written".to_owned()));
            return;
        }
        let result = match &change.control {
            Some(control) => self.store.store_control(control),
            None => self.store.delete_control(&change.key),
        };
        match result {
            Ok(()) => self.env.router.send(RouterInput::ChangeControl(Box::new(change))),
            Err(error) => {
                let _ = change.answer.send(Err(error.to_string()));
                if !error.remedy().is_retryable() {
                    self.handle_fatal(&error);
                }
            }
        }
    }
}
