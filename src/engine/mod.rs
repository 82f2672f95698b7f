//! The engine: decides what follows from each input of a job, and leaves it to other crates to
//! carry out the effects. It consists of plain data and pure functions: no clock, no randomness, no
//! I/O, no logs, no async.
//!
//! ```text
//! Job::create(origin, message, ctx)   -> (Job, Decision)  a new job, and what follows immediately
//! job.handle_input(input, ctx)        -> Decision         decide and evolve, repeated until
//!                                                         nothing more follows
//! Job::recover(origin, message, rows) -> Job              the fold of `evolve` over the journal
//! job.open_effects()                  -> effects          what may have been lost in a crash
//! ```
//!
//! Internally, `decide(&self, input)` returns entries and changes nothing, [`Job::evolve`] applies
//! an entry, and [`Job::effects`] returns the effects of an entry. The loop around them is in
//! [`decision`].
//!
//! The files, data first. Each file imports only from files before it in this table:
//!
//! | files | content |
//! |---|---|
//! | `time`, `id`, `text`, `json`, `state` | times, ids, texts, messages, states |
//! | `trace` | trace context |
//! | `reason_pattern` | what reasons have in common |
//! | `caller`, `cause` | the callers of a job; why a child job failed |
//! | `queue_declaration` | the declarations of queues |
//! | `cell` | the values of labels and columns |
//! | `expression`, `limit`, `job_limit` | conditions; limits of rate and concurrency, of jobs |
//! | `columns` | the label and the columns by which people know jobs |
//! | `schedule` | the slots of schedules, and what becomes of them |
//! | `definition`, `job_place`, `origin` | graphs; what a job claims; the origins of jobs |
//! | `control` | what operators have changed for a time |
//! | `spare` | places of limits that are handed out in advance |
//! | `gate` | who is admitted next by the limits |
//! | `entry`, `input`, `effect` | recorded events; the inputs of decisions, and their effects |
//! | `value_bytes` | the size of the values that a job holds |
//! | `fanout`, `step`, `job` | the states of a fan-out, a step and a job |
//! | `openapi` | schemas for the OpenAPI document |
//! | `reply`, `evolve` | parsing of replies; changes of a job |
//! | `effects`, `recover` | the effects of entries; recovery after a restart |
//! | `conditions`, `failure` | conditions of a job's steps; what follows from a failure |
//! | `cells` | the values of the label and the columns of a job |
//! | `demands` | what a job wants of the gate |
//! | `due`, `advance`, `caller_rules`, `operations`, `decide` | rules |
//! | `decision` | the decision loop |
//!
//! Invariants:
//!
//! - Only [`Job::evolve`] changes a job.
//! - An [`Entry`] records the outcome of a decision, so a replay never decides again.
//! - The effects of a [`Decision`] may be carried out only after its entries are committed.

mod advance;
mod caller;
mod caller_rules;
pub mod cause;
pub mod cell;
pub mod cells;
pub mod columns;
mod conditions;
pub mod control;
mod decide;
pub mod decision;
pub mod definition;
mod demands;
mod due;
pub mod effect;
mod effects;
pub mod entry;
mod evolve;
pub mod expression;
mod failure;
pub mod fanout;
pub mod gate;
pub mod id;
pub mod input;
pub mod job;
pub mod job_limit;
mod job_place;
pub mod json;
pub mod limit;
#[cfg(feature = "openapi")]
mod openapi;
mod operations;
pub mod origin;
pub mod queue_declaration;
pub mod reason_pattern;
mod recover;
mod reply;
pub mod schedule;
pub mod spare;
pub mod state;
pub mod step;
pub mod text;
pub mod time;
pub mod trace;
mod value_bytes;

pub use caller::Caller;
pub use cause::Cause;
pub use cell::{Cell, CellKind, NamedCell};
pub use cells::RefilledCells;
pub use columns::{Column, Columns, LABEL, SLOT_COLUMNS};
pub use control::{Control, ControlKey, ControlKind, PausedQueue, Pauses};
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
pub use gate::view::{LimitCount, LimitView, PlaceView, WaitView};
pub use gate::{Admission, EntranceId, Gate};
pub use id::{CorrelationId, JobId, StepIndex};
pub use input::{
    ChildEnd, ChildOutcome, Context, Input, Instruction, Limits, Operation, OperationError,
    OperationRequest, Order, Rejected, Reply, Sender, UnreadReplies,
};
pub use job::Job;
pub use job_limit::{JobLimit, Then};
pub use json::{Json, Message};
pub use limit::{
    ClaimState, ClaimedPlace, Demand, LimitDefinition, LimitSetting, Rate, RateMark, StepClaim,
    StepDemand, StepDemands,
};
pub use origin::{Origin, ParentItem};
pub use queue_declaration::{
    QUEUE_TYPE, QueueArgument, QueueArguments, QueueDeclaration, QueueType, check_argument,
};
pub use reason_pattern::{ReasonId, ReasonPattern};
pub use schedule::{Schedule, ScheduledSlot};
pub use spare::{SparePlaces, SpareSource};
pub use state::{JobState, StepState};
pub use step::StepRun;
pub use time::{Millis, Timestamp};
pub use trace::{TraceContext, TraceParent, TraceState};
pub use value_bytes::own_bytes;
