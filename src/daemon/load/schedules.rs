//! Parses the schedules of a file, and attaches them to the workflows that they start.

use super::diagnostics::Diagnostics;
use super::fields::{Fields, label};
use super::limits::SCHEDULES_MAX;
use super::location::SourceLocation;
use super::scalars::ScalarKind;
use super::schema::Section;
use super::values::{
    LocatedText, describe, parse_choice, parse_duration, parse_nonempty_text, parse_reference,
};
use super::yaml::{Entry, Node, Value};
use engine::schedule::calendar::Calendar;
use engine::schedule::{CalendarError, Missed, Overlap, Schedule, Timing};
use engine::text::{did_you_mean, quote};
use engine::{Definition, Message, Millis, Timestamp};
use std::collections::HashMap;
use std::sync::Arc;

/// The zone of a schedule that names none.
const DEFAULT_ZONE: &str = "UTC";

/// The shortest interval.
const INTERVAL_MIN: Millis = Millis(1_000);

/// How many slots of a cron expression are looked at for its shortest interval.
const SLOTS_COMPARED: usize = 100;

/// A schedule of a file, whose workflow is not looked up yet.
pub(super) struct ScheduleDraft {
    /// The file, for errors about its workflow.
    file: usize,
    location: SourceLocation,
    workflow: LocatedText,
    /// The schedule, without the names that depend on the workflow.
    schedule: Schedule,
}

/// Parses the schedules of a file. Leaves out those with errors. `file` is its index.
pub(super) fn parse_schedules(
    root: &Node,
    file: usize,
    report: &mut Diagnostics,
) -> Vec<ScheduleDraft> {
    // What is wrong with the mapping itself was reported with the workflows.
    let Value::Map(entries) = &root.value else { return Vec::new() };
    let Some(entry) = entries.iter().find(|entry| entry.key.text == "schedules") else {
        return Vec::new();
    };
    let nodes = match &entry.value.value {
        Value::List(nodes) => nodes.as_slice(),
        Value::Invalid | Value::Scalar(ScalarKind::Null, _) => return Vec::new(),
        Value::Map(_) | Value::Scalar(..) => {
            let found = describe(&entry.value);
            report
                .add_error(entry.location(), format!("\"schedules\" takes a list, found {found}"));
            return Vec::new();
        }
    };
    if let Some(excess) = nodes.get(SCHEDULES_MAX) {
        let message = format!("more than the {SCHEDULES_MAX} schedules allowed in a file");
        report.add_error(excess.location, message);
    }
    let nodes = nodes.iter().take(SCHEDULES_MAX);
    nodes.filter_map(|node| parse_schedule(node, file, report)).collect()
}

/// Parses one schedule.
fn parse_schedule(node: &Node, file: usize, report: &mut Diagnostics) -> Option<ScheduleDraft> {
    let fields = Fields::from_node(node, Section::Schedule, report)?;
    let noun = label(node).map_or_else(String::new, |name| format!("schedule {}: ", quote(&name)));
    let name = fields.parse_name(report);
    let workflow = match fields.get("workflow") {
        Some(entry) => {
            parse_reference(&entry.value, entry.location(), "the name of a workflow", report)
        }
        None => {
            fields.report_missing("workflow", "a schedule starts jobs of a workflow", report);
            None
        }
    };
    let timing = parse_timing(&fields, &noun, report);
    let message = match fields.get("message") {
        Some(entry) => parse_message(entry, &noun, report),
        None => Some(Message::default()),
    };
    let missed = fields
        .get("missed")
        .and_then(|entry| parse_choice(entry, &Missed::WORDS, report))
        .unwrap_or_default();
    let overlap = fields
        .get("overlap")
        .and_then(|entry| parse_choice(entry, &Overlap::WORDS, report))
        .unwrap_or_default();
    let duration = |key: &str, report: &mut Diagnostics| {
        let entry = fields.get(key)?;
        parse_duration(entry, Millis(1), report)
    };
    let (jitter, deadline) = (duration("jitter", report), duration("deadline", report));
    let timing = timing?;
    if let Some((jitter, entry)) = jitter.zip(fields.get("jitter")) {
        check_jitter(jitter, deadline, &timing, (&noun, entry.location()), report);
    }
    if missed == Missed::All && overlap != Overlap::Allow {
        report.add_warning(
            node.location,
            format!(
                "{noun}`missed: all` starts several jobs at once, and only the first of them \
                 starts at once without `overlap: allow`"
            ),
        );
    }
    Some(ScheduleDraft {
        file,
        location: name.as_ref()?.location,
        workflow: workflow?,
        schedule: Schedule {
            name: name?.text,
            vhost: String::new(),
            workflow: String::new(),
            timing,
            message: message?,
            missed,
            overlap,
            jitter: jitter.unwrap_or(Millis(0)),
            deadline,
        },
    })
}

