//! The commands that search for jobs, and operate on one job, on all jobs that match a filter, or
//! on steps.

use super::arguments::{
    ClientArguments, CompleteArguments, FilterArguments, JobRef, OperateArguments,
    RedispatchArguments, SearchArguments, TimeArguments,
};
use super::client::Client;
use super::confirm;
use super::error::ClientError;
use super::list_printer::{self, ListStyle, Listing};
use super::plural::format_count;
use super::responses::{parse_list, parse_response};
use super::run::read_message;
use super::screen::{Screen, print_json};
use super::table::{ColumnRole, Table};
use super::text::Text;
use engine::text::escape;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::Value;
use std::io::Write;
use std::process::ExitCode;

/// The text that is printed if no job matches.
const NO_JOBS_TEXT: &str = "no jobs are found";

/// The response to an operation on a job.
#[derive(Deserialize)]
struct OperationResponse {
    id: Text,
    state: Text,
}

/// The response to an operation on a step.
#[derive(Deserialize)]
struct StepOperationResponse {
    id: Text,
    state: Text,
    step: StepStateResponse,
}

/// The state of a step after an operation.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StepStateResponse {
    name: Text,
    state: Text,
    #[serde(default)]
    status: Text,
    attempt: u32,
    reason: Option<Text>,
    /// When the next attempt begins; `None` if none is planned.
    retry_at: Option<Text>,
}

impl StepStateResponse {
    /// Describes the state of the step in one sentence.
    fn describe(&self) -> String {
        let StepStateResponse { name, state, status, attempt, .. } = self;
        let reason = self.reason.as_deref().unwrap_or("no reason");
        match &self.retry_at {
            Some(retry_at) => format!(
                "attempt {attempt} of step {name} failed: {reason}; the next attempt follows at \
                 {retry_at}"
            ),
            None if *state == "failed" => {
                format!("step {name} failed at attempt {attempt}: {reason}")
            }
            None => format!("step {name} is {state} with status {status}"),
        }
    }
}

/// A job that a search or filter has found.
#[derive(Deserialize)]
struct JobMatchResponse {
    job: Text,
    workflow: Text,
    state: Text,
    created: Text,
    ended: Option<Text>,
    reason: Option<Text>,
    /// When it begins; `None`: it has begun.
    #[serde(rename = "startsAt")]
    starts_at: Option<Text>,
    /// Whether it has completed although items of its fan-outs failed.
    #[serde(default, rename = "failedItems")]
    has_failed_items: bool,
    label: Option<Text>,
    #[serde(default)]
    columns: Value,
}

impl JobMatchResponse {
    /// Returns why it is as it is: also of a completed job that something was amiss.
    fn reason(&self) -> &str {
        let amiss = if self.has_failed_items { "some items failed" } else { "" };
        self.reason.as_deref().unwrap_or(amiss)
    }
}

/// A page of search results.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SearchResponse {
    jobs: Vec<JobMatchResponse>,
    /// The cursor of the next page. `None` on the last page.
    next: Option<Text>,
    /// How many jobs match in all, if that was requested.
    count: Option<u64>,
    /// Whether the manager stopped counting at `count`, so that there may be more.
    #[serde(default)]
    count_is_minimum: bool,
}

/// The response to an operation on all jobs that match a filter.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BulkResponse {
    /// How many jobs match, up to the limit of the filter.
    matched: usize,
    /// On how many jobs the operation was carried out.
    #[serde(default)]
    done: usize,
    /// How many jobs refused the operation.
    #[serde(default)]
    refused: usize,
    /// The first refusals.
    #[serde(default)]
    refusals: Vec<RefusalResponse>,
    /// The matching jobs, in the response to a dry run.
    #[serde(default)]
    jobs: Vec<JobMatchResponse>,
    /// A cursor if more jobs match than the limit of the filter.
    next: Option<Text>,
}

/// Why a job refused an operation.
#[derive(Deserialize)]
struct RefusalResponse {
    reason: Text,
}

