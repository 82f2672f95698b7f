//! What must come out: the rules of docs/reference/workflow-data.md once more, as plainly as can
//! be, over texts, without the engine. And the workers of the simulation, whose answers follow from
//! what they are sent alone.

use fastrand::Rng;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::fmt;
use std::sync::Arc;
use workflow_manager::engine::{
    Definition, Dependency, Expression, FanOutKeys, Graph, Millis, OnFailure, Retry, Step,
    StepIndex, Tolerate,
};

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
        let pairs: Vec<String> = self
            .0
            .iter()
            .map(|(key, value)| format!("{}:{value}", serde_json::json!(key)))
            .collect();
        format!("{{{}}}", pairs.join(","))
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    fn set(&mut self, key: &str, value: &str) {
        match self.0.iter_mut().find(|(name, _)| name == key) {
            Some((_, place)) => value.clone_into(place),
            None => self.0.push((key.to_owned(), value.to_owned())),
        }
    }
}

/// What a worker does with a step message; its queue is named after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Echo,
    Add,
    Change,
    Only,
    Nothing,
    Feed,
    /// Fails at its first attempt.
    Flaky,
    /// Says nothing at its first attempt.
    Silent,
    Error,
    NoObject,
    DeadLetter,
}

/// The workers that never fail come first.
const GOOD: usize = 6;

const WORKS: [(Work, &str); 11] = [
    (Work::Echo, "echo"),
    (Work::Add, "add"),
    (Work::Change, "change"),
    (Work::Only, "only"),
    (Work::Nothing, "nothing"),
    (Work::Feed, "feed"),
    (Work::Flaky, "flaky"),
    (Work::Silent, "silent"),
    (Work::Error, "error"),
    (Work::NoObject, "no-object"),
    (Work::DeadLetter, "dead-letter"),
];

/// A worker's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WorkOutcome {
    Result(String),
    Error(String),
    DeadLettered,
    Nothing,
}

/// What the worker of `queue` answers to an attempt of a step.
pub(crate) fn work(queue: &str, step: &str, attempt: u32, input: &[u8]) -> WorkOutcome {
    let (work, _) =
        WORKS.iter().find(|(_, name)| *name == queue).expect("a queue of the simulation");
    let mut pairs = Pairs::parse(input);
    match work {
        Work::Echo => {}
        Work::Add => pairs.set(&format!("by_{step}"), "1.50E+3"),
        Work::Change => {
            pairs.set(
                "shared",
                &format!("{{ \"from\" : \"{step}\", \"n\":12345678901234567890.10 }}"),
            );
            if let Some(item) = pairs.get("item").map(str::to_owned) {
                pairs.set("item", &format!("[{item}, \"{step}\"]"));
            }
        }
        Work::Only => {
            pairs = Pairs(vec![
                ("shared".to_owned(), format!("\"{step}\"")),
                (format!("only_{step}"), "[1,  2.0]".to_owned()),
            ])
        }
        Work::Nothing => {
            let bodies = ["", "null", "{}"];
            return WorkOutcome::Result(bodies[step.len() % bodies.len()].to_owned());
        }
        Work::Feed => {
            let id = uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, input);
            let item = if pairs.get("own").is_some() {
                format!("{{\"id\":\"{id}\"}}")
            } else {
                "[ ]".to_owned()
            };
            pairs.set("items", &format!("[\"{step}\", {item}, 7.0]"));
        }
        Work::Flaky if attempt == 1 => {
            return WorkOutcome::Error("{\"error\":\"not today\"}".to_owned());
        }
        Work::Silent if attempt == 1 => return WorkOutcome::Nothing,
        Work::Flaky | Work::Silent => pairs.set("tried", "true"),
        Work::Error => return WorkOutcome::Error(format!("{{\"error\":\"{step} cannot\"}}")),
        Work::NoObject => return WorkOutcome::Result("[1]".to_owned()),
        Work::DeadLetter => return WorkOutcome::DeadLettered,
    }
    WorkOutcome::Result(pairs.text())
}

/// How a job must end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// With this result, byte for byte.
    Completed(String),
    /// For a failure of one of these steps.
    Failed(Vec<String>),
}

/// What an external step is completed with.
pub(crate) fn by_hand(step: &str) -> String {
    format!("{{\"by_hand\":\"{step}\"}}")
}

