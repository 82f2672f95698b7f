//! The keys of workflow files (SPEC §2): where each belongs, and which of them this version acts on.

use crate::engine::words::{enumerated, nearest, quoted};

/// Where a key stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    File,
    Workflow,
    Task,
    Step,
    Retry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Support {
    Now,
    /// Specified, but not yet acted on. Refused: an engine that reads a timeout and ignores it would lie.
    Later,
}

const KEYS: &[(Place, &str, Support)] = &[
    (Place::File, "workflows", Support::Now),
    (Place::Workflow, "name", Support::Now),
    (Place::Workflow, "vhosts", Support::Now),
    (Place::Workflow, "steps", Support::Now),
    (Place::Workflow, "tasks", Support::Now),
    (Place::Workflow, "deadline", Support::Now),
    (Place::Workflow, "retention", Support::Now),
    (Place::Workflow, "bus", Support::Later),
    (Place::Task, "name", Support::Now),
    (Place::Task, "itemListKey", Support::Now),
    (Place::Task, "itemKey", Support::Now),
    (Place::Task, "maxConcurrency", Support::Now),
    (Place::Task, "steps", Support::Now),
    (Place::Task, "tolerate", Support::Now),
    (Place::Step, "name", Support::Now),
    (Place::Step, "queue", Support::Now),
    (Place::Step, "task", Support::Now),
    (Place::Step, "depends", Support::Now),
    (Place::Step, "priority", Support::Now),
    (Place::Step, "timeout", Support::Now),
    (Place::Step, "retry", Support::Now),
    (Place::Step, "when", Support::Now),
    (Place::Step, "cancelWhen", Support::Now),
    (Place::Step, "onFailure", Support::Now),
    (Place::Step, "external", Support::Now),
    (Place::Step, "statusKey", Support::Now),
    (Place::Step, "statuses", Support::Now),
    (Place::Step, "skippedStatus", Support::Now),
    (Place::Step, "cancelledStatus", Support::Now),
    (Place::Step, "bus", Support::Later),
    (Place::Retry, "attempts", Support::Now),
    (Place::Retry, "backoff", Support::Now),
    (Place::Retry, "factor", Support::Now),
    (Place::Retry, "maxBackoff", Support::Now),
];

/// A top-level key that starts so is left to the user: for anchors and for other programs.
const EXTENSION_PREFIX: &str = "x-";

/// What is wrong with a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Objection {
    pub(super) message: String,
    /// The key that was meant.
    pub(super) meant: Option<&'static str>,
}

/// What is wrong with `key` at `place`, if anything; `may_guess`: what was meant may be looked for.
pub(super) fn objection(place: Place, key: &str, may_guess: bool) -> Option<Objection> {
    if place == Place::File && key.starts_with(EXTENSION_PREFIX) {
        return None;
    }
    match KEYS.iter().find(|(at, name, _)| *at == place && *name == key) {
        Some((_, _, Support::Now)) => None,
        Some((_, _, Support::Later)) => {
            Some(Objection { message: format!("{} is not supported by this version yet; remove it", quoted(key)), meant: None })
        }
        None => {
            let names = KEYS.iter().filter(|(at, _, _)| *at == place).map(|(_, name, _)| *name);
            let meant = if may_guess { nearest(key, names) } else { None };
            Some(Objection { message: unknown(place, key, meant), meant })
        }
    }
}

fn unknown(place: Place, key: &str, meant: Option<&str>) -> String {
    if let Some(meant) = meant {
        return format!("unknown key {} in {}; did you mean {}?", quoted(key), place.of(), quoted(meant));
    }
    let homes: Vec<&str> = KEYS.iter().filter(|(_, name, _)| *name == key).map(|(at, _, _)| at.of()).collect();
    if !homes.is_empty() {
        return format!("{} is a key of {}, not of {}", quoted(key), homes.join(" or "), place.of());
    }
    let known = KEYS.iter().filter(|(at, _, support)| *at == place && *support == Support::Now).map(|(_, name, _)| *name);
    format!("unknown key {} in {}; known are {}", quoted(key), place.of(), enumerated(known, "and"))
}

impl Place {
    /// The noun with its article.
    pub(super) fn of(self) -> &'static str {
        match self {
            Place::File => "a workflow file",
            Place::Workflow => "a workflow",
            Place::Task => "a task",
            Place::Step => "a step",
            Place::Retry => "a retry",
        }
    }

    /// An example of what is expected there.
    pub(super) fn example(self) -> &'static str {
        match self {
            Place::File => "workflows: [ .. ]",
            Place::Workflow => "{ name: .., steps: [ .. ] }",
            Place::Task => "{ name: .., itemListKey: .., steps: [ .. ] }",
            Place::Step => "{ name: .. }",
            Place::Retry => "{ attempts: 3 }",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_objected_to_in_its_own_words() {
        let cases = [
            (Place::Step, "queue", None),
            (Place::File, "x-anything", None),
            (Place::Step, "timeout", None),
            (Place::Step, "bus", Some(r#""bus" is not supported by this version yet; remove it"#)),
            (Place::Step, "depend", Some(r#"unknown key "depend" in a step; did you mean "depends"?"#)),
            (Place::Step, "timeOut", Some(r#"unknown key "timeOut" in a step; did you mean "timeout"?"#)),
            (Place::Task, "item_list_key", Some(r#"unknown key "item_list_key" in a task; did you mean "itemListKey"?"#)),
            (Place::Step, "itemListKey", Some(r#""itemListKey" is a key of a task, not of a step"#)),
            (Place::Workflow, "timeout", Some(r#""timeout" is a key of a step, not of a workflow"#)),
            (Place::Task, "bus", Some(r#""bus" is a key of a workflow or a step, not of a task"#)),
            (
                Place::Workflow,
                "colour",
                Some(r#"unknown key "colour" in a workflow; known are "name", "vhosts", "steps", "tasks", "deadline" and "retention""#),
            ),
            (Place::Retry, "x-note", Some(r#"unknown key "x-note" in a retry; known are "attempts", "backoff", "factor" and "maxBackoff""#)),
            (Place::Retry, "max_backoff", Some(r#"unknown key "max_backoff" in a retry; did you mean "maxBackoff"?"#)),
            (Place::Step, "attempts", Some(r#""attempts" is a key of a retry, not of a step"#)),
        ];
        for (place, key, expected) in cases {
            assert_eq!(objection(place, key, true).map(|objection| objection.message).as_deref(), expected, "{key} in {}", place.of());
        }
    }
}
