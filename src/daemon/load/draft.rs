//! Drafts of workflows: each key and value on its own is valid; how they fit together is not
//! checked yet.

use super::location::SourceLocation;
use super::values::LocatedText;
use super::yaml::ScalarLayout;
use engine::expression::ExpressionError;
use engine::text::position_after;
use engine::{FanOutKeys, Millis, OnFailure, QueueDeclaration, Retry, StatusWords};
use std::sync::Arc;

/// A workflow as the file describes it.
#[derive(Debug)]
pub(super) struct WorkflowDraft {
    pub(super) at: SourceLocation,
    pub(super) name: Option<LocatedText>,
    pub(super) vhosts: Vec<LocatedText>,
    pub(super) bus: Option<LocatedText>,
    pub(super) deadline: Option<Millis>,
    pub(super) retention: Option<Millis>,
    pub(super) queue_keys: QueueKeys,
    pub(super) graph: GraphDraft,
    pub(super) tasks: Vec<GraphDraft>,
}

/// The graph of steps of a workflow or a task.
#[derive(Debug)]
pub(super) struct GraphDraft {
    pub(super) at: SourceLocation,
    pub(super) name: Option<LocatedText>,
    pub(super) fan_out: Option<FanOutKeys>,
    pub(super) steps: Vec<StepDraft>,
}

/// The queue declaration in the file, and its location.
#[derive(Clone, Debug, Default)]
pub(super) struct QueueKeys {
    pub(super) declaration: QueueDeclaration,
    /// The location of the first of the keys.
    pub(super) at: Option<SourceLocation>,
}

/// A step: its keys have the right types, and references are not resolved yet.
#[derive(Debug)]
pub(super) struct StepDraft {
    pub(super) name: Option<LocatedText>,
    pub(super) queue: Option<LocatedText>,
    pub(super) bus: Option<LocatedText>,
    pub(super) queue_keys: QueueKeys,
    pub(super) task: Option<LocatedText>,
    pub(super) depends: Vec<LocatedText>,
    pub(super) priority: Option<(u8, SourceLocation)>,
    pub(super) options: StepOptions,
}

/// The optional keys of a step, and the locations of those that must agree with others.
#[derive(Debug)]
pub(super) struct StepOptions {
    pub(super) timeout: Option<Millis>,
    /// How long it waits for its start, and the location of the key.
    pub(super) start_within: Option<(Millis, SourceLocation)>,
    pub(super) timeout_at: Option<SourceLocation>,
    pub(super) retry: Option<Retry>,
    pub(super) when: Option<ConditionDraft>,
    pub(super) cancel_when: Option<ConditionDraft>,
    pub(super) on_failure: OnFailure,
    pub(super) external: Option<(bool, SourceLocation)>,
    pub(super) status: StatusWords,
    pub(super) statuses_at: Option<SourceLocation>,
    pub(super) skipped_at: Option<SourceLocation>,
    /// The users whose replies count, and the location of the key.
    pub(super) reply_users: Option<(Vec<Arc<str>>, SourceLocation)>,
}

/// A condition as the file has it.
#[derive(Debug)]
pub(super) struct ConditionDraft {
    pub(super) at: SourceLocation,
    pub(super) layout: ScalarLayout,
    pub(super) text: String,
}

impl ConditionDraft {
    /// Returns the location of an error in the file, or else a text with its location in the
    /// condition.
    pub(super) fn locate_error(&self, error: &ExpressionError) -> (SourceLocation, String) {
        match self.locate(error.line, error.column) {
            Some(at) => (at, String::new()),
            None => (self.at, format!(", its line {}, column {}", error.line, error.column)),
        }
    }

    /// Returns the location at which the condition first names a step.
    pub(super) fn locate_step(&self, step: &str) -> SourceLocation {
        let before = self.text.split_once(step).map_or("", |(before, _)| before);
        let (line, column) = position_after(before);
        self.locate(line, column).unwrap_or(self.at)
    }

    /// Returns the location in the file of a character of the condition, if it is known.
    fn locate(&self, line: usize, column: usize) -> Option<SourceLocation> {
        match self.layout {
            ScalarLayout::Line(inset) => Some(SourceLocation {
                line: self.at.line,
                column: self.at.column + inset + column - 1,
            }),
            ScalarLayout::Block => Some(SourceLocation {
                line: self.at.line + line - 1,
                column: self.at.column + column - 1,
            }),
            ScalarLayout::Other => None,
        }
    }
}
