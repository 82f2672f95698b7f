//! Lists the schedules, and carries out operations on them (docs/schedules.md).

use super::operations::{parse_reason, to_problem};
use super::principal::PrincipalName;
use super::problem::Problem;
use super::query::Query;
use super::route::*;
use crate::actors::schedule_requests::{ScheduleOperation, ScheduleStatus};
use crate::api::state::ApiState;
use actix_web::{HttpResponse, web};
use base::times::Rfc3339Time;
use engine::JobId;
use engine::text::quote;
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

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
    ApiRoute::post("/api/schedule/{name}/{operation}", || web::to(operate)).operation_for_each(
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
    /// The next slots.
    next: Vec<Rfc3339Time>,
    /// How the last slots were judged, the newest first.
    judgements: Vec<JudgementView>,
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
        let ScheduleStatus { schedule, paused, waiting, next, judgements } = status;
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
                "unknown operation {operation} of a schedule; there are trigger, pause and resume"
            )));
        }
    };
    let full_name = match vhost.as_deref() {
        None | Some("") => name,
        Some(vhost) => format!("{vhost}/{name}"),
    };
    match api.active()?.operate_schedule(&full_name, operation).await {
        Ok(status) => Ok(HttpResponse::Ok().json(ScheduleView::new(status))),
        Err(error) => Err(to_problem(error, || format!("unknown schedule {}", quote(&full_name)))),
    }
}
