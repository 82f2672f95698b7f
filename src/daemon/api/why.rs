//! Explains why a job does not progress, in one sentence that begins with the cause.

use super::active_jobs;
use super::confirmed_step::ConfirmedStep;
use super::controls;
use super::problem::Problem;
use super::query::Query;
use super::reads;
use super::resolve::parse_job_id;
use super::route::*;
use super::topic::{MessageLocation, TopicStep};
use super::wait_cause::WaitCause;
use super::why_text::{
    describe_all_busy, describe_claim, describe_condition, describe_limit_wait, describe_timeout,
    format_count, format_time_left,
};
use crate::actors::health::JournalWait;
use crate::actors::queue_watch;
use crate::actors::role::Role;
use crate::api::state::ApiState;
use crate::view::describe_failures;
use actix_web::{HttpResponse, web};
use base::clock;
use base::times::format_rfc3339;
use bus::{BusKey, BusState, EndpointFailure, QueueStatus};
use engine::{
    Gate, Job, JobId, JobState, Lease, Millis, Step, StepClaim, StepIndex, StepRun, StepState,
};
use futures_util::future::LocalBoxFuture;
use journal::JobNumber;
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

pub(super) const ROUTES: &[ApiRoute] = &[ApiRoute::get("/api/job/{id}/why", || web::to(get_why))
    .operation(|schemas| {
        OperationSpec::new("why", "jobs", "Why a job does not progress")
            .with_json_response(200, "The reason", schemas.reference::<ExplanationView>())
            .with_problems(&[404])
    })];

/// How many levels of child jobs are examined.
const DEPTH_MAX: usize = 8;

/// How many active child jobs of a fan-out step are examined: the first ones by item.
const CHILDREN_MAX: usize = 3;

/// Why a job does not progress.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Why)]
struct ExplanationView {
    job: JobId,
    cause: WaitCause,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    step: Option<Arc<str>>,
    why: String,
}

/// Shows why a job does not progress.
async fn get_why(
    api: web::Data<ApiState>,
    path: web::Path<String>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    query.check_empty()?;
    let id = parse_job_id(&path)?;
    Ok(HttpResponse::Ok().json(explain_job(&api, id, 0).await?))
}

/// Explains what a job waits for. Examines its steps and, down to [`DEPTH_MAX`], its child jobs.
/// `depth` is the level of this job, from 0.
fn explain_job(
    api: &Arc<ApiState>,
    id: JobId,
    depth: usize,
) -> LocalBoxFuture<'_, Result<ExplanationView, Problem>> {
    Box::pin(async move {
        // The response holds the permit for the job's memory.
        let (stored, _response) = reads::with_job(api, id, |stored, _| Ok(stored)).await?;
        let (number, job) = (stored.number, &stored.job);
        if let Some(explanation) = explain_job_state(api, job) {
            return Ok(explanation);
        }
        if let Some(claim) = job.waiting_claim() {
            return Ok(explain_job_claim(api, (number, job), claim).await);
        }
        let mut explanations = Vec::new();
        for step in job.graph().indices().filter(|step| job.step(*step).state == StepState::Running)
        {
            explanations.push(explain_step(api, (number, job), step, depth).await?);
        }
        explanations.sort_by_key(|explanation| explanation.cause);
        Ok(explanations.into_iter().next().unwrap_or_else(|| explain_waiting(job)))
    })
}

