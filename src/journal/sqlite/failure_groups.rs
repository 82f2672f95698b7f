//! Groups the newest failures by the pattern of their reason and by workflow.

use super::reader::{Reader, to_job_id};
use crate::error::JournalError;
use crate::failures::{FailureFilter, FailureGroup, FailureGroups, GROUPED_FAILURES_MAX};
use crate::record::JobNumber;
use crate::traits::FailureRecords;
use engine::{ReasonId, Timestamp};
use rusqlite::params_from_iter;
use rusqlite::types::Value;

/// Returns the SQL that groups the newest failures, and its parameters.
fn build_query(filter: &FailureFilter) -> (String, Vec<Value>) {
    let (from, before) = filter.ended_range();
    let mut values: Vec<Value> = vec![from.into(), before.into()];
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
