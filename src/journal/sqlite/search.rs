//! Searches jobs by workflow, state, status, id and time: root jobs, or the child jobs of one job.

use super::reader::{Reader, to_job_id};
use super::status_table::{StatusTable, quote_identifier};
use crate::error::JournalError;
use crate::query::{JobFilter, SearchHit, SearchOrder};
use crate::record::JobNumber;
use crate::traits::SearchRecords;
use engine::{JobState, StepIndex, Timestamp};
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

impl JobFilter {
    /// Returns the table that the conditions on statuses are about; `None` without a workflow.
    fn status_table(&self) -> Option<StatusTable> {
        self.workflow.as_deref().map(StatusTable::for_workflow)
    }

    /// Returns the states to query one after another: the jobs of one state are in order, those of
    /// all states together are not.
    fn states_to_query(&self) -> Vec<Option<JobState>> {
        match self.states.as_slice() {
            [] => vec![None],
            states => states.iter().copied().map(Some).collect(),
        }
    }

    /// Returns the table with its conditions, and their values.
    fn build_conditions(&self, state: Option<JobState>) -> (String, Vec<Value>) {
        let (mut conditions, mut values) = (Vec::new(), Vec::new());
        let mut table = "jobs";
        match self.parent {
            None => conditions.push("parent IS NULL".to_owned()),
            Some(parent) => {
                conditions.push("root = ? AND parent = ?".to_owned());
                values.extend([parent.root.into(), parent.number.into()]);
                table = "jobs INDEXED BY jobs_by_place";
                if state.is_some_and(|state| has_reason(state.as_str())) {
                    // The conditions of the index, word for word.
                    conditions
                        .push("parent IS NOT NULL AND state IN ('failed', 'cancelled')".to_owned());
                    table = "jobs INDEXED BY jobs_children_failed";
                }
            }
        }
        let mut add = |condition: String, value: Value| {
            conditions.push(condition);
            values.push(value);
        };
        self.workflow.iter().for_each(|name| add("workflow = ?".to_owned(), name.clone().into()));
        state
            .iter()
            .for_each(|state| add("state = ?".to_owned(), state.as_str().to_owned().into()));
        let times = [
            ("created >= ?", self.created_from),
            ("created < ?", self.created_before),
            ("ended >= ?", self.ended_from),
            ("ended < ?", self.ended_before),
        ];
        for (condition, time) in times {
            time.iter().for_each(|time| add(condition.to_owned(), time.0.into()));
        }
        for (step, status) in &self.statuses {
            let table = self.status_table().expect("callers check that there is one");
            let quoted_table = table.quoted_name();
            add(
                format!(
                    "number IN (SELECT _rowid_ FROM {quoted_table} WHERE {} = ?)",
                    quote_identifier(step)
                ),
                status.clone().into(),
            );
        }
        if let Some((first, last)) = self.id_range {
            // Few jobs have an id in the range, so they are found first, whatever the other
            // criteria.
            table = "jobs INDEXED BY jobs_by_id";
            for (condition, id) in [("id >= ?", first), ("id <= ?", last)] {
                add(condition.to_owned(), id.0.as_bytes().to_vec().into());
            }
        }
        (format!("{table} WHERE {}", conditions.join(" AND ")), values)
    }

    fn build_query(
        &self,
        state: Option<JobState>,
        order: SearchOrder,
        beyond: JobNumber,
        limit: u32,
    ) -> (String, Vec<Value>) {
        let (place, mut values) = self.build_conditions(state);
        let (side, direction) = match order {
            SearchOrder::NewestFirst => ("<", "DESC"),
            SearchOrder::OldestFirst => (">", "ASC"),
        };
        let (behind, by): (_, &[&str]) = match self.parent {
            None => (format!("AND number {side} ?"), &["number"]),
            Some(_) if beyond == order.start_cursor() => {
                (String::new(), &["step", "item", "number"])
            }
            // Here too the cursor is a number; the row with that number has the position.
            Some(_) => (
                format!(
                    "AND (step, item, number) {side} \
                     (SELECT b.step, b.item, b.number FROM jobs b WHERE b.number = ?)"
                ),
                &["step", "item", "number"],
            ),
        };
        values.extend((!behind.is_empty()).then_some(beyond.into()));
        values.push(limit.into());
        let by: Vec<String> = by.iter().map(|column| format!("{column} {direction}")).collect();
        let columns =
            "number, id, workflow, state, created, ended, step, item, definition, graph, parent";
        let sql =
            format!("SELECT {columns} FROM {place} {behind} ORDER BY {} LIMIT ?", by.join(", "));
        (sql, values)
    }
}

