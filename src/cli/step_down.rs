//! Runs `cluster step-down`: makes the active manager leave its name to a standby.

use super::arguments::StepDownArguments;
use super::client::Client;
use super::confirm;
use super::error::ClientError;
use super::plural::format_count;
use super::responses::parse_response;
use super::screen::print_json;
use super::text::Text;
use serde::Deserialize;
use std::io::Write;
use std::process::ExitCode;

/// The response to a step-down.
#[derive(Deserialize)]
struct StepDownResponse {
    name: Text,
    standbys: u32,
}

/// Makes the manager step down, after a person has confirmed it.
pub(super) fn step_down(
    arguments: &StepDownArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    if !arguments.yes {
        if !confirm::is_interactive() {
            return Err(ClientError::Usage(
                "cluster step-down ends the active manager, so that a standby takes over: add \
                 --yes to do it"
                    .to_owned(),
            ));
        }
        if !confirm::confirm("End the active manager, so that a standby takes over?")? {
            writeln!(out, "step-down: nothing was done")?;
            return Ok(ExitCode::FAILURE);
        }
    }
    let mut query = vec![("force".to_owned(), arguments.force.to_string())];
    query.extend(arguments.name.clone().map(|name| ("name".to_owned(), name)));
    let client = Client::new(&arguments.client.target)?;
    let body = client.post("/api/manager/step-down", &query, "")?;
    if arguments.client.json {
        print_json(&body, out)?;
    } else {
        let StepDownResponse { name, standbys } = parse_response(&body)?;
        let standbys = format_count(standbys as usize, "standby");
        writeln!(out, "the active manager named {name} ends; {standbys} can take over")?;
    }
    Ok(ExitCode::SUCCESS)
}
