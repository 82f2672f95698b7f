//! Commits records: appends their rows to `entries`. The same transaction writes new definitions,
//! confirms, and notices for the webhook. The tables that follow from the rows are projected later
//! (`projection`).

use super::confirms::PendingConfirms;
use super::file_rows::FileRows;
use super::limit_rates;
use super::reserve::WritePurpose;
use super::row_format::{InnerDecision, damaged_entry, format_origin, insert_notice, to_json};
use super::status_table::WriteError;
use super::unprojected::Unprojected;
use super::writer::{JournalWriter, PartialDeletions, hit_fail_point};
use crate::checksums::{EntryTexts, checksum, entry_checksum};
use crate::error::JournalError;
use crate::record::{JobNumber, NewJob, Record};
use crate::recover::JobRow;
use crate::sql::to_sql_number;
use engine::{Definition, DefinitionHash, Recorded, Timestamp};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Statement, params};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// The result of writing the records of one transaction.
#[derive(Default)]
struct AppendOutcome {
    /// The jobs of the records and of `others` that do not exist any more.
    deleted: BTreeSet<JobNumber>,
    /// The `seq` of each record's row in `entries`; `None` if the record has no row of its own.
    row_seqs: Vec<Option<i64>>,
    /// The rows of new jobs.
    new_jobs: HashMap<JobNumber, JobRow>,
    /// The jobs for which this transaction has inserted a row into `entries`. The first such row of
    /// a job also contains the confirms that were pending before the transaction.
    jobs_with_rows: HashSet<JobNumber>,
    /// The confirms of this transaction that none of its rows of `entries` contains.
    confirms: BTreeMap<JobNumber, Vec<InnerDecision>>,
    /// The number of the first entry of each job's last record in this transaction.
    last_record_starts: HashMap<JobNumber, u64>,
    /// The `seq` of the row of `confirmed` that contains `confirms`; `None` if there are none.
    confirms_seq: Option<i64>,
    /// The highest `seq` in `entries` and `confirmed`.
    last_seq: i64,
}

/// The number of committed rows from which they are projected at once, instead of later.
const UNPROJECTED_ROWS_MAX: usize = 4_096;

impl JournalWriter {
    /// Commits records in order, in one transaction. Returns the numbers of the jobs that do not
    /// exist any more, among the jobs of the records and `others`.
    ///
    /// Records of deleted jobs are ignored: a child job may start or end after its root job was
    /// deleted. Appending is idempotent: a record that the journal already has, with the same job
    /// and the same first entry, changes nothing.
    pub(super) fn append(
        &mut self,
        records: &[&Record],
        others: &[JobNumber],
    ) -> Result<BTreeSet<JobNumber>, JournalError> {
        self.check_not_broken()?;
        if records.is_empty() && others.is_empty() {
            // The lock on the file keeps every other process from writing.
            return Ok(BTreeSet::new());
        }
        let write = |writer: &mut JournalWriter| {
            writer.append_in_transaction(records, others).map_err(|write_error| {
                // The transaction was rolled back, including definitions that it inserted.
                writer.clear_definitions();
                match write_error {
                    WriteError::Sqlite(error) | WriteError::StatusTable(_, error) => {
                        writer.to_journal_error(error)
                    }
                    WriteError::Journal(error) => error,
                }
            })
        };
        // Cancelled jobs can be deleted, which frees space: their records may use the reserve.
        let outcome = if Record::are_all_cancellations(records) {
            self.write_in_reserve(write)?
        } else {
            self.write_or_use_reserve(WritePurpose::Continue, write)?
        };
        self.is_locked.set(false);
        let AppendOutcome {
            deleted, row_seqs, mut new_jobs, confirms, confirms_seq, last_seq, ..
        } = outcome;
        for (record, seq) in records.iter().zip(row_seqs) {
            if let Some(seq) = seq {
                self.confirms.remove(record.job);
                self.unprojected.add_record(record, seq, new_jobs.remove(&record.job));
            }
        }
        if let Some(seq) = confirms_seq {
            self.confirms.add_row(seq, confirms.into_iter().collect());
        }
        self.last_seq = last_seq;
        if self.unprojected.places.len() >= UNPROJECTED_ROWS_MAX
            && let Err(error) = self.project()
        {
            tracing::warn!(%error, "the newest commits are not projected yet");
        }
        Ok(deleted)
    }

