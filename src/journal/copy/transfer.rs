//! Copies the rows of a journal, and keeps a digest of each job to compare the copy with.

use super::progress::CopyProgress;
use super::rows::{
    CopyReader, CopySummary, CopyWriter, DecisionOrder, DecisionText, GateRows, JobOrder,
    NewJobRow, StoredJobRow,
};
use crate::error::JournalError;
use crate::inconsistency::parse_definition;
use crate::record::{JobNumber, Notice, NoticeNumber, StoredLedger, StoredOffset, StoredTrend};
use crate::recover::JobRow;
use engine::Timestamp;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// How many rows are inserted together, at most.
const BATCH_ROWS: usize = 2_000;

/// The bytes of entries from which a batch is inserted.
const BATCH_BYTES: usize = 4 << 20;

/// How many notices are copied together, at most.
const NOTICE_BATCH: u32 = 500;

/// What the copy must have.
pub(super) struct Original {
    /// The jobs, ordered by their numbers, in the original and in the copy.
    pub(super) jobs: Vec<OriginalJob>,
    pub(super) notices: u64,
    /// A digest of all notices.
    pub(super) notice_digest: u64,
    pub(super) offsets: Vec<StoredOffset>,
    /// The ledgers of its schedules.
    pub(super) ledgers: Vec<StoredLedger>,
    /// The buckets of its trends.
    pub(super) trends: Vec<StoredTrend>,
    pub(super) gate: GateRows,
    pub(super) summary: CopySummary,
}

/// A job of the original. There may be millions, so it is small.
pub(super) struct OriginalJob {
    /// Its number in the original.
    source: JobNumber,
    /// Its number in the copy.
    pub(super) target: JobNumber,
    /// The digest of its row, as it is in the copy, and of all its decisions.
    pub(super) digest: u64,
}

impl OriginalJob {
    /// Returns its number in the original.
    pub(super) fn number(&self) -> JobNumber {
        self.source
    }
}

/// A definition of the original.
struct CopiedDefinition {
    /// Its number in the copy.
    target: i64,
    workflow: Arc<str>,
}

/// Copies everything but the statuses, and returns what the copy must have.
pub(super) fn transfer(
    source: &dyn CopyReader,
    target: &mut dyn CopyWriter,
    progress: &CopyProgress,
) -> Result<Original, JournalError> {
    let definitions = copy_definitions(source, target)?;
    let mut jobs = copy_jobs(source, target, &definitions, progress)?;
    let mut summary = jobs.summary;
    let (decisions, newest) = copy_decisions(source, target, &mut jobs.jobs, progress)?;
    summary.decisions = decisions;
    let (notices, notice_digest) = copy_notices(source, target)?;
    let offsets = source.load_all_offsets()?;
    target.insert_offsets(&offsets)?;
    let ledgers = source.load_all_ledgers()?;
    target.insert_ledgers(&ledgers)?;
    let trends = source.load_all_trends()?;
    target.insert_trends(&trends)?;
    let gate = source.load_gate_rows()?;
    target.insert_gate_rows(&gate)?;
    if let Some(newest) = newest {
        target.set_newest(newest)?;
    }
    Ok(Original {
        jobs: jobs.jobs,
        notices,
        notice_digest,
        offsets,
        ledgers,
        trends,
        gate,
        summary,
    })
}

fn copy_definitions(
    source: &dyn CopyReader,
    target: &mut dyn CopyWriter,
) -> Result<HashMap<i64, CopiedDefinition>, JournalError> {
    let mut definitions = HashMap::new();
    source.for_each_definition(&mut |(number, body)| {
        let definition = parse_definition(&body)
            .map_err(|problem| source.rows().damaged_row("definitions", number, problem))?;
        let workflow: Arc<str> = definition.full_name().into();
        let target = target.insert_definition(&definition, &body)?;
        definitions.insert(number, CopiedDefinition { target, workflow });
        Ok(())
    })?;
    Ok(definitions)
}

/// The jobs that are copied.
struct CopiedJobs {
    jobs: Vec<OriginalJob>,
    summary: CopySummary,
}

