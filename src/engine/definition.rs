//! The parsed, validated graph of a workflow and its tasks. `load` builds it from YAML; the journal keeps it as JSON
//! under its content hash, so that a running job keeps the definition it started with.

use super::id::StepIndex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A workflow: its own graph and those of its tasks. Plain data; what can be derived is not stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// The workflow's name.
    pub name: String,
    /// The virtual host it runs in; empty: the one of the connection's address.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub vhost: String,
    /// The workflow's own graph first, then one for each task, in the order of declaration.
    pub graphs: Vec<Graph>,
}

/// The position of a graph in its definition; 0 is the workflow's own.
pub type GraphIndex = u16;

/// The steps of a workflow or of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "GraphData", into = "GraphData")]
pub struct Graph {
    /// The workflow's or task's name.
    pub name: String,
    /// For a task: what it fans out over.
    pub fan_out: Option<FanOutKeys>,
    /// In the order of declaration.
    pub steps: Vec<Step>,
    dependents: Vec<Vec<StepIndex>>,
    last_steps: Vec<StepIndex>,
}

/// What a task fans out over (SPEC §3.3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FanOutKeys {
    /// The key of the list in the step's input.
    pub list_key: Arc<str>,
    /// The key of one item in the child job's message: the singular of `list_key`, or `itemKey`.
    pub item_key: Arc<str>,
    /// Child jobs under way at once; none: the setting `fanout.window`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrency: Option<u32>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The name, unique in its graph.
    pub name: Arc<str>,
    /// Where its step messages go. A step with a task sends none; its queue is its name all the same.
    pub queue: Arc<str>,
    /// What it waits for, in the order that decides the merge (SPEC §3.1). Empty: the job's message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends: Vec<Dependency>,
    /// The graph of the task that it starts for each item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<GraphIndex>,
    /// The AMQP message priority, 0–9.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
}

/// What a step waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dependency {
    /// `__start__`: the job's message, there from the beginning.
    Start,
    /// Another step of the same graph.
    Step(StepIndex),
}

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

impl Graph {
    /// A graph of validated steps: names unique, dependencies in range, no cycle.
    pub fn new(name: String, fan_out: Option<FanOutKeys>, steps: Vec<Step>) -> Graph {
        let mut dependents = vec![Vec::new(); steps.len()];
        for (at, step) in steps.iter().enumerate() {
            for on in step.depended_on() {
                let index = StepIndex(u16::try_from(at).unwrap_or(u16::MAX));
                if !dependents[on.at()].contains(&index) {
                    dependents[on.at()].push(index);
                }
            }
        }
        let last_steps =
            (0..steps.len()).filter(|at| dependents[*at].is_empty()).map(|at| StepIndex(u16::try_from(at).unwrap_or(u16::MAX))).collect();
        Graph { name, fan_out, steps, dependents, last_steps }
    }

    /// The step at `index`.
    pub fn step(&self, index: StepIndex) -> &Step {
        &self.steps[index.at()]
    }

    /// The step called `name`.
    pub fn index_of(&self, name: &str) -> Option<StepIndex> {
        self.steps.iter().position(|step| &*step.name == name).and_then(|at| u16::try_from(at).ok()).map(StepIndex)
    }

    /// All steps' positions.
    pub fn indices(&self) -> impl Iterator<Item = StepIndex> + use<> {
        (0..u16::try_from(self.steps.len()).unwrap_or(u16::MAX)).map(StepIndex)
    }

    /// The steps that wait for `index`, each once.
    pub fn dependents(&self, index: StepIndex) -> &[StepIndex] {
        &self.dependents[index.at()]
    }

    /// The steps on which none depends, in the order of declaration: their outputs make the result (SPEC §3.6).
    pub fn last_steps(&self) -> &[StepIndex] {
        &self.last_steps
    }
}

impl Step {
    /// The distinct steps that this one waits for.
    pub fn depended_on(&self) -> Vec<StepIndex> {
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

impl Definition {
    /// The workflow's own graph.
    pub fn graph(&self) -> &Graph {
        &self.graphs[0]
    }

    /// How users name it: `<vhost>/<name>`, or the name alone.
    pub fn full_name(&self) -> String {
        if self.vhost.is_empty() { self.name.clone() } else { format!("{}/{}", self.vhost, self.name) }
    }

    /// The queues of all its plain steps, each once, in the order of declaration.
    pub fn queues(&self) -> Vec<Arc<str>> {
        let mut queues: Vec<Arc<str>> = Vec::new();
        for step in self.graphs.iter().flat_map(|graph| &graph.steps) {
            if step.task.is_none() && !queues.contains(&step.queue) {
                queues.push(step.queue.clone());
            }
        }
        queues
    }
}
