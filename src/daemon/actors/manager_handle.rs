//! The manager handle: the requests of clients to the manager, with typed responses. The API, the
//! examples and the benches use it instead of sending inputs to actors.

mod controls;
mod refill;
mod schedules;

use super::bulk_requests::BulkRedispatch;
use super::buses::Buses;
use super::client_response::{
    CreateResponse, Erased, OperationResponse, RequestError, ResponseSender,
};
use super::completion_latch::CompletionLatch;
use super::fatal::FatalReporter;
use super::health::Health;
use super::inputs::{
    BusInput, CreateJob, Definitions, Inspection, JobInput, JournalInput, RouterInput,
    SchedulerInput, SupervisorInput,
};
use super::loaded_definitions::LoadedDefinitions;
use super::losses::QueueLosses;
use super::mailbox::Mailbox;
use super::mailboxes::Mailboxes;
use super::manager_core::ManagerCore;
use super::queue_report::{QueueReport, QueueReports};
use super::queue_watch::collect_oldest_waits;
use super::routes::Routes;
use base::clock;
use bus::{BusKey, LeaseQueues, QueueStatus};
use engine::{
    Definition, Gate, Job, JobId, Limits, Message, Operation, OperationRequest, Timestamp,
    TraceContext,
};
use futures_util::future::join_all;
use journal::Ownership;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

/// The timeout for the inspection of queues by a bus.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a step-down waits for a beat that counts the standbys anew.
const NEW_BEAT_TIMEOUT: Duration = Duration::from_secs(3);

/// A handle to a running manager. Its clones refer to the same manager.
#[derive(Clone)]
pub struct ManagerHandle(Arc<HandleState>);

struct HandleState {
    router: Mailbox<RouterInput>,
    journal: Mailbox<JournalInput>,
    supervisor: Mailbox<SupervisorInput>,
    scheduler: Mailbox<SchedulerInput>,
    routes: Routes,
    buses: Arc<Buses>,
    lease_queues: Arc<LeaseQueues>,
    definitions: Arc<LoadedDefinitions>,
    health: Arc<Health>,
    queue_losses: Arc<QueueLosses>,
    limits: Limits,
    /// When the process started, by the wall clock and by the monotonic clock.
    started_at: (Timestamp, Instant),
    /// The setting `limits.creations_waiting_max`.
    creations_max: usize,
    /// The permits for creations that wait for their response.
    creation_permits: Semaphore,
    /// The cached report on queues.
    queue_reports: QueueReports,
    /// `None` if no other process can take the journal over.
    ownership: Option<Arc<Ownership>>,
    fatal: FatalReporter,
}

impl ManagerHandle {
    /// Creates the handle of a manager.
    pub(super) fn new(
        core: &ManagerCore,
        mailboxes: &Mailboxes,
        ownership: Option<Arc<Ownership>>,
    ) -> ManagerHandle {
        let creations_max = core.settings.limits.creations_waiting_max;
        ManagerHandle(Arc::new(HandleState {
            router: mailboxes.router.clone(),
            journal: mailboxes.journal.clone(),
            supervisor: mailboxes.supervisor.clone(),
            scheduler: mailboxes.scheduler.clone(),
            routes: core.routes.clone(),
            buses: core.buses.clone(),
            lease_queues: core.lease_queues.clone(),
            definitions: core.definitions.clone(),
            health: core.health.clone(),
            queue_losses: core.queue_losses.clone(),
            limits: core.limits,
            started_at: core.started_at,
            creations_max,
            creation_permits: Semaphore::new(creations_max.min(Semaphore::MAX_PERMITS)),
            queue_reports: QueueReports::default(),
            ownership,
            fatal: core.fatal.clone(),
        }))
    }

    /// Returns the definitions for new jobs.
    pub fn definitions(&self) -> Arc<Definitions> {
        self.0.definitions.current()
    }

    /// Returns the definitions of active and passivated jobs that are no longer loaded.
    pub fn unloaded_definitions(&self) -> Vec<Arc<Definition>> {
        self.0.definitions.without_loaded(self.0.routes.definitions())
    }

    /// Returns the health of the manager, for readiness and liveness.
    pub fn health(&self) -> &Health {
        &self.0.health
    }

