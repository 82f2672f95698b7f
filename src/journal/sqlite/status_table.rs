//! The status table of one workflow: creates it, adds columns and indexes, and writes its rows.

use super::file_rows::FileRows;
use super::unprojected::StatusChange;
use crate::error::JournalError;
use crate::record::JobNumber;
use crate::recover::{JobSnapshot, Rebuilder};
use crate::sql::quote_identifier;
use base::times::format_rfc3339;
use engine::{Definition, JobState, StepIndex};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OptionalExtension, ffi};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};

/// The most step columns of a status table that have an index. A filter on a later column scans the
/// table.
pub(super) const INDEXED_COLUMNS_MAX: usize = 64;

/// The most step columns of a status table, including those of steps that only earlier definitions
/// had. Further steps have no column: SQLite allows at most 2,000 columns in a table.
const STEP_COLUMNS_MAX: usize = 1_900;

/// The columns before those of the steps.
const JOB_COLUMNS: [&str; 4] = ["job", "state", "created", "updated"];

/// The prefix of the names of status tables. No other table or index of the journal has it.
const NAME_PREFIX: &str = "status_";

/// The error of a write transaction.
pub(super) enum WriteError {
    /// An error of the journal's own tables, of the disk, or of the whole file.
    Sqlite(rusqlite::Error),
    /// An error of a status table, which is damaged or was altered.
    StatusTable(StatusTable, rusqlite::Error),
    /// An error of the journal's content: a damaged row, or a job that cannot be rebuilt.
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
    let table_errors = [
        ErrorCode::Unknown,
        ErrorCode::DatabaseCorrupt,
        ErrorCode::ConstraintViolation,
        ErrorCode::SchemaChanged,
        ErrorCode::TypeMismatch,
    ];
    error.sqlite_error_code().is_none_or(|code| table_errors.contains(&code))
}

/// The names of steps in order, without duplicates. Names that differ only in case are duplicates.
#[derive(Default)]
pub(super) struct StepNames {
    names: Vec<String>,
    /// The names in lower case.
    keys: HashSet<String>,
}

impl StepNames {
    fn add_definition(&mut self, definition: &Definition) {
        definition.graph().steps.iter().for_each(|step| self.add(&step.name));
    }

    fn add(&mut self, name: &str) {
        if self.keys.insert(name.to_ascii_lowercase()) {
            self.names.push(name.to_owned());
        }
    }
}

/// The columns of a status table for the steps of one definition.
pub(super) struct TableLayout {
    pub(super) table: StatusTable,
    /// The quoted column of each step, by the step's index; `None` if the step has no column.
    columns: Vec<Option<String>>,
}

impl TableLayout {
    /// Inserts or updates the row of a job.
    pub(super) fn write_row(
        &self,
        connection: &Connection,
        change: &StatusChange,
    ) -> rusqlite::Result<()> {
        let column = |step: StepIndex| self.columns.get(step.as_usize()).and_then(Option::as_deref);
        let columns =
            change.statuses.iter().filter_map(|(step, status)| Some((column(*step)?, &**status)));
        let (mut sql, mut values) = (
            String::with_capacity(256),
            Vec::with_capacity(JOB_COLUMNS.len() + change.statuses.len()),
        );
        let updated = format_rfc3339(change.updated);
        if let Some(new_row) = &change.new_row {
            sql.push_str(&format!(
                "INSERT OR REPLACE INTO {}(job, created, state, updated",
                self.table.quoted_name()
            ));
            values.extend([
                new_row.id.to_string(),
                format_rfc3339(new_row.created),
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
        for (index, value) in values.iter().enumerate() {
            statement.raw_bind_parameter(index + 1, value)?;
        }
        statement.raw_bind_parameter(values.len() + 1, change.job)?;
        statement.raw_execute().map(|_| ())
    }
}

/// The number of rows of a status table, and the lowest and highest job number. It is compared with
/// the root jobs to find out whether rows were added, deleted, or renumbered by SQLite's VACUUM.
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
    // Two selects, because each uses a partial index.
    let sql = "SELECT workflow, count(*), min(number), max(number) FROM jobs WHERE parent IS NULL \
                 AND ended IS NULL GROUP BY workflow UNION ALL
               SELECT workflow, count(*), min(number), max(number) FROM jobs WHERE parent IS NULL \
                 AND ended IS NOT NULL GROUP BY workflow";
    let mut counts: HashMap<String, RowCount> = HashMap::new();
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let workflow: String = row.get(0)?;
        let (job_count, first, last): (i64, Option<JobNumber>, Option<JobNumber>) =
            (row.get(1)?, row.get(2)?, row.get(3)?);
        let total = counts.entry(workflow.to_ascii_lowercase()).or_default();
        total.rows += job_count;
        total.first = total.first.into_iter().chain(first).min();
        total.last = total.last.max(last);
    }
    Ok(counts)
}

/// A column of a table, as SQLite describes it.
struct Column {
    name: String,
    /// Whether it is a `TEXT NOT NULL` column that is neither a key nor generated.
    is_plain_text: bool,
    /// The SQL expression of the default value; `None` if there is none.
    default: Option<String>,
}

/// The status table of a workflow. The table need not exist.
#[derive(Clone)]
pub(super) struct StatusTable {
    /// The full name of the workflow.
    pub(super) workflow: String,
}

impl StatusTable {
    pub(super) fn for_workflow(workflow: &str) -> StatusTable {
        StatusTable { workflow: workflow.to_owned() }
    }

