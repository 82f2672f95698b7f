//! Environment variables whose names resemble those of settings, and which would be ignored.

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

/// Common wrong names of these variables, with the right ones.
const CLIENT_ALIASES: [(&str, &str); 4] = [
    ("SERVER", "WORKFLOW_MANAGER_URL"),
    ("ADDRESS", "WORKFLOW_MANAGER_URL"),
    ("HOST", "WORKFLOW_MANAGER_URL"),
    ("APITOKEN", "WORKFLOW_MANAGER_TOKEN"),
];

/// The suffix of the name of a variable whose value is in a file.
const FILE_SUFFIX: &str = "FILE";

/// Returns warnings about variables that are ignored although they look like settings, with the
/// names that would be read.
///
/// # Errors
///
/// Returns an error if a variable differs from a setting only in underscores or case.
pub(super) fn check_variables(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Vec<String>, String> {
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
        let Some(rest) = strip_program_name(&name) else { continue };
        let variable_of = |found: &str| {
            let exact = settings.iter().find(|(bare, _)| bare == found);
            exact.map(|(_, variable)| variable.clone())
        };
        let in_file = rest.strip_suffix(FILE_SUFFIX).and_then(variable_of);
        if let Some(meant) =
            variable_of(&rest).or(in_file.map(|meant| format!("{meant}_{FILE_SUFFIX}")))
        {
            return Err(format!(
                "the variable {name} is not read: the setting is {meant}, with two underscores \
                 before each part"
            ));
        }
        if is_kubernetes_variable(&name)
            || CLIENT_VARIABLES.iter().any(|known| normalize(known) == normalize(&name))
        {
            continue;
        }
        let guess = find_nearest(&rest, settings.iter().map(|(bare, _)| bare.as_str()))
            .and_then(|near| settings.iter().find(|(bare, _)| bare == near));
        warnings.push(match guess {
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

/// Returns a warning about a variable, for the client commands, if its name resembles one that they
/// read.
pub fn check_client_variable(name: &str) -> Option<String> {
    if CLIENT_VARIABLES.contains(&name) || is_kubernetes_variable(name) {
        return None;
    }
    let rest = strip_program_name(name)?;
    let bare_names: Vec<String> =
        CLIENT_VARIABLES.iter().filter_map(|known| strip_program_name(known)).collect();
    let near = |near: &str| bare_names.iter().position(|known| known == near);
    let suggestion = CLIENT_ALIASES
        .iter()
        .find(|(guess, _)| *guess == rest)
        .map(|(_, meant)| *meant)
        .or_else(|| near(&rest).map(|at| CLIENT_VARIABLES[at]))
        .or_else(|| {
            find_nearest(&rest, bare_names.iter().map(String::as_str))
                .and_then(near)
                .map(|at| CLIENT_VARIABLES[at])
        })?;
    Some(format!("the variable {name} is not read; did you mean {suggestion}?"))
}

/// Removes the separators from a name, and makes it upper case.
fn normalize(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_uppercase()
}

/// Returns the rest of a name that begins with the program's name, even if that is slightly
/// misspelt.
fn strip_program_name(name: &str) -> Option<String> {
    let (bare_name, own) = (normalize(name), normalize(PREFIX));
    if let Some(rest) = bare_name.strip_prefix(&own) {
        return Some(rest.to_owned()).filter(|rest| !rest.is_empty());
    }
    // Variables of other programs do not matter here: the separators must be there.
    let upper = name.to_uppercase();
    let (first, rest) = upper.split_once(SEPARATOR)?;
    find_nearest(first, [PREFIX]).map(|_| normalize(rest))
}

/// Returns the name of the variable of a setting.
fn variable_name(setting: &str) -> String {
    format!("{PREFIX}{SEPARATOR}{}", setting.to_uppercase().replace('.', SEPARATOR))
}

/// Returns whether Kubernetes, or an old Docker, sets the variable in every container, because a
/// service is called `workflow-manager`.
fn is_kubernetes_variable(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    rest.ends_with("_SERVICE_HOST")
        || rest.contains("_SERVICE_PORT")
        || rest.ends_with("_PORT")
        || rest.contains("_PORT_")
        || rest.ends_with("_NAME")
        || rest.contains("_ENV_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str) -> Result<Vec<String>, String> {
        check_variables([(name.into(), OsString::new())])
    }

    #[test]
    fn a_variable_with_wrong_underscores_or_case_is_rejected_with_the_right_name() {
        for (name, meant) in [
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
            assert!(error.contains(name) && error.contains(&format!("is {meant},")), "{error}");
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
            let found = check(name).expect(name);
            assert!(found.len() == 1 && found[0].contains(expected), "{name}: {found:?}");
        }
        for fine in [
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
            assert_eq!(check(fine), Ok(Vec::new()), "{fine}");
        }
    }

    #[test]
    fn a_client_warns_of_variables_that_resemble_its_own() {
        for (name, meant) in [
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
            let expected = meant
                .map(|meant| format!("the variable {name} is not read; did you mean {meant}?"));
            assert_eq!(warning, expected);
        }
    }
}
