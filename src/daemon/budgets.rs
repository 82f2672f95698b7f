//! The budgets of a process: limits on what clients of the API make it hold in memory.

use crate::settings::{EmbeddedSettings, HttpSettings};
use base::budget::{MessageBudget, ResourceBudget};

/// How many responses can be compressed while they are sent. Each takes a third of a mebibyte.
const COMPRESSORS_MAX: usize = 32;

/// All budgets of a process.
pub struct Budgets {
    /// Bytes of bodies up to [`base::budget::SMALL_BODY_BYTES_MAX`]: a quarter of the budget for
    /// bodies.
    pub small_bodies: ResourceBudget,
    /// Bytes of larger bodies and of what is parsed from them: the other three quarters.
    pub large_bodies: ResourceBudget,
    /// Bytes of large reads of the journal, and of large responses until they are sent.
    pub answers: ResourceBudget,
    /// Concurrent reads of the journal.
    pub reads: ResourceBudget,
    /// Large responses that are compressed while they are sent.
    pub compressors: ResourceBudget,
    /// Workers that wait for a message, by a long poll.
    pub waiters: ResourceBudget,
    /// Bytes of step messages on their way to workers.
    pub messages: MessageBudget,
}

impl Budgets {
    /// Creates the budgets from the settings.
    pub fn new(http: &HttpSettings, embedded: &EmbeddedSettings) -> Budgets {
        let large_bytes_max = http.large_bodies_bytes_max();
        Budgets {
            small_bodies: ResourceBudget::for_bytes(http.bodies_bytes_max - large_bytes_max),
            large_bodies: ResourceBudget::for_bytes(large_bytes_max),
            answers: ResourceBudget::for_bytes(http.reads_bytes_max),
            reads: ResourceBudget::for_count(http.reads_max),
            compressors: ResourceBudget::for_count(COMPRESSORS_MAX),
            waiters: ResourceBudget::for_count(http.waiters_max),
            messages: MessageBudget::new(embedded.sending_bytes_max),
        }
    }
}