/// Runs `search`: lists the jobs that match a filter.
pub(super) fn search(arguments: &SearchArguments, out: &mut dyn Write) -> Result<(), ClientError> {
    let SearchArguments { filter, id, parent, .. } = arguments;
    let client = Client::new(&arguments.list.target)?;
    let mut query = filter_query(filter);
    let parent = parent.as_ref().map(|parent| parent.resolve(&client)).transpose()?;
    let optional_parameters = [
        ("id", id.clone()),
        ("parent", parent.map(|parent| parent.to_string())),
        ("order", Some(arguments.order.as_str().to_owned())),
        ("count", arguments.count.then(|| "true".to_owned())),
        ("cursor", arguments.cursor.clone()),
    ];
    query.extend(
        optional_parameters.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))),
    );
    let body = client.query("/api/jobs/search", &query)?;
    let style = ListStyle::from_arguments(arguments.list.format, arguments.list.times);
    let page: SearchResponse = parse_response(&body)?;
    let (table, entries) = (jobs_table(&page.jobs), parse_list(&body, "jobs")?);
    Listing { body: &body, entries, table, empty_text: NO_JOBS_TEXT }.print(style, out)?;
    if !style.is_for_people() {
        return Ok(());
    }
    if let Some(count) = page.count {
        let qualifier = if page.count_is_minimum { "at least " } else { "" };
        writeln!(out, "{qualifier}{count} in all")?;
    }
    if let Some(next) = &page.next {
        let shown_count = page.jobs.len();
        writeln!(
            out,
            "… only {shown_count} are shown; --limit shows more, --cursor {next} the next ones"
        )?;
    }
    Ok(())
}

