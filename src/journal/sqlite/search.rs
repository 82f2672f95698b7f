//! Searches root jobs, or the child jobs of one job, by workflow, state, status, id and time.

use super::cells;
use super::reader::{Reader, to_job_id};
use super::status_table::StatusTable;
use crate::error::JournalError;
use crate::query::{JobFilter, SearchHit, SearchOrder, has_reason};
use crate::record::JobNumber;
use crate::sql::quote_identifier;
use crate::traits::SearchRecords;
use engine::{JobState, LABEL, ReasonId, StepIndex, Timestamp};
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

/// The condition that a job was started by a schedule, whose parameters are
/// [`JobFilter::slot_text`] and the name of the schedule. A `CASE` evaluates its parts in order.
const OF_SCHEDULE: &str = "EXISTS (SELECT 1 FROM places p CROSS JOIN entries e ON e.seq = p.seq \
     WHERE p.job = jobs.number AND p.first = 0 AND CASE WHEN instr(e.body, ?) > 0 \
     THEN json_extract(e.body, '$[0].job.created.slot.schedule') = ? END)";

/// The condition that a column has a value, whose parameters are its name and the value.
const OF_CELL: &str = "number IN (SELECT job FROM cells WHERE name = ? AND value = ?)";

/// The condition that the label has a text somewhere, whose parameters are the name of the label
/// and the text.
const OF_LABEL: &str =
    "number IN (SELECT job FROM cells WHERE name = ? AND instr(lower(value), lower(?)) > 0)";

/// The root jobs of the failures of one reason, of which the index has them in order: each as often
/// as jobs of its tree failed.
const OF_REASON: &str = "failures f INDEXED BY failures_by_reason \
     CROSS JOIN jobs ON jobs.number = f.root";

/// The condition that a child job failed for a reason, whose parameter is the id of the pattern.
const CHILD_OF_REASON: &str =
    "EXISTS (SELECT 1 FROM failures f WHERE f.job = jobs.number AND f.reason = ?)";

/// The condition that a completed job has failed items.
const WITH_FAILED_ITEMS: &str = "EXISTS (SELECT 1 FROM tolerated t WHERE t.job = jobs.number)";

/// The completed root jobs with failed items, in order.
const TOLERATED: &str =
    "tolerated t INDEXED BY tolerated_roots CROSS JOIN jobs ON jobs.number = t.job";

/// Those of one workflow, whose parameter is its name.
const TOLERATED_OF_WORKFLOW: &str = "tolerated t INDEXED BY tolerated_roots_of_workflow \
     CROSS JOIN jobs ON jobs.number = t.job";

impl JobFilter {
    /// Returns whether the query reads [`TOLERATED`] or [`TOLERATED_OF_WORKFLOW`] first: another
    /// criterion leaves fewer jobs.
    fn is_by_failed_items(&self) -> bool {
        self.failed_items
            && self.parent.is_none()
            && self.id_range.is_none()
            && self.reason.is_none()
    }

    /// Returns whether the query reads [`OF_REASON`], in which a job is several times.
    fn is_by_reason(&self) -> bool {
        self.reason.is_some() && self.parent.is_none()
    }

    /// Returns the status table of the workflow; `None` if the filter has no workflow.
    fn status_table(&self) -> Option<StatusTable> {
        self.workflow.as_deref().map(StatusTable::for_workflow)
    }