/// Explains what a job waits for, judging only by the states of the job and of the manager. Returns
/// `None` if the steps must be examined.
fn explain_job_state(api: &Arc<ApiState>, job: &Job) -> Option<ExplanationView> {
    let explain = |cause: WaitCause, sentence: String| {
        Some(ExplanationView { job: job.id(), cause, step: None, why: sentence })
    };
    let reason = job.reason().map_or_else(String::new, |reason| format!(": {reason}"));
    match job.state() {
        JobState::Completed => match job.steps().find(|(_, run)| run.state == StepState::Skipped) {
            Some((step, _)) => {
                let when = step.when.as_ref().map_or("", |when| when.text());
                explain(
                    WaitCause::Condition,
                    describe_condition(&step.name, when) + &describe_failures(job),
                )
            }
            None => explain(
                WaitCause::Ended,
                format!("completed: every step is done{}", describe_failures(job)),
            ),
        },
        JobState::Failed => {
            explain(WaitCause::Ended, format!("failed{reason}; `retry` lets it go on from there"))
        }
        JobState::Cancelled => explain(WaitCause::Ended, format!("cancelled{reason}")),
        JobState::Paused => explain(
            WaitCause::Paused,
            "paused: nothing new is dispatched until it is resumed".to_owned(),
        ),
        JobState::Running => match api.health.journal_wait() {
            Some(JournalWait::DiskSpace) => explain(
                WaitCause::JournalFull,
                "no room on the journal's disk: nothing goes on until there is".to_owned(),
            ),
            Some(JournalWait::Lock) => explain(
                WaitCause::JournalFull,
                "another program keeps the journal's file locked: nothing goes on until it lets go"
                    .to_owned(),
            ),
            Some(JournalWait::Server) => explain(
                WaitCause::JournalFull,
                "the journal's database server cannot be reached: nothing goes on until it can"
                    .to_owned(),
            ),
            Some(JournalWait::Memory) => explain(
                WaitCause::JournalFull,
                "the process has no memory for the journal: nothing goes on until it has"
                    .to_owned(),
            ),
            None => {
                let begins_at = job.begins_at()?;
                let time = format_rfc3339(begins_at);
                explain(WaitCause::StartsLater, format!("it begins at {time}, as was asked for"))
            }
        },
    }
}

/// Explains what a running step waits for.
async fn explain_step(
    api: &Arc<ApiState>,
    (number, job): (JobNumber, &Job),
    index: StepIndex,
    depth: usize,
) -> Result<ExplanationView, Problem> {
    let (step, run) = (job.graph().step(index), job.step(index));
    let name = &step.name;
    let explain = |cause: WaitCause, sentence: String| {
        Ok(ExplanationView { job: job.id(), cause, step: Some(name.clone()), why: sentence })
    };
    if let Some(retry_at) = run.retry_at() {
        let reason = run.failure.as_ref().map_or("no reason", |failure| &failure.reason);
        let time_left = format_time_left(retry_at);
        return explain(
            WaitCause::BackOff,
            format!(
                "backing off until {} (in {time_left}): attempt {} of step \"{name}\" failed: \
                 {reason}",
                format_rfc3339(retry_at),
                run.attempt
            ),
        );
    }
    if let Some(claim) = run.waiting_claim() {
        if let Some(pause) = explain_pause(api, job, Some(step), claim).await {
            return explain(WaitCause::Paused, format!("step \"{name}\" waits: {pause}"));
        }
        let sentence = explain_claim(api, number, index, claim).await;
        return explain(WaitCause::Limit, format!("step \"{name}\" {sentence}"));
    }
    if step.external {
        return explain(WaitCause::Person, describe_person_wait(job.id(), name, run));
    }
    if step.task.is_some() {
        return explain_fan_out(api, job, index, depth).await;
    }
    let timeout = describe_timeout(step, run);
    if let Some(sentence) = explain_standby(&api.role, name, &timeout) {
        return explain(WaitCause::Unknown, sentence);
    }
    let bus = api.buses.bus_of_step(job.definition(), step);
    if let Some((cause, sentence)) = explain_bus(api.health.bus(&bus), &bus, (step, run), &timeout)
    {
        return explain(cause, sentence);
    }
    let queue = &step.queue;
    let has_broker = api.settings.amqp_bus(&bus.name).is_some();
    let status = api.active()?.inspect_queue(&bus, queue.clone()).await;
    if let Some(section) = api.settings.kafka_bus(&bus.name) {
        let is_confirmed = run.confirmed;
        let topic_step = TopicStep { name, queue, timeout: &timeout, is_confirmed };
        let (location, sentence) = topic_step.locate(section, status);
        let cause = match location {
            MessageLocation::Sending => WaitCause::Sending,
            MessageLocation::WithoutWorker => WaitCause::NoConsumer,
            MessageLocation::WithWorkers => WaitCause::Working,
            MessageLocation::Unknown => WaitCause::Unknown,
        };
        return explain(cause, sentence);
    }
    if has_broker && run.confirmed {
        let confirmed_step = ConfirmedStep { api, job, index, timeout: &timeout };
        if let Some((cause, sentence)) = confirmed_step.explain(&status) {
            return explain(cause, sentence);
        }
    }
    let is_leased = |lease: &Lease| lease.until > clock::now();
    if let Some(Lease { delivery, until }) = run.lease.as_deref().copied().filter(is_leased) {
        let until = format_rfc3339(until);
        return explain(
            WaitCause::Working,
            format!(
                "a worker has it: delivery {delivery} of the message of step \"{name}\" is lent \
                 until {until} at the latest, and goes to another worker after that; {timeout}"
            ),
        );
    }
    let (cause, sentence) = explain_queue(status, (step, run), has_broker, &timeout);
    explain(cause, sentence)
}

