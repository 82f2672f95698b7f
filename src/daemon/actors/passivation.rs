//! Passivated jobs: they are under way, but only in the journal. Of each the manager knows that it
//! exists, and when something in it is due. It is activated, that is rebuilt from the journal, as
//! soon as an input comes for it.
//!
//! Two kinds of jobs are passivated: those for which a start found no room in the memory of jobs,
//! and those that only wait while memory is short.

use super::memory::job_bytes;
use super::rules::Rules;
use base::clock;
use engine::{Definition, Job, JobId, JobState, StepIndex, StepState, Timestamp};
use journal::{JobNumber, Journal, JournalError, RecoveredJob};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use tokio::time::Instant;

/// Since when a dispatch has been seen waiting, by its number.
pub(super) type Seen<'a> = dyn Fn(u64) -> Option<Instant> + 'a;

/// A passivated job tree: one job, or a parent with its child jobs under way. Its jobs are
/// activated together.
pub struct PassivatedTree {
    /// The jobs, parents before their child jobs.
    pub members: Vec<PassivatedJob>,
    /// The definition that they run.
    pub definition: Arc<Definition>,
    /// The state of the root job.
    pub state: JobState,
    /// How many bytes they take in memory.
    pub bytes: usize,
    /// When something in them is due.
    pub due: Option<Timestamp>,
    /// Whether there is something to do for them now: they are activated as soon as there is room.
    /// Otherwise they wait for an input.
    pub is_pending: bool,
}

/// A job of a passivated tree.
pub struct PassivatedJob {
    /// The job.
    pub id: JobId,
    /// Its number.
    pub number: JobNumber,
    /// Whether it is a child job.
    pub is_child: bool,
    /// How many of its steps are done.
    pub steps_done: usize,
    /// Its steps that wait for replies.
    pub waits: Arc<[PassivatedWait]>,
}

/// A step of a job at rest that waits for a reply.
pub struct PassivatedWait {
    /// The step's name.
    pub step: Arc<str>,
    /// The queue of its messages.
    pub queue: Arc<str>,
    /// The bus that the step names.
    pub bus: Option<Arc<str>>,
    /// When its attempt began.
    pub since: Option<Timestamp>,
    /// The number of its dispatch.
    pub dispatch: u64,
    /// Since when it has been seen waiting with a message that the broker had confirmed; none: it
    /// had not.
    pub seen: Option<Instant>,
}

impl PassivatedTree {
    /// A top-level job that only waits, as it has been seen waiting.
    pub(super) fn from_waiting_job(
        number: JobNumber,
        job: &Job,
        seen: &Seen<'_>,
    ) -> PassivatedTree {
        PassivatedTree {
            members: vec![PassivatedJob::from_job(number, job, seen)],
            definition: job.definition().clone(),
            state: job.state(),
            bytes: job_bytes(job),
            due: job.next_timer(),
            is_pending: false,
        }
    }

    /// Describes a job tree as it was found in the journal; `None` if it is empty.
    fn from_recovered(tree: &[RecoveredJob]) -> Option<PassivatedTree> {
        let first = &tree.first()?.job;
        let seen: &Seen<'_> = &|_| None;
        let is_pending =
            |found: &RecoveredJob| !found.effects.is_empty() || !found.missed_orders.is_empty();
        Some(PassivatedTree {
            members: tree
                .iter()
                .map(|found| PassivatedJob::from_job(found.number, &found.job, seen))
                .collect(),
            definition: first.definition().clone(),
            state: first.state(),
            bytes: tree_bytes(tree),
            due: tree.iter().filter_map(|found| found.job.next_timer()).min(),
            is_pending: tree.iter().any(is_pending),
        })
    }

    /// Returns the number of the root job, which identifies the tree.
    pub fn number(&self) -> JobNumber {
        self.members.first().map_or(0, |first| first.number)
    }
}

impl PassivatedJob {
    fn from_job(number: JobNumber, job: &Job, seen: &Seen<'_>) -> PassivatedJob {
        let now = clock::timer_now();
        let wait = |index: StepIndex| {
            let (step, run) = (job.graph().step(index), job.step(index));
            PassivatedWait {
                step: step.name.clone(),
                queue: step.queue.clone(),
                bus: step.bus.clone(),
                since: run.attempt_started,
                dispatch: run.dispatch,
                seen: run.confirmed.then(|| seen(run.dispatch).unwrap_or(now)),
            }
        };
        PassivatedJob {
            id: job.id(),
            number,
            is_child: job.origin().parent.is_some(),
            steps_done: count_steps_done(job),
            waits: job.steps_awaiting_replies().map(wait).collect(),
        }
    }
}

/// Returns how many steps of a job are done.
pub fn count_steps_done(job: &Job) -> usize {
    let is_done = |state| !matches!(state, StepState::Waiting | StepState::Running);
    job.steps().filter(|(_, run)| is_done(run.state)).count()
}

fn tree_bytes(tree: &[RecoveredJob]) -> usize {
    tree.iter().map(|found| job_bytes(&found.job)).sum()
}

/// Loads all jobs of the journal that take input: those that have room in `bytes_max` as jobs, and
/// the others as passivated trees. Job trees are read one after another, so that memory holds no
/// more than what has room and one tree for each core. The first tree always has room.
pub(super) fn load_at_start(
    store: &dyn Journal,
    rules: &dyn Rules,
    bytes_max: usize,
) -> Result<(Vec<RecoveredJob>, Vec<PassivatedTree>), JournalError> {
    let used_bytes = AtomicUsize::new(0);
    let (sender, found) = mpsc::channel();
    store.for_each_job_tree(&|tree| {
        let jobs: Vec<RecoveredJob> =
            tree.into_iter().map(|found| rules.adjust_recovered(found)).collect();
        let bytes = tree_bytes(&jobs);
        let before = used_bytes.fetch_add(bytes, Ordering::Relaxed);
        // The receiver lives until all are found.
        if before == 0 || before.saturating_add(bytes) <= bytes_max {
            drop(sender.send(Ok(jobs)));
        } else {
            used_bytes.fetch_sub(bytes, Ordering::Relaxed);
            drop(sender.send(Err(PassivatedTree::from_recovered(&jobs))));
        }
    })?;
    drop(sender);
    let (mut recovered, mut passivated) = (Vec::new(), Vec::new());
    for loaded in found {
        match loaded {
            Ok(jobs) => recovered.extend(jobs),
            Err(tree) => passivated.extend(tree),
        }
    }
    recovered.sort_unstable_by_key(|found: &RecoveredJob| found.number);
    passivated.sort_unstable_by_key(PassivatedTree::number);
    Ok((recovered, passivated))
}
