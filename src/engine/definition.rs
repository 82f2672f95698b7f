//! The definition of a workflow: the validated graphs of the workflow and its tasks.
//!
//! The module `load` builds it from YAML. The journal stores it as JSON under its content hash, so
//! that a job keeps the definition with which it started. The JSON determines the hash: a new field
//! must be left out of it while it has its default.

use super::columns::Columns;
use super::expression::Expression;
use super::id::StepIndex;
use super::job_limit::JobLimit;
use super::limit::{ClaimedPlace, LimitDefinition};
use super::queue_declaration::QueueDeclaration;
use super::schedule::Schedule;
use super::time::Millis;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// One version of a workflow: its own graph and the graphs of its tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// The workflow's name.
    pub name: String,
    /// The AMQP virtual host of its queues; empty: the virtual host of the connection's address.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub vhost: String,
    /// The bus on which it receives calls; `None`: the default bus of the manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<Arc<str>>,
    /// How long a job may take before it fails; `None`: as long as it needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Millis>,
    /// How long an ended job is kept; `None`: the setting `journal.retention`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Millis>,
    /// How the queue on which it receives calls is declared.
    #[serde(default, skip_serializing_if = "QueueDeclaration::is_default")]
    pub queue: QueueDeclaration,
    /// The limits that it and its steps name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitDefinition>,
    /// The limit of its jobs; `None`: any number of them is under way at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<JobLimit>,
    /// What people call its jobs, and find them by.
    #[serde(default, skip_serializing_if = "Columns::is_empty")]
    pub columns: Columns,
    /// The schedules that start its jobs.
    #[serde(skip)]
    pub schedules: Schedules,
    /// The workflow's own graph first, then one for each task, in the order of declaration. The
    /// definitions of a workflow in several virtual hosts share them.
    pub graphs: Arc<[Graph]>,
}

/// The schedules of a workflow. They are loaded with a definition, and are no part of it: two
/// definitions that differ in them alone are equal, and have the same hash.
#[derive(Clone, Debug, Default)]
pub struct Schedules(pub Vec<Arc<Schedule>>);

impl PartialEq for Schedules {
    fn eq(&self, _: &Schedules) -> bool {
        true
    }
}

impl Eq for Schedules {}

impl Definition {
    /// The prefix of the queue on which a workflow receives calls. The workflow's name follows
    /// (docs/reference/worker-protocol.md).
    pub const WORKFLOW_QUEUE_PREFIX: &str = "workflow.";

    /// Creates a definition of these graphs, with defaults for everything else.
    pub fn new(name: &str, graphs: Vec<Graph>) -> Definition {
        Definition {
            name: name.to_owned(),
            vhost: String::new(),
            bus: None,
            deadline: None,
            retention: None,
            queue: QueueDeclaration::default(),
            limits: Vec::new(),
            limit: None,
            columns: Columns::default(),
            schedules: Schedules::default(),
            graphs: graphs.into(),
        }
    }

    /// Returns the hash that names the definition.
    pub fn hash(&self) -> DefinitionHash {
        let text = serde_json::to_string(self).expect("texts and numbers can be serialized");
        DefinitionHash::from_json_text(&text)
    }

    /// Returns the workflow's own graph.
    pub fn graph(&self) -> &Graph {
        &self.graphs[0]
    }

    /// Returns the name of the queue on which a workflow receives calls. `workflow`: its name
    /// without the virtual host.
    pub fn workflow_queue(workflow: &str) -> String {
        format!("{}{workflow}", Self::WORKFLOW_QUEUE_PREFIX)
    }

    /// Returns whether a queue of this name is for calls of a workflow.
    pub fn is_workflow_queue(queue: &str) -> bool {
        queue.starts_with(Self::WORKFLOW_QUEUE_PREFIX)
    }

    /// Returns the workflow's name for users: `<vhost>/<name>`, or only the name if there is no
    /// virtual host.
    pub fn full_name(&self) -> String {
        if self.vhost.is_empty() {
            self.name.clone()
        } else {
            format!("{}/{}", self.vhost, self.name)
        }
    }

    /// Returns the full name of a limit of this workflow: `<vhost>/<name>`, or only the name if
    /// there is no virtual host.
    pub fn full_limit_name(&self, limit: &Arc<str>) -> Arc<str> {
        if self.vhost.is_empty() { limit.clone() } else { format!("{}/{limit}", self.vhost).into() }
    }

    /// Returns the limit of this name; `None`: the workflow has none.
    pub fn find_limit(&self, name: &str) -> Option<&LimitDefinition> {
        self.limits.iter().find(|limit| *limit.name == *name)
    }

