//! The interface of a journal, independent of its storage: the writing end ([`Journal`]), of which
//! there is only one, and the reading end ([`Records`]).

use super::cluster::ClusterStatus;
use super::error::{FileLoss, JournalError};
use super::failures::{FailureFilter, FailureGroups};
use super::numbers::JobNumbers;
use super::ownership::Ownership;
use super::query::{
    CellRefill, ChildCursor, ChildFilter, ChildRow, DefinitionUse, EndedCursor, ForeignName,
    ItemRow, JobAtEntry, JobCreation, JobFilter, ParentRecord, RecordHead, RecordPage,
    RecordVersion, SearchHit, SearchOrder, StatusFilter, StatusRow, StoredJob,
};
use super::record::{
    Deletion, DiskUsage, JobNumber, Notice, NoticeNumber, Record, StoredLedger, StoredOffset,
    StoredTrend,
};
use super::recover::{JobTreeHandler, RecoveredJob};
use engine::{
    Columns, Control, ControlKey, Definition, DefinitionHash, Job, JobId, JobState, Millis,
    NamedCell, RateMark, Recorded, StepIndex, Timestamp,
};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// The writing end of a journal. Its methods block, so it runs on a thread of its own. After an
/// error, [`JournalError::remedy`] says whether the call can be repeated. A repeated call writes
/// nothing twice, even if the failed one has committed something.
pub trait Journal: Send {
    /// Returns a reader that sees everything that is committed.
    fn records(&self) -> Arc<dyn Records>;

    /// Returns what is known of this process's ownership of its name; `None`: no other process can
    /// take the journal over.
    fn ownership(&self) -> Option<Arc<Ownership>> {
        None
    }

    /// Checks that the files are still those that were opened. If they are not, whatever is
    /// committed to them is lost when the process ends, and the journal must not be used any more.
    /// Closing it then writes nothing.
    ///
    /// # Errors
    ///
    /// Returns an error that says what happened to the files.
    fn check_files(&mut self) -> Result<(), FileLoss>;

    /// Returns how far the clock of this machine is ahead of that of the journal's server, in
    /// milliseconds; `None` if there is no server, or if it is not known.
    fn clock_ahead_ms(&self) -> Option<i64> {
        None
    }

    /// Returns how much of the disk the journal uses now; `None` if that cannot be determined.
    fn disk_usage(&mut self) -> Option<DiskUsage>;

    /// Grows the reserve to its target size, or as far as the disk allows. The reserve is disk
    /// space that is held back, so that jobs can be deleted when the disk is full.
    fn fill_reserve(&mut self);

    /// Returns whether the disk is so full that the reserve could not be allocated once more. False
    /// before the first call of [`fill_reserve`](Self::fill_reserve), and if only the limit of the
    /// journal's size is reached.
    fn is_disk_full(&self) -> bool;

    /// Returns what numbers new jobs, above all numbers in use.
    fn job_numbers(&mut self) -> Result<JobNumbers, JournalError>;

    /// Commits records in order, all or none. Returns the numbers of the jobs that do not exist any
    /// more, among the jobs of the records and `others`.
    ///
    /// Records of deleted jobs are ignored: a child job may start or end after its root job was
    /// deleted. Appending is idempotent: a record that the journal already has, with the same job
    /// and the same first entry, changes nothing. Without records and `others`, a success still
    /// shows that no other process has taken the journal.
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

    /// Projects what is committed, so that lists, searches and statuses show it. After an error, a
    /// later call tries again. Does nothing if [`check_files`](Self::check_files) fails.
    fn project(&mut self) -> Result<(), JournalError>;

    /// Returns whether confirms are pending: committed, but not in a row of their own job.
    fn has_pending_confirms(&self) -> bool;

    /// Writes a row for each job whose confirms have been pending since the last call or longer,
    /// for at most a few thousand jobs. Returns whether any confirms are still pending.
    fn write_confirms(&mut self) -> Result<bool, JournalError>;

    /// Stores offsets, all or none, replacing those of the same partitions. What follows from the
    /// messages before an offset must be committed already.
    fn store_offsets(&mut self, offsets: &[StoredOffset]) -> Result<(), JournalError>;

