//! The source of each setting's value.

use super::overrides::Overrides;
use config::{Map, Value, ValueKind};
use serde::Serialize;
use utoipa::ToSchema;

/// The prefix of environment variables that are settings.
pub(super) const PREFIX: &str = "WORKFLOW_MANAGER";

/// The separator of the parts of such a variable's name.
pub(super) const SEPARATOR: &str = "__";

/// The variable that other programs use under this name too.
pub(super) const AMQP_SERVER: &str = "AMQP_SERVER";

/// The settings that are lists, whose items are separated by commas in the environment.
pub(super) const LISTS: [(&str, &str); 2] =
    [("WORKFLOW_MANAGER__WORKFLOWS", "workflows"), ("WORKFLOW_MANAGER__HTTP__HOSTS", "http.hosts")];

/// The source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = SettingSource)]
pub enum Source {
    /// The default: it was not set.
    Default,
    /// The settings file.
    File,
    /// The environment.
    Environment,
    /// The command line.
    Flag,
}

/// The settings that were set, by name, each with the source and the file or variable. A later one
/// overrides earlier ones.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    set: Vec<(String, Source, String)>,
    /// Warnings about settings and variables that are ignored.
    pub(super) warnings: Vec<String>,
}

/// A setting with its masked value and the source of that.
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
    /// The file, or the environment variable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<&'a str>,
}

impl Sources {
    pub(super) fn add_file(&mut self, values: &Map<String, Value>, file: &str) {
        let mut names = Vec::new();
        values.iter().for_each(|(key, value)| collect_names(key.clone(), value, &mut names));
        names.sort_unstable();
        self.set.extend(names.into_iter().map(|name| (name, Source::File, file.to_owned())));
    }

    /// Adds the settings from these variables. Lists, and [`AMQP_SERVER`], take precedence.
    pub(super) fn add_environment<'v>(&mut self, variables: impl Iterator<Item = &'v str>) {
        let prefix = format!("{PREFIX}{SEPARATOR}").to_lowercase();
        let mut found = Vec::new();
        for variable in variables {
            let list = LISTS.iter().find(|(list, _)| *list == variable);
            let lower = variable.to_lowercase();
            let (rank, name) = match (variable, list) {
                (AMQP_SERVER, _) => (1, "amqp.server".to_owned()),
                (_, Some((_, setting))) => (1, (*setting).to_owned()),
                (_, None) => match lower.strip_prefix(&prefix) {
                    Some(rest) => (0, rest.replace(SEPARATOR, ".")),
                    None => continue,
                },
            };
            found.push((rank, name, variable.to_owned()));
        }
        found.sort_unstable();
        let set = found.into_iter().map(|(_, name, place)| (name, Source::Environment, place));
        self.set.extend(set);
    }

    pub(super) fn add_flags(&mut self, flags: &Overrides) {
        let set = [
            ("workflows", !flags.workflows.is_empty()),
            ("amqp.server", flags.amqp_server.is_some()),
            ("journal.file", flags.journal_file.is_some()),
            ("http.listen", flags.listen.is_some()),
            ("http.insecure", flags.insecure),
        ];
        let names = set.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name.to_owned());
        self.set.extend(names.map(|name| (name, Source::Flag, String::new())));
    }

    pub(super) fn find(&self, setting: &str) -> (Source, Option<&str>) {
        let is_meant = |name: &str| {
            setting.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let found = self.set.iter().rev().find(|(name, ..)| is_meant(name));
        found.map_or((Source::Default, None), |(_, source, place)| {
            (*source, Some(place.as_str()).filter(|place| !place.is_empty()))
        })
    }
}

/// Adds the names of all values at and below `name`.
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
