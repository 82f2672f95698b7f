//! Lists the child jobs of a job, page by page, in the order of their steps and items.

use super::connection::{Params, params};
use super::pool::Session;
use super::reader::Reader;
use super::rows::DatabaseRows;
use crate::error::JournalError;
use crate::query::{ChildCursor, ChildFilter, ChildRow, ItemRow, ParentRecord, has_reason};
use crate::record::JobNumber;
use crate::traits::ChildRecords;
use engine::{JobId, JobState, StepIndex, Timestamp};
use std::sync::Arc;
use tokio_postgres::Row;

/// How many rows of a job are read at once, from the last row backwards, to find its end. Few rows
/// follow the end, such as those of late replies.
const ROW_BATCH: i64 = 16;

/// How many items are read at once.
const ITEM_BATCH: i64 = 5_000;

impl ChildRecords for Reader {
    fn find_parent_job(&self, id: JobId) -> Result<Option<ParentRecord>, JournalError> {
        let session = self.pool.begin()?;
        let Some(job) = session.find_newest_row(id)? else { return Ok(None) };
        let definition = self.load_definition_by_number(&session, job.definition)?;
        let (number, root, graph) = (job.number, job.root, job.graph);
        Ok(Some(ParentRecord { number, root, definition, graph }))
    }

    fn load_children(
        &self,
        parent: &ParentRecord,
        filter: ChildFilter,
        after: ChildCursor,
        limit: u32,
    ) -> Result<Vec<ChildRow>, JournalError> {
        let (sql, params) = build_query(parent, filter, after, limit);
        let session = self.pool.begin()?;
        let rows = session.query(&sql, params)?;
        let mut children = rows.iter().map(to_child_row).collect::<Vec<_>>();
        // The reasons are read from the entries, for this page alone.
        for child in children.iter_mut().filter(|child| has_reason(&child.state)) {
            child.reason = session.end_reason(child.cursor.number)?;
        }
        Ok(children)
    }

    fn for_each_item(
        &self,
        parent: &ParentRecord,
        step: StepIndex,
        handler: &mut dyn FnMut(ItemRow),
    ) -> Result<(), JournalError> {
        let sql = "SELECT DISTINCT ON (item) item, state, created, ended FROM jobs
                   WHERE root = $1 AND parent = $2 AND step = $3 AND item > $4
                   ORDER BY item, number DESC LIMIT $5";
        let session = self.pool.begin()?;
        let mut last_item: i64 = -1;
        loop {
            let step = i32::from(step.0);
            let params = params![parent.root, parent.number, step, last_item, ITEM_BATCH];
            let rows = session.query(sql, params)?;
            for row in &rows {
                last_item = row.get(0);
                let Some(state) = JobState::from_name(row.get(1)) else { continue };
                handler(ItemRow {
                    item: u32::try_from(last_item).unwrap_or(u32::MAX),
                    state,
                    created: Timestamp(row.get(2)),
                    ended: row.get::<_, Option<i64>>(3).map(Timestamp),
                });
            }
            if (rows.len() as i64) < ITEM_BATCH {
                return Ok(());
            }
        }
    }
}

impl Session<'_> {
    /// Returns why a job ended, from the last entry that changed its state; `None` if that entry
    /// has no reason.
    pub(super) fn end_reason(&self, job: JobNumber) -> Result<Option<Arc<str>>, JournalError> {
        let rows = DatabaseRows::new(self);
        let mut before = i64::MAX;
        loop {
            let batch = rows.last_rows_before(job, before, ROW_BATCH)?;
            let Some(oldest) = batch.last() else { return Ok(None) };
            before = i64::try_from(oldest.first).unwrap_or(0);
            for row in batch {
                let mut entries = row.parse(job, self.journal())?.into_iter().rev();
                if let Some(entry) = entries.find(|entry| entry.job_state().is_some()) {
                    return Ok(entry.reason().cloned());
                }
            }
        }
    }
}

fn to_child_row(row: &Row) -> ChildRow {
    let (number, step, item): (i64, i32, i64) = (row.get(0), row.get(2), row.get(3));
    ChildRow {
        cursor: ChildCursor { step: step.into(), item, number },
        id: JobId(row.get(1)),
        step: StepIndex(u16::try_from(step).unwrap_or(u16::MAX)),
        item: u32::try_from(item).unwrap_or(u32::MAX),
        state: row.get(4),
        created: Timestamp(row.get(5)),
        ended: row.get::<_, Option<i64>>(6).map(Timestamp),
        reason: None,
    }
}

/// Returns the SQL of a page of child jobs, and its parameters.
fn build_query(
    parent: &ParentRecord,
    filter: ChildFilter,
    after: ChildCursor,
    limit: u32,
) -> (String, Params) {
    let step_after = i32::try_from(after.step).unwrap_or(i32::MAX);
    let mut params =
        params![parent.root, parent.number, step_after, after.item, after.number, i64::from(limit)];
    let mut conditions = String::new();
    if let Some(step) = filter.step {
        params.push(Arc::new(i32::from(step.0)));
        conditions.push_str(&format!(" AND c.step = ${}", params.len()));
    }
    if let Some(state) = filter.state {
        if matches!(state, JobState::Failed | JobState::Cancelled) {
            // A partial index is used only if its condition is repeated.
            conditions.push_str(" AND c.state IN ('failed', 'cancelled')");
        }
        params.push(Arc::new(state.as_str()));
        conditions.push_str(&format!(" AND c.state = ${}", params.len()));
    }
    let sql = format!(
        "SELECT c.number, c.id, c.step, c.item, c.state, c.created, c.ended FROM jobs c
         WHERE c.root = $1 AND c.parent = $2 AND (c.step, c.item, c.number) > ($3, $4, $5)
           {conditions} AND NOT EXISTS (
             SELECT 1 FROM jobs n WHERE n.root = c.root AND n.parent = c.parent
               AND n.step = c.step AND n.item = c.item AND n.number > c.number)
         ORDER BY c.step, c.item, c.number LIMIT $6"
    );
    (sql, params)
}
