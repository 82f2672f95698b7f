//! `history` and `replay`: print the entries of a job, or the job as it was after an entry.
//! `history` reads from a manager, and `replay` from a journal's file.

use super::arguments::{HistoryArguments, RecordArguments, ReplayArguments};
use super::client::Client;
use super::error::ClientError;
use super::job;
use super::responses::parse_response;
use super::screen::{Screen, print_json};
use super::table::truncate;
use super::text::Text;
use daemon::view::{EntryView, JobView};
use engine::text::escape;
use journal::{HistoryRecords, JobAtEntry, Reader};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::io::Write;

/// How many entries a page has at most.
const PAGE_ENTRIES_MAX: u32 = 1_000;

/// About how many bytes of rows are read at once from a journal.
const PAGE_BYTES_MAX: usize = 1 << 20;

/// The maximum width of a printed entry without a terminal, in columns.
const LINE_COLUMNS_MAX: usize = 400;

/// The keys of an entry whose values are printed without the key, or not at all.
const COMMON_KEYS: [&str; 7] =
    ["n", "at", "kind", "step", "payload", "payloadBytes", "payloadOmitted"];

/// The fields that entries of all kinds may have.
#[derive(Deserialize)]
struct EntryResponse {
    /// The number of the entry; the first is 1.
    #[serde(rename = "n")]
    number: u64,
    #[serde(rename = "at")]
    time: Text,
    kind: Text,
    /// The step; `None` if the entry is about the job.
    step: Option<Text>,
    /// The message of the entry, if it has one that is not too large.
    payload: Option<Box<RawValue>>,
}

/// A page of entries.
#[derive(Deserialize)]
struct EntriesResponse {
    entries: Vec<Box<RawValue>>,
    /// The number of the entry after which the next page begins. `None` on the last page.
    next: Option<u64>,
}

/// Runs `history ID [--at N]`: prints the entries of a job, or the job, from a manager.
pub(super) fn print_history(
    arguments: &HistoryArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let (client, is_json) = (Client::new(&arguments.client.target)?, arguments.client.json);
    let screen = Screen::for_stdout(arguments.times);
    let path = format!("/api/job/{}", arguments.record.id.resolve(&client)?);
    if let Some(entry_number) = arguments.record.at_entry {
        print_job(&client.get(&format!("{path}?at={entry_number}"))?, is_json, screen, out)?;
        return Ok(());
    }
    let mut printer = EntryPrinter::new(&arguments.record, is_json, screen, out);
    while let Some((after, limit)) = printer.next_page() {
        let page = client.get(&format!("{path}/entries?after={after}&limit={limit}"))?;
        let EntriesResponse { entries, next } = parse_response(&page)?;
        let entries = entries.iter().map(|entry| entry.get());
        printer.print_page(entries, next)?;
    }
    Ok(())
}

/// Runs `replay --db FILE ID [--at N]`: rebuilds a job from a journal's file, and prints it or its
/// entries.
pub(super) fn replay(arguments: &ReplayArguments, out: &mut dyn Write) -> Result<(), ClientError> {
    let (id, is_json) = (arguments.record.id.full_id()?, arguments.json);
    let screen = Screen::for_stdout(arguments.times);
    let reader = Reader::open(&arguments.db)?;
    let to_not_found = || {
        let file = arguments.db.display();
        ClientError::Refused(format!(
            "the journal {file} has no job {id}: there was none, or its retention is over"
        ))
    };
    if let Some(entry_number) = arguments.record.at_entry {
        return match reader.load_job_at_entry(id, entry_number)?.ok_or_else(to_not_found)? {
            JobAtEntry::Found { job, at: time } => {
                print_job(&to_json(&JobView::whole(&job, time))?, is_json, screen, out)
            }
            JobAtEntry::NoSuchEntry { entries } => Err(ClientError::Usage(format!(
                "--at {entry_number}: the record of job {id} has the entries 1 to {entries}"
            ))),
        };
    }
    let mut printer = EntryPrinter::new(&arguments.record, is_json, screen, out);
    while let Some((after, limit)) = printer.next_page() {
        let page = reader.load_record_page(id, after, limit, PAGE_BYTES_MAX)?;
        let page = page.ok_or_else(to_not_found)?;
        let rows = page.rows.iter().flat_map(|row| EntryView::from_row(page.graph(), row));
        let entries = rows.map(|entry| to_json(&entry)).collect::<Result<Vec<_>, _>>()?;
        printer.print_page(entries.iter().map(String::as_str), page.next_cursor())?;
    }
    Ok(())
}

fn to_json(value: &impl serde::Serialize) -> Result<String, ClientError> {
    serde_json::to_string(value).map_err(|error| ClientError::Refused(error.to_string()))
}

