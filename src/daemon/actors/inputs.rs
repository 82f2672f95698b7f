//! The inputs of all actors, and what leaves after a commit. No type of an actor is named here: a
//! sender need not know who handles its input.

use super::bulk_requests::{BulkRedispatch, OldestWaits, QueueScan};
use super::call::Call;
use super::client_response::{
    ClientResponse, CreateResponse, Erased, OperationResponse, ResponseSender,
};
use super::completion_latch::CompletionLatch;
use super::passivation::PassivatedTree;
use super::steps_done::StepsDone;
use crate::events::Event;
use crate::traces::EndedJob;
use bus::{
    Acknowledger, Address, AttemptEnd, Delivery, Publication, QueueDepth, QueueStatus, ServedQueues,
};
use engine::{
    ChildEnd, Definition, Input, Job, JobId, Message, OperationRequest, Order, Origin, ParentItem,
    Timestamp, TraceContext,
};
use journal::{JobCreation, JobNumber, NoticeNumber, Record, RecoveredJob, StoredOffset};
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
    Recovered(Vec<RecoveredJob>, Vec<PassivatedTree>),
    /// A job that only waits asks to be passivated.
    Passivate(Box<PassivateRequest>),
    /// An input has come for passivated jobs: the next of them are activated.
    ActivateNext,
    /// A passivated job tree was rebuilt from the journal: the number of its root job, and those of
    /// its jobs that the journal has.
    Activated(JobNumber, Vec<RecoveredJob>),
    /// Memory may have become short.
    MemoryShort,
    /// An input for a job, which may be passivated.
    ForwardToJob(JobId, Box<JobInput>),
    /// Activates a job; answered once it is not passivated.
    Activate(JobId, oneshot::Sender<()>),
    /// Jobs that have nothing left to do ask to be stopped.
    StopJobs(Vec<StopRequest>),
    /// A reply came in on a reply queue.
    ReplyDelivered(Delivery),
    /// A message came in on a workflow's queue.
    CallDelivered {
        /// The workflow's full name.
        workflow: Arc<str>,
        /// The bus that the message came over.
        bus: Arc<str>,
        /// The message.
        delivery: Delivery,
    },
    /// A call that claims to come from a step, after the job of that step has checked the claim.
    CallVerified(Call),
    /// A client asks for a job.
    Create(CreateJob),
    /// A parent starts a child job.
    StartChild(Box<NewChild>),
    /// An engine input for a job, if the job takes input.
    InputForJob(JobId, Input),
    /// An order from a parent to its child job. An ended child job is reopened if the order is to
    /// retry it.
    OrderChild(ChildOrder),
    /// A client asks for an operation on a job.
    Operate(JobId, OperationRequest, ResponseSender<OperationResponse>),
    /// What the archive found about an id, or why it cannot read the journal.
    LookupFinished(JobId, Result<LookupResult, String>),
    /// A client cancels a job. If the job has ended, the response is its state: cancelling twice
    /// does no harm.
    Cancel(JobId, Option<Arc<str>>, ResponseSender<OperationResponse>),
    /// A client erases an ended job from the journal.
    Erase(JobId, ResponseSender<Erased>),
    /// A queue was found missing.
    QueueMissing {
        /// The queue.
        queue: Address,
        /// Notified once the steps that waited in the queue are journaled as unconfirmed, and
        /// everything decided before is committed.
        handled: oneshot::Sender<()>,
    },
    /// Sends the messages of the steps that wait on a queue again; answered after all commits.
    Redispatch(Arc<BulkRedispatch>, oneshot::Sender<()>),
    /// Answered as soon as it is handled: by then every earlier input is handled.
    Barrier(oneshot::Sender<()>),
    /// The supervisor's liveness probe, on its way to the journal.
    LivenessProbe(oneshot::Sender<()>),
}

/// A request to stop the actor of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopRequest {
    /// The job.
    pub id: JobId,
    /// Its number.
    pub number: JobNumber,
    /// How many inputs the job had handled when nothing was left to do. If more were sent since, it
    /// stays, handles them and asks again. None: the job is not in the journal, because it was
    /// deleted or its creation panicked; its actor stops in any case.
    pub inputs_handled: Option<u64>,
}

/// A request to passivate a job.
pub struct PassivateRequest {
    /// How many inputs the job had handled when it only waited. If more were sent since, it stays.
    pub inputs_handled: u64,
    /// The job, as it is kept while it is passivated.
    pub tree: PassivatedTree,
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
    pub response: ResponseSender<CreateResponse>,
}

