//! Opens the file: checks its schema version, verifies its content, sets pragmas, and migrates it.
//! Nothing is written to an existing journal before it is verified.

use super::row_format::{
    ENTRY_COLUMNS, SELECT_CONFIRMS, SELECT_JOBS, SELECT_NOTICES, SELECT_OFFSETS, for_each_row,
    parse_confirm_row, parse_definition_row, parse_entry_row, parse_job_row, parse_notice_row,
    parse_offset_row, read_ledgers, row_number, to_journal_error,
};
use super::{failures, files, schema_objects, status_table};
use crate::error::JournalError;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, MAIN_DB, OpenFlags, TransactionBehavior};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The options with which a journal is opened.
#[derive(Clone, Debug)]
pub struct JournalOptions {
    /// The journal's file.
    pub file: PathBuf,
    /// The size of SQLite's page cache, in bytes.
    pub cache_bytes: u64,
    /// The size of the largest file of which every row is verified when it is opened, in bytes.
    pub verify_bytes_max: u64,
    /// The most pages the file may have; 0: no limit.
    pub pages_max: u32,
}

/// The application id that marks a SQLite file as a journal of this program ("WfMg").
const APPLICATION_ID: i64 = 0x5766_4d67;

/// The first schema version that a released program wrote.
const OLDEST_VERSION: i64 = 9;

/// The schema version that has the table `failures`, which its migration fills.
const FAILURES_VERSION: i64 = 13;

/// The schema version that has the table `tolerated`, which its migration fills too.
const TOLERATED_VERSION: i64 = 14;