/// Parses `cron` with `zone`, or `every`.
fn parse_timing(fields: &Fields<'_>, noun: &str, report: &mut Diagnostics) -> Option<Timing> {
    match (fields.get("cron"), fields.get("every")) {
        (Some(_), Some(every)) => {
            let message = format!("{noun}has \"cron\" and \"every\": leave one of them out");
            report.add_error(every.key.location, message);
            None
        }
        (None, None) => {
            let reason =
                "a schedule has \"cron\", such as \"0 2 * * 1-5\", or \"every\", such as 90s";
            fields.report_missing("cron", reason, report);
            None
        }
        (None, Some(every)) => {
            if let Some(zone) = fields.get("zone") {
                let message = format!("{noun}\"zone\" has no meaning with \"every\": leave it out");
                report.add_error(zone.key.location, message);
            }
            parse_duration(every, INTERVAL_MIN, report).map(Timing::Every)
        }
        (Some(cron), None) => {
            let calendar = parse_calendar(fields, cron, noun, report)?;
            Some(Timing::Cron(Box::new(calendar)))
        }
    }
}

fn parse_calendar(
    fields: &Fields<'_>,
    cron: &Entry,
    noun: &str,
    report: &mut Diagnostics,
) -> Option<Calendar> {
    let expression =
        parse_nonempty_text(&cron.value, cron.location(), "a cron expression in quotes", report)?;
    let zone = match fields.get("zone") {
        Some(entry) => {
            parse_nonempty_text(&entry.value, entry.location(), "the name of a time zone", report)?
        }
        None => LocatedText { location: cron.location(), text: DEFAULT_ZONE.to_owned() },
    };
    match Calendar::parse(&expression.text, &zone.text) {
        Ok(calendar) => Some(calendar),
        Err(error @ CalendarError::Zone(_)) => {
            let zone_text = quote(&zone.text);
            report.add_error(zone.location, format!("{noun}\"zone\" is {zone_text}: {error}"));
            None
        }
        Err(error @ (CalendarError::Never | CalendarError::Expression(_))) => {
            let hint = "; minute, hour, day of the month, month, day of the week, such as \
                        \"0 2 * * 1-5\"";
            let hint = if error == CalendarError::Never { "" } else { hint };
            let text = quote(&expression.text);
            report
                .add_error(expression.location, format!("{noun}\"cron\" is {text}: {error}{hint}"));
            None
        }
    }
}

/// Checks that the jitter is shorter than the interval and than the deadline.
fn check_jitter(
    jitter: Millis,
    deadline: Option<Millis>,
    timing: &Timing,
    (noun, location): (&str, SourceLocation),
    report: &mut Diagnostics,
) {
    let slots =
        std::iter::successors(timing.next_after(Timestamp(0)), |slot| timing.next_after(*slot));
    let slots: Vec<Timestamp> = slots.take(SLOTS_COMPARED).collect();
    let gap =
        slots.windows(2).map(|pair| Millis::from_duration(pair[0].duration_until(pair[1]))).min();
    if let Some(gap) = gap.filter(|gap| jitter >= *gap) {
        report.add_error(
            location,
            format!(
                "{noun}\"jitter\" is {jitter}, and two slots can be {gap} apart: it must be \
                 shorter, so that each job starts before the next slot"
            ),
        );
    }
    if let Some(deadline) = deadline.filter(|deadline| jitter >= *deadline) {
        report.add_error(
            location,
            format!(
                "{noun}\"jitter\" is {jitter}, and \"deadline\" {deadline}: it must be shorter"
            ),
        );
    }
}

