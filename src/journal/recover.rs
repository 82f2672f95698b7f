//! Rebuilds jobs from their rows, whatever stores them. At a start, all that take input; later
//! single ones: for a reader, after a panic, or when an input arrives for a job that has ended.

use super::error::JournalError;
use super::query::JobAtEntry;
use super::record::{JobNumber, NewJob};
use engine::{
    Definition, Effect, Entry, Job, JobId, Message, Order, Origin, ParentItem, Recorded, StepIndex,
    Timestamp,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The rows of a journal, as rebuilding reads them. Each row is checked when it is read.
pub(super) trait JobRows {
    /// Returns the job with this number.
    fn find_job(&self, number: JobNumber) -> Result<Option<JobRow>, JournalError>;
    /// Returns all jobs that take input, ordered by number.
    fn load_open_jobs(&self) -> Result<Vec<JobRow>, JournalError>;
    /// Returns the child jobs of a job that have not ended.
    fn load_live_children(&self, parent: JobNumber) -> Result<Vec<JobRow>, JournalError>;
    /// Returns the number of the newest child job with this key.
    fn find_child(
        &self,
        root: JobNumber,
        place: &ChildKey,
    ) -> Result<Option<JobNumber>, JournalError>;
    /// Calls `each` with the decisions of a job in order, row by row, because a record may be
    /// large.
    fn for_each_decision(
        &self,
        job: JobNumber,
        each: &mut dyn FnMut(Recorded) -> Result<(), JournalError>,
    ) -> Result<(), JournalError>;
    /// Returns the position, among the rows of all jobs, of the row that has this entry of the job
    /// (numbered from 0). Of two entries the one that was decided first has the lower position.
    fn find_seq(&self, job: JobNumber, entry: u64) -> Result<Option<i64>, JournalError>;
    /// Returns the text of the definition with this number.
    fn load_definition_body(&self, number: i64) -> Result<String, JournalError>;
    /// Returns the error for a row with impossible content.
    fn damaged_row(&self, table: &'static str, row: i64, what: String) -> JournalError;
}

/// The fields of a job that never change.
pub(super) struct JobRow {
    pub(super) number: JobNumber,
    pub(super) id: JobId,
    /// The number of its definition.
    pub(super) definition: i64,
    pub(super) graph: u16,
    pub(super) root: JobNumber,
    pub(super) parent: Option<JobNumber>,
    pub(super) step: Option<u16>,
    pub(super) item: Option<u32>,
    pub(super) depth: u16,
    pub(super) created: Timestamp,
}

impl JobRow {
    pub(super) fn new(number: JobNumber, created: &NewJob, definition: i64) -> JobRow {
        let origin = &created.origin;
        JobRow {
            number,
            id: origin.id,
            definition,
            graph: origin.graph,
            root: created.root,
            parent: created.parent,
            step: origin.parent.map(|parent| parent.step.0),
            item: origin.parent.map(|parent| parent.index),
            depth: origin.depth,
            created: origin.created,
        }
    }

    /// Returns the key of a child job; `None`: it is a root job.
    fn child_key(&self) -> Option<ChildKey> {
        Some(ChildKey { parent: self.parent?, step: self.step?, item: self.item?, id: self.id })
    }
}

/// Identifies a child job. The id is part of it: a step that is rerun has new child jobs.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ChildKey {
    pub(super) parent: JobNumber,
    pub(super) step: u16,
    pub(super) item: u32,
    pub(super) id: JobId,
}

/// A job, rebuilt from the journal.
pub struct RecoveredJob {
    /// Its number.
    pub number: JobNumber,
    /// The root job's number.
    pub root: JobNumber,
    /// The parent's number.
    pub parent: Option<JobNumber>,
    /// The job.
    pub job: Job,
    /// The effects that may have been lost when the process stopped, ready to be sent.
    pub effects: Vec<Effect>,
    /// Orders of its parent that it may have missed.
    pub missed_orders: Vec<Order>,
}

/// The callback that receives each job tree.
pub(super) type JobTreeHandler<'a> = &'a (dyn Fn(Vec<RecoveredJob>) + Sync);

/// Jobs that take input, split into parts that can be rebuilt in parallel. A job tree stays in one
/// part, because only jobs of the same tree depend on each other.
pub(super) struct JobPartitions {
    /// The jobs of each part, ordered by number.
    pub(super) jobs: Vec<Vec<JobRow>>,
    /// The definitions of all these jobs: one copy for all parts.
    pub(super) definitions: HashMap<i64, Arc<Definition>>,
}

impl JobPartitions {
    /// Splits all jobs that take input into up to `count` parts.
    pub(super) fn from_rows(
        rows: &dyn JobRows,
        count: usize,
    ) -> Result<JobPartitions, JournalError> {
        let open = rows.load_open_jobs()?;
        let count = count.min(open.len() / PARTITION_JOBS_MIN).max(1);
        let mut rebuild = Rebuilder::new(rows);
        let mut jobs: Vec<Vec<JobRow>> = Vec::new();
        jobs.resize_with(count, Vec::new);
        for row in open {
            rebuild.load_definition(row.definition)?;
            let part = row.root.unsigned_abs() % count as u64;
            jobs[part as usize].push(row);
        }
        Ok(JobPartitions { jobs, definitions: rebuild.definitions })
    }
}

/// The fewest jobs per part: fewer are not worth a thread.
const PARTITION_JOBS_MIN: usize = 1_000;

/// Rebuilds the jobs of one part and passes them to `each`, tree by tree, without keeping them.
pub(super) fn recover_job_trees(
    rows: &dyn JobRows,
    jobs: Vec<JobRow>,
    definitions: HashMap<i64, Arc<Definition>>,
    each: JobTreeHandler<'_>,
) -> Result<(), JournalError> {
    let mut by_root: BTreeMap<JobNumber, Vec<JobRow>> = BTreeMap::new();
    for row in jobs {
        by_root.entry(row.root).or_default().push(row);
    }
    let mut definitions = definitions;
    for jobs in by_root.into_values() {
        let mut rebuild = Rebuilder::new(rows);
        rebuild.definitions = definitions;
        each(recover_tree_rows(&mut rebuild, jobs)?);
        definitions = rebuild.definitions;
    }
    Ok(())
}

/// Rebuilds those of these jobs of one job tree that exist.
pub(super) fn recover_job_tree(
    rebuild: &mut Rebuilder<'_>,
    numbers: &[JobNumber],
) -> Result<Vec<RecoveredJob>, JournalError> {
    let mut rows = Vec::with_capacity(numbers.len());
    for number in numbers {
        rows.extend(rebuild.rows.find_job(*number)?);
    }
    recover_tree_rows(rebuild, rows)
}

/// Rebuilds jobs of one job tree that take input, parents before their children.
fn recover_tree_rows(
    rebuild: &mut Rebuilder<'_>,
    jobs: Vec<JobRow>,
) -> Result<Vec<RecoveredJob>, JournalError> {
    let rows = rebuild.rows;
    for row in jobs {
        let number = row.number;
        // Jobs that are loaded only because of their children are not live.
        rebuild.live_children.extend(row.child_key());
        rebuild.load_row(row)?;
        if rebuild.jobs.get(&number).is_some_and(|(_, job)| job.is_closed()) {
            let what = "it is marked as open, and its entries say that it is closed".to_owned();
            return Err(rows.damaged_row("jobs", number, what));
        }
        rebuild.requested.push(number);
    }
    rebuild.take_recovered()
}

/// Rebuilds those of these jobs that exist, with their open effects, as at a start.
pub(super) fn recover_jobs(
    rebuild: &mut Rebuilder<'_>,
    numbers: &[JobNumber],
) -> Result<HashMap<JobNumber, RecoveredJob>, JournalError> {
    for number in numbers.iter().copied() {
        if rebuild.load(number)?.is_none() {
            continue;
        }
        rebuild.requested.push(number);
        // A failed child that waits for late replies does not count as live: its parent may not
        // have learned that it ended.
        let rows = rebuild.rows.load_live_children(number)?;
        rebuild.live_children.extend(rows.iter().filter_map(JobRow::child_key));
    }
    Ok(rebuild
        .take_recovered()?
        .into_iter()
        .map(|recovered| (recovered.number, recovered))
        .collect())
}

/// A job after all its entries.
pub(super) struct JobSnapshot {
    pub(super) job: Job,
    /// When its state or a status last changed.
    pub(super) changed_at: Timestamp,
    /// The number of its definition.
    pub(super) definition: i64,
}

/// The result of applying a job's first entries.
struct FoldedJob {
    job: Job,
    /// How many entries the job has in total.
    entries: u64,
    /// When the last applied entry was decided.
    at: Timestamp,
    /// When its state or a status last changed.
    changed_at: Timestamp,
    /// The number of entries before each of its reruns.
    reruns: Vec<u64>,
}

/// Returns a child job's message, which follows from the parent's input once the fan-out step has
/// started.
fn child_message(parent: &Job, step: StepIndex, index: u32) -> Option<Message> {
    let run = parent.steps().nth(step.as_usize()).map(|(_, run)| run)?;
    let is_known = run.fan_out.as_ref().is_some_and(|fan_out| index < fan_out.items());
    if is_known { parent.child_message(step, index) } else { None }
}

/// Runs part of the fold, or returns why the entries cannot be right.
fn catch_inconsistency<T>(fold: impl FnOnce() -> T) -> Result<T, String> {
    catch_panic(fold)
        .map_err(|reason| format!("its entries do not follow from one another: {reason}"))
}

fn parse_definition(body: &str) -> Result<Definition, String> {
    let parse = || serde_json::from_str::<Definition>(body).map_err(|error| error.to_string());
    catch_panic(parse).map_err(|reason| format!("its graphs are wrong: {reason}")).flatten()
}

/// Turns a panic into an error. The engine asserts its invariants. Rows with the right checksum may
/// break them if a faulty program wrote them. Such damage is reported and must not end the process
/// during a start.
fn catch_panic<T>(read: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(read)).map_err(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        text.unwrap_or("a panic without a text").to_owned()
    })
}

