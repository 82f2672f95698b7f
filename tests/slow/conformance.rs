//! Every vector of `tests/conformance` (how JSON flows), end to end: jobs are created over HTTP,
//! steps are worked over AMQP.
//!
//! All vectors of a file run side by side on one daemon: the workflow of vector 7 is called `w-7`,
//! and each of its steps has a queue of its own, `v7-<queue>`. A worker reads its step's name from
//! the correlation id.

use std::{
    collections::HashMap,
    fs,
    sync::mpsc,
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};
use uuid::Uuid;

use crate::{
    amqp::{Answer, Client, StepMessage, Vhost, Worker},
    harness::{Api, DEADLINE, Daemon, JobView, Setup},
};

#[test]
fn merge() {
    run_file("merge", |_| true);
}

#[test]
fn replies() {
    // `onFailure` is no key of this version.
    run_file("replies", |vector| !vector.definition.to_string().contains("onFailure"));
}

#[test]
fn fanout() {
    run_file("fanout", |_| true);
}

#[test]
fn statuses() {
    run_file("statuses", |_| true);
}

/// Beyond the vectors: a fan-out whose children change nothing does not alter a single byte,
/// including key order and digits.
#[test]
fn a_fan_out_gives_back_what_it_was_given_byte_for_byte() {
    let vhost = Vhost::new();
    let workflows = r"
workflows:
  - name: whole
    steps: [ { name: each, task: part } ]
    tasks:
      - name: part
        itemListKey: boxes
        steps: [ { name: pass } ]
";
    let daemon = Setup::new(&vhost.url, workflows).start();
    let _worker = Worker::echo(&vhost.url, &["pass"]);
    let message = concat!(
        r#"{"z":1.10,"boxes":[{"b":1e400,"a":[ 1,2 ]},12345678901234567890.0,"é\u00e9",null,"#,
        r#"[],{}],"a":{"y":-0,"x":0.0}}"#,
    );
    let id = daemon.api.create("whole", message);
    assert_eq!(daemon.api.await_result(id), message);
}

// ---- the vectors' form

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Vector {
    name: String,
    definition: Value,
    workflow: String,
    message: Option<Box<RawValue>>,
    message_raw: Option<String>,
    #[serde(default)]
    replies: Map<String, Value>,
    #[serde(default)]
    order: Vec<Held>,
    expect: Expected,
}

/// An input whose reply is held back.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Held {
    step: String,
    #[serde(rename = "if", default)]
    condition: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Expected {
    #[serde(default)]
    inputs: HashMap<String, Vec<Value>>,
    state: String,
    result: Option<Value>,
    result_raw: Option<String>,
    #[serde(default)]
    statuses: Map<String, Value>,
}

// ---- running them

/// How long a running job must stay running when a vector expects that nothing more happens. No
/// event tells that a worker gets no more messages; too short a time could only hide a fault.
const QUIET: Duration = Duration::from_secs(1);

