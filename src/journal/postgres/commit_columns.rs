//! The columns of a commit: what its statements take, and the statements in both forms.

use super::cells::CellChanges;
use super::commit_connection::BatchStatement;
use super::commit_sql::{
    CHANGE_JOBS, INSERT_CHILDREN, INSERT_ENTRIES, INSERT_NEW_CHILDREN, INSERT_NEW_ENTRIES,
    INSERT_NEW_ROOTS, INSERT_NOTICES, INSERT_ROOTS, SET_STATUSES,
};
use super::connection::{Params, params, to_sql_text};
use super::failures::FailureChanges;
use crate::checksums::{checksum, job_checksum};
use crate::failures::FailureChange;
use crate::record::{JobNumber, Record};
use crate::recover::JobRow;
use crate::sql::to_sql_number;
use engine::{JobState, Timestamp};
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// The most bytes of entries in one statement. PostgreSQL takes messages of up to 1 GiB.
const CHUNK_BYTES: usize = 32 << 20;

/// The most statements into which the entries of a transaction are split, unless they are larger
/// than [`CHUNK_BYTES_MAX`] then.
pub(super) const CHUNKS_MAX: usize = 16;

/// From this size on a statement has one record.
const CHUNK_BYTES_MAX: usize = 256 << 20;

/// What stands for no time, so that the columns of changes have values of one size, which the
/// server finds by their position.
const NONE: i64 = i64::MIN;

/// The statements of a commit, in both forms (`commit_sql`). They share their parameters.
#[derive(Default)]
pub(super) struct CommitForms {
    pub(super) plain: Vec<BatchStatement>,
    pub(super) careful: Vec<BatchStatement>,
}

/// The state of a job in its row of `jobs`.
#[derive(Clone, Copy)]
pub(super) struct JobStatus {
    /// The new state, and when the job ended; `None` if the state does not change.
    state: Option<(JobState, Option<Timestamp>)>,
    /// Whether the job takes input; `None` if that does not change.
    is_open: Option<bool>,
}

impl JobStatus {
    /// Returns what a record changes.
    pub(super) fn of_record(record: &Record) -> JobStatus {
        JobStatus { state: record.state_change(), is_open: record.open_change() }
    }
}

/// The new rows of `jobs`, column by column.
#[derive(Default)]
pub(super) struct JobColumns {
    number: Vec<i64>,
    id: Vec<Uuid>,
    workflow: Vec<String>,
    definition: Vec<i64>,
    graph: Vec<i32>,
    created: Vec<i64>,
    state: Vec<&'static str>,
    ended: Vec<Option<i64>>,
    is_open: Vec<bool>,
    checksum: Vec<i64>,
    root: Vec<i64>,
    parent: Vec<Option<i64>>,
    step: Vec<Option<i32>>,
    item: Vec<Option<i64>>,
    depth: Vec<i32>,
}

impl JobColumns {
    /// Adds the row of a new job after its first record.
    pub(super) fn add_new(&mut self, row: &JobRow, workflow: String, status: JobStatus) {
        let (state, ended) = status.state.unwrap_or((JobState::Running, None));
        self.add(row, workflow, (state, ended, status.is_open.unwrap_or(true)));
    }

    /// Adds a row with the columns that change: the state, when the job ended, and whether it takes
    /// input.
    pub(super) fn add(
        &mut self,
        row: &JobRow,
        workflow: String,
        (state, ended, is_open): (JobState, Option<Timestamp>, bool),
    ) {
        self.number.push(row.number);
        self.id.push(row.id.0);
        self.workflow.push(workflow);
        self.definition.push(row.definition);
        self.graph.push(row.graph.into());
        self.created.push(row.created.0);
        self.state.push(state.as_str());
        self.ended.push(ended.map(|time| time.0));
        self.is_open.push(is_open);
        self.checksum.push(job_checksum(row).into());
        self.root.push(row.root);
        self.parent.push(row.parent);
        self.step.push(row.step.map(i32::from));
        self.item.push(row.item.map(i64::from));
        self.depth.push(row.depth.into());
    }

    /// Returns the numbers of the new jobs.
    pub(super) fn numbers(&self) -> impl Iterator<Item = JobNumber> {
        self.number.iter().copied()
    }

    /// Returns the root jobs of the new jobs.
    pub(super) fn roots(&self) -> impl Iterator<Item = JobNumber> {
        self.root.iter().copied()
    }

