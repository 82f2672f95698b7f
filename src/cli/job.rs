//! `job ID`: prints a job, its steps and its child jobs. Long texts are truncated, with a hint on
//! how to get them in full.

use super::arguments::{ChildrenArguments, Format, JobRef, ListArguments};
use super::client::Client;
use super::error::ClientError;
use super::list_printer::{self, ListStyle, Listing};
use super::operate::format_columns;
use super::responses::{CompletedResponse, JobResponse, StepResponse, parse_list, parse_response};
use super::screen::Screen;
use super::table::{ColumnRole, Table};
use super::text::Text;
use engine::text::escape;
use engine::{JobId, Millis};
use serde::Deserialize;
use std::io::Write;

/// The maximum length of a printed message, result or reason, in characters.
const MESSAGE_CHARS_MAX: usize = 400;

/// The maximum length of a reason or note in a table, in characters.
const NOTE_CHARS_MAX: usize = 300;

/// How many child jobs are printed below their parent job.
const CHILDREN_LISTED_MAX: u32 = 5;

/// A page of the list of child jobs.
#[derive(Deserialize)]
pub(super) struct ChildrenPage {
    pub(super) children: Vec<ChildResponse>,
    /// The cursor of the next page. `None` on the last page.
    pub(super) next: Option<Text>,
}

impl ChildrenPage {
    /// Prints for people how to get the next page, if there is one.
    pub(super) fn print_next_page_hint(
        &self,
        style: ListStyle,
        out: &mut dyn Write,
    ) -> Result<(), ClientError> {
        if let Some(next) = self.next.as_ref().filter(|_| style.is_for_people()) {
            writeln!(
                out,
                "… only {} are shown; --limit shows more, --after {next} the next",
                self.children.len()
            )?;
        }
        Ok(())
    }
}

/// A child job in a list.
#[derive(Deserialize)]
pub(super) struct ChildResponse {
    job: Text,
    step: Text,
    item: u32,
    state: Text,
    created: Text,
    ended: Option<Text>,
    reason: Option<Text>,
}

/// Runs `job ID`: prints a job with its steps and its first child jobs.
pub(super) fn show_job(
    id: &JobRef,
    arguments: &ListArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let client = Client::new(&arguments.target)?;
    let style = ListStyle::from_arguments(arguments.format, arguments.times);
    let id = id.resolve(&client)?;
    let body = client.get(&format!("/api/job/{id}"))?;
    let job: JobResponse = parse_response(&body)?;
    if style.is_for_people() {
        print_header(&job, style.screen, out)?;
        writeln!(out)?;
    }
    let steps_table = steps_table(&job, style.screen);
    let steps = parse_list(&body, "steps")?;
    Listing { body: &body, entries: steps, table: steps_table, empty_text: "no steps" }
        .print(style, out)?;
    if !style.is_for_people() {
        return Ok(());
    }
    let child_counts = || job.steps.iter().filter_map(|step| step.children.as_ref());
    if child_counts().any(|counts| counts.started > 0) {
        let has_failed = child_counts().any(|counts| counts.failed > 0);
        print_first_children(&client, id, has_failed, style, out)?;
    }
    Ok(())
}

/// Prints a job and its steps, without its child jobs.
pub(super) fn print_job(
    job: &JobResponse,
    screen: Screen,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    print_header(job, screen, out)?;
    writeln!(out)?;
    list_printer::print_table(&steps_table(job, screen), screen, false, out)
}

/// Makes a table with one row for each step.
fn steps_table(job: &JobResponse, screen: Screen) -> Table {
    let mut table = Table::new(&[
        ("STEP", ColumnRole::Key),
        ("STATE", ColumnRole::State),
        ("STATUS", ColumnRole::Plain),
        ("ATTEMPT", ColumnRole::Plain),
        ("ELAPSED", ColumnRole::Plain),
        ("QUEUE / CHILD JOBS", ColumnRole::Plain),
        ("NOTE", ColumnRole::Long),
    ]);
    for step in &job.steps {
        let attempt = step.attempt.to_string();
        table.add_row([
            &*step.name,
            &step.state,
            &step.status,
            &attempt,
            &format_elapsed(step),
            &format_target(step),
            &format_note(step, screen),
        ]);
    }
    table
}

/// Prints the fields of the job itself.
fn print_header(job: &JobResponse, screen: Screen, out: &mut dyn Write) -> Result<(), ClientError> {
    let mut print_field = |key: &str, value: &str| writeln!(out, "{key:<9} {value}");
    print_field("job", &job.uuid)?;
    if let Some(label) = &job.label {
        print_field("label", label)?;
    }
    if !job.columns.is_null() {
        print_field("columns", &format_columns(&job.columns))?;
    }
    print_field("workflow", &job.workflow)?;
    if let Some(parent) = &job.parent {
        print_field("task", job.task.as_deref().unwrap_or_default())?;
        print_field("parent", &format!("{}, item {}", parent.job, parent.item))?;
        if parent.root != *parent.job {
            print_field("top job", &parent.root)?;
        }
    }
    print_field("state", &screen.colour(&job.state, &job.state))?;
    print_field("created", &screen.format_time(&job.created))?;
    let optional_times =
        [("ended", &job.ended), ("begins", &job.starts_at), ("deadline", &job.deadline)];
    for (key, value) in
        optional_times.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?)))
    {
        print_field(key, &screen.format_time(value))?;
    }
    for place in job.waits_for.iter().flat_map(|claim| &claim.limits) {
        let key = place.key.as_ref().map_or_else(String::new, |key| format!(" for {key}"));
        print_field("waits for", &format!("limit {}{key}", place.limit))?;
    }
    if let Some(reason) = &job.reason {
        print_field("reason", &truncate(reason, MESSAGE_CHARS_MAX))?;
    }
    for (key, name) in [("message", "__start__"), ("result", "__end__")] {
        let has_name = |entry: &&CompletedResponse| entry.name == name;
        if let Some(message) =
            job.completed.iter().find(has_name).and_then(|entry| entry.message.as_ref())
        {
            // JSON may contain control characters such as direction marks unescaped.
            print_field(key, &truncate(&escape(message.get()), MESSAGE_CHARS_MAX))?;
        }
    }
    Ok(())
}

