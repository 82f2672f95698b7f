//! Explains why a job does not move, in one sentence that names the cause first.

use super::named::job_id;
use super::problem::Problem;
use super::query::Query;
use super::reads;
use super::topic::{TopicStep, Where};
use super::why_words::{all_busy, condition_of, counted, counted_long, left};
use crate::actors::health::Want;
use crate::actors::ways::Ways;
use crate::actors::{door, queue_watch};
use crate::bus::{BusKey, BusState, QueueLook, Trouble};
use crate::clock;
use crate::engine::{
    Definition, Job, JobId, JobState, Lease, Millis, Step, StepIndex, StepRun, StepState,
};
use crate::times::rfc3339;
use crate::view::failures;
use actix_web::{HttpResponse, web};
use futures_util::future::LocalBoxFuture;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use utoipa::ToSchema;

/// How many levels of child jobs are examined.
const DEPTH_MAX: usize = 8;

/// How many child jobs of a step are examined, in the order of their items.
const CHILDREN_MAX: u32 = 3;

/// Why a job waits, the most specific cause first. If several steps run, the answer names the
/// smallest of their causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum WaitCause {
    JournalFull,
    Paused,
    BrokerGone,
    BrokerBlocked,
    QueueFull,
    Lost,
    NoConsumer,
    NotDelivered,
    BackOff,
    Person,
    WindowFull,
    AllBusy,
    Sending,
    Working,
    Unknown,
    Waiting,
    Condition,
    Ended,
}

/// Why a job does not move.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Why {
    job: JobId,
    cause: WaitCause,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    step: Option<Arc<str>>,
    why: String,
}

/// Handles `GET /api/job/{id}/why`.
pub async fn why(
    ways: web::Data<Ways>,
    path: web::Path<String>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    query.none()?;
    let id = job_id(&path)?;
    Ok(HttpResponse::Ok().json(of_job(&ways, id, 0).await?))
}

fn of_job(ways: &Ways, id: JobId, depth: usize) -> LocalBoxFuture<'_, Result<Why, Problem>> {
    Box::pin(async move {
        // The permit is held for as long as the job is.
        let (job, _room) = reads::job(&ways.common, id, |found, _| Ok(found.job)).await?;
        if let Some(why) = of_state(ways, &job) {
            return Ok(why);
        }
        let mut causes = Vec::new();
        for step in job.graph().indices().filter(|step| job.step(*step).state == StepState::Running)
        {
            causes.push(of_step(ways, &job, step, depth).await?);
        }
        causes.sort_by_key(|why| why.cause);
        Ok(causes.into_iter().next().unwrap_or_else(|| waiting(&job)))
    })
}

/// Explains what follows from the state of the manager and of the job alone, without its steps.
fn of_state(ways: &Ways, job: &Job) -> Option<Why> {
    let told = |cause: WaitCause, why: String| Some(Why { job: job.id(), cause, step: None, why });
    let reason = job.reason().map_or_else(String::new, |reason| format!(": {reason}"));
    match job.state() {
        JobState::Completed => match job.steps().find(|(_, run)| run.state == StepState::Skipped) {
            Some((step, _)) => {
                let when = step.when.as_ref().map_or("", |when| when.text());
                told(WaitCause::Condition, condition_of(&step.name, when) + &failures(job))
            }
            None => {
                told(WaitCause::Ended, format!("completed: every step is done{}", failures(job)))
            }
        },
        JobState::Failed => {
            told(WaitCause::Ended, format!("failed{reason}; `retry` lets it go on from there"))
        }
        JobState::Cancelled => told(WaitCause::Ended, format!("cancelled{reason}")),
        JobState::Paused => told(
            WaitCause::Paused,
            "paused: nothing new is dispatched until it is resumed".to_owned(),
        ),
        JobState::Running => match ways.common.health.journal_wants() {
            Some(Want::Room) => told(
                WaitCause::JournalFull,
                "no room on the journal's disk: nothing goes on until there is".to_owned(),
            ),
            Some(Want::Lock) => told(
                WaitCause::JournalFull,
                "another program keeps the journal's file locked: nothing goes on until it lets go"
                    .to_owned(),
            ),
            None => None,
        },
    }
}

