//! A job that only waits leaves memory while that is short. The router has it among those at rest,
//! and brings it back, rebuilt from the journal, as soon as something comes for it or is due in it.
//! It leaves as a job leaves that has nothing left to do: behind its last record, and only if it
//! has heard all that was sent to it.

use super::JobActor;
use super::life::Life;
use crate::actors::at_rest::AtRest;
use crate::actors::mail::Rest;
use crate::clock;
use crate::engine::Job;

/// Whatever is due within this time is waited for here, in nanoseconds.
const SOON_NS: i64 = 2_000_000_000;

impl JobActor {
    /// Asks to rest, if memory is short and it only waits; once for what it has heard.
    pub(super) fn rest_if_short(&mut self) {
        if self.is_asking_to_rest() || !self.ways.common.memory.is_short() {
            return;
        }
        let Life::Live(job) = &self.life else { return };
        if self.parent.is_some() || is_due_soon(job) || !only_waits(job) {
            return;
        }
        self.asked_to_rest = Some(self.heard);
        let rest = Rest {
            heard: self.heard,
            at_rest: AtRest::waiting(self.number, job, &|dispatch| {
                self.waiting_since.since(dispatch)
            }),
        };
        self.append_nothing(Vec::new(), None, Some(Box::new(rest)));
    }

    /// Whether it has asked to rest and heard nothing since. Nothing else may happen to it then:
    /// the router may let it go at any moment.
    pub(super) fn is_asking_to_rest(&self) -> bool {
        self.asked_to_rest == Some(self.heard)
    }
}

/// Whether something is due in it so soon that it waits for that here.
fn is_due_soon(job: &Job) -> bool {
    job.next_timer().is_some_and(|due| due.0 < clock::now().0.saturating_add(SOON_NS))
}

/// Whether nothing of it may still have to leave, and its messages are with others: it waits for
/// replies, a person or a time. A message that its bus may lend again stays with that bus, and so
/// does the job.
fn only_waits(job: &Job) -> bool {
    let is_lent = job.awaiting_replies().any(|step| job.step(step).lease.is_some());
    !job.is_closed() && job.child_count() == 0 && !is_lent && job.open().is_empty()
}