/// Describes that an external step waits to be completed.
fn describe_person_wait(job: JobId, step: &str, run: &StepRun) -> String {
    let until = run
        .timeout_at()
        .map_or_else(String::new, |deadline| format!(", until {}", format_rfc3339(deadline)));
    format!(
        "waiting for a person or another system: step \"{step}\" is external, POST \
         /api/job/{job}/step/{step} completes it{until}"
    )
}

/// Explains for which limit, or which pause, a job waits before it begins.
async fn explain_job_claim(
    api: &Arc<ApiState>,
    (number, job): (JobNumber, &Job),
    claim: &StepClaim,
) -> ExplanationView {
    let (cause, why) = match explain_pause(api, job, None, claim).await {
        Some(pause) => (WaitCause::Paused, format!("it has not begun: {pause}")),
        None => {
            let sentence = explain_claim(api, number, StepIndex::JOB, claim).await;
            (WaitCause::Limit, format!("it has not begun: it {sentence}"))
        }
    };
    ExplanationView { job: job.id(), cause, step: None, why }
}

/// Explains which pause keeps a step back, or a job that has not begun (`None`); `None`: none does.
async fn explain_pause(
    api: &Arc<ApiState>,
    job: &Job,
    step: Option<&Step>,
    claim: &StepClaim,
) -> Option<String> {
    let controls = active_jobs::list_controls(api).await;
    let definition = job.definition();
    let sending_step = step.filter(|step| step.has_queue());
    let address = sending_step.map(|step| api.buses.address(definition, step));
    let limits: Vec<Arc<str>> =
        claim.places.iter().map(|place| definition.full_limit_name(&place.limit)).collect();
    let pause = controls::find_pause(&controls, definition, address.as_ref(), &limits)?;
    Some(controls::describe_pause(pause, format_rfc3339))
}

/// Explains for which limit a step or a job waits.
async fn explain_claim(
    api: &Arc<ApiState>,
    number: JobNumber,
    step: StepIndex,
    claim: &StepClaim,
) -> String {
    let now = clock::now();
    let inspect = move |gate: &Gate| gate.view_wait(number, step, now);
    let wait = active_jobs::inspect_gate(api, inspect).await.flatten();
    let Some(wait) = wait else { return describe_claim(claim) };
    let sentence = describe_limit_wait(&wait, now);
    let controls = active_jobs::list_controls(api).await;
    match controls::find_change(&controls, &wait.limit) {
        Some(change) => {
            format!("{sentence}; {}", controls::describe_change(change, format_rfc3339))
        }
        None => sentence,
    }
}

/// Explains that a process that stands by does not know where the message of a step is. Returns
/// `None` if this process is active.
fn explain_standby(role: &Role, step: &str, timeout: &str) -> Option<String> {
    let standby = role.standby()?.describe();
    Some(format!(
        "this manager {standby}, and only the active one knows where the message of step \
         \"{step}\" is; {timeout}"
    ))
}

