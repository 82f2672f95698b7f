//! Searching top-level jobs by workflow, state, status and time.

use super::reader::{Reader, id_of};
use super::relation::{Relation, quoted};
use crate::engine::Timestamp;
use crate::journal::error::JournalError;
use crate::journal::query::{Filter, Hit};
use crate::journal::record::JobNumber;
use rusqlite::params_from_iter;
use rusqlite::types::Value;

impl Filter {
    fn relation(&self) -> Relation {
        Relation::named(self.workflow.as_deref().unwrap_or_default())
    }

    fn sql(&self, below: JobNumber, limit: u32) -> (String, Vec<Value>) {
        let mut conditions = vec!["parent IS NULL".to_owned(), "number < ?".to_owned()];
        let mut values = vec![Value::from(below)];
        let mut add = |condition: String, value: Value| {
            conditions.push(condition);
            values.push(value);
        };
        self.workflow.iter().for_each(|name| add("workflow = ?".to_owned(), name.clone().into()));
        self.state
            .iter()
            .for_each(|state| add("state = ?".to_owned(), state.word().to_owned().into()));
        self.created_from.iter().for_each(|time| add("created >= ?".to_owned(), time.0.into()));
        self.created_before.iter().for_each(|time| add("created < ?".to_owned(), time.0.into()));
        let relation = self.relation().quoted();
        for (step, word) in &self.statuses {
            add(
                format!("number IN (SELECT _rowid_ FROM {relation} WHERE {} = ?)", quoted(step)),
                word.clone().into(),
            );
        }
        values.push(limit.into());
        let order = "ORDER BY number DESC LIMIT ?";
        (
            format!(
                "SELECT number, id, workflow, state, created, ended FROM jobs WHERE {} {order}",
                conditions.join(" AND ")
            ),
            values,
        )
    }
}

impl Reader {
    /// Top-level jobs that meet the filter, newest first, below a number.
    pub(super) fn search(
        &self,
        filter: &Filter,
        below: JobNumber,
        limit: u32,
    ) -> Result<Vec<Hit>, JournalError> {
        self.with_derived(|connection| {
            let read = || -> rusqlite::Result<Vec<Hit>> {
                if !filter.statuses.is_empty() && filter.relation().columns(connection)?.is_none() {
                    return Ok(Vec::new());
                }
                let (sql, values) = filter.sql(below, limit);
                let mut statement = connection.prepare_cached(&sql)?;
                let rows = statement.query_map(params_from_iter(values), |row| {
                    Ok(Hit {
                        number: row.get(0)?,
                        id: id_of(row.get(1)?),
                        workflow: row.get(2)?,
                        state: row.get(3)?,
                        created: Timestamp(row.get(4)?),
                        ended: row.get::<_, Option<i64>>(5)?.map(Timestamp),
                    })
                })?;
                rows.collect()
            };
            read().map_err(|error| self.failed(error))
        })
    }
}