impl Expected {
    /// Whether a job may have failed for this reason.
    pub(crate) fn may_fail_with(&self, reason: &str) -> bool {
        let is_cause = |cause: &String| {
            reason.contains(&format!("step \"{cause}\""))
                || (cause == DEADLINE && reason.contains(DEADLINE))
        };
        matches!(self, Expected::Failed(causes) if causes.iter().any(is_cause))
    }
}

/// A workflow of a random shape: up to five steps, some of which fan out, into child jobs that may
/// fan out again.
pub(crate) fn definition(rng: &mut Rng, name: &str) -> Arc<Definition> {
    // Whether a failed child job is retried with its job depends on the moment where failures of
    // child jobs are tolerated: there none fails for a reason that a retry helps against.
    let lenient = rng.u32(0..3) == 0;
    let tolerate = |rng: &mut Rng| match rng.u32(0..3) {
        0 if lenient => Tolerate::Count(1),
        1 if lenient => Tolerate::Share(5_000),
        _ => Tolerate::default(),
    };
    // Failures are rare, because they end everything that depends on them; but some workflows are
    // about failures.
    let troubled = rng.u32(0..4) == 0;
    let count = rng.usize(1..=5);
    let top = Graph::new(
        name.to_owned(),
        None,
        steps(
            rng,
            "s",
            count,
            Kind { fans_out: 0.35, task: 1, lenient, troubled, attempts_min: 1 },
        ),
    );
    let attempts_min = if lenient { 2 } else { 1 };
    let items = FanOutKeys { tolerate: tolerate(rng), ..FanOutKeys::new("items", "item") };
    let count = rng.usize(1..=2);
    let middle = Graph::new(
        "t".to_owned(),
        Some(items),
        steps(rng, "t", count, Kind { fans_out: 0.25, task: 2, lenient, troubled, attempts_min }),
    );
    let subs = FanOutKeys { tolerate: tolerate(rng), ..FanOutKeys::new("subs", "sub") };
    let bottom = Graph::new(
        "u".to_owned(),
        Some(subs),
        steps(rng, "u", 1, Kind { fans_out: 0.0, task: 0, lenient, troubled, attempts_min }),
    );
    let mut definition = Definition::new(name, vec![top, middle, bottom]);
    if rng.u32(0..10) == 0 {
        // Nobody ever completes its last step: the deadline ends it.
        let last = StepIndex(u16::try_from(definition.graphs[0].steps.len() - 1).expect("small"));
        let never = Step {
            external: true,
            depends: vec![Dependency::Step(last)],
            ..Step::with_name(NEVER)
        };
        let mut steps = definition.graphs[0].steps.clone();
        // A step that another one waits for is still not the last to be done.
        steps.push(if rng.bool() { never } else { Step { depends: Vec::new(), ..never } });
        Arc::make_mut(&mut definition.graphs)[0] = Graph::new(name.to_owned(), None, steps);
        definition.deadline = Some(Millis(rng.u64(5_000..=60_000)));
    }
    Arc::new(definition)
}

/// The bus of the steps whose workers take their messages over HTTP; all others are on the default
/// bus.
pub(crate) const EMBEDDED: &str = "embedded";

/// The step that nobody completes.
pub(crate) const NEVER: &str = "never";

/// What is in the reason of a job that its deadline ended.
const DEADLINE: &str = "deadline";

/// What the steps of a graph may be.
#[derive(Clone, Copy)]
struct Kind {
    /// How likely a step fans out.
    fans_out: f64,
    /// Over which task.
    task: u16,
    /// Whether failures of child jobs may be of no consequence.
    lenient: bool,
    /// Whether many steps fail.
    troubled: bool,
    /// The attempts of a step that fails once.
    attempts_min: u32,
}

fn steps(rng: &mut Rng, prefix: &str, count: usize, kind: Kind) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for _ in 0..count {
        let step = step(rng, prefix, &steps, kind);
        steps.push(step);
    }
    steps
}

