//! Shows the items of a fan-out step, in four formats: counts by state, a bit map of all states,
//! the times at which each child job began and ended, and the failed items grouped by reason.

use super::active_jobs;
use super::problem::Problem;
use super::query::Query;
use super::reads::{self, page_bytes, truncate};
use super::rebuilt_jobs::{ItemsFormat, MANY_ITEMS, RebuiltJobs};
use super::resolve::parse_job_id;
use super::route::*;
use super::step::find_step;
use super::step_items::{SettledItems, StepItems};
use crate::api::state::ApiState;
use crate::view::{ItemMap, ItemTimes, ItemsView};
use actix_web::{HttpResponse, web};
use base::times::Rfc3339Time;
use bytes::Bytes;
use engine::text::quote;
use engine::{FanOut, ItemState, Job, JobId, JobState, ReasonPattern, StepIndex, Timestamp};
use journal::{
    ChildCursor, ChildFilter, ChildRow, ItemRow, JournalError, ParentRecord, RecordVersion,
    Records, StoredJob,
};
use serde::Serialize;
use serde_json::json;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use utoipa::ToSchema;

pub(super) const ROUTES: &[ApiRoute] =
    &[ApiRoute::get("/api/job/{id}/step/{step}/items", || web::to(get_items)).operation(
        |schemas| {
            let views = any_of([
                schemas.reference::<ItemsView>(),
                schemas.reference::<FailureReasonsView>(),
            ]);
            let binary = json!({ "type": "string", "format": "binary" });
            OperationSpec::new("getItems", "jobs", "The items of a fan-out")
                .with_parameters(&[FORMAT])
                .with_json_response(200, "Counts or reasons, or the map or times", views)
                .with_response(200, "", "application/octet-stream", binary)
                .with_problems(&[404])
        },
    )];

/// How many failed items are grouped by reason. Further ones are ignored.
const GROUPED_MAX: u32 = 10_000;

/// How many failed items are read at once.
const GROUPED_PAGE_ROWS: u32 = 500;

/// How many reasons a response shows: the most frequent ones.
const REASONS_MAX: usize = 100;

/// How many characters of an example's reason are shown.
const REASON_CHARS_MAX: usize = 200;

/// Shows the items of a fan-out step in the requested format.
async fn get_items(
    api: web::Data<ApiState>,
    path: web::Path<(String, String)>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let [format] = query.extract(["format"])?;
    let (id, name) = path.into_inner();
    let id = parse_job_id(&id)?;
    match format.as_deref().unwrap_or("counts") {
        "counts" => respond_counts(&api, id, name).await,
        "map" => respond_map(&api, id, name).await,
        "times" => respond_times(&api, id, name).await,
        "reasons" => respond_reasons(&api, id, name).await,
        other => Err(Problem::malformed(format!(
            "format is {other:?}, expected counts, map, times or reasons"
        ))),
    }
}

/// Responds with the numbers of items by state.
async fn respond_counts(
    api: &Arc<ApiState>,
    id: JobId,
    name: String,
) -> Result<HttpResponse, Problem> {
    let window = api.limits.window;
    let step_name = name.clone();
    let inspection =
        active_jobs::inspect_job(api, id, move |job| items_view(job, &step_name, window));
    if let Some(view) = inspection.await {
        return Ok(HttpResponse::Ok().json(view?));
    }
    let read = reads::with_job(api, id, move |stored, response| {
        response.write_json(&items_view(&stored.job, &name, window)?)
    });
    let ((), response) = read.await?;
    Ok(response.into_response())
}

/// Makes the view of the counts. Returns a 404 if the step is not a fan-out step.
fn items_view(job: &Job, name: &str, window: u32) -> Result<ItemsView, Problem> {
    let (step, _) = find_fan_out(job, name)?;
    let counts = job.item_counts(step).zip(job.task_keys(step));
    let (counts, keys) = counts.ok_or_else(|| no_items(name, job.id()))?;
    Ok(ItemsView::new(keys, counts, window))
}

/// What is shown of items by the rows of their child jobs alone.
#[derive(Clone, Copy)]
enum RowsFormat {
    Map,
    Times,
}

impl From<RowsFormat> for ItemsFormat {
    fn from(format: RowsFormat) -> ItemsFormat {
        match format {
            RowsFormat::Map => ItemsFormat::Map,
            RowsFormat::Times => ItemsFormat::Times,
        }
    }
}

