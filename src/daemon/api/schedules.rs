//! Lists the schedules, and carries out operations on them (docs/how-to/schedule-jobs.md).

use super::operations::{parse_reason, to_problem};
use super::principal::PrincipalName;
use super::problem::Problem;
use super::query::{self, Query};
use super::reads;
use super::route::*;
use crate::actors::schedule_requests::{
    Backfill, BackfilledSlot, ScheduleOperation, ScheduleStatus,
};
use crate::api::state::ApiState;
use crate::view::CellsView;
use actix_web::{HttpResponse, web};
use base::clock;
use base::times::Rfc3339Time;
use engine::text::quote;
use engine::{Columns, JobId, Timestamp};
use journal::{JobNumber, JournalError, Records};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;
use utoipa::ToSchema;

/// The most slots of a backfill.
const BACKFILL_MAX: usize = 1_000;

/// What the times of a backfill have to be, in the words of the 400.
const BACKFILL_RULE: &str = "a backfill is of slots that have passed: from has to be no later than \
                             to, and to not in the future";

/// Says, in the words of the 400, that a backfill is of too many slots.
fn describe_too_many() -> String {
    format!("more than {BACKFILL_MAX} slots lie between from and to: ask for a part of them")
}

/// The operations on a schedule, with a summary of each.
const OPERATIONS: &[(&str, &str)] = &[
    ("trigger", "Starts a job of the schedule now"),
    ("pause", "Pauses the schedule: its slots are skipped"),
    ("resume", "Resumes the schedule after a pause"),
];

pub(super) const ROUTES: &[ApiRoute] = &[
    ApiRoute::get("/api/schedules", || web::to(list_schedules)).by_active().operation(|schemas| {
        let summary = "All schedules, with their last judgements and next slots";
        OperationSpec::new("listSchedules", "schedules", summary).with_json_response(
            200,
            "The schedules",
            schemas.reference::<SchedulesView>(),
        )
    }),
    ApiRoute::post("/api/schedule/{schedule}/{operation}", || web::to(operate)).operation_for_each(
        OPERATIONS,
        |name, summary, schemas| {
            let id = format!("{name}Schedule");
            let parameters = &[VHOST, REASON];
            OperationSpec::new(&id, "schedules", summary)
                .with_parameters(parameters)
                .with_json_response(200, "The schedule", schemas.reference::<ScheduleView>())
                .with_problems(&[404, 409])
        },
    ),
    ApiRoute::post("/api/schedule/{schedule}/backfill", || web::to(backfill)).operation(
        |schemas| {
            let summary = "Starts the jobs of slots that have passed and have none";
            OperationSpec::new("backfillSchedule", "schedules", summary)
                .with_parameters(&[SLOTS_FROM, SLOTS_TO, DRY_RUN, VHOST, REASON])
                .with_rule(BACKFILL_RULE.to_owned())
                .with_rule(describe_too_many())
                .with_json_response(200, "The slots", schemas.reference::<BackfillView>())
                .with_problems(&[404, 409])
        },
    ),
];

/// All schedules.
#[derive(Serialize, ToSchema)]
#[schema(as = Schedules)]
struct SchedulesView {
    schedules: Vec<ScheduleView>,
}

/// A schedule.
#[derive(Serialize, ToSchema)]
#[schema(as = Schedule)]
struct ScheduleView {
    name: String,
    /// The virtual host; empty: that of the broker's address.
    vhost: String,
    /// The full name of the workflow that it starts.
    workflow: String,
    /// The cron expression with its zone, or the interval.
    timing: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<PauseView>,
    /// The slot that waits for the end of an earlier job.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<Rfc3339Time>,
    /// Why its due job cannot be started. It is tried again each second.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<RefusalView>,
    /// The next slots.
    next: Vec<Rfc3339Time>,
    /// How the last slots were judged, the newest first.
    judgements: Vec<JudgementView>,
}

/// Why the due job of a schedule cannot be started.
#[derive(Serialize, ToSchema)]
#[schema(as = ScheduleRefusal)]
struct RefusalView {
    since: Rfc3339Time,
    reason: String,
}

/// The pause of a schedule.
#[derive(Serialize, ToSchema)]
#[schema(as = SchedulePause)]
struct PauseView {
    since: Rfc3339Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    reason: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    by: Option<Arc<str>>,
}

