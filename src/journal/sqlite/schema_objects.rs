//! Checks the schema of the file: its tables and indexes must be those that this program creates.
//! Checksums do not protect against a trigger that changes what is written, or a redefined table
//! that changes what is read.

use super::row_format::to_journal_error;
use super::status_table::is_status_table_name;
use crate::error::JournalError;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OptionalExtension};
use std::collections::BTreeMap;

/// The most differences that are reported.
const SCHEMA_DIFFERENCES_MAX: usize = 5;

/// The order in which the kinds of objects are reported: possible causes before consequences.
const KIND_ORDER: [&str; 4] = ["trigger", "view", "table", "index"];

/// The tables that SQLite creates for itself.
const SQLITE_TABLES: [&str; 4] =
    ["sqlite_sequence", "sqlite_stat1", "sqlite_stat3", "sqlite_stat4"];

/// A table, an index, a view or a trigger.
struct SchemaObject {
    /// SQLite's type of the object, such as `table`.
    kind: String,
    name: String,
    /// The table that the object belongs to; of a table or a view, its own name.
    table: String,
    /// The SQL that defines it, without white space; `None` if SQLite created it for a constraint.
    sql: Option<String>,
}

/// Prevents a connection from running code in the file, such as triggers and views.
pub(super) fn restrict(connection: &Connection) -> rusqlite::Result<()> {
    for (config, is_enabled) in [
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
    ] {
        connection.set_db_config(config, is_enabled)?;
    }
    Ok(())
}

/// Checks that the tables of a journal are the same as those of `model`, an empty journal of the
/// same schema version, and that no other objects can change what is read and written.
pub(super) fn check_schema(
    connection: &Connection,
    model: &Connection,
    file: &str,
) -> Result<(), JournalError> {
    let differences =
        find_differences(connection, model).map_err(|error| to_journal_error(file, error))?;
    if differences.is_empty() {
        return Ok(());
    }
    let unreported = differences.len().saturating_sub(SCHEMA_DIFFERENCES_MAX);
    let mut description =
        differences.into_iter().take(SCHEMA_DIFFERENCES_MAX).collect::<Vec<_>>().join(", ");
    if unreported > 0 {
        description.push_str(&format!(", and {unreported} more"));
    }
    Err(JournalError::UnexpectedSchema { file: file.to_owned(), differences: description })
}

/// Returns descriptions of the differences, in [`KIND_ORDER`].
fn find_differences(connection: &Connection, model: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut expected_objects: BTreeMap<(String, String), SchemaObject> = load_objects(model)?
        .into_iter()
        .map(|object| ((object.kind.clone(), object.name.clone()), object))
        .collect();
    // The kind of each object, and the description of its difference.
    let mut differences: Vec<(String, String)> = Vec::new();
    for object in load_objects(connection)? {
        match expected_objects.remove(&(object.kind.clone(), object.name.clone())) {
            Some(model_object)
                if model_object.table == object.table && model_object.sql == object.sql => {}
            Some(_) => {
                let description = format!("{} defined otherwise", object.describe());
                differences.push((object.kind, description));
            }
            None if object.is_harmless(connection)? => {}
            None => {
                let description = object.describe();
                differences.push((object.kind, description));
            }
        }
    }
    for object in expected_objects.into_values().filter(|object| object.sql.is_some()) {
        let description = format!("no {}", object.describe());
        differences.push((object.kind, description));
    }
    // If a table is redefined, its indexes are missing too, so the table is reported before them.
    differences
        .sort_by_key(|(kind, _)| KIND_ORDER.iter().position(|ordered_kind| ordered_kind == kind));
    Ok(differences.into_iter().map(|(_, description)| description).collect())
}

/// Returns the objects of a schema in the order of their creation.
fn load_objects(connection: &Connection) -> rusqlite::Result<Vec<SchemaObject>> {
    let mut statement =
        connection.prepare("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY rowid")?;
    let objects = statement.query_map([], |row| {
        let sql: Option<String> = row.get(3)?;
        Ok(SchemaObject {
            kind: row.get(0)?,
            name: row.get(1)?,
            table: row.get(2)?,
            sql: sql.map(|sql| sql.split_whitespace().collect()),
        })
    })?;
    objects.collect()
}

impl SchemaObject {
    /// Returns the kind and name of the object, and the table that it belongs to.
    fn describe(&self) -> String {
        let SchemaObject { kind, name, table, .. } = self;
        if name == table {
            format!("{kind} {name:?}")
        } else {
            format!("{kind} {name:?} on {table:?}")
        }
    }

