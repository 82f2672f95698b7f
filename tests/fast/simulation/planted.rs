//! Bugs, each of which the simulation must find: a test suite that cannot fail proves nothing. Each
//! is a wrong part that the manager is started with: other definitions than the oracle's, a bus
//! that keeps something to itself, rules that lose or double an entry or an effect, relays between
//! the actors that lose mail or send effects too early, a disk that never has room again.

use super::limits::{PLAIN, count_twice};
use super::simulate_all;
use super::workers::LEASE_POLICY;
use std::sync::Arc;
use workflow_manager::actors::rules::Rules;
use workflow_manager::bus::BusEvent;
use workflow_manager::bus::lease_queue::LeasePolicy;
use workflow_manager::engine::{
    ChildEnd, ChildOutcome, Context, Decision, Definition, Effect, Entry, FanOutEntry, Graph,
    Input, Instruction, Job, JobState, Message, Order, Recorded, Rejected, Reply, SpareSource,
    StepEntry, StepIndex, StepState, Timestamp, Tolerate,
};
use workflow_manager::journal::RecoveredJob;

/// Each with the part that is wrong.
const BUGS: &[&str] = &[
    // on the way to the journal
    "ack before commit",
    "effects before commit",
    "answer before commit",
    "caller answered before commit",
    "rejected replies acknowledged at once",
    "rejected replies not acknowledged",
    "missing queues declared before the commit",
    "last record of a group left out",
    "only the first statuses of a group written",
    // on the way to the archive
    "known ids not looked up",
    "panicked actors not rebuilt",
    "jobs at rest not brought back",
    // on the way to the router
    "unknown replies sent back",
    "what is due in jobs at rest forgotten",
    // the log of replies
    "a position ahead of the journal",
    "positions not written",
    // the disk
    "no retry after a full disk",
    // the definitions
    "later dependency wins the merge",
    "cancelWhen ignored",
    "tolerance off by one",
    "buses of steps ignored",
    // the bus
    "confirms forgotten",
    "missing queues ignored",
    "messages of dead workers not lent again",
    "leases not reported",
    // the rules: what follows from an input
    "second reply settles again",
    "redispatch not recorded",
    "leases over at once",
    "attempts timed from their decision",
    "late failures count",
    "retry timer lost",
    "child jobs not retried",
    "fan-in one short",
    "last child to end decides",
    "window filled once",
    // the rules: what a job from the journal goes on with
    "unconfirmed steps not dispatched after a restart",
    "children not started after a restart",
    "orders to child jobs lost at a restart",
    "ended children unheard",
    "caller forgotten after a restart",
    // the limits
    "a place leaked on a cancel",
    "a place counted twice after a restart",
    "the rate forgotten at a restart",
    "the newest waiter first",
    "a key that starves",
    "half of several places held",
    "a place taken that was taken back",
    "a taken place leaked by a panic",
];

/// `SIMULATION_BUG` looks for one alone.
#[test]
fn every_planted_bug_is_found() {
    let is_meant = |bug: &&str| bug_from_env().is_none_or(|only| only == *bug);
    let bugs = BUGS.iter().copied().filter(is_meant);
    let missed: Vec<&str> = bugs.filter(|bug| !is_found(bug)).collect();
    assert!(missed.is_empty(), "not found within {} seeds: {missed:?}", super::SEEDS);
}

/// The bug that `SIMULATION_BUG` names.
pub(crate) fn bug_from_env() -> Option<&'static str> {
    let name = std::env::var("SIMULATION_BUG").ok()?;
    let bug = BUGS.iter().copied().find(|bug| *bug == name);
    Some(bug.unwrap_or_else(|| panic!("SIMULATION_BUG={name} is none of {BUGS:?}")))
}

fn is_found(bug: &'static str) -> bool {
    let (_, found) = simulate_all(0..super::SEEDS, Some(bug));
    if let Some((seed, outcome)) = &found {
        eprintln!("{bug}: seed {seed}: {}", outcome.violation.as_deref().unwrap_or_default());
    }
    found.is_some()
}