    /// Splits a full name into the virtual host, which is empty if the name has none, and the
    /// workflow's name.
    pub fn split_full_name(full_name: &str) -> (&str, &str) {
        full_name.rsplit_once('/').unwrap_or(("", full_name))
    }

    /// Returns the steps that send messages to queues, including those of tasks, in the order of
    /// declaration.
    pub fn sending_steps(&self) -> impl Iterator<Item = &Step> {
        self.graphs.iter().flat_map(|graph| &graph.steps).filter(|step| step.has_queue())
    }

    /// Returns the queues of the [sending steps](Definition::sending_steps), without duplicates, in
    /// the order of declaration.
    pub fn queues(&self) -> Vec<Arc<str>> {
        let mut queues: Vec<Arc<str>> = Vec::new();
        for step in self.sending_steps() {
            if !queues.contains(&step.queue) {
                queues.push(step.queue.clone());
            }
        }
        queues
    }
}

/// The index of a graph in its definition; 0: the workflow's own graph.
pub type GraphIndex = u16;

/// The steps of a workflow or of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "GraphData", into = "GraphData")]
pub struct Graph {
    /// The workflow's or task's name.
    pub name: String,
    /// What the task fans out over; `None`: it is the workflow's own graph.
    pub fan_out: Option<FanOutKeys>,
    /// The steps in the order of declaration.
    pub steps: Vec<Step>,
    /// For each step, the steps that depend on it.
    dependents: Vec<Vec<StepIndex>>,
    /// The steps without dependents.
    last_steps: Vec<StepIndex>,
    /// For each step, the places of its limits without keys, which all its claims share.
    keyless_places: Vec<Arc<[ClaimedPlace]>>,
}

impl Graph {
    /// Creates a graph. The caller has validated the steps: their names are unique, and their
    /// dependencies exist and have no cycle.
    pub fn new(name: String, fan_out: Option<FanOutKeys>, steps: Vec<Step>) -> Graph {
        let mut dependents = vec![Vec::new(); steps.len()];
        for (position, step) in steps.iter().enumerate() {
            for dependency in step.step_dependencies() {
                let index = StepIndex(u16::try_from(position).unwrap_or(u16::MAX));
                if !dependents[dependency.as_usize()].contains(&index) {
                    dependents[dependency.as_usize()].push(index);
                }
            }
        }
        let last_steps = (0..steps.len())
            .filter(|position| dependents[*position].is_empty())
            .map(|position| StepIndex(u16::try_from(position).unwrap_or(u16::MAX)))
            .collect();
        let keyless =
            |limit: &Arc<str>| ClaimedPlace { limit: limit.clone(), key: None, fair: None };
        let keyless_places =
            steps.iter().map(|step| step.limits.iter().map(keyless).collect()).collect();
        Graph { name, fan_out, steps, dependents, last_steps, keyless_places }
    }

    /// Returns the step at `index`.
    pub fn step(&self, index: StepIndex) -> &Step {
        &self.steps[index.as_usize()]
    }

    /// Returns the index of the step called `name`.
    pub fn find_index(&self, name: &str) -> Option<StepIndex> {
        self.steps
            .iter()
            .position(|step| &*step.name == name)
            .and_then(|position| u16::try_from(position).ok())
            .map(StepIndex)
    }

    /// Returns the name of a dependency: `__start__`, or the name of the step.
    pub fn dependency_name(&self, dependency: Dependency) -> &str {
        match dependency {
            Dependency::Start => "__start__",
            Dependency::Step(index) => &self.step(index).name,
        }
    }

    /// Returns the indices of all steps.
    pub fn indices(&self) -> impl Iterator<Item = StepIndex> + use<> {
        (0..u16::try_from(self.steps.len()).unwrap_or(u16::MAX)).map(StepIndex)
    }

    /// Returns the places of the limits of the step at `index`, as if they had no keys.
    pub(super) fn keyless_places(&self, index: StepIndex) -> &Arc<[ClaimedPlace]> {
        &self.keyless_places[index.as_usize()]
    }

    /// Returns the steps that depend on the step at `index`, without duplicates.
    pub fn dependents(&self, index: StepIndex) -> &[StepIndex] {
        &self.dependents[index.as_usize()]
    }

    /// Returns the steps on which no other step depends, in the order of declaration. Their outputs
    /// are merged into the job's result (docs/reference/workflow-file.md).
    pub fn last_steps(&self) -> &[StepIndex] {
        &self.last_steps
    }
}

/// The serialized form of a [`Graph`], without what is derived.
#[derive(Serialize, Deserialize)]
struct GraphData {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fan_out: Option<FanOutKeys>,
    steps: Vec<Step>,
}

