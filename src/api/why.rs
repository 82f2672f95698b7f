//! Why a job does not move: one sentence that names the cause first.

use super::jobs::job_id;
use super::problem::Problem;
use super::query::Query;
use super::reads;
use crate::actors::bus::BusInput;
use crate::actors::clock;
use crate::actors::shared::Shared;
use crate::bus::{BusState, QueueLook};
use crate::engine::{Job, JobId, JobState, Millis, StepIndex, StepState, Timestamp};
use crate::times::rfc3339;
use actix_web::{HttpResponse, web};
use futures_util::future::LocalBoxFuture;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long the broker may take to tell of a queue.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// How deep child jobs are looked into.
const DEPTH_MAX: usize = 8;

/// Child jobs of a step that are looked into, the first ones.
const CHILDREN_MAX: u32 = 3;

/// The causes, those first that say the most: of several steps that run the first of these is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Cause {
    JournalFull,
    Paused,
    BrokerGone,
    BrokerBlocked,
    NoConsumer,
    BackOff,
    Person,
    WindowFull,
    AllBusy,
    Working,
    Unknown,
    Waiting,
    Condition,
    Ended,
}

/// The answer.
#[derive(Clone, Debug, Serialize)]
struct Why {
    job: JobId,
    cause: Cause,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<Arc<str>>,
    why: String,
}

/// `GET /api/job/{id}/why`
pub async fn why(shared: web::Data<Shared>, path: web::Path<String>, query: Query) -> Result<HttpResponse, Problem> {
    query.none()?;
    let id = job_id(&path)?;
    Ok(HttpResponse::Ok().json(of_job(&shared, id, 0).await?))
}

fn of_job(shared: &web::Data<Shared>, id: JobId, depth: usize) -> LocalBoxFuture<'_, Result<Why, Problem>> {
    Box::pin(async move {
        // Its room is kept as long as it is.
        let (job, _room) = reads::job(shared, id, |found, _| Ok(found.job)).await?;
        if let Some(why) = of_state(shared, &job) {
            return Ok(why);
        }
        let mut causes = Vec::new();
        for step in job.graph().indices().filter(|step| job.step(*step).state == StepState::Running) {
            causes.push(of_step(shared, &job, step, depth).await?);
        }
        causes.sort_by_key(|why| why.cause);
        Ok(causes.into_iter().next().unwrap_or_else(|| waiting(&job)))
    })
}

/// What the state of the manager and of the job explains alone.
fn of_state(shared: &Shared, job: &Job) -> Option<Why> {
    let told = |cause: Cause, why: String| Some(Why { job: job.id(), cause, step: None, why });
    let reason = job.reason().map_or_else(String::new, |reason| format!(": {reason}"));
    match job.state() {
        JobState::Completed => match job.steps().find(|(_, run)| run.state == StepState::Skipped) {
            Some((step, _)) => told(Cause::Condition, condition_of(&step.name, step.when.as_ref().map_or("", |when| when.text()))),
            None => told(Cause::Ended, "completed: every step is done".to_owned()),
        },
        JobState::Failed => told(Cause::Ended, format!("failed{reason}; `retry` lets it go on from there")),
        JobState::Cancelled => told(Cause::Ended, format!("cancelled{reason}")),
        JobState::Paused => told(Cause::Paused, "paused: nothing new is dispatched until it is resumed".to_owned()),
        JobState::Running if shared.health.journal_full.load(Ordering::Relaxed) => {
            told(Cause::JournalFull, "no room on the journal's disk: nothing goes on until there is".to_owned())
        }
        JobState::Running => None,
    }
}

fn condition_of(step: &str, condition: &str) -> String {
    format!("condition: step \"{step}\" was skipped, its `when: {condition}` came to false; the job is completed")
}

