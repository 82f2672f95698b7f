//! Follows a job by its stream of events. A stream that breaks is opened again. If there is none
//! (an older manager, too many streams), the light view of the job is polled instead.

use super::client::{Client, Opened};
use super::error::ClientError;
use super::show::{JobAnswer, StepAnswer, parse};
use super::stream::{End, Next, SentEvent, Stream};
use super::text::Text;
use crate::clock;
use crate::engine::JobId;
use std::collections::HashMap;
use std::convert::Infallible;
use std::io::Write;
use std::ops::ControlFlow;
use std::time::Duration;
use tokio::time::Instant;
use ureq::http::StatusCode;

/// The bounds of the pause between two polls without a stream, and between two attempts to reach
/// the manager.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_LONGEST: Duration = Duration::from_millis(500);

/// How long the light view is polled before a stream that was refused is requested again.
const LOOK_FOR: Duration = Duration::from_secs(10);

/// A stream that is silent for this long may have lost the end of the job; the job is then polled.
const SILENT_MAX: Duration = Duration::from_secs(30);

/// What is reported to the one who follows a job.
pub(super) enum Heard<'a> {
    /// An event of the job.
    Event(&'a SentEvent),
    /// The manager cannot be reached, for this reason. Further attempts follow.
    Cut(&'a str),
    /// Nothing happened for the time that was requested.
    Nothing,
}

/// Whether to go on following, as the callback decides.
pub(super) type Told<B> = Result<ControlFlow<B>, ClientError>;

/// Follows one job.
pub(super) struct Follower<'c> {
    client: &'c Client,
    id: JobId,
    path: String,
    /// How long to wait for a manager that does not answer.
    patience: Duration,
    /// Whether the manager has answered before.
    was_there: bool,
    /// How often to report that nothing happens.
    tick: Duration,
    /// The id of the newest event.
    last: String,
    /// Whether the manager does not know the light view.
    is_old: bool,
    /// The last reported state, status and attempt of each step.
    steps: HashMap<String, (String, String, u32)>,
}

/// The outcome of one stream.
enum Outcome<B> {
    Ended(End),
    /// The callback has stopped.
    Enough(B),
    /// It must be opened again, once the manager answers.
    Again(String),
}

