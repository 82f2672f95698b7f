//! Reads the creation and end times of root jobs, row by row, for statistics. These reads do not
//! project first, so they never wait for the writing end. What earlier processes committed was
//! projected when the journal was opened.

use super::reader::Reader;
use crate::error::JournalError;
use crate::query::EndedCursor;
use crate::record::JobNumber;
use crate::traits::StatisticsRecords;
use engine::{JobState, Timestamp};
use rusqlite::params;

/// Selects root jobs with numbers below a number, the newest first.
const SELECT_CREATIONS: &str = "SELECT number, workflow, created FROM jobs INDEXED BY jobs_top
    WHERE parent IS NULL AND number < ?1 ORDER BY number DESC LIMIT ?2";

/// Selects root jobs of a workflow that ended since a time, before a cursor, the last one first.
const SELECT_ENDS: &str = "SELECT number, state, created, ended FROM jobs INDEXED BY jobs_ended
    WHERE workflow = ?1 AND parent IS NULL AND ended IS NOT NULL AND ended >= ?2
    AND (ended, number) < (?3, ?4) ORDER BY ended DESC, number DESC LIMIT ?5";

impl StatisticsRecords for Reader {
    fn for_each_creation(
        &self,
        below: JobNumber,
        limit: u32,
        handler: &mut dyn FnMut(&str, Timestamp),
    ) -> Result<Option<JobNumber>, JournalError> {
        self.read(|connection| {
            let mut read = || -> rusqlite::Result<Option<JobNumber>> {
                let mut statement = connection.prepare_cached(SELECT_CREATIONS)?;
                let mut rows = statement.query(params![below, limit])?;
                let mut last_number = None;
                while let Some(row) = rows.next()? {
                    handler(row.get_ref(1)?.as_str()?, Timestamp(row.get(2)?));
                    last_number = Some(row.get(0)?);
                }
                Ok(last_number)
            };
            read().map_err(|error| self.to_journal_error(error))
        })
    }

    fn for_each_end(
        &self,
        workflow: &str,
        since: Timestamp,
        after: EndedCursor,
        limit: u32,
        handler: &mut dyn FnMut(JobState, Timestamp, Timestamp),
    ) -> Result<Option<EndedCursor>, JournalError> {
        self.read(|connection| {
            let mut read = || -> rusqlite::Result<Option<EndedCursor>> {
                let mut statement = connection.prepare_cached(SELECT_ENDS)?;
                let mut rows = statement.query(params![
                    workflow,
                    since.0,
                    after.ended.0,
                    after.number,
                    limit
                ])?;
                let mut last_cursor = None;
                while let Some(row) = rows.next()? {
                    let ended = Timestamp(row.get(3)?);
                    if let Some(state) = JobState::from_name(row.get_ref(1)?.as_str()?) {
                        handler(state, Timestamp(row.get(2)?), ended);
                    }
                    last_cursor = Some(EndedCursor { ended, number: row.get(0)? });
                }
                Ok(last_cursor)
            };
            read().map_err(|error| self.to_journal_error(error))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::empty_journal;

    #[test]
    fn both_queries_read_an_index_in_order() {
        let (_directory, connection) = empty_journal();
        for sql in [SELECT_CREATIONS, SELECT_ENDS] {
            let mut statement = connection
                .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
                .expect("the query is valid");
            let parameters = statement.parameter_count();
            let values = rusqlite::params_from_iter((0..parameters).map(|_| 1));
            let plan: rusqlite::Result<Vec<String>> =
                statement.query_map(values, |row| row.get(3)).expect("a plan").collect();
            let plan = plan.expect("a plan").join("; ");
            assert!(plan.starts_with("SEARCH") && !plan.contains("TEMP B-TREE"), "{plan}");
        }
    }
}
