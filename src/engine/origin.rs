//! Where a job comes from.

use super::definition::{Definition, GraphIndex};
use super::id::{JobId, StepIndex};
use super::time::Timestamp;
use std::sync::Arc;

/// Where a job comes from: all that never changes about it, except its message.
#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    /// The job's id.
    pub id: JobId,
    /// The definition it started with.
    pub definition: Arc<Definition>,
    /// The graph it runs: 0, or a task's.
    pub graph: GraphIndex,
    /// For a child job: which step of which job it belongs to.
    pub parent: Option<Parent>,
    /// The top-level job; its own id unless it is a child.
    pub root: JobId,
    /// 0 for a job that a client asked for; one more for each level of child jobs and for each call
    /// by a step.
    pub depth: u16,
    /// When it was created.
    pub created: Timestamp,
}

impl Origin {
    /// Of a job that a client asks for.
    pub fn top_level(id: JobId, definition: Arc<Definition>, created: Timestamp) -> Origin {
        Origin { id, definition, graph: 0, parent: None, root: id, depth: 0, created }
    }
}

/// A child job's place in its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// The parent.
    pub job: JobId,
    /// The parent's fan-out step.
    pub step: StepIndex,
    /// The item's index in the list.
    pub index: u32,
}
