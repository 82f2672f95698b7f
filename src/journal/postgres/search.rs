//! Searches root jobs, or the child jobs of one job, by workflow, state, status, id and time.

use super::cells;
use super::connection::{Params, params, to_sql_text};
use super::reader::Reader;
use crate::error::JournalError;
use crate::query::{JobFilter, SearchHit, SearchOrder, has_reason, order_cells};
use crate::record::JobNumber;
use crate::traits::SearchRecords;
use engine::{JobId, JobState, ReasonId, StepIndex, Timestamp};
use std::sync::Arc;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// The condition of a query, as SQL, with its parameters.
struct Conditions {
    sql: Vec<String>,
    params: Params,
}

impl Conditions {
    /// Adds a condition. `{}` in it stands for the parameter.
    fn add(&mut self, condition: &str, param: impl ToSql + Sync + Send + 'static) {
        self.params.push(Arc::new(param));
        self.sql.push(condition.replace("{}", &format!("${}", self.params.len())));
    }

    /// Returns the conditions of a filter, within one state if there is one. An index has the jobs
    /// of one state in order; those of several states it has not.
    fn of_filter(filter: &JobFilter, state: Option<JobState>) -> Conditions {
        let mut conditions = Conditions { sql: Vec::new(), params: Vec::new() };
        match filter.parent {
            None => conditions.sql.push("j.parent IS NULL".to_owned()),
            Some(parent) => {
                conditions.add("j.root = {}", parent.root);
                conditions.add("j.parent = {}", parent.number);
                if matches!(state, Some(JobState::Failed | JobState::Cancelled)) {
                    // A partial index is used only if its condition is repeated.
                    conditions.sql.push("j.state IN ('failed', 'cancelled')".to_owned());
                }
            }
        }
        if let Some(workflow) = &filter.workflow {
            conditions.add("j.workflow = {}", to_sql_text(workflow));
        }
        if let Some(state) = state {
            conditions.add("j.state = {}", state.as_str());
        }
        let times = [
            ("j.created >= {}", filter.created_from),
            ("j.created < {}", filter.created_before),
            ("j.ended >= {}", filter.ended_from),
            ("j.ended < {}", filter.ended_before),
        ];
        for (condition, time) in times {
            if let Some(time) = time {
                conditions.add(condition, time.0);
            }
        }
        for (step, status) in &filter.statuses {
            conditions.add_status(filter.workflow.as_deref().unwrap_or(""), step, status);
        }
        for (name, value) in &filter.cells {
            conditions.add_cell(name, value);
        }
        if let Some(label) = &filter.label {
            let condition = "j.number IN (SELECT c.job FROM cells c WHERE c.name = 'label' \
                             AND strpos(lower(c.value), lower({}::text)) > 0)";
            conditions.add(condition, to_sql_text(label));
        }
        if let Some(schedule) = &filter.schedule {
            conditions.add_schedule(schedule);
        }
        if let Some(ReasonId(reason)) = filter.reason {
            let column = if filter.parent.is_none() { "root" } else { "job" };
            let condition =
                format!("j.number IN (SELECT f.{column} FROM failures f WHERE f.reason = {{}})");
            conditions.add(&condition, reason);
        }
        if filter.failed_items {
            let is_root = filter.parent.is_none();
            let table =
                format!("j.number IN (SELECT t.job FROM tolerated t WHERE t.is_root = {is_root}");
            match &filter.workflow {
                Some(workflow) => {
                    let condition = format!("{table} AND t.workflow = {{}})");
                    conditions.add(&condition, to_sql_text(workflow));
                }
                None => conditions.sql.push(format!("{table})")),
            }
        }
        if let Some((first, last)) = filter.id_range {
            conditions.add("j.id >= {}", first.0);
            conditions.add("j.id <= {}", last.0);
        }
        conditions
    }

    /// Adds the condition that a job was started by this schedule. A `CASE` evaluates its parts in
    /// order. Escapes of characters are replaced, because the server refuses some of those that a
    /// job's message may have; a schedule's name has none.
    fn add_schedule(&mut self, schedule: &str) {
        let first = self.params.len() + 1;
        for text in [&*JobFilter::slot_text(schedule), schedule] {
            self.params.push(Arc::new(to_sql_text(text)));
        }
        self.sql.push(format!(
            "EXISTS (SELECT 1 FROM entries e WHERE e.job = j.number AND e.first = 0 AND CASE WHEN \
             strpos(e.body, ${first}) > 0 THEN regexp_replace(e.body, '\\\\u[0-9a-fA-F]{{4}}', \
             '\\\\u0001', 'g')::json #>> '{{0,job,created,slot,schedule}}' = ${} END)",
            first + 1
        ));
    }

    fn add_cell(&mut self, name: &str, value: &str) {
        let first = self.params.len() + 1;
        self.params.extend(params![to_sql_text(name), to_sql_text(value)]);
        self.sql.push(format!(
            "j.number IN (SELECT c.job FROM cells c WHERE c.name = ${first} AND c.value = ${})",
            first + 1
        ));
    }

    fn add_status(&mut self, workflow: &str, step: &str, status: &str) {
        let first = self.params.len() + 1;
        for text in [workflow, step, status] {
            self.params.push(Arc::new(to_sql_text(text)));
        }
        self.sql.push(format!(
            "j.number IN (SELECT s.job FROM statuses s WHERE s.word = ${} AND s.step = (SELECT id \
             FROM steps WHERE workflow = ${first} AND name = ${}))",
            first + 2,
            first + 1
        ));
    }
}

