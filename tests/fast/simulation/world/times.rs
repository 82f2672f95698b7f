//! The time of attempts: it runs only while workers can have the message.

use super::World;
use workflow_manager::engine::Job;

impl World {
    /// Over the simulated bus it runs only after a confirm, or a worker's progress.
    pub(super) fn check_times(&mut self, job: &Job) {
        let created = job.origin().created;
        for (at, (step, run)) in (0..).zip(job.steps()) {
            let is_timed = step.has_queue() && step.bus.is_none() && run.timeout_at().is_some();
            let key = (job.id(), created, at, run.attempt);
            if is_timed && run.progress.is_none() && !self.ever_confirmed.contains(&key) {
                let (id, name, attempt) = (job.id(), &step.name, run.attempt);
                self.violate(format!(
                    "the time of attempt {attempt} of {id}:{name} runs, and the broker does not \
                     have its message"
                ));
            }
        }
    }
}
