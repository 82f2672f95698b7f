//! The responses to clients: one type for each kind of request.

use engine::{Job, JobId, JobState, Message, OperationError, StepState, Timestamp};
use journal::JobCreation;
use std::borrow::Cow;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The reason of a job that a client has cancelled.
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

    /// Returns the response to a client that asks for a job under the id of an existing job
    /// (docs/reference/http-api-jobs.md).
    ///
    /// # Errors
    ///
    /// Returns an error if the client asks for a different job.
    pub fn from_existing<'a>(
        id: JobId,
        existing: impl Into<ExistingJob<'a>>,
        workflow: &str,
        message: &Message,
    ) -> Result<CreateResponse, RequestError> {
        let existing = existing.into();
        let reason = if existing.is_child {
            format!("the id {id} belongs to a child job")
        } else if existing.workflow != workflow {
            format!("the id {id} belongs to a job of workflow \"{}\"", existing.workflow)
        } else if existing.message != Some(message) {
            format!("the id {id} belongs to a job with another message")
        } else {
            return Ok(CreateResponse::Existing(id));
        };
        Err(RequestError::Conflict(reason))
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

/// The state of a step after an operation on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepSnapshot {
    /// The step's name.
    pub name: Arc<str>,
    /// The step's state.
    pub state: StepState,
    /// The step's status (docs/how-to/read-statuses-by-sql.md).
    pub status: String,
    /// The number of the latest attempt.
    pub attempt: u32,
    /// Why the step or its latest attempt failed; `None`: neither did.
    pub reason: Option<Arc<str>>,
    /// When the next attempt is due; `None`: no retry is scheduled.
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
    /// The reply that an operator has given is invalid, or the message of a job.
    Invalid(String),
    /// The limit of the workflow has no place for a job, and refuses it.
    NoPlace(String),
    /// A limit is reached, or the manager accepts no requests now.
    Overloaded(String),
    /// An internal error.
    Failed(String),
}

/// The sender of a response to a client.
pub type ResponseSender<T> = oneshot::Sender<Result<T, RequestError>>;

/// A response with its sender.
pub enum ClientResponse {
    /// The response to a creation.
    Create(ResponseSender<CreateResponse>, Result<CreateResponse, RequestError>),
    /// The response to an operation.
    Operation(ResponseSender<OperationResponse>, Result<OperationResponse, RequestError>),
    /// The response to an erasure.
    Erase(ResponseSender<Erased>, Result<Erased, RequestError>),
}

/// A view of the job that has an id already, for comparison with a new request under the id.
pub struct ExistingJob<'a> {
    /// Whether the job is a child job.
    pub is_child: bool,
    /// The workflow's full name.
    pub workflow: Cow<'a, str>,
    /// The job's message; `None`: the job is a child job, whose message is not compared.
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
    /// Sends the response. If the client has disconnected, the response is dropped.
    pub fn send(self) {
        match self {
            ClientResponse::Create(sender, result) => drop(sender.send(result)),
            ClientResponse::Operation(sender, result) => drop(sender.send(result)),
            ClientResponse::Erase(sender, result) => drop(sender.send(result)),
        }
    }

    /// Replaces the result by this error.
    pub fn with_error(self, error: RequestError) -> ClientResponse {
        match self {
            ClientResponse::Create(sender, _) => ClientResponse::Create(sender, Err(error)),
            ClientResponse::Operation(sender, _) => ClientResponse::Operation(sender, Err(error)),
            ClientResponse::Erase(sender, _) => ClientResponse::Erase(sender, Err(error)),
        }
    }

    /// Converts the response to the one to send if the job was deleted before the commit.
    pub fn after_deletion(self) -> ClientResponse {
        match self {
            ClientResponse::Operation(sender, Ok(_)) => {
                ClientResponse::Operation(sender, Err(RequestError::NotFound))
            }
            ClientResponse::Create(sender, Ok(CreateResponse::Existing(id))) => {
                let reason = format!("job {id} was deleted meanwhile: ask again");
                ClientResponse::Create(sender, Err(RequestError::Overloaded(reason)))
            }
            ClientResponse::Create(..)
            | ClientResponse::Operation(..)
            | ClientResponse::Erase(..) => self,
        }
    }
}

impl OperationResponse {
    /// Returns the state after an operation on the step with this name; `None`: on the whole job.
    pub fn from_job(job: &Job, step: Option<&str>) -> OperationResponse {
        let Some(index) = step.and_then(|step| job.graph().find_index(step)) else {
            return OperationResponse::Job(job.state());
        };
        let run = job.step(index);
        let snapshot = StepSnapshot {
            name: job.graph().step(index).name.clone(),
            state: job.step_state(index),
            status: job.status(index).to_owned(),
            attempt: run.attempt,
            reason: run.failure.as_ref().map(|failure| failure.reason.clone()),
            retry_at: run.retry_at(),
        };
        OperationResponse::Step(job.state(), snapshot)
    }
}

impl RequestError {
    /// Returns the error that no more jobs can run.
    pub fn jobs_running_max(limit: usize) -> RequestError {
        RequestError::Overloaded(format!(
            "{limit} jobs are running (setting limits.jobs_running_max)"
        ))
    }

    /// Returns the error that a job of `bytes` bytes would exceed the memory limit of jobs, of
    /// which `used_bytes` are used.
    pub fn memory_full(used_bytes: usize, limit_bytes: usize, bytes: usize) -> RequestError {
        RequestError::Overloaded(format!(
            "jobs under way hold {used_bytes} bytes of memory, and one of {bytes} bytes more would \
             exceed {limit_bytes} (setting limits.jobs_bytes_max): ask again when some of them \
             have ended"
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
    fn from(error: OperationError) -> RequestError {
        match error {
            OperationError::UnknownStep(reason) => RequestError::UnknownStep(reason),
            OperationError::Conflict(reason) => RequestError::Conflict(reason),
            OperationError::Invalid(reason) => RequestError::Invalid(reason),
        }
    }
}
