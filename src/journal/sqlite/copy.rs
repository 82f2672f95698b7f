//! The copy of a journal from a file, and into one (`crate::copy`). The file is written under
//! another name, and gets its own once it is complete and compared with its original. Meanwhile the
//! lock of that name is held, so that no manager starts there.

use super::append::{INSERT_ENTRY, insert_entry};
use super::backup::PendingFile;
use super::controls;
use super::failures;
use super::file_rows::FileRows;
use super::files;
use super::limit_rates;
use super::projection::{JobStatus, insert_job, insert_place, set_watermark};
use super::row_format::{
    ENTRY_COLUMNS, SELECT_NOTICES, SELECT_OFFSETS, for_each_row, format_origin, insert_notice,
    parse_definition_row, parse_entry_row, parse_job_row, parse_notice_row, parse_offset_row,
    read_ledgers, row_number, sqlite_error, to_journal_error,
};
use super::schema::{JournalOptions, open_read_only};
use super::trends;
use super::unprojected::{NewStatusRow, Place, StatusChange, StatusChanges};
use super::writer::{JournalWriter, acquire_lock};
use crate::checksums::EntryTexts;
use crate::copy::progress::CopyProgress;
use crate::copy::rows::{
    CopyReader, CopySummary, CopyWriter, DecisionOrder, DecisionText, DerivedStatuses, GateRows,
    JobOrder, NewJobRow, RowHandler, StatusWriter, StoredJobRow,
};
use crate::copy::run::copy_and_check;
use crate::error::{JournalError, Remedy};
use crate::failures::FailureChange;
use crate::record::{JobNumber, Notice, NoticeNumber, StoredLedger, StoredOffset, StoredTrend};
use crate::recover::{JobRow, JobRows};
use engine::{Definition, DefinitionHash, JobState, StepIndex, Timestamp};
use rusqlite::{Connection, params};
use rustix::fs::statvfs;
use std::path::Path;

/// The size of the page cache while a copy is written, in bytes.
const CACHE_BYTES: u64 = 32 << 20;

/// The columns of `jobs` that a copy reads: those of `parse_job_row`, and those that change.
const SELECT_JOBS: &str = "SELECT number, id, definition, graph, root, parent, step, item, depth, \
                           created, checksum, state, ended, open FROM jobs";

/// A journal in a file that is copied. No manager can start on it meanwhile.
pub(crate) struct FileCopySource {
    /// Declared before the writer, which removes the `-wal` when it is closed last.
    connection: Connection,
    /// Holds the lock of the file, and has projected everything.
    writer: JournalWriter,
}

impl FileCopySource {
    /// Opens the journal as a start of the manager does: verifies every row, migrates it to the
    /// newest schema, and projects what the last process has left.
    pub(crate) fn open(path: &Path) -> Result<FileCopySource, JournalError> {
        let file = path.display().to_string();
        if std::fs::metadata(path).is_ok_and(|metadata| metadata.len() == 0) || !path.exists() {
            return Err(JournalError::Missing { file });
        }
        let writer = JournalWriter::open(&options(path))?;
        let connection =
            open_read_only(writer.path()).map_err(|error| sqlite_error(&file, &error))?;
        Ok(FileCopySource { connection, writer })
    }

    /// Returns what reads the journal.
    pub(crate) fn reader(&self) -> FileCopyReader<'_> {
        FileCopyReader::new(&self.connection, &self.writer.file)
    }
}

fn options(path: &Path) -> JournalOptions {
    JournalOptions {
        file: path.to_owned(),
        cache_bytes: CACHE_BYTES,
        verify_bytes_max: u64::MAX,
        pages_max: 0,
    }
}

