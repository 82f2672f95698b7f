//! `doctor`: checks an installation and its manager, and suggests a remedy for each problem. Each
//! group of checks is a submodule with a function `inspect`, which adds its findings to a list.

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

use super::addresses::Addresses;
use super::arguments::{DoctorArguments, TimeArguments};
use super::error::ClientError;
use super::plural::format_count;
use super::screen::{Screen, print_json};
use super::target::{ManagerTarget, TargetSource};
use engine::text::escape;
use finding::{Finding, Severity};
use installation::{Installation, to_loopback};
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;

/// Runs `doctor`. The exit code is 1 if any check finds an error.
pub(super) fn run_doctor(
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
    let is_journal_open =
        installation.as_ref().and_then(|installation| installation.is_journal_open);
    let target = find_target(arguments, installation.as_ref());
    let has_manager = match &target {
        Ok(target) => manager::inspect(target.clone(), is_journal_open, &mut findings)?,
        Err(error) => {
            let remedy = "mend it; workflow-manager context list shows the contexts";
            findings.push(Finding::error("context", error.to_string(), remedy));
            false
        }
    };
    if let Some(installation) = &installation {
        broker::inspect(installation, has_manager, &mut findings);
        services::inspect(installation, &mut findings);
        certificate::inspect(installation, &mut findings);
        #[cfg(feature = "grpc")]
        grpc::inspect(installation, target.ok().as_ref(), &mut findings);
        #[cfg(feature = "kafka")]
        kafka::inspect(installation, &mut findings);
    }
    print_findings(arguments.client.json, &findings, out)?;
    let has_errors = findings.iter().any(|finding| finding.severity == Severity::Error);
    Ok(if has_errors { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the manager to check: the one that flags, environment or context select. If they select
/// none, the one of the settings on this machine.
fn find_target(
    arguments: &DoctorArguments,
    installation: Option<&Installation>,
) -> Result<ManagerTarget, ClientError> {
    let target = ManagerTarget::from_arguments(&arguments.client.target)?;
    let Some(Installation { settings, .. }) =
        installation.filter(|_| target.server_source == TargetSource::Default)
    else {
        return Ok(target);
    };
    let address = to_loopback(settings.http.listen);
    let (token, token_source) = if target.token.is_empty() {
        (settings.http.token.0.clone(), TargetSource::Flag("the settings"))
    } else {
        (target.token, target.token_source)
    };
    let scheme = if settings.http.tls.certificate.is_empty() { "http" } else { "https" };
    let addresses =
        Addresses::parse(&format!("{scheme}://{address}")).map_err(ClientError::Usage)?;
    Ok(ManagerTarget {
        addresses,
        token,
        server_source: TargetSource::Flag("the settings"),
        token_source,
    })
}

/// Prints the findings, as JSON or as lines that end with the number of errors and warnings.
fn print_findings(
    is_json: bool,
    findings: &[Finding],
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    if is_json {
        let entries = findings.iter().map(|Finding { severity, check, text, remedy }| {
            json!({ "level": severity.as_str(), "check": check, "text": text, "do": remedy })
        });
        print_json(&entries.collect::<serde_json::Value>().to_string(), out)?;
        return Ok(());
    }
    let screen = Screen::for_stdout(TimeArguments::default());
    for Finding { severity, check, text, remedy } in findings {
        // The widths are those of the longest labels. A remedy is aligned with the text.
        let label = format!("{:<7}", severity.as_str());
        let coloured_label = screen.colour(&label, severity.as_str());
        writeln!(out, "{coloured_label}  {check:<9}  {}", escape(text))?;
        if !remedy.is_empty() {
            writeln!(out, "{:20}→ {}", "", escape(remedy))?;
        }
    }
    let count =
        |severity: Severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    writeln!(out, "\n{}, {}", format_count(errors, "error"), format_count(warnings, "warning"))?;
    Ok(())
}
