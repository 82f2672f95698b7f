//! Shows what happened over time: the trends of all workflows together, or of one.

use super::problem::Problem;
use super::query::{self, Query};
use super::reads::read_small;
use super::resolve::full_name;
use super::route::*;
use crate::api::state::ApiState;
use crate::telemetry::trends::{ALL_WORKFLOWS, Figures, MINUTE_NS, TrendSpan, WORKFLOWS_MAX};
use actix_web::{HttpResponse, web};
use base::clock;
use base::times::Rfc3339Time;
use engine::Timestamp;
use engine::text::quote;
use journal::{JournalError, Records};
use serde::Serialize;
use std::collections::BTreeMap;
use utoipa::ToSchema;

pub(super) const ROUTES: &[ApiRoute] = &[ApiRoute::get("/api/trends", || web::to(get_trends))
    .operation(|schemas| {
        let summary = "What happened over time: jobs, steps, their durations, waiting messages";
        OperationSpec::new("getTrends", "manager", summary)
            .with_parameters(&[TREND_SPAN, WORKFLOW, VHOST_OF_WORKFLOW])
            .with_json_response(200, "The trends", schemas.reference::<TrendsView>())
    })];

/// How long after its beginning a minute is stored: at its end, and some seconds for the writing.
const STORED_AFTER_NS: i64 = MINUTE_NS + 5_000_000_000;

/// Trends of all workflows together, or of one.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Trends)]
struct TrendsView {
    span: &'static str,
    /// The full name of the workflow; missing: all workflows together.
    #[serde(skip_serializing_if = "Option::is_none")]
    workflow: Option<String>,
    /// Whether nothing is kept of the workflow, because trends of 100 others are.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    omitted: bool,
    /// How long a bucket is, in seconds.
    bucket_seconds: u32,
    /// The buckets of the span, the oldest first. The last one has the newest minute that is
    /// stored, and may not be over yet.
    buckets: Vec<BucketView>,
    /// The sum of the buckets.
    total: FiguresView,
    /// The sum of the buckets of the span before.
    before: FiguresView,
}

/// A bucket of trends.
#[derive(Serialize, ToSchema)]
#[schema(as = TrendBucket)]
struct BucketView {
    start: Rfc3339Time,
    /// Missing: nothing was counted, because no manager was active, or the journal could not be
    /// written.
    #[serde(skip_serializing_if = "Option::is_none")]
    figures: Option<FiguresView>,
}

/// What happened in a bucket, or in all buckets of a span.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TrendFigures)]
struct FiguresView {
    /// How many minutes were counted.
    minutes: u64,
    /// Root jobs that were created.
    created: u64,
    /// Root jobs that completed.
    completed: u64,
    /// Root jobs that failed.
    failed: u64,
    /// Root jobs that were cancelled.
    cancelled: u64,
    /// Steps that completed, also those of child jobs.
    steps_completed: u64,
    /// Steps that failed, also those of child jobs.
    steps_failed: u64,
    /// Attempts that failed and were followed by another.
    steps_retried: u64,
    /// The median duration of completed steps, in nanoseconds, estimated from a histogram.
    #[serde(skip_serializing_if = "Option::is_none")]
    step_p50: Option<i64>,
    /// The 99th percentile of the same durations.
    #[serde(skip_serializing_if = "Option::is_none")]
    step_p99: Option<i64>,
    /// The messages that waited in queues at the end; missing: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    queued: Option<u64>,
    /// The most messages that waited in queues at the end of a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    queued_max: Option<u64>,
}

impl FiguresView {
    fn new(figures: &Figures) -> FiguresView {
        FiguresView {
            minutes: figures.minutes,
            created: figures.created,
            completed: figures.completed,
            failed: figures.failed,
            cancelled: figures.cancelled,
            steps_completed: figures.steps_completed(),
            steps_failed: figures.steps_failed,
            steps_retried: figures.steps_retried,
            step_p50: figures.step_percentile(50),
            step_p99: figures.step_percentile(99),
            queued: figures.queued,
            queued_max: figures.queued_max,
        }
    }
}

