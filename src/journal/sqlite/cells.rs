//! The table `cells`: the labels and columns of root jobs, for lists and searches. It is a
//! projection, like the status tables.

use crate::query::order_cells;
use crate::record::JobNumber;
use engine::{Cell, Columns, NamedCell};
use rusqlite::{Connection, params};

/// Writes changed cells of a job, if the job exists.
pub(super) fn write(
    connection: &Connection,
    job: JobNumber,
    cells: &[NamedCell],
) -> rusqlite::Result<()> {
    if cells.is_empty() {
        return Ok(());
    }
    let mut delete = connection.prepare_cached("DELETE FROM cells WHERE job = ?1 AND name = ?2")?;
    let mut insert = connection.prepare_cached(
        "INSERT OR REPLACE INTO cells(job, name, workflow, kind, value)
         SELECT number, ?2, workflow, ?3, ?4 FROM jobs WHERE number = ?1",
    )?;
    for (name, cell) in cells {
        match cell {
            None => delete.execute(params![job, &**name])?,
            Some(Cell { kind, text }) => {
                insert.execute(params![job, &**name, kind.as_str(), &**text])?
            }
        };
    }
    Ok(())
}

/// Deletes the cells of a job.
pub(super) fn delete(connection: &Connection, job: JobNumber) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM cells WHERE job = ?1")?.execute([job]).map(|_| ())
}

/// Returns the cells of a job that are not empty, in the order of the columns.
pub(super) fn load(
    connection: &Connection,
    job: JobNumber,
    columns: &Columns,
) -> rusqlite::Result<Vec<NamedCell>> {
    let mut select =
        connection.prepare_cached("SELECT name, kind, value FROM cells WHERE job = ?1")?;
    let rows = select.query_map([job], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    Ok(order_cells(columns, rows.collect::<rusqlite::Result<_>>()?))
}

/// Returns whether a job has cells that are not empty.
pub(super) fn has_any(connection: &Connection, job: JobNumber) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS(SELECT 1 FROM cells WHERE job = ?1)";
    connection.prepare_cached(sql)?.query_row([job], |row| row.get(0))
}
