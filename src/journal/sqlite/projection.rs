//! Projection: derives `places`, `jobs` and the status tables from the rows of `entries`, for many
//! commits in one transaction. The transaction also stores the watermark: the `seq` up to which
//! these tables are complete (table `derived`).

use super::append::{INSERT_ENTRY, insert_entry};
use super::cells;
use super::failures;
use super::file_rows::{FileRows, UNPROJECTED};
use super::row_format::{
    InnerDecision, SELECT_CONFIRMS, parse_confirm_row, to_journal_error, to_json,
};
use super::status_table::WriteError;
use super::unprojected::{Place, StatusChange, StatusChanges, Unprojected};
use super::writer::{JournalWriter, hit_fail_point};
use crate::checksums::{EntryTexts, job_checksum};
use crate::error::{JournalError, Remedy};
use crate::failures::FailureChange;
use crate::record::JobNumber;
use crate::recover::{JobRow, JobSnapshot, Rebuilder};
use crate::sql::to_sql_number;
use engine::{JobState, NamedCell, Timestamp};
use rusqlite::{Connection, params};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The most jobs whose pending confirms are written in one transaction, because commits wait for
/// it.
const CONFIRM_BATCH: usize = 5_000;

impl JournalWriter {
    /// Projects what is committed, without waiting for the disk: whatever a crash undoes is
    /// projected again at the next start. Does nothing if the files are not those that were opened.
    pub(super) fn project(&mut self) -> Result<(), JournalError> {
        self.check_not_broken()?;
        let is_up_to_date = self.unprojected.is_empty() && self.confirms.obsolete.is_empty();
        if is_up_to_date || self.check_files().is_err() {
            return Ok(());
        }
        let unprojected = std::mem::take(&mut self.unprojected);
        let result = self.write_without_sync(|writer| {
            writer
                .write_in_reserve_with_repair(|writer| writer.project_in_transaction(&unprojected))
        });
        match &result {
            Ok(()) => {
                self.is_locked.set(false);
                self.confirms.obsolete.clear();
                self.unprojected_ids.clear();
            }
            Err(error) => {
                self.unprojected = unprojected;
                if error.remedy() == Remedy::Exit {
                    self.broken_reason = Some(error.to_string());
                }
            }
        }
        result
    }

    /// Projects what is committed, for a reader. While another program keeps the file locked, it
    /// returns an error at once: if each reader waited for the lock, they would block each other.
    /// The journal's own writes find out when the lock is released.
    pub(super) fn project_for_reader(&mut self) -> Result<(), JournalError> {
        if !self.is_locked.get() || self.unprojected.is_empty() {
            return self.project();
        }
        Err(JournalError::Failed {
            file: self.file.to_string(),
            problem: "another program keeps it locked".to_owned(),
            remedy: Remedy::WaitForLock,
        })
    }

    /// Projects what is committed. Returns an error if anything remains unprojected.
    pub(super) fn project_all(&mut self) -> Result<(), JournalError> {
        self.project_for_reader()?;
        if self.unprojected.is_empty() {
            return Ok(());
        }
        // `project` does nothing if the files are not those that were opened.
        self.check_files().map_err(|loss| JournalError::Lost { file: self.file.to_string(), loss })
    }

    /// Writes these changes and the watermark, in one transaction.
    fn project_in_transaction(&mut self, unprojected: &Unprojected) -> Result<(), WriteError> {
        let transaction = self.connection.transaction()?;
        hit_fail_point("journal::derive")?;
        for (number, change) in &unprojected.jobs {
            match &change.new_row {
                Some((row, workflow)) => {
                    let (state, ended) = change.state.unwrap_or((JobState::Running, None));
                    let is_open = change.is_open.unwrap_or(true);
                    let status = JobStatus { state, ended, is_open };
                    insert_job(&transaction, row, workflow, &status)?;
                }
                None => match (change.state, change.is_open) {
                    (Some((state, ended)), is_open) => {
                        let is_open = is_open.unwrap_or(true);
                        update_job(&transaction, *number, &JobStatus { state, ended, is_open })?;
                    }
                    (None, Some(is_open)) => {
                        transaction
                            .prepare_cached("UPDATE jobs SET open = ?2 WHERE number = ?1")?
                            .execute(params![number, is_open])?;
                    }
                    (None, None) => {}
                },
            }
            if let Some(failure) = change.failure {
                failures::write(&transaction, *number, failure)?;
            }
        }
        // Inserting in the order of the primary key is faster.
        let mut places = unprojected.places.clone();
        places.sort_unstable();
        for place in places {
            insert_place(&transaction, place)?;
        }
        for seq in &self.confirms.obsolete {
            transaction.prepare_cached("DELETE FROM confirmed WHERE seq = ?1")?.execute([seq])?;
        }
        set_watermark(&transaction, self.last_seq)?;
        self.status_tables.write(&transaction, &self.file, &unprojected.statuses)?;
        Ok(transaction.commit()?)
    }

