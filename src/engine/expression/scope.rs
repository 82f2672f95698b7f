//! The variables of a condition.

use crate::json::Message;

/// The values of the variables that a condition reads.
pub trait Scope {
    /// Returns `input`: the step's merged input.
    fn input(&self) -> Message;
    /// Returns `job`: the job's message.
    fn job(&self) -> &Message;
    /// Returns `steps["name"]`; `None`: the job has no such step.
    fn step(&self, name: &str) -> Option<ScopeStep<'_>>;
    /// Returns `steps`: all steps of the job.
    fn steps(&self) -> Vec<ScopeStep<'_>>;
}

/// A step as a condition reads it.
#[derive(Clone, Copy, Debug)]
pub struct ScopeStep<'a> {
    /// The name of the step.
    pub name: &'a str,
    /// `state`: `waiting`, `running`, `completed`, `failed`, `skipped` or `cancelled`.
    pub state: &'static str,
    /// `status`: the step's status word; empty while it waits.
    pub status: &'a str,
    /// `output`: its output; `None`: it has none, and a condition reads an empty object.
    pub output: Option<&'a Message>,
}