/// Responds with a bit map of the states of all items: two bits for each item.
async fn respond_map(
    api: &Arc<ApiState>,
    id: JobId,
    name: String,
) -> Result<HttpResponse, Problem> {
    let step_name = name.clone();
    let inspection = active_jobs::inspect_job(api, id, move |job| {
        find_fan_out(job, &step_name)
            .map(|(_, fan_out)| fan_out.item_states().map(|states| states.collect::<ItemMap>()))
    });
    if let Some(Some(map)) = inspection.await.transpose()? {
        return Ok(HttpResponse::Ok()
            .content_type(mime::APPLICATION_OCTET_STREAM)
            .body(map.into_bytes()));
    }
    respond_from_journal(api, id, name, RowsFormat::Map).await
}

/// Responds with the times at which the child job of each item began and ended.
async fn respond_times(
    api: &Arc<ApiState>,
    id: JobId,
    name: String,
) -> Result<HttpResponse, Problem> {
    let step_name = name.clone();
    let inspection = active_jobs::inspect_job(api, id, move |job| {
        let (step, fan_out) = find_fan_out(job, &step_name)?;
        Ok::<_, Problem>(StepItems::new(job, step, fan_out))
    });
    match inspection.await {
        Some(items) => respond_from_rows(api, id, items?, None, RowsFormat::Times).await,
        None => respond_from_journal(api, id, name, RowsFormat::Times).await,
    }
}

/// Responds with the map or the times of the items of a job that no actor has. Of a job that has
/// ended they may be cached.
async fn respond_from_journal(
    api: &Arc<ApiState>,
    id: JobId,
    name: String,
    format: RowsFormat,
) -> Result<HttpResponse, Problem> {
    let jobs = api.rebuilt_jobs.clone();
    let read = reads::with_job(api, id, move |stored, response| {
        let (step, fan_out) = find_fan_out(&stored.job, &name)?;
        match find_cached(&jobs, &stored, (step, fan_out), format.into()) {
            CachedItems::Found(bytes) => {
                response.write_bytes(&bytes)?;
                Ok(None)
            }
            CachedItems::Missing(items, settled) => Ok(Some((items, settled))),
        }
    });
    match read.await? {
        (None, response) => Ok(response.into_response_with(mime::APPLICATION_OCTET_STREAM)),
        (Some((items, settled)), _) => respond_from_rows(api, id, items, settled, format).await,
    }
}

/// What the cache has of the items of a step.
enum CachedItems {
    Found(Bytes),
    /// What the job says of them. If what is read may be cached: for which version of the record,
    /// and what finds out whether no child job changes any more.
    Missing(StepItems, Option<(RecordVersion, SettledItems)>),
}

/// Looks for what is cached of the items of a step of a job that no actor has.
fn find_cached(
    jobs: &RebuiltJobs,
    stored: &StoredJob,
    (step, fan_out): (StepIndex, &FanOut),
    format: ItemsFormat,
) -> CachedItems {
    let job = &stored.job;
    let items = StepItems::new(job, step, fan_out);
    let is_cacheable = job.state().is_ended() && items.count >= MANY_ITEMS;
    let version = is_cacheable.then(|| stored.version());
    let cached = version.and_then(|version| jobs.find_items((job.id(), step), format, version));
    if let Some(bytes) = cached {
        return CachedItems::Found(bytes);
    }
    let settled = version.map(|version| (version, SettledItems::new(&items, fan_out)));
    CachedItems::Missing(items, settled)
}

/// Responds with the map or the times of items from the rows of their child jobs: the job keeps
/// only counts for an ended step. Caches them for this version of the record if `settled` finds
/// that no child job changes any more.
async fn respond_from_rows(
    api: &Arc<ApiState>,
    id: JobId,
    items: StepItems,
    mut settled: Option<(RecordVersion, SettledItems)>,
    format: RowsFormat,
) -> Result<HttpResponse, Problem> {
    let jobs = api.rebuilt_jobs.clone();
    let bytes = match format {
        RowsFormat::Map => ItemMap::byte_len(items.count),
        RowsFormat::Times => ItemTimes::byte_len(items.count),
    };
    let read = reads::write_response(api, bytes, move |reader, response| {
        let parent = reader.find_parent_job(id)?.ok_or_else(|| Problem::unknown_job(id))?;
        let mut for_each = |set: &mut dyn FnMut(&ItemRow)| {
            reader.for_each_item(&parent, items.step, &mut |row| {
                if let Some((_, settled)) = &mut settled {
                    settled.add(&row);
                }
                set(&row);
            })
        };
        let bytes: Bytes = match format {
            RowsFormat::Map => {
                let mut map = ItemMap::new(items.count);
                for_each(&mut |row| map.set(row.item, to_item_state(row, items.ended)))?;
                map.into_bytes()
            }
            RowsFormat::Times => {
                let mut times = ItemTimes::new(items.count, items.started);
                for_each(&mut |row| times.set(row.item, row.created, row.ended))?;
                times.into_bytes()
            }
        }
        .into();
        response.write_bytes(&bytes)?;
        if let Some((version, _)) = settled.filter(|(_, settled)| settled.are_all()) {
            jobs.insert_items((id, items.step), format.into(), version, bytes);
        }
        Ok(())
    });
    Ok(read.await?.into_response_with(mime::APPLICATION_OCTET_STREAM))
}

