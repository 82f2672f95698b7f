//! The rows from which jobs are rebuilt. Each is verified when it is read.

use super::connection::params;
use super::pool::{ReaderPool, Session};
use crate::checksums::{
    EntryTexts, checksum, entry_checksum, job_checksum, ledger_checksum, offset_checksum,
};
use crate::error::JournalError;
use crate::record::{JobNumber, Notice, NoticeNumber, StoredLedger, StoredOffset};
use crate::recover::{self, ChildKey, JobPartitions, JobRow, JobRows, JobTreeHandler};
use engine::{DefinitionHash, Entry, JobId, Recorded, Timestamp};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::num::NonZero;
use std::panic::resume_unwind;
use tokio_postgres::Row;

/// How many rows of a job are read at once.
const PAGE_ROWS: i64 = 64;

/// The rows of so many jobs are read at once during recovery, at most.
const PREFETCHED_JOBS: usize = 500;

/// The most bytes of entries that are read at once during recovery, by each thread. Larger records
/// are read alone, page by page.
const PREFETCHED_BYTES: i64 = 8 << 20;

/// The columns of `jobs` that [`parse_job`] reads.
pub(super) const JOB_COLUMNS: &str =
    "number, id, definition, graph, root, parent, step, item, depth, created, checksum";

/// The columns of `entries` that [`parse_entry`] reads.
pub(super) const ENTRY_COLUMNS: &str = "job, first, at, body, checksum";

/// The columns of `notices` that [`parse_notice`] reads.
pub(super) const NOTICE_COLUMNS: &str = "number, at, body, checksum";

/// The columns of `bus_offsets` that [`parse_offset`] reads.
pub(super) const OFFSET_COLUMNS: &str = "bus, topic, partition, next_offset, checksum";

/// A row of `entries`.
pub(super) struct EntryRow {
    pub(super) first: u64,
    pub(super) at: Timestamp,
    pub(super) body: String,
}

impl EntryRow {
    /// Parses the entries of the row.
    pub(super) fn parse(&self, job: JobNumber, journal: &str) -> Result<Vec<Entry>, JournalError> {
        serde_json::from_str(&self.body).map_err(|error| {
            let what = format!("entry {}: not an entry of this version: {error}", self.first);
            JournalError::damaged_row(journal, "entries", job, what)
        })
    }

    pub(super) fn parse_recorded(
        &self,
        job: JobNumber,
        journal: &str,
    ) -> Result<Recorded, JournalError> {
        Ok(Recorded { first: self.first, at: self.at, entries: self.parse(job, journal)? })
    }
}

/// The rows of the database, read in one transaction.
pub(super) struct DatabaseRows<'a> {
    pub(super) session: &'a Session<'a>,
    prefetch: RefCell<Prefetch>,
}

/// Rows of `entries` that are read for many jobs at once.
#[derive(Default)]
struct Prefetch {
    /// The jobs that will be rebuilt, in this order.
    upcoming: VecDeque<JobNumber>,
    /// The rows that were read, by job. A job that is here has all its rows here.
    rows: HashMap<JobNumber, Vec<EntryRow>>,
}

