//! `job ID`: a job, its steps and its child jobs. Long texts are truncated, with a hint how to get
//! them in full.

use super::arguments::{ChildrenArguments, Format, JobRef, ListArguments};
use super::client::Client;
use super::error::ClientError;
use super::listing::{self, Form, Listing};
use super::screen::Screen;
use super::show::{CompletedAnswer, JobAnswer, StepAnswer, entries, parse};
use super::table::{Role, Table};
use super::text::Text;
use crate::engine::words::escaped;
use crate::engine::{JobId, Millis};
use serde::Deserialize;
use std::io::Write;
use std::process::ExitCode;

/// How much of a message or result is printed, in characters.
const MESSAGE_CHARS_MAX: usize = 400;

/// How much of a reason or note is printed in a table, in characters.
const NOTE_CHARS_MAX: usize = 300;

/// How many child jobs are printed with their job.
const CHILDREN_SHOWN: u32 = 5;

#[derive(Deserialize)]
pub(super) struct ChildrenPage {
    pub(super) children: Vec<ChildAnswer>,
    pub(super) next: Option<Text>,
}

impl ChildrenPage {
    /// Prints for people how to get further pages, if there are any.
    pub(super) fn tell_rest(&self, form: Form, out: &mut dyn Write) -> Result<(), ClientError> {
        if let Some(next) = self.next.as_ref().filter(|_| form.is_for_people()) {
            writeln!(
                out,
                "… only {} are shown; --limit shows more, --after {next} the next",
                self.children.len()
            )?;
        }
        Ok(())
    }
}

#[derive(Deserialize)]
pub(super) struct ChildAnswer {
    job: Text,
    step: Text,
    item: u32,
    state: Text,
    created: Text,
    ended: Option<Text>,
    reason: Option<Text>,
}

/// Runs `job ID`.
pub(super) fn job(
    id: &JobRef,
    arguments: &ListArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    let client = Client::new(&arguments.reach)?;
    let form = Form::of(arguments.form, arguments.times);
    let id = id.find(&client)?;
    let body = client.get(&format!("/api/job/{id}"))?;
    let job: JobAnswer = parse(&body)?;
    if form.is_for_people() {
        head(&job, form.screen, out)?;
        writeln!(out)?;
    }
    let table = steps(&job, form.screen);
    let steps = entries(&body, "steps")?;
    Listing { body: &body, entries: steps, table, nothing: "no steps" }.print(form, out)?;
    if !form.is_for_people() {
        return Ok(ExitCode::SUCCESS);
    }
    let counts = job.steps.iter().filter_map(|step| step.children.as_ref());
    let (started, failed) = counts.fold((0, 0), |(started, failed), children| {
        (started + children.started, failed + children.failed)
    });
    if started > 0 {
        first_children(&client, id, failed > 0, form, out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the job and its steps.
pub(super) fn print(
    job: &JobAnswer,
    screen: Screen,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    head(job, screen, out)?;
    writeln!(out)?;
    listing::print(&steps(job, screen), screen, false, out)
}

fn steps(job: &JobAnswer, screen: Screen) -> Table {
    let mut table = Table::new(&[
        ("STEP", Role::Key),
        ("STATE", Role::State),
        ("STATUS", Role::Plain),
        ("ATTEMPT", Role::Plain),
        ("ELAPSED", Role::Plain),
        ("QUEUE / CHILD JOBS", Role::Plain),
        ("NOTE", Role::Long),
    ]);
    for step in &job.steps {
        let attempt = step.attempt.to_string();
        table.add([
            &*step.name,
            &step.state,
            &step.status,
            &attempt,
            &elapsed(step),
            &place(step),
            &note(step, screen),
        ]);
    }
    table
}

/// Prints the fields of the job itself.
fn head(job: &JobAnswer, screen: Screen, out: &mut dyn Write) -> Result<(), ClientError> {
    let mut tell = |key: &str, value: &str| writeln!(out, "{key:<9} {value}");
    tell("job", &job.uuid)?;
    tell("workflow", &job.workflow)?;
    if let Some(parent) = &job.parent {
        tell("task", job.task.as_deref().unwrap_or_default())?;
        tell("parent", &format!("{}, item {}", parent.job, parent.item))?;
        if parent.root != *parent.job {
            tell("top job", &parent.root)?;
        }
    }
    tell("state", &screen.painted(&job.state, &job.state))?;
    tell("created", &screen.time(&job.created))?;
    let named = [("ended", &job.ended), ("deadline", &job.deadline)];
    for (key, value) in named.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?))) {
        tell(key, &screen.time(value))?;
    }
    if let Some(reason) = &job.reason {
        tell("reason", &cut(reason, MESSAGE_CHARS_MAX))?;
    }
    for (key, name) in [("message", "__start__"), ("result", "__end__")] {
        let of_name = |entry: &&CompletedAnswer| entry.name == name;
        if let Some(message) =
            job.completed.iter().find(of_name).and_then(|entry| entry.message.as_ref())
        {
            // JSON may contain control characters such as direction marks unescaped.
            tell(key, &cut(&escaped(message.get()), MESSAGE_CHARS_MAX))?;
        }
    }
    Ok(())
}

