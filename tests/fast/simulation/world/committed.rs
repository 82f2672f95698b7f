//! What is in the journal, read at most once for each state of it.

use rusqlite::{Connection, OpenFlags};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use workflow_manager::engine::JobId;
use workflow_manager::journal::Reader;
use workflow_manager::journal::read::Found;

pub(crate) struct Committed {
    pub(crate) reader: Reader,
    /// Tells whether somebody has committed since.
    watch: Option<Connection>,
    seen: RefCell<Seen>,
}

/// What was read of one state of the file.
#[derive(Default)]
struct Seen {
    version: Option<i64>,
    jobs: HashMap<JobId, Option<Arc<Found>>>,
}

impl Committed {
    pub(crate) fn new(database: &Path) -> Committed {
        let watch = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY).ok();
        Committed { reader: Reader::new(database), watch, seen: RefCell::default() }
    }

    pub(crate) fn job(&self, id: JobId) -> Option<Arc<Found>> {
        let version = self.watch.as_ref().and_then(|watch| watch.query_row("PRAGMA data_version", [], |row| row.get::<_, i64>(0)).ok());
        let mut seen = self.seen.borrow_mut();
        if version.is_none() || seen.version != version {
            *seen = Seen { version, ..Seen::default() };
        }
        let read = || self.reader.job(id).ok().flatten().map(Arc::new);
        seen.jobs.entry(id).or_insert_with(read).clone()
    }
}
