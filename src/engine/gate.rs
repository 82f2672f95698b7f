//! The gate: decides which step is admitted next to the places of limits that it claims.
//!
//! It is plain data, without a clock. Its owner tells it what steps want ([`Gate::demand`]), and
//! takes the admissions ([`Gate::advance`]). What it knows of holders and waiters follows from the
//! demands of the jobs, so a restart tells it again, and no counter is kept anywhere else. Only how
//! far a rate is used up is kept by itself ([`RateMark`]).
//!
//! A *place* is a limit with a key. Steps that claim the same places form a *class*, which is a
//! queue. A class that waits is *parked* at one place: the first of its places that has no room.
//! Once that place has room, its classes are tried in turn. Each is admitted to all its places at
//! once, or is parked at another place that has no room. A class that was turned away
//! [`TURNS_AWAY_MAX`] times becomes *impatient*. The first impatient class has a place reserved for
//! it in each of its limits, so that it is not overtaken for ever.
//!
//! An admission is *undecided* until its job has told the gate that the message is sent, or that it
//! wants something else. While the journal stands still nothing is told, and all messages would be
//! sent together afterwards. So a rate admits nobody while it has an admission that is undecided
//! for longer than [`UNDECIDED_NS_MAX`], and it counts a later message from when it was sent.

mod class;
mod door;
mod lending;
mod lobby;
mod place;
mod sorted;
mod tables;
pub mod view;

use super::id::{JobId, StepIndex};
use super::limit::{ClaimedPlace, Demand, LimitSetting, RateMark};
use super::time::Timestamp;
pub use class::EntranceId;
use class::{Class, ClassIndex, ClassKey, Rank, SlotKey};
use lobby::{Claimant, Lobby, WantedPlace};
use place::{Limit, Place, Undecided};
use smallvec::SmallVec;
use sorted::{Keyed, SortedSet};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// How often a class is turned away from a place that has room, because another place of it has
/// none, before it becomes impatient.
const TURNS_AWAY_MAX: u32 = 8;

/// How long an admission may be undecided before its rates admit nobody, in nanoseconds. A commit
/// takes much less; at most the messages of this time are sent beyond what a rate allows.
const UNDECIDED_NS_MAX: i64 = 250_000_000;

/// The name of the limit of steps that claim no place: it has no setting. No limit of a file has
/// this name.
const OPEN_LIMIT: &str = "";

/// A step is admitted to the places that it claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The job's number.
    pub job: i64,
    /// The job's id.
    pub id: JobId,
    /// The step.
    pub step: StepIndex,
    /// The ticket of the claim.
    pub ticket: u64,
    /// How far the rates are used up with it.
    pub marks: Vec<RateMark>,
}

/// What the gate knows of a step. There may be as many as steps that wait, so it is small.
#[derive(Clone, Debug)]
struct Slot {
    job: i64,
    id: JobId,
    ticket: u64,
    since: Timestamp,
    class: ClassIndex,
    entrance: EntranceId,
    step: StepIndex,
    priority: u8,
    holds: bool,
    waits: bool,
}

/// What a step that waits takes at the gate, in bytes, beside its class and places.
const _: () = assert!(size_of::<Slot>() + size_of::<Rank>() <= 80);

impl Slot {
    /// Returns the order of the step among those that wait.
    fn rank(&self) -> Rank {
        let Slot { since, job, step, .. } = *self;
        Rank { priority: Reverse(self.priority), since, job, step }
    }

    fn class(&self) -> usize {
        self.class.as_usize()
    }
}

impl Keyed for Slot {
    type Key = SlotKey;

    fn key(&self) -> SlotKey {
        (self.job, self.step)
    }
}

/// The gate of a manager. See the [module](self).
#[derive(Debug, Default)]
pub struct Gate {
    /// How many keys of a limit may be in use at once; `None`: any number of them.
    keys_max: Option<usize>,
    lobby: Lobby,
    limits: Vec<Limit>,
    limit_indices: HashMap<Arc<str>, usize>,
    places: Vec<Option<Place>>,
    free_places: Vec<usize>,
    place_indices: HashMap<(usize, Arc<str>), usize>,
    classes: Vec<Option<Class>>,
    free_classes: Vec<usize>,
    class_indices: HashMap<ClassKey, usize>,
    slots: SortedSet<Slot>,
    /// When places have room again, as far as that is known.
    due: BTreeSet<(Timestamp, usize)>,
    /// The places that may have room for a parked class.
    dirty: BTreeSet<usize>,
    /// The limits that may have places to spare.
    lendable: BTreeSet<usize>,
    /// The impatient classes, each with the rank of its first step when it became impatient.
    impatient: BTreeSet<(Rank, usize)>,
    /// The places of the first impatient class, where one is reserved for it.
    reserved: Vec<usize>,
    paused_entrances: BTreeSet<EntranceId>,
    /// The classes of the steps whose admissions are undecided, and since when they are.
    undecided: BTreeMap<SlotKey, (usize, Timestamp)>,
    /// What was undecided at places until the job of it told the gate.
    decided: Vec<(usize, Undecided)>,
}

