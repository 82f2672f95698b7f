//! The record of a job: its entries, and the job as it was after any of them.

use super::named::job_id;
use super::problem::Problem;
use super::query::{self, Query};
use super::reads::PAGE_ROWS;
use super::reads::{self, read};
use crate::actors::common::Common;
use crate::engine::JobId;
use crate::journal::{JobAt, Records};
use crate::view::{EntryView, JobView};
use actix_web::{HttpResponse, web};
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

/// A page reads rows up to this total size, in bytes; the last row may exceed it.
pub(super) const PAGE_BYTES_MAX: usize = 1 << 20;

/// The largest number that an entry could have: the journal stores it as a signed number.
pub(super) const NUMBER_MAX: u64 = i64::MAX as u64;

/// What a row takes while it is read and shown, as a multiple of its size: its text, what is
/// parsed, and the response.
const SHOWN_FACTOR: usize = 3;

#[derive(Serialize, ToSchema)]
#[schema(as = Record)]
pub(super) struct Page<'a> {
    entries: Vec<EntryView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
}

/// Handles `GET /api/job/{id}/entries[?after=N][&limit=N]`.
pub(super) async fn of_job(
    common: web::Data<Common>,
    path: web::Path<String>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let [after, limit] = query.of(["after", "limit"])?;
    let id = job_id(&path)?;
    let after = after.as_deref().map_or(Ok(0), |text| number("after", text))?;
    let limit = limit.as_deref().map_or(Ok(PAGE_ROWS), query::limit)?;
    let job_bytes = read(&common, move |reader| reader.job_bytes(id))
        .await?
        .ok_or_else(|| Problem::unknown_job(id))?;
    let bytes = job_bytes.min(PAGE_BYTES_MAX + common.limits.reply_bytes_max);
    let page = reads::answer(&common, SHOWN_FACTOR * bytes, move |reader, answer| {
        let page = reader
            .record(id, after, limit, PAGE_BYTES_MAX)?
            .ok_or_else(|| Problem::unknown_job(id))?;
        let rows = page.rows.iter();
        answer.json(&Page {
            entries: rows.flat_map(|row| EntryView::of_row(page.graph(), row)).collect(),
            next: page.next(),
        })
    });
    page.await
}

/// Shows the job as it was after the entry numbered `at`.
pub(super) async fn at(
    common: &Arc<Common>,
    id: JobId,
    at: u64,
    is_light: bool,
) -> Result<HttpResponse, Problem> {
    let load =
        move |reader: &dyn Records| reader.job_at(id, at)?.ok_or_else(|| Problem::unknown_job(id));
    let shown = reads::rebuilt(common, id, load, move |then, answer| match then {
        JobAt::Was { job, at } if is_light => answer.json(&JobView::light(&job, at)),
        JobAt::Was { job, at } => answer.json(&JobView::whole(&job, at)),
        JobAt::Never { entries } => Err(no_entry(id, at, entries)),
    });
    Ok(shown.await?.1.into_response())
}

/// Returns the problem of an entry that the record does not have.
pub(super) fn no_entry(id: JobId, at: u64, entries: u64) -> Problem {
    Problem::not_found(format!(
        "at is {at}, but the record of job {id} has the entries 1 to {entries}; GET \
         /api/job/{id}/entries lists them"
    ))
}

/// Parses the number of an entry.
pub(super) fn number(key: &str, text: &str) -> Result<u64, Problem> {
    let number: Option<u64> = text.parse().ok();
    number.filter(|number| *number <= NUMBER_MAX).ok_or_else(|| {
        Problem::malformed(format!(
            "{key} is {text:?}, expected the number of an entry: a whole number, the first is 1"
        ))
    })
}
