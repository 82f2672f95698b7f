//! What readers ask a journal for, and what they are answered.

use super::record::JobNumber;
use crate::engine::{
    Definition, DefinitionHash, Graph, Job, JobId, JobState, Message, Recorded, StepIndex,
    Timestamp,
};
use std::sync::Arc;

/// A job that the journal keeps.
pub struct KeptJob {
    /// Its number.
    pub number: JobNumber,
    /// The top-level job's number.
    pub root: JobNumber,
    /// The job.
    pub job: Job,
}

/// A part of a job's record.
pub struct RecordPage {
    /// The definition that the job runs.
    pub definition: Arc<Definition>,
    /// The graph of it.
    pub graph: u16,
    /// The rows, in order; the first and the last may be cut.
    pub rows: Vec<Recorded>,
    /// Whether the record ends with them, for now.
    pub is_last: bool,
}

impl RecordPage {
    /// The graph that the job runs.
    pub fn graph(&self) -> &Graph {
        &self.definition.graphs[usize::from(self.graph)]
    }

    /// The number of the last entry, if there are more behind it.
    pub fn next(&self) -> Option<u64> {
        let last = self.rows.last().filter(|_| !self.is_last)?;
        Some(last.first + last.entries.len() as u64)
    }
}

/// What never changes about a job whose record is read.
pub struct RecordHead {
    /// The definition that the job runs.
    pub definition: Arc<Definition>,
    /// The graph of it.
    pub graph: u16,
    /// When the job was created.
    pub created: Timestamp,
}

impl RecordHead {
    /// The graph that the job runs.
    pub fn graph(&self) -> &Graph {
        &self.definition.graphs[usize::from(self.graph)]
    }
}

/// A job at a point of its record.
pub enum JobAt {
    /// As it was then.
    Was {
        /// The job.
        job: Box<Job>,
        /// When the entry was decided.
        at: Timestamp,
    },
    /// There is no entry of that number.
    Never {
        /// How many there are.
        entries: u64,
    },
}

/// How a job was created.
pub struct Creation {
    /// Its number.
    pub number: JobNumber,
    /// The workflow's full name.
    pub workflow: String,
    /// Whether it is a child job.
    pub is_child: bool,
    /// A top-level job's message.
    pub message: Option<Message>,
}

/// Where a page of ended jobs goes on: below this time and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedCursor {
    /// When the last one on the page before ended.
    pub ended: Timestamp,
    /// Its number.
    pub number: JobNumber,
}

impl EndedCursor {
    /// Before the newest.
    pub const NEWEST: EndedCursor = EndedCursor { ended: Timestamp(i64::MAX), number: i64::MAX };
}

/// Which jobs are looked for: those that meet all that is set.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// The workflow's full name.
    pub workflow: Option<String>,
    /// The states, of which one must fit; none given: any.
    pub states: Vec<JobState>,
    /// The ids lie between these two, which are among them.
    pub ids: Option<(JobId, JobId)>,
    /// Statuses by step; only with a workflow.
    pub statuses: Vec<(String, String)>,
    /// Created at this time or later.
    pub created_from: Option<Timestamp>,
    /// Created before this time.
    pub created_before: Option<Timestamp>,
    /// Ended at this time or later.
    pub ended_from: Option<Timestamp>,
    /// Ended before this time.
    pub ended_before: Option<Timestamp>,
    /// Child jobs of this job; none: top-level jobs.
    pub parent: Option<ParentRow>,
}

/// Where the child jobs of a job are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParentRow {
    /// The job's number.
    pub number: JobNumber,
    /// The top-level job's number.
    pub root: JobNumber,
}

/// In which order jobs are found: top-level jobs by creation, child jobs by step and item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SearchOrder {
    /// The newest, or the last, first.
    #[default]
    NewestFirst,
    /// The oldest, or the first, first.
    OldestFirst,
}

impl SearchOrder {
    /// What the first page begins behind.
    pub fn start(self) -> JobNumber {
        match self {
            SearchOrder::NewestFirst => NEWEST,
            SearchOrder::OldestFirst => -1,
        }
    }
}

