//! Warns about settings that had another meaning under the same name in an earlier version, if
//! their values were probably chosen for the earlier meaning.

use super::root::Settings;
use super::sources::Source;
use std::time::Duration;

/// The longest `journal.lag` that was probably meant as the lag of confirms, the earlier meaning
/// (20 ms by default). In the present meaning, a value this short is costly and has no use.
const CONFIRM_LAG_MAX: Duration = Duration::from_millis(200);

impl Settings {
    /// Returns a warning for each such setting, which says what it means now and what to do. At
    /// present, the only such setting is `journal.lag`.
    pub(super) fn changed_setting_warnings(&self) -> Vec<String> {
        let (_, Some(place)) = self.sources.find("journal.lag") else { return Vec::new() };
        let is_confirm_lag_set = self.sources.find("journal.confirm_lag").0 != Source::Default;
        let lag = self.journal.lag;
        if is_confirm_lag_set || lag.0 > CONFIRM_LAG_MAX {
            return Vec::new();
        }
        vec![format!(
            "journal.lag is {lag} ({place}): it says how far lists and the tables of statuses may \
             be behind the commits (1s by default); in earlier versions it said how long a confirm \
             may wait, which is journal.confirm_lag by now. Rename it, or set \
             journal.confirm_lag too if it is meant so"
        )]
    }
}

#[cfg(test)]
mod tests {
    use super::super::Overrides;
    use super::*;
    use std::path::Path;

    fn load_warnings(text: &str) -> Vec<String> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("settings.yaml");
        std::fs::write(&file, text).expect("the file is written");
        let settings =
            Settings::load(Some(&file), &Overrides::default()).expect("the settings are valid");
        settings.changed_setting_warnings()
    }

    #[test]
    fn a_lag_that_was_set_for_confirms_causes_a_warning() {
        let warnings = load_warnings("journal: { lag: 20ms }");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with("journal.lag is 20ms (/"), "{warnings:?}");
        assert!(warnings[0].contains("journal.confirm_lag"), "{warnings:?}");
        for text in ["{}", "journal: { lag: 2s }", "journal: { lag: 20ms, confirm_lag: 20ms }"] {
            assert_eq!(load_warnings(text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn every_setting_of_0_1_0_is_accepted() {
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/journals/settings-0.1.0.yaml");
        let settings = Settings::load(Some(&file), &Overrides::default());
        settings.expect("a setting that is renamed is understood under its former name too");
    }
}
