//! The arguments that select a manager, and the format of what is printed.

use clap::{Args, ValueEnum};
use daemon::settings::DurationSetting;
use ureq::http::Uri;

const WHICH_MANAGER: &str = "Which manager";
const OUTPUT_HEADING: &str = "How it is shown";

/// Which manager is asked.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ReachArguments {
    /// The manager's address [env: WORKFLOW_MANAGER_URL] [default: that of the context, else
    /// http://127.0.0.1:8088]
    #[arg(long, value_name = "URL", value_parser = address, help_heading = WHICH_MANAGER)]
    pub(crate) server: Option<String>,
    /// The manager's token [env: WORKFLOW_MANAGER_TOKEN] [default: that of the context]
    #[arg(long, help_heading = WHICH_MANAGER)]
    pub(crate) token: Option<String>,
    /// The context that has the address and the token [env: WORKFLOW_MANAGER_CONTEXT] [default:
    /// the one chosen with `context use`]
    #[arg(long, value_name = "NAME", help_heading = WHICH_MANAGER)]
    pub(crate) context: Option<String>,
}

/// Arguments of every command that asks a manager.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ClientArguments {
    #[command(flatten)]
    pub(crate) reach: ReachArguments,
    /// Print JSON
    #[arg(long, help_heading = OUTPUT_HEADING)]
    pub(crate) json: bool,
}

/// How times are shown.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct TimeArguments {
    /// How times are shown [default: utc; of whole seconds in a table on a terminal]
    #[arg(long, env = "WORKFLOW_MANAGER_TIME", value_name = "STYLE", help_heading = OUTPUT_HEADING)]
    pub(crate) time: Option<TimeStyle>,
}

/// Arguments of the commands that list what a manager has.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ListArguments {
    #[command(flatten)]
    pub(crate) reach: ReachArguments,
    #[command(flatten)]
    pub(crate) form: FormatArguments,
    #[command(flatten)]
    pub(crate) times: TimeArguments,
}

/// The form of a list.
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
    /// Returns the requested format.
    pub(crate) fn format(self) -> Format {
        if self.json { Format::Json } else { self.output.unwrap_or_default() }
    }
}

/// The form of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people: as wide as the terminal; what does not fit is cut or left out, and it says so
    #[default]
    Table,
    /// All columns, whole
    Wide,
    /// The manager's answer as it came
    Json,
    /// One JSON object a line
    Jsonl,
    /// For spreadsheets: all columns, whole
    Csv,
    /// Ids or names alone, one a line
    Name,
}

/// How times are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TimeStyle {
    /// As the manager tells it: 2026-01-31T12:00:00.123456789Z
    Utc,
    /// In the time zone of this machine, or of TZ: 2026-01-31 13:00:00
    Local,
    /// How long ago: 5m ago
    Relative,
}

/// Parses the address of a manager: the argument `--server`.
pub(crate) fn address(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let is_address = host.is_some_and(|host| !host.is_empty() && !host.starts_with('/'))
        && text.parse::<Uri>().is_ok();
    if is_address {
        Ok(text.to_owned())
    } else {
        Err(format!("{text:?} is no address: expected http://host:port"))
    }
}

/// Parses a duration.
pub(super) fn span(text: &str) -> Result<DurationSetting, String> {
    let to_error = |error| format!("{error}; write for example 500ms, 30s or 5m");
    humantime::parse_duration(text).map(DurationSetting).map_err(to_error)
}