/// Formats the time since the first dispatch, and that of the last attempt if there were several.
fn elapsed(step: &StepAnswer) -> String {
    let shown = |nanoseconds: u64| Millis(nanoseconds / 1_000_000).to_string();
    match (step.elapsed, step.attempt_elapsed) {
        (None, _) => String::new(),
        (Some(total), Some(last)) if step.attempt > 1 => {
            format!("{}, last attempt {}", shown(total), shown(last))
        }
        (Some(total), _) => shown(total),
    }
}

fn place(step: &StepAnswer) -> String {
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

fn note(step: &StepAnswer, screen: Screen) -> String {
    let again = step.retry_at.as_ref().map(|at| format!("next attempt at {}", screen.time(at)));
    let progress = step
        .progress
        .as_ref()
        .and_then(serde_json::Value::as_f64)
        .map(|share| format!("{:.0} %", share * 100.0));
    let told =
        [&step.message, &step.reason, &step.warning].into_iter().flatten().map(|text| &**text);
    let notes: Vec<&str> =
        [&again, &progress].into_iter().flatten().map(String::as_str).chain(told).collect();
    cut(&notes.join("; "), NOTE_CHARS_MAX)
}

/// Prints the first child jobs of a job: only failed ones if any have failed.
fn first_children(
    client: &Client,
    id: JobId,
    has_failed: bool,
    form: Form,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let mut query = vec![("limit".to_owned(), CHILDREN_SHOWN.to_string())];
    if has_failed {
        query.push(("state".to_owned(), "failed".to_owned()));
    }
    let page: ChildrenPage = parse(&client.query(&format!("/api/job/{id}/children"), &query)?)?;
    if page.children.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    listing::print(&rows(&page.children), form.screen, form.format == Format::Wide, out)?;
    let all = format!("workflow-manager job {id} --children");
    match (has_failed, page.next) {
        (true, Some(_)) => writeln!(
            out,
            "… only the first that failed are shown; {all} --failed shows more, {all} all"
        )?,
        (true, None) => writeln!(out, "… only those that failed are shown; {all} shows all")?,
        (false, Some(_)) => writeln!(out, "… only the first are shown; {all} shows more")?,
        (false, None) => {}
    }
    Ok(())
}

/// Runs `job ID --children`.
pub(super) fn children(
    id: &JobRef,
    asked: &ChildrenArguments,
    arguments: &ListArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    let state = if asked.failed { Some("failed".to_owned()) } else { asked.state.clone() };
    let named = [("state", &state), ("step", &asked.step), ("after", &asked.after)];
    let mut query = vec![("limit".to_owned(), asked.limit.to_string())];
    query.extend(
        named.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.clone()?))),
    );
    let client = Client::new(&arguments.reach)?;
    let body = client.query(&format!("/api/job/{}/children", id.find(&client)?), &query)?;
    let form = Form::of(arguments.form, arguments.times);
    let page: ChildrenPage = parse(&body)?;
    let (table, entries) = (rows(&page.children), entries(&body, "children")?);
    Listing { body: &body, entries, table, nothing: "no child jobs are found" }.print(form, out)?;
    page.tell_rest(form, out)?;
    Ok(ExitCode::SUCCESS)
}

/// Makes a table with one row for each child job.
pub(super) fn rows(children: &[ChildAnswer]) -> Table {
    let mut table = Table::new(&[
        ("CHILD JOB", Role::Key),
        ("STEP", Role::Plain),
        ("ITEM", Role::Key),
        ("STATE", Role::State),
        ("CREATED", Role::Time),
        ("ENDED", Role::Time),
        ("REASON", Role::Long),
    ]);
    for child in children {
        let reason =
            child.reason.as_ref().map_or_else(String::new, |reason| cut(reason, NOTE_CHARS_MAX));
        let ended = child.ended.as_deref().unwrap_or_default();
        table.add([
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

/// Truncates a text, with a hint how to get it in full.
fn cut(text: &str, characters_max: usize) -> String {
    match text.char_indices().nth(characters_max) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}… ({} bytes; --json shows all)", &text[..at], text.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters_and_says_how_to_get_it_whole() {
        assert_eq!(cut("äöü", 3), "äöü");
        assert_eq!(cut("äöüß", 3), "äöü… (8 bytes; --json shows all)");
    }
}
