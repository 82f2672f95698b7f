//! What the manager asks of a journal, whatever stores it: the end that writes, which one process
//! holds, and the end that reads.

use super::error::{JournalError, Loss};
use super::query::{
    ChildCursor, ChildFilter, ChildRow, Creation, DefinitionUse, EndedCursor, Family, Filter, Hit,
    ItemRow, JobAt, KeptJob, RecordHead, RecordPage, SearchOrder, StatusFilter, StatusRow,
};
use super::record::{Deleted, JobNumber, Notice, NoticeNumber, Position, Record, Sizes};
use super::recover::{EachFamily, Recovered};
use crate::engine::{
    Definition, DefinitionHash, Job, JobId, JobState, Millis, Recorded, StepIndex, Timestamp,
};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// The writing end. Its calls block, for it has a thread of its own. An error means that nothing of
/// the call was committed; [`JournalError::remedy`] says what helps.
pub trait Journal: Send {
    /// A reader that sees all that is committed.
    fn records(&self) -> Arc<dyn Records>;

    /// Checks that the files are still those that were opened. If they are not, what was committed
    /// to them is gone with the process, and nothing more is written.
    ///
    /// # Errors
    ///
    /// What has happened to it.
    fn check_files(&mut self) -> Result<(), Loss>;

    /// What it takes on the disk now; none, if that cannot be told.
    fn sizes(&mut self) -> Option<Sizes>;

    /// Makes what is missing of the room that is kept on the disk for emptying the journal, as far
    /// as there is some.
    fn keep_reserve(&mut self);

    /// Whether the disk has no room, not the file alone: then less may find some.
    fn is_disk_full(&self) -> bool;

    /// The number after the highest in use.
    fn next_number(&mut self) -> Result<JobNumber, JournalError>;

    /// Commits records, in order, all or nothing. Records of jobs that were deleted are void: a
    /// child job may still be about to start, or to hear that it is over, when its top-level job is
    /// deleted. Returns the numbers of such jobs. A record that the journal has already, by its job
    /// and its place, changes nothing.
    fn append(&mut self, records: &[&Record]) -> Result<BTreeSet<JobNumber>, JournalError>;

    /// Whether lists, searches and statuses are behind what is committed.
    fn is_behind(&self) -> bool;

    /// Derives what is committed: after that, lists, searches and statuses show it. If it fails, it
    /// is done later.
    fn derive(&mut self) -> Result<(), JournalError>;

    /// Whether confirms wait for a record of their jobs.
    fn has_confirms(&self) -> bool;

    /// Writes a record for each job whose confirms have waited since the last call, or longer, but
    /// not for more than some thousands. Tells whether any still wait.
    fn write_confirms(&mut self) -> Result<bool, JournalError>;

    /// Commits positions, all or none, over those of the same partitions. Whatever they count as
    /// done must be committed already.
    fn write_positions(&mut self, positions: &[Position]) -> Result<(), JournalError>;

    /// All jobs that take input, parents before their children, with what is left to do for them.
    fn recover(&self) -> Result<Vec<Recovered>, JournalError>;

    /// The same, family by family: a top-level job with its child jobs. Each is handed over and not
    /// kept; on several threads, in no order.
    fn each_family(&self, each: EachFamily<'_>) -> Result<(), JournalError>;

    /// Makes what is missing of the tables of statuses. Called with the loaded definitions before
    /// their first jobs.
    fn make_status_tables(&mut self, definitions: &[&Definition]) -> Result<(), JournalError>;

    /// When the newest record was written; none: there is none.
    fn newest(&self) -> Result<Option<Timestamp>, JournalError>;

    /// How many top-level jobs ended long enough ago to be deleted, as far as lists show them.
    fn count_ended(&mut self, now: Timestamp, kept: Millis) -> Result<u64, JournalError>;

    /// Deletes up to `rows_max` rows of top-level jobs, with their children, that ended long enough
    /// ago. The definition that a job started with says how long it is kept. If it says nothing,
    /// `kept` does.
    fn delete_ended(
        &mut self,
        now: Timestamp,
        kept: Millis,
        rows_max: u32,
    ) -> Result<Deleted, JournalError>;

    /// Deletes up to `rows_max` rows of top-level jobs by number, with their children; not of those
    /// that run. If a part of one is left, whatever comes for it is void: it is deleted further by
    /// further calls, and, once its retention is over, after a crash.
    fn delete(&mut self, roots: &[JobNumber], rows_max: u32) -> Result<Deleted, JournalError>;

    /// Deletes notices, all or none.
    fn forget(&mut self, notices: &[NoticeNumber]) -> Result<(), JournalError>;
}

/// The reading end. Many threads read at once, and never hold up the one that writes. Of several
/// jobs with the same id the newest is meant.
pub trait Records: Send + Sync {
    /// A job or child job, rebuilt from its entries.
    fn job(&self, id: JobId) -> Result<Option<KeptJob>, JournalError>;

