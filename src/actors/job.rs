//! The shell of [`crate::engine::Job`]: one actor per running job and per child job under way. It
//! takes inputs, lets the engine decide, and sends the record with its effects to the journal. It
//! does nothing else.

mod asks;
mod buses;
mod news;
mod observe;
mod places;
mod redispatch;
mod withdrawals;

use super::answer::{Answer, Client, Now, Refusal};
use super::callers::{CallRefusal, Refused};
use super::mail::{
    ANY_ROUND, Append, JobInput, JournalInput, Leave, Look, NewChild, Outgoing, RouterInput,
    SupervisorInput, ToChild,
};
use super::mailbox::{Mail, Owner};
use super::messages::{caller_answer, step_message};
use super::said::Said;
use super::steps_done::StepsDone;
use super::ways::Ways;
use crate::clock;
use crate::engine::{
    Caller, CallerEntry, Cause, ChildEnd, ChildOutcome, Context, Decision, Effect, Entry, Input,
    Job, JobId, JobState, Message, Origin, Parent, Rejected, StepEntry, Timestamp,
};
use crate::faults;
use crate::journal::{JobNumber, NewJob, Record, Recovered};
use actix::{Actor, ActorContext, AsyncContext, Handler, SpawnHandle};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A job under way.
pub struct JobActor {
    pub(super) ways: Arc<Ways>,
    pub(super) id: JobId,
    number: JobNumber,
    root: JobNumber,
    pub(super) parent: Option<JobNumber>,
    life: Life,
    /// How many inputs it has heard: all that were sent to its mailbox, except those still in it.
    heard: u64,
    /// The state in which the metrics count the job.
    pub(super) counted: Option<JobState>,
    /// How many child jobs under way it counts among those of the process.
    pub(super) children: u32,
    /// The time that is due next, and the wait for it.
    timer: Option<(Timestamp, SpawnHandle)>,
    /// How many of its steps are done: for those who look at the table, and as it told last.
    pub(super) steps_done: (StepsDone, Option<usize>),
    /// Since when its steps have been seen waiting for replies.
    pub(super) seen: Vec<(u64, Instant)>,
}

/// What state an actor is in.
enum Life {
    /// It has not started.
    Starting(Start),
    /// Its job goes on.
    Live(Job),
    /// Its job panicked and is being rebuilt from the journal. Inputs are set aside meanwhile.
    Broken { set_aside: Vec<JobInput> },
    /// Nothing is left to do. It asked to leave when it had heard `asked` inputs. An input that
    /// comes before it is let go may make it go on.
    Leaving { job: Job, asked: u64 },
    /// Its creation panicked: there is no job.
    Void,
}

impl Life {
    fn job(&self) -> Option<&Job> {
        match self {
            Life::Live(job) | Life::Leaving { job, .. } => Some(job),
            Life::Starting(_) | Life::Broken { .. } | Life::Void => None,
        }
    }

    fn job_mut(&mut self) -> Option<&mut Job> {
        match self {
            Life::Live(job) | Life::Leaving { job, .. } => Some(job),
            Life::Starting(_) | Life::Broken { .. } | Life::Void => None,
        }
    }
}

/// How an actor begins.
pub enum Start {
    /// With a new job.
    New {
        /// Where it comes from.
        origin: Arc<Origin>,
        /// Its message.
        message: Message,
        /// Who waits for its end.
        caller: Option<Caller>,
        /// For a top-level job: what leaves after the commit, the answer to the client or the ack
        /// of the call.
        release: Vec<Outgoing>,
    },
    /// With a job from the journal.
    Recovered {
        /// The job.
        job: Box<Job>,
        /// Its open effects.
        effects: Vec<Effect>,
    },
}

impl Start {
    /// The job's place in its parent.
    pub fn place(&self) -> Option<Parent> {
        match self {
            Start::New { origin, .. } => origin.parent,
            Start::Recovered { job, .. } => job.origin().parent,
        }
    }
}

/// Who waits for the outcome of an operation.
struct AskedOperation {
    /// The step that it concerns, if it concerns only one.
    step: Option<String>,
    answer: Client<Now>,
}

