//! What a condition reads of its job.

use crate::json::Message;

/// The variables that a condition reads.
pub trait Scope {
    /// Returns `input`: the step's merged input.
    fn input(&self) -> Message;
    /// Returns `job`: the job's message.
    fn job(&self) -> &Message;
    /// Returns `steps["name"]`.
    fn step(&self, name: &str) -> Option<ScopeStep<'_>>;
    /// Returns `steps`: every step of the job.
    fn steps(&self) -> Vec<ScopeStep<'_>>;
}

/// A step as a condition reads it.
#[derive(Clone, Copy, Debug)]
pub struct ScopeStep<'a> {
    /// Its name.
    pub name: &'a str,
    /// `state`: `waiting`, `running`, `completed`, `failed`, `skipped` or `cancelled`.
    pub state: &'static str,
    /// `status`: the business word; empty while it waits.
    pub status: &'a str,
    /// `output`: its output, or an empty object while there is none.
    pub output: Option<&'a Message>,
}
