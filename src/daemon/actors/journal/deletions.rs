//! What is being deleted: jobs that clients erase, and jobs past their retention.

use super::batch_size::BatchSizer;
use super::doubt::Doubt;
use crate::actors::client_response::{Erased, ResponseSender};
use base::clock;
use engine::Timestamp;
use journal::JobNumber;
use std::collections::VecDeque;
use tokio::time::Instant;

/// The deletions under way.
pub(super) struct Deletions {
    /// Jobs of which a part is left, each with the client that erases it.
    pub(super) erasures: VecDeque<(JobNumber, ResponseSender<Erased>)>,
    pub(super) sweep: Option<Sweep>,
    pub(super) batch_sizer: BatchSizer,
    /// Whether the next batch is scheduled.
    pub(super) is_batch_scheduled: bool,
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
            batch_sizer: BatchSizer::new(),
            is_batch_scheduled: false,
            doubt: newest.and_then(|newest| Doubt::detect(newest, clock::now())),
        }
    }

    /// Takes the clients that wait for the end of a deletion which will not come.
    pub(super) fn take_waiting_clients(&mut self) -> impl Iterator<Item = ResponseSender<Erased>> {
        std::mem::take(&mut self.erasures).into_iter().map(|(_, client)| client)
    }
}
