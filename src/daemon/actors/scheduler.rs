//! The scheduler: it judges the slots of schedules when they are due, and has their jobs started.
//!
//! One heap has the next time of each schedule, and one timer waits for the earliest. A slot is
//! judged by its [`Ledger`], then its job is started, then the ledger is stored. After a crash in
//! between the slot is judged again, and the job exists already. Several slots that are judged at
//! once are stored first.

mod backfill;

use super::client_response::{CreateResponse, RequestError};
use super::health::Health;
use super::inputs::{CreateJob, Definitions, JournalInput, RouterInput, SchedulerInput};
use super::mailbox::{Envelope, Mailbox, MailboxActor};
use super::mailboxes::Mailboxes;
use super::manager_core::ManagerCore;
use super::routes::Routes;
use super::schedule_requests::{Refusal, ScheduleOperation, ScheduleStatus};
use crate::telemetry::Metrics;
use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, SpawnHandle, WrapFuture};
use base::clock;
use base::times::format_rfc3339;
use engine::schedule::{Ledger, Pause, Start, Verdict};
use engine::{Definition, JobId, Operation, OperationRequest, Schedule, ScheduledSlot, Timestamp};
use journal::StoredLedger;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// The longest delay of the timer: a clock that is set is noticed by then.
const TIMER_DELAY_MAX: Duration = Duration::from_secs(20);

/// The delay before a slot that waits for an earlier job, or whose job could not be started, is
/// judged again.
const RETRY_DELAY_NS: i64 = 1_000_000_000;

/// How many coming slots are shown of a schedule.
const NEXT_SLOTS: usize = 5;

/// Receives the response to the creation of a job.
type CreationReceiver = oneshot::Receiver<Result<CreateResponse, RequestError>>;

/// Waits until a job is there. Returns whether it existed before.
async fn receive_created(created: CreationReceiver) -> Result<bool, RequestError> {
    match created.await {
        Ok(Ok(CreateResponse::New(_))) => Ok(false),
        Ok(Ok(CreateResponse::Existing(_))) => Ok(true),
        // The message of the schedule was changed after the job had started.
        Ok(Err(RequestError::Conflict(_))) => Ok(true),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(RequestError::Failed("the router has stopped".to_owned())),
    }
}

/// The environment of the scheduler.
pub(super) struct SchedulerEnv {
    router: Mailbox<RouterInput>,
    journal: Mailbox<JournalInput>,
    routes: Routes,
    health: Arc<Health>,
    metrics: Metrics,
}

impl SchedulerEnv {
    pub(super) fn new(core: &ManagerCore, mailboxes: &Mailboxes) -> SchedulerEnv {
        SchedulerEnv {
            router: mailboxes.router.clone(),
            journal: mailboxes.journal.clone(),
            routes: core.routes.clone(),
            health: core.health.clone(),
            metrics: core.metrics.clone(),
        }
    }

    /// Starts the jobs of a round in order, after the jobs that they replace are cancelled.
    async fn start_jobs(
        &self,
        entry: (Arc<Schedule>, Arc<Definition>),
        starts: Vec<Start>,
    ) -> Result<(), RequestError> {
        let (schedule, definition) = entry;
        for start in starts {
            for replaced in start.replaces {
                let reason = format!("replaced by the next slot of schedule {}", schedule.name);
                let cancel = Operation::Cancel { reason: reason.into() };
                let (response, cancelled) = oneshot::channel();
                let request = OperationRequest::from(cancel);
                self.router.send(RouterInput::Operate(replaced, request, response));
                // A job that has ended meanwhile needs no cancel.
                let _ = cancelled.await;
            }
            self.start_job(&schedule, definition.clone(), start.id, start.slot).await?;
        }
        Ok(())
    }

    /// Starts one job. A job that exists was started before a crash.
    async fn start_job(
        &self,
        schedule: &Schedule,
        definition: Arc<Definition>,
        id: JobId,
        slot: Timestamp,
    ) -> Result<(), RequestError> {
        receive_created(self.request_job(schedule, definition, id, slot)).await.map(drop)
    }

