//! Describes the parameters of operations. A path parameter means the same wherever it occurs.

use crate::load::{BURST_MAX, CONCURRENCY_MAX};
use ParameterFormat::*;
use engine::JobState;
use serde_json::{Value, json};

/// A parameter in a path, a query or a header.
#[derive(Clone, Copy)]
pub(in crate::api) struct Parameter {
    name: &'static str,
    /// `path`, `query` or `header`.
    location: &'static str,
    is_required: bool,
    format: ParameterFormat,
    description: &'static str,
    /// The parameter without which this one is refused.
    needs: Option<&'static str>,
}

/// The format of a parameter's text.
#[derive(Clone, Copy)]
enum ParameterFormat {
    /// Text that is not empty.
    Text,
    /// Text that may be empty.
    AnyText,
    /// Text of 1 to this many characters.
    ShortText(u32),
    /// A boolean. The name alone means true.
    Flag,
    /// A whole number between two bounds, both included.
    Number(u64, u64),
    /// A UUID.
    Id,
    /// A SHA-256 hash in hexadecimal digits.
    Hash,
    /// The state of a job.
    State,
    /// States of jobs, separated by commas.
    States,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// Text that matches a pattern, with an example.
    Pattern(&'static str, &'static str),
    /// A point in time, in the format of RFC 3339 or as how long ago it was.
    Time,
    /// A point in time, in the format of RFC 3339.
    DateTime,
    /// A duration in seconds, such as 30s.
    Duration,
}

/// Makes an optional parameter of the query.
const fn query(
    name: &'static str,
    format: ParameterFormat,
    description: &'static str,
) -> Parameter {
    Parameter { name, location: "query", is_required: false, format, description, needs: None }
}

/// Makes a parameter of the path, which is always required.
const fn path(name: &'static str, format: ParameterFormat, description: &'static str) -> Parameter {
    Parameter { name, location: "path", is_required: true, format, description, needs: None }
}

/// Makes an optional header.
const fn header(
    name: &'static str,
    format: ParameterFormat,
    description: &'static str,
) -> Parameter {
    Parameter { name, location: "header", is_required: false, format, description, needs: None }
}

/// The largest number that an entry could have: the journal stores it as a signed number.
pub(in crate::api) const NUMBER_MAX: u64 = i64::MAX as u64;

/// The largest number of rows of a page.
pub(in crate::api) const LIMIT_MAX: u32 = 10_000;

/// The longest reason for an operation, in characters.
pub(in crate::api) const OPERATION_REASON_CHARS_MAX: u32 = 200;

/// The most messages in one response to a worker.
pub const MESSAGES_MAX: u32 = 100;

/// Matches the id of a message: `<job UUID>:<step name>:<attempt>`.
const MESSAGE_ID_PATTERN: &str =
    "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}:[A-Za-z][A-Za-z0-9_-]*:[0-9]{1,9}$";

/// Matches how long ago something was, such as 7d.
const AGO_PATTERN: &str = "^([0-9]{1,4}(ms|s|m|min|h|d|w)){1,3}$";

/// Makes a pattern of a duration as workflow files write them, such as 1h30m, with something before
/// and behind it. It matches none longer than ten years, and no 0.
macro_rules! duration_pattern {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            "([1-9][0-9]{0,2}d([0-9]{1,2}h)?([0-9]{1,2}m)?([0-9]{1,2}s)?|",
            "[1-9][0-9]{0,3}h([0-9]{1,2}m)?([0-9]{1,2}s)?|",
            "[1-9][0-9]{0,5}m([0-9]{1,2}s)?|",
            "[1-9][0-9]{0,7}s([0-9]{1,3}ms)?|",
            "[1-9][0-9]{0,9}ms)",
            $after
        )
    };
}

/// All path parameters. The patterns of routes refer to them by name.
const PATH_PARAMETERS: [Parameter; 10] = [
    path(
        "message",
        Pattern(MESSAGE_ID_PATTERN, "f557697b-f911-401c-86b7-6d9b62f1f2bb:price:1"),
        "The id of the message: job, step and attempt",
    ),
    path(
        "delivery",
        Number(0, u32::MAX as u64),
        "The number of the delivery of the message, from 1",
    ),
    path("id", Id, "The job's id"),
    path("limit", Text, "The name of the limit"),
    path("workflow", Text, "The name of the workflow, with `VHOST/` before it if it has one"),
    path("schedule", Text, "The name of the schedule"),
    path("step", Text, "The name of the step"),
    path("queue", Text, "The name of the queue"),
    path("hash", Hash, "The hash of the definition"),
    path(
        "name",
        Text,
        "The name of the workflow, with `VHOST/` before it if two virtual hosts have one of that \
         name",
    ),
];

