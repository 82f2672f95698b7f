//! Passivated jobs: they take input, but only the journal holds their state. The manager keeps a
//! summary of each, such as its id and when something in it is due. When an input for it arrives or
//! something in it is due, the job is activated: rebuilt from the journal.
//!
//! Two kinds of jobs are passivated: those that did not fit in memory at the start, and those that
//! only wait while memory is short.

use super::listed_state::ListedState;
use super::memory::job_bytes;
use super::rules::Rules;
use base::clock;
use engine::{Definition, Demand, GraphIndex, Job, JobId, JobState, StepIndex, Timestamp};
use journal::{JobNumber, Journal, JournalError, RecoveredJob};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use tokio::time::Instant;

/// Returns when the dispatch with this number was first seen waiting; `None`: no scan has seen it.
pub(super) type FindWaitingSince<'a> = dyn Fn(u64) -> Option<Instant> + 'a;

/// A passivated job tree: one job, or a parent with its active child jobs. Its jobs are activated
/// together.
pub struct PassivatedTree {
    /// The jobs, each parent before its child jobs.
    pub members: Vec<PassivatedJob>,
    /// The definition that the jobs run.
    pub definition: Arc<Definition>,
    /// The state of the root job.
    pub state: JobState,
    /// How many bytes the jobs take in memory.
    pub bytes: usize,
    /// When something in one of the jobs is due; `None`: nothing is.
    pub due: Option<Timestamp>,
    /// Whether the jobs have effects or orders to handle now, so that they are activated as soon as
    /// memory is free. Otherwise they wait for an input.
    pub is_pending: bool,
}

/// A job of a passivated tree.
pub struct PassivatedJob {
    /// The job's id.
    pub id: JobId,
    /// The job's number.
    pub number: JobNumber,
    /// Whether the job is a child job.
    pub is_child: bool,
    /// What lists show of the job.
    pub listed_state: ListedState,
    /// The job's steps that wait for replies.
    pub waits: Arc<[PassivatedWait]>,
    /// The graph that the job runs.
    pub graph: GraphIndex,
    /// What the job's steps want of the gate after a restart.
    pub demands: Vec<(StepIndex, Demand)>,
}

/// A step of a passivated job that waits for a reply.
pub struct PassivatedWait {
    /// The step's name.
    pub step: Arc<str>,
    /// The queue of the step's messages.
    pub queue: Arc<str>,
    /// The bus that the step names; `None`: it is on the default bus.
    pub bus: Option<Arc<str>>,
    /// When the step's attempt began; `None`: unknown.
    pub since: Option<Timestamp>,
    /// The number of the entry that dispatched the step.
    pub dispatch: u64,
    /// When the step was first seen waiting with a confirmed message; `None`: its message is not
    /// confirmed.
    pub waiting_since: Option<Instant>,
}

impl PassivatedTree {
    /// Creates the summary of a root job without child jobs that only waits.
    pub(super) fn from_waiting_job(
        number: JobNumber,
        job: &Job,
        find_waiting_since: &FindWaitingSince<'_>,
    ) -> PassivatedTree {
        PassivatedTree {
            members: vec![PassivatedJob::from_job(number, job, find_waiting_since)],
            definition: job.definition().clone(),
            state: job.state(),
            bytes: job_bytes(job),
            due: job.next_timer(),
            is_pending: false,
        }
    }

    /// Creates the summary of a job tree from the journal; `None` if it has no jobs.
    fn from_recovered(tree: &[RecoveredJob]) -> Option<PassivatedTree> {
        let root = &tree.first()?.job;
        let find_waiting_since: &FindWaitingSince<'_> = &|_| None;
        let is_pending = |recovered: &RecoveredJob| {
            !recovered.effects.is_empty() || !recovered.missed_orders.is_empty()
        };
        let member = |recovered: &RecoveredJob| PassivatedJob {
            demands: recovered.job.demands_at_start(),
            ..PassivatedJob::from_job(recovered.number, &recovered.job, find_waiting_since)
        };
        Some(PassivatedTree {
            members: tree.iter().map(member).collect(),
            definition: root.definition().clone(),
            state: root.state(),
            bytes: tree_bytes(tree),
            due: tree.iter().filter_map(|recovered| recovered.job.next_timer()).min(),
            is_pending: tree.iter().any(is_pending),
        })
    }

    /// Returns the number of the root job, which identifies the tree.
    pub fn root_number(&self) -> JobNumber {
        self.members.first().map_or(0, |root| root.number)
    }
}

impl PassivatedJob {
    fn from_job(
        number: JobNumber,
        job: &Job,
        find_waiting_since: &FindWaitingSince<'_>,
    ) -> PassivatedJob {
        let now = clock::timer_now();
        let wait = |index: StepIndex| {
            let (step, run) = (job.graph().step(index), job.step(index));
            PassivatedWait {
                step: step.name.clone(),
                queue: step.queue.clone(),
                bus: step.bus.clone(),
                since: run.attempt_started,
                dispatch: run.dispatch,
                waiting_since: run
                    .confirmed
                    .then(|| find_waiting_since(run.dispatch).unwrap_or(now)),
            }
        };
        PassivatedJob {
            id: job.id(),
            number,
            is_child: job.origin().parent.is_some(),
            listed_state: ListedState::from_job(job),
            waits: job.steps_awaiting_replies().map(wait).collect(),
            graph: job.origin().graph,
            demands: Vec::new(),
        }
    }
}

fn tree_bytes(tree: &[RecoveredJob]) -> usize {
    tree.iter().map(|recovered| job_bytes(&recovered.job)).sum()
}

/// A job tree that was loaded at the start.
enum LoadedTree {
    /// Its jobs fit in memory.
    Active(Vec<RecoveredJob>),
    /// It does not fit in memory; only its summary is kept.
    Passivated(PassivatedTree),
}

/// Loads all jobs of the journal that take input. Job trees that fit in `limit_bytes` are returned
/// as jobs, the others as passivated trees. The first tree always fits. Beyond `limit_bytes`,
/// memory holds at most one tree for each thread that reads.
///
/// # Errors
///
/// Returns an error if the journal cannot be read.
pub(super) fn load_at_start(
    store: &dyn Journal,
    rules: &dyn Rules,
    limit_bytes: usize,
) -> Result<(Vec<RecoveredJob>, Vec<PassivatedTree>), JournalError> {
    let used_bytes = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    store.for_each_job_tree(&|tree| {
        let jobs: Vec<RecoveredJob> =
            tree.into_iter().map(|recovered| rules.adjust_recovered(recovered)).collect();
        let bytes = tree_bytes(&jobs);
        let used_before = used_bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = used_before == 0 || used_before.saturating_add(bytes) <= limit_bytes;
        let loaded = if fits {
            Some(LoadedTree::Active(jobs))
        } else {
            used_bytes.fetch_sub(bytes, Ordering::Relaxed);
            PassivatedTree::from_recovered(&jobs).map(LoadedTree::Passivated)
        };
        // Sending cannot fail: the receiver outlives this loop.
        loaded.into_iter().for_each(|tree| drop(sender.send(tree)));
    })?;
    drop(sender);
    let (mut recovered, mut passivated) = (Vec::new(), Vec::new());
    for loaded in receiver {
        match loaded {
            LoadedTree::Active(jobs) => recovered.extend(jobs),
            LoadedTree::Passivated(tree) => passivated.push(tree),
        }
    }
    recovered.sort_unstable_by_key(|recovered: &RecoveredJob| recovered.number);
    passivated.sort_unstable_by_key(PassivatedTree::root_number);
    Ok((recovered, passivated))
}
