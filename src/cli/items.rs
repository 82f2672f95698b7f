//! `items`: prints how many items of a fan-out are in which state, and their child jobs.

use super::arguments::{Format, ItemsArguments};
use super::client::Client;
use super::error::ClientError;
use super::job::{ChildrenPage, children_table};
use super::list_printer::{ListStyle, Listing};
use super::responses::{JobResponse, parse_list, parse_response};
use super::table::{ColumnRole, Table};
use super::text::Text;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use std::io::Write;

/// How many items are in which state.
#[derive(Deserialize)]
struct CountsResponse {
    items: u64,
    waiting: u64,
    running: u64,
    completed: u64,
    failed: u64,
    #[serde(default)]
    cancelled: u64,
    /// How many child jobs may run at once.
    window: Option<u64>,
    /// How many items may fail, as the workflow file says: a number or a percentage. `None` if it
    /// says nothing.
    tolerate: Option<Text>,
    /// How many items may fail, as a number.
    tolerated: Option<u64>,
}

/// The items that failed, grouped by reason.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReasonsResponse {
    /// How many failed items were grouped.
    failed: u64,
    /// Whether more than `failed` items have failed. They were not grouped.
    failed_is_minimum: bool,
    reasons: Vec<ReasonResponse>,
}

/// A group of items whose reasons have the same pattern.
#[derive(Deserialize)]
struct ReasonResponse {
    reason: Text,
    /// Why the first item of the group failed.
    example: Option<Text>,
    count: u64,
    /// The index of the first item of the group.
    item: u64,
    /// The child job of that item.
    job: Text,
}

/// Runs `items ID [STEP]`: prints the counts, then the child jobs or the reasons for failures.
pub(super) fn list_items(
    arguments: &ItemsArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let client = Client::new(&arguments.list.target)?;
    let style = ListStyle::from_arguments(arguments.list.format, arguments.list.times);
    let job = format!("/api/job/{}", arguments.id.resolve(&client)?);
    let step = arguments.step.clone().map_or_else(|| find_fan_out(&client, &job), Ok)?;
    let items = format!("{job}/step/{}/items", utf8_percent_encode(&step, NON_ALPHANUMERIC));
    let counts = client.get(&items)?;
    if style.is_for_people() {
        print_counts(&parse_response(&counts)?, out)?;
    }
    if arguments.reasons {
        return print_reasons(&client, &items, style, out);
    }
    let state = if arguments.failed { Some("failed".to_owned()) } else { arguments.state.clone() };
    let optional_parameters = [("state", state), ("after", arguments.after.clone())];
    let mut query =
        vec![("step".to_owned(), step), ("limit".to_owned(), arguments.limit.to_string())];
    query.extend(
        optional_parameters.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))),
    );
    let body = client.query(&format!("{job}/children"), &query)?;
    let page: ChildrenPage = parse_response(&body)?;
    let (table, entries) = (children_table(&page.children), parse_list(&body, "children")?);
    // JSON combines two responses: it adds the counts to the object of the list.
    let list_members = body.trim_start().strip_prefix('{').unwrap_or("}");
    let combined = format!("{{\"counts\":{counts},{list_members}");
    let body = if style.format == Format::Json { &combined } else { &body };
    Listing { body, entries, table, empty_text: "no such child jobs" }.print(style, out)?;
    page.print_next_page_hint(style, out)?;
    Ok(())
}

/// Returns the name of the only step of a job that has items. `job` is the path of the job.
fn find_fan_out(client: &Client, job: &str) -> Result<String, ClientError> {
    let response: JobResponse = parse_response(&client.get(&format!("{job}?view=light"))?)?;
    let mut names: Vec<String> = response
        .steps
        .iter()
        .filter(|step| step.children.is_some())
        .map(|step| step.name.to_string())
        .collect();
    match names.len() {
        1 => Ok(names.remove(0)),
        0 => Err(ClientError::Refused(format!(
            "no step of job {} has items, or none has them yet",
            response.uuid
        ))),
        _ => Err(ClientError::Usage(format!(
            "several steps of job {0} have items. Name one of them: items {0} {1}",
            response.uuid,
            names.join("|")
        ))),
    }
}

/// Prints the reasons for failures, each with its count and its first item.
fn print_reasons(
    client: &Client,
    path: &str,
    style: ListStyle,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let body = client.get(&format!("{path}?format=reasons"))?;
    let response: ReasonsResponse = parse_response(&body)?;
    let mut table = Table::new(&[
        ("CHILD JOB", ColumnRole::Key),
        ("ITEM", ColumnRole::Plain),
        ("COUNT", ColumnRole::Key),
        ("REASON", ColumnRole::Long),
    ]);
    for ReasonResponse { reason, example, count, item, job } in &response.reasons {
        // What a single item says is shown whole.
        let text = example.as_ref().filter(|_| *count == 1).unwrap_or(reason);
        table.add_row([&**job, &item.to_string(), &count.to_string(), &**text]);
    }
    let entries = parse_list(&body, "reasons")?;
    Listing { body: &body, entries, table, empty_text: "no item has failed" }.print(style, out)?;
    if response.failed_is_minimum && style.is_for_people() {
        writeln!(out, "… only the first {} items that failed were examined", response.failed)?;
    }
    Ok(())
}

fn print_counts(counts: &CountsResponse, out: &mut dyn Write) -> Result<(), ClientError> {
    let CountsResponse { items, waiting, running, completed, failed, cancelled, .. } = counts;
    write!(
        out,
        "{items} items: {completed} completed, {running} running, {waiting} waiting, \
         {failed} failed"
    )?;
    if *cancelled > 0 {
        write!(out, ", {cancelled} cut off by the end of the step")?;
    }
    writeln!(out)?;
    if let Some(window) = counts.window {
        writeln!(out, "at most {window} at once")?;
    }
    let tolerated = counts.tolerated.filter(|tolerated| *tolerated > 0);
    if let (Some(tolerate), Some(tolerated)) = (&counts.tolerate, tolerated) {
        writeln!(out, "{tolerated} may fail (tolerate {tolerate})")?;
    }
    writeln!(out)?;
    Ok(())
}
