//! The inputs of all actors, and what leaves after a commit. No type of an actor is named here: a
//! sender need not know who handles its input.

use super::answer::{Answer, Client, Created, Erased, Now};
use super::answer_on_drop::AnswerOnDrop;
use super::at_rest::AtRest;
use super::bulk::{Bulk, Census, Waits};
use super::call::Call;
use super::steps_done::StepsDone;
use crate::bus::{
    Acknowledge, Address, Delivery, Over, Publication, QueueDepth, QueueLook, Served,
};
use crate::engine::{
    ChildEnd, Definition, Input, Job, JobId, Message, Order, Origin, Parent, Request, Timestamp,
    TraceContext,
};
use crate::events::Event;
use crate::journal::{Creation, JobNumber, NoticeNumber, Position, Record, Recovered};
use crate::traces::EndedJob;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The loaded definitions, by full name.
pub type Definitions = BTreeMap<String, Arc<Definition>>;

/// The round of a child job that was never created: its end counts in any round.
pub const ANY_ROUND: u32 = u32::MAX;

/// An input of the router.
pub enum RouterInput {
    /// Jobs that were rebuilt from the journal, and job trees for which memory has no room. They
    /// start before anything else comes in.
    Recovered(Vec<Recovered>, Vec<AtRest>),
    /// A job that only waits asks to be passivated.
    Rest(Box<Rest>),
    /// An input has come for passivated jobs: the next of them are activated.
    BringBack,
    /// A passivated job tree was rebuilt from the journal: the number of its root job, and those of
    /// its jobs that the journal has.
    BroughtBack(JobNumber, Vec<Recovered>),
    /// Memory may have become short.
    Short,
    /// An input for a job, which may be passivated.
    ForJob(JobId, Box<JobInput>),
    /// Activates a job; answered once it is not passivated.
    Wake(JobId, oneshot::Sender<()>),
    /// Jobs that have nothing left to do ask to be stopped.
    Leave(Vec<Leave>),
    /// A reply came in on a reply queue.
    Delivered(Delivery),
    /// A message came in on a workflow's queue.
    Called {
        /// The workflow's full name.
        workflow: Arc<str>,
        /// The bus that the message came over.
        bus: Arc<str>,
        /// The message.
        delivery: Delivery,
    },
    /// A call that claims to come from a step, after the job of that step has checked the claim.
    Vouched(Call),
    /// A client asks for a job.
    Create(CreateJob),
    /// A parent starts a child job.
    StartChild(Box<NewChild>),
    /// An engine input for a job, if the job takes input.
    ToJob(JobId, Input),
    /// An order from a parent to its child job. An ended child job is reopened if the order is to
    /// retry it.
    ToChild(ToChild),
    /// A client asks for an operation on a job.
    Operate(JobId, Request, Client<Now>),
    /// What the archive found about an id, or why it cannot read the journal.
    Found(JobId, Result<Finding, String>),
    /// A client cancels a job. If the job has ended, the response is its state: cancelling twice
    /// does no harm.
    Cancel(JobId, Option<Arc<str>>, Client<Now>),
    /// A client erases an ended job from the journal.
    Erase(JobId, Client<Erased>),
    /// A queue was found missing.
    QueueMissing {
        /// The queue.
        queue: Address,
        /// Notified once the steps that waited in the queue are journaled as unconfirmed, and
        /// everything decided before is committed.
        taken: oneshot::Sender<()>,
    },
    /// Sends the messages of the steps that wait on a queue again; answered after all commits.
    Redispatch(Arc<Bulk>, oneshot::Sender<()>),
    /// Answered as soon as it is handled: by then every earlier input is handled.
    CatchUp(oneshot::Sender<()>),
    /// The supervisor's liveness probe, on its way to the journal.
    Round(oneshot::Sender<()>),
}

/// A request to stop the actor of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leave {
    /// The job.
    pub id: JobId,
    /// Its number.
    pub number: JobNumber,
    /// How many inputs the job had handled when nothing was left to do. If more were sent since, it
    /// stays, handles them and asks again. None: the job is not in the journal, because it was
    /// deleted or its creation panicked; its actor stops in any case.
    pub heard: Option<u64>,
}

/// A request to passivate a job.
pub struct Rest {
    /// How many inputs the job had handled when it only waited. If more were sent since, it stays.
    pub heard: u64,
    /// The job, as it is kept while it is passivated.
    pub at_rest: AtRest,
}

/// A root job that a client asks for.
pub struct CreateJob {
    /// The id that the client chose.
    pub id: Option<JobId>,
    /// The workflow to run.
    pub definition: Arc<Definition>,
    /// The message to run it with.
    pub message: Message,
    /// The trace context of the request, if it has one.
    pub trace: Option<TraceContext>,
    /// Where the response is sent after the commit.
    pub answer: Client<Created>,
}