/// The pause before another look at a timeout that passed while replies could not be heard.
const HEARD_AGAIN_AFTER: Duration = Duration::from_secs(3);

/// The longest wait for a timer. For what is due later, the wait begins again.
const WAIT_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

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

impl JobActor {
    /// An actor that begins when it is started.
    pub(super) fn new(ways: Arc<Ways>, spawn: Spawn, steps_done: StepsDone) -> JobActor {
        let Spawn { id, number, root, parent, start } = spawn;
        JobActor {
            ways,
            id,
            number,
            root,
            parent,
            life: Life::Starting(start),
            heard: 0,
            counted: None,
            children: 0,
            timer: None,
            steps_done: (steps_done, None),
            seen: Vec::new(),
        }
    }

    /// The job, unless it has panicked and is being rebuilt.
    pub(super) fn job(&self) -> Option<&Job> {
        self.life.job()
    }

    fn begin(&mut self, start: Start) {
        let now = clock::now();
        match start {
            Start::New { origin, message, caller, release } => {
                let context = Context { now, limits: &self.limits() };
                let (owned, waits) = ((*origin).clone(), caller.clone());
                let Ok((job, decision)) = catch_unwind(AssertUnwindSafe(|| {
                    Job::create_for(owned, message, waits, &context)
                })) else {
                    return self.never_began(&origin, caller, release);
                };
                self.life = Life::Live(job);
                let created = NewJob { origin, root: self.root, parent: self.parent };
                self.append(decision, Some(created), release);
            }
            Start::Recovered { job, effects } => self.resume(*job, effects),
        }
    }

    /// Handles a panic before the job was journaled. A client gets no answer; a parent or caller is
    /// told.
    fn never_began(&self, origin: &Origin, caller: Option<Caller>, release: Vec<Outgoing>) {
        tracing::error!(job = %self.id, "the creation of the job panicked");
        let leave = Leave { id: self.id, number: self.number, heard: None };
        self.ways.mailboxes().router.post(RouterInput::Leave(vec![leave]));
        if let Some(parent) = origin.parent {
            let outcome =
                ChildOutcome::Failed(Cause::of_job("the creation of the child job panicked"));
            Outgoing::ToParent(parent, ChildEnd { child: self.id, round: ANY_ROUND, outcome })
                .release(&self.ways);
        }
        for outgoing in release {
            if let Outgoing::Ack(ack) = outgoing {
                let refusal = CallRefusal {
                    kind: "creation_panicked",
                    reason: "the creation of the job panicked".to_owned(),
                };
                Refused {
                    definition: origin.definition.clone(),
                    id: self.id,
                    caller: caller.clone(),
                    ack,
                }
                .tell(&refusal, &self.ways);
            }
        }
    }

    fn receive(&mut self, input: JobInput, ctx: &mut actix::Context<Self>) {
        // A rebuilt job hears all that was set aside. This input is counted only after that, so
        // that nothing in the middle can let the job go.
        let is_rebuild = matches!(input, JobInput::Rebuilt { .. });
        self.heard += u64::from(!is_rebuild);
        self.act(input, ctx);
        self.heard += u64::from(is_rebuild);
        self.leave_or_go_on();
        self.set_timer(ctx);
    }

    /// Asks to leave if nothing is left to do, and asks again after an input that changed nothing.
    /// Otherwise it goes on.
    fn leave_or_go_on(&mut self) {
        let (asks, goes_on) = match &self.life {
            Life::Live(job) => (job.is_closed(), false),
            Life::Leaving { job, asked } => {
                (job.is_closed() && *asked != self.heard, !job.is_closed())
            }
            Life::Starting(_) | Life::Broken { .. } | Life::Void => (false, false),
        };
        if asks {
            let leaves = self.leave();
            self.append_nothing(Vec::new(), leaves);
        } else if goes_on {
            self.life = match std::mem::replace(&mut self.life, Life::Void) {
                Life::Leaving { job, .. } => Life::Live(job),
                life @ (Life::Starting(_) | Life::Live(_) | Life::Broken { .. } | Life::Void) => {
                    life
                }
            };
        }
    }

