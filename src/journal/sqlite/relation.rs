//! The status table of one workflow: its columns, indexes and rows.

use super::changes::StatusChange;
use super::rows::FileRows;
use crate::engine::{Definition, JobState, StepIndex};
use crate::journal::error::JournalError;
use crate::journal::record::JobNumber;
use crate::journal::recover::{Past, Rebuild};
use crate::times::rfc3339;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OptionalExtension};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};

/// How many step columns of a status table have an index. A filter on a later column reads every
/// row.
pub const INDEXED_COLUMNS_MAX: usize = 64;

/// The most step columns of a status table, including those that only earlier definitions had.
/// SQLite allows no more than 2,000 columns in a table; further steps have none.
const STEP_COLUMNS_MAX: usize = 1_900;

/// The columns before those of the steps.
const OWN_COLUMNS: [&str; 4] = ["job", "state", "created", "updated"];

/// The prefix of the names of status tables, which no other table or index of the journal has.
const PREFIX: &str = "status_";

/// The error of a write transaction.
pub(super) enum WriteFailed {
    /// In the journal's own tables, or for want of room.
    Sqlite(rusqlite::Error),
    /// In a status table: it is damaged, or was altered.
    Relation(Relation, rusqlite::Error),
    /// A job from which a row is projected cannot be rebuilt.
    Journal(JournalError),
}

impl From<rusqlite::Error> for WriteFailed {
    fn from(error: rusqlite::Error) -> WriteFailed {
        WriteFailed::Sqlite(error)
    }
}

impl From<JournalError> for WriteFailed {
    fn from(error: JournalError) -> WriteFailed {
        WriteFailed::Journal(error)
    }
}