impl<'a> DatabaseRows<'a> {
    pub(super) fn new(session: &'a Session<'a>) -> DatabaseRows<'a> {
        DatabaseRows { session, prefetch: RefCell::default() }
    }

    /// Says which jobs will be rebuilt next, in this order: their rows are read in few queries.
    pub(super) fn announce(&self, jobs: impl Iterator<Item = JobNumber>) {
        *self.prefetch.borrow_mut() = Prefetch { upcoming: jobs.collect(), ..Prefetch::default() };
    }

    /// Takes the rows of a job that is rebuilt now. Reads those of the next jobs in one query if
    /// this job is one of them; `None` if its rows are to be read alone.
    fn take_prefetched(&self, job: JobNumber) -> Result<Option<Vec<EntryRow>>, JournalError> {
        let mut prefetch = self.prefetch.borrow_mut();
        if prefetch.rows.is_empty() && prefetch.upcoming.front() == Some(&job) {
            let count = prefetch.upcoming.len().min(PREFETCHED_JOBS);
            let next_jobs: Vec<JobNumber> = prefetch.upcoming.drain(..count).collect();
            prefetch.rows = self.read_small_records(&next_jobs)?;
        }
        Ok(prefetch.rows.remove(&job))
    }

    /// Reads the rows of those of these jobs whose records are small together.
    fn read_small_records(
        &self,
        jobs: &[JobNumber],
    ) -> Result<HashMap<JobNumber, Vec<EntryRow>>, JournalError> {
        let sql = "SELECT job, sum(octet_length(body))::bigint FROM entries WHERE job = ANY($1)
                   GROUP BY job ORDER BY 2";
        let mut remaining_bytes = PREFETCHED_BYTES;
        let mut small_jobs = Vec::with_capacity(jobs.len());
        for row in self.session.query(sql, params![jobs.to_vec()])? {
            remaining_bytes -= row.get::<_, i64>(1);
            if remaining_bytes < 0 {
                break;
            }
            small_jobs.push(row.get::<_, JobNumber>(0));
        }
        let sql =
            format!("SELECT {ENTRY_COLUMNS} FROM entries WHERE job = ANY($1) ORDER BY job, first");
        let mut rows: HashMap<JobNumber, Vec<EntryRow>> = HashMap::new();
        for row in self.session.query(&sql, params![small_jobs])? {
            let (job, entry) = parse_entry(&row, self.session.journal())?;
            rows.entry(job).or_default().push(entry);
        }
        Ok(rows)
    }

    /// Returns at most `limit` rows of a job from entry `first` on, in order.
    pub(super) fn entry_rows(
        &self,
        job: JobNumber,
        first: u64,
        limit: i64,
    ) -> Result<Vec<EntryRow>, JournalError> {
        let sql = format!(
            "SELECT {ENTRY_COLUMNS} FROM entries WHERE job = $1 AND first >= $2 ORDER BY first \
             LIMIT $3"
        );
        let first = i64::try_from(first).unwrap_or(i64::MAX);
        let rows = self.session.query(&sql, params![job, first, limit])?;
        rows.iter().map(|row| Ok(parse_entry(row, self.session.journal())?.1)).collect()
    }

    /// Returns at most `limit` rows of a job with a first entry below `before`, the last one first.
    pub(super) fn last_rows_before(
        &self,
        job: JobNumber,
        before: i64,
        limit: i64,
    ) -> Result<Vec<EntryRow>, JournalError> {
        let sql = format!(
            "SELECT {ENTRY_COLUMNS} FROM entries WHERE job = $1 AND first < $2 ORDER BY first DESC \
             LIMIT $3"
        );
        let rows = self.session.query(&sql, params![job, before, limit])?;
        rows.iter().map(|row| Ok(parse_entry(row, self.session.journal())?.1)).collect()
    }

    fn query_jobs(
        &self,
        condition: &str,
        params: super::connection::Params,
    ) -> Result<Vec<JobRow>, JournalError> {
        let sql = format!("SELECT {JOB_COLUMNS} FROM jobs WHERE {condition}");
        let rows = self.session.query(&sql, params)?;
        rows.iter().map(|row| parse_job(row, self.session.journal())).collect()
    }
}