    pub(super) fn for_definition(definition: &Definition) -> StatusTable {
        StatusTable { workflow: definition.full_name() }
    }

    /// Returns a key that is the same for all names of the table: SQLite ignores the case of ASCII
    /// letters.
    pub(super) fn key(&self) -> String {
        self.workflow.to_ascii_lowercase()
    }

    pub(super) fn name(&self) -> String {
        format!("{NAME_PREFIX}{}", self.workflow)
    }

    pub(super) fn quoted_name(&self) -> String {
        quote_identifier(&self.name())
    }

    /// Converts an error that occurred in this table.
    pub(super) fn to_write_error(&self, error: rusqlite::Error) -> WriteError {
        if is_table_error(&error) {
            WriteError::StatusTable(self.clone(), error)
        } else {
            WriteError::Sqlite(error)
        }
    }

    /// Creates whatever `definition` needs and the table lacks: the table itself with its rows,
    /// columns, or indexes. Returns whether the table itself was created.
    pub(super) fn ensure_exists(
        &self,
        connection: &Connection,
        file: &str,
        definition: &Definition,
    ) -> Result<bool, WriteError> {
        let to_error = |error| self.to_write_error(error);
        let columns = self.columns(connection).map_err(to_error)?;
        let exists = match &columns {
            Some(columns) => self.add_columns(connection, columns, definition).map_err(to_error)?,
            None => false,
        };
        if !exists {
            self.drop_if_exists(connection, false).map_err(to_error)?;
            let jobs = self.root_jobs(connection)?;
            let rows = FileRows { connection, file, is_projected: true };
            let mut rebuilder = Rebuilder::new(&rows);
            let mut steps = StepNames::default();
            steps.add_definition(definition);
            // Then the steps of earlier definitions, the newest definition first.
            let earlier_definitions: BTreeSet<i64> =
                jobs.iter().map(|(_, definition_number)| *definition_number).collect();
            for definition_number in earlier_definitions.into_iter().rev() {
                steps.add_definition(&*rebuilder.load_definition(definition_number)?);
            }
            self.create(connection, &steps.names).map_err(to_error)?;
            self.fill(connection, &mut rebuilder, &jobs)?;
        }
        self.create_indexes(connection).map_err(to_error)?;
        Ok(!exists)
    }

    /// Creates the table with columns for these steps.
    fn create(&self, connection: &Connection, steps: &[String]) -> rusqlite::Result<()> {
        let job_columns = JOB_COLUMNS.iter().map(|column| format!("{column} TEXT NOT NULL"));
        let step_columns = steps
            .iter()
            .take(STEP_COLUMNS_MAX)
            .map(|step| format!("{} TEXT NOT NULL DEFAULT ''", quote_identifier(step)));
        let columns: Vec<String> = job_columns.chain(step_columns).collect();
        connection.execute_batch(&format!(
            "CREATE TABLE {}({}) STRICT",
            self.quoted_name(),
            columns.join(", ")
        ))
    }

    /// Adds the columns of new steps; `columns` are the step columns that the table has. Returns
    /// false if the table must be recreated for them.
    fn add_columns(
        &self,
        connection: &Connection,
        columns: &[String],
        definition: &Definition,
    ) -> rusqlite::Result<bool> {
        let mut steps = StepNames::default();
        columns.iter().for_each(|column| steps.add(column));
        steps.add_definition(definition);
        for (index, step) in steps.names.iter().enumerate().skip(columns.len()) {
            if index >= STEP_COLUMNS_MAX {
                tracing::warn!(
                    workflow = self.workflow,
                    step,
                    "the table of statuses has {STEP_COLUMNS_MAX} steps: this one gets no column"
                );
                break;
            }
            if ["rowid", "oid"].iter().any(|alias| alias.eq_ignore_ascii_case(step)) {
                // A column whose name is an alias of the rowid is created only with the table.
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
        let rows = statement.query_map([self.name()], |row| {
            Ok(Column { name: row.get(0)?, is_plain_text: row.get(1)?, default: row.get(2)? })
        })?;
        let columns: Vec<Column> = rows.collect::<rusqlite::Result<_>>()?;
        let is_expected = |(index, column): (usize, &Column)| {
            column.is_plain_text
                && match JOB_COLUMNS.get(index) {
                    Some(job_column) => column.name == *job_column && column.default.is_none(),
                    None => column.default.as_deref() == Some("''"),
                }
        };
        if columns.len() < JOB_COLUMNS.len() || !columns.iter().enumerate().all(is_expected) {
            return Ok(None);
        }
        let step_columns = columns.into_iter().skip(JOB_COLUMNS.len());
        Ok(Some(step_columns.map(|column| column.name).collect()))
    }

    /// Returns the step columns of a table that has been created or checked before. Returns an
    /// error if it is missing or was altered.
    fn ensured_columns(&self, connection: &Connection) -> rusqlite::Result<Vec<String>> {
        let altered_error = || {
            let problem = "its columns are not those that were created".to_owned();
            rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_SCHEMA), Some(problem))
        };
        self.columns(connection)?.ok_or_else(altered_error)
    }