impl Gate {
    /// Sets what a limit allows. `limit`: its full name.
    pub fn configure(&mut self, limit: &Arc<str>, setting: LimitSetting) {
        let index = self.limit_index(limit);
        if std::mem::replace(&mut self.limits[index].setting, setting) == setting {
            return;
        }
        self.take_back(index);
        let places: Vec<usize> = self.limits[index].places.iter().copied().collect();
        if setting.is_paused {
            // Who waits for the end of a pause reserves no other places meanwhile.
            let parked = places.iter().filter_map(|place| self.places[*place].as_ref());
            let classes: Vec<usize> =
                parked.flat_map(|place| place.parked.iter().map(|park| park.class)).collect();
            classes.into_iter().for_each(|class| self.calm(class));
        }
        self.dirty.extend(places);
    }

    /// Returns what a limit allows; `None`: the gate does not know it.
    pub fn setting(&self, limit: &str) -> Option<LimitSetting> {
        self.limit_indices.get(limit).map(|index| self.limits[*index].setting)
    }

    /// Sets which entrances are paused.
    pub fn pause(&mut self, paused: BTreeSet<EntranceId>) {
        let before = std::mem::replace(&mut self.paused_entrances, paused);
        let changed: BTreeSet<EntranceId> =
            before.symmetric_difference(&self.paused_entrances).copied().collect();
        let is_concerned = |slot: &Slot| slot.waits && changed.contains(&slot.entrance);
        let slots = self.slots.iter().filter(|slot| is_concerned(slot));
        let concerned: Vec<Slot> = slots.cloned().collect();
        for slot in concerned {
            if self.is_in_line(&slot) {
                self.enqueue(slot.class(), slot.rank());
            } else {
                self.dequeue(slot.class(), slot.rank());
            }
        }
    }

    /// Returns whether a step waits for places, and not for the end of a pause.
    fn is_in_line(&self, slot: &Slot) -> bool {
        slot.waits && !self.paused_entrances.contains(&slot.entrance)
    }

    /// Restores how far a rate was used up before a restart. A time that no sending until `now` can
    /// have caused is shortened: the clock was set back.
    pub fn restore_rate(&mut self, mark: &RateMark, now: Timestamp) {
        let limit = self.limit_index(&mark.limit);
        let full = self.limits[limit]
            .setting
            .rate
            .map_or(0, |rate| rate.tolerance_ns().saturating_add(rate.interval_ns()));
        let time = mark.time.min(Timestamp(now.0.saturating_add(full)));
        if time > now {
            let index = self.place_index(limit, &mark.key);
            let place = self.place_mut(index);
            place.arrival = place.arrival.max(time);
            self.due.insert((time, index));
        }
    }

    /// Sets what a step wants from now on; `None`: nothing, which releases what it holds. `limits`
    /// gives the full name of a limit.
    ///
    /// A demand with an earlier ticket than the known one is stale, and ignored. With the known
    /// ticket, a step keeps what it was admitted to: its job may have missed the admission.
    pub fn demand(
        &mut self,
        step: (i64, JobId, StepIndex),
        demand: Option<&Demand>,
        full_name: impl Fn(&Arc<str>) -> Arc<str>,
    ) {
        self.demand_through(EntranceId::default(), step, demand, full_name);
    }

