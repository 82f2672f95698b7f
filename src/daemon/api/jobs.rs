//! Creates, lists, shows, cancels and erases jobs.

use super::active_jobs;
use super::history;
use super::operations::{JobStateView, respond, respond_erased, to_problem};
use super::principal::PrincipalName;
use super::problem::Problem;
use super::query::{self, Query, invalid_cursor};
use super::reads::{self, PAGE_ROWS, page_bytes, read_small, stream_chunks};
use super::request_body::RequestBody;
use super::resolve::{find_definition, parse_job_id, resolve_workflow};
use super::route::*;
use crate::actors::client_response::CreateResponse;
use crate::api::state::ApiState;
use crate::view::JobView;
use actix_web::http::header::{self, ETag, EntityTag, Header, IfNoneMatch, TryIntoHeaderValue};
use actix_web::{HttpRequest, HttpResponse, web};
use base::clock;
use base::times::Rfc3339Time;
use bytes::Bytes;
use engine::json::{JsonKind, find_item_uuid};
use engine::{JobId, JobState, Message, Timestamp, TraceContext};
use journal::JournalError;
use journal::{EndedCursor, Records};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::ToSchema;

pub(super) const ROUTES: &[ApiRoute] = &[
    ApiRoute::post("/api/workflow/{name:.*}", || web::to(create_job)).operation(|schemas| {
        let message = json!({
            "anyOf": [message_schema(), { "type": "null" }],
            "description":
                "The job's message. If it has an `id`, that is a UUID, and the new job's id",
        });
        OperationSpec::new("createJob", "jobs", "Creates a job; the response follows its commit")
            .with_parameters(&[NEW_ID, VHOST, START_AFTER, START_AT, TRACE_PARENT, TRACE_STATE])
            .with_rule(query::START_RULE.to_owned())
            .with_body(false, message)
            .with_json_response(201, "The job was created", schemas.reference::<CreatedJob>())
            .with_problems(&[404, 409, 422])
    }),
    ApiRoute::get("/api/workflow/{name:.*}", || web::to(list_jobs_of_workflow)).operation(
        |schemas| {
            let summary = "The jobs of a workflow, active and ended";
            OperationSpec::new("listJobsOfWorkflow", "jobs", summary)
                .with_parameters(&[VHOST, INTERVAL, LIMIT, DOUBLE_CURSOR, WITH_STATES])
                .with_json_response(200, "The jobs", schemas.reference::<WorkflowPage>())
                .with_problems(&[404])
        },
    ),
    ApiRoute::get("/api/jobs", || web::to(list_running_jobs)).operation(|schemas| {
        OperationSpec::new("listRunningJobs", "jobs", "All active jobs and child jobs")
            .with_parameters(&[LIMIT, CURSOR])
            .with_json_response(200, "The jobs", schemas.reference::<JobsPage>())
    }),
    ApiRoute::get("/api/job/{id:.*}", || web::to(get_job)).operation(|schemas| {
        OperationSpec::new("getJob", "jobs", "A job or child job")
            .with_parameters(&[VIEW, AT])
            .with_json_response(200, "The job", schemas.reference::<JobView<'_>>())
            .with_empty_response(304, "The client has the current light view")
            .with_problems(&[404])
    }),
    ApiRoute::delete("/api/job/{id:.*}", || web::to(cancel_or_erase)).operation(|schemas| {
        let summary = "Cancels a job; with `erase` erases one that has ended";
        OperationSpec::new("endJob", "operations", summary)
            .with_parameters(&[ERASE])
            .with_json_response(200, "The job's new state", schemas.reference::<JobStateView<'_>>())
            .with_problems(&[404, 409])
    }),
    ApiRoute::get("/api/job/{id}/result", || web::to(get_job_result)).operation(|_| {
        OperationSpec::new("getResult", "jobs", "The result of a completed job")
            .with_json_response(200, "The result", message_schema())
            .with_problems(&[404, 409])
    }),
];

/// How far back ended jobs are listed by default.
const INTERVAL_DEFAULT_MINUTES: u32 = 480;

const MINUTE_NS: i64 = 60_000_000_000;

/// Creates a job. Responds once its creation is committed.
async fn create_job(
    api: web::Data<ApiState>,
    path: web::Path<String>,
    query: Query,
    request: HttpRequest,
    body: RequestBody,
) -> Result<HttpResponse, Problem> {
    let [id, vhost, after, at] = query.extract(["id", "vhost", "after", "at"])?;
    let starts_at = query::parse_start(after.as_deref(), at.as_deref(), clock::now())?;
    find_definition(&api, &path, vhost.as_deref())?;
    let body = body.read(&api).await?;
    // `_body` holds its permit until the job is committed.
    let ((id, message), _body) =
        body.parse_with(&api, move |body| parse_creation(id.as_deref(), body)).await?;
    // The definition may have been reloaded while the body arrived. The job gets the current one.
    let definition = find_definition(&api, &path, vhost.as_deref())?;
    let workflow = definition.full_name();
    let trace = parse_trace_context(&request);
    match api.active()?.create_job(definition, id, message, trace, starts_at).await {
        Ok(created) => {
            let id = created.id();
            // A job that existed keeps the time of its own creation. The limit of the workflow may
            // delay a job. The route table has it: it is changed before the response is sent.
            let requested = starts_at.filter(|_| matches!(created, CreateResponse::New(_)));
            let begins_at = || api.routes.listed_state(id)?.begins_at;
            let starts_at = requested.or_else(begins_at).map(Rfc3339Time);
            Ok(HttpResponse::Created()
                .insert_header((header::LOCATION, format!("/api/job/{id}")))
                .json(CreatedJob { id, starts_at }))
        }
        Err(error) => Err(to_problem(error, || format!("unknown workflow {workflow}"))),
    }
}

/// Parses the W3C trace context of a request. As the recommendation demands, a `traceparent` that
/// is invalid or given twice is ignored, and several `tracestate` headers are joined.
fn parse_trace_context(request: &HttpRequest) -> Option<TraceContext> {
    let headers = request.headers();
    let mut values = headers.get_all("traceparent");
    let parent = values.next().filter(|_| values.next().is_none())?;
    let states: Result<Vec<&str>, _> =
        headers.get_all("tracestate").map(|state| state.to_str()).collect();
    let state = states.ok().map(|states| states.join(","));
    TraceContext::parse(parent.to_str().ok()?.trim(), state.as_deref())
}

/// The id of a new job, and when it begins if that is later.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct CreatedJob {
    id: JobId,
    #[serde(skip_serializing_if = "Option::is_none")]
    starts_at: Option<Rfc3339Time>,
}

/// Parses the request for a new job. `id` is the unparsed id in the query. Returns the id of the
/// job, if the request has one, and its message.
///
/// # Errors
///
/// Returns a 400 if the body is not a message, if the id in the query is not a UUID, or if the ids
/// in query and body differ.
pub fn parse_creation(id: Option<&str>, body: &[u8]) -> Result<(Option<JobId>, Message), Problem> {
    let message = Message::parse(body).map_err(|error| {
        Problem::malformed(format!("the body must be the job's message: {error}"))
    })?;
    Ok((choose_id(id, &message)?, message))
}

/// Chooses the id from the query or the body. If both have one, they must be equal. An `id` in the
/// body that is not a UUID is ordinary data.
fn choose_id(query_id: Option<&str>, message: &Message) -> Result<Option<JobId>, Problem> {
    let query_id = query_id
        .map(str::parse::<JobId>)
        .transpose()
        .map_err(|error| Problem::malformed(format!("\"id\" in the query: {error}")))?;
    let value = message.get("id").filter(|value| value.kind() == JsonKind::String);
    let body_id = value.and_then(find_item_uuid);
    match (query_id, body_id) {
        (Some(query), Some(body)) if query != body => Err(Problem::malformed(format!(
            "different \"id\" values in query and body: {query} and {body}"
        ))),
        (query, body) => Ok(query.or(body)),
    }
}

/// Lists the active and the ended root jobs of a workflow: a page if there is a `limit`, else all
/// of them.
async fn list_jobs_of_workflow(
    api: web::Data<ApiState>,
    path: web::Path<String>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let [vhost, interval, limit, cursor, states] =
        query.extract(["vhost", "interval", "limit", "cursor", "states"])?;
    let must_list_states = states.map_or(Ok(false), |value| query::parse_flag("states", &value))?;
    query::check_requires("states", must_list_states, "limit", limit.is_some())?;
    let workflow = resolve_workflow(&api, &path, vhost.as_deref()).await?;
    let since = match interval
        .map_or(Ok(INTERVAL_DEFAULT_MINUTES), |text| query::parse_minutes("interval", &text))?
    {
        // 0 lists all ended jobs.
        0 => Timestamp(i64::MIN),
        minutes => {
            Timestamp(clock::now().0.saturating_sub(i64::from(minutes).saturating_mul(MINUTE_NS)))
        }
    };
    let cursor = cursor.as_deref().map_or(Ok(WorkflowCursor::START), WorkflowCursor::parse)?;
    let Some(limit) = limit.as_deref().map(query::parse_limit).transpose()? else {
        let running = Listing::Running { workflow: workflow.clone(), after: 0 };
        let ended = Listing::Ended { workflow, since, after: EndedCursor::NEWEST };
        return stream_lists(&api, vec![("running", running), ("completed", ended)], false).await;
    };
    let bytes_of_both_lists = 2 * page_bytes(limit);
    let page = reads::respond(&api, bytes_of_both_lists, move |reader, response| {
        let running = reader.load_running_root_jobs(&workflow, cursor.running, limit)?;
        let ended = reader.load_ended_root_jobs(&workflow, since, cursor.ended, limit)?;
        let has_more = running.len() == limit as usize || ended.len() == limit as usize;
        let next = WorkflowCursor {
            running: running.last().map_or(cursor.running, |(number, ..)| *number),
            ended: ended.last().map_or(cursor.ended, |(cursor, ..)| *cursor),
        };
        let ended_ids = ended.iter().map(|(_, id, _)| *id).collect();
        let running_ids = running.iter().map(|(_, id, _)| *id).collect();
        let states = running
            .into_iter()
            .map(|(_, id, state)| (id, state))
            .chain(ended.into_iter().map(|(_, id, state)| (id, state)));
        let states = must_list_states.then(|| states.collect());
        response.write_json(&WorkflowPage {
            completed: ended_ids,
            next: has_more.then(|| next.to_text()),
            running: running_ids,
            states,
        })
    });
    page.await
}

#[derive(Serialize, ToSchema)]
#[schema(as = JobsOfWorkflow)]
struct WorkflowPage {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    completed: Vec<JobId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    running: Vec<JobId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    states: Option<BTreeMap<JobId, String>>,
}

/// The cursor of a page with two lists, of running and of ended jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkflowCursor {
    /// The number of the last running job that was listed.
    running: i64,
    /// The last ended job that was listed.
    ended: EndedCursor,
}

