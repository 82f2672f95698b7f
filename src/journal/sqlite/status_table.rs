//! The status table of one workflow: its columns, indexes and rows.

use super::file_rows::FileRows;
use super::unprojected::StatusChange;
use crate::error::JournalError;
use crate::record::JobNumber;
use crate::recover::{JobSnapshot, Rebuilder};
use base::times::format_rfc3339;
use engine::{Definition, JobState, StepIndex};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OptionalExtension, ffi};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};

/// How many step columns of a status table have an index. A filter on a later column reads every
/// row.
pub(super) const INDEXED_COLUMNS_MAX: usize = 64;

/// The most step columns of a status table, including those that only earlier definitions had.
/// SQLite allows no more than 2,000 columns in a table; further steps have none.
const STEP_COLUMNS_MAX: usize = 1_900;

/// The columns before those of the steps.
const JOB_COLUMNS: [&str; 4] = ["job", "state", "created", "updated"];

/// The prefix of the names of status tables, which no other table or index of the journal has.
const NAME_PREFIX: &str = "status_";

/// The error of a write transaction.
pub(super) enum WriteError {
    /// In the journal's own tables, or for want of room.
    Sqlite(rusqlite::Error),
    /// In a status table: it is damaged, or was altered.
    StatusTable(StatusTable, rusqlite::Error),
    /// A job from which a row is projected cannot be rebuilt.
    Journal(JournalError),
}

impl From<rusqlite::Error> for WriteError {
    fn from(error: rusqlite::Error) -> WriteError {
        WriteError::Sqlite(error)
    }
}

impl From<JournalError> for WriteError {
    fn from(error: JournalError) -> WriteError {
        WriteError::Journal(error)
    }
}

/// Returns whether an error that occurred in a status table concerns that table alone, and not the
/// disk or the whole file.
pub(super) fn is_table_error(error: &rusqlite::Error) -> bool {
    let own = [
        ErrorCode::Unknown,
        ErrorCode::DatabaseCorrupt,
        ErrorCode::ConstraintViolation,
        ErrorCode::SchemaChanged,
        ErrorCode::TypeMismatch,
    ];
    error.sqlite_error_code().is_none_or(|code| own.contains(&code))
}

/// Names of steps, each once, ignoring case.
#[derive(Default)]
pub(super) struct StepNames {
    names: Vec<String>,
    known: HashSet<String>,
}

impl StepNames {
    fn add_definition(&mut self, definition: &Definition) {
        definition.graph().steps.iter().for_each(|step| self.add(&step.name));
    }

    fn add(&mut self, name: &str) {
        if self.known.insert(name.to_ascii_lowercase()) {
            self.names.push(name.to_owned());
        }
    }
}

/// The status table of a definition and, for each step, its quoted column, if it has one.
pub(super) struct TableLayout {
    pub(super) table: StatusTable,
    columns: Vec<Option<String>>,
}

impl TableLayout {
    pub(super) fn write_row(
        &self,
        connection: &Connection,
        change: &StatusChange,
    ) -> rusqlite::Result<()> {
        let column = |step: StepIndex| self.columns.get(step.as_usize()).and_then(Option::as_deref);
        let columns =
            change.statuses.iter().filter_map(|(step, status)| Some((column(*step)?, &**status)));
        let (mut sql, mut values) =
            (String::with_capacity(256), Vec::with_capacity(4 + change.statuses.len()));
        let updated = format_rfc3339(change.updated);
        if let Some((id, created, _)) = change.created {
            sql.push_str(&format!(
                "INSERT OR REPLACE INTO {}(job, created, state, updated",
                self.table.quoted_name()
            ));
            values.extend([
                id.to_string(),
                format_rfc3339(created),
                change.state.unwrap_or(JobState::Running).as_str().to_owned(),
                updated,
            ]);
            for (column, status) in columns {
                sql.push_str(", ");
                sql.push_str(column);
                values.push(status.to_owned());
            }
            sql.push_str(", _rowid_) VALUES (?");
            sql.push_str(&", ?".repeat(values.len()));
            sql.push(')');
        } else {
            sql.push_str(&format!("UPDATE {} SET updated = ?", self.table.quoted_name()));
            values.push(updated);
            if let Some(state) = change.state {
                sql.push_str(", state = ?");
                values.push(state.as_str().to_owned());
            }
            for (column, status) in columns {
                sql.push_str(", ");
                sql.push_str(column);
                sql.push_str(" = ?");
                values.push(status.to_owned());
            }
            sql.push_str(" WHERE _rowid_ = ?");
        }
        let mut statement = connection.prepare_cached(&sql)?;
        for (at, value) in values.iter().enumerate() {
            statement.raw_bind_parameter(at + 1, value)?;
        }
        statement.raw_bind_parameter(values.len() + 1, change.job)?;
        statement.raw_execute().map(|_| ())
    }
}

