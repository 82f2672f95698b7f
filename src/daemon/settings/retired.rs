//! Ignores settings of earlier versions that have become constants, and warns about them.

use super::sources::{PREFIX, SEPARATOR};
use super::text::SettingsFile;

/// The section and name of each setting that has become a constant.
const RETIRED: [(&str, &str); 3] =
    [("grpc", "header_bytes_max"), ("grpc", "keep_alive_timeout"), ("traces", "retry_after_max")];

/// Removes the retired settings from a file. Returns a warning for each.
pub(super) fn remove_from_file(file: &mut SettingsFile) -> Vec<String> {
    let mut warnings = Vec::new();
    for setting in &RETIRED {
        let (section, key) = setting;
        if file.remove(section, key) {
            warnings.push(warning(setting));
        }
    }
    warnings
}

/// Removes the variables of retired settings, with or without the suffix `_FILE`. Returns a warning
/// for each.
pub(super) fn remove_from_variables(variables: &mut Vec<(String, String)>) -> Vec<String> {
    let mut warnings = Vec::new();
    variables.retain(|(name, _)| {
        let upper_case = name.to_uppercase();
        let variable = upper_case.strip_suffix("_FILE").unwrap_or(&upper_case);
        let retired = RETIRED.iter().find(|(section, key)| {
            variable == format!("{PREFIX}{SEPARATOR}{section}{SEPARATOR}{key}").to_uppercase()
        });
        warnings.extend(retired.map(warning));
        retired.is_none()
    });
    warnings
}

/// Returns the warning about a retired setting.
fn warning((section, key): &(&str, &str)) -> String {
    format!("setting {section}.{key} is ignored: its value is fixed now")
}

#[cfg(test)]
mod tests {
    use super::super::{Overrides, Settings};
    use super::*;

    #[test]
    fn a_retired_setting_is_accepted_with_a_warning() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let text = "grpc: { keep_alive_timeout: 7s }\ntraces: { retry_after_max: x, delay: 2s }\n";
        std::fs::write(file.path(), text).expect("the file is written");
        let settings = Settings::load(Some(file.path()), &Overrides::default())
            .expect("the settings are accepted");
        assert_eq!(settings.traces.delay.0.as_secs(), 2);
        let expected = ["grpc.keep_alive_timeout", "traces.retry_after_max"]
            .map(|name| format!("setting {name} is ignored: its value is fixed now"));
        assert_eq!(settings.warnings(), expected);
        let variable = |name: &str| (name.to_owned(), "1".to_owned());
        let current = variable("WORKFLOW_MANAGER__GRPC__KEEP_ALIVE");
        let retired = "WORKFLOW_MANAGER__GRPC__KEEP_ALIVE_TIMEOUT";
        let mut variables =
            vec![variable(retired), current.clone(), variable(&format!("{retired}_FILE"))];
        assert_eq!(remove_from_variables(&mut variables), vec![expected[0].clone(); 2]);
        assert_eq!(variables, [current]);
    }
}
