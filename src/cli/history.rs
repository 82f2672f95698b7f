//! `history` and `replay`: the entries of a job, and the job as it was; from a manager, or from a
//! journal's file.

use super::arguments::{HistoryArguments, RecordArguments, ReplayArguments};
use super::client::Client;
use super::error::ClientError;
use super::job;
use super::screen::{Screen, print_json};
use super::show::parse;
use super::table::cut;
use super::text::Text;
use crate::engine::words::escaped;
use crate::journal::{JobAt, JournalError, Reader, Records};
use crate::view::{EntryView, JobView};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::io::Write;
use std::process::ExitCode;

/// How many entries are requested at once.
const PAGE_ENTRIES: u32 = 1_000;

/// How many bytes of rows are read at once.
const PAGE_BYTES_MAX: usize = 1 << 20;

/// How much of an entry is printed without a terminal, in columns.
const LINE_COLUMNS_MAX: usize = 400;

/// The fields that every entry has. The others depend on its kind.
#[derive(Deserialize)]
struct EntryAnswer {
    n: u64,
    at: Text,
    kind: Text,
    step: Option<Text>,
    payload: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct EntriesAnswer {
    entries: Vec<Box<RawValue>>,
    next: Option<u64>,
}

/// Runs `history ID [--at N]`.
pub(super) fn history(
    arguments: &HistoryArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    let (client, is_json) = (Client::new(&arguments.client.reach)?, arguments.client.json);
    let screen = Screen::of(arguments.times);
    let path = format!("/api/job/{}", arguments.record.id.find(&client)?);
    if let Some(at) = arguments.record.at {
        print_job(&client.get(&format!("{path}?at={at}"))?, is_json, screen, out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut printer = Printer::new(&arguments.record, is_json, screen, out);
    while let Some((after, limit)) = printer.wanted() {
        let page = client.get(&format!("{path}/entries?after={after}&limit={limit}"))?;
        let EntriesAnswer { entries, next } = parse(&page)?;
        let entries = entries.iter().map(|entry| entry.get());
        printer.page(entries, next)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `replay --db FILE ID [--at N]`.
pub(super) fn replay(arguments: &ReplayArguments, out: &mut dyn Write) -> Result<(), ClientError> {
    let (id, is_json) = (arguments.record.id.whole()?, arguments.json);
    let screen = Screen::of(arguments.times);
    let reader = Reader::open(&arguments.db).map_err(unreadable)?;
    let unknown = || {
        let file = arguments.db.display();
        ClientError::Refused(format!(
            "the journal {file} has no job {id}: there was none, or its retention is over"
        ))
    };
    if let Some(at) = arguments.record.at {
        return match reader.job_at(id, at).map_err(unreadable)?.ok_or_else(unknown)? {
            JobAt::Was { job, at } => {
                print_job(&json(&JobView::whole(&job, at))?, is_json, screen, out)
            }
            JobAt::Never { entries } => Err(ClientError::Usage(format!(
                "--at {at}: the record of job {id} has the entries 1 to {entries}"
            ))),
        };
    }
    let mut printer = Printer::new(&arguments.record, is_json, screen, out);
    while let Some((after, limit)) = printer.wanted() {
        let page = reader.record(id, after, limit, PAGE_BYTES_MAX).map_err(unreadable)?;
        let page = page.ok_or_else(unknown)?;
        let rows = page.rows.iter().flat_map(|row| EntryView::of_row(page.graph(), row));
        let entries = rows.map(|entry| json(&entry)).collect::<Result<Vec<_>, _>>()?;
        printer.page(entries.iter().map(String::as_str), page.next())?;
    }
    Ok(())
}

fn json(value: &impl serde::Serialize) -> Result<String, ClientError> {
    serde_json::to_string(value).map_err(|error| ClientError::Refused(error.to_string()))
}

fn unreadable(error: JournalError) -> ClientError {
    ClientError::Refused(error.to_string())
}

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
    job::print(&parse(body)?, screen, out)
}

/// Prints entries, page by page.
struct Printer<'o> {
    is_json: bool,
    /// The entry after which the next page begins, or `None` after the last page.
    after: Option<u64>,
    /// How many entries are still to be printed; `None` means all.
    left: Option<u64>,
    screen: Screen,
    out: &'o mut dyn Write,
}

impl<'o> Printer<'o> {
    fn new(
        asked: &RecordArguments,
        is_json: bool,
        screen: Screen,
        out: &'o mut dyn Write,
    ) -> Printer<'o> {
        Printer { is_json, after: Some(asked.after), left: asked.limit, screen, out }
    }

    /// Returns after which entry the next page begins, and how many entries it may have.
    fn wanted(&self) -> Option<(u64, u32)> {
        let most = u32::try_from(self.left.unwrap_or(u64::MAX)).unwrap_or(u32::MAX);
        self.after.filter(|_| most > 0).map(|after| (after, most.min(PAGE_ENTRIES)))
    }

    fn page<'a>(
        &mut self,
        entries: impl Iterator<Item = &'a str>,
        next: Option<u64>,
    ) -> Result<(), ClientError> {
        for entry in entries {
            self.left = self.left.map(|left| left.saturating_sub(1));
            if self.is_json {
                print_json(entry, self.out)?;
            } else {
                let columns = self.screen.width.unwrap_or(LINE_COLUMNS_MAX);
                writeln!(self.out, "{}", cut(&line(entry, self.screen)?, columns))?;
            }
        }
        self.after = next;
        Ok(())
    }
}

/// Renders an entry as one line: its number, its time, its kind, and its other fields.
fn line(entry: &str, screen: Screen) -> Result<String, ClientError> {
    let EntryAnswer { n, at, kind, step, payload } = parse(entry)?;
    let rest: serde_json::Map<String, Value> = parse(entry)?;
    let known = ["n", "at", "kind", "step", "payload", "payloadBytes", "payloadOmitted"];
    let mut notes: Vec<String> = rest
        .iter()
        .filter(|(key, _)| !known.contains(&key.as_str()))
        .map(|(key, value)| format!("{} {}", escaped(&words(key)), screen.time(&shown(value))))
        .collect();
    match (payload, rest.get("payloadBytes")) {
        (Some(payload), _) => notes.push(escaped(payload.get()).into_owned()),
        (None, Some(bytes)) => notes.push(format!("{bytes} bytes, not shown")),
        (None, None) => {}
    }
    let step = step.map_or_else(String::new, |step| format!(" {step}"));
    let at = screen.time(&at);
    Ok(format!("{n:>6}  {at}  {kind}{step}  {}", notes.join(", ")).trim_end().to_owned())
}

fn shown(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    escaped(&text).into_owned()
}

/// Splits a key such as `retryAt` into words: `retry at`.
fn words(key: &str) -> String {
    let mut words = String::with_capacity(key.len() + 1);
    for letter in key.chars() {
        if letter.is_ascii_uppercase() {
            words.push(' ');
        }
        words.push(letter.to_ascii_lowercase());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_line_without_controls_and_as_wide_as_the_terminal() {
        let entry = concat!(
            r#"{"n":7,"at":"2026-01-01T00:00:00Z","kind":"step.attempt-failed","step":"pay","#,
            r#""attempt":1,"reason":"no\nmoney","retryAt":"2026-01-01T00:00:01Z"}"#,
        );
        let screen = Screen::wide(None);
        let whole = line(entry, screen).expect("an entry");
        assert_eq!(
            whole,
            "     7  2026-01-01T00:00:00Z  step.attempt-failed pay  attempt 1, reason no\\nmoney, \
             retry at 2026-01-01T00:00:01Z"
        );
        assert_eq!(cut(&whole, 60).chars().count(), 60);
        assert_eq!(cut(&whole, 500), whole);
        let large =
            r#"{"n":1,"at":"t","kind":"job.created","payloadBytes":5000,"payloadOmitted":true}"#;
        assert!(
            line(large, screen).expect("an entry").ends_with("job.created  5000 bytes, not shown")
        );
    }
}
