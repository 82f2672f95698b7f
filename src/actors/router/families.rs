//! The passivated job trees, as the router keeps them.

use crate::actors::at_rest::AtRest;
use crate::actors::mail::RouterInput;
use crate::engine::Timestamp;
use crate::journal::JobNumber;
use actix::SpawnHandle;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// All passivated job trees.
#[derive(Default)]
pub(super) struct Resting {
    pub(super) families: BTreeMap<JobNumber, Family>,
    /// How many jobs are in these trees.
    pub(super) jobs: usize,
    pub(super) due: BTreeSet<(Timestamp, JobNumber)>,
    /// The trees that are activated as soon as there is room.
    pub(super) pending: BTreeSet<JobNumber>,
    /// The trees for which an input has come, in order.
    pub(super) wanted: VecDeque<JobNumber>,
    /// How many trees the archive rebuilds now.
    pub(super) coming: usize,
    /// Whether a pause is under way before the next trees are activated.
    pub(super) is_pausing: bool,
    pub(super) timer: Option<(Timestamp, SpawnHandle)>,
}

/// A passivated job tree and its inputs.
pub(super) struct Family {
    /// The jobs.
    pub(super) jobs: AtRest,
    /// The inputs that have come for its jobs.
    pub(super) set_aside: Vec<RouterInput>,
    pub(super) is_wanted: bool,
}
