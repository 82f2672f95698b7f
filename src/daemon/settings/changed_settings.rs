//! Settings whose meaning has changed since an earlier version, although the name is the same. A
//! warning is given if a value looks as if it was set for the earlier meaning. No setting has been
//! renamed since 0.1.0.

use super::root::Settings;
use super::sources::Source;
use std::time::Duration;

/// The longest `journal.lag` that was probably set when it still was the lag of confirms (20 ms by
/// default). Projecting so shortly after the commits costs much and gains nothing.
const CONFIRM_LAG_MAX: Duration = Duration::from_millis(200);

impl Settings {
    /// Returns a sentence for each such setting: what it means now, and what to do.
    pub(super) fn changed_meanings(&self) -> Vec<String> {
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

    fn warnings(text: &str) -> Vec<String> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("settings.yaml");
        std::fs::write(&file, text).expect("written");
        let settings = Settings::load(Some(&file), &Overrides::default()).expect("good settings");
        settings.changed_meanings()
    }

    #[test]
    fn a_lag_that_was_set_for_confirms_causes_a_warning() {
        let found = warnings("journal: { lag: 20ms }");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("journal.lag is 20ms (/"), "{found:?}");
        assert!(found[0].contains("journal.confirm_lag"), "{found:?}");
        for meant in ["{}", "journal: { lag: 2s }", "journal: { lag: 20ms, confirm_lag: 20ms }"] {
            assert_eq!(warnings(meant), Vec::<String>::new(), "{meant}");
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