impl JobRows for DatabaseRows<'_> {
    fn find_job(&self, number: JobNumber) -> Result<Option<JobRow>, JournalError> {
        Ok(self.query_jobs("number = $1", params![number])?.pop())
    }

    fn load_open_jobs(&self) -> Result<Vec<JobRow>, JournalError> {
        let condition = format!("open AND {} ORDER BY number", self.session.own("number"));
        self.query_jobs(&condition, params![])
    }

    fn load_live_children(&self, parent: JobNumber) -> Result<Vec<JobRow>, JournalError> {
        self.query_jobs(
            "parent = $1 AND root = (SELECT root FROM jobs WHERE number = $1) AND ended IS NULL",
            params![parent],
        )
    }

    fn find_child(
        &self,
        root: JobNumber,
        key: &ChildKey,
    ) -> Result<Option<JobNumber>, JournalError> {
        let ChildKey { parent, step, item, id } = *key;
        let sql = "SELECT number FROM jobs WHERE root = $1 AND parent = $2 AND step = $3 \
                   AND item = $4 AND id = $5 ORDER BY number DESC LIMIT 1";
        let params = params![root, parent, i32::from(step), i64::from(item), id.0];
        Ok(self.session.query(sql, params)?.first().map(|row| row.get(0)))
    }

    fn for_each_decision(
        &self,
        job: JobNumber,
        handler: &mut dyn FnMut(Recorded) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let mut entry_count = 0;
        let mut handle_row = |row: &EntryRow| {
            if row.first != entry_count {
                let what = format!(
                    "a row begins with entry {} of the job, and {entry_count} entries come before \
                     it: a row is missing, or there twice",
                    row.first
                );
                return Err(JournalError::damaged_row(
                    self.session.journal(),
                    "entries",
                    job,
                    what,
                ));
            }
            let recorded = row.parse_recorded(job, self.session.journal())?;
            entry_count += recorded.entries.len() as u64;
            handler(recorded)
        };
        if let Some(rows) = self.take_prefetched(job)? {
            return rows.iter().try_for_each(handle_row);
        }
        let mut next = 0;
        loop {
            let rows = self.entry_rows(job, next, PAGE_ROWS)?;
            rows.iter().try_for_each(&mut handle_row)?;
            match rows.last() {
                Some(last) if rows.len() as i64 == PAGE_ROWS => next = last.first + 1,
                Some(_) | None => return Ok(()),
            }
        }
    }

    fn find_seq(&self, job: JobNumber, entry: u64) -> Result<Option<i64>, JournalError> {
        let sql = "SELECT seq FROM entries WHERE job = $1 AND first <= $2 ORDER BY first DESC \
                   LIMIT 1";
        let entry = i64::try_from(entry).unwrap_or(i64::MAX);
        Ok(self.session.query(sql, params![job, entry])?.first().map(|row| row.get(0)))
    }

    fn load_definition_body(&self, number: i64) -> Result<String, JournalError> {
        let damaged = |what: &str| self.damaged_row("definitions", number, what.to_owned());
        let sql = "SELECT hash, body FROM definitions WHERE number = $1";
        let rows = self.session.query(sql, params![number])?;
        let row = rows.first().ok_or_else(|| damaged("it is missing"))?;
        let (hash, body): (Vec<u8>, String) = (row.get(0), row.get(1));
        if DefinitionHash::from_json_text(&body).0.as_slice() == hash {
            Ok(body)
        } else {
            Err(damaged("the content does not match its hash"))
        }
    }

    fn damaged_row(&self, table: &'static str, row: i64, what: String) -> JournalError {
        JournalError::damaged_row(self.session.journal(), table, row, what)
    }
}

/// Parses a row of [`JOB_COLUMNS`] and checks its checksum.
pub(super) fn parse_job(row: &Row, journal: &str) -> Result<JobRow, JournalError> {
    let number = row.get(0);
    let damaged = |what: &str| JournalError::damaged_row(journal, "jobs", number, what.to_owned());
    let out_of_range = || damaged("a number is out of its range");
    let optional = |column: usize| row.get::<_, Option<i32>>(column);
    let job = JobRow {
        number,
        id: JobId(row.get(1)),
        definition: row.get(2),
        graph: u16::try_from(row.get::<_, i32>(3)).map_err(|_| out_of_range())?,
        root: row.get(4),
        parent: row.get(5),
        step: optional(6).map(u16::try_from).transpose().map_err(|_| out_of_range())?,
        item: row
            .get::<_, Option<i64>>(7)
            .map(u32::try_from)
            .transpose()
            .map_err(|_| out_of_range())?,
        depth: u16::try_from(row.get::<_, i32>(8)).map_err(|_| out_of_range())?,
        created: Timestamp(row.get(9)),
    };
    if i64::from(job_checksum(&job)) == row.get::<_, i64>(10) {
        Ok(job)
    } else {
        Err(damaged("the checksum does not match"))
    }
}

/// Parses a row of [`ENTRY_COLUMNS`] and checks its checksum. Returns its job too.
pub(super) fn parse_entry(row: &Row, journal: &str) -> Result<(JobNumber, EntryRow), JournalError> {
    let (job, first, body): (i64, i64, String) = (row.get(0), row.get(1), row.get(3));
    let damaged = |what: &str| {
        let what = format!("entry {first}: {what}");
        JournalError::damaged_row(journal, "entries", job, what)
    };
    let at = Timestamp(row.get(2));
    let first_entry = u64::try_from(first).map_err(|_| damaged("its place is negative"))?;
    let sum = entry_checksum(job, first_entry, at, EntryTexts::body_alone(&body));
    if i64::from(sum) != row.get::<_, i64>(4) {
        return Err(damaged("the checksum does not match"));
    }
    Ok((job, EntryRow { first: first_entry, at, body }))
}