    /// Returns the limits for decisions of the engine.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Returns when the process started, by the wall clock and by the monotonic clock.
    pub fn started_at(&self) -> (Timestamp, Instant) {
        self.0.started_at
    }

    /// Returns the queues that have lost messages.
    pub fn queue_losses(&self) -> &QueueLosses {
        &self.0.queue_losses
    }

    /// Returns the permits for creations that wait for their response.
    pub fn creation_permits(&self) -> &Semaphore {
        &self.0.creation_permits
    }

    /// Returns the routes of active and passivated jobs.
    pub fn routes(&self) -> &Routes {
        &self.0.routes
    }

    /// Returns the registry of buses.
    pub fn buses(&self) -> &Buses {
        &self.0.buses
    }

    /// Returns the lease queues of embedded buses.
    pub fn lease_queues(&self) -> &LeaseQueues {
        &self.0.lease_queues
    }

    /// Creates a job of the loaded workflow of this name, as [`create_job`](Self::create_job) does.
    ///
    /// # Errors
    ///
    /// Returns an error if the job was not created, or no such workflow is loaded.
    pub async fn create(
        &self,
        workflow: &str,
        id: Option<JobId>,
        message: Message,
    ) -> Result<CreateResponse, RequestError> {
        match self.definitions().get(workflow).cloned() {
            Some(definition) => self.create_job(definition, id, message, None, None).await,
            None => Err(RequestError::NotFound),
        }
    }

    /// Creates a job of a workflow, and returns after the commit. If `id` is `None`, the router
    /// chooses the id. `trace` is the trace context of the request, if it has one. `starts_at` is
    /// when the job begins: at once if it is `None`, or has passed.
    ///
    /// # Errors
    ///
    /// Returns an error if the job was not created.
    pub async fn create_job(
        &self,
        definition: Arc<Definition>,
        id: Option<JobId>,
        message: Message,
        trace: Option<TraceContext>,
        starts_at: Option<Timestamp>,
    ) -> Result<CreateResponse, RequestError> {
        if !self.0.health.can_accept() {
            let reasons: Vec<String> = self
                .0
                .health
                .checks()
                .into_iter()
                .filter(|check| !check.is_passed)
                .map(|check| check.to_string())
                .collect();
            return Err(RequestError::Overloaded(reasons.join("; ")));
        }
        let limit = self.0.creations_max;
        // If the client disconnects, this future is dropped, and the permit with it.
        let Ok(_permit) = self.0.creation_permits.try_acquire() else {
            return Err(RequestError::Overloaded(format!(
                "{limit} creations are under way (setting limits.creations_waiting_max)"
            )));
        };
        send_request(&self.0, |response| {
            RouterInput::Create(CreateJob {
                id,
                definition,
                message,
                trace,
                starts_at,
                slot: None,
                response,
            })
        })
        .receive()
        .await
        .unwrap_or_else(|ActorStopped| {
            let reason = "the job's creation panicked; the log has the panic";
            Err(RequestError::Failed(reason.to_owned()))
        })
    }

    /// Requests an operation on a job. The future resolves after the commit. The request is sent
    /// when this is called, not when the future is awaited.
    pub fn operate<R: Into<OperationRequest>>(
        &self,
        id: JobId,
        request: R,
    ) -> impl Future<Output = Result<OperationResponse, RequestError>> + use<R> {
        let request = request.into();
        let is_cancel = matches!(request.operation, Operation::Cancel { .. });
        let input = |response| RouterInput::Operate(id, request, response);
        let pending = if is_cancel {
            send_cancel(&self.0, id, input)
        } else {
            send_if_accepting(&self.0, input)
        };
        async move { pending?.receive_for_job(id).await }
    }

    /// Cancels a job, in the name of `principal` if there is one. The future resolves after
    /// the commit. This is idempotent: if the job has ended, the response is its state. The request
    /// is sent when this is called, not when the future is awaited.
    pub fn cancel(
        &self,
        id: JobId,
        principal: Option<Arc<str>>,
    ) -> impl Future<Output = Result<OperationResponse, RequestError>> + use<> {
        let pending =
            send_cancel(&self.0, id, |response| RouterInput::Cancel(id, principal, response));
        async move { pending?.receive_for_job(id).await }
    }

