//! The inputs of all actors, and what leaves after a commit. No actor's type is named here: a
//! sender need not know who takes its mail.

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

/// Loaded definitions by full name.
pub type Definitions = BTreeMap<String, Arc<Definition>>;

/// The end of a child job that was never created counts in any round.
pub const ANY_ROUND: u32 = u32::MAX;

/// Mail for the router.
pub enum RouterInput {
    /// Jobs that were rebuilt from the journal, and those that have no room in memory. They start
    /// before anything else comes in.
    Recovered(Vec<Recovered>, Vec<AtRest>),
    /// A job that only waits wants to rest.
    Rest(Box<Rest>),
    /// Something has come for jobs at rest.
    BringBack,
    /// Jobs at rest were rebuilt from the journal: their number, by which they are known, and those
    /// that the journal has.
    BroughtBack(JobNumber, Vec<Recovered>),
    /// Memory may have become short.
    Short,
    /// For a job, which may be at rest.
    ForJob(JobId, Box<JobInput>),
    /// Answered once the job is not at rest.
    Wake(JobId, oneshot::Sender<()>),
    /// Jobs that have nothing left to do want to leave.
    Leave(Vec<Leave>),
    /// A message came in on a reply queue.
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
    /// A call that claims to come from a step. The job of that step has said whether it does.
    Vouched(Call),
    /// A client asks for a job.
    Create(CreateJob),
    /// A parent starts a child job.
    StartChild(Box<NewChild>),
    /// Something for a job, if it takes input.
    ToJob(JobId, Input),
    /// An order from a parent to its child job. A child job that has ended is brought back if it is
    /// to be retried.
    ToChild(ToChild),
    /// A client asks something of a job.
    Operate(JobId, Request, Client<Now>),
    /// The archive's answer about an id, or why it cannot read the journal.
    Found(JobId, Result<Finding, String>),
    /// A client cancels a job. If the job has ended, the answer is its state: asking twice does no
    /// harm.
    Cancel(JobId, Option<Arc<str>>, Client<Now>),
    /// A client has a job erased from the journal, if it has ended.
    Erase(JobId, Client<Erased>),
    /// A queue was found missing.
    QueueMissing {
        /// The queue.
        queue: Address,
        /// Answered once the steps that waited in it are journaled as unconfirmed, and everything
        /// decided before is committed.
        taken: oneshot::Sender<()>,
    },
    /// The messages of the steps that wait on a queue are to be sent again; answered after all
    /// commits.
    Redispatch(Arc<Bulk>, oneshot::Sender<()>),
    /// Answered when it is taken: by then all that was sent before is done.
    CatchUp(oneshot::Sender<()>),
    /// The supervisor's round, on its way to the journal.
    Round(oneshot::Sender<()>),
}

/// A job that wants to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leave {
    /// The job.
    pub id: JobId,
    /// Its number.
    pub number: JobNumber,
    /// How many inputs it had heard when nothing was left to do. If more were sent since, it stays,
    /// hears them, and asks again. None: it is not in the journal, because it was deleted or its
    /// creation panicked; it leaves in any case.
    pub heard: Option<u64>,
}

/// A job that wants to rest.
pub struct Rest {
    /// How many inputs it had heard when it only waited. If more were sent since, it stays.
    pub heard: u64,
    /// The job.
    pub at_rest: AtRest,
}

/// A top-level job that a client asks for.
pub struct CreateJob {
    /// The id that the client chose.
    pub id: Option<JobId>,
    /// The workflow to run.
    pub definition: Arc<Definition>,
    /// The message to run it with.
    pub message: Message,
    /// The trace context of the request, if it had one.
    pub trace: Option<TraceContext>,
    /// Answered after the commit.
    pub answer: Client<Created>,
}

