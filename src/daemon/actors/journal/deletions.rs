//! The state of the deletion of jobs that clients erase, and of jobs past their retention.

use super::batch_size::BatchSizer;
use super::clock_doubt::ClockDoubt;
use crate::actors::client_response::{Erased, ResponseSender};
use base::clock;
use engine::Timestamp;
use journal::JobNumber;
use std::collections::VecDeque;
use tokio::time::Instant;

/// The active deletions.
pub(super) struct Deletions {
    /// The jobs that are partly erased, each with the client that waits for the response.
    pub(super) erasures: VecDeque<(JobNumber, ResponseSender<Erased>)>,
    /// The active deletion of jobs past their retention, if any.
    pub(super) sweep: Option<Sweep>,
    pub(super) batch_sizer: BatchSizer,
    /// Whether the next batch is scheduled, after the pause.
    pub(super) is_batch_scheduled: bool,
    /// The doubt about the clock for which retention waits after a start, if any.
    pub(super) clock_doubt: Option<ClockDoubt>,
}

/// The deletion of all jobs that are past their retention, in batches.
pub(super) struct Sweep {
    /// When the first batch began.
    pub(super) started: Instant,
    /// How many root jobs were deleted so far.
    pub(super) jobs: usize,
}

impl Deletions {
    /// Creates the state at a start. `newest_record` is when the newest record was written; `None`:
    /// the journal has none.
    pub(super) fn new(newest_record: Option<Timestamp>) -> Deletions {
        Deletions {
            erasures: VecDeque::new(),
            sweep: None,
            batch_sizer: BatchSizer::new(),
            is_batch_scheduled: false,
            clock_doubt: newest_record
                .and_then(|newest_record| ClockDoubt::detect(newest_record, clock::now())),
        }
    }

    /// Cancels the erasures, and returns the senders of their responses.
    pub(super) fn take_waiting_clients(&mut self) -> impl Iterator<Item = ResponseSender<Erased>> {
        std::mem::take(&mut self.erasures).into_iter().map(|(_, sender)| sender)
    }
}
