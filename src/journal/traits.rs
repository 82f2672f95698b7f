//! The interface of a journal, independent of its storage: the writing end, which one process
//! holds, and the reading end.

use super::error::{FileLoss, JournalError};
use super::query::{
    ChildCursor, ChildFilter, ChildRow, DefinitionUse, EndedCursor, ItemRow, JobAtEntry,
    JobCreation, JobFilter, ParentRecord, RecordHead, RecordPage, SearchHit, SearchOrder,
    StatusFilter, StatusRow, StoredJob,
};
use super::record::{Deletion, DiskUsage, JobNumber, Notice, NoticeNumber, Record, StoredOffset};
use super::recover::{JobTreeHandler, RecoveredJob};
use engine::{
    Definition, DefinitionHash, Job, JobId, JobState, Millis, Recorded, StepIndex, Timestamp,
};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// The writing end of a journal. Its calls block, so it runs on a thread of its own. An error means
/// that nothing of the call was committed; [`JournalError::remedy`] says what to do about it.
pub trait Journal: Send {
    /// Returns a reader that sees everything that is committed.
    fn records(&self) -> Arc<dyn Records>;

    /// Checks that the files are still those that were opened. If they are not, whatever was
    /// committed to them is lost when the process ends, and nothing more is written.
    ///
    /// # Errors
    ///
    /// Returns what happened to the files.
    fn check_files(&mut self) -> Result<(), FileLoss>;

    /// Returns how much of the disk the journal uses now; `None` if that cannot be found out.
    fn disk_usage(&mut self) -> Option<DiskUsage>;

    /// Tops up the reserve: the disk space that is kept for emptying the journal. It grows as far
    /// as there is room.
    fn fill_reserve(&mut self);

    /// Returns whether the disk is full, and not only the file: then a smaller write may still
    /// succeed.
    fn is_disk_full(&self) -> bool;

    /// Returns the number after the highest in use.
    fn next_job_number(&mut self) -> Result<JobNumber, JournalError>;

    /// Commits records in order, all or nothing, and returns the numbers of the jobs that no longer
    /// exist, of the records and of `others`. Records of deleted jobs are ignored: when its root job
    /// is deleted, a child job may still be about to start, or to learn that it has ended. A record
    /// that the journal already has, by its job and its first entry, changes nothing.
    fn append_and_check(
        &mut self,
        records: &[&Record],
        others: &[JobNumber],
    ) -> Result<BTreeSet<JobNumber>, JournalError>;

    /// Commits records, as [`append_and_check`](Self::append_and_check) does.
    fn append(&mut self, records: &[&Record]) -> Result<BTreeSet<JobNumber>, JournalError> {
        self.append_and_check(records, &[])
    }

    /// Returns whether lists, searches and statuses lag behind what is committed.
    fn has_unprojected(&self) -> bool;

    /// Projects what is committed, so that lists, searches and statuses show it. If this fails, a
    /// later call does it.
    fn project(&mut self) -> Result<(), JournalError>;

    /// Returns whether confirms wait for a record of their jobs.
    fn has_pending_confirms(&self) -> bool;

    /// Writes a record for each job whose confirms have waited since the last call or longer, for
    /// at most a few thousand jobs. Returns whether any confirms still wait.
    fn write_confirms(&mut self) -> Result<bool, JournalError>;

    /// Stores offsets, all or none, replacing those of the same partitions. Everything before an
    /// offset must be committed already.
    fn store_offsets(&mut self, positions: &[StoredOffset]) -> Result<(), JournalError>;

    /// Returns all jobs that take input, parents before their children, with their open effects.
    fn recover(&self) -> Result<Vec<RecoveredJob>, JournalError>;

    /// Calls `each` with every job tree that takes input: a root job with its descendants. The
    /// trees are not kept, and arrive from several threads in no particular order.
    fn for_each_job_tree(&self, each: JobTreeHandler<'_>) -> Result<(), JournalError>;

    /// Creates the status tables, columns and rows that are missing. Called with the loaded
    /// definitions before their first jobs.
    fn create_status_tables(&mut self, definitions: &[&Definition]) -> Result<(), JournalError>;

    /// When the newest record was written; none: there is none.
    fn newest(&self) -> Result<Option<Timestamp>, JournalError>;

    /// How many top-level jobs ended long enough ago to be deleted, as far as lists show them.
    fn count_ended(
        &mut self,
        now: Timestamp,
        default_retention: Millis,
    ) -> Result<u64, JournalError>;

    /// Deletes up to `rows_max` rows of top-level jobs, with their children, that ended long enough
    /// ago. The definition that a job started with says how long it is kept. If it says nothing,
    /// `kept` does.
    fn delete_expired(
        &mut self,
        now: Timestamp,
        default_retention: Millis,
        rows_max: u32,
    ) -> Result<Deletion, JournalError>;

    /// Deletes up to `rows_max` rows of the job trees of these root jobs, except of those still
    /// running. If part of a tree is left, it takes no more input. Further calls delete the rest;
    /// after a crash, `delete_expired` does so once its retention is over.
    fn delete_jobs(&mut self, roots: &[JobNumber], rows_max: u32)
    -> Result<Deletion, JournalError>;

    /// Deletes notices, all or none.
    fn delete_notices(&mut self, notices: &[NoticeNumber]) -> Result<(), JournalError>;
}

/// Reads jobs: their state, ids and creation, and what is under way.
pub trait JobRecords: Send + Sync {
    /// Returns a job or child job, rebuilt from its entries.
    fn load_job(&self, id: JobId) -> Result<Option<StoredJob>, JournalError>;

