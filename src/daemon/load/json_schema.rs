//! The JSON Schema of workflow files, for editors. It is derived from the table of keys in
//! `schema`.
//!
//! The schema is less strict than the loader. It cannot express how the values must fit together
//! (dependencies, tasks, conditions). Its `maxLength` counts characters, while the loader counts
//! bytes: the schema accepts non-ASCII text that is up to four times too long.

use super::columns::COLUMN_NAME_BYTES_MAX;
use super::limits::{NAME_BYTES_MAX, STEP_LIMITS_MAX, TEXT_BYTES_MAX};
use super::schema::{EXTENSION_PREFIX, KEYS, KnownKey, Section, ValueKind};
use engine::QUEUE_TYPE;
use engine::columns::COLUMNS_MAX;
use engine::expression::TEXT_BYTES_MAX as CONDITION_BYTES_MAX;
use serde_json::{Map, Value, json};

/// The name of a workflow, task or step.
const NAME_PATTERN: &str = "[A-Za-z][A-Za-z0-9_-]*";

/// The name of a bus.
const BUS_PATTERN: &str = "[a-z][a-z0-9_]*";

/// A text without control characters.
const TEXT_PATTERN: &str = "[^\\u0000-\\u001f\\u007f-\\u009f]*";

/// Whole numbers with units, the larger unit first. It matches the empty text too, which
/// `minLength` excludes.
const DURATION_PATTERN: &str = "([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?";

/// A number of messages in a period: a unit, or a duration.
const RATE_PATTERN: &str = "0*[1-9][0-9]*/(d|h|m|s|ms|[0-9][0-9dhms]*)";

/// A percentage up to 100 % with at most two decimals.
const PERCENTAGE_PATTERN: &str = "0*(100(\\.0{1,2})?|[0-9]{1,2}(\\.[0-9]{1,2})?)%";

/// Returns the schema of workflow files, in draft-07, which editors support.
pub fn json_schema() -> Value {
    let mut schema = mapping_schema(Section::File, "A workflow file of workflow-manager.");
    schema.insert("$schema".to_owned(), json!("http://json-schema.org/draft-07/schema#"));
    schema.insert("title".to_owned(), json!("Workflow file"));
    let prefix = format!("^{EXTENSION_PREFIX}");
    schema.insert(
        "patternProperties".to_owned(),
        json!({ prefix: { "description": "Left to you: anchors, other programs." } }),
    );
    let definitions = json!({
        "workflow": mapping_schema(Section::Workflow, "A graph of steps. A job is one run of it."),
        "task": mapping_schema(
            Section::Task,
            "A child workflow, started once for each item of a list."
        ),
        "step": mapping_schema(
            Section::Step,
            "A node of the graph: a message to a queue, a task, or an external action."
        ),
        "limit": mapping_schema(
            Section::Limit,
            "A limit of the rate or the concurrency with which steps send their messages, or jobs \
             begin."
        ),
        "jobLimit": mapping_schema(
            Section::JobLimit,
            "The limit of which a job holds a place from its admission until its end."
        ),
        "retry": mapping_schema(
            Section::Retry,
            "When and how often a failed attempt is followed by another."
        ),
        "schedule": mapping_schema(
            Section::Schedule,
            "When jobs of a workflow start by themselves: `cron` or `every`."
        ),
    });
    schema.insert("definitions".to_owned(), definitions);
    Value::Object(schema)
}