    /// Asks the router for the job of a slot.
    fn request_job(
        &self,
        schedule: &Schedule,
        definition: Arc<Definition>,
        id: JobId,
        slot: Timestamp,
    ) -> CreationReceiver {
        let (response, created) = oneshot::channel();
        let slot = ScheduledSlot { schedule: schedule.full_name().into(), slot };
        self.router.send(RouterInput::Create(CreateJob {
            id: Some(id),
            definition,
            message: schedule.message.clone(),
            trace: None,
            starts_at: None,
            slot: Some(Arc::new(slot)),
            response,
        }));
        created
    }

    /// Stores ledgers. Waits as long as the journal has to.
    async fn store(&self, ledgers: Vec<StoredLedger>) -> Result<(), RequestError> {
        let (response, stored) = oneshot::channel();
        self.journal.send(JournalInput::StoreLedgers(ledgers, response));
        let stopped = |_| RequestError::Failed("the journal could not store it".to_owned());
        stored.await.map_err(stopped)
    }
}

/// Reads the ledgers of the journal, before jobs are deleted, and adds the jobs that were started
/// before a crash. A ledger that cannot be read is of a newer version: its schedule counts from
/// now.
pub(super) fn load_ledgers(
    core: &ManagerCore,
) -> Result<HashMap<Arc<str>, Ledger>, journal::JournalError> {
    let parse = |stored: StoredLedger| {
        let ledger: Ledger = serde_json::from_str(&stored.ledger?).ok()?;
        Some((stored.schedule, ledger))
    };
    let ledgers = core.reader.load_ledgers()?;
    let mut ledgers: HashMap<_, _> = ledgers.into_iter().filter_map(parse).collect();
    let exists = |id| core.reader.find_job_number(id).map(|number| number.is_some());
    for definition in core.definitions.current().values() {
        for schedule in &definition.schedules.0 {
            if let Some(ledger) = ledgers.get_mut(schedule.full_name().as_str()) {
                ledger.adapt(schedule, clock::now());
                ledger.recover(schedule, clock::now(), exists)?;
            }
        }
    }
    Ok(ledgers)
}

/// Returns a ledger as the journal stores it.
fn to_stored(schedule: &str, ledger: &Ledger) -> StoredLedger {
    let text = serde_json::to_string(ledger).expect("texts and numbers can be serialized");
    StoredLedger { schedule: schedule.into(), ledger: Some(text.into()) }
}

/// A schedule with its ledger.
struct Entry {
    schedule: Arc<Schedule>,
    definition: Arc<Definition>,
    ledger: Ledger,
    /// When it is judged next; `None`: never, or once the change under way is stored.
    due: Option<Timestamp>,
    /// Whether jobs are being started, or a change is being stored.
    is_busy: bool,
    /// Why its due job could not be started; `None`: the last one was.
    refusal: Option<Refusal>,
}

/// Why a ledger changes.
enum Cause {
    /// Slots are due.
    Slots,
    /// A client asks for it, and waits for the response.
    Operation(oneshot::Sender<Result<ScheduleStatus, RequestError>>),
    /// A client asks for the jobs of slots that have passed. It is told by another way.
    Backfill,
}

/// The actor that fires schedules.
pub struct Scheduler {
    env: Arc<SchedulerEnv>,
    /// The ledgers of the journal whose schedules were not loaded yet.
    stored: HashMap<Arc<str>, Ledger>,
    entries: BTreeMap<Arc<str>, Entry>,
    heap: BinaryHeap<Reverse<(Timestamp, Arc<str>)>>,
    timer: Option<SpawnHandle>,
    has_started: bool,
}

impl Scheduler {
    /// Creates the actor with the ledgers of [`load_ledgers`].
    pub(super) fn new(env: SchedulerEnv, stored: HashMap<Arc<str>, Ledger>) -> Scheduler {
        Scheduler {
            env: Arc::new(env),
            stored,
            entries: BTreeMap::new(),
            heap: BinaryHeap::new(),
            timer: None,
            has_started: false,
        }
    }

