//! Reads the child jobs of a job, in the order of their steps and items: a page of all of them, or
//! the newest of each item of one step.

use super::file_rows::FileRows;
use super::reader::{Reader, to_job_id};
use crate::error::JournalError;
use crate::query::{ChildCursor, ChildFilter, ChildRow, ItemRow, ParentRecord, has_reason};
use crate::record::JobNumber;
use crate::traits::ChildRecords;
use engine::{JobId, JobState, StepIndex, Timestamp};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params, params_from_iter};
use std::sync::Arc;

impl ChildRecords for Reader {
    fn find_parent_job(&self, id: JobId) -> Result<Option<ParentRecord>, JournalError> {
        self.read_projected(|connection| {
            let row = connection
                .prepare_cached(
                    "SELECT number, root, definition, graph FROM jobs WHERE id = ?1 \
                     ORDER BY number DESC LIMIT 1",
                )
                .and_then(|mut statement| {
                    statement
                        .query_row([id.0.as_bytes()], |row| {
                            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
                        })
                        .optional()
                })
                .map_err(|error| self.to_journal_error(error))?;
            let Some((number, root, definition, graph)) = row else { return Ok(None) };
            let definition =
                self.rebuild(connection, |rebuilder| rebuilder.load_definition(definition))?;
            Ok(Some(ParentRecord { number, root, definition, graph }))
        })
    }

    fn load_children(
        &self,
        parent: &ParentRecord,
        filter: ChildFilter,
        after: ChildCursor,
        limit: u32,
    ) -> Result<Vec<ChildRow>, JournalError> {
        self.read_projected(|connection| {
            let (sql, values) = build_query((parent.root, parent.number), filter, after, limit);
            let read = || -> rusqlite::Result<Vec<ChildRow>> {
                let mut statement = connection.prepare_cached(&sql)?;
                let rows = statement.query_map(params_from_iter(values), |row| {
                    let (number, step, item) = (row.get(0)?, row.get(2)?, row.get(3)?);
                    Ok(ChildRow {
                        cursor: ChildCursor {
                            step: i64::from(step),
                            item: i64::from(item),
                            number,
                        },
                        id: to_job_id(row.get(1)?),
                        step: StepIndex(step),
                        item,
                        state: row.get(4)?,
                        created: Timestamp(row.get(5)?),
                        ended: row.get::<_, Option<i64>>(6)?.map(Timestamp),
                        reason: None,
                    })
                })?;
                rows.collect()
            };
            let mut rows = read().map_err(|error| self.to_journal_error(error))?;
            // `jobs` has no reasons: they are read from the entries, for the jobs of this page
            // only.
            for row in rows.iter_mut().filter(|row| has_reason(&row.state)) {
                row.reason = self.end_reason(connection, row.cursor.number)?;
            }
            Ok(rows)
        })
    }

    fn for_each_item(
        &self,
        parent: &ParentRecord,
        step: StepIndex,
        handler: &mut dyn FnMut(ItemRow),
    ) -> Result<(), JournalError> {
        let sql = "SELECT item, state, created, ended FROM jobs INDEXED BY jobs_by_place
                   WHERE root = ?1 AND parent = ?2 AND step = ?3 ORDER BY item, number";
        self.read_projected(|connection| {
            let read = || -> rusqlite::Result<()> {
                let mut statement = connection.prepare_cached(sql)?;
                let mut rows = statement.query(params![parent.root, parent.number, step.0])?;
                // If an item has several child jobs, the newest comes last.
                let mut newest: Option<ItemRow> = None;
                while let Some(row) = rows.next()? {
                    // A state that this version does not know is left out.
                    let Some(state) = JobState::from_name(row.get_ref(1)?.as_str()?) else {
                        continue;
                    };
                    let ended = row.get::<_, Option<i64>>(3)?.map(Timestamp);
                    let created = Timestamp(row.get(2)?);
                    let item = ItemRow { item: row.get(0)?, state, created, ended };
                    let previous = newest.replace(item);
                    let is_complete = |previous: &ItemRow| previous.item != item.item;
                    if let Some(complete_item) = previous.filter(is_complete) {
                        handler(complete_item);
                    }
                }
                newest.into_iter().for_each(handler);
                Ok(())
            };
            read().map_err(|error| self.to_journal_error(error))
        })
    }
}