impl From<GraphData> for Graph {
    fn from(data: GraphData) -> Graph {
        Graph::new(data.name, data.fan_out, data.steps)
    }
}

impl From<Graph> for GraphData {
    fn from(graph: Graph) -> GraphData {
        GraphData { name: graph.name, fan_out: graph.fan_out, steps: graph.steps }
    }
}

/// One step of a graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The name, unique in its graph.
    pub name: Arc<str>,
    /// The queue for its messages. A step that sends no messages has its name here.
    pub queue: Arc<str>,
    /// The bus that has the queue; `None`: the default bus of the manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<Arc<str>>,
    /// How the queue is declared if it does not exist.
    #[serde(default, skip_serializing_if = "QueueDeclaration::is_default")]
    pub declared: QueueDeclaration,
    /// Its dependencies, in the order in which their outputs are merged
    /// (docs/reference/workflow-file.md). Empty: its input is the job's message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends: Vec<Dependency>,
    /// The graph of the task that it runs for each item; `None`: it is not a fan-out step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<GraphIndex>,
    /// The priority of its messages, from 0 to 9; `None`: not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// The timeout of an attempt; `None`: no limit. For a step with a message, it starts when
    /// workers can receive the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Millis>,
    /// How long an attempt may wait for its timeout to start before it fails; `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_within: Option<Millis>,
    /// How long an attempt may wait for places of limits before the step fails; `None`: no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_at_most: Option<Millis>,
    /// How failed attempts are retried; `None`: the first failure fails the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// The step is skipped if this is false when it is about to start; `None`: it is not skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<Expression>,
    /// The step is cancelled if this is true while it waits or runs; `None`: it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_when: Option<Expression>,
    /// What the failure of the step does to the job.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_failure: OnFailure,
    /// Whether no message is sent, and a call of the API completes the step.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub external: bool,
    /// The words of its status.
    #[serde(default, skip_serializing_if = "is_default")]
    pub status: StatusWords,
    /// The users whose replies are accepted; empty: any sender.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reply_users: Vec<Arc<str>>,
    /// The limits under which its messages are sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Arc<str>>,
}

impl Step {
    /// Creates a step with a name, and defaults for everything else.
    pub fn with_name(name: &str) -> Step {
        let name: Arc<str> = name.into();
        Step {
            queue: name.clone(),
            name,
            bus: None,
            declared: QueueDeclaration::default(),
            depends: Vec::new(),
            task: None,
            priority: None,
            timeout: None,
            start_within: None,
            wait_at_most: None,
            retry: None,
            when: None,
            cancel_when: None,
            on_failure: OnFailure::Fail,
            external: false,
            status: StatusWords::default(),
            reply_users: Vec::new(),
            limits: Vec::new(),
        }
    }

    /// Returns whether the step sends messages to a queue.
    pub fn has_queue(&self) -> bool {
        self.task.is_none() && !self.external
    }

    /// Returns the steps on which this one depends, without duplicates.
    pub fn step_dependencies(&self) -> Vec<StepIndex> {
        let mut steps: Vec<StepIndex> = Vec::with_capacity(self.depends.len());
        for dependency in &self.depends {
            if let Dependency::Step(index) = dependency
                && !steps.contains(index)
            {
                steps.push(*index);
            }
        }
        steps
    }
}

/// What a step waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dependency {
    /// `__start__`: the job's message. It is always available.
    Start,
    /// Another step of the same graph.
    Step(StepIndex),
}

/// What a task fans out over (docs/reference/workflow-file.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FanOutKeys {
    /// The key of the list in the step's input.
    pub list_key: Arc<str>,
    /// The key of one item in the child job's message: the singular of `list_key`, or `itemKey`.
    pub item_key: Arc<str>,
    /// How many child jobs may be active at once; `None`: the setting `fanout.window`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrency: Option<u32>,
    /// How many child jobs may fail without failing the step.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tolerate: Tolerate,
}

impl FanOutKeys {
    /// Creates a fan-out over `list_key`, with defaults for everything else.
    pub fn new(list_key: &str, item_key: &str) -> FanOutKeys {
        FanOutKeys {
            list_key: list_key.into(),
            item_key: item_key.into(),
            max_concurrency: None,
            tolerate: Tolerate::default(),
        }
    }
}

/// How many child jobs of a fan-out step may fail (key `tolerate`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tolerate {
    /// At most this number of child jobs.
    Count(u32),
    /// At most this percentage of the items, in hundredths of a percent (10 % is 1,000). The number
    /// of child jobs is rounded down.
    Share(u32),
}