    /// Returns the size in bytes of the entries from which a job is rebuilt, including those of its
    /// ancestors.
    fn rebuild_bytes(&self, id: JobId) -> Result<Option<usize>, JournalError>;

    /// Returns how a job was created.
    fn load_creation(&self, id: JobId) -> Result<Option<JobCreation>, JournalError>;

    /// Returns the number of a job or child job.
    fn find_job_number(&self, id: JobId) -> Result<Option<JobNumber>, JournalError>;

    /// Returns the number of the child job of this parent with this id.
    fn find_child_number(
        &self,
        parent: JobNumber,
        id: JobId,
    ) -> Result<Option<JobNumber>, JournalError>;

    /// Rebuilds those of these jobs that exist, with their open effects, as at a start. Everything
    /// committed for them and their job trees must be projected before.
    fn recover_jobs(
        &self,
        numbers: &[JobNumber],
    ) -> Result<HashMap<JobNumber, RecoveredJob>, JournalError>;

    /// Rebuilds those of these jobs of one job tree that exist, as [`Journal::for_each_job_tree`]
    /// does. Everything committed for them must be projected before.
    fn recover_job_tree(&self, numbers: &[JobNumber]) -> Result<Vec<RecoveredJob>, JournalError>;

    /// Returns the running root jobs of a workflow with a number above `after`, the oldest first,
    /// with their states.
    fn load_running_root_jobs(
        &self,
        workflow: &str,
        after: JobNumber,
        limit: u32,
    ) -> Result<Vec<(JobNumber, JobId, String)>, JournalError>;

    /// Returns the running jobs and child jobs of all workflows with a number above `after`, the
    /// oldest first.
    fn load_running_jobs(
        &self,
        after: JobNumber,
        limit: u32,
    ) -> Result<Vec<(JobNumber, JobId)>, JournalError>;

    /// Returns the number of running root jobs by workflow.
    fn count_running_root_jobs(&self) -> Result<Vec<(String, i64)>, JournalError>;

    /// Returns the root jobs of a workflow that ended at or after `since`, beyond the cursor, the
    /// newest end first, with their states.
    fn load_ended_root_jobs(
        &self,
        workflow: &str,
        since: Timestamp,
        beyond: EndedCursor,
        limit: u32,
    ) -> Result<Vec<(EndedCursor, JobId, String)>, JournalError>;

    /// Makes sure that lists, searches and statuses show everything that is committed, by
    /// projecting it if necessary.
    ///
    /// # Errors
    ///
    /// Returns an error if it cannot be projected now: a list would be wrong.
    fn ensure_projected(&self) -> Result<(), JournalError>;

    /// Ends all reading. Interrupts reads under way and waits for them up to `timeout`. Refuses
    /// new ones with `why` as the reason. Returns whether no read is left.
    fn close(&self, why: &str, timeout: Duration) -> bool;
}

/// Reads the history of one job, entry by entry.
pub trait HistoryRecords: Send + Sync {
    /// Returns the job or child job with this number, even if a newer one has its id.
    fn load_job_by_number(&self, number: JobNumber) -> Result<Option<Job>, JournalError>;

    /// Returns all rows of the record of the job with this number, in order; `None` if there is no
    /// such job.
    fn load_rows_by_number(&self, number: JobNumber)
    -> Result<Option<Vec<Recorded>>, JournalError>;

    /// Returns a job as it was after the entry numbered `at`.
    fn load_job_at_entry(&self, id: JobId, at: u64) -> Result<Option<JobAtEntry>, JournalError>;

    /// Returns up to `limit` entries of a job after the entry numbered `after`, in rows of about
    /// `bytes_max` bytes in total.
    fn load_record_page(
        &self,
        id: JobId,
        after: u64,
        limit: u32,
        bytes_max: usize,
    ) -> Result<Option<RecordPage>, JournalError>;

    /// Calls `each` with all rows of a job's record, in order. Returns what never changes about the
    /// job; `None` if there is no such job.
    fn for_each_row(
        &self,
        id: JobId,
        each: &mut dyn FnMut(Recorded),
    ) -> Result<Option<RecordHead>, JournalError>;

