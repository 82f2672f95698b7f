//! Shows the record of a job: its entries, and the job as it was after any of them.

use super::problem::Problem;
use super::query::{self, Query};
use super::reads::PAGE_ROWS;
use super::reads::{self, read_small};
use super::resolve::parse_job_id;
use super::route::*;
use crate::api::state::ApiState;
use crate::view::{EntryView, JobView};
use actix_web::{HttpResponse, web};
use engine::JobId;
use journal::JobAtEntry;
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

pub(super) const ROUTES: &[ApiRoute] =
    &[ApiRoute::get("/api/job/{id}/entries", || web::to(list_entries)).operation(|schemas| {
        OperationSpec::new("listEntries", "jobs", "The record of a job, entry by entry")
            .with_parameters(&[ENTRY_AFTER, LIMIT])
            .with_json_response(200, "The entries", schemas.reference::<Page<'_>>())
            .with_problems(&[404])
    })];

/// The most bytes that the rows of a page have together. Only the last row may exceed it.
pub(super) const PAGE_BYTES_MAX: usize = 1 << 20;

/// The memory that a row takes while it is read and shown, as a multiple of its size: its text, the
/// parsed entries, and the response.
const RENDERED_FACTOR: usize = 3;

#[derive(Serialize, ToSchema)]
#[schema(as = Record)]
struct Page<'a> {
    entries: Vec<EntryView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
}

/// Lists a page of the entries of a job.
async fn list_entries(
    api: web::Data<ApiState>,
    path: web::Path<String>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let [after, limit] = query.extract(["after", "limit"])?;
    let id = parse_job_id(&path)?;
    let after = after.as_deref().map_or(Ok(0), |text| parse_entry_number("after", text))?;
    let limit = limit.as_deref().map_or(Ok(PAGE_ROWS), query::parse_limit)?;
    let job_bytes = read_small(&api, move |reader| reader.rebuild_bytes(id))
        .await?
        .ok_or_else(|| Problem::unknown_job(id))?;
    // The last row of a page may exceed its limit, by one reply.
    let page_bytes = job_bytes.min(PAGE_BYTES_MAX + api.limits.reply_bytes_max);
    let page = reads::respond(&api, RENDERED_FACTOR * page_bytes, move |reader, response| {
        let page = reader
            .load_record_page(id, after, limit, PAGE_BYTES_MAX)?
            .ok_or_else(|| Problem::unknown_job(id))?;
        let rows = page.rows.iter();
        response.write_json(&Page {
            entries: rows.flat_map(|row| EntryView::from_row(page.graph(), row)).collect(),
            next: page.next_cursor(),
        })
    });
    page.await
}

/// Shows the job as it was after this entry.
pub(super) async fn get_job_at(
    api: &Arc<ApiState>,
    id: JobId,
    entry_number: u64,
    is_light: bool,
) -> Result<HttpResponse, Problem> {
    let read = reads::with_job_at_entry(api, id, entry_number, move |job_at_entry, response| {
        match job_at_entry {
            JobAtEntry::Found { job, at } if is_light => {
                response.write_json(&JobView::light(job, *at))
            }
            JobAtEntry::Found { job, at } => response.write_json(&JobView::whole(job, *at)),
            JobAtEntry::NoSuchEntry { entries } => Err(unknown_entry(id, entry_number, *entries)),
        }
    });
    let ((), response) = read.await?;
    Ok(response.into_response())
}

/// Returns the 404 for an entry that the record does not have. `entries` is the number of entries.
pub(super) fn unknown_entry(id: JobId, entry_number: u64, entries: u64) -> Problem {
    Problem::not_found(format!(
        "at is {entry_number}, but the record of job {id} has the entries 1 to {entries}; GET \
         /api/job/{id}/entries lists them"
    ))
}

/// Parses the number of an entry, from the query parameter `key`.
pub(super) fn parse_entry_number(key: &str, text: &str) -> Result<u64, Problem> {
    let number: Option<u64> = text.parse().ok();
    number.filter(|number| *number <= NUMBER_MAX).ok_or_else(|| {
        Problem::malformed(format!(
            "{key} is {text:?}, expected the number of an entry: a whole number, the first is 1"
        ))
    })
}
