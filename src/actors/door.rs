//! The manager handle: what clients ask of the manager, and its typed responses. The API, the
//! examples and the benches use it, and send no inputs to actors themselves.

use super::answer::{Client, Created, Erased, Now, Refusal};
use super::answer_on_drop::AnswerOnDrop;
use super::bulk::Bulk;
use super::mail::{BusInput, CreateJob, Definitions, JobInput, Look, RouterInput, SupervisorInput};
use super::queue_looks::Looked;
use super::queue_watch::longest_waits;
use super::ways::Ways;
use crate::bus::{BusKey, QueueLook};
use crate::clock;
use crate::engine::{Job, JobId, Message, Operation, Request, TraceContext};
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long the broker may take to report on queues, and the jobs to report what waits there.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// Creates a job of a workflow: under this id, if the client has chosen one, and with this trace
/// context, if the request has one. Answered after the commit.
///
/// # Errors
///
/// The job was not created.
pub async fn create(
    ways: &Ways,
    workflow: &str,
    id: Option<JobId>,
    message: Message,
    trace: Option<TraceContext>,
) -> Result<Created, Refusal> {
    let Some(definition) = ways.common.definitions().get(workflow).cloned() else {
        return Err(Refusal::Unknown);
    };
    if !ways.common.health.accepts() {
        let reasons: Vec<String> = ways
            .common
            .health
            .checks()
            .into_iter()
            .filter(|(_, good, _)| !good)
            .map(|(name, _, text)| format!("{name}: {text}"))
            .collect();
        return Err(Refusal::Overloaded(reasons.join("; ")));
    }
    let limit = ways.common.settings.limits.creations_waiting_max;
    // If the client goes away, this future is dropped, and the permit with it.
    let Ok(_permit) = ways.common.creations.try_acquire() else {
        return Err(Refusal::Overloaded(format!(
            "{limit} creations are under way (setting limits.creations_waiting_max)"
        )));
    };
    let panicked = || "the job's creation panicked; the log has the panic".to_owned();
    asked(ways, |answer| RouterInput::Create(CreateJob { id, definition, message, trace, answer }))
        .answer()
        .await
        .unwrap_or_else(|Dropped| Err(Refusal::Failed(panicked())))
}

/// Requests an operation on a job; answered after the commit. The request is sent when this is
/// called, not when the future is awaited.
pub fn operate(
    ways: &Ways,
    id: JobId,
    request: Request,
) -> impl Future<Output = Result<Now, Refusal>> + use<> {
    let cancels = matches!(request.operation, Operation::Cancel { .. });
    let answered = match cancels {
        true => asked_to_cancel(ways, id, |answer| RouterInput::Operate(id, request, answer)),
        false => asked_if_accepted(ways, |answer| RouterInput::Operate(id, request, answer)),
    };
    async move { answered?.answer().await.unwrap_or_else(|Dropped| Err(just_ending(id))) }
}

/// Cancels a job, sent as [`operate`] sends; answered after the commit. If the job has ended, the
/// response is its state: cancelling twice does no harm.
pub fn cancel(
    ways: &Ways,
    id: JobId,
    by: Option<Arc<str>>,
) -> impl Future<Output = Result<Now, Refusal>> + use<> {
    let answered = asked_to_cancel(ways, id, |answer| RouterInput::Cancel(id, by, answer));
    async move { answered?.answer().await.unwrap_or_else(|Dropped| Err(just_ending(id))) }
}

/// Erases an ended job from the journal. The request is sent when this is called.
pub fn erase(ways: &Ways, id: JobId) -> impl Future<Output = Result<Erased, Refusal>> + use<> {
    let answered = asked(ways, |answer| RouterInput::Erase(id, answer));
    async move { answered.answer().await.unwrap_or_else(|Dropped| Err(just_ending(id))) }
}

/// Sends the messages of all steps that wait on a queue again, or only counts them, as `bulk` says.
/// Returns, once all is committed, how many steps in how many jobs and child jobs.
///
/// # Errors
///
/// Nothing is accepted now.
pub async fn redispatch(ways: &Ways, bulk: Bulk) -> Result<(usize, usize), Refusal> {
    if !ways.common.health.accepts() {
        return Err(not_now());
    }
    let bulk = Arc::new(bulk);
    let (answer, answered) = oneshot::channel();
    if ways.mailboxes().router.offer(RouterInput::Redispatch(bulk.clone(), answer)).is_err() {
        return Err(full());
    }
    let stopping = || Refusal::Overloaded("the manager is stopping".to_owned());
    answered.await.map_err(|_| stopping())?;
    Ok(bulk.found())
}

/// Replaces the definitions for new jobs: by all of these, or by none with the reason.
///
/// # Errors
///
/// Nothing was changed.
pub async fn redefine(ways: &Ways, definitions: Definitions) -> Result<(), String> {
    let (answer, answered) = oneshot::channel();
    ways.mailboxes().supervisor.post(SupervisorInput::Redefine(definitions, answer));
    answered.await.unwrap_or_else(|_| Err("the manager is stopping".to_owned()))
}

/// Returns what a bus knows of each of these queues, in the same order.
pub async fn inspect(ways: &Ways, bus: &BusKey, queues: Vec<Arc<str>>) -> Vec<QueueLook> {
    let unknown = |reason: String| vec![QueueLook::Unknown(reason); queues.len()];
    let asked = async {
        let (answer, answered) = oneshot::channel();
        ways.buses.find(bus)?.post(BusInput::Inspect(queues.clone(), answer));
        answered.await.ok()
    };
    match tokio::time::timeout(LOOK_MAX, asked).await {
        Ok(Some(looks)) => looks,
        Ok(None) => unknown("there is no bus, or it is closing".to_owned()),
        Err(_) => unknown(format!("no answer within {LOOK_MAX:?}")),
    }
}

