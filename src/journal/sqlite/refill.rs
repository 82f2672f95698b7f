//! Sets cells that were computed anew from the records of their jobs.

use super::cells;
use super::status_table::{StatusTable, TableLayout, WriteError};
use super::writer::JournalWriter;
use crate::error::JournalError;
use crate::query::CellRefill;
use crate::record::JobNumber;
use engine::{Definition, Job, NamedCell};
use rusqlite::{Connection, params};
use std::collections::BTreeSet;

impl JournalWriter {
    /// Sets the cells of the jobs whose records have no further entries. Returns the others.
    pub(super) fn refill_cells(
        &mut self,
        definition: &Definition,
        refills: &[CellRefill],
    ) -> Result<BTreeSet<JobNumber>, JournalError> {
        self.check_not_broken()?;
        self.project_all()?;
        self.write_with_repair(|writer| writer.refill_in_transaction(definition, refills))
    }

    fn refill_in_transaction(
        &mut self,
        definition: &Definition,
        refills: &[CellRefill],
    ) -> Result<BTreeSet<JobNumber>, WriteError> {
        let transaction = self.connection.transaction()?;
        let table = StatusTable::for_definition(definition);
        let layout = if self.status_tables.unusable.contains(&table.key()) {
            None
        } else {
            table.ensure_exists(&transaction, &self.file, definition)?;
            Some(table.layout(&transaction, definition)?)
        };
        let mut others = BTreeSet::new();
        for refill in refills {
            if !is_current(&transaction, refill)? {
                others.insert(refill.job);
                continue;
            }
            cells::write(&transaction, refill.job, &refill.cells)?;
            if let Some(layout) = &layout {
                layout
                    .write_cells(&transaction, refill.job, &refill.cells)
                    .map_err(|error| table.to_write_error(error))?;
            }
        }
        // The cached layouts lack columns that the table may have got.
        self.status_tables.layouts.clear();
        transaction.commit()?;
        Ok(others)
    }
}

impl TableLayout {
    /// Sets the cells of a job whose row was written anew to those that the table `cells` has: a
    /// refill may have set them by another definition than the job's own.
    pub(super) fn restore_cells(
        &self,
        connection: &Connection,
        job: &Job,
        number: JobNumber,
    ) -> rusqlite::Result<()> {
        let columns = &job.definition().columns;
        let own = columns.names().map(|name| (name.into(), None));
        let cells: Vec<NamedCell> = own.chain(cells::load(connection, number, columns)?).collect();
        self.write_cells(connection, number, &cells)
    }

    /// Updates the cells of a job that has a row.
    pub(super) fn write_cells(
        &self,
        connection: &Connection,
        job: JobNumber,
        cells: &[NamedCell],
    ) -> rusqlite::Result<()> {
        for (name, cell) in cells {
            let Some(column) = self.cell_column(name) else { continue };
            let sql =
                format!("UPDATE {} SET {column} = ?1 WHERE _rowid_ = ?2", self.table.quoted_name());
            let text = cell.as_ref().map(|cell| &*cell.text);
            connection.prepare_cached(&sql)?.execute(params![text, job])?;
        }
        Ok(())
    }
}

/// Returns whether the job exists, and its record has no further entries. Everything is projected.
fn is_current(connection: &Connection, refill: &CellRefill) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS(SELECT 1 FROM jobs WHERE number = ?1 AND parent IS NULL)
                 AND NOT EXISTS(SELECT 1 FROM places WHERE job = ?1 AND first >= ?2)";
    let entries = i64::try_from(refill.entries).unwrap_or(i64::MAX);
    connection.prepare_cached(sql)?.query_row(params![refill.job, entries], |row| row.get(0))
}
