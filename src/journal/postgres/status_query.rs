//! Reads the statuses of root jobs: pages of rows, the newest first, filtered by job, state and
//! status.

use super::cells;
use super::connection::{Params, params, to_sql_text};
use super::reader::Reader;
use crate::error::JournalError;
use crate::query::{StatusFilter, StatusRow, order_cells};
use crate::record::JobNumber;
use crate::traits::StatusRecords;
use base::times::format_rfc3339;
use engine::{Columns, JobId, NamedCell, Timestamp};
use std::collections::HashMap;
use std::sync::Arc;

impl StatusRecords for Reader {
    fn load_status_columns(&self, workflow: &str) -> Result<Option<Vec<String>>, JournalError> {
        let sql = "SELECT name FROM steps WHERE workflow = $1 ORDER BY id";
        let rows = self.query(sql, params![to_sql_text(workflow)])?;
        let names: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        Ok((!names.is_empty()).then_some(names))
    }

    fn load_statuses(
        &self,
        workflow: &str,
        columns: &[String],
        filter: &StatusFilter,
        before: JobNumber,
        limit: u32,
    ) -> Result<Vec<StatusRow>, JournalError> {
        let session = self.pool.begin()?;
        let (sql, params) = build_query(workflow, filter, before, limit);
        let jobs = session.query(&sql, params)?;
        let numbers: Vec<JobNumber> = jobs.iter().map(|row| row.get(0)).collect();
        let sql = "SELECT s.job, p.name, s.word, s.at FROM statuses s JOIN steps p ON p.id = s.step
                   WHERE s.job = ANY($1)";
        let mut words: HashMap<(JobNumber, String), String> = HashMap::new();
        let mut changed: HashMap<JobNumber, i64> = HashMap::new();
        for row in session.query(sql, params![numbers])? {
            let job = row.get(0);
            words.insert((job, row.get(1)), row.get(2));
            let latest = changed.entry(job).or_insert(i64::MIN);
            *latest = (*latest).max(row.get(3));
        }
        let mut rows = Vec::with_capacity(jobs.len());
        for row in &jobs {
            let number = row.get(0);
            let state_changed: i64 = row.get(4);
            let updated = changed.get(&number).copied().unwrap_or(i64::MIN).max(state_changed);
            let word = |column: &String| words.remove(&(number, column.clone()));
            rows.push(StatusRow {
                number,
                job: JobId(row.get(1)).to_string(),
                state: row.get(2),
                created: format_rfc3339(Timestamp(row.get(3))),
                updated: format_rfc3339(Timestamp(updated)),
                // A job whose definition lacks a step has no status of it.
                statuses: columns.iter().map(word).map(Option::unwrap_or_default).collect(),
            });
        }
        Ok(rows)
    }

    fn load_cells(
        &self,
        jobs: &[JobNumber],
        columns: &Columns,
    ) -> Result<HashMap<JobNumber, Vec<NamedCell>>, JournalError> {
        let session = self.pool.begin()?;
        let rows = cells::load_rows(&session, jobs)?;
        let ordered = rows.into_iter().map(|(job, rows)| (job, order_cells(columns, rows)));
        Ok(ordered.filter(|(_, cells)| !cells.is_empty()).collect())
    }
}

/// Returns the SQL of a page of jobs, and its parameters.
fn build_query(
    workflow: &str,
    filter: &StatusFilter,
    before: JobNumber,
    limit: u32,
) -> (String, Params) {
    let mut params = params![to_sql_text(workflow), before];
    let mut sql = "SELECT j.number, j.id, j.state, j.created, j.changed FROM jobs j
                   WHERE j.workflow = $1 AND j.parent IS NULL AND j.number < $2"
        .to_owned();
    if let Some(id) = filter.job {
        params.push(Arc::new(id.0));
        sql.push_str(&format!(" AND j.id = ${}", params.len()));
    }
    if let Some(state) = filter.state {
        params.push(Arc::new(state.as_str()));
        sql.push_str(&format!(" AND j.state = ${}", params.len()));
    }
    for (step, status) in &filter.steps {
        params.push(Arc::new(to_sql_text(step)));
        params.push(Arc::new(to_sql_text(status)));
        sql.push_str(&format!(
            " AND EXISTS (SELECT 1 FROM statuses s WHERE s.job = j.number AND s.word = ${} AND \
             s.step = (SELECT id FROM steps WHERE workflow = $1 AND name = ${}))",
            params.len(),
            params.len() - 1
        ));
    }
    params.push(Arc::new(i64::from(limit)));
    sql.push_str(&format!(" ORDER BY j.number DESC LIMIT ${}", params.len()));
    (sql, params)
}
