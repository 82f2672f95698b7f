//! Commits records: appends rows to `entries`, with what cannot wait: definitions that are used for
//! the first time, confirms, and notices for the webhook. What follows from the rows is projected
//! later (`projection`).

use super::confirms::PendingConfirms;
use super::file_rows::FileRows;
use super::reserve::WritePurpose;
use super::row_format::{
    EntryTexts, InnerDecision, checksum, damaged_entry, entry_checksum, format_origin,
    insert_notice, to_json, to_sql_number,
};
use super::status_table::WriteError;
use super::writer::{JournalWriter, fail_point};
use crate::error::JournalError;
use crate::record::{JobNumber, Record};
use crate::recover::JobRow;
use engine::{Definition, DefinitionHash, Recorded, Timestamp};
use rusqlite::{Connection, OptionalExtension, Statement, params};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// The result of writing the records of one transaction.
#[derive(Default)]
struct AppendOutcome {
    /// Jobs that no longer exist.
    deleted: BTreeSet<JobNumber>,
    /// The `seq` of each record's row, if it has one.
    rows: Vec<Option<i64>>,
    /// The rows of new jobs.
    new: HashMap<JobNumber, JobRow>,
    /// Jobs that have a record in this transaction. The first record of each has taken its confirms
    /// along.
    with_confirms: HashSet<JobNumber>,
    /// Confirms of jobs that have no later record in this transaction.
    confirmed: BTreeMap<JobNumber, Vec<InnerDecision>>,
    /// The number of the first entry of each job's last record in this transaction.
    last_entries: HashMap<JobNumber, u64>,
    /// The `seq` of the row that has the confirms.
    confirm_seq: Option<i64>,
    /// The last `seq`.
    last_seq: i64,
}

/// The most rows that are committed but not projected; then they are projected at once.
const UNPROJECTED_ROWS_MAX: usize = 4_096;

impl JournalWriter {
    /// Commits records in order, in one transaction, and returns the numbers of the jobs that no
    /// longer exist, of the records and of `others`. Records of deleted jobs are ignored: when its
    /// root job is deleted, a child job may still be about to start, or to learn that it has ended.
    /// A record that the journal already has, by its job and its first entry, changes nothing.
    pub(super) fn append(
        &mut self,
        records: &[&Record],
        others: &[JobNumber],
    ) -> Result<BTreeSet<JobNumber>, JournalError> {
        self.check_not_broken()?;
        let write = |core: &mut JournalWriter| {
            core.append_in_transaction(records, others).map_err(|failed| {
                // The transaction was rolled back, and with it the definitions it may have added.
                core.clear_definitions();
                match failed {
                    WriteError::Sqlite(error) | WriteError::StatusTable(_, error) => {
                        core.to_journal_error(error)
                    }
                    WriteError::Journal(error) => error,
                }
            })
        };
        // Cancelled jobs can be deleted, so these records may use the reserve.
        let written = if Record::are_all_cancellations(records) {
            self.write_in_reserve(write)?
        } else {
            self.write_or_use_reserve(WritePurpose::Continue, write)?
        };
        self.is_locked.set(false);
        let AppendOutcome {
            deleted: gone,
            rows,
            mut new,
            confirmed,
            confirm_seq: group,
            last_seq: last,
            ..
        } = written;
        for (record, seq) in records.iter().zip(rows) {
            if let Some(seq) = seq {
                self.confirms.remove(record.job);
                self.unprojected.add_record(record, seq, new.remove(&record.job));
            }
        }
        if let Some(seq) = group {
            self.confirms.add_row(seq, confirmed.into_iter().collect());
        }
        self.last_seq = last;
        if self.unprojected.places.len() >= UNPROJECTED_ROWS_MAX
            && let Err(error) = self.project()
        {
            tracing::warn!(%error, "the tables that follow from the entries stay behind for now");
        }
        Ok(gone)
    }

    fn append_in_transaction(
        &mut self,
        records: &[&Record],
        others: &[JobNumber],
    ) -> Result<AppendOutcome, WriteError> {
        let mut written = AppendOutcome { last_seq: self.last_seq, ..AppendOutcome::default() };
        let transaction = self.connection.transaction()?;
        {
            let mut insert = transaction.prepare_cached(INSERT_ENTRY)?;
            let mut find_last =
                transaction.prepare_cached("SELECT max(first) FROM places WHERE job = ?1")?;
            let mut find_job =
                transaction.prepare_cached("SELECT root FROM jobs WHERE number = ?1")?;
            let mut exists = |number: JobNumber,
                              written: &AppendOutcome|
             -> rusqlite::Result<bool> {
                if written.new.contains_key(&number) || self.unprojected.new_job(number).is_some() {
                    return Ok(true);
                }
                let root: Option<JobNumber> =
                    find_job.query_row([number], |row| row.get(0)).optional()?;
                Ok(root.is_some_and(|root| !self.partial_deletions.contains_key(&root)))
            };
            for record in records {
                fail_point("journal::write")?;
                let mut origin = None;
                if let Some(created) = &record.created {
                    let definition = &created.origin.definition;
                    let (last, known) = (&mut self.last_definition, &mut self.definitions);
                    let number = definition_number(&transaction, last, known, definition)?;
                    let has_parent =
                        created.parent.map_or(Ok(true), |parent| exists(parent, &written))?;
                    if has_parent && !exists(record.job, &written)? {
                        let row = JobRow::new(record.job, created, number);
                        origin = Some(format_origin(&row)?);
                        self.unprojected_ids.add(row.id);
                        written.new.insert(record.job, row);
                    }
                }
                if !exists(record.job, &written)? {
                    written.deleted.insert(record.job);
                    written.rows.push(None);
                    continue;
                }
                if let Some(notice) = &record.notice {
                    insert_notice(&transaction, notice)?;
                }
                let recorded = &record.recorded;
                let known = written.last_entries.get(&record.job).copied().or(self
                    .confirms
                    .last_entry_of(record.job)
                    .max(self.unprojected.last_entry_of(record.job)));
                let last = match known {
                    None if origin.is_none() => find_last_entry(&mut find_last, record.job)?,
                    known => known,
                };
                if last.is_some_and(|last| recorded.first <= last) {
                    check_repeated(&transaction, &self.file, record)?;
                    written.rows.push(None);
                    continue;
                }
                written.last_entries.insert(record.job, recorded.first);
                if PendingConfirms::is_confirm(record) {
                    let confirmed = written.confirmed.entry(record.job).or_default();
                    confirmed.push((recorded.first, recorded.at, recorded.entries.clone()));
                    written.rows.push(None);
                    continue;
                }
                let confirms = written.take_confirms(record.job, &self.confirms)?;
                let body = to_json(&recorded.entries)?;
                let (job, first, at) = (record.job, recorded.first, recorded.at);
                let texts = (&*body, confirms.as_deref(), origin.as_deref());
                written.last_seq += 1;
                insert_entry(&mut insert, written.last_seq, (job, first, at), texts)?;
                written.rows.push(Some(written.last_seq));
            }
            for other in others {
                if !exists(*other, &written)? {
                    written.deleted.insert(*other);
                }
            }
        }
        written.insert_confirmed(&transaction)?;
        fail_point("journal::commit")?;
        transaction.commit()?;
        Ok(written)
    }
}

