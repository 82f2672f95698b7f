//! Queries of the definitions that stored jobs run.

use super::reader::Reader;
use crate::error::JournalError;
use crate::query::DefinitionUse;
use crate::traits::DefinitionRecords;
use engine::{Definition, DefinitionHash, Timestamp};
use rusqlite::OptionalExtension;
use std::sync::Arc;

/// Selects the definitions of a workflow, each with its numbers of running and ended root jobs.
/// Jobs are counted only for the definitions of this workflow, which are found by the names in
/// their bodies. A damaged body that is not valid JSON is skipped here, and reported when it is
/// read.
const SELECT_USES: &str = "
SELECT hash, running, ended, last FROM (
  SELECT d.number, d.hash,
    (SELECT count(*) FROM jobs j WHERE j.workflow = ?1 AND j.parent IS NULL AND j.ended IS NULL \
      AND j.definition = d.number) AS running,
    (SELECT count(*) FROM jobs j WHERE j.definition = d.number AND j.parent IS NULL \
      AND j.ended IS NOT NULL) AS ended,
    (SELECT max(j.ended) FROM jobs j WHERE j.definition = d.number AND j.parent IS NULL \
      AND j.ended IS NOT NULL) AS last
  FROM definitions d
  WHERE json_valid(d.body) AND ?1 = iif(coalesce(d.body ->> '$.vhost', '') = '', '', \
    (d.body ->> '$.vhost') || '/') || (d.body ->> '$.name')
) WHERE running + ended > 0 ORDER BY number DESC";

impl DefinitionRecords for Reader {
    fn load_definition(
        &self,
        hash: DefinitionHash,
    ) -> Result<Option<Arc<Definition>>, JournalError> {
        self.read(|connection| {
            let number = connection
                .prepare_cached("SELECT number FROM definitions WHERE hash = ?1")
                .and_then(|mut statement| {
                    statement.query_row([hash.0], |row| row.get(0)).optional()
                })
                .map_err(|error| self.to_journal_error(error))?;
            let Some(number) = number else { return Ok(None) };
            self.rebuild(connection, |rebuilder| rebuilder.load_definition(number)).map(Some)
        })
    }

    fn load_definition_uses(&self, workflow: &str) -> Result<Vec<DefinitionUse>, JournalError> {
        self.read_projected(|connection| {
            let read = || -> rusqlite::Result<Vec<DefinitionUse>> {
                let mut statement = connection.prepare_cached(SELECT_USES)?;
                let rows = statement.query_map([workflow], |row| {
                    Ok(DefinitionUse {
                        hash: DefinitionHash(row.get(0)?),
                        running: row.get(1)?,
                        ended: row.get(2)?,
                        last_ended: row.get::<_, Option<i64>>(3)?.map(Timestamp),
                    })
                })?;
                rows.collect()
            };
            read().map_err(|error| self.to_journal_error(error))
        })
    }
}