    /// Begins to leave, if it has a job; returns how many inputs it has heard. More inputs may keep
    /// it.
    fn leave(&mut self) -> Option<u64> {
        let asked = self.heard;
        match std::mem::replace(&mut self.life, Life::Void) {
            Life::Live(job) | Life::Leaving { job, .. } => {
                self.life = Life::Leaving { job, asked };
                Some(asked)
            }
            life @ (Life::Starting(_) | Life::Broken { .. } | Life::Void) => {
                self.life = life;
                None
            }
        }
    }

    /// Waits for what is due next. The wall clock tells, once, how long; the wait itself is
    /// monotonic.
    fn set_timer(&mut self, ctx: &mut actix::Context<Self>) {
        let due = match &self.life {
            Life::Live(job) => job.next_timer(),
            // It waits for nothing.
            Life::Starting(_) | Life::Broken { .. } | Life::Leaving { .. } | Life::Void => None,
        };
        if due == self.timer.as_ref().map(|(due, _)| *due) {
            return;
        }
        if let Some((_, wait)) = self.timer.take() {
            ctx.cancel_future(wait);
        }
        let Some(due) = due else { return };
        let left = |due: Timestamp| {
            Duration::from_nanos(
                u64::try_from(due.0.saturating_sub(clock::now().0)).unwrap_or_default(),
            )
        };
        let (mut wanted, mut pause) = (due, left(due).min(WAIT_MAX));
        if pause.is_zero() {
            let unheard = self.deaf_to();
            let other = self.job().and_then(|job| job.next_timer_without(&unheard));
            if other != Some(due) {
                // A reply may still make this timeout void. What does not depend on that bus must
                // not wait for it.
                pause = HEARD_AGAIN_AFTER;
                if let Some(other) = other.filter(|other| left(*other) < HEARD_AGAIN_AFTER) {
                    (wanted, pause) = (other, left(other));
                }
            }
        }
        let is_enough = left(wanted) <= pause;
        let wait = ctx.run_later(pause, move |actor, ctx| {
            actor.timer = None;
            if is_enough {
                let deaf_to = actor.deaf_to();
                actor.take(Input::Timer { due: wanted, deaf_to }, Vec::new());
                actor.leave_or_go_on();
            }
            actor.set_timer(ctx);
        });
        self.timer = Some((due, wait));
    }

    fn act(&mut self, input: JobInput, ctx: &mut actix::Context<Self>) {
        match (&mut self.life, input) {
            (_, JobInput::Close) => {
                self.count_as(None);
                // It must not ask to leave again: another actor may have the job by then.
                self.life = Life::Void;
                ctx.stop();
            }
            (Life::Broken { set_aside }, JobInput::Rebuilt { recovered, abandon }) => {
                let set_aside = std::mem::take(set_aside);
                self.rebuilt(*recovered, abandon, set_aside);
            }
            (_, input) => self.hear_or_set_aside(input),
        }
    }

    fn hear_or_set_aside(&mut self, input: JobInput) {
        match &mut self.life {
            Life::Live(_) | Life::Leaving { .. } => self.hear(input),
            Life::Broken { set_aside } => set_aside.push(input),
            Life::Starting(_) | Life::Void => {}
        }
    }

    fn hear(&mut self, input: JobInput) {
        match input {
            JobInput::Take { input, ack } => {
                self.take(input, ack.map(Outgoing::Ack).into_iter().collect())
            }
            JobInput::Sent { created, input } => {
                if self.job().is_some_and(|job| job.origin().created == created) {
                    self.take(input, Vec::new());
                }
            }
            JobInput::Same { workflow, message, answer } => self.same(&workflow, &message, answer),
            JobInput::Called(call) => self.called(call),
            JobInput::Vouch(call) => self.vouch(call),
            JobInput::Cancel(by, answer) => self.cancel(by, answer),
            JobInput::Erase(answer) => self.erase(answer),
            JobInput::Operate(request, answer) => self.operate(request, answer),
            JobInput::QueueMissing { queue, heard } => self.queue_missing(&queue, heard),
            JobInput::Redispatch { bulk, done } => self.redispatch(&bulk, &done),
            JobInput::Count(census) => self.count_waiting(&census),
            JobInput::Waits(oldest) => self.tell_waits(&oldest),
            JobInput::Settled(done) => self.release_after_commit(vec![Outgoing::Hold(done)]),
            JobInput::Look(Look { see, done }) => {
                if let Some(job) = self.job() {
                    see(job);
                }
                self.release_after_commit(vec![Outgoing::Hold(done)]);
            }
            // It is neither broken nor let go.
            JobInput::Rebuilt { .. } | JobInput::Close => {}
        }
    }

