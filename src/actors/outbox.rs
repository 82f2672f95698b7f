//! What leaves after a commit, in order: the only door through which effects go out.

use super::announcer::AnnouncerInput;
use super::events::Event;
use super::job::JobInput;
use super::router::RouterInput;
use super::shared::Shared;
use super::webhook::Webhook;
use crate::bus::{Acknowledge, Publication};
use crate::engine::{
    ChildEnd, Input, Job, JobId, JobState, Message, Objection, Order, Origin, Parent, StepState,
    Timestamp,
};
use crate::faults;
use crate::journal::Creation;
use crate::journal::JobNumber;
use std::borrow::Cow;
use std::sync::Arc;
use tokio::sync::oneshot;

/// One thing to do after the commit.
pub enum Outgoing {
    /// Take the delivery off its queue.
    Ack(Acknowledge),
    /// Publish a message.
    Send(Publication),
    /// Start a child job.
    StartChild(Box<NewChild>),
    /// Tell a child job.
    ToChild(ToChild),
    /// Tell the parent.
    ToParent(Parent, ChildEnd),
    /// Tell a client.
    Answer(oneshot::Sender<Answer>, Answer),
    /// Something that waits for this commit, by being dropped after it.
    Hold(Arc<Done>),
    /// Tell those who listen.
    Announce(Vec<Arc<Event>>),
    /// A notice for the webhook is in the journal.
    Noticed,
}

/// What a child job is told.
pub struct ToChild {
    /// The child job.
    pub id: JobId,
    /// Its place: another job may have its id by now.
    pub place: Parent,
    /// The parent's number.
    pub parent: JobNumber,
    /// What it is told.
    pub order: Order,
}

/// A child job to be started.
pub struct NewChild {
    /// Where it comes from.
    pub origin: Origin,
    /// Its message.
    pub message: Message,
    /// The parent's number.
    pub parent: JobNumber,
    /// The top-level job's number.
    pub root: JobNumber,
}

/// What a client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The job exists from now on.
    Created(JobId),
    /// It existed already, with the same workflow and message.
    Existing(JobId),
    /// The id belongs to something else.
    Conflict(String),
    /// There are too many.
    Overloaded(String),
    /// What was asked of it is done; its state now.
    Changed(JobState),
    /// What was asked of a step is done; the job's state now, and the step's.
    Step(JobState, StepNow),
    /// It is deleted.
    Deleted,
    /// There is none.
    Unknown,
    /// The job has no such step.
    UnknownStep(String),
    /// What was said of a step by hand is wrong.
    Invalid(String),
    /// Something broke; the text is for the log and the client.
    Failed(String),
}

/// A step after what was asked of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepNow {
    /// Its name.
    pub name: Arc<str>,
    /// Its state.
    pub state: StepState,
    /// Its status.
    pub status: String,
    /// Its attempt.
    pub attempt: u32,
    /// Why it, or its last attempt, failed.
    pub reason: Option<Arc<str>>,
    /// When the next attempt is due.
    pub retry_at: Option<Timestamp>,
}

/// What is known of the job that has an id.
pub struct Known<'a> {
    /// Whether it is a child job.
    pub is_child: bool,
    /// The workflow's full name.
    pub workflow: Cow<'a, str>,
    /// A top-level job's message.
    pub message: Option<&'a Message>,
}

/// Why no other job can have an id that is promised to a child job.
pub fn promised(id: JobId) -> String {
    format!("the id {id} belongs to a child job that is about to start")
}

impl<'a> From<&'a Creation> for Known<'a> {
    fn from(creation: &'a Creation) -> Known<'a> {
        Known {
            is_child: creation.is_child,
            workflow: creation.workflow.as_str().into(),
            message: creation.message.as_ref(),
        }
    }
}

impl<'a> From<&'a Job> for Known<'a> {
    fn from(job: &'a Job) -> Known<'a> {
        Known {
            is_child: job.origin().parent.is_some(),
            workflow: job.definition().full_name().into(),
            message: Some(job.message()),
        }
    }
}

impl Answer {
    /// What a client is told who asks for a job under an id that is in use, or was (SPEC §5.1).
    pub fn again<'a>(
        id: JobId,
        known: impl Into<Known<'a>>,
        workflow: &str,
        message: &Message,
    ) -> Answer {
        let known = known.into();
        if known.is_child {
            Answer::Conflict(format!("the id {id} belongs to a child job"))
        } else if known.workflow != workflow {
            Answer::Conflict(format!(
                "the id {id} belongs to a job of workflow \"{}\"",
                known.workflow
            ))
        } else if known.message != Some(message) {
            Answer::Conflict(format!("the id {id} belongs to a job with another message"))
        } else {
            Answer::Existing(id)
        }
    }

    /// What a client is told whose operation, on that step or on the whole job, is done.
    pub fn done(job: &Job, step: Option<&str>) -> Answer {
        let Some(index) = step.and_then(|step| job.graph().index_of(step)) else {
            return Answer::Changed(job.state());
        };
        let run = job.step(index);
        let now = StepNow {
            name: job.graph().step(index).name.clone(),
            state: job.step_state(index),
            status: job.status(index).to_owned(),
            attempt: run.attempt,
            reason: run.failure.as_ref().map(|failure| failure.reason.clone()),
            retry_at: run.retry_at,
        };
        Answer::Step(job.state(), now)
    }

    /// What a client is told while no more jobs can run.
    pub fn of_full(limit: usize) -> Answer {
        Answer::Overloaded(format!("{limit} jobs are running (setting limits.jobs_running_max)"))
    }

    /// What a client is told who erases a job that runs.
    pub fn of_running(id: JobId, state: JobState) -> Answer {
        Answer::Conflict(format!(
            "job {id} is {}: only an ended job can be erased; cancel it first",
            state.word()
        ))
    }

    /// What a client is told who erases a child job that has ended.
    pub fn of_ended_child(id: JobId) -> Answer {
        Answer::Conflict(format!(
            "job {id} is an ended child job: it goes with the job it belongs to"
        ))
    }
}