/// The number of rows, and the lowest and highest job number. SQLite's VACUUM may renumber rows
/// from 1, which shows here too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RowCount {
    rows: i64,
    first: Option<JobNumber>,
    last: Option<JobNumber>,
}

/// Counts the root jobs of each workflow, by the key of its status table.
pub(super) fn count_root_jobs(
    connection: &Connection,
) -> rusqlite::Result<HashMap<String, RowCount>> {
    let sql = "SELECT workflow, count(*), min(number), max(number) FROM jobs WHERE parent IS NULL \
                 AND ended IS NULL GROUP BY workflow UNION ALL
               SELECT workflow, count(*), min(number), max(number) FROM jobs WHERE parent IS NULL \
                 AND ended IS NOT NULL GROUP BY workflow";
    let mut counts: HashMap<String, RowCount> = HashMap::new();
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let workflow: String = row.get(0)?;
        let found = RowCount { rows: row.get(1)?, first: row.get(2)?, last: row.get(3)? };
        let count = counts.entry(workflow.to_ascii_lowercase()).or_default();
        count.rows += found.rows;
        count.first = count.first.into_iter().chain(found.first).min();
        count.last = count.last.max(found.last);
    }
    Ok(counts)
}

#[derive(Clone)]
pub(super) struct StatusTable {
    pub(super) workflow: String,
}

impl StatusTable {
    pub(super) fn for_workflow(workflow: &str) -> StatusTable {
        StatusTable { workflow: workflow.to_owned() }
    }

    pub(super) fn for_definition(definition: &Definition) -> StatusTable {
        StatusTable { workflow: definition.full_name() }
    }

    /// Returns the name in lower case: SQLite ignores the case of ASCII letters.
    pub(super) fn key(&self) -> String {
        self.workflow.to_ascii_lowercase()
    }

    pub(super) fn name(&self) -> String {
        format!("{NAME_PREFIX}{}", self.workflow)
    }

    pub(super) fn quoted_name(&self) -> String {
        quote_identifier(&self.name())
    }

    pub(super) fn to_write_error(&self, error: rusqlite::Error) -> WriteError {
        if is_table_error(&error) {
            WriteError::StatusTable(self.clone(), error)
        } else {
            WriteError::Sqlite(error)
        }
    }

    /// Creates what is missing of the table for `definition`. Returns whether the table itself was
    /// missing.
    pub(super) fn ensure_exists(
        &self,
        connection: &Connection,
        file: &str,
        definition: &Definition,
    ) -> Result<bool, WriteError> {
        let failed = |error| self.to_write_error(error);
        let columns = self.columns(connection).map_err(failed)?;
        let exists = match &columns {
            Some(columns) => self.add_columns(connection, columns, definition).map_err(failed)?,
            None => false,
        };
        if !exists {
            self.drop_if_exists(connection, false).map_err(failed)?;
            let jobs = self.root_jobs(connection)?;
            let rows = FileRows { connection, file, is_projected: true };
            let mut rebuild = Rebuilder::new(&rows);
            let mut steps = StepNames::default();
            steps.add_definition(definition);
            // Then the steps that only earlier definitions have, those of the newest first.
            for earlier in jobs
                .iter()
                .map(|(_, definition)| *definition)
                .collect::<BTreeSet<i64>>()
                .into_iter()
                .rev()
            {
                steps.add_definition(&*rebuild.load_definition(earlier)?);
            }
            self.create(connection, &steps.names).map_err(failed)?;
            self.fill(connection, &mut rebuild, &jobs)?;
        }
        self.create_indexes(connection).map_err(failed)?;
        Ok(!exists)
    }

    fn create(&self, connection: &Connection, steps: &[String]) -> rusqlite::Result<()> {
        let own = JOB_COLUMNS.iter().map(|column| format!("{column} TEXT NOT NULL"));
        let steps = steps
            .iter()
            .take(STEP_COLUMNS_MAX)
            .map(|step| format!("{} TEXT NOT NULL DEFAULT ''", quote_identifier(step)));
        let columns: Vec<String> = own.chain(steps).collect();
        connection.execute_batch(&format!(
            "CREATE TABLE {}({}) STRICT",
            self.quoted_name(),
            columns.join(", ")
        ))
    }

