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
#[serde(rename_all = "camelCase")]
struct RefillResponse {
    jobs: usize,
    changed: usize,
    without_step: usize,
    busy: usize,
    next: Option<Text>,
}

/// Runs `columns refill`, page by page. The exit code is 1 if jobs are left as they are. A run that
/// was stopped can be repeated: what it has done is not done again.
pub(super) fn run(command: &ColumnsCommand, out: &mut dyn Write) -> Result<ExitCode, ClientError> {
    let ColumnsCommand::Refill { workflow, dry_run, reason, client } = command;
    let (client, is_json) = (Client::new(&client.target)?, client.json);
    let (vhost, name) = workflow.rsplit_once('/').unwrap_or(("", workflow));
    let path = format!("/api/workflows/{name}/refill");
    let mut sum = RefillResponse::default();
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
        sum = RefillResponse {
            jobs: sum.jobs + page.jobs,
            changed: sum.changed + page.changed,
            without_step: sum.without_step + page.without_step,
            busy: sum.busy + page.busy,
            next: page.next,
        };
        if sum.next.is_none() {
            break;
        }
    }
    let exit_code = if sum.busy > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    if is_json {
        let RefillResponse { jobs, changed, without_step, busy, next: _ } = sum;
        let sum = json!({
            "jobs": jobs, "changed": changed, "withoutStep": without_step, "busy": busy,
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
    Ok(exit_code)
}
