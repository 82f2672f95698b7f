//! Projection: what follows from rows of `entries` is written later, for many rows at once. The
//! index by job, the rows of `jobs` and the status tables are changed in one transaction, which
//! also stores up to which row they are complete.

use super::append::{INSERT_ENTRY, insert_entry};
use super::changes::{StatusChange, StatusChanges, Tail};
use super::core::{Core, fail_point};
use super::relation::WriteFailed;
use super::row::{
    GROUP_ROWS, InnerRow, checked_group, damaged_or_failed, encode, job_checksum, place,
};
use super::rows::{FileRows, TAIL};
use crate::engine::{JobState, Timestamp};
use crate::journal::error::{JournalError, Remedy};
use crate::journal::record::JobNumber;
use crate::journal::recover::{JobRow, Past, Rebuild};
use rusqlite::{Connection, params};
use std::collections::{BTreeMap, BTreeSet};

/// How many jobs get a record for their confirms in one transaction; commits wait for it.
const CONFIRMS_AT_ONCE: usize = 5_000;

impl Core {
    /// Projects what is committed, without waiting for the disk: whatever a crash undoes is
    /// projected again at the next start.
    pub(super) fn derive(&mut self) -> Result<(), JournalError> {
        self.unless_broken()?;
        let is_done = self.tail.is_empty() && self.confirms.done.is_empty();
        if is_done || self.check_files().is_err() {
            return Ok(());
        }
        let tail = std::mem::take(&mut self.tail);
        let derived =
            self.relaxed(|core| core.with_reserve(|core| core.derive_in_transaction(&tail)));
        match &derived {
            Ok(()) => {
                self.is_locked.set(false);
                self.confirms.done.clear();
                self.new_ids.clear();
            }
            Err(error) => {
                self.tail = tail;
                if error.remedy() == Remedy::Exit {
                    self.broken = Some(error.to_string());
                }
            }
        }
        derived
    }

    /// Projects what is committed, for a reader. While another program keeps the file locked, each
    /// reader would hold up the next one, so this returns an error: the journal's own attempts find
    /// out when the lock is gone.
    pub(super) fn derive_for_reader(&mut self) -> Result<(), JournalError> {
        if !self.is_locked.get() || self.tail.is_empty() {
            return self.derive();
        }
        Err(JournalError::Failed {
            file: self.file.to_string(),
            what: "another program keeps it locked".to_owned(),
            remedy: Remedy::WaitForLock,
        })
    }

    /// Projects what is committed, or returns why that is impossible.
    pub(super) fn derive_all(&mut self) -> Result<(), JournalError> {
        self.derive_for_reader()?;
        if self.tail.is_empty() {
            return Ok(());
        }
        // The files are no longer those that were opened.
        let loss = self.check_files().err();
        loss.map_or(Ok(()), |loss| Err(JournalError::Lost { file: self.file.to_string(), loss }))
    }

