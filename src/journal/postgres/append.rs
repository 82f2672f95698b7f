//! Commits records: one transaction writes their rows of `entries`, and all that follows from them.

use super::commit_connection::BatchStatement;
use super::connection::{params, to_sql_text};
use super::writer::PostgresWriter;
use crate::checksums::{EntryTexts, checksum, entry_checksum, job_checksum};
use crate::error::JournalError;
use crate::numbers::{Day, RESERVED_NUMBERS};
use crate::record::{JobNumber, Record};
use crate::recover::JobRow;
use crate::sql::to_sql_number;
use engine::{DefinitionHash, JobState, Timestamp};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use uuid::Uuid;

/// The most bytes of entries in one statement. PostgreSQL takes messages of up to 1 GiB.
const CHUNK_BYTES: usize = 32 << 20;

/// The most statements into which the entries of a transaction are split, unless they are larger
/// than [`CHUNK_BYTES_MAX`] then.
const CHUNKS_MAX: usize = 16;

/// From this size on a statement has one record.
const CHUNK_BYTES_MAX: usize = 256 << 20;

/// The most bytes of a record. It must fit into one statement. SQLite takes as many.
const RECORD_BYTES_MAX: usize = 1_000_000_000;

/// Inserts the rows of new root jobs.
const INSERT_ROOTS: &str = "
INSERT INTO jobs(number, id, workflow, definition, graph, root, depth, created, state, ended, open,
                 changed, checksum)
SELECT u.number, u.id, u.workflow, u.definition, u.graph, u.number, u.depth, u.created, u.state,
       u.ended, u.open, u.created, u.checksum
FROM unnest($1::bigint[], $2::uuid[], $3::text[], $4::bigint[], $5::integer[], $6::bigint[],
            $7::text[], $8::bigint[], $9::boolean[], $10::bigint[], $11::integer[])
  AS u(number, id, workflow, definition, graph, created, state, ended, open, checksum, depth)
ON CONFLICT (number) DO NOTHING";

/// Inserts the rows of new child jobs, unless their root job is deleted.
const INSERT_CHILDREN: &str = "
INSERT INTO jobs(number, id, workflow, definition, graph, root, parent, step, item, depth, created,
                 state, ended, open, changed, checksum)
SELECT u.number, u.id, u.workflow, u.definition, u.graph, u.root, u.parent, u.step, u.item, u.depth,
       u.created, u.state, u.ended, u.open, u.created, u.checksum
FROM unnest($1::bigint[], $2::uuid[], $3::text[], $4::bigint[], $5::integer[], $6::bigint[],
            $7::text[], $8::bigint[], $9::boolean[], $10::bigint[], $11::bigint[], $12::bigint[],
            $13::integer[], $14::bigint[], $15::integer[])
  AS u(number, id, workflow, definition, graph, created, state, ended, open, checksum, root, parent,
       step, item, depth)
WHERE EXISTS (SELECT 1 FROM jobs r WHERE r.number = u.root AND r.number BETWEEN $16 AND $17)
ON CONFLICT (number) DO NOTHING";

/// Inserts rows of `entries` of jobs that exist, and writes what follows from them. What the
/// journal has already changes nothing; another decision in its place fails with a division by
/// zero.
const INSERT_ENTRIES: &str = "
WITH entry AS (
  INSERT INTO entries AS e (job, first, seq, at, body, checksum)
  SELECT u.* FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[],
                         $6::bigint[]) AS u(job, first, seq, at, body, checksum)
  WHERE EXISTS (SELECT 1 FROM jobs j WHERE j.number = u.job AND j.number BETWEEN $21 AND $22)
  ON CONFLICT (job, first) DO UPDATE SET checksum = 1 / (e.first - e.first)
    WHERE e.checksum <> excluded.checksum
  RETURNING e.job, e.first),
