//! What a job's decisions look like from outside: metrics and logs, in one place.

use super::job::JobActor;
use crate::engine::words::shortened;
use crate::engine::{
    Decision, Entry, Input, Job, JobId, JobState, Rejected, Reply, StepIndex, Timestamp,
};

impl JobActor {
    /// Counts the job among those of its state, once, whatever way it came to it.
    pub(super) fn count(&mut self) {
        let Some(job) = self.job() else { return };
        self.count_as(Some(job.state()).filter(|state| !state.is_ended()));
    }

    /// Counts it in another state; in none, if its rows are gone.
    pub(super) fn count_as(&mut self, now: Option<JobState>) {
        let Some(job) = self.job() else { return };
        if now == self.counted {
            return;
        }
        let metrics = &self.shared.metrics;
        if self.parent.is_some() {
            metrics.child_jobs.add(i64::from(now.is_some()) - i64::from(self.counted.is_some()));
        } else {
            let workflow = job.definition().full_name();
            let gauge =
                |state: JobState| metrics.jobs.with_label_values(&[&*workflow, state.word()]);
            self.counted.into_iter().for_each(|before| gauge(before).dec());
            now.into_iter().for_each(|now| gauge(now).inc());
        }
        self.counted = now;
    }

    /// Counts and logs what was decided, in one place.
    pub(super) fn observe(&self, decision: &Decision, now: Timestamp) {
        let Some(job) = self.job() else { return };
        let metrics = &self.shared.metrics;
        let workflow = job.definition().full_name();
        let is_root = self.parent.is_none();
        let name = |step: StepIndex| job.graph().step(step).name.clone();
        for entry in &decision.entries {
            match entry {
                Entry::JobCreated { .. } => {
                    if is_root {
                        metrics.jobs_created.with_label_values(&[&*workflow]).inc();
                    }
                    tracing::debug!(job = %self.id, %workflow, child = !is_root, "job created");
                }
                Entry::StepStarted { step, attempt, .. } => {
                    metrics.dispatched.with_label_values(&[&*workflow, &*name(*step)]).inc();
                    tracing::debug!(job = %self.id, step = %name(*step), attempt, "step started");
                }
                Entry::StepUnconfirmed { step, .. } => {
                    metrics.dispatched.with_label_values(&[&*workflow, &*name(*step)]).inc();
                    metrics.redispatched.with_label_values(&[&*workflow, &*name(*step)]).inc();
                    tracing::debug!(job = %self.id, step = %name(*step), attempt = job.step(*step).attempt, "step dispatched again, as the same attempt");
                }
                Entry::StepConfirmed { step } => {
                    metrics.confirmed.with_label_values(&[&*workflow, &*name(*step)]).inc()
                }
                Entry::StepCompleted { step, .. } | Entry::FanOutCompleted { step, .. } => {
                    let elapsed = job.step(*step).started.map_or(0, |started| now.0 - started.0);
                    metrics.replied.with_label_values(&[&*workflow, &*name(*step)]).inc();
                    metrics
                        .step_duration
                        .with_label_values(&[&*workflow, &*name(*step)])
                        .observe(elapsed as f64 / 1e9);
                    tracing::debug!(job = %self.id, step = %name(*step), attempt = job.step(*step).attempt, elapsed_ms = elapsed / 1_000_000, "step completed");
                }
                Entry::StepProgressed { step, progress, .. } => {
                    tracing::debug!(job = %self.id, step = %name(*step), attempt = job.step(*step).attempt, ?progress, "step progressed");
                }
                Entry::AttemptFailed { step, attempt, failure, retry_at, .. } => {
                    metrics.retried.with_label_values(&[&*workflow, &*name(*step)]).inc();
                    let pause_ms = (retry_at.0 - now.0) / 1_000_000;
                    tracing::info!(job = %self.id, step = %name(*step), attempt, pause_ms, reason = %failure.reason, "attempt failed, another follows");
                }
                Entry::StepSkipped { step, .. } => {
                    tracing::debug!(job = %self.id, step = %name(*step), "step skipped")
                }
                Entry::StepCancelled { step, .. } => {
                    tracing::info!(job = %self.id, step = %name(*step), "step cancelled")
                }
                Entry::StepFailed { step, failure, .. } => {
                    metrics.failed.with_label_values(&[&*workflow, &*name(*step)]).inc();
                    tracing::warn!(job = %self.id, step = %name(*step), attempt = job.step(*step).attempt, reason = %failure.reason, "step failed");
                }
                Entry::FanOutStarted { step, items, warning, .. } => {
                    if let Some(warning) = warning {
                        tracing::warn!(job = %self.id, step = %name(*step), warning = %warning, "fan-out started");
                    } else {
                        tracing::debug!(job = %self.id, step = %name(*step), items, "fan-out started");
                    }
                }
                Entry::FanOutRestarted { step, attempt, .. } => {
                    tracing::info!(job = %self.id, step = %name(*step), attempt, "fan-out goes on with what has no result");
                }
                Entry::JobPaused { .. }
                | Entry::JobResumed { .. }
                | Entry::JobRetried { .. }
                | Entry::JobRerun { .. } => {
                    tracing::debug!(job = %self.id, state = job.state().word(), "job state changed");
                }
                Entry::ChildrenStarted { step, from, count, .. } => {
                    tracing::trace!(job = %self.id, step = %name(*step), from, count, "children started")
                }
                Entry::ChildCompleted { step, index, .. } => {
                    tracing::trace!(job = %self.id, step = %name(*step), index, "child completed")
                }
                Entry::ChildFailed { step, index } => {
                    tracing::debug!(job = %self.id, step = %name(*step), index, "child failed")
                }
                Entry::CallerJoined { caller } => {
                    tracing::debug!(job = %self.id, reply_to = %caller.reply_to, correlation_id = caller.correlation_id.as_deref(), "a caller waits for the end");
                }
                Entry::CallerAnswered { caller } => {
                    tracing::debug!(job = %self.id, caller, "caller answered")
                }
                Entry::JobCompleted { .. }
                | Entry::JobFailed { .. }
                | Entry::JobCancelled { .. } => self.observe_end(job, &workflow, now),
            }
        }
    }

