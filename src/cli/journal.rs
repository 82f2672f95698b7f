//! `journal copy`: copies a journal from a file into a database, or back.

use super::arguments::CopyArguments;
use super::error::ClientError;
use super::signals::Signals;
use base::clock;
use daemon::settings::{Overrides, Settings};
use daemon::telemetry::log;
use journal::{CopyCounts, CopyProgress, CopySummary, JournalPlace, PostgresOptions, copy_journal};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime;

/// How often the progress is printed.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// How the address of a database begins.
const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];

/// Runs `journal copy --from JOURNAL --to JOURNAL`.
pub(super) fn copy(arguments: &CopyArguments, out: &mut dyn Write) -> Result<(), ClientError> {
    let settings = Settings::load(arguments.config.as_deref(), &Overrides::default())
        .map_err(|error| ClientError::Refused(error.to_string()))?;
    let from = parse_place(&arguments.from, "--from", &settings)?;
    let to = parse_place(&arguments.to, "--to", &settings)?;
    let (from_name, to_name) = (display(&from), display(&to));
    let CopySummary { jobs, decisions, open_jobs } = copy_and_report(from, to)?;
    if arguments.json {
        let summary = json!({ "jobs": jobs, "decisions": decisions, "openJobs": open_jobs });
        writeln!(out, "{summary}")?;
    } else {
        writeln!(
            out,
            "{to_name} is a copy of {from_name}, compared job by job: {jobs} jobs and child jobs \
             with {decisions} decisions, {open_jobs} to go on with. Start the manager on one of \
             them alone"
        )?;
    }
    Ok(())
}

/// Parses the journal that an option names: a file, an address, or a file that has an address.
fn parse_place(text: &str, option: &str, settings: &Settings) -> Result<JournalPlace, ClientError> {
    let usage = |what: String| ClientError::Usage(format!("{option}: {what}"));
    let address = match text.strip_prefix('@') {
        Some(file) => {
            let content = std::fs::read_to_string(file)
                .map_err(|error| usage(format!("cannot read {file}: {error}")))?;
            content.trim().to_owned()
        }
        None if SCHEMES.iter().any(|scheme| text.starts_with(scheme)) => text.to_owned(),
        None => return Ok(JournalPlace::File(PathBuf::from(text))),
    };
    let server = address.parse().map_err(|what: String| usage(format!("the address: {what}")))?;
    let authorities = settings.authorities().map_err(ClientError::Refused)?;
    let name = settings.cluster.name.clone();
    let options = PostgresOptions {
        server,
        authorities,
        name,
        api_address: None,
        require_synchronous: false,
    };
    Ok(JournalPlace::Database(Box::new(options)))
}

/// Returns the name of a journal, without secrets.
fn display(place: &JournalPlace) -> String {
    match place {
        JournalPlace::File(file) => file.display().to_string(),
        JournalPlace::Database(options) => options.server.to_string(),
    }
}

/// Copies a journal, and prints the progress. A signal that requests a stop stops the copy.
fn copy_and_report(from: JournalPlace, to: JournalPlace) -> Result<CopySummary, ClientError> {
    let progress = Arc::new(CopyProgress::default());
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::for_stop_at_terminal()?;
        let copier = progress.clone();
        let mut copy = tokio::task::spawn_blocking(move || copy_journal(&from, &to, &copier));
        let started = clock::instant();
        loop {
            tokio::select! {
                result = &mut copy => {
                    return result.map_err(std::io::Error::from)?.map_err(ClientError::from);
                }
                signal = signals.next() => {
                    log::print(&format!("workflow-manager: {signal}: the copy is stopped"));
                    progress.stop();
                }
                () = tokio::time::sleep(PROGRESS_INTERVAL) => {
                    log::print(&describe(progress.counts(), started));
                }
            }
        }
    })
}

/// Describes how far a copy is that was started at this time.
fn describe(counts: CopyCounts, started: Instant) -> String {
    let CopyCounts { total, copied, checked } = counts;
    let (verb, done) = if checked > 0 { ("compared", checked) } else { ("copied", copied) };
    if total == 0 {
        return "workflow-manager: the journals are opened and checked".to_owned();
    }
    let percent = done * 100 / total;
    let rate = (copied + checked) as f64 / started.elapsed().as_secs_f64();
    format!("workflow-manager: {done} of {total} jobs {verb} ({percent} %), {rate:.0}/s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_tells_the_count_the_share_and_the_rate() {
        let started = clock::instant().checked_sub(Duration::from_secs(10)).expect("a past time");
        let text =
            |total, copied, checked| describe(CopyCounts { total, copied, checked }, started);
        assert!(text(0, 0, 0).ends_with("opened and checked"));
        let copied = text(2_000, 500, 0);
        assert!(copied.contains("500 of 2000 jobs copied (25 %), 50/s"), "{copied}");
        let checked = text(2_000, 2_000, 1_000);
        assert!(checked.contains("1000 of 2000 jobs compared (50 %), 300/s"), "{checked}");
    }
}
