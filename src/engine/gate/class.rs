//! The classes of the gate: the steps that claim the same places, in their order.

use super::sorted::{Keyed, SortedSet};
use crate::id::StepIndex;
use crate::time::Timestamp;
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::sync::Arc;

/// Through what steps come to the gate, such as a queue of a workflow: the owner of the gate says
/// what each is. While an entrance is paused, the steps that wait in it are not in line for places,
/// and afterwards they are in line where they were. The default is never paused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntranceId(pub u32);

/// What tells a class from others: its places, each with the value of `fair`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ClassKey {
    pub(super) places: SmallVec<[(usize, Option<Arc<str>>); 1]>,
    /// Whether its steps hold their places already, and only wait for rates.
    pub(super) is_resend: bool,
}

/// A step: the number of its job, and the step.
pub(super) type SlotKey = (i64, StepIndex);

/// The index of a class, as the steps of the class have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClassIndex(u32);

impl ClassIndex {
    pub(super) fn new(index: usize) -> ClassIndex {
        ClassIndex(u32::try_from(index).expect("there are fewer classes than jobs"))
    }

    pub(super) fn as_usize(self) -> usize {
        self.0 as usize
    }
}

/// The order of steps: a higher priority first, then who began to wait first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub(super) priority: Reverse<u8>,
    pub(super) since: Timestamp,
    pub(super) job: i64,
    pub(super) step: StepIndex,
}

impl Keyed for Rank {
    type Key = Rank;

    fn key(&self) -> Rank {
        *self
    }
}

/// A class that is parked at a place. Its order there: first who holds the place already and only
/// waits for the rate, for others wait until it is free; then the turns of `fair`, then the rank of
/// the first step of the class.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Park {
    pub(super) is_resend: Reverse<bool>,
    pub(super) turn: u64,
    pub(super) rank: Rank,
    pub(super) class: usize,
}

/// Steps that claim the same places.
#[derive(Debug)]
pub(super) struct Class {
    pub(super) key: ClassKey,
    /// The steps that wait.
    pub(super) queue: SortedSet<Rank>,
    /// How many steps have it as their class.
    pub(super) members: usize,
    /// The place where it is parked, and how; `None`: nobody waits in it.
    pub(super) parked: Option<(usize, Park)>,
    /// How often it was turned away since its last admission.
    pub(super) turns_away: u32,
    /// The rank with which it is among the impatient; `None`: it is not.
    pub(super) impatient: Option<Rank>,
}

impl Class {
    pub(super) fn place_indices(&self) -> impl Iterator<Item = usize> + '_ {
        self.key.places.iter().map(|(place, _)| *place)
    }

    /// Returns the value of `fair` at a place; `None`: the limit has none.
    pub(super) fn fair_at(&self, place: usize) -> Option<&Arc<str>> {
        self.key.places.iter().find(|(other, _)| *other == place)?.1.as_ref()
    }
}