impl From<Objection> for Answer {
    fn from(objection: Objection) -> Answer {
        match objection {
            Objection::UnknownStep(text) => Answer::UnknownStep(text),
            Objection::Conflict(text) => Answer::Conflict(text),
            Objection::Invalid(text) => Answer::Invalid(text),
        }
    }
}

/// Answers when the last clone is dropped.
pub struct Done(Option<oneshot::Sender<()>>);

impl Done {
    /// Answers `to`.
    pub fn new(to: oneshot::Sender<()>) -> Arc<Done> {
        Arc::new(Done(Some(to)))
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        if let Some(to) = self.0.take() {
            // Nobody waits any more: the bus has closed.
            let _ = to.send(());
        }
    }
}

impl Outgoing {
    /// What is left of it if the job turns out to be deleted: nothing was decided, so nothing
    /// follows.
    pub fn of_deleted(self, shared: &Shared) -> Option<Outgoing> {
        match self {
            Outgoing::Hold(_) => Some(self),
            // Back to its queue: a reply is for nobody by then, a call finds the id free.
            Outgoing::Ack(_) => None,
            Outgoing::Answer(to, Answer::Changed(_) | Answer::Step(..)) => {
                Some(Outgoing::Answer(to, Answer::Unknown))
            }
            Outgoing::Answer(to, Answer::Existing(id)) => Some(Outgoing::Answer(
                to,
                Answer::Overloaded(format!("job {id} was deleted meanwhile: ask again")),
            )),
            Outgoing::Answer(..) => Some(self),
            Outgoing::StartChild(child) => {
                shared.routes.unclaim(child.origin.id);
                None
            }
            Outgoing::Send(..)
            | Outgoing::ToChild(_)
            | Outgoing::ToParent(..)
            | Outgoing::Announce(_)
            | Outgoing::Noticed => None,
        }
    }

    /// Does it. Called by the journal actor after the commit, in order.
    pub fn release(self, shared: &Shared) {
        match self {
            Outgoing::Ack(acknowledge) => {
                faults::hit("outbox::ack");
                acknowledge.ack();
            }
            Outgoing::Send(message) => {
                faults::hit("outbox::dispatch");
                match shared.buses.find(&message.to.bus) {
                    Some(bus) => bus.post(super::bus::BusInput::Publish(message)),
                    None => {
                        tracing::error!(bus = %message.to.bus, message = message.id, "no such bus");
                    }
                }
            }
            Outgoing::StartChild(child) => {
                shared.wiring().router.post(RouterInput::StartChild(child))
            }
            // Through the router, behind the child's start.
            Outgoing::ToChild(told) => shared.wiring().router.post(RouterInput::ToChild(told)),
            Outgoing::ToParent(parent, ended) => {
                if let Some(job) = shared.routes.find(parent.job) {
                    job.post(JobInput::Take {
                        input: Input::ChildEnded { step: parent.step, index: parent.index, ended },
                        ack: None,
                    });
                }
            }
            Outgoing::Answer(to, answer) => {
                faults::observe("outbox::answer", || answer.clone());
                faults::hit("outbox::answer");
                // The client may have gone; the answer holds all the same.
                let _ = to.send(answer);
            }
            Outgoing::Hold(done) => drop(done),
            Outgoing::Announce(events) => announce(events, shared),
            Outgoing::Noticed => shared.webhook.iter().for_each(Webhook::noticed),
        }
    }
}

/// Best effort: an announcer that is behind does not hold up the journal.
fn announce(events: Vec<Arc<Event>>, shared: &Shared) {
    if let Err(refused) = shared.wiring().announcer.offer(AnnouncerInput::Happened(events)) {
        let AnnouncerInput::Happened(events) = refused else { return };
        shared.feeds.lose(events.len());
        shared.metrics.events_dropped.with_label_values(&["streams"]).inc_by(events.len() as u64);
        if !shared.settings.events.exchange.is_empty() {
            shared
                .metrics
                .events_dropped
                .with_label_values(&["exchange"])
                .inc_by(events.len() as u64);
        }
    }
}
