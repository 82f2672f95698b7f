//! Rebuilding jobs from their rows: all that are open, at start; one, for a reader or after a
//! panic.

use super::schema::{JOB_ROWS, checked_body, checked_definition, damaged_or_failed, job_row};
use super::{JobNumber, JobRow, JournalError, Store};
use crate::engine::{
    Definition, Effect, Entry, Job, JobId, Message, Order, Origin, Parent, StepIndex, Timestamp,
};
use crate::faults;
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A job as the journal knows it.
pub struct Recovered {
    /// Its number.
    pub number: JobNumber,
    /// The top-level job's number.
    pub root: JobNumber,
    /// The parent's number.
    pub parent: Option<JobNumber>,
    /// The job.
    pub job: Job,
    /// What a stop of the process may have lost, ready to go out.
    pub effects: Vec<Effect>,
    /// What its parent may have told it in vain.
    pub orders: Vec<Order>,
}

impl Store {
    /// All jobs that take input, parents before their children, with what is to be done for them.
    pub fn recover(&self) -> Result<Vec<Recovered>, JournalError> {
        let mut rebuild = Rebuild::new(&self.connection, &self.file);
        let rows = rebuild.rows(&format!("{JOB_ROWS} WHERE open = 1 ORDER BY number"), [])?;
        for row in rows {
            let number = row.number;
            // Those that are loaded for the sake of their children alone are not live.
            if row.parent.is_some() {
                rebuild.live_children.insert(place(&row));
            }
            rebuild.load_row(row)?;
            if rebuild.jobs.get(&number).is_some_and(|(_, job)| job.is_closed()) {
                let what = "it is marked as open, and its entries say that it is closed".to_owned();
                return Err(JournalError::Damaged {
                    file: self.file.to_string(),
                    table: "jobs",
                    row: number,
                    what,
                });
            }
            rebuild.wanted.push(number);
        }
        rebuild.finish()
    }

    /// Those of these jobs that there are, with what is to be done for them, as at a start.
    pub fn recover_some(
        &self,
        numbers: &[JobNumber],
    ) -> Result<HashMap<JobNumber, Recovered>, JournalError> {
        let mut rebuild = Rebuild::new(&self.connection, &self.file);
        for number in numbers.iter().copied() {
            if rebuild.load(number)?.is_none() {
                continue;
            }
            rebuild.wanted.push(number);
            // A child that has failed and is kept for late replies has ended: its parent may not
            // have heard of it.
            let live = "WHERE parent = ?1 AND root = (SELECT root FROM jobs WHERE number = ?1) AND ended IS NULL";
            for row in rebuild.rows(&format!("{JOB_ROWS} {live}"), [number])? {
                rebuild.live_children.insert(place(&row));
            }
        }
        Ok(rebuild.finish()?.into_iter().map(|recovered| (recovered.number, recovered)).collect())
    }
}

/// A job as its entries have left it.
pub(super) struct Past {
    /// The job.
    pub(super) job: Job,
    /// When its state or a status changed last.
    pub(super) changed: Timestamp,
}

/// The job that follows from its entries, or why it does not.
fn rebuilt(origin: Origin, message: Option<Message>, entries: Vec<Entry>) -> Result<Job, String> {
    unwound(|| {
        let job = Job::recover(origin, message, entries);
        job.check();
        job
    })
    .map_err(|reason| format!("its entries do not follow from one another: {reason}"))
}

fn parsed(body: &str) -> Result<Definition, String> {
    let parse = || serde_json::from_str::<Definition>(body).map_err(|error| error.to_string());
    unwound(parse).map_err(|reason| format!("its graphs are wrong: {reason}")).flatten()
}

/// The engine asserts what it has written itself. Rows that carry the right checksum and the wrong
/// content, of a program that erred, are damage all the same: refused, and no reason to end in the
/// middle of a start.
fn unwound<T>(read: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(read)).map_err(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        text.unwrap_or("a panic without a text").to_owned()
    })
}

/// A child's place: its parent's number, step and item; and its id, for a step that is rerun has
/// children of its own.
type Place = (JobNumber, u16, u32, JobId);

fn place(row: &JobRow) -> Place {
    (
        row.parent.unwrap_or_default(),
        row.step.unwrap_or_default(),
        row.item.unwrap_or_default(),
        row.id,
    )
}

/// Jobs under reconstruction; ancestors that are closed are loaded as their children need them.
pub(super) struct Rebuild<'a> {
    connection: &'a Connection,
    file: &'a str,
    /// By their numbers; one never changes.
    pub(super) definitions: HashMap<i64, Arc<Definition>>,
    jobs: HashMap<JobNumber, (JobRow, Job)>,
    wanted: Vec<JobNumber>,
    live_children: HashSet<Place>,
}

