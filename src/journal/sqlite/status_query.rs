//! Reads the status tables: pages of rows, the newest first, filtered by job, state and status.

use super::cells;
use super::reader::Reader;
use super::status_table::{INDEXED_COLUMNS_MAX, StatusTable};
use crate::error::JournalError;
use crate::query::{StatusFilter, StatusRow};
use crate::record::JobNumber;
use crate::sql::quote_identifier;
use crate::traits::StatusRecords;
use engine::{Columns, NamedCell};
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};
use std::collections::HashMap;

/// The most rows that are counted to find the rarest of several conditions. Conditions that match
/// more rows are considered equally common.
const ROWS_COUNTED_MAX: usize = 10_000;

/// The columns that are selected before the statuses.
const ROW_COLUMNS: &str = "s._rowid_, s.job, s.state, s.created, s.updated";

/// The index of the first status, after [`ROW_COLUMNS`].
const FIRST_STATUS_INDEX: usize = 5;

impl StatusRecords for Reader {
    fn load_status_columns(&self, workflow: &str) -> Result<Option<Vec<String>>, JournalError> {
        self.read_projected(|connection| {
            StatusTable::for_workflow(workflow)
                .columns(connection)
                .map_err(|error| self.to_journal_error(error))
        })
    }

    fn load_statuses(
        &self,
        workflow: &str,
        columns: &[String],
        filter: &StatusFilter,
        before: JobNumber,
        limit: u32,
    ) -> Result<Vec<StatusRow>, JournalError> {
        let table = StatusTable::for_workflow(workflow).quoted_name();
        let statuses: String =
            columns.iter().map(|column| format!(", s.{}", quote_identifier(column))).collect();
        self.read_projected(|connection| {
            let read = || -> rusqlite::Result<Vec<StatusRow>> {
                let conditions = rank_conditions(connection, &table, columns, filter, before)?;
                let mut sql = format!(
                    "SELECT {ROW_COLUMNS}{statuses} \
                     FROM {table} AS s WHERE s._rowid_ < ?"
                );
                let mut values = vec![Value::from(before)];
                for (index, (column, value)) in conditions.into_iter().enumerate() {
                    // A unary plus prevents the use of an index on the column, so that SQLite uses
                    // the index of the first condition.
                    sql.push_str(&format!(
                        " AND {}s.{} = ?",
                        if index == 0 { "" } else { "+" },
                        quote_identifier(&column)
                    ));
                    values.push(Value::from(value));
                }
                sql.push_str(&format!(" ORDER BY s._rowid_ DESC LIMIT {limit}"));
                let mut statement = connection.prepare_cached(&sql)?;
                let rows = statement.query_map(params_from_iter(values), |row| {
                    let statuses = (0..columns.len())
                        .map(|index| row.get(FIRST_STATUS_INDEX + index))
                        .collect::<rusqlite::Result<_>>()?;
                    let (number, job, state) = (row.get(0)?, row.get(1)?, row.get(2)?);
                    Ok(StatusRow {
                        number,
                        job,
                        state,
                        created: row.get(3)?,
                        updated: row.get(4)?,
                        statuses,
                    })
                })?;
                rows.collect()
            };
            read().map_err(|error| self.to_journal_error(error))
        })
    }

    fn load_cells(
        &self,
        jobs: &[JobNumber],
        columns: &Columns,
    ) -> Result<HashMap<JobNumber, Vec<NamedCell>>, JournalError> {
        self.read_projected(|connection| {
            let load = |job: &JobNumber| Ok((*job, cells::load(connection, *job, columns)?));
            let loaded: rusqlite::Result<HashMap<_, _>> = jobs.iter().map(load).collect();
            let mut loaded = loaded.map_err(|error| self.to_journal_error(error))?;
            loaded.retain(|_, cells| !cells.is_empty());
            Ok(loaded)
        })
    }
}

/// Returns the conditions of a filter, each a column and its value. The first one is the rarest of
/// those with an index.
fn rank_conditions(
    connection: &Connection,
    table: &str,
    columns: &[String],
    filter: &StatusFilter,
    before: JobNumber,
) -> rusqlite::Result<Vec<(String, String)>> {
    let job = filter.job.map(|job| ("job".to_owned(), job.to_string()));
    let state = filter.state.map(|state| ("state".to_owned(), state.as_str().to_owned()));
    let mut conditions: Vec<(String, String)> =
        job.into_iter().chain(state).chain(filter.steps.iter().cloned()).collect();
    if filter.job.is_some() || conditions.len() < 2 {
        return Ok(conditions);
    }
    // The count of matching rows, and the position of the condition.
    let mut rarest = (i64::MAX, 0);
    for (index, (column, value)) in conditions.iter().enumerate() {
        let step_index = columns.iter().position(|step_column| step_column == column);
        if step_index.is_some_and(|step_index| step_index >= INDEXED_COLUMNS_MAX) {
            continue;
        }
        let sql = format!(
            "SELECT count(*) FROM (SELECT 1 FROM {table} AS s WHERE s.{} = ?1 AND s._rowid_ < ?2 \
             LIMIT {ROWS_COUNTED_MAX})",
            quote_identifier(column)
        );
        let count: i64 = connection
            .prepare_cached(&sql)?
            .query_row(rusqlite::params![value, before], |row| row.get(0))?;
        rarest = rarest.min((count, index));
    }
    conditions.swap(0, rarest.1);
    Ok(conditions)
}