/// Returns the schema of a mapping: its keys and which are required.
fn mapping_schema(section: Section, description: &str) -> Map<String, Value> {
    let keys = || KEYS.iter().filter(|key| key.section == section);
    let properties: Map<String, Value> =
        keys().map(|key| (key.name.to_owned(), property_schema(key))).collect();
    let required: Vec<&str> = keys().filter(|key| key.is_required).map(|key| key.name).collect();
    let schema = json!({
        "type": "object",
        "description": description,
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    if let Value::Object(schema) = schema { schema } else { Map::new() }
}

/// Returns the schema of a key's value, with its description.
fn property_schema(key: &KnownKey) -> Value {
    let mut schema = value_schema(key.kind);
    // Draft-07 ignores keywords beside a `$ref`, such as the description.
    if schema.get("$ref").is_some() {
        schema = json!({ "allOf": [schema] });
    }
    schema["description"] = json!(key.description);
    schema
}

/// Returns the schema of a kind of value.
#[allow(clippy::too_many_lines, reason = "one match over the kinds")]
fn value_schema(kind: ValueKind) -> Value {
    match kind {
        ValueKind::Name => {
            json!({
                "type": "string",
                "pattern": anchored(NAME_PATTERN),
                "maxLength": NAME_BYTES_MAX,
            })
        }
        ValueKind::Dependencies => json!({
            "type": ["array", "null"],
            "items": {
                "type": "string",
                "pattern": anchored(&format!("({NAME_PATTERN}|__start__)")),
                "maxLength": NAME_BYTES_MAX,
            },
        }),
        ValueKind::Text => {
            json!({
                "type": "string",
                "pattern": anchored(TEXT_PATTERN),
                "minLength": 1,
                "maxLength": TEXT_BYTES_MAX,
            })
        }
        ValueKind::TextOrEmpty => {
            json!({
                "type": "string",
                "pattern": anchored(TEXT_PATTERN),
                "maxLength": TEXT_BYTES_MAX,
            })
        }
        ValueKind::Queue => {
            with_keywords(value_schema(ValueKind::Text), json!({ "not": { "pattern": "^amq\\." } }))
        }
        ValueKind::Bus => {
            json!({
                "type": "string",
                "pattern": anchored(BUS_PATTERN),
                "maxLength": NAME_BYTES_MAX,
            })
        }
        ValueKind::TextList(max) => {
            json!({
                "type": ["array", "null"],
                "items": value_schema(ValueKind::Text),
                "uniqueItems": true,
                "maxItems": max,
            })
        }
        ValueKind::NonEmptyTextList(max) => {
            json!({
                "type": "array",
                "items": value_schema(ValueKind::Text),
                "uniqueItems": true,
                "minItems": 1,
                "maxItems": max,
            })
        }
        ValueKind::Integer { min, max } => {
            json!({ "type": "integer", "minimum": min, "maximum": max })
        }
        ValueKind::Factor(max) => json!({ "type": "number", "minimum": 1, "maximum": max }),
        ValueKind::Duration => {
            json!({
                "type": "string",
                "pattern": anchored(DURATION_PATTERN),
                "minLength": 2,
                "examples": ["500ms", "30s", "1h30m", "3d"],
            })
        }
        // A duration without a digit from 1 to 9 is 0.
        ValueKind::PositiveDuration => with_keywords(
            value_schema(ValueKind::Duration),
            json!({ "not": { "pattern": "^[0a-z]*$" } }),
        ),
        ValueKind::Tolerance => json!({
            "anyOf": [
                { "type": "integer", "minimum": 0, "maximum": u32::MAX },
                { "type": "string", "pattern": anchored(PERCENTAGE_PATTERN) },
            ],
            "examples": [5, "10%"],
        }),
        ValueKind::Condition => {
            json!({
                "type": "string",
                "minLength": 1,
                "maxLength": CONDITION_BYTES_MAX,
                "examples": ["input.count > 0", "steps[\"check\"].status == \"PASSED\""],
            })
        }
        ValueKind::Key => json!({
            "type": "string",
            "minLength": 1,
            "maxLength": CONDITION_BYTES_MAX,
            "examples": ["job.customer", "input.tenant"],
        }),
        ValueKind::Columns => json!({
            "type": "object",
            "propertyNames": {
                "pattern": anchored(NAME_PATTERN),
                "maxLength": COLUMN_NAME_BYTES_MAX,
            },
            "additionalProperties": value_schema(ValueKind::Key),
            "maxProperties": COLUMNS_MAX,
            "examples": [{ "order": "job.order", "total": "steps.invoice.output.cents" }],
        }),
        ValueKind::Rate => json!({
            "type": "string",
            "pattern": anchored(RATE_PATTERN),
            "examples": ["100/s", "20/m", "1/15m"],
        }),
        ValueKind::LimitNames => json!({
            "anyOf": [
                value_schema(ValueKind::Name),
                {
                    "type": "array",
                    "items": value_schema(ValueKind::Name),
                    "uniqueItems": true,
                    "minItems": 1,
                    "maxItems": STEP_LIMITS_MAX,
                },
            ],
            "examples": ["bank", ["bank", "license"]],
        }),
        ValueKind::Message => json!({ "type": "object" }),
        ValueKind::Boolean => json!({ "type": "boolean" }),
        ValueKind::QueueArguments => json!({
            "type": "object",
            "propertyNames": { "pattern": "^x-", "not": { "const": QUEUE_TYPE } },
            "additionalProperties": { "type": ["boolean", "integer", "string"] },
            "examples": [{ "x-max-length": 10_000, "x-overflow": "reject-publish" }],
        }),
        ValueKind::Choice(choices) => json!({ "type": "string", "enum": choices }),
        ValueKind::Mapping(section) => reference_schema(section),
        ValueKind::MappingList { section, min: 0, max } => {
            json!({
                "type": ["array", "null"],
                "items": reference_schema(section),
                "maxItems": max,
            })
        }
        ValueKind::MappingList { section, min, max: usize::MAX } => {
            json!({ "type": "array", "items": reference_schema(section), "minItems": min })
        }
        ValueKind::MappingList { section, min, max } => {
            json!({
                "type": "array",
                "items": reference_schema(section),
                "minItems": min,
                "maxItems": max,
            })
        }
    }
}

/// Adds keywords to a schema, which must not have them already.
fn with_keywords(mut schema: Value, additions: Value) -> Value {
    if let (Value::Object(keywords), Value::Object(additions)) = (&mut schema, additions) {
        keywords.extend(additions);
    }
    schema
}

/// Returns the pattern, anchored so that it must match the whole text.
fn anchored(pattern: &str) -> String {
    format!("^{pattern}$")
}

/// Returns a reference to the definition of a section.
fn reference_schema(section: Section) -> Value {
    let name = match section {
        Section::File => return json!({ "$ref": "#" }),
        Section::Workflow => "workflow",
        Section::Task => "task",
        Section::Step => "step",
        Section::Retry => "retry",
        Section::Limit => "limit",
        Section::JobLimit => "jobLimit",
        Section::Schedule => "schedule",
    };
    json!({ "$ref": format!("#/definitions/{name}") })
}