change AS (
  UPDATE jobs j SET
    state = coalesce(u.state, j.state),
    ended = CASE WHEN u.state IS NULL THEN j.ended ELSE u.ended END,
    open = coalesce(u.open, j.open),
    changed = coalesce(u.changed, j.changed)
  FROM unnest($7::bigint[], $8::text[], $9::bigint[], $10::boolean[], $11::bigint[])
    AS u(number, state, ended, open, changed)
  WHERE j.number = u.number AND j.number BETWEEN $21 AND $22
    AND u.number IN (SELECT job FROM entry)),
status AS (
  INSERT INTO statuses AS s (job, step, word, at)
  SELECT u.job, d.step, u.word, u.at
  FROM unnest($12::bigint[], $13::integer[], $14::text[], $15::bigint[]) AS u(job, index, word, at)
  JOIN jobs j ON j.number = u.job AND j.number BETWEEN $21 AND $22
  JOIN definition_steps d ON d.definition = j.definition AND d.index = u.index
  WHERE u.job IN (SELECT job FROM entry)
  ON CONFLICT (job, step) DO UPDATE SET word = excluded.word, at = excluded.at)
INSERT INTO notices(name, at, body, checksum)
SELECT (u.job >> 12) & 1023, u.at, u.body, u.checksum
FROM unnest($16::bigint[], $17::bigint[], $18::bigint[], $19::text[], $20::bigint[])
  AS u(job, first, at, body, checksum)
WHERE (u.job, u.first) IN (SELECT job, first FROM entry)";

/// The errors of [`INSERT_ENTRIES`] when another decision is in the place of one: an earlier one,
/// or one of the same transaction.
const OTHER_DECISION_ERRORS: [&str; 2] = ["(SQLSTATE 22012)", "(SQLSTATE 21000)"];

/// Selects the jobs among these that do not exist.
const SELECT_DELETED: &str = "
SELECT u.number FROM unnest($1::bigint[]) AS u(number)
WHERE NOT EXISTS (
  SELECT 1 FROM jobs j WHERE j.number = u.number AND j.number BETWEEN $2 AND $3)";

/// The state of a job in its row of `jobs`.
#[derive(Clone, Copy)]
struct JobStatus {
    /// The new state, and when the job ended; `None` if the state does not change.
    state: Option<(JobState, Option<Timestamp>)>,
    /// Whether the job takes input; `None` if that does not change.
    is_open: Option<bool>,
}