    /// Stores or deletes ledgers of schedules, all or none.
    fn store_ledgers(&mut self, ledgers: &[StoredLedger]) -> Result<(), JournalError>;

    /// Deletes the trends of the workflows `forgotten`, then stores buckets of trends, each in
    /// place of the bucket that was in its position; all or nothing.
    fn store_trends(
        &mut self,
        trends: &[StoredTrend],
        forgotten: &[Arc<str>],
    ) -> Result<(), JournalError>;

    /// Returns all jobs that take input, parents before their children, with their open effects.
    fn recover(&self) -> Result<Vec<RecoveredJob>, JournalError> {
        let (sender, job_trees) = mpsc::channel();
        // The receiver still exists, so sending cannot fail.
        self.for_each_job_tree(&|job_tree| drop(sender.send(job_tree)))?;
        drop(sender);
        let mut jobs: Vec<RecoveredJob> = job_trees.into_iter().flatten().collect();
        jobs.sort_unstable_by_key(|job| job.number);
        Ok(jobs)
    }

    /// Calls `handler` with the jobs of every job tree that take input, from several threads and in
    /// no particular order. Once `handler` returns, the journal keeps nothing of its job tree in
    /// memory.
    fn for_each_job_tree(&self, handler: JobTreeHandler<'_>) -> Result<(), JournalError>;

    /// Creates the status tables, columns and rows that are missing for these definitions. Called
    /// when definitions are loaded, before their first jobs.
    fn create_status_tables(&mut self, definitions: &[&Definition]) -> Result<(), JournalError>;

    /// Sets the cells of root jobs of a workflow, whose loaded definition this is, all or none.
    /// Jobs whose records have more entries than the cells were computed from are left as they are,
    /// and so are jobs that do not exist any more; returns these. The status table gets the columns
    /// that it lacks.
    fn refill_cells(
        &mut self,
        definition: &Definition,
        refills: &[CellRefill],
    ) -> Result<BTreeSet<JobNumber>, JournalError>;

    /// Returns how far the rates of limits are used up, as far as that is in the future.
    fn load_rate_marks(&mut self) -> Result<Vec<RateMark>, JournalError> {
        Ok(Vec::new())
    }

    /// Stores a control, replacing the one with the same key.
    fn store_control(&mut self, control: &Control) -> Result<(), JournalError>;

    /// Deletes a control.
    fn delete_control(&mut self, key: &ControlKey) -> Result<(), JournalError>;

    /// Returns all controls, also those that have ended meanwhile.
    fn load_controls(&mut self) -> Result<Vec<Control>, JournalError>;

    /// Returns the time of the newest decision, apart from pending confirms; `None` if there is
    /// none.
    fn newest_record_time(&self) -> Result<Option<Timestamp>, JournalError>;

    /// Returns the number of root jobs whose retention is over, as far as they are projected. Jobs
    /// whose definition sets no retention have `default_retention`.
    fn count_expired(
        &mut self,
        now: Timestamp,
        default_retention: Millis,
    ) -> Result<u64, JournalError>;

    /// Deletes up to `rows_max` rows of the job trees of root jobs whose retention is over. Jobs
    /// whose definition sets no retention have `default_retention`. Further calls delete the rest.
    fn delete_expired(
        &mut self,
        now: Timestamp,
        default_retention: Millis,
        rows_max: u32,
    ) -> Result<Deletion, JournalError>;

    /// Deletes up to `rows_max` rows of the job trees of these root jobs. Running root jobs are
    /// skipped. The remainder of a partially deleted job tree takes no more input. Further calls
    /// delete it; after a crash, `delete_expired` does so once the retention is over.
    fn delete_jobs(&mut self, roots: &[JobNumber], rows_max: u32)
    -> Result<Deletion, JournalError>;

    /// Deletes notices, all or none.
    fn delete_notices(&mut self, notices: &[NoticeNumber]) -> Result<(), JournalError>;
}

/// Reads jobs: their states, ids, numbers and creation. It also projects what is committed, and
/// closes the reading end.
pub trait JobRecords: Send + Sync {
    /// Returns a job or child job, rebuilt from its entries; `None` if there is no such job.
    fn load_job(&self, id: JobId) -> Result<Option<StoredJob>, JournalError>;