    /// Returns the table and the conditions of a query for one state, as the SQL after `FROM`, with
    /// its parameters. `None`: for all states.
    fn build_conditions(&self, state: Option<JobState>) -> (String, Vec<Value>) {
        let (mut conditions, mut values) = (Vec::new(), Vec::new());
        let mut table = "jobs";
        match self.parent {
            None => conditions.push("parent IS NULL".to_owned()),
            Some(parent) => {
                conditions.push("jobs.root = ? AND parent = ?".to_owned());
                values.extend([parent.root.into(), parent.number.into()]);
                table = "jobs INDEXED BY jobs_by_place";
                if state.is_some_and(|state| has_reason(state.as_str())) {
                    // SQLite uses a partial index only if the query implies its condition.
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
        self.workflow
            .iter()
            .for_each(|name| add("jobs.workflow = ?".to_owned(), name.clone().into()));
        state
            .iter()
            .for_each(|state| add("state = ?".to_owned(), state.as_str().to_owned().into()));
        let times = [
            ("created >= ?", self.created_from),
            ("created < ?", self.created_before),
            ("jobs.ended >= ?", self.ended_from),
            ("jobs.ended < ?", self.ended_before),
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
            // Few jobs have an id in the range, so this index is used whatever the other criteria
            // are.
            table = "jobs INDEXED BY jobs_by_id";
            for (condition, id) in [("id >= ?", first), ("id <= ?", last)] {
                add(condition.to_owned(), id.0.as_bytes().to_vec().into());
            }
        }
        for (name, value) in &self.cells {
            conditions.push(OF_CELL.to_owned());
            values.extend([name.clone().into(), value.clone().into()]);
        }
        if let Some(label) = &self.label {
            conditions.push(OF_LABEL.to_owned());
            values.extend([LABEL.to_owned().into(), label.clone().into()]);
        }
        if let Some(schedule) = &self.schedule {
            conditions.push(OF_SCHEDULE.to_owned());
            values.extend([JobFilter::slot_text(schedule).into(), schedule.clone().into()]);
        }
        if let Some(ReasonId(reason)) = self.reason {
            match self.parent {
                None => {
                    table = OF_REASON;
                    conditions.push("f.reason = ?".to_owned());
                }
                Some(_) => conditions.push(CHILD_OF_REASON.to_owned()),
            }
            values.push(reason.into());
        }
        table = self.add_failed_items(&mut conditions, &mut values).unwrap_or(table);
        (format!("{table} WHERE {}", conditions.join(" AND ")), values)
    }

    /// Adds the conditions of `failed_items`. Returns the table that is read by it; `None`: that of
    /// another criterion.
    fn add_failed_items(
        &self,
        conditions: &mut Vec<String>,
        values: &mut Vec<Value>,
    ) -> Option<&'static str> {
        if !self.is_by_failed_items() {
            let condition = self.failed_items.then(|| WITH_FAILED_ITEMS.to_owned());
            conditions.extend(condition);
            return None;
        }
        conditions.push("t.is_root = 1".to_owned());
        let Some(workflow) = &self.workflow else { return Some(TOLERATED) };
        conditions.push("t.workflow = ?".to_owned());
        values.push(workflow.clone().into());
        Some(TOLERATED_OF_WORKFLOW)
    }

    /// Returns the SQL of a page of search results, and its parameters.
    fn build_query(
        &self,
        state: Option<JobState>,
        order: SearchOrder,
        after: JobNumber,
        limit: u32,
    ) -> (String, Vec<Value>) {
        let (source, mut values) = self.build_conditions(state);
        let (comparison, direction) = match order {
            SearchOrder::NewestFirst => ("<", "DESC"),
            SearchOrder::OldestFirst => (">", "ASC"),
        };
        let grouping = if self.is_by_reason() { "GROUP BY f.root" } else { "" };
        let (cursor_condition, order_columns): (_, &[&str]) = match self.parent {
            None if self.is_by_reason() => (format!("AND f.root {comparison} ?"), &["f.root"]),
            None if self.is_by_failed_items() => (format!("AND t.job {comparison} ?"), &["t.job"]),
            None => (format!("AND number {comparison} ?"), &["number"]),
            Some(_) if after == order.start_cursor() => {
                (String::new(), &["step", "item", "number"])
            }
            // Here too, the cursor is a job number. The page begins after the row of that job.
            Some(_) => (
                format!(
                    "AND (step, item, number) {comparison} \
                     (SELECT b.step, b.item, b.number FROM jobs b WHERE b.number = ?)"
                ),
                &["step", "item", "number"],
            ),
        };
        values.extend((!cursor_condition.is_empty()).then_some(after.into()));
        values.push(limit.into());
        let order_terms: Vec<String> =
            order_columns.iter().map(|column| format!("{column} {direction}")).collect();
        let columns = "number, id, jobs.workflow, state, created, jobs.ended, step, item, \
                       definition, graph, parent";
        let sql = format!(
            "SELECT {columns}, {WITH_FAILED_ITEMS} FROM {source} {cursor_condition} {grouping} \
             ORDER BY {} LIMIT ?",
            order_terms.join(", ")
        );
        (sql, values)
    }
}

impl SearchRecords for Reader {
    fn search(
        &self,
        filter: &JobFilter,
        order: SearchOrder,
        after: JobNumber,
        limit: u32,
    ) -> Result<Vec<SearchHit>, JournalError> {
        self.read_projected(|connection| {
            if !self.can_filter_statuses(connection, filter)? {
                return Ok(Vec::new());
            }
            let mut hits = Vec::new();
            for state in filter.states_to_query() {
                let (sql, values) = filter.build_query(state, order, after, limit);
                // Each hit comes with the number of its definition and the index of its graph.
                let read = || -> rusqlite::Result<Vec<(SearchHit, (i64, usize))>> {
                    let mut statement = connection.prepare_cached(&sql)?;
                    let rows = statement.query_map(params_from_iter(values), |row| {
                        let is_child = row.get::<_, Option<JobNumber>>(10)?.is_some();
                        let parent_item = if is_child {
                            Some((StepIndex(row.get(6)?), row.get(7)?))
                        } else {
                            None
                        };
                        let hit = SearchHit {
                            number: row.get(0)?,
                            id: to_job_id(row.get(1)?),
                            workflow: row.get(2)?,
                            state: row.get(3)?,
                            created: Timestamp(row.get(4)?),
                            ended: row.get::<_, Option<i64>>(5)?.map(Timestamp),
                            reason: None,
                            parent_item,
                            steps: None,
                            has_failed_items: row.get(11)?,
                            cells: Vec::new(),
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
            self.rebuild(connection, |rebuilder| {
                for (hit, (definition, graph)) in &mut hits {
                    // A job with a damaged definition is listed without its number of steps.
                    let definition = rebuilder.load_definition(*definition).ok();
                    if let Some(definition) =
                        definition.as_ref().filter(|_| hit.parent_item.is_none())
                    {
                        hit.cells = cells::load(connection, hit.number, &definition.columns)
                            .map_err(|error| self.to_journal_error(error))?;
                    }
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

    fn count_matches(&self, filter: &JobFilter, limit: u32) -> Result<u32, JournalError> {
        self.read_projected(|connection| {
            if !self.can_filter_statuses(connection, filter)? {
                return Ok(0);
            }
            let mut count = 0;
            for state in filter.states_to_query() {
                let (source, mut values) = filter.build_conditions(state);
                values.push((limit - count).into());
                let grouping = if filter.is_by_reason() { "GROUP BY f.root" } else { "" };
                let sql =
                    format!("SELECT count(*) FROM (SELECT 1 FROM {source} {grouping} LIMIT ?)");
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
            let with_valid_state =
                |(workflow, state, count): (_, Option<_>, _)| Some((workflow, state?, count));
            Ok(counts.into_iter().filter_map(with_valid_state).collect())
        })
    }
}

impl Reader {
    /// Returns whether the filter can match anything: false if it has statuses, and its workflow
    /// has no status table.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::ParentKey;
    use crate::sqlite::empty_journal;
    use engine::JobId;
    use uuid::Uuid;

    /// Returns SQLite's query plan for the page after the job with this number.
    fn plan(
        connection: &Connection,
        filter: &JobFilter,
        order: SearchOrder,
        after: JobNumber,
    ) -> String {
        let state = filter.states_to_query().remove(0);
        let (sql, values) = filter.build_query(state, order, after, 10);
        let mut statement =
            connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("the query is valid");
        let steps = statement.query_map(params_from_iter(values), |row| row.get::<_, String>(3));
        steps.expect("a plan").map(|step| step.expect("a step")).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn common_searches_read_an_index_in_order() {
        let (_directory, connection) = empty_journal();
        let any_job = JobFilter::default();
        let failed = JobFilter { states: vec![JobState::Failed], ..JobFilter::default() };
        let in_workflow =
            |filter: &JobFilter| JobFilter { workflow: Some("w".into()), ..filter.clone() };
        let id_range = Some((JobId(Uuid::from_u128(1)), JobId(Uuid::from_u128(2))));
        let by_id = JobFilter { id_range, ..failed.clone() };
        let parent = Some(ParentKey { number: 7, root: 7 });
        let in_schedule = JobFilter { schedule: Some("s".into()), ..failed.clone() };
        let in_parent = |filter: &JobFilter| JobFilter { parent, ..filter.clone() };
        let of_reason =
            |filter: &JobFilter| JobFilter { reason: Some(ReasonId(7)), ..filter.clone() };
        let with_failed_items =
            |filter: &JobFilter| JobFilter { failed_items: true, ..filter.clone() };
        let running = JobFilter { states: vec![JobState::Running], ..JobFilter::default() };
        for (filter, index) in [
            (&in_parent(&any_job), "jobs_by_place "),
            (&in_parent(&running), "jobs_by_place "),
            (&in_parent(&failed), "jobs_children_failed "),
            (&in_parent(&by_id), "jobs_by_id "),
            (&any_job, "jobs_top "),
            (&failed, "jobs_top_by_state "),
            (&in_workflow(&failed), "jobs_by_state "),
            (&in_schedule, "jobs_top_by_state "),
            (&by_id, "jobs_by_id "),
            (&of_reason(&any_job), "failures_by_reason "),
            (&of_reason(&in_workflow(&failed)), "failures_by_reason "),
            (&of_reason(&in_parent(&failed)), "jobs_children_failed "),
            (&with_failed_items(&any_job), "tolerated_roots "),
            (&with_failed_items(&in_workflow(&any_job)), "tolerated_roots_of_workflow "),
            (&with_failed_items(&in_parent(&any_job)), "jobs_by_place "),
            (&with_failed_items(&of_reason(&any_job)), "failures_by_reason "),
            (&with_failed_items(&by_id), "jobs_by_id "),
        ] {
            let orders = [SearchOrder::NewestFirst, SearchOrder::OldestFirst];
            for (order, is_first) in
                orders.into_iter().flat_map(|order| [(order, true), (order, false)])
            {
                let after = if is_first { order.start_cursor() } else { 17 };
                let plan = plan(&connection, filter, order, after);
                assert!(plan.contains(&format!("{index}(")), "{plan}");
                // Few jobs have an id in the range, so they are sorted.
                let is_sorted = plan.contains("ORDER BY") || plan.contains("GROUP BY");
                assert_eq!(is_sorted, filter.id_range.is_some(), "{plan}");
            }
        }
    }
}
