//! Projection: what follows from rows of `entries` is written later, for many rows at once. The
//! index by job, the rows of `jobs` and the status tables are changed in one transaction, which
//! also stores up to which row they are complete.

use super::append::{INSERT_ENTRY, insert_entry};
use super::file_rows::{FileRows, UNPROJECTED};
use super::row_format::{
    InnerDecision, SELECT_CONFIRMS, job_checksum, parse_confirm_row, to_journal_error, to_json,
    to_sql_number,
};
use super::status_table::WriteError;
use super::unprojected::{StatusChange, StatusChanges, Unprojected};
use super::writer::{JournalWriter, fail_point};
use crate::error::{JournalError, Remedy};
use crate::record::JobNumber;
use crate::recover::{JobRow, JobSnapshot, Rebuilder};
use engine::{JobState, Timestamp};
use rusqlite::{Connection, params};
use std::collections::{BTreeMap, BTreeSet};

/// How many jobs get a record for their confirms in one transaction; commits wait for it.
const CONFIRM_BATCH: usize = 5_000;

impl JournalWriter {
    /// Projects what is committed, without waiting for the disk: whatever a crash undoes is
    /// projected again at the next start.
    pub(super) fn project(&mut self) -> Result<(), JournalError> {
        self.check_not_broken()?;
        let is_done = self.unprojected.is_empty() && self.confirms.obsolete.is_empty();
        if is_done || self.check_files().is_err() {
            return Ok(());
        }
        let pending = std::mem::take(&mut self.unprojected);
        let projected = self.write_without_sync(|core| {
            core.write_in_reserve_with_repair(|core| core.project_in_transaction(&pending))
        });
        match &projected {
            Ok(()) => {
                self.is_locked.set(false);
                self.confirms.obsolete.clear();
                self.unprojected_ids.clear();
            }
            Err(error) => {
                self.unprojected = pending;
                if error.remedy() == Remedy::Exit {
                    self.broken_reason = Some(error.to_string());
                }
            }
        }
        projected
    }

    /// Projects what is committed, for a reader. While another program keeps the file locked, each
    /// reader would hold up the next one, so this returns an error: the journal's own attempts find
    /// out when the lock is gone.
    pub(super) fn project_for_reader(&mut self) -> Result<(), JournalError> {
        if !self.is_locked.get() || self.unprojected.is_empty() {
            return self.project();
        }
        Err(JournalError::Failed {
            file: self.file.to_string(),
            what: "another program keeps it locked".to_owned(),
            remedy: Remedy::WaitForLock,
        })
    }

    /// Projects what is committed, or returns why that is impossible.
    pub(super) fn project_all(&mut self) -> Result<(), JournalError> {
        self.project_for_reader()?;
        if self.unprojected.is_empty() {
            return Ok(());
        }
        // The files are no longer those that were opened.
        let loss = self.check_files().err();
        loss.map_or(Ok(()), |loss| Err(JournalError::Lost { file: self.file.to_string(), loss }))
    }

    fn project_in_transaction(&mut self, tail: &Unprojected) -> Result<(), WriteError> {
        let transaction = self.connection.transaction()?;
        fail_point("journal::derive")?;
        for (number, change) in &tail.jobs {
            match &change.new {
                Some((row, workflow)) => {
                    let (state, ended) = change.state.unwrap_or((JobState::Running, None));
                    let now = JobStatus { state, ended, is_open: change.is_open.unwrap_or(true) };
                    insert_job(&transaction, row, workflow, &now)?;
                }
                None => match (change.state, change.is_open) {
                    (Some((state, ended)), open) => {
                        let now = JobStatus { state, ended, is_open: open.unwrap_or(true) };
                        update_job(&transaction, *number, &now)?;
                    }
                    (None, Some(open)) => {
                        transaction
                            .prepare_cached("UPDATE jobs SET open = ?2 WHERE number = ?1")?
                            .execute(params![number, open])?;
                    }
                    (None, None) => {}
                },
            }
        }
        let mut positions = tail.places.clone();
        positions.sort_unstable();
        for (job, first, seq) in positions {
            insert_place(&transaction, (job, first, seq))?;
        }
        for seq in &self.confirms.obsolete {
            transaction.prepare_cached("DELETE FROM confirmed WHERE seq = ?1")?.execute([seq])?;
        }
        set_projected_to(&transaction, self.last_seq)?;
        self.status_tables.write(&transaction, &self.file, &tail.statuses)?;
        Ok(transaction.commit()?)
    }

