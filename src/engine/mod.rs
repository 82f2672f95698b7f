//! The engine decides, everything else acts. It is plain data and functions: no clock, no chance,
//! no I/O, no logs, no async.
//!
//! ```text
//! Job::create(origin, message, ctx)   -> (Job, Decision)  a new job and what follows at once
//! job.handle_input(input, ctx)       -> Decision         decide, evolve, and on until nothing
//!                                                         more follows
//! Job::recover(origin, message, rows) -> Job              the fold of `evolve` over the journal
//! job.open_effects()                  -> effects          what may have been lost with the process
//! ```
//!
//! Inside, `decide(&self, input)` returns entries and changes nothing, [`Job::evolve`] applies an
//! entry, [`Job::effects`] returns what an entry causes; [`decision`] lets them take turns.
//!
//! The files, data first. Each imports only from those before it:
//!
//! | files | what |
//! |---|---|
//! | `id`, `time`, `text`, `json`, `state` | ids, times, texts, messages, the states' names |
//! | `trace` | the spans of jobs |
//! | `caller`, `cause` | the callers of a job; why a child job failed |
//! | `queue_declaration` | how a queue is declared |
//! | `expression`, `definition`, `origin` | the graphs; what a job was created by |
//! | `entry`, `input`, `effect` | what is recorded, what goes in, what goes out |
//! | `value_bytes` | the bytes of the values that a job holds |
//! | `fanout`, `step`, `job` | a job and its parts |
//! | `openapi` | schemas of what answers of the API hold |
//! | `reply`, `evolve` | what a reply says; what an entry changes |
//! | `effects`, `recover` | what an entry causes; after a restart |
//! | `conditions`, `failure`, `due`, `advance`, `caller_rules`, `operations`, `decide` | rules |
//! | `decision` | the loop over them |
//!
//! Invariants: [`Job::evolve`] is the only place that changes a job; an [`Entry`] records the
//! outcome of a decision, so replaying never decides again; a [`Decision`]'s effects may leave only
//! after its row is committed.

mod advance;
mod caller;
mod caller_rules;
pub mod cause;
mod conditions;
mod decide;
pub mod decision;
pub mod definition;
mod due;
pub mod effect;
mod effects;
pub mod entry;
mod evolve;
pub mod expression;
mod failure;
pub mod fanout;
pub mod id;
pub mod input;
pub mod job;
pub mod json;
#[cfg(feature = "openapi")]
mod openapi;
mod operations;
pub mod origin;
pub mod queue_declaration;
mod recover;
mod reply;
pub mod state;
pub mod step;
pub mod text;
pub mod time;
pub mod trace;
mod value_bytes;

pub use caller::Caller;
pub use cause::Cause;
pub use decision::Decision;
pub use definition::{
    Definition, DefinitionHash, Dependency, FanOutKeys, Graph, GraphIndex, InvalidHash, OnFailure,
    Retry, StatusWords, Step, Tolerate,
};
pub use effect::Effect;
pub use entry::{
    CallerEntry, Entry, Failure, FanOutEntry, JobEntry, Lease, Progress, Recorded, StepEntry,
};
pub use expression::Expression;
pub use fanout::{FanOut, ItemCounts, ItemState};
pub use id::{CorrelationId, JobId, StepIndex};
pub use input::{
    ChildEnd, ChildOutcome, Context, Input, Instruction, Limits, Operation, OperationError,
    OperationRequest, Order, Rejected, Reply, Sender, UnreadReplies,
};
pub use job::Job;
pub use json::{Json, Message};
pub use origin::{Origin, ParentItem};
pub use queue_declaration::{
    QUEUE_TYPE, QueueArgument, QueueArguments, QueueDeclaration, QueueType, check_argument,
};
pub use state::{JobState, StepState};
pub use step::StepRun;
pub use time::{Millis, Timestamp};
pub use trace::{TraceContext, TraceParent, TraceState};
pub use value_bytes::own_bytes;