/// Mail for a job.
pub enum JobInput {
    /// Something happened; the delivery that it came by is acknowledged after the commit.
    Take {
        /// What happened.
        input: Input,
        /// The delivery.
        ack: Option<Acknowledge>,
    },
    /// News of a message that the job has sent: the broker has it, or a worker.
    OfMessage {
        /// When the sender of the message was created. A late confirm may be for an earlier job
        /// with the same id.
        created: Timestamp,
        /// The news.
        input: Input,
    },
    /// A client asks for a job under the same id. It gets the same answer if it asks for the same
    /// job, a conflict otherwise.
    CreateAgain {
        /// The workflow's full name.
        workflow: String,
        /// The message.
        message: Message,
        /// Answered after the commit of the job's creation.
        answer: Client<Created>,
    },
    /// A message on its workflow's queue asks for a job under the same id.
    Called(Call),
    /// A message on a workflow's queue claims to be from one of this job's steps: is it?
    Vouch(Call),
    /// A client cancels the job. If the job has ended, the answer is its state.
    Cancel(Option<Arc<str>>, Client<Now>),
    /// A client has the job erased, if it has ended.
    Erase(Client<Erased>),
    /// A client asks something of it; answered after the commit.
    Operate(Request, Client<Now>),
    /// A queue was found missing.
    QueueMissing {
        /// The queue.
        queue: Address,
        /// Dropped once the journal has the record in its mailbox, if there is one.
        done: Arc<AnswerOnDrop>,
    },
    /// The messages of its steps that wait on a queue are to be sent again.
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
    /// Somebody looks for the steps that wait longest.
    Waits {
        /// Where the job enters its own.
        waits: Arc<Waits>,
        /// Dropped once it has done so.
        done: Arc<AnswerOnDrop>,
    },
    /// The supervisor has had the job rebuilt after a panic.
    Rebuilt {
        /// The job.
        recovered: Box<Recovered>,
        /// Why it fails at once, before it hears anything else, if it panicked too often.
        abandon: Option<Arc<str>>,
    },
    /// Somebody wants to know when everything decided so far is committed.
    Settled(Arc<AnswerOnDrop>),
    /// Somebody looks at the job as it is.
    Look(Look),
    /// Memory is short: it is to rest, if it only waits.
    Rest,
    /// Its route is gone: the actor ends.
    Close,
}

/// A look at a job. The result is given only after the commit of what was seen.
pub struct Look {
    pub(super) see: Box<dyn FnOnce(&Job) + Send>,
    pub(super) done: Arc<AnswerOnDrop>,
}

impl Look {
    /// Shows the job to `see`; `done` is dropped after the commit of what it has seen.
    pub fn new(see: impl FnOnce(&Job) + Send + 'static, done: Arc<AnswerOnDrop>) -> Look {
        Look { see: Box::new(see), done }
    }
}

/// Mail for the journal.
pub enum JournalInput {
    /// Commit a record, then let its effects leave.
    Append(Append),
    /// Begin to delete jobs whose retention is over. All recovered jobs must be reachable before
    /// this, because some of them may have to end.
    Retain,
    /// Delete an ended top-level job.
    Delete(JobNumber, Client<Erased>),
    /// Delete notices that were delivered.
    Forget(Vec<NoticeNumber>),
    /// A bus has come this far in a topic: it is done with all replies before, or has written all
    /// messages before. This is written down a moment later.
    Reached(Position),
    /// Make the tables of statuses for newly loaded definitions.
    MakeStatusTables(Vec<Arc<Definition>>),
    /// Answer once everything appended before is committed and derived; no answer if the disk is
    /// full.
    Barrier(oneshot::Sender<()>),
    /// Answer once everything appended before is committed, however long the disk is full.
    Committed(oneshot::Sender<()>),
    /// Answer at once, even while the disk is full: this ends the supervisor's round.
    Round(oneshot::Sender<()>),
}

/// A record and what follows its commit.
pub struct Append {
    /// The job's id.
    pub id: JobId,
    /// What to commit.
    pub record: Record,
    /// Whether somebody waits for the commit. A confirm may lag.
    pub urgent: bool,
    /// What leaves after it, in order.
    pub release: Vec<Outgoing>,
    /// Set if nothing is left to do for the job: how many inputs it has heard. The job may leave
    /// once this is committed.
    pub leaves: Option<u64>,
    /// Set if the job only waits and is to rest once this is committed.
    pub rests: Option<Box<Rest>>,
}

