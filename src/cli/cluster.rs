//! `cluster`: lists the managers that share a database.

use super::arguments::ListArguments;
use super::client::Client;
use super::error::ClientError;
use super::list_printer::{ListStyle, Listing};
use super::responses::parse_response;
use super::table::{ColumnRole, Table};
use super::text::Text;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::io::Write;

/// The response about a manager, as far as it is about those that share its journal.
#[derive(Deserialize)]
struct ManagerResponse {
    /// `None` if the journal is a file.
    cluster: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct ClusterResponse {
    /// Why the managers are missing.
    problem: Option<Text>,
    names: Vec<NameResponse>,
    managers: Vec<Box<RawValue>>,
}

/// A manager's name.
#[derive(Deserialize)]
struct NameResponse {
    name: Text,
    epoch: i64,
    /// `None` if nobody is active.
    active: Option<ActiveResponse>,
}

/// The active process of a name.
#[derive(Deserialize)]
struct ActiveResponse {
    manager: Text,
    since: Text,
}

/// A process of the database.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProcessResponse {
    id: Text,
    name: Text,
    version: Text,
    state: Text,
    address: Option<Text>,
    seen_ago: u64,
}

/// Runs `cluster`: lists the processes of all names, and the names that nobody serves.
pub(super) fn list_managers(
    arguments: &ListArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let text = Client::new(&arguments.target)?.get("/api/manager")?;
    let response: ManagerResponse = parse_response(&text)?;
    let Some(body) = response.cluster else {
        let reason = "this manager's journal is a file, which it shares with no other one: with \
                      journal.url several can stand by (docs/how-to/use-postgresql.md)";
        return Err(ClientError::Refused(reason.to_owned()));
    };
    let cluster: ClusterResponse = parse_response(body.get())?;
    if let Some(problem) = cluster.problem {
        return Err(ClientError::Refused(problem.to_string()));
    }
    let mut table = Table::new(&[
        ("MANAGER", ColumnRole::Key),
        ("NAME", ColumnRole::Plain),
        ("STATE", ColumnRole::State),
        ("SEEN", ColumnRole::Plain),
        ("VERSION", ColumnRole::Plain),
        ("ADDRESS", ColumnRole::Plain),
        ("EPOCH", ColumnRole::Extra),
        ("SINCE", ColumnRole::Time),
    ]);
    for process in &cluster.managers {
        let process: ProcessResponse = parse_response(process.get())?;
        // Only the active process has an epoch.
        let active = cluster.names.iter().find_map(|name| {
            let active = name.active.as_ref()?;
            (*active.manager == *process.id).then(|| (name.epoch.to_string(), &*active.since))
        });
        let (epoch, since) = active.unwrap_or_default();
        let seen = format!("{} s ago", process.seen_ago);
        let address = process.address.as_deref().unwrap_or_default();
        let (id, name, state) = (&*process.id, &*process.name, &*process.state);
        table.add_row([id, name, state, &seen, &*process.version, address, &epoch, since]);
    }
    let style = ListStyle::from_arguments(arguments.format, arguments.times);
    let empty_text = "the database knows of no manager";
    let listing = Listing { body: body.get(), entries: cluster.managers, table, empty_text };
    listing.print(style, out)?;
    if style.is_for_people() {
        for NameResponse { name, .. } in cluster.names.iter().filter(|name| name.active.is_none()) {
            writeln!(out, "nobody is active under the name {name}")?;
        }
    }
    Ok(())
}
