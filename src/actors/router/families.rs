//! The families of jobs at rest, as the router knows them.

use crate::actors::at_rest::AtRest;
use crate::actors::mail::RouterInput;
use crate::engine::Timestamp;
use crate::journal::JobNumber;
use actix::SpawnHandle;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The families at rest.
#[derive(Default)]
pub(super) struct Resting {
    pub(super) families: BTreeMap<JobNumber, Family>,
    /// How many jobs they are.
    pub(super) jobs: usize,
    pub(super) due: BTreeSet<(Timestamp, JobNumber)>,
    /// Those that come back as soon as there is room.
    pub(super) pending: BTreeSet<JobNumber>,
    /// Those for which something has come, in order.
    pub(super) wanted: VecDeque<JobNumber>,
    /// How many the archive rebuilds now.
    pub(super) coming: usize,
    /// Whether a pause is under way before the next ones are brought back.
    pub(super) is_pausing: bool,
    pub(super) timer: Option<(Timestamp, SpawnHandle)>,
}

/// A family at rest.
pub(super) struct Family {
    /// The jobs.
    pub(super) jobs: AtRest,
    /// What has come for them.
    pub(super) set_aside: Vec<RouterInput>,
    pub(super) is_wanted: bool,
}