/// Mail for the archive.
pub enum ArchiveInput {
    /// The router asks about an id under which no job takes input.
    Find(JobId, Question),
    /// The supervisor asks for a job whose actor panicked.
    Rebuild(JobNumber),
    /// The router asks for jobs at rest: families, each by the number by which it is known, with
    /// the numbers of its jobs.
    BringBack(Vec<(JobNumber, Vec<JobNumber>)>),
}

/// What is asked about an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// How the newest job with it was created.
    Creation,
    /// The newest job with it.
    Job,
    /// The newest child job with it of the job with this number.
    ChildOf(JobNumber),
}

/// The answer to a [`Question`] of the same name; none: there is no such job.
pub enum Finding {
    /// How the job was created.
    Creation(Option<Creation>),
    /// The job.
    Job(Option<Box<Recovered>>),
    /// The child job.
    Child(Option<Box<Recovered>>),
}

/// Mail for the supervisor.
pub enum SupervisorInput {
    /// A job's actor has panicked. It has no job until the job is rebuilt.
    Panicked {
        /// The job.
        id: JobId,
        /// Its number.
        number: JobNumber,
    },
    /// The archive has rebuilt the job, if the journal has it.
    Rebuilt(JobNumber, Option<Box<Recovered>>),
    /// New definitions replace the loaded ones: all of them, or none with the reason.
    Redefine(Definitions, oneshot::Sender<Result<(), String>>),
    /// Goes by the router to the journal, which answers: all three take their mail.
    Round(oneshot::Sender<()>),
}

/// Mail for the announcer.
pub enum AnnouncerInput {
    /// Events of one decision, committed.
    Happened(Vec<Arc<Event>>),
    /// Send what waits for the exchange, until the answer is no longer wanted.
    Close(oneshot::Sender<()>),
}

/// Mail for a bus.
pub enum BusInput {
    /// Publish messages.
    Publish(Vec<Publication>),
    /// Take a message back, from its queue or from whoever has it; by its id.
    Withdraw(Arc<str>, String, Over),
    /// The queues of the workflows that are loaded now.
    Serve(Served),
    /// Look at queues.
    Inspect(Vec<Arc<str>>, oneshot::Sender<Vec<QueueLook>>),
    /// Steps wait on these queues: declare what is missing, as at a connection.
    LookFor(Vec<Arc<str>>),
    /// Tell how much each queue holds.
    Depths(oneshot::Sender<Result<Vec<QueueDepth>, String>>),
    /// Stop taking deliveries, wait for confirms until the answer is no longer wanted, close.
    Close(oneshot::Sender<()>),
}

/// One thing to do after the commit.
pub enum Outgoing {
    /// Take the delivery off its queue.
    Ack(Acknowledge),
    /// Publish a message.
    Send(Publication),
    /// Take the message with this id back, if its bus has it still: its attempt is over.
    Withdraw(Address, String, Over),
    /// Start a child job.
    StartChild(Box<NewChild>),
    /// Tell a child job.
    ToChild(ToChild),
    /// Tell the parent.
    ToParent(Parent, ChildEnd),
    /// Tell a client.
    Answer(Answer),
    /// Something that waits for this commit: it is dropped after it.
    Hold(Arc<AnswerOnDrop>),
    /// Tell those who listen.
    Announce(Vec<Arc<Event>>),
    /// A notice for the webhook is in the journal.
    Noticed,
    /// A top-level job has ended: its trace is to be sent.
    Ended(EndedJob),
    /// The counts of the job's child jobs have changed.
    Counted(JobId),
    /// So many steps of the job are done.
    StepsDone(StepsDone, usize),
}

/// What a child job is told.
pub struct ToChild {
    /// The child job.
    pub id: JobId,
    /// Its place in its parent. By now another job may have its id.
    pub place: Parent,
    /// The parent's number.
    pub parent: JobNumber,
    /// What it is told.
    pub order: Order,
}

/// A child job to be started.
pub struct NewChild {
    /// Where it comes from.
    pub origin: Origin,
    /// Its message.
    pub message: Message,
    /// The parent's number.
    pub parent: JobNumber,
    /// The top-level job's number.
    pub root: JobNumber,
}
