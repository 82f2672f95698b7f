//! The router's table of passivated job trees.

use crate::actors::due_timer::DueTimer;
use crate::actors::inputs::RouterInput;
use crate::actors::passivation::PassivatedTree;
use engine::Timestamp;
use journal::JobNumber;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// All passivated job trees, by the number of their root job.
#[derive(Default)]
pub(super) struct PassivatedTrees {
    pub(super) trees: BTreeMap<JobNumber, TreeEntry>,
    /// How many jobs are in these trees.
    pub(super) job_count: usize,
    /// When something in a tree is due, with the number of its root job. A tree is removed once it
    /// is requested because of that.
    pub(super) due: BTreeSet<(Timestamp, JobNumber)>,
    /// The trees that are activated as soon as memory is free, without an input for them.
    pub(super) pending: BTreeSet<JobNumber>,
    /// The trees for which an input has arrived or something is due, in the order of the requests.
    pub(super) requested: VecDeque<JobNumber>,
    /// How many trees the archive rebuilds now.
    pub(super) activating_count: usize,
    /// Whether the next batch of trees is delayed by a pause.
    pub(super) is_pausing: bool,
    /// Fires when something is due in a passivated tree.
    pub(super) timer: DueTimer,
}

/// A passivated job tree and its stashed inputs.
pub(super) struct TreeEntry {
    pub(super) tree: PassivatedTree,
    /// The inputs for its jobs that have arrived, in order.
    pub(super) stash: Vec<RouterInput>,
    /// Whether its activation is requested, or the archive rebuilds it.
    pub(super) is_activating: bool,
}