/// An input of a job actor.
pub enum JobInput {
    /// An engine input; the delivery that it came with is acknowledged after the commit.
    Take {
        /// The engine input.
        input: Input,
        /// Settles the delivery.
        ack: Option<Acknowledge>,
    },
    /// An update on a message that the job has sent: the broker or a worker has it.
    OfMessage {
        /// When the job that sent the message was created. A late confirm may be for an earlier job
        /// with the same id.
        created: Timestamp,
        /// The update.
        input: Input,
    },
    /// A client asks for a job under the same id. It gets the same response if it asks for the same
    /// job, and a conflict otherwise.
    CreateAgain {
        /// The workflow's full name.
        workflow: String,
        /// The message.
        message: Message,
        /// Where the response is sent after the commit of the job's creation.
        answer: Client<Created>,
    },
    /// A message on its workflow's queue asks for a job under the same id.
    Called(Call),
    /// A call claims to come from one of this job's steps: the job checks the claim.
    Vouch(Call),
    /// A client cancels the job. If the job has ended, the response is its state.
    Cancel(Option<Arc<str>>, Client<Now>),
    /// A client erases the job, if it has ended.
    Erase(Client<Erased>),
    /// A client asks for an operation; answered after the commit.
    Operate(Request, Client<Now>),
    /// A queue was found missing.
    QueueMissing {
        /// The queue.
        queue: Address,
        /// Dropped once the journal has the record in its mailbox, if there is one.
        done: Arc<AnswerOnDrop>,
    },
    /// Sends the messages of the job's steps that wait on a queue again.
    Redispatch {
        /// Which messages, and why.
        bulk: Arc<Bulk>,
        /// Dropped after the commit.
        done: Arc<AnswerOnDrop>,
    },
    /// Since when its steps were seen waiting before it rested, by the number of their dispatch.
    SeenWaiting(Vec<(u64, Instant)>),
    /// Somebody counts its steps that wait for replies.
    Count(Arc<Census>),
    /// Reports which of the job's steps wait longest.
    Waits {
        /// Where the job adds its waiting steps.
        waits: Arc<Waits>,
        /// Dropped once it has added them.
        done: Arc<AnswerOnDrop>,
    },
    /// The supervisor has had the job rebuilt after a panic.
    Rebuilt {
        /// The job.
        recovered: Box<Recovered>,
        /// If set, the job fails at once with this reason, because it has panicked too often.
        abandon: Option<Arc<str>>,
    },
    /// Reports when everything decided so far is committed.
    Settled(Arc<AnswerOnDrop>),
    /// Shows the job as it is now.
    Look(Look),
    /// Memory is short: the job is passivated if it only waits.
    Rest,
    /// The job's route is removed: the actor stops.
    Close,
}

/// An inspection of a job. The result is reported only after the commit of what was seen.
pub struct Look {
    pub(super) see: Box<dyn FnOnce(&Job) + Send>,
    pub(super) done: Arc<AnswerOnDrop>,
}

impl Look {
    /// Passes the job to `inspect`; `done` is dropped after the commit of what was seen.
    pub fn new(see: impl FnOnce(&Job) + Send + 'static, done: Arc<AnswerOnDrop>) -> Look {
        Look { see: Box::new(see), done }
    }
}

/// An input of the journal actor.
pub enum JournalInput {
    /// Commits a record, then sends its effects.
    Append(Append),
    /// Starts deleting jobs whose retention is over. All recovered jobs must be reachable before
    /// this, because some of them may have to end.
    Retain,
    /// Deletes an ended root job.
    Delete(JobNumber, Client<Erased>),
    /// Deletes notices that were delivered.
    Forget(Vec<NoticeNumber>),
    /// A bus has reached this offset of a topic: it is done with all replies before it, or has
    /// written all messages before it. The offset is stored a moment later.
    Reached(Position),
    /// Creates the status tables of newly loaded definitions.
    MakeStatusTables(Vec<Arc<Definition>>),
    /// Answers once everything appended before is committed and projected; gives no answer while
    /// the disk is full.
    Barrier(oneshot::Sender<()>),
    /// Answers once everything appended before is committed, however long the disk is full.
    Committed(oneshot::Sender<()>),
    /// Answers at once, even while the disk is full: this ends the supervisor's liveness probe.
    Round(oneshot::Sender<()>),
}

