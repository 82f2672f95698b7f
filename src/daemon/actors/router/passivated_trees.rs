//! The passivated job trees, as the router keeps them.

use crate::actors::due_timer::DueTimer;
use crate::actors::inputs::RouterInput;
use crate::actors::passivation::PassivatedTree;
use engine::Timestamp;
use journal::JobNumber;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// All passivated job trees.
#[derive(Default)]
pub(super) struct PassivatedTrees {
    pub(super) trees: BTreeMap<JobNumber, TreeEntry>,
    /// How many jobs are in these trees.
    pub(super) job_count: usize,
    pub(super) due: BTreeSet<(Timestamp, JobNumber)>,
    /// The trees that are activated as soon as there is room.
    pub(super) pending: BTreeSet<JobNumber>,
    /// The trees for which an input has come, in order.
    pub(super) requested: VecDeque<JobNumber>,
    /// How many trees the archive rebuilds now.
    pub(super) activating_count: usize,
    /// Whether a pause is under way before the next trees are activated.
    pub(super) is_pausing: bool,
    /// For what is due next in one of them.
    pub(super) timer: DueTimer,
}

/// A passivated job tree and its inputs.
pub(super) struct TreeEntry {
    /// The jobs.
    pub(super) tree: PassivatedTree,
    /// The inputs that have come for its jobs.
    pub(super) stash: Vec<RouterInput>,
    pub(super) is_requested: bool,
}
