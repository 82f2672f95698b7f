//! The parameters of operations. The same name means the same wherever it occurs.

use crate::api::history::NUMBER_MAX;
use engine::JobState;
use serde_json::{Value, json};

/// A parameter in a path, a query or a header.
#[derive(Clone, Copy)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    location: ParameterLocation,
    is_required: bool,
    format: ParameterFormat,
    description: &'static str,
    /// The parameter without which it means nothing, and is refused.
    needs: Option<&'static str>,
}

/// Where a parameter stands.
#[derive(Clone, Copy)]
enum ParameterLocation {
    Path,
    Query,
    Header,
}

/// The format of a parameter's text.
#[derive(Clone, Copy)]
enum ParameterFormat {
    Text,
    /// Text, which may be empty.
    AnyText,
    /// Text of at most this many characters.
    ShortText(u32),
    Flag,
    /// A whole number between two bounds, both included.
    Number(u64, u64),
    Id,
    Hash,
    State,
    /// States, separated by commas.
    States,
    OneOf(&'static [&'static str]),
    /// Text that matches a pattern, with an example.
    Pattern(&'static str, &'static str),
    Time,
    /// A duration, such as 30s.
    Duration,
}

const fn query(
    name: &'static str,
    format: ParameterFormat,
    description: &'static str,
) -> Parameter {
    Parameter {
        name,
        location: ParameterLocation::Query,
        is_required: false,
        format,
        description,
        needs: None,
    }
}

const fn path(name: &'static str, format: ParameterFormat, description: &'static str) -> Parameter {
    Parameter {
        name,
        location: ParameterLocation::Path,
        is_required: true,
        format,
        description,
        needs: None,
    }
}

const fn header(
    name: &'static str,
    format: ParameterFormat,
    description: &'static str,
) -> Parameter {
    Parameter {
        name,
        location: ParameterLocation::Header,
        is_required: false,
        format,
        description,
        needs: None,
    }
}

const LIMIT_MAX: u64 = 10_000;

/// The id of a message: `<job UUID>:<step name>:<attempt>`.
const MESSAGE_ID: &str =
    "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}:[A-Za-z][A-Za-z0-9_-]*:[0-9]{1,9}$";

/// How long ago, such as 7d.
const AGO: &str = "^([0-9]{1,4}(ms|s|m|min|h|d|w)){1,3}$";

const PATH_PARAMETERS: [Parameter; 7] = [
    path(
        "message",
        ParameterFormat::Pattern(MESSAGE_ID, "f557697b-f911-401c-86b7-6d9b62f1f2bb:price:1"),
        "The id of the message: job, step and attempt",
    ),
    path(
        "delivery",
        ParameterFormat::Number(0, u32::MAX as u64),
        "Which delivery of the message it is, from 1; there is no other",
    ),
    path("id", ParameterFormat::Id, "The job's id"),
    path("step", ParameterFormat::Text, "The name of the step"),
    path("queue", ParameterFormat::Text, "The name of the queue"),
    path("hash", ParameterFormat::Hash, "The hash of the definition"),
    path(
        "name",
        ParameterFormat::Text,
        "The name of the workflow, with `VHOST/` before it if two virtual hosts have one of that \
         name",
    ),
];

pub(super) const BUS: Parameter = query("bus", ParameterFormat::Text, "The bus that has the queue");
pub(super) const SERVICE_BUS: Parameter = query(
    "bus",
    ParameterFormat::Text,
    "The bus that called the web service, which replies later; without it the embedded bus",
);
pub(super) const VHOST: Parameter =
    query("vhost", ParameterFormat::AnyText, "The virtual host of the workflow");
pub(super) const VHOST_OF_WORKFLOW: Parameter = VHOST.needing("workflow");
pub(super) const WORKFLOW: Parameter = query("workflow", ParameterFormat::Text, "The workflow");
pub(super) const LIMIT: Parameter =
    query("limit", ParameterFormat::Number(1, LIMIT_MAX), "The most rows of a page");
pub(super) const CURSOR: Parameter = query(
    "cursor",
    ParameterFormat::Pattern("^[0-9]{1,18}$", "4711"),
    "The `next` of the page before",
);
pub(super) const DOUBLE_CURSOR: Parameter = query(
    "cursor",
    ParameterFormat::Pattern("^[0-9]{1,18}\\.[0-9]{1,18}\\.[0-9]{1,18}$", "12.1764000000.7"),
    "The `next` of the page before",
);
pub(super) const CHILD_AFTER: Parameter = query(
    "after",
    ParameterFormat::Pattern("^[0-9]{1,18}\\.[0-9]{1,18}\\.[0-9]{1,18}$", "0.4.17"),
    "The `next` of the page before",
);
pub(super) const ENTRY_AFTER: Parameter = query(
    "after",
    ParameterFormat::Number(0, NUMBER_MAX),
    "The number of an entry: those behind it",
);
pub(super) const AT: Parameter =
    query("at", ParameterFormat::Number(1, NUMBER_MAX), "The number of an entry: as it was then");
