//! Warns about environment variables that are ignored although their names resemble those of
//! settings or of variables of the client commands.

use super::sources::{AMQP_SERVER, PREFIX, SEPARATOR};
use super::text::SettingsFile;
use engine::text::find_nearest;
use std::ffi::OsString;

/// The variables that the client commands read.
const CLIENT_VARIABLES: [&str; 4] = [
    "WORKFLOW_MANAGER_URL",
    "WORKFLOW_MANAGER_TOKEN",
    "WORKFLOW_MANAGER_CONTEXT",
    "WORKFLOW_MANAGER_TIME",
];

/// Words that users may write in place of the last word of a client variable, normalized, each with
/// the variable that they mean.
const CLIENT_ALIASES: [(&str, &str); 4] = [
    ("SERVER", "WORKFLOW_MANAGER_URL"),
    ("ADDRESS", "WORKFLOW_MANAGER_URL"),
    ("HOST", "WORKFLOW_MANAGER_URL"),
    ("APITOKEN", "WORKFLOW_MANAGER_TOKEN"),
];

/// The normalized suffix of a variable that names a file with the value of a setting.
const FILE_SUFFIX: &str = "FILE";

/// Returns warnings about variables that are ignored although they look like settings, with
/// suggestions.
///
/// # Errors
///
/// Returns an error if a variable differs from that of a setting only in separators, case, or the
/// spelling of the program's name.
pub(super) fn check_variables(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Vec<String>, String> {
    // The normalized name of each setting, with its variable.
    let settings: Vec<(String, String)> = SettingsFile::defaults()
        .setting_names()
        .iter()
        .map(|name| (normalize(name), variable_name(name)))
        .collect();
    let mut warnings = Vec::new();
    for (name, _) in variables {
        let Ok(name) = name.into_string() else { continue };
        if name.starts_with(&format!("{PREFIX}{SEPARATOR}"))
            || name.starts_with(AMQP_SERVER)
            || CLIENT_VARIABLES.contains(&&*name)
        {
            continue;
        }
        if normalize(&name) == normalize(AMQP_SERVER) {
            warnings.push(format!("the variable {name} is not read; did you mean {AMQP_SERVER}?"));
            continue;
        }
        let Some(suffix) = strip_program_name(&name) else { continue };
        let find_variable = |normalized: &str| {
            let setting = settings.iter().find(|(name, _)| name == normalized);
            setting.map(|(_, variable)| variable.clone())
        };
        let file_variable = suffix
            .strip_suffix(FILE_SUFFIX)
            .and_then(find_variable)
            .map(|variable| format!("{variable}_{FILE_SUFFIX}"));
        if let Some(variable) = find_variable(&suffix).or(file_variable) {
            return Err(format!(
                "the variable {name} is not read: the setting is {variable}, with two underscores \
                 before each part"
            ));
        }
        if is_kubernetes_variable(&name)
            || CLIENT_VARIABLES.iter().any(|variable| normalize(variable) == normalize(&name))
        {
            continue;
        }
        let suggestion = find_nearest(&suffix, settings.iter().map(|(name, _)| name.as_str()))
            .and_then(|nearest| settings.iter().find(|(name, _)| name == nearest));
        warnings.push(match suggestion {
            Some((_, variable)) => {
                format!("the variable {name} is not read; did you mean {variable}?")
            }
            None => format!(
                "the variable {name} is not read: settings begin with {PREFIX}{SEPARATOR}, with \
                 two underscores before each part, as in {PREFIX}{SEPARATOR}HTTP{SEPARATOR}LISTEN"
            ),
        });
    }
    warnings.sort_unstable();
    Ok(warnings)
}

/// Returns the warning of the client commands about a variable whose name resembles one that they
/// read; `None` for all other variables, including those that they do read.
pub fn check_client_variable(name: &str) -> Option<String> {
    if CLIENT_VARIABLES.contains(&name) || is_kubernetes_variable(name) {
        return None;
    }
    let suffix = strip_program_name(name)?;
    let client_suffixes: Vec<String> =
        CLIENT_VARIABLES.iter().filter_map(|variable| strip_program_name(variable)).collect();
    let find_variable = |suffix: &str| {
        let index = client_suffixes.iter().position(|client_suffix| client_suffix == suffix)?;
        Some(CLIENT_VARIABLES[index])
    };
    let suggestion = CLIENT_ALIASES
        .iter()
        .find(|(alias, _)| *alias == suffix)
        .map(|(_, variable)| *variable)
        .or_else(|| find_variable(&suffix))
        .or_else(|| {
            find_nearest(&suffix, client_suffixes.iter().map(String::as_str))
                .and_then(find_variable)
        })?;
    Some(format!("the variable {name} is not read; did you mean {suggestion}?"))
}

/// Normalizes a name for comparison: removes the separators, and converts it to upper case.
fn normalize(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_uppercase()
}

/// Returns the normalized name without the program's name, which may be slightly misspelt before a
/// [`SEPARATOR`]. Returns `None` if the name does not begin with the program's name, or has no
/// more.
fn strip_program_name(name: &str) -> Option<String> {
    if let Some(suffix) = normalize(name).strip_prefix(&normalize(PREFIX)) {
        return Some(suffix.to_owned()).filter(|suffix| !suffix.is_empty());
    }
    // Without the separator, a name that is only similar is probably a variable of another program.
    let upper_case = name.to_uppercase();
    let (prefix, suffix) = upper_case.split_once(SEPARATOR)?;
    find_nearest(prefix, [PREFIX]).map(|_| normalize(suffix))
}

/// Returns the name of the environment variable of a setting.
fn variable_name(setting: &str) -> String {
    format!("{PREFIX}{SEPARATOR}{}", setting.to_uppercase().replace('.', SEPARATOR))
}

/// Returns whether this is a variable that Kubernetes, or the legacy links of Docker, set in every
/// container if a service is called `workflow-manager`.
fn is_kubernetes_variable(name: &str) -> bool {
    let Some(suffix) = name.strip_prefix(PREFIX) else { return false };
    suffix.ends_with("_SERVICE_HOST")
        || suffix.contains("_SERVICE_PORT")
        || suffix.ends_with("_PORT")
        || suffix.contains("_PORT_")
        || suffix.ends_with("_NAME")
        || suffix.contains("_ENV_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str) -> Result<Vec<String>, String> {
        check_variables([(name.into(), OsString::new())])
    }

    #[test]
    fn a_variable_with_wrong_underscores_or_case_is_rejected_with_the_right_name() {
        for (name, expected) in [
            ("WORKFLOW_MANAGER_HTTP_LISTEN", "WORKFLOW_MANAGER__HTTP__LISTEN"),
            ("WORKFLOW_MANAGER_HTTP__LISTEN", "WORKFLOW_MANAGER__HTTP__LISTEN"),
            ("WORKFLOWMANAGER__HTTP__LISTEN", "WORKFLOW_MANAGER__HTTP__LISTEN"),
            ("workflow_manager__http__listen", "WORKFLOW_MANAGER__HTTP__LISTEN"),
            ("workflow-manager.http.listen", "WORKFLOW_MANAGER__HTTP__LISTEN"),
            ("WORKFLOW__MANAGER__HTTP__LISTEN", "WORKFLOW_MANAGER__HTTP__LISTEN"),
            ("WORKFLOW_MANGER__HTTP__LISTEN", "WORKFLOW_MANAGER__HTTP__LISTEN"),
            ("WORKFLOW_MANAGER_HTTP_TLS_KEY", "WORKFLOW_MANAGER__HTTP__TLS__KEY"),
            ("WORKFLOW_MANAGER_HTTP_TOKEN_FILE", "WORKFLOW_MANAGER__HTTP__TOKEN_FILE"),
            ("WORKFLOW_MANAGER_JOURNAL_FILE", "WORKFLOW_MANAGER__JOURNAL__FILE"),
            ("WORKFLOW_MANAGER_LOG_FILTER", "WORKFLOW_MANAGER__LOG__FILTER"),
        ] {
            let error = check(name).expect_err(name);
            assert!(error.contains(name) && error.contains(&format!("is {expected},")), "{error}");
        }
    }

    #[test]
    fn variables_that_resemble_settings_cause_warnings() {
        for (name, expected) in [
            ("WORKFLOW_MANAGER_HTTP_LISTN", "did you mean WORKFLOW_MANAGER__HTTP__LISTEN?"),
            ("WORKFLOW_MANAGER_WHATEVER", "two underscores before each part"),
            ("WORKFLOW_MANAGER_BUSES_RABBIT_SERVER", "two underscores before each part"),
            ("amqp_server", "did you mean AMQP_SERVER?"),
            ("AMQP__SERVER", "did you mean AMQP_SERVER?"),
        ] {
            let warnings = check(name).expect(name);
            assert!(warnings.len() == 1 && warnings[0].contains(expected), "{name}: {warnings:?}");
        }
        for name in [
            "PATH",
            "WORKFLOW_JOB",
            "WORKFLOW_MANAGER__HTTP__LISTEN",
            "WORKFLOW_MANAGER__BUSES__RABBIT__SERVER",
            "WORKFLOW_MANAGER_URL",
            "WORKFLOW_MANAGER_TOKEN",
            "WORKFLOW_MANAGER_PORT",
            "WORKFLOW_MANAGER_SERVICE_HOST",
            "WORKFLOW_MANAGER_SERVICE_PORT_HTTP",
            "WORKFLOW_MANAGER_PORT_8088_TCP_ADDR",
            "AMQP_SERVER",
            "AMQP_SERVER_FILE",
            "SOME__HTTP__LISTEN",
        ] {
            assert_eq!(check(name), Ok(Vec::new()), "{name}");
        }
    }

    #[test]
    fn a_client_warns_of_variables_that_resemble_its_own() {
        for (name, suggestion) in [
            ("WORKFLOW_MANAGER_SERVER", Some("WORKFLOW_MANAGER_URL")),
            ("WORKFLOW_MANAGER__TOKEN", Some("WORKFLOW_MANAGER_TOKEN")),
            ("WORKFLOW_MANAGER_TOKN", Some("WORKFLOW_MANAGER_TOKEN")),
            ("workflow_manager_url", Some("WORKFLOW_MANAGER_URL")),
            ("WORKFLOW_MANAGER_CONTEXTS", Some("WORKFLOW_MANAGER_CONTEXT")),
            ("WORKFLOW_MANAGER_URL", None),
            ("WORKFLOW_MANAGER__HTTP__LISTEN", None),
            ("WORKFLOW_MANAGER_SERVICE_HOST", None),
            ("HOST", None),
        ] {
            let warning = check_client_variable(name);
            let expected = suggestion.map(|suggestion| {
                format!("the variable {name} is not read; did you mean {suggestion}?")
            });
            assert_eq!(warning, expected);
        }
    }
}
