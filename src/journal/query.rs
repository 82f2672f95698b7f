//! The parameters and results of a journal's queries.

use super::record::JobNumber;
use engine::{
    Cell, CellKind, Columns, Definition, DefinitionHash, Entry, Graph, Job, JobEntry, JobId,
    JobState, Message, NamedCell, ReasonId, Recorded, SLOT_COLUMNS, StepIndex, Timestamp,
};
use std::sync::Arc;

/// A job with its numbers.
pub struct StoredJob {
    /// The job's number.
    pub number: JobNumber,
    /// The root job's number.
    pub root: JobNumber,
    /// The job, rebuilt from its entries.
    pub job: Job,
}

impl StoredJob {
    /// Returns the version of the record from which the job was rebuilt.
    pub fn version(&self) -> RecordVersion {
        RecordVersion {
            number: self.number,
            created: self.job.origin().created,
            entries: self.job.entry_count(),
        }
    }
}

/// The version of a job's record. A record's entries never change; others only follow them. So what
/// was derived from a version of a record stays valid for that version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordVersion {
    /// The job's number.
    pub number: JobNumber,
    /// When the job was created.
    pub created: Timestamp,
    /// How many entries the record has.
    pub entries: u64,
}

/// One page of a job's record.
pub struct RecordPage {
    /// The definition that the job runs.
    pub definition: Arc<Definition>,
    /// The index of the job's graph within the definition.
    pub graph: u16,
    /// The rows, in order. The first and the last may be truncated to the entries of this page.
    pub rows: Vec<Recorded>,
    /// Whether the record has no entries after this page, for now.
    pub is_last: bool,
}

impl RecordPage {
    /// Returns the graph that the job runs.
    pub fn graph(&self) -> &Graph {
        &self.definition.graphs[usize::from(self.graph)]
    }

    /// Returns the cursor of the next page: the number of entries up to the end of this page.
    /// `None` if this is the last page, or has no entries.
    pub fn next_cursor(&self) -> Option<u64> {
        let last_row = self.rows.last().filter(|_| !self.is_last)?;
        Some(last_row.first + last_row.entries.len() as u64)
    }

    /// Adds the entries of a row, except for the first `after` entries of the job and those beyond
    /// the `remaining` number of entries, which is reduced.
    pub(super) fn add(&mut self, mut row: Recorded, after: u64, remaining: &mut usize) {
        let skipped = usize::try_from(after.saturating_sub(row.first)).unwrap_or(usize::MAX);
        let skipped = skipped.min(row.entries.len());
        row.entries.drain(..skipped);
        row.first += skipped as u64;
        if row.entries.is_empty() {
            return;
        }
        if row.entries.len() > *remaining {
            row.entries.truncate(*remaining);
            self.is_last = false;
        }
        *remaining -= row.entries.len();
        if !row.entries.is_empty() {
            self.rows.push(row);
        }
    }
}

/// The fields of a job that are needed to read its record, and never change.
pub struct RecordHead {
    /// The definition that the job runs.
    pub definition: Arc<Definition>,
    /// The index of the job's graph within the definition.
    pub graph: u16,
    /// When the job was created.
    pub created: Timestamp,
}

impl RecordHead {
    /// Returns the graph that the job runs.
    pub fn graph(&self) -> &Graph {
        &self.definition.graphs[usize::from(self.graph)]
    }
}

/// A job as it was after one of its entries.
pub enum JobAtEntry {
    /// The job has an entry with that number.
    Found {
        /// The job after that entry.
        job: Box<Job>,
        /// When the entry was decided.
        at: Timestamp,
    },
    /// The job has no entry with that number.
    NoSuchEntry {
        /// How many entries the job has.
        entries: u64,
    },
}

/// A name of managers that is not this manager's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignName {
    /// The name, as in the setting `cluster.name`.
    pub name: String,
    /// The address of its active manager's API, or of the last one; `None` if it has none.
    pub api_address: Option<String>,
}

/// How a job was created.
pub struct JobCreation {
    /// The job's number.
    pub number: JobNumber,
    /// The workflow's full name.
    pub workflow: String,
    /// Whether it is a child job.
    pub is_child: bool,
    /// The message that a root job was created with. `None` for a child job, whose message is
    /// derived from its parent, and for a root job without a message.
    pub message: Option<Message>,
}

/// The cursor of a list of ended jobs, in which the job that ended last comes first. The next page
/// has the jobs that precede this end time and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedCursor {
    /// When the last job of the previous page ended.
    pub ended: Timestamp,
    /// The number of that job.
    pub number: JobNumber,
}

impl EndedCursor {
    /// The cursor before the job that ended last.
    pub const NEWEST: EndedCursor = EndedCursor { ended: Timestamp(i64::MAX), number: i64::MAX };
}

