//! Jobs at rest: they are under way, and in the journal alone. Of each the manager knows that it is
//! there, and when something in it is due. It is brought back, rebuilt from the journal, as soon as
//! something comes for it.
//!
//! Two kinds of jobs are at rest: those that a start found no room for in the memory of jobs, and
//! those that only wait, while memory is short.

use super::memory::bytes_of;
use super::rules::Rules;
use crate::engine::{Definition, Job, JobId, JobState, StepState, Timestamp};
use crate::journal::{JobNumber, Journal, JournalError, Recovered};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

/// Jobs at rest that come back together: one, or a parent with its child jobs under way.
pub struct AtRest {
    /// The jobs, parents before their child jobs.
    pub members: Vec<Member>,
    /// What they run.
    pub definition: Arc<Definition>,
    /// The state of the first one, which is the top-level job.
    pub state: JobState,
    /// What they take in memory.
    pub bytes: usize,
    /// When something in them is due.
    pub due: Option<Timestamp>,
    /// Whether there is something to do for them now: they come back as soon as there is room.
    /// Otherwise they wait.
    pub is_pending: bool,
}

/// One of the jobs.
pub struct Member {
    /// The job.
    pub id: JobId,
    /// Its number.
    pub number: JobNumber,
    /// Whether it is a child job.
    pub is_child: bool,
    /// How many of its steps are done.
    pub steps_done: usize,
}

impl AtRest {
    /// A top-level job that only waits.
    pub fn waiting(number: JobNumber, job: &Job) -> AtRest {
        AtRest {
            members: vec![Member::of(number, job)],
            definition: job.definition().clone(),
            state: job.state(),
            bytes: bytes_of(job),
            due: job.next_timer(),
            is_pending: false,
        }
    }

    /// A family as it was found in the journal.
    fn of(family: &[Recovered]) -> Option<AtRest> {
        let first = &family.first()?.job;
        let is_pending = |found: &Recovered| !found.effects.is_empty() || !found.orders.is_empty();
        Some(AtRest {
            members: family.iter().map(|found| Member::of(found.number, &found.job)).collect(),
            definition: first.definition().clone(),
            state: first.state(),
            bytes: bytes_of_all(family),
            due: family.iter().filter_map(|found| found.job.next_timer()).min(),
            is_pending: family.iter().any(is_pending),
        })
    }

    /// The number of the first one, by which they are known.
    pub fn number(&self) -> JobNumber {
        self.members.first().map_or(0, |first| first.number)
    }
}

impl Member {
    fn of(number: JobNumber, job: &Job) -> Member {
        Member {
            id: job.id(),
            number,
            is_child: job.origin().parent.is_some(),
            steps_done: steps_done(job),
        }
    }
}

/// How many steps of a job are done.
pub fn steps_done(job: &Job) -> usize {
    let is_done = |state| !matches!(state, StepState::Waiting | StepState::Running);
    job.steps().filter(|(_, run)| is_done(run.state)).count()
}

fn bytes_of_all(family: &[Recovered]) -> usize {
    family.iter().map(|found| bytes_of(&found.job)).sum()
}

/// All jobs of the journal that take input: those that have room in `bytes_max` as they are, and of
/// the others what must be known of them. Families are read one after another, so that no more is
/// in memory than what has room and one family for each core. The first one always has room.
pub(super) fn found_at_start(
    store: &dyn Journal,
    rules: &dyn Rules,
    bytes_max: usize,
) -> Result<(Vec<Recovered>, Vec<AtRest>), JournalError> {
    let taken = AtomicUsize::new(0);
    let (sender, found) = mpsc::channel();
    store.each_family(&|family| {
        let family: Vec<Recovered> =
            family.into_iter().map(|found| rules.recovered(found)).collect();
        let bytes = bytes_of_all(&family);
        let before = taken.fetch_add(bytes, Ordering::Relaxed);
        // The receiver lives until all are found.
        if before == 0 || before.saturating_add(bytes) <= bytes_max {
            drop(sender.send(Ok(family)));
        } else {
            taken.fetch_sub(bytes, Ordering::Relaxed);
            drop(sender.send(Err(AtRest::of(&family))));
        }
    })?;
    drop(sender);
    let (mut recovered, mut at_rest) = (Vec::new(), Vec::new());
    for family in found {
        match family {
            Ok(family) => recovered.extend(family),
            Err(family) => at_rest.extend(family),
        }
    }
    recovered.sort_unstable_by_key(|found: &Recovered| found.number);
    at_rest.sort_unstable_by_key(AtRest::number);
    Ok((recovered, at_rest))
}
