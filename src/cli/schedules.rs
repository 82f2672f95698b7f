//! `schedules` lists the schedules of a manager; `schedule` shows one, and carries out operations
//! on it.

use super::arguments::{Format, ListArguments, ScheduleArguments, ScheduleOperation};
use super::client::Client;
use super::error::ClientError;
use super::list_printer::{ListStyle, Listing};
use super::plural::format_count;
use super::responses::{parse_list, parse_response};
use super::screen::print_json;
use super::table::{ColumnRole, Table};
use super::text::Text;
use engine::text::did_you_mean;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::io::Write;

/// What the manager knows about a schedule.
#[derive(Deserialize)]
struct ScheduleResponse {
    name: Text,
    #[serde(default)]
    vhost: Text,
    workflow: Text,
    timing: Text,
    paused: Option<PauseResponse>,
    waiting: Option<Text>,
    refused: Option<RefusalResponse>,
    next: Vec<Text>,
    judgements: Vec<Box<RawValue>>,
}

/// The pause of a schedule.
#[derive(Deserialize)]
struct PauseResponse {
    reason: Option<Text>,
    by: Option<Text>,
}

/// Why the due job of a schedule cannot be started.
#[derive(Deserialize)]
struct RefusalResponse {
    since: Text,
    reason: Text,
}

/// How a slot was judged.
#[derive(Deserialize)]
struct JudgementResponse {
    slot: Text,
    at: Text,
    verdict: Text,
    job: Option<Text>,
    reason: Option<Text>,
    slots: u64,
}

/// What became of a backfill.
#[derive(Deserialize)]
struct BackfillResponse {
    slots: Vec<Box<RawValue>>,
}

/// A slot of a backfill.
#[derive(Deserialize)]
struct BackfilledSlot {
    slot: Text,
    job: Text,
    label: Option<Text>,
    /// Whether the job was there before.
    existed: bool,
}

impl ScheduleResponse {
    /// Describes what an operator should know. The text is empty if there is nothing.
    fn note(&self) -> String {
        let paused = self.paused.as_ref().map(|pause| {
            let by = pause.by.as_ref().map_or_else(String::new, |by| format!(" by {by}"));
            let reason =
                pause.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
            format!("paused{by}{reason}")
        });
        let waiting = self.waiting.as_ref().map(|slot| format!("the slot of {slot} waits"));
        let refused = self.refused.as_ref();
        let refused = refused.map(|RefusalResponse { since, reason }| {
            format!("its job cannot be started, since {since}: {reason}")
        });
        paused.into_iter().chain(waiting).chain(refused).collect::<Vec<_>>().join("; ")
    }

    /// Describes how its last slot was judged.
    fn last(&self) -> Result<(String, String), ClientError> {
        let Some(judgement) = self.judgements.first() else { return Ok(Default::default()) };
        let judgement: JudgementResponse = parse_response(judgement.get())?;
        Ok((judgement.slot.to_string(), judgement.verdict.to_string()))
    }
}

/// Runs `schedules`.
pub(super) fn list_schedules(
    arguments: &ListArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let body = Client::new(&arguments.target)?.get("/api/schedules")?;
    let mut table = Table::new(&[
        ("SCHEDULE", ColumnRole::Key),
        ("VHOST", ColumnRole::Extra),
        ("NEXT", ColumnRole::Time),
        ("LAST", ColumnRole::Time),
        ("JUDGEMENT", ColumnRole::State),
        ("WORKFLOW", ColumnRole::Plain),
        ("TIMES", ColumnRole::Plain),
        ("NOTE", ColumnRole::Long),
    ]);
    let entries = parse_list(&body, "schedules")?;
    for entry in &entries {
        let schedule: ScheduleResponse = parse_response(entry.get())?;
        let (slot, verdict) = schedule.last()?;
        table.add_row([
            schedule.name.to_string(),
            schedule.vhost.to_string(),
            schedule.next.first().map_or_else(String::new, |next| next.to_string()),
            slot,
            verdict,
            schedule.workflow.to_string(),
            schedule.timing.to_string(),
            schedule.note(),
        ]);
    }
    let empty_text = "the loaded files have no schedules";
    let style = ListStyle::from_arguments(arguments.format, arguments.times);
    Listing { body: &body, entries, table, empty_text }.print(style, out)
}

/// Runs `schedule`.
pub(super) fn run_schedule(
    arguments: &ScheduleArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let client = Client::new(&arguments.list.target)?;
    let (operation, done) = match arguments.operation {
        None => return show_schedule(arguments, &client, out),
        Some(ScheduleOperation::Backfill) => return backfill(arguments, &client, out),
        Some(ScheduleOperation::Trigger) => ("trigger", "a job was started"),
        Some(ScheduleOperation::Pause) => ("pause", "it is paused: its slots are skipped"),
        Some(ScheduleOperation::Resume) => ("resume", "it goes on with its next slot"),
    };
    let body = call(&client, arguments, operation, Vec::new())?;
    if arguments.list.format.format() == Format::Json {
        print_json(&body, out)?;
    } else {
        let schedule: ScheduleResponse = parse_response(&body)?;
        writeln!(out, "schedule {}: {done}", schedule.name)?;
        if let ("trigger", Some(judgement)) = (operation, schedule.judgements.first()) {
            let judgement: JudgementResponse = parse_response(judgement.get())?;
            writeln!(out, "{}", judgement.job.unwrap_or_default())?;
        }
    }
    Ok(())
}