/// Copies a journal into the new file `path`. `bytes` is the size of the original.
pub(crate) fn copy_into_file(
    source: &dyn CopyReader,
    path: &Path,
    bytes: u64,
    progress: &CopyProgress,
) -> Result<CopySummary, JournalError> {
    let file = path.display().to_string();
    let unreachable_error = |error| JournalError::Unreachable { file: file.clone(), error };
    let resolved = files::resolve(path).map_err(unreachable_error)?;
    let lock = acquire_lock(&resolved, &file)?;
    let copy = || {
        let pending = PendingFile::create(path)?;
        check_space(&pending.partial, &file, bytes)?;
        let mut target = FileCopyTarget::open(&pending.partial)?;
        let summary = copy_and_check(source, &mut target, progress)?;
        // A checkpoint moves everything into the main file.
        drop(target);
        pending.finish(usize::try_from(summary.open_jobs).unwrap_or(usize::MAX))?;
        Ok(summary)
    };
    let result = copy();
    if result.is_err() {
        lock.discard();
    }
    result
}

/// Checks that the disk has room for a copy of this size.
fn check_space(partial: &Path, file: &str, bytes: u64) -> Result<(), JournalError> {
    let Ok(disk) = statvfs(partial) else { return Ok(()) };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free >= bytes {
        return Ok(());
    }
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let problem = format!(
        "its disk has {} MiB free, and the database has {} MiB: make room, or name a file on \
         another disk",
        mib(free),
        mib(bytes)
    );
    Err(JournalError::Failed { file: file.to_owned(), problem, remedy: Remedy::WaitForSpace })
}

/// Reads a journal in a file, in which everything is projected.
pub(crate) struct FileCopyReader<'a> {
    rows: FileRows<'a>,
}

impl<'a> FileCopyReader<'a> {
    fn new(connection: &'a Connection, file: &'a str) -> FileCopyReader<'a> {
        FileCopyReader { rows: FileRows { connection, file, is_projected: true } }
    }

    fn source(&self) -> (&'a Connection, &'a str) {
        (self.rows.connection, self.rows.file)
    }
}

