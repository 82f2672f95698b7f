//! Shows the processes that share the journal, for `GET /api/manager`.

use super::problem::Problem;
use super::reads::read_small;
use crate::actors::role::Role;
use crate::api::state::ApiState;
use base::times::Rfc3339Time;
use journal::{ActiveProcess, ClusterName, ClusterProcess, ClusterStatus};
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

/// The processes that share the journal, and what this one is among them.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Cluster)]
pub(super) struct ClusterView {
    /// The name of this manager (setting `cluster.name`).
    name: String,
    /// `active` or `standby`.
    role: &'static str,
    /// The active process of this name; missing if it is not known now.
    #[serde(skip_serializing_if = "Option::is_none")]
    active: Option<ActiveView>,
    /// Why names and managers are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    /// The names on the database.
    names: Vec<NameView>,
    /// The processes of the database that were seen in the last day.
    managers: Vec<ManagerProcessView>,
}

/// The active process of a name.
#[derive(Serialize, ToSchema)]
#[schema(as = ActiveManager)]
struct ActiveView {
    /// The id of the process.
    manager: String,
    /// The address of its API; missing if its setting `http.public_url` is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    since: Rfc3339Time,
}

/// A manager's name, of which one process may be active.
#[derive(Serialize, ToSchema)]
#[schema(as = ManagerName)]
struct NameView {
    name: String,
    /// How many processes have been active under this name so far.
    epoch: i64,
    /// The active process; missing if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    active: Option<ActiveView>,
}

/// A process of the database.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ManagerProcess)]
struct ManagerProcessView {
    id: String,
    name: String,
    version: String,
    /// What it last was: `standby`, `active`, `leaving` (it gives its name back soon), `left` (it
    /// has given it back) or `dead` (another one has taken it over).
    state: String,
    /// The address of its API; missing if its setting `http.public_url` is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    /// How many seconds ago it was seen.
    seen_ago: u64,
}

impl ActiveView {
    fn from_process(process: ActiveProcess) -> ActiveView {
        let ActiveProcess { manager, address, since } = process;
        ActiveView { manager, address, since: Rfc3339Time(since) }
    }
}

/// Loads the processes that share the journal; `None` if it is a file. While the database cannot
/// be read, only what this process knows is there.
pub(super) async fn load_cluster(api: &Arc<ApiState>) -> Option<ClusterView> {
    if !api.settings.shares_journal() {
        return None;
    }
    let loaded = read_small(api, |reader| reader.load_cluster()).await;
    let problem = loaded.as_ref().err().map(|problem: &Problem| problem.detail().to_owned());
    let ClusterStatus { names, processes } = loaded.ok().flatten().unwrap_or_default();
    let name = api.settings.cluster.name.clone();
    let stored = names.iter().find(|row| row.name == name).and_then(|row| row.active.clone());
    let (role, known) = match &api.role {
        Role::Active(_) => ("active", None),
        Role::Standby(standby) => ("standby", standby.active()),
    };
    let to_name = |ClusterName { name, epoch, active }| {
        let active = active.map(ActiveView::from_process);
        NameView { name, epoch, active }
    };
    let to_process = |process| {
        let ClusterProcess { manager, name, version, state, address, seen_ago } = process;
        let seen_ago = seen_ago.0 / 1000;
        ManagerProcessView { id: manager, name, version, state, address, seen_ago }
    };
    Some(ClusterView {
        name,
        role,
        active: known.or(stored).map(ActiveView::from_process),
        problem,
        names: names.into_iter().map(to_name).collect(),
        managers: processes.into_iter().map(to_process).collect(),
    })
}
