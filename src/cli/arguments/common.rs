//! Arguments that several commands share: which manager to call, and how to print the output.

use super::super::addresses::Addresses;
use clap::{Args, ValueEnum};
use daemon::settings::DurationSetting;

// The headings of groups of options in the help text.
const MANAGER_HEADING: &str = "Which manager";
const OUTPUT_HEADING: &str = "How it is shown";

/// Arguments that select the manager.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TargetArguments {
    /// The manager's address, or several with commas in between, of which the active one is asked
    /// [env: WORKFLOW_MANAGER_URL] [default: from the context, else http://127.0.0.1:8088]
    #[arg(long, value_name = "URL", value_parser = parse_addresses, help_heading = MANAGER_HEADING)]
    pub(crate) server: Option<String>,
    /// The manager's token [env: WORKFLOW_MANAGER_TOKEN] [default: from the context]
    #[arg(long, help_heading = MANAGER_HEADING)]
    pub(crate) token: Option<String>,
    /// The context that has the address and the token [env: WORKFLOW_MANAGER_CONTEXT] [default:
    /// the one chosen with `context use`]
    #[arg(long, value_name = "NAME", help_heading = MANAGER_HEADING)]
    pub(crate) context: Option<String>,
}

/// Arguments of the commands that call a manager and do not print a list.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ClientArguments {
    #[command(flatten)]
    pub(crate) target: TargetArguments,
    /// Print JSON
    #[arg(long, help_heading = OUTPUT_HEADING)]
    pub(crate) json: bool,
}

/// The argument that selects the format of times.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct TimeArguments {
    /// How times are shown [default: utc, in whole seconds in a table on a terminal]
    #[arg(long, env = "WORKFLOW_MANAGER_TIME", value_name = "STYLE", help_heading = OUTPUT_HEADING)]
    pub(crate) time: Option<TimeStyle>,
}

/// Arguments of the commands that print a list.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ListArguments {
    #[command(flatten)]
    pub(crate) target: TargetArguments,
    #[command(flatten)]
    pub(crate) format: FormatArguments,
    #[command(flatten)]
    pub(crate) times: TimeArguments,
}

/// Arguments that select the format of a list.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct FormatArguments {
    /// Print JSON: -o json
    #[arg(long, help_heading = OUTPUT_HEADING)]
    pub(crate) json: bool,
    /// The form of the list [default: table]
    #[arg(long, short, value_name = "FORM", conflicts_with = "json", help_heading = OUTPUT_HEADING)]
    pub(crate) output: Option<Format>,
}

impl FormatArguments {
    /// Returns the requested format, or a table if none is requested.
    pub(crate) fn format(self) -> Format {
        if self.json { Format::Json } else { self.output.unwrap_or_default() }
    }
}

/// A format of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people: as wide as the terminal, with a hint if columns are left out
    #[default]
    Table,
    /// For people: all columns in full
    Wide,
    /// The manager's answer, unchanged
    Json,
    /// One JSON object per line
    Jsonl,
    /// For spreadsheets: all columns in full
    Csv,
    /// Only ids or names, one per line
    Name,
}

/// A format of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TimeStyle {
    /// As in the manager's answer: 2026-01-31T12:00:00.123456789Z
    Utc,
    /// In the time zone of this machine, or of TZ: 2026-01-31 13:00:00
    Local,
    /// How long ago: 5m ago
    Relative,
}

/// Checks that a text is an address of a manager, or several, as in `--server` or a context.
/// Returns the text.
pub(super) fn parse_addresses(text: &str) -> Result<String, String> {
    Addresses::parse(text).map(|_| text.to_owned())
}

/// Parses a duration such as `500ms`.
pub(super) fn parse_duration(text: &str) -> Result<DurationSetting, String> {
    let to_error = |error| format!("{error}; write for example 500ms, 30s or 5m");
    humantime::parse_duration(text).map(DurationSetting).map_err(to_error)
}
