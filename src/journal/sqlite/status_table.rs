//! The status table of one workflow: creates it, adds columns and indexes, and writes its rows.

use super::file_rows::FileRows;
use super::unprojected::StatusChange;
use crate::error::JournalError;
use crate::record::JobNumber;
use crate::recover::{JobSnapshot, Rebuilder};
use crate::sql::quote_identifier;
use base::times::format_rfc3339;
use engine::{Definition, JobState, SLOT_COLUMNS, StepIndex};
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

/// The columns of a status table after those of the job, in order.
#[derive(Default)]
struct TableColumns {
    columns: Vec<(ColumnKind, String)>,
    /// The names in lower case.
    keys: HashSet<String>,
}

impl TableColumns {
    /// Adds the steps of a definition, its label and its columns. A name that is there already is
    /// not added again, even if it differs in case or is of the other kind.
    fn add_definition(&mut self, definition: &Definition) {
        definition.graph().steps.iter().for_each(|step| self.add(ColumnKind::Step, &step.name));
        definition.columns.names().for_each(|name| self.add(ColumnKind::Cell, name));
    }

    /// Adds the columns of the schedule and the slot. A step of one of these names, of whichever
    /// definition, must be there before: its column stays.
    fn add_slot_columns(&mut self) {
        SLOT_COLUMNS.into_iter().for_each(|name| self.add(ColumnKind::Cell, name));
    }

    /// Returns whether a step of the definition has the name of a column of the schedule or slot.
    fn hides_step(&self, definition: &Definition) -> bool {
        let names =
            self.names(ColumnKind::Cell).filter(|name| SLOT_COLUMNS.contains(&name.as_str()));
        let steps = &definition.graph().steps;
        names.into_iter().any(|name| steps.iter().any(|step| step.name.eq_ignore_ascii_case(name)))
    }

    fn add(&mut self, kind: ColumnKind, name: &str) {
        if self.keys.insert(name.to_ascii_lowercase()) {
            self.columns.push((kind, name.to_owned()));
        }
    }

    /// Returns the names of the columns of this kind.
    fn names(&self, kind: ColumnKind) -> impl Iterator<Item = &String> {
        self.columns.iter().filter(move |(other, _)| *other == kind).map(|(_, name)| name)
    }
}

/// What a column of a status table is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ColumnKind {
    /// The status of a step.
    Step,
    /// The label, or a column of the workflow.
    Cell,
}

impl ColumnKind {
    /// Returns the SQL of the column's type. It tells the kinds apart when the table is read again.
    fn type_sql(self) -> &'static str {
        match self {
            ColumnKind::Step => "TEXT NOT NULL DEFAULT ''",
            ColumnKind::Cell => "TEXT",
        }
    }
}

/// The columns of a status table for the steps of one definition.
pub(super) struct TableLayout {
    pub(super) table: StatusTable,
    /// The quoted column of each step, by the step's index; `None` if the step has no column.
    columns: Vec<Option<String>>,
    /// The quoted columns of cells of all definitions, by their names in lower case.
    cells: HashMap<String, String>,
}

impl TableLayout {
    /// Returns the quoted column of a cell; `None` if it has none.
    pub(super) fn cell_column(&self, name: &str) -> Option<&str> {
        self.cells.get(&name.to_ascii_lowercase()).map(String::as_str)
    }

