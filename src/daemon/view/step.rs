//! The view of one step of a job with its newest attempts, which are derived from the job's record.

use super::job::{StepView, truncate};
use base::times::Rfc3339Time;
use engine::{
    Entry, Failure, FanOutEntry, Job, JobEntry, JobState, Recorded, StepEntry, StepIndex,
    StepState, Timestamp,
};
use serde::Serialize;
use std::collections::VecDeque;
use utoipa::ToSchema;

/// How many attempts the view has at most. Older ones are only counted.
const ATTEMPTS_MAX: usize = 100;

/// A step with its attempts and the sizes of its payloads, but without the payloads.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepDetail<'a> {
    #[serde(flatten)]
    step: StepView<'a>,
    /// The size of its input in bytes, once it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    input_bytes: Option<usize>,
    /// The size of its output in bytes, once it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    output_bytes: Option<usize>,
    attempts: Vec<Attempt>,
    /// How many older attempts are left out.
    #[serde(skip_serializing_if = "is_zero")]
    attempts_omitted: u64,
}

/// Returns whether a number is zero, so that it is left out of the JSON.
fn is_zero<N: Default + PartialEq>(count: &N) -> bool {
    *count == N::default()
}

impl<'a> StepDetail<'a> {
    /// Creates the view of a step of `job`. Elapsed times of a running step end at `now`.
    pub fn new(
        job: &'a Job,
        step: StepIndex,
        attempts: AttemptHistory,
        now: Timestamp,
    ) -> StepDetail<'a> {
        let run = job.step(step);
        let AttemptHistory { mut newest, omitted_count, .. } = attempts;
        // No entry of the step ends its last attempt if the end of the job has cut it off.
        if let Some(last) = newest.back_mut().filter(|last| last.state == AttemptState::Running) {
            let state = match job.step_state(step) {
                StepState::Cancelled | StepState::Skipped => AttemptState::Cancelled,
                StepState::Running if job.state() == JobState::Cancelled => AttemptState::Cancelled,
                StepState::Waiting
                | StepState::Running
                | StepState::Completed
                | StepState::Failed => last.state,
            };
            last.state = state;
            if state == AttemptState::Cancelled {
                last.end_time = run.ended.or(job.ended()).map(Rfc3339Time);
            }
        }
        StepDetail {
            step: StepView::new(job, step, now),
            input_bytes: job.started_input(step).map(|input| input.encoded_len()),
            output_bytes: run.output.as_ref().map(|output| output.encoded_len()),
            attempts: newest.into(),
            attempts_omitted: omitted_count,
        }
    }
}

/// The newest attempts of a step. [`AttemptHistory::apply`] builds it from the rows of the job's
/// record.
#[derive(Clone)]
pub struct AttemptHistory {
    step: StepIndex,
    /// At most [`ATTEMPTS_MAX`] attempts, the oldest first.
    newest: VecDeque<Attempt>,
    /// How many older attempts were dropped.
    omitted_count: u64,
}

#[derive(Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Attempt {
    attempt: u32,
    start_time: Rfc3339Time,
    /// When the broker confirmed its message.
    #[serde(skip_serializing_if = "Option::is_none")]
    confirmed: Option<Rfc3339Time>,
    /// Which delivery of its message a worker was given last, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery: Option<u32>,
    /// When the lease of that delivery ends, or ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_until: Option<Rfc3339Time>,
    /// How often the message was sent again.
    #[serde(skip_serializing_if = "is_zero")]
    redispatched: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_time: Option<Rfc3339Time>,
    state: AttemptState,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw: Option<String>,
    /// When the next attempt was due.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_at: Option<Rfc3339Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum AttemptState {
    Running,
    Completed,
    Failed,
    Cancelled,
}

impl AttemptHistory {
    /// Creates an empty history of a step.
    pub(crate) fn for_step(step: StepIndex) -> AttemptHistory {
        AttemptHistory { step, newest: VecDeque::new(), omitted_count: 0 }
    }

