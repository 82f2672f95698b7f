//! The source of each setting's value.

use super::{LISTS, Overrides, Settings};
use base::values::mask_addresses;
use config::{Map, Value, ValueKind};
use serde::Serialize;
use utoipa::ToSchema;

/// The prefix of environment variables that are settings.
pub(super) const PREFIX: &str = "WORKFLOW_MANAGER";

/// The separator of the parts of such a variable's name.
pub(super) const SEPARATOR: &str = "__";

/// The variable that other programs use under this name too.
pub(super) const AMQP_SERVER: &str = "AMQP_SERVER";

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
    /// Warnings about variables that are ignored.
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

impl Settings {
    /// Returns all settings as JSON, with masked secrets.
    ///
    /// # Errors
    ///
    /// Returns an error if the settings cannot be serialized as JSON.
    pub fn masked(&self) -> serde_json::Result<serde_json::Value> {
        let mut value = serde_json::to_value(self)?;
        mask_addresses(&mut value);
        Ok(value)
    }

    /// Returns each setting with its masked value and the source of that.
    ///
    /// # Errors
    ///
    /// Returns an error if the settings cannot be serialized as JSON.
    pub fn with_sources(&self) -> serde_json::Result<Vec<Sourced<'_>>> {
        let mut values = Vec::new();
        flatten(String::new(), self.masked()?, &mut values);
        let sourced = values.into_iter().map(|(name, value)| {
            let (source, place) = self.sources.find(&name);
            Sourced { name, value, source, place }
        });
        Ok(sourced.collect())
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

fn flatten(name: String, value: serde_json::Value, values: &mut Vec<(String, serde_json::Value)>) {
    let Some(keys) = value.as_object().filter(|keys| !keys.is_empty()) else {
        return values.push((name, value));
    };
    for (key, value) in keys {
        let below = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
        flatten(below, value.clone(), values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::text::SettingsFile;

    #[test]
    fn the_last_source_wins_and_its_place_is_reported() {
        let text = "{http: {token: hidden}, amqp: {server: 'amqp://a:cret@b'}, \
                    journal: {file: a.db}, buses: {more: {kind: amqp, server: 'amqp://c'}}}";
        let file = SettingsFile::parse(text, "s.yaml").expect("YAML");
        let mut settings: Settings = config::Config::builder()
            .add_source(SettingsFile::defaults())
            .add_source(file.clone())
            .build()
            .and_then(config::Config::try_deserialize)
            .expect("settings");
        settings.sources.add_file(file.values(), "s.yaml");
        let variables = [
            AMQP_SERVER,
            "WORKFLOW_MANAGER__AMQP__SERVER",
            "WORKFLOW_MANAGER__HTTP__HOSTS",
            "WORKFLOW_MANAGER_TOKEN",
            "PATH",
        ];
        settings.sources.add_environment(variables.into_iter());
        settings
            .sources
            .add_flags(&Overrides { journal_file: Some("b.db".into()), ..Overrides::default() });
        let sourced = settings.with_sources().expect("JSON");
        let find = |name: &str| {
            let setting = sourced.iter().find(|setting| setting.name == name).expect("is there");
            (setting.source, setting.place)
        };
        assert_eq!(find("http.listen"), (Source::Default, None));
        assert_eq!(find("http.token"), (Source::File, Some("s.yaml")));
        assert_eq!(find("buses.more.server"), (Source::File, Some("s.yaml")));
        assert_eq!(find("buses.more.prefetch"), (Source::Default, None), "what a bus does not set");
        assert_eq!(find("amqp.server"), (Source::Environment, Some(AMQP_SERVER)));
        let hosts = (Source::Environment, Some("WORKFLOW_MANAGER__HTTP__HOSTS"));
        assert_eq!(find("http.hosts"), hosts);
        assert_eq!(find("journal.file"), (Source::Flag, None));
        let rendered = serde_json::to_string(&sourced).expect("JSON");
        assert!(!rendered.contains("cret@") && !rendered.contains("hidden"), "{rendered}");
    }
}
