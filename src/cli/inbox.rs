//! `inbox`: lists the steps that wait for people, those that have waited longest first.

use super::arguments::InboxArguments;
use super::client::Client;
use super::error::ClientError;
use super::list_printer::{ListStyle, Listing};
use super::operate::format_columns;
use super::responses::{parse_list, parse_response};
use super::table::{ColumnRole, Table};
use super::text::Text;
use serde::Deserialize;
use serde_json::Value;
use std::io::Write;

/// A page of the steps that wait.
#[derive(Deserialize)]
struct InboxResponse {
    /// How many there are on all pages.
    count: usize,
    steps: Vec<AskedStepResponse>,
}

/// A step that waits.
#[derive(Deserialize)]
struct AskedStepResponse {
    job: Text,
    workflow: Text,
    step: Text,
    status: Text,
    since: Text,
    label: Option<Text>,
    #[serde(default)]
    columns: Value,
}

/// Runs `inbox`.
pub(super) fn list_inbox(
    arguments: &InboxArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let InboxArguments { workflow, limit, list } = arguments;
    let workflow = workflow.as_ref().map(|name| ("workflow".to_owned(), name.clone()));
    let limit = ("limit".to_owned(), limit.to_string());
    let query: Vec<(String, String)> = workflow.into_iter().chain([limit]).collect();
    let body = Client::new(&list.target)?.query("/api/inbox", &query)?;
    let style = ListStyle::from_arguments(list.format, list.times);
    let InboxResponse { count, steps } = parse_response(&body)?;
    let mut table = Table::new(&[
        ("JOB", ColumnRole::Key),
        ("WORKFLOW", ColumnRole::Plain),
        ("STEP", ColumnRole::Plain),
        ("STATUS", ColumnRole::Plain),
        ("WAITS SINCE", ColumnRole::Time),
        ("LABEL", ColumnRole::Long),
        ("COLUMNS", ColumnRole::Long),
    ]);
    for asked in &steps {
        table.add_row([
            &*asked.job,
            &*asked.workflow,
            &*asked.step,
            &*asked.status,
            &*asked.since,
            asked.label.as_deref().unwrap_or_default(),
            &format_columns(&asked.columns),
        ]);
    }
    let entries = parse_list(&body, "steps")?;
    Listing { body: &body, entries, table, empty_text: "no step waits for a person" }
        .print(style, out)?;
    if style.is_for_people() && !steps.is_empty() {
        let more = count.saturating_sub(steps.len());
        if more > 0 {
            writeln!(out, "… {more} more: --limit shows more of them")?;
        }
        writeln!(out, "… complete one: complete JOB STEP --message JSON")?;
    }
    Ok(())
}
