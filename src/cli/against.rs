//! `check FILE… --against JOURNAL`: finds out before the files are loaded which of the jobs in a
//! journal would go another way under them.

use super::check;
use super::error::ClientError;
use crate::engine::words::escaped;
use crate::engine::{Definition, JobId, JobState};
use crate::journal::{Filter, JobNumber, JournalError, NEWEST, Reader, Records, SearchOrder};
use crate::load::load_files_or_input;
use crate::rehearsal::{Change, changes, differences_under};
use crate::settings::Settings;
use serde::Serialize;
use std::collections::{BTreeSet, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// How many jobs are printed for people. JSON lists more.
const JOBS_SHOWN_MAX: usize = 20;

/// How many jobs of each workflow are listed in JSON.
const JOBS_TOLD_MAX: usize = 10_000;

/// How many differences of one job are printed for people.
const DIFFERENCES_SHOWN_MAX: usize = 4;

/// How many jobs are read at once.
const PAGE_JOBS: u32 = 1_000;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Comparison {
    journal: String,
    /// Whether a running job would differ.
    affected: bool,
    workflows: Vec<Workflow>,
    not_in_files: Vec<Absent>,
}

/// A workflow that is in no file, but has running jobs.
#[derive(Serialize)]
struct Absent {
    workflow: String,
    running: i64,
}

#[derive(Default, Serialize)]
struct Count {
    running: usize,
    ended: usize,
}

impl Count {
    fn add(&mut self, is_running: bool) {
        let one = if is_running { &mut self.running } else { &mut self.ended };
        *one += 1;
    }

    fn all(&self) -> usize {
        self.running + self.ended
    }
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Workflow {
    workflow: String,
    /// All root jobs in the journal.
    kept: Count,
    /// The jobs that began under exactly this definition.
    same: Count,
    /// The jobs that would differ.
    affected: Count,
    /// Each definition that differs from the one in the files.
    definitions: Vec<Former>,
    /// Steps that would get a column in the status table.
    new_columns: Vec<String>,
    /// Columns that stay for the jobs that have them, and are empty for new jobs.
    old_columns: Vec<String>,
    jobs: Vec<Affected>,
    /// The number of affected jobs that are not in `jobs`.
    jobs_omitted: usize,
}

/// A previous version of a definition, with which jobs began.
#[derive(Serialize)]
struct Former {
    #[serde(skip)]
    definition: Arc<Definition>,
    jobs: Count,
    changes: Vec<Change>,
}

#[derive(Serialize)]
struct Affected {
    job: JobId,
    state: JobState,
    differences: Vec<Change>,
}

/// Runs the command. The exit code is 1 if a file is not valid, or a running job would go another
/// way.
pub(super) fn check(
    files: &[PathBuf],
    settings: Option<&Settings>,
    journal: &Path,
    is_json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    let Ok(loaded) = load_files_or_input(files, settings) else {
        check::check(files, settings, is_json, out)?;
        return Ok(ExitCode::FAILURE);
    };
    let comparison = compared(&loaded.definitions, journal)
        .map_err(|error| ClientError::Refused(error.to_string()))?;
    if is_json {
        let text = serde_json::to_string_pretty(&comparison)
            .map_err(|error| ClientError::Refused(error.to_string()))?;
        writeln!(out, "{text}")?;
    } else {
        print(&comparison, out)?;
    }
    out.flush()?;
    Ok(if comparison.affected { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn compared(definitions: &[Arc<Definition>], journal: &Path) -> Result<Comparison, JournalError> {
    let reader = Reader::open(journal)?;
    let workflows = definitions
        .iter()
        .map(|definition| of_workflow(&reader, definition))
        .collect::<Result<Vec<_>, _>>()?;
    let is_absent = |workflow: &str| definitions.iter().all(|known| known.full_name() != workflow);
    let counts = reader.running_counts()?.into_iter();
    let not_in_files = counts
        .filter(|(workflow, _)| is_absent(workflow))
        .map(|(workflow, running)| Absent { workflow, running })
        .collect();
    Ok(Comparison {
        journal: journal.display().to_string(),
        affected: workflows.iter().any(|workflow| workflow.affected.running > 0),
        workflows,
        not_in_files,
    })
}

fn of_workflow(
    reader: &dyn Records,
    definition: &Arc<Definition>,
) -> Result<Workflow, JournalError> {
    let full_name = definition.full_name();
    let mut found = Workflow { workflow: full_name.clone(), ..Workflow::default() };
    // Running jobs come first, so that they are listed in any case. One may end meanwhile.
    let mut seen = HashSet::new();
    for states in [[JobState::Running, JobState::Paused].as_slice(), &[]] {
        let (workflow, states) = (Some(full_name.clone()), states.to_vec());
        let filter = Filter { workflow, states, ..Filter::default() };
        let mut below = NEWEST;
        loop {
            let page = reader.search(&filter, SearchOrder::NewestFirst, below, PAGE_JOBS)?;
            for hit in &page {
                below = hit.number;
                if seen.insert(hit.number) {
                    of_job(reader, hit.number, definition, &mut found)?;
                }
            }
            if page.len() < PAGE_JOBS as usize {
                break;
            }
        }
    }
    let steps = |definition: &Definition| -> Vec<String> {
        definition.graph().steps.iter().map(|step| step.name.to_string()).collect()
    };
    let now = steps(definition);
    let former: BTreeSet<String> =
        found.definitions.iter().flat_map(|former| steps(&former.definition)).collect();
    if !found.definitions.is_empty() {
        found.new_columns = now.iter().filter(|step| !former.contains(*step)).cloned().collect();
    }
    found.old_columns = former.into_iter().filter(|step| !now.contains(step)).collect();
    Ok(found)
}

fn of_job(
    reader: &dyn Records,
    number: JobNumber,
    definition: &Arc<Definition>,
    found: &mut Workflow,
) -> Result<(), JournalError> {
    // The job is read by its number: since it ended, an item of another job may have taken its id.
    // It may also have been deleted since it was listed.
    let Some(job) = reader.job_numbered(number)? else { return Ok(()) };
    let is_running = !job.state().is_ended();
    found.kept.add(is_running);
    if job.definition() == definition {
        found.same.add(is_running);
        return Ok(());
    }
    let former = found.definitions.iter_mut().find(|former| former.definition == *job.definition());
    match former {
        Some(former) => former.jobs.add(is_running),
        None => {
            let mut jobs = Count::default();
            jobs.add(is_running);
            let changes = changes(job.definition(), definition);
            found.definitions.push(Former { definition: job.definition().clone(), jobs, changes });
        }
    }
    let Some(record) = reader.rows_numbered(number)? else { return Ok(()) };
    let differences = differences_under(&job, &record, definition);
    if differences.is_empty() {
        return Ok(());
    }
    found.affected.add(is_running);
    if found.jobs.len() < JOBS_TOLD_MAX {
        found.jobs.push(Affected { job: job.id(), state: job.state(), differences });
    } else {
        found.jobs_omitted += 1;
    }
    Ok(())
}

fn print(comparison: &Comparison, out: &mut dyn Write) -> Result<(), ClientError> {
    for workflow in &comparison.workflows {
        print_workflow(workflow, out)?;
    }
    for Absent { workflow, running } in &comparison.not_in_files {
        writeln!(
            out,
            "workflow {} is not in these files: {} of it running\n",
            escaped(workflow),
            jobs(usize::try_from(*running).unwrap_or_default())
        )?;
    }
    let affected: usize =
        comparison.workflows.iter().map(|workflow| workflow.affected.running).sum();
    writeln!(out, "running jobs that would differ: {affected}")?;
    writeln!(
        out,
        "Running jobs keep the definition that they began with: to load these files changes"
    )?;
    writeln!(out, "none of them. The list tells how jobs like them will differ from then on.")?;
    Ok(())
}

fn print_workflow(workflow: &Workflow, out: &mut dyn Write) -> Result<(), ClientError> {
    let Workflow { kept, same, affected, .. } = workflow;
    writeln!(
        out,
        "workflow {}: {} kept, {} of them running",
        escaped(&workflow.workflow),
        jobs(kept.all()),
        kept.running
    )?;
    if kept.all() == same.all() {
        let why =
            if kept.all() == 0 { "nothing to compare" } else { "all began under this definition" };
        writeln!(out, "  {why}\n")?;
        return Ok(());
    }
    for former in &workflow.definitions {
        let Count { running, .. } = former.jobs;
        writeln!(
            out,
            "  {}, {running} running, began under a definition from which this differs:",
            jobs(former.jobs.all())
        )?;
        for change in &former.changes {
            writeln!(out, "    {}", sentence(change))?;
        }
        if former.changes.is_empty() {
            writeln!(out, "    the order of the steps")?;
        }
    }
    for column in &workflow.new_columns {
        writeln!(out, "  status column {}: is new", escaped(column))?;
    }
    for column in &workflow.old_columns {
        writeln!(out, "  status column {}: stays, empty for new jobs", escaped(column))?;
    }
    if affected.all() == 0 {
        writeln!(out, "  no job would differ\n")?;
        return Ok(());
    }
    writeln!(out, "  {} would differ, {} running:", jobs(affected.all()), affected.running)?;
    // Running jobs come first, then the newest ones.
    let mut shown: Vec<&Affected> = workflow.jobs.iter().collect();
    shown.sort_by_key(|affected| affected.state.is_ended());
    for affected in shown.iter().take(JOBS_SHOWN_MAX) {
        writeln!(out, "    {} {}", affected.job, affected.state.word())?;
        for difference in affected.differences.iter().take(DIFFERENCES_SHOWN_MAX) {
            writeln!(out, "      {}", sentence(difference))?;
        }
        let more = affected.differences.len().saturating_sub(DIFFERENCES_SHOWN_MAX);
        if more > 0 {
            writeln!(out, "      … and {more} more; --json tells them")?;
        }
    }
    if affected.all() > JOBS_SHOWN_MAX {
        let more = affected.all() - JOBS_SHOWN_MAX;
        writeln!(out, "    … and {} more; --json tells them", jobs(more))?;
    }
    writeln!(out)?;
    Ok(())
}

fn sentence(change: &Change) -> String {
    let task = change.task.as_ref().map(|task| format!("task {task}: "));
    let step = change.step.as_ref().map(|step| format!("step {step} "));
    let text = [task.as_deref(), step.as_deref(), Some(&change.text)];
    escaped(&text.into_iter().flatten().collect::<String>()).into_owned()
}

fn jobs(count: usize) -> String {
    if count == 1 { "1 job".to_owned() } else { format!("{count} jobs") }
}