fn copy_jobs(
    source: &dyn CopyReader,
    target: &mut dyn CopyWriter,
    definitions: &HashMap<i64, CopiedDefinition>,
    progress: &CopyProgress,
) -> Result<CopiedJobs, JournalError> {
    let mut copied = CopiedJobs { jobs: Vec::new(), summary: CopySummary::default() };
    let mut batch: Vec<NewJobRow> = Vec::new();
    source.for_each_job(JobOrder::ByNumber, &mut |stored| {
        progress.check_stopped(source.journal())?;
        let number = stored.row.number;
        let damaged = |problem: String| source.rows().damaged_row("jobs", number, problem);
        let definition = definitions
            .get(&stored.row.definition)
            .ok_or_else(|| damaged("its definition is missing".to_owned()))?;
        let new_number = target.number_job(&stored.row);
        let find = |relative: JobNumber| {
            if relative == number {
                return Ok(new_number);
            }
            find_job(&copied.jobs, relative)
                .map(|index| copied.jobs[index].target)
                .ok_or_else(|| damaged(format!("job {relative}, above it, is missing")))
        };
        let row = JobRow {
            number: new_number,
            definition: definition.target,
            root: find(stored.row.root)?,
            parent: stored.row.parent.map(find).transpose()?,
            ..stored.row
        };
        let job = StoredJobRow { row, ..stored };
        copied.summary.jobs += 1;
        copied.summary.open_jobs += u64::from(job.is_open);
        let digest = digest_of_job(&job);
        copied.jobs.push(OriginalJob { source: number, target: new_number, digest });
        batch.push(NewJobRow { job, workflow: definition.workflow.clone() });
        if batch.len() >= BATCH_ROWS {
            target.insert_jobs(&std::mem::take(&mut batch))?;
        }
        Ok(())
    })?;
    target.insert_jobs(&batch)?;
    Ok(copied)
}

/// Copies the decisions. Returns their number, and when the newest was made.
fn copy_decisions(
    source: &dyn CopyReader,
    target: &mut dyn CopyWriter,
    jobs: &mut [OriginalJob],
    progress: &CopyProgress,
) -> Result<(u64, Option<Timestamp>), JournalError> {
    let (mut count, mut newest) = (0, None);
    let (mut batch, mut batch_bytes): (Vec<DecisionText>, usize) = (Vec::new(), 0);
    source.for_each_decision_text(DecisionOrder::ByCommit, &mut |decision| {
        progress.check_stopped(source.journal())?;
        let job = find_job(jobs, decision.job).ok_or_else(|| {
            let problem = format!("it has entries of job {}, which is missing", decision.job);
            source.rows().damaged_row("entries", decision.job, problem)
        })?;
        let job = &mut jobs[job];
        job.digest = digest_with_decision(job.digest, &decision);
        count += 1;
        newest = newest.max(Some(decision.at));
        if decision.first == 0 {
            progress.add_copied();
        }
        batch_bytes += decision.body.len();
        batch.push(DecisionText { job: job.target, ..decision });
        if batch.len() >= BATCH_ROWS || batch_bytes >= BATCH_BYTES {
            target.insert_decisions(&std::mem::take(&mut batch))?;
            batch_bytes = 0;
        }
        Ok(())
    })?;
    target.insert_decisions(&batch)?;
    Ok((count, newest))
}

/// Copies the notices. Returns their number and their digest.
fn copy_notices(
    source: &dyn CopyReader,
    target: &mut dyn CopyWriter,
) -> Result<(u64, u64), JournalError> {
    let (mut count, mut digest, mut last) = (0, 0, NoticeNumber::MIN);
    loop {
        let page = source.load_notices(last, NOTICE_BATCH)?;
        let Some((number, _)) = page.last() else { return Ok((count, digest)) };
        last = *number;
        let notices: Vec<Notice> = page.into_iter().map(|(_, notice)| notice).collect();
        target.insert_notices(&notices, count)?;
        count += notices.len() as u64;
        digest = notices.iter().fold(digest, digest_with_notice);
    }
}

/// Returns the index of a job by its number in the original.
fn find_job(jobs: &[OriginalJob], number: JobNumber) -> Option<usize> {
    jobs.binary_search_by_key(&number, |job| job.source).ok()
}

/// Returns the digest of the row of a job.
pub(super) fn digest_of_job(job: &StoredJobRow) -> u64 {
    let StoredJobRow { row, state, ended, is_open } = job;
    let JobRow { number, id, definition, graph, root, parent, step, item, depth, created } = row;
    let mut hasher = DefaultHasher::new();
    (number, id.0, definition, graph, root, parent, step, item, depth).hash(&mut hasher);
    (created.0, state.as_str(), ended.map(|time| time.0), is_open).hash(&mut hasher);
    hasher.finish()
}

/// Returns the digest of a job with one more decision.
pub(super) fn digest_with_decision(digest: u64, decision: &DecisionText) -> u64 {
    let DecisionText { job: _, first, at, body } = decision;
    let mut hasher = DefaultHasher::new();
    (digest, first, at.0, body).hash(&mut hasher);
    hasher.finish()
}

/// Returns the digest of notices with one more.
pub(super) fn digest_with_notice(digest: u64, notice: &Notice) -> u64 {
    let Notice { at, body } = notice;
    let mut hasher = DefaultHasher::new();
    (digest, at.0, body).hash(&mut hasher);
    hasher.finish()
}