    /// Writes a row of `entries` for each job whose confirms have been pending since the last call
    /// or longer, for at most [`CONFIRM_BATCH`] jobs. Returns whether any confirms are still
    /// pending.
    pub(super) fn write_confirms(&mut self) -> Result<bool, JournalError> {
        let mut jobs = self.confirms.jobs_waiting_since(self.confirms_written_to);
        if jobs.len() <= CONFIRM_BATCH {
            self.confirms_written_to = self.last_seq;
        }
        jobs.truncate(CONFIRM_BATCH);
        if !jobs.is_empty() {
            self.check_not_broken()?;
            let last_seq = self
                .write_confirms_in_transaction(&jobs)
                .map_err(|error| self.to_journal_error(error))?;
            for (seq, job) in (self.last_seq + 1..).zip(&jobs) {
                if let Some(first) = self.confirms.last_entry_of(*job) {
                    self.unprojected.add_row(*job, first, seq);
                }
                self.confirms.remove(*job);
            }
            self.last_seq = last_seq;
        }
        Ok(!self.confirms.is_empty())
    }

    /// Writes the pending confirms of these jobs, and returns the new highest `seq`.
    fn write_confirms_in_transaction(&mut self, jobs: &[JobNumber]) -> rusqlite::Result<i64> {
        let transaction = self.connection.transaction()?;
        let mut last_seq = self.last_seq;
        for job in jobs {
            last_seq += 1;
            let confirms: Vec<&InnerDecision> = self.confirms.of_job(*job).collect();
            insert_confirms(&transaction, last_seq, *job, &confirms)?;
        }
        hit_fail_point("journal::derive")?;
        transaction.commit()?;
        Ok(last_seq)
    }

    /// Projects what the previous process committed and did not project. Pending confirms become
    /// rows of `entries`.
    pub(super) fn catch_up(&mut self) -> Result<(), JournalError> {
        let query = |sql: &str| self.connection.query_row(sql, [], |row| row.get::<_, i64>(0));
        let select_is_behind =
            "SELECT EXISTS (SELECT 1 FROM entries WHERE seq > (SELECT upto FROM derived))
                          OR EXISTS (SELECT 1 FROM confirmed)";
        let select_last_seq = "SELECT max((SELECT coalesce(max(seq), 0) FROM entries),
                               (SELECT coalesce(max(seq), 0) FROM confirmed),
                               (SELECT upto FROM derived))";
        let read = || Ok((query(select_is_behind)? != 0, query(select_last_seq)?));
        let (is_behind, last_seq) = read().map_err(|error| to_journal_error(&self.file, error))?;
        self.last_seq = last_seq;
        if is_behind {
            self.last_seq = self.write_with_repair(JournalWriter::catch_up_in_transaction)?;
        }
        self.confirms_written_to = self.last_seq;
        Ok(())
    }

    /// Projects all unprojected rows and pending confirms, which are read from the file. The jobs
    /// are rebuilt for their states and statuses. Returns the new highest `seq`.
    fn catch_up_in_transaction(&mut self) -> Result<i64, WriteError> {
        let mut last_seq = self.last_seq;
        let transaction = self.connection.transaction()?;
        let file = self.file.clone();
        let rows = FileRows { connection: &transaction, file: &file, is_projected: true };
        let mut changed_jobs = BTreeSet::new();
        let mut rebuilder = Rebuilder::new(&rows);
        let entry_rows = rows.entry_rows(UNPROJECTED, [])?;
        // A refill may have set cells by another definition: what did not change since is kept.
        let mut cells_before: HashMap<JobNumber, Vec<NamedCell>> = HashMap::new();
        for number in entry_rows.iter().map(|row| row.job) {
            if cells_before.contains_key(&number) || !cells::has_any(&transaction, number)? {
                continue;
            }
            if let Some(JobSnapshot { job, .. }) = rebuilder.load_snapshot(number)? {
                cells_before.insert(number, job.sql_cells());
            }
        }
        for row in entry_rows {
            if let Some(origin) = &row.origin {
                let workflow = rebuilder.load_definition(origin.definition)?.full_name();
                let status = JobStatus { state: JobState::Running, ended: None, is_open: true };
                insert_job(&transaction, origin, &workflow, &status)?;
            }
            let place = Place { job: row.job, first: row.first, seq: row.seq };
            insert_place(&transaction, place)?;
            changed_jobs.insert(row.job);
        }
        for (job, confirms) in load_pending_confirms(&transaction, &file)? {
            last_seq += 1;
            let confirms: Vec<&InnerDecision> = confirms.iter().collect();
            let first = insert_confirms(&transaction, last_seq, job, &confirms)?;
            insert_place(&transaction, Place { job, first, seq: last_seq })?;
        }
        transaction.execute("DELETE FROM confirmed", [])?;
        set_watermark(&transaction, last_seq)?;
        let (mut statuses, mut kept) = (StatusChanges::default(), Vec::new());
        for number in changed_jobs {
            let damage_error = || {
                let problem = "it is missing, and has entries".to_owned();
                JournalError::damaged_row(&file, "jobs", number, problem)
            };
            let JobSnapshot { job, changed_at, definition } =
                rebuilder.load_snapshot(number)?.ok_or_else(damage_error)?;
            let (state, ended) = (job.state(), job.ended().filter(|_| job.state().is_ended()));
            update_job(
                &transaction,
                number,
                &JobStatus { state, ended, is_open: !job.is_closed() },
            )?;
            failures::write(&transaction, number, FailureChange::from_job(&job))?;
            if job.origin().parent.is_none() {
                let mut change = StatusChange::full_row(number, &job, changed_at, definition);
                if let Some(before) = cells_before.remove(&number) {
                    change.cells.retain(|cell| !before.contains(cell));
                    kept.push((number, job, definition));
                }
                statuses.0.insert(number, change);
            }
        }
        self.status_tables.write(&transaction, &self.file, &statuses)?;
        for (number, job, definition) in kept {
            if let Some(layout) = self.status_tables.layout(&transaction, &file, definition)? {
                layout
                    .restore_cells(&transaction, &job, number)
                    .map_err(|error| layout.table.to_write_error(error))?;
            }
        }
        transaction.commit()?;
        Ok(last_seq)
    }
}

