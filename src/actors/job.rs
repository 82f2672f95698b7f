//! The actor around [`crate::engine::Job`]: one for each running job and for each child job under
//! way. It handles inputs, lets the engine decide, and sends the record with its effects to the
//! journal.
//!
//! What else an actor does, each in a file of its own:
//!
//! | file | what |
//! |---|---|
//! | `spawn`, `startup` | what an actor starts with: a new job, or one of the journal |
//! | `lifecycle` | the states of an actor, and how it stops |
//! | `requests` | what clients ask of the job |
//! | `passivation` | how a job that only waits leaves memory while that is short |
//! | `bulk_requests`, `waiting_since` | requests to every job: redispatch, waiting steps |
//! | `buses` | which steps wait on which bus; what a missing queue means |
//! | `child_budget` | the permits of its child jobs under way |
//! | `withdrawals` | messages in queues whose attempts are over |
//! | `timer` | the next time that is due |
//! | `notifications`, `reporting` | what others see of a decision: events, notices; metrics, logs |
//!
//! How it stops: (1) After an input that leaves nothing to do, its lifecycle goes on to `Stopping`,
//! and it sends to the journal, behind its last record, how many inputs it has handled. (2) After
//! the commit the journal notifies the router. (3) If exactly so many inputs were sent to the job,
//! the router removes it from the route table and closes its actor. Otherwise an input is still on
//! its way, and (4) the actor goes on with that input, or asks once more.

mod beginning;
mod buses;
mod child_budget;
mod life;
mod news;
mod observe;
mod redispatch;
mod requests;
mod resting;
mod start;
mod timer;
mod waiting_since;
mod withdrawals;

pub use start::{Spawn, Start};

use super::answer::{Answer, Client, Now, Refusal};
use super::mail::{
    Append, JobInput, JournalInput, Look, NewChild, Outgoing, Rest, RouterInput, SupervisorInput,
    ToChild,
};
use super::mailbox::{Mail, Owner};
use super::memory::{Share, bytes_of};
use super::messages::{caller_answer, step_message};
use super::reply_log::LoggedReply;
use super::steps_done::StepsDone;
use super::ways::Ways;
use crate::clock::Steady;
use crate::engine::{
    CallerEntry, Context, Decision, Effect, Entry, Input, Job, JobId, JobState, Rejected, Reply,
    StepEntry, Timestamp,
};
use crate::faults;
use crate::journal::{JobNumber, NewJob, Record};
use actix::{Actor, ActorContext, Handler, SpawnHandle};
use life::Life;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use waiting_since::WaitingSince;

/// The actor of a job under way.
pub struct JobActor {
    pub(super) ways: Arc<Ways>,
    pub(super) id: JobId,
    number: JobNumber,
    root: JobNumber,
    pub(super) parent: Option<JobNumber>,
    life: Life,
    /// The clock by which the job measures: a change of the wall clock changes none of its times.
    clock: Steady,
    /// How many inputs it has handled: all that were sent to its mailbox, except those still in it.
    heard: u64,
    /// The state in which the metrics count the job.
    pub(super) counted: Option<JobState>,
    /// The end that a decision has undone, if the job goes on after it.
    pub(super) ended_before: Option<(Timestamp, JobState)>,
    /// Its share of the memory of jobs.
    share: Share,
    /// How many of its child jobs count towards the limit of the process.
    pub(super) children: u32,
    /// How many inputs it had handled when it last asked to be passivated.
    asked_to_rest: Option<u64>,
    /// The time that is due next, and the timer for it.
    timer: Option<(Timestamp, SpawnHandle)>,
    /// How many of its steps are done, for readers of the route table.
    steps_done: StepsDone,
    /// The number that was reported last.
    steps_reported: Option<usize>,
    /// Since when its steps have been seen waiting for replies.
    waiting_since: WaitingSince,
}

/// An operation whose client waits for the outcome.
struct AskedOperation {
    /// The step that it concerns, if it concerns only one.
    step: Option<String>,
    answer: Client<Now>,
}

