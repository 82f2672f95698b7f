//! Drafts of workflows: each key and value on its own is valid; how they fit together is not
//! checked yet.

use super::place::Position;
use super::values::Word;
use super::yaml::Layout;
use crate::engine::expression::ExpressionError;
use crate::engine::{FanOutKeys, Millis, OnFailure, QueueDeclaration, Retry, StatusWords};
use std::sync::Arc;

/// A workflow as the file describes it.
#[derive(Debug)]
pub(super) struct WorkflowDraft {
    pub(super) at: Position,
    pub(super) name: Option<Word>,
    pub(super) vhosts: Vec<Word>,
    pub(super) bus: Option<Word>,
    pub(super) deadline: Option<Millis>,
    pub(super) retention: Option<Millis>,
    pub(super) queue_keys: QueueKeys,
    pub(super) graph: GraphDraft,
    pub(super) tasks: Vec<GraphDraft>,
}

/// The graph of steps of a workflow or a task.
#[derive(Debug)]
pub(super) struct GraphDraft {
    pub(super) at: Position,
    pub(super) name: Option<Word>,
    pub(super) fan_out: Option<FanOutKeys>,
    pub(super) steps: Vec<StepDraft>,
}

/// The queue declaration in the file, and its location.
#[derive(Clone, Debug, Default)]
pub(super) struct QueueKeys {
    pub(super) said: QueueDeclaration,
    /// The location of the first of the keys.
    pub(super) at: Option<Position>,
}

/// A step: its keys have the right types, and references are not resolved yet.
#[derive(Debug)]
pub(super) struct StepDraft {
    pub(super) name: Option<Word>,
    pub(super) queue: Option<Word>,
    pub(super) bus: Option<Word>,
    pub(super) queue_keys: QueueKeys,
    pub(super) task: Option<Word>,
    pub(super) depends: Vec<Word>,
    pub(super) priority: Option<(u8, Position)>,
    pub(super) options: StepOptions,
}

/// The optional keys of a step, and the locations of those that must agree with others.
#[derive(Debug)]
pub(super) struct StepOptions {
    pub(super) timeout: Option<Millis>,
    /// How long it waits for its start, and the location of the key.
    pub(super) start_within: Option<(Millis, Position)>,
    pub(super) timeout_at: Option<Position>,
    pub(super) retry: Option<Retry>,
    pub(super) when: Option<ConditionDraft>,
    pub(super) cancel_when: Option<ConditionDraft>,
    pub(super) on_failure: OnFailure,
    pub(super) external: Option<(bool, Position)>,
    pub(super) status: StatusWords,
    pub(super) statuses_at: Option<Position>,
    pub(super) skipped_at: Option<Position>,
    /// The users whose replies count, and the location of the key.
    pub(super) reply_users: Option<(Vec<Arc<str>>, Position)>,
}

/// A condition as the file has it.
#[derive(Debug)]
pub(super) struct ConditionDraft {
    pub(super) at: Position,
    pub(super) layout: Layout,
    pub(super) text: String,
}

impl ConditionDraft {
    /// Returns the location of an error in the file, or else a text with its location in the
    /// condition.
    pub(super) fn place(&self, error: &ExpressionError) -> (Position, String) {
        match self.position(error.line, error.column) {
            Some(at) => (at, String::new()),
            None => (self.at, format!(", its line {}, column {}", error.line, error.column)),
        }
    }

    /// Returns the location at which the condition first names a step.
    pub(super) fn place_of(&self, step: &str) -> Position {
        let before = self.text.split_once(step).map_or("", |(before, _)| before);
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        self.position(before.matches('\n').count() + 1, column).unwrap_or(self.at)
    }

    /// Returns the location in the file of a character of the condition, if it is known.
    fn position(&self, line: usize, column: usize) -> Option<Position> {
        match self.layout {
            Layout::Line(inset) => {
                Some(Position { line: self.at.line, column: self.at.column + inset + column - 1 })
            }
            Layout::Block => Some(Position {
                line: self.at.line + line - 1,
                column: self.at.column + column - 1,
            }),
            Layout::Other => None,
        }
    }
}
