//! Groups the newest failures by the pattern of their reason and by workflow.

use super::connection::{Params, params, to_sql_text};
use super::reader::Reader;
use crate::error::JournalError;
use crate::failures::{FailureFilter, FailureGroup, FailureGroups, GROUPED_FAILURES_MAX};
use crate::traits::FailureRecords;
use engine::{JobId, ReasonId, Timestamp};
use tokio_postgres::Row;

/// Returns the SQL that groups the newest failures, and its parameters.
fn build_query(filter: &FailureFilter) -> (String, Params) {
    let (from, before) = filter.ended_range();
    let mut params = params![from, before];
    let mut condition = "";
    if let Some(workflow) = &filter.workflow {
        params.extend(params![to_sql_text(workflow)]);
        condition = "AND workflow = $3";
    }
    let sql = format!(
        "SELECT g.reason, g.workflow, g.jobs, g.children, g.first, g.last, g.example, j.id FROM (
           SELECT reason, workflow, count(*) AS jobs,
                  count(*) FILTER (WHERE job <> root) AS children,
                  min(ended) AS first, max(ended) AS last, max(job) AS example
           FROM (SELECT job, root, reason, workflow, ended FROM failures
                 WHERE ended >= $1 AND ended < $2 {condition}
                 ORDER BY ended DESC LIMIT {GROUPED_FAILURES_MAX}) f
           GROUP BY reason, workflow) g
         CROSS JOIN LATERAL (SELECT id FROM jobs WHERE number = g.example OFFSET 0) j
         ORDER BY g.jobs DESC, g.last DESC, g.reason"
    );
    (sql, params)
}

fn to_group(row: &Row) -> FailureGroup {
    let number = |column: usize| u32::try_from(row.get::<_, i64>(column)).unwrap_or(u32::MAX);
    FailureGroup {
        reason: ReasonId(row.get(0)),
        workflow: row.get(1),
        jobs: number(2),
        children: number(3),
        first: Timestamp(row.get(4)),
        last: Timestamp(row.get(5)),
        example: JobId(row.get(7)),
        example_reason: None,
    }
}

impl FailureRecords for Reader {
    fn group_failures(
        &self,
        filter: &FailureFilter,
        limit: u32,
    ) -> Result<FailureGroups, JournalError> {
        let session = self.pool.begin()?;
        let (sql, params) = build_query(filter);
        let rows = session.query(&sql, params)?;
        let mut groups: Vec<FailureGroup> = rows.iter().map(to_group).collect();
        let failures = groups.iter().map(|group| group.jobs).sum();
        groups.truncate(limit as usize);
        for (group, row) in groups.iter_mut().zip(&rows) {
            group.example_reason = session.end_reason(row.get(6))?;
        }
        Ok(FailureGroups { groups, failures })
    }
}
