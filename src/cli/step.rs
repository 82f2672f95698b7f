//! `step`: a step with its attempts, or its input or output byte for byte.

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
    raw: Option<Text>,
    retry_at: Option<Text>,
    deadline: Option<Text>,
    elapsed: Option<u64>,
    input_bytes: Option<u64>,
    output_bytes: Option<u64>,
    #[serde(default)]
    attempts: Vec<AttemptResponse>,
    #[serde(default)]
    attempts_omitted: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AttemptResponse {
    attempt: u32,
    state: Text,
    start_time: Option<Text>,
    end_time: Option<Text>,
    confirmed: Option<Text>,
    redispatched: Option<u64>,
    reason: Option<Text>,
}

/// Runs `step ID STEP`.
pub(super) fn show_step(arguments: &StepArguments, out: &mut dyn Write) -> Result<(), ClientError> {
    let client = Client::new(&arguments.client.target)?;
    let id = arguments.id.resolve(&client)?;
    let name = utf8_percent_encode(&arguments.step, NON_ALPHANUMERIC);
    let path = format!("/api/job/{id}/step/{name}");
    if arguments.input || arguments.output {
        let which = if arguments.input { "input" } else { "output" };
        print_payload(&client, &format!("{path}/{which}"), out)?;
        return Ok(());
    }
    let at = arguments.at.map(|at| ("at".to_owned(), at.to_string()));
    let body = client.query(&path, at.as_slice())?;
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

/// Prints a payload as the manager has it. On a terminal, control characters are escaped and a line
/// break is added.
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

fn print_raw_reply(step: &StepDetailResponse, out: &mut dyn Write) -> Result<(), ClientError> {
    let Some(raw) = &step.raw else {
        return Err(ClientError::Refused(format!(
            "step {} has no such reply: only a reply that was no JSON object is kept as it came; \
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
    let took = step.elapsed.map(|elapsed| Text::new(&Millis(elapsed / 1_000_000).to_string()));
    let named = [
        ("status", Some(&step.status).filter(|status| !status.is_empty())),
        ("queue", step.queue.as_ref()),
        ("elapsed", took.as_ref()),
        ("reason", step.reason.as_ref()),
        ("warning", step.warning.as_ref()),
        ("reply", step.raw.as_ref()),
    ];
    for (key, value) in named {
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
        let text = |text: &Option<Text>| text.as_deref().unwrap_or_default().to_owned();
        let redispatches = attempt.redispatched.filter(|times| *times > 0);
        table.add_row([
            attempt.attempt.to_string(),
            attempt.state.to_string(),
            text(&attempt.start_time),
            text(&attempt.end_time),
            text(&attempt.confirmed),
            redispatches.map_or_else(String::new, |times| times.to_string()),
            text(&attempt.reason),
        ]);
    }
    table
}
