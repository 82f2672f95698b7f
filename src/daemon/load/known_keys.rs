//! Finds what is wrong with a key: whether its section has it, and which key was probably meant.

use super::schema::{EXTENSION_PREFIX, KEYS, Section};
use engine::text::{enumerate_quoted, find_nearest, quote};

/// What is wrong with a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KeyError {
    pub(super) message: String,
    /// The known key that was probably meant; `None` if no key is similar.
    pub(super) suggestion: Option<&'static str>,
}

/// Returns what is wrong with `key` in a section, or `None` if it is known there. Searches for a
/// similar key only if `can_suggest`.
pub(super) fn key_error(section: Section, key: &str, can_suggest: bool) -> Option<KeyError> {
    if section == Section::File && key.starts_with(EXTENSION_PREFIX) {
        return None;
    }
    match KEYS.iter().find(|known_key| known_key.section == section && known_key.name == key) {
        Some(_) => None,
        None => {
            let names = KEYS
                .iter()
                .filter(|known_key| known_key.section == section)
                .map(|known_key| known_key.name);
            let suggestion = if can_suggest { find_nearest(key, names) } else { None };
            Some(KeyError { message: unknown_key_message(section, key, suggestion), suggestion })
        }
    }
}

/// Returns the message about an unknown key: with the suggestion, else with the sections that have
/// the key, else with all keys of its section.
fn unknown_key_message(section: Section, key: &str, suggestion: Option<&str>) -> String {
    if let Some(suggestion) = suggestion {
        return format!(
            "unknown key {} in {}; did you mean {}?",
            quote(key),
            section.noun(),
            quote(suggestion)
        );
    }
    let sections: Vec<&str> = KEYS
        .iter()
        .filter(|known_key| known_key.name == key)
        .map(|known_key| known_key.section.noun())
        .collect();
    if !sections.is_empty() {
        return format!(
            "{} is a key of {}, not of {}",
            quote(key),
            sections.join(" or "),
            section.noun()
        );
    }
    let known_names = KEYS
        .iter()
        .filter(|known_key| known_key.section == section)
        .map(|known_key| known_key.name);
    format!(
        "unknown key {} in {}; known are {}",
        quote(key),
        section.noun(),
        enumerate_quoted(known_names, "and")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wrong_key_gets_its_own_error() {
        let cases = [
            (Section::Step, "queue", None),
            (Section::File, "x-anything", None),
            (Section::Step, "timeout", None),
            (Section::Step, "bus", None),
            (
                Section::Step,
                "depend",
                Some(r#"unknown key "depend" in a step; did you mean "depends"?"#),
            ),
            (
                Section::Step,
                "timeOut",
                Some(r#"unknown key "timeOut" in a step; did you mean "timeout"?"#),
            ),
            (
                Section::Task,
                "item_list_key",
                Some(r#"unknown key "item_list_key" in a task; did you mean "itemListKey"?"#),
            ),
            (
                Section::Step,
                "itemListKey",
                Some(r#""itemListKey" is a key of a task, not of a step"#),
            ),
            (
                Section::Workflow,
                "timeout",
                Some(r#""timeout" is a key of a step, not of a workflow"#),
            ),
            (
                Section::Task,
                "bus",
                Some(r#""bus" is a key of a workflow or a step, not of a task"#),
            ),
            (
                Section::Workflow,
                "colour",
                Some(concat!(
                    r#"unknown key "colour" in a workflow; known are "name", "vhosts", "#,
                    r#""queueType", "queueArguments", "steps", "tasks", "deadline", "#,
                    r#""retention", "bus", "limit", "label" and "columns""#,
                )),
            ),
            (
                Section::Retry,
                "x-note",
                Some(
                    "unknown key \"x-note\" in a retry; known are \"attempts\", \"backoff\", \
                     \"factor\" and \"maxBackoff\"",
                ),
            ),
            (
                Section::Retry,
                "max_backoff",
                Some(r#"unknown key "max_backoff" in a retry; did you mean "maxBackoff"?"#),
            ),
            (Section::Step, "attempts", Some(r#""attempts" is a key of a retry, not of a step"#)),
        ];
        for (section, key, expected) in cases {
            assert_eq!(
                key_error(section, key, true).map(|error| error.message).as_deref(),
                expected,
                "{key} in {}",
                section.noun()
            );
        }
    }
}