    /// The job or child job with this number, also where a newer one has its id.
    fn job_numbered(&self, number: JobNumber) -> Result<Option<Job>, JournalError>;

    /// All rows of the record of the job with this number, in order; none: there is no such job.
    fn rows_numbered(&self, number: JobNumber) -> Result<Option<Vec<Recorded>>, JournalError>;

    /// The bytes of the entries from which a job is rebuilt, those of its parents included.
    fn job_bytes(&self, id: JobId) -> Result<Option<usize>, JournalError>;

    /// A job as it was after the entry numbered `at`.
    fn job_at(&self, id: JobId, at: u64) -> Result<Option<JobAt>, JournalError>;

    /// The entries of a job behind the entry numbered `after`, up to `limit` of them, and rows of
    /// about `bytes_max` bytes.
    fn record(
        &self,
        id: JobId,
        after: u64,
        limit: u32,
        bytes_max: usize,
    ) -> Result<Option<RecordPage>, JournalError>;

    /// Hands over all rows of a job's record, in order. Returns what never changes about the job;
    /// none: there is no such job.
    fn each_row(
        &self,
        id: JobId,
        each: &mut dyn FnMut(Recorded),
    ) -> Result<Option<RecordHead>, JournalError>;

    /// When a job was created, and how many entries its record has.
    fn length(&self, id: JobId) -> Result<Option<(Timestamp, u64)>, JournalError>;

    /// The definition of this content, if any job that is kept has it.
    fn definition(&self, hash: DefinitionHash) -> Result<Option<Arc<Definition>>, JournalError>;

    /// The definitions of a workflow that kept jobs run, the newest first.
    fn definitions_of(&self, workflow: &str) -> Result<Vec<DefinitionUse>, JournalError>;

    /// How a job was created.
    fn creation(&self, id: JobId) -> Result<Option<Creation>, JournalError>;

    /// The number of a job or child job.
    fn number(&self, id: JobId) -> Result<Option<JobNumber>, JournalError>;

    /// The number of a job's child job.
    fn child(&self, parent: JobNumber, id: JobId) -> Result<Option<JobNumber>, JournalError>;

    /// The jobs among these that exist, with what is left to do for them, as at a start. Everything
    /// committed of them and their families must be derived before.
    fn recover_some(
        &self,
        numbers: &[JobNumber],
    ) -> Result<HashMap<JobNumber, Recovered>, JournalError>;

    /// The jobs of a family, as [`Journal::each_family`] gives them: those of these numbers that
    /// exist. Everything committed of them must be derived before.
    fn recover_family(&self, numbers: &[JobNumber]) -> Result<Vec<Recovered>, JournalError>;

    /// Top-level jobs of a workflow under way, oldest first, beyond `after`, with their states.
    fn running(
        &self,
        workflow: &str,
        after: JobNumber,
        limit: u32,
    ) -> Result<Vec<(JobNumber, JobId, String)>, JournalError>;

    /// Running jobs and child jobs of all workflows, oldest first, beyond `after`.
    fn all_running(
        &self,
        after: JobNumber,
        limit: u32,
    ) -> Result<Vec<(JobNumber, JobId)>, JournalError>;

