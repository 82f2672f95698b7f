//! The items of a fan-out step: counts, a map of all of them, when each began and ended, and the
//! failed ones by reason.

use super::live;
use super::named::job_id;
use super::problem::Problem;
use super::query::Query;
use super::reads::{self, cut, row_bytes};
use super::step::step_of;
use crate::actors::ways::Ways;
use crate::engine::words::quoted;
use crate::engine::{FanOut, ItemState, Job, JobId, JobState, StepIndex, Timestamp};
use crate::journal::{ChildCursor, ChildFilter, Family, ItemRow, JournalError, Records};
use crate::view::{ItemMap, ItemTimes, ItemsView};
use actix_web::{HttpResponse, web};
use serde::Serialize;
use std::collections::HashMap;
use std::io::Write as _;
use utoipa::ToSchema;

/// How many failed items are grouped by their reasons: the first ones.
const GROUPED_MAX: u32 = 10_000;

/// How many failed items are read at once.
const GROUPED_AT_ONCE: u32 = 500;

/// The most reasons in a response: the most frequent ones.
const REASONS_MAX: usize = 100;

/// How much of a reason is compared and shown, in characters.
const REASON_CHARS_MAX: usize = 200;

/// Handles `GET /api/job/{id}/step/{step}/items[?format=counts|map|times|reasons]`.
pub(super) async fn of_step(
    ways: web::Data<Ways>,
    path: web::Path<(String, String)>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let [format] = query.of(["format"])?;
    let (id, name) = path.into_inner();
    let id = job_id(&id)?;
    match format.as_deref().unwrap_or("counts") {
        "counts" => counts(&ways, id, name).await,
        "map" => map(&ways, id, name).await,
        "times" => times(&ways, id, name).await,
        "reasons" => reasons(&ways, id, name).await,
        other => Err(Problem::malformed(format!(
            "format is {other:?}, expected counts, map, times or reasons"
        ))),
    }
}

async fn counts(ways: &Ways, id: JobId, name: String) -> Result<HttpResponse, Problem> {
    let window = ways.common.limits.window;
    let asked = name.clone();
    let told = live::look(ways, id, move |job| counted(job, &asked, window));
    if let Some(counts) = told.await {
        return Ok(HttpResponse::Ok().json(counts?));
    }
    let kept = reads::job(&ways.common, id, move |found, answer| {
        answer.json(&counted(&found.job, &name, window)?)
    });
    Ok(kept.await?.1.into_response())
}

fn counted(job: &Job, name: &str, window: u32) -> Result<ItemsView, Problem> {
    let (step, _) = fan_out_of(job, name)?;
    let counts = job.item_counts(step).ok_or_else(|| no_task(name, job.id()))?;
    Ok(ItemsView::of(job, step, counts, window))
}

async fn map(ways: &Ways, id: JobId, name: String) -> Result<HttpResponse, Problem> {
    let asked = name.clone();
    let told = live::look(ways, id, move |job| {
        fan_out_of(job, &asked)
            .map(|(_, fan_out)| fan_out.item_states().map(|states| states.collect::<ItemMap>()))
    });
    if let Some(Some(map)) = told.await.transpose()? {
        return Ok(HttpResponse::Ok()
            .content_type(mime::APPLICATION_OCTET_STREAM)
            .body(map.into_bytes()));
    }
    // Of a step that has ended the job keeps only counts: the child jobs have the rest.
    let counted = reads::job(&ways.common, id, move |found, _| {
        let (step, fan_out) = fan_out_of(&found.job, &name)?;
        Ok((step, fan_out.items(), found.job.items_end(step)))
    });
    let (step, items, end) = counted.await?.0;
    let bytes = ItemMap::bytes_of(items);
    let map = reads::written(&ways.common, bytes, move |reader, answer| {
        let family = reader.family(id)?.ok_or_else(|| Problem::unknown_job(id))?;
        let mut map = ItemMap::of(items);
        reader.items(&family, step, &mut |row| map.set(row.item, item_state(&row, end)))?;
        answer.write_all(&map.into_bytes()).map_err(|error| Problem::broken(error.to_string()))
    });
    Ok(map.await?.into_response_of(mime::APPLICATION_OCTET_STREAM))
}

/// Responds with the times at which the child job of each item began and ended, from the rows of
/// the child jobs.
async fn times(ways: &Ways, id: JobId, name: String) -> Result<HttpResponse, Problem> {
    let begun = |job: &Job, name: &str| {
        let (step, fan_out) = fan_out_of(job, name)?;
        let started = job.step(step).started.unwrap_or(job.origin().created);
        Ok::<_, Problem>((step, fan_out.items(), started))
    };
    let asked = name.clone();
    let told = live::look(ways, id, move |job| begun(job, &asked)).await;
    let (step, items, started) = match told {
        Some(told) => told?,
        None => reads::job(&ways.common, id, move |found, _| begun(&found.job, &name)).await?.0,
    };
    let times = reads::written(&ways.common, ItemTimes::bytes_of(items), move |reader, answer| {
        let family = reader.family(id)?.ok_or_else(|| Problem::unknown_job(id))?;
        let mut times = ItemTimes::of(items, started);
        reader.items(&family, step, &mut |row| times.set(row.item, row.created, row.ended))?;
        answer.write_all(&times.into_bytes()).map_err(|error| Problem::broken(error.to_string()))
    });
    Ok(times.await?.into_response_of(mime::APPLICATION_OCTET_STREAM))
}

