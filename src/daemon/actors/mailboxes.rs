//! The mailboxes of the actors of which there is one each.

use super::inputs::{ArchiveInput, JournalInput, NotifierInput, RouterInput, SupervisorInput};
use super::mailbox::Mailbox;

/// The mailboxes of the actors of which there is one each. They are created before any actor, so
/// that each actor starts with those that it may use.
#[derive(Clone)]
pub struct Mailboxes {
    /// The mailbox of the router.
    pub router: Mailbox<RouterInput>,
    /// The mailbox of the journal actor.
    pub journal: Mailbox<JournalInput>,
    /// The mailbox of the archive.
    pub archive: Mailbox<ArchiveInput>,
    /// The mailbox of the supervisor.
    pub supervisor: Mailbox<SupervisorInput>,
    /// The mailbox of the notifier.
    pub notifier: Mailbox<NotifierInput>,
}
