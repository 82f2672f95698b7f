//! What a job actor is started with.

use crate::actors::inputs::Outgoing;
use crate::actors::memory::{job_bytes, new_job_bytes};
use engine::{Caller, Definition, Effect, Job, JobId, Message, Origin, ParentItem};
use journal::JobNumber;
use std::sync::Arc;

/// A job actor to be started.
pub struct SpawnRequest {
    /// The job.
    pub id: JobId,
    /// Its number.
    pub number: JobNumber,
    /// The number of the root job.
    pub root: JobNumber,
    /// The parent's number.
    pub parent: Option<JobNumber>,
    /// How its actor starts.
    pub start: JobStart,
}

/// How a job actor starts.
pub enum JobStart {
    /// With a new job.
    New {
        /// The origin of the job.
        origin: Arc<Origin>,
        /// Its message.
        message: Message,
        /// The caller that waits for its end.
        caller: Option<Caller>,
        /// For a root job: what is sent after the commit, the response to the client or the
        /// acknowledgement of the call.
        outgoing: Vec<Outgoing>,
    },
    /// With a job from the journal.
    Recovered {
        /// The job.
        job: Box<Job>,
        /// Its effects that may not have been sent yet.
        effects: Vec<Effect>,
    },
}

impl JobStart {
    /// Returns the definition that the job runs.
    pub fn definition(&self) -> &Arc<Definition> {
        match self {
            JobStart::New { origin, .. } => &origin.definition,
            JobStart::Recovered { job, .. } => job.definition(),
        }
    }

    /// Returns how many bytes the job takes in memory.
    pub fn bytes(&self) -> usize {
        match self {
            JobStart::New { origin, message, .. } => new_job_bytes(origin, message),
            JobStart::Recovered { job, .. } => job_bytes(job),
        }
    }

    /// Returns the step and item of the parent that the job was started for.
    pub fn parent_item(&self) -> Option<ParentItem> {
        match self {
            JobStart::New { origin, .. } => origin.parent,
            JobStart::Recovered { job, .. } => job.origin().parent,
        }
    }
}