    fn handle_input(&mut self, input: SchedulerInput, ctx: &mut Context<Self>) {
        match input {
            SchedulerInput::Load(definitions) => self.load(&definitions, ctx),
            SchedulerInput::List(response) => {
                let list = self.entries.values().map(Entry::status).collect();
                // An error means that the receiver was dropped.
                let _ = response.send(list);
            }
            SchedulerInput::Operate(name, operation, response) => {
                self.operate(&name, operation, response, ctx)
            }
            SchedulerInput::Backfill(name, backfill, response) => {
                self.backfill(&name, backfill, response, ctx)
            }
        }
    }

    /// Replaces the schedules. Ledgers of schedules that are loaded no more are deleted.
    fn load(&mut self, definitions: &Definitions, ctx: &mut Context<Self>) {
        let now = clock::now();
        let mut before = std::mem::take(&mut self.entries);
        self.heap.clear();
        let mut stored = std::mem::take(&mut self.stored);
        let mut changes = Vec::new();
        let is_first = !std::mem::replace(&mut self.has_started, true);
        for definition in definitions.values() {
            for schedule in &definition.schedules.0 {
                let name: Arc<str> = schedule.full_name().into();
                let previous = before.remove(&name);
                let is_busy = previous.as_ref().is_some_and(|entry| entry.is_busy);
                let refusal = previous.as_ref().and_then(|entry| entry.refusal.clone());
                let known = previous.map(|entry| entry.ledger).or_else(|| stored.remove(&name));
                let is_new = known.is_none();
                let mut ledger = known.unwrap_or_else(|| Ledger::new(schedule, now));
                if ledger.adapt(schedule, now) || is_new || is_first {
                    changes.push(to_stored(&name, &ledger));
                }
                let (schedule, definition) = (schedule.clone(), definition.clone());
                let entry = Entry { schedule, definition, ledger, due: None, is_busy, refusal };
                self.entries.insert(name, entry);
            }
        }
        for name in before.keys() {
            let SchedulerEnv { metrics, .. } = &*self.env;
            // An error means that there is no such series.
            let _ = metrics.schedule_failures.remove_label_values(&[&**name]);
            for verdict in Verdict::ALL {
                let _ = metrics.schedule_slots.remove_label_values(&[&**name, verdict.as_str()]);
            }
        }
        let removed = before.into_keys().chain(stored.into_keys());
        changes.extend(removed.map(|schedule| StoredLedger { schedule, ledger: None }));
        let env = self.env.clone();
        let prepare = async move {
            if is_first {
                // The jobs of the journal have routes once the router answers.
                let (answer, answered) = oneshot::channel();
                env.router.send(RouterInput::Barrier(answer));
                let _ = answered.await;
            }
            if !changes.is_empty() {
                // If it fails, the next change of each ledger stores it.
                let _ = env.store(changes).await;
            }
        };
        ctx.spawn(prepare.into_actor(self).map(|(), actor, ctx| {
            let names: Vec<Arc<str>> = actor.entries.keys().cloned().collect();
            names.iter().for_each(|name| actor.set_due(name, None));
            actor.set_timer(ctx);
        }));
    }

    /// Sets when a schedule is judged next: not before `not_before`.
    fn set_due(&mut self, name: &Arc<str>, not_before: Option<Timestamp>) {
        let Some(entry) = self.entries.get_mut(name).filter(|entry| !entry.is_busy) else { return };
        let retry = entry.ledger.waiting().map(|_| Timestamp(clock::now().0 + RETRY_DELAY_NS));
        let next = entry.ledger.next_due(&entry.schedule);
        let due = next.into_iter().chain(retry).min();
        entry.due = due.map(|due| not_before.map_or(due, |time| due.max(time)));
        if let Some(due) = entry.due {
            self.heap.push(Reverse((due, name.clone())));
        }
    }

