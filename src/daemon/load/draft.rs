//! Drafts of workflows: the values of a file before they are checked against each other. A field
//! whose key is missing or invalid is `None`, empty, or the default.

use super::job_limits::JobLimitDraft;
use super::location::SourceLocation;
use super::scalars::ScalarLayout;
use super::values::LocatedText;
use engine::expression::ExpressionError;
use engine::text::position_after;
use engine::{FanOutKeys, Millis, OnFailure, QueueDeclaration, Retry, StatusWords};
use std::sync::Arc;

/// A workflow as the file describes it.
#[derive(Debug)]
pub(super) struct WorkflowDraft {
    pub(super) location: SourceLocation,
    pub(super) name: Option<LocatedText>,
    /// The virtual hosts; empty for the one in the broker's address.
    pub(super) vhosts: Vec<LocatedText>,
    pub(super) bus: Option<LocatedText>,
    pub(super) deadline: Option<Millis>,
    pub(super) retention: Option<Millis>,
    /// The limit of the jobs.
    pub(super) limit: Option<JobLimitDraft>,
    /// The label and the columns of the jobs.
    pub(super) columns: ColumnsDraft,
    /// The declaration of the queues of all steps.
    pub(super) queue_keys: QueueKeys,
    /// The workflow's own steps.
    pub(super) graph: GraphDraft,
    pub(super) tasks: Vec<GraphDraft>,
}

/// The graph of steps of a workflow or a task.
#[derive(Debug)]
pub(super) struct GraphDraft {
    pub(super) location: SourceLocation,
    /// The name of the workflow or task.
    pub(super) name: Option<LocatedText>,
    /// The keys of the list and its items; `None` for the graph of a workflow, and for a task whose
    /// `itemListKey` is missing or invalid.
    pub(super) fan_out: Option<FanOutKeys>,
    pub(super) steps: Vec<StepDraft>,
}

/// How a step or workflow declares queues, and where.
#[derive(Clone, Debug, Default)]
pub(super) struct QueueKeys {
    pub(super) declaration: QueueDeclaration,
    /// The location of the first key; `None` if there is none.
    pub(super) location: Option<SourceLocation>,
}

/// A step whose keys have the right types, but whose references are not resolved.
#[derive(Debug)]
pub(super) struct StepDraft {
    pub(super) name: Option<LocatedText>,
    /// The queue, or the address of a web service; `None`: the queue has the step's name.
    pub(super) queue: Option<LocatedText>,
    pub(super) bus: Option<LocatedText>,
    pub(super) queue_keys: QueueKeys,
    pub(super) task: Option<LocatedText>,
    pub(super) depends: Vec<LocatedText>,
    /// The priority of the step's messages, and its location.
    pub(super) priority: Option<(u8, SourceLocation)>,
    /// The limits under which the step's messages are sent.
    pub(super) limits: Vec<LocatedText>,
    pub(super) options: StepOptions,
}

/// The optional keys of a step, and the locations of those that must agree with others.
#[derive(Debug)]
pub(super) struct StepOptions {
    pub(super) timeout: Option<Millis>,
    /// How long a message may wait for a worker, and the location of the key.
    pub(super) start_within: Option<(Millis, SourceLocation)>,
    /// How long an attempt may wait for limits, and the location of the key.
    pub(super) wait_at_most: Option<(Millis, SourceLocation)>,
    pub(super) timeout_location: Option<SourceLocation>,
    pub(super) retry: Option<Retry>,
    pub(super) when: Option<ConditionDraft>,
    pub(super) cancel_when: Option<ConditionDraft>,
    pub(super) on_failure: OnFailure,
    /// Whether the step is external, and the location of the value.
    pub(super) external: Option<(bool, SourceLocation)>,
    pub(super) status: StatusWords,
    pub(super) statuses_location: Option<SourceLocation>,
    pub(super) skipped_location: Option<SourceLocation>,
    /// The users whose replies count, and the location of the key.
    pub(super) reply_users: Option<(Vec<Arc<str>>, SourceLocation)>,
}

/// The label and the columns of a workflow.
#[derive(Debug, Default)]
pub(super) struct ColumnsDraft {
    pub(super) label: Option<ConditionDraft>,
    /// The names and the expressions.
    pub(super) columns: Vec<(LocatedText, ConditionDraft)>,
}

/// A condition, or another expression, as it is written in the file.
#[derive(Debug)]
pub(super) struct ConditionDraft {
    /// The key whose value it is.
    pub(super) key: String,
    pub(super) location: SourceLocation,
    pub(super) layout: ScalarLayout,
    pub(super) text: String,
}

impl ConditionDraft {
    /// Returns the location of an error in the file, and a suffix for the message. If the location
    /// is unknown, returns that of the condition, and the suffix has the line and column within the
    /// condition; otherwise the suffix is empty.
    pub(super) fn locate_error(&self, error: &ExpressionError) -> (SourceLocation, String) {
        match self.locate(error.line, error.column) {
            Some(location) => (location, String::new()),
            None => (self.location, format!(", its line {}, column {}", error.line, error.column)),
        }
    }

    /// Returns the location at which a step's name first occurs in the text of the condition. This
    /// is a guess, because the name may occur there as part of another word.
    pub(super) fn locate_step(&self, step: &str) -> SourceLocation {
        let text_before = self.text.split_once(step).map_or("", |(before, _)| before);
        let (line, column) = position_after(text_before);
        self.locate(line, column).unwrap_or(self.location)
    }

    /// Converts a line and column within the condition, both counted from 1, to a location in the
    /// file. Returns `None` if the layout of the scalar does not determine it.
    fn locate(&self, line: usize, column: usize) -> Option<SourceLocation> {
        match self.layout {
            ScalarLayout::Line(quote_columns) => Some(SourceLocation {
                line: self.location.line,
                column: self.location.column + quote_columns + column - 1,
            }),
            ScalarLayout::Block => Some(SourceLocation {
                line: self.location.line + line - 1,
                column: self.location.column + column - 1,
            }),
            ScalarLayout::Other => None,
        }
    }
}
