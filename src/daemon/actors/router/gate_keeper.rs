//! The gate of the router, with its clock and timer, and what operators have changed about it.

use crate::actors::buses::Buses;
use crate::actors::due_timer::DueTimer;
use crate::actors::inputs::Definitions;
use base::clock::SteadyClock;
use bus::Address;
use engine::{
    ClaimedPlace, Control, ControlKey, ControlKind, Definition, Demand, ENTRANCE_PREFIX, Gate,
    JobId, LimitSetting, PausedQueue, Pauses, RateMark, StepIndex, Timestamp,
};
use journal::JobNumber;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The gate, with its clock and timer.
pub(super) struct GateKeeper {
    pub(super) gate: Gate,
    /// It does not follow adjustments of the wall clock.
    pub(super) clock: SteadyClock,
    pub(super) timer: DueTimer,
    /// The definitions whose limits the gate knows.
    pub(super) definitions: Option<Arc<Definitions>>,
    /// How far rates were used up before the start, until the gate has them.
    pub(super) marks: Vec<RateMark>,
    /// What the limits allow by their definitions, by their full names.
    settings: HashMap<Arc<str>, LimitSetting>,
    /// What operators have changed.
    controls: BTreeMap<ControlKey, Control>,
    /// The entrances that were used, by their names at the gate.
    entrances: HashMap<Arc<str>, Entrance>,
}

/// What the steps of a workflow with one queue share, so that both can be paused.
struct Entrance {
    /// The full name of the workflow.
    workflow: String,
    /// The queue; `None`: the steps send no messages.
    address: Option<Address>,
}

impl Entrance {
    fn is_paused_by(&self, key: &ControlKey) -> bool {
        match key.kind {
            ControlKind::LimitChange | ControlKind::LimitPause => false,
            ControlKind::QueuePause => self.address.as_ref().is_some_and(|address| {
                let Address { bus, queue } = address;
                bus.name == key.bus && bus.vhost == key.vhost && *queue == key.name
            }),
            ControlKind::WorkflowPause => *self.workflow == *key.full_name(),
        }
    }

    /// Returns the name of the entrance at the gate.
    fn name(&self) -> Arc<str> {
        let mut name = format!("{ENTRANCE_PREFIX}{}", self.workflow);
        if let Some(Address { bus, queue }) = &self.address {
            for part in [&bus.name, &bus.vhost, queue] {
                name.push(ENTRANCE_PREFIX);
                name.push_str(part);
            }
        }
        name.into()
    }
}

impl GateKeeper {
    /// Creates the gate. `marks`: how far rates were used up before the start. `controls`: what
    /// operators have changed.
    pub(super) fn new(marks: Vec<RateMark>, controls: Vec<Control>) -> GateKeeper {
        GateKeeper {
            gate: Gate::default(),
            clock: SteadyClock::start(),
            timer: DueTimer::default(),
            definitions: None,
            marks,
            settings: HashMap::new(),
            controls: controls.into_iter().map(|control| (control.key.clone(), control)).collect(),
            entrances: HashMap::new(),
        }
    }

    /// Returns the gate.
    pub(super) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Sets what the limits of a definition allow. `is_loaded`: it is loaded now. The limits of
    /// other definitions count only while no loaded definition has them.
    pub(super) fn configure(&mut self, definition: &Definition, is_loaded: bool) {
        for limit in &definition.limits {
            let name = definition.full_limit_name(&limit.name);
            if is_loaded || !self.settings.contains_key(&name) {
                self.settings.insert(name.clone(), limit.setting());
                self.gate.configure(&name, self.controlled(&name, limit.setting()));
            }
        }
    }

