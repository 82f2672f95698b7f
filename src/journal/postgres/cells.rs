//! The table `cells`: the labels and columns of root jobs, for lists, searches and views.

use super::commit_connection::{BatchStatement, CommitConnection};
use super::connection::{params, to_sql_text};
use super::pool::Session;
use crate::error::JournalError;
use crate::query::CellRefill;
use crate::record::JobNumber;
use engine::{Cell, NamedCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

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

/// The jobs that do not exist any more, or whose records have further entries.
const MOVED_ON: &str = "
SELECT u.job FROM unnest($1::bigint[], $2::bigint[]) AS u(job, entries)
WHERE EXISTS (SELECT 1 FROM entries e WHERE e.job = u.job AND e.first >= u.entries)
  OR NOT EXISTS (SELECT 1 FROM jobs j WHERE j.number = u.job)";

/// Sets the cells of the jobs whose records have no further entries. Returns the others. Nothing is
/// committed between the look and the change: this process alone writes, one commit at a time.
pub(super) fn refill(
    commits: &mut CommitConnection,
    refills: &[CellRefill],
) -> Result<BTreeSet<JobNumber>, JournalError> {
    let jobs: Vec<JobNumber> = refills.iter().map(|refill| refill.job).collect();
    let to_number = |refill: &CellRefill| i64::try_from(refill.entries).unwrap_or(i64::MAX);
    let entries: Vec<i64> = refills.iter().map(to_number).collect();
    let rows = commits.query(MOVED_ON, params![jobs, entries])?;
    let others: BTreeSet<JobNumber> = rows.iter().map(|row| row.get(0)).collect();
    let mut changes = CellChanges::default();
    for refill in refills.iter().filter(|refill| !others.contains(&refill.job)) {
        changes.add(refill.job, &refill.cells);
    }
    let statements = changes.statements();
    if !statements.is_empty() {
        commits.transact(statements)?;
    }
    Ok(others)
}

/// Stored cells, each a name, the name of a type and a value.
pub(super) type CellRows = Vec<(String, String, String)>;

/// Returns the cells of jobs that are not empty. Jobs without any are left out.
pub(super) fn load_rows(
    session: &Session<'_>,
    jobs: &[JobNumber],
) -> Result<HashMap<JobNumber, CellRows>, JournalError> {
    let mut cells: HashMap<JobNumber, CellRows> = HashMap::new();
    if jobs.is_empty() {
        return Ok(cells);
    }
    let sql = "SELECT job, name, kind, value FROM cells WHERE job = ANY($1)";
    for row in session.query(sql, params![jobs.to_vec()])? {
        cells.entry(row.get(0)).or_default().push((row.get(1), row.get(2), row.get(3)));
    }
    Ok(cells)
}
