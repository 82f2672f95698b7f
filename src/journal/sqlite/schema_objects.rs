//! The schema of the file: its tables and indexes must be those that this program creates. A
//! trigger could change what is written, and a redefined table what is read, in spite of valid
//! checksums.

use super::row_format::to_journal_error;
use super::status_table::is_status_table_name;
use crate::error::JournalError;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OptionalExtension};
use std::collections::BTreeMap;

/// How many differences are reported.
const SCHEMA_DIFFERENCES_MAX: usize = 5;

/// The order in which the kinds of objects are reported.
const KIND_ORDER: [&str; 4] = ["trigger", "view", "table", "index"];

/// The tables that SQLite creates for itself.
const SQLITE_TABLES: [&str; 4] =
    ["sqlite_sequence", "sqlite_stat1", "sqlite_stat3", "sqlite_stat4"];

/// A table, an index, a view or a trigger.
struct SchemaObject {
    kind: String,
    name: String,
    table: String,
    /// The definition without white space; `None` if SQLite created it for a constraint.
    sql: Option<String>,
}

/// Keeps a connection from running code that others have put into the file.
pub(super) fn restrict(connection: &Connection) -> rusqlite::Result<()> {
    for (config, on) in [
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
    ] {
        connection.set_db_config(config, on)?;
    }
    Ok(())
}

/// Refuses a journal whose tables differ from those of `model`, an empty journal of the same schema
/// version, or that has objects which may change what is read and written.
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
    let more = differences.len().saturating_sub(SCHEMA_DIFFERENCES_MAX);
    let mut what =
        differences.into_iter().take(SCHEMA_DIFFERENCES_MAX).collect::<Vec<_>>().join(", ");
    if more > 0 {
        what.push_str(&format!(", and {more} more"));
    }
    Err(JournalError::UnexpectedSchema { file: file.to_owned(), what })
}

fn find_differences(connection: &Connection, model: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut missing: BTreeMap<(String, String), SchemaObject> = load_objects(model)?
        .into_iter()
        .map(|object| ((object.kind.clone(), object.name.clone()), object))
        .collect();
    let mut found: Vec<(String, String)> = Vec::new();
    for object in load_objects(connection)? {
        match missing.remove(&(object.kind.clone(), object.name.clone())) {
            Some(made) if made.table == object.table && made.sql == object.sql => {}
            Some(_) => {
                let what = format!("{} defined otherwise", object.describe());
                found.push((object.kind, what));
            }
            None if object.is_harmless(connection)? => {}
            None => {
                let what = object.describe();
                found.push((object.kind, what));
            }
        }
    }
    for object in missing.into_values().filter(|object| object.sql.is_some()) {
        let what = format!("no {}", object.describe());
        found.push((object.kind, what));
    }
    // The indexes of a table differ with it, so the cause is reported first.
    found.sort_by_key(|(kind, _)| KIND_ORDER.iter().position(|known| known == kind));
    Ok(found.into_iter().map(|(_, what)| what).collect())
}

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
    fn describe(&self) -> String {
        let SchemaObject { kind, name, table, .. } = self;
        if name == table {
            format!("{kind} {name:?}")
        } else {
            format!("{kind} {name:?} on {table:?}")
        }
    }

    /// Returns whether the object is not the journal's own and can change nothing: a status table,
    /// which is a projection; SQLite's own table; an index that finds rows and refuses none.
    fn is_harmless(&self, connection: &Connection) -> rusqlite::Result<bool> {
        let is_of_statuses = is_status_table_name(&self.table);
        match (&*self.kind, &self.sql) {
            ("index", None) => Ok(true),
            ("index", Some(_)) if is_of_statuses => Ok(true),
            ("index", Some(_)) => self.is_plain_index(connection),
            // It is dropped, and the table created.
            ("view", _) => Ok(is_of_statuses),
            ("table", _) if SQLITE_TABLES.contains(&&*self.name) => Ok(true),
            ("table", Some(sql)) if is_of_statuses => {
                let is_virtual = sql.to_ascii_lowercase().starts_with("createvirtual");
                // A row that refers to one of the journal's rows would keep that from being
                // deleted.
                let refers = "SELECT 1 FROM pragma_foreign_key_list(?1)";
                let refers = connection.query_row(refers, [&self.name], |_| Ok(())).optional()?;
                Ok(!is_virtual && refers.is_none())
            }
            _ => Ok(false),
        }
    }

    /// Returns whether the index is over plain columns of all rows, in SQLite's own order, and not
    /// unique.
    fn is_plain_index(&self, connection: &Connection) -> rusqlite::Result<bool> {
        let whole = "SELECT 1 FROM pragma_index_list(?1) WHERE name = ?2 AND \"unique\" = 0 \
                     AND partial = 0";
        let whole =
            connection.query_row(whole, [&self.table, &self.name], |_| Ok(())).optional()?;
        let odd = "SELECT 1 FROM pragma_index_xinfo(?1) WHERE cid = -2 OR coll <> 'BINARY'";
        let odd = connection.query_row(odd, [&self.name], |_| Ok(())).optional()?;
        Ok(whole.is_some() && odd.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::empty_journal;

    /// Returns the error for a journal to which this was done.
    fn refusal(sql: &str) -> Option<String> {
        let (_folder, connection) = empty_journal();
        connection.execute_batch(sql).expect(sql);
        restrict(&connection).expect("restricted");
        let (_other_folder, model) = empty_journal();
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
            let refusal = refusal(sql).unwrap_or_else(|| panic!("{sql}: is not refused"));
            assert!(refusal.contains(name), "{sql}: {refusal}");
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
            assert_eq!(refusal(sql), None, "{sql}");
        }
    }
}