impl<'c> Follower<'c> {
    pub(super) fn new(
        client: &'c Client,
        id: JobId,
        has_children: bool,
        patience: Duration,
    ) -> Follower<'c> {
        let children = if has_children { "" } else { "?children=none" };
        Follower {
            client,
            id,
            path: format!("/api/job/{id}/events{children}"),
            patience,
            was_there: false,
            tick: SILENT_MAX,
            last: String::new(),
            is_old: false,
            steps: HashMap::new(),
        }
    }

    /// Makes this a follower of a job that the manager has just created.
    pub(super) fn of_new(self) -> Follower<'c> {
        Follower { was_there: true, ..self }
    }

    /// Reports also that nothing happens, this often.
    pub(super) fn every(self, tick: Duration) -> Follower<'c> {
        Follower { tick, ..self }
    }

    /// Reports all events, until the job has ended.
    pub(super) fn follow(
        self,
        mut tell: impl FnMut(&mut Self, Heard<'_>) -> Result<(), ClientError>,
    ) -> Result<End, ClientError> {
        let went = self.follow_until(|follower, heard| {
            tell(follower, heard).map(ControlFlow::<Infallible>::Continue)
        })?;
        match went {
            ControlFlow::Continue(end) => Ok(end),
            ControlFlow::Break(never) => match never {},
        }
    }

    /// Reports all events, until the job has ended or the callback stops.
    pub(super) fn follow_until<B>(
        mut self,
        mut tell: impl FnMut(&mut Self, Heard<'_>) -> Told<B>,
    ) -> Result<ControlFlow<B, End>, ClientError> {
        let mut silence = Silence::new(self.patience, self.was_there);
        loop {
            let outcome = match self.client.open(&self.path, &self.last) {
                Ok(Opened::Stream(body)) => {
                    let opened = silence.answered();
                    let outcome = self.listen(&Stream::new(body), &mut tell);
                    silence.ended(opened);
                    outcome
                }
                // Everything was reported before, including the end.
                Ok(Opened::Nothing) => self.looked(),
                Ok(Opened::Refused(status, detail)) => {
                    self.without_stream(status, detail, &mut tell)
                }
                Err(error) => Err(error),
            };
            match outcome {
                Ok(Outcome::Ended(end)) => return Ok(ControlFlow::Continue(end)),
                Ok(Outcome::Enough(enough)) => return Ok(ControlFlow::Break(enough)),
                Ok(Outcome::Again(why)) => {
                    if let ControlFlow::Break(enough) = tell(&mut self, Heard::Cut(&why))? {
                        return Ok(ControlFlow::Break(enough));
                    }
                    silence.pause();
                }
                Err(ClientError::Unreachable { error, .. }) => {
                    silence.note(&error).map_err(|error| self.client.unreachable(error))?;
                    if let ControlFlow::Break(enough) = tell(&mut self, Heard::Cut(&error))? {
                        return Ok(ControlFlow::Break(enough));
                    }
                    silence.pause();
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn listen<B>(
        &mut self,
        stream: &Stream,
        tell: &mut impl FnMut(&mut Self, Heard<'_>) -> Told<B>,
    ) -> Result<Outcome<B>, ClientError> {
        let mut heard = clock::ticks();
        loop {
            match stream.next(self.tick) {
                Next::Event(sent) => {
                    heard = clock::ticks();
                    if !sent.id.is_empty() {
                        sent.id.clone_into(&mut self.last);
                    }
                    if let ControlFlow::Break(enough) = tell(self, Heard::Event(&sent))? {
                        return Ok(Outcome::Enough(enough));
                    }
                    if let Some(end) = sent.end_of(self.id)? {
                        return Ok(Outcome::Ended(end));
                    }
                    // The end may be among the events that were missed.
                    if sent.name == "lagged"
                        && let ended @ Outcome::Ended(_) = self.looked()?
                    {
                        return Ok(ended);
                    }
                }
                Next::Nothing => {
                    if let ControlFlow::Break(enough) = tell(self, Heard::Nothing)? {
                        return Ok(Outcome::Enough(enough));
                    }
                    if heard.elapsed() >= SILENT_MAX {
                        heard = clock::ticks();
                        if let ended @ Outcome::Ended(_) = self.looked()? {
                            return Ok(ended);
                        }
                    }
                }
                Next::Ended(why) => return Ok(Outcome::Again(why)),
            }
        }
    }

    /// Polls the job: for a while if a stream may be available later, otherwise until its end.
    fn without_stream<B>(
        &mut self,
        status: StatusCode,
        detail: String,
        tell: &mut impl FnMut(&mut Self, Heard<'_>) -> Told<B>,
    ) -> Result<Outcome<B>, ClientError> {
        let is_for_now = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        let is_unknown = matches!(
            status,
            StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED
        );
        if !is_for_now && !is_unknown {
            return Err(ClientError::Refused(detail));
        }
        let (begun, mut pause) = (clock::ticks(), PAUSE_FIRST);
        loop {
            let job = self.look()?;
            for sent in self.changes(&job) {
                if let ControlFlow::Break(enough) = tell(self, Heard::Event(&sent))? {
                    return Ok(Outcome::Enough(enough));
                }
            }
            if job.is_ended() {
                return Ok(Outcome::Ended(End { state: job.state, reason: job.reason }));
            }
            if let ControlFlow::Break(enough) = tell(self, Heard::Nothing)? {
                return Ok(Outcome::Enough(enough));
            }
            if is_for_now && begun.elapsed() >= LOOK_FOR {
                return Ok(Outcome::Again(detail));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
    }

    fn looked<B>(&mut self) -> Result<Outcome<B>, ClientError> {
        let job = self.look()?;
        Ok(if job.is_ended() {
            Outcome::Ended(End { state: job.state, reason: job.reason })
        } else {
            Outcome::Again("it went on after its end".to_owned())
        })
    }

    /// Returns whether the manager does not know the light view.
    pub(super) fn is_old(&self) -> bool {
        self.is_old
    }

    /// Fetches the job as it is now, without the parts that grow with a large job.
    pub(super) fn look(&mut self) -> Result<JobAnswer, ClientError> {
        let path = format!("/api/job/{}", self.id);
        if !self.is_old {
            match self.client.ask(&format!("{path}?view=light"))? {
                Ok(body) => return parse(&body),
                Err((StatusCode::BAD_REQUEST, _)) => self.is_old = true,
                Err((_, detail)) => return Err(ClientError::Refused(detail)),
            }
        }
        parse(&self.client.get(&path)?)
    }

    /// Returns what has changed since the last poll, as events without an id.
    fn changes(&mut self, job: &JobAnswer) -> Vec<SentEvent> {
        let mut changes = Vec::new();
        for step in &job.steps {
            let now = (step.state.to_string(), step.status.to_string(), step.attempt);
            let before = self.steps.insert(step.name.raw().to_owned(), now.clone());
            let is_news = before.map_or(step.state != "waiting", |before| before != now);
            if is_news {
                changes.push(changed(job, Some(step), &step.state));
            }
        }
        if job.is_ended() {
            changes.push(changed(job, None, &job.state));
        }
        changes
    }
}

fn changed(job: &JobAnswer, step: Option<&StepAnswer>, state: &str) -> SentEvent {
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
    SentEvent { id: String::new(), name, data: data.to_string() }
}

/// The time since the manager has stopped answering, and the pause before the next attempt.
pub(super) struct Silence {
    patience: Duration,
    /// Whether the manager has answered before. An address that never answered is not retried.
    was_there: bool,
    since: Option<Instant>,
    pause: Duration,
}

impl Silence {
    pub(super) fn new(patience: Duration, was_there: bool) -> Silence {
        Silence { patience, was_there, since: None, pause: PAUSE_FIRST }
    }

    /// Notes that the manager does not answer, for this reason.
    ///
    /// # Errors
    ///
    /// Returns an error if it has not answered for too long.
    pub(super) fn note(&mut self, error: &str) -> Result<(), String> {
        if !self.was_there {
            return Err(error.to_owned());
        }
        let now = clock::ticks();
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) < self.patience {
            return Ok(());
        }
        let patience = humantime::format_duration(self.patience);
        Err(format!(
            "{error} (the stream of events ended, and the manager has not answered for {patience})"
        ))
    }

    /// Notes that the manager answers: a stream is open from now on.
    pub(super) fn answered(&mut self) -> Instant {
        (self.since, self.was_there) = (None, true);
        clock::ticks()
    }

    /// Notes that the stream has ended. The pause is not reset for a stream that ends at once.
    pub(super) fn ended(&mut self, opened: Instant) {
        if opened.elapsed() > PAUSE_LONGEST {
            self.pause = PAUSE_FIRST;
        }
    }

    pub(super) fn pause(&mut self) {
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(PAUSE_LONGEST);
    }
}

/// Prints something that is no result on standard error.
pub(super) fn say(text: &str) {
    // With standard error closed, nobody can read it.
    let _ = writeln!(std::io::stderr(), "{text}");
}