/// The migrations: one script for each schema version from [`OLDEST_VERSION`]. The first one starts
/// with an empty file. A released script is never changed.
const MIGRATIONS: &[&str] = &[
    "
CREATE TABLE definitions(
  number INTEGER PRIMARY KEY,
  hash BLOB NOT NULL UNIQUE,
  body TEXT NOT NULL
) STRICT;

CREATE TABLE jobs(
  number INTEGER PRIMARY KEY,
  id BLOB NOT NULL,
  workflow TEXT NOT NULL,
  definition INTEGER NOT NULL REFERENCES definitions(number),
  graph INTEGER NOT NULL,
  root INTEGER NOT NULL,
  parent INTEGER,
  step INTEGER,
  item INTEGER,
  depth INTEGER NOT NULL,
  created INTEGER NOT NULL,
  state TEXT NOT NULL,
  ended INTEGER,
  open INTEGER NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
CREATE INDEX jobs_by_id ON jobs(id);
CREATE INDEX jobs_by_place ON jobs(root, parent, step, item);
CREATE INDEX jobs_open ON jobs(number) WHERE open = 1;
CREATE INDEX jobs_running ON jobs(workflow, number) WHERE parent IS NULL AND ended IS NULL;
CREATE INDEX jobs_ended ON jobs(workflow, ended) WHERE parent IS NULL AND ended IS NOT NULL;
-- Retention is the definition's affair.
CREATE INDEX jobs_retained ON jobs(definition, ended) WHERE parent IS NULL AND ended IS NOT NULL;
CREATE INDEX jobs_top ON jobs(number) WHERE parent IS NULL;
CREATE INDEX jobs_by_state ON jobs(workflow, state, number) WHERE parent IS NULL;
-- Jobs of all workflows by state: what has failed is looked for most.
CREATE INDEX jobs_top_by_state ON jobs(state, number) WHERE parent IS NULL;
-- Child jobs that have no result are found by themselves, however many siblings have one. It costs
-- nothing where none fails.
CREATE INDEX jobs_children_failed ON jobs(parent, state, step, item) WHERE parent IS NOT NULL \
  AND state IN ('failed', 'cancelled');

-- Commits write at the end of entries alone. The index by job is derived behind them, like the rows
-- of jobs, which come from the origin in a job's first row: up to the row in derived.
CREATE TABLE entries(
  seq INTEGER PRIMARY KEY,
  job INTEGER NOT NULL,
  first INTEGER NOT NULL,
  at INTEGER NOT NULL,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL,
  confirms TEXT,
  origin TEXT
) STRICT;
CREATE TABLE places(
  job INTEGER NOT NULL,
  first INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY(job, first)
) WITHOUT ROWID, STRICT;
CREATE TABLE derived(upto INTEGER NOT NULL) STRICT;
INSERT INTO derived VALUES (0);

-- Confirms that no record of their jobs has yet, those of one commit together.
CREATE TABLE confirmed(
  seq INTEGER PRIMARY KEY,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;

CREATE TABLE notices(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  at INTEGER NOT NULL,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;

-- How far topics are read, and how far they were written: the next offset of each partition, for
-- buses whose brokers keep no record of what was taken.
CREATE TABLE bus_positions(
  bus TEXT NOT NULL,
  topic TEXT NOT NULL,
  part INTEGER NOT NULL,
  position INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  PRIMARY KEY(bus, topic, part)
) WITHOUT ROWID, STRICT;
",
    "
-- No table changes. A step's entries may say that its time has begun, which versions before cannot
-- read: they refuse the journal as a newer one.
",
    "
-- How far the rates of limits are used up: for each limit and key, the theoretical time of the next
-- message. A step's entries may say that it waits for limits.
CREATE TABLE limit_rates(
  name TEXT NOT NULL,
  key TEXT NOT NULL,
  time INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  PRIMARY KEY(name, key)
) WITHOUT ROWID, STRICT;
-- What operators have changed for a time: pauses, and other values of limits.
CREATE TABLE controls(
  kind TEXT NOT NULL,
  bus TEXT NOT NULL,
  vhost TEXT NOT NULL,
  name TEXT NOT NULL,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL,
  PRIMARY KEY(kind, bus, vhost, name)
) WITHOUT ROWID, STRICT;
-- Up to where the slots of schedules are judged, and how the last ones were. A job may begin later
-- than it was created.
CREATE TABLE schedules(
  name TEXT PRIMARY KEY,
  ledger TEXT NOT NULL,
  checksum INTEGER NOT NULL
) WITHOUT ROWID, STRICT;
",
    "
-- The labels and columns of root jobs, for lists and searches. They follow from the entries.
CREATE TABLE cells(
  job INTEGER NOT NULL,
  name TEXT NOT NULL,
  workflow TEXT NOT NULL,
  kind TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY(job, name)
) WITHOUT ROWID, STRICT;
CREATE INDEX cells_by_value ON cells(name, value, workflow, job);
",
    "
-- The failed jobs and child jobs, with the id of the pattern of their reason. They follow from the
-- entries.
CREATE TABLE failures(
  job INTEGER PRIMARY KEY,
  root INTEGER NOT NULL,
  reason INTEGER NOT NULL,
  workflow TEXT NOT NULL,
  ended INTEGER NOT NULL
) STRICT;
-- Those of one reason by their root jobs; all, and those of one workflow, by time.
CREATE INDEX failures_by_reason ON failures(reason, root);
CREATE INDEX failures_by_end ON failures(ended, reason, workflow, root);
CREATE INDEX failures_of_workflow ON failures(workflow, ended, reason, root);
-- What happened over time, in rings of buckets: a bucket replaces the one that had its position.
CREATE TABLE trends(
  ring INTEGER NOT NULL,
  position INTEGER NOT NULL,
  -- Empty: all workflows together.
  workflow TEXT NOT NULL,
  start INTEGER NOT NULL,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL,
  PRIMARY KEY(ring, position, workflow)
) WITHOUT ROWID, STRICT;
",
    "
-- The completed jobs and child jobs of which items have failed. They follow from the entries. A
-- rerun may say that it is about failed items alone, which versions before cannot do.
CREATE TABLE tolerated(
  job INTEGER PRIMARY KEY,
  workflow TEXT NOT NULL,
  is_root INTEGER NOT NULL
) STRICT;
CREATE INDEX tolerated_roots ON tolerated(job) WHERE is_root = 1;
CREATE INDEX tolerated_roots_of_workflow ON tolerated(workflow, job) WHERE is_root = 1;
",
];

/// The busy timeout of opening the file and of reads, in milliseconds: how long they wait while
/// another program keeps the file locked. In WAL mode the writer does not block readers.
const BUSY_TIMEOUT_MS: u64 = 5_000;

/// The busy timeout of writes, in milliseconds. After it, a write fails with
/// [`Remedy::WaitForLock`], and its caller retries.
///
/// [`Remedy::WaitForLock`]: crate::error::Remedy::WaitForLock
pub(super) const WRITE_BUSY_TIMEOUT_MS: u64 = 500;

/// The size to which SQLite truncates the `-wal` after a checkpoint, in bytes.
const WAL_SIZE_LIMIT: i64 = 16 << 20;

/// The number of cached prepared statements. Status tables need one for each set of columns that
/// change together.
const CACHED_STATEMENTS: usize = 256;

/// The most findings that SQLite returns. It reports each page of a removed status table as a
/// finding, and these must not hide others.
const FINDINGS_MAX: u32 = 1_000_000;

/// The journal's own tables that have indexes.
const INDEXED_TABLES: [&str; 3] = ["definitions", "jobs", "entries"];

/// The most findings in an error.
const FINDINGS_RENDERED_MAX: usize = 3;

/// The busy timeout of the checkpoint at closing, in milliseconds: how long it waits for readers of
/// other programs.
const CLOSE_BUSY_TIMEOUT_MS: u64 = 1_000;

/// Opens the file, verifies it and migrates it to the newest schema.
pub(super) fn open(
    path: &Path,
    options: &JournalOptions,
    file: &str,
) -> Result<Connection, JournalError> {
    let to_error = |error: rusqlite::Error| to_journal_error(file, error);
    let bytes = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    files::create_if_missing(path)
        .map_err(|error| JournalError::Unreachable { file: file.to_owned(), error })?;
    let mut connection = Connection::open(path).map_err(to_error)?;
    schema_objects::restrict(&connection).map_err(to_error)?;
    // A deferred transaction that begins with a read fails if another program writes before the
    // transaction's own first write. An immediate one waits for that program instead.
    connection.set_transaction_behavior(TransactionBehavior::Immediate);
    // SQLite would report a read-only file only at the first commit.
    if connection.is_readonly(MAIN_DB).map_err(to_error)? {
        return Err(JournalError::ReadOnly { file: file.to_owned() });
    }
    // A rejected journal must keep its bytes: closing must not run a checkpoint.
    set_keep_wal(&connection, true).map_err(to_error)?;
    connection.busy_timeout(Duration::from_millis(BUSY_TIMEOUT_MS)).map_err(to_error)?;
    let version = read_version(&connection, file)?;
    check_objects(&connection, version, file)?;
    if version > 0 {
        verify(&connection, options, bytes, (path, file))?;
    } else {
        if bytes > 0 {
            tracing::warn!(
                file,
                bytes,
                "the journal has no tables: the manager starts without any job. If the file is a \
                 copy, what it held was in the file -wal beside the original: stop, and copy all \
                 files of the journal, or use workflow-manager backup"
            );
        }
        // Before WAL mode is set, so that the id is in the main file even if the -wal is lost.
        connection.pragma_update(None, "application_id", APPLICATION_ID).map_err(to_error)?;
    }
    configure(&connection, options).map_err(to_error)?;
    migrate(&connection, version, file)?;
    set_keep_wal(&connection, false).map_err(to_error)?;
    // After a crash the -wal may be large. A new journal keeps everything in its -wal, so that a
    // copy without the -wal has no tables, and its start reports that.
    if version > 0
        && let Err(error) = checkpoint(&connection, Checkpoint::Passive)
    {
        tracing::debug!(%error, "the -wal stays as it is for now");
    }
    connection.busy_timeout(Duration::from_millis(WRITE_BUSY_TIMEOUT_MS)).map_err(to_error)?;
    Ok(connection)
}

/// Sets whether the `-wal` is kept when the last connection is closed. Otherwise SQLite runs a
/// checkpoint and removes it.
pub(super) fn set_keep_wal(connection: &Connection, is_kept: bool) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, is_kept).map(|_| ())
}

/// The mode of a checkpoint.
pub(super) enum Checkpoint {
    /// Writes the frames that no reader prevents, without waiting.
    Passive,
    /// Writes all frames and truncates the `-wal`. It waits for readers up to the busy timeout.
    Truncate,
    /// Like `Truncate`, with a busy timeout of its own, for a journal that is being closed.
    TruncateOnClose,
}

/// Runs a checkpoint: writes the frames of the `-wal` to the main file. Returns false if a lock of
/// another connection prevented its completion.
pub(super) fn checkpoint(connection: &Connection, mode: Checkpoint) -> rusqlite::Result<bool> {
    let mode = match mode {
        Checkpoint::Passive => "PASSIVE",
        Checkpoint::Truncate => "TRUNCATE",
        Checkpoint::TruncateOnClose => {
            connection.busy_timeout(Duration::from_millis(CLOSE_BUSY_TIMEOUT_MS))?;
            "TRUNCATE"
        }
    };
    connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| {
        Ok(row.get::<_, i64>(0)? == 0)
    })
}

