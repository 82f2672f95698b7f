//! Every vector of `tests/conformance/limits.json`: the engine and the gate in virtual time. Which
//! messages are sent, when, and in which order.

use serde::Deserialize;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use support::world::LIMITS;
use workflow_manager::engine::{
    Context, Decision, Definition, Effect, Gate, Input, Job, JobId, Message, Operation, Origin,
    RateMark, Reply, Sender, StepIndex, Timestamp, UnreadReplies,
};
use workflow_manager::load::load_text;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    name: String,
    definition: serde_json::Value,
    /// Which one is created, unless an event says another.
    workflow: String,
    events: Vec<Event>,
    expect: Expect,
}

/// What happens at a time.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Event {
    /// In milliseconds.
    at: i64,
    #[serde(flatten)]
    action: Action,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum Action {
    Create {
        job: String,
        workflow: Option<String>,
        message: Option<serde_json::Value>,
    },
    Reply {
        job: String,
        step: String,
    },
    Error {
        job: String,
        step: String,
    },
    Cancel {
        job: String,
    },
    /// The process is killed, and starts.
    Restart {},
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    /// When, in milliseconds, of which job, and of which step a message is sent.
    sent: Vec<(i64, String, String)>,
    #[serde(default)]
    reasons: BTreeMap<String, String>,
}

/// The jobs of a vector, with the gate.
struct Run {
    definitions: Vec<Arc<Definition>>,
    now: Timestamp,
    gate: Gate,
    /// In the order of their creation; their positions are their numbers.
    jobs: Vec<(String, Job)>,
    numbers: HashMap<JobId, usize>,
    marks: BTreeMap<(Arc<str>, Arc<str>), RateMark>,
    sent: Vec<(i64, String, String)>,
}

const MS: i64 = 1_000_000;

/// By then everybody is admitted who ever will be.
const END: Timestamp = Timestamp(i64::MAX / 4);

impl Run {
    fn new(definitions: Vec<Arc<Definition>>) -> Run {
        Run {
            definitions,
            now: Timestamp(0),
            gate: Gate::default(),
            jobs: Vec::new(),
            numbers: HashMap::new(),
            marks: BTreeMap::new(),
            sent: Vec::new(),
        }
    }

    fn number(&self, name: &str) -> usize {
        let found = self.jobs.iter().position(|(other, _)| other == name);
        found.unwrap_or_else(|| panic!("there is no job {name}"))
    }