async fn of_step(ways: &Ways, job: &Job, index: StepIndex, depth: usize) -> Result<Why, Problem> {
    let (step, run) = (job.graph().step(index), job.step(index));
    let name = &step.name;
    let told = |cause: WaitCause, why: String| {
        Ok(Why { job: job.id(), cause, step: Some(name.clone()), why })
    };
    if let Some(at) = run.retry_at() {
        let failure = run.failure.as_ref().map_or("no reason", |failure| &failure.reason);
        let left = left(at);
        return told(
            WaitCause::BackOff,
            format!(
                "backing off until {} (in {left}): attempt {} of step \"{name}\" failed: {failure}",
                rfc3339(at),
                run.attempt
            ),
        );
    }
    if step.external {
        let until =
            run.deadline().map_or_else(String::new, |at| format!(", until {}", rfc3339(at)));
        let id = job.id();
        return told(
            WaitCause::Person,
            format!(
                "waiting for a person or another system: step \"{name}\" is external, POST \
                 /api/job/{id}/step/{name} completes it{until}"
            ),
        );
    }
    if step.task.is_some() {
        return of_fan_out(ways, job, index, depth).await;
    }
    let timeout = timeout_of(step, run);
    let bus = ways.buses.of_step(job.definition(), step);
    match ways.common.health.bus(&bus) {
        Some(BusState::Connected | BusState::CatchingUp) => {}
        Some(BusState::Unfit { queues, reason })
            if queues.contains(&step.queue) && !run.confirmed =>
        {
            return told(
                WaitCause::BrokerBlocked,
                format!("the message of step \"{name}\" is not sent: {reason}"),
            );
        }
        Some(BusState::Unfit { .. }) => {}
        Some(BusState::Silent { .. }) if run.confirmed => {}
        Some(state @ BusState::Silent { .. }) => {
            return told(
                WaitCause::BrokerBlocked,
                format!("{state}: the message of step \"{name}\" waits for it; {timeout}"),
            );
        }
        Some(BusState::Blocked { reason }) if !run.confirmed => {
            return told(
                WaitCause::BrokerBlocked,
                format!(
                    "the broker blocks publishing ({reason}): the message of step \"{name}\" \
                     waits for it; {timeout}"
                ),
            );
        }
        Some(BusState::Blocked { .. }) => {}
        Some(BusState::Disconnected { reason }) => {
            return told(
                WaitCause::BrokerGone,
                format!("the broker is gone: {reason}; step \"{name}\" goes on when it is back"),
            );
        }
        None => {
            return told(
                WaitCause::BrokerGone,
                format!(
                    "step \"{name}\" sends to the bus \"{bus}\", which was not started: the \
                     settings do not have it"
                ),
            );
        }
    }
    let queue = &step.queue;
    let has_broker = ways.common.settings.amqp_bus(&bus.bus).is_some();
    let found = look(ways, &bus, queue).await;
    if let Some(section) = ways.common.settings.kafka_bus(&bus.bus) {
        let is_confirmed = run.confirmed;
        let asked = TopicStep { name, queue, timeout: &timeout, is_confirmed };
        let (place, why) = asked.where_it_is(section, found);
        let cause = match place {
            Where::Sending => WaitCause::Sending,
            Where::Unattended => WaitCause::NoConsumer,
            Where::Attended => WaitCause::Working,
            Where::Unknown => WaitCause::Unknown,
        };
        return told(cause, why);
    }
    if has_broker && run.confirmed {
        let asked = ConfirmedStep { ways, job, index, timeout: &timeout };
        if let Some((cause, why)) = asked.where_it_is(&found) {
            return told(cause, why);
        }
    }
    let is_lent = |lease: &Lease| lease.until > clock::now();
    if let Some(Lease { delivery, until }) = run.lease.as_deref().copied().filter(is_lent) {
        let until = rfc3339(until);
        return told(
            WaitCause::Working,
            format!(
                "a worker has it: delivery {delivery} of the message of step \"{name}\" is lent \
                 until {until} at the latest, and goes to another worker after that; {timeout}"
            ),
        );
    }
    match found {
        QueueLook::Service { waiting, calls, trouble } => {
            let is_taken_over = run.confirmed;
            let asked = ServiceStep { name, queue, timeout: &timeout, is_taken_over };
            let (cause, why) = asked.where_it_is(waiting, calls, trouble);
            told(cause, why)
        }
        QueueLook::There { messages, consumers, is_full: true, .. } if !run.confirmed => told(
            WaitCause::QueueFull,
            format!(
                "queue full: the broker takes no more on queue \"{queue}\" (overflow \
                 reject-publish), and the manager sends the message of step \"{name}\" until it \
                 does; {} there for its {}",
                counted(messages, "message waits", "messages wait"),
                counted(consumers, "consumer", "consumers")
            ),
        ),
        QueueLook::There { messages, consumers: 0, .. } if has_broker => told(
            WaitCause::NoConsumer,
            format!(
                "no consumer on queue \"{queue}\": start a worker for step \"{name}\"; {} there",
                counted(messages, "message waits", "messages wait")
            ),
        ),
        QueueLook::There { messages, consumers: 0, .. } => told(
            WaitCause::NoConsumer,
            format!(
                "no consumer on queue \"{queue}\": start a worker for step \"{name}\", with \
                 workflow-manager work {queue} -- CMD, or one that asks for messages by POST \
                 /api/queue/{queue}/receive; {} there",
                counted(messages, "message waits", "messages wait")
            ),
        ),
        QueueLook::There { .. } if has_broker => told(
            WaitCause::Sending,
            format!(
                "on its way: the broker has not confirmed the message of step \"{name}\" to queue \
                 \"{queue}\" yet; the manager keeps it, and sends it again until then"
            ),
        ),
        QueueLook::There { messages: 0, .. } => told(
            WaitCause::Working,
            format!(
                "a worker has it: it took the message of step \"{name}\" and has not replied; \
                 {timeout}"
            ),
        ),
        QueueLook::There { messages, consumers, .. } => {
            told(WaitCause::AllBusy, all_busy(name, queue, messages, consumers, &timeout))
        }
        QueueLook::Missing => told(
            WaitCause::NoConsumer,
            format!(
                "no consumer on queue \"{queue}\": the queue itself is missing; within {} it is \
                 declared, and the message sent again",
                Millis::of(queue_watch::LOOKED_EVERY)
            ),
        ),
        QueueLook::Unknown(reason) => told(
            WaitCause::Unknown,
            format!(
                "step \"{name}\" waits for a reply to its message on queue \"{queue}\", about \
                 which the broker tells nothing: {reason}"
            ),
        ),
    }
}

