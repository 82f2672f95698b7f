//! What must come out: the rules of SPEC §3 once more, as plainly as can be, over texts, without the engine. And the
//! workers of the simulation, whose answers follow from what they are sent alone.

use fastrand::Rng;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::fmt;
use std::sync::Arc;
use workflow_manager::engine::{Definition, Dependency, FanOutKeys, Graph, Step, StepIndex};

/// A JSON object: keys in their order, with the texts of their values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pairs(pub(crate) Vec<(String, String)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pairs, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Pairs;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Pairs(Vec::new());
                while let Some((key, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    pairs.set(&key, value.get());
                }
                Ok(pairs)
            }
        }
        deserializer.deserialize_map(Object)
    }
}

impl Pairs {
    pub(crate) fn parse(text: &[u8]) -> Pairs {
        serde_json::from_slice(text).expect("the simulation's messages are objects")
    }

    pub(crate) fn text(&self) -> String {
        let pairs: Vec<String> = self.0.iter().map(|(key, value)| format!("{}:{value}", serde_json::json!(key))).collect();
        format!("{{{}}}", pairs.join(","))
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    fn set(&mut self, key: &str, value: &str) {
        match self.0.iter_mut().find(|(name, _)| name == key) {
            Some((_, place)) => value.clone_into(place),
            None => self.0.push((key.to_owned(), value.to_owned())),
        }
    }
}

/// What a worker does with a step message; its queue is called after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Echo,
    Add,
    Change,
    Only,
    Nothing,
    Feed,
    Error,
    NoObject,
    DeadLetter,
}

const WORKS: [(Work, &str); 9] = [
    (Work::Echo, "echo"),
    (Work::Add, "add"),
    (Work::Change, "change"),
    (Work::Only, "only"),
    (Work::Nothing, "nothing"),
    (Work::Feed, "feed"),
    (Work::Error, "error"),
    (Work::NoObject, "no-object"),
    (Work::DeadLetter, "dead-letter"),
];

/// A worker's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    Result(String),
    Error(String),
    DeadLettered,
}

/// What the worker of `queue` answers to a step message.
pub(crate) fn work(queue: &str, step: &str, input: &[u8]) -> Answered {
    let (work, _) = WORKS.iter().find(|(_, name)| *name == queue).expect("a queue of the simulation");
    let mut pairs = Pairs::parse(input);
    match work {
        Work::Echo => {}
        Work::Add => pairs.set(&format!("by_{step}"), "1.50E+3"),
        Work::Change => {
            pairs.set("shared", &format!("{{ \"from\" : \"{step}\", \"n\":12345678901234567890.10 }}"));
            if let Some(item) = pairs.get("item").map(str::to_owned) {
                pairs.set("item", &format!("[{item}, \"{step}\"]"));
            }
        }
        Work::Only => pairs = Pairs(vec![("shared".to_owned(), format!("\"{step}\"")), (format!("only_{step}"), "[1,  2.0]".to_owned())]),
        Work::Nothing => {
            let bodies = ["", "null", "{}"];
            return Answered::Result(bodies[step.len() % bodies.len()].to_owned());
        }
        Work::Feed => {
            let id = uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, input);
            let item = if pairs.get("own").is_some() { format!("{{\"id\":\"{id}\"}}") } else { "[ ]".to_owned() };
            pairs.set("items", &format!("[\"{step}\", {item}, 7.0]"));
        }
        Work::Error => return Answered::Error(format!("{{\"error\":\"{step} cannot\"}}")),
        Work::NoObject => return Answered::Result("[1]".to_owned()),
        Work::DeadLetter => return Answered::DeadLettered,
    }
    Answered::Result(pairs.text())
}

/// How a job must end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// With this result, byte for byte.
    Completed(String),
    /// For a failure of one of these steps.
    Failed(Vec<String>),
}

/// A workflow of a random shape: up to five steps, some of which fan out, into child jobs that may fan out again.
pub(crate) fn definition(rng: &mut Rng, name: &str) -> Arc<Definition> {
    let count = rng.usize(1..=5);
    let top = Graph::new(name.to_owned(), None, (0..count).map(|at| step(rng, "s", at, 0.35, 1)).collect());
    let items = FanOutKeys::new("items", "item");
    let count = rng.usize(1..=2);
    let middle = Graph::new("t".to_owned(), Some(items), (0..count).map(|at| step(rng, "t", at, 0.25, 2)).collect());
    let subs = FanOutKeys::new("subs", "sub");
    let bottom = Graph::new("u".to_owned(), Some(subs), vec![step(rng, "u", 0, 0.0, 0)]);
    Arc::new(Definition::new(name, vec![top, middle, bottom]))
}

/// A random step; with the probability `share` it fans out over `task`.
fn step(rng: &mut Rng, prefix: &str, at: usize, share: f64, task: u16) -> Step {
    let mut depends = Vec::new();
    for _ in 0..rng.usize(0..=at.min(3)) {
        let on = Dependency::Step(StepIndex(u16::try_from(rng.usize(0..at)).expect("small")));
        if !depends.contains(&on) {
            depends.push(on);
        }
    }
    let task = (rng.f64() < share).then_some(task);
    let name = format!("{prefix}{at}{}", "x".repeat(at % 3));
    // Failures are rare: they end all that hangs on them.
    let good = if rng.f64() < 0.96 { 6 } else { WORKS.len() };
    let queue = if task.is_some() { name.as_str() } else { WORKS[rng.usize(0..good)].1 };
    Step { queue: queue.into(), depends, task, ..Step::named(&name) }
}