impl CopyReader for FileCopyReader<'_> {
    fn journal(&self) -> &str {
        self.rows.file
    }

    fn rows(&self) -> &dyn JobRows {
        &self.rows
    }

    fn announce(&self, _jobs: &[StoredJobRow]) {}

    fn count_jobs(&self) -> Result<u64, JournalError> {
        let (connection, file) = self.source();
        let sql = "SELECT count(*) FROM jobs";
        let count = connection.query_row(sql, [], |row| row.get::<_, i64>(0));
        Ok(count.map_err(|error| to_journal_error(file, error))?.unsigned_abs())
    }

    fn for_each_definition(
        &self,
        handler: RowHandler<'_, (i64, String)>,
    ) -> Result<(), JournalError> {
        let sql = "SELECT number, hash, body FROM definitions ORDER BY number";
        for_each_row(self.source(), sql, [], |row| {
            handler((row_number(row, 0), parse_definition_row(row, self.rows.file)?))
        })
    }

    fn for_each_job(
        &self,
        order: JobOrder,
        handler: RowHandler<'_, StoredJobRow>,
    ) -> Result<(), JournalError> {
        let sql = format!("{SELECT_JOBS} ORDER BY {}", order.columns());
        let file = self.rows.file;
        for_each_row(self.source(), &sql, [], |row| {
            let job = parse_job_row(row, file)?;
            let state = || -> rusqlite::Result<(String, Option<i64>, bool)> {
                Ok((row.get(11)?, row.get(12)?, row.get(13)?))
            };
            let damaged = |what: String| JournalError::damaged_row(file, "jobs", job.number, what);
            let (state, ended, is_open) = state().map_err(|error| damaged(error.to_string()))?;
            let state = JobState::from_name(&state)
                .ok_or_else(|| damaged(format!("{state:?} is no state of a job")))?;
            handler(StoredJobRow { row: job, state, ended: ended.map(Timestamp), is_open })
        })
    }

    fn for_each_decision_text(
        &self,
        order: DecisionOrder,
        handler: RowHandler<'_, DecisionText>,
    ) -> Result<(), JournalError> {
        let sql = match order {
            DecisionOrder::ByCommit => format!("SELECT {ENTRY_COLUMNS} FROM entries ORDER BY seq"),
            // CROSS JOIN makes `places` the outer loop, so that nothing is sorted.
            DecisionOrder::ByJob => {
                "SELECT e.job, e.first, e.at, e.body, e.checksum, e.seq, e.confirms, e.origin
                 FROM places p CROSS JOIN entries e ON e.seq = p.seq ORDER BY p.job, p.first"
                    .to_owned()
            }
        };
        let file = self.rows.file;
        for_each_row(self.source(), &sql, [], |row| {
            parse_entry_row(row, file)?.into_texts(file)?.into_iter().try_for_each(&mut *handler)
        })
    }

    fn load_notices(
        &self,
        after: NoticeNumber,
        limit: u32,
    ) -> Result<Vec<(NoticeNumber, Notice)>, JournalError> {
        let sql = format!("{SELECT_NOTICES} WHERE number > ?1 ORDER BY number LIMIT ?2");
        let mut notices = Vec::new();
        for_each_row(self.source(), &sql, params![after, limit], |row| {
            notices.push(parse_notice_row(row, self.rows.file)?);
            Ok(())
        })?;
        Ok(notices)
    }

    fn load_all_offsets(&self) -> Result<Vec<StoredOffset>, JournalError> {
        let sql = format!("{SELECT_OFFSETS} ORDER BY bus, topic, part");
        let mut offsets = Vec::new();
        for_each_row(self.source(), &sql, [], |row| {
            offsets.push(parse_offset_row(row, self.rows.file)?);
            Ok(())
        })?;
        Ok(offsets)
    }

    fn load_all_ledgers(&self) -> Result<Vec<StoredLedger>, JournalError> {
        let (connection, file) = self.source();
        read_ledgers(connection, file)
    }

    fn load_all_trends(&self) -> Result<Vec<StoredTrend>, JournalError> {
        trends::load(self.source(), trends::ALL, [])
    }

    fn load_gate_rows(&self) -> Result<GateRows, JournalError> {
        let (connection, file) = self.source();
        let marks = limit_rates::load(connection, file)?;
        Ok(GateRows { marks, controls: controls::load(connection, file)? })
    }
}

/// A journal in a file that is written as a copy.
struct FileCopyTarget {
    writer: JournalWriter,
}

impl FileCopyTarget {
    /// Opens the empty file.
    fn open(partial: &Path) -> Result<FileCopyTarget, JournalError> {
        Ok(FileCopyTarget { writer: JournalWriter::open(&options(partial))? })
    }

    /// Runs `write` in one transaction.
    fn transact<T>(
        &mut self,
        write: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, JournalError> {
        let JournalWriter { connection, file, .. } = &mut self.writer;
        let run = || {
            let transaction = connection.transaction()?;
            let value = write(&transaction)?;
            transaction.commit()?;
            Ok(value)
        };
        run().map_err(|error| sqlite_error(file, &error))
    }
}

impl CopyWriter for FileCopyTarget {
    fn read_back(
        &mut self,
        read: &mut dyn FnMut(&dyn CopyReader, &mut dyn StatusWriter) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let file = self.writer.file.clone();
        let connection =
            open_read_only(self.writer.path()).map_err(|error| sqlite_error(&file, &error))?;
        read(&FileCopyReader::new(&connection, &file), self)
    }

    fn insert_definition(
        &mut self,
        _definition: &Definition,
        body: &str,
    ) -> Result<i64, JournalError> {
        self.transact(|transaction| {
            let hash = DefinitionHash::from_json_text(body).0;
            let sql = "INSERT INTO definitions(hash, body) VALUES (?1, ?2)";
            transaction.execute(sql, params![hash, body])?;
            Ok(transaction.last_insert_rowid())
        })
    }

    /// Returns the number of the original: in a file, numbers only increase.
    fn number_job(&mut self, original: &JobRow) -> JobNumber {
        original.number
    }

