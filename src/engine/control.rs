//! Controls: what operators have changed about limits, queues and workflows for a time.
//!
//! A control is a pause, or other values for a limit. It ends by itself, or when an operator ends
//! it. The journal keeps it, so that it is also in force after a restart.

use super::definition::{Definition, Step};
use super::limit::{LimitSetting, Rate};
use super::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// What a control does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ControlKind {
    /// A limit has other values.
    LimitChange,
    /// Nobody is admitted to the places of a limit.
    LimitPause,
    /// No step sends a message to a queue.
    QueuePause,
    /// No step of a workflow begins.
    WorkflowPause,
}

impl ControlKind {
    /// Returns the name under which journals store the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            ControlKind::LimitChange => "limitChange",
            ControlKind::LimitPause => "limitPause",
            ControlKind::QueuePause => "queuePause",
            ControlKind::WorkflowPause => "workflowPause",
        }
    }

    /// Returns what a control of this kind is about, in one word.
    pub fn noun(self) -> &'static str {
        match self {
            ControlKind::LimitChange | ControlKind::LimitPause => "limit",
            ControlKind::QueuePause => "queue",
            ControlKind::WorkflowPause => "workflow",
        }
    }

    /// Returns whether something waits until the control ends.
    pub fn is_pause(self) -> bool {
        self != ControlKind::LimitChange
    }
}

/// What a control is about. There is one control for each key at most.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ControlKey {
    /// What it does.
    pub kind: ControlKind,
    /// The bus of the queue; empty for others.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub bus: Arc<str>,
    /// The virtual host; empty: there is none.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub vhost: Arc<str>,
    /// The name of the limit, queue or workflow.
    pub name: Arc<str>,
}

fn is_empty(text: &str) -> bool {
    text.is_empty()
}

impl ControlKey {
    /// Returns the full name: `<vhost>/<name>`, or only the name if there is no virtual host.
    pub fn full_name(&self) -> Arc<str> {
        if self.vhost.is_empty() {
            self.name.clone()
        } else {
            format!("{}/{}", self.vhost, self.name).into()
        }
    }
}

/// Writes what a control is about, such as `queue price`.
impl fmt::Display for ControlKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.noun(), self.full_name())
    }
}

/// What an operator has changed, until it is changed again or a time has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// What it is about.
    pub key: ControlKey,
    /// The rate instead of the limit's; `None`: that of the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// The concurrency instead of the limit's; `None`: that of the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Why; `None`: the operator gave no reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Arc<str>>,
    /// The principal: the name of the operator's token; `None`: no token was required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Arc<str>>,
    /// When it began.
    pub since: Timestamp,
    /// When it ends by itself; `None`: it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl Control {
    /// Returns what a limit allows with this control of it.
    pub fn apply(&self, setting: LimitSetting) -> LimitSetting {
        LimitSetting {
            rate: self.rate.or(setting.rate),
            concurrency: self.concurrency.or(setting.concurrency),
            is_paused: setting.is_paused || self.key.kind == ControlKind::LimitPause,
        }
    }

    /// Returns whether the control has ended by itself.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

/// The queues and workflows that are paused. While there are some, their steps pass the gate before
/// they begin.
#[derive(Debug, Default)]
pub struct Pauses {
    /// The name of the bus of steps that name no bus.
    pub default_bus: Arc<str>,
    /// The full names of the paused workflows.
    pub workflows: BTreeSet<Arc<str>>,
    /// The paused queues.
    pub queues: Vec<PausedQueue>,
}

/// A paused queue.
#[derive(Debug)]
pub struct PausedQueue {
    /// The name of its bus.
    pub bus: Arc<str>,
    /// The virtual host; `None`: its bus has no virtual hosts.
    pub vhost: Option<Arc<str>>,
    /// Its name.
    pub queue: Arc<str>,
}

impl Pauses {
    /// Returns whether nothing is paused.
    pub fn is_empty(&self) -> bool {
        self.workflows.is_empty() && self.queues.is_empty()
    }

    /// Returns whether a step of a workflow must not begin now.
    pub fn cover(&self, definition: &Definition, step: &Step) -> bool {
        let is_queue_of_step = |paused: &PausedQueue| {
            step.has_queue()
                && paused.queue == step.queue
                && paused.bus == *step.bus.as_ref().unwrap_or(&self.default_bus)
                && paused.vhost.as_ref().is_none_or(|vhost| **vhost == *definition.vhost)
        };
        (!self.workflows.is_empty() && self.workflows.contains(definition.full_name().as_str()))
            || self.queues.iter().any(is_queue_of_step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_covers_the_queue_and_the_workflow_that_it_names() {
        let mut definition = Definition::new("orders", Vec::new());
        definition.vhost = "shop".to_owned();
        let step = Step::with_name("price");
        let person = Step { external: true, ..Step::with_name("price") };
        let paused = |bus: &str, vhost: Option<&str>, queue: &str| Pauses {
            default_bus: "main".into(),
            workflows: BTreeSet::new(),
            queues: vec![PausedQueue {
                bus: bus.into(),
                vhost: vhost.map(Into::into),
                queue: queue.into(),
            }],
        };
        assert!(paused("main", Some("shop"), "price").cover(&definition, &step));
        assert!(paused("main", None, "price").cover(&definition, &step));
        assert!(!paused("main", Some(""), "price").cover(&definition, &step));
        assert!(!paused("other", Some("shop"), "price").cover(&definition, &step));
        assert!(!paused("main", Some("shop"), "ship").cover(&definition, &step));
        assert!(!paused("main", Some("shop"), "price").cover(&definition, &person));
        let workflow =
            |name: &str| Pauses { workflows: BTreeSet::from([name.into()]), ..Pauses::default() };
        assert!(workflow("shop/orders").cover(&definition, &person));
        assert!(!workflow("orders").cover(&definition, &person));
    }
}