    /// Returns how much memory the history takes, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let text_bytes = |text: &Option<String>| text.as_ref().map_or(0, String::capacity);
        let texts: usize = self
            .newest
            .iter()
            .map(|attempt| text_bytes(&attempt.reason) + text_bytes(&attempt.raw))
            .sum();
        size_of::<AttemptHistory>() + self.newest.capacity() * size_of::<Attempt>() + texts
    }

    /// Applies the next row of the record, up to the entry numbered `last_number`. Rows must be
    /// applied in order.
    pub fn apply(&mut self, row: &Recorded, last_number: u64) {
        let numbered_entries = (row.first + 1..).zip(&row.entries);
        for (_, entry) in numbered_entries.take_while(|(number, _)| *number <= last_number) {
            match entry {
                Entry::Step(step, entry) if *step == self.step => self.apply_step(entry, row.at),
                Entry::FanOut(step, entry) if *step == self.step => {
                    self.apply_fan_out(entry, row.at)
                }
                Entry::Job(JobEntry::Cancelled { .. }) => {
                    self.end_attempt(AttemptState::Cancelled, row.at);
                }
                Entry::Job(_) | Entry::Step(..) | Entry::FanOut(..) | Entry::Caller(_) => {}
            }
        }
    }

    /// Applies an entry of the step.
    fn apply_step(&mut self, entry: &StepEntry, time: Timestamp) {
        match entry {
            StepEntry::Started { attempt, .. } => self.begin_attempt(*attempt, time),
            StepEntry::Confirmed => {
                if let Some(last) = self.newest.back_mut() {
                    last.confirmed = Some(Rfc3339Time(time));
                }
            }
            StepEntry::Leased(lease) => {
                if let Some(last) = self.newest.back_mut() {
                    last.delivery = Some(lease.delivery);
                    last.lease_until = Some(Rfc3339Time(lease.until));
                }
            }
            StepEntry::Unconfirmed => {
                if let Some(last) = self.newest.back_mut() {
                    last.confirmed = None;
                    last.delivery = None;
                    last.lease_until = None;
                    last.redispatched += 1;
                }
            }
            StepEntry::Completed(_) => self.end_attempt(AttemptState::Completed, time),
            StepEntry::AttemptFailed { failure, retry_at, .. } => {
                self.fail_attempt(failure, time);
                if let Some(last) = self.newest.back_mut() {
                    last.retry_at = Some(Rfc3339Time(*retry_at));
                }
            }
            StepEntry::Failed(failure) => self.fail_attempt(failure, time),
            StepEntry::Cancelled | StepEntry::Skipped => {
                self.end_attempt(AttemptState::Cancelled, time)
            }
            StepEntry::Claimed { .. }
            | StepEntry::ResendClaimed
            | StepEntry::Begun
            | StepEntry::Progressed { .. } => {}
        }
    }

    /// Applies an entry of the step as a fan-out. The start of a fan-out has no number of an
    /// attempt, so it gets the next one.
    fn apply_fan_out(&mut self, entry: &FanOutEntry, time: Timestamp) {
        match entry {
            FanOutEntry::Started { .. } => {
                let attempt = self.newest.back().map_or(1, |last| last.attempt + 1);
                self.begin_attempt(attempt, time);
            }
            FanOutEntry::Restarted { attempt, .. } => self.begin_attempt(*attempt, time),
            FanOutEntry::Completed => self.end_attempt(AttemptState::Completed, time),
            FanOutEntry::ChildrenStarted { .. }
            | FanOutEntry::ChildStarted { .. }
            | FanOutEntry::ChildCompleted { .. }
            | FanOutEntry::ChildFailed { .. } => {}
        }
    }

    /// Adds a running attempt. If there are [`ATTEMPTS_MAX`] already, drops the oldest one.
    fn begin_attempt(&mut self, attempt: u32, time: Timestamp) {
        if self.newest.len() == ATTEMPTS_MAX {
            self.newest.pop_front();
            self.omitted_count += 1;
        }
        self.newest.push_back(Attempt {
            attempt,
            start_time: Rfc3339Time(time),
            confirmed: None,
            delivery: None,
            lease_until: None,
            redispatched: 0,
            end_time: None,
            state: AttemptState::Running,
            reason: None,
            raw: None,
            retry_at: None,
        });
    }

    /// Ends the last attempt, unless it has ended already.
    fn end_attempt(&mut self, state: AttemptState, time: Timestamp) {
        if let Some(last) =
            self.newest.back_mut().filter(|last| last.state == AttemptState::Running)
        {
            last.state = state;
            last.end_time = Some(Rfc3339Time(time));
        }
    }

    /// Ends the last attempt as failed, and sets the reason. Does nothing if it has ended in
    /// another state.
    fn fail_attempt(&mut self, failure: &Failure, time: Timestamp) {
        self.end_attempt(AttemptState::Failed, time);
        if let Some(last) = self.newest.back_mut().filter(|last| last.state == AttemptState::Failed)
        {
            last.reason = Some(truncate(&failure.reason).to_owned());
            last.raw = failure.raw.as_deref().map(str::to_owned);
        }
    }
}
