//! The places of the gate: limits with a key.

use super::class::{Park, SlotKey};
use crate::limit::{LimitSetting, Rate};
use crate::spare::SparePlaces;
use crate::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// From this number on, the turns of values that nobody uses are forgotten.
const TURNS_KEPT: usize = 64;

/// A limit.
#[derive(Debug)]
pub(super) struct Limit {
    /// The full name.
    pub(super) name: Arc<str>,
    pub(super) setting: LimitSetting,
    /// Its places.
    pub(super) places: BTreeSet<usize>,
    /// How many of its keys are in use: a class has them.
    pub(super) keys_used: usize,
    /// The place without a key, if there is one.
    pub(super) open_place: Option<usize>,
    /// The places that are handed out in advance, of the place without a key.
    pub(super) spare: Arc<SparePlaces>,
    /// How many were handed out, and not taken back or settled.
    pub(super) lent: u32,
}

impl Limit {
    /// Creates a limit that nobody uses.
    pub(super) fn new(name: Arc<str>) -> Limit {
        Limit {
            name,
            setting: LimitSetting::default(),
            places: BTreeSet::new(),
            keys_used: 0,
            open_place: None,
            spare: Arc::default(),
            lent: 0,
        }
    }
}

/// A limit with a key.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) limit: usize,
    pub(super) key: Arc<str>,
    /// The theoretical arrival time of the next message (GCRA).
    pub(super) arrival: Timestamp,
    /// How many steps hold it.
    pub(super) held: u32,
    /// How many steps claim it and wait, whatever for.
    pub(super) waiting: usize,
    pub(super) parked: BTreeSet<Park>,
    /// Whom its rate has admitted, as long as that is undecided: since when, and the theoretical
    /// arrival time after it.
    undecided: BTreeMap<(Timestamp, SlotKey), Timestamp>,
    /// How many classes have it.
    pub(super) classes: usize,
    /// The turn of each value of `fair`. Values whose turn has passed are left out.
    turns: HashMap<Arc<str>, u64>,
    /// The turn that was taken last.
    last_turn: u64,
    /// From how many turns on they are swept.
    sweep_at: usize,
}

/// An admission that was undecided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Undecided {
    /// When the step was admitted.
    pub(super) since: Timestamp,
    /// The theoretical arrival time after it.
    arrival: Timestamp,
}

impl Place {
    /// Creates a place of a limit that nobody uses.
    pub(super) fn new(limit: usize, key: Arc<str>) -> Place {
        Place {
            limit,
            key,
            arrival: Timestamp(i64::MIN),
            held: 0,
            waiting: 0,
            parked: BTreeSet::new(),
            undecided: BTreeMap::new(),
            classes: 0,
            turns: HashMap::new(),
            last_turn: 0,
            sweep_at: 0,
        }
    }

    /// Returns when a message may be sent, with `ahead` nanoseconds more in use.
    pub(super) fn sending_time(&self, rate: &Rate, ahead: i64) -> Timestamp {
        let used = self.arrival.0.saturating_add(ahead);
        Timestamp(used.saturating_sub(rate.tolerance_ns()))
    }

    /// Counts a message that is sent now, and returns the theoretical arrival time after it.
    pub(super) fn count_message(&mut self, rate: &Rate, now: Timestamp, key: SlotKey) -> Timestamp {
        self.arrival = Timestamp(self.arrival.max(now).0.saturating_add(rate.interval_ns()));
        self.undecided.insert((now, key), self.arrival);
        self.arrival
    }

    /// Returns whether an admission is undecided for longer than `max_ns` nanoseconds.
    pub(super) fn is_stalled(&self, now: Timestamp, max_ns: i64) -> bool {
        let first = self.undecided.first_key_value();
        first.is_some_and(|((since, _), _)| now.0.saturating_sub(since.0) > max_ns)
    }

    /// Takes the admission of a step that is not undecided any more. `since`: when it was admitted.
    pub(super) fn take_undecided(&mut self, since: Timestamp, key: SlotKey) -> Option<Undecided> {
        let arrival = self.undecided.remove(&(since, key))?;
        Some(Undecided { since, arrival })
    }

    /// Delays the theoretical arrival time by as much as a message was sent later than `max_ns`
    /// nanoseconds after its admission.
    pub(super) fn delay_arrival(&mut self, decided: &Undecided, now: Timestamp, max_ns: i64) {
        let delay_ns = now.0.saturating_sub(decided.since.0);
        if delay_ns > max_ns {
            let arrival = Timestamp(decided.arrival.0.saturating_add(delay_ns));
            self.arrival = self.arrival.max(arrival);
        }
    }

    /// Returns the next turn of a value of `fair`.
    pub(super) fn turn_of(&self, fair: &str) -> u64 {
        self.turns.get(fair).copied().unwrap_or(0).max(self.last_turn)
    }

    /// Takes the turn of a value of `fair`.
    pub(super) fn take_turn(&mut self, fair: &Arc<str>) {
        let turn = self.turn_of(fair);
        self.last_turn = turn;
        self.turns.insert(fair.clone(), turn + 1);
        if self.turns.len() >= self.sweep_at.max(TURNS_KEPT) {
            self.turns.retain(|_, next| *next > turn);
            self.sweep_at = self.turns.len() * 2;
        }
    }
}