pub(in crate::api) const BUS: Parameter = query("bus", Text, "The bus that has the queue");
pub(in crate::api) const SERVICE_BUS: Parameter = query(
    "bus",
    Text,
    "The bus that called the web service, which replies later; without it the embedded bus",
);
pub(in crate::api) const VHOST: Parameter =
    query("vhost", AnyText, "The virtual host of the workflow");
pub(in crate::api) const VHOST_OF_WORKFLOW: Parameter = VHOST.needing("workflow");
pub(in crate::api) const WORKFLOW: Parameter = query("workflow", Text, "The workflow");
pub(in crate::api) const LIMIT: Parameter =
    query("limit", Number(1, LIMIT_MAX as u64), "The largest number of rows of a page");
pub(in crate::api) const CURSOR: Parameter =
    query("cursor", Pattern("^[0-9]{1,18}$", "4711"), "The `next` of the page before");
pub(in crate::api) const KEY_CURSOR: Parameter =
    query("cursor", AnyText, "The `next` of the page before: the last key that it listed");
pub(in crate::api) const ASKED_CURSOR: Parameter = query(
    "cursor",
    Pattern(
        "^[0-9]{1,19}\\.[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
        "1795256418000000000.f557697b-f911-401c-86b7-6d9b62f1f2bb",
    ),
    "The `next` of the page before",
);
pub(in crate::api) const DOUBLE_CURSOR: Parameter = query(
    "cursor",
    Pattern("^[0-9]{1,18}\\.[0-9]{1,18}\\.[0-9]{1,18}$", "12.1764000000.7"),
    "The `next` of the page before",
);
pub(in crate::api) const CHILD_AFTER: Parameter = query(
    "after",
    Pattern("^[0-9]{1,18}\\.[0-9]{1,18}\\.[0-9]{1,18}$", "0.4.17"),
    "The `next` of the page before",
);
pub(in crate::api) const ENTRY_AFTER: Parameter =
    query("after", Number(0, NUMBER_MAX), "The number of an entry: the page begins after it");
pub(in crate::api) const AT: Parameter =
    query("at", Number(1, NUMBER_MAX), "The number of an entry: shows the state after it");
pub(in crate::api) const ALL: Parameter =
    query("all", Flag, "Also workflows that are not loaded any more but have active jobs");
pub(in crate::api) const STATS: Parameter = query(
    "stats",
    Pattern("^([1-9][0-9]?|1[0-9]{2})m$|^([1-9]|1[0-9]|2[0-4])h$", "1h"),
    "Statistics of their jobs, over this time span",
);
pub(in crate::api) const TREND_SPAN: Parameter =
    query("span", OneOf(&["1h", "24h", "7d"]), "The time span; without it 1h");
pub(in crate::api) const NEW_ID: Parameter =
    query("id", Id, "The id of the new job: it makes the request idempotent");
pub(in crate::api) const START_AFTER: Parameter = query(
    "after",
    Pattern(duration_pattern!("^", "$"), "2h"),
    "How long after its creation the job begins, at most ten years; not together with `at`",
);
pub(in crate::api) const START_AT: Parameter =
    query("at", DateTime, "When the job begins, at most ten years ahead; at once if it has passed");
pub(in crate::api) const TRACE_PARENT: Parameter = header(
    "traceparent",
    // A header that cannot be parsed is ignored, so any text is accepted.
    AnyText,
    "W3C Trace Context, such as 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01: the job \
     continues this trace; ignored if it cannot be parsed",
);
pub(in crate::api) const TRACE_STATE: Parameter = header(
    "tracestate",
    AnyText,
    "W3C Trace Context: passed on with `traceparent`; left out if it cannot be parsed, or has more \
     than 512 characters or 32 members",
);
pub(in crate::api) const INTERVAL: Parameter = query(
    "interval",
    Number(0, u32::MAX as u64),
    "How many minutes back ended jobs are listed; 0: all",
);
pub(in crate::api) const WITH_STATES: Parameter =
    query("states", Flag, "With the state of each job").needing("limit");
pub(in crate::api) const VIEW: Parameter = query(
    "view",
    OneOf(&["light", "whole"]),
    "`light`: without payloads and the ids of child jobs",
);
pub(in crate::api) const ERASE: Parameter =
    query("erase", Flag, "Erase an ended job, with all its child jobs, instead of cancelling it");