    /// Sets the timer for what is due first.
    fn set_timer(&mut self, ctx: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        let Some(Reverse((due, _))) = self.heap.peek() else { return };
        let delay = clock::now().duration_until(*due).min(TIMER_DELAY_MAX);
        self.timer = Some(ctx.run_later(delay, |actor, ctx| {
            actor.timer = None;
            actor.judge_due(ctx);
            actor.set_timer(ctx);
        }));
    }

    /// Judges the schedules that are due.
    fn judge_due(&mut self, ctx: &mut Context<Self>) {
        let now = clock::now();
        while let Some(Reverse((due, _))) = self.heap.peek()
            && *due <= now
        {
            let Some(Reverse((due, name))) = self.heap.pop() else { return };
            // An entry of the heap that was replaced by another one is passed over.
            let is_current = self
                .entries
                .get(&name)
                .is_some_and(|entry| entry.due == Some(due) && !entry.is_busy);
            if is_current {
                self.judge(&name, now, ctx);
            }
        }
    }

    /// Judges the slots of a schedule, has its jobs started, and stores the ledger.
    fn judge(&mut self, name: &Arc<str>, now: Timestamp, ctx: &mut Context<Self>) {
        let (env, routes) = (self.env.clone(), &self.env.routes);
        let Some(entry) = self.entries.get_mut(name) else { return };
        if !env.health.can_accept() || env.health.is_stopping() {
            return self.set_due(name, Some(Timestamp(now.0 + RETRY_DELAY_NS)));
        }
        let parts = (entry.schedule.clone(), entry.definition.clone());
        let ledger = &entry.ledger;
        let judged = if ledger.starting().is_empty() {
            let refusal = entry.refusal.as_ref().map(Refusal::reason);
            ledger.judge(&entry.schedule, now, |id| routes.is_active(id), refusal)
        } else {
            Some(
                ledger
                    .expire_starting(&entry.schedule, now)
                    .unwrap_or_else(|| ledger.start_starting()),
            )
        };
        let Some(judged) = judged else {
            entry.refusal = None;
            return self.set_due(name, None);
        };
        let stored = to_stored(name, &judged.ledger);
        let (starts, ledger, counts) = (judged.starts, judged.ledger, judged.counts);
        let full_name = name.clone();
        let work = async move {
            env.start_jobs(parts, starts).await?;
            env.store(vec![stored]).await?;
            for (verdict, slots) in counts {
                let labels = [&*full_name, verdict.as_str()];
                env.metrics.schedule_slots.with_label_values(&labels).inc_by(slots);
            }
            Ok(())
        };
        self.change(name, ledger, work, Cause::Slots, ctx);
    }