pub(super) const ALL: Parameter = query(
    "all",
    ParameterFormat::Flag,
    "Also workflows that are not loaded any more but have jobs under way",
);
pub(super) const STATS: Parameter = query(
    "stats",
    ParameterFormat::Pattern("^([1-9][0-9]?|1[0-9]{2})m$|^([1-9]|1[0-9]|2[0-4])h$", "1h"),
    "How their jobs fared so long",
);
pub(super) const NEW_ID: Parameter = query(
    "id",
    ParameterFormat::Id,
    "The id of the new job: asked twice under one id, there is one job",
);
pub(super) const TRACE_PARENT: Parameter = header(
    "traceparent",
    // A header that cannot be parsed is ignored, so any text is accepted.
    ParameterFormat::AnyText,
    "W3C Trace Context, such as 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01: the job \
     goes on in this trace; ignored if it cannot be read",
);
pub(super) const TRACE_STATE: Parameter = header(
    "tracestate",
    ParameterFormat::AnyText,
    "W3C Trace Context: handed on with `traceparent`; left out if it cannot be read, or has more \
     than 512 characters or 32 members",
);
pub(super) const INTERVAL: Parameter = query(
    "interval",
    ParameterFormat::Number(0, u32::MAX as u64),
    "How many minutes back ended jobs are listed; 0: all",
);
pub(super) const WITH_STATES: Parameter =
    query("states", ParameterFormat::Flag, "With the state of each job").needing("limit");
pub(super) const VIEW: Parameter = query(
    "view",
    ParameterFormat::OneOf(&["light", "whole"]),
    "`light`: without payloads and the ids of child jobs",
);
pub(super) const ERASE: Parameter = query(
    "erase",
    ParameterFormat::Flag,
    "Erase an ended job, with all its child jobs, instead of cancelling it",
);
pub(super) const STATE: Parameter = query("state", ParameterFormat::State, "In this state");
pub(super) const STATES: Parameter =
    query("state", ParameterFormat::States, "In one of these states, separated by commas");
pub(super) const STEP: Parameter = query("step", ParameterFormat::Text, "Of this step");
pub(super) const FROM_STEP: Parameter =
    query("step", ParameterFormat::Text, "The step from which the job is run again").required();
pub(super) const ID_PREFIX: Parameter = query(
    "id",
    ParameterFormat::Pattern("^[0-9a-fA-F]{4,32}$", "f557"),
    "Whose id begins with these digits",
);
pub(super) const CREATED_AFTER: Parameter =
    query("after", ParameterFormat::Time, "Created at this time or later");
pub(super) const CREATED_BEFORE: Parameter =
    query("before", ParameterFormat::Time, "Created before this time");
pub(super) const ENDED_AFTER: Parameter =
    query("endedAfter", ParameterFormat::Time, "Ended at this time or later");
pub(super) const ENDED_BEFORE: Parameter =
    query("endedBefore", ParameterFormat::Time, "Ended before this time");
pub(super) const ORDER: Parameter = query(
    "order",
    ParameterFormat::OneOf(&["newest", "oldest"]),
    "By creation: the newest first, or the oldest",
);
pub(super) const WITH_COUNT: Parameter =
    query("count", ParameterFormat::Flag, "With the number of all that are found, up to 10,000");
pub(super) const PARENT: Parameter =
    query("parent", ParameterFormat::Id, "The child jobs of this job, by step and item");
pub(super) const SOURCES: Parameter =
    query("sources", ParameterFormat::Flag, "As a list that tells where each value comes from");
pub(super) const DRY_RUN: Parameter =
    query("dryRun", ParameterFormat::Flag, "Tell what would be done, and do nothing");
pub(super) const REASON: Parameter = query(
    "reason",
    ParameterFormat::ShortText(200),
    "Why it is asked for; the job's record keeps it",
);
pub(super) const EVENT_KIND: Parameter =
    query("kind", ParameterFormat::OneOf(&["job", "step"]), "Events of jobs alone, or of steps");
pub(super) const EVENTS_OF_CHILDREN: Parameter = query(
    "children",
    ParameterFormat::OneOf(&["all", "none", "counts"]),
    "With the events of its child jobs, or without, or with their counts by state",
);
pub(super) const REPLY_TYPE: Parameter =
    query("type", ParameterFormat::OneOf(&["result", "error", "progress"]), "What the body is");
