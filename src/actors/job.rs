//! The shell of [`crate::engine::Job`]: one actor per running job, one per child job under way. It takes inputs, lets the
//! engine decide, and sends the record with its effects to the journal. It does nothing else.

use super::journal::{Append, JournalInput};
use super::outbox::{Answer, Done, Known, NewChild, Outgoing};
use super::shared::Shared;
use super::supervisor::SupervisorInput;
use super::{Mail, Mailbox, Owner, clock};
use crate::bus::{Acknowledge, StepMessage};
use crate::engine::id::span_id;
use crate::engine::{Context, Decision, Definition, Effect, Entry, Input, Job, JobId, JobState, Message, Origin, Rejected, StepIndex, Timestamp};
use crate::faults;
use crate::journal::{Created, JobNumber, Record, Recovered};
use actix::{Actor, ActorContext, Handler};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tokio::sync::oneshot;

/// A job under way.
pub struct JobActor {
    shared: Arc<Shared>,
    id: JobId,
    number: JobNumber,
    root: JobNumber,
    parent: Option<JobNumber>,
    start: Option<Start>,
    /// None from a panic until it is rebuilt.
    job: Option<Job>,
    /// What came in between.
    set_aside: Vec<JobInput>,
}

/// What a job can be told.
pub enum JobInput {
    /// Something happened; the delivery that it came by is acknowledged after the commit.
    Take {
        /// What happened.
        input: Input,
        /// The delivery.
        ack: Option<Acknowledge>,
    },
    /// A client asks for a job under the same id: the same answer if it asks for the same, a conflict otherwise.
    Same {
        /// The workflow's full name.
        workflow: String,
        /// The message.
        message: Message,
        /// Answered after the commit of the job's creation.
        answer: oneshot::Sender<Answer>,
    },
    /// A client ends the job.
    End(oneshot::Sender<Answer>),
    /// A queue of a virtual host was found missing.
    QueueMissing {
        /// The virtual host.
        vhost: Arc<str>,
        /// The queue.
        queue: Arc<str>,
        /// Dropped after the commit.
        done: Arc<Done>,
    },
    /// The supervisor has had the job rebuilt after a panic.
    Rebuilt {
        /// The job.
        recovered: Box<Recovered>,
        /// Why it fails now, if it panicked too often: before it hears anything else.
        abandon: Option<Arc<str>>,
    },
    /// The job is closed and its id free: the actor ends, behind all that it was told before.
    Close,
}

/// How an actor begins.
pub enum Start {
    /// With a new job.
    New {
        /// Where it comes from.
        origin: Arc<Origin>,
        /// Its message.
        message: Message,
        /// For a top-level job: answered after the commit.
        answer: Option<oneshot::Sender<Answer>>,
    },
    /// With a job from the journal.
    Recovered {
        /// The job.
        job: Box<Job>,
        /// What is to be done for it.
        effects: Vec<Effect>,
    },
}

/// A job actor to be started.
pub struct Spawn {
    /// The job.
    pub id: JobId,
    /// Its number.
    pub number: JobNumber,
    /// The top-level job's number.
    pub root: JobNumber,
    /// The parent's number.
    pub parent: Option<JobNumber>,
    /// How it begins.
    pub start: Start,
}

/// Starts a job actor on one of the arbiters and makes it reachable.
pub fn spawn(shared: &Arc<Shared>, spawn: Spawn) {
    let arbiters = &shared.wiring().arbiters;
    let arbiter = &arbiters[usize::try_from(spawn.number).unwrap_or_default() % arbiters.len()];
    let Spawn { id, number, root, parent, start } = spawn;
    let owned = shared.clone();
    let address = JobActor::start_in_arbiter(arbiter, move |_| JobActor {
        shared: owned,
        id,
        number,
        root,
        parent,
        start: Some(start),
        job: None,
        set_aside: Vec::new(),
    });
    // Deliveries are bounded by the prefetch, children by the window: nothing is ever offered.
    let mailbox = Mailbox::new(address, usize::MAX, shared.job_kind.clone());
    shared.routes.insert(id, number, parent.is_none(), mailbox);
}

impl JobActor {
    fn begin(&mut self, start: Start, ctx: &mut actix::Context<Self>) {
        let (shared, now) = (self.shared.clone(), clock::now());
        match start {
            Start::New { origin, message, answer } => {
                let context = Context { now, limits: &shared.limits, claims: &shared.routes };
                let (owned, id) = ((*origin).clone(), self.id);
                let Ok((job, decision)) = catch_unwind(AssertUnwindSafe(|| Job::create(owned, message, &context))) else {
                    return self.never_began(&origin, ctx);
                };
                self.job = Some(job);
                let created = Created { origin, root: self.root, parent: self.parent };
                let mut answer: Vec<Outgoing> = answer.map(|to| Outgoing::Answer(to, Answer::Created(id))).into_iter().collect();
                if faults::planted("answer before commit") {
                    answer.drain(..).for_each(|outgoing| outgoing.release(&shared));
                }
                self.append(decision, Some(created), now, answer);
            }
            Start::Recovered { job, effects } => self.resume(*job, effects),
        }
    }