/// Formats the time since the first dispatch and, after several attempts, the time of the last one.
fn format_elapsed(step: &StepResponse) -> String {
    let format_duration = |nanoseconds: u64| Millis(nanoseconds / 1_000_000).to_string();
    match (step.elapsed, step.attempt_elapsed) {
        (None, _) => String::new(),
        (Some(elapsed), Some(attempt_elapsed)) if step.attempt > 1 => format!(
            "{}, last attempt {}",
            format_duration(elapsed),
            format_duration(attempt_elapsed)
        ),
        (Some(elapsed), _) => format_duration(elapsed),
    }
}

/// Formats the target of a step: its child jobs with their counts, or its queue.
fn format_target(step: &StepResponse) -> String {
    match (&step.children, &step.queue) {
        (Some(children), _) => {
            format!(
                "{} of {} ended, {} started, {} failed",
                children.ended, children.items, children.started, children.failed
            )
        }
        (None, Some(queue)) => queue.to_string(),
        (None, None) => String::new(),
    }
}

/// Formats what else is known of a step: its next attempt, progress, message, reason and warning.
fn format_note(step: &StepResponse, screen: Screen) -> String {
    let next_attempt =
        step.retry_at.as_ref().map(|time| format!("next attempt at {}", screen.format_time(time)));
    let progress = step
        .progress
        .as_ref()
        .and_then(serde_json::Value::as_f64)
        .map(|fraction| format!("{:.0} %", fraction * 100.0));
    let texts =
        [&step.message, &step.reason, &step.warning].into_iter().flatten().map(|text| &**text);
    let notes: Vec<&str> =
        [&next_attempt, &progress].into_iter().flatten().map(String::as_str).chain(texts).collect();
    truncate(&notes.join("; "), NOTE_CHARS_MAX)
}

/// Prints the first child jobs of a job: only failed ones if any have failed.
fn print_first_children(
    client: &Client,
    id: JobId,
    has_failed: bool,
    style: ListStyle,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let mut query = vec![("limit".to_owned(), CHILDREN_LISTED_MAX.to_string())];
    if has_failed {
        query.push(("state".to_owned(), "failed".to_owned()));
    }
    let page: ChildrenPage =
        parse_response(&client.query(&format!("/api/job/{id}/children"), &query)?)?;
    if page.children.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    list_printer::print_table(
        &children_table(&page.children),
        style.screen,
        style.format == Format::Wide,
        out,
    )?;
    let command = format!("workflow-manager job {id} --children");
    match (has_failed, page.next) {
        (true, Some(_)) => writeln!(
            out,
            "… only the first that failed are shown; {command} --failed shows more, {command} all"
        )?,
        (true, None) => writeln!(out, "… only those that failed are shown; {command} shows all")?,
        (false, Some(_)) => writeln!(out, "… only the first are shown; {command} shows more")?,
        (false, None) => {}
    }
    Ok(())
}

/// Runs `job ID --children`: prints a list of the child jobs.
pub(super) fn list_children(
    id: &JobRef,
    filter: &ChildrenArguments,
    arguments: &ListArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let state = if filter.failed { Some("failed".to_owned()) } else { filter.state.clone() };
    let optional_parameters = [("state", &state), ("step", &filter.step), ("after", &filter.after)];
    let mut query = vec![("limit".to_owned(), filter.limit.to_string())];
    query.extend(
        optional_parameters
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value.clone()?))),
    );
    let client = Client::new(&arguments.target)?;
    let body = client.query(&format!("/api/job/{}/children", id.resolve(&client)?), &query)?;
    let style = ListStyle::from_arguments(arguments.format, arguments.times);
    let page: ChildrenPage = parse_response(&body)?;
    let (table, entries) = (children_table(&page.children), parse_list(&body, "children")?);
    Listing { body: &body, entries, table, empty_text: "no child jobs are found" }
        .print(style, out)?;
    page.print_next_page_hint(style, out)?;
    Ok(())
}

/// Makes a table with one row for each child job.
pub(super) fn children_table(children: &[ChildResponse]) -> Table {
    let mut table = Table::new(&[
        ("CHILD JOB", ColumnRole::Key),
        ("STEP", ColumnRole::Plain),
        ("ITEM", ColumnRole::Key),
        ("STATE", ColumnRole::State),
        ("CREATED", ColumnRole::Time),
        ("ENDED", ColumnRole::Time),
        ("REASON", ColumnRole::Long),
    ]);
    for child in children {
        let reason = child
            .reason
            .as_ref()
            .map_or_else(String::new, |reason| truncate(reason, NOTE_CHARS_MAX));
        let ended = child.ended.as_deref().unwrap_or_default();
        table.add_row([
            &*child.job,
            &child.step,
            &child.item.to_string(),
            &child.state,
            &child.created,
            ended,
            &reason,
        ]);
    }
    table
}

/// Truncates a text to `chars_max` characters, and adds a hint on how to get it in full.
fn truncate(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}… ({} bytes; --json shows all)", &text[..end], text.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_truncated_between_characters_with_a_hint() {
        assert_eq!(truncate("äöü", 3), "äöü");
        assert_eq!(truncate("äöüß", 3), "äöü… (8 bytes; --json shows all)");
    }
}