    /// Adds the columns of new steps; returns false if the table must be created anew for them.
    fn add_columns(
        &self,
        connection: &Connection,
        columns: &[String],
        definition: &Definition,
    ) -> rusqlite::Result<bool> {
        let mut steps = StepNames::default();
        columns.iter().for_each(|column| steps.add(column));
        steps.add_definition(definition);
        for (at, step) in steps.names.iter().enumerate().skip(columns.len()) {
            if at >= STEP_COLUMNS_MAX {
                tracing::warn!(
                    workflow = self.workflow,
                    step,
                    "the table of statuses has {STEP_COLUMNS_MAX} steps: this one gets no column"
                );
                break;
            }
            if ["rowid", "oid"].iter().any(|alias| alias.eq_ignore_ascii_case(step)) {
                // SQLite has such a column from the beginning, or not at all.
                return Ok(false);
            }
            connection.execute_batch(&format!(
                "ALTER TABLE {} ADD COLUMN {} TEXT NOT NULL DEFAULT ''",
                self.quoted_name(),
                quote_identifier(step)
            ))?;
        }
        Ok(true)
    }

    /// Returns the step columns in their order; `None` if the table is missing or was altered.
    pub(super) fn columns(&self, connection: &Connection) -> rusqlite::Result<Option<Vec<String>>> {
        if self.object_kind(connection)?.as_deref() != Some("table") {
            return Ok(None);
        }
        let sql = "SELECT name, type = 'TEXT' AND \"notnull\" AND pk = 0 AND hidden = 0, \
                   dflt_value FROM pragma_table_xinfo(?1) ORDER BY cid";
        let mut statement = connection.prepare_cached(sql)?;
        let rows = statement
            .query_map([self.name()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let columns: Vec<(String, bool, Option<String>)> = rows.collect::<rusqlite::Result<_>>()?;
        let is_expected =
            |(at, (name, is_text, default)): (usize, &(String, bool, Option<String>))| {
                *is_text
                    && JOB_COLUMNS.get(at).map_or(default.as_deref() == Some("''"), |own| {
                        own == name && default.is_none()
                    })
            };
        if columns.len() < JOB_COLUMNS.len() || !columns.iter().enumerate().all(is_expected) {
            return Ok(None);
        }
        Ok(Some(columns.into_iter().skip(JOB_COLUMNS.len()).map(|(name, ..)| name).collect()))
    }

    /// Returns the step columns of a table that this transaction has created or found right.
    fn ensured_columns(&self, connection: &Connection) -> rusqlite::Result<Vec<String>> {
        let altered = || {
            let what = "its columns are not those that were made".to_owned();
            rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_SCHEMA), Some(what))
        };
        self.columns(connection)?.ok_or_else(altered)
    }

    /// Returns the kind of object with this name: `table`, or whatever somebody else has created.
    pub(super) fn object_kind(&self, connection: &Connection) -> rusqlite::Result<Option<String>> {
        let sql = "SELECT type FROM sqlite_schema WHERE name = ?1 COLLATE NOCASE \
                   AND type IN ('table', 'view', 'index')";
        connection.prepare_cached(sql)?.query_row([self.name()], |row| row.get(0)).optional()
    }

    fn create_indexes(&self, connection: &Connection) -> rusqlite::Result<()> {
        let steps = self.ensured_columns(connection)?;
        let columns = ["job", "state"]
            .into_iter()
            .chain(steps.iter().take(INDEXED_COLUMNS_MAX).map(String::as_str));
        for column in columns {
            let unique = if column == "job" { "UNIQUE " } else { "" };
            // No step name has a space, and no status table's name begins like this.
            let name = quote_identifier(&format!("index {column} of {}", self.workflow));
            connection.execute_batch(&format!(
                "CREATE {unique}INDEX IF NOT EXISTS {name} ON {}({})",
                self.quoted_name(),
                quote_identifier(column)
            ))?;
        }
        Ok(())
    }

    pub(super) fn layout(
        &self,
        connection: &Connection,
        definition: &Definition,
    ) -> Result<TableLayout, WriteError> {
        let known = self.ensured_columns(connection).map_err(|error| self.to_write_error(error))?;
        let known: HashMap<String, String> =
            known.iter().map(|name| (name.to_ascii_lowercase(), quote_identifier(name))).collect();
        let columns = definition
            .graph()
            .steps
            .iter()
            .map(|step| known.get(&step.name.to_ascii_lowercase()).cloned())
            .collect();
        Ok(TableLayout { table: self.clone(), columns })
    }

