//! Operations on one job, or on all jobs that match a filter.

use super::arguments::{
    ClientArguments, CompleteArguments, FilterArguments, JobRef, OperateArguments,
    RedispatchArguments, SearchArguments, TimeArguments,
};
use super::ask;
use super::client::Client;
use super::error::ClientError;
use super::listing::{self, Form, Listing};
use super::run::message;
use super::screen::{Screen, print_json};
use super::show::{entries, parse};
use super::table::{Role, Table};
use super::text::Text;
use super::words::counted;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use std::io::Write;
use std::process::ExitCode;

/// The text that is printed if no job matches.
const NOTHING: &str = "no jobs are found";

#[derive(Deserialize)]
struct Changed {
    id: Text,
    state: Text,
}

/// The response to an operation on a step.
#[derive(Deserialize)]
struct OnStep {
    id: Text,
    state: Text,
    step: StepNow,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StepNow {
    name: Text,
    state: Text,
    #[serde(default)]
    status: Text,
    attempt: u32,
    reason: Option<Text>,
    retry_at: Option<Text>,
}

impl StepNow {
    /// Describes the state of the step.
    fn told(&self) -> String {
        let StepNow { name, state, status, attempt, .. } = self;
        let reason = self.reason.as_deref().unwrap_or("no reason");
        match &self.retry_at {
            Some(at) => format!(
                "attempt {attempt} of step {name} failed: {reason}; the next attempt follows at \
                 {at}"
            ),
            None if *state == "failed" => {
                format!("step {name} failed at attempt {attempt}: {reason}")
            }
            None => format!("step {name} is {state} with status {status}"),
        }
    }
}

#[derive(Deserialize)]
struct FoundJob {
    job: Text,
    workflow: Text,
    state: Text,
    created: Text,
    ended: Option<Text>,
    reason: Option<Text>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    jobs: Vec<FoundJob>,
    next: Option<Text>,
    count: Option<u64>,
    #[serde(default)]
    count_is_minimum: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bulk {
    matched: usize,
    #[serde(default)]
    done: usize,
    #[serde(default)]
    refused: usize,
    #[serde(default)]
    refusals: Vec<Refusal>,
    #[serde(default)]
    jobs: Vec<FoundJob>,
    next: Option<Text>,
}

#[derive(Deserialize)]
struct Refusal {
    reason: Text,
}

/// Runs `search`.
pub(super) fn search(
    arguments: &SearchArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    let SearchArguments { filter, id, ended_after, ended_before, parent, .. } = arguments;
    let client = Client::new(&arguments.list.reach)?;
    let mut query = query(filter);
    let parent = parent.as_ref().map(|parent| parent.find(&client)).transpose()?;
    let named = [
        ("id", id.clone()),
        ("endedAfter", ended_after.clone()),
        ("endedBefore", ended_before.clone()),
        ("parent", parent.map(|parent| parent.to_string())),
        ("order", Some(arguments.order.word().to_owned())),
        ("count", arguments.count.then(|| "true".to_owned())),
        ("cursor", arguments.cursor.clone()),
    ];
    query.extend(named.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    let body = client.query("/api/jobs/search", &query)?;
    let form = Form::of(arguments.list.form, arguments.list.times);
    let page: Page = parse(&body)?;
    let (table, entries) = (rows(&page.jobs), entries(&body, "jobs")?);
    Listing { body: &body, entries, table, nothing: NOTHING }.print(form, out)?;
    if !form.is_for_people() {
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(count) = page.count {
        let least = if page.count_is_minimum { "at least " } else { "" };
        writeln!(out, "{least}{count} in all")?;
    }
    if let Some(next) = &page.next {
        let shown = page.jobs.len();
        writeln!(out, "… only {shown} are shown; --limit shows more, --cursor {next} goes on")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `cancel`, `pause`, `resume`, `retry`, `rerun` or `delete`. The exit code is 1 if any job
/// refuses.
pub(super) fn operate(
    word: &str,
    step: Option<&str>,
    arguments: &OperateArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    let client = Client::new(&arguments.client.reach)?;
    if word == "delete" && arguments.reason.is_some() {
        let text = "--reason: a deletion keeps none, for nothing is left that could tell it";
        return Err(ClientError::Usage(text.to_owned()));
    }
    let named = [("step", step), ("reason", arguments.reason.as_deref())];
    let more: Vec<(String, String)> = named
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())))
        .collect();
    let Some(id) = &arguments.id else {
        let FilterArguments { workflow, state, status, after, before, limit: _ } =
            &arguments.filter;
        if workflow.is_none()
            && state.is_none()
            && status.is_empty()
            && after.is_none()
            && before.is_none()
        {
            let text = format!(
                "{word} needs a job's id, or a filter for several: --workflow, --state, --status, \
                 --after or --before"
            );
            return Err(ClientError::Usage(text));
        }
        return all(word, more, arguments, &client, out);
    };
    let id = id.find(&client)?;
    let body = match word {
        "delete" => client.delete(&format!("/api/job/{id}?erase=true"))?,
        _ => client.post(&format!("/api/job/{id}/{word}"), &more, "")?,
    };
    if arguments.client.json {
        print_json(&body, out)?;
    } else {
        let changed: Changed = parse(&body)?;
        writeln!(out, "job {} is {}", changed.id, changed.state)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn all(
    word: &str,
    more: Vec<(String, String)>,
    arguments: &OperateArguments,
    client: &Client,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    if destroys(word) && !arguments.dry_run && !arguments.yes {
        if !ask::is_somebody_there() {
            return Err(ClientError::Usage(format!(
                "{word} with a filter ends or removes all jobs that it finds: add --yes to do it, \
                 or --dry-run to see which they are"
            )));
        }
        if !is_agreed(word, arguments, client)? {
            writeln!(out, "{word}: nothing was done")?;
            return Ok(ExitCode::FAILURE);
        }
    }
    let mut query = query(&arguments.filter);
    query.push(("dryRun".to_owned(), arguments.dry_run.to_string()));
    query.extend(more);
    let body = client.post(&format!("/api/jobs/{word}"), &query, "")?;
    let bulk: Bulk = parse(&body)?;
    let code = if bulk.refused > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    if arguments.client.json {
        print_json(&body, out)?;
        return Ok(code);
    }
    if arguments.dry_run {
        print(&bulk.jobs, out)?;
        writeln!(out, "{word}: {} would be asked; nothing was done", counted(bulk.matched, "job"))?;
    } else {
        writeln!(
            out,
            "{word}: {} of {} done, {} refused",
            bulk.done,
            counted(bulk.matched, "job"),
            bulk.refused
        )?;
        for refusal in &bulk.refusals {
            writeln!(out, "  {}", refusal.reason)?;
        }
    }
    if bulk.next.is_some() {
        writeln!(out, "… there are more: run it again, or with a higher --limit")?;
    }
    Ok(code)
}

/// Returns whether an operation ends work or removes data. The other operations can be undone or
/// repeated.
fn destroys(word: &str) -> bool {
    matches!(word, "cancel" | "delete")
}

/// Asks for a confirmation, with the number of jobs that match.
fn is_agreed(
    word: &str,
    arguments: &OperateArguments,
    client: &Client,
) -> Result<bool, ClientError> {
    let mut query = query(&arguments.filter);
    query.push(("dryRun".to_owned(), "true".to_owned()));
    let bulk: Bulk = parse(&client.post(&format!("/api/jobs/{word}"), &query, "")?)?;
    let (jobs, more) = (counted(bulk.matched, "job"), bulk.next.is_some());
    let more = if more { ", the newest of more" } else { "" };
    ask::agrees(&format!("{word} {jobs}{more}?"))
}

/// Runs `complete`.
pub(super) fn complete(
    arguments: &CompleteArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    let client = Client::new(&arguments.client.reach)?;
    let id = arguments.id.find(&client)?;
    let path = format!("/api/job/{id}/step/{}", encoded(&arguments.step));
    let mut query = why_asked(arguments.reason.as_ref());
    let body = match &arguments.error {
        Some(reason) => {
            let body = serde_json::json!({ "error": reason, "retryable": !arguments.no_retry });
            query.push(("type".to_owned(), "error".to_owned()));
            client.post(&path, &query, &body.to_string())?
        }
        None => client.post(&path, &query, &message(&arguments.message)?)?,
    };
    if arguments.client.json {
        print_json(&body, out)?;
    } else {
        let OnStep { id, state, step } = parse(&body)?;
        writeln!(out, "{}; job {id} is {state}", step.told())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the reason of an operation as a query parameter.
fn why_asked(reason: Option<&String>) -> Vec<(String, String)> {
    reason.map(|reason| ("reason".to_owned(), reason.clone())).into_iter().collect()
}

/// Runs `redispatch`.
pub(super) fn redispatch(
    arguments: &RedispatchArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    #[derive(Deserialize)]
    struct Sent {
        steps: usize,
        jobs: usize,
    }
    let client = Client::new(&arguments.client.reach)?;
    let (path, mut query) = match (&arguments.id, &arguments.step, &arguments.queue) {
        (Some(id), Some(step), None) => {
            let id = id.find(&client)?;
            (format!("/api/job/{id}/step/{}/redispatch", encoded(step)), Vec::new())
        }
        (None, None, Some(queue)) => {
            let place = [("bus", &arguments.bus), ("vhost", &arguments.vhost)].into_iter();
            let place = place.filter_map(|(key, value)| Some((key.to_owned(), value.clone()?)));
            let query =
                place.chain([("dryRun".to_owned(), arguments.dry_run.to_string())]).collect();
            (format!("/api/queue/{}/redispatch", encoded(queue)), query)
        }
        _ => {
            return Err(ClientError::Usage(
                "redispatch needs a job's id and a step, or --queue".to_owned(),
            ));
        }
    };
    query.extend(why_asked(arguments.reason.as_ref()));
    let body = client.post(&path, &query, "")?;
    if arguments.client.json {
        print_json(&body, out)?;
    } else if arguments.queue.is_some() {
        let Sent { steps, jobs } = parse(&body)?;
        let (steps, jobs) = (counted(steps, "step message"), counted(jobs, "job"));
        let told =
            if arguments.dry_run { "would be sent again; nothing was done" } else { "sent again" };
        writeln!(out, "{steps} of {jobs} {told}")?;
    } else {
        let OnStep { id, state, step } = parse(&body)?;
        writeln!(
            out,
            "the message of step {} is sent again, as attempt {}; job {id} is {state}",
            step.name, step.attempt
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `why ID`.
pub(super) fn why(
    id: &JobRef,
    arguments: &ClientArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    #[derive(Deserialize)]
    struct WhyAnswer {
        why: Text,
    }
    let client = Client::new(&arguments.reach)?;
    let body = client.get(&format!("/api/job/{}/why", id.find(&client)?))?;
    if arguments.json {
        print_json(&body, out)?;
    } else {
        writeln!(out, "{}", parse::<WhyAnswer>(&body)?.why)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `reload`.
pub(super) fn reload(
    arguments: &ClientArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    #[derive(Deserialize)]
    struct ReloadAnswer {
        added: Vec<Text>,
        changed: Vec<Text>,
        removed: Vec<Text>,
        unchanged: Vec<Text>,
        warnings: Vec<Text>,
    }
    let body = Client::new(&arguments.reach)?.post("/api/reload", &[], "")?;
    if arguments.json {
        print_json(&body, out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let told: ReloadAnswer = parse(&body)?;
    for (word, names) in [
        ("added", told.added),
        ("changed", told.changed),
        ("removed", told.removed),
        ("unchanged", told.unchanged),
    ] {
        if !names.is_empty() {
            writeln!(
                out,
                "{word:<10} {}",
                names.iter().map(|name| &**name).collect::<Vec<_>>().join(", ")
            )?;
        }
    }
    for warning in told.warnings {
        writeln!(out, "warning    {warning}")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn query(filter: &FilterArguments) -> Vec<(String, String)> {
    let mut pairs = vec![("limit".to_owned(), filter.limit.to_string())];
    let named = [
        ("workflow", &filter.workflow),
        ("state", &filter.state),
        ("after", &filter.after),
        ("before", &filter.before),
    ];
    pairs.extend(
        named.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.clone()?))),
    );
    pairs.extend(
        filter
            .status
            .iter()
            .map(|filter| (format!("status.{}", filter.step), filter.status.clone())),
    );
    pairs
}

/// Encodes a text for use in a path.
fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn print(jobs: &[FoundJob], out: &mut dyn Write) -> Result<(), ClientError> {
    if jobs.is_empty() {
        writeln!(out, "{NOTHING}")?;
        return Ok(());
    }
    listing::print(&rows(jobs), Screen::of(TimeArguments::default()), false, out)
}

fn rows(jobs: &[FoundJob]) -> Table {
    let mut table = Table::new(&[
        ("JOB", Role::Key),
        ("WORKFLOW", Role::Plain),
        ("STATE", Role::State),
        ("CREATED", Role::Time),
        ("ENDED", Role::Time),
        ("REASON", Role::Long),
    ]);
    for found in jobs {
        table.add([
            &*found.job,
            &*found.workflow,
            &*found.state,
            &*found.created,
            found.ended.as_deref().unwrap_or_default(),
            found.reason.as_deref().unwrap_or_default(),
        ]);
    }
    table
}