    /// A panic before the job was journaled: a client gets no answer, a parent is told.
    fn never_began(&self, origin: &Origin, ctx: &mut actix::Context<Self>) {
        tracing::error!(job = %self.id, "the creation of the job panicked");
        self.shared.routes.remove(self.id, self.number, origin.parent.is_none());
        if let Some(parent) = origin.parent {
            let outcome = crate::engine::ChildOutcome::Failed("the creation of the child job panicked".into());
            let input = Input::ChildEnded { step: parent.step, index: parent.index, outcome };
            Outgoing::ToParent(parent, input).release(&self.shared);
        }
        ctx.stop();
    }

    fn receive(&mut self, input: JobInput, ctx: &mut actix::Context<Self>) {
        if self.job.is_none() && !matches!(input, JobInput::Rebuilt { .. } | JobInput::Close) {
            return self.set_aside.push(input);
        }
        match input {
            JobInput::Take { input, ack } => self.take(input, ack.map(Outgoing::Ack).into_iter().collect()),
            JobInput::Same { workflow, message, answer } => self.same(&workflow, &message, answer),
            JobInput::End(answer) => self.end(answer),
            JobInput::QueueMissing { vhost, queue, done } => {
                if self.job.as_ref().is_some_and(|job| *job.definition().vhost == *vhost) {
                    self.take(Input::QueueMissing(queue), vec![Outgoing::Hold(done)]);
                }
            }
            JobInput::Rebuilt { recovered, abandon } => self.rebuilt(*recovered, abandon, ctx),
            JobInput::Close => ctx.stop(),
        }
    }

    fn rebuilt(&mut self, recovered: Recovered, abandon: Option<Arc<str>>, ctx: &mut actix::Context<Self>) {
        self.resume(recovered.job, recovered.effects);
        if let Some(reason) = abandon {
            self.take(Input::Abandon(reason), Vec::new());
        }
        for input in std::mem::take(&mut self.set_aside) {
            self.receive(input, ctx);
        }
    }

    /// Goes on with a job from the journal; what its effects follow from is committed.
    fn resume(&mut self, job: Job, effects: Vec<Effect>) {
        self.job = Some(job);
        let (shared, now) = (self.shared.clone(), clock::now());
        effects.into_iter().filter_map(|effect| self.outgoing(effect, now)).for_each(|outgoing| outgoing.release(&shared));
    }

    /// Lets the engine decide. A panic in it costs this job alone: the supervisor has it rebuilt from the journal, what comes
    /// in meanwhile is set aside, and a delivery that was being taken goes back to its queue.
    fn take(&mut self, input: Input, mut release: Vec<Outgoing>) {
        let (shared, now) = (self.shared.clone(), clock::now());
        let Some(job) = &mut self.job else { return };
        let context = Context { now, limits: &shared.limits, claims: &shared.routes };
        let taken = catch_unwind(AssertUnwindSafe(|| {
            fail_point(&input);
            job.take(input, &context)
        }));
        match taken {
            Ok(Ok(decision)) => {
                if faults::planted("ack before commit") {
                    release.drain(..).for_each(|outgoing| outgoing.release(&shared));
                }
                self.append(decision, None, now, release);
            }
            Ok(Err(rejected)) => self.reject(rejected, release),
            Err(_) => {
                self.job = None;
                shared.wiring().supervisor.post(SupervisorInput::Panicked { number: self.number, id: self.id });
            }
        }
    }

    fn reject(&self, rejected: Rejected, release: Vec<Outgoing>) {
        if release.iter().any(|outgoing| matches!(outgoing, Outgoing::Ack(_))) {
            self.shared.metrics.rejected.with_label_values(&[rejected.label()]).inc();
            if self.shared.throttle.may_log(rejected.label()) {
                tracing::warn!(job = %self.id, reason = rejected.label(), "a reply that changes nothing (logged once a minute per reason)");
            }
        }
        // Behind the commit of what made it void, which may still be under way: this may be the last copy of a reply.
        if faults::planted("rejected replies acknowledged at once") {
            release.into_iter().for_each(|outgoing| outgoing.release(&self.shared));
        } else if !release.is_empty() && !faults::planted("rejected replies not acknowledged") {
            self.release_after_commit(release);
        }
    }