async fn get_trends(api: web::Data<ApiState>, query: Query) -> Result<HttpResponse, Problem> {
    let [span, workflow, vhost] = query.extract(["span", "workflow", "vhost"])?;
    let span = span.map_or(Ok(TrendSpan::Hour), |span| parse_span(&span))?;
    query::check_requires("vhost", vhost.is_some(), "workflow", workflow.is_some())?;
    if workflow.as_deref() == Some("") {
        let problem = "workflow is empty, expected the name of a workflow";
        return Err(Problem::malformed(problem.to_owned()));
    }
    let workflow = workflow.map(|name| full_name(&name, vhost.as_deref()));
    let newest = span.bucket_start(Timestamp(clock::now().0.saturating_sub(STORED_AFTER_NS)));
    let name = workflow.clone();
    let (buckets, omitted) =
        read_small(&api, move |reader| load(reader, span, newest, name.as_deref())).await?;
    let (mut total, mut before) = (Figures::default(), Figures::default());
    let mut views = Vec::new();
    for number in (0..2 * span.buckets()).rev() {
        let start = span.buckets_before(newest, number);
        let figures = buckets.get(&start).filter(|figures| figures.minutes > 0);
        let is_before = number >= span.buckets();
        if let Some(figures) = figures {
            if is_before { &mut before } else { &mut total }.add(figures);
        }
        if !is_before {
            views.push(BucketView {
                start: Rfc3339Time(start),
                figures: figures.map(FiguresView::new),
            });
        }
    }
    Ok(HttpResponse::Ok().json(TrendsView {
        span: span.name(),
        workflow,
        omitted,
        bucket_seconds: 60 * span.bucket_minutes(),
        buckets: views,
        total: FiguresView::new(&total),
        before: FiguresView::new(&before),
    }))
}

fn parse_span(text: &str) -> Result<TrendSpan, Problem> {
    TrendSpan::from_name(text).ok_or_else(|| {
        let known = TrendSpan::ALL.map(TrendSpan::name).join(", ");
        Problem::malformed(format!("span is {}, expected one of {known}", quote(text)))
    })
}

/// Loads the buckets of a span and of the one before, by their beginnings, and whether nothing is
/// kept of the workflow. `newest` is the beginning of the newest bucket.
fn load(
    reader: &dyn Records,
    span: TrendSpan,
    newest: Timestamp,
    workflow: Option<&str>,
) -> Result<(BTreeMap<Timestamp, Figures>, bool), JournalError> {
    let oldest = span.buckets_before(newest, 2 * span.buckets() - 1);
    let load = |name: &str| -> Result<BTreeMap<Timestamp, Figures>, JournalError> {
        let rows = reader.load_trend(span.ring(), name, oldest)?;
        let parsed = rows.iter().map(|row| (row.start, serde_json::from_str(&row.body)));
        Ok(parsed.filter_map(|(start, figures)| Some((start, figures.ok()?))).collect())
    };
    let mut all = load(ALL_WORKFLOWS)?;
    let Some(workflow) = workflow else { return Ok((all, false)) };
    let mut of_workflow = load(workflow)?;
    let is_kept = !of_workflow.is_empty();
    // A bucket without a row was counted too, if that of all workflows was.
    for (start, figures) in &mut all {
        let idle = figures.queued.and(Some(0));
        let own = of_workflow.remove(start);
        let own = own.unwrap_or(Figures { queued: idle, queued_max: idle, ..Figures::default() });
        *figures = Figures { minutes: figures.minutes, ..own };
    }
    if is_kept {
        return Ok((all, false));
    }
    Ok((all, reader.load_trend_workflows()?.len() >= WORKFLOWS_MAX))
}