impl Filter {
    /// Whether it lets every job through.
    pub fn is_empty(&self) -> bool {
        let Filter {
            workflow,
            states,
            ids,
            statuses,
            created_from,
            created_before,
            ended_from,
            ended_before,
            parent,
        } = self;
        let times = [created_from, created_before, ended_from, ended_before];
        workflow.is_none()
            && parent.is_none()
            && states.is_empty()
            && ids.is_none()
            && statuses.is_empty()
            && times.iter().all(|time| time.is_none())
    }
}

/// A job that was found.
#[derive(Clone, Debug)]
pub struct Hit {
    /// Its number.
    pub number: JobNumber,
    /// Its id.
    pub id: JobId,
    /// The workflow's full name.
    pub workflow: String,
    /// Its state.
    pub state: String,
    /// When it was created.
    pub created: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// Why it failed or was cancelled.
    pub reason: Option<Arc<str>>,
    /// Of a child job: the step of its parent, and the item's index.
    pub place: Option<(StepIndex, u32)>,
    /// How many steps it has, if its definition can be read.
    pub steps: Option<usize>,
}

/// How many kept jobs run a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefinitionUse {
    /// The definition.
    pub hash: DefinitionHash,
    /// Top-level jobs under way.
    pub running: i64,
    /// Top-level jobs that have ended.
    pub ended: i64,
    /// When the last of these ended.
    pub last_ended: Option<Timestamp>,
}

/// A job whose child jobs are asked for.
#[derive(Clone)]
pub struct Family {
    pub(super) number: JobNumber,
    pub(super) root: JobNumber,
    pub(super) definition: Arc<Definition>,
    pub(super) graph: u16,
}

impl Family {
    /// Where its child jobs are found.
    pub fn row(&self) -> ParentRow {
        ParentRow { number: self.number, root: self.root }
    }

    /// The graph that the parent runs.
    pub fn graph(&self) -> &Graph {
        &self.definition.graphs[usize::from(self.graph)]
    }
}

/// Which child jobs are looked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChildFilter {
    /// The state.
    pub state: Option<JobState>,
    /// The step of the parent.
    pub step: Option<StepIndex>,
}

/// The last child job of a page; the next page begins behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildCursor {
    /// The step of the parent.
    pub step: i64,
    /// The item's index.
    pub item: i64,
    /// Its number.
    pub number: JobNumber,
}

impl ChildCursor {
    /// Before the first.
    pub const START: ChildCursor = ChildCursor { step: -1, item: -1, number: -1 };
}

/// A child job as lists show it.
#[derive(Clone, Debug)]
pub struct ChildRow {
    /// Where the page goes on behind it.
    pub cursor: ChildCursor,
    /// Its id.
    pub id: JobId,
    /// The step of the parent.
    pub step: StepIndex,
    /// The item's index.
    pub item: u32,
    /// Its state.
    pub state: String,
    /// When it was created.
    pub created: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// Why it failed or was cancelled.
    pub reason: Option<Arc<str>>,
}

/// An item of a fan-out whose child job was started.
#[derive(Clone, Copy, Debug)]
pub struct ItemRow {
    /// Its index.
    pub item: u32,
    /// The state of its child job.
    pub state: JobState,
    /// When that was created.
    pub created: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
}

/// Which rows are wanted: all that it names must hold.
#[derive(Clone, Debug, Default)]
pub struct StatusFilter {
    /// The job.
    pub job: Option<JobId>,
    /// The job's state.
    pub state: Option<JobState>,
    /// Steps, by their columns, and the status of each.
    pub steps: Vec<(String, String)>,
}

/// A row of a relation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusRow {
    /// The job's number; the page after this row goes on below it.
    pub number: JobNumber,
    /// The job's id.
    pub job: String,
    /// Its state.
    pub state: String,
    /// When it was created, RFC 3339.
    pub created: String,
    /// When its state or a status changed last.
    pub updated: String,
    /// The statuses, in the order of the columns asked for.
    pub statuses: Vec<String>,
}

/// Where the first page begins.
pub const NEWEST: JobNumber = JobNumber::MAX;