/// Returns what all queues of the loaded workflows and of jobs under way hold; at most some seconds
/// old.
pub async fn queues(ways: &Ways) -> Arc<Looked> {
    ways.common.queue_looks.last_or(look_at_all(ways)).await
}

async fn look_at_all(ways: &Ways) -> Looked {
    let mut asked: BTreeMap<BusKey, Vec<Arc<str>>> = BTreeMap::new();
    let kept = ways.kept_definitions();
    for definition in ways.common.definitions().values().chain(&kept) {
        for step in definition.sending_steps() {
            let bus = ways.buses.of_step(definition, step);
            asked.entry(bus).or_default().push(step.queue.clone());
        }
    }
    let looks = asked.into_iter().map(|(bus, mut queues)| async move {
        queues.sort_unstable();
        queues.dedup();
        let found = inspect(ways, &bus, queues.clone()).await;
        (bus, queues, found)
    });
    let (looks, (oldest, asked_for)) = tokio::join!(join_all(looks), longest_waits(ways));
    let found = looks.into_iter().flat_map(|(bus, queues, found)| {
        queues.into_iter().zip(found).map(move |(queue, look)| ((bus.clone(), queue), look))
    });
    let found = found.collect();
    Looked { at: clock::now(), ticks: clock::ticks(), found, oldest, asked_for }
}

/// Passes a job under way to `inspect`, and returns the result once what was seen is committed.
/// `None`: no such job is under way, or its actor is just stopping.
pub async fn look<T: Send + 'static>(
    ways: &Ways,
    id: JobId,
    see: impl FnOnce(&Job) -> T + Send + 'static,
) -> Option<T> {
    let (answer, seen) = oneshot::channel();
    let (done, committed) = oneshot::channel();
    let look = Look::new(
        move |job| {
            // A client that has gone needs no response.
            let _ = answer.send(see(job));
        },
        AnswerOnDrop::new(done),
    );
    ways.routes.find(id)?.post(JobInput::Look(look));
    // An error means that the actor has stopped: then all is committed.
    let _ = committed.await;
    seen.await.ok()
}

/// Waits until a job is not passivated: it takes input, or there is no such job.
pub async fn wake(ways: &Ways, id: JobId) {
    if ways.routes.is_at_rest(id) {
        let (answer, answered) = oneshot::channel();
        ways.mailboxes().router.post(RouterInput::Wake(id, answer));
        // An error means that the manager is stopping.
        let _ = answered.await;
    }
}

/// Waits until the router has handled all inputs that were sent to it so far.
pub async fn routed(ways: &Ways) {
    let (answer, answered) = oneshot::channel();
    ways.mailboxes().router.post(RouterInput::CatchUp(answer));
    // An error means that the manager is stopping.
    let _ = answered.await;
}

/// Probes liveness: returns when supervisor, router and journal, one after the other, have handled
/// their inputs. It returns while the disk is full and while a broker is away, and never if one of
/// their threads hangs.
pub async fn round(ways: &Ways) {
    let (answer, answered) = oneshot::channel();
    ways.mailboxes().supervisor.post(SupervisorInput::Round(answer));
    if answered.await.is_err() {
        // One of them has ended: the manager stops, or is about to.
        std::future::pending::<()>().await;
    }
}

/// Waits until everything that a job has decided is committed.
pub async fn settled(ways: &Ways, id: JobId) {
    let (answer, answered) = oneshot::channel();
    match ways.routes.find(id) {
        Some(job) => job.post(JobInput::Settled(AnswerOnDrop::new(answer))),
        None => return,
    }
    // An error means that its actor has stopped: then all is committed.
    let _ = answered.await;
}

/// The actor stopped without a response.
struct Dropped;

/// A response that is awaited; `None`: the router's mailbox is full.
struct Pending<T>(Option<oneshot::Receiver<Result<T, Refusal>>>);

impl<T> Pending<T> {
    async fn answer(self) -> Result<Result<T, Refusal>, Dropped> {
        match self.0 {
            None => Ok(Err(full())),
            Some(answered) => answered.await.map_err(|_| Dropped),
        }
    }
}

/// Sends a request to the router, at once.
fn asked<T>(ways: &Ways, input: impl FnOnce(Client<T>) -> RouterInput) -> Pending<T> {
    let (answer, answered) = oneshot::channel();
    let is_taken = ways.mailboxes().router.offer(input(answer)).is_ok();
    Pending(is_taken.then_some(answered))
}

/// Sends a request to the router, unless nothing is accepted now.
fn asked_if_accepted<T>(
    ways: &Ways,
    input: impl FnOnce(Client<T>) -> RouterInput,
) -> Result<Pending<T>, Refusal> {
    if ways.common.health.accepts() { Ok(asked(ways, input)) } else { Err(not_now()) }
}

/// Sends a request to cancel a job, which needs no room on the disk if the job is under way.
fn asked_to_cancel<T>(
    ways: &Ways,
    id: JobId,
    input: impl FnOnce(Client<T>) -> RouterInput,
) -> Result<Pending<T>, Refusal> {
    let is_possible = ways.common.health.cancels() && ways.routes.is_live(id);
    if is_possible { Ok(asked(ways, input)) } else { asked_if_accepted(ways, input) }
}

fn full() -> Refusal {
    Refusal::Overloaded("the router's mailbox is full".to_owned())
}

fn not_now() -> Refusal {
    Refusal::Overloaded("the manager accepts nothing now; /readyz?verbose says why".to_owned())
}

/// Returns the error that the job's actor has just stopped. If the client asks again, the journal
/// answers.
fn just_ending(id: JobId) -> Refusal {
    Refusal::Overloaded(format!("job {id} is just ending: try again"))
}
