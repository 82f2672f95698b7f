//! The JSON Schema of workflow files, for editors. It follows from the table of keys. A schema
//! cannot express how the values must fit together (dependencies, tasks, conditions).

use super::limits::{NAME_BYTES_MAX, TEXT_BYTES_MAX};
use super::schema::{EXTENSION_PREFIX, KEYS, KnownKey, Section, ValueKind};
use engine::QUEUE_TYPE;
use engine::expression::TEXT_BYTES_MAX as CONDITION_BYTES_MAX;
use serde_json::{Map, Value, json};

const NAME: &str = "[A-Za-z][A-Za-z0-9_-]*";
const BUS: &str = "[a-z][a-z0-9_]*";
const TEXT: &str = "[^\\u0000-\\u001f\\u007f-\\u009f]*";
const SPAN: &str = "([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?";
const SHARE: &str = "0*(100(\\.0{1,2})?|[0-9]{1,2}(\\.[0-9]{1,2})?)%";

/// Returns the schema of workflow files (draft-07, which editors read).
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
        "step": mapping_schema(Section::Step, "A node of the graph: a message to a queue, a task, \
                                        or an external action."),
        "retry": mapping_schema(Section::Retry, "When and how often a failed attempt is followed \
                                          by another."),
    });
    schema.insert("definitions".to_owned(), definitions);
    Value::Object(schema)
}

fn mapping_schema(section: Section, about: &str) -> Map<String, Value> {
    let keys = || KEYS.iter().filter(|key| key.section == section);
    let properties: Map<String, Value> =
        keys().map(|key| (key.name.to_owned(), property_schema(key))).collect();
    let required: Vec<&str> = keys().filter(|key| key.is_required).map(|key| key.name).collect();
    let schema = json!({
        "type": "object",
        "description": about,
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    if let Value::Object(schema) = schema { schema } else { Map::new() }
}

fn property_schema(key: &KnownKey) -> Value {
    let mut schema = value_schema(key.kind);
    // Draft-07 readers ignore keywords beside a `$ref`.
    if schema.get("$ref").is_some() {
        schema = json!({ "allOf": [schema] });
    }
    schema["description"] = json!(key.description);
    schema
}

#[allow(clippy::too_many_lines, reason = "one match over the kinds")]
fn value_schema(kind: ValueKind) -> Value {
    match kind {
        ValueKind::Name => {
            json!({ "type": "string", "pattern": anchored(NAME), "maxLength": NAME_BYTES_MAX })
        }
        ValueKind::Dependencies => json!({
            "type": ["array", "null"],
            "items": {
                "type": "string",
                "pattern": anchored(&format!("({NAME}|__start__)")),
                "maxLength": NAME_BYTES_MAX,
            },
        }),
        ValueKind::Text => {
            json!({
                "type": "string",
                "pattern": anchored(TEXT),
                "minLength": 1,
                "maxLength": TEXT_BYTES_MAX,
            })
        }
        ValueKind::TextOrEmpty => {
            json!({ "type": "string", "pattern": anchored(TEXT), "maxLength": TEXT_BYTES_MAX })
        }
        ValueKind::Queue => {
            merge(value_schema(ValueKind::Text), json!({ "not": { "pattern": "^amq\\." } }))
        }
        ValueKind::Bus => {
            json!({ "type": "string", "pattern": anchored(BUS), "maxLength": NAME_BYTES_MAX })
        }
        ValueKind::TextList(most) => {
            json!({
                "type": ["array", "null"],
                "items": value_schema(ValueKind::Text),
                "uniqueItems": true,
                "maxItems": most,
            })
        }
        ValueKind::NonEmptyTextList(most) => {
            json!({
                "type": "array",
                "items": value_schema(ValueKind::Text),
                "uniqueItems": true,
                "minItems": 1,
                "maxItems": most,
            })
        }
        ValueKind::Integer(least, most) => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        ValueKind::Factor(most) => json!({ "type": "number", "minimum": 1, "maximum": most }),
        ValueKind::Duration => {
            json!({
                "type": "string",
                "pattern": anchored(SPAN),
                "minLength": 2,
                "examples": ["500ms", "30s", "1h30m", "3d"],
            })
        }
        ValueKind::PositiveDuration => {
            merge(value_schema(ValueKind::Duration), json!({ "not": { "pattern": "^[0a-z]*$" } }))
        }
        ValueKind::Tolerance => json!({
            "anyOf": [
                { "type": "integer", "minimum": 0, "maximum": u32::MAX },
                { "type": "string", "pattern": anchored(SHARE) },
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
        ValueKind::Boolean => json!({ "type": "boolean" }),
        ValueKind::QueueArguments => json!({
            "type": "object",
            "propertyNames": { "pattern": "^x-", "not": { "const": QUEUE_TYPE } },
            "additionalProperties": { "type": ["boolean", "integer", "string"] },
            "examples": [{ "x-max-length": 10_000, "x-overflow": "reject-publish" }],
        }),
        ValueKind::Choice(choices) => json!({ "type": "string", "enum": choices }),
        ValueKind::Mapping(place) => reference_schema(place),
        ValueKind::MappingList(place, 0, most) => {
            json!({ "type": ["array", "null"], "items": reference_schema(place), "maxItems": most })
        }
        ValueKind::MappingList(place, least, most) if most == usize::MAX => {
            json!({ "type": "array", "items": reference_schema(place), "minItems": least })
        }
        ValueKind::MappingList(place, least, most) => {
            json!({
                "type": "array",
                "items": reference_schema(place),
                "minItems": least,
                "maxItems": most,
            })
        }
    }
}

/// Merges two schemas that have no keyword in common.
fn merge(mut one: Value, other: Value) -> Value {
    if let (Value::Object(one), Value::Object(other)) = (&mut one, other) {
        one.extend(other);
    }
    one
}

/// Anchors a pattern, so that it matches whole texts.
fn anchored(pattern: &str) -> String {
    format!("^{pattern}$")
}

fn reference_schema(section: Section) -> Value {
    let name = match section {
        Section::File => return json!({ "$ref": "#" }),
        Section::Workflow => "workflow",
        Section::Task => "task",
        Section::Step => "step",
        Section::Retry => "retry",
    };
    json!({ "$ref": format!("#/definitions/{name}") })
}