/// Parses the message of the jobs.
fn parse_message(entry: &Entry, noun: &str, report: &mut Diagnostics) -> Option<Message> {
    if !matches!(&entry.value.value, Value::Map(_)) {
        if !matches!(&entry.value.value, Value::Invalid) {
            let found = describe(&entry.value);
            report.add_error(
                entry.location(),
                format!(
                    "{noun}\"message\" takes a mapping, such as {{ kind: full }}, found {found}"
                ),
            );
        }
        return None;
    }
    let text = to_json(&entry.value, noun, report)?;
    match Message::parse(text.as_bytes()) {
        Ok(message) => Some(message),
        Err(error) => {
            report.add_error(entry.location(), format!("{noun}\"message\" is no message: {error}"));
            None
        }
    }
}

/// Returns the JSON of a value. Numbers keep their digits.
fn to_json(node: &Node, noun: &str, report: &mut Diagnostics) -> Option<String> {
    let text_json = |text: &str| serde_json::Value::from(text).to_string();
    match &node.value {
        Value::Invalid => None,
        Value::Scalar(ScalarKind::Text, text) => Some(text_json(text)),
        Value::Scalar(ScalarKind::Null, _) => Some("null".to_owned()),
        Value::Scalar(ScalarKind::Boolean | ScalarKind::Number, text) => {
            if serde_json::from_str::<serde_json::Value>(text).is_ok() {
                return Some(text.clone());
            }
            report.add_error(
                node.location,
                format!(
                    "{noun}\"message\" is sent as JSON, which has no value {text}: put it into \
                     quotes, or write it as JSON does"
                ),
            );
            None
        }
        Value::List(items) => {
            let items: Option<Vec<String>> =
                items.iter().map(|item| to_json(item, noun, report)).collect();
            Some(format!("[{}]", items?.join(",")))
        }
        Value::Map(entries) => {
            let entries: Option<Vec<String>> = entries
                .iter()
                .map(|entry| {
                    let value = to_json(&entry.value, noun, report)?;
                    Some(format!("{}:{value}", text_json(&entry.key.text)))
                })
                .collect();
            Some(format!("{{{}}}", entries?.join(",")))
        }
    }
}

/// Attaches the schedules to the definitions of their workflows, in each virtual host. Reports
/// unknown workflows, and two schedules of one name in one virtual host.
pub(super) fn attach_schedules(
    drafts: Vec<ScheduleDraft>,
    definitions: &mut [Arc<Definition>],
    reports: &mut [Diagnostics],
) {
    let mut places: HashMap<String, String> = HashMap::new();
    for draft in drafts {
        let Some(report) = reports.get_mut(draft.file) else { continue };
        let place = format!("{}:{}", report.file, draft.location);
        let mut is_known = false;
        for definition in definitions.iter_mut() {
            if definition.name != draft.workflow.text
                && definition.full_name() != draft.workflow.text
            {
                continue;
            }
            is_known = true;
            let schedule = Schedule {
                vhost: definition.vhost.clone(),
                workflow: definition.full_name(),
                ..draft.schedule.clone()
            };
            if let Err(reason) = definition.claim_job_place(&schedule.message) {
                let name = quote(&draft.schedule.name);
                report.add_error(draft.location, format!("schedule {name}: {reason}"));
            }
            let full_name = schedule.full_name();
            if let Some(first) = places.get(&full_name) {
                let message =
                    format!("a schedule {} is declared already, at {first}", quote(&full_name));
                report.add_error(draft.location, message);
                break;
            }
            places.insert(full_name, place.clone());
            Arc::make_mut(definition).schedules.0.push(Arc::new(schedule));
        }
        if !is_known {
            let names: Vec<String> =
                definitions.iter().map(|definition| definition.name.clone()).collect();
            let suggestion = did_you_mean(&draft.workflow.text, names.iter().map(String::as_str));
            let message = format!(
                "schedule {}: there is no workflow {}{suggestion}",
                quote(&draft.schedule.name),
                quote(&draft.workflow.text)
            );
            report.add_error(draft.workflow.location, message);
        }
        report.sort();
    }
}