/// A job's message. With `own_ids` its items bring the ids of their child jobs. Several steps may fan out over the same
/// items, one after another; then a late second reply to the one is taken for a first reply to the other. So only workers
/// that answer once get such items.
pub(crate) fn message(rng: &mut Rng, own_ids: bool) -> String {
    let id = uuid::Builder::from_random_bytes(rng.u128(..).to_be_bytes()).into_uuid();
    let item = if own_ids { format!("{{\"id\" : \"{id}\"}}, \"{id}\"") } else { "{ }, \"b\"".to_owned() };
    let long = format!("[\"a\", 2.50, {item}]");
    let lists = ["[]", "null", "[\"a\"]", &long, "[null,[ 1 ],\"c\",\"d\"]", "7"];
    // The list that is none fails its step: seldom.
    let pick = |rng: &mut Rng| lists[if rng.f64() < 0.03 { 5 } else { rng.usize(0..5) }];
    let mut pairs = vec![
        ("n".to_owned(), "1.10".to_owned()),
        ("items".to_owned(), pick(rng).to_owned()),
        ("shared".to_owned(), "\"top\"".to_owned()),
        ("subs".to_owned(), pick(rng).to_owned()),
        ("fat".to_owned(), "{\"a\" : [1 , 2]}".to_owned()),
    ];
    rng.shuffle(&mut pairs);
    pairs.truncate(rng.usize(2..=5));
    if own_ids {
        pairs.push(("own".to_owned(), "true".to_owned()));
    }
    Pairs(pairs).text()
}

/// The outcome of a job with this message.
pub(crate) fn expected(definition: &Definition, message: &str) -> Expected {
    let mut causes = Vec::new();
    match evaluate(definition, 0, &Pairs::parse(message.as_bytes()), &mut causes) {
        Some(result) => Expected::Completed(result.text()),
        None => Expected::Failed(causes),
    }
}

fn evaluate(definition: &Definition, graph: usize, message: &Pairs, causes: &mut Vec<String>) -> Option<Pairs> {
    let steps = &definition.graphs[graph].steps;
    let mut outputs: Vec<Option<Pairs>> = Vec::new();
    for step in steps {
        let mut parts = Vec::new();
        for dependency in &step.depends {
            match dependency {
                Dependency::Start => parts.push(Some(message.clone())),
                Dependency::Step(on) => parts.push(outputs[usize::from(on.0)].clone()),
            }
        }
        let input =
            if step.depends.is_empty() { Some(message.clone()) } else { parts.into_iter().collect::<Option<Vec<_>>>().map(|parts| merge(&parts)) };
        let output = input.and_then(|input| {
            let output = match step.task {
                None => plain(step, &input),
                Some(task) => fan_out(definition, usize::from(task), &input, causes),
            };
            if output.is_none() {
                causes.push(step.name.to_string());
            }
            output
        });
        outputs.push(output);
    }
    let is_last = |at: usize| !steps.iter().any(|step| step.depends.contains(&Dependency::Step(StepIndex(u16::try_from(at).expect("small")))));
    let all: Option<Vec<Pairs>> = outputs.iter().cloned().collect();
    let all = all?;
    let last: Vec<Pairs> = all.into_iter().enumerate().filter(|(at, _)| is_last(*at)).map(|(_, output)| output).collect();
    Some(merge(&last))
}

fn plain(step: &Step, input: &Pairs) -> Option<Pairs> {
    match work(&step.queue, &step.name, input.text().as_bytes()) {
        Answered::Result(text) if text.is_empty() || text == "null" => Some(Pairs(Vec::new())),
        Answered::Result(text) => serde_json::from_str(&text).ok(),
        Answered::Error(_) | Answered::DeadLettered => None,
    }
}

/// The first that has a key decides it.
fn merge(parts: &[Pairs]) -> Pairs {
    let mut merged = Pairs(Vec::new());
    for (key, value) in parts.iter().flat_map(|part| &part.0) {
        if merged.get(key).is_none() {
            merged.0.push((key.clone(), value.clone()));
        }
    }
    merged
}

fn fan_out(definition: &Definition, task: usize, input: &Pairs, causes: &mut Vec<String>) -> Option<Pairs> {
    let keys = definition.graphs[task].fan_out.as_ref().expect("a task");
    let items: Vec<Box<RawValue>> = match input.get(&keys.list_key) {
        None | Some("null") => Vec::new(),
        Some(text) => serde_json::from_str(text).ok()?,
    };
    if items.is_empty() {
        return Some(input.clone());
    }
    let results = items.iter().map(|item| {
        let mut child = Pairs(Vec::new());
        for (key, value) in &input.0 {
            if **key == *keys.list_key {
                child.0.push((keys.item_key.to_string(), item.get().to_owned()));
            } else if **key != *keys.item_key {
                child.0.push((key.clone(), value.clone()));
            }
        }
        evaluate(definition, task, &child, causes)
    });
    let results: Vec<Option<Pairs>> = results.collect();
    let results: Vec<Pairs> = results.into_iter().collect::<Option<Vec<_>>>()?;
    let list: Vec<&str> = results.iter().map(|result| result.get(&keys.item_key).unwrap_or("null")).collect();
    let list = format!("[{}]", list.join(","));
    let mut output = Pairs(Vec::new());
    for (key, value) in results.iter().flat_map(|result| &result.0) {
        if **key == *keys.item_key {
            if output.get(&keys.list_key).is_none() {
                output.0.push((keys.list_key.to_string(), list.clone()));
            }
        } else if **key != *keys.list_key && output.get(key).is_none() {
            output.0.push((key.clone(), value.clone()));
        }
    }
    if output.get(&keys.list_key).is_none() {
        output.0.push((keys.list_key.to_string(), list));
    }
    Some(output)
}