/// Describes when the running attempt of a step fails for lack of a reply.
fn timeout_of(step: &Step, run: &StepRun) -> String {
    let start =
        run.start_by().map_or_else(String::new, |at| format!("; it fails at {}", rfc3339(at)));
    match (run.deadline(), step.timeout) {
        (Some(at), _) => format!("its timeout is {}", rfc3339(at)),
        (None, Some(span)) if run.waits_for_start() => {
            format!("its timeout of {span} has not begun, because nobody has taken it{start}")
        }
        (None, _) => format!(
            "it has no timeout, so a worker that died after its ack would not be noticed{start}"
        ),
    }
}

/// A step that calls a web service, and whose message is not answered yet.
struct ServiceStep<'a> {
    name: &'a str,
    queue: &'a str,
    timeout: &'a str,
    /// Whether the service has accepted the message and will reply later.
    is_taken_over: bool,
}

impl ServiceStep<'_> {
    fn where_it_is(
        &self,
        waiting: usize,
        calls: usize,
        trouble: Option<Trouble>,
    ) -> (WaitCause, String) {
        let ServiceStep { name, queue, timeout, is_taken_over } = self;
        if *is_taken_over {
            let why = format!(
                "a worker has it: the web service of queue \"{queue}\" took the message of step \
                 \"{name}\" over (202), and has not replied; {timeout}"
            );
            return (WaitCause::Working, why);
        }
        let wait = counted_long(waiting as u64, "message waits", "messages wait");
        if let Some(Trouble { why, next }) = trouble {
            let next = next.map_or_else(
                || {
                    "it goes on when the settings have one and the manager is started again"
                        .to_owned()
                },
                |at| format!("it is called again at {}", rfc3339(at)),
            );
            let why = format!(
                "not delivered: the web service of queue \"{queue}\" does not take the message of \
                 step \"{name}\": {why}; {next}, and no attempt is used up; {wait} there; {timeout}"
            );
            return (WaitCause::NotDelivered, why);
        }
        match (waiting, calls) {
            (0, 0) => (
                WaitCause::Sending,
                format!(
                    "on its way: the message of step \"{name}\" to the web service of queue \
                     \"{queue}\", or its reply"
                ),
            ),
            (0, _) => (
                WaitCause::Working,
                format!(
                    "a worker has it: the web service of queue \"{queue}\" is being called for \
                     step \"{name}\"; {timeout}"
                ),
            ),
            (_, _) => (
                WaitCause::AllBusy,
                format!(
                    "all busy: {wait} for the web service of queue \"{queue}\", which has {} \
                     (setting concurrency); the message of step \"{name}\" is among them or under \
                     way; {timeout}",
                    counted_long(calls as u64, "call under way", "calls under way")
                ),
            ),
        }
    }
}

