//! Writes the status tables (docs/how-to/read-statuses-by-sql.md). Each workflow has a table
//! `status_<full name>`, with a row for each root job and a column for each step of the workflow's
//! main graph. Any SQLite client can read it.
//!
//! The tables are projections: a row is derived from the entries of its job, and is written later,
//! together with the rows of other jobs. Nothing is ever rebuilt from these tables. A table that is
//! missing, altered or damaged is recreated. A table that cannot be created is not written until
//! the next start.

use super::cells;
use super::file_rows::FileRows;
use super::status_table::{StatusTable, TableLayout, WriteError};
use super::unprojected::StatusChanges;
use crate::record::JobNumber;
use crate::recover::Rebuilder;
use rusqlite::{Connection, OptionalExtension};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The writer's cache of status tables.
#[derive(Default)]
pub(super) struct StatusTables {
    /// The layout of each definition's status table, by the definition's number; `None` if the
    /// table is unusable.
    pub(super) layouts: HashMap<i64, Option<Arc<TableLayout>>>,
    /// The keys of the tables that cannot be created: they are not written until the next start.
    pub(super) unusable: HashSet<String>,
}

impl StatusTables {
    /// Writes changes to the status tables, creating the tables that are missing.
    pub(super) fn write(
        &mut self,
        connection: &Connection,
        file: &str,
        changes: &StatusChanges,
    ) -> Result<(), WriteError> {
        for change in changes.0.values() {
            let definition = match change.new_row {
                Some(new_row) => Some(new_row.definition),
                // A child job or a deleted job has no such row.
                None => connection
                    .prepare_cached(
                        "SELECT definition FROM jobs WHERE number = ?1 AND parent IS NULL",
                    )?
                    .query_row([change.job], |row| row.get(0))
                    .optional()?,
            };
            let Some(definition) = definition else { continue };
            cells::write(connection, change.job, &change.cells)?;
            if let Some(layout) = self.layout(connection, file, definition)? {
                layout
                    .write_row(connection, change)
                    .map_err(|error| layout.table.to_write_error(error))?;
            }
        }
        Ok(())
    }

    /// Deletes the row of a root job. An unusable table is left as it is.
    pub(super) fn delete_row(
        &self,
        connection: &Connection,
        workflow: &str,
        job: JobNumber,
    ) -> Result<(), WriteError> {
        cells::delete(connection, job)?;
        let table = StatusTable::for_workflow(workflow);
        if table.object_kind(connection)?.is_none() {
            return Ok(());
        }
        let delete = || {
            connection
                .prepare_cached(&format!("DELETE FROM {} WHERE _rowid_ = ?1", table.quoted_name()))?
                .execute([job])
        };
        if !self.unusable.contains(&table.key()) {
            delete().map_err(|error| table.to_write_error(error))?;
        }
        Ok(())
    }

    /// Returns the layout of the status table for the definition with this number, after creating
    /// what is missing of the table; `None` if the table is unusable.
    pub(super) fn layout(
        &mut self,
        connection: &Connection,
        file: &str,
        number: i64,
    ) -> Result<Option<Arc<TableLayout>>, WriteError> {
        if let Some(layout) = self.layouts.get(&number) {
            return Ok(layout.clone());
        }
        let definition = Rebuilder::new(&FileRows { connection, file, is_projected: true })
            .load_definition(number)?;
        let table = StatusTable::for_definition(&definition);
        let layout = if self.unusable.contains(&table.key()) {
            None
        } else {
            table.ensure_exists(connection, file, &definition)?;
            Some(Arc::new(table.layout(connection, &definition)?))
        };
        self.layouts.insert(number, layout.clone());
        Ok(layout)
    }
}