pub(super) const FORMAT: Parameter = query(
    "format",
    ParameterFormat::OneOf(&["counts", "map", "times", "reasons"]),
    "Counts, a map of two bits for each item, two numbers of 32 bits for each, or the failed \
     items by reason",
);
pub(super) const JOB: Parameter = query("job", ParameterFormat::Id, "This job alone");

pub(super) const WAIT: Parameter = query(
    "wait",
    ParameterFormat::Pattern("^([0-9]|[1-4][0-9])s$", "30s"),
    "How long to wait for a message",
);
pub(super) const LEASE: Parameter = query(
    "lease",
    ParameterFormat::Duration,
    "How long the worker has the message; the setting embedded.lease",
);
pub(super) const MAX_MESSAGES: Parameter =
    query("max", ParameterFormat::Number(1, 100), "A list of so many messages, instead of one");
pub(super) const WORKER: Parameter = query(
    "worker",
    ParameterFormat::Pattern("^[A-Za-z0-9 _.-]{1,100}$", "price-1"),
    "Who asks, for who looks",
);
pub(super) const REQUEUE: Parameter =
    query("requeue", ParameterFormat::Flag, "The message goes back to its queue");
pub(super) const DELAY: Parameter =
    query("delay", ParameterFormat::Duration, "How long it stays there").needing("requeue");

impl Parameter {
    /// Returns the parameter as a required one.
    pub(super) const fn required(self) -> Parameter {
        Parameter { is_required: true, ..self }
    }

    /// The same, where it means nothing without another.
    const fn needing(self, other: &'static str) -> Parameter {
        Parameter { needs: Some(other), ..self }
    }

    /// The rule of a parameter that means nothing without another, as the call refuses it.
    pub(super) fn rule(&self) -> Option<String> {
        self.needs.map(|other| format!("{} needs {other}", self.name))
    }

    /// The parameters that a path names.
    pub(super) fn from_path(path: &str) -> Vec<Parameter> {
        let is_named = |known: &&Parameter| path.contains(&format!("{{{}}}", known.name));
        PATH_PARAMETERS.iter().filter(is_named).copied().collect()
    }

    /// Renders the parameter object of OpenAPI.
    pub(super) fn to_openapi(self) -> Value {
        let mut parameter = json!({
            "name": self.name,
            "in": match self.location {
                ParameterLocation::Path => "path",
                ParameterLocation::Query => "query",
                ParameterLocation::Header => "header",
            },
            "required": self.is_required,
            "description": self.full_description(),
            "schema": self.format.schema(),
        });
        if matches!(self.format, ParameterFormat::Flag) {
            // The name alone turns the flag on.
            parameter["allowEmptyValue"] = json!(true);
        }
        if let Some(other) = self.needs {
            // OpenAPI has no word for it; programs that make calls can read this one.
            parameter["x-needs"] = json!(other);
        }
        parameter
    }

    fn full_description(&self) -> String {
        match self.needs {
            Some(other) => {
                format!("{}; only together with `{other}`: alone it is a 400", self.description)
            }
            None => self.description.to_owned(),
        }
    }
}

impl ParameterFormat {
    fn schema(self) -> Value {
        let states = || JobState::ALL.map(JobState::as_str);
        match self {
            ParameterFormat::AnyText => json!({ "type": "string" }),
            ParameterFormat::Text => json!({ "type": "string", "minLength": 1 }),
            ParameterFormat::ShortText(max) => {
                json!({ "type": "string", "minLength": 1, "maxLength": max })
            }
            ParameterFormat::Flag => json!({ "type": "boolean" }),
            ParameterFormat::Number(min, max) => {
                json!({ "type": "integer", "minimum": min, "maximum": max })
            }
            ParameterFormat::Id => json!({ "type": "string", "format": "uuid" }),
            ParameterFormat::Hash => json!({ "type": "string", "pattern": "^[0-9a-f]{64}$" }),
            ParameterFormat::State => json!({ "type": "string", "enum": states() }),
            ParameterFormat::States => {
                let one = states().join("|");
                json!({
                    "type": "string",
                    "pattern": format!("^({one})(,({one}))*$"),
                    "examples": ["running,failed"],
                })
            }
            ParameterFormat::OneOf(values) => json!({ "type": "string", "enum": values }),
            ParameterFormat::Pattern(pattern, example) => {
                json!({ "type": "string", "pattern": pattern, "examples": [example] })
            }
            ParameterFormat::Duration => {
                json!({ "type": "string", "pattern": "^([1-9]|[1-4][0-9])s$", "examples": ["30s"] })
            }
            ParameterFormat::Time => json!({
                "anyOf": [
                    { "type": "string", "format": "date-time" },
                    { "type": "string", "pattern": AGO },
                ],
                "examples": ["2026-01-31T12:00:00Z", "7d"],
            }),
        }
    }
}
