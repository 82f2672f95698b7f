//! The lobby of the gate: where steps wait whose keys a limit has no room for. It has a bounded
//! number of keys in use at once, since a key takes much more memory than a step that waits. Who
//! holds places is never kept out.
//!
//! Each outsider waits for one limit. When a key of the limit is not in use any more, the first of
//! them is let in, with all others of its key, so that within a key the order stays.

use super::class::{EntranceId, Rank, SlotKey};
use crate::id::{JobId, StepIndex};
use crate::limit::Demand;
use crate::time::Timestamp;
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A place that a step claims.
#[derive(Clone, Debug)]
pub(super) struct WantedPlace {
    pub(super) limit: usize,
    /// Empty: the limit has no keys.
    pub(super) key: Arc<str>,
    pub(super) fair: Option<Arc<str>>,
}

/// A step that claims places, with what the gate must know of it.
#[derive(Debug)]
pub(super) struct Claimant {
    pub(super) entrance: EntranceId,
    pub(super) job: i64,
    pub(super) id: JobId,
    pub(super) step: StepIndex,
    pub(super) demand: Demand,
    pub(super) places: SmallVec<[WantedPlace; 1]>,
}

impl Claimant {
    fn rank(&self) -> Rank {
        let (priority, since) = (Reverse(self.demand.priority), self.demand.claim.since);
        Rank { priority, since, job: self.job, step: self.step }
    }
}

/// A step that waits in the lobby.
#[derive(Debug)]
pub(super) struct Outsider {
    pub(super) claimant: Claimant,
    /// The position, among its places, of the one whose limit has no room for the key.
    full: usize,
}

impl Outsider {
    /// Returns the place whose limit has no room for the key.
    pub(super) fn full_place(&self) -> &WantedPlace {
        &self.claimant.places[self.full]
    }
}

/// The rank before all others.
const FIRST_RANK: Rank = Rank {
    priority: Reverse(u8::MAX),
    since: Timestamp(i64::MIN),
    job: i64::MIN,
    step: StepIndex(0),
};

/// The steps that are kept out.
#[derive(Debug, Default)]
pub(super) struct Lobby {
    outsiders: BTreeMap<SlotKey, Outsider>,
    /// By limit, in the order in which they are let in.
    lines: BTreeSet<(usize, Rank)>,
    /// By limit and key.
    keys: BTreeSet<(usize, Arc<str>, Rank)>,
    /// The limits that may have room for a key.
    pub(super) opened: BTreeSet<usize>,
    /// The keys that are in use since.
    pub(super) called: Vec<(usize, Arc<str>)>,
}

impl Lobby {
    pub(super) fn is_empty(&self) -> bool {
        self.outsiders.is_empty()
    }

    pub(super) fn get(&self, key: SlotKey) -> Option<&Outsider> {
        self.outsiders.get(&key)
    }

    /// Returns the entrances through which the outsiders came, each as often as they did.
    pub(super) fn entrances(&self) -> impl Iterator<Item = EntranceId> {
        self.outsiders.values().map(|outsider| outsider.claimant.entrance)
    }

    /// Returns the steps of a job.
    pub(super) fn of_job(&self, job: i64) -> Vec<SlotKey> {
        let steps = (job, StepIndex(0))..=(job, StepIndex(u16::MAX));
        self.outsiders.range(steps).map(|(key, _)| *key).collect()
    }

    pub(super) fn line(&self, limit: usize) -> impl Iterator<Item = Rank> {
        let line = self.lines.range((limit, FIRST_RANK)..);
        line.take_while(move |(other, _)| *other == limit).map(|(_, rank)| *rank)
    }

    /// Returns how many wait for a limit.
    pub(super) fn count(&self, limit: usize) -> usize {
        self.line(limit).count()
    }

    /// Returns how many wait for the same limit before an outsider.
    pub(super) fn count_before(&self, outsider: &Outsider) -> usize {
        let rank = outsider.claimant.rank();
        self.line(outsider.full_place().limit).take_while(|other| *other < rank).count()
    }

    pub(super) fn add(&mut self, claimant: Claimant, full: usize) {
        let (rank, place) = (claimant.rank(), &claimant.places[full]);
        self.lines.insert((place.limit, rank));
        self.keys.insert((place.limit, place.key.clone(), rank));
        self.outsiders.insert((claimant.job, claimant.step), Outsider { claimant, full });
    }

    pub(super) fn remove(&mut self, key: SlotKey) -> Option<Claimant> {
        let outsider = self.outsiders.remove(&key)?;
        let (rank, place) = (outsider.claimant.rank(), outsider.full_place());
        self.lines.remove(&(place.limit, rank));
        self.keys.remove(&(place.limit, place.key.clone(), rank));
        Some(outsider.claimant)
    }

    pub(super) fn take_first(&mut self, limit: usize) -> Option<Claimant> {
        let rank = self.line(limit).next()?;
        self.remove((rank.job, rank.step))
    }

    pub(super) fn take_of_key(&mut self, limit: usize, key: &Arc<str>) -> Option<Claimant> {
        let (other, other_key, rank) =
            self.keys.range((limit, key.clone(), FIRST_RANK)..).next()?;
        let (is_same, rank) = (*other == limit && other_key == key, *rank);
        if is_same { self.remove((rank.job, rank.step)) } else { None }
    }

    /// Notes that a key of a limit is in use since now.
    pub(super) fn call(&mut self, limit: usize, key: &Arc<str>) {
        if !self.is_empty() {
            self.called.push((limit, key.clone()));
        }
    }

    /// Notes that a key of a limit is not in use any more.
    pub(super) fn open(&mut self, limit: usize) {
        if !self.is_empty() {
            self.opened.insert(limit);
        }
    }
}