    fn same(&self, workflow: &str, message: &Message, answer: oneshot::Sender<Answer>) {
        let Some(job) = &self.job else { return };
        let known = Known { is_child: self.parent.is_some(), workflow: &job.definition().full_name(), message: Some(job.message()) };
        let told = Answer::again(self.id, known, workflow, message);
        let is_confirmed = matches!(told, Answer::Existing(_));
        let told = Outgoing::Answer(answer, told);
        if is_confirmed {
            // Through the journal: behind the commit of the creation, which may still be under way.
            self.release_after_commit(vec![told]);
        } else {
            told.release(&self.shared);
        }
    }

    fn end(&mut self, answer: oneshot::Sender<Answer>) {
        let Some(job) = &self.job else { return };
        if job.state() == JobState::Running {
            let input = Input::Cancel { reason: "by a call of the API".into(), tell_parent: true };
            return self.take(input, vec![Outgoing::Answer(answer, Answer::Cancelled)]);
        }
        if self.parent.is_some() {
            return Outgoing::Answer(answer, Answer::of_ended_child(self.id)).release(&self.shared);
        }
        // It has failed and was kept for late replies.
        self.release_after_commit(vec![Outgoing::Closed { id: self.id, number: self.number, is_root: true }, Outgoing::Delete(self.number, answer)]);
    }

    fn release_after_commit(&self, release: Vec<Outgoing>) {
        let record = Record { job: self.number, created: None, entries: Vec::new(), state: None, closed: false };
        self.shared.wiring().journal.post(JournalInput::Append(Append { record, urgent: true, release }));
    }

    fn append(&self, decision: Decision, created: Option<Created>, now: Timestamp, mut release: Vec<Outgoing>) {
        self.observe(&decision, now);
        faults::observe("job::decided", || (self.number, self.job.clone()));
        let urgent = !matches!(decision.entries.as_slice(), [Entry::StepConfirmed { .. }]);
        let effects = decision.effects.into_iter().filter_map(|effect| self.outgoing(effect, now));
        if faults::planted("effects before commit") {
            effects.for_each(|outgoing| outgoing.release(&self.shared));
        } else {
            release.extend(effects);
        }
        if decision.closed {
            release.push(Outgoing::Closed { id: self.id, number: self.number, is_root: self.parent.is_none() });
        }
        let state = decision.state.map(|state| (state, now));
        let record = Record { job: self.number, created, entries: decision.entries, state, closed: decision.closed };
        self.shared.wiring().journal.post(JournalInput::Append(Append { record, urgent, release }));
    }

    fn outgoing(&self, effect: Effect, now: Timestamp) -> Option<Outgoing> {
        let job = self.job.as_ref()?;
        Some(match effect {
            Effect::Dispatch { step, attempt, input } => {
                let definition = job.definition();
                Outgoing::Dispatch(Arc::from(&*definition.vhost), step_message(job, definition, step, attempt, &input, now))
            }
            Effect::StartChild { origin, message } => {
                Outgoing::StartChild(Box::new(NewChild { origin: *origin, message, parent: self.number, root: self.root }))
            }
            Effect::HaltChild(id, reason) => Outgoing::ToChild(id, Input::Halt(reason)),
            Effect::CancelChild(id, reason) => Outgoing::ToChild(id, Input::Cancel { reason, tell_parent: false }),
            Effect::TellParent(parent, outcome) => Outgoing::ToParent(parent, Input::ChildEnded { step: parent.step, index: parent.index, outcome }),
        })
    }

