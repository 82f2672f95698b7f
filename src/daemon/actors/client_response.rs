//! The responses to clients: one type for each kind of request.

use engine::{Job, JobId, JobState, Message, OperationError, StepState, Timestamp};
use journal::JobCreation;
use std::borrow::Cow;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The reason that a cancelled job shows.
pub const CANCEL_REASON: &str = "by a call of the API";

/// The response to the creation of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateResponse {
    /// The job was created by this request.
    New(JobId),
    /// The job existed already, with the same workflow and message.
    Existing(JobId),
}

impl CreateResponse {
    /// Returns the job's id.
    pub fn id(self) -> JobId {
        match self {
            CreateResponse::New(id) | CreateResponse::Existing(id) => id,
        }
    }
}

/// The response to an operation on a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationResponse {
    /// The job's state.
    Job(JobState),
    /// The job's state and the step, after an operation on the step.
    Step(JobState, StepSnapshot),
}

/// A step after an operation on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepSnapshot {
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
pub enum RequestError {
    /// There is no such job or workflow.
    NotFound,
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
pub type ResponseSender<T> = oneshot::Sender<Result<T, RequestError>>;

/// A response, and where it is sent.
pub enum ClientResponse {
    /// To a creation.
    Create(ResponseSender<CreateResponse>, Result<CreateResponse, RequestError>),
    /// To an operation.
    Operation(ResponseSender<OperationResponse>, Result<OperationResponse, RequestError>),
    /// To a deletion.
    Erase(ResponseSender<Erased>, Result<Erased, RequestError>),
}

/// What is known of the job that has an id.
pub struct ExistingJob<'a> {
    /// Whether it is a child job.
    pub is_child: bool,
    /// The workflow's full name.
    pub workflow: Cow<'a, str>,
    /// The message of a root job.
    pub message: Option<&'a Message>,
}

impl<'a> From<&'a JobCreation> for ExistingJob<'a> {
    fn from(creation: &'a JobCreation) -> ExistingJob<'a> {
        ExistingJob {
            is_child: creation.is_child,
            workflow: creation.workflow.as_str().into(),
            message: creation.message.as_ref(),
        }
    }
}

impl<'a> From<&'a Job> for ExistingJob<'a> {
    fn from(job: &'a Job) -> ExistingJob<'a> {
        ExistingJob {
            is_child: job.origin().parent.is_some(),
            workflow: job.definition().full_name().into(),
            message: Some(job.message()),
        }
    }
}

impl ClientResponse {
    /// Sends the response. The client may have gone; what was done stays done.
    pub fn send(self) {
        match self {
            ClientResponse::Create(to, answer) => drop(to.send(answer)),
            ClientResponse::Operation(to, answer) => drop(to.send(answer)),
            ClientResponse::Erase(to, answer) => drop(to.send(answer)),
        }
    }

    /// Replaces the result by this error.
    pub fn with_error(self, refusal: RequestError) -> ClientResponse {
        match self {
            ClientResponse::Create(to, _) => ClientResponse::Create(to, Err(refusal)),
            ClientResponse::Operation(to, _) => ClientResponse::Operation(to, Err(refusal)),
            ClientResponse::Erase(to, _) => ClientResponse::Erase(to, Err(refusal)),
        }
    }

    /// Returns the response for the case that the job turns out to be deleted.
    pub fn after_deletion(self) -> ClientResponse {
        match self {
            ClientResponse::Operation(to, Ok(_)) => {
                ClientResponse::Operation(to, Err(RequestError::NotFound))
            }
            ClientResponse::Create(to, Ok(CreateResponse::Existing(id))) => ClientResponse::Create(
                to,
                Err(RequestError::Overloaded(format!("job {id} was deleted meanwhile: ask again"))),
            ),
            ClientResponse::Create(..)
            | ClientResponse::Operation(..)
            | ClientResponse::Erase(..) => self,
        }
    }
}

impl CreateResponse {
    /// Returns the response to a client that asks for a job under an id that is, or was, in use
    /// (docs/http-api.md).
    ///
    /// # Errors
    ///
    /// The client asks for a different job.
    pub fn from_existing<'a>(
        id: JobId,
        known: impl Into<ExistingJob<'a>>,
        workflow: &str,
        message: &Message,
    ) -> Result<CreateResponse, RequestError> {
        let known = known.into();
        let conflict = if known.is_child {
            format!("the id {id} belongs to a child job")
        } else if known.workflow != workflow {
            format!("the id {id} belongs to a job of workflow \"{}\"", known.workflow)
        } else if known.message != Some(message) {
            format!("the id {id} belongs to a job with another message")
        } else {
            return Ok(CreateResponse::Existing(id));
        };
        Err(RequestError::Conflict(conflict))
    }
}

impl OperationResponse {
    /// Returns the state after an operation on that step, or on the whole job.
    pub fn from_job(job: &Job, step: Option<&str>) -> OperationResponse {
        let Some(index) = step.and_then(|step| job.graph().find_index(step)) else {
            return OperationResponse::Job(job.state());
        };
        let run = job.step(index);
        let now = StepSnapshot {
            name: job.graph().step(index).name.clone(),
            state: job.step_state(index),
            status: job.status(index).to_owned(),
            attempt: run.attempt,
            reason: run.failure.as_ref().map(|failure| failure.reason.clone()),
            retry_at: run.retry_at(),
        };
        OperationResponse::Step(job.state(), now)
    }
}

impl RequestError {
    /// Returns the error that no more jobs can run.
    pub fn jobs_running_max(limit: usize) -> RequestError {
        RequestError::Overloaded(format!(
            "{limit} jobs are running (setting limits.jobs_running_max)"
        ))
    }

    /// Returns the error that jobs hold as much memory as they may.
    pub fn memory_full(used: usize, max: usize, bytes: usize) -> RequestError {
        RequestError::Overloaded(format!(
            "jobs under way hold {used} bytes of memory, and one of {bytes} bytes more would \
             exceed {max} (setting limits.jobs_bytes_max): ask again when some of them have ended"
        ))
    }

    /// Returns the error that a job which has not ended cannot be erased.
    pub fn job_not_ended(id: JobId, state: JobState) -> RequestError {
        RequestError::Conflict(format!(
            "job {id} is {}: only an ended job can be erased; cancel it first",
            state.as_str()
        ))
    }

    /// Returns the error that an ended child job cannot be erased alone.
    pub fn ended_child_job(id: JobId) -> RequestError {
        RequestError::Conflict(format!(
            "job {id} is an ended child job: it goes with the job it belongs to"
        ))
    }
}

impl From<OperationError> for RequestError {
    fn from(objection: OperationError) -> RequestError {
        match objection {
            OperationError::UnknownStep(text) => RequestError::UnknownStep(text),
            OperationError::Conflict(text) => RequestError::Conflict(text),
            OperationError::Invalid(text) => RequestError::Invalid(text),
        }
    }
}