/// Rebuilds jobs. Ancestors that are closed are loaded when their children need them.
pub(super) struct Rebuilder<'a> {
    rows: &'a dyn JobRows,
    /// Definitions by number. A definition never changes.
    pub(super) definitions: HashMap<i64, Arc<Definition>>,
    jobs: HashMap<JobNumber, (JobRow, Job)>,
    /// The number of entries before each rerun, for jobs that were rerun.
    reruns: HashMap<JobNumber, Vec<u64>>,
    /// Jobs as they were before a rerun, if child jobs of that time need them.
    before_reruns: HashMap<(JobNumber, u64), Job>,
    requested: Vec<JobNumber>,
    live_children: HashSet<ChildKey>,
}

impl<'a> Rebuilder<'a> {
    pub(super) fn new(rows: &'a dyn JobRows) -> Rebuilder<'a> {
        Rebuilder {
            rows,
            definitions: HashMap::new(),
            jobs: HashMap::new(),
            reruns: HashMap::new(),
            before_reruns: HashMap::new(),
            requested: Vec::new(),
            live_children: HashSet::new(),
        }
    }

    /// Loads the job with this number, if it exists.
    pub(super) fn load(&mut self, number: JobNumber) -> Result<Option<&Job>, JournalError> {
        if !self.jobs.contains_key(&number) {
            let Some(row) = self.rows.find_job(number)? else { return Ok(None) };
            self.load_row(row)?;
        }
        Ok(self.jobs.get(&number).map(|(_, job)| job))
    }

    /// Returns the job with this number as it was after its first `entries` entries, if it exists.
    pub(super) fn load_at(
        &mut self,
        number: JobNumber,
        entries: u64,
    ) -> Result<Option<JobAtEntry>, JournalError> {
        let Some(row) = self.rows.find_job(number)? else { return Ok(None) };
        let FoldedJob { job, entries: length, at, .. } = self.fold(&row, entries)?;
        if !(1..=length).contains(&entries) {
            return Ok(Some(JobAtEntry::NoSuchEntry { entries: length }));
        }
        Ok(Some(JobAtEntry::Found { job: Box::new(job), at }))
    }

    /// Returns the number of the root job of a job.
    pub(super) fn load_root(
        &mut self,
        number: JobNumber,
    ) -> Result<Option<JobNumber>, JournalError> {
        self.load(number)?;
        Ok(self.jobs.get(&number).map(|(row, _)| row.root))
    }

    /// Rebuilds a job without keeping it here.
    pub(super) fn load_snapshot(
        &mut self,
        number: JobNumber,
    ) -> Result<Option<JobSnapshot>, JournalError> {
        let Some(row) = self.rows.find_job(number)? else { return Ok(None) };
        let FoldedJob { job, changed_at, .. } = self.fold(&row, u64::MAX)?;
        Ok(Some(JobSnapshot { job, changed_at, definition: row.definition }))
    }

    fn load_row(&mut self, row: JobRow) -> Result<(), JournalError> {
        let FoldedJob { job, reruns, .. } = self.fold(&row, u64::MAX)?;
        if !reruns.is_empty() {
            self.reruns.insert(row.number, reruns);
        }
        self.jobs.insert(row.number, (row, job));
        Ok(())
    }

    /// Applies the first `count` entries of a job.
    fn fold(&mut self, row: &JobRow, count: u64) -> Result<FoldedJob, JournalError> {
        let (origin, message) = self.load_origin(row)?;
        let (rows, number) = (self.rows, row.number);
        let damaged = |what: String| rows.damaged_row("jobs", number, what);
        let job =
            catch_inconsistency(|| Job::before_first_entry(origin, message)).map_err(damaged)?;
        let (at, changed_at) = (row.created, row.created);
        let mut fold = FoldedJob { job, entries: 0, at, changed_at, reruns: Vec::new() };
        rows.for_each_decision(number, &mut |mut recorded| {
            let length = recorded.entries.len() as u64;
            let remaining = count.saturating_sub(fold.entries).min(length);
            fold.entries += length;
            if remaining == 0 {
                return Ok(());
            }
            recorded.entries.truncate(usize::try_from(remaining).unwrap_or(usize::MAX));
            fold.at = recorded.at;
            let numbered = (recorded.first..).zip(&recorded.entries);
            let reruns = numbered.filter(|(_, entry)| entry.is_rerun()).map(|(number, _)| number);
            fold.reruns.extend(reruns);
            if recorded.entries.iter().any(Entry::is_change) {
                fold.changed_at = recorded.at;
            }
            catch_inconsistency(|| fold.job.apply(&recorded)).map_err(damaged)
        })?;
        if count > 0 {
            catch_inconsistency(|| fold.job.assert_invariants()).map_err(damaged)?;
        }
        Ok(fold)
    }

    /// Returns the origin of a job and, for a child job, its message.
    fn load_origin(&mut self, row: &JobRow) -> Result<(Origin, Option<Message>), JournalError> {
        let (rows, number) = (self.rows, row.number);
        let damaged = |what: String| rows.damaged_row("jobs", number, what);
        let orphan = || damaged("its parent's step is not there".to_owned());
        let definition = self.load_definition(row.definition)?;
        if usize::from(row.graph) >= definition.graphs.len() {
            return Err(damaged(format!("graph {} is not in its definition", row.graph)));
        }
        let (parent, root, message) = match (row.parent, row.step, row.item) {
            // This also prevents endless loops through rows that are each other's parents.
            (Some(parent_number), ..) if parent_number >= number => {
                return Err(damaged(format!("its parent, {parent_number}, is not older")));
            }
            (Some(parent_number), Some(step), Some(index)) => {
                let step = StepIndex(step);
                let parent = self.load_parent(number, parent_number)?.ok_or_else(orphan)?;
                let message = child_message(parent, step, index).ok_or_else(orphan)?;
                let place = ParentItem { job: parent.id(), step, index };
                (Some(place), parent.origin().root, Some(message))
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
            // The first entry has it.
            trace: None,
        };
        Ok((origin, message))
    }

    /// Returns the parent of a child job, from which the child's message follows: as it was before
    /// the first rerun after the child job was created, or as it is now.
    fn load_parent(
        &mut self,
        child: JobNumber,
        parent: JobNumber,
    ) -> Result<Option<&Job>, JournalError> {
        self.load(parent)?;
        let Some(reruns) = self.reruns.get(&parent) else { return self.load(parent) };
        let began = self.rows.find_seq(child, 0)?;
        for rerun in reruns.clone() {
            if self.rows.find_seq(parent, rerun)? > began {
                return self.load_before_rerun(parent, rerun);
            }
        }
        self.load(parent)
    }

    /// Returns a loaded job as it was before one of its reruns.
    fn load_before_rerun(
        &mut self,
        number: JobNumber,
        rerun: u64,
    ) -> Result<Option<&Job>, JournalError> {
        let key = (number, rerun);
        if !self.before_reruns.contains_key(&key) {
            let Some(row) = self.rows.find_job(number)? else { return Ok(None) };
            let FoldedJob { job, .. } = self.fold(&row, rerun)?;
            self.before_reruns.insert(key, job);
        }
        Ok(self.before_reruns.get(&key))
    }

    /// Returns the definition with this number.
    pub(super) fn load_definition(&mut self, number: i64) -> Result<Arc<Definition>, JournalError> {
        if let Some(known) = self.definitions.get(&number) {
            return Ok(known.clone());
        }
        let definition = parse_definition(&self.rows.load_definition_body(number)?)
            .map(Arc::new)
            .map_err(|what| self.rows.damaged_row("definitions", number, what))?;
        self.definitions.insert(number, definition.clone());
        Ok(definition)
    }

    fn take_recovered(&mut self) -> Result<Vec<RecoveredJob>, JournalError> {
        let mut found = Vec::with_capacity(self.requested.len());
        for number in std::mem::take(&mut self.requested) {
            found.push((number, self.open_effects(number)?, self.missed_orders(number)));
        }
        let recovered = found.into_iter().filter_map(|(number, effects, missed_orders)| {
            let (row, job) = self.jobs.remove(&number)?;
            let (root, parent) = (row.root, row.parent);
            Some(RecoveredJob { number, root, parent, job, effects, missed_orders })
        });
        Ok(recovered.collect())
    }

    /// Returns the orders of its parent that a job may have missed; a root job has none.
    fn missed_orders(&self, number: JobNumber) -> Vec<Order> {
        let orders = || {
            let (row, child) = self.jobs.get(&number)?;
            let (_, parent) = self.jobs.get(&row.parent?)?;
            Some(parent.missed_orders(child))
        };
        orders().unwrap_or_default()
    }

    /// Returns a job's open effects, without the starts of child jobs that are live. A child job
    /// whose end the parent missed reports it again.
    fn open_effects(&mut self, number: JobNumber) -> Result<Vec<Effect>, JournalError> {
        let Some((row, job)) = self.jobs.get(&number) else { return Ok(Vec::new()) };
        let (root, all) = (row.root, job.open_effects());
        let mut effects = Vec::with_capacity(all.len());
        let mut is_started = false;
        for effect in all {
            let place = match &effect {
                Effect::StartChild { origin, .. } => origin.parent.map(|parent| ChildKey {
                    parent: number,
                    step: parent.step.0,
                    item: parent.index,
                    id: origin.id,
                }),
                // This effect is for the child job whose start came before it.
                Effect::OrderChild { .. } if !is_started => continue,
                Effect::Dispatch { .. }
                | Effect::OrderChild { .. }
                | Effect::NotifyParent(..)
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
            match self.effects_of_ended_child(root, place)? {
                Some(child_effects) => effects.extend(child_effects),
                None => {
                    is_started = true;
                    effects.push(effect);
                }
            }
        }
        Ok(effects)
    }

    /// Returns the effects for a child job that is not live: it reports its end to the parent
    /// again, or continues if its parent has ordered that. `None` if there is no such child job.
    fn effects_of_ended_child(
        &mut self,
        root: JobNumber,
        place: ChildKey,
    ) -> Result<Option<Vec<Effect>>, JournalError> {
        let ChildKey { parent, id, .. } = place;
        let Some(number) = self.rows.find_child(root, &place)? else { return Ok(None) };
        let Some(child) = self.load(number)?.cloned() else { return Ok(None) };
        if !child.state().is_ended() {
            return Ok(Some(Vec::new()));
        }
        let parent = self.load(parent)?.expect("the parent was loaded with its child");
        let orders = parent.missed_orders(&child);
        if !orders.is_empty() && !child.is_closed() {
            // It is live, and gets the orders with the other live jobs.
            return Ok(Some(Vec::new()));
        }
        if !orders.is_empty() {
            let Some(place) = child.origin().parent else { return Ok(Some(Vec::new())) };
            return Ok(Some(
                orders
                    .into_iter()
                    .map(|order| Effect::OrderChild { child: id, parent_item: place, order })
                    .collect(),
            ));
        }
        Ok(Some(
            child
                .open_effects()
                .into_iter()
                .filter(|effect| matches!(effect, Effect::NotifyParent(..)))
                .collect(),
        ))
    }
}