    /// Sets what a step wants that comes through an entrance. See [`Gate::demand`].
    pub fn demand_through(
        &mut self,
        entrance: EntranceId,
        (job, id, step): (i64, JobId, StepIndex),
        demand: Option<&Demand>,
        full_name: impl Fn(&Arc<str>) -> Arc<str>,
    ) {
        let key = (job, step);
        let Some(demand) = demand else { return self.release(key) };
        let ticket = demand.claim.ticket;
        if let Some(outsider) = self.lobby.get(key) {
            if ticket <= outsider.claimant.demand.claim.ticket {
                return;
            }
            self.lobby.remove(key);
        }
        if let Some(slot) = self.slots.get(key) {
            if ticket < slot.ticket {
                return;
            }
            if ticket == slot.ticket {
                if demand.waits() && !slot.waits {
                    let is_resend = slot.holds;
                    self.note_decided(key);
                    self.enqueue_again(key, is_resend);
                }
                return;
            }
        }
        self.note_decided(key);
        // A place that the step keeps is not free for others in between.
        let previous = self.slots.remove(key);
        let wanted = |place: &ClaimedPlace| WantedPlace {
            limit: self.limit_index(&full_name(&place.limit)),
            key: place.key.clone().unwrap_or_default(),
            fair: place.fair.clone(),
        };
        let mut places: SmallVec<[WantedPlace; 1]> =
            demand.claim.places.iter().map(wanted).collect();
        if places.is_empty() {
            let limit = self.limit_index(&OPEN_LIMIT.into());
            places.push(WantedPlace { limit, key: Arc::default(), fair: None });
        }
        let demand = demand.clone();
        let claimant = Claimant { entrance, job, id, step, demand, places };
        match self.keep_out(claimant, None) {
            Some(claimant) => self.add_slot(&claimant, previous),
            None => previous.iter().for_each(|previous| self.drop_slot(previous)),
        }
    }

    /// Adds a step that claims places. `previous`: what was known of it.
    fn add_slot(&mut self, claimant: &Claimant, previous: Option<Slot>) {
        let Claimant { entrance, job, id, step, ref demand, ref places } = *claimant;
        let place =
            |place: &WantedPlace| (self.place_index(place.limit, &place.key), place.fair.clone());
        let places = places.iter().map(place).collect();
        let class = self.class_index(ClassKey { places, is_resend: false });
        self.class_mut(class).members += 1;
        if demand.holds() {
            self.change_held(class, 1);
        }
        self.slots.insert(Slot {
            job,
            id,
            ticket: demand.claim.ticket,
            since: demand.claim.since,
            class: ClassIndex::new(class),
            entrance,
            step,
            priority: demand.priority,
            holds: demand.holds(),
            waits: false,
        });
        if let Some(previous) = previous {
            self.drop_slot(&previous);
        }
        if demand.waits() {
            self.enqueue_again((job, step), demand.holds());
        }
    }

    /// Releases everything that the steps of a job hold and wait for: the job was deleted.
    pub fn forget(&mut self, job: i64) {
        let slots = self.slots.iter_from((job, StepIndex(0)));
        let of_job = slots.take_while(|slot| slot.job == job);
        let keys: Vec<SlotKey> = of_job.map(Keyed::key).chain(self.lobby.of_job(job)).collect();
        keys.into_iter().for_each(|key| self.release(key));
    }