/// The definitions that the manager gets in place of those that the oracle knows.
pub(crate) fn wrong_definitions(
    bug: Option<&'static str>,
    definitions: Vec<Arc<Definition>>,
) -> Vec<Arc<Definition>> {
    let wrong = |graph: &Graph| {
        let (mut steps, mut keys) = (graph.steps.clone(), graph.fan_out.clone());
        match bug {
            Some("later dependency wins the merge") => {
                steps.iter_mut().for_each(|step| step.depends.reverse());
            }
            Some("cancelWhen ignored") => {
                steps.iter_mut().for_each(|step| step.cancel_when = None);
            }
            Some("buses of steps ignored") => {
                steps.iter_mut().for_each(|step| step.bus = None);
            }
            Some("tolerance off by one") => {
                if let Some(keys) = &mut keys
                    && let Tolerate::Count(count) = &mut keys.tolerate
                {
                    *count += 1;
                }
            }
            Some(_) | None => {}
        }
        Graph::new(graph.name.clone(), keys, steps)
    };
    let definitions = definitions.iter().map(|definition| {
        let graphs = definition.graphs.iter().map(wrong).collect();
        Arc::new(Definition { graphs, ..(**definition).clone() })
    });
    definitions.collect()
}

/// How messages are leased.
pub(crate) fn lease_policy(bug: Option<&'static str>) -> LeasePolicy {
    LeasePolicy { reports_leases: bug != Some("leases not reported"), ..LEASE_POLICY }
}

/// Whether the bus keeps an event to itself.
pub(crate) fn is_dropped(bug: Option<&'static str>, event: &BusEvent) -> bool {
    match bug {
        Some("confirms forgotten") => matches!(event, BusEvent::Confirmed(_)),
        Some("missing queues ignored") => matches!(event, BusEvent::QueueMissing { .. }),
        Some(_) | None => false,
    }
}