    /// Erases an ended job from the journal. The request is sent when this is called, not when the
    /// future is awaited.
    pub fn erase(&self, id: JobId) -> impl Future<Output = Result<Erased, RequestError>> + use<> {
        let pending = send_request(&self.0, |response| RouterInput::Erase(id, response));
        async move { pending.receive_for_job(id).await }
    }

    /// Dispatches again all steps that wait on a queue; a dry run only counts them. Returns after
    /// the commit: the number of these steps, and the number of their jobs.
    ///
    /// # Errors
    ///
    /// Returns an error if the manager accepts nothing now.
    pub async fn redispatch(&self, bulk: BulkRedispatch) -> Result<(usize, usize), RequestError> {
        if !self.0.health.can_accept() {
            return Err(not_accepting());
        }
        let bulk = Arc::new(bulk);
        let (sender, receiver) = oneshot::channel();
        if self.0.router.try_send(RouterInput::Redispatch(bulk.clone(), sender)).is_err() {
            return Err(mailbox_full());
        }
        receiver
            .await
            .map_err(|_| RequestError::Overloaded("the manager is stopping".to_owned()))?;
        Ok(bulk.counts())
    }

    /// Replaces all definitions for new jobs.
    ///
    /// # Errors
    ///
    /// Returns the reason if no definition was replaced.
    pub async fn replace_definitions(&self, definitions: Definitions) -> Result<(), String> {
        let (sender, receiver) = oneshot::channel();
        self.0.supervisor.send(SupervisorInput::Redefine(definitions, sender));
        receiver.await.unwrap_or_else(|_| Err("the manager is stopping".to_owned()))
    }

    /// Returns the status of each of these queues of a bus, in the same order.
    pub async fn inspect_queues(&self, bus: &BusKey, queues: Vec<Arc<str>>) -> Vec<QueueStatus> {
        let all_unknown = |reason: String| vec![QueueStatus::Unknown(reason); queues.len()];
        let request = async {
            let (sender, receiver) = oneshot::channel();
            self.0.buses.find(bus)?.send(BusInput::Inspect(queues.clone(), sender));
            receiver.await.ok()
        };
        match tokio::time::timeout(INSPECT_TIMEOUT, request).await {
            Ok(Some(statuses)) => statuses,
            Ok(None) => all_unknown("there is no bus, or it is closing".to_owned()),
            Err(_) => all_unknown(format!("no answer within {INSPECT_TIMEOUT:?}")),
        }
    }

    /// Waits until a bus has handled all inputs that were sent to it so far. Returns whether it has
    /// within [`INSPECT_TIMEOUT`].
    pub async fn wait_for_bus(&self, bus: &BusKey) -> bool {
        let (sender, receiver) = oneshot::channel();
        let Some(mailbox) = self.0.buses.find(bus) else { return false };
        mailbox.send(BusInput::Inspect(Vec::new(), sender));
        matches!(tokio::time::timeout(INSPECT_TIMEOUT, receiver).await, Ok(Ok(_)))
    }

    /// Returns the report on all queues of the loaded workflows and of active jobs. It can be some
    /// seconds old, because it is cached.
    pub async fn queue_report(&self) -> Arc<QueueReport> {
        self.0.queue_reports.cached_or_inspect(self.inspect_all_queues()).await
    }

    /// Inspects the queues of the loaded workflows and of active jobs, on all buses at the same
    /// time. Jobs are not asked.
    pub(super) async fn inspect_each_queue(&self) -> BTreeMap<(BusKey, Arc<str>), QueueStatus> {
        let mut queues_by_bus: BTreeMap<BusKey, Vec<Arc<str>>> = BTreeMap::new();
        let unloaded = self.unloaded_definitions();
        for definition in self.0.definitions.current().values().chain(&unloaded) {
            for step in definition.sending_steps() {
                let bus = self.0.buses.bus_of_step(definition, step);
                queues_by_bus.entry(bus).or_default().push(step.queue.clone());
            }
        }
        let inspect_each = queues_by_bus.into_iter().map(|(bus, mut queues)| async move {
            queues.sort_unstable();
            queues.dedup();
            let statuses = self.inspect_queues(&bus, queues.clone()).await;
            (bus, queues, statuses)
        });
        let inspections = join_all(inspect_each).await;
        let status_by_queue = inspections.into_iter().flat_map(|(bus, queues, statuses)| {
            queues
                .into_iter()
                .zip(statuses)
                .map(move |(queue, status)| ((bus.clone(), queue), status))
        });
        status_by_queue.collect()
    }

