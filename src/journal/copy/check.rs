//! Reads a copy back: compares its rows with those of the original, and rebuilds every job from
//! them, as a start of the manager does. The statuses are derived on the way.

use super::progress::CopyProgress;
use super::rows::{
    CopyReader, CopyWriter, DecisionOrder, DerivedStatuses, JobOrder, StatusWriter, StoredJobRow,
};
use super::transfer::{
    Original, OriginalJob, digest_of_job, digest_with_decision, digest_with_notice,
};
use crate::error::{JournalError, Remedy};
use crate::failures::FailureChange;
use crate::record::{JobNumber, NoticeNumber};
use crate::recover::JobSnapshot;
use crate::tree_rebuilder::TreeRebuilder;

/// How many jobs are rebuilt together, at most.
const BATCH_JOBS: usize = 500;

/// How many notices are read together, at most.
const NOTICE_BATCH: u32 = 500;

/// Compares the copy with its original, and derives the statuses of its jobs. `journal` is the
/// original.
pub(super) fn check(
    journal: &str,
    original: &Original,
    target: &mut dyn CopyWriter,
    progress: &CopyProgress,
) -> Result<(), JournalError> {
    target.read_back(&mut |copy, statuses| {
        let checker = Checker { journal, original, copy, progress };
        checker.compare_jobs()?;
        checker.compare_notices()?;
        if copy.load_all_offsets()? != original.offsets {
            return Err(checker.differs("the offsets of its buses"));
        }
        if copy.load_all_ledgers()? != original.ledgers {
            return Err(checker.differs("the ledgers of its schedules"));
        }
        if copy.load_all_trends()? != original.trends {
            return Err(checker.differs("its trends"));
        }
        if copy.load_gate_rows()? != original.gate {
            return Err(checker.differs("the rates of limits, or what operators have changed"));
        }
        checker.rebuild_jobs(statuses)
    })
}

struct Checker<'a> {
    /// The original, for messages.
    journal: &'a str,
    original: &'a Original,
    copy: &'a dyn CopyReader,
    progress: &'a CopyProgress,
}

impl Checker<'_> {
    /// Compares the rows of all jobs and their decisions.
    fn compare_jobs(&self) -> Result<(), JournalError> {
        let jobs = &self.original.jobs;
        let mut digests: Vec<u64> = Vec::with_capacity(jobs.len());
        self.copy.for_each_job(JobOrder::ByNumber, &mut |job| {
            self.progress.check_stopped(self.journal)?;
            match jobs.get(digests.len()) {
                Some(original) if original.target == job.row.number => {
                    digests.push(digest_of_job(&job));
                    Ok(())
                }
                Some(_) | None => Err(self.job_differs(job.row.number)),
            }
        })?;
        if digests.len() != jobs.len() {
            return Err(self.differs("the number of its jobs"));
        }
        let mut index = 0;
        self.copy.for_each_decision_text(DecisionOrder::ByJob, &mut |decision| {
            self.progress.check_stopped(self.journal)?;
            let is_before = |job: &OriginalJob| job.target < decision.job;
            while jobs.get(index).is_some_and(is_before) {
                index += 1;
            }
            match jobs.get(index) {
                Some(job) if job.target == decision.job => {
                    digests[index] = digest_with_decision(digests[index], &decision);
                    Ok(())
                }
                Some(_) | None => Err(self.job_differs(decision.job)),
            }
        })?;
        let is_different = |(job, digest): &(&OriginalJob, &u64)| job.digest != **digest;
        match jobs.iter().zip(&digests).find(is_different) {
            Some((job, _)) => Err(self.job_differs(job.target)),
            None => Ok(()),
        }
    }

    fn compare_notices(&self) -> Result<(), JournalError> {
        let (mut count, mut digest, mut last) = (0, 0, NoticeNumber::MIN);
        loop {
            let page = self.copy.load_notices(last, NOTICE_BATCH)?;
            let Some((number, _)) = page.last() else { break };
            last = *number;
            count += page.len() as u64;
            digest =
                page.iter().fold(digest, |digest, (_, notice)| digest_with_notice(digest, notice));
        }
        if (count, digest) == (self.original.notices, self.original.notice_digest) {
            return Ok(());
        }
        Err(self.differs("its notices for the webhook"))
    }

    /// Rebuilds every job, compares it with its row, and derives the statuses of root jobs.
    fn rebuild_jobs(&self, statuses: &mut dyn StatusWriter) -> Result<(), JournalError> {
        let mut rebuilder = TreeRebuilder::new(self.copy.rows());
        let mut batch: Vec<StoredJobRow> = Vec::new();
        self.copy.for_each_job(JobOrder::ByTree, &mut |job| {
            batch.push(job);
            if batch.len() >= BATCH_JOBS {
                self.rebuild_batch(&std::mem::take(&mut batch), &mut rebuilder, statuses)?;
            }
            Ok(())
        })?;
        self.rebuild_batch(&batch, &mut rebuilder, statuses)
    }

    fn rebuild_batch(
        &self,
        jobs: &[StoredJobRow],
        rebuilder: &mut TreeRebuilder<'_>,
        statuses: &mut dyn StatusWriter,
    ) -> Result<(), JournalError> {
        self.copy.announce(jobs);
        let (mut derived, mut failures) = (Vec::new(), Vec::new());
        for stored in jobs {
            self.progress.check_stopped(self.journal)?;
            let JobSnapshot { job, changed_at, definition } = rebuilder.rebuild(&stored.row)?;
            // A job that takes no more input may be deleted in part, its last decisions first.
            let is_same = (job.state(), !job.is_closed()) == (stored.state, true);
            if stored.is_open && !is_same {
                let problem = "it is marked as open, and its entries say something else";
                let number = stored.row.number;
                return Err(self.copy.rows().damaged_row("jobs", number, problem.to_owned()));
            }
            let failure = FailureChange::from_job(&job);
            if failure != FailureChange::Cleared {
                failures.push((stored.row.number, failure));
            }
            if stored.row.parent.is_none() {
                derived.push(DerivedStatuses {
                    job: stored.row.number,
                    id: stored.row.id,
                    created: stored.row.created,
                    definition,
                    state: job.state(),
                    updated: changed_at,
                    words: job.graph().indices().map(|step| job.status(step).into()).collect(),
                    cells: job.sql_cells(),
                });
            }
            self.progress.add_checked();
        }
        statuses.insert_statuses(&derived, &failures)
    }

    /// Creates the error of a copy in which a job differs. `number` is that of the copy.
    fn job_differs(&self, number: JobNumber) -> JournalError {
        let jobs = &self.original.jobs;
        let original = jobs.iter().find(|job| job.target == number);
        self.differs(&match original {
            Some(job) => format!("job {}", job.number()),
            None => format!("job {number}, which it does not have"),
        })
    }

    fn differs(&self, what: &str) -> JournalError {
        let problem = format!(
            "its copy {} differs from it in {what}, and nothing of the copy is kept. Does another \
             program write to it? Otherwise this is a defect: please report it",
            self.copy.journal()
        );
        JournalError::Failed { file: self.journal.to_owned(), problem, remedy: Remedy::Exit }
    }
}
