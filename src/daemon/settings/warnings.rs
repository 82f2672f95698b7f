//! Warns about settings that are allowed but probably a mistake.

use super::files::is_world_readable;
use super::root::Settings;
use super::secrets;
use super::sources::Source;
use std::collections::BTreeSet;
use std::path::Path;

impl Settings {
    /// Returns warnings for users about settings whose meaning has changed, settings and variables
    /// that are ignored, and files with secrets that every user can read.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.changed_setting_warnings();
        warnings.extend(self.sources.warnings.iter().cloned());
        warnings.extend(self.world_readable_secrets());
        if self.shares_journal() && self.http.public_url.is_empty() {
            warnings.push(
                "http.public_url is not set: a manager that stands by cannot name this one to \
                 clients and workers when it is active; set it to the address of this one's API"
                    .to_owned(),
            );
        }
        warnings
    }

    /// Returns warnings about files with secrets that every user of this machine can read.
    fn world_readable_secrets(&self) -> Vec<String> {
        let kafka_keys = self.kafka_sections().flat_map(|(_, section)| {
            let properties = ["ssl.key.location", "ssl.keystore.location"];
            properties.into_iter().filter_map(|name| Some((name, section.properties.0.get(name)?)))
        });
        let mut secret_files: Vec<(String, String)> =
            [("http.tls.key", &self.http.tls.key), ("http.tokens_file", &self.http.tokens_file)]
                .into_iter()
                .chain(kafka_keys)
                .map(|(setting, file)| (setting.to_owned(), file.clone()))
                .collect();
        secret_files.extend(secrets::secret_files());
        // A settings file contains a secret if one of its values is masked. Each settings file gets
        // a single warning, about its first secret.
        let settings_files = self.with_sources().into_iter().filter_map(|setting| {
            let is_secret =
                setting.source == Source::File && setting.value.to_string().contains("***");
            is_secret.then_some((setting.name, setting.place?.to_owned()))
        });
        let mut distinct_files = BTreeSet::new();
        secret_files.extend(settings_files.filter(|(_, file)| distinct_files.insert(file.clone())));
        secret_files.retain(|(_, file)| !file.is_empty() && is_world_readable(Path::new(file)));
        let warnings = secret_files.into_iter().map(|(setting, file)| {
            format!(
                "{setting}: every user of this machine can read {file}, and with it a secret: \
                 chmod 600 {file}, with the manager's user as its owner"
            )
        });
        warnings.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Overrides;
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_shared_journal_without_an_address_of_the_api_causes_a_warning() {
        let warnings = |url: &str, address: &str| {
            let mut settings = Settings::defaults().expect("defaults");
            settings.journal.url.0 = url.to_owned();
            settings.http.public_url = address.to_owned();
            let warnings = settings.warnings();
            warnings.iter().any(|line| line.starts_with("http.public_url is not set"))
        };
        assert!(warnings("postgres://db/workflow", ""));
        assert!(!warnings("postgres://db/workflow", "https://one.example"));
        assert!(!warnings("", ""));
    }

    #[test]
    fn world_readable_files_with_secrets_cause_warnings() {
        let folder = tempfile::tempdir().expect("a folder");
        let world_readable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), world_readable).expect("the mode is set");
        let write_file = |name: &str, text: &str, mode: u32| {
            let file = folder.path().join(name);
            std::fs::write(&file, text).expect("the file is written");
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode))
                .expect("the mode is set");
            file.to_string_lossy().into_owned()
        };
        let hash = format!("sha256:{}", "0".repeat(64));
        let tokens = format!("tokens: {{ a: {{ hash: \"{hash}\", scope: read }} }}");
        for (mode, has_warnings) in [(0o644, true), (0o604, true), (0o640, false), (0o600, false)] {
            let tokens = write_file("tokens.yaml", &tokens, mode);
            let text = format!(
                "amqp: {{ server: 'amqp://me:hidden@host' }}\nhttp: {{ tokens_file: '{tokens}' }}"
            );
            let config = write_file("settings.yaml", &text, mode);
            let settings = Settings::load(Some(config.as_ref()), &Overrides::default());
            let warnings = settings.expect("settings").warnings();
            let has_warning = |text: &str| warnings.iter().any(|line| line.contains(text));
            let expected_count = if has_warnings { 2 } else { 0 };
            assert_eq!(warnings.len(), expected_count, "{mode:o}: {warnings:?}");
            assert!(
                !has_warnings
                    || has_warning("http.tokens_file: every") && has_warning("amqp.server: every")
            );
        }
        // A settings file without secrets may be readable by everybody.
        let config = write_file("open.yaml", "http: { page: false }", 0o644);
        let settings = Settings::load(Some(config.as_ref()), &Overrides::default());
        assert_eq!(settings.expect("settings").warnings(), Vec::<String>::new());
    }
}