impl JobActor {
    /// Creates an actor that begins its work when it is started.
    pub(super) fn new(
        ways: Arc<Ways>,
        spawn: Spawn,
        steps_done: StepsDone,
        share: Share,
    ) -> JobActor {
        let Spawn { id, number, root, parent, start } = spawn;
        JobActor {
            ways,
            id,
            number,
            root,
            parent,
            life: Life::Starting(start),
            clock: Steady::begin(),
            heard: 0,
            counted: None,
            ended_before: None,
            share,
            asked_to_rest: None,
            children: 0,
            timer: None,
            steps_done,
            steps_reported: None,
            waiting_since: WaitingSince::default(),
        }
    }

    /// Returns the job, unless it has panicked and is being rebuilt.
    pub(super) fn job(&self) -> Option<&Job> {
        self.life.job()
    }

    fn receive(&mut self, input: JobInput, ctx: &mut actix::Context<Self>) {
        // A rebuilt job first handles everything that was stashed. `Rebuilt` itself is counted
        // last: until then the router cannot stop the job.
        let is_rebuild = matches!(input, JobInput::Rebuilt { .. });
        self.heard += u64::from(!is_rebuild);
        self.act(input, ctx);
        self.heard += u64::from(is_rebuild);
        self.leave_or_go_on();
        self.rest_if_short();
        self.set_timer(ctx);
    }

    /// Asks to stop if nothing is left to do, and asks again after an input that changed nothing.
    /// Otherwise the actor goes on.
    fn leave_or_go_on(&mut self) {
        if self.life.is_through(self.heard) {
            let leaves = self.leave();
            self.append_nothing(Vec::new(), leaves, None);
        } else {
            self.life.go_on();
        }
    }

    /// Begins to stop, if there is a job; returns how many inputs it has handled. More inputs may
    /// keep it running.
    fn leave(&mut self) -> Option<u64> {
        self.life.leave(self.heard).then_some(self.heard)
    }

