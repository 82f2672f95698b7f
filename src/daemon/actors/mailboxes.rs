//! The mailboxes of the singleton actors.

use super::inputs::{
    ArchiveInput, JournalInput, NotifierInput, RouterInput, SchedulerInput, SupervisorInput,
};
use super::mailbox::Mailbox;

/// The mailboxes of the actors that exist once in a manager. They are created before any actor, so
/// that each actor is started with the mailboxes that it uses.
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
    /// The mailbox of the scheduler.
    pub scheduler: Mailbox<SchedulerInput>,
    /// The mailbox of the notifier.
    pub notifier: Mailbox<NotifierInput>,
}