    /// Writes a record for each job whose confirms have waited since the last call or longer, for
    /// at most a few thousand jobs. Returns whether any confirms still wait.
    pub(super) fn write_confirms(&mut self) -> Result<bool, JournalError> {
        let mut jobs = self.confirms.jobs_waiting_since(self.confirms_written_to);
        if jobs.len() <= CONFIRM_BATCH {
            self.confirms_written_to = self.last_seq;
        }
        jobs.truncate(CONFIRM_BATCH);
        if !jobs.is_empty() {
            self.check_not_broken()?;
            let last = self
                .write_confirms_in_transaction(&jobs)
                .map_err(|error| self.to_journal_error(error))?;
            for (seq, job) in (self.last_seq + 1..).zip(&jobs) {
                if let Some(first) = self.confirms.last_entry_of(*job) {
                    self.unprojected.add_row(*job, first, seq);
                }
                self.confirms.remove(*job);
            }
            self.last_seq = last;
        }
        Ok(!self.confirms.is_empty())
    }

    fn write_confirms_in_transaction(&mut self, jobs: &[JobNumber]) -> rusqlite::Result<i64> {
        let transaction = self.connection.transaction()?;
        let mut last = self.last_seq;
        for job in jobs {
            last += 1;
            let rows: Vec<&InnerDecision> = self.confirms.of_job(*job).collect();
            insert_confirms(&transaction, last, *job, &rows)?;
        }
        fail_point("journal::derive")?;
        transaction.commit()?;
        Ok(last)
    }

    /// Projects what the previous process has left, from the file alone. Each job whose confirms
    /// are in no record of it gets one for them.
    pub(super) fn catch_up(&mut self) -> Result<(), JournalError> {
        let read = |sql: &str| self.connection.query_row(sql, [], |row| row.get::<_, i64>(0));
        let behind = "SELECT EXISTS (SELECT 1 FROM entries WHERE seq > (SELECT upto FROM derived))
                          OR EXISTS (SELECT 1 FROM confirmed)";
        let last = "SELECT max((SELECT coalesce(max(seq), 0) FROM entries),
                               (SELECT coalesce(max(seq), 0) FROM confirmed),
                               (SELECT upto FROM derived))";
        let (is_behind, last) = (|| Ok((read(behind)? != 0, read(last)?)))()
            .map_err(|error| to_journal_error(&self.file, error))?;
        self.last_seq = last;
        if is_behind {
            self.last_seq = self.write_with_repair(JournalWriter::catch_up_in_transaction)?;
        }
        self.confirms_written_to = self.last_seq;
        Ok(())
    }

    fn catch_up_in_transaction(&mut self) -> Result<i64, WriteError> {
        let mut last = self.last_seq;
        let transaction = self.connection.transaction()?;
        let file = self.file.clone();
        let rows = FileRows { connection: &transaction, file: &file, is_projected: true };
        let mut touched = BTreeSet::new();
        let mut rebuild = Rebuilder::new(&rows);
        for row in rows.entry_rows(UNPROJECTED, [])? {
            if let Some(origin) = &row.origin {
                let workflow = rebuild.load_definition(origin.definition)?.full_name();
                let now = JobStatus { state: JobState::Running, ended: None, is_open: true };
                insert_job(&transaction, origin, &workflow, &now)?;
            }
            insert_place(&transaction, (row.job, row.first, row.seq))?;
            touched.insert(row.job);
        }
        for (job, rows) in find_unwritten_confirms(&transaction, &file)? {
            last += 1;
            let rows: Vec<&InnerDecision> = rows.iter().collect();
            let first = insert_confirms(&transaction, last, job, &rows)?;
            insert_place(&transaction, (job, first, last))?;
        }
        transaction.execute("DELETE FROM confirmed", [])?;
        set_projected_to(&transaction, last)?;
        let mut statuses = StatusChanges::default();
        for number in touched {
            let what = || "it is missing, and has entries".to_owned();
            let damaged = || JournalError::damaged_row(&file, "jobs", number, what());
            let JobSnapshot { job, changed_at, definition } =
                rebuild.load_snapshot(number)?.ok_or_else(damaged)?;
            let (state, ended) = (job.state(), job.ended().filter(|_| job.state().is_ended()));
            update_job(
                &transaction,
                number,
                &JobStatus { state, ended, is_open: !job.is_closed() },
            )?;
            if job.origin().parent.is_none() {
                statuses
                    .0
                    .insert(number, StatusChange::full_row(number, &job, changed_at, definition));
            }
        }
        self.status_tables.write(&transaction, &self.file, &statuses)?;
        transaction.commit()?;
        Ok(last)
    }
}