    fn derive_in_transaction(&mut self, tail: &Tail) -> Result<(), WriteFailed> {
        let transaction = self.connection.transaction()?;
        fail_point("journal::derive")?;
        for (number, change) in &tail.jobs {
            match &change.new {
                Some((row, workflow)) => {
                    let (state, ended) = change.state.unwrap_or((JobState::Running, None));
                    let now = JobNow { state, ended, open: change.open.unwrap_or(true) };
                    insert_job(&transaction, row, workflow, &now)?;
                }
                None => match (change.state, change.open) {
                    (Some((state, ended)), open) => {
                        let now = JobNow { state, ended, open: open.unwrap_or(true) };
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
        let mut places = tail.places.clone();
        places.sort_unstable();
        for (job, first, seq) in places {
            insert_place(&transaction, (job, first, seq))?;
        }
        for seq in &self.confirms.done {
            transaction.prepare_cached("DELETE FROM confirmed WHERE seq = ?1")?.execute([seq])?;
        }
        set_mark(&transaction, self.last)?;
        self.relations.write(&transaction, &self.file, &tail.statuses)?;
        Ok(transaction.commit()?)
    }

    /// Writes a record for each job whose confirms have waited since the last call or longer, for
    /// at most a few thousand jobs. Returns whether any confirms still wait.
    pub(super) fn write_confirms(&mut self) -> Result<bool, JournalError> {
        let mut jobs = self.confirms.since(self.confirms_written_to);
        if jobs.len() <= CONFIRMS_AT_ONCE {
            self.confirms_written_to = self.last;
        }
        jobs.truncate(CONFIRMS_AT_ONCE);
        if !jobs.is_empty() {
            self.unless_broken()?;
            let last =
                self.write_confirms_in_transaction(&jobs).map_err(|error| self.error(error))?;
            for (seq, job) in (self.last + 1..).zip(&jobs) {
                if let Some(first) = self.confirms.last_of(*job) {
                    self.tail.add_row(*job, first, seq);
                }
                self.confirms.written(*job);
            }
            self.last = last;
        }
        Ok(!self.confirms.is_empty())
    }

    fn write_confirms_in_transaction(&mut self, jobs: &[JobNumber]) -> rusqlite::Result<i64> {
        let transaction = self.connection.transaction()?;
        let mut last = self.last;
        for job in jobs {
            last += 1;
            let rows: Vec<&InnerRow> = self.confirms.of(*job).collect();
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
            .map_err(|error| damaged_or_failed(&self.file, error))?;
        self.last = last;
        if is_behind {
            self.last = self.mending(Core::catch_up_in_transaction)?;
        }
        self.confirms_written_to = self.last;
        Ok(())
    }

    fn catch_up_in_transaction(&mut self) -> Result<i64, WriteFailed> {
        let mut last = self.last;
        let transaction = self.connection.transaction()?;
        let file = self.file.clone();
        let rows = FileRows { connection: &transaction, file: &file, is_derived: true };
        let mut touched = BTreeSet::new();
        let mut rebuild = Rebuild::new(&rows);
        for row in rows.entry_rows(TAIL, [])? {
            if let Some(origin) = &row.origin {
                let workflow = rebuild.definition(origin.definition)?.full_name();
                let now = JobNow { state: JobState::Running, ended: None, open: true };
                insert_job(&transaction, origin, &workflow, &now)?;
            }
            insert_place(&transaction, (row.job, row.first, row.seq))?;
            touched.insert(row.job);
        }
        for (job, rows) in unwritten(&transaction, &file)? {
            last += 1;
            let rows: Vec<&InnerRow> = rows.iter().collect();
            let first = insert_confirms(&transaction, last, job, &rows)?;
            insert_place(&transaction, (job, first, last))?;
        }
        transaction.execute("DELETE FROM confirmed", [])?;
        set_mark(&transaction, last)?;
        let mut statuses = StatusChanges::default();
        for number in touched {
            let what = || "it is missing, and has entries".to_owned();
            let damaged = || JournalError::damaged_row(&file, "jobs", number, what());
            let Past { job, changed, definition } = rebuild.past(number)?.ok_or_else(damaged)?;
            let (state, ended) = (job.state(), job.ended().filter(|_| job.state().is_ended()));
            update_job(&transaction, number, &JobNow { state, ended, open: !job.is_closed() })?;
            if job.origin().parent.is_none() {
                statuses.0.insert(number, StatusChange::whole(number, &job, changed, definition));
            }
        }
        self.relations.write(&transaction, &self.file, &statuses)?;
        transaction.commit()?;
        Ok(last)
    }
}

/// Returns the confirms of jobs that have no later row.
fn unwritten(
    connection: &Connection,
    file: &str,
) -> Result<BTreeMap<JobNumber, Vec<InnerRow>>, WriteFailed> {
    let mut unwritten: BTreeMap<JobNumber, Vec<InnerRow>> = BTreeMap::new();
    let mut statement = connection.prepare(&format!("{} ORDER BY seq", GROUP_ROWS))?;
    let mut last_of = connection.prepare("SELECT max(seq) FROM places WHERE job = ?1")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (seq, group) = checked_group(row, file)?;
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
struct JobNow {
    state: JobState,
    ended: Option<Timestamp>,
    open: bool,
}

fn insert_job(
    connection: &Connection,
    row: &JobRow,
    workflow: &str,
    now: &JobNow,
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
            now.state.word(),
            now.ended.map(|at| at.0),
            now.open,
            job_checksum(row)
        ])
        .map(|_| ())
}

fn update_job(connection: &Connection, number: JobNumber, now: &JobNow) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE jobs SET state = ?2, ended = ?3, open = ?4 WHERE number = ?1")?
        .execute(params![number, now.state.word(), now.ended.map(|at| at.0), now.open])
        .map(|_| ())
}

fn insert_place(
    connection: &Connection,
    (job, first, seq): (JobNumber, u64, i64),
) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT INTO places(job, first, seq) VALUES (?1, ?2, ?3)")?
        .execute([job, place(first), seq])
        .map(|_| ())
}

/// Inserts a row that has only confirms. Returns the number of its first entry.
fn insert_confirms(
    connection: &Connection,
    seq: i64,
    job: JobNumber,
    rows: &[&InnerRow],
) -> rusqlite::Result<u64> {
    let Some(((first, at, entries), before)) = rows.split_last() else { return Ok(0) };
    let confirms = (!before.is_empty()).then(|| encode(before)).transpose()?;
    let body = encode(entries)?;
    let mut insert = connection.prepare_cached(INSERT_ENTRY)?;
    insert_entry(&mut insert, seq, (job, *first, *at), [Some(&*body), confirms.as_deref(), None])?;
    Ok(*first)
}

fn set_mark(connection: &Connection, upto: i64) -> rusqlite::Result<()> {
    connection.prepare_cached("UPDATE derived SET upto = ?1")?.execute([upto]).map(|_| ())
}
