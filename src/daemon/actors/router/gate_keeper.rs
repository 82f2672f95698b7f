//! The gate of the router, with its clock and timer, and what operators have changed about it.

use crate::actors::buses::Buses;
use crate::actors::due_timer::DueTimer;
use crate::actors::inputs::Definitions;
use crate::actors::spare_places::SpareTable;
use base::clock::SteadyClock;
use bus::Address;
use engine::{
    Control, ControlKey, ControlKind, Definition, Demand, EntranceId, Gate, GraphIndex, JobId,
    LimitSetting, PausedQueue, Pauses, RateMark, StepIndex, Timestamp,
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
    /// The definition of a job whose limits were set last.
    configured: Option<ConfiguredDefinition>,
    /// Where jobs find what places limits have to spare.
    spare_places: Arc<SpareTable>,
    /// What operators have changed.
    controls: BTreeMap<ControlKey, Control>,
    /// By virtual host, what was used of it.
    vhosts: HashMap<String, VhostNames>,
    /// The entrances that were used. Their positions, counted from 1, are their ids.
    entrances: Vec<Entrance>,
}

/// What was used of a virtual host, so that names are not built anew for each demand.
#[derive(Default)]
struct VhostNames {
    /// The full names of limits, by their names.
    limits: HashMap<Arc<str>, Arc<str>>,
    /// By the name of the workflow, then by the queue.
    entrances: HashMap<String, HashMap<Option<Address>, EntranceId>>,
}

/// The definition of a job whose limits are set.
struct ConfiguredDefinition {
    definition: Arc<Definition>,
    /// The entrances of steps that were used, so that they are not searched by their names.
    entrances: HashMap<(GraphIndex, StepIndex), EntranceId>,
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
}

impl GateKeeper {
    /// Creates the gate. `marks`: how far rates were used up before the start. `controls`: what
    /// operators have changed. `keys_max`: how many keys of a limit may be in use at once.
    /// `spare_places`: where jobs find the places to spare.
    pub(super) fn new(
        marks: Vec<RateMark>,
        controls: Vec<Control>,
        keys_max: usize,
        spare_places: Arc<SpareTable>,
    ) -> GateKeeper {
        GateKeeper {
            gate: Gate::with_keys_max(keys_max),
            clock: SteadyClock::start(),
            timer: DueTimer::default(),
            definitions: None,
            marks,
            settings: HashMap::new(),
            configured: None,
            spare_places,
            controls: controls.into_iter().map(|control| (control.key.clone(), control)).collect(),
            vhosts: HashMap::new(),
            entrances: Vec::new(),
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
            let name = self.full_limit_name(definition, &limit.name);
            if is_loaded || !self.settings.contains_key(&name) {
                if self.settings.insert(name.clone(), limit.setting()).is_none() {
                    self.spare_places.add(name.clone(), self.gate.spare_places(&name));
                }
                self.gate.configure(&name, self.controlled(&name, limit.setting()));
            }
        }
    }

    /// Sets what the limits of the definition of a job allow, as [`configure`](Self::configure)
    /// does. What a definition that is not loaded says counts once.
    pub(super) fn configure_of_job(&mut self, definition: &Arc<Definition>) {
        let is_known = |known: &ConfiguredDefinition| Arc::ptr_eq(&known.definition, definition);
        if !self.configured.as_ref().is_some_and(is_known) {
            self.configure(definition, false);
            let (definition, entrances) = (definition.clone(), HashMap::new());
            self.configured = Some(ConfiguredDefinition { definition, entrances });
        }
    }

    /// Returns the full name of a limit of a definition.
    fn full_limit_name(&mut self, definition: &Definition, limit: &Arc<str>) -> Arc<str> {
        if let Some(name) = self.vhosts.get(&definition.vhost).and_then(|it| it.limits.get(limit)) {
            return name.clone();
        }
        let full_name = definition.full_limit_name(limit);
        let names = self.vhosts.entry(definition.vhost.clone()).or_default();
        names.limits.insert(limit.clone(), full_name.clone());
        full_name
    }

    /// Takes what a step wants of the gate; `None`: nothing. `address`: the queue to which the step
    /// sends its messages, if it does.
    pub(super) fn demand(
        &mut self,
        step: (JobNumber, JobId, StepIndex),
        definition: &Definition,
        address: Option<Address>,
        demand: Option<&Demand>,
    ) {
        let entrance = match demand {
            Some(_) => self.entrance(definition, address),
            None => EntranceId::default(),
        };
        self.demand_through(entrance, step, definition, demand);
    }