    /// Returns whether an additional object cannot change what is read or written in the journal's
    /// own tables. This holds for a status table, which is a projection, for SQLite's own tables,
    /// and for an index that rejects no row.
    fn is_harmless(&self, connection: &Connection) -> rusqlite::Result<bool> {
        let is_on_status_table = is_status_table_name(&self.table);
        match (&*self.kind, &self.sql) {
            ("index", None) => Ok(true),
            ("index", Some(_)) if is_on_status_table => Ok(true),
            ("index", Some(_)) => self.is_plain_index(connection),
            // The view is dropped when the status table with its name is created.
            ("view", _) => Ok(is_on_status_table),
            ("table", _) if SQLITE_TABLES.contains(&&*self.name) => Ok(true),
            ("table", Some(sql)) if is_on_status_table => {
                let is_virtual = sql.to_ascii_lowercase().starts_with("createvirtual");
                // A foreign key to a row of the journal would prevent its deletion.
                let sql = "SELECT 1 FROM pragma_foreign_key_list(?1)";
                let foreign_key = connection.query_row(sql, [&self.name], |_| Ok(())).optional()?;
                Ok(!is_virtual && foreign_key.is_none())
            }
            _ => Ok(false),
        }
    }

    /// Returns whether the index rejects no row: it is not unique, not partial, has no expressions,
    /// and uses only the default collation.
    fn is_plain_index(&self, connection: &Connection) -> rusqlite::Result<bool> {
        let sql = "SELECT 1 FROM pragma_index_list(?1) WHERE name = ?2 AND \"unique\" = 0 \
                   AND partial = 0";
        let full_index =
            connection.query_row(sql, [&self.table, &self.name], |_| Ok(())).optional()?;
        // The column id -2 stands for an expression.
        let sql = "SELECT 1 FROM pragma_index_xinfo(?1) WHERE cid = -2 OR coll <> 'BINARY'";
        let unusual_column = connection.query_row(sql, [&self.name], |_| Ok(())).optional()?;
        Ok(full_index.is_some() && unusual_column.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::empty_journal;

    /// Runs SQL on an empty journal, and returns the error of the check after it.
    fn check_after(sql: &str) -> Option<String> {
        let (_directory, connection) = empty_journal();
        connection.execute_batch(sql).expect(sql);
        restrict(&connection).expect("the connection is restricted");
        let (_model_directory, model) = empty_journal();
        check_schema(&connection, &model, "j.db").err().map(|error| error.to_string())
    }

    #[test]
    fn objects_that_can_change_or_hide_data_are_rejected_by_name() {
        for (sql, name) in [
            (
                "CREATE TRIGGER evil AFTER INSERT ON entries BEGIN DELETE FROM entries; END",
                "trigger \"evil\" on \"entries\"",
            ),
            (
                "CREATE TABLE status_w(a); CREATE TRIGGER t AFTER INSERT ON status_w BEGIN \
              DELETE FROM jobs; END",
                "trigger \"t\" on \"status_w\"",
            ),
            ("CREATE VIEW report AS SELECT * FROM jobs", "view \"report\""),
            ("CREATE TABLE notes(a)", "table \"notes\""),
            ("CREATE TABLE status_w(job REFERENCES jobs(number))", "table \"status_w\""),
            ("CREATE UNIQUE INDEX one ON jobs(workflow)", "index \"one\" on \"jobs\""),
            ("CREATE INDEX half ON jobs(state) WHERE abs(number) > 1", "index \"half\""),
            ("CREATE INDEX made ON jobs(abs(number))", "index \"made\""),
            ("DROP INDEX jobs_open", "no index \"jobs_open\" on \"jobs\""),
            (
                "DROP INDEX jobs_open; CREATE INDEX jobs_open ON jobs(number)",
                "index \"jobs_open\" on \"jobs\" defined otherwise",
            ),
            ("ALTER TABLE entries ADD COLUMN more TEXT", "table \"entries\" defined otherwise"),
            (
                "ALTER TABLE jobs RENAME TO theirs; CREATE VIEW jobs AS SELECT * FROM theirs",
                "no table \"jobs\"",
            ),
            ("CREATE TABLE \"jobs \"(a)", "table \"jobs \""),
        ] {
            let error = check_after(sql).unwrap_or_else(|| panic!("{sql}: is accepted"));
            assert!(error.contains(name), "{sql}: {error}");
        }
    }

    #[test]
    fn harmless_objects_are_accepted() {
        for sql in [
            "",
            "ANALYZE",
            "VACUUM",
            "CREATE INDEX mine ON jobs(workflow, created)",
            "CREATE TABLE status_w(job TEXT NOT NULL) STRICT; CREATE INDEX i ON status_w(job)",
            "CREATE VIEW status_w AS SELECT 1 AS job",
        ] {
            assert_eq!(check_after(sql), None, "{sql}");
        }
    }
}