    /// Writes the records in one transaction. The caller updates the state in memory, except for
    /// the caches of definitions and the unprojected ids.
    fn append_in_transaction(
        &mut self,
        records: &[&Record],
        others: &[JobNumber],
    ) -> Result<AppendOutcome, WriteError> {
        let mut outcome = AppendOutcome { last_seq: self.last_seq, ..AppendOutcome::default() };
        let transaction = self.connection.transaction()?;
        {
            let mut insert = transaction.prepare_cached(INSERT_ENTRY)?;
            let mut select_last_row_start =
                transaction.prepare_cached("SELECT max(first) FROM places WHERE job = ?1")?;
            let mut lookup = JobLookup {
                select_root: transaction
                    .prepare_cached("SELECT root FROM jobs WHERE number = ?1")?,
                unprojected: &self.unprojected,
                partial_deletions: &self.partial_deletions,
            };
            for record in records {
                hit_fail_point("journal::write")?;
                let mut origin = None;
                if let Some(created) = &record.created {
                    let definition = &created.origin.definition;
                    let definition_number = find_or_insert_definition(
                        &transaction,
                        &mut self.last_definition,
                        &mut self.definitions,
                        definition,
                    )?;
                    let is_orphan = lookup.is_orphan(created, &outcome)?;
                    if !is_orphan && !lookup.job_exists(record.job, &outcome)? {
                        let row = JobRow::new(record.job, created, definition_number);
                        origin = Some(format_origin(&row)?);
                        self.unprojected_ids.add(row.id);
                        outcome.new_jobs.insert(record.job, row);
                    }
                }
                if !lookup.job_exists(record.job, &outcome)? {
                    outcome.deleted.insert(record.job);
                    outcome.row_seqs.push(None);
                    continue;
                }
                let recorded = &record.recorded;
                let pending = (&self.confirms, &self.unprojected);
                let last_start = match outcome.last_record_start(record.job, pending) {
                    None if origin.is_none() => {
                        find_last_row_start(&mut select_last_row_start, record.job)?
                    }
                    cached => cached,
                };
                if last_start.is_some_and(|last_start| recorded.first <= last_start) {
                    check_repeated(&transaction, &self.file, record)?;
                    outcome.row_seqs.push(None);
                    continue;
                }
                outcome.last_record_starts.insert(record.job, recorded.first);
                if let Some(notice) = &record.notice {
                    insert_notice(&transaction, notice)?;
                }
                if PendingConfirms::is_confirm(record) {
                    outcome.add_confirm(record);
                    continue;
                }
                let confirms = outcome.take_confirms(record.job, &self.confirms)?;
                let body = to_json(&recorded.entries)?;
                let (job, first, at) = (record.job, recorded.first, recorded.at);
                let texts = EntryTexts {
                    body: &body,
                    confirms: confirms.as_deref(),
                    origin: origin.as_deref(),
                };
                outcome.last_seq += 1;
                insert_entry(&mut insert, outcome.last_seq, (job, first, at), texts)?;
                outcome.row_seqs.push(Some(outcome.last_seq));
            }
            for other in others {
                if !lookup.job_exists(*other, &outcome)? {
                    outcome.deleted.insert(*other);
                }
            }
        }
        limit_rates::upsert(&transaction, &Record::latest_marks(records))?;
        outcome.insert_confirms(&transaction)?;
        hit_fail_point("journal::commit")?;
        transaction.commit()?;
        Ok(outcome)
    }
}

/// Looks up whether jobs exist: in the journal, or created by this transaction.
struct JobLookup<'a> {
    select_root: CachedStatement<'a>,
    unprojected: &'a Unprojected,
    partial_deletions: &'a PartialDeletions,
}

impl JobLookup<'_> {
    /// Returns whether a new job has a parent that does not exist.
    fn is_orphan(&mut self, created: &NewJob, outcome: &AppendOutcome) -> rusqlite::Result<bool> {
        match created.parent {
            Some(parent) => Ok(!self.job_exists(parent, outcome)?),
            None => Ok(false),
        }
    }

    /// Returns whether a job exists. A job of a partially deleted job tree does not, and is never
    /// unprojected, because a deletion projects its job trees first.
    fn job_exists(&mut self, number: JobNumber, outcome: &AppendOutcome) -> rusqlite::Result<bool> {
        if outcome.new_jobs.contains_key(&number) || self.unprojected.new_job(number).is_some() {
            return Ok(true);
        }
        let root: Option<JobNumber> =
            self.select_root.query_row([number], |row| row.get(0)).optional()?;
        Ok(root.is_some_and(|root| !self.partial_deletions.contains_key(&root)))
    }
}

impl AppendOutcome {
    /// Adds the confirm of a record, which gets no row of its own.
    fn add_confirm(&mut self, record: &Record) {
        let recorded = &record.recorded;
        let confirms = self.confirms.entry(record.job).or_default();
        confirms.push((recorded.first, recorded.at, recorded.entries.clone()));
        self.row_seqs.push(None);
    }

    /// Returns the number of the first entry in a job's last record; `None` if that record is
    /// neither of this transaction nor still in memory, as pending confirm or unprojected row.
    fn last_record_start(
        &self,
        job: JobNumber,
        (confirms, unprojected): (&PendingConfirms, &Unprojected),
    ) -> Option<u64> {
        let in_this_transaction = self.last_record_starts.get(&job).copied();
        in_this_transaction.or(confirms.last_entry_of(job).max(unprojected.last_row_start(job)))
    }

