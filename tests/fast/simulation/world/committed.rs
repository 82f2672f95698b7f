//! What is in the journal, rebuilt at most once for each state of a job.

use rusqlite::{Connection, OpenFlags, OptionalExtension};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use workflow_manager::engine::JobId;
use workflow_manager::journal::Found;
use workflow_manager::journal::{JobNumber, Reader};

/// A job's number and that of its last row of entries: it is what it was as long as these are.
type State = (JobNumber, i64);

pub(crate) struct Committed {
    pub(crate) reader: Reader,
    watch: Option<Connection>,
    seen: RefCell<HashMap<JobId, (State, Arc<Found>)>>,
}

impl Committed {
    pub(crate) fn new(database: &Path) -> Committed {
        let watch = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY).ok();
        Committed { reader: Reader::new(database), watch, seen: RefCell::default() }
    }

    pub(crate) fn job(&self, id: JobId) -> Option<Arc<Found>> {
        let Some(state) = self.state(id) else {
            return self.reader.job(id).ok().flatten().map(Arc::new);
        };
        let mut seen = self.seen.borrow_mut();
        if let Some((_, found)) = seen.get(&id).filter(|(known, _)| *known == state) {
            return Some(found.clone());
        }
        let found = Arc::new(self.reader.job(id).ok().flatten()?);
        seen.insert(id, (state, found.clone()));
        Some(found)
    }

    fn state(&self, id: JobId) -> Option<State> {
        let sql = "SELECT number, (SELECT max(seq) FROM entries WHERE job = number) FROM jobs WHERE id = ?1 ORDER BY number DESC LIMIT 1";
        let mut statement = self.watch.as_ref()?.prepare_cached(sql).ok()?;
        statement
            .query_row([id.0.as_bytes()], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()
            .ok()?
    }
}