fn step(rng: &mut Rng, prefix: &str, earlier: &[Step], kind: Kind) -> Step {
    let at = earlier.len();
    let mut depends = Vec::new();
    for _ in 0..rng.usize(0..=at.min(3)) {
        let on = Dependency::Step(StepIndex(u16::try_from(rng.usize(0..at)).expect("small")));
        if !depends.contains(&on) {
            depends.push(on);
        }
    }
    let task = (rng.f64() < kind.fans_out).then_some(kind.task);
    let name = format!("{prefix}{at}{}", "x".repeat(at % 3));
    let mut step = Step { depends, task, ..Step::with_name(&name) };
    if task.is_none() {
        let works = match rng.f64() {
            chance if chance < if kind.troubled { 0.55 } else { 0.95 } => 0..GOOD,
            chance if chance < 0.9 => GOOD..GOOD + 2,
            _ => GOOD..WORKS.len(),
        };
        step.queue = WORKS[rng.usize(works)].1.into();
        match &*step.queue {
            // What is waited for in vain must not use up the attempts.
            "silent" => patient(&mut step, rng),
            "flaky" | "error" | "no-object" | "dead-letter" => {
                step.retry = Some(Retry {
                    attempts: rng.u32(kind.attempts_min..=3),
                    backoff: Millis(rng.u64(1..=400)),
                    ..Retry::default()
                });
            }
            _ if rng.u32(0..12) == 0 => step.external = true,
            _ if rng.u32(0..6) == 0 => patient(&mut step, rng),
            _ => {}
        }
    }
    // A worker that says nothing keeps its lease to the end.
    if task.is_none() && !step.external && &*step.queue != "silent" && rng.u32(0..3) == 0 {
        step.bus = Some(EMBEDDED.into());
    }
    if rng.u32(0..6) == 0 && (task.is_none() || kind.lenient) {
        step.on_failure = OnFailure::Continue;
    }
    let first = step.step_dependencies().first().map(|on| earlier[usize::from(on.0)].name.clone());
    let condition = |text: String| Some(Expression::parse(&text).expect("a condition"));
    match (rng.u32(0..14), first) {
        (0, _) => step.when = condition("has(input.shared)".to_owned()),
        (1, Some(on)) => step.when = condition(format!("steps[\"{on}\"].status == \"COMPLETED\"")),
        (2, Some(on)) => {
            step.cancel_when = condition(format!(
                "steps.{on}.state == \"completed\" && size(steps.{on}.output) > 3"
            ))
        }
        _ => {}
    }
    step
}

pub(super) fn patient(step: &mut Step, rng: &mut Rng) {
    step.timeout = Some(Millis(rng.u64(500..=3_000)));
    step.retry = Some(Retry {
        attempts: 100,
        backoff: Millis(50),
        factor_milli: 1_500,
        max_backoff: Millis(500),
    });
}

/// A job's message. With `own_ids` its items bring the ids of their child jobs. Several steps may
/// fan out over the same items, one after another; then a late second reply to the one is taken for
/// a first reply to the other. So only workers that answer once get such items.
pub(crate) fn message(rng: &mut Rng, own_ids: bool) -> String {
    let id = uuid::Builder::from_random_bytes(rng.u128(..).to_be_bytes()).into_uuid();
    let item =
        if own_ids { format!("{{\"id\" : \"{id}\"}}, \"{id}\"") } else { "{ }, \"b\"".to_owned() };
    let long = format!("[\"a\", 2.50, {item}]");
    let lists = ["[]", "null", "[\"a\"]", &long, "[null,[ 1 ],\"c\",\"d\"]", "7"];
    // A list that is not one fails its step; this is rare.
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

/// The outcome of a job with this message; `retried`: its client has it retried as long as that
/// helps.
pub(crate) fn expected(definition: &Definition, message: &str, retried: bool) -> Expected {
    let mut causes = Vec::new();
    let oracle = Oracle { definition, retried };
    match oracle.graph(0, &Pairs::parse(message.as_bytes()), &mut causes) {
        Some(result) => Expected::Completed(result.text()),
        None => {
            // Faults may take any time.
            causes.extend(definition.deadline.map(|_| DEADLINE.to_owned()));
            Expected::Failed(causes)
        }
    }
}

/// The outcome of a step.
#[derive(Clone)]
enum Fate {
    Completed(Pairs),
    /// Skipped, cancelled, or failed and of no consequence: done, without an output.
    Done,
    /// Failed, or never begun.
    NotDone,
}

struct Oracle<'a> {
    definition: &'a Definition,
    retried: bool,
}