    fn rebuilt(
        &mut self,
        mut recovered: Recovered,
        abandon: Option<Arc<str>>,
        set_aside: Vec<JobInput>,
    ) {
        let place = recovered.job.origin().parent.filter(|_| recovered.job.state().is_ended());
        // Messages that the broker has confirmed meanwhile are not sent again.
        let created = recovered.job.origin().created;
        let is_of = |input: &JobInput, sent| matches!(input, JobInput::Sent { created: of, input: Input::Confirmed { step, attempt } } if (*of, (*step, *attempt)) == (created, sent));
        let is_confirmed = |sent| set_aside.iter().any(|input| is_of(input, sent));
        recovered.effects.retain(|effect| !matches!(effect, Effect::Dispatch { step, attempt, .. } if is_confirmed((*step, *attempt))));
        self.resume(recovered.job, recovered.effects);
        match abandon {
            Some(reason) => {
                // The job panics at an order from its parent, so the parent hears that it failed.
                if let (Some(place), false) = (place, recovered.orders.is_empty()) {
                    let ended = ChildEnd {
                        child: self.id,
                        round: ANY_ROUND,
                        outcome: ChildOutcome::Failed(Cause::of_job(&reason)),
                    };
                    Outgoing::ToParent(place, ended).release(&self.ways);
                }
                self.take(Input::Abandon(reason), Vec::new());
            }
            None => {
                for order in recovered.orders {
                    self.hear_or_set_aside(JobInput::Take {
                        input: Input::Order(order),
                        ack: None,
                    });
                }
            }
        }
        set_aside.into_iter().for_each(|input| self.hear_or_set_aside(input));
    }

    /// Goes on with a job from the journal. The entries behind its effects are committed.
    fn resume(&mut self, job: Job, effects: Vec<Effect>) {
        self.life = Life::Live(job);
        self.count();
        self.take_places();
        self.steps_now().into_iter().for_each(|told| told.release(&self.ways));
        let (ways, now) = (self.ways.clone(), clock::now());
        effects
            .into_iter()
            .filter_map(|effect| self.outgoing(effect, now))
            .for_each(|outgoing| outgoing.release(&ways));
    }

    /// Lets the engine decide; `release` leaves after the commit.
    pub(super) fn take(&mut self, input: Input, release: Vec<Outgoing>) {
        self.decide(input, release, None);
    }

    /// Lets the engine decide. A panic affects only this job: the supervisor has it rebuilt from
    /// the journal, inputs are set aside meanwhile, and the delivery that was being taken goes back
    /// to its queue. A client is told the job's state.
    fn decide(&mut self, input: Input, mut release: Vec<Outgoing>, answer: Option<AskedOperation>) {
        let (ways, now) = (self.ways.clone(), clock::now());
        let limits = self.limits();
        let Some(job) = self.life.job_mut() else { return };
        let context = Context { now, limits: &limits };
        let said = Said::of(&input);
        let taken = catch_unwind(AssertUnwindSafe(|| {
            fail_point(&input);
            ways.common.rules.take(job, input, &context)
        }));
        match taken {
            Ok(Ok(decision)) => {
                release.extend(answer.map(|AskedOperation { step, answer }| {
                    Outgoing::Answer(Answer::Now(answer, Ok(Now::of(job, step.as_deref()))))
                }));
                self.append(decision, None, release);
            }
            Ok(Err(rejected)) => {
                let reason = || format!("nothing to change: {}", rejected.label());
                release.extend(answer.map(|AskedOperation { answer, .. }| {
                    Outgoing::Answer(Answer::Now(answer, Err(Refusal::Conflict(reason()))))
                }));
                self.reject(rejected, said, release);
            }
            Err(_) => {
                self.life = Life::Broken { set_aside: Vec::new() };
                ways.mailboxes()
                    .supervisor
                    .post(SupervisorInput::Panicked { number: self.number, id: self.id });
            }
        }
    }