    /// Takes what a step wants of the gate; `None`: nothing. `address`: the queue to which the step
    /// sends its messages, if it does.
    pub(super) fn demand(
        &mut self,
        (number, id, step): (JobNumber, JobId, StepIndex),
        definition: &Definition,
        address: Option<Address>,
        demand: Option<&Demand>,
    ) {
        let full_limit_name = |limit: &str| definition.full_limit_name(limit);
        let Some(demand) = demand else {
            return self.gate.demand((number, id, step), None, full_limit_name);
        };
        let entrance = Entrance { workflow: definition.full_name(), address };
        let name = entrance.name();
        if !self.entrances.contains_key(&name) {
            self.gate.configure(&name, self.entrance_setting(&entrance));
            self.entrances.insert(name.clone(), entrance);
        }
        // The entrance is the last place, so that a step waits at its limits first.
        let mut demand = demand.clone();
        let entrance_place = ClaimedPlace { limit: name, key: None, fair: None };
        demand.claim.places =
            demand.claim.places.iter().cloned().chain(std::iter::once(entrance_place)).collect();
        let full_name = |limit: &str| {
            if limit.starts_with(ENTRANCE_PREFIX) { limit.into() } else { full_limit_name(limit) }
        };
        self.gate.demand((number, id, step), Some(&demand), full_name);
    }

    /// Returns what operators have changed.
    pub(super) fn controls(&self) -> Vec<Control> {
        self.controls.values().cloned().collect()
    }

    /// Puts a control in force, or ends it (`None`).
    pub(super) fn set_control(&mut self, key: &ControlKey, control: Option<Control>) {
        match control {
            Some(control) => drop(self.controls.insert(key.clone(), control)),
            None => drop(self.controls.remove(key)),
        }
        self.apply_controls();
    }

    /// Removes the controls that have ended, and returns them.
    pub(super) fn end_controls(&mut self, now: Timestamp) -> Vec<Control> {
        if !self.controls.values().any(|control| control.is_over(now)) {
            return Vec::new();
        }
        let (over, rest) = std::mem::take(&mut self.controls)
            .into_iter()
            .partition(|(_, control)| control.is_over(now));
        self.controls = rest;
        self.apply_controls();
        let over: BTreeMap<ControlKey, Control> = over;
        over.into_values().collect()
    }

    /// Returns when something is due next: an admission, or the end of a control.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        let ends = self.controls.values().filter_map(|control| control.until);
        ends.chain(self.gate.next_due()).min()
    }

    /// Returns the queues and workflows that are paused.
    pub(super) fn pauses(&self, buses: &Buses) -> Pauses {
        let mut pauses = Pauses { default_bus: buses.default_bus().clone(), ..Pauses::default() };
        for key in self.controls.keys() {
            match key.kind {
                ControlKind::LimitChange | ControlKind::LimitPause => {}
                ControlKind::WorkflowPause => drop(pauses.workflows.insert(key.full_name())),
                ControlKind::QueuePause => pauses.queues.push(PausedQueue {
                    bus: key.bus.clone(),
                    vhost: buses.has_vhosts(&key.bus).then(|| key.vhost.clone()),
                    queue: key.name.clone(),
                }),
            }
        }
        pauses
    }

    /// Returns what a limit allows, with what operators have changed about it.
    fn controlled(&self, limit: &str, setting: LimitSetting) -> LimitSetting {
        let is_about_limit = |control: &&Control| {
            matches!(control.key.kind, ControlKind::LimitChange | ControlKind::LimitPause)
                && *control.key.full_name() == *limit
        };
        let controls = self.controls.values().filter(is_about_limit);
        controls.fold(setting, |setting, control| control.apply(setting))
    }

    fn entrance_setting(&self, entrance: &Entrance) -> LimitSetting {
        let is_paused = self.controls.keys().any(|key| entrance.is_paused_by(key));
        LimitSetting { is_paused, ..LimitSetting::default() }
    }

    /// Sets what limits and entrances allow, after a change of the controls.
    fn apply_controls(&mut self) {
        let limits = self
            .settings
            .iter()
            .map(|(name, setting)| (name.clone(), self.controlled(name, *setting)));
        let entrances = self
            .entrances
            .iter()
            .map(|(name, entrance)| (name.clone(), self.entrance_setting(entrance)));
        let changed: Vec<(Arc<str>, LimitSetting)> = limits.chain(entrances).collect();
        for (name, setting) in changed {
            self.gate.configure(&name, setting);
        }
    }
}