impl WorkflowCursor {
    /// The cursor of the first page.
    const START: WorkflowCursor = WorkflowCursor { running: 0, ended: EndedCursor::NEWEST };

    /// Formats the cursor for a response. The client passes it on in its next request.
    pub fn to_text(self) -> String {
        format!("{}.{}.{}", self.running, self.ended.ended.0, self.ended.number)
    }

    /// Parses a cursor that [`WorkflowCursor::to_text`] has formatted.
    ///
    /// # Errors
    ///
    /// Returns a 400 if the text is not such a cursor.
    pub fn parse(text: &str) -> Result<WorkflowCursor, Problem> {
        let numbers: Vec<i64> = text
            .split('.')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .map_err(|_| invalid_cursor(text))?;
        let [running, ended, number] = numbers[..] else { return Err(invalid_cursor(text)) };
        Ok(WorkflowCursor { running, ended: EndedCursor { ended: Timestamp(ended), number } })
    }
}

/// Lists all active jobs and child jobs: a page if there is a `limit`, else all of them.
async fn list_running_jobs(
    api: web::Data<ApiState>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let [limit, cursor] = query.extract(["limit", "cursor"])?;
    let after = cursor.as_deref().map_or(Ok(0), query::parse_cursor)?;
    let Some(limit) = limit.as_deref().map(query::parse_limit).transpose()? else {
        return stream_lists(&api, vec![("jobs", Listing::All { after: 0 })], true).await;
    };
    let page = reads::respond(&api, page_bytes(limit), move |reader, response| {
        let page = reader.load_running_jobs(after, limit)?;
        let next = page
            .last()
            .filter(|_| page.len() == limit as usize)
            .map(|(number, _)| number.to_string());
        response.write_json(&JobsPage { jobs: page.into_iter().map(|(_, id)| id).collect(), next })
    });
    page.await
}