/// Calls `handler` with every job tree that takes input. Several threads rebuild a part of the job
/// trees each, from one query for some hundred jobs.
pub(super) fn recover_all(
    pool: &ReaderPool,
    handler: JobTreeHandler<'_>,
) -> Result<(), JournalError> {
    let session = pool.begin()?;
    let rows = DatabaseRows::new(&session);
    let JobPartitions { jobs, definitions } = JobPartitions::from_rows(&rows, usize::MAX)?;
    drop(session);
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let mut shares: Vec<Vec<Vec<JobRow>>> = Vec::new();
    shares.resize_with(cores, Vec::new);
    for (index, part) in jobs.into_iter().enumerate() {
        shares[index % cores].push(part);
    }
    let recover_share = |share: Vec<Vec<JobRow>>| -> Result<(), JournalError> {
        for jobs in share {
            let session = pool.begin()?;
            let rows = DatabaseRows::new(&session);
            rows.announce(order_by_tree(&jobs).into_iter());
            recover::recover_job_trees(&rows, jobs, definitions.clone(), handler)?;
        }
        Ok(())
    };
    let recover_share = &recover_share;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            shares.into_iter().map(|share| scope.spawn(move || recover_share(share))).collect();
        for thread in threads {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        }
        Ok(())
    })
}

/// Returns the numbers of jobs in the order in which [`recover::recover_job_trees`] rebuilds them:
/// by root job, then by number.
fn order_by_tree(jobs: &[JobRow]) -> Vec<JobNumber> {
    let mut numbers: Vec<(JobNumber, JobNumber)> =
        jobs.iter().map(|job| (job.root, job.number)).collect();
    numbers.sort_unstable();
    numbers.into_iter().map(|(_, number)| number).collect()
}

/// Parses a row of `notices`, and checks its checksum.
pub(super) fn parse_notice(
    row: &Row,
    journal: &str,
) -> Result<(NoticeNumber, Notice), JournalError> {
    let (number, at, body): (i64, i64, String) = (row.get(0), row.get(1), row.get(2));
    if i64::from(checksum(at, &body)) != row.get::<_, i64>(3) {
        let what = "the checksum does not match".to_owned();
        return Err(JournalError::damaged_row(journal, "notices", number, what));
    }
    Ok((number, Notice { at: Timestamp(at), body: body.into() }))
}

/// The columns of `schedules` that [`parse_ledger`] reads.
pub(super) const LEDGER_COLUMNS: &str = "schedule, ledger, checksum";

/// Parses a row of `schedules`, and checks its checksum: with a wrong mark, slots would be skipped.
pub(super) fn parse_ledger(row: &Row, journal: &str) -> Result<StoredLedger, JournalError> {
    let (schedule, ledger): (String, String) = (row.get(0), row.get(1));
    if i64::from(ledger_checksum(&schedule, &ledger)) != row.get::<_, i64>(2) {
        let what = format!("the checksum of the schedule {schedule} does not match");
        return Err(JournalError::damaged_row(journal, "schedules", 0, what));
    }
    Ok(StoredLedger { schedule: schedule.into(), ledger: Some(ledger.into()) })
}

/// Parses a row of `bus_offsets`, and checks its checksum: an offset that is too high would skip
/// replies.
pub(super) fn parse_offset(row: &Row, journal: &str) -> Result<StoredOffset, JournalError> {
    let offset = StoredOffset {
        bus: row.get::<_, &str>(0).into(),
        topic: row.get::<_, &str>(1).into(),
        partition: row.get(2),
        offset: row.get(3),
    };
    if i64::from(offset_checksum(&offset)) != row.get::<_, i64>(4) {
        let what = format!(
            "the checksum of the offset in the topic {} of the bus {} does not match",
            offset.topic, offset.bus
        );
        let row = offset.partition.into();
        return Err(JournalError::damaged_row(journal, "bus_offsets", row, what));
    }
    Ok(offset)
}