    /// Carries out a change of a ledger, which is valid once `work` is done.
    fn change(
        &mut self,
        name: &Arc<str>,
        ledger: Ledger,
        work: impl Future<Output = Result<(), RequestError>> + 'static,
        cause: Cause,
        ctx: &mut Context<Self>,
    ) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.is_busy = true;
        let name = name.clone();
        ctx.spawn(work.into_actor(self).map(move |result, actor, ctx| {
            let Some(entry) = actor.entries.get_mut(&name) else { return };
            entry.is_busy = false;
            let now = clock::now();
            let is_of_slots = matches!(cause, Cause::Slots);
            let retry = match &result {
                Ok(()) => {
                    entry.ledger = ledger;
                    // A reload may have changed the schedule meanwhile.
                    entry.ledger.adapt(&entry.schedule, now);
                    // Jobs of a round that is stored may still have to be started.
                    let is_over = is_of_slots && entry.ledger.starting().is_empty();
                    if let Some(refusal) = entry.refusal.take_if(|_| is_over) {
                        let since = format_rfc3339(refusal.since);
                        tracing::info!(schedule = %name, since, "a schedule goes on");
                    }
                    None
                }
                Err(error) => {
                    if is_of_slots {
                        entry.refuse(error, now);
                    }
                    // The limit of the workflow refuses the job until there is a place.
                    if is_of_slots && !matches!(error, RequestError::NoPlace(_)) {
                        let failures = &actor.env.metrics.schedule_failures;
                        failures.with_label_values(&[&*name]).inc();
                    }
                    Some(Timestamp(now.0 + RETRY_DELAY_NS))
                }
            };
            if let Cause::Operation(response) = cause {
                // An error means that the receiver was dropped.
                let _ = response.send(result.map(|()| entry.status()));
            }
            actor.set_due(&name, retry);
            actor.set_timer(ctx);
        }));
    }

    /// Carries out what a client asks for.
    fn operate(
        &mut self,
        name: &str,
        operation: ScheduleOperation,
        response: oneshot::Sender<Result<ScheduleStatus, RequestError>>,
        ctx: &mut Context<Self>,
    ) {
        let name: Arc<str> = name.into();
        let refuse = |response: oneshot::Sender<_>, error| drop(response.send(Err(error)));
        let Some(entry) = self.entries.get(&name) else {
            return refuse(response, RequestError::NotFound);
        };
        if entry.is_busy {
            // What is under way takes a moment: the request is handled behind it.
            ctx.run_later(Duration::from_millis(20), move |actor, ctx| {
                actor.operate(&name, operation, response, ctx)
            });
            return;
        }
        let (env, now) = (self.env.clone(), clock::now());
        let parts = (entry.schedule.clone(), entry.definition.clone());
        let (mut ledger, mut starts) = (entry.ledger.clone(), Vec::new());
        match operation {
            ScheduleOperation::Trigger { reason, by } => {
                let id = clock::new_id();
                ledger = ledger.with_trigger(id, now, by.as_deref(), reason.as_deref());
                starts.push(Start { slot: now, id, replaces: Vec::new() });
            }
            ScheduleOperation::Pause { reason, by } => {
                ledger.paused = Some(Pause { since: now, reason, by });
            }
            ScheduleOperation::Resume if ledger.paused.is_none() => {
                let reason = format!("the schedule {name} is not paused");
                return refuse(response, RequestError::Conflict(reason));
            }
            ScheduleOperation::Resume => ledger.resume(now),
        }
        let stored = to_stored(&name, &ledger);
        let work = async move {
            env.start_jobs(parts, starts).await?;
            env.store(vec![stored]).await
        };
        self.change(&name, ledger, work, Cause::Operation(response), ctx);
    }
}

impl Entry {
    /// Keeps why a job could not be started. The log tells it once, and not at each attempt, as
    /// long as jobs are refused for a reason of the same kind.
    fn refuse(&mut self, error: &RequestError, now: Timestamp) {
        let (refusal, is_told) = Refusal::following(self.refusal.take(), error, now);
        let (schedule, reason) = (self.schedule.full_name(), refusal.reason());
        if is_told {
            tracing::debug!(schedule, reason, "a schedule still has to wait");
        } else if matches!(error, RequestError::NoPlace(_)) {
            tracing::info!(schedule, reason, "a schedule has to wait for a place of a limit");
        } else {
            tracing::warn!(schedule, reason, "a schedule has to wait: it is tried again");
        }
        self.refusal = Some(refusal);
    }

    /// Returns what clients see of it.
    fn status(&self) -> ScheduleStatus {
        ScheduleStatus {
            schedule: self.schedule.clone(),
            paused: self.ledger.paused.clone(),
            waiting: self.ledger.waiting(),
            refusal: self.refusal.clone(),
            next: self.schedule.next_slots(self.ledger.mark(), NEXT_SLOTS),
            judgements: self.ledger.judgements().cloned().collect(),
        }
    }
}

impl Actor for Scheduler {
    type Context = Context<Self>;
}

impl MailboxActor for Scheduler {
    type Input = SchedulerInput;
    const KIND: &'static str = "scheduler";
}

impl Handler<Envelope<SchedulerInput>> for Scheduler {
    type Result = ();

    fn handle(&mut self, envelope: Envelope<SchedulerInput>, ctx: &mut Self::Context) {
        envelope.handle(|input| self.handle_input(input, ctx));
    }
}