impl JobStatus {
    /// Returns what a record changes.
    fn of_record(record: &Record) -> JobStatus {
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
    fn add_new(&mut self, row: &JobRow, workflow: String, status: JobStatus) {
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

    pub(super) fn into_root_statement(self) -> Option<BatchStatement> {
        (!self.number.is_empty()).then(|| {
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
            BatchStatement::new(INSERT_ROOTS, params)
        })
    }

    pub(super) fn into_child_statement(self) -> Option<BatchStatement> {
        (!self.number.is_empty()).then(|| {
            let (lowest, highest) = bounds(&self.root);
            let params = params![
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
                self.depth,
                lowest,
                highest
            ];
            BatchStatement::new(INSERT_CHILDREN, params)
        })
    }
}

/// The parameters of [`INSERT_ENTRIES`]: rows of `entries`, and what follows from them.
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
    fn is_full(&self, bytes: usize, records_min: usize) -> bool {
        let is_large = self.bytes > CHUNK_BYTES && self.job.len() >= records_min;
        is_large || (!self.job.is_empty() && self.bytes + bytes > CHUNK_BYTES_MAX)
    }

    fn add(&mut self, record: &Record, body: String, sum: u32, seq: i64) {
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
        if let Some(notice) = &record.notice {
            self.bytes += notice.body.len();
            self.notice_job.push(job);
            self.notice_first.push(to_sql_number(recorded.first));
            self.notice_at.push(notice.at.0);
            self.notice_checksum.push(checksum(notice.at.0, &notice.body).into());
            self.notice_body.push(notice.body.to_string());
        }
    }

    pub(super) fn into_statement(self) -> BatchStatement {
        let mut changed_job = Vec::with_capacity(self.changes.len());
        let (mut state, mut ended, mut is_open, mut changed) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (job, (status, at)) in self.changes {
            changed_job.push(job);
            state.push(status.state.map(|(state, _)| state.as_str()));
            ended.push(status.state.and_then(|(_, ended)| ended).map(|time| time.0));
            is_open.push(status.is_open);
            changed.push(status.state.is_some().then_some(at.0));
        }
        let (mut status_job, mut index, mut word, mut word_at) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for ((job, step), (status, at)) in self.statuses {
            status_job.push(job);
            index.push(step);
            word.push(to_sql_text(&status));
            word_at.push(at.0);
        }
        let (lowest, highest) = bounds(&self.job);
        let params = params![
            self.job,
            self.first,
            self.seq,
            self.at,
            self.body,
            self.checksum,
            changed_job,
            state,
            ended,
            is_open,
            changed,
            status_job,
            index,
            word,
            word_at,
            self.notice_job,
            self.notice_first,
            self.notice_at,
            self.notice_body,
            self.notice_checksum,
            lowest,
            highest
        ];
        BatchStatement::new(INSERT_ENTRIES, params)
    }
}

/// Returns the size of a record's notice.
fn notice_bytes(record: &Record) -> usize {
    record.notice.as_ref().map_or(0, |notice| notice.body.len())
}

/// Returns the lowest and the highest of these numbers. A statement that names them looks only at
/// the days between them.
fn bounds(numbers: &[JobNumber]) -> (JobNumber, JobNumber) {
    (numbers.iter().copied().min().unwrap_or(0), numbers.iter().copied().max().unwrap_or(0))
}

impl PostgresWriter {
    /// Commits records in order, all or nothing. Returns the numbers of the jobs that do not exist
    /// any more, among the jobs of the records and `others`.
    pub(super) fn commit_records(
        &mut self,
        records: &[&Record],
        others: &[JobNumber],
    ) -> Result<BTreeSet<JobNumber>, JournalError> {
        let (mut deleted, mut days) = (BTreeSet::new(), BTreeSet::new());
        let (mut roots, mut children) = (JobColumns::default(), JobColumns::default());
        let chunk_records_min = (records.len() / CHUNKS_MAX).max(1);
        let mut chunks = vec![EntryChunk::default()];
        let mut checksums: HashMap<(JobNumber, u64), u32> = HashMap::new();
        let mut asked: BTreeSet<JobNumber> = others.iter().copied().collect();
        for record in records {
            let root = record.created.as_ref().map(|created| created.root);
            let is_closing = |number: JobNumber| self.is_being_deleted(number);
            if is_closing(record.job) || root.is_some_and(is_closing) {
                deleted.insert(record.job);
                continue;
            }
            asked.insert(record.job);
            if let Some(created) = &record.created {
                let definition = self.ensure_definition(&created.origin.definition)?;
                let row = JobRow::new(record.job, created, definition);
                let workflow = created.origin.definition.full_name();
                let columns = if row.parent.is_some() { &mut children } else { &mut roots };
                columns.add_new(&row, workflow, JobStatus::of_record(record));
                days.insert(Day::of_number(record.job));
                self.highest = self.highest.max(record.job);
            }
            let recorded = &record.recorded;
            let body = serde_json::to_string(&recorded.entries)
                .map_err(|error| self.failure(format!("entries cannot be written: {error}")))?;
            let sum = entry_checksum(
                record.job,
                recorded.first,
                recorded.at,
                EntryTexts::body_alone(&body),
            );
            // A record that comes twice in one transaction is sent once.
            if checksums.insert((record.job, recorded.first), sum) == Some(sum) {
                continue;
            }
            let bytes = body.len() + notice_bytes(record);
            if bytes > RECORD_BYTES_MAX {
                return Err(self.failure(format!(
                    "a decision of job {} has {bytes} bytes, and {RECORD_BYTES_MAX} can be stored: \
                     give its workflow smaller messages, or its lists fewer items",
                    record.job
                )));
            }
            let chunk = chunks.last().expect("there is a chunk");
            if chunk.is_full(bytes, chunk_records_min) {
                chunks.push(EntryChunk::default());
            }
            self.last_seq += 1;
            let seq = self.last_seq;
            chunks.last_mut().expect("there is a chunk").add(record, body, sum, seq);
            self.newest = self.newest.max(Some(recorded.at));
        }
        let (closing, asked): (Vec<JobNumber>, Vec<JobNumber>) =
            asked.into_iter().partition(|number| self.is_being_deleted(*number));
        deleted.extend(closing);
        let last_row =
            chunks.iter().rev().find_map(|chunk| Some((*chunk.job.last()?, *chunk.first.last()?)));
        let mut statements: Vec<BatchStatement> = roots
            .into_root_statement()
            .into_iter()
            .chain(children.into_child_statement())
            .collect();
        let chunks = chunks.into_iter().filter(|chunk| !chunk.job.is_empty());
        statements.extend(chunks.map(EntryChunk::into_statement));
        let reserved = self.reserve_numbers(&mut statements);
        let (lowest, highest) = bounds(&asked);
        statements.push(BatchStatement::new(SELECT_DELETED, params![asked, lowest, highest]));
        let results = self.commits.transact_on(&days, statements);
        let results = results.map_err(|error| self.explain(error))?;
        self.reserved = reserved;
        let not_found = results.last().into_iter().flatten();
        deleted.extend(not_found.map(|row| row.get::<_, JobNumber>(0)));
        if let Some(row) = last_row.filter(|(job, _)| !deleted.contains(job)) {
            self.commits.set_committed_row(Some(row));
        }
        if let Some(newest) = self.newest {
            self.beat.set_newest(newest);
        }
        Ok(deleted)
    }