    /// The number of top-level jobs by workflow and state.
    fn state_counts(&self) -> Result<Vec<(String, JobState, i64)>, JournalError>;

    /// The number of running top-level jobs by workflow.
    fn running_counts(&self) -> Result<Vec<(String, i64)>, JournalError>;

    /// Ended top-level jobs of a workflow, newest first, that ended at or after `since`, beyond the
    /// cursor, with their states.
    fn ended(
        &self,
        workflow: &str,
        since: Timestamp,
        beyond: EndedCursor,
        limit: u32,
    ) -> Result<Vec<(EndedCursor, JobId, String)>, JournalError>;

    /// Hands over the workflow and the time of creation of top-level jobs below a number, the
    /// newest first. Jobs that came after the journal was opened may be missing. Returns the number
    /// of the last one; none: there are no more.
    fn creations(
        &self,
        below: JobNumber,
        limit: u32,
        each: &mut dyn FnMut(&str, Timestamp),
    ) -> Result<Option<JobNumber>, JournalError>;

    /// Hands over, in the same way, the top-level jobs of a workflow that ended at or after
    /// `since`: state, creation and end.
    fn ends(
        &self,
        workflow: &str,
        since: Timestamp,
        beyond: EndedCursor,
        limit: u32,
        each: &mut dyn FnMut(JobState, Timestamp, Timestamp),
    ) -> Result<Option<EndedCursor>, JournalError>;

    /// Jobs that the filter lets through, beyond the one with a number in this order.
    fn search(
        &self,
        filter: &Filter,
        order: SearchOrder,
        beyond: JobNumber,
        limit: u32,
    ) -> Result<Vec<Hit>, JournalError>;

    /// How many jobs the filter lets through; counted up to `most`.
    fn count(&self, filter: &Filter, most: u32) -> Result<u32, JournalError>;

    /// A job whose child jobs are asked for.
    fn family(&self, id: JobId) -> Result<Option<Family>, JournalError>;

    /// Its child jobs, by step, item and number, behind the cursor.
    fn children(
        &self,
        of: &Family,
        filter: ChildFilter,
        after: ChildCursor,
        limit: u32,
    ) -> Result<Vec<ChildRow>, JournalError>;

    /// Hands over the items of a step whose child jobs were started, in order, each as its newest
    /// child job has it.
    fn items(
        &self,
        of: &Family,
        step: StepIndex,
        each: &mut dyn FnMut(ItemRow),
    ) -> Result<(), JournalError>;

    /// Whether lists, searches and statuses show all that is committed; derives it, if it is not.
    ///
    /// # Errors
    ///
    /// They do not, and cannot be made to for now: a list would be wrong.
    fn lists_follow(&self) -> Result<(), JournalError>;

    /// The columns of a workflow's statuses; none if it has no table of them.
    fn status_columns(&self, workflow: &str) -> Result<Option<Vec<String>>, JournalError>;

    /// Rows of a workflow's statuses, newest first, below a number.
    fn statuses(
        &self,
        workflow: &str,
        columns: &[String],
        filter: &StatusFilter,
        before: JobNumber,
        limit: u32,
    ) -> Result<Vec<StatusRow>, JournalError>;

    /// Notices behind this one, in order.
    fn notices(
        &self,
        after: NoticeNumber,
        limit: u32,
    ) -> Result<Vec<(NoticeNumber, Notice)>, JournalError>;

    /// The notice with this number.
    fn notice(&self, number: NoticeNumber) -> Result<Option<Notice>, JournalError>;

    /// How many notices there are.
    fn notice_count(&self) -> Result<i64, JournalError>;

    /// The positions of a bus.
    fn positions(&self, bus: &str) -> Result<Vec<Position>, JournalError>;

    /// Ends all reading. Reads under way are interrupted, and waited for up to `patience`. New ones
    /// are refused, with `why` as the reason. Tells whether none is left.
    fn close(&self, why: &str, patience: Duration) -> bool;
}