/// Prints a job, given as JSON.
fn print_job(
    body: &str,
    is_json: bool,
    screen: Screen,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    if is_json {
        print_json(body, out)?;
        return Ok(());
    }
    job::print_job(&parse_response(body)?, screen, out)
}

/// Prints entries, page by page.
struct EntryPrinter<'o> {
    is_json: bool,
    /// The number of the entry after which the next page begins. `None` after the last page.
    after: Option<u64>,
    /// How many entries are still to be printed. `None` means all.
    remaining: Option<u64>,
    screen: Screen,
    out: &'o mut dyn Write,
}

impl<'o> EntryPrinter<'o> {
    fn new(
        arguments: &RecordArguments,
        is_json: bool,
        screen: Screen,
        out: &'o mut dyn Write,
    ) -> EntryPrinter<'o> {
        EntryPrinter {
            is_json,
            after: Some(arguments.after),
            remaining: arguments.limit,
            screen,
            out,
        }
    }

    /// Returns the number of the entry after which the next page begins, and how many entries the
    /// page may have. Returns `None` if no more entries are to be printed.
    fn next_page(&self) -> Option<(u64, u32)> {
        let limit = u32::try_from(self.remaining.unwrap_or(u64::MAX)).unwrap_or(u32::MAX);
        self.after.filter(|_| limit > 0).map(|after| (after, limit.min(PAGE_ENTRIES_MAX)))
    }

    /// Prints the entries of a page. The next page begins after the entry with the number `next`.
    fn print_page<'a>(
        &mut self,
        entries: impl Iterator<Item = &'a str>,
        next: Option<u64>,
    ) -> Result<(), ClientError> {
        for entry in entries {
            self.remaining = self.remaining.map(|remaining| remaining.saturating_sub(1));
            if self.is_json {
                print_json(entry, self.out)?;
            } else {
                let columns = self.screen.width.unwrap_or(LINE_COLUMNS_MAX);
                writeln!(self.out, "{}", truncate(&render_entry(entry, self.screen)?, columns))?;
            }
        }
        self.after = next;
        Ok(())
    }
}

/// Renders an entry as one line: its number, its time, its kind, its step, and its other fields.
fn render_entry(entry: &str, screen: Screen) -> Result<String, ClientError> {
    let EntryResponse { number, time, kind, step, payload } = parse_response(entry)?;
    let fields: serde_json::Map<String, Value> = parse_response(entry)?;
    let mut notes: Vec<String> = fields
        .iter()
        .filter(|(key, _)| !COMMON_KEYS.contains(&key.as_str()))
        .map(|(key, value)| {
            format!(
                "{} {}",
                escape(&split_camel_case(key)),
                screen.format_time(&render_value(value))
            )
        })
        .collect();
    match (payload, fields.get("payloadBytes")) {
        (Some(payload), _) => notes.push(escape(payload.get()).into_owned()),
        (None, Some(bytes)) => notes.push(format!("{bytes} bytes, not shown")),
        (None, None) => {}
    }
    let step = step.map_or_else(String::new, |step| format!(" {step}"));
    let time = screen.format_time(&time);
    Ok(format!("{number:>6}  {time}  {kind}{step}  {}", notes.join(", ")).trim_end().to_owned())
}

/// Renders the value of a field. A text has no quotes.
fn render_value(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    escape(&text).into_owned()
}

/// Splits a key such as `retryAt` into words: `retry at`.
fn split_camel_case(key: &str) -> String {
    let mut spaced = String::with_capacity(key.len() + 1);
    for letter in key.chars() {
        if letter.is_ascii_uppercase() {
            spaced.push(' ');
        }
        spaced.push(letter.to_ascii_lowercase());
    }
    spaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_one_line_without_control_characters() {
        let entry = concat!(
            r#"{"n":7,"at":"2026-01-01T00:00:00Z","kind":"step.attempt-failed","step":"pay","#,
            r#""attempt":1,"reason":"no\nmoney","retryAt":"2026-01-01T00:00:01Z"}"#,
        );
        let screen = Screen::with_width(None);
        let rendered = render_entry(entry, screen).expect("an entry");
        assert_eq!(
            rendered,
            "     7  2026-01-01T00:00:00Z  step.attempt-failed pay  attempt 1, reason no\\nmoney, \
             retry at 2026-01-01T00:00:01Z"
        );
        assert_eq!(truncate(&rendered, 60).chars().count(), 60);
        assert_eq!(truncate(&rendered, 500), rendered);
        let large =
            r#"{"n":1,"at":"t","kind":"job.created","payloadBytes":5000,"payloadOmitted":true}"#;
        assert!(
            render_entry(large, screen)
                .expect("an entry")
                .ends_with("job.created  5000 bytes, not shown")
        );
    }
}
