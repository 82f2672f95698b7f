//! What is committed, and not yet in the tables that are derived from the entries.

use crate::engine::{CallerEntry, Entry, Job, JobId, JobState, StepIndex, Timestamp};
use crate::journal::record::{JobNumber, Record};
use crate::journal::recover::JobRow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is committed and not derived yet.
#[derive(Default)]
pub(super) struct Tail {
    /// The rows of `entries`, each by its job, its place and its number.
    pub(super) places: Vec<(JobNumber, u64, i64)>,
    /// The place of each job's last row of these.
    lasts: HashMap<JobNumber, u64>,
    /// What changes in `jobs`.
    pub(super) jobs: BTreeMap<JobNumber, JobChange>,
    /// What changes in the relations of statuses.
    pub(super) statuses: StatusChanges,
}

/// What changes in a row of `jobs`: several records of a job come to one change.
#[derive(Default)]
pub(super) struct JobChange {
    /// The row itself, of a job that is new, and its workflow's full name.
    pub(super) new: Option<(JobRow, String)>,
    /// Its state, and when it ended.
    pub(super) state: Option<(JobState, Option<Timestamp>)>,
    /// Whether it takes input.
    pub(super) open: Option<bool>,
}

impl Tail {
    /// Whether all is derived.
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The row of a job that is new.
    pub(super) fn new_job(&self, number: JobNumber) -> Option<&JobRow> {
        self.jobs.get(&number)?.new.as_ref().map(|(row, _)| row)
    }

    /// Whether a top-level job, or a child job of it, is new.
    pub(super) fn has_new_of(&self, root: JobNumber) -> bool {
        let new = self.jobs.values().filter_map(|change| change.new.as_ref());
        new.map(|(row, _)| row.root).any(|other| other == root)
    }

    /// The place of the last row of a job.
    pub(super) fn last_of(&self, job: JobNumber) -> Option<u64> {
        self.lasts.get(&job).copied()
    }

    /// Adds a row.
    pub(super) fn add_row(&mut self, job: JobNumber, first: u64, seq: i64) {
        self.places.push((job, first, seq));
        self.lasts.insert(job, first);
    }

    /// Adds what follows from a record whose entries are in the row `seq`; `new` is the row of its
    /// job, if that is new.
    pub(super) fn add(&mut self, record: &Record, seq: i64, new: Option<JobRow>) {
        self.add_row(record.job, record.recorded.first, seq);
        self.statuses.add(record, new.as_ref().map(|row| row.definition));
        // An ended job is open again for a caller that is to be answered.
        let is_opened = record
            .recorded
            .entries
            .iter()
            .any(|entry| matches!(entry, Entry::Caller(CallerEntry::Joined(_))));
        if new.is_none() && record.state.is_none() && !record.closed && !is_opened {
            return;
        }
        let change = self.jobs.entry(record.job).or_default();
        if let Some((row, created)) = new.zip(record.created.as_ref()) {
            change.new = Some((row, created.origin.definition.full_name()));
        }
        if let Some(state) = record.state {
            change.state = Some((state, state.is_ended().then_some(record.recorded.at)));
        }
        if record.state.is_some() || record.closed || is_opened {
            change.open = Some(!record.closed);
        }
    }
}

/// What changes in the relations of statuses: for each job one row, written once.
#[derive(Default)]
pub(super) struct StatusChanges(pub(super) BTreeMap<JobNumber, StatusChange>);

/// What changes in one row.
pub(super) struct StatusChange {
    pub(super) job: JobNumber,
    /// Of a job that is new: its id, its time, its definition's number.
    pub(super) created: Option<(JobId, Timestamp, i64)>,
    pub(super) state: Option<JobState>,
    pub(super) updated: Timestamp,
    pub(super) statuses: Vec<(StepIndex, Arc<str>)>,
}

impl StatusChange {
    /// The whole row of a job.
    pub(super) fn whole(
        number: JobNumber,
        job: &Job,
        updated: Timestamp,
        definition: i64,
    ) -> StatusChange {
        StatusChange {
            job: number,
            created: Some((job.id(), job.origin().created, definition)),
            state: Some(job.state()),
            updated,
            statuses: job.graph().indices().map(|step| (step, job.status(step).into())).collect(),
        }
    }
}

impl StatusChanges {
    /// Adds what a record changes; `definition` is the number of the definition of a job that is
    /// new.
    fn add(&mut self, record: &Record, definition: Option<i64>) {
        let created = record.created.as_ref();
        let is_child = created.is_some_and(|created| created.parent.is_some());
        if is_child || (created.is_none() && record.state.is_none() && record.statuses.is_empty()) {
            return;
        }
        let created = created
            .zip(definition)
            .map(|(created, definition)| (created.origin.id, created.origin.created, definition));
        let change = self.0.entry(record.job).or_insert_with(|| StatusChange {
            job: record.job,
            created,
            state: None,
            updated: created.map_or(Timestamp::default(), |(_, at, _)| at),
            statuses: Vec::new(),
        });
        change.created = change.created.or(created);
        change.state = record.state.or(change.state);
        if record.recorded.entries.iter().any(Entry::is_change) {
            change.updated = record.recorded.at;
        }
        for (step, status) in &record.statuses {
            match change.statuses.iter_mut().find(|(known, _)| known == step) {
                Some((_, known)) => known.clone_from(status),
                None => change.statuses.push((*step, status.clone())),
            }
        }
    }
}

/// The ids of jobs whose rows are not derived yet. Only these do readers look for among the newest
/// entries.
#[derive(Default)]
pub(super) struct NewIds(Mutex<HashSet<JobId>>);

impl NewIds {
    fn ids(&self) -> MutexGuard<'_, HashSet<JobId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before the commit, so that no reader misses one.
    pub(super) fn add(&self, id: JobId) {
        self.ids().insert(id);
    }

    pub(super) fn has(&self, id: JobId) -> bool {
        self.ids().contains(&id)
    }

    /// All are derived.
    pub(super) fn clear(&self) {
        self.ids().clear();
    }
}
