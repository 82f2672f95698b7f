//! Commits records: one transaction writes their rows of `entries`, and all that follows from them.
//! It is sent as if all were new, and again in the careful form if it is refused (`commit_sql`).

use super::commit_columns::{
    CHUNKS_MAX, CommitForms, EntryChunk, JobColumns, JobStatus, bounds, notice_bytes,
};
use super::commit_connection::{BatchStatement, Results};
use super::commit_sql::{OTHER_DECISION_ERRORS, REFUSE_DELETED, SELECT_DELETED};
use super::connection::{Params, params};
use super::limit_rates;
use super::writer::PostgresWriter;
use crate::checksums::{EntryTexts, entry_checksum};
use crate::error::JournalError;
use crate::numbers::{Day, RESERVED_NUMBERS};
use crate::record::{JobNumber, Record};
use crate::recover::JobRow;
use engine::DefinitionHash;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The most bytes of a record. It must fit into one statement. SQLite takes as many.
const RECORD_BYTES_MAX: usize = 1_000_000_000;

/// Returns the parameters of a statement that looks for jobs.
fn number_params(numbers: Vec<JobNumber>) -> Params {
    let (lowest, highest) = bounds(&numbers);
    params![numbers, lowest, highest]
}

/// Returns the statements of new jobs and entries. Jobs of `needed` that are not new must exist.
fn to_forms(
    mut needed: BTreeSet<JobNumber>,
    roots: JobColumns,
    children: JobColumns,
    chunks: Vec<EntryChunk>,
) -> CommitForms {
    let created: BTreeSet<JobNumber> = roots.numbers().chain(children.numbers()).collect();
    needed.extend(children.roots());
    let needed: Vec<JobNumber> = needed.difference(&created).copied().collect();
    let mut forms = CommitForms::default();
    if !needed.is_empty() {
        forms.plain.push(BatchStatement::new(REFUSE_DELETED, number_params(needed)));
    }
    roots.add_roots_to(&mut forms);
    children.add_children_to(&mut forms);
    for chunk in chunks.into_iter().filter(|chunk| !chunk.is_empty()) {
        chunk.add_to(&mut forms);
    }
    forms
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
        // The jobs that must exist before.
        let mut needed = BTreeSet::new();
        for record in records {
            let root = record.created.as_ref().map(|created| created.root);
            let is_closing = |number: JobNumber| self.is_being_deleted(number);
            if is_closing(record.job) || root.is_some_and(is_closing) {
                deleted.insert(record.job);
                continue;
            }
            asked.insert(record.job);
            needed.insert(record.job);
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
        let last_row = chunks.iter().rev().find_map(EntryChunk::last_row);
        let mut forms = to_forms(needed, roots, children, chunks);
        let marks = Record::latest_marks(records);
        forms.plain.extend(limit_rates::upsert(self.ordinal.0, &marks));
        forms.careful.extend(limit_rates::upsert(self.ordinal.0, &marks));
        let reserved = self.reserve_numbers(&mut forms);
        let is_open = |number: &JobNumber| !self.is_being_deleted(*number);
        let others: Vec<JobNumber> = others.iter().copied().filter(is_open).collect();
        if !others.is_empty() {
            forms.plain.push(BatchStatement::new(SELECT_DELETED, number_params(others)));
        }
        forms.careful.push(BatchStatement::new(SELECT_DELETED, number_params(asked)));
        let results = self.commit_forms(&days, forms).map_err(|error| self.explain(error))?;
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

    /// Commits in the plain form, and if it is refused in the careful form.
    fn commit_forms(
        &mut self,
        days: &BTreeSet<Day>,
        forms: CommitForms,
    ) -> Result<Results, JournalError> {
        match self.commits.transact_unless_refused(days, forms.plain)? {
            Some(results) => Ok(results),
            None => self.commits.transact_on(days, forms.careful),
        }
    }

    /// Adds the statement that reserves numbers if the new jobs have higher ones than the database
    /// knows of. Returns up to which number they are reserved once it is committed.
    fn reserve_numbers(&self, forms: &mut CommitForms) -> JobNumber {
        if self.highest <= self.reserved {
            return self.reserved;
        }
        let reserved = self.highest.saturating_add(RESERVED_NUMBERS);
        let sql = "UPDATE names SET high = $1 WHERE ordinal = $2 AND high < $1";
        let params = params![reserved, self.ordinal.0];
        forms.plain.push(BatchStatement::new(sql, params.clone()));
        forms.careful.push(BatchStatement::new(sql, params));
        reserved
    }

    /// Names the defect behind the errors with which the careful form refuses another decision.
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
