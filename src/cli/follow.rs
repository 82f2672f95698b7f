//! Follows a job by its stream of events. A stream that breaks is opened again. If there is none
//! (too many streams), the light view of the job is polled instead.

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

/// The bounds of the pause between two polls without a stream, and between two attempts to reach
/// the manager.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// How long the light view is polled before a stream that was refused is requested again.
const POLL_FOR: Duration = Duration::from_secs(10);

/// A stream that is silent for this long may have lost the end of the job; the job is then polled.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// What is reported to the one who follows a job.
pub(super) enum FollowEvent<'a> {
    /// An event of the job.
    Event(&'a ServerSentEvent),
    /// The manager cannot be reached, for this reason. Further attempts follow.
    Disconnected(&'a str),
    /// Nothing happened for the time that was requested.
    Idle,
}

/// Whether to go on following, as the callback decides.
pub(super) type FollowResult<B> = Result<ControlFlow<B>, ClientError>;

/// Follows one job.
pub(super) struct JobFollower<'c> {
    client: &'c Client,
    id: JobId,
    path: String,
    /// How long to wait for a manager that does not answer.
    reconnect_timeout: Duration,
    /// Whether the manager has answered before.
    has_answered: bool,
    /// How often to report that nothing happens.
    tick: Duration,
    /// The id of the newest event.
    last_event_id: String,
    /// The last reported state, status and attempt of each step.
    steps: HashMap<String, (String, String, u32)>,
}

/// The outcome of one stream.
enum StreamOutcome<B> {
    Ended(JobEnd),
    /// The callback has stopped.
    Stopped(B),
    /// It must be opened again, once the manager answers.
    Reopen(String),
}