    /// Returns the size in bytes of the entries from which a job is rebuilt, including the entries
    /// of its ancestors, but without confirms; `None` if there is no such job.
    fn rebuild_bytes(&self, id: JobId) -> Result<Option<usize>, JournalError>;

    /// Returns how a job of this manager's name was created; `None` if there is no such job.
    fn load_creation(&self, id: JobId) -> Result<Option<JobCreation>, JournalError>;

    /// Returns the number of a job or child job of this manager's name; `None` if there is no such
    /// job.
    fn find_job_number(&self, id: JobId) -> Result<Option<JobNumber>, JournalError>;

    /// Returns the number of the child job of this parent with this id; `None` if there is none.
    fn find_child_number(
        &self,
        parent: JobNumber,
        id: JobId,
    ) -> Result<Option<JobNumber>, JournalError>;

    /// Returns the name that the job with this number belongs to; `None` if it is this manager's
    /// own. Only the active manager of its name can change a job.
    fn find_foreign_name(&self, _number: JobNumber) -> Result<Option<ForeignName>, JournalError> {
        Ok(None)
    }

    /// Returns the name that the newest job with this id belongs to; `None` if it is this manager's
    /// own, or if there is no such job.
    fn find_foreign_name_of_job(&self, _id: JobId) -> Result<Option<ForeignName>, JournalError> {
        Ok(None)
    }

    /// Returns another name whose active manager has loaded a workflow; `None` if there is none.
    fn find_foreign_name_of_workflow(
        &self,
        _workflow: &str,
    ) -> Result<Option<ForeignName>, JournalError> {
        Ok(None)
    }

    /// Rebuilds the jobs with these numbers, with their open effects, as at startup. Jobs that do
    /// not exist are left out. Before the call, their job trees must be projected.
    fn recover_jobs(
        &self,
        numbers: &[JobNumber],
    ) -> Result<HashMap<JobNumber, RecoveredJob>, JournalError>;

    /// Rebuilds jobs of one job tree, as [`Journal::for_each_job_tree`] does. Jobs that do not
    /// exist are left out. Before the call, the jobs must be projected.
    fn recover_job_tree(&self, numbers: &[JobNumber]) -> Result<Vec<RecoveredJob>, JournalError>;

    /// Returns at most `limit` root jobs of a workflow that have not ended, with numbers above
    /// `after`, the oldest first. The last element of each tuple is the job's state.
    fn load_running_root_jobs(
        &self,
        workflow: &str,
        after: JobNumber,
        limit: u32,
    ) -> Result<Vec<(JobNumber, JobId, String)>, JournalError>;

    /// Returns at most `limit` jobs and child jobs of all workflows that have not ended, with
    /// numbers above `after`, the oldest first.
    fn load_running_jobs(
        &self,
        after: JobNumber,
        limit: u32,
    ) -> Result<Vec<(JobNumber, JobId)>, JournalError>;

    /// Returns the number of root jobs that have not ended, by workflow.
    fn count_running_root_jobs(&self) -> Result<Vec<(String, i64)>, JournalError>;

    /// Returns at most `limit` root jobs of a workflow that ended at or after `since`, with their
    /// states and the cursors after them. The job that ended last comes first. The page begins
    /// after the cursor `after`.
    fn load_ended_root_jobs(
        &self,
        workflow: &str,
        since: Timestamp,
        after: EndedCursor,
        limit: u32,
    ) -> Result<Vec<(EndedCursor, JobId, String)>, JournalError>;

    /// Projects what is committed, so that lists, searches and statuses show it.
    ///
    /// # Errors
    ///
    /// Returns an error if it cannot be projected now, because a list would then be incomplete.
    fn ensure_projected(&self) -> Result<(), JournalError>;

    /// Closes the reading end: refuses new reads with this reason, interrupts active reads, and
    /// waits up to `timeout` for their end. Returns whether all reads have ended.
    fn close(&self, reason: &str, timeout: Duration) -> bool;
}

/// Reads the history of one job, entry by entry.
pub trait HistoryRecords: Send + Sync {
    /// Returns the job or child job with this number, even if a newer job has the same id.
    fn load_job_by_number(&self, number: JobNumber) -> Result<Option<Job>, JournalError>;

