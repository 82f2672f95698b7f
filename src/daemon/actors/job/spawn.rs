//! The request to start a job actor, which the router makes.

use crate::actors::inputs::Outgoing;
use crate::actors::memory::{job_bytes, new_job_bytes};
use engine::{Caller, Definition, Effect, Job, JobId, Message, Origin, ParentItem};
use journal::JobNumber;
use std::sync::Arc;

/// A request to start a job actor.
pub struct SpawnRequest {
    /// The job's id.
    pub id: JobId,
    /// The job's number.
    pub number: JobNumber,
    /// The number of the root job.
    pub root: JobNumber,
    /// The number of the parent; `None`: the job is a root job.
    pub parent: Option<JobNumber>,
    /// The job that the actor starts with.
    pub start: JobStart,
}

/// The job that an actor starts with.
pub enum JobStart {
    /// A new job.
    New {
        /// The origin of the job.
        origin: Arc<Origin>,
        /// The message of the job.
        message: Message,
        /// The caller that waits for the job's end, if any.
        caller: Option<Caller>,
        /// What is sent after the commit: for a root job, the response to the client or the
        /// acknowledgement of the call.
        outgoing: Vec<Outgoing>,
    },
    /// A job from the journal.
    Recovered {
        /// The job.
        job: Box<Job>,
        /// The effects of the job that may not have been sent yet.
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

    /// Returns the step and item of the parent that the job was started for; `None`: it is a root
    /// job.
    pub fn parent_item(&self) -> Option<ParentItem> {
        match self {
            JobStart::New { origin, .. } => origin.parent,
            JobStart::Recovered { job, .. } => job.origin().parent,
        }
    }
}