/// Returns the confirms of jobs that have no later row.
fn find_unwritten_confirms(
    connection: &Connection,
    file: &str,
) -> Result<BTreeMap<JobNumber, Vec<InnerDecision>>, WriteError> {
    let mut unwritten: BTreeMap<JobNumber, Vec<InnerDecision>> = BTreeMap::new();
    let mut statement = connection.prepare(&format!("{} ORDER BY seq", SELECT_CONFIRMS))?;
    let mut last_of = connection.prepare("SELECT max(seq) FROM places WHERE job = ?1")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (seq, group) = parse_confirm_row(row, file)?;
        for (job, confirms) in group {
            let last: Option<i64> = last_of.query_row([job], |row| row.get(0))?;
            // `None`: the job is deleted.
            if last.is_some_and(|last| last < seq) {
                unwritten.entry(job).or_default().extend(confirms);
            }
        }
    }
    Ok(unwritten)
}

/// The columns of a job that change.
struct JobStatus {
    state: JobState,
    ended: Option<Timestamp>,
    is_open: bool,
}

fn insert_job(
    connection: &Connection,
    row: &JobRow,
    workflow: &str,
    now: &JobStatus,
) -> rusqlite::Result<()> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO jobs(number, id, workflow, definition, graph, root, parent, step, item, \
           depth, created, state, ended, open, checksum)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
    )?;
    insert
        .execute(params![
            row.number,
            row.id.0.as_bytes(),
            workflow,
            row.definition,
            row.graph,
            row.root,
            row.parent,
            row.step,
            row.item,
            row.depth,
            row.created.0,
            now.state.as_str(),
            now.ended.map(|at| at.0),
            now.is_open,
            job_checksum(row)
        ])
        .map(|_| ())
}

fn update_job(connection: &Connection, number: JobNumber, now: &JobStatus) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE jobs SET state = ?2, ended = ?3, open = ?4 WHERE number = ?1")?
        .execute(params![number, now.state.as_str(), now.ended.map(|at| at.0), now.is_open])
        .map(|_| ())
}

fn insert_place(
    connection: &Connection,
    (job, first, seq): (JobNumber, u64, i64),
) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT INTO places(job, first, seq) VALUES (?1, ?2, ?3)")?
        .execute([job, to_sql_number(first), seq])
        .map(|_| ())
}

/// Inserts a row that has only confirms. Returns the number of its first entry.
fn insert_confirms(
    connection: &Connection,
    seq: i64,
    job: JobNumber,
    rows: &[&InnerDecision],
) -> rusqlite::Result<u64> {
    let Some(((first, at, entries), before)) = rows.split_last() else { return Ok(0) };
    let confirms = (!before.is_empty()).then(|| to_json(before)).transpose()?;
    let body = to_json(entries)?;
    let mut insert = connection.prepare_cached(INSERT_ENTRY)?;
    insert_entry(&mut insert, seq, (job, *first, *at), (&body, confirms.as_deref(), None))?;
    Ok(*first)
}

fn set_projected_to(connection: &Connection, upto: i64) -> rusqlite::Result<()> {
    connection.prepare_cached("UPDATE derived SET upto = ?1")?.execute([upto]).map(|_| ())
}