/// An input of a job actor.
pub enum JobInput {
    /// An engine input; the delivery that it came with is acknowledged after the commit.
    Engine {
        /// The engine input.
        input: Input,
        /// Settles the delivery.
        ack: Option<Acknowledger>,
    },
    /// An update on a message that the job has sent: the broker or a worker has it.
    MessageUpdate {
        /// When the job that sent the message was created. A late confirm may be for an earlier job
        /// with the same id.
        job_created: Timestamp,
        /// The update.
        input: Input,
    },
    /// A client asks for a job under the same id. It gets the same response if it asks for the same
    /// job, and a conflict otherwise.
    CreateDuplicate {
        /// The workflow's full name.
        workflow: String,
        /// The message.
        message: Message,
        /// Where the response is sent after the commit of the job's creation.
        response: ResponseSender<CreateResponse>,
    },
    /// A message on its workflow's queue asks for a job under the same id.
    Call(Call),
    /// A call claims to come from one of this job's steps: the job checks the claim.
    VerifyCall(Call),
    /// A client cancels the job. If the job has ended, the response is its state.
    Cancel(Option<Arc<str>>, ResponseSender<OperationResponse>),
    /// A client erases the job, if it has ended.
    Erase(ResponseSender<Erased>),
    /// A client asks for an operation; answered after the commit.
    Operate(OperationRequest, ResponseSender<OperationResponse>),
    /// A queue was found missing.
    QueueMissing {
        /// The queue.
        queue: Address,
        /// Dropped once the journal has the record in its mailbox, if there is one.
        done: Arc<CompletionLatch>,
    },
    /// Sends the messages of the job's steps that wait on a queue again.
    Redispatch {
        /// Which messages, and why.
        bulk: Arc<BulkRedispatch>,
        /// Dropped after the commit.
        done: Arc<CompletionLatch>,
    },
    /// Since when its steps were seen waiting before it rested, by the number of their dispatch.
    SeenWaiting(Vec<(u64, Instant)>),
    /// Somebody counts its steps that wait for replies.
    CountWaiting(Arc<QueueScan>),
    /// Reports which of the job's steps wait longest.
    ReportWaits {
        /// Where the job adds its waiting steps.
        waits: Arc<OldestWaits>,
        /// Dropped once it has added them.
        done: Arc<CompletionLatch>,
    },
    /// The supervisor has had the job rebuilt after a panic.
    Rebuilt {
        /// The job.
        recovered: Box<RecoveredJob>,
        /// If set, the job fails at once with this reason, because it has panicked too often.
        abandon: Option<Arc<str>>,
    },
    /// Reports when everything decided so far is committed.
    AwaitCommit(Arc<CompletionLatch>),
    /// Shows the job as it is now.
    Inspect(Inspection),
    /// Memory is short: the job is passivated if it only waits.
    PassivateIfWaiting,
    /// The job's route is removed: the actor stops.
    Close,
}

/// An inspection of a job. The result is reported only after the commit of what was seen.
pub struct Inspection {
    pub(super) inspect: Box<dyn FnOnce(&Job) + Send>,
    pub(super) done: Arc<CompletionLatch>,
}

impl Inspection {
    /// Passes the job to `inspect`; `done` is dropped after the commit of what was seen.
    pub fn new(
        inspect: impl FnOnce(&Job) + Send + 'static,
        done: Arc<CompletionLatch>,
    ) -> Inspection {
        Inspection { inspect: Box::new(inspect), done }
    }
}

/// An input of the journal actor.
pub enum JournalInput {
    /// Commits a record, if there is one, then sends what follows.
    Append(Append),
    /// Starts deleting jobs whose retention is over. All recovered jobs must be reachable before
    /// this, because some of them may have to end.
    StartRetention,
    /// Erases an ended root job for a client.
    Erase(JobNumber, ResponseSender<Erased>),
    /// Deletes notices that were delivered.
    DeleteNotices(Vec<NoticeNumber>),
    /// A bus has reached this offset of a topic: it is done with all replies before it, or has
    /// written all messages before it. The offset is stored a moment later.
    StoreOffset(StoredOffset),
    /// Creates the status tables of newly loaded definitions.
    CreateStatusTables(Vec<Arc<Definition>>),
    /// Answers once everything appended before is committed and projected; gives no answer while
    /// the disk is full.
    ProjectionBarrier(oneshot::Sender<()>),
    /// Answers once everything appended before is committed, however long the disk is full.
    CommitBarrier(oneshot::Sender<()>),
    /// Answers at once, even while the disk is full: this ends the supervisor's liveness probe.
    LivenessProbe(oneshot::Sender<()>),
}

