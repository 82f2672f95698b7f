//! Reports a job's decisions in metrics and in the log.

use super::JobActor;
use crate::actors::inputs::Outgoing;
use crate::actors::listed_state::ListedState;
use engine::{
    CallerEntry, Entry, FanOutEntry, Job, JobEntry, JobState, Recorded, StepEntry, StepIndex,
    Timestamp,
};

/// Nanoseconds in a millisecond.
const MILLISECOND_NS: i64 = 1_000_000;

/// Nanoseconds in a second.
const SECOND_NS: f64 = 1e9;

impl JobActor {
    /// Updates the gauge of jobs by state.
    pub(super) fn update_state_gauge(&mut self) {
        let Some(job) = self.job() else { return };
        self.set_counted_state(Some(job.state()).filter(|state| !state.is_ended()));
    }

    /// Counts the job under this state, and no longer under the last one; `None`: it is not counted
    /// any more.
    pub(super) fn set_counted_state(&mut self, state: Option<JobState>) {
        let Some(job) = self.job() else { return };
        if state == self.counted_state {
            return;
        }
        let metrics = &self.env.metrics;
        if self.parent.is_some() {
            metrics
                .child_jobs
                .add(i64::from(state.is_some()) - i64::from(self.counted_state.is_some()));
        } else {
            let workflow = job.definition().full_name();
            let gauge =
                |state: JobState| metrics.jobs.with_label_values(&[&*workflow, state.as_str()]);
            if let Some(previous) = self.counted_state {
                gauge(previous).dec();
            }
            if let Some(state) = state {
                gauge(state).inc();
                metrics.series.add_definition(job.definition());
            }
        }
        self.counted_state = state;
    }

    /// Returns the update of what lists show, for readers of the route table; `None`: it has not
    /// changed since the last call.
    pub(super) fn listed_state_update(&mut self) -> Option<Outgoing> {
        let state = ListedState::from_job(self.job()?);
        let has_changed = self.reported_state.replace(state) != Some(state);
        has_changed.then(|| Outgoing::List(self.listed_state.clone(), state))
    }

    /// Counts and logs the entries of a decision.
    pub(super) fn report_decision(&self, recorded: &Recorded) {
        let Some(job) = self.job() else { return };
        let workflow = job.definition().full_name();
        for entry in &recorded.entries {
            match entry {
                Entry::Job(entry) => self.report_job_entry(job, &workflow, entry, recorded.at),
                Entry::Step(step, entry) => {
                    self.report_step_entry(job, &workflow, *step, entry, recorded.at);
                }
                Entry::FanOut(step, entry) => {
                    self.report_fan_out_entry(job, &workflow, *step, entry, recorded.at);
                }
                Entry::Caller(CallerEntry::Joined(caller)) => {
                    tracing::debug!(
                        job = %self.id,
                        reply_to = %caller.reply_to,
                        correlation_id = caller.correlation_id.as_deref(),
                        "a caller waits for the end"
                    );
                }
                Entry::Caller(CallerEntry::Answered(caller)) => {
                    tracing::debug!(job = %self.id, caller, "caller answered");
                }
            }
        }
    }

    /// Counts cells of the job that could not be computed.
    pub(super) fn report_column_errors(&self, errors: u32) {
        if let Some(job) = self.job().filter(|_| errors > 0) {
            let workflow = job.definition().full_name();
            let metric = &self.env.metrics.column_errors;
            metric.with_label_values(&[&*workflow]).inc_by(errors.into());
        }
    }

    fn report_job_entry(&self, job: &Job, workflow: &str, entry: &JobEntry, now: Timestamp) {
        let is_root = self.parent.is_none();
        match entry {
            JobEntry::Created { .. } => {
                if is_root {
                    self.env.metrics.jobs_created.with_label_values(&[workflow]).inc();
                    self.env.rates.record_created(workflow, now);
                }
                tracing::debug!(job = %self.id, %workflow, child = !is_root, "job created");
            }
            JobEntry::Completed | JobEntry::Failed { .. } | JobEntry::Cancelled { .. } => {
                self.report_end(job, workflow, now);
            }
            JobEntry::Paused
            | JobEntry::Resumed
            | JobEntry::Retried { .. }
            | JobEntry::Rerun { .. } => {
                let is_reopened =
                    matches!(entry, JobEntry::Retried { .. } | JobEntry::Rerun { .. });
                if let Some((ended_at, end_state)) =
                    self.previous_end.filter(|_| is_root && is_reopened)
                {
                    let elapsed_ns = ended_at.0 - job.origin().created.0;
                    self.env.rates.revoke_end(workflow, ended_at, end_state, elapsed_ns);
                }
                tracing::debug!(job = %self.id, state = job.state().as_str(), "job state changed");
            }
            JobEntry::Asked { operation, reason, by, .. } => {
                tracing::info!(
                    job = %self.id,
                    %operation,
                    by = by.as_deref(),
                    reason = reason.as_deref(),
                    "asked for by a client"
                );
            }
            JobEntry::Begun | JobEntry::Admitted => {
                tracing::debug!(job = %self.id, "the job begins");
            }
            JobEntry::Claimed { place } => {
                tracing::debug!(job = %self.id, limit = %place.limit, "the job claims its place");
            }
            JobEntry::ToldAgain => {
                tracing::debug!(job = %self.id, "the end is reported to the parent again");
            }
        }
    }

    /// Reports how long an attempt waited for its limits that is admitted now.
    fn report_limit_wait(&self, job: &Job, step: StepIndex, now: Timestamp) {
        let Some(claim) = job.step(step).claim() else { return };
        for place in claim.places.iter() {
            let limit = job.definition().full_limit_name(&place.limit);
            self.env.metrics.limits.observe_wait(&limit, claim.since, now);
        }
    }