    /// Takes the confirms that the next row of a job must contain, as JSON; `None` if there are
    /// none. The confirms that were pending before the transaction are only in the job's first row.
    fn take_confirms(
        &mut self,
        job: JobNumber,
        pending: &PendingConfirms,
    ) -> rusqlite::Result<Option<String>> {
        let new_confirms = self.confirms.remove(&job);
        let is_first_row = self.jobs_with_rows.insert(job);
        let pending_confirms = pending.of_job(job).filter(|_| is_first_row);
        let confirms: Vec<&InnerDecision> =
            pending_confirms.chain(new_confirms.iter().flatten()).collect();
        (!confirms.is_empty()).then(|| to_json(&confirms)).transpose()
    }

    /// Inserts a row of `confirmed` with the confirms that no row of `entries` contains.
    fn insert_confirms(&mut self, transaction: &Connection) -> rusqlite::Result<()> {
        if self.confirms.is_empty() {
            return Ok(());
        }
        self.last_seq += 1;
        let body = to_json(&self.confirms.iter().collect::<Vec<_>>())?;
        transaction
            .prepare_cached("INSERT INTO confirmed(seq, body, checksum) VALUES (?1, ?2, ?3)")?
            .execute(params![self.last_seq, body, checksum(self.last_seq, &body)])?;
        self.confirms_seq = Some(self.last_seq);
        Ok(())
    }
}

/// Returns the number of the first entry of a job's last projected row; `None` if there is none.
fn find_last_row_start(
    select: &mut Statement<'_>,
    job: JobNumber,
) -> rusqlite::Result<Option<u64>> {
    let first: Option<i64> = select.query_row([job], |row| row.get(0))?;
    Ok(first.and_then(|first| u64::try_from(first).ok()))
}

/// The statement that [`insert_entry`] executes.
pub(super) const INSERT_ENTRY: &str =
    "INSERT INTO entries(seq, job, first, at, body, checksum, confirms, origin)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

/// Inserts a row of `entries` with its checksum.
pub(super) fn insert_entry(
    insert: &mut Statement<'_>,
    seq: i64,
    (job, first, at): (JobNumber, u64, Timestamp),
    texts: EntryTexts<'_>,
) -> rusqlite::Result<()> {
    let row_checksum = entry_checksum(job, first, at, texts);
    let EntryTexts { body, confirms, origin } = texts;
    insert
        .execute(params![
            seq,
            job,
            to_sql_number(first),
            at.0,
            body,
            row_checksum,
            confirms,
            origin
        ])
        .map(|_| ())
}

/// Checks that the journal already has a record: the same entries and time at the same entry
/// number. A confirm always passes.
fn check_repeated(connection: &Connection, file: &str, record: &Record) -> Result<(), WriteError> {
    let rows = FileRows { connection, file, is_projected: false };
    let job_rows = rows.job_entry_rows(record.job)?;
    let Recorded { first, at, entries } = &record.recorded;
    let row = job_rows.iter().find(|row| row.first == *first);
    let is_same = match row {
        Some(row) => row.at == *at && row.parse_entries(file)? == *entries,
        None => false,
    };
    // A confirm can be inside another row, so it is not compared.
    if is_same || PendingConfirms::is_confirm(record) {
        return Ok(());
    }
    let seq = row.or(job_rows.last()).map_or(0, |row| row.seq);
    let problem = "another decision is to be written at its entry number".to_owned();
    Err(damaged_entry(file, seq, problem).into())
}

/// Returns the number of a definition, which is inserted if it is new. Most jobs run the same
/// definition as the job before them, so that one is compared first, by its address.
fn find_or_insert_definition(
    connection: &Connection,
    last_definition: &mut Option<(Arc<Definition>, i64)>,
    numbers_by_hash: &mut HashMap<DefinitionHash, i64>,
    definition: &Arc<Definition>,
) -> rusqlite::Result<i64> {
    if let Some((last, number)) = last_definition
        && Arc::ptr_eq(last, definition)
    {
        return Ok(*number);
    }
    let number = find_or_insert_by_hash(connection, numbers_by_hash, definition)?;
    *last_definition = Some((definition.clone(), number));
    Ok(number)
}

/// Returns the number of the definition with the same content hash, which is inserted if it is new.
fn find_or_insert_by_hash(
    connection: &Connection,
    numbers_by_hash: &mut HashMap<DefinitionHash, i64>,
    definition: &Definition,
) -> rusqlite::Result<i64> {
    let body = to_json(definition)?;
    let hash = DefinitionHash::from_json_text(&body);
    if let Some(number) = numbers_by_hash.get(&hash) {
        return Ok(*number);
    }
    let stored_number = connection
        .query_row("SELECT number FROM definitions WHERE hash = ?1", [hash.0], |row| row.get(0))
        .optional()?;
    let number = match stored_number {
        Some(number) => number,
        None => {
            connection.execute(
                "INSERT INTO definitions(hash, body) VALUES (?1, ?2)",
                params![hash.0, body],
            )?;
            connection.last_insert_rowid()
        }
    };
    numbers_by_hash.insert(hash, number);
    Ok(number)
}