/// Runs `cancel`, `pause`, `resume`, `retry`, `rerun` or `delete`, on one job or on all that match
/// a filter. `parameters` are those that only this operation has. The exit code is 1 if any job
/// refuses.
pub(super) fn operate(
    operation: &str,
    parameters: &[(&str, Option<String>)],
    arguments: &OperateArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    let client = Client::new(&arguments.client.target)?;
    if operation == "delete" && arguments.reason.is_some() {
        let text = "--reason: a deletion keeps none, for nothing is left that could tell it";
        return Err(ClientError::Usage(text.to_owned()));
    }
    let reason = ("reason", arguments.reason.clone());
    let parameters: Vec<(String, String)> = parameters
        .iter()
        .chain([&reason])
        .filter_map(|(key, value)| Some(((*key).to_owned(), value.clone()?)))
        .collect();
    let Some(id) = &arguments.id else {
        let FilterArguments {
            workflow,
            state,
            status,
            schedule,
            column,
            label,
            reason_id,
            failed_items,
            after,
            before,
            ended_after,
            ended_before,
            limit: _,
        } = &arguments.filter;
        if workflow.is_none()
            && state.is_none()
            && status.is_empty()
            && schedule.is_none()
            && column.is_empty()
            && label.is_none()
            && reason_id.is_none()
            && !failed_items
            && after.is_none()
            && before.is_none()
            && ended_after.is_none()
            && ended_before.is_none()
        {
            let text = format!(
                "{operation} needs a job's id, or a filter for several: --workflow, --state, \
                 --status, --schedule, --column, --label, --reason-id, --failed-items, --after, \
                 --before, --ended-after or --ended-before"
            );
            return Err(ClientError::Usage(text));
        }
        return operate_on_all(operation, parameters, arguments, &client, out);
    };
    let id = id.resolve(&client)?;
    let body = match operation {
        "delete" => client.delete(&format!("/api/job/{id}?erase=true"))?,
        _ => client.post(&format!("/api/job/{id}/{operation}"), &parameters, "")?,
    };
    if arguments.client.json {
        print_json(&body, out)?;
    } else {
        let OperationResponse { id, state } = parse_response(&body)?;
        writeln!(out, "job {id} is {state}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Operates on all jobs that match the filter, up to its limit. A person is asked to confirm a
/// destructive operation.
fn operate_on_all(
    operation: &str,
    parameters: Vec<(String, String)>,
    arguments: &OperateArguments,
    client: &Client,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    if is_destructive(operation) && !arguments.dry_run && !arguments.yes {
        if !confirm::is_interactive() {
            return Err(ClientError::Usage(format!(
                "{operation} with a filter ends or removes all jobs that it finds: add --yes to \
                 do it, or --dry-run to see which they are"
            )));
        }
        if !confirm_bulk(operation, arguments, client)? {
            writeln!(out, "{operation}: nothing was done")?;
            return Ok(ExitCode::FAILURE);
        }
    }
    let mut query = filter_query(&arguments.filter);
    query.push(("dryRun".to_owned(), arguments.dry_run.to_string()));
    query.extend(parameters);
    let body = client.post(&format!("/api/jobs/{operation}"), &query, "")?;
    let bulk: BulkResponse = parse_response(&body)?;
    let exit_code = if bulk.refused > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    if arguments.client.json {
        print_json(&body, out)?;
        return Ok(exit_code);
    }
    if arguments.dry_run {
        print_jobs(&bulk.jobs, out)?;
        writeln!(
            out,
            "{operation}: {} would be asked; nothing was done",
            format_count(bulk.matched, "job")
        )?;
    } else if bulk.matched == 0 {
        writeln!(out, "{operation}: {NO_JOBS_TEXT}; nothing was done")?;
    } else {
        writeln!(
            out,
            "{operation}: {} of {} done, {} refused",
            bulk.done,
            format_count(bulk.matched, "job"),
            bulk.refused
        )?;
        for refusal in &bulk.refusals {
            writeln!(out, "  {}", refusal.reason)?;
        }
    }
    if bulk.next.is_some() {
        writeln!(out, "… there are more: run it again, or with a higher --limit")?;
    }
    Ok(exit_code)
}

/// Returns whether an operation ends work or removes data. The other operations can be undone or
/// repeated.
fn is_destructive(operation: &str) -> bool {
    matches!(operation, "cancel" | "delete")
}

/// Asks a person to confirm an operation, with the number of jobs that match. The number comes from
/// a dry run, so it may have changed when the operation runs.
fn confirm_bulk(
    operation: &str,
    arguments: &OperateArguments,
    client: &Client,
) -> Result<bool, ClientError> {
    let mut query = filter_query(&arguments.filter);
    query.push(("dryRun".to_owned(), "true".to_owned()));
    let bulk: BulkResponse =
        parse_response(&client.post(&format!("/api/jobs/{operation}"), &query, "")?)?;
    let jobs = format_count(bulk.matched, "job");
    let qualifier = if bulk.next.is_some() { ", the newest of more" } else { "" };
    confirm::confirm(&format!("{operation} {jobs}{qualifier}?"))
}

/// Runs `complete`: completes, or fails, a running step by hand.
pub(super) fn complete(
    arguments: &CompleteArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let client = Client::new(&arguments.client.target)?;
    let id = arguments.id.resolve(&client)?;
    let path = format!("/api/job/{id}/step/{}", encode_segment(&arguments.step));
    let mut query = reason_query(arguments.reason.as_ref());
    let body = match &arguments.error {
        Some(reason) => {
            let body = serde_json::json!({ "error": reason, "retryable": !arguments.no_retry });
            query.push(("type".to_owned(), "error".to_owned()));
            client.post(&path, &query, &body.to_string())?
        }
        None => client.post(&path, &query, &read_message(&arguments.message)?)?,
    };
    if arguments.client.json {
        print_json(&body, out)?;
    } else {
        let StepOperationResponse { id, state, step } = parse_response(&body)?;
        writeln!(out, "{}; job {id} is {state}", step.describe())?;
    }
    Ok(())
}

/// Converts the reason of an operation to query parameters.
fn reason_query(reason: Option<&String>) -> Vec<(String, String)> {
    reason.map(|reason| ("reason".to_owned(), reason.clone())).into_iter().collect()
}

/// Runs `redispatch`: sends the message of one step, or of all steps that wait on a queue, again.
pub(super) fn redispatch(
    arguments: &RedispatchArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    /// How many steps wait on a queue, and to how many jobs they belong.
    #[derive(Deserialize)]
    struct RedispatchResponse {
        steps: usize,
        jobs: usize,
    }
    let client = Client::new(&arguments.client.target)?;
    let (path, mut query) = match (&arguments.id, &arguments.step, &arguments.queue) {
        (Some(id), Some(step), None) => {
            let id = id.resolve(&client)?;
            (format!("/api/job/{id}/step/{}/redispatch", encode_segment(step)), Vec::new())
        }
        (None, None, Some(queue)) => {
            let optional_parameters = [("bus", &arguments.bus), ("vhost", &arguments.vhost)];
            let query = optional_parameters
                .into_iter()
                .filter_map(|(key, value)| Some((key.to_owned(), value.clone()?)))
                .chain([("dryRun".to_owned(), arguments.dry_run.to_string())])
                .collect();
            (format!("/api/queue/{}/redispatch", encode_segment(queue)), query)
        }
        _ => {
            return Err(ClientError::Usage(
                "redispatch needs a job's id and a step, or --queue".to_owned(),
            ));
        }
    };
    query.extend(reason_query(arguments.reason.as_ref()));
    let body = client.post(&path, &query, "")?;
    if arguments.client.json {
        print_json(&body, out)?;
    } else if arguments.queue.is_some() {
        let RedispatchResponse { steps, jobs } = parse_response(&body)?;
        let (steps, jobs) = (format_count(steps, "step message"), format_count(jobs, "job"));
        let outcome =
            if arguments.dry_run { "would be sent again; nothing was done" } else { "sent again" };
        writeln!(out, "{steps} of {jobs} {outcome}")?;
    } else {
        let StepOperationResponse { id, state, step } = parse_response(&body)?;
        writeln!(
            out,
            "the message of step {} is sent again, as attempt {}; job {id} is {state}",
            step.name, step.attempt
        )?;
    }
    Ok(())
}

/// Runs `why ID`: prints in one sentence why a job does not move.
pub(super) fn explain_job(
    id: &JobRef,
    arguments: &ClientArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    #[derive(Deserialize)]
    struct WhyResponse {
        why: Text,
    }
    let client = Client::new(&arguments.target)?;
    let body = client.get(&format!("/api/job/{}/why", id.resolve(&client)?))?;
    if arguments.json {
        print_json(&body, out)?;
    } else {
        writeln!(out, "{}", parse_response::<WhyResponse>(&body)?.why)?;
    }
    Ok(())
}

/// Runs `reload`: makes the manager load its workflow files again.
pub(super) fn reload(arguments: &ClientArguments, out: &mut dyn Write) -> Result<(), ClientError> {
    #[derive(Deserialize)]
    struct ReloadResponse {
        added: Vec<Text>,
        changed: Vec<Text>,
        removed: Vec<Text>,
        unchanged: Vec<Text>,
        warnings: Vec<Text>,
    }
    let body = Client::new(&arguments.target)?.post("/api/reload", &[], "")?;
    if arguments.json {
        print_json(&body, out)?;
        return Ok(());
    }
    let response: ReloadResponse = parse_response(&body)?;
    for (kind_of_change, names) in [
        ("added", response.added),
        ("changed", response.changed),
        ("removed", response.removed),
        ("unchanged", response.unchanged),
    ] {
        if !names.is_empty() {
            writeln!(
                out,
                "{kind_of_change:<10} {}",
                names.iter().map(|name| &**name).collect::<Vec<_>>().join(", ")
            )?;
        }
    }
    for warning in response.warnings {
        writeln!(out, "warning    {warning}")?;
    }
    Ok(())
}

/// Converts a filter to query parameters.
fn filter_query(filter: &FilterArguments) -> Vec<(String, String)> {
    let mut query = vec![("limit".to_owned(), filter.limit.to_string())];
    let optional_parameters = [
        ("workflow", &filter.workflow),
        ("state", &filter.state),
        ("schedule", &filter.schedule),
        ("label", &filter.label),
        ("reasonId", &filter.reason_id),
        ("after", &filter.after),
        ("before", &filter.before),
        ("endedAfter", &filter.ended_after),
        ("endedBefore", &filter.ended_before),
    ];
    query.extend(
        optional_parameters
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value.clone()?))),
    );
    query.extend(filter.failed_items.then(|| ("failedItems".to_owned(), "true".to_owned())));
    query.extend(
        filter
            .status
            .iter()
            .map(|condition| (format!("status.{}", condition.step), condition.status.clone())),
    );
    let columns = filter.column.iter();
    query.extend(columns.map(|column| (format!("column.{}", column.name), column.value.clone())));
    query
}

