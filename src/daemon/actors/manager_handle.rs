//! The manager handle: what clients ask of the manager, and its typed responses. The API, the
//! examples and the benches use it, and send no inputs to actors themselves.

use super::bulk_requests::BulkRedispatch;
use super::buses::Buses;
use super::client_response::{
    CreateResponse, Erased, OperationResponse, RequestError, ResponseSender,
};
use super::completion_latch::CompletionLatch;
use super::health::Health;
use super::inputs::{
    BusInput, CreateJob, Definitions, Inspection, JobInput, RouterInput, SupervisorInput,
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
use bus::LeaseQueues;
use bus::{BusKey, QueueStatus};
use engine::{
    Definition, Job, JobId, Limits, Message, Operation, OperationRequest, Timestamp, TraceContext,
};
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

/// How long the broker may take to report on queues, and the jobs to report what waits there.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A handle to a running manager: what its clients may ask of it. Clones lead to the same manager.
#[derive(Clone)]
pub struct ManagerHandle(Arc<HandleState>);

struct HandleState {
    router: Mailbox<RouterInput>,
    supervisor: Mailbox<SupervisorInput>,
    routes: Routes,
    buses: Arc<Buses>,
    lease_queues: Arc<LeaseQueues>,
    definitions: Arc<LoadedDefinitions>,
    health: Arc<Health>,
    queue_losses: Arc<QueueLosses>,
    limits: Limits,
    started_at: (Timestamp, Instant),
    creations_max: usize,
    /// Permits for creations that are not answered yet.
    creation_permits: Semaphore,
    /// The last report of what queues hold.
    queue_reports: QueueReports,
}

impl ManagerHandle {
    /// Creates the handle to the manager of these actors.
    pub(super) fn new(core: &ManagerCore, mailboxes: &Mailboxes) -> ManagerHandle {
        let creations_max = core.settings.limits.creations_waiting_max;
        ManagerHandle(Arc::new(HandleState {
            router: mailboxes.router.clone(),
            supervisor: mailboxes.supervisor.clone(),
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
        }))
    }

    /// Returns the definitions for new jobs.
    pub fn definitions(&self) -> Arc<Definitions> {
        self.0.definitions.current()
    }

    /// Returns the definitions that jobs under way still run but that are no longer loaded.
    pub fn unloaded_definitions(&self) -> Vec<Arc<Definition>> {
        self.0.definitions.without_loaded(self.0.routes.definitions())
    }

    /// Returns what readiness and liveness are answered from.
    pub fn health(&self) -> &Health {
        &self.0.health
    }

    /// Returns the limits for decisions.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Returns when the process started, by the wall clock and by a monotonic one.
    pub fn started_at(&self) -> (Timestamp, Instant) {
        self.0.started_at
    }

    /// Returns the queues that have lost messages.
    pub fn queue_losses(&self) -> &QueueLosses {
        &self.0.queue_losses
    }

    /// Returns the permits for creations that are not answered yet.
    pub fn creation_permits(&self) -> &Semaphore {
        &self.0.creation_permits
    }

    /// Returns a view of the jobs that take input.
    pub fn routes(&self) -> &Routes {
        &self.0.routes
    }

    /// Returns the buses.
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
    /// The job was not created, or no such workflow is loaded.
    pub async fn create(
        &self,
        workflow: &str,
        id: Option<JobId>,
        message: Message,
    ) -> Result<CreateResponse, RequestError> {
        match self.definitions().get(workflow).cloned() {
            Some(definition) => self.create_job(definition, id, message, None).await,
            None => Err(RequestError::NotFound),
        }
    }

    /// Creates a job of a workflow: under this id, if the client has chosen one, and with this
    /// trace context, if the request has one. Answered after the commit.
    ///
    /// # Errors
    ///
    /// The job was not created.
    pub async fn create_job(
        &self,
        definition: Arc<Definition>,
        id: Option<JobId>,
        message: Message,
        trace: Option<TraceContext>,
    ) -> Result<CreateResponse, RequestError> {
        if !self.0.health.can_accept() {
            let reasons: Vec<String> = self
                .0
                .health
                .checks()
                .into_iter()
                .filter(|(_, good, _)| !good)
                .map(|(name, _, text)| format!("{name}: {text}"))
                .collect();
            return Err(RequestError::Overloaded(reasons.join("; ")));
        }
        let limit = self.0.creations_max;
        // If the client goes away, this future is dropped, and the permit with it.
        let Ok(_permit) = self.0.creation_permits.try_acquire() else {
            return Err(RequestError::Overloaded(format!(
                "{limit} creations are under way (setting limits.creations_waiting_max)"
            )));
        };
        let panicked = || "the job's creation panicked; the log has the panic".to_owned();
        send_request(&self.0, |answer| {
            RouterInput::Create(CreateJob { id, definition, message, trace, response: answer })
        })
        .receive()
        .await
        .unwrap_or_else(|ActorStopped| Err(RequestError::Failed(panicked())))
    }

    /// Requests an operation on a job; answered after the commit. The request is sent when this is
    /// called, not when the future is awaited.
    pub fn operate<R: Into<OperationRequest>>(
        &self,
        id: JobId,
        request: R,
    ) -> impl Future<Output = Result<OperationResponse, RequestError>> + use<R> {
        let request = request.into();
        let cancels = matches!(request.operation, Operation::Cancel { .. });
        let answered = match cancels {
            true => send_cancel(&self.0, id, |answer| RouterInput::Operate(id, request, answer)),
            false => send_if_accepting(&self.0, |answer| RouterInput::Operate(id, request, answer)),
        };
        async move { answered?.receive_for_job(id).await }
    }

    /// Cancels a job, sent as [`operate`](Self::operate) sends; answered after the commit. If the
    /// job has ended, the response is its state: cancelling twice does no harm.
    pub fn cancel(
        &self,
        id: JobId,
        by: Option<Arc<str>>,
    ) -> impl Future<Output = Result<OperationResponse, RequestError>> + use<> {
        let answered = send_cancel(&self.0, id, |answer| RouterInput::Cancel(id, by, answer));
        async move { answered?.receive_for_job(id).await }
    }

    /// Erases an ended job from the journal. The request is sent when this is called.
    pub fn erase(&self, id: JobId) -> impl Future<Output = Result<Erased, RequestError>> + use<> {
        let answered = send_request(&self.0, |answer| RouterInput::Erase(id, answer));
        async move { answered.receive_for_job(id).await }
    }

    /// Sends the messages of all steps that wait on a queue again, or only counts them, as `bulk`
    /// says. Returns, once all is committed, how many steps in how many jobs and child jobs.
    ///
    /// # Errors
    ///
    /// Nothing is accepted now.
    pub async fn redispatch(&self, bulk: BulkRedispatch) -> Result<(usize, usize), RequestError> {
        if !self.0.health.can_accept() {
            return Err(not_accepting());
        }
        let bulk = Arc::new(bulk);
        let (answer, answered) = oneshot::channel();
        if self.0.router.try_send(RouterInput::Redispatch(bulk.clone(), answer)).is_err() {
            return Err(mailbox_full());
        }
        let stopping = || RequestError::Overloaded("the manager is stopping".to_owned());
        answered.await.map_err(|_| stopping())?;
        Ok(bulk.counts())
    }

    /// Replaces the definitions for new jobs: by all of these, or by none with the reason.
    ///
    /// # Errors
    ///
    /// Nothing was changed.
    pub async fn replace_definitions(&self, definitions: Definitions) -> Result<(), String> {
        let (answer, answered) = oneshot::channel();
        self.0.supervisor.send(SupervisorInput::Redefine(definitions, answer));
        answered.await.unwrap_or_else(|_| Err("the manager is stopping".to_owned()))
    }

    /// Returns what a bus knows of each of these queues, in the same order.
    pub async fn inspect_queues(&self, bus: &BusKey, queues: Vec<Arc<str>>) -> Vec<QueueStatus> {
        let unknown = |reason: String| vec![QueueStatus::Unknown(reason); queues.len()];
        let request = async {
            let (answer, answered) = oneshot::channel();
            self.0.buses.find(bus)?.send(BusInput::Inspect(queues.clone(), answer));
            answered.await.ok()
        };
        match tokio::time::timeout(INSPECT_TIMEOUT, request).await {
            Ok(Some(statuses)) => statuses,
            Ok(None) => unknown("there is no bus, or it is closing".to_owned()),
            Err(_) => unknown(format!("no answer within {INSPECT_TIMEOUT:?}")),
        }
    }

    /// Returns what all queues of the loaded workflows and of jobs under way hold; at most some
    /// seconds old.
    pub async fn queue_report(&self) -> Arc<QueueReport> {
        self.0.queue_reports.last_or_inspect(self.inspect_all_queues()).await
    }

    async fn inspect_all_queues(&self) -> QueueReport {
        let mut queues_by_bus: BTreeMap<BusKey, Vec<Arc<str>>> = BTreeMap::new();
        let unloaded = self.unloaded_definitions();
        for definition in self.0.definitions.current().values().chain(&unloaded) {
            for step in definition.sending_steps() {
                let bus = self.0.buses.bus_of_step(definition, step);
                queues_by_bus.entry(bus).or_default().push(step.queue.clone());
            }
        }
        let inspections = queues_by_bus.into_iter().map(|(bus, mut queues)| async move {
            queues.sort_unstable();
            queues.dedup();
            let found = self.inspect_queues(&bus, queues.clone()).await;
            (bus, queues, found)
        });
        let (inspected, (oldest, collected_in)) = tokio::join!(
            join_all(inspections),
            collect_oldest_waits(&self.0.routes, &self.0.buses)
        );
        let found = inspected.into_iter().flat_map(|(bus, queues, found)| {
            queues.into_iter().zip(found).map(move |(queue, status)| ((bus.clone(), queue), status))
        });
        let found = found.collect();
        QueueReport {
            at: clock::now(),
            ticks: clock::timer_now(),
            queues: found,
            oldest,
            collected_in,
        }
    }

    /// Returns what a bus knows of a queue.
    pub async fn inspect_queue(&self, bus: &BusKey, queue: Arc<str>) -> QueueStatus {
        let unknown = || QueueStatus::Unknown("the bus does not tell".to_owned());
        self.inspect_queues(bus, vec![queue]).await.pop().unwrap_or_else(unknown)
    }

    /// Passes a job under way to `inspect`, and returns the result once what was seen is committed.
    /// `None`: no such job is under way, or its actor is just stopping.
    pub async fn inspect_job<T: Send + 'static>(
        &self,
        id: JobId,
        inspect: impl FnOnce(&Job) -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, seen) = oneshot::channel();
        let (done, committed) = oneshot::channel();
        let inspection = Inspection::new(
            move |job| {
                // A client that has gone needs no response.
                let _ = answer.send(inspect(job));
            },
            CompletionLatch::new(done),
        );
        self.0.routes.find(id)?.send(JobInput::Inspect(inspection));
        // An error means that the actor has stopped: then all is committed.
        let _ = committed.await;
        seen.await.ok()
    }

    /// Waits until a job is not passivated: it takes input, or there is no such job.
    pub async fn activate(&self, id: JobId) {
        if self.0.routes.is_passivated(id) {
            let (answer, answered) = oneshot::channel();
            self.0.router.send(RouterInput::Activate(id, answer));
            // An error means that the manager is stopping.
            let _ = answered.await;
        }
    }

    /// Waits until the router has handled all inputs that were sent to it so far.
    pub async fn wait_for_router(&self) {
        let (answer, answered) = oneshot::channel();
        self.0.router.send(RouterInput::Barrier(answer));
        // An error means that the manager is stopping.
        let _ = answered.await;
    }

    /// Probes liveness: returns when supervisor, router and journal, one after the other, have
    /// handled their inputs. It returns while the disk is full and while a broker is away, and
    /// never if one of their threads hangs.
    pub async fn probe_liveness(&self) {
        let (answer, answered) = oneshot::channel();
        self.0.supervisor.send(SupervisorInput::LivenessProbe(answer));
        if answered.await.is_err() {
            // One of them has ended: the manager stops, or is about to.
            std::future::pending::<()>().await;
        }
    }

    /// Waits until everything that a job has decided is committed.
    pub async fn wait_until_committed(&self, id: JobId) {
        let (answer, answered) = oneshot::channel();
        match self.0.routes.find(id) {
            Some(job) => job.send(JobInput::AwaitCommit(CompletionLatch::new(answer))),
            None => return,
        }
        // An error means that its actor has stopped: then all is committed.
        let _ = answered.await;
    }
}