    /// Inspects all queues, and asks the jobs which of their steps wait longest.
    async fn inspect_all_queues(&self) -> QueueReport {
        let (queues, (oldest_waits, collection_time)) = tokio::join!(
            self.inspect_each_queue(),
            collect_oldest_waits(&self.0.routes, &self.0.buses)
        );
        QueueReport {
            queues,
            at: clock::now(),
            instant: clock::timer_now(),
            oldest: oldest_waits,
            collected_in: collection_time,
        }
    }

    /// Returns the status of a queue of a bus.
    pub async fn inspect_queue(&self, bus: &BusKey, queue: Arc<str>) -> QueueStatus {
        let unknown = || QueueStatus::Unknown("the bus does not tell".to_owned());
        self.inspect_queues(bus, vec![queue]).await.pop().unwrap_or_else(unknown)
    }

    /// Passes a job that takes input to `inspect`. Returns the result after the commit of the
    /// inspected state; `None`: no such job takes input, or its actor is stopping.
    pub async fn inspect_job<T: Send + 'static>(
        &self,
        id: JobId,
        inspect: impl FnOnce(&Job) -> T + Send + 'static,
    ) -> Option<T> {
        let (result, commit) = self.inspect_uncommitted(id, inspect).await?;
        // This cannot fail: the latch sends when it is dropped.
        let _ = commit.await;
        Some(result)
    }

    /// Passes a job that takes input to `inspect`. Returns the result at once, and a receiver that
    /// is notified after the commit of the inspected state; `None`: no such job takes input, or its
    /// actor is stopping.
    pub async fn inspect_uncommitted<T: Send + 'static>(
        &self,
        id: JobId,
        inspect: impl FnOnce(&Job) -> T + Send + 'static,
    ) -> Option<(T, oneshot::Receiver<()>)> {
        let (result_sender, result) = oneshot::channel();
        let (commit_sender, commit) = oneshot::channel();
        let inspection = Inspection::new(
            move |job| {
                // An error means that the receiver was dropped.
                let _ = result_sender.send(inspect(job));
            },
            CompletionLatch::new(commit_sender),
        );
        self.0.routes.find(id)?.send(JobInput::Inspect(inspection));
        Some((result.await.ok()?, commit))
    }

    /// Activates a job, and waits until it takes input. Returns at once if it is not passivated.
    pub async fn activate(&self, id: JobId) {
        if self.0.routes.is_passivated(id) {
            let (sender, receiver) = oneshot::channel();
            self.0.router.send(RouterInput::Activate(id, sender));
            // An error means that the manager is stopping.
            let _ = receiver.await;
        }
    }

    /// Waits until the router has handled all inputs that were sent to it so far.
    pub async fn wait_for_router(&self) {
        let (sender, receiver) = oneshot::channel();
        self.0.router.send(RouterInput::Barrier(sender));
        // An error means that the manager is stopping.
        let _ = receiver.await;
    }

    /// Reads the gate of the limits, on the router's thread. Returns `None` if the manager is
    /// stopping.
    pub async fn inspect_gate<T: Send + 'static>(
        &self,
        inspect: impl FnOnce(&Gate) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        // An error means that the receiver was dropped.
        let answer = move |gate: &Gate| drop(sender.send(inspect(gate)));
        self.0.router.send(RouterInput::InspectGate(Box::new(answer)));
        receiver.await.ok()
    }

    /// Probes liveness: returns when the supervisor, the router and the journal have handled the
    /// probe, one after another. A full disk or an unavailable broker does not prevent that. If one
    /// of the threads hangs, or the manager is stopping, this never returns.
    pub async fn probe_liveness(&self) {
        let (sender, receiver) = oneshot::channel();
        self.0.supervisor.send(SupervisorInput::LivenessProbe(sender));
        if receiver.await.is_err() {
            // One of the actors has stopped: the manager is stopping.
            std::future::pending::<()>().await;
        }
    }

    /// Asks for an orderly shutdown that leaves the name to a standby. Returns the number of
    /// standbys. Without one it is refused, unless `is_forced`. A standby that has just come is
    /// seen by a new beat.
    ///
    /// # Errors
    ///
    /// Returns the reason if nobody could take the name.
    pub async fn step_down(&self, reason: String, is_forced: bool) -> Result<u32, StepDownError> {
        let Some(ownership) = &self.0.ownership else { return Err(StepDownError::NoCluster) };
        if ownership.standbys() == 0 && !is_forced {
            // Without an answer in time what was known counts.
            let _ = tokio::time::timeout(NEW_BEAT_TIMEOUT, ownership.await_new_beat()).await;
        }
        let standbys = ownership.standbys();
        if standbys == 0 && !is_forced {
            return Err(StepDownError::NoStandby);
        }
        self.0.fatal.request_step_down(reason);
        Ok(standbys)
    }

    /// Waits until all decisions of a job so far are committed.
    pub async fn wait_until_committed(&self, id: JobId) {
        let (sender, receiver) = oneshot::channel();
        match self.0.routes.find(id) {
            Some(job) => job.send(JobInput::AwaitCommit(CompletionLatch::new(sender))),
            None => return,
        }
        // This cannot fail: the latch sends when it is dropped.
        let _ = receiver.await;
    }
}

