//! The job's side of passivation: a job that only waits leaves memory while memory is short. The
//! router keeps a summary of it, and has it rebuilt from the journal when an input for it arrives
//! or something in it is due. Its actor stops in the same way as one that has nothing left to do:
//! after the commit of its last record, and only if it has handled all inputs that were sent to it.

use super::JobActor;
use super::lifecycle::Lifecycle;
use crate::actors::inputs::PassivateRequest;
use crate::actors::passivation::PassivatedTree;
use base::clock;
use engine::Job;

/// A job in which something is due within this time, in nanoseconds, is not passivated: it would be
/// activated again at once.
const DUE_SOON_NS: i64 = 2_000_000_000;

impl JobActor {
    /// Asks the router to passivate the job if memory is short and the job only waits. Asks at most
    /// once after each input. A child job is never passivated alone.
    pub(super) fn passivate_if_memory_short(&mut self) {
        if self.is_passivating() || !self.env.memory.is_short() {
            return;
        }
        let Lifecycle::Running(job) = &self.lifecycle else { return };
        if self.parent.is_some() || is_due_soon(job) || !is_only_waiting(job) {
            return;
        }
        self.inputs_at_passivation_request = Some(self.inputs_handled);
        let request = PassivateRequest {
            inputs_handled: self.inputs_handled,
            tree: PassivatedTree::from_waiting_job(self.number, job, &|dispatch| {
                self.waiting_since.find(dispatch)
            }),
        };
        self.send_behind_commits(Vec::new(), None, Some(Box::new(request)));
    }

    /// Returns whether the job has asked to be passivated and handled no input since. Then it must
    /// not decide anything on its own: the router may stop it at any moment.
    pub(super) fn is_passivating(&self) -> bool {
        self.inputs_at_passivation_request == Some(self.inputs_handled)
    }
}

/// Returns whether something in the job is due too soon for passivation.
fn is_due_soon(job: &Job) -> bool {
    job.next_timer().is_some_and(|due| due.0 < clock::now().0.saturating_add(DUE_SOON_NS))
}

/// Returns whether the job has no effect left to send, and only waits for a reply, an operator or a
/// timer. A job with a leased message stays in memory, because its bus may lease the message again.
fn is_only_waiting(job: &Job) -> bool {
    let is_leased = job.steps_awaiting_replies().any(|step| job.step(step).lease.is_some());
    !job.is_closed() && job.child_count() == 0 && !is_leased && job.open_entries().is_empty()
}
