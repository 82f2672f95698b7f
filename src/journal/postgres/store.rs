//! The writing end of a journal in PostgreSQL.

use super::cells;
use super::claim::{
    Announcement, Candidate, DatabaseInspection, Look, Purpose, TakenState, half_copied_error,
};
use super::commit_connection::BatchStatement;
use super::connection::params;
use super::options::PostgresOptions;
use super::pool::ReaderPool;
use super::reader::Reader;
use super::rows::recover_all;
use super::writer::PostgresWriter;
use crate::checksums::{ledger_checksum, offset_checksum};
use crate::error::{FileLoss, JournalError, Remedy};
use crate::numbers::JobNumbers;
use crate::ownership::Ownership;
use crate::query::CellRefill;
use crate::record::{
    Deletion, DiskUsage, JobNumber, NoticeNumber, Record, StoredLedger, StoredOffset, StoredTrend,
};
use crate::recover::JobTreeHandler;
use crate::traits::{Journal, Records};
use base::clock;
use engine::{Control, ControlKey, Definition, Millis, RateMark, Timestamp};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How old the size of the database may be. The server looks at each file to measure it.
const DISK_USAGE_AGE: Duration = Duration::from_secs(60);

/// The writing end of a journal in PostgreSQL, held by the active process of a name.
pub struct PostgresJournal {
    pub(super) writer: PostgresWriter,
    /// The connections of readers.
    pub(super) pool: Arc<ReaderPool>,
    /// The manager's name.
    pub(super) name: String,
    /// Whether the process before did not beat any more.
    has_taken_over: bool,
    /// The size of the database; `None` if it could not be measured.
    disk_usage: Option<DiskUsage>,
    /// When the size was measured; `None`: not yet.
    disk_usage_measured: Option<Instant>,
}

/// A process that waits until it becomes active.
pub struct PostgresStandby {
    candidate: Box<Candidate>,
    /// The connections of readers.
    pool: Arc<ReaderPool>,
}

impl PostgresJournal {
    /// Opens or creates the journal, if no other process of the name is active.
    ///
    /// # Errors
    ///
    /// Returns [`JournalError::ActiveElsewhere`] if another process is active, and an error that
    /// says what to do if the database cannot hold the journal.
    pub fn open(options: PostgresOptions) -> Result<PostgresJournal, JournalError> {
        PostgresStandby::register(options)?.try_activate().map_err(|(error, _)| error)
    }

    /// Checks that a database can hold the journal, and changes nothing.
    ///
    /// # Errors
    ///
    /// Returns an error that says what to do if it cannot.
    pub fn inspect(options: PostgresOptions) -> Result<DatabaseInspection, JournalError> {
        Candidate::inspect(options)
    }

    /// Returns whether this process has taken the name from one that did not beat any more.
    pub fn has_taken_over(&self) -> bool {
        self.has_taken_over
    }

    pub(super) fn activate(
        candidate: Candidate,
        pool: Arc<ReaderPool>,
        state: TakenState,
    ) -> PostgresJournal {
        let (name, has_taken_over) = (candidate.options.name.clone(), candidate.takes_over);
        let mut writer = PostgresWriter::new(candidate, state);
        writer.make_days_ahead();
        PostgresJournal {
            writer,
            pool,
            name,
            has_taken_over,
            disk_usage: None,
            disk_usage_measured: None,
        }
    }
}

impl PostgresStandby {
    /// Connects, checks the database, and registers this process.
    ///
    /// # Errors
    ///
    /// Returns an error that says what to do if the database cannot hold the journal.
    pub fn register(options: PostgresOptions) -> Result<PostgresStandby, JournalError> {
        super::options::check_manager_name(&options.name).map_err(|what| JournalError::Failed {
            file: options.server.to_string(),
            problem: what,
            remedy: Remedy::Exit,
        })?;
        let candidate = Box::new(Candidate::register(options, Purpose::Serve)?);
        let pool = Arc::new(ReaderPool::of_candidate(&candidate));
        Ok(PostgresStandby { candidate, pool })
    }

    /// Returns what the active process has announced, as of the last look.
    pub fn announced(&self) -> Announcement {
        self.candidate.announced
    }

