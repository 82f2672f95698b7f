//! Queries of the definitions that stored jobs run.

use super::connection::{params, to_sql_text};
use super::reader::Reader;
use crate::error::JournalError;
use crate::query::DefinitionUse;
use crate::traits::DefinitionRecords;
use engine::{Definition, DefinitionHash, Timestamp};
use std::sync::Arc;

/// Selects the definitions of the root jobs of a workflow, each with its numbers of jobs.
const SELECT_USES: &str = "
SELECT d.hash, count(*) FILTER (WHERE j.ended IS NULL), count(j.ended), max(j.ended)
FROM jobs j JOIN definitions d ON d.number = j.definition
WHERE j.workflow = $1 AND j.parent IS NULL
GROUP BY d.number, d.hash ORDER BY d.number DESC";

impl DefinitionRecords for Reader {
    fn load_definition(
        &self,
        hash: DefinitionHash,
    ) -> Result<Option<Arc<Definition>>, JournalError> {
        let session = self.pool.begin()?;
        let sql = "SELECT number FROM definitions WHERE hash = $1";
        let rows = session.query(sql, params![hash.0.to_vec()])?;
        let number = rows.first().map(|row| row.get(0));
        number.map(|number| self.load_definition_by_number(&session, number)).transpose()
    }

    fn load_definition_uses(&self, workflow: &str) -> Result<Vec<DefinitionUse>, JournalError> {
        let mut uses = Vec::new();
        for row in self.query(SELECT_USES, params![to_sql_text(workflow)])? {
            let hash: Vec<u8> = row.get(0);
            let Ok(hash) = hash.try_into() else { continue };
            uses.push(DefinitionUse {
                hash: DefinitionHash(hash),
                running: row.get(1),
                ended: row.get(2),
                last_ended: row.get::<_, Option<i64>>(3).map(Timestamp),
            });
        }
        Ok(uses)
    }
}