    /// Counts and logs what was decided, in one place.
    fn observe(&self, decision: &Decision, now: Timestamp) {
        let Some(job) = &self.job else { return };
        let metrics = &self.shared.metrics;
        let workflow = job.definition().full_name();
        let is_root = self.parent.is_none();
        let name = |step: StepIndex| job.graph().step(step).name.clone();
        for entry in &decision.entries {
            match entry {
                Entry::JobCreated { .. } => {
                    if is_root {
                        metrics.jobs_created.with_label_values(&[&*workflow]).inc();
                        metrics.jobs.with_label_values(&[&*workflow, JobState::Running.word()]).inc();
                    } else {
                        metrics.child_jobs.inc();
                    }
                    tracing::debug!(job = %self.id, %workflow, child = !is_root, "job created");
                }
                Entry::StepStarted { step, attempt, .. } => {
                    metrics.dispatched.with_label_values(&[&*workflow, &*name(*step)]).inc();
                    tracing::debug!(job = %self.id, step = %name(*step), attempt, "step started");
                }
                Entry::StepUnconfirmed { step } => {
                    metrics.dispatched.with_label_values(&[&*workflow, &*name(*step)]).inc();
                    tracing::debug!(job = %self.id, step = %name(*step), attempt = job.step(*step).attempt, "step dispatched again: its queue was lost");
                }
                Entry::StepConfirmed { step } => metrics.confirmed.with_label_values(&[&*workflow, &*name(*step)]).inc(),
                Entry::StepCompleted { step, .. } | Entry::FanOutCompleted { step, .. } => {
                    let elapsed = job.step(*step).started.map_or(0, |started| now.0 - started.0);
                    metrics.replied.with_label_values(&[&*workflow, &*name(*step)]).inc();
                    metrics.step_duration.with_label_values(&[&*workflow, &*name(*step)]).observe(elapsed as f64 / 1e9);
                    tracing::debug!(job = %self.id, step = %name(*step), attempt = job.step(*step).attempt, elapsed_ms = elapsed / 1_000_000, "step completed");
                }
                Entry::StepFailed { step, failure, .. } => {
                    metrics.failed.with_label_values(&[&*workflow, &*name(*step)]).inc();
                    tracing::warn!(job = %self.id, step = %name(*step), attempt = job.step(*step).attempt, reason = %failure.reason, "step failed");
                }
                Entry::FanOutStarted { step, items, warning, .. } => {
                    if let Some(warning) = warning {
                        tracing::warn!(job = %self.id, step = %name(*step), warning = %warning, "fan-out started");
                    } else {
                        tracing::debug!(job = %self.id, step = %name(*step), items, "fan-out started");
                    }
                }
                Entry::ChildrenStarted { step, from, count, .. } => {
                    tracing::trace!(job = %self.id, step = %name(*step), from, count, "children started")
                }
                Entry::ChildCompleted { step, index, .. } => tracing::trace!(job = %self.id, step = %name(*step), index, "child completed"),
                Entry::ChildFailed { step, index } => tracing::debug!(job = %self.id, step = %name(*step), index, "child failed"),
                Entry::JobCompleted { .. } | Entry::JobFailed { .. } | Entry::JobCancelled { .. } => self.observe_end(job, &workflow, now),
            }
        }
    }

    fn observe_end(&self, job: &Job, workflow: &str, now: Timestamp) {
        let metrics = &self.shared.metrics;
        let state = job.state().word();
        let elapsed = now.0 - job.origin().created.0;
        if self.parent.is_some() {
            metrics.child_jobs.dec();
            tracing::debug!(job = %self.id, state, elapsed_ms = elapsed / 1_000_000, "child job ended");
            return;
        }
        metrics.jobs_ended.with_label_values(&[workflow, state]).inc();
        metrics.jobs.with_label_values(&[workflow, JobState::Running.word()]).dec();
        metrics.job_duration.with_label_values(&[workflow, state]).observe(elapsed as f64 / 1e9);
        tracing::info!(job = %self.id, workflow, state, elapsed_ms = elapsed / 1_000_000, reason = job.reason().map(|reason| &**reason), "job ended");
    }
}

/// Counts a recovered job among those under way.
pub(super) fn observe_recovered(shared: &Shared, job: &Job) {
    if job.state() != JobState::Running {
        return;
    }
    if job.origin().parent.is_some() {
        shared.metrics.child_jobs.inc();
    } else {
        shared.metrics.jobs.with_label_values(&[&*job.definition().full_name(), JobState::Running.word()]).inc();
    }
}

fn step_message(job: &Job, definition: &Definition, step: StepIndex, attempt: u32, input: &Message, now: Timestamp) -> StepMessage {
    let run = job.graph().step(step);
    StepMessage {
        job: job.id(),
        root: job.origin().root,
        workflow: definition.full_name().into(),
        step,
        step_name: run.name.clone(),
        attempt,
        queue: run.queue.clone(),
        priority: run.priority,
        traceparent: traceparent(job, step, attempt),
        timestamp_s: u64::try_from(now.0 / 1_000_000_000).unwrap_or_default(),
        body: input.to_text().into(),
    }
}

/// One trace per top-level job; the span is that of the dispatch. Both follow from ids, so that a message sent again
/// carries the same.
fn traceparent(job: &Job, step: StepIndex, attempt: u32) -> String {
    let span = span_id(job.id(), &job.graph().step(step).name, attempt);
    format!("00-{}-{span:016x}-01", job.origin().root.0.simple())
}

/// Lets tests make a job panic when it hears from a worker or a child.
fn fail_point(input: &Input) {
    if matches!(input, Input::Reply { .. } | Input::ChildEnded { .. }) && faults::hit("job::take").is_some() {
        panic!("failpoint job::take");
    }
}

impl Actor for JobActor {
    type Context = actix::Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        if let Some(start) = self.start.take() {
            self.begin(start, ctx);
        }
    }
}

impl Owner for JobActor {
    type Input = JobInput;
    const KIND: &'static str = "job";
}

impl Handler<Mail<JobInput>> for JobActor {
    type Result = ();

    fn handle(&mut self, mail: Mail<JobInput>, ctx: &mut Self::Context) {
        mail.handle(|input| self.receive(input, ctx));
    }
}