pub(in crate::api) const STATE: Parameter = query("state", State, "Only jobs in this state");
pub(in crate::api) const STATES: Parameter =
    query("state", States, "Only jobs in one of these states, separated by commas");
pub(in crate::api) const STEP: Parameter = query("step", Text, "Only child jobs of this step");
pub(in crate::api) const FROM_STEP: Parameter =
    query("step", Text, "The step from which the job is run again").required();
pub(in crate::api) const ONLY_ITEMS: Parameter = query(
    "items",
    OneOf(&["failed"]),
    "Only these items of the step are run again; without it all are",
);
pub(in crate::api) const ID_PREFIX: Parameter =
    query("id", Pattern("^[0-9a-fA-F]{4,32}$", "f557"), "Only jobs whose id has this prefix");
pub(in crate::api) const BY_SCHEDULE: Parameter =
    query("schedule", Text, "Only jobs that this schedule started: `NAME` or `VHOST/NAME`");
pub(in crate::api) const BY_LABEL: Parameter =
    query("label", Text, "Only jobs whose label has this text, in upper or lower case");
pub(in crate::api) const BY_REASON: Parameter = query(
    "reasonId",
    Pattern("^[0-9a-fA-F]{16}$", "1e4fe7db95307bfd"),
    "Only jobs that failed for this reason, or with child jobs that did",
);
pub(in crate::api) const BY_FAILED_ITEMS: Parameter =
    query("failedItems", Flag, "Only completed jobs of which items have failed");
pub(in crate::api) const CREATED_AFTER: Parameter =
    query("after", Time, "Only jobs created at this time or later");
pub(in crate::api) const CREATED_BEFORE: Parameter =
    query("before", Time, "Only jobs created before this time");
pub(in crate::api) const ENDED_AFTER: Parameter =
    query("endedAfter", Time, "Only jobs that ended at this time or later");
pub(in crate::api) const ENDED_BEFORE: Parameter =
    query("endedBefore", Time, "Only jobs that ended before this time");
pub(in crate::api) const ORDER: Parameter =
    query("order", OneOf(&["newest", "oldest"]), "By creation: the newest first, or the oldest");
pub(in crate::api) const WITH_COUNT: Parameter =
    query("count", Flag, "With the number of all matching jobs, up to 10,000");
pub(in crate::api) const PARENT: Parameter =
    query("parent", Id, "The child jobs of this job, by step and item");
pub(in crate::api) const SOURCES: Parameter =
    query("sources", Flag, "As a list that says where each value comes from");
pub(in crate::api) const MANAGER_NAME: Parameter =
    query("name", Text, "Only if the manager has this name (setting `cluster.name`)");
pub(in crate::api) const FORCE: Parameter =
    query("force", Flag, "Also if no other manager of the name stands by");
pub(in crate::api) const DRY_RUN: Parameter =
    query("dryRun", Flag, "Only report what would be done");
pub(in crate::api) const SLOTS_FROM: Parameter =
    query("from", Time, "The first time of the slots").required();
pub(in crate::api) const SLOTS_TO: Parameter =
    query("to", Time, "The slots are before this time, which has passed; now without it");
pub(in crate::api) const REASON: Parameter = query(
    "reason",
    ShortText(OPERATION_REASON_CHARS_MAX),
    "The reason for the operation; the record keeps it",
);
pub(in crate::api) const FOR: Parameter = query(
    "for",
    Pattern(duration_pattern!("^", "$"), "1h"),
    "How long it lasts, at most ten years; without it, until it is ended",
);
pub(in crate::api) const RATE: Parameter = query(
    "rate",
    Pattern(duration_pattern!("^[1-9][0-9]{0,5}/(d|h|m|s|ms|", ")$"), "20/s"),
    "The rate of the limit meanwhile",
);
pub(in crate::api) const BURST: Parameter =
    query("burst", Number(1, BURST_MAX), "How many messages the rate lets through at once")
        .needing("rate");
pub(in crate::api) const CONCURRENCY: Parameter =
    query("concurrency", Number(1, CONCURRENCY_MAX), "The concurrency of the limit meanwhile");
pub(in crate::api) const EVENT_KIND: Parameter =
    query("kind", OneOf(&["job", "step"]), "Only events of jobs, or only events of steps");
pub(in crate::api) const EVENTS_OF_CHILDREN: Parameter = query(
    "children",
    OneOf(&["all", "none", "counts"]),
    "With the events of its child jobs, or without, or with their counts by state",
);
pub(in crate::api) const REPLY_TYPE: Parameter =
    query("type", OneOf(&["result", "error", "progress"]), "What the body is");
