//! The responses to clients: one type for each kind of request.

use crate::engine::{Job, JobId, JobState, Message, Objection, StepState, Timestamp};
use crate::journal::Creation;
use std::borrow::Cow;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The reason that a cancelled job shows.
pub const CANCELLED_BY: &str = "by a call of the API";

/// The response to the creation of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// The job was created by this request.
    New(JobId),
    /// The job existed already, with the same workflow and message.
    Known(JobId),
}

impl Created {
    /// Returns the job's id.
    pub fn id(self) -> JobId {
        match self {
            Created::New(id) | Created::Known(id) => id,
        }
    }
}

/// The response to an operation on a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Now {
    /// The job's state.
    Job(JobState),
    /// The job's state and the step, after an operation on the step.
    Step(JobState, StepNow),
}

/// A step after an operation on it.
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
    /// Why it failed, or its last attempt did.
    pub reason: Option<Arc<str>>,
    /// When the next attempt is due.
    pub retry_at: Option<Timestamp>,
}

/// The response to the erasure of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Erased;

/// Why a request of a client is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such job or workflow.
    Unknown,
    /// The job has no such step.
    UnknownStep(String),
    /// The id belongs to another job, or the request is not possible now.
    Conflict(String),
    /// The reply that was given by hand is wrong.
    Invalid(String),
    /// A limit is reached, or nothing is accepted now.
    Overloaded(String),
    /// Something broke; the text is for the log and the client.
    Failed(String),
}

/// Where the response to a client is sent.
pub type Client<T> = oneshot::Sender<Result<T, Refusal>>;

/// A response, and where it is sent.
pub enum Answer {
    /// To a creation.
    Created(Client<Created>, Result<Created, Refusal>),
    /// To an operation.
    Now(Client<Now>, Result<Now, Refusal>),
    /// To a deletion.
    Erased(Client<Erased>, Result<Erased, Refusal>),
}

/// What is known of the job that has an id.
pub struct Known<'a> {
    /// Whether it is a child job.
    pub is_child: bool,
    /// The workflow's full name.
    pub workflow: Cow<'a, str>,
    /// The message of a root job.
    pub message: Option<&'a Message>,
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
    /// Sends the response. The client may have gone; what was done stays done.
    pub fn tell(self) {
        match self {
            Answer::Created(to, answer) => drop(to.send(answer)),
            Answer::Now(to, answer) => drop(to.send(answer)),
            Answer::Erased(to, answer) => drop(to.send(answer)),
        }
    }

    /// Replaces the result by this error.
    pub fn refused(self, refusal: Refusal) -> Answer {
        match self {
            Answer::Created(to, _) => Answer::Created(to, Err(refusal)),
            Answer::Now(to, _) => Answer::Now(to, Err(refusal)),
            Answer::Erased(to, _) => Answer::Erased(to, Err(refusal)),
        }
    }

    /// Returns the response for the case that the job turns out to be deleted.
    pub fn of_deleted(self) -> Answer {
        match self {
            Answer::Now(to, Ok(_)) => Answer::Now(to, Err(Refusal::Unknown)),
            Answer::Created(to, Ok(Created::Known(id))) => Answer::Created(
                to,
                Err(Refusal::Overloaded(format!("job {id} was deleted meanwhile: ask again"))),
            ),
            Answer::Created(..) | Answer::Now(..) | Answer::Erased(..) => self,
        }
    }
}

impl Created {
    /// Returns the response to a client that asks for a job under an id that is, or was, in use
    /// (docs/http-api.md).
    ///
    /// # Errors
    ///
    /// The client asks for a different job.
    pub fn again<'a>(
        id: JobId,
        known: impl Into<Known<'a>>,
        workflow: &str,
        message: &Message,
    ) -> Result<Created, Refusal> {
        let known = known.into();
        let conflict = if known.is_child {
            format!("the id {id} belongs to a child job")
        } else if known.workflow != workflow {
            format!("the id {id} belongs to a job of workflow \"{}\"", known.workflow)
        } else if known.message != Some(message) {
            format!("the id {id} belongs to a job with another message")
        } else {
            return Ok(Created::Known(id));
        };
        Err(Refusal::Conflict(conflict))
    }
}

impl Now {
    /// Returns the state after an operation on that step, or on the whole job.
    pub fn of(job: &Job, step: Option<&str>) -> Now {
        let Some(index) = step.and_then(|step| job.graph().index_of(step)) else {
            return Now::Job(job.state());
        };
        let run = job.step(index);
        let now = StepNow {
            name: job.graph().step(index).name.clone(),
            state: job.step_state(index),
            status: job.status(index).to_owned(),
            attempt: run.attempt,
            reason: run.failure.as_ref().map(|failure| failure.reason.clone()),
            retry_at: run.retry_at(),
        };
        Now::Step(job.state(), now)
    }
}

impl Refusal {
    /// Returns the error that no more jobs can run.
    pub fn of_full(limit: usize) -> Refusal {
        Refusal::Overloaded(format!("{limit} jobs are running (setting limits.jobs_running_max)"))
    }

    /// Returns the error that jobs hold as much memory as they may.
    pub fn of_memory(held: usize, max: usize, bytes: usize) -> Refusal {
        Refusal::Overloaded(format!(
            "jobs under way hold {held} bytes of memory, and one of {bytes} bytes more would \
             exceed {max} (setting limits.jobs_bytes_max): ask again when some of them have ended"
        ))
    }

    /// Returns the error that a job which has not ended cannot be erased.
    pub fn of_running(id: JobId, state: JobState) -> Refusal {
        Refusal::Conflict(format!(
            "job {id} is {}: only an ended job can be erased; cancel it first",
            state.word()
        ))
    }

    /// Returns the error that an ended child job cannot be erased alone.
    pub fn of_ended_child(id: JobId) -> Refusal {
        Refusal::Conflict(format!(
            "job {id} is an ended child job: it goes with the job it belongs to"
        ))
    }
}

impl From<Objection> for Refusal {
    fn from(objection: Objection) -> Refusal {
        match objection {
            Objection::UnknownStep(text) => Refusal::UnknownStep(text),
            Objection::Conflict(text) => Refusal::Conflict(text),
            Objection::Invalid(text) => Refusal::Invalid(text),
        }
    }
}
