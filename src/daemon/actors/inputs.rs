//! The inputs of all actors, and the effects that are sent after a commit. This file names no type
//! of an actor: a sender depends on the input, not on the actor that handles it.

use super::bulk_requests::{BulkRedispatch, OldestWaits, QueueScan};
use super::call::Call;
use super::client_response::{
    ClientResponse, CreateResponse, Erased, OperationResponse, RequestError, ResponseSender,
};
use super::completion_latch::CompletionLatch;
use super::listed_state::{ListedState, SharedListedState};
use super::mailbox::Mailbox;
use super::passivation::PassivatedTree;
use super::schedule_requests::{Backfill, BackfilledSlot, ScheduleOperation, ScheduleStatus};
use crate::events::Event;
use crate::traces::EndedJob;
use bus::{
    Acknowledger, Address, AttemptEnd, Delivery, Publication, QueueDepth, QueueStatus, ServedQueues,
};
use engine::{
    ChildEnd, Control, ControlKey, Definition, Gate, GraphIndex, Input, Job, JobId, Message,
    OperationRequest, Order, Origin, ParentItem, ScheduledSlot, StepDemands, Timestamp,
    TraceContext,
};
use journal::{
    CellRefill, JobCreation, JobNumber, NoticeNumber, Record, RecoveredJob, StoredLedger,
    StoredOffset, StoredTrend,
};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The loaded definitions, by full name.
pub type Definitions = BTreeMap<String, Arc<Definition>>;

/// The round of a child job whose actor cannot know it. The parent accepts such an end in any
/// round.
pub const ANY_ROUND: u32 = u32::MAX;

/// An input of the router.
pub enum RouterInput {
    /// The jobs that were rebuilt from the journal at the start, and the job trees that did not fit
    /// in memory. This is the router's first input.
    Recovered(Vec<RecoveredJob>, Vec<PassivatedTree>),
    /// A job that only waits asks to be passivated.
    Passivate(Box<PassivateRequest>),
    /// What decisions of jobs want of the gate, as of their commit.
    Demands(Vec<JobDemands>),
    /// Nothing follows from the taking of a spare place of a limit, given by its full name.
    PlaceUnused(Arc<str>),
    /// The definitions were replaced, and limits with them.
    LimitsChanged,
    /// A change of what operators have changed, as of a commit.
    ChangeControl(Box<ControlChange>),
    /// Answered with the controls in force.
    ListControls(oneshot::Sender<Vec<Control>>),
    /// Answered with how many steps each pause of a queue or workflow holds back.
    CountHeldBack(oneshot::Sender<Vec<(ControlKey, usize)>>),
    /// Reads the gate. It is called on the thread of the router, so it must be short.
    InspectGate(Box<dyn FnOnce(&Gate) + Send>),
    /// The router's message to itself: the next batch of passivated job trees is activated, if one
    /// is requested.
    ActivateNext,
    /// A passivated job tree was rebuilt from the journal: the number of its root job, and its
    /// jobs, except those that were deleted.
    Activated(JobNumber, Vec<RecoveredJob>),
    /// Memory may have become short.
    MemoryShort,
    /// An input for a job that may be passivated. If it is, the input activates it.
    ForwardToJob(JobId, Box<JobInput>),
    /// Activates a job. Answered once the job is not passivated.
    Activate(JobId, oneshot::Sender<()>),
    /// Jobs that have nothing left to do ask to be stopped.
    StopJobs(Vec<StopRequest>),
    /// A delivery arrived on a reply queue.
    ReplyDelivered(Delivery),
    /// A delivery arrived on a workflow's queue.
    CallDelivered {
        /// The workflow's full name.
        workflow: Arc<str>,
        /// The name of the bus that delivered the message.
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
    /// The archive's result of a lookup, or why it cannot read the journal.
    LookupFinished(JobId, Result<LookupResult, String>),
    /// A client cancels a job, in the name of a principal if it has a token. This is idempotent: if
    /// the job has ended, the response is its state.
    Cancel(JobId, Option<Arc<str>>, ResponseSender<OperationResponse>),
    /// A client erases an ended job from the journal.
    Erase(JobId, ResponseSender<Erased>),
    /// A queue was found missing.
    QueueMissing {
        /// The queue.
        queue: Address,
        /// Answered once the journal has committed that the messages in the queue are unconfirmed.
        handled: oneshot::Sender<()>,
    },
    /// Dispatches again the steps of all jobs that wait on a queue. Answered after all commits.
    Redispatch(Arc<BulkRedispatch>, oneshot::Sender<()>),
    /// Answered at once: the answer shows that every earlier input was handled.
    Barrier(oneshot::Sender<()>),
    /// The supervisor's liveness probe, which the router forwards to the journal.
    LivenessProbe(oneshot::Sender<()>),
}

/// A request to stop the actor of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopRequest {
    /// The job's id.
    pub id: JobId,
    /// The job's number.
    pub number: JobNumber,
    /// How many inputs the job had handled when it asked. If more were sent since, the job is not
    /// stopped: it handles them and asks again. `None`: the journal does not have the job, because
    /// it was deleted or its creation panicked, and the actor stops in any case.
    pub inputs_handled: Option<u64>,
}

