//! The reading end of a journal in a file, as the manager asks it.

use super::reader::Reader;
use crate::error::JournalError;
use crate::query::{
    ChildCursor, ChildFilter, ChildRow, DefinitionUse, EndedCursor, ItemRow, JobAtEntry,
    JobCreation, JobFilter, ParentRecord, RecordHead, RecordPage, SearchHit, SearchOrder,
    StatusFilter, StatusRow, StoredJob,
};
use crate::record::{JobNumber, Notice, NoticeNumber, StoredOffset};
use crate::recover::RecoveredJob;
use crate::traits::Records;
use engine::{Definition, DefinitionHash, Job, JobId, JobState, Recorded, StepIndex, Timestamp};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

impl Records for Reader {
    fn load_job(&self, id: JobId) -> Result<Option<StoredJob>, JournalError> {
        Reader::load_job(self, id)
    }

    fn load_job_by_number(&self, number: JobNumber) -> Result<Option<Job>, JournalError> {
        Reader::load_job_by_number(self, number)
    }

    fn load_rows_by_number(
        &self,
        number: JobNumber,
    ) -> Result<Option<Vec<Recorded>>, JournalError> {
        Reader::load_rows_by_number(self, number)
    }

    fn rebuild_bytes(&self, id: JobId) -> Result<Option<usize>, JournalError> {
        Reader::rebuild_bytes(self, id)
    }

    fn load_job_at_entry(&self, id: JobId, at: u64) -> Result<Option<JobAtEntry>, JournalError> {
        Reader::load_job_at_entry(self, id, at)
    }

    fn load_record_page(
        &self,
        id: JobId,
        after: u64,
        limit: u32,
        bytes_max: usize,
    ) -> Result<Option<RecordPage>, JournalError> {
        Reader::load_record_page(self, id, after, limit, bytes_max)
    }

    fn for_each_row(
        &self,
        id: JobId,
        each: &mut dyn FnMut(Recorded),
    ) -> Result<Option<RecordHead>, JournalError> {
        Reader::for_each_row(self, id, each)
    }

    fn record_length(&self, id: JobId) -> Result<Option<(Timestamp, u64)>, JournalError> {
        Reader::record_length(self, id)
    }

    fn load_definition(
        &self,
        hash: DefinitionHash,
    ) -> Result<Option<Arc<Definition>>, JournalError> {
        Reader::load_definition(self, hash)
    }

    fn load_definition_uses(&self, workflow: &str) -> Result<Vec<DefinitionUse>, JournalError> {
        Reader::load_definition_uses(self, workflow)
    }

    fn load_creation(&self, id: JobId) -> Result<Option<JobCreation>, JournalError> {
        Reader::load_creation(self, id)
    }

    fn find_job_number(&self, id: JobId) -> Result<Option<JobNumber>, JournalError> {
        Reader::find_job_number(self, id)
    }

    fn find_child_number(
        &self,
        parent: JobNumber,
        id: JobId,
    ) -> Result<Option<JobNumber>, JournalError> {
        Reader::find_child_number(self, parent, id)
    }

    fn recover_jobs(
        &self,
        numbers: &[JobNumber],
    ) -> Result<HashMap<JobNumber, RecoveredJob>, JournalError> {
        Reader::recover_jobs(self, numbers)
    }

    fn recover_job_tree(&self, numbers: &[JobNumber]) -> Result<Vec<RecoveredJob>, JournalError> {
        Reader::recover_job_tree(self, numbers)
    }

    fn load_running_root_jobs(
        &self,
        workflow: &str,
        after: JobNumber,
        limit: u32,
    ) -> Result<Vec<(JobNumber, JobId, String)>, JournalError> {
        Reader::load_running_root_jobs(self, workflow, after, limit)
    }

    fn load_running_jobs(
        &self,
        after: JobNumber,
        limit: u32,
    ) -> Result<Vec<(JobNumber, JobId)>, JournalError> {
        Reader::load_running_jobs(self, after, limit)
    }

    fn count_root_jobs_by_state(&self) -> Result<Vec<(String, JobState, i64)>, JournalError> {
        Reader::count_root_jobs_by_state(self)
    }

    fn count_running_root_jobs(&self) -> Result<Vec<(String, i64)>, JournalError> {
        Reader::count_running_root_jobs(self)
    }

    fn load_ended_root_jobs(
        &self,
        workflow: &str,
        since: Timestamp,
        beyond: EndedCursor,
        limit: u32,
    ) -> Result<Vec<(EndedCursor, JobId, String)>, JournalError> {
        Reader::load_ended_root_jobs(self, workflow, since, beyond, limit)
    }

    fn for_each_creation(
        &self,
        below: JobNumber,
        limit: u32,
        each: &mut dyn FnMut(&str, Timestamp),
    ) -> Result<Option<JobNumber>, JournalError> {
        Reader::for_each_creation(self, below, limit, each)
    }

    fn for_each_end(
        &self,
        workflow: &str,
        since: Timestamp,
        beyond: EndedCursor,
        limit: u32,
        each: &mut dyn FnMut(JobState, Timestamp, Timestamp),
    ) -> Result<Option<EndedCursor>, JournalError> {
        Reader::for_each_end(self, workflow, since, beyond, limit, each)
    }

    fn search(
        &self,
        filter: &JobFilter,
        order: SearchOrder,
        beyond: JobNumber,
        limit: u32,
    ) -> Result<Vec<SearchHit>, JournalError> {
        Reader::search(self, filter, order, beyond, limit)
    }

    fn count_matches(&self, filter: &JobFilter, most: u32) -> Result<u32, JournalError> {
        Reader::count_matches(self, filter, most)
    }

    fn ensure_projected(&self) -> Result<(), JournalError> {
        self.read_projected(|_| Ok(()))
    }

    fn find_parent_job(&self, id: JobId) -> Result<Option<ParentRecord>, JournalError> {
        Reader::find_parent_job(self, id)
    }

    fn load_children(
        &self,
        of: &ParentRecord,
        filter: ChildFilter,
        after: ChildCursor,
        limit: u32,
    ) -> Result<Vec<ChildRow>, JournalError> {
        Reader::load_children(self, of, filter, after, limit)
    }

    fn for_each_item(
        &self,
        of: &ParentRecord,
        step: StepIndex,
        each: &mut dyn FnMut(ItemRow),
    ) -> Result<(), JournalError> {
        Reader::for_each_item(self, of, step, each)
    }

    fn load_status_columns(&self, workflow: &str) -> Result<Option<Vec<String>>, JournalError> {
        Reader::load_status_columns(self, workflow)
    }

    fn load_statuses(
        &self,
        workflow: &str,
        columns: &[String],
        filter: &StatusFilter,
        before: JobNumber,
        limit: u32,
    ) -> Result<Vec<StatusRow>, JournalError> {
        Reader::load_statuses(self, workflow, columns, filter, before, limit)
    }

    fn load_notices(
        &self,
        after: NoticeNumber,
        limit: u32,
    ) -> Result<Vec<(NoticeNumber, Notice)>, JournalError> {
        Reader::load_notices(self, after, limit)
    }

    fn load_notice(&self, number: NoticeNumber) -> Result<Option<Notice>, JournalError> {
        Reader::load_notice(self, number)
    }

    fn count_notices(&self) -> Result<i64, JournalError> {
        Reader::count_notices(self)
    }

    fn load_offsets(&self, bus: &str) -> Result<Vec<StoredOffset>, JournalError> {
        Reader::load_offsets(self, bus)
    }

    fn close(&self, why: &str, patience: Duration) -> bool {
        Reader::close(self, why, patience)
    }
}
