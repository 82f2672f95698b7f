//! `doctor`: finds what is wrong with an installation, and suggests what to do.

mod broker;
mod certificate;
mod finding;
#[cfg(feature = "grpc")]
mod grpc;
#[cfg(feature = "kafka")]
mod kafka;
mod local;
mod manager;
mod services;

use super::arguments::{DoctorArguments, TimeArguments};
use super::error::ClientError;
use super::reach::{Reach, Source};
use super::screen::{Screen, print_json};
use super::words::counted;
use crate::engine::words::escaped;
use finding::{Finding, Level};
use local::{Local, loopback};
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;

/// Runs `doctor`. The exit code is 1 if any check finds an error.
pub(super) fn doctor(
    arguments: &DoctorArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    let mut found = Vec::new();
    let local = if local::is_given(&arguments.settings) {
        local::look(&arguments.settings, &mut found)
    } else {
        let text = "none are given here: only the manager is looked at; with those of serve \
                    (--config, --workflows, --db, …) doctor looks at files, disk and broker, too";
        found.push(Finding::ok("settings", text));
        None
    };
    let is_locked = local.as_ref().and_then(|local| local.is_locked);
    #[cfg(feature = "grpc")]
    let (mut server, mut token) = (String::new(), String::new());
    let has_manager = match reach(arguments, local.as_ref()) {
        Ok(reach) => {
            #[cfg(feature = "grpc")]
            {
                (server, token) = (reach.server.clone(), reach.token.clone());
            }
            manager::look(reach, is_locked, &mut found)?
        }
        Err(error) => {
            let to_do = "mend it; workflow-manager context list shows the contexts";
            found.push(Finding::error("context", error.to_string(), to_do));
            false
        }
    };
    if let Some(local) = &local {
        broker::look(local, has_manager, &mut found);
        services::look(local, &mut found);
        certificate::look(local, &mut found);
        #[cfg(feature = "grpc")]
        grpc::look(local, &server, &token, &mut found);
        #[cfg(feature = "kafka")]
        kafka::look(local, &mut found);
    }
    print(arguments.client.json, &found, out)?;
    let is_wrong = found.iter().any(|finding| finding.level == Level::Error);
    Ok(if is_wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the manager to check. Without arguments it is the manager of the settings.
fn reach(arguments: &DoctorArguments, local: Option<&Local>) -> Result<Reach, ClientError> {
    let reach = Reach::of(&arguments.client.reach)?;
    let Some(Local { settings, .. }) = local.filter(|_| reach.server_source == Source::Default)
    else {
        return Ok(reach);
    };
    let listen = loopback(settings.http.listen);
    let (token, token_source) = if reach.token.is_empty() {
        (settings.http.token.0.clone(), Source::Flag("the settings"))
    } else {
        (reach.token, reach.token_source)
    };
    let scheme = if settings.http.tls.certificate.is_empty() { "http" } else { "https" };
    let server = format!("{scheme}://{listen}");
    Ok(Reach { server, token, server_source: Source::Flag("the settings"), token_source })
}

fn print(is_json: bool, found: &[Finding], out: &mut dyn Write) -> Result<(), ClientError> {
    if is_json {
        let entries = found.iter().map(|Finding { level, what, text, to_do }| {
            json!({ "level": level.word(), "check": what, "text": text, "do": to_do })
        });
        print_json(&entries.collect::<serde_json::Value>().to_string(), out)?;
        return Ok(());
    }
    let screen = Screen::of(TimeArguments::default());
    for Finding { level, what, text, to_do } in found {
        let word = format!("{:<7}", level.word());
        let word = screen.painted(&word, level.word());
        writeln!(out, "{word}  {what:<9}  {}", escaped(text))?;
        if !to_do.is_empty() {
            writeln!(out, "{:20}→ {}", "", escaped(to_do))?;
        }
    }
    let count = |wanted: Level| found.iter().filter(|finding| finding.level == wanted).count();
    let (errors, warnings) = (count(Level::Error), count(Level::Warning));
    writeln!(out, "\n{}, {}", counted(errors, "error"), counted(warnings, "warning"))?;
    Ok(())
}