/// A request to passivate a job.
pub struct PassivateRequest {
    /// How many inputs the job had handled when it asked. If more were sent since, it is not
    /// passivated.
    pub inputs_handled: u64,
    /// The summary of the job that the router keeps while it is passivated.
    pub tree: PassivatedTree,
}

/// A root job that a client asks for.
pub struct CreateJob {
    /// The id that the client chose; `None`: the router chooses one.
    pub id: Option<JobId>,
    /// The workflow to run.
    pub definition: Arc<Definition>,
    /// The job's message.
    pub message: Message,
    /// The trace context of the request; `None`: it has none.
    pub trace: Option<TraceContext>,
    /// When the job begins; `None`, and a time that has passed: at once.
    pub starts_at: Option<Timestamp>,
    /// The schedule and slot for which it starts; `None`: a client asks for it.
    pub slot: Option<Arc<ScheduledSlot>>,
    /// The sender of the response, which follows the commit.
    pub response: ResponseSender<CreateResponse>,
}

/// An input of a job actor.
pub enum JobInput {
    /// An engine input.
    Engine {
        /// The input.
        input: Input,
        /// Acknowledges the delivery of the input after the commit; `None`: no delivery caused it.
        ack: Option<Acknowledger>,
    },
    /// A change in the state of a message that the job has sent: it is confirmed, leased or begun.
    MessageUpdate {
        /// When the job that sent the message was created. A late update can be for an earlier job
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
        /// The message that the client asks for.
        message: Message,
        /// The sender of the response, which follows the commit of the job's creation.
        response: ResponseSender<CreateResponse>,
    },
    /// A message on its workflow's queue asks for a job under the same id.
    Call(Call),
    /// A call claims to come from one of this job's steps: the job checks the claim.
    VerifyCall(Call),
    /// A client cancels the job, in the name of a principal if it has a token. If the job has
    /// ended, the response is its state.
    Cancel(Option<Arc<str>>, ResponseSender<OperationResponse>),
    /// A client erases the job, if it has ended.
    Erase(ResponseSender<Erased>),
    /// A client asks for an operation on the job. Answered after the commit.
    Operate(OperationRequest, ResponseSender<OperationResponse>),
    /// A queue was found missing.
    QueueMissing {
        /// The queue.
        queue: Address,
        /// Dropped after the commit, or at once if no message of the job is affected.
        latch: Arc<CompletionLatch>,
    },
    /// Dispatches again the job's steps that wait on a queue.
    Redispatch {
        /// The request to all jobs.
        bulk: Arc<BulkRedispatch>,
        /// Dropped after the commit.
        latch: Arc<CompletionLatch>,
    },
    /// Restores the times at which the job's steps were first seen waiting, which were recorded
    /// before the job was passivated. Each follows the number of its dispatch.
    RestoreWaitingSince(Vec<(u64, Instant)>),
    /// Counts the job's steps that wait for replies.
    CountWaiting(Arc<QueueScan>),
    /// Reports which of the job's steps wait longest.
    ReportWaits {
        /// The collection to which the job adds its waiting steps.
        waits: Arc<OldestWaits>,
        /// Dropped after the job has added them.
        latch: Arc<CompletionLatch>,
    },
    /// The job was rebuilt after a panic.
    Rebuilt {
        /// The job, as of the last commit.
        recovered: Box<RecoveredJob>,
        /// Set if the job has panicked too often: it fails at once, for this reason.
        abandon: Option<Arc<str>>,
    },
    /// Drops the latch once all decisions so far are committed.
    AwaitCommit(Arc<CompletionLatch>),
    /// Reads the job's state.
    Inspect(Inspection),
    /// Memory is short: the job is passivated if it only waits.
    PassivateIfWaiting,
    /// The job's route was removed: the actor stops.
    Close,
}