    /// Returns SQLite's type of the object with the table's name: `table`, or `view` or `index` if
    /// another program has created one; `None` if there is no such object.
    pub(super) fn object_kind(&self, connection: &Connection) -> rusqlite::Result<Option<String>> {
        let sql = "SELECT type FROM sqlite_schema WHERE name = ?1 COLLATE NOCASE \
                   AND type IN ('table', 'view', 'index')";
        connection.prepare_cached(sql)?.query_row([self.name()], |row| row.get(0)).optional()
    }

    /// Creates the missing indexes.
    fn create_indexes(&self, connection: &Connection) -> rusqlite::Result<()> {
        let steps = self.ensured_columns(connection)?;
        let columns = ["job", "state"]
            .into_iter()
            .chain(steps.iter().take(INDEXED_COLUMNS_MAX).map(String::as_str));
        for column in columns {
            let unique = if column == "job" { "UNIQUE " } else { "" };
            // This cannot be the name of a status table: it has another prefix.
            let name = quote_identifier(&format!("index {column} of {}", self.workflow));
            connection.execute_batch(&format!(
                "CREATE {unique}INDEX IF NOT EXISTS {name} ON {}({})",
                self.quoted_name(),
                quote_identifier(column)
            ))?;
        }
        Ok(())
    }

    /// Returns the layout of the table for a definition.
    pub(super) fn layout(
        &self,
        connection: &Connection,
        definition: &Definition,
    ) -> Result<TableLayout, WriteError> {
        let names = self.ensured_columns(connection).map_err(|error| self.to_write_error(error))?;
        let columns_by_key: HashMap<String, String> =
            names.iter().map(|name| (name.to_ascii_lowercase(), quote_identifier(name))).collect();
        let columns = definition
            .graph()
            .steps
            .iter()
            .map(|step| columns_by_key.get(&step.name.to_ascii_lowercase()).cloned())
            .collect();
        Ok(TableLayout { table: self.clone(), columns })
    }

    /// Returns the root jobs of the workflow in the order of creation, each with the number of its
    /// definition. Two selects, because each uses a partial index.
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

    /// Rebuilds jobs from the journal, and writes their rows. `jobs` has the number of each job and
    /// of its definition.
    fn fill(
        &self,
        connection: &Connection,
        rebuilder: &mut Rebuilder<'_>,
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
            let Some(JobSnapshot { job, changed_at, .. }) = rebuilder.load_snapshot(number)? else {
                continue;
            };
            let layout = match layouts.entry(definition) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(self.layout(connection, job.definition())?),
            };
            let change = StatusChange::full_row(number, &job, changed_at, definition);
            layout.write_row(connection, &change).map_err(|error| self.to_write_error(error))?;
        }
        Ok(())
    }

    /// Counts the rows of the table.
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

    /// Drops the object with the table's name. The pages of a damaged table are not freed, because
    /// another table may use them too.
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

/// Returns the names of the status tables in which SQLite's quick check finds damage.
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

/// Removes a table and its indexes from the schema, without freeing their pages. Unlike `DROP
/// TABLE`, this works even if the table's pages are damaged.
pub(super) fn remove_from_schema(connection: &Connection, name: &str) -> rusqlite::Result<()> {
    let set_defensive =
        |is_on| connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, is_on);
    set_defensive(false)?;
    connection.execute_batch("PRAGMA writable_schema = ON")?;
    let result =
        connection.execute("DELETE FROM sqlite_schema WHERE tbl_name = ?1 COLLATE NOCASE", [name]);
    connection.execute_batch("PRAGMA writable_schema = RESET")?;
    set_defensive(true)?;
    result.map(|_| ())
}

/// Returns whether a table has the name of a status table.
pub(super) fn is_status_table_name(table: &str) -> bool {
    table.get(..NAME_PREFIX.len()).is_some_and(|prefix| prefix.eq_ignore_ascii_case(NAME_PREFIX))
}