    fn act(&mut self, action: &Action, default: &String) {
        let reply = |step: &str, reply| Input::Reply {
            step: step.to_owned(),
            attempt: None,
            reply,
            from: Sender::Unknown,
        };
        match action {
            Action::Create { job, workflow, message } => {
                let workflow = workflow.as_ref().unwrap_or(default);
                let is_meant = |definition: &&Arc<Definition>| definition.name == *workflow;
                let definition = self.definitions.iter().find(is_meant).expect("a workflow");
                let text = message.as_ref().map_or("{}".to_owned(), ToString::to_string);
                let message = Message::parse(text.as_bytes()).expect("a message");
                let number = self.jobs.len();
                let id = JobId(uuid::Uuid::from_u128(number as u128 + 1));
                let origin = Origin::for_root_job(id, definition.clone(), self.now);
                let context = Context { now: self.now, limits: &LIMITS, pauses: None, spare: None };
                let (created, decision) = Job::create(origin, message, &context);
                self.jobs.push((job.clone(), created));
                self.numbers.insert(id, number);
                self.carry_out(number, decision);
            }
            Action::Reply { job, step } => {
                let input = reply(step, Reply::Result("{}".into()));
                self.input(self.number(job), input);
            }
            Action::Error { job, step } => {
                let input = reply(step, Reply::Error(r#"{"error":"no"}"#.into()));
                self.input(self.number(job), input);
            }
            Action::Cancel { job } => {
                let operation = Operation::Cancel { reason: "no longer wanted".into() };
                self.input(self.number(job), Input::from_request(operation));
            }
            Action::Restart {} => self.restart(),
        }
    }

    fn input(&mut self, number: usize, input: Input) {
        let context = Context { now: self.now, limits: &LIMITS, pauses: None, spare: None };
        let decision = self.jobs[number].1.handle_input(input, &context);
        self.carry_out(number, decision.expect("the job accepts it"));
    }

    fn carry_out(&mut self, number: usize, decision: Decision) {
        let context = Context { now: self.now, limits: &LIMITS, pauses: None, spare: None };
        let mut decisions = VecDeque::from([(number, decision)]);
        while let Some((number, decision)) = decisions.pop_front() {
            for effect in decision.effects {
                let Effect::Dispatch { step, attempt, .. } = effect else {
                    panic!("no vector has child jobs or callers");
                };
                let (name, job) = &mut self.jobs[number];
                let step_name = job.graph().step(step).name.to_string();
                self.sent.push((self.now.0 / MS, name.clone(), step_name));
                // A worker has it at once.
                let begun = job.handle_input(Input::Begun { step, attempt }, &context);
                decisions.extend(begun.ok().map(|decision| (number, decision)));
            }
            for (step, demand) in decision.demands {
                self.demand(number, step, demand.as_ref());
            }
            for admission in self.gate.advance(self.now) {
                for mark in &admission.marks {
                    let key = (mark.limit.clone(), mark.key.clone());
                    self.marks.insert(key, mark.clone());
                }
                let number = self.numbers[&admission.id];
                let (step, ticket, marks) = (admission.step, admission.ticket, admission.marks);
                let admitted = Input::Admitted { step, ticket, marks };
                let decision = self.jobs[number].1.handle_input(admitted, &context);
                decisions.push_back((number, decision.expect("it is wanted")));
            }
        }
    }

    fn demand(
        &mut self,
        number: usize,
        step: StepIndex,
        demand: Option<&workflow_manager::engine::Demand>,
    ) {
        let job = &self.jobs[number].1;
        let definition = job.definition();
        let full_name = |limit: &Arc<str>| definition.full_limit_name(limit);
        let key = (i64::try_from(number).expect("small"), job.id(), step);
        self.gate.demand(key, demand, full_name);
    }

    /// All that is left is what is in the jobs, and the marks of the rates.
    fn restart(&mut self) {
        self.gate = Gate::default();
        self.configure();
        for mark in self.marks.values() {
            self.gate.restore_rate(mark, self.now);
        }
        for number in 0..self.jobs.len() {
            for (step, demand) in self.jobs[number].1.demands_at_start() {
                self.demand(number, step, Some(&demand.without_resending()));
            }
        }
        self.advance();
    }

    fn configure(&mut self) {
        for definition in &self.definitions {
            for limit in &definition.limits {
                let name = definition.full_limit_name(&limit.name);
                self.gate.configure(&name, limit.setting());
            }
        }
    }

    /// Admits whom the limits allow now.
    fn advance(&mut self) {
        for admission in self.gate.advance(self.now) {
            for mark in &admission.marks {
                self.marks.insert((mark.limit.clone(), mark.key.clone()), mark.clone());
            }
            let (step, ticket, marks) = (admission.step, admission.ticket, admission.marks);
            self.input(self.numbers[&admission.id], Input::Admitted { step, ticket, marks });
        }
    }

    /// Lets time pass until `until`, with all that is due before.
    fn pass(&mut self, until: Timestamp) {
        loop {
            let timers = self.jobs.iter().enumerate();
            let timer =
                timers.filter_map(|(number, (_, job))| Some((job.next_timer()?, number))).min();
            let gate = self.gate.next_due();
            let due = timer.map(|(due, _)| due).into_iter().chain(gate).min();
            let Some(due) = due.filter(|due| *due <= until) else { break };
            self.now = due.max(self.now);
            match timer {
                Some((time, number)) if time <= due => {
                    self.input(number, Input::Timer { due, unread: UnreadReplies::new() });
                }
                _ => self.advance(),
            }
        }
        self.now = until;
    }
}

fn run(vector: &Vector) {
    let name = &vector.name;
    let loaded = load_text(name, &vector.definition.to_string())
        .unwrap_or_else(|errors| panic!("{name}: {errors}"));
    let mut run = Run::new(loaded.definitions);
    run.configure();
    for Event { at, action } in &vector.events {
        run.pass(Timestamp(at * MS));
        run.act(action, &vector.workflow);
    }
    run.pass(END);
    assert_eq!(run.sent, vector.expect.sent, "{name}: what is sent");
    for (job, words) in &vector.expect.reasons {
        let reason = run.jobs[run.number(job)].1.reason().map_or("", |reason| reason);
        assert!(reason.contains(words), "{name}: {job}: {reason}");
    }
}

#[test]
fn limit_vectors_hold() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/limits.json");
    let text = std::fs::read_to_string(path).expect("the vectors are in the repository");
    let vectors: Vec<Vector> = serde_json::from_str(&text).expect("the vectors parse");
    vectors.iter().for_each(run);
    assert_eq!(vectors.len(), 21, "vectors run of limits.json");
}
