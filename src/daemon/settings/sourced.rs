//! Renders settings for users: with masked secrets, and with the source of each value.

use super::root::Settings;
use super::sources::Sourced;
use base::values::mask_addresses;

impl Settings {
    /// Returns all settings as JSON, with secrets and the passwords in addresses masked.
    pub fn masked(&self) -> serde_json::Value {
        let mut value = serde_json::to_value(self).expect("settings were read from text");
        mask_addresses(&mut value);
        value
    }

    /// Returns each setting with its masked value and the source of the value.
    pub fn with_sources(&self) -> Vec<Sourced<'_>> {
        let mut values = Vec::new();
        flatten(String::new(), self.masked(), &mut values);
        let sourced = values.into_iter().map(|(name, value)| {
            let (source, place) = self.sources.find(&name);
            Sourced { name, value, source, place }
        });
        sourced.collect()
    }
}

/// Adds the values within `value`, whose own name is `name`, with their dotted names. Objects do
/// not count as values, except empty ones.
fn flatten(name: String, value: serde_json::Value, values: &mut Vec<(String, serde_json::Value)>) {
    let Some(keys) = value.as_object().filter(|keys| !keys.is_empty()) else {
        return values.push((name, value));
    };
    for (key, value) in keys {
        let full_name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
        flatten(full_name, value.clone(), values);
    }
}

#[cfg(test)]
mod tests {
    use super::super::overrides::Overrides;
    use super::super::sources::{AMQP_SERVER, Source};
    use super::*;
    use crate::settings::text::SettingsFile;

    #[test]
    fn the_last_source_wins_and_its_place_is_reported() {
        let text = "{http: {token: hidden}, amqp: {server: 'amqp://a:cret@b'}, \
                    journal: {file: a.db}, buses: {more: {kind: amqp, server: 'amqp://c'}}}";
        let file = SettingsFile::parse(text, "s.yaml").expect("the text is YAML");
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
        let sourced = settings.with_sources();
        let find = |name: &str| {
            let setting =
                sourced.iter().find(|setting| setting.name == name).expect("the setting exists");
            (setting.source, setting.place)
        };
        assert_eq!(find("http.listen"), (Source::Default, None));
        assert_eq!(find("http.token"), (Source::File, Some("s.yaml")));
        assert_eq!(find("buses.more.server"), (Source::File, Some("s.yaml")));
        assert_eq!(find("buses.more.prefetch"), (Source::Default, None), "a bus has the defaults");
        assert_eq!(find("amqp.server"), (Source::Environment, Some(AMQP_SERVER)));
        let hosts = (Source::Environment, Some("WORKFLOW_MANAGER__HTTP__HOSTS"));
        assert_eq!(find("http.hosts"), hosts);
        assert_eq!(find("journal.file"), (Source::Flag, None));
        let rendered = serde_json::to_string(&sourced).expect("JSON");
        assert!(!rendered.contains("cret@") && !rendered.contains("hidden"), "{rendered}");
    }
}