    /// Returns all rows of the record of the job with this number, in order; `None` if there is no
    /// such job.
    fn load_rows_by_number(&self, number: JobNumber)
    -> Result<Option<Vec<Recorded>>, JournalError>;

    /// Returns a job as it was after its first `entries` entries; `None` if there is no such job.
    fn load_job_at_entry(
        &self,
        id: JobId,
        entries: u64,
    ) -> Result<Option<JobAtEntry>, JournalError>;

    /// Returns a page of a job's record after the first `after` entries; `None` if there is no such
    /// job. The page has at most `limit` entries, and ends after the row with which its size
    /// exceeds `bytes_max`.
    fn load_record_page(
        &self,
        id: JobId,
        after: u64,
        limit: u32,
        bytes_max: usize,
    ) -> Result<Option<RecordPage>, JournalError>;

    /// Calls `handler` with all rows of a job's record, in order. Returns the head of the record,
    /// or `None` if there is no such job.
    fn for_each_row(
        &self,
        id: JobId,
        handler: &mut dyn FnMut(Recorded),
    ) -> Result<Option<RecordHead>, JournalError>;

    /// Returns the version of a job's record, at a cost that does not depend on its length; `None`
    /// if there is no such job.
    fn record_version(&self, id: JobId) -> Result<Option<RecordVersion>, JournalError>;
}

/// Reads the child jobs of a job.
pub trait ChildRecords: Send + Sync {
    /// Returns what queries for the child jobs of a job need; `None` if there is no such job.
    fn find_parent_job(&self, id: JobId) -> Result<Option<ParentRecord>, JournalError>;

    /// Returns at most `limit` child jobs of a parent after the cursor, in the order of step, item
    /// and number. If an item has several child jobs, only the newest is returned.
    fn load_children(
        &self,
        parent: &ParentRecord,
        filter: ChildFilter,
        after: ChildCursor,
        limit: u32,
    ) -> Result<Vec<ChildRow>, JournalError>;

    /// Calls `handler` with the items of a step that have a child job, in order. If an item has
    /// several child jobs, the newest counts.
    fn for_each_item(
        &self,
        parent: &ParentRecord,
        step: StepIndex,
        handler: &mut dyn FnMut(ItemRow),
    ) -> Result<(), JournalError>;
}

/// Reads the definitions of stored jobs.
pub trait DefinitionRecords: Send + Sync {
    /// Returns the definition with this content hash, if the journal has it.
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

    /// Returns at most `limit` jobs that match the filter, in the given order. The page begins
    /// after the job with the number `after`.
    fn search(
        &self,
        filter: &JobFilter,
        order: SearchOrder,
        after: JobNumber,
        limit: u32,
    ) -> Result<Vec<SearchHit>, JournalError>;

    /// Counts the jobs that match the filter, up to `limit`.
    fn count_matches(&self, filter: &JobFilter, limit: u32) -> Result<u32, JournalError>;
}

/// Reads the failures of jobs and child jobs.
pub trait FailureRecords: Send + Sync {
    /// Groups the newest failures by the pattern of their reason and by workflow. Returns at most
    /// `limit` groups.
    fn group_failures(
        &self,
        filter: &FailureFilter,
        limit: u32,
    ) -> Result<FailureGroups, JournalError>;
}

/// Reads when root jobs were created and ended, for statistics.
pub trait StatisticsRecords: Send + Sync {
    /// Calls `handler` with the workflow and creation time of at most `limit` root jobs of this
    /// manager's name with numbers below `below`, the newest first. Jobs that were created since
    /// the journal was opened may be missing. Returns the number of the last job, which is `below`
    /// for the next page; `None` if there was no job.
    fn for_each_creation(
        &self,
        below: JobNumber,
        limit: u32,
        handler: &mut dyn FnMut(&str, Timestamp),
    ) -> Result<Option<JobNumber>, JournalError>;