/// Why the manager does not leave its name to a standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepDownError {
    /// The journal is a file.
    #[error(
        "the journal of this manager is a file, which no other manager can take over: stop it with \
         SIGTERM, and start it again"
    )]
    NoCluster,
    /// No other process of the name stands by.
    #[error(
        "no other manager of this name stands by, so nobody would take over: start one, or ask \
         with force=true"
    )]
    NoStandby,
}

/// The error that an actor has stopped without a response.
struct ActorStopped;

/// A response that has not arrived yet; `None`: the router's mailbox was full.
struct PendingResponse<T>(Option<oneshot::Receiver<Result<T, RequestError>>>);

impl<T> PendingResponse<T> {
    /// Waits for the response.
    async fn receive(self) -> Result<Result<T, RequestError>, ActorStopped> {
        match self.0 {
            None => Ok(Err(mailbox_full())),
            Some(receiver) => receiver.await.map_err(|_| ActorStopped),
        }
    }

    /// Waits for the response of a job's actor.
    async fn receive_for_job(self, id: JobId) -> Result<T, RequestError> {
        self.receive().await.unwrap_or_else(|ActorStopped| Err(job_stopping(id)))
    }
}

/// Sends a request to the router.
fn send_request<T>(
    state: &HandleState,
    input: impl FnOnce(ResponseSender<T>) -> RouterInput,
) -> PendingResponse<T> {
    let (sender, receiver) = oneshot::channel();
    let is_sent = state.router.try_send(input(sender)).is_ok();
    PendingResponse(is_sent.then_some(receiver))
}

/// Sends a request to the router, unless the manager accepts nothing now.
fn send_if_accepting<T>(
    state: &HandleState,
    input: impl FnOnce(ResponseSender<T>) -> RouterInput,
) -> Result<PendingResponse<T>, RequestError> {
    if state.health.can_accept() { Ok(send_request(state, input)) } else { Err(not_accepting()) }
}

/// Sends a request to cancel a job. For a job that has not stopped, this is possible even while the
/// disk is full.
fn send_cancel<T>(
    state: &HandleState,
    id: JobId,
    input: impl FnOnce(ResponseSender<T>) -> RouterInput,
) -> Result<PendingResponse<T>, RequestError> {
    let can_cancel = state.health.can_cancel() && state.routes.is_active(id);
    if can_cancel { Ok(send_request(state, input)) } else { send_if_accepting(state, input) }
}

fn mailbox_full() -> RequestError {
    RequestError::Overloaded("the router's mailbox is full".to_owned())
}

fn not_accepting() -> RequestError {
    RequestError::Overloaded("the manager accepts nothing now; /readyz?verbose says why".to_owned())
}

/// Returns the error that the job's actor has just stopped. A retry is answered from the journal.
fn job_stopping(id: JobId) -> RequestError {
    RequestError::Overloaded(format!("job {id} is just ending: try again"))
}