/// An inspection of a job. Its completion is reported after the commit of the inspected state.
pub struct Inspection {
    pub(super) inspect: Box<dyn FnOnce(&Job) + Send>,
    pub(super) latch: Arc<CompletionLatch>,
}

impl Inspection {
    /// Creates an inspection that passes the job to `inspect`. `latch` is dropped after the commit
    /// of the inspected state.
    pub fn new(
        inspect: impl FnOnce(&Job) + Send + 'static,
        latch: Arc<CompletionLatch>,
    ) -> Inspection {
        Inspection { inspect: Box::new(inspect), latch }
    }
}

/// Buckets of trends that are to be stored.
pub struct TrendWrite {
    pub(super) trends: Vec<StoredTrend>,
    /// The workflows whose trends are deleted.
    pub(super) forgotten: Vec<Arc<str>>,
    /// Answered once the buckets are stored; dropped if they cannot be stored now.
    pub(super) stored: oneshot::Sender<()>,
}

/// Cells of jobs of one workflow that were computed anew.
pub struct CellRefillWrite {
    /// The loaded definition of the workflow.
    pub(super) definition: Arc<Definition>,
    pub(super) refills: Vec<CellRefill>,
    /// Answered with the jobs that went on meanwhile, or do not exist any more, and are left as
    /// they are; or why the cells cannot be set now.
    pub(super) answer: oneshot::Sender<Result<BTreeSet<JobNumber>, String>>,
}

/// An input of the journal actor.
pub enum JournalInput {
    /// Commits a record, if there is one, and then sends the effects.
    Append(Append),
    /// Starts the deletion of jobs past their retention. It is sent after all recovered jobs have
    /// routes, because a deletion stops the actor of its job.
    StartRetention,
    /// Erases an ended root job for a client.
    Erase(JobNumber, ResponseSender<Erased>),
    /// Deletes notices that were delivered.
    DeleteNotices(Vec<NoticeNumber>),
    /// A bus has reached this offset of a topic: all replies before it are settled, or all messages
    /// before it are written. The offset is stored with a delay.
    StoreOffset(StoredOffset),
    /// Stores a control, or that it has ended, and then tells the router.
    ChangeControl(Box<ControlChange>),
    /// Stores or deletes ledgers of schedules. Answered once they are stored, however long the disk
    /// is full.
    StoreLedgers(Vec<StoredLedger>, oneshot::Sender<()>),
    /// Stores buckets of trends.
    StoreTrends(Box<TrendWrite>),
    /// Sets cells that were computed anew.
    RefillCells(Box<CellRefillWrite>),
    /// Creates the status tables of newly loaded definitions.
    CreateStatusTables(Vec<Arc<Definition>>),
    /// Answered once everything appended before is committed and projected. If the journal has to
    /// wait for disk space or a lock, the sender is dropped without an answer.
    ProjectionBarrier(oneshot::Sender<()>),
    /// Released once everything appended before is committed, however long the disk is full.
    CommitBarrier(CommitBarrier),
    /// Answered at once, even while the disk is full: the last hop of the supervisor's liveness
    /// probe.
    LivenessProbe(oneshot::Sender<()>),
}

/// What follows from no record, and yet must wait for a commit. That commit also shows that this
/// process may still act: one that another has replaced knows too little to decide.
pub enum CommitBarrier {
    /// Is answered.
    Answer(oneshot::Sender<()>),
    /// A delivery that changed nothing is acknowledged.
    AckRejected(Acknowledger),
}