/// Sets the pragmas of the writing connection.
fn configure(connection: &Connection, options: &JournalOptions) -> rusqlite::Result<()> {
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "journal_size_limit", WAL_SIZE_LIMIT)?;
    // SQLite's temporary files would need disk space, which a full disk does not have.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    let kibibytes = i64::try_from(options.cache_bytes / 1024).unwrap_or(i64::MAX);
    connection.pragma_update(None, "cache_size", -kibibytes)?;
    if options.pages_max > 0 {
        connection.pragma_update(None, "max_page_count", options.pages_max)?;
    }
    connection.set_prepared_statement_cache_capacity(CACHED_STATEMENTS);
    keep_query_plans(connection)?;
    Ok(())
}

/// Returns the schema version of the file; 0 if it has no tables.
///
/// # Errors
///
/// Returns an error if the file belongs to another program, or if this program cannot read its
/// version.
pub(super) fn read_version(connection: &Connection, file: &str) -> Result<i64, JournalError> {
    let read_pragma = |name: &str| {
        connection
            .query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0))
            .map_err(|error| to_journal_error(file, error))
    };
    let (file_version, application_id) =
        (read_pragma("user_version")?, read_pragma("application_id")?);
    let newest_version = newest_version();
    // A file without tables is accepted: it is new, or its process ended between the first page and
    // the first migration.
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(|error| to_journal_error(file, error))?;
    if application_id != APPLICATION_ID && (application_id != 0 || tables > 0) {
        return Err(JournalError::Foreign { file: file.to_owned(), application_id });
    }
    if file_version > newest_version {
        return Err(JournalError::Newer { file: file.to_owned(), file_version, newest_version });
    }
    if (1..OLDEST_VERSION).contains(&file_version) {
        let oldest_version = OLDEST_VERSION;
        return Err(JournalError::Unreleased {
            file: file.to_owned(),
            file_version,
            oldest_version,
        });
    }
    Ok(file_version)
}

