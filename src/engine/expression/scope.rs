//! What a condition sees of its job.

use crate::engine::json::Message;

/// What a condition sees.
pub trait Scope {
    /// `input`: the step's merged input.
    fn input(&self) -> Message;
    /// `job`: the job's message.
    fn job(&self) -> &Message;
    /// `steps["name"]`.
    fn step(&self, name: &str) -> Option<SeenStep<'_>>;
    /// `steps`: every step of the job.
    fn steps(&self) -> Vec<SeenStep<'_>>;
}

/// A step as a condition sees it.
#[derive(Clone, Copy, Debug)]
pub struct SeenStep<'a> {
    /// Its name.
    pub name: &'a str,
    /// `state`: `waiting`, `running`, `completed`, `failed`, `skipped` or `cancelled`.
    pub state: &'static str,
    /// `status`: the business word; empty while it waits.
    pub status: &'a str,
    /// `output`: its output, or an empty object while there is none.
    pub output: Option<&'a Message>,
}
