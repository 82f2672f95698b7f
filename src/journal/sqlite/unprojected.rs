//! The changes that are committed but not yet in the projected tables. They are kept in memory
//! until the next projection writes them.

use crate::failures::FailureChange;
use crate::record::{JobNumber, Record};
use crate::recover::JobRow;
use engine::{Entry, Job, JobId, JobState, NamedCell, StepIndex, Timestamp};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The changes that are committed but not projected yet.
#[derive(Default)]
pub(super) struct Unprojected {
    /// The rows of `places` to be inserted, one for each unprojected row of `entries`.
    pub(super) places: Vec<Place>,
    /// The number of the first entry of each job's last row.
    last_row_starts: HashMap<JobNumber, u64>,
    /// The changes to `jobs`.
    pub(super) jobs: BTreeMap<JobNumber, JobChange>,
    /// The changes to the status tables.
    pub(super) statuses: StatusChanges,
}

/// A row of `places`, the index of `entries` by job. The order of the fields is that of the index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) job: JobNumber,
    /// The number of the first entry in the row of `entries`, without its confirms.
    pub(super) first: u64,
    /// The `seq` of the row of `entries`.
    pub(super) seq: i64,
}

/// The change to a row of `jobs`, merged from several records of a job.
#[derive(Default)]
pub(super) struct JobChange {
    /// The row of a new job, and its workflow's full name; `None` if the row exists already.
    pub(super) new_row: Option<(JobRow, String)>,
    /// The new state, and when the job ended; `None` if the state did not change.
    pub(super) state: Option<(JobState, Option<Timestamp>)>,
    /// Whether the job takes input; `None` if that did not change.
    pub(super) is_open: Option<bool>,
    /// The change to the job's failure; `None` if there is none.
    pub(super) failure: Option<FailureChange>,
}

impl Unprojected {
    /// Returns whether everything is projected.
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the row of a job that is not projected at all; `None` for any other job.
    pub(super) fn new_job(&self, number: JobNumber) -> Option<&JobRow> {
        self.jobs.get(&number)?.new_row.as_ref().map(|(row, _)| row)
    }

    /// Returns whether a root job or any of its descendants is not projected at all.
    pub(super) fn has_new_jobs_of(&self, root: JobNumber) -> bool {
        let new_jobs = self.jobs.values().filter_map(|change| change.new_row.as_ref());
        new_jobs.map(|(row, _)| row.root).any(|job_root| job_root == root)
    }

    /// Returns the number of the first entry of a job's last unprojected row; `None` if the job has
    /// no such row.
    pub(super) fn last_row_start(&self, job: JobNumber) -> Option<u64> {
        self.last_row_starts.get(&job).copied()
    }

    /// Adds a row that changes neither `jobs` nor the status tables.
    pub(super) fn add_row(&mut self, job: JobNumber, first: u64, seq: i64) {
        self.places.push(Place { job, first, seq });
        self.last_row_starts.insert(job, first);
    }

    /// Adds the changes of a record whose entries are in the row `seq`; `new_job` is the row of
    /// `jobs` if the record creates a job.
    pub(super) fn add_record(&mut self, record: &Record, seq: i64, new_job: Option<JobRow>) {
        self.add_row(record.job, record.recorded.first, seq);
        self.statuses.add(record, new_job.as_ref().map(|row| row.definition));
        let open_change = record.open_change();
        if new_job.is_none() && open_change.is_none() {
            return;
        }
        let change = self.jobs.entry(record.job).or_default();
        if let Some((row, created)) = new_job.zip(record.created.as_ref()) {
            change.new_row = Some((row, created.origin.definition.full_name()));
        }
        change.state = record.state_change().or(change.state);
        change.is_open = open_change.or(change.is_open);
        change.failure = FailureChange::from_record(record).or(change.failure);
    }
}

/// The changes to the status tables, merged into one change for each job.
#[derive(Default)]
pub(super) struct StatusChanges(pub(super) BTreeMap<JobNumber, StatusChange>);

