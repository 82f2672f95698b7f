//! What is in the journal, rebuilt at most once for each state of a job.

use rusqlite::{Connection, OpenFlags, OptionalExtension};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use workflow_manager::engine::JobId;
use workflow_manager::journal::{
    JobNumber, JobRecords, JournalOptions, Reader, SqliteJournal, StoredJob,
};

/// A job's number and that of its last row, or of the last confirms: it is what it was as long as
/// these are.
type State = (JobNumber, i64);

pub(crate) struct JournalView {
    pub(crate) reader: Reader,
    watch: Option<Connection>,
    seen: RefCell<HashMap<JobId, (State, Arc<StoredJob>)>>,
}

impl JournalView {
    pub(crate) fn new(database: &Path) -> JournalView {
        let watch = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY).ok();
        JournalView { reader: Reader::new(database), watch, seen: RefCell::default() }
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

/// Reads the journal without the program: each step, child and job settles once, and nothing is
/// left running.
pub(super) fn check_settled_once(database: &Path) -> Result<(), String> {
    let failed = |error: rusqlite::Error| error.to_string();
    // What the last process has left is derived by the next.
    let options = JournalOptions {
        file: database.to_owned(),
        cache_bytes: 1 << 20,
        verify_bytes_max: 1 << 30,
        pages_max: 0,
    };
    drop(SqliteJournal::open(&options).map_err(|error| error.to_string())?);
    let connection = Connection::open(database).map_err(failed)?;
    let running: i64 = connection
        .query_row("SELECT count(*) FROM jobs WHERE ended IS NULL", [], |row| row.get(0))
        .map_err(failed)?;
    if running > 0 {
        return Err(format!("{running} jobs or child jobs are still running"));
    }
    let open = "SELECT count(*) FROM jobs WHERE open = 1 AND state IN ('completed', 'cancelled')";
    let owing: i64 = connection.query_row(open, [], |row| row.get(0)).map_err(failed)?;
    if owing > 0 {
        return Err(format!("{owing} jobs that are over still owe an answer"));
    }
    let mut statement =
        connection.prepare("SELECT job, body FROM entries ORDER BY seq").map_err(failed)?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).map_err(failed)?;
    let rows: Vec<(i64, String)> = rows.collect::<Result<_, _>>().map_err(failed)?;
    let mut settled: BTreeMap<(i64, String), String> = BTreeMap::new();
    for (job, body) in rows {
        // `{"job":"completed"}`, `{"step":[0,{"completed":{…}}]}`
        let entries: Vec<BTreeMap<String, serde_json::Value>> =
            serde_json::from_str(&body).map_err(|error| error.to_string())?;
        for (about, fact) in entries.into_iter().flatten() {
            let step = &fact[0];
            let entry = if step.is_null() { &fact } else { &fact[1] };
            let named = entry.as_object().and_then(|entry| entry.iter().next());
            let verb = named.map_or_else(|| entry.as_str(), |(verb, _)| Some(verb.as_str()));
            let verb = verb.unwrap_or_default().to_owned();
            let of_job = (job, String::new())..(job + 1, String::new());
            let forget = |settled: &mut BTreeMap<(i64, String), String>, what: &str| {
                let again: Vec<_> = settled
                    .range(of_job.clone())
                    .filter(|((_, of), verb)| of.ends_with(what) && verb.ends_with("failed"))
                    .map(|(key, _)| key.clone())
                    .collect();
                again.iter().for_each(|key| drop(settled.remove(key)));
            };
            let what = match (about.as_str(), verb.as_str()) {
                // What had failed may be settled again.
                ("job", "retried") => {
                    forget(&mut settled, "");
                    continue;
                }
                ("job", "rerun") => {
                    let again: Vec<_> =
                        settled.range(of_job.clone()).map(|(key, _)| key.clone()).collect();
                    again.iter().for_each(|key| drop(settled.remove(key)));
                    continue;
                }
                ("fan_out", "restarted") => {
                    forget(&mut settled, &format!("of step {step}"));
                    continue;
                }
                ("step", "completed" | "failed" | "skipped" | "cancelled")
                | ("fan_out", "completed") => format!("step {step}"),
                ("fan_out", "child_completed" | "child_failed") => {
                    format!("child {} of step {step}", entry[&verb]["index"])
                }
                ("job", "completed" | "failed" | "cancelled") => "itself".to_owned(),
                _ => continue,
            };
            if settled.insert((job, what.clone()), verb).is_some() {
                return Err(format!("job number {job} settled {what} twice"));
            }
        }
    }
    Ok(())
}
