//! The items of a step, as their job and their child jobs say. Tells whether no child job changes
//! any more while the record of their parent stays as it is, so that what was read may be cached.

use crate::view::ItemMap;
use engine::{FanOut, ItemState, Job, JobState, StepIndex, Timestamp};
use journal::{ItemRow, JournalError, ParentRecord, Records};
use std::collections::HashSet;

/// What a job says of the items of a step.
pub(super) struct StepItems {
    pub(super) step: StepIndex,
    pub(super) count: u32,
    /// When the step began.
    pub(super) started: Timestamp,
    /// When the step or the job ended.
    pub(super) ended: Option<Timestamp>,
}

impl StepItems {
    /// Returns what a job says of a step with this fan-out.
    pub(super) fn new(job: &Job, step: StepIndex, fan_out: &FanOut) -> StepItems {
        StepItems {
            step,
            count: fan_out.items(),
            started: job.step(step).started.unwrap_or(job.origin().created),
            ended: job.items_end(step),
        }
    }
}

/// Counts the items of a step whose child jobs are settled: they have ended, and nothing that the
/// job had asked of them before it ended is still to come.
pub(super) struct SettledItems {
    count: u32,
    started: Timestamp,
    ended: Option<Timestamp>,
    /// The states of the items in the job; `None`: its step has completed, so all have ended.
    states: Option<ItemMap>,
    /// The items whose child jobs the job has ordered to retry.
    retried: HashSet<u32>,
    /// How many items have a child job, by the job.
    with_child: u32,
    settled: u32,
}

impl SettledItems {
    /// Creates the count for the items of a step of an ended job.
    pub(super) fn new(items: &StepItems, fan_out: &FanOut) -> SettledItems {
        let states: Option<ItemMap> = fan_out.item_states().map(Iterator::collect);
        let has_child = |item: &u32| {
            states.as_ref().is_none_or(|states| states.get(*item) != ItemState::Waiting)
        };
        let with_child = (0..items.count).filter(has_child).count();
        SettledItems {
            count: items.count,
            started: items.started,
            ended: items.ended,
            with_child: u32::try_from(with_child).unwrap_or(u32::MAX),
            settled: 0,
            states,
            retried: fan_out.retried_items().collect(),
        }
    }

    /// Reads the child jobs. Returns whether those of all items are settled.
    pub(super) fn read(
        mut self,
        reader: &dyn Records,
        parent: &ParentRecord,
        step: StepIndex,
    ) -> Result<bool, JournalError> {
        reader.for_each_item(parent, step, &mut |row| self.add(&row))?;
        Ok(self.are_all())
    }

    /// Counts the newest child job of an item.
    pub(super) fn add(&mut self, row: &ItemRow) {
        let state =
            self.states.as_ref().map_or(ItemState::Completed, |states| states.get(row.item));
        let is_settled = match (state, row.ended) {
            // A child job of an earlier run of the step says nothing about that of this one, which
            // may be on its way.
            (ItemState::Waiting, _) | (_, None) => false,
            _ if row.created < self.started => false,
            (ItemState::Completed | ItemState::Failed, Some(_)) => true,
            // The job does not know how it ended. An order to retry may be on its way to it.
            (ItemState::Running, Some(ended)) => {
                row.state == JobState::Completed
                    || !self.retried.contains(&row.item)
                    || self.ended.is_some_and(|end| ended >= end)
            }
        };
        if is_settled && row.item < self.count {
            self.settled += 1;
        }
    }

    /// Returns whether the child jobs of all items are settled.
    pub(super) fn are_all(&self) -> bool {
        self.settled == self.with_child
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STARTED: i64 = 100;
    const ENDED: i64 = 200;

    /// Returns whether all items are settled, if the job has these states, was to retry none of its
    /// child jobs, and they have these rows: the item, its state, when it was created and when it
    /// ended.
    fn are_settled(
        states: Option<&[ItemState]>,
        count: u32,
        rows: &[(u32, JobState, i64, Option<i64>)],
    ) -> bool {
        are_settled_but(states, count, &[], rows)
    }

    /// Returns whether all items are settled, as [`are_settled`] does, if the job has ordered the
    /// child jobs of some to retry.
    fn are_settled_but(
        states: Option<&[ItemState]>,
        count: u32,
        retried: &[u32],
        rows: &[(u32, JobState, i64, Option<i64>)],
    ) -> bool {
        let with_child = states.map_or(count as usize, |states| {
            states.iter().filter(|state| **state != ItemState::Waiting).count()
        });
        let mut settled = SettledItems {
            count,
            started: Timestamp(STARTED),
            ended: Some(Timestamp(ENDED)),
            with_child: u32::try_from(with_child).expect("few"),
            states: states.map(|states| states.iter().copied().collect()),
            retried: retried.iter().copied().collect(),
            settled: 0,
        };
        for (item, state, created, ended) in rows.iter().copied() {
            let ended = ended.map(Timestamp);
            settled.add(&ItemRow { item, state, created: Timestamp(created), ended });
        }
        settled.are_all()
    }

    #[test]
    fn the_items_of_a_completed_step_are_settled_when_all_have_ended_in_its_last_run() {
        use JobState::{Completed, Failed, Running};
        let first = (0, Completed, 110, Some(150));
        assert!(are_settled(None, 2, &[first, (1, Failed, 110, Some(160))]));
        assert!(!are_settled(None, 2, &[first]), "a child job is not there yet");
        assert!(!are_settled(None, 2, &[first, (1, Running, 110, None)]));
        assert!(!are_settled(None, 2, &[first, (1, Completed, 50, Some(60))]), "an earlier run");
        assert!(!are_settled(None, 2, &[first, (2, Completed, 110, Some(150))]), "no such item");
    }

    #[test]
    fn what_the_end_of_a_job_cut_off_is_settled_when_it_has_ended_too() {
        use JobState::{Cancelled, Completed, Failed, Running};
        let states = [ItemState::Completed, ItemState::Running, ItemState::Waiting];
        let with = |row| are_settled(Some(&states), 3, &[(0, Completed, 110, Some(150)), row]);
        assert!(with((1, Cancelled, 110, Some(ENDED))));
        assert!(with((1, Completed, 110, Some(150))), "its job had not learned of it");
        assert!(!with((1, Running, 110, None)), "it is to be halted");
        assert!(with((1, Failed, 110, Some(150))), "its job had not learned of it");
        let failed = [(0, Completed, 110, Some(150)), (1, Failed, 110, Some(150))];
        let are_settled_but = |retried| are_settled_but(Some(&states), 3, retried, &failed);
        assert!(!are_settled_but(&[1]), "it may be one that is to be retried");
        assert!(are_settled_but(&[0]), "another was to be retried");
        assert!(!with((2, Cancelled, 50, Some(60))), "the child job of item 1 is not there yet");
        let rows = [(0, Completed, 110, Some(150)), (1, Cancelled, 110, Some(210))];
        let earlier = (2, Cancelled, 50, Some(60));
        assert!(are_settled(Some(&states), 3, &[rows[0], rows[1], earlier]));
        assert!(!are_settled(Some(&states), 3, &[rows[0], earlier]));
    }
}