/// The greatest age of the broker's statistics, unless it is configured to collect them less often
/// (the default is every 5 seconds).
const STATISTICS_AGE_MAX: Duration = Duration::from_secs(10);

/// How messages that are nowhere to be found may have been lost.
const LOST_BY: &str = "rejected or expired where no policy sends dead letters to the reply queue, \
                       purged, lost with its queue, or acknowledged by a worker that did not \
                       reply";

/// A step whose message the broker has confirmed. What is known about the message is told apart
/// from what is guessed.
struct ConfirmedStep<'a> {
    ways: &'a Ways,
    job: &'a Job,
    index: StepIndex,
    timeout: &'a str,
}

impl ConfirmedStep<'_> {
    fn where_it_is(&self, found: &QueueLook) -> Option<(WaitCause, String)> {
        let ConfirmedStep { ways, job, index, timeout } = self;
        let QueueLook::There { messages, unacknowledged, consumers, .. } = *found else {
            return None;
        };
        let (step, run) = (job.graph().step(*index), job.step(*index));
        let (name, queue, id) = (&step.name, &step.queue, job.id());
        let again = format!("`workflow-manager redispatch {id} {name}` sends it again");
        if let Some(loss) = ways.common.losses.of(&ways.buses.address(job.definition(), step)) {
            let amqp =
                ways.common.settings.amqp_bus(&ways.buses.of_step(job.definition(), step).bus);
            let span = amqp.unwrap_or(&ways.common.settings.amqp).lost_after;
            let start = if consumers == 0 {
                format!("no consumer on queue \"{queue}\", and messages are lost")
            } else {
                format!("queue \"{queue}\" has lost messages")
            };
            let why = format!(
                "{start}: for {span} at least {} on it, but it held at most {}, waiting, with \
                 workers or answered; most likely the others were {LOST_BY}. The message of step \
                 \"{name}\" may be one of them: {again}, `workflow-manager redispatch --queue \
                 {queue}` sends all of the queue again; {timeout}",
                counted_long(loss.waiting, "step waits", "steps wait"),
                counted_long(loss.held, "message", "messages"),
            );
            return Some((WaitCause::Lost, why));
        }
        if let (0, 1.., Some(workflow)) =
            (messages, consumers, queue.strip_prefix(Definition::CALL_QUEUE_PREFIX))
        {
            let why = format!(
                "the workflow \"{workflow}\" has it, most likely: its manager took the message of \
                 step \"{name}\" and made a job of it, whose end is the reply; {timeout}"
            );
            return Some((WaitCause::Working, why));
        }
        let consumed = counted(consumers, "consumer", "consumers");
        let sent_ms = run.sent.map(|at| (clock::now().0 - at.0) / 1_000_000);
        let is_settled = sent_ms.is_none_or(|age_ms| {
            age_ms > i64::try_from(STATISTICS_AGE_MAX.as_millis()).unwrap_or(i64::MAX)
        });
        match (messages, consumers, unacknowledged) {
            (0, 0, _) => Some((
                WaitCause::NoConsumer,
                format!(
                    "no consumer on queue \"{queue}\", and no message in it: start a worker for \
                     step \"{name}\". Its message was there; unless a reply is on its way it was \
                     {LOST_BY}: {again}; {timeout}"
                ),
            )),
            // Messages that wait, wait for a consumer.
            (_, 0, _) => None,
            (0, _, Some(0)) if is_settled => Some((
                WaitCause::Lost,
                format!(
                    "the message of step \"{name}\" is lost, most likely: queue \"{queue}\" holds \
                     none, neither waiting nor with one of its {consumed}, as the broker's \
                     statistics of some seconds ago tell, and no reply has come. It was \
                     {LOST_BY}: {again}; {timeout}"
                ),
            )),
            (0, _, Some(0)) => Some((
                WaitCause::Working,
                format!(
                    "a worker has it, most likely: the message of step \"{name}\" no longer waits \
                     in queue \"{queue}\", which has {consumed}; the broker's statistics do not \
                     show yet who has it: ask again in some seconds; {timeout}"
                ),
            )),
            (0, _, Some(held)) => Some((
                WaitCause::Working,
                format!(
                    "a worker has it, most likely: {} of queue \"{queue}\" with its {consumed}, \
                     none waits, and the message of step \"{name}\" has no reply yet; {timeout}",
                    counted_long(held, "message is", "messages are")
                ),
            )),
            (0, _, None) => Some((
                WaitCause::Working,
                format!(
                    "a worker has it, most likely: the message of step \"{name}\" no longer waits \
                     in queue \"{queue}\", which has {consumed}, and no reply has come. Whether \
                     it is with one of them only the management API tells (setting \
                     amqp.management). If none has it, it was {LOST_BY}: {again}; {timeout}"
                ),
            )),
            (_, _, _) => {
                Some((WaitCause::AllBusy, all_busy(name, queue, messages, consumers, timeout)))
            }
        }
    }
}