    /// Adds the statement for root jobs, if there are any.
    pub(super) fn add_roots_to(self, forms: &mut CommitForms) {
        if self.number.is_empty() {
            return;
        }
        let JobColumns {
            number,
            id,
            workflow,
            definition,
            graph,
            created,
            state,
            ended,
            is_open,
            checksum,
            depth,
            ..
        } = self;
        let params = params![
            number, id, workflow, definition, graph, created, state, ended, is_open, checksum,
            depth
        ];
        forms.plain.push(BatchStatement::new(INSERT_NEW_ROOTS, params.clone()));
        forms.careful.push(BatchStatement::new(INSERT_ROOTS, params));
    }

    /// Adds the statement for child jobs, if there are any.
    pub(super) fn add_children_to(self, forms: &mut CommitForms) {
        if self.number.is_empty() {
            return;
        }
        let (lowest, highest) = bounds(&self.root);
        let mut params = params![
            self.number,
            self.id,
            self.workflow,
            self.definition,
            self.graph,
            self.created,
            self.state,
            self.ended,
            self.is_open,
            self.checksum,
            self.root,
            self.parent,
            self.step,
            self.item,
            self.depth
        ];
        forms.plain.push(BatchStatement::new(INSERT_NEW_CHILDREN, params.clone()));
        params.extend(params![lowest, highest]);
        forms.careful.push(BatchStatement::new(INSERT_CHILDREN, params));
    }
}

/// Rows of `entries`, and what follows from them.
#[derive(Default)]
pub(super) struct EntryChunk {
    bytes: usize,
    job: Vec<i64>,
    first: Vec<i64>,
    seq: Vec<i64>,
    at: Vec<i64>,
    body: Vec<String>,
    checksum: Vec<i64>,
    /// The changes of jobs, merged into one for each job.
    changes: BTreeMap<JobNumber, (JobStatus, Timestamp)>,
    /// The changed statuses by job and index of the step, each with its time.
    statuses: BTreeMap<(JobNumber, i32), (Arc<str>, Timestamp)>,
    /// The changed cells.
    cells: CellChanges,
    /// The changed failures.
    failures: FailureChanges,
    notice_job: Vec<i64>,
    notice_first: Vec<i64>,
    notice_at: Vec<i64>,
    notice_body: Vec<String>,
    notice_checksum: Vec<i64>,
}

impl EntryChunk {
    /// Adds a row of `entries` from which nothing else follows. `sum` is its checksum.
    pub(super) fn add_row(
        &mut self,
        (job, first, at): (JobNumber, u64, Timestamp),
        body: String,
        sum: u32,
        seq: i64,
    ) {
        self.bytes += body.len();
        self.job.push(job);
        self.first.push(to_sql_number(first));
        self.seq.push(seq);
        self.at.push(at.0);
        self.body.push(body);
        self.checksum.push(sum.into());
    }

    /// Returns whether a record of this size belongs into the next statement. `records_min` is how
    /// many records a statement should have at least.
    pub(super) fn is_full(&self, bytes: usize, records_min: usize) -> bool {
        let is_large = self.bytes > CHUNK_BYTES && self.job.len() >= records_min;
        is_large || (!self.job.is_empty() && self.bytes + bytes > CHUNK_BYTES_MAX)
    }

    /// Adds a record.
    pub(super) fn add(&mut self, record: &Record, body: String, sum: u32, seq: i64) {
        let (job, recorded) = (record.job, &record.recorded);
        self.add_row((job, recorded.first, recorded.at), body, sum, seq);
        // A new job's row has the state of its first record.
        let status = JobStatus::of_record(record);
        if record.created.is_none() && status.is_open.is_some() {
            let (merged, at) = self.changes.entry(job).or_insert((status, recorded.at));
            merged.state = status.state.or(merged.state);
            merged.is_open = status.is_open.or(merged.is_open);
            *at = recorded.at;
        }
        for (step, word) in &record.statuses {
            self.statuses.insert((job, step.0.into()), (word.clone(), recorded.at));
        }
        self.cells.add(job, &record.cells);
        if let Some(failure) = FailureChange::from_record(record) {
            self.failures.add(job, failure);
        }
        if let Some(notice) = &record.notice {
            self.bytes += notice.body.len();
            self.notice_job.push(job);
            self.notice_first.push(to_sql_number(recorded.first));
            self.notice_at.push(notice.at.0);
            self.notice_checksum.push(checksum(notice.at.0, &notice.body).into());
            self.notice_body.push(notice.body.to_string());
        }
    }

    /// Returns whether there are no rows.
    pub(super) fn is_empty(&self) -> bool {
        self.job.is_empty()
    }

    /// Returns the job and the place of the last row.
    pub(super) fn last_row(&self) -> Option<(JobNumber, i64)> {
        Some((*self.job.last()?, *self.first.last()?))
    }