/// How a slot, or several in a row, were judged.
#[derive(Serialize, ToSchema)]
#[schema(as = Judgement)]
struct JudgementView {
    /// The slot; of several, the last.
    slot: Rfc3339Time,
    at: Rfc3339Time,
    /// `started`, `waits`, `skipped` or `missed`.
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<JobId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    reason: Option<Arc<str>>,
    /// How many slots in a row it is about.
    slots: u64,
}

impl ScheduleView {
    fn new(status: ScheduleStatus) -> ScheduleView {
        let ScheduleStatus { schedule, paused, waiting, refusal, next, judgements } = status;
        ScheduleView {
            name: schedule.name.clone(),
            vhost: schedule.vhost.clone(),
            workflow: schedule.workflow.clone(),
            timing: schedule.timing.to_string(),
            paused: paused.map(|pause| PauseView {
                since: Rfc3339Time(pause.since),
                reason: pause.reason,
                by: pause.by,
            }),
            waiting: waiting.map(Rfc3339Time),
            refused: refusal.map(|refusal| RefusalView {
                since: Rfc3339Time(refusal.since),
                reason: refusal.reason().to_owned(),
            }),
            next: next.into_iter().map(Rfc3339Time).collect(),
            judgements: judgements
                .into_iter()
                .map(|judgement| JudgementView {
                    slot: Rfc3339Time(judgement.slot),
                    at: Rfc3339Time(judgement.at),
                    verdict: judgement.verdict.as_str(),
                    job: judgement.job,
                    reason: judgement.reason,
                    slots: judgement.slots,
                })
                .collect(),
        }
    }
}

/// The slots of a backfill.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Backfill)]
struct BackfillView {
    /// The full name of the schedule.
    schedule: String,
    /// Whether nothing was started.
    dry_run: bool,
    slots: Vec<BackfilledSlotView>,
}

/// A slot of a backfill.
#[derive(Serialize, ToSchema)]
#[schema(as = BackfilledSlot)]
struct BackfilledSlotView {
    slot: Rfc3339Time,
    /// Its job.
    job: JobId,
    /// The label of the job, if it is there and has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    label: Option<Arc<str>>,
    /// Whether the job was there before.
    existed: bool,
}

/// Lists all schedules.
async fn list_schedules(api: web::Data<ApiState>, query: Query) -> Result<HttpResponse, Problem> {
    query.check_empty()?;
    let schedules = api.active()?.schedules().await;
    let schedules = schedules.map_err(|error| to_problem(error, String::new))?;
    let schedules = schedules.into_iter().map(ScheduleView::new).collect();
    Ok(HttpResponse::Ok().json(SchedulesView { schedules }))
}

/// Carries out an operation on a schedule. Responds once it is stored.
async fn operate(
    api: web::Data<ApiState>,
    path: web::Path<(String, String)>,
    query: Query,
    principal: PrincipalName,
) -> Result<HttpResponse, Problem> {
    let (name, operation) = path.into_inner();
    let [vhost, reason] = query.extract(["vhost", "reason"])?;
    let PrincipalName(by) = principal;
    let reason = parse_reason(reason)?;
    tracing::info!(schedule = name, operation, ?by, ?reason, "asked for by a client");
    let operation = match operation.as_str() {
        "trigger" => ScheduleOperation::Trigger { reason, by },
        "pause" => ScheduleOperation::Pause { reason, by },
        "resume" => ScheduleOperation::Resume,
        _ => {
            let operation = quote(&operation);
            return Err(Problem::not_found(format!(
                "unknown operation {operation} of a schedule; there are trigger, pause, resume and \
                 backfill"
            )));
        }
    };
    let full_name = full_name(name, vhost.as_deref());
    match api.active()?.operate_schedule(&full_name, operation).await {
        Ok(status) => Ok(HttpResponse::Ok().json(ScheduleView::new(status))),
        Err(error) => Err(to_problem(error, || unknown_schedule(&full_name))),
    }
}