/// Checks that the file has the newest schema version, so that it can be read without a migration.
pub(super) fn check_version(connection: &Connection, file: &str) -> Result<(), JournalError> {
    let (file_version, newest_version) = (read_version(connection, file)?, newest_version());
    if file_version < newest_version {
        return Err(JournalError::Older { file: file.to_owned(), file_version, newest_version });
    }
    Ok(())
}

/// Checks that the tables and indexes of the file are those of its schema version.
pub(super) fn check_objects(
    connection: &Connection,
    version: i64,
    file: &str,
) -> Result<(), JournalError> {
    let model = reference_schema(version).map_err(|error| to_journal_error(file, error))?;
    schema_objects::check_schema(connection, &model, file)
}

/// Creates an empty journal of this schema version, in memory.
fn reference_schema(version: i64) -> rusqlite::Result<Connection> {
    let model = Connection::open_in_memory()?;
    for (_, script) in (OLDEST_VERSION..=version).zip(MIGRATIONS) {
        model.execute_batch(script)?;
    }
    Ok(model)
}

/// Returns the schema version that the last migration creates.
fn newest_version() -> i64 {
    OLDEST_VERSION - 1 + MIGRATIONS.len() as i64
}

/// Migrates the file from schema version `file_version` to the newest, with one transaction for
/// each version. A transaction that fails is rolled back when the connection is closed.
fn migrate(connection: &Connection, file_version: i64, file: &str) -> Result<(), JournalError> {
    let to_error = |error: rusqlite::Error| to_journal_error(file, error);
    let scripts = (OLDEST_VERSION..).zip(MIGRATIONS);
    for (version, script) in scripts.filter(|(version, _)| *version > file_version) {
        connection.execute_batch(&format!("BEGIN IMMEDIATE; {script}")).map_err(to_error)?;
        if version == FAILURES_VERSION {
            failures::fill(connection, file).map_err(to_error)?;
        }
        if version == TOLERATED_VERSION {
            failures::fill_tolerated(connection, file).map_err(to_error)?;
        }
        connection
            .execute_batch(&format!(
                "PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version}; COMMIT;"
            ))
            .map_err(to_error)?;
    }
    Ok(())
}