    /// Adds the statements.
    pub(super) fn add_to(self, forms: &mut CommitForms) {
        let changes = self.changes.len();
        let mut changed_job = Vec::with_capacity(changes);
        let (mut state, mut ended, mut is_open, mut changed) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (job, (status, at)) in self.changes {
            changed_job.push(job);
            state.push(status.state.map_or(0, |(state, _)| state_code(state)));
            ended.push(status.state.and_then(|(_, ended)| ended).map_or(NONE, |time| time.0));
            is_open.push(status.is_open.map_or(0, |is_open| 1 + i32::from(is_open)));
            changed.push(if status.state.is_some() { at.0 } else { NONE });
        }
        let statuses = self.statuses.len();
        let (mut status_job, mut index, mut word, mut word_at) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for ((job, step), (status, at)) in self.statuses {
            status_job.push(job);
            index.push(step);
            word.push(to_sql_text(&status));
            word_at.push(at.0);
        }
        let notices = self.notice_job.len();
        let (lowest, highest) = bounds(&self.job);
        let states = JobState::ALL.map(JobState::as_str).to_vec();
        let entry_params =
            params![self.job, self.first, self.seq, self.at, self.body, self.checksum];
        let change_params = params![changed_job, state, ended, is_open, changed];
        let status_params = params![status_job, index, word, word_at];
        let notice_params = params![
            self.notice_job,
            self.notice_first,
            self.notice_at,
            self.notice_body,
            self.notice_checksum
        ];
        let bound_params = params![lowest, highest];
        let code_params = params![states, NONE];

        let mut plain = |sql, params: &[&Params]| {
            forms.plain.push(BatchStatement::new(sql, join(params)));
        };
        plain(INSERT_NEW_ENTRIES, &[&entry_params]);
        if changes > 0 {
            plain(CHANGE_JOBS, &[&change_params, &bound_params, &code_params]);
        }
        if statuses > 0 {
            plain(SET_STATUSES, &[&status_params, &bound_params]);
        }
        if notices > 0 {
            plain(INSERT_NOTICES, &[&notice_params]);
        }
        let params = join(&[
            &entry_params,
            &change_params,
            &status_params,
            &notice_params,
            &bound_params,
            &code_params,
        ]);
        forms.careful.push(BatchStatement::new(INSERT_ENTRIES, params));
        for statement in self.cells.statements().into_iter().chain(self.failures.statements()) {
            let BatchStatement { sql, params } = &statement;
            forms.careful.push(BatchStatement { sql: sql.clone(), params: params.clone() });
            forms.plain.push(statement);
        }
    }
}

/// Joins lists of parameters.
fn join(lists: &[&Params]) -> Params {
    lists.iter().flat_map(|list| list.iter().cloned()).collect()
}

/// Returns the number of a state, by which a change names it: 0 is no change.
fn state_code(state: JobState) -> i32 {
    let position = JobState::ALL.iter().position(|known| *known == state);
    position.map_or(0, |position| position as i32 + 1)
}

/// Returns the size of a record's notice.
pub(super) fn notice_bytes(record: &Record) -> usize {
    record.notice.as_ref().map_or(0, |notice| notice.body.len())
}

/// Returns the lowest and the highest of these numbers. A statement that names them looks only at
/// the days between them.
pub(super) fn bounds(numbers: &[JobNumber]) -> (JobNumber, JobNumber) {
    (numbers.iter().copied().min().unwrap_or(0), numbers.iter().copied().max().unwrap_or(0))
}
#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// The sizes of the statements of so many records of the same size, in MiB.
    fn chunks_mib(records: usize, record_mib: usize) -> Vec<usize> {
        let mut chunks = vec![EntryChunk::default()];
        for _ in 0..records {
            if chunks.last().unwrap().is_full(record_mib * MIB, records / CHUNKS_MAX) {
                chunks.push(EntryChunk::default());
            }
            let chunk = chunks.last_mut().unwrap();
            chunk.job.push(1);
            chunk.bytes += record_mib * MIB;
        }
        chunks.iter().map(|chunk| chunk.bytes / MIB).collect()
    }

    #[test]
    fn a_statement_is_never_larger_than_the_server_takes() {
        assert_eq!(chunks_mib(40, 1), [33, 7], "small ones have some MiB");
        assert_eq!(chunks_mib(32, 64), [128; 16], "few are enough");
        assert_eq!(chunks_mib(320, 16), [256; 20], "unless they are too large");
        assert_eq!(chunks_mib(2, 900), [900; 2], "a large record is alone");
    }
}
