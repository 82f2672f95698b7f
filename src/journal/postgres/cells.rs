//! The table `cells`: the labels and columns of root jobs, for lists, searches and views.

use super::commit_connection::BatchStatement;
use super::connection::{params, to_sql_text};
use super::pool::Session;
use crate::error::JournalError;
use crate::query::order_cells;
use crate::record::JobNumber;
use engine::{Cell, Columns, NamedCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio_postgres::Row;

/// Sets cells of jobs that exist.
const SET_CELLS: &str = "
INSERT INTO cells(job, name, workflow, kind, value)
SELECT u.job, u.name, j.workflow, u.kind, u.value
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[]) AS u(job, name, kind, value)
CROSS JOIN LATERAL (
  SELECT j.workflow FROM jobs j
  WHERE j.number = u.job AND j.number BETWEEN $5::bigint AND $6::bigint OFFSET 0) j
ON CONFLICT (job, name) DO UPDATE SET kind = excluded.kind, value = excluded.value";

const CLEAR_CELLS: &str = "
DELETE FROM cells c USING unnest($1::bigint[], $2::text[]) AS u(job, name)
WHERE c.job = u.job AND c.name = u.name";

/// Changes of cells, by job and name. The last change of a cell counts.
#[derive(Default)]
pub(super) struct CellChanges(BTreeMap<(JobNumber, Arc<str>), Option<Cell>>);

impl CellChanges {
    /// Adds the changed cells of a job.
    pub(super) fn add(&mut self, job: JobNumber, cells: &[NamedCell]) {
        self.0.extend(cells.iter().map(|(name, cell)| ((job, name.clone()), cell.clone())));
    }

    /// Returns the statements.
    pub(super) fn statements(self) -> Vec<BatchStatement> {
        let (mut job, mut name, mut kind, mut value): (Vec<i64>, Vec<String>, Vec<String>, Vec<_>) =
            Default::default();
        let (mut empty_job, mut empty_name): (Vec<i64>, Vec<String>) = Default::default();
        for ((number, column), cell) in self.0 {
            match cell {
                Some(cell) => {
                    job.push(number);
                    name.push(column.to_string());
                    kind.push(cell.kind.as_str().to_owned());
                    value.push(to_sql_text(&cell.text));
                }
                None => {
                    empty_job.push(number);
                    empty_name.push(column.to_string());
                }
            }
        }
        let mut statements = Vec::new();
        if let (Some(lowest), Some(highest)) = (job.iter().min(), job.iter().max()) {
            let (lowest, highest) = (*lowest, *highest);
            let params = params![job, name, kind, value, lowest, highest];
            statements.push(BatchStatement::new(SET_CELLS, params));
        }
        if !empty_job.is_empty() {
            statements.push(BatchStatement::new(CLEAR_CELLS, params![empty_job, empty_name]));
        }
        statements
    }
}

/// Returns the cells of a job that are not empty, in the order of the columns.
pub(super) fn load(
    session: &Session<'_>,
    job: JobNumber,
    columns: &Columns,
) -> Result<Vec<NamedCell>, JournalError> {
    if columns.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "SELECT name, kind, value FROM cells WHERE job = $1";
    let rows = session.query(sql, params![job])?;
    let to_texts = |row: &Row| (row.get(0), row.get(1), row.get(2));
    Ok(order_cells(columns, rows.iter().map(to_texts).collect()))
}