    /// Adds the statement that reserves numbers if the new jobs have higher ones than the database
    /// knows of. Returns up to which number they are reserved once it is committed.
    fn reserve_numbers(&self, statements: &mut Vec<BatchStatement>) -> JobNumber {
        if self.highest <= self.reserved {
            return self.reserved;
        }
        let reserved = self.highest.saturating_add(RESERVED_NUMBERS);
        let sql = "UPDATE names SET high = $1 WHERE ordinal = $2 AND high < $1";
        statements.push(BatchStatement::new(sql, params![reserved, self.ordinal.0]));
        reserved
    }

    /// Names the defect behind the errors with which [`INSERT_ENTRIES`] refuses another decision.
    fn explain(&self, error: JournalError) -> JournalError {
        let text = error.to_string();
        if OTHER_DECISION_ERRORS.iter().any(|code| text.contains(code)) {
            let problem = "another decision is to be written in place of one that is there";
            return JournalError::damaged_row(&self.journal, "entries", 0, problem.to_owned());
        }
        error
    }

    /// Returns the number of a definition, which is inserted with its steps if it is new.
    pub(super) fn ensure_definition(
        &mut self,
        definition: &Arc<engine::Definition>,
    ) -> Result<i64, JournalError> {
        if let Some((last, number)) = &self.last_definition
            && Arc::ptr_eq(last, definition)
        {
            return Ok(*number);
        }
        let body = serde_json::to_string(&**definition)
            .map_err(|error| self.failure(format!("a definition cannot be written: {error}")))?;
        let hash = DefinitionHash::from_json_text(&body);
        let number = match self.definitions.get(&hash) {
            Some(number) => *number,
            None => self.insert_definition(definition, hash, body)?,
        };
        self.last_definition = Some((definition.clone(), number));
        Ok(number)
    }
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