/// Starts the jobs of slots that have passed. With `dryRun`, only lists them.
async fn backfill(
    api: web::Data<ApiState>,
    path: web::Path<String>,
    query: Query,
    principal: PrincipalName,
) -> Result<HttpResponse, Problem> {
    let [from, to, dry_run, vhost, reason] =
        query.extract(["from", "to", "dryRun", "vhost", "reason"])?;
    let is_dry_run =
        dry_run.map(|text| query::parse_flag("dryRun", &text)).transpose()?.unwrap_or_default();
    let (reason, now) = (parse_reason(reason)?, clock::now());
    let from = from.ok_or_else(|| {
        Problem::malformed("a backfill needs ?from=TIME, the first time of its slots".to_owned())
    })?;
    let from = query::parse_time("from", &from)?;
    let to = to.map(|text| query::parse_time("to", &text)).transpose()?.unwrap_or(now);
    if from > to || to > now {
        return Err(Problem::malformed(BACKFILL_RULE.to_owned()));
    }
    let full_name = full_name(path.into_inner(), vhost.as_deref());
    let statuses = api.active()?.schedules().await;
    let statuses = statuses.map_err(|error| to_problem(error, String::new))?;
    let named = |status: &ScheduleStatus| status.schedule.full_name() == full_name;
    let Some(ScheduleStatus { schedule, .. }) = statuses.into_iter().find(named) else {
        return Err(Problem::not_found(unknown_schedule(&full_name)));
    };
    // A slot at `from` counts.
    let slots = schedule.next_slots(Timestamp(from.0.saturating_sub(1)), BACKFILL_MAX + 1);
    let slots: Vec<Timestamp> = slots.into_iter().take_while(|slot| *slot < to).collect();
    if slots.len() > BACKFILL_MAX {
        return Err(Problem::malformed(describe_too_many()));
    }
    let (done, mut labels) = if is_dry_run {
        let jobs: Vec<_> = slots.iter().map(|slot| (*slot, schedule.job_id(*slot))).collect();
        reads::read_small(&api, move |reader| {
            let numbers = find_numbers(reader, jobs.iter().map(|(_, job)| *job))?;
            let look_up = |(slot, job)| {
                let existed = numbers.contains_key(&job);
                BackfilledSlot { slot, job, existed }
            };
            let slots: Vec<BackfilledSlot> = jobs.into_iter().map(look_up).collect();
            Ok((slots, read_labels(reader, &numbers)?))
        })
        .await?
    } else {
        let PrincipalName(by) = principal;
        tracing::info!(schedule = full_name, ?by, ?reason, "a client asks for a backfill");
        let backfill = Backfill { slots, reason, by };
        let done = api.active()?.backfill_schedule(&full_name, backfill).await;
        let done = done.map_err(|error| to_problem(error, || unknown_schedule(&full_name)))?;
        let jobs: Vec<JobId> = done.iter().map(|slot| slot.job).collect();
        let read = reads::read_small(&api, move |reader| {
            read_labels(reader, &find_numbers(reader, jobs)?)
        });
        // The jobs are started: if they cannot be read now, they are told without labels.
        (done, read.await.unwrap_or_default())
    };
    let slots = done.into_iter().map(|BackfilledSlot { slot, job, existed }| BackfilledSlotView {
        slot: Rfc3339Time(slot),
        job,
        label: labels.remove(&job),
        existed,
    });
    let slots = slots.collect();
    Ok(HttpResponse::Ok().json(BackfillView { schedule: full_name, dry_run: is_dry_run, slots }))
}

/// Finds the numbers of jobs. Jobs that are not there are left out.
fn find_numbers(
    reader: &dyn Records,
    jobs: impl IntoIterator<Item = JobId>,
) -> Result<HashMap<JobId, JobNumber>, JournalError> {
    let find = |job| Ok(reader.find_job_number(job)?.map(|number| (job, number)));
    jobs.into_iter().filter_map(|job| find(job).transpose()).collect()
}

/// Reads the labels of jobs. Jobs that have none are left out.
fn read_labels(
    reader: &dyn Records,
    jobs: &HashMap<JobId, JobNumber>,
) -> Result<HashMap<JobId, Arc<str>>, JournalError> {
    let numbers: Vec<JobNumber> = jobs.values().copied().collect();
    let mut cells = reader.load_cells(&numbers, &Columns::default())?;
    let label = |(job, number): (&JobId, &JobNumber)| {
        Some((*job, CellsView::from_cells(cells.remove(number)?).0?))
    };
    Ok(jobs.iter().filter_map(label).collect())
}

/// Returns the name of a schedule with its virtual host.
fn full_name(name: String, vhost: Option<&str>) -> String {
    match vhost {
        None | Some("") => name,
        Some(vhost) => format!("{vhost}/{name}"),
    }
}

fn unknown_schedule(full_name: &str) -> String {
    format!("unknown schedule {}", quote(full_name))
}