/// The actor stopped without a response.
struct ActorStopped;

/// A response that is awaited; `None`: the router's mailbox is full.
struct PendingResponse<T>(Option<oneshot::Receiver<Result<T, RequestError>>>);

impl<T> PendingResponse<T> {
    async fn receive(self) -> Result<Result<T, RequestError>, ActorStopped> {
        match self.0 {
            None => Ok(Err(mailbox_full())),
            Some(answered) => answered.await.map_err(|_| ActorStopped),
        }
    }

    /// Waits for the response of a job's actor.
    async fn receive_for_job(self, id: JobId) -> Result<T, RequestError> {
        self.receive().await.unwrap_or_else(|ActorStopped| Err(job_stopping(id)))
    }
}

/// Sends a request to the router, at once.
fn send_request<T>(
    state: &HandleState,
    input: impl FnOnce(ResponseSender<T>) -> RouterInput,
) -> PendingResponse<T> {
    let (answer, answered) = oneshot::channel();
    let is_sent = state.router.try_send(input(answer)).is_ok();
    PendingResponse(is_sent.then_some(answered))
}

/// Sends a request to the router, unless nothing is accepted now.
fn send_if_accepting<T>(
    state: &HandleState,
    input: impl FnOnce(ResponseSender<T>) -> RouterInput,
) -> Result<PendingResponse<T>, RequestError> {
    if state.health.can_accept() { Ok(send_request(state, input)) } else { Err(not_accepting()) }
}

/// Sends a request to cancel a job, which needs no room on the disk if the job is under way.
fn send_cancel<T>(
    state: &HandleState,
    id: JobId,
    input: impl FnOnce(ResponseSender<T>) -> RouterInput,
) -> Result<PendingResponse<T>, RequestError> {
    let is_possible = state.health.can_cancel() && state.routes.is_under_way(id);
    if is_possible { Ok(send_request(state, input)) } else { send_if_accepting(state, input) }
}

fn mailbox_full() -> RequestError {
    RequestError::Overloaded("the router's mailbox is full".to_owned())
}

fn not_accepting() -> RequestError {
    RequestError::Overloaded("the manager accepts nothing now; /readyz?verbose says why".to_owned())
}

/// Returns the error that the job's actor has just stopped. If the client asks again, the journal
/// answers.
fn job_stopping(id: JobId) -> RequestError {
    RequestError::Overloaded(format!("job {id} is just ending: try again"))
}
