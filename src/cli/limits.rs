//! `limits`: lists the limits of a manager, with a row for each key that is in use.

use super::arguments::ListArguments;
use super::client::Client;
use super::controls::ControlsResponse;
use super::error::ClientError;
use super::list_printer::{ListStyle, Listing};
use super::responses::{parse_list, parse_response};
use super::table::{ColumnRole, Table};
use super::text::Text;
use base::clock;
use base::times::parse_rfc3339;
use engine::Timestamp;
use serde::Deserialize;
use std::io::Write;

/// What the manager knows about a limit.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LimitResponse {
    limit: Text,
    #[serde(default)]
    vhost: Text,
    #[serde(flatten)]
    allowed: AllowedResponse,
    /// What the file says, if an operator has changed it.
    in_file: Option<AllowedResponse>,
    waiting: u64,
    keys: Vec<KeyResponse>,
    #[serde(default)]
    used_by: Vec<Text>,
    #[serde(default, rename = "noLongerInFiles")]
    is_no_longer_in_files: bool,
}

/// What a limit allows.
#[derive(Deserialize)]
struct AllowedResponse {
    rate: Option<Text>,
    burst: Option<u32>,
    concurrency: Option<u32>,
}

/// A key of a limit that is in use.
#[derive(Default, Deserialize)]
struct KeyResponse {
    key: Option<Text>,
    held: u64,
    waiting: u64,
    next: Option<Text>,
}

/// Describes what a limit allows.
fn describe(allowed: &AllowedResponse) -> String {
    let rate = allowed.rate.as_ref().map(|rate| match allowed.burst {
        Some(burst) => format!("{rate}, burst {burst}"),
        None => rate.to_string(),
    });
    let concurrency = allowed.concurrency.map(|max| format!("{max} at once"));
    rate.into_iter().chain(concurrency).collect::<Vec<_>>().join("; ")
}

impl LimitResponse {
    /// Describes what an operator should know about the limit. The text is empty if there is
    /// nothing.
    fn note(&self, controls: &ControlsResponse) -> String {
        let subject = (&*self.vhost, &*self.limit);
        let mut notes = controls.notes(&["limitPause", "limitChange"], subject, None);
        if let Some(file) = &self.in_file {
            notes.push(format!("its file: {}", describe(file)));
        }
        if self.is_no_longer_in_files {
            notes.push("no longer in the files: jobs under way use it".to_owned());
        }
        notes.join("; ")
    }
}

/// Formats the time until the next message, in tenths of a second.
fn format_next(next: Option<&Text>, now: Timestamp) -> String {
    let Some(time) = next.and_then(|next| parse_rfc3339(next.raw())) else {
        return String::new();
    };
    format!("{:.1} s", now.duration_until(time).as_secs_f64())
}

/// Runs `limits`.
pub(super) fn list_limits(
    arguments: &ListArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let client = Client::new(&arguments.target)?;
    let body = client.get("/api/limits")?;
    let controls = ControlsResponse::read(&client)?;
    let now = clock::now();
    let mut table = Table::new(&[
        ("LIMIT", ColumnRole::Key),
        ("VHOST", ColumnRole::Extra),
        ("ALLOWS", ColumnRole::Plain),
        ("KEY", ColumnRole::Key),
        ("HELD", ColumnRole::Plain),
        ("WAITING", ColumnRole::Plain),
        ("NEXT IN", ColumnRole::Plain),
        ("NOTE", ColumnRole::Long),
        ("USED BY", ColumnRole::Long),
    ]);
    let entries = parse_list(&body, "limits")?;
    for entry in &entries {
        let limit: LimitResponse = parse_response(entry.get())?;
        let users: Vec<&str> = limit.used_by.iter().map(|user| &**user).collect();
        let mut add_row = |key: &KeyResponse, note: String| {
            table.add_row([
                limit.limit.to_string(),
                limit.vhost.to_string(),
                describe(&limit.allowed),
                key.key.as_ref().map_or_else(String::new, |key| key.to_string()),
                key.held.to_string(),
                key.waiting.to_string(),
                format_next(key.next.as_ref(), now),
                note,
                users.join(", "),
            ]);
        };
        if limit.keys.is_empty() {
            add_row(&KeyResponse::default(), limit.note(&controls));
        }
        limit.keys.iter().for_each(|key| add_row(key, limit.note(&controls)));
        let shown: u64 = limit.keys.iter().map(|key| key.waiting).sum();
        if shown < limit.waiting {
            let rest = KeyResponse { waiting: limit.waiting - shown, ..KeyResponse::default() };
            add_row(&rest, "keys that are not listed".to_owned());
        }
    }
    let empty_text = "the loaded workflows have no limits";
    let style = ListStyle::from_arguments(arguments.format, arguments.times);
    Listing { body: &body, entries, table, empty_text }.print(style, out)?;
    Ok(())
}
