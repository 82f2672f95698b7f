//! The keys of workflow files (SPEC §2): where each belongs, what it takes, and which of them this
//! version acts on.

use super::{
    ATTEMPTS_MAX, FACTOR_MAX, PRIORITY_MAX, STATUSES_MAX, STEPS_MAX, TASKS_MAX, VHOSTS_MAX,
};
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

/// What kind of value a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The name of a workflow, task or step.
    Name,
    /// The names of steps; `__start__` is one.
    Dependencies,
    /// A text without control characters.
    Text,
    /// The same, or an empty one.
    TextOrNothing,
    /// The name of a queue.
    Queue,
    /// Different texts, at most so many.
    Texts(usize),
    /// The same, at least one.
    Words(usize),
    /// A whole number, from and to.
    Whole(u64, u64),
    /// A number with decimals, from 1.
    Factor(u32),
    /// A span of time.
    Span,
    /// A span of time that is not 0.
    SpanAboveNothing,
    /// A number of child jobs or a share of them.
    Tolerance,
    /// A CEL expression.
    Condition,
    /// `true` or `false`.
    Boolean,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A mapping.
    Mapping(Place),
    /// A list of mappings, at least and at most so many.
    Mappings(Place, usize, usize),
    /// Specified, but not yet acted on. Refused: an engine that reads a key and ignores it would
    /// lie.
    Later,
}

/// A key, where it stands and what it takes.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) place: Place,
    pub(super) name: &'static str,
    pub(super) required: bool,
    pub(super) kind: Kind,
    /// What it means, in a sentence; editors show it.
    pub(super) about: &'static str,
}

const fn required(place: Place, name: &'static str, kind: Kind, about: &'static str) -> Key {
    Key { place, name, required: true, kind, about }
}

const fn optional(place: Place, name: &'static str, kind: Kind, about: &'static str) -> Key {
    Key { place, name, required: false, kind, about }
}

const fn later(place: Place, name: &'static str) -> Key {
    Key { place, name, required: false, kind: Kind::Later, about: "" }
}

/// All keys: what is refused, what errors say and the JSON Schema follow from this table.
pub(super) const KEYS: &[Key] = &[
    required(
        Place::File,
        "workflows",
        Kind::Mappings(Place::Workflow, 1, usize::MAX),
        "The workflows.",
    ),
    required(
        Place::Workflow,
        "name",
        Kind::Name,
        "The name, unique over all files; upper and lower case are not told apart.",
    ),
    optional(
        Place::Workflow,
        "vhosts",
        Kind::Texts(VHOSTS_MAX),
        "Runs the workflow once in each of these virtual hosts, as <vhost>/<name>. Default: in the one of the broker's address.",
    ),
    required(Place::Workflow, "steps", Kind::Mappings(Place::Step, 1, STEPS_MAX), "The steps."),
    optional(
        Place::Workflow,
        "tasks",
        Kind::Mappings(Place::Task, 0, TASKS_MAX),
        "The tasks that steps of this workflow name.",
    ),
    optional(
        Place::Workflow,
        "deadline",
        Kind::SpanAboveNothing,
        "The whole job fails when it is not done within this time, such as 2h. Default: no deadline.",
    ),
    optional(
        Place::Workflow,
        "retention",
        Kind::Span,
        "How long an ended job is kept, such as 30d. Default: the setting journal.retention.",
    ),
    later(Place::Workflow, "bus"),
    required(Place::Task, "name", Kind::Name, "The name, unique in the workflow."),
    required(
        Place::Task,
        "itemListKey",
        Kind::Text,
        "The key of the list in the step's input: a child job starts for each item, and the output has the list of their results.",
    ),
    optional(
        Place::Task,
        "itemKey",
        Kind::Text,
        "The key of one item in the message of a child job. Default: the singular of itemListKey.",
    ),
    optional(
        Place::Task,
        "maxConcurrency",
        Kind::Whole(1, u32::MAX as u64),
        "How many child jobs of one step are under way at once. Default: the setting fanout.window.",
    ),
    required(Place::Task, "steps", Kind::Mappings(Place::Step, 1, STEPS_MAX), "The steps."),
    optional(
        Place::Task,
        "tolerate",
        Kind::Tolerance,
        "How many child jobs may fail before the step does: a number, or a share such as 10%, rounded down. Default: 0.",
    ),
    required(Place::Step, "name", Kind::Name, "The name, unique in the workflow or task."),
    optional(
        Place::Step,
        "queue",
        Kind::Queue,
        "The queue that the step's messages go to. Default: the step's name.",
    ),
    optional(
        Place::Step,
        "task",
        Kind::Name,
        "Starts this task of the workflow once for each item of a list, instead of sending a message.",
    ),
    optional(
        Place::Step,
        "depends",
        Kind::Dependencies,
        "The steps that this one waits for. Their outputs are merged into its input; of a key that several have the first counts. \
         Default: none, its input is the job's message.",
    ),
    optional(
        Place::Step,
        "priority",
        Kind::Whole(0, PRIORITY_MAX),
        "The AMQP message priority. It works only on a quorum queue, or on one declared with x-max-priority.",
    ),
    optional(
        Place::Step,
        "timeout",
        Kind::SpanAboveNothing,
        "An attempt without a reply within this time, such as 30s or 5m, has failed. Of a step with a task: not done within it. Default: none.",
    ),
    optional(
        Place::Step,
        "retry",
        Kind::Mapping(Place::Retry),
        "When and how often a failed attempt is followed by another. Default: never.",
    ),
    optional(
        Place::Step,
        "when",
        Kind::Condition,
        "A CEL expression over input, job and steps. False when the step is about to start: the step is skipped and counts as done.",
    ),
    optional(
        Place::Step,
        "cancelWhen",
        Kind::Condition,
        "A CEL expression over input, job and steps. True while the step waits or runs: the step is cancelled and counts as done.",
    ),
    optional(
        Place::Step,
        "onFailure",
        Kind::Choice(&["fail", "continue"]),
        "What a step whose attempts are spent does to the job: the job fails, or the step counts as done without an output. Default: fail.",
    ),
    optional(
        Place::Step,
        "external",
        Kind::Boolean,
        "No message is sent: the step completes by a call of the HTTP API. Default: false.",
    ),
    optional(
        Place::Step,
        "statusKey",
        Kind::Text,
        "The key of the reply whose text is the step's status.",
    ),
    optional(
        Place::Step,
        "statuses",
        Kind::Words(STATUSES_MAX),
        "The statuses allowed; the first is the status while the step runs, another word fails the attempt. Default: PENDING, then any.",
    ),
    optional(
        Place::Step,
        "skippedStatus",
        Kind::TextOrNothing,
        "The status of a skipped step. Default: SKIPPED.",
    ),
    optional(
        Place::Step,
        "cancelledStatus",
        Kind::TextOrNothing,
        "The status of a cancelled step. Default: CANCELLED.",
    ),
    later(Place::Step, "bus"),
    required(
        Place::Retry,
        "attempts",
        Kind::Whole(1, ATTEMPTS_MAX),
        "How often the step is tried in all, the first attempt counted.",
    ),
    optional(
        Place::Retry,
        "backoff",
        Kind::Span,
        "The longest pause before the second attempt; the pause is random up to it. Default: 1s.",
    ),
    optional(
        Place::Retry,
        "factor",
        Kind::Factor(FACTOR_MAX),
        "What the longest pause is multiplied with from one attempt to the next. Default: 2.",
    ),
    optional(
        Place::Retry,
        "maxBackoff",
        Kind::Span,
        "What the longest pause never exceeds. Default: 5m.",
    ),
];

