//! `columns refill`: computes the label and the columns of a workflow's jobs anew.

use super::arguments::ColumnsCommand;
use super::client::Client;
use super::error::ClientError;
use super::plural::format_count;
use super::responses::parse_response;
use super::screen::print_json;
use super::text::Text;
use serde::Deserialize;
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;

/// How many jobs one call refills.
const PAGE_JOBS: &str = "100";

/// What one page of a refill has done.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RefillResponse {
    jobs: usize,
    changed: usize,
    without_step: usize,
    busy: usize,
    unreadable: usize,
    definition: Option<Text>,
    next: Option<Text>,
}

/// Runs `columns refill`, page by page. The exit code is 1 if jobs are left as they are, or if
/// the definition was changed meanwhile. A run that was stopped can be repeated: what it has done
/// is not done again.
pub(super) fn run(command: &ColumnsCommand, out: &mut dyn Write) -> Result<ExitCode, ClientError> {
    let ColumnsCommand::Refill { workflow, dry_run, reason, client } = command;
    let (client, is_json) = (Client::new(&client.target)?, client.json);
    let (vhost, name) = workflow.rsplit_once('/').unwrap_or(("", workflow));
    let path = format!("/api/workflows/{name}/refill");
    let (mut sum, mut has_changed) = (RefillResponse::default(), false);
    loop {
        let parameters = [
            ("vhost", Some(vhost.to_owned()).filter(|vhost| !vhost.is_empty())),
            ("dryRun", dry_run.then(|| "true".to_owned())),
            ("reason", reason.clone()),
            ("limit", Some(PAGE_JOBS.to_owned())),
            ("cursor", sum.next.as_ref().map(|next| next.to_string())),
        ];
        let given =
            parameters.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        let page: RefillResponse =
            parse_response(&client.post(&path, &given.collect::<Vec<_>>(), "")?)?;
        has_changed |= sum.definition.is_some() && sum.definition != page.definition;
        sum = RefillResponse {
            jobs: sum.jobs + page.jobs,
            changed: sum.changed + page.changed,
            without_step: sum.without_step + page.without_step,
            busy: sum.busy + page.busy,
            unreadable: sum.unreadable + page.unreadable,
            definition: page.definition,
            next: page.next,
        };
        if sum.next.is_none() {
            break;
        }
    }
    let is_done = sum.busy == 0 && sum.unreadable == 0 && !has_changed;
    let exit_code = if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if is_json {
        let sum = json!({
            "jobs": sum.jobs, "changed": sum.changed, "withoutStep": sum.without_step,
            "busy": sum.busy, "unreadable": sum.unreadable, "definitionChanged": has_changed,
        });
        print_json(&sum.to_string(), out)?;
        return Ok(exit_code);
    }
    let verb = if *dry_run { "would change" } else { "changed" };
    writeln!(out, "{} of {} {verb}", sum.changed, format_count(sum.jobs, "job"))?;
    if sum.without_step > 0 {
        let jobs = format_count(sum.without_step, "job");
        writeln!(out, "{jobs} without a step that a column reads: empty there")?;
    }
    if sum.busy > 0 {
        let jobs = format_count(sum.busy, "job");
        writeln!(out, "{jobs} went on meanwhile, and left as before: run it again")?;
    }
    if sum.unreadable > 0 {
        let jobs = format_count(sum.unreadable, "job");
        writeln!(out, "{jobs} cannot be read, and left as before: the manager's log says why")?;
    }
    if has_changed {
        writeln!(out, "the definition was changed meanwhile: run it again")?;
    }
    Ok(exit_code)
}