/// The failed items of a step, by reason.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = FailureReasons)]
pub(super) struct Reasons {
    /// How many failed items were examined.
    failed: u32,
    /// Whether there are more failed items than were examined.
    failed_is_minimum: bool,
    /// The reasons, the most frequent first.
    reasons: Vec<Reason>,
}

/// The items that failed for one reason.
#[derive(Serialize, ToSchema)]
#[schema(as = FailureReason)]
struct Reason {
    reason: String,
    count: u32,
    /// The first of these items, and its child job.
    item: u32,
    job: JobId,
}

async fn reasons(ways: &Ways, id: JobId, name: String) -> Result<HttpResponse, Problem> {
    let asked = name.clone();
    let end =
        move |job: &Job| step_of(job.graph(), job.id(), &asked).map(|step| job.items_end(step));
    let known = end.clone();
    let end = match live::look(ways, id, move |job| known(job)).await {
        Some(end) => end?,
        None => reads::job(&ways.common, id, move |found, _| end(&found.job)).await?.0,
    };
    let told = reads::answer(&ways.common, row_bytes(GROUPED_MAX), move |reader, answer| {
        let family = reader.family(id)?.ok_or_else(|| Problem::unknown_job(id))?;
        let step = step_of(family.graph(), id, &name)?;
        if family.graph().step(step).task.is_none() {
            return Err(no_task(&name, id));
        }
        answer.json(&grouped(reader, &family, step, end)?)
    });
    told.await
}

/// Reads the failed items of a step, a page at a time, and groups them by reason. `end` is when the
/// step ended. Items that were cut off by that have not failed.
fn grouped(
    reader: &dyn Records,
    family: &Family,
    step: StepIndex,
    end: Option<Timestamp>,
) -> Result<Reasons, JournalError> {
    let mut groups: HashMap<String, Reason> = HashMap::new();
    let (mut failed, mut is_minimum) = (0, false);
    for state in [JobState::Failed, JobState::Cancelled] {
        let filter = ChildFilter { state: Some(state), step: Some(step) };
        let mut after = ChildCursor::START;
        loop {
            let wanted = GROUPED_AT_ONCE.min(GROUPED_MAX - failed);
            // One row more than wanted shows whether there are more.
            let mut rows = reader.children(family, filter, after, wanted + 1)?;
            let has_more = rows.len() > wanted as usize;
            rows.truncate(wanted as usize);
            after = rows.last().map_or(after, |row| row.cursor);
            for row in rows {
                if is_cut_off(row.ended, end) {
                    continue;
                }
                failed += 1;
                let reason = cut(row.reason.as_deref().unwrap_or_default(), REASON_CHARS_MAX);
                let group = groups.entry(reason.clone());
                group.or_insert(Reason { reason, count: 0, item: row.item, job: row.id }).count +=
                    1;
            }
            is_minimum = has_more && failed == GROUPED_MAX;
            if !has_more || is_minimum {
                break;
            }
        }
        if is_minimum {
            break;
        }
    }
    let mut reasons: Vec<Reason> = groups.into_values().collect();
    reasons.sort_unstable_by_key(|group| (std::cmp::Reverse(group.count), group.item));
    reasons.truncate(REASONS_MAX);
    Ok(Reasons { failed, failed_is_minimum: is_minimum, reasons })
}

/// Returns the state of an item, from the end of its child job and the end of its step.
fn item_state(row: &ItemRow, end: Option<Timestamp>) -> ItemState {
    match row.state {
        JobState::Running | JobState::Paused => ItemState::Running,
        JobState::Completed => ItemState::Completed,
        JobState::Failed | JobState::Cancelled if is_cut_off(row.ended, end) => ItemState::Running,
        JobState::Failed | JobState::Cancelled => ItemState::Failed,
    }
}

/// Returns whether a child job was cut off by the end of its step or job. A child job that failed,
/// or was cancelled, by itself ended before.
fn is_cut_off(ended: Option<Timestamp>, end: Option<Timestamp>) -> bool {
    ended.zip(end).is_some_and(|(ended, end)| ended >= end)
}

fn fan_out_of<'j>(job: &'j Job, name: &str) -> Result<(StepIndex, &'j FanOut), Problem> {
    let step = step_of(job.graph(), job.id(), name)?;
    match &job.step(step).fan_out {
        Some(fan_out) => Ok((step, fan_out)),
        None if job.graph().step(step).task.is_some() => Err(Problem::not_found(format!(
            "step {} of job {} has no items yet: it is {}",
            quoted(name),
            job.id(),
            job.step_state(step).word()
        ))),
        None => Err(no_task(name, job.id())),
    }
}

fn no_task(step: &str, id: JobId) -> Problem {
    Problem::not_found(format!("step {} of job {id} has no items: it runs no task", quoted(step)))
}