impl Default for Tolerate {
    fn default() -> Tolerate {
        Tolerate::Count(0)
    }
}

impl Tolerate {
    /// The [`Tolerate::Share`] of all items: 100 %.
    const SHARE_OF_ALL: u64 = 10_000;

    /// Returns how many of `item_count` child jobs may fail.
    pub fn failures_max(self, item_count: u32) -> u32 {
        match self {
            Tolerate::Count(count) => count,
            Tolerate::Share(share) => {
                let count = u64::from(item_count) * u64::from(share) / Tolerate::SHARE_OF_ALL;
                u32::try_from(count).unwrap_or(u32::MAX)
            }
        }
    }
}

/// Formats the value as in workflow files: `5` or `2.5%`.
impl fmt::Display for Tolerate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tolerate::Count(count) => write!(f, "{count}"),
            Tolerate::Share(share) => {
                let (percent, hundredths) = (share / 100, format!("{:02}", share % 100));
                match hundredths.trim_end_matches('0') {
                    "" => write!(f, "{percent}%"),
                    fraction => write!(f, "{percent}.{fraction}%"),
                }
            }
        }
    }
}

/// How often failed attempts are retried, with exponential backoff (key `retry`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// The maximum number of attempts, including the first; at least 1.
    pub attempts: u32,
    /// The maximum pause before the second attempt. Jitter shortens it.
    pub backoff: Millis,
    /// The factor by which the maximum pause grows with each attempt, in thousandths; at least
    /// 1,000.
    pub factor_milli: u32,
    /// The upper limit of the maximum pause.
    pub max_backoff: Millis,
}

impl Default for Retry {
    /// Returns a single attempt, with the default pauses of the key `retry`.
    fn default() -> Retry {
        Retry {
            attempts: 1,
            backoff: Millis(1_000),
            factor_milli: 2_000,
            max_backoff: Millis(300_000),
        }
    }
}

/// What a step's failure does to the job (key `onFailure`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The job fails.
    #[default]
    Fail,
    /// The step counts as done, without an output.
    Continue,
}

/// The status words of a step (docs/how-to/read-statuses-by-sql.md).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusWords {
    /// The key of the reply whose string value is the status; `None`: replies have no status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Arc<str>>,
    /// The allowed words; empty: any. The first one is the status of a running step that has
    /// reported none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<Arc<str>>,
    /// The status of a skipped step; `None`: `SKIPPED`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<Arc<str>>,
    /// The status of a cancelled step; `None`: `CANCELLED`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancelled: Option<Arc<str>>,
}

impl StatusWords {
    /// Returns the status of a running step that has reported none.
    pub fn running(&self) -> &str {
        self.words.first().map_or("PENDING", |word| word)
    }

    /// Returns the status of a skipped step.
    pub fn skipped(&self) -> &str {
        self.skipped.as_deref().unwrap_or("SKIPPED")
    }

    /// Returns the status of a cancelled step.
    pub fn cancelled(&self) -> &str {
        self.cancelled.as_deref().unwrap_or("CANCELLED")
    }

    /// Returns whether a worker may report `word`.
    pub fn allows(&self, word: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|allowed| **allowed == *word)
    }
}

/// The hash that names a definition: SHA-256 of its JSON text, displayed as 64 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DefinitionHash(pub [u8; 32]);

impl DefinitionHash {
    /// Returns the hash of a definition's JSON text.
    pub fn from_json_text(text: &str) -> DefinitionHash {
        DefinitionHash(Sha256::digest(text.as_bytes()).into())
    }
}

impl fmt::Display for DefinitionHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for DefinitionHash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The error for a text that is not the hash of a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a definition is named by its hash, 64 hex digits")]
pub struct InvalidHash;

impl FromStr for DefinitionHash {
    type Err = InvalidHash;

    fn from_str(text: &str) -> Result<DefinitionHash, InvalidHash> {
        let (pairs, odd_digit) = text.as_bytes().as_chunks::<2>();
        let bytes: Option<Vec<u8>> = pairs.iter().map(|pair| parse_hex_byte(*pair)).collect();
        match (bytes.and_then(|bytes| bytes.try_into().ok()), odd_digit) {
            (Some(hash), []) => Ok(DefinitionHash(hash)),
            _ => Err(InvalidHash),
        }
    }
}

/// Parses two hex digits.
fn parse_hex_byte([high, low]: [u8; 2]) -> Option<u8> {
    let parse_digit = |digit: u8| u8::try_from(char::from(digit).to_digit(16)?).ok();
    Some(parse_digit(high)? << 4 | parse_digit(low)?)
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
