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
    /// The top-level job's number.
    pub root: JobNumber,
    /// The parent's number.
    pub parent: Option<JobNumber>,
    /// How it begins.
    pub start: Start,
}

/// How an actor begins.
pub enum Start {
    /// With a new job.
    New {
        /// Where it comes from.
        origin: Arc<Origin>,
        /// Its message.
        message: Message,
        /// Who waits for its end.
        caller: Option<Caller>,
        /// For a top-level job: what leaves after the commit, the answer to the client or the ack
        /// of the call.
        release: Vec<Outgoing>,
    },
    /// With a job from the journal.
    Recovered {
        /// The job.
        job: Box<Job>,
        /// Its open effects.
        effects: Vec<Effect>,
    },
}

impl Start {
    /// What the job goes by.
    pub fn definition(&self) -> &Arc<Definition> {
        match self {
            Start::New { origin, .. } => &origin.definition,
            Start::Recovered { job, .. } => job.definition(),
        }
    }

    /// What the job takes in memory, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Start::New { origin, message, .. } => bytes_of_new(origin, message),
            Start::Recovered { job, .. } => bytes_of(job),
        }
    }

    /// The job's place in its parent.
    pub fn place(&self) -> Option<Parent> {
        match self {
            Start::New { origin, .. } => origin.parent,
            Start::Recovered { job, .. } => job.origin().parent,
        }
    }
}