impl Oracle<'_> {
    fn graph(&self, graph: usize, message: &Pairs, causes: &mut Vec<String>) -> Option<Pairs> {
        let steps = &self.definition.graphs[graph].steps;
        let mut fates: Vec<Fate> = Vec::new();
        for step in steps {
            let fate = self.step(step, steps, &fates, message, causes);
            fates.push(fate);
        }
        let is_last = |at: usize| {
            !steps.iter().any(|step| {
                step.depends
                    .contains(&Dependency::Step(StepIndex(u16::try_from(at).expect("small"))))
            })
        };
        if fates.iter().any(|fate| matches!(fate, Fate::NotDone)) {
            return None;
        }
        let last: Vec<Pairs> = fates
            .into_iter()
            .enumerate()
            .filter(|(at, _)| is_last(*at))
            .filter_map(|(_, fate)| output(fate))
            .collect();
        Some(merge(&last))
    }

    fn step(
        &self,
        step: &Step,
        steps: &[Step],
        fates: &[Fate],
        message: &Pairs,
        causes: &mut Vec<String>,
    ) -> Fate {
        let first = step
            .step_dependencies()
            .first()
            .map(|on| (&steps[usize::from(on.0)], fates[usize::from(on.0)].clone()));
        if step.cancel_when.is_some() {
            // The condition looks at the first dependency.
            if let Some((_, Fate::Completed(output))) = &first
                && output.0.len() > 3
            {
                return Fate::Done;
            }
        }
        let mut parts = Vec::new();
        for dependency in &step.depends {
            match dependency {
                Dependency::Start => parts.push(message.clone()),
                Dependency::Step(on) => match fates[usize::from(on.0)].clone() {
                    Fate::Completed(output) => parts.push(output),
                    Fate::Done => {}
                    Fate::NotDone => return Fate::NotDone,
                },
            }
        }
        let input = if step.depends.is_empty() { message.clone() } else { merge(&parts) };
        if let Some(condition) = &step.when {
            let holds = if condition.text().starts_with("has(") {
                input.get("shared").is_some()
            } else {
                matches!(first, Some((_, Fate::Completed(_))))
            };
            if !holds {
                return Fate::Done;
            }
        }
        let output = match step.task {
            None if *step.name == *NEVER => {
                causes.push(DEADLINE.to_owned());
                return Fate::NotDone;
            }
            None if step.external => Some(Pairs::parse(by_hand(&step.name).as_bytes())),
            None => self.plain(step, &input),
            Some(task) => self.fan_out(usize::from(task), &input, causes),
        };
        match output {
            Some(output) => Fate::Completed(output),
            None if step.on_failure == OnFailure::Continue => Fate::Done,
            None => {
                causes.push(step.name.to_string());
                Fate::NotDone
            }
        }
    }

    fn plain(&self, step: &Step, input: &Pairs) -> Option<Pairs> {
        let attempts = step.retry.map_or(1, |retry| retry.attempts);
        // A retry by hand helps only where the job failed.
        let by_hand = self.retried && step.on_failure == OnFailure::Fail;
        (1..=attempts.max(if by_hand { 2 } else { 1 })).find_map(|attempt| {
            match work(&step.queue, &step.name, attempt, input.text().as_bytes()) {
                WorkOutcome::Result(text) if text.is_empty() || text == "null" => {
                    Some(Pairs(Vec::new()))
                }
                WorkOutcome::Result(text) => serde_json::from_str(&text).ok(),
                WorkOutcome::Error(_) | WorkOutcome::DeadLettered | WorkOutcome::Nothing => None,
            }
        })
    }

    fn fan_out(&self, task: usize, input: &Pairs, causes: &mut Vec<String>) -> Option<Pairs> {
        let keys = self.definition.graphs[task].fan_out.as_ref().expect("a task");
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
            self.graph(task, &child, causes)
        });
        let results: Vec<Option<Pairs>> = results.collect();
        let failed = results.iter().filter(|result| result.is_none()).count();
        let tolerated = match keys.tolerate {
            Tolerate::Count(count) => count as usize,
            Tolerate::Share(hundredths) => items.len() * hundredths as usize / 10_000,
        };
        if failed > tolerated {
            return None;
        }
        let list: Vec<&str> = results
            .iter()
            .map(|result| {
                result.as_ref().and_then(|result| result.get(&keys.item_key)).unwrap_or("null")
            })
            .collect();
        let list = format!("[{}]", list.join(","));
        let mut output = Pairs(Vec::new());
        for (key, value) in results.iter().flatten().flat_map(|result| &result.0) {
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
}

fn output(fate: Fate) -> Option<Pairs> {
    match fate {
        Fate::Completed(output) => Some(output),
        Fate::Done | Fate::NotDone => None,
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