/// What follows a commit, and the record that is committed for it.
pub struct Append {
    /// The job's id.
    pub id: JobId,
    /// The job's number.
    pub job: JobNumber,
    /// The record to commit. `None`: nothing is to be written, and what follows waits for the commit
    /// of all that was sent before.
    pub record: Option<Record>,
    /// Whether somebody waits for the commit. The commit of a confirm may lag.
    pub is_urgent: bool,
    /// What is sent after the commit, in this order.
    pub outgoing: Vec<Outgoing>,
    /// Set if the job has nothing left to do: how many inputs it has handled. The job may stop once
    /// the record is committed.
    pub stop_after: Option<u64>,
    /// Set if the job only waits and is to be passivated once the record is committed.
    pub passivate: Option<Box<PassivateRequest>>,
}

/// An input of the archive.
pub enum ArchiveInput {
    /// The router looks up an id under which no job takes input.
    LookUp(JobId, Lookup),
    /// The supervisor asks for a job whose actor panicked.
    Rebuild(JobNumber),
    /// The router activates passivated jobs: job trees, each with the number of its root job and
    /// the numbers of all its jobs.
    Activate(Vec<(JobNumber, Vec<JobNumber>)>),
}

/// What the router needs to know about an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// How the newest job with the id was created.
    Creation,
    /// The newest job with the id.
    Job,
    /// The newest child job with the id whose parent has this number.
    ChildOf(JobNumber),
}

/// The result of a [`Lookup`] of the same name; `None`: there is no such job.
pub enum LookupResult {
    /// How the job was created.
    Creation(Option<JobCreation>),
    /// The job.
    Job(Option<Box<RecoveredJob>>),
    /// The child job.
    Child(Option<Box<RecoveredJob>>),
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
    Rebuilt(JobNumber, Option<Box<RecoveredJob>>),
    /// Replaces the loaded definitions by new ones: all of them, or none with the reason.
    Redefine(Definitions, oneshot::Sender<Result<(), String>>),
    /// A liveness probe. It passes the router and the journal, which answers: so all three handle
    /// their inputs.
    LivenessProbe(oneshot::Sender<()>),
}

/// An input of the notifier.
pub enum NotifierInput {
    /// Events of one committed decision.
    Events(Vec<Arc<Event>>),
    /// Sends what waits for the exchange, until the answer is no longer wanted.
    Close(oneshot::Sender<()>),
}

/// An input of a bus actor.
pub enum BusInput {
    /// Publishes messages.
    Publish(Vec<Publication>),
    /// Withdraws the message with this id from its queue, or from the worker that has it.
    Withdraw(Arc<str>, String, AttemptEnd),
    /// Sets the queues of the workflows that are loaded now.
    Serve(ServedQueues),
    /// Inspects queues.
    Inspect(Vec<Arc<str>>, oneshot::Sender<Vec<QueueStatus>>),
    /// Declares those of these queues that are missing, as at a connection: steps wait on them.
    DeclareMissing(Vec<Arc<str>>),
    /// Reports how many messages each queue holds.
    Depths(oneshot::Sender<Result<Vec<QueueDepth>, String>>),
    /// Stops taking deliveries, waits for confirms until the answer is no longer wanted, and
    /// closes.
    Close(oneshot::Sender<()>),
}

/// One thing to do after the commit.
pub enum Outgoing {
    /// Acknowledges a delivery.
    Ack(Acknowledger),
    /// Publishes a message.
    Publish(Publication),
    /// Withdraws the message with this id, if its bus still has it: its attempt is over.
    Withdraw(Address, String, AttemptEnd),
    /// Starts a child job.
    StartChild(Box<NewChild>),
    /// Gives an order to a child job.
    OrderChild(ChildOrder),
    /// Reports the end of a child job to its parent.
    NotifyParent(ParentItem, ChildEnd),
    /// Sends the response to a client.
    Respond(ClientResponse),
    /// A latch that waits for this commit: it is dropped afterwards.
    ReleaseLatch(Arc<CompletionLatch>),
    /// Notifies subscribers of events.
    PublishEvents(Vec<Arc<Event>>),
    /// A notice for the webhook is in the journal.
    WebhookNotice,
    /// A root job has ended: its trace is to be sent.
    SendTrace(EndedJob),
    /// The counts of the job's child jobs have changed.
    ChildCountsChanged(JobId),
    /// Publishes how many steps of the job are done.
    StepsDone(StepsDone, usize),
}

/// An order to a child job.
pub struct ChildOrder {
    /// The child job.
    pub id: JobId,
    /// The step and item of the parent that the child job was started for. By now another job may
    /// have its id.
    pub parent_item: ParentItem,
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
