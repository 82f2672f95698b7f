//! What a job actor is started with.

use crate::actors::mail::Outgoing;
use crate::actors::memory::{bytes_of, bytes_of_new};
use crate::engine::{Caller, Definition, Effect, Job, JobId, Message, Origin, Parent};
use crate::journal::JobNumber;
use std::sync::Arc;

/// A job actor to be started.
pub struct Spawn {
    /// The job.
    pub id: JobId,
    /// Its number.
    pub number: JobNumber,
    /// The number of the root job.
    pub root: JobNumber,
    /// The parent's number.
    pub parent: Option<JobNumber>,
    /// How its actor starts.
    pub start: Start,
}

/// How a job actor starts.
pub enum Start {
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
        release: Vec<Outgoing>,
    },
    /// With a job from the journal.
    Recovered {
        /// The job.
        job: Box<Job>,
        /// Its effects that may not have been sent yet.
        effects: Vec<Effect>,
    },
}

impl Start {
    /// Returns the definition that the job runs.
    pub fn definition(&self) -> &Arc<Definition> {
        match self {
            Start::New { origin, .. } => &origin.definition,
            Start::Recovered { job, .. } => job.definition(),
        }
    }

    /// Returns how many bytes the job takes in memory.
    pub fn bytes(&self) -> usize {
        match self {
            Start::New { origin, message, .. } => bytes_of_new(origin, message),
            Start::Recovered { job, .. } => bytes_of(job),
        }
    }

    /// Returns the step and item of the parent that the job was started for.
    pub fn place(&self) -> Option<Parent> {
        match self {
            Start::New { origin, .. } => origin.parent,
            Start::Recovered { job, .. } => job.origin().parent,
        }
    }
}
