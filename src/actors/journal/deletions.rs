//! What is being deleted: jobs that clients erase, and jobs past their retention.

use super::doubt::Doubt;
use super::pace::Pace;
use crate::actors::answer::{Client, Erased};
use crate::clock;
use crate::engine::Timestamp;
use crate::journal::JobNumber;
use std::collections::VecDeque;
use tokio::time::Instant;

/// The deletions under way.
pub(super) struct Deletions {
    /// Jobs of which a part is left, each with the client that erases it.
    pub(super) erasures: VecDeque<(JobNumber, Client<Erased>)>,
    pub(super) sweep: Option<Sweep>,
    pub(super) pace: Pace,
    /// Whether the next batch is scheduled.
    pub(super) is_resting: bool,
    /// Why retention waits behind a start, if it does.
    pub(super) doubt: Option<Doubt>,
}

/// The deletion of all jobs that are past their retention.
pub(super) struct Sweep {
    pub(super) begun: Instant,
    /// How many root jobs are deleted so far.
    pub(super) jobs: usize,
}

impl Deletions {
    /// Nothing yet; `newest`: when the newest record was written.
    pub(super) fn new(newest: Option<Timestamp>) -> Deletions {
        Deletions {
            erasures: VecDeque::new(),
            sweep: None,
            pace: Pace::new(),
            is_resting: false,
            doubt: newest.and_then(|newest| Doubt::of(newest, clock::now())),
        }
    }

    /// Takes the clients that wait for the end of a deletion which will not come.
    pub(super) fn take_clients(&mut self) -> impl Iterator<Item = Client<Erased>> {
        std::mem::take(&mut self.erasures).into_iter().map(|(_, client)| client)
    }
}