#[derive(Serialize, ToSchema)]
#[schema(as = RunningJobs)]
struct JobsPage {
    jobs: Vec<JobId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// A list of job ids that is read page by page. `after` is the last job that was read.
enum Listing {
    /// All active jobs and child jobs.
    All { after: i64 },
    /// The active root jobs of a workflow.
    Running { workflow: String, after: i64 },
    /// The root jobs of a workflow that have ended since a time.
    Ended { workflow: String, since: Timestamp, after: EndedCursor },
}

impl Listing {
    /// Reads the next page, and moves `after` to its last job.
    fn next_page(&mut self, reader: &dyn Records) -> Result<Vec<JobId>, JournalError> {
        match self {
            Listing::All { after } => {
                let page = reader.load_running_jobs(*after, PAGE_ROWS)?;
                *after = page.last().map_or(*after, |(number, _)| *number);
                Ok(page.into_iter().map(|(_, id)| id).collect())
            }
            Listing::Running { workflow, after } => {
                let page = reader.load_running_root_jobs(workflow, *after, PAGE_ROWS)?;
                *after = page.last().map_or(*after, |(number, ..)| *number);
                Ok(page.into_iter().map(|(_, id, _)| id).collect())
            }
            Listing::Ended { workflow, since, after } => {
                let page = reader.load_ended_root_jobs(workflow, *since, *after, PAGE_ROWS)?;
                *after = page.last().map_or(*after, |(cursor, ..)| *cursor);
                Ok(page.into_iter().map(|(_, id, _)| id).collect())
            }
        }
    }
}

/// Streams a JSON object whose values are lists of ids, page by page, so that a list is never in
/// memory as a whole. Omits empty lists unless `must_write_empty_lists` is set.
async fn stream_lists(
    api: &Arc<ApiState>,
    lists: Vec<(&'static str, Listing)>,
    must_write_empty_lists: bool,
) -> Result<HttpResponse, Problem> {
    // This is checked before the response begins: afterwards no status could report an error.
    reads::read_small(api, |reader| reader.ensure_projected()).await?;
    let state = ListStream {
        reader: api.reader.clone(),
        lists: lists.into_iter().rev().collect(),
        has_begun: false,
        is_in_list: false,
        has_list: false,
        must_write_empty_lists,
        has_ended: false,
    };
    let chunks = stream_chunks(api, state, ListStream::next_chunk);
    Ok(HttpResponse::Ok().content_type(mime::APPLICATION_JSON).streaming(chunks))
}

/// A JSON object of lists that is streamed.
struct ListStream {
    reader: Arc<dyn Records>,
    /// The lists that are still to be written, each with its key, in reverse order: the last one is
    /// written next.
    lists: Vec<(&'static str, Listing)>,
    /// Whether the object was begun.
    has_begun: bool,
    /// Whether a list was begun and not ended.
    is_in_list: bool,
    /// Whether any list was begun.
    has_list: bool,
    /// Whether empty lists are written.
    must_write_empty_lists: bool,
    /// Whether the object was ended.
    has_ended: bool,
}

impl ListStream {
    /// Reads one page, and formats it. Returns `None` at the end.
    fn next_chunk(&mut self) -> Result<Option<Bytes>, JournalError> {
        if self.has_ended {
            return Ok(None);
        }
        let mut text = String::new();
        if !self.has_begun {
            self.has_begun = true;
            text.push('{');
        }
        let Some((key, listing)) = self.lists.last_mut() else {
            self.has_ended = true;
            text.push('}');
            return Ok(Some(text.into()));
        };
        let ids = listing.next_page(&*self.reader)?;
        let begins_list = !self.is_in_list;
        if begins_list && (!ids.is_empty() || self.must_write_empty_lists) {
            text.push_str(&format!("{}\"{key}\":[", if self.has_list { "," } else { "" }));
            self.is_in_list = true;
            self.has_list = true;
        }
        for (index, id) in ids.iter().enumerate() {
            let separator = if begins_list && index == 0 { "" } else { "," };
            text.push_str(&format!("{separator}\"{id}\""));
        }
        if ids.len() < PAGE_ROWS as usize {
            if self.is_in_list {
                text.push(']');
            }
            self.is_in_list = false;
            self.lists.pop();
            if self.lists.is_empty() {
                self.has_ended = true;
                text.push('}');
            }
        }
        Ok(Some(text.into()))
    }
}

/// Shows a job. Ended jobs are shown until their retention ends.
async fn get_job(
    api: web::Data<ApiState>,
    request: HttpRequest,
    path: web::Path<String>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let [view, at] = query.extract(["view", "at"])?;
    let is_light = view.as_deref().map_or(Ok(false), query::parse_is_light)?;
    let id = parse_job_id(&path)?;
    if let Some(at) = at {
        let entry_number = history::parse_entry_number("at", &at)?;
        return history::get_job_at(&api, id, entry_number, is_light).await;
    }
    let now = clock::now();
    if is_light {
        return get_light_job(&api, id, now, IfNoneMatch::parse(&request).ok()).await;
    }
    let read = reads::with_job(&api, id, move |stored, response| {
        response.write_json(&JobView::whole(&stored.job, now))
    });
    let ((), response) = read.await?;
    Ok(response.into_response())
}

/// Shows the light view of a job. For an active job, its actor makes the view, at a cost that does
/// not depend on the length of the record. A client that already has this state of the job gets
/// 304.
async fn get_light_job(
    api: &Arc<ApiState>,
    id: JobId,
    now: Timestamp,
    if_none_match: Option<IfNoneMatch>,
) -> Result<HttpResponse, Problem> {
    let to_tag =
        |created: Timestamp, entries| EntityTag::new_strong(format!("{}-{entries}", created.0));
    let client_tags = if_none_match.clone();
    let inspection = active_jobs::inspect_job(api, id, move |job| {
        let tag = to_tag(job.origin().created, job.entry_count());
        if matches_etag(client_tags.as_ref(), &tag) {
            return Some((tag, None));
        }
        let body = serde_json::to_vec(&JobView::light(job, now)).ok()?;
        Some((tag, Some(body)))
    });
    if let Some((tag, body)) = inspection.await.flatten() {
        let Some(body) = body else { return Ok(respond_not_modified(tag)) };
        let mut response = HttpResponse::Ok();
        response.insert_header(ETag(tag)).content_type(mime::APPLICATION_JSON);
        return Ok(response.body(body));
    }
    let version = read_small(api, move |reader| reader.record_version(id)).await?;
    let version = version.ok_or_else(|| Problem::unknown_job(id))?;
    let stored_tag = to_tag(version.created, version.entries);
    if matches_etag(if_none_match.as_ref(), &stored_tag) {
        return Ok(respond_not_modified(stored_tag));
    }
    let read = reads::with_job(api, id, move |stored, response| {
        response.write_json(&JobView::light(&stored.job, now))?;
        Ok((stored.job.origin().created, stored.job.entry_count()))
    });
    let ((created, entries), buffered) = read.await?;
    let mut response = buffered.into_response();
    if let Ok(value) = ETag(to_tag(created, entries)).try_into_value() {
        response.headers_mut().insert(header::ETAG, value);
    }
    Ok(response)
}

/// Responds that the client already has the state with this tag.
fn respond_not_modified(tag: EntityTag) -> HttpResponse {
    HttpResponse::NotModified().insert_header(ETag(tag)).finish()
}

/// Returns whether a header `If-None-Match` lists the tag. `*` does not count.
pub(super) fn matches_etag(if_none_match: Option<&IfNoneMatch>, tag: &EntityTag) -> bool {
    match if_none_match {
        Some(IfNoneMatch::Items(tags)) => tags.iter().any(|listed| listed.weak_eq(tag)),
        Some(IfNoneMatch::Any) | None => false,
    }
}

/// Shows the result of a completed job, and nothing else.
async fn get_job_result(
    api: web::Data<ApiState>,
    path: web::Path<String>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    query.check_empty()?;
    let id = parse_job_id(&path)?;
    let read = reads::with_job(&api, id, move |stored, response| {
        let state = stored.job.state();
        if state != JobState::Completed {
            return Err(Problem::conflict(format!(
                "job {id} is {}: only a completed job has a result",
                state.as_str()
            )));
        }
        response.write_json(&stored.job.result())
    });
    let ((), response) = read.await?;
    Ok(response.into_response())
}

/// Cancels an active job. An ended job is erased only if the request has `erase`, so that a
/// repeated cancellation erases nothing. Without `erase` the response is the state of the ended
/// job.
async fn cancel_or_erase(
    api: web::Data<ApiState>,
    path: web::Path<String>,
    query: Query,
    principal: PrincipalName,
) -> Result<HttpResponse, Problem> {
    let [erase] = query.extract(["erase"])?;
    let must_erase = erase.map_or(Ok(false), |value| query::parse_flag("erase", &value))?;
    let id = parse_job_id(&path)?;
    if must_erase {
        respond_erased(id, api.active()?.erase(id).await)
    } else {
        respond(id, api.active()?.cancel(id, principal.0).await)
    }
}