    fn reject(&mut self, rejected: Rejected, said: Option<Said>, mut release: Vec<Outgoing>) {
        if release.iter().any(|outgoing| matches!(outgoing, Outgoing::Ack(_))) {
            self.ways.common.metrics.rejected.with_label_values(&[rejected.label()]).inc();
            if let (Some(said), true) = (said, self.ways.common.throttle.may_log(rejected.label()))
            {
                said.log(self.id, rejected);
            }
        }
        // After the commit of what made it void, which may still be under way: this may be the last
        // copy of a reply.
        if !release.is_empty() {
            for outgoing in &mut release {
                if let Outgoing::Ack(ack) = outgoing {
                    ack.unused(rejected.label());
                }
            }
            self.release_after_commit(release);
        }
    }

    fn release_after_commit(&self, release: Vec<Outgoing>) {
        self.append_nothing(release, None);
    }

    fn append_nothing(&self, release: Vec<Outgoing>, leaves: Option<u64>) {
        let record = Record::nothing(self.number);
        self.ways.mailboxes().journal.post(JournalInput::Append(Append {
            id: self.id,
            record,
            urgent: true,
            release,
            leaves,
        }));
    }

    fn append(
        &mut self,
        mut decision: Decision,
        created: Option<NewJob>,
        mut release: Vec<Outgoing>,
    ) {
        let now = decision.recorded.at;
        self.observe(&decision.recorded);
        self.count();
        self.take_places();
        faults::observe("job::decided", || (self.number, self.job().cloned()));
        let urgent = !matches!(
            decision.recorded.entries.as_slice(),
            [Entry::Step(_, StepEntry::Confirmed | StepEntry::Leased(_))
                | Entry::Caller(CallerEntry::Answered(_))]
        );
        let effects = std::mem::take(&mut decision.effects).into_iter();
        release.extend(effects.filter_map(|effect| self.outgoing(effect, now)));
        release.extend(self.withdrawals(&decision.recorded));
        let leaves = if decision.closed { self.leave() } else { None };
        let (announced, notice) = self.news(&decision.recorded);
        release.extend(announced);
        // Before any answer: who is answered looks next.
        release.splice(0..0, self.steps_now());
        release.extend(self.counts_now(&decision.recorded));
        let record = Record { notice, ..Record::of(self.number, created, decision) };
        self.ways.mailboxes().journal.post(JournalInput::Append(Append {
            id: self.id,
            record,
            urgent,
            release,
            leaves,
        }));
    }

    fn outgoing(&self, effect: Effect, now: Timestamp) -> Option<Outgoing> {
        let job = self.job()?;
        Some(match effect {
            Effect::Dispatch { step, attempt, input } => {
                let bus = self.ways.buses.of_step(job.definition(), job.graph().step(step));
                let share = self.ways.common.settings.traces.share();
                Outgoing::Send(step_message(job, bus, step, attempt, input, (now, share)))
            }
            Effect::StartChild { origin, message } => Outgoing::StartChild(Box::new(NewChild {
                origin: *origin,
                message,
                parent: self.number,
                root: self.root,
            })),
            Effect::TellChild { child, place, order } => {
                Outgoing::ToChild(ToChild { id: child, place, parent: self.number, order })
            }
            Effect::TellParent(parent, ended) => Outgoing::ToParent(parent, ended),
            Effect::AnswerCaller { caller, end } => {
                let bus = self.ways.buses.of_caller(job.definition(), job.caller(caller)?);
                let bytes_max = self.ways.common.limits.step_message_bytes_max;
                Outgoing::Send(caller_answer(job, bus, caller, end, bytes_max, now)?)
            }
        })
    }
}

/// Lets tests make a job panic when it hears from a worker or a child.
fn fail_point(input: &Input) {
    if matches!(input, Input::Reply { .. } | Input::ChildEnded { .. })
        && faults::hit("job::take").is_some()
    {
        panic!("failpoint job::take");
    }
}

impl Actor for JobActor {
    type Context = actix::Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        if let Life::Starting(start) = std::mem::replace(&mut self.life, Life::Void) {
            self.begin(start);
            self.set_timer(ctx);
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