async fn of_fan_out(
    ways: &Ways,
    job: &Job,
    index: StepIndex,
    depth: usize,
) -> Result<Why, Problem> {
    let name = job.graph().step(index).name.clone();
    let told =
        |cause: WaitCause, why: String| Why { job: job.id(), cause, step: Some(name.clone()), why };
    let Some(fan_out) = &job.step(index).fan_out else {
        return Ok(told(
            WaitCause::Unknown,
            format!("step \"{name}\" is about to start its child jobs"),
        ));
    };
    let (items, ended, started) = (fan_out.items(), fan_out.ended(), fan_out.started());
    let children: Vec<JobId> = fan_out
        .under_way()
        .take(CHILDREN_MAX as usize)
        .filter_map(|item| job.child_id(index, item))
        .collect();
    let mut first: Option<Why> = None;
    for child in children {
        if depth >= DEPTH_MAX {
            break;
        }
        // A child job that was just started may not exist yet.
        if let Ok(why) = of_job(ways, child, depth + 1).await
            && first.as_ref().is_none_or(|first| why.cause < first.cause)
        {
            first = Some(why);
        }
    }
    let under_way = started - ended;
    let of_step =
        format!("step \"{name}\" has {ended} of {items} child jobs done, {under_way} under way");
    Ok(match first {
        Some(child) if child.cause < WaitCause::WindowFull => {
            told(child.cause, format!("{} ({of_step}; child job {})", child.why, child.job))
        }
        Some(child) if started < items => {
            let left = items - started;
            told(
                WaitCause::WindowFull,
                format!(
                    "window full: {left} child jobs wait for a place, {of_step}; of child job {}: \
                     {}",
                    child.job, child.why
                ),
            )
        }
        Some(child) => {
            told(child.cause, format!("{} ({of_step}; child job {})", child.why, child.job))
        }
        None => told(WaitCause::Waiting, of_step),
    })
}

fn waiting(job: &Job) -> Why {
    let names: Vec<&str> = job
        .steps()
        .filter(|(_, run)| run.state == StepState::Waiting)
        .map(|(step, _)| &*step.name)
        .collect();
    Why {
        job: job.id(),
        cause: WaitCause::Waiting,
        step: None,
        why: format!("it is about to go on; steps that wait: {}", names.join(", ")),
    }
}

async fn look(ways: &Ways, bus: &BusKey, queue: &Arc<str>) -> QueueLook {
    let unknown = || QueueLook::Unknown("the bus does not tell".to_owned());
    door::inspect(ways, bus, vec![queue.clone()]).await.pop().unwrap_or_else(unknown)
}
