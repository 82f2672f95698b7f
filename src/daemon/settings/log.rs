//! Section `log`: the filter and the format of log lines.

use base::values::deserialize_choice;
use engine::text::{find_nearest, quote};
use serde::{Deserialize, Deserializer, Serialize};
use tracing::level_filters::LevelFilter;

/// The levels, by their names in the filter.
const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// Names of levels in other programs, each with the equivalent name here. Errors suggest the
/// latter.
const LEVEL_ALIASES: [(&str, &str); 9] = [
    ("warning", "warn"),
    ("err", "error"),
    ("fatal", "error"),
    ("critical", "error"),
    ("notice", "info"),
    ("information", "info"),
    ("verbose", "debug"),
    ("all", "trace"),
    ("none", "off"),
];

/// The module that stands for the whole program in the filter.
const PROGRAM_MODULE: &str = "workflow_manager";

/// The crates of this program that are modules of their own in the filter. All other modules count
/// as modules of the crate `daemon`, and `clock` also as one of `base`.
const CRATES: [&str; 7] = ["amqp", "base", "bus", "cli", "grpc", "journal", "kafka"];

/// The settings of section `log`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct LogSettings {
    pub filter: String,
    pub format: LogFormat,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    Auto,
    /// One line of text.
    Human,
    /// One JSON object per line.
    Json,
}

/// One part of the filter: the level of a module and its submodules, or of all modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Directive {
    /// The module; `None` for all modules.
    pub module: Option<String>,
    /// The most verbose level that is logged.
    pub level: LevelFilter,
}

impl LogSettings {
    /// Parses the filter into its directives.
    ///
    /// # Errors
    ///
    /// Returns an error if a part is malformed, or if the filter does not cover this program's own
    /// lines, which would silence its errors.
    pub(crate) fn directives(&self) -> Result<Vec<Directive>, String> {
        let parts = self.filter.split(',').map(str::trim).filter(|part| !part.is_empty());
        let directives: Vec<Directive> = parts.map(parse_directive).collect::<Result<_, _>>()?;
        let covers_program = |directive: &Directive| {
            directive.module.as_deref().is_none_or(|module| PROGRAM_MODULE == module)
        };
        if directives.iter().any(covers_program) {
            return Ok(directives);
        }
        Err(format!(
            "log.filter is {}, which sets no level for the manager's own lines, so that its \
             errors would not be logged: begin with a level for all modules, such as {}",
            quote(&self.filter),
            quote(format!("info,{}", self.filter).trim_end_matches(','))
        ))
    }
}

/// Parses one part of the filter: a level, or `module=level`.
fn parse_directive(part: &str) -> Result<Directive, String> {
    let expected = "expected off, error, warn, info, debug or trace, for all modules or for one, \
                    as in info,workflow_manager::bus=debug";
    let level_error = |text: &str, context: &str| {
        let lower = text.to_ascii_lowercase();
        let suggestion = LEVEL_ALIASES
            .iter()
            .find(|(alias, _)| *alias == lower)
            .map(|(_, name)| *name)
            .or_else(|| find_nearest(&lower, LEVELS.iter().map(|(name, _)| *name)));
        let hint = suggestion.map_or_else(String::new, |name| format!("; did you mean {name}?"));
        Err(format!("log.filter: {} is not a level{hint}{context} {expected}", quote(text)))
    };
    match part.split_once('=') {
        None => match parse_level(part) {
            Some(level) => Ok(Directive { module: None, level }),
            None if is_module(part) && part.contains("::") => Err(format!(
                "log.filter: {} has no level, as in {part}=debug; {expected}",
                quote(part)
            )),
            None => level_error(part, ";"),
        },
        Some((module, level_name)) => {
            let (module, level_name) = (module.trim(), level_name.trim());
            if !is_module(module) {
                return Err(format!("log.filter: {} is not a module; {expected}", quote(module)));
            }
            match parse_level(level_name) {
                Some(level) => Ok(Directive { module: Some(module.to_owned()), level }),
                None => level_error(level_name, &format!(" (of {module});")),
            }
        }
    }
}

/// Parses the name of a level, ignoring case.
fn parse_level(text: &str) -> Option<LevelFilter> {
    LEVELS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, level)| *level)
}

/// Returns whether a string is a module path: names of letters, digits and `_`, separated by `::`.
fn is_module(text: &str) -> bool {
    let is_name = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    text.split("::").all(is_name)
}

impl<'de> Deserialize<'de> for LogFormat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let choices =
            [("auto", LogFormat::Auto), ("human", LogFormat::Human), ("json", LogFormat::Json)];
        deserialize_choice(deserializer, &choices, "auto, human or json")
    }
}