    fn report_step_entry(
        &self,
        job: &Job,
        workflow: &str,
        step: StepIndex,
        entry: &StepEntry,
        now: Timestamp,
    ) {
        let metrics = &self.env.metrics;
        let (name, attempt) = (&*job.graph().step(step).name, job.step(step).attempt);
        let labels = [workflow, metrics.series.step_label(workflow, name)];
        match entry {
            StepEntry::Started { attempt, .. } => {
                metrics.dispatched.with_label_values(&labels).inc();
                self.report_limit_wait(job, step, now);
                tracing::debug!(job = %self.id, step = name, attempt, "step started");
            }
            StepEntry::Unconfirmed => {
                metrics.dispatched.with_label_values(&labels).inc();
                metrics.redispatched.with_label_values(&labels).inc();
                tracing::debug!(
                    job = %self.id,
                    step = name,
                    attempt,
                    "step dispatched again, as the same attempt"
                );
            }
            StepEntry::Confirmed => metrics.confirmed.with_label_values(&labels).inc(),
            StepEntry::Claimed { .. }
            | StepEntry::ResendClaimed
            | StepEntry::Leased(_)
            | StepEntry::Begun => {}
            StepEntry::Completed(_) => self.report_completed(job, workflow, step, now),
            StepEntry::Progressed { progress, .. } => {
                tracing::debug!(job = %self.id, step = name, attempt, ?progress, "step progressed");
            }
            StepEntry::AttemptFailed { attempt, failure, retry_at } => {
                metrics.retried.with_label_values(&labels).inc();
                let pause_ms = (retry_at.0 - now.0) / MILLISECOND_NS;
                tracing::info!(
                    job = %self.id,
                    step = name,
                    attempt,
                    pause_ms,
                    reason = %failure.reason,
                    "attempt failed, another follows"
                );
            }
            StepEntry::Skipped => tracing::debug!(job = %self.id, step = name, "step skipped"),
            StepEntry::Cancelled => tracing::info!(job = %self.id, step = name, "step cancelled"),
            StepEntry::Failed(failure) => {
                metrics.failed.with_label_values(&labels).inc();
                tracing::warn!(
                    job = %self.id,
                    step = name,
                    attempt,
                    reason = %failure.reason,
                    "step failed"
                );
            }
        }
    }

    fn report_fan_out_entry(
        &self,
        job: &Job,
        workflow: &str,
        step: StepIndex,
        entry: &FanOutEntry,
        now: Timestamp,
    ) {
        let name = &*job.graph().step(step).name;
        match entry {
            FanOutEntry::Started { warning: Some(warning), .. } => {
                tracing::warn!(job = %self.id, step = name, warning = %warning, "fan-out started");
            }
            FanOutEntry::Started { items, warning: None, .. } => {
                tracing::debug!(job = %self.id, step = name, items, "fan-out started");
            }
            FanOutEntry::Restarted { attempt, .. } => {
                tracing::info!(
                    job = %self.id,
                    step = name,
                    attempt,
                    "fan-out goes on with what has no result"
                );
            }
            FanOutEntry::ChildrenStarted { from, count, .. } => {
                tracing::trace!(job = %self.id, step = name, from, count, "children started");
            }
            FanOutEntry::ChildStarted { index, id } => {
                tracing::debug!(
                    job = %self.id,
                    step = name,
                    index,
                    child = %id,
                    "child started once more"
                );
            }
            FanOutEntry::ChildCompleted { index, .. } => {
                tracing::trace!(job = %self.id, step = name, index, "child completed");
            }
            FanOutEntry::ChildFailed { index } => {
                tracing::debug!(job = %self.id, step = name, index, "child failed");
            }
            FanOutEntry::Completed => self.report_completed(job, workflow, step, now),
        }
    }

    fn report_completed(&self, job: &Job, workflow: &str, step: StepIndex, now: Timestamp) {
        let (metrics, run) = (&self.env.metrics, job.step(step));
        let name = &*job.graph().step(step).name;
        let elapsed_ns = run.started.map_or(0, |started| now.0 - job.going_on_since(started).0);
        let labels = [workflow, metrics.series.step_label(workflow, name)];
        metrics.replied.with_label_values(&labels).inc();
        metrics.step_duration.with_label_values(&labels).observe(elapsed_ns as f64 / SECOND_NS);
        tracing::debug!(
            job = %self.id,
            step = name,
            attempt = run.attempt,
            elapsed_ms = elapsed_ns / MILLISECOND_NS,
            "step completed"
        );
    }

    fn report_end(&self, job: &Job, workflow: &str, now: Timestamp) {
        let metrics = &self.env.metrics;
        let state = job.state().as_str();
        let elapsed_ns = now.0 - job.going_on_since(job.origin().created).0;
        if self.parent.is_some() {
            tracing::debug!(
                job = %self.id,
                state,
                elapsed_ms = elapsed_ns / MILLISECOND_NS,
                "child job ended"
            );
            return;
        }
        self.env.rates.record_ended(workflow, now, job.state(), elapsed_ns);
        metrics.jobs_ended.with_label_values(&[workflow, state]).inc();
        metrics
            .job_duration
            .with_label_values(&[workflow, state])
            .observe(elapsed_ns as f64 / SECOND_NS);
        tracing::info!(
            job = %self.id,
            workflow,
            state,
            elapsed_ms = elapsed_ns / MILLISECOND_NS,
            reason = job.reason().map(|reason| &**reason),
            "job ended"
        );
    }
}
