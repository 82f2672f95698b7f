//! `check FILE… --against JOURNAL`: reports which jobs in a journal would have run differently
//! under the definitions in workflow files. So an author sees the effect before a manager loads the
//! files.

use super::check;
use super::error::ClientError;
use crate::workflow_test::{Change, diff_definitions, differences_under};
use daemon::load::load_files_or_stdin;
use daemon::settings::Settings;
use engine::text::escape;
use engine::{Definition, JobId, JobState};
use journal::{
    JobFilter, JobNumber, JobRecords, JournalError, NEWEST_CURSOR, Reader, Records, SearchOrder,
};
use serde::Serialize;
use std::collections::{BTreeSet, HashSet};
use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// How many affected jobs of each workflow are printed for people. JSON lists more.
const JOBS_PRINTED_MAX: usize = 20;

/// How many affected jobs of each workflow are listed in JSON.
const JOBS_JSON_MAX: usize = 10_000;

/// How many differences of one job are printed for people.
const DIFFERENCES_PRINTED_MAX: usize = 4;

/// How many jobs one search of the journal returns.
const PAGE_SIZE: u32 = 1_000;

/// The comparison of workflow files with a journal. Its fields are the keys of the JSON output.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Comparison {
    journal: String,
    /// Whether any running job would differ.
    affected: bool,
    workflows: Vec<WorkflowComparison>,
    not_in_files: Vec<MissingWorkflow>,
}

/// A workflow that is in no file, but has running jobs.
#[derive(Serialize)]
struct MissingWorkflow {
    workflow: String,
    running: i64,
}

/// How many jobs are running or paused, and how many have ended.
#[derive(Default, Serialize)]
struct JobCount {
    running: usize,
    ended: usize,
}

impl JobCount {
    fn add(&mut self, is_running: bool) {
        let counter = if is_running { &mut self.running } else { &mut self.ended };
        *counter += 1;
    }

    fn total(&self) -> usize {
        self.running + self.ended
    }
}

/// The comparison of one workflow with its jobs in the journal.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct WorkflowComparison {
    workflow: String,
    /// All root jobs in the journal.
    kept: JobCount,
    /// The jobs that began under exactly this definition.
    same: JobCount,
    /// The jobs that would differ.
    affected: JobCount,
    /// The other definitions under which jobs began.
    definitions: Vec<PreviousVersion>,
    /// The steps that would get a new column in the status table.
    new_columns: Vec<String>,
    /// The columns of the status table that only earlier jobs use. They are kept, and are empty for
    /// new jobs.
    old_columns: Vec<String>,
    /// The affected jobs, up to [`JOBS_JSON_MAX`].
    jobs: Vec<AffectedJob>,
    /// The number of affected jobs that are not in `jobs`.
    jobs_omitted: usize,
}

/// Another version of a definition, and the jobs that began under it.
#[derive(Serialize)]
struct PreviousVersion {
    #[serde(skip)]
    definition: Arc<Definition>,
    jobs: JobCount,
    /// The differences from this version to the definition in the files. Another order of the steps
    /// is not among them.
    changes: Vec<Change>,
}

/// A job that would differ.
#[derive(Serialize)]
struct AffectedJob {
    job: JobId,
    state: JobState,
    /// What would differ; never empty.
    differences: Vec<Change>,
}

