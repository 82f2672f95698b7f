//! The engine decides, everything else does. Plain data and functions: no clock, no chance, no I/O,
//! no logs, no async.
//!
//! ```text
//! Job::create(origin, message, ctx)  -> (Job, Decision)     a new job and what follows at once
//! job.take(input, ctx)               -> Decision            decide, evolve, and on until nothing more follows
//! Job::recover(origin, message, entries) -> Job             the fold of `evolve` over the journal
//! job.open_effects()                 -> effects             what may have been lost with the process
//! ```
//!
//! Invariants: [`Job::evolve`] is the only place that changes a job; an [`Entry`] records the
//! outcome of a decision, so replaying never decides again; a [`Decision`]'s effects may leave only
//! after its entries are committed.

mod call;
pub mod cause;
mod conditions;
mod decide;
pub mod definition;
pub mod entry;
mod evolve;
pub mod expression;
pub mod fanout;
pub mod id;
pub mod input;
pub mod job;
pub mod json;
mod operate;
pub mod step;
pub(crate) mod words;

pub use call::Caller;
pub use cause::Cause;
pub use definition::{
    Definition, Dependency, FanOutKeys, Graph, GraphIndex, Millis, OnFailure, Retry, StatusWords,
    Step, Tolerate,
};
pub use entry::{Decision, Effect, Entry, Failure, JobState, Origin, Parent, Progress, Timestamp};
pub use expression::Expression;
pub use fanout::FanOut;
pub use id::{CorrelationId, JobId, StepIndex};
pub use input::{
    ChildEnd, ChildOutcome, Claims, Context, Input, Instruction, Limits, Objection, Operation,
    Order, Rejected, Reply,
};
pub use job::Job;
pub use json::{Json, Message};
pub use step::{StepRun, StepState};
