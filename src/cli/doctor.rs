//! `doctor`: finds what is wrong with an installation, and suggests what to do.

mod broker;
mod broker_probe;
mod certificate;
mod finding;
#[cfg(feature = "grpc")]
mod grpc;
mod installation;
#[cfg(feature = "kafka")]
mod kafka;
mod manager;
mod services;

use super::arguments::{DoctorArguments, TimeArguments};
use super::error::ClientError;
use super::phrases::format_count;
use super::screen::{Screen, print_json};
use super::target::{ManagerTarget, TargetSource};
use engine::text::escape;
use finding::{Finding, Severity};
use installation::{Installation, to_loopback};
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;

/// Runs `doctor`. The exit code is 1 if any check finds an error.
pub(super) fn doctor(
    arguments: &DoctorArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    let mut findings = Vec::new();
    let installation = if installation::has_settings(&arguments.settings) {
        installation::inspect(&arguments.settings, &mut findings)
    } else {
        let text = "none are given here: only the manager is looked at; with those of serve \
                    (--config, --workflows, --db, …) doctor looks at files, disk and broker, too";
        findings.push(Finding::ok("settings", text));
        None
    };
    let is_journal_open = installation.as_ref().and_then(|local| local.is_journal_open);
    let target = find_target(arguments, installation.as_ref());
    let has_manager = match &target {
        Ok(target) => manager::inspect(target.clone(), is_journal_open, &mut findings)?,
        Err(error) => {
            let to_do = "mend it; workflow-manager context list shows the contexts";
            findings.push(Finding::error("context", error.to_string(), to_do));
            false
        }
    };
    if let Some(local) = &installation {
        broker::inspect(local, has_manager, &mut findings);
        services::inspect(local, &mut findings);
        certificate::inspect(local, &mut findings);
        #[cfg(feature = "grpc")]
        grpc::inspect(local, target.ok().as_ref(), &mut findings);
        #[cfg(feature = "kafka")]
        kafka::inspect(local, &mut findings);
    }
    print_findings(arguments.client.json, &findings, out)?;
    let is_wrong = findings.iter().any(|finding| finding.severity == Severity::Error);
    Ok(if is_wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the manager to check. Without arguments it is the manager of the settings.
fn find_target(
    arguments: &DoctorArguments,
    installation: Option<&Installation>,
) -> Result<ManagerTarget, ClientError> {
    let target = ManagerTarget::from_arguments(&arguments.client.reach)?;
    let Some(Installation { settings, .. }) =
        installation.filter(|_| target.server_source == TargetSource::Default)
    else {
        return Ok(target);
    };
    let listen = to_loopback(settings.http.listen);
    let (token, token_source) = if target.token.is_empty() {
        (settings.http.token.0.clone(), TargetSource::Flag("the settings"))
    } else {
        (target.token, target.token_source)
    };
    let scheme = if settings.http.tls.certificate.is_empty() { "http" } else { "https" };
    let server = format!("{scheme}://{listen}");
    Ok(ManagerTarget {
        server,
        token,
        server_source: TargetSource::Flag("the settings"),
        token_source,
    })
}

fn print_findings(
    is_json: bool,
    findings: &[Finding],
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    if is_json {
        let entries = findings.iter().map(|Finding { severity: level, check: what, text, to_do }| {
            json!({ "level": level.as_str(), "check": what, "text": text, "do": to_do })
        });
        print_json(&entries.collect::<serde_json::Value>().to_string(), out)?;
        return Ok(());
    }
    let screen = Screen::for_stdout(TimeArguments::default());
    for Finding { severity: level, check: what, text, to_do } in findings {
        let label = format!("{:<7}", level.as_str());
        let coloured_label = screen.colour(&label, level.as_str());
        writeln!(out, "{coloured_label}  {what:<9}  {}", escape(text))?;
        if !to_do.is_empty() {
            writeln!(out, "{:20}→ {}", "", escape(to_do))?;
        }
    }
    let count =
        |wanted: Severity| findings.iter().filter(|finding| finding.severity == wanted).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    writeln!(out, "\n{}, {}", format_count(errors, "error"), format_count(warnings, "warning"))?;
    Ok(())
}