    fn act(&mut self, input: JobInput, ctx: &mut actix::Context<Self>) {
        match (&mut self.life, input) {
            (_, JobInput::Close) => {
                self.count_as(None);
                // It must not ask to stop again: another actor may have the job by then.
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
            JobInput::OfMessage { created, input } => {
                if self.job().is_some_and(|job| job.origin().created == created) {
                    self.take(input, Vec::new());
                }
            }
            JobInput::CreateAgain { workflow, message, answer } => {
                self.create_again(&workflow, &message, answer)
            }
            JobInput::Called(call) => self.called(call),
            JobInput::Vouch(call) => self.vouch(call),
            JobInput::Cancel(by, answer) => self.cancel(by, answer),
            JobInput::Erase(answer) => self.erase(answer),
            JobInput::Operate(request, answer) => self.operate(request, answer),
            JobInput::QueueMissing { queue, done } => self.queue_missing(&queue, done),
            JobInput::Redispatch { bulk, done } => self.redispatch(&bulk, &done),
            JobInput::SeenWaiting(seen) => self.waiting_since.go_on(seen),
            JobInput::Count(census) => self.count_waiting(&census),
            JobInput::Waits { waits, done } => {
                self.tell_waits(&waits);
                drop(done);
            }
            JobInput::Settled(done) => self.release_after_commit(vec![Outgoing::Hold(done)]),
            JobInput::Look(Look { see, done }) => {
                if let Some(job) = self.job() {
                    see(job);
                }
                self.release_after_commit(vec![Outgoing::Hold(done)]);
            }
            // `handle_in_lifecycle` has handled `Close`, and `Rebuilt` for a broken job. Here the
            // job is running. Whether it can be passivated is checked after each input.
            JobInput::Rebuilt { .. } | JobInput::Rest | JobInput::Close => {}
        }
    }

    /// Lets the engine decide; `outgoing` is sent after the commit.
    pub(super) fn take(&mut self, input: Input, release: Vec<Outgoing>) {
        self.decide(input, release, None);
    }

    /// Lets the engine decide. If a client has asked, it gets the state of the job. A panic of the
    /// engine affects only this job: the supervisor has it rebuilt. Meanwhile its inputs are
    /// stashed, and the delivery that was being handled goes back to its queue.
    fn decide(&mut self, input: Input, mut release: Vec<Outgoing>, answer: Option<AskedOperation>) {
        let (ways, now) = (self.ways.clone(), self.clock.now());
        let limits = self.limits();
        let Some(job) = self.life.job_mut() else { return };
        self.ended_before = job.ended().map(|ended| (ended, job.state()));
        let context = Context { now, limits: &limits };
        let logged = LoggedReply::of(&input);
        let is_result = matches!(&input, Input::Reply { reply: Reply::Result(_), .. });
        let taken = catch_unwind(AssertUnwindSafe(|| {
            fail_point(&input);
            ways.common.rules.take(job, input, &context)
        }));
        match taken {
            Ok(Ok(decision)) => {
                if is_result {
                    tell_failure(&decision, &mut release);
                }
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
                self.reject(rejected, logged, release);
            }
            Err(_) => {
                self.life = Life::Broken { set_aside: Vec::new() };
                ways.mailboxes()
                    .supervisor
                    .post(SupervisorInput::Panicked { number: self.number, id: self.id });
            }
        }
    }

    fn reject(
        &mut self,
        rejected: Rejected,
        logged: Option<LoggedReply>,
        mut release: Vec<Outgoing>,
    ) {
        if release.iter().any(|outgoing| matches!(outgoing, Outgoing::Ack(_))) {
            self.ways.common.metrics.rejected.with_label_values(&[rejected.label()]).inc();
            if let (Some(logged), true) =
                (logged, self.ways.common.throttle.may_log(rejected.label()))
            {
                logged.log(self.id, rejected);
            }
        }
        // The acknowledgement waits for the commit of whatever made this input void. That commit
        // may still be under way, and this delivery may be the last copy of a reply.
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
        self.append_nothing(release, None, None);
    }

    fn append_nothing(
        &self,
        release: Vec<Outgoing>,
        leaves: Option<u64>,
        rests: Option<Box<Rest>>,
    ) {
        let record = Record::nothing(self.number);
        self.ways.mailboxes().journal.post(JournalInput::Append(Append {
            id: self.id,
            record,
            urgent: true,
            release,
            leaves,
            rests,
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
        self.draw_on_budget();
        self.count_bytes();
        faults::observe("job::decided", || (self.number, self.job().cloned()));
        let urgent = !matches!(
            decision.recorded.entries.as_slice(),
            [Entry::Step(_, StepEntry::Confirmed | StepEntry::Leased(_) | StepEntry::Begun)
                | Entry::Caller(CallerEntry::Answered(_))]
        );
        let effects = std::mem::take(&mut decision.effects).into_iter();
        release.extend(effects.filter_map(|effect| self.outgoing(effect, now)));
        release.extend(self.withdrawals(&decision.recorded));
        let leaves = if decision.closed { self.leave() } else { None };
        let (announced, notice) = self.news(&decision.recorded);
        release.extend(announced);
        // First, because a client reads the route table as soon as it has its response.
        release.splice(0..0, self.steps_now());
        release.extend(self.counts_now(&decision.recorded));
        let record = Record { notice, ..Record::of(self.number, created, decision) };
        self.ways.mailboxes().journal.post(JournalInput::Append(Append {
            id: self.id,
            record,
            urgent,
            release,
            leaves,
            rests: None,
        }));
    }

    /// Updates how many bytes of memory the job holds.
    pub(super) fn count_bytes(&mut self) {
        if let Some(bytes) = self.job().map(bytes_of) {
            self.share.set(bytes);
            if self.ways.common.memory.is_short_unheard() {
                self.ways.mailboxes().router.post(RouterInput::Short);
            }
        }
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

/// Lets the worker know that the attempt failed by its result.
fn tell_failure(decision: &Decision, release: &mut [Outgoing]) {
    // What follows directly from an input comes first.
    let Some(Entry::Step(_, entry)) = decision.recorded.entries.first() else { return };
    let Some(failure) = entry.failure() else { return };
    for outgoing in release {
        if let Outgoing::Ack(ack) = outgoing {
            ack.failed(failure.reason.clone());
        }
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