    /// Returns all root jobs in the order of creation, each with the number of its definition.
    fn root_jobs(&self, connection: &Connection) -> rusqlite::Result<Vec<(JobNumber, i64)>> {
        let sql = "SELECT number, definition FROM jobs WHERE parent IS NULL AND ended IS NULL \
                     AND workflow = ?1 COLLATE NOCASE UNION ALL
                   SELECT number, definition FROM jobs WHERE parent IS NULL AND ended IS NOT NULL \
                     AND workflow = ?1 COLLATE NOCASE ORDER BY 1";
        connection
            .prepare_cached(sql)?
            .query_map([&self.workflow], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect()
    }

    /// Writes the rows of jobs, each as it is after all its entries.
    fn fill(
        &self,
        connection: &Connection,
        rebuild: &mut Rebuilder<'_>,
        jobs: &[(JobNumber, i64)],
    ) -> Result<(), WriteError> {
        if !jobs.is_empty() {
            tracing::info!(
                workflow = self.workflow,
                jobs = jobs.len(),
                "the table of statuses is filled from the journal"
            );
        }
        let mut layouts: HashMap<i64, TableLayout> = HashMap::new();
        for (number, definition) in jobs.iter().copied() {
            let Some(JobSnapshot { job, changed_at, .. }) = rebuild.load_snapshot(number)? else {
                continue;
            };
            let layout = match layouts.entry(definition) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => place.insert(self.layout(connection, job.definition())?),
            };
            let change = StatusChange::full_row(number, &job, changed_at, definition);
            layout.write_row(connection, &change).map_err(|error| self.to_write_error(error))?;
        }
        Ok(())
    }

    pub(super) fn row_count(&self, connection: &Connection) -> Result<RowCount, WriteError> {
        let sql = format!(
            "SELECT (SELECT count(*) FROM {0}), (SELECT min(_rowid_) FROM {0}), \
             (SELECT max(_rowid_) FROM {0})",
            self.quoted_name()
        );
        let read = || {
            connection.query_row(&sql, [], |row| {
                Ok(RowCount { rows: row.get(0)?, first: row.get(1)?, last: row.get(2)? })
            })
        };
        read().map_err(|error| self.to_write_error(error))
    }

    /// Drops the object with this name. The pages of a damaged table may be in use elsewhere too,
    /// so none of them is freed.
    pub(super) fn drop_if_exists(
        &self,
        connection: &Connection,
        is_damaged: bool,
    ) -> rusqlite::Result<()> {
        match self.object_kind(connection)? {
            None => Ok(()),
            Some(_) if is_damaged => remove_from_schema(connection, &self.name()),
            Some(kind) => connection.execute_batch(&format!("DROP {kind} {}", self.quoted_name())),
        }
    }
}

/// Returns the names of the status tables that are damaged on their own.
pub(super) fn find_damaged(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' \
               AND substr(name, 1, length(?1)) = ?1 COLLATE NOCASE";
    let mut names: Vec<String> = connection
        .prepare(sql)?
        .query_map([NAME_PREFIX], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    names.retain(|name| {
        let check_result: rusqlite::Result<String> = connection.query_row(
            &format!("PRAGMA quick_check({})", quote_identifier(name)),
            [],
            |row| row.get(0),
        );
        !check_result.is_ok_and(|finding| finding == "ok")
    });
    Ok(names)
}

/// Removes a table and its indexes from the schema, without touching their pages.
pub(super) fn remove_from_schema(connection: &Connection, name: &str) -> rusqlite::Result<()> {
    let defend = |on| connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, on);
    defend(false)?;
    connection.execute_batch("PRAGMA writable_schema = ON")?;
    let deleted =
        connection.execute("DELETE FROM sqlite_schema WHERE tbl_name = ?1 COLLATE NOCASE", [name]);
    connection.execute_batch("PRAGMA writable_schema = RESET")?;
    defend(true)?;
    deleted.map(|_| ())
}

/// Returns whether a table has the name of a status table.
pub(super) fn is_status_table_name(table: &str) -> bool {
    table.get(..NAME_PREFIX.len()).is_some_and(|prefix| prefix.eq_ignore_ascii_case(NAME_PREFIX))
}

/// Quotes a name as an SQL identifier.
pub(super) fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