/// Returns the pending confirms by job: those in `confirmed` after the job's last row of `entries`.
fn load_pending_confirms(
    connection: &Connection,
    file: &str,
) -> Result<BTreeMap<JobNumber, Vec<InnerDecision>>, WriteError> {
    let mut pending: BTreeMap<JobNumber, Vec<InnerDecision>> = BTreeMap::new();
    let mut statement = connection.prepare(&format!("{SELECT_CONFIRMS} ORDER BY seq"))?;
    let mut select_last_seq = connection.prepare("SELECT max(seq) FROM places WHERE job = ?1")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (seq, confirms_by_job) = parse_confirm_row(row, file)?;
        for (job, confirms) in confirms_by_job {
            let last_seq: Option<i64> = select_last_seq.query_row([job], |row| row.get(0))?;
            // `None`: the job is deleted.
            if last_seq.is_some_and(|last_seq| last_seq < seq) {
                pending.entry(job).or_default().extend(confirms);
            }
        }
    }
    Ok(pending)
}

/// The columns of `jobs` that change during the life of a job.
pub(super) struct JobStatus {
    pub(super) state: JobState,
    /// When the job ended; `None`: it has not ended.
    pub(super) ended: Option<Timestamp>,
    /// Whether the job takes input.
    pub(super) is_open: bool,
}

pub(super) fn insert_job(
    connection: &Connection,
    row: &JobRow,
    workflow: &str,
    status: &JobStatus,
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
            status.state.as_str(),
            status.ended.map(|time| time.0),
            status.is_open,
            job_checksum(row)
        ])
        .map(|_| ())
}

fn update_job(
    connection: &Connection,
    number: JobNumber,
    status: &JobStatus,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE jobs SET state = ?2, ended = ?3, open = ?4 WHERE number = ?1")?
        .execute(params![
            number,
            status.state.as_str(),
            status.ended.map(|time| time.0),
            status.is_open
        ])
        .map(|_| ())
}

/// Inserts a row of `places`: the index of the rows of `entries` by job.
pub(super) fn insert_place(
    connection: &Connection,
    Place { job, first, seq }: Place,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT INTO places(job, first, seq) VALUES (?1, ?2, ?3)")?
        .execute([job, to_sql_number(first), seq])
        .map(|_| ())
}

/// Inserts a row of `entries` from the pending confirms of a job. The last one becomes the row's
/// own decision, and the earlier ones the confirms before it. Returns the number of the row's own
/// first entry, or 0 if there are no confirms.
fn insert_confirms(
    connection: &Connection,
    seq: i64,
    job: JobNumber,
    confirms: &[&InnerDecision],
) -> rusqlite::Result<u64> {
    let Some(((first, at, entries), earlier_confirms)) = confirms.split_last() else {
        return Ok(0);
    };
    let confirms = (!earlier_confirms.is_empty()).then(|| to_json(earlier_confirms)).transpose()?;
    let body = to_json(entries)?;
    let texts = EntryTexts { body: &body, confirms: confirms.as_deref(), origin: None };
    let mut insert = connection.prepare_cached(INSERT_ENTRY)?;
    insert_entry(&mut insert, seq, (job, *first, *at), texts)?;
    Ok(*first)
}

/// Stores the `seq` up to which everything is projected.
pub(super) fn set_watermark(connection: &Connection, seq: i64) -> rusqlite::Result<()> {
    connection.prepare_cached("UPDATE derived SET upto = ?1")?.execute([seq]).map(|_| ())
}
