//! Environment variables whose names resemble those of settings, and which would be ignored.

use super::sources::{AMQP_SERVER, PREFIX, SEPARATOR};
use super::text::SettingsText;
use crate::engine::words::nearest;
use std::ffi::OsString;

/// The variables that the client commands read.
const OF_CLIENTS: [&str; 4] = [
    "WORKFLOW_MANAGER_URL",
    "WORKFLOW_MANAGER_TOKEN",
    "WORKFLOW_MANAGER_CONTEXT",
    "WORKFLOW_MANAGER_TIME",
];

/// Common wrong names of these variables, with the right ones.
const GUESSES_OF_CLIENTS: [(&str, &str); 4] = [
    ("SERVER", "WORKFLOW_MANAGER_URL"),
    ("ADDRESS", "WORKFLOW_MANAGER_URL"),
    ("HOST", "WORKFLOW_MANAGER_URL"),
    ("APITOKEN", "WORKFLOW_MANAGER_TOKEN"),
];

/// The suffix of the name of a variable whose value is in a file.
const IN_FILE: &str = "FILE";

/// Returns warnings about variables that are ignored although they look like settings, with the
/// names that would be read.
///
/// # Errors
///
/// Returns an error if a variable differs from a setting only in underscores or case.
pub(super) fn strays(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Vec<String>, String> {
    let settings: Vec<(String, String)> =
        SettingsText::defaults().names().iter().map(|name| (bare(name), variable(name))).collect();
    let mut strays = Vec::new();
    for (name, _) in variables {
        let Ok(name) = name.into_string() else { continue };
        if name.starts_with(&format!("{PREFIX}{SEPARATOR}"))
            || name.starts_with(AMQP_SERVER)
            || OF_CLIENTS.contains(&&*name)
        {
            continue;
        }
        if bare(&name) == bare(AMQP_SERVER) {
            strays.push(format!("the variable {name} is not read; did you mean {AMQP_SERVER}?"));
            continue;
        }
        let Some(rest) = below(&name) else { continue };
        let meant = |found: &str| {
            let exact = settings.iter().find(|(bare, _)| bare == found);
            exact.map(|(_, variable)| variable.clone())
        };
        let in_file = rest.strip_suffix(IN_FILE).and_then(meant);
        if let Some(meant) = meant(&rest).or(in_file.map(|meant| format!("{meant}_{IN_FILE}"))) {
            return Err(format!(
                "the variable {name} is not read: the setting is {meant}, with two underscores \
                 before each part"
            ));
        }
        if is_of_kubernetes(&name) || OF_CLIENTS.iter().any(|known| bare(known) == bare(&name)) {
            continue;
        }
        let guess = nearest(&rest, settings.iter().map(|(bare, _)| bare.as_str()))
            .and_then(|near| settings.iter().find(|(bare, _)| bare == near));
        strays.push(match guess {
            Some((_, variable)) => {
                format!("the variable {name} is not read; did you mean {variable}?")
            }
            None => format!(
                "the variable {name} is not read: settings begin with {PREFIX}{SEPARATOR}, with \
                 two underscores before each part, as in {PREFIX}{SEPARATOR}HTTP{SEPARATOR}LISTEN"
            ),
        });
    }
    strays.sort_unstable();
    Ok(strays)
}

/// Returns a warning about a variable, for the client commands, if its name resembles one that they
/// read.
pub fn stray_of_client(name: &str) -> Option<String> {
    if OF_CLIENTS.contains(&name) || is_of_kubernetes(name) {
        return None;
    }
    let rest = below(name)?;
    let bare_names: Vec<String> = OF_CLIENTS.iter().filter_map(|known| below(known)).collect();
    let near = |near: &str| bare_names.iter().position(|known| known == near);
    let meant = GUESSES_OF_CLIENTS
        .iter()
        .find(|(guess, _)| *guess == rest)
        .map(|(_, meant)| *meant)
        .or_else(|| near(&rest).map(|at| OF_CLIENTS[at]))
        .or_else(|| {
            nearest(&rest, bare_names.iter().map(String::as_str))
                .and_then(near)
                .map(|at| OF_CLIENTS[at])
        })?;
    Some(format!("the variable {name} is not read; did you mean {meant}?"))
}

/// Removes the separators from a name, and makes it upper case.
fn bare(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_uppercase()
}

/// Returns the rest of a name that begins with the program's name, even if that is slightly
/// misspelt.
fn below(name: &str) -> Option<String> {
    let (bare_name, own) = (bare(name), bare(PREFIX));
    if let Some(rest) = bare_name.strip_prefix(&own) {
        return Some(rest.to_owned()).filter(|rest| !rest.is_empty());
    }
    // Variables of other programs do not matter here: the separators must be there.
    let upper = name.to_uppercase();
    let (first, rest) = upper.split_once(SEPARATOR)?;
    nearest(first, [PREFIX]).map(|_| bare(rest))
}

/// Returns the name of the variable of a setting.
fn variable(setting: &str) -> String {
    format!("{PREFIX}{SEPARATOR}{}", setting.to_uppercase().replace('.', SEPARATOR))
}

/// Returns whether Kubernetes, or an old Docker, sets the variable in every container, because a
/// service is called `workflow-manager`.
fn is_of_kubernetes(name: &str) -> bool {
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

    fn of(name: &str) -> Result<Vec<String>, String> {
        strays([(name.into(), OsString::new())])
    }

    #[test]
    fn a_setting_with_other_underscores_or_case_is_refused_with_its_name() {
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
            let told = of(name).expect_err(name);
            assert!(told.contains(name) && told.contains(&format!("is {meant},")), "{told}");
        }
    }

    #[test]
    fn what_is_almost_a_setting_is_warned_of() {
        for (name, told) in [
            ("WORKFLOW_MANAGER_HTTP_LISTN", "did you mean WORKFLOW_MANAGER__HTTP__LISTEN?"),
            ("WORKFLOW_MANAGER_WHATEVER", "two underscores before each part"),
            ("WORKFLOW_MANAGER_BUSES_RABBIT_SERVER", "two underscores before each part"),
            ("amqp_server", "did you mean AMQP_SERVER?"),
            ("AMQP__SERVER", "did you mean AMQP_SERVER?"),
        ] {
            let found = of(name).expect(name);
            assert!(found.len() == 1 && found[0].contains(told), "{name}: {found:?}");
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
            assert_eq!(of(fine), Ok(Vec::new()), "{fine}");
        }
    }

    #[test]
    fn a_client_is_told_what_it_reads() {
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
            let told = stray_of_client(name);
            let expected = meant
                .map(|meant| format!("the variable {name} is not read; did you mean {meant}?"));
            assert_eq!(told, expected);
        }
    }
}