impl SearchRecords for Reader {
    fn search(
        &self,
        filter: &JobFilter,
        order: SearchOrder,
        beyond: JobNumber,
        limit: u32,
    ) -> Result<Vec<SearchHit>, JournalError> {
        self.read_projected(|connection| {
            if !self.can_filter_statuses(connection, filter)? {
                return Ok(Vec::new());
            }
            let mut hits = Vec::new();
            for state in filter.states_to_query() {
                let (sql, values) = filter.build_query(state, order, beyond, limit);
                let read = || -> rusqlite::Result<Vec<(SearchHit, (i64, usize))>> {
                    let mut statement = connection.prepare_cached(&sql)?;
                    let rows = statement.query_map(params_from_iter(values), |row| {
                        let is_child = row.get::<_, Option<JobNumber>>(10)?.is_some();
                        let place = match is_child {
                            true => Some((StepIndex(row.get(6)?), row.get(7)?)),
                            false => None,
                        };
                        let hit = SearchHit {
                            number: row.get(0)?,
                            id: to_job_id(row.get(1)?),
                            workflow: row.get(2)?,
                            state: row.get(3)?,
                            created: Timestamp(row.get(4)?),
                            ended: row.get::<_, Option<i64>>(5)?.map(Timestamp),
                            reason: None,
                            parent_item: place,
                            steps: None,
                        };
                        Ok((hit, (row.get(8)?, row.get::<_, u16>(9)?.into())))
                    })?;
                    rows.collect()
                };
                hits.extend(read().map_err(|error| self.to_journal_error(error))?);
            }
            hits.sort_unstable_by_key(|(hit, _)| (hit.parent_item, hit.number));
            if order == SearchOrder::NewestFirst {
                hits.reverse();
            }
            hits.truncate(limit as usize);
            self.rebuild(connection, |rebuild| {
                for (hit, (definition, graph)) in &mut hits {
                    // Jobs with a damaged definition are listed too.
                    let definition = rebuild.load_definition(*definition).ok();
                    hit.steps = definition
                        .and_then(|definition| Some(definition.graphs.get(*graph)?.steps.len()));
                    if has_reason(&hit.state) {
                        hit.reason = self.end_reason(connection, hit.number)?;
                    }
                }
                Ok(())
            })?;
            Ok(hits.into_iter().map(|(hit, _)| hit).collect())
        })
    }

    fn count_matches(&self, filter: &JobFilter, most: u32) -> Result<u32, JournalError> {
        self.read_projected(|connection| {
            if !self.can_filter_statuses(connection, filter)? {
                return Ok(0);
            }
            let mut count = 0;
            for state in filter.states_to_query() {
                let (place, mut values) = filter.build_conditions(state);
                values.push((most - count).into());
                let sql = format!("SELECT count(*) FROM (SELECT 1 FROM {place} LIMIT ?)");
                let read = || -> rusqlite::Result<u32> {
                    let mut statement = connection.prepare_cached(&sql)?;
                    statement.query_row(params_from_iter(values), |row| row.get(0))
                };
                count += read().map_err(|error| self.to_journal_error(error))?;
            }
            Ok(count)
        })
    }