    /// Returns when a job was created, and how many entries its record has.
    fn record_length(&self, id: JobId) -> Result<Option<(Timestamp, u64)>, JournalError>;
}

/// Reads the child jobs of a job.
pub trait ChildRecords: Send + Sync {
    /// Returns a job as the parent whose child jobs are queried.
    fn find_parent_job(&self, id: JobId) -> Result<Option<ParentRecord>, JournalError>;

    /// Returns the child jobs of a parent beyond the cursor, by step, item and number.
    fn load_children(
        &self,
        parent: &ParentRecord,
        filter: ChildFilter,
        after: ChildCursor,
        limit: u32,
    ) -> Result<Vec<ChildRow>, JournalError>;

    /// Calls `each` with the items of a step whose child jobs were started, in order. If an item
    /// has several child jobs, the newest counts.
    fn for_each_item(
        &self,
        parent: &ParentRecord,
        step: StepIndex,
        each: &mut dyn FnMut(ItemRow),
    ) -> Result<(), JournalError>;
}

/// Reads the definitions of stored jobs.
pub trait DefinitionRecords: Send + Sync {
    /// Returns the definition with this content hash, if any stored job has it.
    fn load_definition(
        &self,
        hash: DefinitionHash,
    ) -> Result<Option<Arc<Definition>>, JournalError>;

    /// Returns the definitions of a workflow that stored jobs run, the newest first.
    fn load_definition_uses(&self, workflow: &str) -> Result<Vec<DefinitionUse>, JournalError>;
}

/// Searches and counts jobs.
pub trait SearchRecords: Send + Sync {
    /// Returns the number of root jobs by workflow and state.
    fn count_root_jobs_by_state(&self) -> Result<Vec<(String, JobState, i64)>, JournalError>;

    /// Returns the jobs that match the filter, beyond the job with this number in this order.
    fn search(
        &self,
        filter: &JobFilter,
        order: SearchOrder,
        beyond: JobNumber,
        limit: u32,
    ) -> Result<Vec<SearchHit>, JournalError>;

    /// Returns how many jobs match the filter, counting up to `most`.
    fn count_matches(&self, filter: &JobFilter, most: u32) -> Result<u32, JournalError>;
}

/// Reads when root jobs were created and ended, for statistics.
pub trait StatisticsRecords: Send + Sync {
    /// Calls `each` with the workflow and creation time of root jobs below a number, the newest
    /// first. Jobs created since the journal was opened may be missing. Returns the number of the
    /// last one; `None` if there are no more.
    fn for_each_creation(
        &self,
        below: JobNumber,
        limit: u32,
        each: &mut dyn FnMut(&str, Timestamp),
    ) -> Result<Option<JobNumber>, JournalError>;

    /// Calls `each` with the state, creation time and end time of the root jobs of a workflow that
    /// ended at or after `since`, the newest end first. Returns the cursor of the last one; `None`
    /// if there are no more.
    fn for_each_end(
        &self,
        workflow: &str,
        since: Timestamp,
        beyond: EndedCursor,
        limit: u32,
        each: &mut dyn FnMut(JobState, Timestamp, Timestamp),
    ) -> Result<Option<EndedCursor>, JournalError>;
}

/// Reads the status tables.
pub trait StatusRecords: Send + Sync {
    /// Returns the step columns of a workflow's status table; `None` if it has no such table.
    fn load_status_columns(&self, workflow: &str) -> Result<Option<Vec<String>>, JournalError>;

    /// Returns rows of a workflow's status table below a number, the newest first.
    fn load_statuses(
        &self,
        workflow: &str,
        columns: &[String],
        filter: &StatusFilter,
        before: JobNumber,
        limit: u32,
    ) -> Result<Vec<StatusRow>, JournalError>;
}

/// Reads the notices that wait for delivery.
pub trait NoticeRecords: Send + Sync {
    /// Returns the notices after this one, in order.
    fn load_notices(
        &self,
        after: NoticeNumber,
        limit: u32,
    ) -> Result<Vec<(NoticeNumber, Notice)>, JournalError>;

    /// Returns the notice with this number.
    fn load_notice(&self, number: NoticeNumber) -> Result<Option<Notice>, JournalError>;

    /// Returns the number of notices.
    fn count_notices(&self) -> Result<i64, JournalError>;
}

/// Reads how far topics were read and written.
pub trait OffsetRecords: Send + Sync {
    /// Returns the stored offsets of a bus.
    fn load_offsets(&self, bus: &str) -> Result<Vec<StoredOffset>, JournalError>;
}

/// The reading end of a journal. Many threads read at once and never hold up the writer. If several
/// jobs have the same id, methods that take an id mean the newest.
pub trait Records:
    JobRecords
    + HistoryRecords
    + ChildRecords
    + DefinitionRecords
    + SearchRecords
    + StatisticsRecords
    + StatusRecords
    + NoticeRecords
    + OffsetRecords
{
}
