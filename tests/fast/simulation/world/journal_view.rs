//! What is in the journal, rebuilt at most once for each state of a job.

use rusqlite::{Connection, OpenFlags, OptionalExtension};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use workflow_manager::engine::JobId;
use workflow_manager::journal::{JobNumber, JobRecords, Reader, StoredJob};

/// A job's number and that of its last row, or of the last confirms: it is what it was as long as
/// these are.
type State = (JobNumber, i64);

pub(crate) struct Committed {
    pub(crate) reader: Reader,
    watch: Option<Connection>,
    seen: RefCell<HashMap<JobId, (State, Arc<StoredJob>)>>,
}

impl Committed {
    pub(crate) fn new(database: &Path) -> Committed {
        let watch = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY).ok();
        Committed { reader: Reader::new(database), watch, seen: RefCell::default() }
    }

    pub(crate) fn job(&self, id: JobId) -> Option<Arc<StoredJob>> {
        let Some(state) = self.state(id) else {
            return self.reader.load_job(id).ok().flatten().map(Arc::new);
        };
        let mut seen = self.seen.borrow_mut();
        if let Some((_, found)) = seen.get(&id).filter(|(known, _)| *known == state) {
            return Some(found.clone());
        }
        let found = Arc::new(self.reader.load_job(id).ok().flatten()?);
        seen.insert(id, (state, found.clone()));
        Some(found)
    }

    fn state(&self, id: JobId) -> Option<State> {
        // Among the rows that are not derived yet, too.
        let sql = "WITH tail AS (SELECT seq, job, origin FROM entries \
                          WHERE seq > (SELECT upto FROM derived)),
                        newest(number) AS (SELECT max(number) FROM (SELECT number FROM jobs \
                          WHERE id = ?1
                            UNION ALL SELECT job FROM tail WHERE substr(origin, 3, 36) = ?2))
                   SELECT number, max((SELECT coalesce(max(seq), 0) FROM places WHERE job = number),
                                      (SELECT coalesce(max(seq), 0) FROM tail WHERE job = number),
                                      (SELECT coalesce(max(seq), 0) FROM confirmed))
                   FROM newest WHERE number IS NOT NULL";
        let mut statement = self.watch.as_ref()?.prepare_cached(sql).ok()?;
        let values = rusqlite::params![id.0.as_bytes(), id.to_string()];
        statement.query_row(values, |row| Ok((row.get(0)?, row.get(1)?))).optional().ok()?
    }
}