    /// Returns when somebody may be admitted because time passes; `None`: nobody waits for time.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.due.first().map(|(time, _)| *time)
    }

    /// Returns whether nobody waits and nobody holds a place.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.lobby.is_empty()
    }

    /// Admits everybody who can be admitted at `now`.
    pub fn advance(&mut self, now: Timestamp) -> Vec<Admission> {
        while let Some((time, place)) = self.due.first().copied() {
            if time > now {
                break;
            }
            self.due.remove(&(time, place));
            self.dirty.insert(place);
        }
        for (index, undecided) in std::mem::take(&mut self.decided) {
            if let Some(place) = self.places[index].as_mut() {
                place.delay_arrival(&undecided, now, UNDECIDED_NS_MAX);
            }
        }
        self.let_in();
        let mut admissions = Vec::new();
        while let Some(place) = self.dirty.pop_first() {
            self.lendable.extend(self.places[place].as_ref().map(|place| place.limit));
            self.try_parked(place, now, &mut admissions);
            self.remove_place_if_unused(place, now);
        }
        self.lend();
        admissions
    }

    /// Tries the classes that are parked at a place, in turn, as long as it has room.
    fn try_parked(&mut self, place: usize, now: Timestamp, admissions: &mut Vec<Admission>) {
        loop {
            let Some(class) = self.find_next(place, now) else {
                return self.wait_for_time(place, now);
            };
            self.unpark(class);
            let places: SmallVec<[usize; 2]> = self.class(class).place_indices().collect();
            match places.into_iter().find(|other| !self.has_room(*other, class, now)) {
                Some(full_place) => {
                    if self.is_paused(full_place) {
                        self.calm(class);
                    } else {
                        self.turn_away(class);
                    }
                    self.park(class, full_place);
                    self.wait_for_time(full_place, now);
                }
                None => {
                    admissions.extend(self.admit(class, now));
                    if !self.class(class).queue.is_empty() {
                        self.park(class, place);
                    }
                }
            }
        }
    }

    /// Returns which of the classes that are parked at a place is next, if the place has room for
    /// it: the class for which one is reserved, or the first.
    fn find_next(&self, place: usize, now: Timestamp) -> Option<usize> {
        let is_here = |class: &usize| {
            self.class(*class).parked.as_ref().is_some_and(|(parked_at, _)| *parked_at == place)
        };
        let impatient = self.impatient.first().map(|(_, class)| *class).filter(is_here);
        let first = self.places[place].as_ref()?.parked.first().map(|park| park.class);
        impatient.into_iter().chain(first).find(|class| self.has_room(place, *class, now))
    }

    /// Returns whether a place has room for the first step of a class.
    fn has_room(&self, place: usize, class: usize, now: Timestamp) -> bool {
        let Some(state) = &self.places[place] else { return true };
        let setting = self.limits[state.limit].setting;
        let class_state = self.class(class);
        let is_first = self.impatient.first().is_none_or(|(_, first)| *first == class);
        let reserved = u32::from(!is_first && self.reserved.contains(&place));
        let lent = if state.key.is_empty() { self.limits[state.limit].lent } else { 0 };
        let taken = state.held.saturating_add(reserved).saturating_add(lent);
        let has_place =
            setting.concurrency.is_none_or(|max| class_state.key.is_resend || taken < max);
        let is_in_time = setting.rate.is_none_or(|rate| {
            let ahead = rate.interval_ns().saturating_mul(reserved.into());
            state.sending_time(&rate, ahead) <= now && !state.is_stalled(now, UNDECIDED_NS_MAX)
        });
        !setting.is_paused && has_place && is_in_time
    }

    /// Returns whether the limit of a place is paused.
    fn is_paused(&self, place: usize) -> bool {
        self.places[place].as_ref().is_some_and(|state| self.limits[state.limit].setting.is_paused)
    }

    /// Has a place tried again when its rate allows it.
    fn wait_for_time(&mut self, place: usize, now: Timestamp) {
        let Some(state) = &self.places[place] else { return };
        let Some(rate) = self.limits[state.limit].setting.rate else { return };
        let ahead = rate.interval_ns();
        let times = [state.sending_time(&rate, 0), state.sending_time(&rate, ahead)];
        if let Some(time) = times.into_iter().find(|time| *time > now) {
            self.due.insert((time, place));
        }
    }

    /// Counts that a class was turned away, and makes it impatient in the end.
    fn turn_away(&mut self, class: usize) {
        let state = self.class_mut(class);
        state.turns_away += 1;
        if state.turns_away == TURNS_AWAY_MAX
            && let Some(rank) = state.queue.first().copied()
        {
            state.impatient = Some(rank);
            self.impatient.insert((rank, class));
            self.reserve();
        }
    }

    /// Reserves places for the first impatient class, and has those tried again that are not
    /// reserved any more.
    fn reserve(&mut self) {
        let first = self.impatient.first().map(|(_, class)| *class);
        let places =
            first.map_or_else(Vec::new, |class| self.class(class).place_indices().collect());
        if self.reserved != places {
            let released = std::mem::replace(&mut self.reserved, places);
            self.dirty.extend(released);
            self.dirty.extend(self.reserved.iter().copied());
        }
    }

    /// Ends the impatience of a class: its first step was admitted, or nobody waits in it.
    fn calm(&mut self, class: usize) {
        let state = self.class_mut(class);
        state.turns_away = 0;
        if let Some(rank) = state.impatient.take() {
            self.impatient.remove(&(rank, class));
            self.reserve();
        }
    }

    /// Admits the first step of a class to all its places.
    fn admit(&mut self, class: usize, now: Timestamp) -> Option<Admission> {
        let rank = self.class_mut(class).queue.pop_first()?;
        self.calm(class);
        let key = (rank.job, rank.step);
        let is_resend = self.class(class).key.is_resend;
        let mut marks = Vec::new();
        let places = self.class(class).key.places.clone();
        for (index, fair) in &places {
            let Some(place) = self.places[*index].as_mut() else { continue };
            place.waiting -= 1;
            if let Some(fair) = fair {
                place.take_turn(fair);
            }
            let limit = &self.limits[place.limit];
            if let Some(rate) = limit.setting.rate {
                let time = place.count_message(&rate, now, key);
                let (limit, key) = (limit.name.clone(), place.key.clone());
                marks.push(RateMark { limit, key, time });
            }
        }
        if !marks.is_empty() {
            self.undecided.insert(key, (class, now));
            self.class_mut(class).members += 1;
        }
        let slot = self.slots.get_mut(key)?;
        slot.waits = false;
        let admission =
            Admission { job: key.0, id: slot.id, step: key.1, ticket: slot.ticket, marks };
        if !is_resend {
            slot.holds = true;
            self.change_held(class, 1);
        }
        Some(admission)
    }

    /// Notes that the job of a step has told the gate what it wants since it was admitted.
    fn note_decided(&mut self, key: SlotKey) {
        let Some((class, since)) = self.undecided.remove(&key) else { return };
        let places: SmallVec<[usize; 2]> = self.class(class).place_indices().collect();
        for index in places {
            if let Some(undecided) = self.place_mut(index).take_undecided(since, key) {
                self.decided.push((index, undecided));
                self.dirty.insert(index);
            }
        }
        self.drop_member(class);
    }

    /// Makes a known step wait. `is_resend`: it keeps the places that it holds, and only the rates
    /// must allow it.
    fn enqueue_again(&mut self, key: SlotKey, is_resend: bool) {
        let Some(slot) = self.slots.get(key) else { return };
        let (old_class, rank) = (slot.class(), slot.rank());
        let mut class_key = self.class(old_class).key.clone();
        class_key.is_resend = is_resend;
        let class = self.class_index(class_key);
        self.class_mut(class).members += 1;
        let Some(slot) = self.slots.get_mut(key) else { return };
        (slot.class, slot.waits) = (ClassIndex::new(class), true);
        let slot = slot.clone();
        self.drop_member(old_class);
        if self.is_in_line(&slot) {
            self.enqueue(class, rank);
        }
    }

    /// Puts a step into the queue of its class.
    fn enqueue(&mut self, class: usize, rank: Rank) {
        self.class_mut(class).queue.insert(rank);
        let places: SmallVec<[usize; 2]> = self.class(class).place_indices().collect();
        for place in &places {
            let state = self.place_mut(*place);
            state.waiting += 1;
            let (limit, is_open) = (state.limit, state.key.is_empty());
            if is_open {
                self.take_back(limit);
            }
        }
        match self.class(class).parked {
            Some(_) => self.park_again(class),
            None => {
                if let Some(first) = places.first() {
                    self.park(class, *first);
                    self.dirty.insert(*first);
                }
            }
        }
    }

    /// Takes a step out of the queue of its class, if it is there.
    fn dequeue(&mut self, class: usize, rank: Rank) {
        if self.class_mut(class).queue.remove(rank).is_none() {
            return;
        }
        let places: SmallVec<[usize; 2]> = self.class(class).place_indices().collect();
        for place in places {
            self.place_mut(place).waiting -= 1;
            self.dirty.insert(place);
        }
        if self.class(class).queue.is_empty() {
            self.calm(class);
        }
        self.park_again(class);
    }

    /// Removes a step, and releases what it holds.
    fn release(&mut self, key: SlotKey) {
        self.lobby.remove(key);
        self.note_decided(key);
        if let Some(slot) = self.slots.remove(key) {
            self.drop_slot(&slot);
        }
    }

    /// Releases what a slot that was removed holds and waits for.
    fn drop_slot(&mut self, slot: &Slot) {
        let class = slot.class();
        if slot.waits {
            self.dequeue(class, slot.rank());
        }
        if slot.holds {
            self.change_held(class, -1);
        }
        self.drop_member(class);
    }

    /// Changes how many steps hold the places of a class.
    fn change_held(&mut self, class: usize, change: i32) {
        let places: SmallVec<[usize; 2]> = self.class(class).place_indices().collect();
        for index in places {
            let place = self.place_mut(index);
            place.held = place.held.saturating_add_signed(change);
            let (limit, held, is_open) = (place.limit, place.held, place.key.is_empty());
            if change < 0 {
                self.dirty.insert(index);
            } else if is_open {
                self.take_back_excess(limit, held);
            }
        }
    }
}