    /// Inserts or updates the row of a job.
    pub(super) fn write_row(
        &self,
        connection: &Connection,
        change: &StatusChange,
    ) -> rusqlite::Result<()> {
        let column = |step: StepIndex| self.columns.get(step.as_usize()).and_then(Option::as_deref);
        let statuses = change.statuses.iter();
        let statuses =
            statuses.filter_map(|(step, status)| Some((column(*step)?, Some(&**status))));
        let cells = change.cells.iter().filter_map(|(name, cell)| {
            let text = cell.as_ref().map(|cell| &*cell.text);
            Some((self.cell_column(name)?, text))
        });
        let columns = statuses.chain(cells);
        let (mut sql, mut values) = (
            String::with_capacity(256),
            Vec::with_capacity(JOB_COLUMNS.len() + change.statuses.len() + change.cells.len()),
        );
        let updated = format_rfc3339(change.updated);
        if let Some(new_row) = &change.new_row {
            sql.push_str(&format!(
                "INSERT OR REPLACE INTO {}(job, created, state, updated",
                self.table.quoted_name()
            ));
            values.extend([
                Some(new_row.id.to_string()),
                Some(format_rfc3339(new_row.created)),
                Some(change.state.unwrap_or(JobState::Running).as_str().to_owned()),
                Some(updated),
            ]);
            for (column, value) in columns {
                sql.push_str(", ");
                sql.push_str(column);
                values.push(value.map(str::to_owned));
            }
            sql.push_str(", _rowid_) VALUES (?");
            sql.push_str(&", ?".repeat(values.len()));
            sql.push(')');
        } else {
            sql.push_str(&format!("UPDATE {} SET updated = ?", self.table.quoted_name()));
            values.push(Some(updated));
            if let Some(state) = change.state {
                sql.push_str(", state = ?");
                values.push(Some(state.as_str().to_owned()));
            }
            for (column, value) in columns {
                sql.push_str(", ");
                sql.push_str(column);
                sql.push_str(" = ?");
                values.push(value.map(str::to_owned));
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
    /// Whether it is a `TEXT` column that is neither a key nor generated.
    is_plain_text: bool,
    /// Whether it is `NOT NULL`.
    is_not_null: bool,
    /// The SQL expression of the default value; `None` if there is none.
    default: Option<String>,
}

impl Column {
    /// Returns what the column is for, if it is one that is created after those of the job.
    fn kind(&self) -> Option<ColumnKind> {
        match (self.is_plain_text, self.is_not_null, self.default.as_deref()) {
            (true, true, Some("''")) => Some(ColumnKind::Step),
            (true, false, None) => Some(ColumnKind::Cell),
            _ => None,
        }
    }

    /// Returns whether it is this column of the job.
    fn is_of_job(&self, name: &str) -> bool {
        self.is_plain_text && self.is_not_null && self.default.is_none() && self.name == name
    }
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
        let columns = self.all_columns(connection).map_err(to_error)?;
        let exists = match columns {
            Some(columns) => self.add_columns(connection, columns, definition).map_err(to_error)?,
            None => false,
        };
        if !exists {
            self.drop_if_exists(connection, false).map_err(to_error)?;
            let jobs = self.root_jobs(connection)?;
            let rows = FileRows { connection, file, is_projected: true };
            let mut rebuilder = Rebuilder::new(&rows);
            let mut columns = TableColumns::default();
            columns.add_definition(definition);
            // Then the steps of earlier definitions, the newest definition first.
            let earlier_definitions: BTreeSet<i64> =
                jobs.iter().map(|(_, definition_number)| *definition_number).collect();
            for definition_number in earlier_definitions.into_iter().rev() {
                columns.add_definition(&*rebuilder.load_definition(definition_number)?);
            }
            columns.add_slot_columns();
            self.create(connection, &columns).map_err(to_error)?;
            self.fill(connection, &mut rebuilder, &jobs)?;
        }
        self.create_indexes(connection).map_err(to_error)?;
        Ok(!exists)
    }

    /// Creates the table with these columns.
    fn create(&self, connection: &Connection, columns: &TableColumns) -> rusqlite::Result<()> {
        let job_columns = JOB_COLUMNS.iter().map(|column| format!("{column} TEXT NOT NULL"));
        let further_columns = columns
            .columns
            .iter()
            .take(STEP_COLUMNS_MAX)
            .map(|(kind, name)| format!("{} {}", quote_identifier(name), kind.type_sql()));
        let columns: Vec<String> = job_columns.chain(further_columns).collect();
        connection.execute_batch(&format!(
            "CREATE TABLE {}({}) STRICT",
            self.quoted_name(),
            columns.join(", ")
        ))
    }

    /// Adds the columns of new steps and cells; `columns` are those that the table has. Returns
    /// false if the table must be recreated for them.
    fn add_columns(
        &self,
        connection: &Connection,
        mut columns: TableColumns,
        definition: &Definition,
    ) -> rusqlite::Result<bool> {
        if columns.hides_step(definition) {
            return Ok(false);
        }
        let count = columns.columns.len();
        columns.add_definition(definition);
        columns.add_slot_columns();
        for (index, (kind, name)) in columns.columns.iter().enumerate().skip(count) {
            if index >= STEP_COLUMNS_MAX {
                tracing::warn!(
                    workflow = self.workflow,
                    step = name,
                    "the table of statuses has {STEP_COLUMNS_MAX} steps: this one gets no column"
                );
                break;
            }
            if ["rowid", "oid"].iter().any(|alias| alias.eq_ignore_ascii_case(name)) {
                // A column whose name is an alias of the rowid is created only with the table.
                return Ok(false);
            }
            connection.execute_batch(&format!(
                "ALTER TABLE {} ADD COLUMN {} {}",
                self.quoted_name(),
                quote_identifier(name),
                kind.type_sql()
            ))?;
        }
        Ok(true)
    }

    /// Returns the step columns in their order; `None` if the table is missing or was altered.
    pub(super) fn columns(&self, connection: &Connection) -> rusqlite::Result<Option<Vec<String>>> {
        let columns = self.all_columns(connection)?;
        Ok(columns.map(|columns| columns.names(ColumnKind::Step).cloned().collect()))
    }

    /// Returns the columns of steps and cells in their order; `None` if the table is missing or was
    /// altered.
    fn all_columns(&self, connection: &Connection) -> rusqlite::Result<Option<TableColumns>> {
        if self.object_kind(connection)?.as_deref() != Some("table") {
            return Ok(None);
        }
        let sql = "SELECT name, type = 'TEXT' AND pk = 0 AND hidden = 0, \"notnull\", \
                   dflt_value FROM pragma_table_xinfo(?1) ORDER BY cid";
        let mut statement = connection.prepare_cached(sql)?;
        let rows = statement.query_map([self.name()], |row| {
            Ok(Column {
                name: row.get(0)?,
                is_plain_text: row.get(1)?,
                is_not_null: row.get(2)?,
                default: row.get(3)?,
            })
        })?;
        let columns: Vec<Column> = rows.collect::<rusqlite::Result<_>>()?;
        let Some((job_columns, further)) = columns.split_at_checked(JOB_COLUMNS.len()) else {
            return Ok(None);
        };
        if !job_columns.iter().zip(JOB_COLUMNS).all(|(column, name)| column.is_of_job(name)) {
            return Ok(None);
        }
        let mut table_columns = TableColumns::default();
        for column in further {
            let Some(kind) = column.kind() else { return Ok(None) };
            table_columns.add(kind, &column.name);
        }
        Ok(Some(table_columns))
    }

    /// Returns the columns of a table that has been created or checked before. Returns an error if
    /// it is missing or was altered.
    fn ensured_columns(&self, connection: &Connection) -> rusqlite::Result<TableColumns> {
        let altered_error = || {
            let problem = "its columns are not those that were created".to_owned();
            rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_SCHEMA), Some(problem))
        };
        self.all_columns(connection)?.ok_or_else(altered_error)
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
        let columns = self.ensured_columns(connection)?;
        let steps = columns.names(ColumnKind::Step).take(INDEXED_COLUMNS_MAX).map(String::as_str);
        let columns = ["job", "state"].into_iter().chain(steps);
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
        let columns =
            self.ensured_columns(connection).map_err(|error| self.to_write_error(error))?;
        let quoted_by_key = |kind: ColumnKind| -> HashMap<String, String> {
            let names = columns.names(kind);
            names.map(|name| (name.to_ascii_lowercase(), quote_identifier(name))).collect()
        };
        let (steps, cells) = (quoted_by_key(ColumnKind::Step), quoted_by_key(ColumnKind::Cell));
        let columns = definition
            .graph()
            .steps
            .iter()
            .map(|step| steps.get(&step.name.to_ascii_lowercase()).cloned())
            .collect();
        Ok(TableLayout { table: self.clone(), columns, cells })
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
            let write = || {
                layout.write_row(connection, &change)?;
                layout.restore_cells(connection, &job, number)
            };
            write().map_err(|error| self.to_write_error(error))?;
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