    /// Sets whether this process reaches the broker, for the next look; `None`: it has not tried.
    pub fn set_reaches_broker(&mut self, reaches_broker: Option<bool>) {
        self.candidate.reaches_broker = reaches_broker;
    }

    /// Returns a reader that sees everything that is committed. The journal of an active process
    /// goes on with its connections.
    pub fn records(&self) -> Arc<dyn Records> {
        Arc::new(Reader::new(self.pool.clone()))
    }

    /// Becomes active if nobody is, or if the active process is dead.
    ///
    /// # Errors
    ///
    /// Returns [`JournalError::ActiveElsewhere`] if another process is active, or an error of the
    /// server; and the standby, which tries again after a second.
    pub fn try_activate(self) -> Result<PostgresJournal, (JournalError, PostgresStandby)> {
        let PostgresStandby { candidate, pool } = self;
        let options = candidate.options.clone();
        let (candidate, result) = candidate.try_claim();
        let error = match result {
            Ok(Look::Active(state)) => {
                return Ok(PostgresJournal::activate(candidate, pool, state));
            }
            Ok(Look::Standby(active)) => active.to_error(&options),
            Ok(Look::LeftTo(better)) => better.to_error(&options),
            Ok(Look::HalfCopied(from)) => half_copied_error(options.server.to_string(), &from),
            Err(error) => error,
        };
        Err((error, PostgresStandby { candidate: Box::new(candidate), pool }))
    }
}

impl Journal for PostgresJournal {
    fn records(&self) -> Arc<dyn Records> {
        Arc::new(Reader::new(self.pool.clone()))
    }

    fn ownership(&self) -> Option<Arc<Ownership>> {
        Some(self.writer.beat.ownership().clone())
    }

    fn check_files(&mut self) -> Result<(), FileLoss> {
        if self.writer.beat.ownership().is_fenced() {
            return Err(FileLoss::TakenOver {
                journal: self.writer.journal.clone(),
                name: self.name.clone(),
            });
        }
        Ok(())
    }

    fn clock_ahead_ms(&self) -> Option<i64> {
        self.writer.beat.ownership().clock_ahead_ms()
    }

    fn disk_usage(&mut self) -> Option<DiskUsage> {
        let is_fresh = |measured: Instant| measured.elapsed() < DISK_USAGE_AGE;
        if self.disk_usage_measured.is_none_or(|measured| !is_fresh(measured)) {
            let rows =
                self.writer.commits.query("SELECT pg_database_size(current_database())", params![]);
            let bytes = rows.ok().and_then(|rows| rows.first().map(|row| row.get::<_, i64>(0)));
            let to_usage = |main| DiskUsage { main, wal: 0, free: 0 };
            self.disk_usage = bytes.and_then(|bytes| u64::try_from(bytes).ok()).map(to_usage);
            self.disk_usage_measured = Some(clock::instant());
        }
        self.disk_usage
    }

    fn fill_reserve(&mut self) {}

    fn is_disk_full(&self) -> bool {
        false
    }

    fn job_numbers(&mut self) -> Result<JobNumbers, JournalError> {
        Ok(JobNumbers::timed(self.writer.ordinal, self.writer.highest))
    }

    fn append_and_check(
        &mut self,
        records: &[&Record],
        others: &[JobNumber],
    ) -> Result<BTreeSet<JobNumber>, JournalError> {
        self.writer.commit_records(records, others)
    }

    fn has_unprojected(&self) -> bool {
        false
    }

    fn project(&mut self) -> Result<(), JournalError> {
        Ok(())
    }

    fn has_pending_confirms(&self) -> bool {
        false
    }

    fn write_confirms(&mut self) -> Result<bool, JournalError> {
        Ok(false)
    }

    fn store_offsets(&mut self, offsets: &[StoredOffset]) -> Result<(), JournalError> {
        let sql = "INSERT INTO bus_offsets(name, bus, topic, partition, next_offset, checksum)
                   SELECT $6, u.* FROM unnest($1::text[], $2::text[], $3::integer[], $4::bigint[],
                                              $5::bigint[]) u
                   ON CONFLICT (name, bus, topic, partition) DO UPDATE
                   SET next_offset = excluded.next_offset, checksum = excluded.checksum";
        let column = |text: fn(&StoredOffset) -> &Arc<str>| -> Vec<String> {
            offsets.iter().map(|offset| text(offset).to_string()).collect()
        };
        let params = params![
            column(|offset| &offset.bus),
            column(|offset| &offset.topic),
            offsets.iter().map(|offset| offset.partition).collect::<Vec<_>>(),
            offsets.iter().map(|offset| offset.offset).collect::<Vec<_>>(),
            offsets.iter().map(|offset| i64::from(offset_checksum(offset))).collect::<Vec<_>>(),
            self.writer.ordinal.0,
        ];
        self.writer.commits.transact(vec![BatchStatement::new(sql, params)]).map(drop)
    }

