//! `reasons`: tells why jobs and child jobs failed, with a row for each reason.

use super::arguments::ReasonsArguments;
use super::client::Client;
use super::error::ClientError;
use super::list_printer::{ListStyle, Listing};
use super::responses::{parse_list, parse_response};
use super::table::{ColumnRole, Table};
use super::text::Text;
use serde::Deserialize;
use std::io::Write;

/// The failures, as far as they are grouped.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReasonsResponse {
    failures: u64,
    /// Whether there may be older failures, which are not counted.
    #[serde(default)]
    failures_is_minimum: bool,
    reasons: Vec<ReasonResponse>,
}

/// The failures of one workflow for one reason.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReasonResponse {
    reason: Text,
    reason_id: Text,
    workflow: Text,
    count: u64,
    children: u64,
    first: Text,
    last: Text,
    job: Text,
}

/// Runs `reasons`.
pub(super) fn list_reasons(
    arguments: &ReasonsArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let ReasonsArguments { workflow, ended_after, ended_before, list } = arguments;
    let parameters =
        [("workflow", workflow), ("endedAfter", ended_after), ("endedBefore", ended_before)];
    let query: Vec<(String, String)> = parameters
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value.clone()?)))
        .collect();
    let body = Client::new(&list.target)?.query("/api/reasons", &query)?;
    let style = ListStyle::from_arguments(list.format, list.times);
    let response: ReasonsResponse = parse_response(&body)?;
    let mut table = Table::new(&[
        ("REASON ID", ColumnRole::Key),
        ("WORKFLOW", ColumnRole::Plain),
        ("FAILED", ColumnRole::Plain),
        ("CHILD JOBS", ColumnRole::Plain),
        ("LAST", ColumnRole::Time),
        ("REASON", ColumnRole::Long),
        ("FIRST", ColumnRole::Time),
        ("NEWEST JOB", ColumnRole::Extra),
    ]);
    for reason in &response.reasons {
        table.add_row([
            &*reason.reason_id,
            &*reason.workflow,
            &reason.count.to_string(),
            &reason.children.to_string(),
            &*reason.last,
            &*reason.reason,
            &*reason.first,
            &*reason.job,
        ]);
    }
    let entries = parse_list(&body, "reasons")?;
    let empty_text = "no job has failed";
    Listing { body: &body, entries, table, empty_text }.print(style, out)?;
    if style.is_for_people() && response.failures_is_minimum {
        writeln!(out, "… only the newest {} failures are counted", response.failures)?;
    }
    Ok(())
}