/// Calls an operation of the schedule.
fn call(
    client: &Client,
    arguments: &ScheduleArguments,
    operation: &str,
    mut query: Vec<(String, String)>,
) -> Result<String, ClientError> {
    for (key, value) in [("vhost", &arguments.vhost), ("reason", &arguments.reason)] {
        query.extend(value.clone().map(|value| (key.to_owned(), value)));
    }
    client.post(&format!("/api/schedule/{}/{operation}", arguments.name), &query, "")
}

/// Starts the jobs of slots that have passed, or lists them.
fn backfill(
    arguments: &ScheduleArguments,
    client: &Client,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let is_dry_run = arguments.dry_run;
    let mut query = vec![("dryRun".to_owned(), is_dry_run.to_string())];
    for (key, value) in [("from", &arguments.from), ("to", &arguments.to)] {
        query.extend(value.clone().map(|value| (key.to_owned(), value)));
    }
    let body = call(client, arguments, "backfill", query)?;
    let entries = parse_response::<BackfillResponse>(&body)?.slots;
    let mut table = Table::new(&[
        ("JOB", ColumnRole::Key),
        ("SLOT", ColumnRole::Time),
        ("OUTCOME", ColumnRole::Plain),
        ("LABEL", ColumnRole::Extra),
    ]);
    let mut new_count = 0;
    for entry in &entries {
        let slot: BackfilledSlot = parse_response(entry.get())?;
        new_count += usize::from(!slot.existed);
        let outcome = match (slot.existed, is_dry_run) {
            (true, _) => "was there before",
            (false, true) => "would start",
            (false, false) => "started",
        };
        let label = slot.label.map(|label| label.to_string()).unwrap_or_default();
        table.add_row([slot.job.to_string(), slot.slot.to_string(), outcome.to_owned(), label]);
    }
    let style = ListStyle::from_arguments(arguments.list.format, arguments.list.times);
    let empty_text = "the schedule has no slots in that time";
    Listing { body: &body, entries, table, empty_text }.print(style, out)?;
    if style.is_for_people() && new_count > 0 {
        let jobs = format_count(new_count, "job");
        let done = if is_dry_run { "would be started" } else { "started" };
        writeln!(out, "{jobs} {done}")?;
    }
    Ok(())
}

/// Shows a schedule: its next slots, and how the last ones were judged.
fn show_schedule(
    arguments: &ScheduleArguments,
    client: &Client,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let body = client.get("/api/schedules")?;
    let vhost = arguments.vhost.as_deref().unwrap_or_default();
    let mut names = Vec::new();
    for entry in parse_list(&body, "schedules")? {
        let schedule: ScheduleResponse = parse_response(entry.get())?;
        if schedule.vhost.raw() == vhost {
            names.push(schedule.name.raw().to_owned());
        }
        if schedule.name.raw() != arguments.name || schedule.vhost.raw() != vhost {
            continue;
        }
        let style = ListStyle::from_arguments(arguments.list.format, arguments.list.times);
        if style.is_for_people() {
            writeln!(out, "schedule  {} ({})", schedule.name, schedule.timing)?;
            writeln!(out, "workflow  {}", schedule.workflow)?;
            let note = schedule.note();
            if !note.is_empty() {
                writeln!(out, "          {note}")?;
            }
            for (index, next) in schedule.next.iter().enumerate() {
                writeln!(out, "{:<9} {next}", if index == 0 { "next" } else { "" })?;
            }
            writeln!(out)?;
        }
        let mut table = Table::new(&[
            ("SLOT", ColumnRole::Time),
            ("JUDGEMENT", ColumnRole::State),
            ("SLOTS", ColumnRole::Extra),
            ("JOB", ColumnRole::Plain),
            ("JUDGED", ColumnRole::Time),
            ("WHY", ColumnRole::Long),
        ]);
        for judgement in &schedule.judgements {
            let judgement: JudgementResponse = parse_response(judgement.get())?;
            let reason = judgement.reason.unwrap_or_default();
            let why = match judgement.slots {
                1 => reason.to_string(),
                slots => format!("{slots} slots up to here: {reason}"),
            };
            table.add_row([
                judgement.slot.to_string(),
                judgement.verdict.to_string(),
                judgement.slots.to_string(),
                judgement.job.unwrap_or_default().to_string(),
                judgement.at.to_string(),
                why,
            ]);
        }
        let entries = schedule.judgements;
        let empty_text = "no slot was judged yet";
        return Listing { body: entry.get(), entries, table, empty_text }.print(style, out);
    }
    let hint = did_you_mean(&arguments.name, names.iter().map(String::as_str));
    let name = Text::new(&arguments.name);
    Err(ClientError::Refused(format!("there is no schedule {name}{hint}: `schedules` lists them")))
}
