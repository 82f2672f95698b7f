//! Every vector of `tests/conformance` in the pure engine; over a real broker they run in the slow
//! suite.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use support::world::{Dispatched, World};
use workflow_manager::engine::{Definition, JobId, Message};
use workflow_manager::load::load_text;

#[derive(Deserialize)]
struct Vector {
    name: String,
    definition: Value,
    workflow: String,
    message: Option<Box<RawValue>>,
    #[serde(rename = "messageRaw")]
    message_raw: Option<String>,
    replies: BTreeMap<String, Box<RawValue>>,
    #[serde(default)]
    order: Vec<Held>,
    expect: Expect,
}

#[derive(Deserialize, Clone)]
struct Held {
    step: String,
    #[serde(rename = "if", default)]
    contained: Value,
}

#[derive(Deserialize)]
struct Expect {
    #[serde(default)]
    inputs: BTreeMap<String, Vec<Value>>,
    state: String,
    result: Option<Value>,
    #[serde(rename = "resultRaw")]
    result_raw: Option<String>,
    #[serde(default)]
    statuses: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(rename = "if")]
    contained: Value,
    reply: Box<RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    raw: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Silent {
    none: bool,
}

fn contains(input: &Value, part: &Value) -> bool {
    match (input, part) {
        (_, Value::Null) => true,
        (Value::Object(input), Value::Object(part)) => {
            part.iter().all(|(key, value)| input.get(key) == Some(value))
        }
        _ => input == part,
    }
}

/// The message as a value to compare; `null` where it holds numbers beyond a double, which vectors
/// compare as text.
fn value(message: &Message) -> Value {
    serde_json::from_str(&message.to_text()).unwrap_or_default()
}

/// The body of the reply; `None`: the worker never replies.
fn reply(spec: &RawValue, input: &Message) -> Option<String> {
    if let Ok(choices) = serde_json::from_str::<Vec<Choice>>(spec.get()) {
        let choice = choices
            .iter()
            .find(|choice| contains(&value(input), &choice.contained))
            .expect("a choice for the input");
        return reply(&choice.reply, input);
    }
    if spec.get() == "\"$echo\"" {
        return Some(input.to_text());
    }
    if let Ok(raw) = serde_json::from_str::<Raw>(spec.get()) {
        return Some(raw.raw);
    }
    if serde_json::from_str::<Silent>(spec.get()).is_ok_and(|silent| silent.none) {
        return None;
    }
    Some(spec.get().to_owned())
}

fn run(vector: &Vector, definition: &Arc<Definition>) {
    let mut world = World::new();
    let body = vector
        .message
        .as_ref()
        .map_or_else(|| vector.message_raw.clone().unwrap_or_default(), |raw| raw.get().to_owned());
    let id = world.create(definition, Message::parse(body.as_bytes()).expect("a message"));
    let mut inputs: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let mut order = vector.order.clone();
    let mut held: Vec<Dispatched> = Vec::new();
    while let Some(message) = world.dispatched.pop_front() {
        inputs.entry(message.name.clone()).or_default().push(value(&message.input));
        if order.iter().any(|entry| matches(entry, &message)) {
            held.push(message);
            if held.len() == order.len() {
                for entry in std::mem::take(&mut order) {
                    let at = held
                        .iter()
                        .position(|message| matches(&entry, message))
                        .expect("all are there");
                    give(vector, &mut world, &held.remove(at));
                }
            }
            continue;
        }
        give(vector, &mut world, &message);
    }
    assert!(held.is_empty(), "{}: messages still held back", vector.name);
    check(vector, &world, id, inputs);
}

fn matches(entry: &Held, message: &Dispatched) -> bool {
    entry.step == message.name && contains(&value(&message.input), &entry.contained)
}

fn give(vector: &Vector, world: &mut World, message: &Dispatched) {
    let Some(spec) = vector.replies.get(&message.name) else { return };
    if let Some(body) = reply(spec, &message.input) {
        // A job that failed meanwhile may refuse it.
        let _ = world.reply(message, &body);
    }
}

fn check(vector: &Vector, world: &World, id: JobId, inputs: BTreeMap<String, Vec<Value>>) {
    let name = &vector.name;
    let job = world.job(id);
    assert_eq!(job.state().as_str(), vector.expect.state, "{name}: state");
    for (step, expected) in &vector.expect.inputs {
        let mut seen = inputs.get(step).cloned().unwrap_or_default();
        let mut expected = expected.clone();
        seen.sort_by_key(Value::to_string);
        expected.sort_by_key(Value::to_string);
        assert_eq!(seen, expected, "{name}: inputs of {step}");
    }
    if let Some(result) = &vector.expect.result {
        assert_eq!(&value(&job.result()), result, "{name}: result");
    }
    if let Some(raw) = &vector.expect.result_raw {
        assert_eq!(&job.result().to_text(), raw, "{name}: result, byte for byte");
    }
    for (step, status) in &vector.expect.statuses {
        let index = job
            .graph()
            .find_index(step)
            .unwrap_or_else(|| panic!("{name}: there is no step {step}"));
        assert_eq!(job.status(index), status, "{name}: status of {step}");
    }
}

fn run_file(file: &str, expected: usize, left_out: &[&str]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance").join(file);
    let text = std::fs::read_to_string(&path).expect("the vectors are in the repository");
    let vectors: Vec<Vector> = serde_json::from_str(&text).expect("the vectors parse");
    let mut ran = 0;
    for vector in
        vectors.iter().filter(|vector| !left_out.iter().any(|part| vector.name.contains(part)))
    {
        let loaded = load_text(&vector.name, &vector.definition.to_string())
            .unwrap_or_else(|errors| panic!("{}: {errors}", vector.name));
        let definition = loaded
            .definitions
            .iter()
            .find(|definition| definition.name == vector.workflow)
            .expect("the workflow is defined");
        run(vector, definition);
        ran += 1;
    }
    assert_eq!(ran, expected, "vectors run of {file}");
}

#[test]
fn merge_vectors_hold() {
    run_file("merge.json", 9, &[]);
}

#[test]
fn reply_vectors_hold() {
    run_file("replies.json", 8, &["onFailure"]);
}

#[test]
fn fan_out_vectors_hold() {
    run_file("fanout.json", 13, &[]);
}

#[test]
fn status_vectors_hold() {
    run_file("statuses.json", 10, &[]);
}
