//! Follows a job by its stream of server-sent events, and reconnects when the stream breaks. If the
//! manager refuses another stream because it has too many, the job is polled for a while instead.

use super::client::{Client, StreamResponse};
use super::error::ClientError;
use super::responses::{JobResponse, StepResponse, parse_response};
use super::stream::{EventReader, JobEnd, ServerSentEvent, StreamItem};
use super::text::Text;
use base::clock;
use engine::JobId;
use std::collections::HashMap;
use std::convert::Infallible;
use std::io::Write;
use std::ops::ControlFlow;
use std::time::Duration;
use tokio::time::Instant;
use ureq::http::StatusCode;

/// The bounds of the backoff between two polls without a stream, and between two attempts to
/// reconnect.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// How long the job is polled before a stream is requested again.
const POLL_PERIOD: Duration = Duration::from_secs(10);

/// After this long without an event, the job is polled once, since the stream may have missed the
/// end of the job.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// What a follower reports to its callback.
pub(super) enum FollowEvent<'a> {
    /// An event of the job.
    Event(&'a ServerSentEvent),
    /// The stream broke or the manager cannot be reached, for this reason. The follower reconnects.
    Disconnected(&'a str),
    /// There was no event for one tick, or a poll has found the job still running.
    Idle,
}

/// The decision of a callback: to continue, or to stop with a value.
pub(super) type FollowResult<B> = Result<ControlFlow<B>, ClientError>;

/// Follows one job until it has ended.
pub(super) struct JobFollower<'c> {
    client: &'c Client,
    id: JobId,
    /// The path of the stream, with its query.
    path: String,
    /// For how long to reconnect to a manager that does not answer.
    reconnect_timeout: Duration,
    /// Whether the manager has answered before.
    has_answered: bool,
    /// How long to wait for an event before `Idle` is reported.
    tick: Duration,
    /// The id of the newest event; empty before the first one.
    last_event_id: String,
    /// The last polled state of each step, by the name of the step.
    polled_steps: HashMap<String, StepSnapshot>,
}

/// A step at the time of a poll, as far as its changes are reported.
#[derive(PartialEq, Eq)]
struct StepSnapshot {
    state: String,
    status: String,
    attempt: u32,
}

/// The outcome of one stream, or of one period of polling.
enum StreamOutcome<B> {
    /// The job has ended.
    Ended(JobEnd),
    /// The callback stopped, with this value.
    Stopped(B),
    /// The stream must be opened again, for this reason.
    Reopen(String),
}

