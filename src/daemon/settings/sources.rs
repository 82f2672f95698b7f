//! Records the source of each setting: the settings file, the environment or a flag.

use super::overrides::Overrides;
use config::{Map, Value, ValueKind};
use serde::Serialize;
use utoipa::ToSchema;

/// The prefix of environment variables that are settings.
pub(super) const PREFIX: &str = "WORKFLOW_MANAGER";

/// The separator between the parts of a variable's name: `WORKFLOW_MANAGER__HTTP__LISTEN`.
pub(super) const SEPARATOR: &str = "__";

/// A second variable for `amqp.server`, which other programs read too.
pub(super) const AMQP_SERVER: &str = "AMQP_SERVER";

/// The variables of settings that are lists, each with the setting. Commas separate the items.
pub(super) const LISTS: [(&str, &str); 2] =
    [("WORKFLOW_MANAGER__WORKFLOWS", "workflows"), ("WORKFLOW_MANAGER__HTTP__HOSTS", "http.hosts")];

/// The source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = SettingSource)]
pub enum Source {
    /// The default; no other source has the setting.
    Default,
    /// The settings file.
    File,
    /// The environment.
    Environment,
    /// The command line.
    Flag,
}

/// The settings that are not defaults, with their sources.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Later entries override earlier ones.
    entries: Vec<SourceEntry>,
    /// Warnings about settings and variables that are ignored.
    pub(super) warnings: Vec<String>,
}

/// Records that a source sets a setting.
#[derive(Clone, Debug)]
struct SourceEntry {
    /// The name of the setting, or of a section that was set as a whole.
    setting: String,
    source: Source,
    /// The file or variable; `None` for a flag.
    place: Option<String>,
}

/// A setting with its masked value and the source of the value.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Setting)]
pub struct Sourced<'a> {
    /// The setting's name, such as `http.listen`.
    pub name: String,
    /// The masked value.
    #[schema(value_type = serde_json::Value)]
    pub value: serde_json::Value,
    /// The source of the value.
    pub source: Source,
    /// The file or the environment variable; missing for defaults and flags.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<&'a str>,
}

impl Sources {
    /// Adds the settings of a file.
    pub(super) fn add_file(&mut self, values: &Map<String, Value>, file: &str) {
        let mut names = Vec::new();
        values.iter().for_each(|(key, value)| collect_names(key.clone(), value, &mut names));
        names.sort_unstable();
        self.entries.extend(names.into_iter().map(|setting| SourceEntry {
            setting,
            source: Source::File,
            place: Some(file.to_owned()),
        }));
    }

    /// Adds the settings of environment variables. The variables of [`LISTS`] and [`AMQP_SERVER`]
    /// override others for the same setting, as they do when the settings are loaded.
    pub(super) fn add_environment<'v>(&mut self, variables: impl Iterator<Item = &'v str>) {
        let prefix = format!("{PREFIX}{SEPARATOR}").to_lowercase();
        let mut ranked = Vec::new();
        for variable in variables {
            let list = LISTS.iter().find(|(list, _)| *list == variable);
            let lower = variable.to_lowercase();
            let (rank, setting) = match (variable, list) {
                (AMQP_SERVER, _) => (1, "amqp.server".to_owned()),
                (_, Some((_, setting))) => (1, (*setting).to_owned()),
                (_, None) => match lower.strip_prefix(&prefix) {
                    Some(name) => (0, name.replace(SEPARATOR, ".")),
                    None => continue,
                },
            };
            ranked.push((rank, setting, variable.to_owned()));
        }
        // Those of the higher rank come last, so that they override the others.
        ranked.sort_unstable();
        self.entries.extend(ranked.into_iter().map(|(_, setting, variable)| SourceEntry {
            setting,
            source: Source::Environment,
            place: Some(variable),
        }));
    }

    /// Adds the flags that were given.
    pub(super) fn add_flags(&mut self, flags: &Overrides) {
        let settings = [
            ("workflows", !flags.workflows.is_empty()),
            ("amqp.server", flags.amqp_server.is_some()),
            ("journal.file", flags.journal_file.is_some()),
            ("http.listen", flags.listen.is_some()),
            ("http.insecure", flags.insecure),
        ];
        let given_flags = settings.into_iter().filter(|(_, is_given)| *is_given);
        self.entries.extend(given_flags.map(|(setting, _)| SourceEntry {
            setting: setting.to_owned(),
            source: Source::Flag,
            place: None,
        }));
    }

    /// Returns the source of a setting, and the file or variable if it has one. If a whole section
    /// was set, its source is that of its settings.
    pub(super) fn find(&self, setting: &str) -> (Source, Option<&str>) {
        let contains_setting = |entry: &&SourceEntry| {
            setting
                .strip_prefix(&*entry.setting)
                .is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('.'))
        };
        self.entries
            .iter()
            .rev()
            .find(contains_setting)
            .map_or((Source::Default, None), |entry| (entry.source, entry.place.as_deref()))
    }
}

/// Adds the dotted names of all values within `value`, whose own name is `name`. A table does not
/// count as a value, only what it contains.
pub(super) fn collect_names(name: String, value: &Value, names: &mut Vec<String>) {
    match &value.kind {
        ValueKind::Table(table) => {
            table
                .iter()
                .for_each(|(key, value)| collect_names(format!("{name}.{key}"), value, names));
        }
        ValueKind::Nil
        | ValueKind::Boolean(_)
        | ValueKind::I64(_)
        | ValueKind::I128(_)
        | ValueKind::U64(_)
        | ValueKind::U128(_)
        | ValueKind::Float(_)
        | ValueKind::String(_)
        | ValueKind::Array(_) => names.push(name),
    }
}