fn run_file(file: &str, wanted: impl Fn(&Vector) -> bool) {
    let path = format!("{}/tests/conformance/{file}.json", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let all: Vec<Vector> =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut runs: Vec<VectorRun> = all
        .into_iter()
        .filter(wanted)
        .enumerate()
        .map(|(number, vector)| VectorRun::new(number, vector))
        .collect();
    assert!(!runs.is_empty(), "{path} has no vectors");

    let vhost = Vhost::new();
    let definitions: Vec<Value> = runs.iter_mut().map(VectorRun::definition).collect();
    let daemon = Setup::new(&vhost.url, &json!({ "workflows": definitions }).to_string()).start();
    let queues: Vec<String> = runs.iter().flat_map(|run| run.queues.iter().cloned()).collect();

    // The worker hands every message on and never replies by itself: the vectors decide the order
    // of replies.
    let (sender, messages) = mpsc::channel();
    let _worker = Worker::start(&vhost.url, &queues, move |message| {
        let _ended = sender.send(message.clone());
        Answer::Silence
    });
    let client = vhost.client();
    for run in &mut runs {
        run.create(&daemon.api);
    }
    let deadline = Instant::now() + DEADLINE;
    while runs.iter().any(|run| run.failure.is_none() && run.ended.is_none()) {
        let Ok(message) = messages.recv_timeout(Duration::from_millis(20)) else {
            let overdue = Instant::now() > deadline;
            runs.iter_mut().for_each(|run| run.look(&daemon, overdue));
            continue;
        };
        let message: StepMessage = message;
        let number: usize = message.queue[1..].split_once('-').unwrap().0.parse().unwrap();
        runs[number].receive(message, &client);
    }
    // A message that should not have been sent would be on its way now.
    while let Ok(message) = messages.recv_timeout(Duration::from_millis(200)) {
        let number: usize = message.queue[1..].split_once('-').unwrap().0.parse().unwrap();
        runs[number].receive(message, &client);
    }

    let problems: Vec<String> = runs.iter().filter_map(VectorRun::problem).collect();
    assert!(
        problems.is_empty(),
        "{} of {} vectors of {file}.json do not hold:\n\n{}",
        problems.len(),
        runs.len(),
        problems.join("\n\n")
    );
}

struct VectorRun {
    number: usize,
    vector: Vector,
    queues: Vec<String>,
    job: Option<Uuid>,
    inputs: HashMap<String, Vec<Value>>,
    held: Vec<Option<(StepMessage, Vec<u8>)>>,
    quiet_since: Instant,
    ended: Option<JobView>,
    /// The row of the table of statuses at that time.
    row: Value,
    failure: Option<String>,
}

impl VectorRun {
    fn new(number: usize, vector: Vector) -> VectorRun {
        let held = vector.order.iter().map(|_| None).collect();
        VectorRun {
            number,
            vector,
            queues: Vec::new(),
            job: None,
            inputs: HashMap::new(),
            held,
            quiet_since: Instant::now(),
            ended: None,
            row: Value::Null,
            failure: None,
        }
    }

    fn workflow(&self) -> String {
        format!("{}-{}", self.vector.workflow, self.number)
    }

    /// The vector's workflow with a name and queues that no other vector has.
    fn definition(&mut self) -> Value {
        let workflows =
            self.vector.definition["workflows"].as_array().expect("a definition has workflows");
        let [only] = workflows.as_slice() else {
            panic!("the vector \"{}\" has not exactly one workflow", self.vector.name)
        };
        assert_eq!(
            only["name"], self.vector.workflow,
            "the vector \"{}\" runs another workflow than its own",
            self.vector.name
        );
        let mut workflow = only.clone();
        workflow["name"] = self.workflow().into();
        self.rename_queues(&mut workflow["steps"]);
        for task in workflow.get_mut("tasks").and_then(Value::as_array_mut).into_iter().flatten() {
            self.rename_queues(&mut task["steps"]);
        }
        self.queues.sort();
        self.queues.dedup();
        workflow
    }

    fn rename_queues(&mut self, steps: &mut Value) {
        for step in steps.as_array_mut().expect("steps are a list") {
            if step.get("task").is_some() {
                continue;
            }
            let old = step
                .get("queue")
                .unwrap_or(&step["name"])
                .as_str()
                .expect("a queue's name is a string")
                .to_owned();
            let queue = format!("v{}-{old}", self.number);
            step["queue"] = queue.clone().into();
            self.queues.push(queue);
        }
    }

    fn create(&mut self, api: &Api) {
        let body = match (&self.vector.message, &self.vector.message_raw) {
            (Some(message), _) => message.get(),
            (None, Some(raw)) => raw,
            (None, None) => "",
        };
        let answer = api.post(&format!("/api/workflow/{}", self.workflow()), body);
        if answer.status == 201 {
            self.job = Some(answer.id());
        } else {
            self.failure = Some(format!("the job is not accepted: {answer}"));
        }
    }

    fn receive(&mut self, message: StepMessage, client: &Client) {
        self.quiet_since = Instant::now();
        let step = message.step();
        // A number like 1e400 is no Value; such an input is compared as text.
        let input = serde_json::from_slice(&message.body)
            .unwrap_or_else(|_| Value::String(message.text().to_owned()));
        self.inputs.entry(step.clone()).or_default().push(input.clone());
        let Some(reply) = self.reply_for(&step, &input, &message) else { return };
        let place = (0..self.held.len()).find(|&place| {
            let order = &self.vector.order[place];
            self.held[place].is_none() && order.step == step && contains(&input, &order.condition)
        });
        let Some(place) = place else {
            client.say(&message, reply, crate::amqp::json_properties());
            return;
        };
        self.held[place] = Some((message, reply));
        if self.held.iter().all(Option::is_some) {
            for (message, reply) in self.held.iter().flatten() {
                client.say(message, reply, crate::amqp::json_properties());
            }
        }
    }

    /// The bytes of a reply; `None`: it never comes.
    fn reply_for(&mut self, step: &str, input: &Value, message: &StepMessage) -> Option<Vec<u8>> {
        let mut reply = self.vector.replies.get(step);
        if let Some(Value::Array(cases)) = reply {
            let matching = cases
                .iter()
                .find(|case| contains(input, case["if"].as_object().expect("\"if\" is an object")));
            reply = matching.map(|case| &case["reply"]);
        }
        match reply {
            Some(Value::String(echo)) if echo == "$echo" => Some(message.body.clone()),
            Some(Value::Object(object)) if object.get("none") == Some(&Value::Bool(true)) => None,
            Some(Value::Object(object)) => {
                let raw = object.get("raw").and_then(Value::as_str);
                Some(raw.map_or_else(
                    || Value::Object(object.clone()).to_string().into_bytes(),
                    |text| text.as_bytes().to_vec(),
                ))
            }
            Some(
                Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::String(_)
                | Value::Array(_),
            )
            | None => {
                self.failure = Some(format!(
                    "step {step} was sent the input {input}, for which the vector has no reply"
                ));
                None
            }
        }
    }

    /// Looks whether the job has come to its end.
    fn look(&mut self, daemon: &Daemon, overdue: bool) {
        let Some(id) = self.job else { return };
        if self.ended.is_some() || self.failure.is_some() {
            return;
        }
        let job = daemon.api.job(id);
        let is_quiet = self.quiet_since.elapsed() > QUIET;
        if job.state != "running" || (self.vector.expect.state == "running" && is_quiet) {
            let answer =
                daemon.api.get(&format!("/api/status/{}?job={id}", self.workflow())).expect(200);
            self.row = answer.json()["rows"][0].clone();
            self.ended = Some(job);
        } else if overdue {
            self.failure = Some(format!("the job is still running: {}", job.text));
        }
    }

    fn problem(&self) -> Option<String> {
        let told = |what: String| {
            Some(format!("\"{}\" (workflow {}): {what}", self.vector.name, self.workflow()))
        };
        if let Some(failure) = &self.failure {
            return told(failure.clone());
        }
        let job = self.ended.as_ref()?;
        let expect = &self.vector.expect;
        if job.state != expect.state {
            return told(format!("expected the state {}, got {}", expect.state, job.text));
        }
        if self.row["state"] != expect.state
            || expect.statuses.iter().any(|(step, status)| self.row["steps"][step] != *status)
        {
            return told(format!(
                "expected the statuses\n  {}\ngot the row\n  {}",
                Value::from(expect.statuses.clone()),
                self.row
            ));
        }
        for (step, expected) in &expect.inputs {
            let seen = self.inputs.get(step).cloned().unwrap_or_default();
            if !same_in_any_order(expected, &seen) {
                return told(format!(
                    "expected the inputs of {step}\n  {}\nsaw\n  {}",
                    Value::from(expected.clone()),
                    Value::from(seen)
                ));
            }
        }
        let has_result = expect.result.is_some() || expect.result_raw.is_some();
        let raw = if has_result { job.message_of("__end__") } else { String::new() };
        if expect.result_raw.as_ref().is_some_and(|expected| *expected != raw) {
            return told(format!(
                "expected the result, byte for byte,\n  {}\ngot\n  {raw}",
                expect.result_raw.as_deref().unwrap_or_default()
            ));
        }
        let result: Option<Value> =
            expect.result.as_ref().and_then(|_| serde_json::from_str(&raw).ok());
        if expect.result != result {
            return told(format!(
                "expected the result\n  {}\ngot\n  {raw}",
                expect.result.clone().unwrap_or_default()
            ));
        }
        None
    }
}

/// Every member of `part` is a member of `whole`.
fn contains(whole: &Value, part: &Map<String, Value>) -> bool {
    part.iter().all(|(key, value)| whole.get(key) == Some(value))
}

fn same_in_any_order(left: &[Value], right: &[Value]) -> bool {
    let mut rest = right.to_vec();
    let all_found = left.iter().all(|value| {
        rest.iter().position(|other| other == value).map(|place| rest.swap_remove(place)).is_some()
    });
    all_found && rest.is_empty()
}

/// The vectors are only as good as the code that compares: it must tell apart what differs.
#[test]
fn the_comparison_tells_apart_what_differs() {
    assert!(same_in_any_order(&[json!(1), json!(2)], &[json!(2), json!(1)]));
    assert!(!same_in_any_order(&[json!(1)], &[json!(1), json!(1)]));
    assert!(!same_in_any_order(&[json!(1), json!(1)], &[json!(1), json!(2)]));
    assert!(contains(&json!({"a": 1, "b": 2}), json!({"a": 1}).as_object().unwrap()));
    assert!(!contains(&json!({"a": 1}), json!({"a": 2}).as_object().unwrap()));
}