/// Returns whether an error that occurred in a status table concerns that table alone, and not the
/// disk or the whole file.
pub(super) fn is_of_relation(error: &rusqlite::Error) -> bool {
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
pub(super) struct Steps {
    names: Vec<String>,
    known: HashSet<String>,
}

impl Steps {
    fn add(&mut self, definition: &Definition) {
        definition.graph().steps.iter().for_each(|step| self.add_one(&step.name));
    }

    fn add_one(&mut self, name: &str) {
        if self.known.insert(name.to_ascii_lowercase()) {
            self.names.push(name.to_owned());
        }
    }
}

/// The status table of a definition and, for each step, its quoted column, if it has one.
pub(super) struct Layout {
    pub(super) relation: Relation,
    columns: Vec<Option<String>>,
}

impl Layout {
    pub(super) fn write(
        &self,
        connection: &Connection,
        change: &StatusChange,
    ) -> rusqlite::Result<()> {
        let column = |step: StepIndex| self.columns.get(step.at()).and_then(Option::as_deref);
        let columns =
            change.statuses.iter().filter_map(|(step, status)| Some((column(*step)?, &**status)));
        let (mut sql, mut values) =
            (String::with_capacity(256), Vec::with_capacity(4 + change.statuses.len()));
        let updated = rfc3339(change.updated);
        if let Some((id, created, _)) = change.created {
            sql.push_str(&format!(
                "INSERT OR REPLACE INTO {}(job, created, state, updated",
                self.relation.quoted()
            ));
            values.extend([
                id.to_string(),
                rfc3339(created),
                change.state.unwrap_or(JobState::Running).word().to_owned(),
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
            sql.push_str(&format!("UPDATE {} SET updated = ?", self.relation.quoted()));
            values.push(updated);
            if let Some(state) = change.state {
                sql.push_str(", state = ?");
                values.push(state.word().to_owned());
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
pub(super) struct Tally {
    rows: i64,
    first: Option<JobNumber>,
    last: Option<JobNumber>,
}

/// Counts the root jobs of each workflow, by the key of its status table.
pub(super) fn tallies(connection: &Connection) -> rusqlite::Result<HashMap<String, Tally>> {
    let sql = "SELECT workflow, count(*), min(number), max(number) FROM jobs WHERE parent IS NULL \
                 AND ended IS NULL GROUP BY workflow UNION ALL
               SELECT workflow, count(*), min(number), max(number) FROM jobs WHERE parent IS NULL \
                 AND ended IS NOT NULL GROUP BY workflow";
    let mut tallies: HashMap<String, Tally> = HashMap::new();
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let workflow: String = row.get(0)?;
        let found = Tally { rows: row.get(1)?, first: row.get(2)?, last: row.get(3)? };
        let tally = tallies.entry(workflow.to_ascii_lowercase()).or_default();
        tally.rows += found.rows;
        tally.first = tally.first.into_iter().chain(found.first).min();
        tally.last = tally.last.max(found.last);
    }
    Ok(tallies)
}

#[derive(Clone)]
pub(super) struct Relation {
    pub(super) workflow: String,
}

impl Relation {
    pub(super) fn named(workflow: &str) -> Relation {
        Relation { workflow: workflow.to_owned() }
    }

    pub(super) fn of(definition: &Definition) -> Relation {
        Relation { workflow: definition.full_name() }
    }

    /// Returns the name in lower case: SQLite ignores the case of ASCII letters.
    pub(super) fn key(&self) -> String {
        self.workflow.to_ascii_lowercase()
    }

    pub(super) fn name(&self) -> String {
        format!("{PREFIX}{}", self.workflow)
    }

    pub(super) fn quoted(&self) -> String {
        quoted(&self.name())
    }

    pub(super) fn failed(&self, error: rusqlite::Error) -> WriteFailed {
        if is_of_relation(&error) {
            WriteFailed::Relation(self.clone(), error)
        } else {
            WriteFailed::Sqlite(error)
        }
    }

    /// Creates what is missing of the table for `definition`. Returns whether the table itself was
    /// missing.
    pub(super) fn make(
        &self,
        connection: &Connection,
        file: &str,
        definition: &Definition,
    ) -> Result<bool, WriteFailed> {
        let failed = |error| self.failed(error);
        let columns = self.columns(connection).map_err(failed)?;
        let is_there = match &columns {
            Some(columns) => self.add_columns(connection, columns, definition).map_err(failed)?,
            None => false,
        };
        if !is_there {
            self.discard(connection, false).map_err(failed)?;
            let jobs = self.jobs(connection)?;
            let rows = FileRows { connection, file, is_derived: true };
            let mut rebuild = Rebuild::new(&rows);
            let mut steps = Steps::default();
            steps.add(definition);
            // Then the steps that only earlier definitions have, those of the newest first.
            for earlier in jobs
                .iter()
                .map(|(_, definition)| *definition)
                .collect::<BTreeSet<i64>>()
                .into_iter()
                .rev()
            {
                steps.add(&*rebuild.definition(earlier)?);
            }
            self.create(connection, &steps.names).map_err(failed)?;
            self.fill(connection, &mut rebuild, &jobs)?;
        }
        self.index(connection).map_err(failed)?;
        Ok(!is_there)
    }

    fn create(&self, connection: &Connection, steps: &[String]) -> rusqlite::Result<()> {
        let own = OWN_COLUMNS.iter().map(|column| format!("{column} TEXT NOT NULL"));
        let steps = steps
            .iter()
            .take(STEP_COLUMNS_MAX)
            .map(|step| format!("{} TEXT NOT NULL DEFAULT ''", quoted(step)));
        let columns: Vec<String> = own.chain(steps).collect();
        connection.execute_batch(&format!(
            "CREATE TABLE {}({}) STRICT",
            self.quoted(),
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
        let mut steps = Steps::default();
        columns.iter().for_each(|column| steps.add_one(column));
        steps.add(definition);
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
                self.quoted(),
                quoted(step)
            ))?;
        }
        Ok(true)
    }

    /// Returns the step columns in their order; `None` if the table is missing or was altered.
    pub(super) fn columns(&self, connection: &Connection) -> rusqlite::Result<Option<Vec<String>>> {
        if self.kind(connection)?.as_deref() != Some("table") {
            return Ok(None);
        }
        let sql = "SELECT name, type = 'TEXT' AND \"notnull\" AND pk = 0 AND hidden = 0, \
                   dflt_value FROM pragma_table_xinfo(?1) ORDER BY cid";
        let mut statement = connection.prepare_cached(sql)?;
        let rows = statement
            .query_map([self.name()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let columns: Vec<(String, bool, Option<String>)> = rows.collect::<rusqlite::Result<_>>()?;
        let as_made = |(at, (name, is_text, default)): (usize, &(String, bool, Option<String>))| {
            *is_text
                && OWN_COLUMNS.get(at).map_or(default.as_deref() == Some("''"), |own| {
                    own == name && default.is_none()
                })
        };
        if columns.len() < OWN_COLUMNS.len() || !columns.iter().enumerate().all(as_made) {
            return Ok(None);
        }
        Ok(Some(columns.into_iter().skip(OWN_COLUMNS.len()).map(|(name, ..)| name).collect()))
    }

    /// Returns the kind of object with this name: `table`, or whatever somebody else has created.
    pub(super) fn kind(&self, connection: &Connection) -> rusqlite::Result<Option<String>> {
        let sql = "SELECT type FROM sqlite_schema WHERE name = ?1 COLLATE NOCASE \
                   AND type IN ('table', 'view', 'index')";
        connection.prepare_cached(sql)?.query_row([self.name()], |row| row.get(0)).optional()
    }

    fn index(&self, connection: &Connection) -> rusqlite::Result<()> {
        let steps = self.columns(connection)?.unwrap_or_default();
        let columns = ["job", "state"]
            .into_iter()
            .chain(steps.iter().take(INDEXED_COLUMNS_MAX).map(String::as_str));
        for column in columns {
            let unique = if column == "job" { "UNIQUE " } else { "" };
            // No step name has a space, and no status table's name begins like this.
            let name = quoted(&format!("index {column} of {}", self.workflow));
            connection.execute_batch(&format!(
                "CREATE {unique}INDEX IF NOT EXISTS {name} ON {}({})",
                self.quoted(),
                quoted(column)
            ))?;
        }
        Ok(())
    }

    pub(super) fn layout(
        &self,
        connection: &Connection,
        definition: &Definition,
    ) -> Result<Layout, WriteFailed> {
        let known =
            self.columns(connection).map_err(|error| self.failed(error))?.unwrap_or_default();
        let known: HashMap<String, String> =
            known.iter().map(|name| (name.to_ascii_lowercase(), quoted(name))).collect();
        let columns = definition
            .graph()
            .steps
            .iter()
            .map(|step| known.get(&step.name.to_ascii_lowercase()).cloned())
            .collect();
        Ok(Layout { relation: self.clone(), columns })
    }

    /// Returns all root jobs in the order of creation, each with the number of its definition.
    fn jobs(&self, connection: &Connection) -> rusqlite::Result<Vec<(JobNumber, i64)>> {
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
        rebuild: &mut Rebuild<'_>,
        jobs: &[(JobNumber, i64)],
    ) -> Result<(), WriteFailed> {
        if !jobs.is_empty() {
            tracing::info!(
                workflow = self.workflow,
                jobs = jobs.len(),
                "the table of statuses is filled from the journal"
            );
        }
        let mut layouts: HashMap<i64, Layout> = HashMap::new();
        for (number, definition) in jobs.iter().copied() {
            let Some(Past { job, changed, .. }) = rebuild.past(number)? else { continue };
            let layout = match layouts.entry(definition) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => place.insert(self.layout(connection, job.definition())?),
            };
            let change = StatusChange::whole(number, &job, changed, definition);
            layout.write(connection, &change).map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    pub(super) fn tally(&self, connection: &Connection) -> Result<Tally, WriteFailed> {
        let sql = format!(
            "SELECT (SELECT count(*) FROM {0}), (SELECT min(_rowid_) FROM {0}), \
             (SELECT max(_rowid_) FROM {0})",
            self.quoted()
        );
        let read = || {
            connection.query_row(&sql, [], |row| {
                Ok(Tally { rows: row.get(0)?, first: row.get(1)?, last: row.get(2)? })
            })
        };
        read().map_err(|error| self.failed(error))
    }

    /// Drops the object with this name. The pages of a damaged table may be in use elsewhere too,
    /// so none of them is freed.
    pub(super) fn discard(
        &self,
        connection: &Connection,
        is_damaged: bool,
    ) -> rusqlite::Result<()> {
        match self.kind(connection)? {
            None => Ok(()),
            Some(_) if is_damaged => forget(connection, &self.name()),
            Some(kind) => connection.execute_batch(&format!("DROP {kind} {}", self.quoted())),
        }
    }
}

/// Returns the names of the status tables that are damaged on their own.
pub(super) fn damaged(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' \
               AND substr(name, 1, length(?1)) = ?1 COLLATE NOCASE";
    let mut names: Vec<String> = connection
        .prepare(sql)?
        .query_map([PREFIX], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    names.retain(|name| {
        let finding: rusqlite::Result<String> =
            connection
                .query_row(&format!("PRAGMA quick_check({})", quoted(name)), [], |row| row.get(0));
        !finding.is_ok_and(|finding| finding == "ok")
    });
    Ok(names)
}

/// Removes a table and its indexes from the schema, without touching their pages.
pub(super) fn forget(connection: &Connection, name: &str) -> rusqlite::Result<()> {
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
pub(super) fn is_named_as_relation(table: &str) -> bool {
    table.get(..PREFIX.len()).is_some_and(|prefix| prefix.eq_ignore_ascii_case(PREFIX))
}

/// Quotes a name as an SQL identifier.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