impl Reader {
    /// Returns why a job ended, from the last entry that changed its state; `None` if that entry
    /// has no reason, or if there is no such entry. The job must be projected.
    pub(super) fn end_reason(
        &self,
        connection: &Connection,
        number: JobNumber,
    ) -> Result<Option<Arc<str>>, JournalError> {
        FileRows { connection, file: self.file(), is_projected: true }.end_reason(number)
    }
}

/// Returns the SQL of a page of child jobs, and its parameters.
fn build_query(
    (root, parent): (JobNumber, JobNumber),
    filter: ChildFilter,
    after: ChildCursor,
    limit: u32,
) -> (String, Vec<Value>) {
    let mut conditions =
        vec!["c.root = ?", "c.parent = ?", "(c.step, c.item, c.number) > (?, ?, ?)"];
    let mut values: Vec<Value> =
        vec![root.into(), parent.into(), after.step.into(), after.item.into(), after.number.into()];
    let mut index = "jobs_by_place";
    if let Some(step) = filter.step {
        conditions.push("c.step = ?");
        values.push(i64::from(step.0).into());
    }
    if let Some(state) = filter.state {
        match state {
            JobState::Failed | JobState::Cancelled => {
                // SQLite uses a partial index only if the query implies its condition. The states
                // must be repeated literally. `parent` is compared, so it is not NULL.
                conditions.push("c.state IN ('failed', 'cancelled')");
                index = "jobs_children_failed";
            }
            JobState::Running | JobState::Paused | JobState::Completed => {}
        }
        conditions.push("c.state = ?");
        values.push(state.as_str().to_owned().into());
    }
    values.push(limit.into());
    // An item may have several child jobs, such as after a rerun. Only the newest is listed.
    let newer_sibling = "SELECT 1 FROM jobs n WHERE n.root = c.root AND n.parent = c.parent \
                 AND n.step = c.step AND n.item = c.item AND n.number > c.number";
    let sql = format!(
        "SELECT c.number, c.id, c.step, c.item, c.state, c.created, c.ended \
           FROM jobs c INDEXED BY {index}
         WHERE {} AND NOT EXISTS ({newer_sibling}) ORDER BY c.step, c.item, c.number LIMIT ?",
        conditions.join(" AND ")
    );
    (sql, values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::empty_journal;

    #[test]
    fn pages_of_child_jobs_are_read_from_an_index_in_order_and_failed_ones_from_their_own() {
        let (_directory, connection) = empty_journal();
        let states = [
            JobState::Failed,
            JobState::Cancelled,
            JobState::Running,
            JobState::Paused,
            JobState::Completed,
        ];
        for step in [None, Some(StepIndex(0))] {
            for state in states.map(Some).into_iter().chain([None]) {
                let filter = ChildFilter { state, step };
                let (sql, values) = build_query((1, 1), filter, ChildCursor::START, 1);
                let mut statement =
                    connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("a plan");
                let plan: rusqlite::Result<Vec<String>> = statement
                    .query_map(params_from_iter(values), |row| row.get(3))
                    .expect("a plan")
                    .collect();
                let plan = plan.expect("a plan").join("\n");
                let has_own_index = matches!(state, Some(JobState::Failed | JobState::Cancelled));
                let index = if has_own_index { "jobs_children_failed" } else { "jobs_by_place" };
                let search = format!("SEARCH c USING INDEX {index}");
                assert!(plan.contains(&search), "{state:?} {step:?}: {plan}");
                assert!(!plan.contains("TEMP B-TREE"), "it is sorted: {plan}");
            }
        }
    }
}