impl<'c> JobFollower<'c> {
    pub(super) fn new(
        client: &'c Client,
        id: JobId,
        has_children: bool,
        reconnect_timeout: Duration,
    ) -> JobFollower<'c> {
        let children = if has_children { "" } else { "?children=none" };
        JobFollower {
            client,
            id,
            path: format!("/api/job/{id}/events{children}"),
            reconnect_timeout,
            has_answered: false,
            tick: SILENCE_MAX,
            last_event_id: String::new(),
            steps: HashMap::new(),
        }
    }

    /// Makes this a follower of a job that the manager has just created.
    pub(super) fn for_new_job(self) -> JobFollower<'c> {
        JobFollower { has_answered: true, ..self }
    }

    /// Reports also that nothing happens, this often.
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
                    let opened = reconnect.handle_open();
                    let outcome = self.read_stream(&EventReader::new(body), &mut report);
                    reconnect.handle_close(opened);
                    outcome
                }
                // Everything was reported before, including the end.
                Ok(StreamResponse::NoContent) => self.check_ended(),
                Ok(StreamResponse::Refused(status, detail)) => {
                    self.poll_job(status, detail, &mut report)
                }
                Err(error) => Err(error),
            };
            match outcome {
                Ok(StreamOutcome::Ended(end)) => return Ok(ControlFlow::Continue(end)),
                Ok(StreamOutcome::Stopped(enough)) => return Ok(ControlFlow::Break(enough)),
                Ok(StreamOutcome::Reopen(why)) => {
                    if let ControlFlow::Break(enough) =
                        report(&mut self, FollowEvent::Disconnected(&why))?
                    {
                        return Ok(ControlFlow::Break(enough));
                    }
                    reconnect.wait();
                }
                Err(ClientError::Unreachable { error, .. }) => {
                    reconnect
                        .handle_failure(&error)
                        .map_err(|error| self.client.unreachable_error(error))?;
                    if let ControlFlow::Break(enough) =
                        report(&mut self, FollowEvent::Disconnected(&error))?
                    {
                        return Ok(ControlFlow::Break(enough));
                    }
                    reconnect.wait();
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn read_stream<B>(
        &mut self,
        stream: &EventReader,
        report: &mut impl FnMut(&mut Self, FollowEvent<'_>) -> FollowResult<B>,
    ) -> Result<StreamOutcome<B>, ClientError> {
        let mut last_event = clock::timer_now();
        loop {
            match stream.next(self.tick) {
                StreamItem::Event(sent) => {
                    last_event = clock::timer_now();
                    if !sent.id.is_empty() {
                        sent.id.clone_into(&mut self.last_event_id);
                    }
                    if let ControlFlow::Break(enough) = report(self, FollowEvent::Event(&sent))? {
                        return Ok(StreamOutcome::Stopped(enough));
                    }
                    if let Some(end) = sent.job_end(self.id)? {
                        return Ok(StreamOutcome::Ended(end));
                    }
                    // The end may be among the events that were missed.
                    if sent.name == "lagged"
                        && let ended @ StreamOutcome::Ended(_) = self.check_ended()?
                    {
                        return Ok(ended);
                    }
                }
                StreamItem::TimedOut => {
                    if let ControlFlow::Break(enough) = report(self, FollowEvent::Idle)? {
                        return Ok(StreamOutcome::Stopped(enough));
                    }
                    if last_event.elapsed() >= SILENCE_MAX {
                        last_event = clock::timer_now();
                        if let ended @ StreamOutcome::Ended(_) = self.check_ended()? {
                            return Ok(ended);
                        }
                    }
                }
                StreamItem::Closed(why) => return Ok(StreamOutcome::Reopen(why)),
            }
        }
    }

    /// Polls the job for a while, if a stream may be available later.
    fn poll_job<B>(
        &mut self,
        status: StatusCode,
        detail: String,
        report: &mut impl FnMut(&mut Self, FollowEvent<'_>) -> FollowResult<B>,
    ) -> Result<StreamOutcome<B>, ClientError> {
        if !status.is_server_error() && status != StatusCode::TOO_MANY_REQUESTS {
            return Err(ClientError::Refused(detail));
        }
        let (begun, mut pause) = (clock::timer_now(), PAUSE_MIN);
        loop {
            let job = self.fetch_job()?;
            for sent in self.changes_since_last_poll(&job) {
                if let ControlFlow::Break(enough) = report(self, FollowEvent::Event(&sent))? {
                    return Ok(StreamOutcome::Stopped(enough));
                }
            }
            if job.is_ended() {
                return Ok(StreamOutcome::Ended(JobEnd { state: job.state, reason: job.reason }));
            }
            if let ControlFlow::Break(enough) = report(self, FollowEvent::Idle)? {
                return Ok(StreamOutcome::Stopped(enough));
            }
            if begun.elapsed() >= POLL_FOR {
                return Ok(StreamOutcome::Reopen(detail));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn check_ended<B>(&self) -> Result<StreamOutcome<B>, ClientError> {
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

    /// Returns what has changed since the last poll, as events without an id.
    fn changes_since_last_poll(&mut self, job: &JobResponse) -> Vec<ServerSentEvent> {
        let mut changes = Vec::new();
        for step in &job.steps {
            let now = (step.state.to_string(), step.status.to_string(), step.attempt);
            let before = self.steps.insert(step.name.raw().to_owned(), now.clone());
            let is_news = before.map_or(step.state != "waiting", |before| before != now);
            if is_news {
                changes.push(build_event(job, Some(step), &step.state));
            }
        }
        if job.is_ended() {
            changes.push(build_event(job, None, &job.state));
        }
        changes
    }
}

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
    let kind = format!("workflow-manager.{name}");
    let data = serde_json::json!({ "type": kind, "time": time, "data": data });
    ServerSentEvent { id: String::new(), name, data: data.to_string() }
}

/// The time since the manager has stopped answering, and the pause before the next attempt.
pub(super) struct ReconnectPolicy {
    timeout: Duration,
    /// Whether the manager has answered before. An address that never answered is not retried.
    has_answered: bool,
    since: Option<Instant>,
    pause: Duration,
}

impl ReconnectPolicy {
    pub(super) fn new(timeout: Duration, has_answered: bool) -> ReconnectPolicy {
        ReconnectPolicy { timeout, has_answered, since: None, pause: PAUSE_MIN }
    }

    /// Notes that the manager does not answer, for this reason.
    ///
    /// # Errors
    ///
    /// Returns an error if it has not answered for too long.
    pub(super) fn handle_failure(&mut self, error: &str) -> Result<(), String> {
        if !self.has_answered {
            return Err(error.to_owned());
        }
        let now = clock::timer_now();
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) < self.timeout {
            return Ok(());
        }
        let timeout = humantime::format_duration(self.timeout);
        Err(format!(
            "{error} (the stream of events ended, and the manager has not answered for {timeout})"
        ))
    }

    /// Notes that the manager answers: a stream is open from now on.
    pub(super) fn handle_open(&mut self) -> Instant {
        (self.since, self.has_answered) = (None, true);
        clock::timer_now()
    }

    /// Notes that the stream has ended. The pause is not reset for a stream that ends at once.
    pub(super) fn handle_close(&mut self, opened: Instant) {
        if opened.elapsed() > PAUSE_MAX {
            self.pause = PAUSE_MIN;
        }
    }

    pub(super) fn wait(&mut self) {
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

/// Prints something that is no result on standard error.
pub(super) fn print_notice(text: &str) {
    // With standard error closed, nobody can read it.
    let _ = writeln!(std::io::stderr(), "{text}");
}