impl AppendOutcome {
    /// Returns the confirms of a job that its next row has to hold, as JSON; `None`: there are
    /// none.
    fn take_confirms(
        &mut self,
        job: JobNumber,
        pending: &PendingConfirms,
    ) -> rusqlite::Result<Option<String>> {
        let same_transaction = self.confirmed.remove(&job);
        let is_first = self.with_confirms.insert(job);
        let earlier = pending.of_job(job).filter(|_| is_first);
        let before: Vec<&InnerDecision> =
            earlier.chain(same_transaction.iter().flatten()).collect();
        (!before.is_empty()).then(|| to_json(&before)).transpose()
    }

    /// Inserts the confirms that wait for a record of their jobs.
    fn insert_confirmed(&mut self, transaction: &Connection) -> rusqlite::Result<()> {
        if self.confirmed.is_empty() {
            return Ok(());
        }
        self.last_seq += 1;
        let body = to_json(&self.confirmed.iter().collect::<Vec<_>>())?;
        transaction
            .prepare_cached("INSERT INTO confirmed(seq, body, checksum) VALUES (?1, ?2, ?3)")?
            .execute(params![self.last_seq, body, checksum(self.last_seq, &body)])?;
        self.confirm_seq = Some(self.last_seq);
        Ok(())
    }
}

/// Returns the number of the first entry of a job's last projected row.
fn find_last_entry(find: &mut Statement<'_>, job: JobNumber) -> rusqlite::Result<Option<u64>> {
    let first: Option<i64> = find.query_row([job], |row| row.get(0))?;
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
    let sum = entry_checksum(job, first, at, texts);
    let (body, confirms, origin) = texts;
    insert
        .execute(params![seq, job, to_sql_number(first), at.0, body, sum, confirms, origin])
        .map(|_| ())
}

/// Checks that the journal has this very record in its place, and returns an error if it has
/// another one.
fn check_repeated(connection: &Connection, file: &str, record: &Record) -> Result<(), WriteError> {
    let rows = FileRows { connection, file, is_projected: false };
    let known = rows.job_entry_rows(record.job)?;
    let Recorded { first, at, entries } = &record.recorded;
    let row = known.iter().find(|row| row.first == *first);
    let is_same = match row {
        Some(row) => row.at == *at && row.parse_entries(file)? == *entries,
        None => false,
    };
    // A confirm soon has no row of its own.
    if is_same || PendingConfirms::is_confirm(record) {
        return Ok(());
    }
    let seq = row.or(known.last()).map_or(0, |row| row.seq);
    let what = "another decision is to be written in its place".to_owned();
    Err(damaged_entry(file, seq, what).into())
}

/// Returns the number of a definition. Most jobs have that of the job before.
fn definition_number(
    connection: &Connection,
    last: &mut Option<(Arc<Definition>, i64)>,
    known: &mut HashMap<DefinitionHash, i64>,
    definition: &Arc<Definition>,
) -> rusqlite::Result<i64> {
    if let Some((latest, number)) = last
        && Arc::ptr_eq(latest, definition)
    {
        return Ok(*number);
    }
    let number = find_or_insert_definition(connection, known, definition)?;
    *last = Some((definition.clone(), number));
    Ok(number)
}

fn find_or_insert_definition(
    connection: &Connection,
    known: &mut HashMap<DefinitionHash, i64>,
    definition: &Definition,
) -> rusqlite::Result<i64> {
    let body = to_json(definition)?;
    let hash = DefinitionHash::from_json_text(&body);
    if let Some(number) = known.get(&hash) {
        return Ok(*number);
    }
    let found = connection
        .query_row("SELECT number FROM definitions WHERE hash = ?1", [hash.0], |row| row.get(0))
        .optional()?;
    let number = match found {
        Some(number) => number,
        None => {
            connection.execute(
                "INSERT INTO definitions(hash, body) VALUES (?1, ?2)",
                params![hash.0, body],
            )?;
            connection.last_insert_rowid()
        }
    };
    known.insert(hash, number);
    Ok(number)
}
