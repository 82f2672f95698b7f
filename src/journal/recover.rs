//! Rebuilds jobs from their rows, independently of the storage. At startup, all jobs that take
//! input are rebuilt. Later, single jobs are rebuilt: for a reader, after a panic, or when an input
//! arrives for a job that has ended.

use super::error::JournalError;
use super::inconsistency::{catch_inconsistency, parse_definition};
use super::numbers::spread_key;
use super::query::JobAtEntry;
use super::record::{JobNumber, NewJob};
use engine::{
    Definition, Effect, Entry, Job, JobId, Message, Order, Origin, ParentItem, Recorded, StepIndex,
    Timestamp,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// The rows of a journal from which jobs are rebuilt. Each row is verified when it is read.
pub(super) trait JobRows {
    /// Returns the job with this number; `None` if there is no such job.
    fn find_job(&self, number: JobNumber) -> Result<Option<JobRow>, JournalError>;
    /// Returns all jobs that take input, ordered by number.
    fn load_open_jobs(&self) -> Result<Vec<JobRow>, JournalError>;
    /// Returns the child jobs of a job that have not ended.
    fn load_live_children(&self, parent: JobNumber) -> Result<Vec<JobRow>, JournalError>;
    /// Returns the number of the newest child job with this key, in the job tree of `root`.
    fn find_child(
        &self,
        root: JobNumber,
        key: &ChildKey,
    ) -> Result<Option<JobNumber>, JournalError>;
    /// Calls `handler` with the decisions of a job, in order. They are not collected in memory,
    /// because a job may have many.
    fn for_each_decision(
        &self,
        job: JobNumber,
        handler: &mut dyn FnMut(Recorded) -> Result<(), JournalError>,
    ) -> Result<(), JournalError>;
    /// Returns the `seq` of the row that contains the job's entry number `entry`, counted from 0.
    /// The `seq` orders the rows of all jobs by their commits.
    fn find_seq(&self, job: JobNumber, entry: u64) -> Result<Option<i64>, JournalError>;
    /// Returns the JSON of the definition with this number.
    fn load_definition_body(&self, number: i64) -> Result<String, JournalError>;
    /// Creates the error of a damaged row.
    fn damaged_row(&self, table: &'static str, row: i64, problem: String) -> JournalError;
}

/// The fields of a job that never change. The parent, step and item are `None` for a root job.
pub(super) struct JobRow {
    pub(super) number: JobNumber,
    pub(super) id: JobId,
    /// The number of its definition.
    pub(super) definition: i64,
    /// The index of its graph within the definition.
    pub(super) graph: u16,
    /// The number of the root job; a root job's own number.
    pub(super) root: JobNumber,
    pub(super) parent: Option<JobNumber>,
    /// The parent's step that started it.
    pub(super) step: Option<u16>,
    /// The index of its item in that step's list.
    pub(super) item: Option<u32>,
    /// Its depth in the tree of jobs and calls: 0 for a job that a client requested.
    pub(super) depth: u16,
    pub(super) created: Timestamp,
}

impl JobRow {
    /// Creates the row of a new job; `definition` is the number of its definition.
    pub(super) fn new(number: JobNumber, new_job: &NewJob, definition: i64) -> JobRow {
        let origin = &new_job.origin;
        JobRow {
            number,
            id: origin.id,
            definition,
            graph: origin.graph,
            root: new_job.root,
            parent: new_job.parent,
            step: origin.parent.map(|parent| parent.step.0),
            item: origin.parent.map(|parent| parent.index),
            depth: origin.depth,
            created: origin.created,
        }
    }

    /// Returns the key of a child job; `None` for a root job.
    fn child_key(&self) -> Option<ChildKey> {
        Some(ChildKey { parent: self.parent?, step: self.step?, item: self.item?, id: self.id })
    }
}

/// Identifies a child job. The id is part of the key, because a rerun of the step starts new child
/// jobs for the same items.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ChildKey {
    pub(super) parent: JobNumber,
    pub(super) step: u16,
    pub(super) item: u32,
    pub(super) id: JobId,
}

/// A job, rebuilt from the journal.
pub struct RecoveredJob {
    /// The job's number.
    pub number: JobNumber,
    /// The root job's number.
    pub root: JobNumber,
    /// The parent's number; `None` for a root job.
    pub parent: Option<JobNumber>,
    /// The job.
    pub job: Job,
    /// The open effects: they may have been lost when the process stopped, and must be sent again.
    pub effects: Vec<Effect>,
    /// The orders of its parent that it may have missed; empty for a root job.
    pub missed_orders: Vec<Order>,
}

/// The callback that receives each job tree. Several threads call it.
pub(super) type JobTreeHandler<'a> = &'a (dyn Fn(Vec<RecoveredJob>) + Sync);

/// The fewest jobs per partition, on average. Fewer are not worth a thread.
const PARTITION_JOBS_MIN: usize = 1_000;

/// The jobs that take input, split into partitions that can be rebuilt in parallel. All jobs of a
/// job tree are in one partition, because they depend on each other.
pub(super) struct JobPartitions {
    /// The jobs of each partition, ordered by number.
    pub(super) jobs: Vec<Vec<JobRow>>,
    /// The definitions of all these jobs, by number. The partitions share them.
    pub(super) definitions: HashMap<i64, Arc<Definition>>,
}

impl JobPartitions {
    /// Splits all jobs that take input into one to `count_max` partitions.
    pub(super) fn from_rows(
        rows: &dyn JobRows,
        count_max: usize,
    ) -> Result<JobPartitions, JournalError> {
        let open_jobs = rows.load_open_jobs()?;
        let count = count_max.min(open_jobs.len() / PARTITION_JOBS_MIN).max(1);
        let mut rebuilder = Rebuilder::new(rows);
        let mut jobs: Vec<Vec<JobRow>> = Vec::new();
        jobs.resize_with(count, Vec::new);
        for row in open_jobs {
            rebuilder.load_definition(row.definition)?;
            let partition = spread_key(row.root) % count as u64;
            jobs[partition as usize].push(row);
        }
        Ok(JobPartitions { jobs, definitions: rebuilder.definitions })
    }
}

/// Rebuilds the jobs of one partition, and calls `handler` with one job tree after another.
pub(super) fn recover_job_trees(
    rows: &dyn JobRows,
    jobs: Vec<JobRow>,
    definitions: HashMap<i64, Arc<Definition>>,
    handler: JobTreeHandler<'_>,
) -> Result<(), JournalError> {
    let mut jobs_by_root: BTreeMap<JobNumber, Vec<JobRow>> = BTreeMap::new();
    for row in jobs {
        jobs_by_root.entry(row.root).or_default().push(row);
    }
    let mut rebuilder = Rebuilder { definitions, ..Rebuilder::new(rows) };
    for tree_jobs in jobs_by_root.into_values() {
        handler(recover_tree_rows(&mut rebuilder, tree_jobs)?);
        // The jobs of earlier job trees are freed.
        rebuilder.forget_jobs();
    }
    Ok(())
}

/// Rebuilds jobs of one job tree. Jobs that do not exist are left out.
pub(super) fn recover_job_tree(
    rebuilder: &mut Rebuilder<'_>,
    numbers: &[JobNumber],
) -> Result<Vec<RecoveredJob>, JournalError> {
    let mut rows = Vec::with_capacity(numbers.len());
    for number in numbers {
        rows.extend(rebuilder.rows.find_job(*number)?);
    }
    recover_tree_rows(rebuilder, rows)
}

/// Rebuilds jobs of one job tree that take input. Returns an error if a job is closed according to
/// its entries.
fn recover_tree_rows(
    rebuilder: &mut Rebuilder<'_>,
    jobs: Vec<JobRow>,
) -> Result<Vec<RecoveredJob>, JournalError> {
    let rows = rebuilder.rows;
    for row in jobs {
        let number = row.number;
        // Ancestors that are loaded only for their child jobs are not added: they are not live.
        rebuilder.live_children.extend(row.child_key());
        rebuilder.load_row(row)?;
        if rebuilder.jobs.get(&number).is_some_and(|(_, job)| job.is_closed()) {
            let problem = "it is marked as open, and its entries say that it is closed".to_owned();
            return Err(rows.damaged_row("jobs", number, problem));
        }
        rebuilder.requested.push(number);
    }
    rebuilder.take_recovered()
}

/// Rebuilds jobs with their open effects, as at startup. Jobs that do not exist are left out.
pub(super) fn recover_jobs(
    rebuilder: &mut Rebuilder<'_>,
    numbers: &[JobNumber],
) -> Result<HashMap<JobNumber, RecoveredJob>, JournalError> {
    for number in numbers.iter().copied() {
        if rebuilder.load(number)?.is_none() {
            continue;
        }
        rebuilder.requested.push(number);
        // A failed child job that waits for late replies does not count as live: its parent may not
        // have learned that it ended.
        let rows = rebuilder.rows.load_live_children(number)?;
        rebuilder.live_children.extend(rows.iter().filter_map(JobRow::child_key));
    }
    Ok(rebuilder
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
    /// The number of all entries of the job, including those that were not applied.
    entry_count: u64,
    /// When the last applied entry was decided.
    at: Timestamp,
    /// When its state or a status last changed.
    changed_at: Timestamp,
    /// The number of entries before each of its reruns.
    reruns: Vec<u64>,
}

/// Returns a child job's message, which is derived from the input of the parent's fan-out step;
/// `None` if the step has not started, or has no such item.
fn child_message(parent: &Job, step: StepIndex, index: u32) -> Option<Message> {
    let run = parent.steps().nth(step.as_usize()).map(|(_, run)| run)?;
    let has_item = run.fan_out.as_ref().is_some_and(|fan_out| index < fan_out.items());
    if has_item { parent.child_message(step, index) } else { None }
}

/// Rebuilds jobs, and caches what it has loaded. It loads ancestors when their child jobs need
/// them.
pub(super) struct Rebuilder<'a> {
    rows: &'a dyn JobRows,
    /// Definitions by number. A definition never changes.
    pub(super) definitions: HashMap<i64, Arc<Definition>>,
    /// The loaded jobs, as they are after all their entries.
    jobs: HashMap<JobNumber, (JobRow, Job)>,
    /// The number of entries before each rerun, for jobs that were rerun.
    reruns: HashMap<JobNumber, Vec<u64>>,
    /// Jobs as they were before a rerun, for the child jobs that were created before it. The key is
    /// the job's number, with the number of its entries before the rerun.
    before_reruns: HashMap<(JobNumber, u64), Job>,
    /// The jobs to be returned. All others are loaded only because these need them.
    requested: Vec<JobNumber>,
    /// The child jobs that take input or have not ended: they need not be started.
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

    /// Forgets all jobs, and keeps the definitions.
    pub(super) fn forget_jobs(&mut self) {
        let definitions = std::mem::take(&mut self.definitions);
        *self = Rebuilder { definitions, ..Rebuilder::new(self.rows) };
    }

    /// Loads the job with this number, unless it is loaded already; `None` if it does not exist.
    pub(super) fn load(&mut self, number: JobNumber) -> Result<Option<&Job>, JournalError> {
        if !self.jobs.contains_key(&number) {
            let Some(row) = self.rows.find_job(number)? else { return Ok(None) };
            self.load_row(row)?;
        }
        Ok(self.jobs.get(&number).map(|(_, job)| job))
    }

    /// Returns the job with this number as it was after its first `entries` entries; `None` if
    /// there is no such job.
    pub(super) fn load_at(
        &mut self,
        number: JobNumber,
        entries: u64,
    ) -> Result<Option<JobAtEntry>, JournalError> {
        let Some(row) = self.rows.find_job(number)? else { return Ok(None) };
        let FoldedJob { job, entry_count, at, .. } = self.fold(&row, entries)?;
        if !(1..=entry_count).contains(&entries) {
            return Ok(Some(JobAtEntry::NoSuchEntry { entries: entry_count }));
        }
        Ok(Some(JobAtEntry::Found { job: Box::new(job), at }))
    }

    /// Loads a job, and returns the number of its root job; `None` if the job does not exist.
    pub(super) fn load_root(
        &mut self,
        number: JobNumber,
    ) -> Result<Option<JobNumber>, JournalError> {
        self.load(number)?;
        Ok(self.jobs.get(&number).map(|(row, _)| row.root))
    }

    /// Rebuilds a job without caching it; `None` if it does not exist.
    pub(super) fn load_snapshot(
        &mut self,
        number: JobNumber,
    ) -> Result<Option<JobSnapshot>, JournalError> {
        let row = self.rows.find_job(number)?;
        row.map(|row| self.rebuild_snapshot(&row)).transpose()
    }

    /// Rebuilds the job of a row without caching it.
    pub(super) fn rebuild_snapshot(&mut self, row: &JobRow) -> Result<JobSnapshot, JournalError> {
        let FoldedJob { job, changed_at, .. } = self.fold(row, u64::MAX)?;
        Ok(JobSnapshot { job, changed_at, definition: row.definition })
    }

    /// Rebuilds the job of a row, and caches it.
    fn load_row(&mut self, row: JobRow) -> Result<(), JournalError> {
        let FoldedJob { job, reruns, .. } = self.fold(&row, u64::MAX)?;
        if !reruns.is_empty() {
            self.reruns.insert(row.number, reruns);
        }
        self.jobs.insert(row.number, (row, job));
        Ok(())
    }

    /// Applies the first `count` entries of a job. Reads the others too, to count them.
    fn fold(&mut self, row: &JobRow, count: u64) -> Result<FoldedJob, JournalError> {
        let (origin, message) = self.load_origin(row)?;
        let (rows, number) = (self.rows, row.number);
        let damage_error = |problem: String| rows.damaged_row("jobs", number, problem);
        let job = catch_inconsistency(|| Job::before_first_entry(origin, message))
            .map_err(damage_error)?;
        let (at, changed_at) = (row.created, row.created);
        let mut fold = FoldedJob { job, entry_count: 0, at, changed_at, reruns: Vec::new() };
        rows.for_each_decision(number, &mut |mut recorded| {
            let decision_length = recorded.entries.len() as u64;
            let applied_count = count.saturating_sub(fold.entry_count).min(decision_length);
            fold.entry_count += decision_length;
            if applied_count == 0 {
                return Ok(());
            }
            recorded.entries.truncate(usize::try_from(applied_count).unwrap_or(usize::MAX));
            fold.at = recorded.at;
            let numbered_entries = (recorded.first..).zip(&recorded.entries);
            let reruns =
                numbered_entries.filter(|(_, entry)| entry.is_rerun()).map(|(number, _)| number);
            fold.reruns.extend(reruns);
            if recorded.entries.iter().any(Entry::is_change) {
                fold.changed_at = recorded.at;
            }
            catch_inconsistency(|| fold.job.apply(&recorded)).map_err(damage_error)
        })?;
        if count > 0 {
            catch_inconsistency(|| fold.job.assert_invariants()).map_err(damage_error)?;
        }
        Ok(fold)
    }

    /// Returns the origin of a job and, for a child job, its message.
    fn load_origin(&mut self, row: &JobRow) -> Result<(Origin, Option<Message>), JournalError> {
        let (rows, number) = (self.rows, row.number);
        let damage_error = |problem: String| rows.damaged_row("jobs", number, problem);
        let missing_step_error = || damage_error("its parent's step is not there".to_owned());
        let definition = self.load_definition(row.definition)?;
        if usize::from(row.graph) >= definition.graphs.len() {
            return Err(damage_error(format!("graph {} is not in its definition", row.graph)));
        }
        let (parent, root, message) = match (row.parent, row.step, row.item) {
            // This also prevents an endless recursion through rows that are each other's parents.
            (Some(parent_number), ..) if parent_number >= number => {
                return Err(damage_error(format!("its parent, {parent_number}, is not older")));
            }
            (Some(parent_number), Some(step), Some(index)) => {
                let step = StepIndex(step);
                let parent =
                    self.load_parent(number, parent_number)?.ok_or_else(missing_step_error)?;
                let message = child_message(parent, step, index).ok_or_else(missing_step_error)?;
                let parent_item = ParentItem { job: parent.id(), step, index };
                (Some(parent_item), parent.origin().root, Some(message))
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
            // The first entry sets these.
            trace: None,
            starts_at: None,
            slot: None,
        };
        Ok((origin, message))
    }

    /// Returns the parent of a child job, from which the child job's message is derived. If the
    /// parent was rerun after the child job was created, returns the parent as it was before the
    /// first such rerun.
    fn load_parent(
        &mut self,
        child: JobNumber,
        parent: JobNumber,
    ) -> Result<Option<&Job>, JournalError> {
        self.load(parent)?;
        let Some(reruns) = self.reruns.get(&parent) else { return self.load(parent) };
        let child_created_seq = self.rows.find_seq(child, 0)?;
        for rerun in reruns.clone() {
            if self.rows.find_seq(parent, rerun)? > child_created_seq {
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
        if let Some(definition) = self.definitions.get(&number) {
            return Ok(definition.clone());
        }
        let definition =
            parse_definition(&self.rows.load_definition_body(number)?)
                .map(Arc::new)
                .map_err(|problem| self.rows.damaged_row("definitions", number, problem))?;
        self.definitions.insert(number, definition.clone());
        Ok(definition)
    }

    /// Takes the requested jobs out of the cache, with their open effects and missed orders, in the
    /// order of the requests.
    fn take_recovered(&mut self) -> Result<Vec<RecoveredJob>, JournalError> {
        let mut effects_and_orders = Vec::with_capacity(self.requested.len());
        // In a loop of its own: open effects and missed orders depend on other jobs in the cache.
        for number in std::mem::take(&mut self.requested) {
            let (effects, orders) = (self.open_effects(number)?, self.missed_orders(number));
            effects_and_orders.push((number, effects, orders));
        }
        let recovered =
            effects_and_orders.into_iter().filter_map(|(number, effects, missed_orders)| {
                let (row, job) = self.jobs.remove(&number)?;
                let (root, parent) = (row.root, row.parent);
                Some(RecoveredJob { number, root, parent, job, effects, missed_orders })
            });
        Ok(recovered.collect())
    }

    /// Returns the orders of its parent that a job may have missed. A root job has none.
    fn missed_orders(&self, number: JobNumber) -> Vec<Order> {
        let orders = || {
            let (row, child) = self.jobs.get(&number)?;
            let (_, parent) = self.jobs.get(&row.parent?)?;
            Some(parent.missed_orders(child))
        };
        orders().unwrap_or_default()
    }

    /// Returns a job's open effects, without the starts of child jobs that exist. If a child job
    /// has ended and the parent has missed that, its start is replaced by the effect with which the
    /// child job reports its end.
    fn open_effects(&mut self, number: JobNumber) -> Result<Vec<Effect>, JournalError> {
        let Some((row, job)) = self.jobs.get(&number) else { return Ok(Vec::new()) };
        let (root, open_effects) = (row.root, job.open_effects());
        let mut effects = Vec::with_capacity(open_effects.len());
        // Whether the last child job that the effects start does not exist yet.
        let mut is_new_child = false;
        for effect in open_effects {
            let started_child = match &effect {
                Effect::StartChild { origin, .. } => origin.parent.map(|parent| ChildKey {
                    parent: number,
                    step: parent.step.0,
                    item: parent.index,
                    id: origin.id,
                }),
                // An order is for the child job whose start precedes it. A child job that exists
                // already gets its orders as missed orders.
                Effect::OrderChild { .. } if !is_new_child => continue,
                Effect::Dispatch { .. }
                | Effect::OrderChild { .. }
                | Effect::NotifyParent(..)
                | Effect::AnswerCaller { .. } => None,
            };
            let Some(child_key) = started_child else {
                effects.push(effect);
                continue;
            };
            is_new_child = false;
            if self.live_children.contains(&child_key) {
                continue;
            }
            match self.effects_of_ended_child(root, child_key)? {
                Some(child_effects) => effects.extend(child_effects),
                None => {
                    is_new_child = true;
                    effects.push(effect);
                }
            }
        }
        Ok(effects)
    }

    /// Returns the effects for a child job that is not live: the report of its end to the parent,
    /// or the orders of the parent that it has missed. `None` if there is no such child job.
    fn effects_of_ended_child(
        &mut self,
        root: JobNumber,
        key: ChildKey,
    ) -> Result<Option<Vec<Effect>>, JournalError> {
        let Some(number) = self.rows.find_child(root, &key)? else { return Ok(None) };
        let Some(child) = self.load(number)?.cloned() else { return Ok(None) };
        if !child.state().is_ended() {
            return Ok(Some(Vec::new()));
        }
        let parent = self.load(key.parent)?.expect("the parent was loaded with its child");
        let orders = parent.missed_orders(&child);
        if !orders.is_empty() && !child.is_closed() {
            // It takes input, so it is recovered on its own, with its missed orders.
            return Ok(Some(Vec::new()));
        }
        if !orders.is_empty() {
            let Some(parent_item) = child.origin().parent else { return Ok(Some(Vec::new())) };
            return Ok(Some(
                orders
                    .into_iter()
                    .map(|order| Effect::OrderChild { child: key.id, parent_item, order })
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