/// Returns the SQL of a page of search results, and its parameters.
fn build_query(
    filter: &JobFilter,
    state: Option<JobState>,
    order: SearchOrder,
    after: JobNumber,
    limit: u32,
) -> (String, Params) {
    let mut conditions = Conditions::of_filter(filter, state);
    let (comparison, direction) = match order {
        SearchOrder::NewestFirst => ("<", "DESC"),
        SearchOrder::OldestFirst => (">", "ASC"),
    };
    let columns: &[&str] = match filter.parent {
        None => {
            conditions.add(&format!("j.number {comparison} {{}}"), after);
            &["number"]
        }
        Some(_) => {
            // The cursor is a number here too. The position in the order is that of its row.
            if after != order.start_cursor() {
                let cursor = "(SELECT b.step, b.item, b.number FROM jobs b WHERE b.number = {})";
                let condition = format!("(j.step, j.item, j.number) {comparison} {cursor}");
                conditions.add(&condition, after);
            }
            &["step", "item", "number"]
        }
    };
    let order_terms: Vec<String> =
        columns.iter().map(|column| format!("j.{column} {direction}")).collect();
    let sql = format!(
        "SELECT j.number, j.id, j.workflow, j.state, j.created, j.ended, j.step, j.item, \
         j.definition, j.graph, j.parent, \
         COALESCE((SELECT true FROM tolerated t WHERE t.job = j.number), false) \
         FROM jobs j WHERE {} ORDER BY {} LIMIT ${}",
        conditions.sql.join(" AND "),
        order_terms.join(", "),
        conditions.params.len() + 1
    );
    conditions.params.push(Arc::new(i64::from(limit)));
    (sql, conditions.params)
}

/// A search result, with its definition and graph.
struct FoundJob {
    hit: SearchHit,
    definition: i64,
    graph: usize,
}

impl FoundJob {
    fn from_row(row: &Row) -> FoundJob {
        let is_child = row.get::<_, Option<JobNumber>>(10).is_some();
        let step = || row.get::<_, Option<i32>>(6).and_then(|step| u16::try_from(step).ok());
        let item = || row.get::<_, Option<i64>>(7).and_then(|item| u32::try_from(item).ok());
        let parent_item = if is_child { step().map(StepIndex).zip(item()) } else { None };
        let hit = SearchHit {
            number: row.get(0),
            id: JobId(row.get(1)),
            workflow: row.get(2),
            state: row.get(3),
            created: Timestamp(row.get(4)),
            ended: row.get::<_, Option<i64>>(5).map(Timestamp),
            reason: None,
            parent_item,
            steps: None,
            has_failed_items: row.get(11),
            cells: Vec::new(),
        };
        let graph = usize::try_from(row.get::<_, i32>(9)).unwrap_or(usize::MAX);
        FoundJob { hit, definition: row.get(8), graph }
    }
}

impl SearchRecords for Reader {
    fn count_root_jobs_by_state(&self) -> Result<Vec<(String, JobState, i64)>, JournalError> {
        let sql = "SELECT workflow, state, count(*) FROM jobs WHERE parent IS NULL \
                   GROUP BY workflow, state";
        let rows = self.query(sql, Vec::new())?;
        let to_count = |row: &Row| {
            JobState::from_name(row.get(1)).map(|state| (row.get(0), state, row.get(2)))
        };
        Ok(rows.iter().filter_map(to_count).collect())
    }

    fn search(
        &self,
        filter: &JobFilter,
        order: SearchOrder,
        after: JobNumber,
        limit: u32,
    ) -> Result<Vec<SearchHit>, JournalError> {
        let session = self.pool.begin()?;
        let mut found = Vec::new();
        for state in filter.states_to_query() {
            let (sql, params) = build_query(filter, state, order, after, limit);
            found.extend(session.query(&sql, params)?.iter().map(FoundJob::from_row));
        }
        found.sort_unstable_by_key(|job| (job.hit.parent_item, job.hit.number));
        if order == SearchOrder::NewestFirst {
            found.reverse();
        }
        found.truncate(limit as usize);
        let roots = found.iter().filter(|job| job.hit.parent_item.is_none());
        let numbers: Vec<JobNumber> = roots.map(|job| job.hit.number).collect();
        let mut cells = cells::load_rows(&session, &numbers)?;
        for job in &mut found {
            // A job with a damaged definition is listed without its number of steps.
            let definition = self.load_definition_by_number(&session, job.definition).ok();
            if let Some((definition, rows)) = definition.as_ref().zip(cells.remove(&job.hit.number))
            {
                job.hit.cells = order_cells(&definition.columns, rows);
            }
            job.hit.steps = definition
                .and_then(|definition| Some(definition.graphs.get(job.graph)?.steps.len()));
            if has_reason(&job.hit.state) {
                job.hit.reason = session.end_reason(job.hit.number)?;
            }
        }
        Ok(found.into_iter().map(|job| job.hit).collect())
    }

    fn count_matches(&self, filter: &JobFilter, limit: u32) -> Result<u32, JournalError> {
        let session = self.pool.begin()?;
        let mut count = 0;
        for state in filter.states_to_query() {
            let mut conditions = Conditions::of_filter(filter, state);
            conditions.params.push(Arc::new(i64::from(limit - count)));
            let sql = format!(
                "SELECT count(*) FROM (SELECT 1 FROM jobs j WHERE {} LIMIT ${}) m",
                conditions.sql.join(" AND "),
                conditions.params.len()
            );
            let rows = session.query(&sql, conditions.params)?;
            let matches: i64 = rows.first().map_or(0, |row| row.get(0));
            count += u32::try_from(matches).unwrap_or(limit).min(limit - count);
        }
        Ok(count)
    }
}