async fn of_step(shared: &web::Data<Shared>, job: &Job, index: StepIndex, depth: usize) -> Result<Why, Problem> {
    let (step, run) = (job.graph().step(index), job.step(index));
    let name = &step.name;
    let told = |cause: Cause, why: String| Ok(Why { job: job.id(), cause, step: Some(name.clone()), why });
    if let Some(at) = run.retry_at {
        let failure = run.failure.as_ref().map_or("no reason", |failure| &failure.reason);
        let left = left(at);
        return told(
            Cause::BackOff,
            format!("backing off until {} (in {left}): attempt {} of step \"{name}\" failed: {failure}", rfc3339(at), run.attempt),
        );
    }
    if step.external {
        let until = run.deadline.map_or_else(String::new, |at| format!(", until {}", rfc3339(at)));
        let id = job.id();
        return told(
            Cause::Person,
            format!("waiting for a person or another system: step \"{name}\" is external, POST /api/job/{id}/step/{name} completes it{until}"),
        );
    }
    if step.task.is_some() {
        return of_fan_out(shared, job, index, depth).await;
    }
    let vhost = &job.definition().vhost;
    match shared.health.bus(vhost) {
        Some(BusState::Connected) => {}
        Some(BusState::Blocked { reason }) if !run.confirmed => {
            return told(Cause::BrokerBlocked, format!("the broker blocks publishing ({reason}): the message of step \"{name}\" waits for it"));
        }
        Some(BusState::Blocked { .. }) => {}
        Some(BusState::Disconnected { reason }) => {
            return told(Cause::BrokerGone, format!("the broker is gone: {reason}; step \"{name}\" goes on when it is back"));
        }
        None => return told(Cause::BrokerGone, format!("there is no bus for the virtual host \"{vhost}\"")),
    }
    let queue = &step.queue;
    let timeout = run.deadline.map_or_else(
        || "it has no timeout, so a worker that died after its ack would not be noticed".to_owned(),
        |at| format!("its timeout is {}", rfc3339(at)),
    );
    let has_broker = !shared.settings.amqp.server.0.is_empty();
    match look(shared, vhost, queue).await {
        QueueLook::There { messages, consumers: 0 } if has_broker => told(
            Cause::NoConsumer,
            format!(
                "no consumer on queue \"{queue}\": start a worker for step \"{name}\"; {} there",
                counted(messages, "message waits", "messages wait")
            ),
        ),
        QueueLook::There { messages, consumers: 0 } => told(
            Cause::NoConsumer,
            format!(
                "no consumer on queue \"{queue}\": no broker is set, and the embedded bus reaches no worker of another process; set AMQP_SERVER or --amqp-server; {} there",
                counted(messages, "message waits", "messages wait")
            ),
        ),
        QueueLook::There { messages: 0, consumers } => told(
            Cause::Working,
            format!(
                "a worker has it: one of the {} of queue \"{queue}\" took the message of step \"{name}\" and has not replied; {timeout}",
                counted(consumers, "consumer", "consumers")
            ),
        ),
        QueueLook::There { messages, consumers } => told(
            Cause::AllBusy,
            format!(
                "all busy: {} on queue \"{queue}\" for its {}, that of step \"{name}\" among them or with a worker; {timeout}",
                counted(messages, "message waits", "messages wait"),
                counted(consumers, "consumer", "consumers")
            ),
        ),
        QueueLook::Missing => told(
            Cause::NoConsumer,
            format!("no consumer on queue \"{queue}\": the queue itself is missing; it is declared at the next connection, or by a worker"),
        ),
        QueueLook::Unknown(reason) => told(
            Cause::Unknown,
            format!("step \"{name}\" waits for a reply to its message on queue \"{queue}\", of which the broker does not tell: {reason}"),
        ),
    }
}

fn counted(count: u32, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

async fn of_fan_out(shared: &web::Data<Shared>, job: &Job, index: StepIndex, depth: usize) -> Result<Why, Problem> {
    let name = job.graph().step(index).name.clone();
    let told = |cause: Cause, why: String| Why { job: job.id(), cause, step: Some(name.clone()), why };
    let Some(fan_out) = &job.step(index).fan_out else {
        return Ok(told(Cause::Unknown, format!("step \"{name}\" is about to start its child jobs")));
    };
    let (items, ended, started) = (fan_out.items(), fan_out.ended(), fan_out.started());
    let children: Vec<JobId> = fan_out.under_way().take(CHILDREN_MAX as usize).filter_map(|item| job.child_id(index, item)).collect();
    let mut first: Option<Why> = None;
    for child in children {
        if depth >= DEPTH_MAX {
            break;
        }
        // One that has just been started may not be there yet.
        if let Ok(why) = of_job(shared, child, depth + 1).await
            && first.as_ref().is_none_or(|first| why.cause < first.cause)
        {
            first = Some(why);
        }
    }
    let under_way = started - ended;
    let of_step = format!("step \"{name}\" has {ended} of {items} child jobs done, {under_way} under way");
    Ok(match first {
        Some(child) if child.cause < Cause::WindowFull => told(child.cause, format!("{} ({of_step}; child job {})", child.why, child.job)),
        Some(child) if started < items => {
            let left = items - started;
            told(Cause::WindowFull, format!("window full: {left} child jobs wait for a place, {of_step}; of child job {}: {}", child.job, child.why))
        }
        Some(child) => told(child.cause, format!("{} ({of_step}; child job {})", child.why, child.job)),
        None => told(Cause::Waiting, of_step),
    })
}

fn waiting(job: &Job) -> Why {
    let names: Vec<&str> = job.steps().filter(|(_, run)| run.state == StepState::Waiting).map(|(step, _)| &*step.name).collect();
    Why { job: job.id(), cause: Cause::Waiting, step: None, why: format!("it is about to go on; steps that wait: {}", names.join(", ")) }
}

async fn look(shared: &Shared, vhost: &str, queue: &Arc<str>) -> QueueLook {
    let Some(bus) = shared.bus(vhost) else { return QueueLook::Unknown("there is no bus".to_owned()) };
    let (answer, answered) = oneshot::channel();
    bus.post(BusInput::Inspect(queue.clone(), answer));
    match tokio::time::timeout(LOOK_MAX, answered).await {
        Ok(Ok(look)) => look,
        Ok(Err(_)) => QueueLook::Unknown("the bus is closing".to_owned()),
        Err(_) => QueueLook::Unknown(format!("no answer within {LOOK_MAX:?}")),
    }
}

fn left(at: Timestamp) -> String {
    Millis(u64::try_from((at.0 - clock::now().0) / 1_000_000).unwrap_or_default()).to_string()
}