/// Explains what a step's message waits for, judging by the state of its bus. Returns `None` if the
/// bus is not the cause.
fn explain_bus(
    state: Option<BusState>,
    bus: &BusKey,
    (step, run): (&Step, &StepRun),
    timeout: &str,
) -> Option<(WaitCause, String)> {
    let name = &step.name;
    let broker_blocked = |sentence| Some((WaitCause::BrokerBlocked, sentence));
    let broker_gone = |sentence| Some((WaitCause::BrokerGone, sentence));
    match state {
        Some(BusState::QueuesUnusable { queues, reason })
            if queues.contains(&step.queue) && !run.confirmed =>
        {
            broker_blocked(format!("the message of step \"{name}\" is not sent: {reason}"))
        }
        Some(state @ BusState::Unresponsive { .. }) if !run.confirmed => broker_blocked(format!(
            "{state}: the message of step \"{name}\" waits for it; {timeout}"
        )),
        Some(BusState::Blocked { reason }) if !run.confirmed => broker_blocked(format!(
            "the broker blocks publishing ({reason}): the message of step \"{name}\" waits for \
             it; {timeout}"
        )),
        Some(BusState::Disconnected { reason }) => broker_gone(format!(
            "the broker is gone: {reason}; step \"{name}\" goes on when it is back"
        )),
        None => broker_gone(format!(
            "step \"{name}\" sends to the bus \"{bus}\", which was not started: the settings do \
             not have it"
        )),
        Some(
            BusState::Connected { .. }
            | BusState::CatchingUp
            | BusState::QueuesUnusable { .. }
            | BusState::Unresponsive { .. }
            | BusState::Blocked { .. },
        ) => None,
    }
}

/// Explains what a step's message waits for, judging by the status of its queue.
fn explain_queue(
    status: QueueStatus,
    (step, run): (&Step, &StepRun),
    has_broker: bool,
    timeout: &str,
) -> (WaitCause, String) {
    let (name, queue) = (&step.name, &step.queue);
    let no_consumer = |sentence| (WaitCause::NoConsumer, sentence);
    match status {
        QueueStatus::Endpoint { waiting, calls, failure } => {
            let is_accepted = run.confirmed;
            ServiceStep { name, queue, timeout, is_accepted }.explain(waiting, calls, failure)
        }
        QueueStatus::Exists { messages, consumers, is_full: true, .. } if !run.confirmed => (
            WaitCause::QueueFull,
            format!(
                "queue full: the broker takes no more on queue \"{queue}\" (overflow \
                 reject-publish), and the manager sends the message of step \"{name}\" until it \
                 does; {} there for its {}",
                format_count(messages, "message waits", "messages wait"),
                format_count(consumers, "consumer", "consumers")
            ),
        ),
        QueueStatus::Exists { messages, consumers: 0, .. } => {
            let embedded_hint = format!(
                ", with workflow-manager work {queue} -- CMD, or one that asks for messages by \
                 POST /api/queue/{queue}/receive"
            );
            no_consumer(format!(
                "no consumer on queue \"{queue}\": start a worker for step \"{name}\"{}; {} there",
                if has_broker { "" } else { &embedded_hint },
                format_count(messages, "message waits", "messages wait")
            ))
        }
        QueueStatus::Exists { .. } if has_broker => (
            WaitCause::Sending,
            format!(
                "on its way: the broker has not confirmed the message of step \"{name}\" to queue \
                 \"{queue}\" yet; the manager keeps it, and sends it again until then"
            ),
        ),
        QueueStatus::Exists { messages: 0, .. } => (
            WaitCause::Working,
            format!(
                "a worker has it: it took the message of step \"{name}\" and has not replied; \
                 {timeout}"
            ),
        ),
        QueueStatus::Exists { messages, consumers, .. } => {
            (WaitCause::AllBusy, describe_all_busy(name, queue, messages, consumers, timeout))
        }
        QueueStatus::Missing => no_consumer(format!(
            "no consumer on queue \"{queue}\": the queue itself is missing; within {} it is \
             declared, and the message sent again",
            Millis::from_duration(queue_watch::CHECK_INTERVAL)
        )),
        QueueStatus::Unknown(reason) => (
            WaitCause::Unknown,
            format!(
                "step \"{name}\" waits for a reply to its message on queue \"{queue}\", about \
                 which the broker tells nothing: {reason}"
            ),
        ),
    }
}