impl<'a> Rebuild<'a> {
    pub(super) fn new(connection: &'a Connection, file: &'a str) -> Rebuild<'a> {
        Rebuild {
            connection,
            file,
            definitions: HashMap::new(),
            jobs: HashMap::new(),
            wanted: Vec::new(),
            live_children: HashSet::new(),
        }
    }

    /// Loads the job with this number, if there is one.
    pub(super) fn load(&mut self, number: JobNumber) -> Result<Option<&Job>, JournalError> {
        if !self.jobs.contains_key(&number) {
            let Some(row) = self.rows(&format!("{JOB_ROWS} WHERE number = ?1"), [number])?.pop()
            else {
                return Ok(None);
            };
            self.load_row(row)?;
        }
        Ok(self.jobs.get(&number).map(|(_, job)| job))
    }

    /// A top-level job, of which nothing is kept here.
    pub(super) fn past(&mut self, number: JobNumber) -> Result<Option<Past>, JournalError> {
        let Some(row) = self.rows(&format!("{JOB_ROWS} WHERE number = ?1"), [number])?.pop() else {
            return Ok(None);
        };
        let entries = self.entries(number)?;
        let changed = entries.iter().rev().find_map(Entry::changed_at).unwrap_or(row.created);
        self.load_entries(row, entries)?;
        Ok(self.jobs.remove(&number).map(|(_, job)| Past { job, changed }))
    }

    fn rows(&self, sql: &str, values: impl rusqlite::Params) -> Result<Vec<JobRow>, JournalError> {
        let mut statement =
            self.connection.prepare_cached(sql).map_err(|error| self.failed(error))?;
        let mut rows = statement.query(values).map_err(|error| self.failed(error))?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(|error| self.failed(error))? {
            found.push(job_row(row, self.file)?);
        }
        Ok(found)
    }

    fn load_row(&mut self, row: JobRow) -> Result<(), JournalError> {
        let entries = self.entries(row.number)?;
        self.load_entries(row, entries)
    }

    fn load_entries(&mut self, row: JobRow, entries: Vec<Entry>) -> Result<(), JournalError> {
        let number = row.number;
        let damaged = |what: String| JournalError::Damaged {
            file: self.file.to_owned(),
            table: "jobs",
            row: number,
            what,
        };
        let definition = self.definition(row.definition)?;
        if usize::from(row.graph) >= definition.graphs.len() {
            return Err(damaged(format!("graph {} is not in its definition", row.graph)));
        }
        let (parent, root, message) = match (row.parent, row.step, row.item) {
            // Also keeps rows that are one another's parents from being followed for ever.
            (Some(parent_number), ..) if parent_number >= number => {
                return Err(damaged(format!("its parent, {parent_number}, is not older")));
            }
            (Some(parent_number), Some(step), Some(index)) => {
                let step = StepIndex(step);
                let message = self
                    .child_message(parent_number, step, index)?
                    .ok_or_else(|| self.orphan(number))?;
                let (_, parent) =
                    self.jobs.get(&parent_number).ok_or_else(|| self.orphan(number))?;
                (
                    Some(Parent { job: parent.id(), step, index }),
                    parent.origin().root,
                    Some(message),
                )
            }
            _ => (None, row.id, None),
        };
        let origin = Origin {
            id: row.id,
            definition,
            graph: row.graph,
            parent,
            root,
            depth: row.depth,
            created: row.created,
        };
        let job = rebuilt(origin, message, entries).map_err(damaged)?;
        self.jobs.insert(number, (row, job));
        Ok(())
    }

    fn orphan(&self, number: JobNumber) -> JournalError {
        JournalError::Damaged {
            file: self.file.to_owned(),
            table: "jobs",
            row: number,
            what: "its parent's step is not there".to_owned(),
        }
    }

    /// A child's message, which follows from its parent's input as soon as the fan-out step has
    /// started.
    fn child_message(
        &mut self,
        parent: JobNumber,
        step: StepIndex,
        index: u32,
    ) -> Result<Option<Message>, JournalError> {
        let in_range = |job: &Job| {
            job.steps()
                .nth(step.at())
                .and_then(|(_, run)| run.fan_out.as_ref())
                .is_some_and(|fan_out| index < fan_out.items())
        };
        let Some(job) = self.load(parent)? else { return Ok(None) };
        if !in_range(job) {
            return Ok(None);
        }
        Ok(job.child_message(step, index))
    }

    fn entries(&self, number: JobNumber) -> Result<Vec<Entry>, JournalError> {
        let failed = |error| self.failed(error);
        let mut statement = self
            .connection
            .prepare_cached(
                "SELECT job, body, checksum, seq FROM entries WHERE job = ?1 ORDER BY seq",
            )
            .map_err(failed)?;
        let mut rows = statement.query([number]).map_err(failed)?;
        let mut entries = Vec::new();
        while let Some(row) = rows.next().map_err(failed)? {
            let body = checked_body(row, self.file)?;
            let decoded: Vec<Entry> =
                serde_json::from_str(&body).map_err(|error| JournalError::Damaged {
                    file: self.file.to_owned(),
                    table: "entries",
                    row: row.get(3).unwrap_or_default(),
                    what: format!("not an entry of this version: {error}"),
                })?;
            entries.extend(decoded);
        }
        Ok(entries)
    }

    /// The definition with this number.
    pub(super) fn definition(&mut self, number: i64) -> Result<Arc<Definition>, JournalError> {
        if let Some(known) = self.definitions.get(&number) {
            return Ok(known.clone());
        }
        let damaged = |what: String| JournalError::Damaged {
            file: self.file.to_owned(),
            table: "definitions",
            row: number,
            what,
        };
        let mut statement = self
            .connection
            .prepare_cached("SELECT number, hash, body FROM definitions WHERE number = ?1")
            .map_err(|error| self.failed(error))?;
        let mut rows = statement.query([number]).map_err(|error| self.failed(error))?;
        let row = rows
            .next()
            .map_err(|error| self.failed(error))?
            .ok_or_else(|| damaged("it is missing".to_owned()))?;
        let body = checked_definition(row, self.file)?;
        let definition = parsed(&body).map(Arc::new).map_err(damaged)?;
        self.definitions.insert(number, definition.clone());
        Ok(definition)
    }

    fn finish(mut self) -> Result<Vec<Recovered>, JournalError> {
        let mut effects = HashMap::new();
        for number in self.wanted.clone() {
            effects.insert(number, self.open_effects(number)?);
        }
        let orders = |number: &JobNumber| {
            let (row, child) = self.jobs.get(number)?;
            let (_, parent) = self.jobs.get(&row.parent?)?;
            Some((*number, parent.words_to(child)))
        };
        let mut orders: HashMap<JobNumber, Vec<Order>> =
            self.wanted.iter().filter_map(orders).collect();
        let mut recovered = Vec::with_capacity(self.wanted.len());
        for number in std::mem::take(&mut self.wanted) {
            if let Some((row, job)) = self.jobs.remove(&number) {
                let effects = effects.remove(&number).unwrap_or_default();
                let orders = orders.remove(&number).unwrap_or_default();
                recovered.push(Recovered {
                    number,
                    root: row.root,
                    parent: row.parent,
                    job,
                    effects,
                    orders,
                });
            }
        }
        Ok(recovered)
    }

    /// A job's open effects, less the starts of children that live; a child that ended unheard
    /// tells its parent again.
    fn open_effects(&mut self, number: JobNumber) -> Result<Vec<Effect>, JournalError> {
        let Some((row, job)) = self.jobs.get(&number) else { return Ok(Vec::new()) };
        let (root, all) = (row.root, job.open_effects());
        let mut effects = Vec::with_capacity(all.len());
        let mut is_started = false;
        for effect in all {
            let place = match &effect {
                Effect::StartChild { origin, .. } => {
                    origin.parent.map(|parent| (number, parent.step.0, parent.index, origin.id))
                }
                // To the child job of the start before it.
                Effect::TellChild { .. } if !is_started => continue,
                Effect::Dispatch { .. }
                | Effect::TellChild { .. }
                | Effect::TellParent(..)
                | Effect::AnswerCaller { .. } => None,
            };
            let Some(place) = place else {
                effects.push(effect);
                continue;
            };
            is_started = false;
            if self.live_children.contains(&place) {
                continue;
            }
            match self.ended_child(root, place)? {
                Some(_) if faults::planted("ended children unheard") => {}
                Some(told) => effects.extend(told),
                None => {
                    is_started = true;
                    effects.push(effect);
                }
            }
        }
        Ok(effects)
    }

    /// What follows from a child job that is not live: it tells its parent again, or goes on if
    /// that is what it was to do.
    fn ended_child(
        &mut self,
        root: JobNumber,
        (parent, step, item, id): Place,
    ) -> Result<Option<Vec<Effect>>, JournalError> {
        let number: Option<JobNumber> = self
            .connection
            .prepare_cached(
                "SELECT number FROM jobs WHERE root = ?1 AND parent = ?2 AND step = ?3 AND item = ?4 AND id = ?5
                     ORDER BY number DESC LIMIT 1",
            )
            .and_then(|mut statement| statement.query_row(params![root, parent, step, item, id.0.as_bytes()], |row| row.get(0)).optional())
            .map_err(|error| self.failed(error))?;
        let Some(number) = number else { return Ok(None) };
        let Some(child) = self.load(number)?.cloned() else { return Ok(None) };
        if !child.state().is_ended() {
            return Ok(Some(Vec::new()));
        }
        let orders = self.load(parent)?.map(|parent| parent.words_to(&child)).unwrap_or_default();
        if !orders.is_empty() && !child.is_closed() {
            // It is live, and told with the others.
            return Ok(Some(Vec::new()));
        }
        if !orders.is_empty() {
            let Some(place) = child.origin().parent else { return Ok(Some(Vec::new())) };
            return Ok(Some(
                orders
                    .into_iter()
                    .map(|order| Effect::TellChild { child: id, place, order })
                    .collect(),
            ));
        }
        Ok(Some(
            child
                .open_effects()
                .into_iter()
                .filter(|effect| matches!(effect, Effect::TellParent(..)))
                .collect(),
        ))
    }

    fn failed(&self, error: rusqlite::Error) -> JournalError {
        damaged_or_failed(self.file, error)
    }
}