    fn insert_jobs(&mut self, jobs: &[NewJobRow]) -> Result<(), JournalError> {
        self.transact(|transaction| {
            jobs.iter().try_for_each(|NewJobRow { job, workflow }| {
                let StoredJobRow { row, state, ended, is_open } = job;
                let status = JobStatus { state: *state, ended: *ended, is_open: *is_open };
                insert_job(transaction, row, workflow, &status)
            })
        })
    }

    fn insert_decisions(&mut self, decisions: &[DecisionText]) -> Result<(), JournalError> {
        let (file, mut seq) = (self.writer.file.clone(), self.writer.last_seq);
        let mut origins = Vec::with_capacity(decisions.len());
        for decision in decisions {
            let rows =
                FileRows { connection: &self.writer.connection, file: &file, is_projected: true };
            let origin = if decision.first == 0 { rows.find_job(decision.job)? } else { None };
            origins.push(origin);
        }
        self.writer.last_seq = self.transact(|transaction| {
            let mut insert = transaction.prepare_cached(INSERT_ENTRY)?;
            for (decision, origin) in decisions.iter().zip(&origins) {
                let DecisionText { job, first, at, body } = decision;
                seq += 1;
                let origin = origin.as_ref().map(format_origin).transpose()?;
                let texts = EntryTexts { body, confirms: None, origin: origin.as_deref() };
                insert_entry(&mut insert, seq, (*job, *first, *at), texts)?;
                insert_place(transaction, Place { job: *job, first: *first, seq })?;
            }
            set_watermark(transaction, seq)?;
            Ok(seq)
        })?;
        Ok(())
    }

    fn insert_notices(&mut self, notices: &[Notice], _before: u64) -> Result<(), JournalError> {
        self.transact(|transaction| {
            notices.iter().try_for_each(|notice| insert_notice(transaction, notice))
        })
    }

    fn insert_offsets(&mut self, offsets: &[StoredOffset]) -> Result<(), JournalError> {
        self.writer.store_offsets(offsets)
    }

    fn insert_ledgers(&mut self, ledgers: &[StoredLedger]) -> Result<(), JournalError> {
        self.writer.store_ledgers(ledgers)
    }

    fn insert_trends(&mut self, trends: &[StoredTrend]) -> Result<(), JournalError> {
        self.writer.store_trends(trends, &[])
    }

    fn insert_gate_rows(&mut self, rows: &GateRows) -> Result<(), JournalError> {
        self.transact(|transaction| {
            limit_rates::upsert(transaction, &rows.marks.iter().collect::<Vec<_>>())?;
            rows.controls.iter().try_for_each(|control| controls::upsert(transaction, control))
        })
    }

    /// Does nothing: the newest decision is the last row.
    fn set_newest(&mut self, _newest: Timestamp) -> Result<(), JournalError> {
        Ok(())
    }
}

impl StatusWriter for FileCopyTarget {
    fn insert_statuses(
        &mut self,
        statuses: &[DerivedStatuses],
        failures: &[(JobNumber, FailureChange)],
    ) -> Result<(), JournalError> {
        let mut changes = StatusChanges::default();
        for derived in statuses {
            let DerivedStatuses { job, id, created, definition, state, updated, words, cells } =
                derived;
            let (id, created, definition) = (*id, *created, *definition);
            let steps = (0..).map(StepIndex);
            changes.0.insert(
                *job,
                StatusChange {
                    job: *job,
                    new_row: Some(NewStatusRow { id, created, definition }),
                    state: Some(*state),
                    updated: *updated,
                    statuses: steps.zip(words.iter().cloned()).collect(),
                    cells: cells.clone(),
                },
            );
        }
        self.writer.write_with_repair(|writer| {
            let transaction = writer.connection.transaction()?;
            writer.status_tables.write(&transaction, &writer.file, &changes)?;
            for (job, failure) in failures {
                failures::write(&transaction, *job, *failure)?;
            }
            Ok(transaction.commit()?)
        })
    }
}