    fn count_root_jobs_by_state(&self) -> Result<Vec<(String, JobState, i64)>, JournalError> {
        let sql = "SELECT workflow, state, count(*) FROM jobs INDEXED BY jobs_by_state \
                   WHERE parent IS NULL GROUP BY workflow, state";
        self.read_projected(|connection| {
            let read = || -> rusqlite::Result<Vec<(String, Option<JobState>, i64)>> {
                let mut statement = connection.prepare_cached(sql)?;
                let rows = statement.query_map([], |row| {
                    let state = JobState::from_name(row.get_ref(1)?.as_str()?);
                    Ok((row.get(0)?, state, row.get(2)?))
                })?;
                rows.collect()
            };
            let counts = read().map_err(|error| self.to_journal_error(error))?;
            let known =
                |(workflow, state, count): (_, Option<_>, _)| Some((workflow, state?, count));
            Ok(counts.into_iter().filter_map(known).collect())
        })
    }
}

impl Reader {
    /// Returns whether the workflow has a status table, if the filter has statuses.
    fn can_filter_statuses(
        &self,
        connection: &Connection,
        filter: &JobFilter,
    ) -> Result<bool, JournalError> {
        if filter.statuses.is_empty() {
            return Ok(true);
        }
        let Some(table) = filter.status_table() else { return Ok(false) };
        let columns = table.columns(connection).map_err(|error| self.to_journal_error(error))?;
        Ok(columns.is_some())
    }
}

/// Returns whether jobs end in this state for a reason.
pub(super) fn has_reason(state: &str) -> bool {
    [JobState::Failed.as_str(), JobState::Cancelled.as_str()].contains(&state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::ParentKey;
    use crate::sqlite::empty_journal;
    use engine::JobId;
    use uuid::Uuid;

    /// Returns SQLite's query plan for a filter, beyond the job with this number.
    fn plan(
        connection: &Connection,
        filter: &JobFilter,
        order: SearchOrder,
        beyond: JobNumber,
    ) -> String {
        let state = filter.states_to_query().remove(0);
        let (sql, values) = filter.build_query(state, order, beyond, 10);
        let mut statement =
            connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("prepares");
        let steps = statement.query_map(params_from_iter(values), |row| row.get::<_, String>(3));
        steps.expect("a plan").map(|step| step.expect("a step")).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn common_searches_read_an_index_in_order() {
        let (_folder, connection) = empty_journal();
        let any = JobFilter::default();
        let failed = JobFilter { states: vec![JobState::Failed], ..JobFilter::default() };
        let of_workflow =
            |filter: &JobFilter| JobFilter { workflow: Some("w".into()), ..filter.clone() };
        let one = Some((JobId(Uuid::from_u128(1)), JobId(Uuid::from_u128(2))));
        let by_id = JobFilter { id_range: one, ..failed.clone() };
        let parent = Some(ParentKey { number: 7, root: 7 });
        let of_job = |filter: &JobFilter| JobFilter { parent, ..filter.clone() };
        let running = JobFilter { states: vec![JobState::Running], ..JobFilter::default() };
        for (filter, index) in [
            (&of_job(&any), "jobs_by_place "),
            (&of_job(&running), "jobs_by_place "),
            (&of_job(&failed), "jobs_children_failed "),
            (&of_job(&by_id), "jobs_by_id "),
            (&any, "jobs_top "),
            (&failed, "jobs_top_by_state "),
            (&of_workflow(&failed), "jobs_by_state "),
            (&by_id, "jobs_by_id "),
        ] {
            let orders = [SearchOrder::NewestFirst, SearchOrder::OldestFirst];
            for (order, is_first) in
                orders.into_iter().flat_map(|order| [(order, true), (order, false)])
            {
                let beyond = if is_first { order.start_cursor() } else { 17 };
                let plan = plan(&connection, filter, order, beyond);
                assert!(plan.contains(&format!("{index}(")), "{plan}");
                // Few jobs have an id in the range, so they are sorted.
                let sorts = plan.contains("ORDER BY");
                assert_eq!(sorts, filter.id_range.is_some(), "{plan}");
            }
        }
    }
}