/// A step that calls a web service, and waits for the reply.
struct ServiceStep<'a> {
    name: &'a str,
    queue: &'a str,
    timeout: &'a str,
    /// Whether the service has accepted the message and will reply later.
    is_accepted: bool,
}

impl ServiceStep<'_> {
    /// Explains what the step waits for, judging by the state of the service's queue: how many
    /// messages wait, how many calls are active, and the failure that stops deliveries.
    fn explain(
        &self,
        waiting: usize,
        calls: usize,
        failure: Option<EndpointFailure>,
    ) -> (WaitCause, String) {
        let ServiceStep { name, queue, timeout, is_accepted } = self;
        if *is_accepted {
            let sentence = format!(
                "a worker has it: the web service of queue \"{queue}\" took the message of step \
                 \"{name}\" over (202), and has not replied; {timeout}"
            );
            return (WaitCause::Working, sentence);
        }
        let wait = format_count(waiting as u64, "message waits", "messages wait");
        if let Some(EndpointFailure { reason, retry_at }) = failure {
            let next_call = retry_at.map_or_else(
                || {
                    "it goes on when the settings have one and the manager is started again"
                        .to_owned()
                },
                |time| format!("it is called again at {}", format_rfc3339(time)),
            );
            let sentence = format!(
                "not delivered: the web service of queue \"{queue}\" does not take the message of \
                 step \"{name}\": {reason}; {next_call}, and no attempt is used up; {wait} there; \
                 {timeout}"
            );
            return (WaitCause::NotDelivered, sentence);
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
                    format_count(calls as u64, "call under way", "calls under way")
                ),
            ),
        }
    }
}

/// Explains what a fan-out step waits for: the most specific cause among the examined child jobs,
/// or that its window is full.
async fn explain_fan_out(
    api: &Arc<ApiState>,
    job: &Job,
    index: StepIndex,
    depth: usize,
) -> Result<ExplanationView, Problem> {
    let name = job.graph().step(index).name.clone();
    let explain = |cause: WaitCause, sentence: String| ExplanationView {
        job: job.id(),
        cause,
        step: Some(name.clone()),
        why: sentence,
    };
    let Some(fan_out) = &job.step(index).fan_out else {
        return Ok(explain(
            WaitCause::Unknown,
            format!("step \"{name}\" is about to start its child jobs"),
        ));
    };
    let (items, ended, started) = (fan_out.items(), fan_out.ended(), fan_out.started());
    let children: Vec<JobId> = fan_out
        .active_children()
        .take(CHILDREN_MAX)
        .filter_map(|item| job.child_id(index, item))
        .collect();
    let mut most_specific: Option<ExplanationView> = None;
    for child in children {
        if depth >= DEPTH_MAX {
            break;
        }
        // A child job that was just started may not exist yet.
        if let Ok(explanation) = explain_job(api, child, depth + 1).await
            && most_specific.as_ref().is_none_or(|other| explanation.cause < other.cause)
        {
            most_specific = Some(explanation);
        }
    }
    let active = started - ended;
    let progress =
        format!("step \"{name}\" has {ended} of {items} child jobs done, {active} under way");
    Ok(match most_specific {
        Some(child) if child.cause < WaitCause::WindowFull => {
            explain(child.cause, format!("{} ({progress}; child job {})", child.why, child.job))
        }
        Some(child) if started < items => {
            let waiting = items - started;
            explain(
                WaitCause::WindowFull,
                format!(
                    "window full: {waiting} child jobs wait for a place, {progress}; of child job \
                     {}: {}",
                    child.job, child.why
                ),
            )
        }
        Some(child) => {
            explain(child.cause, format!("{} ({progress}; child job {})", child.why, child.job))
        }
        None => explain(WaitCause::Waiting, progress),
    })
}

/// Explains what a running job without a running step waits for.
fn explain_waiting(job: &Job) -> ExplanationView {
    let names: Vec<&str> = job
        .steps()
        .filter(|(_, run)| run.state == StepState::Waiting)
        .map(|(step, _)| &*step.name)
        .collect();
    ExplanationView {
        job: job.id(),
        cause: WaitCause::Waiting,
        step: None,
        why: format!("it is about to go on; steps that wait: {}", names.join(", ")),
    }
}