    /// Calls `handler` with the state, creation time and end time of at most `limit` root jobs of
    /// this manager's name and a workflow that ended at or after `since`. The job that ended last
    /// comes first; the page begins after the cursor `after`. Returns the cursor after the last
    /// job; `None` if there was no job.
    fn for_each_end(
        &self,
        workflow: &str,
        since: Timestamp,
        after: EndedCursor,
        limit: u32,
        handler: &mut dyn FnMut(JobState, Timestamp, Timestamp),
    ) -> Result<Option<EndedCursor>, JournalError>;
}

/// Reads the status tables.
pub trait StatusRecords: Send + Sync {
    /// Returns the step columns of a workflow's status table; `None` if there is no such table.
    fn load_status_columns(&self, workflow: &str) -> Result<Option<Vec<String>>, JournalError>;

    /// Returns at most `limit` rows of a workflow's status table with job numbers below `before`,
    /// the newest first, with the statuses of these step columns.
    fn load_statuses(
        &self,
        workflow: &str,
        columns: &[String],
        filter: &StatusFilter,
        before: JobNumber,
        limit: u32,
    ) -> Result<Vec<StatusRow>, JournalError>;

    /// Returns the cells of root jobs that are not empty, in the order of these columns, and after
    /// them those of other columns. Jobs without any are left out.
    fn load_cells(
        &self,
        jobs: &[JobNumber],
        columns: &Columns,
    ) -> Result<HashMap<JobNumber, Vec<NamedCell>>, JournalError>;
}

/// Reads the notices that wait for delivery.
pub trait NoticeRecords: Send + Sync {
    /// Returns at most `limit` notices of this manager's name with numbers above `after`, in order.
    fn load_notices(
        &self,
        after: NoticeNumber,
        limit: u32,
    ) -> Result<Vec<(NoticeNumber, Notice)>, JournalError>;

    /// Returns the notice with this number; `None` if it was deleted.
    fn load_notice(&self, number: NoticeNumber) -> Result<Option<Notice>, JournalError>;

    /// Returns the number of notices of this manager's name.
    fn count_notices(&self) -> Result<i64, JournalError>;
}

/// Reads the offsets that buses have stored for the partitions of their topics.
pub trait OffsetRecords: Send + Sync {
    /// Returns the stored offsets of a bus.
    fn load_offsets(&self, bus: &str) -> Result<Vec<StoredOffset>, JournalError>;
}

/// Reads the ledgers of schedules.
pub trait ScheduleRecords: Send + Sync {
    /// Returns the ledgers of this manager's name, ordered by schedule.
    fn load_ledgers(&self) -> Result<Vec<StoredLedger>, JournalError>;
}

/// Reads the trends of this manager's name. A damaged bucket is left out.
pub trait TrendRecords: Send + Sync {
    /// Returns the buckets of a workflow in a ring that begin at or after `since`, in the order of
    /// their beginning.
    fn load_trend(
        &self,
        ring: i32,
        workflow: &str,
        since: Timestamp,
    ) -> Result<Vec<StoredTrend>, JournalError>;

    /// Returns the buckets of all workflows in a position, ordered by workflow.
    fn load_trends_at(&self, ring: i32, position: i32) -> Result<Vec<StoredTrend>, JournalError>;

    /// Returns the full names of the workflows that have trends, without the empty one.
    fn load_trend_workflows(&self) -> Result<Vec<Arc<str>>, JournalError>;
}

/// Reads which processes share the journal.
pub trait ClusterRecords: Send + Sync {
    /// Returns what the database tells of the processes that share it; `None` for a file, which
    /// one process has alone.
    fn load_cluster(&self) -> Result<Option<ClusterStatus>, JournalError> {
        Ok(None)
    }

    /// Returns how long ago the active process of this process's name beat, as far as this process
    /// knows; `None` for a file, and if no beat was seen yet. Reads nothing.
    fn beat_age(&self) -> Option<Duration> {
        None
    }
}

/// The reading end of a journal. Many threads can read at once without blocking the writer. If
/// several jobs have the same id, methods that take an id return the newest.
pub trait Records:
    JobRecords
    + HistoryRecords
    + ChildRecords
    + DefinitionRecords
    + SearchRecords
    + FailureRecords
    + StatisticsRecords
    + StatusRecords
    + NoticeRecords
    + OffsetRecords
    + ScheduleRecords
    + TrendRecords
    + ClusterRecords
{
}
