//! The gate of the router, with its clock and timer.

use crate::actors::due_timer::DueTimer;
use crate::actors::inputs::Definitions;
use base::clock::SteadyClock;
use engine::{Definition, Gate, RateMark};
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
}

impl GateKeeper {
    /// Creates the gate. `marks`: how far rates were used up before the start.
    pub(super) fn new(marks: Vec<RateMark>) -> GateKeeper {
        GateKeeper {
            gate: Gate::default(),
            clock: SteadyClock::start(),
            timer: DueTimer::default(),
            definitions: None,
            marks,
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
            if is_loaded || self.gate.setting(&name).is_none() {
                self.gate.configure(&name, limit.setting());
            }
        }
    }
}