impl<'c> JobFollower<'c> {
    /// Makes a follower. With `has_child_events` the events of child jobs are reported, too.
    pub(super) fn new(
        client: &'c Client,
        id: JobId,
        has_child_events: bool,
        reconnect_timeout: Duration,
    ) -> JobFollower<'c> {
        let query = if has_child_events { "" } else { "?children=none" };
        JobFollower {
            client,
            id,
            path: format!("/api/job/{id}/events{query}"),
            reconnect_timeout,
            has_answered: false,
            tick: SILENCE_MAX,
            last_event_id: String::new(),
            polled_steps: HashMap::new(),
        }
    }

    /// Declares that the manager has just created the job. So the manager has answered before, and
    /// the follower reconnects even if its first request fails.
    pub(super) fn for_new_job(self) -> JobFollower<'c> {
        JobFollower { has_answered: true, ..self }
    }

    /// Sets how long to wait for an event before `Idle` is reported.
    pub(super) fn with_tick(self, tick: Duration) -> JobFollower<'c> {
        JobFollower { tick, ..self }
    }

    /// Reports all events, until the job has ended.
    pub(super) fn follow(
        self,
        mut report: impl FnMut(&mut Self, FollowEvent<'_>) -> Result<(), ClientError>,
    ) -> Result<JobEnd, ClientError> {
        let outcome = self.follow_until(|follower, event| {
            report(follower, event).map(ControlFlow::<Infallible>::Continue)
        })?;
        match outcome {
            ControlFlow::Continue(end) => Ok(end),
            ControlFlow::Break(never) => match never {},
        }
    }

    /// Reports all events, until the job has ended or the callback stops.
    pub(super) fn follow_until<B>(
        mut self,
        mut report: impl FnMut(&mut Self, FollowEvent<'_>) -> FollowResult<B>,
    ) -> Result<ControlFlow<B, JobEnd>, ClientError> {
        let mut reconnect = ReconnectPolicy::new(self.reconnect_timeout, self.has_answered);
        loop {
            let outcome = match self.client.open_stream(&self.path, &self.last_event_id) {
                Ok(StreamResponse::Stream(body)) => {
                    let opened_at = reconnect.handle_open();
                    let outcome = self.read_stream(&EventReader::new(body), &mut report);
                    reconnect.handle_close(opened_at);
                    outcome
                }
                // All events were reported before, including the end of the job.
                Ok(StreamResponse::NoContent) => self.poll_end(),
                Ok(StreamResponse::Refused(status, detail)) => {
                    self.poll_job(status, detail, &mut report)
                }
                Err(error) => Err(error),
            };
            match outcome {
                Ok(StreamOutcome::Ended(end)) => return Ok(ControlFlow::Continue(end)),
                Ok(StreamOutcome::Stopped(value)) => return Ok(ControlFlow::Break(value)),
                Ok(StreamOutcome::Reopen(reason)) => {
                    if let ControlFlow::Break(value) =
                        report(&mut self, FollowEvent::Disconnected(&reason))?
                    {
                        return Ok(ControlFlow::Break(value));
                    }
                    reconnect.wait();
                }
                Err(ClientError::Unreachable { error, .. }) => {
                    reconnect
                        .handle_failure(&error)
                        .map_err(|error| self.client.unreachable_error(error))?;
                    if let ControlFlow::Break(value) =
                        report(&mut self, FollowEvent::Disconnected(&error))?
                    {
                        return Ok(ControlFlow::Break(value));
                    }
                    reconnect.wait();
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reports the events of a stream, until the job has ended, the callback stops, or the stream
    /// breaks.
    fn read_stream<B>(
        &mut self,
        stream: &EventReader,
        report: &mut impl FnMut(&mut Self, FollowEvent<'_>) -> FollowResult<B>,
    ) -> Result<StreamOutcome<B>, ClientError> {
        let mut last_event_at = clock::timer_now();
        loop {
            match stream.next(self.tick) {
                StreamItem::Event(event) => {
                    last_event_at = clock::timer_now();
                    if !event.id.is_empty() {
                        event.id.clone_into(&mut self.last_event_id);
                    }
                    if let ControlFlow::Break(value) = report(self, FollowEvent::Event(&event))? {
                        return Ok(StreamOutcome::Stopped(value));
                    }
                    if let Some(end) = event.job_end(self.id)? {
                        return Ok(StreamOutcome::Ended(end));
                    }
                    // The end may be among the events that were missed.
                    if event.name == "lagged"
                        && let ended @ StreamOutcome::Ended(_) = self.poll_end()?
                    {
                        return Ok(ended);
                    }
                }
                StreamItem::TimedOut => {
                    if let ControlFlow::Break(value) = report(self, FollowEvent::Idle)? {
                        return Ok(StreamOutcome::Stopped(value));
                    }
                    if last_event_at.elapsed() >= SILENCE_MAX {
                        last_event_at = clock::timer_now();
                        if let ended @ StreamOutcome::Ended(_) = self.poll_end()? {
                            return Ok(ended);
                        }
                    }
                }
                StreamItem::Closed(reason) => return Ok(StreamOutcome::Reopen(reason)),
            }
        }
    }

    /// Handles a refused stream: polls the job for `POLL_PERIOD`, with exponential backoff. If the
    /// refusal is not temporary, it is an error.
    fn poll_job<B>(
        &mut self,
        status: StatusCode,
        detail: String,
        report: &mut impl FnMut(&mut Self, FollowEvent<'_>) -> FollowResult<B>,
    ) -> Result<StreamOutcome<B>, ClientError> {
        if !status.is_server_error() && status != StatusCode::TOO_MANY_REQUESTS {
            return Err(ClientError::Refused(detail));
        }
        let (started_at, mut backoff) = (clock::timer_now(), BACKOFF_MIN);
        loop {
            let job = self.fetch_job()?;
            for event in self.take_changes(&job) {
                if let ControlFlow::Break(value) = report(self, FollowEvent::Event(&event))? {
                    return Ok(StreamOutcome::Stopped(value));
                }
            }
            if job.is_ended() {
                return Ok(StreamOutcome::Ended(JobEnd { state: job.state, reason: job.reason }));
            }
            if let ControlFlow::Break(value) = report(self, FollowEvent::Idle)? {
                return Ok(StreamOutcome::Stopped(value));
            }
            if started_at.elapsed() >= POLL_PERIOD {
                return Ok(StreamOutcome::Reopen(detail));
            }
            std::thread::sleep(backoff);
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// Polls the job once. Returns its end, or `Reopen` if it has not ended.
    fn poll_end<B>(&self) -> Result<StreamOutcome<B>, ClientError> {
        let job = self.fetch_job()?;
        Ok(if job.is_ended() {
            StreamOutcome::Ended(JobEnd { state: job.state, reason: job.reason })
        } else {
            StreamOutcome::Reopen("it went on after its end".to_owned())
        })
    }

    /// Fetches the job as it is now, without the parts that grow with a large job.
    pub(super) fn fetch_job(&self) -> Result<JobResponse, ClientError> {
        parse_response(&self.client.get(&format!("/api/job/{}?view=light", self.id))?)
    }

    /// Remembers the states of the steps. Returns what has changed since the last poll, as events
    /// without an id.
    fn take_changes(&mut self, job: &JobResponse) -> Vec<ServerSentEvent> {
        let mut changes = Vec::new();
        for step in &job.steps {
            let snapshot = StepSnapshot {
                state: step.state.to_string(),
                status: step.status.to_string(),
                attempt: step.attempt,
            };
            let has_changed = match self.polled_steps.get(step.name.raw()) {
                Some(previous) => *previous != snapshot,
                None => step.state != "waiting",
            };
            self.polled_steps.insert(step.name.raw().to_owned(), snapshot);
            if has_changed {
                changes.push(build_event(job, Some(step), &step.state));
            }
        }
        if job.is_ended() {
            changes.push(build_event(job, None, &job.state));
        }
        changes
    }
}

/// Builds the event of a step, or of the job if there is no step, as a stream would have it.
fn build_event(job: &JobResponse, step: Option<&StepResponse>, state: &str) -> ServerSentEvent {
    let subject = if step.is_some() { "step" } else { "job" };
    let time = step.map_or(job.ended.as_ref(), |step| {
        step.end_time.as_ref().or(step.attempt_start_time.as_ref())
    });
    let reason = step.map_or(&job.reason, |step| &step.reason);
    let data = serde_json::json!({
        "workflow": job.workflow.raw(),
        "task": job.task.as_ref().map(Text::raw),
        "job": job.uuid.raw(),
        "step": step.map(|step| step.name.raw()),
        "state": state,
        "status": step.map(|step| step.status.raw()),
        "attempt": step.map(|step| step.attempt),
        "reason": reason.as_ref().map(Text::raw),
    });
    let time = time.unwrap_or(&job.created).raw();
    let name = format!("{subject}.{state}");
    let event_type = format!("workflow-manager.{name}");
    let data = serde_json::json!({ "type": event_type, "time": time, "data": data });
    ServerSentEvent { id: String::new(), name, data: data.to_string() }
}

/// Decides how long to reconnect to a manager that does not answer, with exponential backoff.
pub(super) struct ReconnectPolicy {
    /// How long the manager may fail to answer.
    timeout: Duration,
    /// Whether the manager has answered before. An address that never answered is not retried.
    has_answered: bool,
    /// Since when the manager has not answered. `None` if it answers.
    unreachable_since: Option<Instant>,
    /// The next pause.
    backoff: Duration,
}

impl ReconnectPolicy {
    /// Makes a policy with a timeout. `has_answered` is whether the manager has answered before.
    pub(super) fn new(timeout: Duration, has_answered: bool) -> ReconnectPolicy {
        ReconnectPolicy { timeout, has_answered, unreachable_since: None, backoff: BACKOFF_MIN }
    }

    /// Handles an attempt that did not reach the manager.
    ///
    /// # Errors
    ///
    /// Returns an error if the manager never answered, or has not answered for the timeout.
    pub(super) fn handle_failure(&mut self, error: &str) -> Result<(), String> {
        if !self.has_answered {
            return Err(error.to_owned());
        }
        let now = clock::timer_now();
        let unreachable_since = *self.unreachable_since.get_or_insert(now);
        if now.duration_since(unreachable_since) < self.timeout {
            return Ok(());
        }
        let timeout = humantime::format_duration(self.timeout);
        Err(format!(
            "{error} (the stream of events ended, and the manager has not answered for {timeout})"
        ))
    }

    /// Handles the start of a stream, which shows that the manager answers. Returns the time, for
    /// [`ReconnectPolicy::handle_close`].
    pub(super) fn handle_open(&mut self) -> Instant {
        (self.unreachable_since, self.has_answered) = (None, true);
        clock::timer_now()
    }

    /// Handles the end of a stream. Resets the backoff, unless the stream has ended soon after it
    /// was opened.
    pub(super) fn handle_close(&mut self, opened_at: Instant) {
        if opened_at.elapsed() > BACKOFF_MAX {
            self.backoff = BACKOFF_MIN;
        }
    }

    /// Waits for the backoff, and doubles it up to its maximum.
    pub(super) fn wait(&mut self) {
        std::thread::sleep(self.backoff);
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
    }
}

/// Prints a notice on standard error, apart from the result of the command.
pub(super) fn print_notice(text: &str) {
    // Writing fails if standard error is closed; then nobody could read the notice.
    let _ = writeln!(std::io::stderr(), "{text}");
}