/// Checks the structure of the file and the checksum of every row, if the file has at most the
/// configured size. The rows of a larger file are checked when they are read.
fn verify(
    connection: &Connection,
    options: &JournalOptions,
    bytes: u64,
    (path, file): (&Path, &str),
) -> Result<(), JournalError> {
    if bytes > options.verify_bytes_max {
        return Ok(());
    }
    // The structure is checked in parallel with the rows, over a connection of its own. The error
    // of a row takes precedence, because it names the row.
    let damage = std::thread::scope(|scope| {
        let inspect = || open_read_only(path).and_then(|connection| find_damage(&connection));
        let thread = scope.spawn(inspect);
        verify_rows(connection, file)?;
        Ok(thread.join().ok())
    })?;
    if let Some(Ok(None)) = damage {
        return Ok(());
    }
    // Check again over the writing connection, which can repair the schema.
    check_structure(connection)
        .map_err(|error| to_journal_error(file, error))?
        .map_or(Ok(()), |problem| Err(JournalError::Malformed { file: file.to_owned(), problem }))
}

/// Checks the checksum of every row, and that rows of different tables agree.
fn verify_rows(connection: &Connection, file: &str) -> Result<(), JournalError> {
    for_each_row((connection, file), "SELECT number, hash, body FROM definitions", [], |row| {
        parse_definition_row(row, file).map(|_| ())
    })?;
    for_each_row((connection, file), SELECT_JOBS, [], |row| parse_job_row(row, file).map(|_| ()))?;
    let entries = format!("SELECT {ENTRY_COLUMNS} FROM entries");
    for_each_row((connection, file), &entries, [], |row| parse_entry_row(row, file).map(|_| ()))?;
    for_each_row((connection, file), SELECT_CONFIRMS, [], |row| {
        parse_confirm_row(row, file).map(|_| ())
    })?;
    for_each_row((connection, file), SELECT_MISPLACED, [], |row| {
        let problem = "it does not agree with the table entries".to_owned();
        Err(JournalError::damaged_row(file, "places", row_number(row, 0), problem))
    })?;
    for_each_row((connection, file), SELECT_NOTICES, [], |row| {
        parse_notice_row(row, file).map(|_| ())
    })?;
    for_each_row((connection, file), SELECT_OFFSETS, [], |row| {
        parse_offset_row(row, file).map(|_| ())
    })?;
    read_ledgers(connection, file)?;
    for_each_row((connection, file), SELECT_CONTRADICTIONS, [], |row| {
        let problem = "its columns state, ended and open contradict each other".to_owned();
        Err(JournalError::damaged_row(file, "jobs", row_number(row, 0), problem))
    })
}

