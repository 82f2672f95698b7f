//! The handles of the actors: their mailboxes, the buses, and a view of the jobs that take input.

use super::buses::Buses;
use super::common::Common;
use super::inputs::{ArchiveInput, JournalInput, NotifierInput, RouterInput, SupervisorInput};
use super::mailbox::Mailbox;
use super::routes::Routes;
use actix::ArbiterHandle;
use bus::LeaseQueues;
use engine::Definition;
use std::sync::{Arc, OnceLock};

/// The handles of all actors of a process.
pub struct ActorHandles {
    /// The shared state of the process, for those who need both.
    pub common: Arc<Common>,
    /// The jobs that take input; the router writes them.
    pub routes: Routes,
    /// The buses.
    pub buses: Buses,
    /// The lease queues of embedded buses.
    pub lease_queues: Arc<LeaseQueues>,
    mailboxes: OnceLock<Mailboxes>,
}

/// The mailboxes of the actors of which there is one each, and the arbiters on which jobs run.
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
    /// The arbiters over which jobs are spread.
    pub arbiters: Vec<ArbiterHandle>,
}

impl ActorHandles {
    /// Creates the handles before any actor is started.
    pub fn new(
        common: Arc<Common>,
        routes: Routes,
        lease_queues: Arc<LeaseQueues>,
    ) -> ActorHandles {
        let buses = Buses::new(&common.settings);
        ActorHandles { common, routes, buses, lease_queues, mailboxes: OnceLock::new() }
    }

    /// Returns the definitions that jobs under way still run but that are no longer loaded: the
    /// files have others, or none of their names.
    pub fn unloaded_definitions(&self) -> Vec<Arc<Definition>> {
        let loaded = self.common.definitions();
        let is_loaded = |definition: &Arc<Definition>| {
            loaded.get(&definition.full_name()).is_some_and(|loaded| loaded == definition)
        };
        let mut in_use = self.routes.definitions();
        in_use.retain(|definition| !is_loaded(definition));
        in_use
    }

    /// Sets the mailboxes; once.
    pub fn connect(&self, mailboxes: Mailboxes) {
        assert!(self.mailboxes.set(mailboxes).is_ok(), "connected twice");
    }

    /// Returns the mailboxes of the actors.
    #[allow(
        clippy::expect_used,
        reason = "the manager connects before it starts the first job, bus event or request"
    )]
    pub fn mailboxes(&self) -> &Mailboxes {
        self.mailboxes.get().expect("connected")
    }
}