/// Validates workflow files, and compares them with the jobs in a journal. The exit code is 1 if a
/// file is not valid, or a running job would differ.
///
/// # Errors
///
/// Returns an error if the journal cannot be read, or `out` cannot be written.
pub fn check_against(
    files: &[PathBuf],
    settings: Option<&Settings>,
    journal: &Path,
    is_json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    let Ok(workflows) = load_files_or_stdin(files, settings) else {
        check::check(files, settings, is_json, out)?;
        return Ok(ExitCode::FAILURE);
    };
    let comparison = compare(&workflows.definitions, journal)?;
    if is_json {
        let json = serde_json::to_string_pretty(&comparison)
            .map_err(|error| ClientError::Refused(error.to_string()))?;
        writeln!(out, "{json}")?;
    } else {
        print_comparison(&comparison, out)?;
    }
    out.flush()?;
    Ok(if comparison.affected { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn compare(definitions: &[Arc<Definition>], journal: &Path) -> Result<Comparison, JournalError> {
    let reader = Reader::open(journal)?;
    let workflows = definitions
        .iter()
        .map(|definition| compare_workflow(&reader, definition))
        .collect::<Result<Vec<_>, _>>()?;
    let is_missing =
        |workflow: &str| definitions.iter().all(|definition| definition.full_name() != workflow);
    let running_counts = reader.count_running_root_jobs()?;
    let not_in_files = running_counts
        .into_iter()
        .filter(|(workflow, _)| is_missing(workflow))
        .map(|(workflow, running)| MissingWorkflow { workflow, running })
        .collect();
    Ok(Comparison {
        journal: journal.display().to_string(),
        affected: workflows.iter().any(|workflow| workflow.affected.running > 0),
        workflows,
        not_in_files,
    })
}

fn compare_workflow(
    reader: &dyn Records,
    definition: &Arc<Definition>,
) -> Result<WorkflowComparison, JournalError> {
    let full_name = definition.full_name();
    let mut comparison =
        WorkflowComparison { workflow: full_name.clone(), ..WorkflowComparison::default() };
    // Running jobs are read first, so that the limit of the list does not omit them. The second
    // search finds all jobs; those that were compared are skipped.
    let mut compared_jobs = HashSet::new();
    for states in [[JobState::Running, JobState::Paused].as_slice(), &[]] {
        let (workflow, states) = (Some(full_name.clone()), states.to_vec());
        let filter = JobFilter { workflow, states, ..JobFilter::default() };
        let mut cursor = NEWEST_CURSOR;
        loop {
            let page = reader.search(&filter, SearchOrder::NewestFirst, cursor, PAGE_SIZE)?;
            for job in &page {
                cursor = job.number;
                if compared_jobs.insert(job.number) {
                    compare_job(reader, job.number, definition, &mut comparison)?;
                }
            }
            if page.len() < PAGE_SIZE as usize {
                break;
            }
        }
    }
    let step_names = |definition: &Definition| -> Vec<String> {
        definition.graph().steps.iter().map(|step| step.name.to_string()).collect()
    };
    let current_steps = step_names(definition);
    let previous_steps: BTreeSet<String> =
        comparison.definitions.iter().flat_map(|version| step_names(&version.definition)).collect();
    if !comparison.definitions.is_empty() {
        comparison.new_columns =
            current_steps.iter().filter(|step| !previous_steps.contains(*step)).cloned().collect();
    }
    comparison.old_columns =
        previous_steps.into_iter().filter(|step| !current_steps.contains(step)).collect();
    Ok(comparison)
}

/// Compares a job with the definition in the files, and adds it to the comparison.
fn compare_job(
    reader: &dyn Records,
    number: JobNumber,
    definition: &Arc<Definition>,
    comparison: &mut WorkflowComparison,
) -> Result<(), JournalError> {
    // The job is read by its number, because a child job may have got its id since it ended. It may
    // also have been deleted since it was listed.
    let Some(job) = reader.load_job_by_number(number)? else { return Ok(()) };
    let is_running = !job.state().is_ended();
    comparison.kept.add(is_running);
    if job.definition() == definition {
        comparison.same.add(is_running);
        return Ok(());
    }
    let previous =
        comparison.definitions.iter_mut().find(|version| version.definition == *job.definition());
    match previous {
        Some(version) => version.jobs.add(is_running),
        None => {
            let mut jobs = JobCount::default();
            jobs.add(is_running);
            let changes = diff_definitions(job.definition(), definition);
            comparison.definitions.push(PreviousVersion {
                definition: job.definition().clone(),
                jobs,
                changes,
            });
        }
    }
    let Some(record) = reader.load_rows_by_number(number)? else { return Ok(()) };
    let differences = differences_under(&job, &record, definition);
    if differences.is_empty() {
        return Ok(());
    }
    comparison.affected.add(is_running);
    if comparison.jobs.len() < JOBS_JSON_MAX {
        comparison.jobs.push(AffectedJob { job: job.id(), state: job.state(), differences });
    } else {
        comparison.jobs_omitted += 1;
    }
    Ok(())
}

fn print_comparison(comparison: &Comparison, out: &mut dyn Write) -> Result<(), ClientError> {
    for workflow in &comparison.workflows {
        print_workflow(workflow, out)?;
    }
    for MissingWorkflow { workflow, running } in &comparison.not_in_files {
        writeln!(
            out,
            "workflow {} is not in these files: {} of it running\n",
            escape(workflow),
            format_job_count(running)
        )?;
    }
    let affected: usize =
        comparison.workflows.iter().map(|workflow| workflow.affected.running).sum();
    writeln!(out, "running jobs that would differ: {affected}")?;
    writeln!(
        out,
        "Running jobs keep the definition that they began with: to load these files changes"
    )?;
    writeln!(out, "none of them. The list shows how jobs like them will differ from then on.")?;
    Ok(())
}

fn print_workflow(workflow: &WorkflowComparison, out: &mut dyn Write) -> Result<(), ClientError> {
    let WorkflowComparison { kept, same, affected, .. } = workflow;
    writeln!(
        out,
        "workflow {}: {} kept, {} of them running",
        escape(&workflow.workflow),
        format_job_count(kept.total()),
        kept.running
    )?;
    if kept.total() == same.total() {
        let summary = if kept.total() == 0 {
            "nothing to compare"
        } else {
            "all began under this definition"
        };
        writeln!(out, "  {summary}\n")?;
        return Ok(());
    }
    for version in &workflow.definitions {
        let JobCount { running, .. } = version.jobs;
        writeln!(
            out,
            "  {}, {running} running, began under a definition from which this differs:",
            format_job_count(version.jobs.total())
        )?;
        for change in &version.changes {
            writeln!(out, "    {}", render_change(change))?;
        }
        if version.changes.is_empty() {
            writeln!(out, "    the order of the steps")?;
        }
    }
    for column in &workflow.new_columns {
        writeln!(out, "  status column {}: is new", escape(column))?;
    }
    for column in &workflow.old_columns {
        writeln!(out, "  status column {}: stays, empty for new jobs", escape(column))?;
    }
    if affected.total() == 0 {
        writeln!(out, "  no job would differ\n")?;
        return Ok(());
    }
    writeln!(
        out,
        "  {} would differ, {} running:",
        format_job_count(affected.total()),
        affected.running
    )?;
    // Running jobs are printed first, then the newest ones.
    let mut sorted_jobs: Vec<&AffectedJob> = workflow.jobs.iter().collect();
    sorted_jobs.sort_by_key(|job| job.state.is_ended());
    for AffectedJob { job, state, differences } in sorted_jobs.into_iter().take(JOBS_PRINTED_MAX) {
        writeln!(out, "    {job} {}", state.as_str())?;
        for difference in differences.iter().take(DIFFERENCES_PRINTED_MAX) {
            writeln!(out, "      {}", render_change(difference))?;
        }
        let omitted_count = differences.len().saturating_sub(DIFFERENCES_PRINTED_MAX);
        if omitted_count > 0 {
            writeln!(out, "      … and {omitted_count} more; --json lists them")?;
        }
    }
    if affected.total() > JOBS_PRINTED_MAX {
        let omitted_count = affected.total() - JOBS_PRINTED_MAX;
        writeln!(out, "    … and {} more; --json lists them", format_job_count(omitted_count))?;
    }
    writeln!(out)?;
    Ok(())
}

fn render_change(change: &Change) -> String {
    let task = change.task.as_ref().map(|task| format!("task {task}: "));
    let step = change.step.as_ref().map(|step| format!("step {step} "));
    let text = [task.as_deref(), step.as_deref(), Some(&change.text)];
    escape(&text.into_iter().flatten().collect::<String>()).into_owned()
}

/// Formats a number of jobs: `0 jobs`, `1 job`, `2 jobs`.
fn format_job_count(count: impl Display) -> String {
    let count = count.to_string();
    if count == "1" { "1 job".to_owned() } else { format!("{count} jobs") }
}