pub(in crate::api) const FORMAT: Parameter = query(
    "format",
    OneOf(&["counts", "map", "times", "reasons"]),
    "Counts, a map of two bits for each item, two numbers of 32 bits for each, or the failed \
     items by reason",
);
pub(in crate::api) const JOB: Parameter = query("job", Id, "Only this job");

pub(in crate::api) const WAIT: Parameter =
    query("wait", Pattern("^([0-9]|[1-4][0-9])s$", "30s"), "How long to wait for a message");
pub(in crate::api) const LEASE: Parameter =
    query("lease", Duration, "The duration of the lease; by default that of embedded.lease");
pub(in crate::api) const MAX_MESSAGES: Parameter = query(
    "max",
    Number(1, MESSAGES_MAX as u64),
    "A list of at most this many messages, instead of one message",
);
pub(in crate::api) const WORKER: Parameter = query(
    "worker",
    Pattern("^[A-Za-z0-9 _.-]{1,100}$", "price-1"),
    "The worker's name, which the leases of the queue show",
);
pub(in crate::api) const REQUEUE: Parameter =
    query("requeue", Flag, "The message returns to its queue");
pub(in crate::api) const DELAY: Parameter =
    query("delay", Duration, "How long the message stays in its queue before it is leased again")
        .needing("requeue");

impl Parameter {
    /// Makes the parameter required.
    pub(in crate::api) const fn required(self) -> Parameter {
        Parameter { is_required: true, ..self }
    }

    /// Makes the parameter need another one.
    const fn needing(self, other: &'static str) -> Parameter {
        Parameter { needs: Some(other), ..self }
    }

    /// Returns the rule that the parameter needs another one, in the words of the 400. Returns
    /// `None` if it needs none.
    pub(super) fn rule(&self) -> Option<String> {
        self.needs.map(|other| format!("{} needs {other}", self.name))
    }

    /// Returns the parameters that a path pattern names.
    pub(super) fn from_path(path: &str) -> Vec<Parameter> {
        let is_named = |parameter: &&Parameter| path.contains(&format!("{{{}}}", parameter.name));
        PATH_PARAMETERS.iter().filter(is_named).copied().collect()
    }

    /// Renders the parameter object of OpenAPI.
    pub(super) fn to_openapi(self) -> Value {
        let mut parameter = json!({
            "name": self.name,
            "in": self.location,
            "required": self.is_required,
            "description": self.full_description(),
            "schema": self.format.schema(),
        });
        if matches!(self.format, Flag) {
            // The name alone turns the flag on.
            parameter["allowEmptyValue"] = json!(true);
        }
        if let Some(other) = self.needs {
            // OpenAPI has no keyword for this. Programs that generate requests can read this
            // extension.
            parameter["x-needs"] = json!(other);
        }
        parameter
    }

    /// Returns the description, with the parameter that this one needs.
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
    /// Returns the JSON schema of the format.
    fn schema(self) -> Value {
        let states = || JobState::ALL.map(JobState::as_str);
        match self {
            AnyText => json!({ "type": "string" }),
            Text => json!({ "type": "string", "minLength": 1 }),
            ShortText(max) => {
                json!({ "type": "string", "minLength": 1, "maxLength": max })
            }
            Flag => json!({ "type": "boolean" }),
            Number(min, max) => {
                json!({ "type": "integer", "minimum": min, "maximum": max })
            }
            Id => json!({ "type": "string", "format": "uuid" }),
            Hash => json!({ "type": "string", "pattern": "^[0-9a-f]{64}$" }),
            State => json!({ "type": "string", "enum": states() }),
            States => {
                let state = states().join("|");
                json!({
                    "type": "string",
                    "pattern": format!("^({state})(,({state}))*$"),
                    "examples": ["running,failed"],
                })
            }
            OneOf(values) => json!({ "type": "string", "enum": values }),
            Pattern(pattern, example) => {
                json!({ "type": "string", "pattern": pattern, "examples": [example] })
            }
            Duration => {
                json!({ "type": "string", "pattern": "^([1-9]|[1-4][0-9])s$", "examples": ["30s"] })
            }
            DateTime => json!({
                "type": "string",
                "format": "date-time",
                "examples": ["2026-12-01T08:00:00Z"],
            }),
            Time => json!({
                "anyOf": [
                    { "type": "string", "format": "date-time" },
                    { "type": "string", "pattern": AGO_PATTERN },
                ],
                "examples": ["2026-01-31T12:00:00Z", "7d"],
            }),
        }
    }
}