/// Percent-encodes a segment of a path.
fn encode_segment(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn print_jobs(jobs: &[JobMatchResponse], out: &mut dyn Write) -> Result<(), ClientError> {
    if jobs.is_empty() {
        writeln!(out, "{NO_JOBS_TEXT}")?;
        return Ok(());
    }
    list_printer::print_table(
        &jobs_table(jobs),
        Screen::for_stdout(TimeArguments::default()),
        false,
        out,
    )
}

/// Makes a table with one row for each job.
fn jobs_table(jobs: &[JobMatchResponse]) -> Table {
    let mut table = Table::new(&[
        ("JOB", ColumnRole::Key),
        ("WORKFLOW", ColumnRole::Plain),
        ("STATE", ColumnRole::State),
        ("CREATED", ColumnRole::Time),
        ("ENDED", ColumnRole::Time),
        ("REASON", ColumnRole::Long),
        ("STARTS", ColumnRole::Time),
        ("LABEL", ColumnRole::Long),
        ("COLUMNS", ColumnRole::Long),
    ]);
    for job in jobs {
        table.add_row([
            &*job.job,
            &*job.workflow,
            &*job.state,
            &*job.created,
            job.ended.as_deref().unwrap_or_default(),
            job.reason(),
            job.starts_at.as_deref().unwrap_or_default(),
            job.label.as_deref().unwrap_or_default(),
            &format_columns(&job.columns),
        ]);
    }
    table
}

/// Formats the columns of a job, such as `order=4711 customer=c1`, fit to be printed.
pub(super) fn format_columns(columns: &Value) -> String {
    let format = |(name, value): (&String, &Value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        escape(&format!("{name}={text}")).into_owned()
    };
    columns.as_object().into_iter().flatten().map(format).collect::<Vec<_>>().join(" ")
}