    /// Takes what a step wants of the gate, as [`demand`](Self::demand) does, by the graph that its
    /// job runs. The limits of the definition are set
    /// ([`configure_of_job`](Self::configure_of_job)).
    pub(super) fn demand_of_job(
        &mut self,
        step: (JobNumber, JobId, StepIndex),
        (definition, graph): (&Arc<Definition>, GraphIndex),
        demand: Option<&Demand>,
        buses: &Buses,
    ) {
        let place = (graph, step.2);
        let configured = self.configured.as_ref();
        let known = configured.and_then(|known| known.entrances.get(&place).copied());
        let entrance = match (demand, known) {
            (None, _) => EntranceId::default(),
            (Some(_), Some(entrance)) => entrance,
            (Some(_), None) => {
                let graph = definition.graphs.get(usize::from(graph));
                let step = graph.and_then(|graph| graph.steps.get(step.2.as_usize()));
                let address = step.and_then(|step| buses.find_address(definition, step));
                let entrance = self.entrance(definition, address);
                if let Some(known) = &mut self.configured {
                    known.entrances.insert(place, entrance);
                }
                entrance
            }
        };
        self.demand_through(entrance, step, definition, demand);
    }

    fn demand_through(
        &mut self,
        entrance: EntranceId,
        step: (JobNumber, JobId, StepIndex),
        definition: &Definition,
        demand: Option<&Demand>,
    ) {
        // Without a virtual host a limit's full name is its name.
        let has_vhost = !definition.vhost.is_empty();
        let names = has_vhost.then(|| self.vhosts.get(&definition.vhost)).flatten();
        let full_limit_name = |limit: &Arc<str>| {
            let known = names.and_then(|names| names.limits.get(limit));
            known.cloned().unwrap_or_else(|| definition.full_limit_name(limit))
        };
        self.gate.demand_through(entrance, step, demand, full_limit_name);
    }

    /// Returns the id of the entrance of a workflow with this queue, which is paused from the
    /// beginning if it is new and what an operator has paused.
    fn entrance(&mut self, definition: &Definition, address: Option<Address>) -> EntranceId {
        let names = self.vhosts.get(&definition.vhost);
        let queues = names.and_then(|names| names.entrances.get(&definition.name));
        if let Some(id) = queues.and_then(|queues| queues.get(&address)) {
            return *id;
        }
        let id = EntranceId(u32::try_from(self.entrances.len() + 1).unwrap_or(u32::MAX));
        let names = self.vhosts.entry(definition.vhost.clone()).or_default();
        let queues = names.entrances.entry(definition.name.clone()).or_default();
        queues.insert(address.clone(), id);
        self.entrances.push(Entrance { workflow: definition.full_name(), address });
        self.pause_entrances();
        id
    }

    /// Returns what operators have changed.
    pub(super) fn controls(&self) -> Vec<Control> {
        self.controls.values().cloned().collect()
    }

    /// Counts the steps that each pause of a queue or workflow holds back.
    pub(super) fn count_held_back(&self) -> Vec<(ControlKey, usize)> {
        let holds_back = |key: &&ControlKey| {
            matches!(key.kind, ControlKind::QueuePause | ControlKind::WorkflowPause)
        };
        let keys: Vec<&ControlKey> = self.controls.keys().filter(holds_back).collect();
        if keys.is_empty() {
            return Vec::new();
        }
        let counts = self.gate.count_held_back();
        let count = |key: &ControlKey| {
            let entrances = (1..).map(EntranceId).zip(&self.entrances);
            let paused = entrances.filter(|(_, entrance)| entrance.is_paused_by(key));
            paused.filter_map(|(id, _)| counts.get(&id)).sum()
        };
        keys.into_iter().map(|key| (key.clone(), count(key))).collect()
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

    /// Pauses the entrances that an operator has paused, and only these.
    fn pause_entrances(&mut self) {
        let is_paused =
            |entrance: &Entrance| self.controls.keys().any(|key| entrance.is_paused_by(key));
        let ids = (1..).map(EntranceId);
        let paused = ids.zip(&self.entrances).filter(|(_, entrance)| is_paused(entrance));
        self.gate.pause(paused.map(|(id, _)| id).collect());
    }

    /// Sets what limits allow and which entrances are paused, after a change of the controls.
    fn apply_controls(&mut self) {
        let limits = self.settings.iter();
        let changed: Vec<(Arc<str>, LimitSetting)> =
            limits.map(|(name, setting)| (name.clone(), self.controlled(name, *setting))).collect();
        for (name, setting) in changed {
            self.gate.configure(&name, setting);
        }
        self.pause_entrances();
    }
}