/// Returns what is wrong with the structure of the file, if anything. If only status tables are
/// damaged, removes them from the schema; their pages remain in the file, unused.
fn check_structure(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let Some(findings) = find_damage(connection)? else { return Ok(None) };
    let damaged_tables = status_table::find_damaged(connection)?;
    if damaged_tables.is_empty() {
        return Ok(Some(findings));
    }
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let is_repaired = damaged_tables
        .iter()
        .try_for_each(|table| status_table::remove_from_schema(connection, table))
        .and_then(|()| Ok(find_damage(connection)?.is_none()));
    connection.execute_batch(if matches!(is_repaired, Ok(true)) {
        "COMMIT"
    } else {
        "ROLLBACK"
    })?;
    if is_repaired? {
        tracing::warn!(
            tables = damaged_tables.join(", "),
            %findings,
            "tables of statuses are damaged: they are recreated"
        );
        return Ok(None);
    }
    Ok(Some(findings))
}

/// Returns SQLite's first findings, without those about unused pages; `None` if there are no other
/// findings. The quick check does not compare indexes with their tables. A damaged index could hide
/// an entry, so the indexes of the journal's own tables are checked too.
fn find_damage(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let run_pragma = |pragma: &str| -> rusqlite::Result<Vec<String>> {
        connection.prepare(&format!("PRAGMA {pragma}"))?.query_map([], |row| row.get(0))?.collect()
    };
    let check = || -> rusqlite::Result<Vec<String>> {
        let mut findings = run_pragma(&format!("quick_check({FINDINGS_MAX})"))?;
        for table in INDEXED_TABLES {
            findings.extend(run_pragma(&format!("integrity_check({table})"))?);
        }
        Ok(findings)
    };
    let findings = match check() {
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseCorrupt) => {
            return Ok(Some(error.to_string()));
        }
        result => result?,
    };
    let is_harmless = |line: &&str| {
        *line == "ok" || line.ends_with("never used") || line.starts_with("*** in database")
    };
    let lines: Vec<&str> = findings
        .iter()
        .flat_map(|finding| finding.lines())
        .filter(|line| !is_harmless(line))
        .take(FINDINGS_RENDERED_MAX)
        .collect();
    Ok((!lines.is_empty()).then(|| lines.join("; ")))
}

/// Selects rows of `places` without their row of `entries`, and projected rows of `entries` without
/// their row of `places`.
const SELECT_MISPLACED: &str = "SELECT seq FROM places p
  WHERE NOT EXISTS (SELECT 1 FROM entries e WHERE e.seq = p.seq AND e.job = p.job \
    AND e.first = p.first)
  UNION ALL SELECT seq FROM entries e WHERE seq <= (SELECT upto FROM derived)
  AND NOT EXISTS (SELECT 1 FROM places p WHERE p.job = e.job AND p.first = e.first \
    AND p.seq = e.seq)";

/// Selects rows of `jobs` with impossible values in the columns that change, which the checksum
/// does not cover. Those of open jobs are compared with the entries when the jobs are rebuilt.
const SELECT_CONTRADICTIONS: &str = "SELECT number FROM jobs
  WHERE open NOT IN (0, 1) OR state NOT IN ('running', 'paused', 'completed', 'failed', 'cancelled')
     OR (state IN ('running', 'paused')) <> (ended IS NULL) OR (ended IS NULL AND open = 0)";

/// Opens a read-only connection.
pub(super) fn open_read_only(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    schema_objects::restrict(&connection)?;
    connection.busy_timeout(Duration::from_millis(BUSY_TIMEOUT_MS))?;
    keep_query_plans(&connection)?;
    Ok(connection)
}

/// Makes statements keep the query plan that they were prepared with (SQLite's query planner
/// stability guarantee). Otherwise SQLite prepares a statement again at each use if its plan might
/// depend on the values of parameters. That is the case for a `LIMIT ?`, and for a statement that
/// could use a partial index, as most statements on `jobs` could.
pub(super) fn keep_query_plans(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(|_| ())
}
