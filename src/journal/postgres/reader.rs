//! The reading end of a journal in PostgreSQL.

use super::connection::{Params, params, to_sql_text};
use super::pool::{ReaderPool, Session};
use super::rows::DatabaseRows;
use crate::error::JournalError;
use crate::numbers::NameOrdinal;
use crate::query::{EndedCursor, ForeignName, JobCreation, StoredJob, find_message};
use crate::record::JobNumber;
use crate::recover::{self, JobRow, JobRows, Rebuilder, RecoveredJob};
use crate::traits::{JobRecords, Records};
use engine::{Definition, JobId, Timestamp};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Row;

/// The reading end; clones share the connections.
#[derive(Clone)]
pub(super) struct Reader {
    pub(super) pool: Arc<ReaderPool>,
}

impl Reader {
    pub(super) fn new(pool: Arc<ReaderPool>) -> Reader {
        Reader { pool }
    }

    /// Runs one query in a transaction of its own.
    pub(super) fn query(&self, sql: &str, params: Params) -> Result<Vec<Row>, JournalError> {
        self.pool.begin()?.query(sql, params)
    }

    /// Calls `read` with a rebuilder that has the cached definitions, and caches the definitions
    /// that it loads.
    pub(super) fn rebuild<T>(
        &self,
        session: &Session<'_>,
        read: impl FnOnce(&mut Rebuilder<'_>) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        let rows = DatabaseRows::new(session);
        let mut rebuild = Rebuilder::new(&rows);
        rebuild.definitions = self.pool.cached_definitions();
        let cached_count = rebuild.definitions.len();
        let value = read(&mut rebuild)?;
        if rebuild.definitions.len() > cached_count {
            self.pool.cache_definitions(rebuild.definitions);
        }
        Ok(value)
    }

    /// Returns a definition by its number.
    pub(super) fn load_definition_by_number(
        &self,
        session: &Session<'_>,
        number: i64,
    ) -> Result<Arc<Definition>, JournalError> {
        self.rebuild(session, |rebuild| rebuild.load_definition(number))
    }
}

impl Session<'_> {
    /// Returns the number of the newest job with this id.
    pub(super) fn find_newest(&self, id: JobId) -> Result<Option<JobNumber>, JournalError> {
        let sql = "SELECT number FROM jobs WHERE id = $1 ORDER BY number DESC LIMIT 1";
        Ok(self.query(sql, params![id.0])?.first().map(|row| row.get(0)))
    }

    /// Returns the number of the newest job with this id among those of this manager's name.
    fn find_own_newest(&self, id: JobId) -> Result<Option<JobNumber>, JournalError> {
        let own = self.own("number");
        let sql =
            format!("SELECT number FROM jobs WHERE id = $1 AND {own} ORDER BY number DESC LIMIT 1");
        Ok(self.query(&sql, params![id.0])?.first().map(|row| row.get(0)))
    }

    /// Returns the row of the newest job with this id.
    pub(super) fn find_newest_row(&self, id: JobId) -> Result<Option<JobRow>, JournalError> {
        match self.find_newest(id)? {
            Some(number) => DatabaseRows::new(self).find_job(number),
            None => Ok(None),
        }
    }
}

impl Records for Reader {}

impl JobRecords for Reader {
    fn load_job(&self, id: JobId) -> Result<Option<StoredJob>, JournalError> {
        let session = self.pool.begin()?;
        let Some(number) = session.find_newest(id)? else { return Ok(None) };
        self.rebuild(&session, |rebuild| {
            let Some(root) = rebuild.load_root(number)? else { return Ok(None) };
            Ok(rebuild.load(number)?.cloned().map(|job| StoredJob { number, root, job }))
        })
    }

