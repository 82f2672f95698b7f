//! `step`: prints a step with its attempts, or its input or output byte for byte.

use super::arguments::StepArguments;
use super::client::Client;
use super::error::ClientError;
use super::list_printer;
use super::responses::parse_response;
use super::screen::{Screen, escape_json, print_json};
use super::table::{ColumnRole, Table};
use super::text::Text;
use engine::text::quote;
use engine::{JobId, Millis};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use std::io::{IsTerminal, Write, stdout};

/// A step with its attempts.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StepDetailResponse {
    name: Text,
    state: Text,
    #[serde(default)]
    status: Text,
    queue: Option<Text>,
    reason: Option<Text>,
    warning: Option<Text>,
    /// The beginning of a reply that was not a JSON object.
    raw: Option<Text>,
    retry_at: Option<Text>,
    deadline: Option<Text>,
    /// The time from the first dispatch to the end of the step or until now, in nanoseconds.
    elapsed: Option<u64>,
    /// The sizes of the input and the output; `None` while there is none.
    input_bytes: Option<u64>,
    output_bytes: Option<u64>,
    #[serde(default)]
    attempts: Vec<AttemptResponse>,
    /// How many older attempts are not in `attempts`.
    #[serde(default)]
    attempts_omitted: u64,
}

/// An attempt of a step.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AttemptResponse {
    attempt: u32,
    state: Text,
    start_time: Option<Text>,
    end_time: Option<Text>,
    /// When the broker confirmed the message.
    confirmed: Option<Text>,
    /// How often the message was sent again.
    redispatched: Option<u64>,
    reason: Option<Text>,
}

/// Runs `step ID STEP`: prints the step, or the payload or reply that a flag selects.
pub(super) fn show_step(arguments: &StepArguments, out: &mut dyn Write) -> Result<(), ClientError> {
    let client = Client::new(&arguments.client.target)?;
    let id = arguments.id.resolve(&client)?;
    let name = utf8_percent_encode(&arguments.step, NON_ALPHANUMERIC);
    let path = format!("/api/job/{id}/step/{name}");
    if arguments.input || arguments.output {
        let payload = if arguments.input { "input" } else { "output" };
        print_payload(&client, &format!("{path}/{payload}"), out)?;
        return Ok(());
    }
    let query = arguments.at_entry.map(|number| ("at".to_owned(), number.to_string()));
    let body = client.query(&path, query.as_slice())?;
    if arguments.raw {
        return print_raw_reply(&parse_response(&body)?, out);
    }
    if arguments.client.json {
        print_json(&body, out)?;
        return Ok(());
    }
    print_step(id, &parse_response(&body)?, Screen::for_stdout(arguments.times), out)?;
    Ok(())
}

/// Prints the input or output of a step, unchanged. On a terminal, control characters are escaped
/// and a line break is added.
fn print_payload(client: &Client, path: &str, out: &mut dyn Write) -> Result<(), ClientError> {
    if stdout().is_terminal() {
        let text = client.get(path)?;
        writeln!(out, "{}", escape_json(&text))?;
        return Ok(());
    }
    client.copy(path, &[], "application/json", out)?;
    out.flush()?;
    Ok(())
}

/// Prints the beginning of a reply that was not a JSON object. Without a terminal it is unchanged.
fn print_raw_reply(step: &StepDetailResponse, out: &mut dyn Write) -> Result<(), ClientError> {
    let Some(raw) = &step.raw else {
        return Err(ClientError::Refused(format!(
            "step {} has no such reply: only a reply that was not a JSON object is kept as it \
             came; \
             --output has the result",
            quote(&step.name)
        )));
    };
    if stdout().is_terminal() {
        writeln!(out, "{raw}")?;
    } else {
        out.write_all(raw.raw().as_bytes())?;
        out.flush()?;
    }
    Ok(())
}

/// Prints the fields of a step, and a table of its attempts.
fn print_step(
    id: JobId,
    step: &StepDetailResponse,
    screen: Screen,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let mut print_field = |key: &str, value: &str| writeln!(out, "{key:<9} {value}");
    print_field("job", &id.to_string())?;
    print_field("step", &step.name)?;
    print_field("state", &screen.colour(&step.state, &step.state))?;
    let elapsed =
        step.elapsed.map(|nanoseconds| Text::new(&Millis(nanoseconds / 1_000_000).to_string()));
    let optional_fields = [
        ("status", Some(&step.status).filter(|status| !status.is_empty())),
        ("queue", step.queue.as_ref()),
        ("elapsed", elapsed.as_ref()),
        ("reason", step.reason.as_ref()),
        ("warning", step.warning.as_ref()),
        ("reply", step.raw.as_ref()),
    ];
    for (key, value) in optional_fields {
        if let Some(value) = value {
            print_field(key, value)?;
        }
    }
    for (key, value) in [("deadline", &step.deadline), ("again at", &step.retry_at)] {
        if let Some(value) = value {
            print_field(key, &screen.format_time(value))?;
        }
    }
    for (key, bytes) in [("input", step.input_bytes), ("output", step.output_bytes)] {
        if let Some(bytes) = bytes {
            print_field(key, &format!("{bytes} bytes: --{key} prints it"))?;
        }
    }
    if step.attempts.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    if step.attempts_omitted > 0 {
        writeln!(out, "… {} older attempts are left out", step.attempts_omitted)?;
    }
    list_printer::print_table(&attempts_table(&step.attempts), screen, false, out)
}

/// Makes a table with one row for each attempt.
fn attempts_table(attempts: &[AttemptResponse]) -> Table {
    let mut table = Table::new(&[
        ("ATTEMPT", ColumnRole::Key),
        ("STATE", ColumnRole::State),
        ("BEGAN", ColumnRole::Time),
        ("ENDED", ColumnRole::Time),
        ("AT BROKER", ColumnRole::Time),
        ("SENT AGAIN", ColumnRole::Plain),
        ("REASON", ColumnRole::Long),
    ]);
    for attempt in attempts {
        let to_cell = |text: &Option<Text>| text.as_deref().unwrap_or_default().to_owned();
        let redispatches = attempt.redispatched.filter(|count| *count > 0);
        table.add_row([
            attempt.attempt.to_string(),
            attempt.state.to_string(),
            to_cell(&attempt.start_time),
            to_cell(&attempt.end_time),
            to_cell(&attempt.confirmed),
            redispatches.map_or_else(String::new, |count| count.to_string()),
            to_cell(&attempt.reason),
        ]);
    }
    table
}