/// A top-level key that starts so is left to the user: for anchors and for other programs.
pub(super) const EXTENSION_PREFIX: &str = "x-";

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
    match KEYS.iter().find(|known| known.place == place && known.name == key) {
        Some(known) if known.kind == Kind::Later => Some(Objection {
            message: format!("{} is not supported by this version yet; remove it", quoted(key)),
            meant: None,
        }),
        Some(_) => None,
        None => {
            let names = KEYS.iter().filter(|known| known.place == place).map(|known| known.name);
            let meant = if may_guess { nearest(key, names) } else { None };
            Some(Objection { message: unknown(place, key, meant), meant })
        }
    }
}

fn unknown(place: Place, key: &str, meant: Option<&str>) -> String {
    if let Some(meant) = meant {
        return format!(
            "unknown key {} in {}; did you mean {}?",
            quoted(key),
            place.of(),
            quoted(meant)
        );
    }
    let homes: Vec<&str> =
        KEYS.iter().filter(|known| known.name == key).map(|known| known.place.of()).collect();
    if !homes.is_empty() {
        return format!(
            "{} is a key of {}, not of {}",
            quoted(key),
            homes.join(" or "),
            place.of()
        );
    }
    let known = KEYS
        .iter()
        .filter(|known| known.place == place && known.kind != Kind::Later)
        .map(|known| known.name);
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
            (
                Place::Step,
                "depend",
                Some(r#"unknown key "depend" in a step; did you mean "depends"?"#),
            ),
            (
                Place::Step,
                "timeOut",
                Some(r#"unknown key "timeOut" in a step; did you mean "timeout"?"#),
            ),
            (
                Place::Task,
                "item_list_key",
                Some(r#"unknown key "item_list_key" in a task; did you mean "itemListKey"?"#),
            ),
            (
                Place::Step,
                "itemListKey",
                Some(r#""itemListKey" is a key of a task, not of a step"#),
            ),
            (
                Place::Workflow,
                "timeout",
                Some(r#""timeout" is a key of a step, not of a workflow"#),
            ),
            (Place::Task, "bus", Some(r#""bus" is a key of a workflow or a step, not of a task"#)),
            (
                Place::Workflow,
                "colour",
                Some(
                    r#"unknown key "colour" in a workflow; known are "name", "vhosts", "steps", "tasks", "deadline" and "retention""#,
                ),
            ),
            (
                Place::Retry,
                "x-note",
                Some(
                    r#"unknown key "x-note" in a retry; known are "attempts", "backoff", "factor" and "maxBackoff""#,
                ),
            ),
            (
                Place::Retry,
                "max_backoff",
                Some(r#"unknown key "max_backoff" in a retry; did you mean "maxBackoff"?"#),
            ),
            (Place::Step, "attempts", Some(r#""attempts" is a key of a retry, not of a step"#)),
        ];
        for (place, key, expected) in cases {
            assert_eq!(
                objection(place, key, true).map(|objection| objection.message).as_deref(),
                expected,
                "{key} in {}",
                place.of()
            );
        }
    }
}