    fn rebuild_bytes(&self, id: JobId) -> Result<Option<usize>, JournalError> {
        let session = self.pool.begin()?;
        let Some(number) = session.find_newest(id)? else { return Ok(None) };
        // A parent has a lower number. Otherwise the row is damaged, which rebuilding reports.
        let sql = "WITH RECURSIVE line(number, parent) AS (
                     SELECT number, parent FROM jobs WHERE number = $1
                     UNION ALL SELECT j.number, j.parent FROM jobs j JOIN line l
                       ON j.number = l.parent AND j.number < l.number)
                   SELECT coalesce(sum(octet_length(body)), 0)::bigint
                   FROM entries WHERE job IN (SELECT number FROM line)";
        let rows = session.query(sql, params![number])?;
        let bytes: i64 = rows.first().map_or(0, |row| row.get(0));
        Ok(Some(usize::try_from(bytes).unwrap_or(usize::MAX)))
    }

    fn load_creation(&self, id: JobId) -> Result<Option<JobCreation>, JournalError> {
        let session = self.pool.begin()?;
        let Some(number) = session.find_own_newest(id)? else { return Ok(None) };
        let Some(job) = DatabaseRows::new(&session).find_job(number)? else { return Ok(None) };
        let rows = DatabaseRows::new(&session).entry_rows(job.number, 0, 1)?;
        let entries =
            rows.first().map(|row| row.parse(job.number, session.journal())).transpose()?;
        let message = entries.and_then(find_message);
        let workflow = self.load_definition_by_number(&session, job.definition)?.full_name();
        let is_child = job.parent.is_some();
        Ok(Some(JobCreation { number: job.number, workflow, is_child, message }))
    }

    fn find_job_number(&self, id: JobId) -> Result<Option<JobNumber>, JournalError> {
        self.pool.begin()?.find_own_newest(id)
    }

    fn find_child_number(
        &self,
        parent: JobNumber,
        id: JobId,
    ) -> Result<Option<JobNumber>, JournalError> {
        let sql = "SELECT number FROM jobs WHERE id = $1 AND parent = $2 ORDER BY number DESC \
                   LIMIT 1";
        Ok(self.query(sql, params![id.0, parent])?.first().map(|row| row.get(0)))
    }

    fn find_foreign_name(&self, number: JobNumber) -> Result<Option<ForeignName>, JournalError> {
        let ordinal = NameOrdinal::of_number(number);
        if ordinal == self.pool.ordinal {
            return Ok(None);
        }
        let sql = "SELECT name, api_address FROM names WHERE ordinal = $1";
        let rows = self.query(sql, params![ordinal.0])?;
        Ok(rows.first().map(to_foreign_name))
    }

    fn find_foreign_name_of_job(&self, id: JobId) -> Result<Option<ForeignName>, JournalError> {
        let number = self.pool.begin()?.find_newest(id)?;
        number.map_or(Ok(None), |number| self.find_foreign_name(number))
    }

    fn find_foreign_name_of_workflow(
        &self,
        workflow: &str,
    ) -> Result<Option<ForeignName>, JournalError> {
        let sql = "SELECT name, api_address FROM names
                   WHERE $1 = ANY (workflows) AND ordinal <> $2 AND owner IS NOT NULL
                   ORDER BY name LIMIT 1";
        let rows = self.query(sql, params![to_sql_text(workflow), self.pool.ordinal.0])?;
        Ok(rows.first().map(to_foreign_name))
    }

    fn recover_jobs(
        &self,
        numbers: &[JobNumber],
    ) -> Result<HashMap<JobNumber, RecoveredJob>, JournalError> {
        let session = self.pool.begin()?;
        self.rebuild(&session, |rebuild| recover::recover_jobs(rebuild, numbers))
    }

    fn recover_job_tree(&self, numbers: &[JobNumber]) -> Result<Vec<RecoveredJob>, JournalError> {
        let session = self.pool.begin()?;
        self.rebuild(&session, |rebuild| recover::recover_job_tree(rebuild, numbers))
    }

    fn load_running_root_jobs(
        &self,
        workflow: &str,
        after: JobNumber,
        limit: u32,
    ) -> Result<Vec<(JobNumber, JobId, String)>, JournalError> {
        let sql = "SELECT number, id, state FROM jobs WHERE workflow = $1 AND parent IS NULL \
                   AND ended IS NULL AND number > $2 ORDER BY number LIMIT $3";
        let rows = self.query(sql, params![to_sql_text(workflow), after, i64::from(limit)])?;
        Ok(rows.iter().map(|row| (row.get(0), JobId(row.get(1)), row.get(2))).collect())
    }

    fn load_running_jobs(
        &self,
        after: JobNumber,
        limit: u32,
    ) -> Result<Vec<(JobNumber, JobId)>, JournalError> {
        let sql = "SELECT number, id FROM jobs WHERE open AND ended IS NULL AND number > $1 \
                   ORDER BY number LIMIT $2";
        let rows = self.query(sql, params![after, i64::from(limit)])?;
        Ok(rows.iter().map(|row| (row.get(0), JobId(row.get(1)))).collect())
    }

    fn count_running_root_jobs(&self) -> Result<Vec<(String, i64)>, JournalError> {
        let sql = "SELECT workflow, count(*) FROM jobs WHERE parent IS NULL AND ended IS NULL \
                   GROUP BY workflow";
        let rows = self.query(sql, params![])?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    fn load_ended_root_jobs(
        &self,
        workflow: &str,
        since: Timestamp,
        after: EndedCursor,
        limit: u32,
    ) -> Result<Vec<(EndedCursor, JobId, String)>, JournalError> {
        let sql = "SELECT ended, number, id, state FROM jobs WHERE workflow = $1 \
                     AND parent IS NULL AND ended IS NOT NULL AND ended >= $2
                   AND (ended, number) < ($3, $4) ORDER BY ended DESC, number DESC LIMIT $5";
        let params =
            params![to_sql_text(workflow), since.0, after.ended.0, after.number, i64::from(limit)];
        let to_job = |row: &Row| {
            let cursor = EndedCursor { ended: Timestamp(row.get(0)), number: row.get(1) };
            (cursor, JobId(row.get(2)), row.get(3))
        };
        Ok(self.query(sql, params)?.iter().map(to_job).collect())
    }

    fn ensure_projected(&self) -> Result<(), JournalError> {
        Ok(())
    }

    fn close(&self, reason: &str, timeout: Duration) -> bool {
        self.pool.close(reason, timeout)
    }
}

fn to_foreign_name(row: &Row) -> ForeignName {
    ForeignName { name: row.get(0), api_address: row.get(1) }
}