/// The failed items of a step, by reason.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = FailureReasons)]
struct FailureReasonsView {
    /// How many failed items were examined.
    failed: u32,
    /// Whether there are more failed items than were examined.
    failed_is_minimum: bool,
    /// The reasons, the most frequent first.
    reasons: Vec<FailureReasonView>,
}

/// The items whose reasons have one pattern.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = FailureReason)]
struct FailureReasonView {
    /// The pattern: the reason without ids, numbers, times and quoted values.
    reason: String,
    /// The id of the pattern, by which searches filter.
    #[schema(value_type = String)]
    reason_id: String,
    count: u32,
    /// When the first and the last of them failed.
    first: Rfc3339Time,
    last: Rfc3339Time,
    /// The first of these items in the list, its child job, and why that failed.
    item: u32,
    job: JobId,
    example: String,
}

impl FailureReasonView {
    /// Returns the group of one item.
    fn from_row(pattern: &ReasonPattern, row: &ChildRow) -> FailureReasonView {
        let ended = Rfc3339Time(row.ended.unwrap_or(row.created));
        FailureReasonView {
            reason: pattern.text().to_owned(),
            reason_id: pattern.id().to_string(),
            count: 1,
            first: ended,
            last: ended,
            item: row.item,
            job: row.id,
            example: truncate(row.reason.as_deref().unwrap_or_default(), REASON_CHARS_MAX),
        }
    }

    /// Adds the group of one item.
    fn add(&mut self, other: FailureReasonView) {
        self.count += other.count;
        self.first.0 = self.first.0.min(other.first.0);
        self.last.0 = self.last.0.max(other.last.0);
        if other.item < self.item {
            (self.item, self.job, self.example) = (other.item, other.job, other.example);
        }
    }
}

/// Responds with the failed items, grouped by reason. Of a job that has ended they may be cached.
async fn respond_reasons(
    api: &Arc<ApiState>,
    id: JobId,
    name: String,
) -> Result<HttpResponse, Problem> {
    let step_name = name.clone();
    let inspection = active_jobs::inspect_job(api, id, move |job| {
        find_step(job.graph(), id, &step_name).map(|step| job.items_end(step))
    });
    if let Some(step_ended) = inspection.await {
        return respond_reasons_from_rows(api, id, name, step_ended?, None).await;
    }
    let (jobs, step_name) = (api.rebuilt_jobs.clone(), name.clone());
    let read = reads::with_job(api, id, move |stored, response| {
        let job = &stored.job;
        let step = find_step(job.graph(), id, &step_name)?;
        let settled = match &job.step(step).fan_out {
            Some(fan_out) => {
                match find_cached(&jobs, &stored, (step, fan_out), ItemsFormat::Reasons) {
                    CachedItems::Found(bytes) => {
                        response.write_bytes(&bytes)?;
                        return Ok(None);
                    }
                    CachedItems::Missing(_, settled) => settled,
                }
            }
            None => None,
        };
        Ok(Some((job.items_end(step), settled)))
    });
    match read.await? {
        (None, response) => Ok(response.into_response()),
        (Some((step_ended, settled)), _) => {
            respond_reasons_from_rows(api, id, name, step_ended, settled).await
        }
    }
}

