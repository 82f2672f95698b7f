//! Passivation: a job that only waits leaves memory while memory is short. The router keeps it
//! among the passivated jobs, and activates it, rebuilt from the journal, as soon as an input comes
//! for it or something in it is due. Its actor stops as one does that has nothing left to do:
//! behind its last record, and only if it has handled all inputs that were sent to it.

use super::JobActor;
use super::lifecycle::Lifecycle;
use crate::actors::inputs::PassivateRequest;
use crate::actors::passivation::PassivatedTree;
use base::clock;
use engine::Job;

/// A job in which something is due within this time, in nanoseconds, is not passivated.
const SOON_NS: i64 = 2_000_000_000;

impl JobActor {
    /// Asks to be passivated if memory is short and the job only waits; once after each input.
    pub(super) fn passivate_if_memory_short(&mut self) {
        if self.is_passivating() || !self.env.memory.is_short() {
            return;
        }
        let Lifecycle::Running(job) = &self.lifecycle else { return };
        if self.parent.is_some() || is_due_soon(job) || !is_only_waiting(job) {
            return;
        }
        self.passivation_requested_at = Some(self.inputs_handled);
        let request = PassivateRequest {
            inputs_handled: self.inputs_handled,
            tree: PassivatedTree::from_waiting_job(self.number, job, &|dispatch| {
                self.waiting_since.since(dispatch)
            }),
        };
        self.send_behind_commits(Vec::new(), None, Some(Box::new(request)));
    }

    /// Returns whether it has asked to be passivated and handled no input since. Nothing else may
    /// happen to it then: the router may stop it at any moment.
    pub(super) fn is_passivating(&self) -> bool {
        self.passivation_requested_at == Some(self.inputs_handled)
    }
}

/// Returns whether something in the job is due too soon to passivate it.
fn is_due_soon(job: &Job) -> bool {
    job.next_timer().is_some_and(|due| due.0 < clock::now().0.saturating_add(SOON_NS))
}

/// Returns whether the job has no effect left to send, and its messages are with others: it waits
/// for replies, a person or a time. A message that its bus may lease again stays with that bus, and
/// so does the job.
fn is_only_waiting(job: &Job) -> bool {
    let is_leased = job.steps_awaiting_replies().any(|step| job.step(step).lease.is_some());
    !job.is_closed() && job.child_count() == 0 && !is_leased && job.open_entries().is_empty()
}
