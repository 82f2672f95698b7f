//! What a database tells of the processes that share it.

use engine::{Millis, Timestamp};

/// What a database tells of the processes that share it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterStatus {
    /// The names of managers, in alphabetical order.
    pub names: Vec<ClusterName>,
    /// The processes that were seen in the last day, by name; of each name the active one comes
    /// first, and then the one that was seen last.
    pub processes: Vec<ClusterProcess>,
}

/// A manager's name, of which one process may be active.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterName {
    /// The name (setting `cluster.name`).
    pub name: String,
    /// How many processes have been active under this name so far.
    pub epoch: i64,
    /// The active process; `None` if there is none.
    pub active: Option<ActiveProcess>,
}

/// The active process of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveProcess {
    /// The id of the process.
    pub manager: String,
    /// The address of its API; `None` if it has none.
    pub address: Option<String>,
    /// Since when it has been active, by the clock of the database.
    pub since: Timestamp,
}

/// A process of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterProcess {
    /// The id of the process.
    pub manager: String,
    /// The manager's name.
    pub name: String,
    /// The version of its program.
    pub version: String,
    /// What it last was: `standby`, `active`, `leaving`, `left` or `dead`.
    pub state: String,
    /// The address of its API; `None` if it has none.
    pub address: Option<String>,
    /// How long ago it was seen, by the clock of the database.
    pub seen_ago: Millis,
}