/// Responds with the failed items of a step that ended at `step_ended`, from the rows of their
/// child jobs. Caches them as [`respond_from_rows`] does.
async fn respond_reasons_from_rows(
    api: &Arc<ApiState>,
    id: JobId,
    name: String,
    step_ended: Option<Timestamp>,
    settled: Option<(RecordVersion, SettledItems)>,
) -> Result<HttpResponse, Problem> {
    let jobs = api.rebuilt_jobs.clone();
    let read = reads::respond(api, page_bytes(GROUPED_MAX), move |reader, response| {
        let parent = reader.find_parent_job(id)?.ok_or_else(|| Problem::unknown_job(id))?;
        let step = find_step(parent.graph(), id, &name)?;
        if parent.graph().step(step).task.is_none() {
            return Err(no_items(&name, id));
        }
        // What is settled before the reasons are read does not change while they are.
        let settled_version = match settled {
            Some((version, settled)) => settled.read(reader, &parent, step)?.then_some(version),
            None => None,
        };
        let reasons = group_reasons(reader, &parent, step, step_ended)?;
        let bytes = Bytes::from(serde_json::to_vec(&reasons).expect("names are texts"));
        response.write_bytes(&bytes)?;
        if let Some(version) = settled_version {
            jobs.insert_items((id, step), ItemsFormat::Reasons, version, bytes);
        }
        Ok(())
    });
    read.await
}

/// Reads the failed items of a step page by page, and groups them by reason. `step_ended` is when
/// the step ended. Items whose child jobs were cut off by that end do not count as failed.
fn group_reasons(
    reader: &dyn Records,
    parent: &ParentRecord,
    step: StepIndex,
    step_ended: Option<Timestamp>,
) -> Result<FailureReasonsView, JournalError> {
    let mut groups: HashMap<String, FailureReasonView> = HashMap::new();
    let (mut failed, mut failed_is_minimum) = (0, false);
    for state in [JobState::Failed, JobState::Cancelled] {
        let filter = ChildFilter { state: Some(state), step: Some(step) };
        let mut after = ChildCursor::START;
        loop {
            let page_rows = GROUPED_PAGE_ROWS.min(GROUPED_MAX - failed);
            // One row beyond the page shows whether there are more.
            let mut rows = reader.load_children(parent, filter, after, page_rows + 1)?;
            let has_more = rows.len() > page_rows as usize;
            rows.truncate(page_rows as usize);
            after = rows.last().map_or(after, |row| row.cursor);
            for row in rows {
                if is_cut_off(row.ended, step_ended) {
                    continue;
                }
                failed += 1;
                let reason = row.reason.as_deref().unwrap_or_default();
                let pattern = ReasonPattern::from_reason(reason);
                let one = FailureReasonView::from_row(&pattern, &row);
                match groups.entry(one.reason.clone()) {
                    Entry::Occupied(mut group) => group.get_mut().add(one),
                    Entry::Vacant(group) => drop(group.insert(one)),
                }
            }
            failed_is_minimum = has_more && failed == GROUPED_MAX;
            if !has_more || failed_is_minimum {
                break;
            }
        }
        if failed_is_minimum {
            break;
        }
    }
    let mut reasons: Vec<FailureReasonView> = groups.into_values().collect();
    reasons.sort_unstable_by_key(|group| (std::cmp::Reverse(group.count), group.item));
    reasons.truncate(REASONS_MAX);
    Ok(FailureReasonsView { failed, failed_is_minimum, reasons })
}

/// Returns the state of an item, from its child job and the end of its step. An item that was cut
/// off counts as running.
fn to_item_state(row: &ItemRow, step_ended: Option<Timestamp>) -> ItemState {
    match row.state {
        JobState::Running | JobState::Paused => ItemState::Running,
        JobState::Completed => ItemState::Completed,
        JobState::Failed | JobState::Cancelled if is_cut_off(row.ended, step_ended) => {
            ItemState::Running
        }
        JobState::Failed | JobState::Cancelled => ItemState::Failed,
    }
}

/// Returns whether a child job was cut off: it was ended because its step or job ended. A child job
/// that failed or was cancelled on its own ended earlier.
fn is_cut_off(child_ended: Option<Timestamp>, step_ended: Option<Timestamp>) -> bool {
    child_ended.zip(step_ended).is_some_and(|(child_ended, step_ended)| child_ended >= step_ended)
}

/// Finds the fan-out of the step with this name. Returns a 404 if it has none.
fn find_fan_out<'j>(job: &'j Job, name: &str) -> Result<(StepIndex, &'j FanOut), Problem> {
    let step = find_step(job.graph(), job.id(), name)?;
    match &job.step(step).fan_out {
        Some(fan_out) => Ok((step, fan_out)),
        None if job.graph().step(step).task.is_some() => Err(Problem::not_found(format!(
            "step {} of job {} has no items yet: it is {}",
            quote(name),
            job.id(),
            job.step_state(step).as_str()
        ))),
        None => Err(no_items(name, job.id())),
    }
}

/// Returns the 404 for a step that is not a fan-out step.
fn no_items(step: &str, id: JobId) -> Problem {
    Problem::not_found(format!("step {} of job {id} has no items: it runs no task", quote(step)))
}
