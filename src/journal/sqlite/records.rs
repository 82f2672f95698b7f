//! The reading end of a journal in a file, as the manager asks it.

use super::reader::Reader;
use crate::engine::{
    Definition, DefinitionHash, Job, JobId, JobState, Recorded, StepIndex, Timestamp,
};
use crate::journal::error::JournalError;
use crate::journal::query::{
    ChildCursor, ChildFilter, ChildRow, Creation, DefinitionUse, EndedCursor, Family, Filter, Hit,
    ItemRow, JobAt, KeptJob, RecordHead, RecordPage, SearchOrder, StatusFilter, StatusRow,
};
use crate::journal::record::{JobNumber, Notice, NoticeNumber, Position};
use crate::journal::recover::Recovered;
use crate::journal::traits::Records;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

impl Records for Reader {
    fn job(&self, id: JobId) -> Result<Option<KeptJob>, JournalError> {
        Reader::job(self, id)
    }

    fn job_numbered(&self, number: JobNumber) -> Result<Option<Job>, JournalError> {
        Reader::job_numbered(self, number)
    }

    fn rows_numbered(&self, number: JobNumber) -> Result<Option<Vec<Recorded>>, JournalError> {
        Reader::rows_numbered(self, number)
    }

    fn job_bytes(&self, id: JobId) -> Result<Option<usize>, JournalError> {
        Reader::job_bytes(self, id)
    }

    fn job_at(&self, id: JobId, at: u64) -> Result<Option<JobAt>, JournalError> {
        Reader::job_at(self, id, at)
    }

    fn record(
        &self,
        id: JobId,
        after: u64,
        limit: u32,
        bytes_max: usize,
    ) -> Result<Option<RecordPage>, JournalError> {
        Reader::record(self, id, after, limit, bytes_max)
    }

    fn each_row(
        &self,
        id: JobId,
        each: &mut dyn FnMut(Recorded),
    ) -> Result<Option<RecordHead>, JournalError> {
        Reader::each_row(self, id, each)
    }

    fn length(&self, id: JobId) -> Result<Option<(Timestamp, u64)>, JournalError> {
        Reader::length(self, id)
    }

    fn definition(&self, hash: DefinitionHash) -> Result<Option<Arc<Definition>>, JournalError> {
        Reader::definition(self, hash)
    }

    fn definitions_of(&self, workflow: &str) -> Result<Vec<DefinitionUse>, JournalError> {
        Reader::definitions_of(self, workflow)
    }

    fn creation(&self, id: JobId) -> Result<Option<Creation>, JournalError> {
        Reader::creation(self, id)
    }

    fn number(&self, id: JobId) -> Result<Option<JobNumber>, JournalError> {
        Reader::number(self, id)
    }

    fn child(&self, parent: JobNumber, id: JobId) -> Result<Option<JobNumber>, JournalError> {
        Reader::child(self, parent, id)
    }

    fn recover_some(
        &self,
        numbers: &[JobNumber],
    ) -> Result<HashMap<JobNumber, Recovered>, JournalError> {
        Reader::recover_some(self, numbers)
    }

    fn recover_family(&self, numbers: &[JobNumber]) -> Result<Vec<Recovered>, JournalError> {
        Reader::recover_family(self, numbers)
    }

    fn running(
        &self,
        workflow: &str,
        after: JobNumber,
        limit: u32,
    ) -> Result<Vec<(JobNumber, JobId, String)>, JournalError> {
        Reader::running(self, workflow, after, limit)
    }

    fn all_running(
        &self,
        after: JobNumber,
        limit: u32,
    ) -> Result<Vec<(JobNumber, JobId)>, JournalError> {
        Reader::all_running(self, after, limit)
    }

    fn state_counts(&self) -> Result<Vec<(String, JobState, i64)>, JournalError> {
        Reader::state_counts(self)
    }

    fn running_counts(&self) -> Result<Vec<(String, i64)>, JournalError> {
        Reader::running_counts(self)
    }

    fn ended(
        &self,
        workflow: &str,
        since: Timestamp,
        beyond: EndedCursor,
        limit: u32,
    ) -> Result<Vec<(EndedCursor, JobId, String)>, JournalError> {
        Reader::ended(self, workflow, since, beyond, limit)
    }

    fn creations(
        &self,
        below: JobNumber,
        limit: u32,
        each: &mut dyn FnMut(&str, Timestamp),
    ) -> Result<Option<JobNumber>, JournalError> {
        Reader::creations(self, below, limit, each)
    }

    fn ends(
        &self,
        workflow: &str,
        since: Timestamp,
        beyond: EndedCursor,
        limit: u32,
        each: &mut dyn FnMut(JobState, Timestamp, Timestamp),
    ) -> Result<Option<EndedCursor>, JournalError> {
        Reader::ends(self, workflow, since, beyond, limit, each)
    }

    fn search(
        &self,
        filter: &Filter,
        order: SearchOrder,
        beyond: JobNumber,
        limit: u32,
    ) -> Result<Vec<Hit>, JournalError> {
        Reader::search(self, filter, order, beyond, limit)
    }

    fn count(&self, filter: &Filter, most: u32) -> Result<u32, JournalError> {
        Reader::count(self, filter, most)
    }

    fn lists_follow(&self) -> Result<(), JournalError> {
        self.with_derived(|_| Ok(()))
    }

    fn family(&self, id: JobId) -> Result<Option<Family>, JournalError> {
        Reader::family(self, id)
    }

    fn children(
        &self,
        of: &Family,
        filter: ChildFilter,
        after: ChildCursor,
        limit: u32,
    ) -> Result<Vec<ChildRow>, JournalError> {
        Reader::children(self, of, filter, after, limit)
    }

    fn items(
        &self,
        of: &Family,
        step: StepIndex,
        each: &mut dyn FnMut(ItemRow),
    ) -> Result<(), JournalError> {
        Reader::items(self, of, step, each)
    }

    fn status_columns(&self, workflow: &str) -> Result<Option<Vec<String>>, JournalError> {
        Reader::status_columns(self, workflow)
    }

    fn statuses(
        &self,
        workflow: &str,
        columns: &[String],
        filter: &StatusFilter,
        before: JobNumber,
        limit: u32,
    ) -> Result<Vec<StatusRow>, JournalError> {
        Reader::statuses(self, workflow, columns, filter, before, limit)
    }

    fn notices(
        &self,
        after: NoticeNumber,
        limit: u32,
    ) -> Result<Vec<(NoticeNumber, Notice)>, JournalError> {
        Reader::notices(self, after, limit)
    }

    fn notice(&self, number: NoticeNumber) -> Result<Option<Notice>, JournalError> {
        Reader::notice(self, number)
    }

    fn notice_count(&self) -> Result<i64, JournalError> {
        Reader::notice_count(self)
    }

    fn positions(&self, bus: &str) -> Result<Vec<Position>, JournalError> {
        Reader::positions(self, bus)
    }

    fn close(&self, why: &str, patience: Duration) -> bool {
        Reader::close(self, why, patience)
    }
}