/// The criteria of a search. A job must meet every criterion that is set.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    /// The workflow's full name.
    pub workflow: Option<String>,
    /// The states, one of which the job must have; empty: any state.
    pub states: Vec<JobState>,
    /// The lowest and the highest id, both inclusive.
    pub id_range: Option<(JobId, JobId)>,
    /// Pairs of a step's name and its status; only allowed with a workflow.
    pub statuses: Vec<(String, String)>,
    /// Pairs of a column's name and the text of its value.
    pub cells: Vec<(String, String)>,
    /// A text that the job's label has somewhere.
    pub label: Option<String>,
    /// The full name of the schedule that started the job. It is in the first row of a job's
    /// record, which is read for each job that meets the other criteria.
    pub schedule: Option<String>,
    /// The pattern of a reason. A root job has it if it failed for such a reason, or if a job of
    /// its tree did; a child job, if it failed for such a reason itself.
    pub reason: Option<ReasonId>,
    /// Whether only completed jobs match of which items have failed.
    pub failed_items: bool,
    /// The earliest creation time, inclusive.
    pub created_from: Option<Timestamp>,
    /// The end of the range of creation times, exclusive.
    pub created_before: Option<Timestamp>,
    /// The earliest end time, inclusive.
    pub ended_from: Option<Timestamp>,
    /// The end of the range of end times, exclusive.
    pub ended_before: Option<Timestamp>,
    /// The job whose child jobs are searched; `None`: root jobs are searched.
    pub parent: Option<ParentKey>,
}

impl JobFilter {
    /// Returns the states to query one after another; `None` stands for all states. An index yields
    /// the jobs of one state in order, but not those of several states.
    pub(super) fn states_to_query(&self) -> Vec<Option<JobState>> {
        match self.states.as_slice() {
            [] => vec![None],
            states => states.iter().copied().map(Some).collect(),
        }
    }

    /// Returns a text that is in the first row of each job that the schedule started, for a quick
    /// look before the row is read as JSON: no row need have it for that reason alone.
    pub(super) fn slot_text(schedule: &str) -> String {
        format!("\"slot\":{{\"schedule\":{},\"slot\":", serde_json::Value::from(schedule))
    }

    /// Returns whether the filter matches every root job.
    pub fn is_empty(&self) -> bool {
        let JobFilter {
            workflow,
            states,
            id_range,
            statuses,
            cells,
            label,
            schedule,
            reason,
            failed_items,
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
            && id_range.is_none()
            && statuses.is_empty()
            && cells.is_empty()
            && label.is_none()
            && schedule.is_none()
            && reason.is_none()
            && !failed_items
            && times.iter().all(|time| time.is_none())
    }
}

/// The key by which the child jobs of a job are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParentKey {
    /// The job's number.
    pub number: JobNumber,
    /// The root job's number.
    pub root: JobNumber,
}

/// The cursor before the first page of a list in which the newest job comes first.
pub const NEWEST_CURSOR: JobNumber = JobNumber::MAX;

/// The cursor before the first page of a list in which the oldest job comes first. It is below
/// every job number.
const OLDEST_CURSOR: JobNumber = -1;

/// The order of search results: root jobs by creation, child jobs by step and item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SearchOrder {
    /// The newest root job first; of child jobs, the last item of the last step first.
    #[default]
    NewestFirst,
    /// The oldest root job first; of child jobs, the first item of the first step first.
    OldestFirst,
}

impl SearchOrder {
    /// Returns the cursor before the first page.
    pub fn start_cursor(self) -> JobNumber {
        match self {
            SearchOrder::NewestFirst => NEWEST_CURSOR,
            SearchOrder::OldestFirst => OLDEST_CURSOR,
        }
    }
}

/// A job that a search found.
#[derive(Clone, Debug)]
pub struct SearchHit {
    /// The job's number.
    pub number: JobNumber,
    /// The job's id.
    pub id: JobId,
    /// The workflow's full name.
    pub workflow: String,
    /// The job's state.
    pub state: String,
    /// When it was created.
    pub created: Timestamp,
    /// When it ended; `None`: it has not ended.
    pub ended: Option<Timestamp>,
    /// Why it failed or was cancelled; `None` in any other state.
    pub reason: Option<Arc<str>>,
    /// The parent's step and the item's index; `None` for a root job.
    pub parent_item: Option<(StepIndex, u32)>,
    /// The number of steps of the job; `None` if its definition cannot be read.
    pub steps: Option<usize>,
    /// Whether it has completed although items of its own fan-outs failed.
    pub has_failed_items: bool,
    /// The cells of a root job's label and columns that are not empty, in the order of its
    /// definition.
    pub cells: Vec<NamedCell>,
}

/// A definition, and the number of stored root jobs that run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefinitionUse {
    /// The content hash of the definition.
    pub hash: DefinitionHash,
    /// The number of root jobs that have not ended.
    pub running: i64,
    /// The number of ended root jobs.
    pub ended: i64,
    /// When the last ended root job ended; `None` if none has ended.
    pub last_ended: Option<Timestamp>,
}

