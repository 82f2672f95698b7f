//! The rows of a journal that are copied, and the traits of what reads and writes them.

use crate::error::JournalError;
use crate::failures::FailureChange;
use crate::record::{JobNumber, Notice, NoticeNumber, StoredLedger, StoredOffset, StoredTrend};
use crate::recover::{JobRow, JobRows};
use engine::{Control, Definition, JobId, JobState, NamedCell, RateMark, Timestamp};
use std::sync::Arc;

/// What a copy has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopySummary {
    /// The number of jobs and child jobs.
    pub jobs: u64,
    /// The number of decisions in their records.
    pub decisions: u64,
    /// The number of jobs and child jobs that take input: a manager continues these.
    pub open_jobs: u64,
}

/// A decision, with the JSON of its entries as it is stored.
pub(crate) struct DecisionText {
    pub(crate) job: JobNumber,
    /// The number of its first entry, counted from 0 within the job.
    pub(crate) first: u64,
    pub(crate) at: Timestamp,
    pub(crate) body: String,
}

/// A row of `jobs`.
pub(crate) struct StoredJobRow {
    pub(crate) row: JobRow,
    pub(crate) state: JobState,
    /// When the job ended; `None`: it has not ended.
    pub(crate) ended: Option<Timestamp>,
    /// Whether the job takes input.
    pub(crate) is_open: bool,
}

/// A row of `jobs` that is inserted, with the full name of its workflow.
pub(crate) struct NewJobRow {
    pub(crate) job: StoredJobRow,
    pub(crate) workflow: Arc<str>,
}

/// The statuses of a root job, derived from its decisions.
pub(crate) struct DerivedStatuses {
    pub(crate) job: JobNumber,
    pub(crate) id: JobId,
    pub(crate) created: Timestamp,
    /// The number of its definition.
    pub(crate) definition: i64,
    pub(crate) state: JobState,
    /// When its state or a status last changed.
    pub(crate) updated: Timestamp,
    /// The status of each step, in the order of the definition.
    pub(crate) words: Vec<Arc<str>>,
    /// The cells of its label and columns.
    pub(crate) cells: Vec<NamedCell>,
}

/// What the gate of limits is told at a start, beside the jobs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct GateRows {
    /// How far rates are used up, ordered by limit and key.
    pub(crate) marks: Vec<RateMark>,
    /// What operators have changed for a time.
    pub(crate) controls: Vec<Control>,
}

/// The order in which jobs are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobOrder {
    /// By number, so in the order of their creation.
    ByNumber,
    /// By root job, then by number.
    ByTree,
}

impl JobOrder {
    /// Returns the columns of `jobs` by which this order sorts.
    pub(crate) fn columns(self) -> &'static str {
        match self {
            JobOrder::ByNumber => "number",
            JobOrder::ByTree => "root, number",
        }
    }
}

/// The order in which decisions are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecisionOrder {
    /// In the order of their commits.
    ByCommit,
    /// By job, then by entry.
    ByJob,
}

/// A callback that receives one row after another. An error of it ends the reading.
pub(crate) type RowHandler<'a, T> = &'a mut dyn FnMut(T) -> Result<(), JournalError>;

/// Reads all of a journal, in one snapshot. Each row is verified when it is read.
pub(crate) trait CopyReader {
    /// Returns the name of the journal, for messages.
    fn journal(&self) -> &str;
    /// Returns the rows from which jobs are rebuilt.
    fn rows(&self) -> &dyn JobRows;
    /// Says which jobs will be rebuilt next, in this order.
    fn announce(&self, jobs: &[StoredJobRow]);
    fn count_jobs(&self) -> Result<u64, JournalError>;
    /// Calls `handler` with the number and the JSON of each definition, ordered by number.
    fn for_each_definition(
        &self,
        handler: RowHandler<'_, (i64, String)>,
    ) -> Result<(), JournalError>;
    fn for_each_job(
        &self,
        order: JobOrder,
        handler: RowHandler<'_, StoredJobRow>,
    ) -> Result<(), JournalError>;
    fn for_each_decision_text(
        &self,
        order: DecisionOrder,
        handler: RowHandler<'_, DecisionText>,
    ) -> Result<(), JournalError>;
    /// Returns at most `limit` notices with numbers above `after`, in order.
    fn load_notices(
        &self,
        after: NoticeNumber,
        limit: u32,
    ) -> Result<Vec<(NoticeNumber, Notice)>, JournalError>;
    /// Returns the offsets of all buses, ordered by bus, topic and partition.
    fn load_all_offsets(&self) -> Result<Vec<StoredOffset>, JournalError>;
    /// Returns the ledgers of all schedules, ordered by schedule.
    fn load_all_ledgers(&self) -> Result<Vec<StoredLedger>, JournalError>;
    /// Returns the buckets of all trends, ordered by ring, position and workflow.
    fn load_all_trends(&self) -> Result<Vec<StoredTrend>, JournalError>;
    fn load_gate_rows(&self) -> Result<GateRows, JournalError>;
}

/// Reads what was written, and writes the statuses that follow from it.
pub(crate) type ReadBack<'a> =
    &'a mut dyn FnMut(&dyn CopyReader, &mut dyn StatusWriter) -> Result<(), JournalError>;

/// Writes a journal that no manager can start on yet.
pub(crate) trait CopyWriter {
    /// Calls `read` with what is written.
    fn read_back(&mut self, read: ReadBack<'_>) -> Result<(), JournalError>;
    /// Inserts a definition with this JSON, and returns its number.
    fn insert_definition(
        &mut self,
        definition: &Definition,
        body: &str,
    ) -> Result<i64, JournalError>;
    /// Returns the number that a job has in this journal. Called in the order of the numbers in the
    /// original, and returns increasing numbers.
    fn number_job(&mut self, original: &JobRow) -> JobNumber;
    fn insert_jobs(&mut self, jobs: &[NewJobRow]) -> Result<(), JournalError>;
    /// Inserts decisions of jobs that are inserted, in the order of their commits.
    fn insert_decisions(&mut self, decisions: &[DecisionText]) -> Result<(), JournalError>;
    /// Inserts notices behind the first `before` ones.
    fn insert_notices(&mut self, notices: &[Notice], before: u64) -> Result<(), JournalError>;
    fn insert_offsets(&mut self, offsets: &[StoredOffset]) -> Result<(), JournalError>;
    fn insert_ledgers(&mut self, ledgers: &[StoredLedger]) -> Result<(), JournalError>;
    fn insert_trends(&mut self, trends: &[StoredTrend]) -> Result<(), JournalError>;
    fn insert_gate_rows(&mut self, rows: &GateRows) -> Result<(), JournalError>;
    /// Stores when the newest decision was made.
    fn set_newest(&mut self, newest: Timestamp) -> Result<(), JournalError>;
}

/// Writes what is derived from the decisions of root jobs.
pub(crate) trait StatusWriter {
    /// Inserts the statuses of root jobs, and the failures of jobs and child jobs.
    fn insert_statuses(
        &mut self,
        statuses: &[DerivedStatuses],
        failures: &[(JobNumber, FailureChange)],
    ) -> Result<(), JournalError>;
}