/// Returns the prefixes of the log targets that a module of the filter covers. To users, the
/// program is a single tree of modules, such as `workflow_manager::bus`. The targets begin with the
/// names of crates, such as `workflow_manager_bus`.
pub fn targets_of_module(module: &str) -> Vec<String> {
    let Some(path) = module.strip_prefix("workflow_manager::") else {
        return vec![module.to_owned()];
    };
    let (top_module, _) = path.split_once("::").unwrap_or((path, ""));
    let crate_prefix = if CRATES.contains(&top_module) { "" } else { "daemon::" };
    let mut targets = vec![module.to_owned(), format!("workflow_manager_{crate_prefix}{path}")];
    // Some crates were part of another module in earlier versions. The name of that module still
    // covers them.
    targets.extend(match path {
        "bus" => vec!["workflow_manager_amqp".to_owned(), "workflow_manager_kafka".to_owned()],
        "api" => vec!["workflow_manager_grpc".to_owned()],
        "clock" => vec!["workflow_manager_base::clock".to_owned()],
        _ => path
            .strip_prefix("bus::")
            .or_else(|| path.strip_prefix("api::"))
            .filter(|subpath| CRATES.iter().any(|name| subpath.starts_with(name)))
            .map(|subpath| format!("workflow_manager_{subpath}"))
            .into_iter()
            .collect(),
    });
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_covers_the_lines_of_a_module_in_whichever_crate_it_is() {
        for (module, line_target) in [
            ("workflow_manager", "workflow_manager_amqp::connection"),
            ("workflow_manager", "workflow_manager::audit"),
            ("workflow_manager::audit", "workflow_manager::audit"),
            ("workflow_manager::settings", module_path!()),
            ("workflow_manager::actors", "workflow_manager_daemon::actors::router"),
            ("workflow_manager::journal::sqlite", "workflow_manager_journal::sqlite::writer"),
            ("workflow_manager::bus", "workflow_manager_bus::push"),
            ("workflow_manager::bus", "workflow_manager_amqp::connection"),
            ("workflow_manager::bus::amqp", "workflow_manager_amqp::connection"),
            ("workflow_manager::api", "workflow_manager_grpc::stream"),
            ("workflow_manager::clock", "workflow_manager_base::clock"),
            ("workflow_manager::api::grpc::stream", "workflow_manager_grpc::stream"),
            ("workflow_manager_bus", "workflow_manager_bus::push"),
            ("actix_http", "actix_http::h1"),
        ] {
            let targets = targets_of_module(module);
            assert!(
                targets.iter().any(|target| line_target.starts_with(target)),
                "{module}: {targets:?}"
            );
        }
        assert!(
            targets_of_module("workflow_manager::bus::push")
                .iter()
                .all(|target| !target.contains("amqp"))
        );
    }

    fn parse(filter: &str) -> Result<Vec<Directive>, String> {
        LogSettings { filter: filter.to_owned(), format: LogFormat::Auto }.directives()
    }

    #[test]
    fn levels_are_parsed_for_all_modules_and_for_one() {
        let directive =
            |module: Option<&str>, level| Directive { module: module.map(str::to_owned), level };
        assert_eq!(
            parse(" INFO, workflow_manager::bus = debug ,lapin=off,"),
            Ok(vec![
                directive(None, LevelFilter::INFO),
                directive(Some("workflow_manager::bus"), LevelFilter::DEBUG),
                directive(Some("lapin"), LevelFilter::OFF),
            ])
        );
        assert!(parse("off").is_ok() && parse("workflow_manager=debug,lapin=warn").is_ok());
    }

    #[test]
    fn malformed_filters_and_those_that_would_silence_errors_are_rejected() {
        for (filter, expected) in [
            ("warning", "did you mean warn?"),
            ("Warning", "did you mean warn?"),
            ("information", "did you mean info?"),
            ("critical", "did you mean error?"),
            ("eror", "did you mean error?"),
            ("info,lapin=warning", "did you mean warn? (of lapin)"),
            ("3", "\"3\" is not a level"),
            ("verbose", "did you mean debug?"),
            ("workflow_manager::bus", "has no level, as in workflow_manager::bus=debug"),
            ("info lapin=off", "is not a module"),
            ("info,[span]=debug", "is not a module"),
            ("info,lapin=", "\"\" is not a level"),
            ("lapin=debug", "begin with a level for all modules, such as \"info,lapin=debug\""),
            ("workflow_manager::bus=debug", "its errors would not be logged"),
            ("", "begin with a level for all modules"),
            (",", "begin with a level for all modules"),
        ] {
            let error = parse(filter).expect_err(filter);
            assert!(error.contains(expected) && error.contains("log.filter"), "{filter}: {error}");
        }
    }
}
