//! The table `failures`: the failed jobs and child jobs, for searches and counts by reason. It is a
//! projection, like the status tables.

use super::children::load_end_reason;
use super::reader::{Reader, to_job_id};
use crate::error::JournalError;
use crate::failures::{
    FailureChange, FailureFilter, FailureGroup, FailureGroups, GROUPED_FAILURES_MAX,
};
use crate::record::JobNumber;
use crate::traits::FailureRecords;
use engine::{ReasonId, Timestamp};
use rusqlite::types::Value;
use rusqlite::{Connection, params, params_from_iter};

/// Writes a change, if the job exists.
pub(super) fn write(
    connection: &Connection,
    job: JobNumber,
    change: FailureChange,
) -> rusqlite::Result<()> {
    match change {
        FailureChange::Cleared => return delete(connection, job),
        FailureChange::Failed(ReasonId(reason)) => connection
            .prepare_cached(
                "INSERT OR REPLACE INTO failures(job, root, reason, workflow, ended)
                 SELECT number, root, ?2, workflow, ended FROM jobs
                 WHERE number = ?1 AND ended IS NOT NULL",
            )?
            .execute(params![job, reason])?,
    };
    Ok(())
}

/// Deletes the failure of a job.
pub(super) fn delete(connection: &Connection, job: JobNumber) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM failures WHERE job = ?1")?.execute([job]).map(|_| ())
}

/// Writes the failures of all failed jobs, in a file that was written before there was the table.
/// A job whose record is damaged is left out: it has to be found another way.
pub(super) fn fill(connection: &Connection, file: &str) -> rusqlite::Result<()> {
    let mut select = connection.prepare("SELECT number FROM jobs WHERE state = 'failed'")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let job = row.get(0)?;
        if let Ok(reason) = load_end_reason(connection, file, job) {
            write(connection, job, FailureChange::from_reason(reason.as_deref()))?;
        }
    }
    Ok(())
}

/// Returns the SQL that groups the newest failures, and its parameters.
fn build_query(filter: &FailureFilter) -> (String, Vec<Value>) {
    let bound = |time: Option<Timestamp>, default: i64| time.map_or(default, |time| time.0);
    let mut values: Vec<Value> = vec![
        bound(filter.ended_from, i64::MIN).into(),
        bound(filter.ended_before, i64::MAX).into(),
    ];
    let (index, condition) = match &filter.workflow {
        None => ("failures_by_end", ""),
        Some(workflow) => {
            values.push(workflow.clone().into());
            ("failures_of_workflow", "AND workflow = ?3")
        }
    };
    let sql = format!(
        "SELECT reason, workflow, count(*), sum(job <> root), min(ended), max(ended), max(job)
         FROM (SELECT job, root, reason, workflow, ended FROM failures INDEXED BY {index}
               WHERE ended >= ?1 AND ended < ?2 {condition}
               ORDER BY ended DESC LIMIT {GROUPED_FAILURES_MAX})
         GROUP BY reason, workflow ORDER BY count(*) DESC, max(ended) DESC, reason"
    );
    (sql, values)
}

impl FailureRecords for Reader {
    fn group_failures(
        &self,
        filter: &FailureFilter,
        limit: u32,
    ) -> Result<FailureGroups, JournalError> {
        self.read_projected(|connection| {
            let read = || -> rusqlite::Result<(FailureGroups, Vec<JobNumber>)> {
                let (sql, values) = build_query(filter);
                let mut statement = connection.prepare_cached(&sql)?;
                let mut rows = statement.query(params_from_iter(values))?;
                let (mut groups, mut examples, mut failures) = (Vec::new(), Vec::new(), 0);
                let mut select_id =
                    connection.prepare_cached("SELECT id FROM jobs WHERE number = ?1")?;
                while let Some(row) = rows.next()? {
                    let jobs: u32 = row.get(2)?;
                    failures += jobs;
                    if groups.len() >= limit as usize {
                        continue;
                    }
                    let example = row.get(6)?;
                    examples.push(example);
                    groups.push(FailureGroup {
                        reason: ReasonId(row.get(0)?),
                        workflow: row.get(1)?,
                        jobs,
                        children: row.get(3)?,
                        first: Timestamp(row.get(4)?),
                        last: Timestamp(row.get(5)?),
                        example: select_id
                            .query_row([example], |row| Ok(to_job_id(row.get(0)?)))?,
                        example_reason: None,
                    });
                }
                Ok((FailureGroups { groups, failures }, examples))
            };
            let (mut groups, examples) = read().map_err(|error| self.to_journal_error(error))?;
            for (group, example) in groups.groups.iter_mut().zip(examples) {
                group.example_reason = self.end_reason(connection, example)?;
            }
            Ok(groups)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::empty_journal;

    #[test]
    fn the_newest_failures_are_read_from_an_index_alone() {
        let (_directory, connection) = empty_journal();
        for (workflow, index) in [(None, "failures_by_end"), (Some("w"), "failures_of_workflow")] {
            let workflow = workflow.map(str::to_owned);
            let (sql, values) =
                build_query(&FailureFilter { workflow, ..FailureFilter::default() });
            let mut statement =
                connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("a plan");
            let steps = statement.query_map(params_from_iter(values), |row| row.get(3));
            let steps: Vec<String> =
                steps.expect("a plan").map(|step| step.expect("a step")).collect();
            let search = format!("SEARCH failures USING COVERING INDEX {index} (");
            assert!(steps.iter().any(|step| step.starts_with(&search)), "{steps:?}");
            // The groups are sorted, and not the failures before their number is limited.
            let inner = steps.iter().position(|step| step.starts_with(&search)).unwrap_or(0);
            assert!(!steps[..inner].iter().any(|step| step.contains("ORDER BY")), "{steps:?}");
        }
    }
}