/// The engine's rules, but for a bug.
pub(crate) struct WrongRules(pub(crate) Option<&'static str>);

impl Rules for WrongRules {
    fn handle_input(
        &self,
        job: &mut Job,
        input: Input,
        ctx: &Context<'_>,
    ) -> Result<Decision, Rejected> {
        match self.0 {
            Some("second reply settles again") => settle_again(job, input, ctx),
            Some("late failures count") => {
                job.handle_input(count_for_this_attempt(job, input), ctx)
            }
            Some("retry timer lost") => put_off_retry(job, input, ctx),
            Some("attempts timed from their decision") => start_time_at_once(job, input, ctx),
            Some("fan-in one short") => complete_one_short(job, input, ctx),
            Some("last child to end decides") => decide_by_last_child(job, input, ctx),
            Some("leases over at once") => {
                let mut input = input;
                if let Input::Leased { lease, .. } = &mut input {
                    lease.until = ctx.now;
                }
                job.handle_input(input, ctx)
            }
            Some("redispatch not recorded") => {
                let mut decision = job.handle_input(input, ctx)?;
                let is_again =
                    |entry: &Entry| matches!(entry, Entry::Step(_, StepEntry::Unconfirmed));
                decision.recorded.entries.retain(|entry| !is_again(entry));
                Ok(decision)
            }
            Some("a place leaked on a cancel") => {
                let mut decision = job.handle_input(input, ctx)?;
                if job.state() == JobState::Cancelled {
                    decision.demands.retain(|(_, demand)| demand.is_some());
                }
                Ok(decision)
            }
            Some("a place taken that was taken back") => {
                let spare = Some(&AnyPlace as &dyn SpareSource);
                job.handle_input(input, &Context { spare, ..*ctx })
            }
            Some("child jobs not retried") => {
                let mut decision = job.handle_input(input, ctx)?;
                decision.effects.retain(|effect| {
                    !matches!(
                        effect,
                        Effect::OrderChild { order, .. } if order.instruction == Instruction::Retry
                    )
                });
                Ok(decision)
            }
            Some("window filled once") => {
                let mut decision = job.handle_input(input, ctx)?;
                let is_later = |entry: &Entry| {
                    matches!(
                        entry,
                        Entry::FanOut(_, FanOutEntry::ChildrenStarted { from, .. }) if *from > 0
                    )
                };
                if decision.recorded.entries.iter().any(is_later) {
                    decision.effects.retain(|effect| !matches!(effect, Effect::StartChild { .. }));
                }
                Ok(decision)
            }
            Some(_) | None => job.handle_input(input, ctx),
        }
    }

    fn adjust_recovered(&self, mut recovered: RecoveredJob) -> RecoveredJob {
        if self.0 == Some("a place counted twice after a restart") {
            count_twice(&recovered);
        }
        let is_lost = |effect: &Effect| match self.0 {
            Some("unconfirmed steps not dispatched after a restart") => {
                matches!(effect, Effect::Dispatch { .. })
            }
            Some("children not started after a restart") => {
                matches!(effect, Effect::StartChild { .. })
            }
            Some("ended children unheard") => matches!(effect, Effect::NotifyParent(..)),
            Some("caller forgotten after a restart") => {
                matches!(effect, Effect::AnswerCaller { .. })
            }
            Some("orders to child jobs lost at a restart") => {
                matches!(effect, Effect::OrderChild { .. })
            }
            Some(_) | None => false,
        };
        recovered.effects.retain(|effect| !is_lost(effect));
        if self.0 == Some("orders to child jobs lost at a restart") {
            recovered.missed_orders.clear();
        }
        recovered
    }
}

/// Whoever asks for a plain limit gets a place of it.
struct AnyPlace;

impl SpareSource for AnyPlace {
    fn take(&self, limit: &str) -> bool {
        limit.ends_with(PLAIN)
    }
}

/// A second reply replaces the output of a step.
fn settle_again(job: &mut Job, input: Input, ctx: &Context<'_>) -> Result<Decision, Rejected> {
    if let Input::Reply { step, reply: Reply::Result(body), .. } = &input
        && let Some(step) = job.graph().find_index(step)
        && job.step(step).state == StepState::Completed
        && let Ok(output) = Message::parse(body)
    {
        return Ok(decide_entry(job, Entry::Step(step, StepEntry::Completed(output)), ctx));
    }
    job.handle_input(input, ctx)
}

/// A failure counts for the attempt that runs, whatever attempt it is of.
fn count_for_this_attempt(job: &Job, mut input: Input) -> Input {
    if let Input::Reply {
        step, attempt, reply: Reply::Error(_) | Reply::DeadLettered { .. }, ..
    } = &mut input
    {
        *attempt = job.graph().find_index(step).map(|step| job.step(step).attempt);
    }
    input
}

/// The next attempt of a step is due at a time that nobody lives to see.
fn put_off_retry(job: &mut Job, input: Input, ctx: &Context<'_>) -> Result<Decision, Rejected> {
    const TEN_YEARS_NS: i64 = 10 * 365 * 24 * 3600 * 1_000_000_000;
    let before = job.clone();
    let mut decision = job.handle_input(input, ctx)?;
    let mut is_put_off = false;
    for entry in &mut decision.recorded.entries {
        if let Entry::Step(_, StepEntry::AttemptFailed { retry_at, .. }) = entry {
            *retry_at = Timestamp(retry_at.0 + TEN_YEARS_NS);
            is_put_off = true;
        }
    }
    if is_put_off {
        *job = before;
        job.apply(&decision.recorded);
    }
    Ok(decision)
}

/// The time of an attempt begins before anybody was sent its message.
fn start_time_at_once(
    job: &mut Job,
    input: Input,
    ctx: &Context<'_>,
) -> Result<Decision, Rejected> {
    let before = job.clone();
    let mut decision = job.handle_input(input, ctx)?;
    let mut is_begun = false;
    for entry in &mut decision.recorded.entries {
        if let Entry::Step(step, StepEntry::Started { deadline, .. }) = entry
            && let Some(timeout) = job.graph().step(*step).timeout
        {
            *deadline = ctx.now.after(Some(timeout));
            is_begun = true;
        }
    }
    if is_begun {
        *job = before;
        job.apply(&decision.recorded);
    }
    Ok(decision)
}

/// The last child job is not waited for.
fn complete_one_short(
    job: &mut Job,
    input: Input,
    ctx: &Context<'_>,
) -> Result<Decision, Rejected> {
    let Input::ChildEnded { step, .. } = input else { return job.handle_input(input, ctx) };
    let decision = job.handle_input(input, ctx)?;
    let Some(fan_out) = &job.step(step).fan_out else { return Ok(decision) };
    if job.state() != JobState::Running || fan_out.ended() + 1 != fan_out.items() {
        return Ok(decision);
    }
    let Some(index) = fan_out.active_children().next() else { return Ok(decision) };
    let Some(child) = job.child_id(step, index) else { return Ok(decision) };
    let outcome = ChildOutcome::Completed(Message::default());
    let ended = ChildEnd { child, round: u32::MAX, outcome };
    let last = job.handle_input(Input::ChildEnded { step, index, ended }, ctx)?;
    Ok(join_decisions(decision, last))
}

/// Of the keys of child jobs' results the last that comes counts.
fn decide_by_last_child(
    job: &mut Job,
    input: Input,
    ctx: &Context<'_>,
) -> Result<Decision, Rejected> {
    let Input::ChildEnded { step, index, ended: ChildEnd { child, outcome, .. } } = &input else {
        return job.handle_input(input, ctx);
    };
    let (step, index) = (*step, *index);
    let is_first = job.step(step).fan_out.as_ref().is_none_or(|fan_out| {
        fan_out.ended() == 0 || !fan_out.active_children().any(|other| other == index)
    });
    let (ChildOutcome::Completed(result), JobState::Running, false, true) =
        (outcome, job.state(), is_first, job.child_id(step, index) == Some(*child))
    else {
        return job.handle_input(input, ctx);
    };
    let completed = Entry::FanOut(step, child_completed_with_all_keys(job, step, index, result));
    let decision = decide_entry(job, completed, ctx);
    // What follows from it is decided when the job goes on.
    let order = |what| Input::Order(Order { round: u32::MAX, instruction: what });
    let paused = job.handle_input(order(Instruction::Pause), ctx)?;
    let resumed = job.handle_input(order(Instruction::Resume), ctx)?;
    Ok(join_decisions(join_decisions(decision, paused), resumed))
}

fn child_completed_with_all_keys(
    job: &Job,
    step: StepIndex,
    index: u32,
    result: &Message,
) -> FanOutEntry {
    let task = job.graph().step(step).task.map_or(0, usize::from);
    let Some(keys) = &job.definition().graphs[task].fan_out else {
        panic!("a step with child jobs has a task")
    };
    let (mut item, mut others) = (None, Vec::new());
    for (place, (key, value)) in (0..).zip(result.iter()) {
        if *key == keys.item_key {
            item = Some((place, value.clone()));
        } else if *key != keys.list_key {
            others.push((place, key.clone(), value.clone()));
        }
    }
    FanOutEntry::ChildCompleted { index, item, others }
}

/// A decision that no rule has made.
fn decide_entry(job: &mut Job, entry: Entry, ctx: &Context<'_>) -> Decision {
    let recorded = Recorded { first: job.entry_count(), at: ctx.now, entries: vec![entry] };
    job.apply(&recorded);
    Decision { recorded, closed: job.is_closed(), ..Decision::default() }
}

/// Two decisions, one after the other.
fn join_decisions(mut first: Decision, then: Decision) -> Decision {
    first.recorded.entries.extend(then.recorded.entries);
    first.effects.extend(then.effects);
    first.state = then.state.or(first.state);
    first.statuses.extend(then.statuses);
    first.closed = then.closed;
    first
}