    fn store_ledgers(&mut self, ledgers: &[StoredLedger]) -> Result<(), JournalError> {
        let name = self.writer.ordinal.0;
        let statements = ledgers.iter().map(|StoredLedger { schedule, ledger }| match ledger {
            Some(ledger) => BatchStatement::new(
                "INSERT INTO schedules(name, schedule, ledger, checksum) VALUES ($1, $2, $3, $4)
                 ON CONFLICT (name, schedule) DO UPDATE
                 SET ledger = excluded.ledger, checksum = excluded.checksum",
                params![
                    name,
                    schedule.to_string(),
                    ledger.to_string(),
                    i64::from(ledger_checksum(schedule, ledger))
                ],
            ),
            None => BatchStatement::new(
                "DELETE FROM schedules WHERE name = $1 AND schedule = $2",
                params![name, schedule.to_string()],
            ),
        });
        self.writer.commits.transact(statements.collect()).map(drop)
    }

    fn store_trends(
        &mut self,
        trends: &[StoredTrend],
        forgotten: &[Arc<str>],
    ) -> Result<(), JournalError> {
        self.write_trends(trends, forgotten)
    }

    fn for_each_job_tree(&self, handler: JobTreeHandler<'_>) -> Result<(), JournalError> {
        recover_all(&self.pool, handler)
    }

    fn create_status_tables(&mut self, definitions: &[&Definition]) -> Result<(), JournalError> {
        definitions.iter().try_for_each(|definition| self.writer.create_status_steps(definition))
    }

    fn refill_cells(
        &mut self,
        _definition: &Definition,
        refills: &[CellRefill],
    ) -> Result<BTreeSet<JobNumber>, JournalError> {
        cells::refill(&mut self.writer.commits, refills)
    }

    fn load_rate_marks(&mut self) -> Result<Vec<RateMark>, JournalError> {
        self.read_rate_marks()
    }

    fn store_control(&mut self, control: &Control) -> Result<(), JournalError> {
        self.write_control(control)
    }

    fn delete_control(&mut self, key: &ControlKey) -> Result<(), JournalError> {
        self.remove_control(key)
    }

    fn load_controls(&mut self) -> Result<Vec<Control>, JournalError> {
        self.read_controls()
    }

    fn newest_record_time(&self) -> Result<Option<Timestamp>, JournalError> {
        Ok(self.writer.newest)
    }

    fn count_expired(
        &mut self,
        now: Timestamp,
        default_retention: Millis,
    ) -> Result<u64, JournalError> {
        self.writer.count_past_retention(now, default_retention)
    }

    fn delete_expired(
        &mut self,
        now: Timestamp,
        default_retention: Millis,
        rows_max: u32,
    ) -> Result<Deletion, JournalError> {
        self.writer.delete_past_retention(now, default_retention, rows_max)
    }

    fn delete_jobs(
        &mut self,
        roots: &[JobNumber],
        rows_max: u32,
    ) -> Result<Deletion, JournalError> {
        self.writer.delete_job_trees(roots, rows_max)
    }

    fn delete_notices(&mut self, notices: &[NoticeNumber]) -> Result<(), JournalError> {
        let sql = "DELETE FROM notices WHERE number = ANY($1)";
        let statement = BatchStatement::new(sql, params![notices.to_vec()]);
        self.writer.commits.transact(vec![statement]).map(drop)
    }
}

impl Drop for PostgresJournal {
    /// Says goodbye behind all commits: the name is free at once.
    fn drop(&mut self) {
        if std::thread::panicking() || self.writer.beat.ownership().is_fenced() {
            return;
        }
        self.writer.beat.stop();
        self.writer.commits.say_goodbye(self.writer.highest);
    }
}