/// A job whose child jobs are queried.
#[derive(Clone)]
pub struct ParentRecord {
    pub(super) number: JobNumber,
    pub(super) root: JobNumber,
    pub(super) definition: Arc<Definition>,
    /// The index of the job's graph within the definition.
    pub(super) graph: u16,
}

impl ParentRecord {
    /// Returns the key by which its child jobs are found.
    pub fn key(&self) -> ParentKey {
        ParentKey { number: self.number, root: self.root }
    }

    /// Returns the graph that the job runs.
    pub fn graph(&self) -> &Graph {
        &self.definition.graphs[usize::from(self.graph)]
    }
}

/// The criteria of a list of child jobs. A child job must meet every criterion that is set.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChildFilter {
    /// The state of the child job; `None`: any state.
    pub state: Option<JobState>,
    /// The parent's step; `None`: any step.
    pub step: Option<StepIndex>,
}

/// The cursor of a list of child jobs: the position of the last child job of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildCursor {
    /// The parent's step.
    pub step: i64,
    /// The item's index.
    pub item: i64,
    /// The child job's number.
    pub number: JobNumber,
}

impl ChildCursor {
    /// The cursor before the first child job.
    pub const START: ChildCursor = ChildCursor { step: -1, item: -1, number: -1 };
}

/// A child job in a list.
#[derive(Clone, Debug)]
pub struct ChildRow {
    /// The cursor after this row.
    pub cursor: ChildCursor,
    /// The child job's id.
    pub id: JobId,
    /// The parent's step.
    pub step: StepIndex,
    /// The item's index.
    pub item: u32,
    /// The child job's state.
    pub state: String,
    /// When it was created.
    pub created: Timestamp,
    /// When it ended; `None`: it has not ended.
    pub ended: Option<Timestamp>,
    /// Why it failed or was cancelled; `None` in any other state.
    pub reason: Option<Arc<str>>,
}

/// An item of a fan-out that has a child job.
#[derive(Clone, Copy, Debug)]
pub struct ItemRow {
    /// The item's index.
    pub item: u32,
    /// The state of its child job.
    pub state: JobState,
    /// When that child job was created.
    pub created: Timestamp,
    /// When it ended; `None`: it has not ended.
    pub ended: Option<Timestamp>,
}

/// The criteria of a query of a status table. A row must meet every criterion that is set.
#[derive(Clone, Debug, Default)]
pub struct StatusFilter {
    /// The job's id.
    pub job: Option<JobId>,
    /// The job's state.
    pub state: Option<JobState>,
    /// Pairs of a step column and its status.
    pub steps: Vec<(String, String)>,
}

/// A row of a status table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusRow {
    /// The job's number, which is also the cursor after this row.
    pub number: JobNumber,
    /// The job's id.
    pub job: String,
    /// The job's state.
    pub state: String,
    /// When the job was created, in RFC 3339.
    pub created: String,
    /// When the state or a status last changed, in RFC 3339.
    pub updated: String,
    /// The statuses, in the order of the requested columns.
    pub statuses: Vec<String>,
}

/// Returns whether a job in this state has a reason for it.
pub(super) fn has_reason(state: &str) -> bool {
    [JobState::Failed.as_str(), JobState::Cancelled.as_str()].contains(&state)
}

/// Returns the message with which a job was created, from its first entries; `None` if it has none.
pub(super) fn find_message(entries: Vec<Entry>) -> Option<Message> {
    entries.into_iter().find_map(|entry| match entry {
        Entry::Job(JobEntry::Created { message, .. }) => message,
        Entry::Job(_) | Entry::Step(..) | Entry::FanOut(..) | Entry::Caller(_) => None,
    })
}

/// The cells of a root job, computed anew from its record.
#[derive(Clone, Debug)]
pub struct CellRefill {
    /// The job's number.
    pub job: JobNumber,
    /// How many entries the record had. If it has more, the cells may be older than those that are
    /// there.
    pub entries: u64,
    /// The cells, also those that are empty.
    pub cells: Vec<NamedCell>,
}

/// Returns the cells of stored rows, each a name, the name of a type and a value, in the order of
/// the columns. The cells of other columns, which other definitions have, come after them, in the
/// order of their names.
pub(super) fn order_cells(
    columns: &Columns,
    rows: Vec<(String, String, String)>,
) -> Vec<NamedCell> {
    let place = |name: &str| columns.names().position(|column| column == name);
    let is_column = |(name, ..): &(String, String, String)| !SLOT_COLUMNS.contains(&name.as_str());
    let mut rows: Vec<_> = rows.into_iter().filter(is_column).collect();
    rows.sort_by_cached_key(|(name, ..)| (place(name).unwrap_or(usize::MAX), name.clone()));
    rows.into_iter()
        .filter_map(|(name, kind, value)| {
            let cell = Cell { kind: CellKind::from_name(&kind)?, text: value.into() };
            Some((name.into(), Some(cell)))
        })
        .collect()
}