    fn observe_end(&self, job: &Job, workflow: &str, now: Timestamp) {
        let metrics = &self.shared.metrics;
        let state = job.state().word();
        let elapsed = now.0 - job.origin().created.0;
        if self.parent.is_some() {
            tracing::debug!(job = %self.id, state, elapsed_ms = elapsed / 1_000_000, "child job ended");
            return;
        }
        metrics.jobs_ended.with_label_values(&[workflow, state]).inc();
        metrics.job_duration.with_label_values(&[workflow, state]).observe(elapsed as f64 / 1e9);
        tracing::info!(job = %self.id, workflow, state, elapsed_ms = elapsed / 1_000_000, reason = job.reason().map(|reason| &**reason), "job ended");
    }
}

/// What a worker said, kept for the log until it is decided whether it counts.
pub(super) struct Said {
    step: String,
    attempt: Option<u32>,
    reply: Reply,
}

impl Said {
    pub(super) fn of(input: &Input) -> Option<Said> {
        match input {
            Input::Reply { step, attempt, reply } => {
                Some(Said { step: step.clone(), attempt: *attempt, reply: reply.clone() })
            }
            Input::Confirmed { .. }
            | Input::QueueMissing(_)
            | Input::ChildEnded { .. }
            | Input::ChildMissing { .. }
            | Input::Timer { .. }
            | Input::Order(_)
            | Input::Operate(_)
            | Input::Called(_)
            | Input::Answered { .. }
            | Input::Abandon(_) => None,
        }
    }

    /// Says that it counted for nothing.
    pub(super) fn log(&self, job: JobId, rejected: Rejected) {
        let (kind, value) = match &self.reply {
            Reply::Result(body) => ("result", beginning(body)),
            Reply::Progress(body) => ("progress", beginning(body)),
            Reply::Error(body) => ("error", beginning(body)),
            Reply::DeadLettered { reason, .. } => ("dead letter", shortened(reason)),
        };
        let (step, fault) = (shortened(&self.step), rejected.fault());
        tracing::warn!(
            %job, step, attempt = self.attempt, reason = rejected.label(), fault, kind, value,
            "a reply that changes nothing (logged once a minute per reason)"
        );
    }
}

/// The beginning of a body, for the log.
pub(super) fn beginning(body: &[u8]) -> String {
    /// More than are shown, as a character has up to four bytes.
    const LOOKED_AT_BYTES_MAX: usize = 400;
    shortened(&String::from_utf8_lossy(&body[..body.len().min(LOOKED_AT_BYTES_MAX)]))
}