impl CommitBarrier {
    /// Does what had to wait.
    pub(super) fn release(self) {
        match self {
            // An error means that the receiver was dropped.
            CommitBarrier::Answer(sender) => drop(sender.send(())),
            CommitBarrier::AckRejected(acknowledger) => acknowledger.ack(),
        }
    }
}

/// A record to commit, and the effects to send after its commit.
pub struct Append {
    /// The job's id.
    pub id: JobId,
    /// The job's number.
    pub job: JobNumber,
    /// The record to commit. `None`: there is none, and the effects wait for the commit of the
    /// records before.
    pub record: Option<Record>,
    /// Whether the record is committed without delay. A commit that only has confirms can be
    /// delayed.
    pub is_urgent: bool,
    /// What the gate is told after the commit; `None`: nothing.
    pub demands: Option<Box<JobDemands>>,
    /// The effects that are sent after the commit, in this order.
    pub outgoing: Vec<Outgoing>,
    /// Set if the job has nothing left to do and asks to be stopped after the commit: how many
    /// inputs it has handled.
    pub stop_after: Option<u64>,
    /// Set if the job only waits and asks to be passivated after the commit.
    pub passivate: Option<Box<PassivateRequest>>,
}

/// An input of the archive.
pub enum ArchiveInput {
    /// The router looks up an id under which no job takes input.
    LookUp(JobId, Lookup),
    /// The supervisor asks for the state of a job whose actor panicked.
    Rebuild(JobNumber),
    /// The router activates passivated job trees.
    Activate(Vec<TreeNumbers>),
}

/// The numbers of the jobs in a passivated job tree.
pub struct TreeNumbers {
    /// The number of the root job.
    pub root: JobNumber,
    /// The numbers of all jobs in the tree, including the root job.
    pub members: Vec<JobNumber>,
}

/// What the router looks up under an id.
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
    /// A job's actor has panicked. It has lost the job's state, which the journal must rebuild.
    Panicked {
        /// The job's id.
        id: JobId,
        /// The job's number.
        number: JobNumber,
    },
    /// The archive has rebuilt the job with this number; `None`: the journal does not have it.
    Rebuilt(JobNumber, Option<Box<RecoveredJob>>),
    /// Replaces all loaded definitions. If that fails, the answer is the reason, and no definition
    /// is replaced.
    Redefine(Definitions, oneshot::Sender<Result<(), String>>),
    /// A liveness probe. The supervisor forwards it to the router, the router to the journal, and
    /// the journal answers it. The answer shows that all three handle their inputs.
    LivenessProbe(oneshot::Sender<()>),
}

/// An input of the scheduler.
pub enum SchedulerInput {
    /// Replaces the schedules by those of these definitions.
    Load(Arc<Definitions>),
    /// Answered with all schedules, ordered by their full names.
    List(oneshot::Sender<Vec<ScheduleStatus>>),
    /// A client asks for an operation on the schedule of this full name. Answered once it is
    /// stored.
    Operate(String, ScheduleOperation, oneshot::Sender<Result<ScheduleStatus, RequestError>>),
    /// A client asks to start the jobs of slots that have passed. Answered once that is stored.
    Backfill(String, Backfill, oneshot::Sender<Result<Vec<BackfilledSlot>, RequestError>>),
}

/// An input of the notifier.
pub enum NotifierInput {
    /// Publishes the events of a committed decision.
    Events(Vec<Arc<Event>>),
    /// Closes the topic: waits until the exchange has all events, or until the receiver of the
    /// answer is dropped.
    Close(oneshot::Sender<()>),
}