/// A record and what follows its commit.
pub struct Append {
    /// The job's id.
    pub id: JobId,
    /// The record to commit.
    pub record: Record,
    /// Whether somebody waits for the commit. The commit of a confirm may lag.
    pub urgent: bool,
    /// What is sent after the commit, in this order.
    pub release: Vec<Outgoing>,
    /// Set if the job has nothing left to do: how many inputs it has handled. The job may stop once
    /// the record is committed.
    pub leaves: Option<u64>,
    /// Set if the job only waits and is to be passivated once the record is committed.
    pub rests: Option<Box<Rest>>,
}

/// An input of the archive.
pub enum ArchiveInput {
    /// The router looks up an id under which no job takes input.
    Find(JobId, Question),
    /// The supervisor asks for a job whose actor panicked.
    Rebuild(JobNumber),
    /// The router activates passivated jobs: job trees, each with the number of its root job and
    /// the numbers of all its jobs.
    BringBack(Vec<(JobNumber, Vec<JobNumber>)>),
}

/// What the router needs to know about an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// How the newest job with the id was created.
    Creation,
    /// The newest job with the id.
    Job,
    /// The newest child job with the id whose parent has this number.
    ChildOf(JobNumber),
}

/// The result of a [`Lookup`] of the same name; `None`: there is no such job.
pub enum Finding {
    /// How the job was created.
    Creation(Option<Creation>),
    /// The job.
    Job(Option<Box<Recovered>>),
    /// The child job.
    Child(Option<Box<Recovered>>),
}

/// An input of the supervisor.
pub enum SupervisorInput {
    /// A job's actor has panicked. It has no job until the job is rebuilt.
    Panicked {
        /// The job.
        id: JobId,
        /// Its number.
        number: JobNumber,
    },
    /// The archive has rebuilt the job; `None`: the journal does not have it.
    Rebuilt(JobNumber, Option<Box<Recovered>>),
    /// Replaces the loaded definitions by new ones: all of them, or none with the reason.
    Redefine(Definitions, oneshot::Sender<Result<(), String>>),
    /// A liveness probe. It passes the router and the journal, which answers: so all three handle
    /// their inputs.
    Round(oneshot::Sender<()>),
}

/// An input of the notifier.
pub enum AnnouncerInput {
    /// Events of one committed decision.
    Happened(Vec<Arc<Event>>),
    /// Sends what waits for the exchange, until the answer is no longer wanted.
    Close(oneshot::Sender<()>),
}

/// An input of a bus actor.
pub enum BusInput {
    /// Publishes messages.
    Publish(Vec<Publication>),
    /// Withdraws the message with this id from its queue, or from the worker that has it.
    Withdraw(Arc<str>, String, Over),
    /// Sets the queues of the workflows that are loaded now.
    Serve(Served),
    /// Inspects queues.
    Inspect(Vec<Arc<str>>, oneshot::Sender<Vec<QueueLook>>),
    /// Declares those of these queues that are missing, as at a connection: steps wait on them.
    LookFor(Vec<Arc<str>>),
    /// Reports how many messages each queue holds.
    Depths(oneshot::Sender<Result<Vec<QueueDepth>, String>>),
    /// Stops taking deliveries, waits for confirms until the answer is no longer wanted, and
    /// closes.
    Close(oneshot::Sender<()>),
}

/// One thing to do after the commit.
pub enum Outgoing {
    /// Acknowledges a delivery.
    Ack(Acknowledge),
    /// Publishes a message.
    Send(Publication),
    /// Withdraws the message with this id, if its bus still has it: its attempt is over.
    Withdraw(Address, String, Over),
    /// Starts a child job.
    StartChild(Box<NewChild>),
    /// Gives an order to a child job.
    ToChild(ToChild),
    /// Reports the end of a child job to its parent.
    ToParent(Parent, ChildEnd),
    /// Sends the response to a client.
    Answer(Answer),
    /// A latch that waits for this commit: it is dropped afterwards.
    Hold(Arc<AnswerOnDrop>),
    /// Notifies subscribers of events.
    Announce(Vec<Arc<Event>>),
    /// A notice for the webhook is in the journal.
    Noticed,
    /// A root job has ended: its trace is to be sent.
    Ended(EndedJob),
    /// The counts of the job's child jobs have changed.
    Counted(JobId),
    /// Publishes how many steps of the job are done.
    StepsDone(StepsDone, usize),
}

/// An order to a child job.
pub struct ToChild {
    /// The child job.
    pub id: JobId,
    /// The step and item of the parent that the child job was started for. By now another job may
    /// have its id.
    pub place: Parent,
    /// The parent's number.
    pub parent: JobNumber,
    /// The order.
    pub order: Order,
}

/// A child job to be started.
pub struct NewChild {
    /// The origin of the child job.
    pub origin: Origin,
    /// Its message.
    pub message: Message,
    /// The parent's number.
    pub parent: JobNumber,
    /// The number of the root job.
    pub root: JobNumber,
}