/// The change to a job's row in a status table.
pub(super) struct StatusChange {
    pub(super) job: JobNumber,
    /// The columns that only a new row needs; `None` if the row exists already.
    pub(super) new_row: Option<NewStatusRow>,
    /// The new state; `None` if it did not change.
    pub(super) state: Option<JobState>,
    /// When the state or a status last changed; for a new row without changes, its creation time.
    pub(super) updated: Timestamp,
    /// The changed statuses.
    pub(super) statuses: Vec<(StepIndex, Arc<str>)>,
    /// The changed cells.
    pub(super) cells: Vec<NamedCell>,
}

/// What a new row of a status table needs beyond its state and statuses.
#[derive(Clone, Copy)]
pub(super) struct NewStatusRow {
    /// The job's id.
    pub(super) id: JobId,
    /// When the job was created.
    pub(super) created: Timestamp,
    /// The number of the job's definition.
    pub(super) definition: i64,
}

impl StatusChange {
    /// Creates the change that writes the complete row of a job.
    pub(super) fn full_row(
        number: JobNumber,
        job: &Job,
        updated: Timestamp,
        definition: i64,
    ) -> StatusChange {
        StatusChange {
            job: number,
            new_row: Some(NewStatusRow { id: job.id(), created: job.origin().created, definition }),
            state: Some(job.state()),
            updated,
            statuses: job.graph().indices().map(|step| (step, job.status(step).into())).collect(),
            cells: job.sql_cells(),
        }
    }
}

impl StatusChanges {
    /// Adds the changes of a record; `definition` is the number of a new job's definition.
    fn add(&mut self, record: &Record, definition: Option<i64>) {
        let created = record.created.as_ref();
        let is_child = created.is_some_and(|created| created.parent.is_some());
        let is_unchanged =
            record.state.is_none() && record.statuses.is_empty() && record.cells.is_empty();
        if is_child || (created.is_none() && is_unchanged) {
            return;
        }
        let new_row = created.zip(definition).map(|(created, definition)| NewStatusRow {
            id: created.origin.id,
            created: created.origin.created,
            definition,
        });
        let change = self.0.entry(record.job).or_insert_with(|| StatusChange {
            job: record.job,
            new_row,
            state: None,
            updated: new_row.map_or(Timestamp::default(), |new_row| new_row.created),
            statuses: Vec::new(),
            cells: Vec::new(),
        });
        change.new_row = change.new_row.or(new_row);
        change.state = record.state.or(change.state);
        if record.recorded.entries.iter().any(Entry::is_change) {
            change.updated = record.recorded.at;
        }
        for (step, status) in &record.statuses {
            match change.statuses.iter_mut().find(|(changed_step, _)| changed_step == step) {
                Some((_, changed_status)) => changed_status.clone_from(status),
                None => change.statuses.push((*step, status.clone())),
            }
        }
        for (name, cell) in &record.cells {
            match change.cells.iter_mut().find(|(changed_name, _)| changed_name == name) {
                Some((_, changed_cell)) => changed_cell.clone_from(cell),
                None => change.cells.push((name.clone(), cell.clone())),
            }
        }
    }
}

/// The ids of jobs that may be missing in `jobs`. Readers search the unprojected rows of `entries`
/// only for these.
#[derive(Default)]
pub(super) struct UnprojectedIds(Mutex<HashSet<JobId>>);

impl UnprojectedIds {
    fn lock(&self) -> MutexGuard<'_, HashSet<JobId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an id. Must be called before the commit, so that no reader misses the job. After a
    /// rollback the id stays until the next projection: until then, readers search for it in vain.
    pub(super) fn add(&self, id: JobId) {
        self.lock().insert(id);
    }

    pub(super) fn contains(&self, id: JobId) -> bool {
        self.lock().contains(&id)
    }

    /// Removes all ids. Must be called only when everything is projected.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }
}