/// An input of a bus actor.
pub enum BusInput {
    /// Publishes messages.
    Publish(Vec<Publication>),
    /// Withdraws a message from its queue, or from the worker that has leased it: the queue, the id
    /// of the message, and how its attempt has ended.
    Withdraw(Arc<str>, String, AttemptEnd),
    /// Sets the queues of the workflows that are loaded now.
    Serve(ServedQueues),
    /// Inspects queues. The answer has their statuses, in the same order.
    Inspect(Vec<Arc<str>>, oneshot::Sender<Vec<QueueStatus>>),
    /// Declares those of these queues that are missing, because steps wait on them.
    DeclareMissing(Vec<Arc<str>>),
    /// Reports how many messages each queue holds.
    Depths(oneshot::Sender<Result<Vec<QueueDepth>, String>>),
    /// Sets whether the bus takes in deliveries, and lends messages to workers.
    SetConsuming(bool),
    /// Closes the bus: it takes no more deliveries, and waits until all confirms have arrived, or
    /// until the receiver of the answer is dropped.
    Close(oneshot::Sender<()>),
}

/// An effect that is sent after a commit.
pub enum Outgoing {
    /// Acknowledges a delivery.
    Ack(Acknowledger),
    /// Publishes a message.
    Publish(Publication),
    /// Withdraws a message, if its bus still has it: its queue, its id, and how its attempt has
    /// ended.
    Withdraw(Address, String, AttemptEnd),
    /// Starts a child job.
    StartChild(Box<NewChild>),
    /// Gives an order to a child job.
    OrderChild(ChildOrder),
    /// Reports the end of a child job to its parent.
    NotifyParent(ParentItem, ChildEnd),
    /// Sends the response to a client.
    Respond(ClientResponse),
    /// Drops a latch that waits for the commit.
    ReleaseLatch(Arc<CompletionLatch>),
    /// Notifies subscribers of events.
    PublishEvents(Vec<Arc<Event>>),
    /// Notifies the webhook that the journal has a notice for it.
    WebhookNotice,
    /// Sends the trace of a root job that has ended.
    SendTrace(EndedJob),
    /// Notifies subscribers that the counts of the job's child jobs have changed.
    ChildCountsChanged(JobId),
    /// Sets what lists show of the job.
    List(SharedListedState, ListedState),
}

/// What a decision of a job wants of the gate.
pub struct JobDemands {
    /// The job's id.
    pub id: JobId,
    /// The job's number.
    pub number: JobNumber,
    /// The definition that the job runs.
    pub definition: Arc<Definition>,
    /// The graph of the definition that it runs.
    pub graph: GraphIndex,
    /// What the job and its steps want, as far as that has changed.
    pub demands: StepDemands,
    /// The spare places that the decision has taken. Those among them that steps still want are
    /// also in the demands.
    pub taken: TakenPlaces,
}

/// The spare places that a decision has taken: mostly none or one.
pub type TakenPlaces = SmallVec<[TakenPlace; 1]>;

/// A spare place that a decision has taken. If it is dropped before the gate knows what became of
/// it, the decision has come to nothing, and the gate is told that the place is free.
pub struct TakenPlace {
    limit: Arc<str>,
    /// `None`: the gate knows it.
    router: Option<Mailbox<RouterInput>>,
}

impl TakenPlace {
    /// Creates what stands for a place of a limit, given by its full name.
    pub(super) fn new(limit: Arc<str>, router: Mailbox<RouterInput>) -> TakenPlace {
        TakenPlace { limit, router: Some(router) }
    }

    /// Returns the full name of the limit, for the gate.
    pub(super) fn settle(mut self) -> Arc<str> {
        self.router = None;
        self.limit.clone()
    }
}

impl Drop for TakenPlace {
    fn drop(&mut self) {
        if let Some(router) = self.router.take() {
            router.send(RouterInput::PlaceUnused(self.limit.clone()));
        }
    }
}

/// A change of what operators have changed for a time.
pub struct ControlChange {
    /// What it is about.
    pub key: ControlKey,
    /// The control that is in force from now on; `None`: none is.
    pub control: Option<Control>,
    /// Answered when it is in force, or with the reason why it cannot be stored now.
    pub answer: oneshot::Sender<Result<(), String>>,
}

/// An order to a child job.
pub struct ChildOrder {
    /// The id of the child job.
    pub id: JobId,
    /// The step and item of the parent that the child job was started for. They identify the child
    /// job if another job has its id by now.
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
    /// The message of the child job.
    pub message: Message,
    /// The parent's number.
    pub parent: JobNumber,
    /// The number of the root job.
    pub root: JobNumber,
}
