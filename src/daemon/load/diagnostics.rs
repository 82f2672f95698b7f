//! Collects the diagnostics of a file, so that one error does not hide the next.

use super::location::{LocatedError, SourceLocation};
use engine::text::{did_you_mean, quote};
use serde::Serialize;
use std::fmt;

/// An error, a warning or advice, with its location.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// The name of the file, as it was given.
    pub file: String,
    /// The line, counted from 1; 0 if the file could not be read at all.
    pub line: usize,
    /// The column in characters, counted from 1; 0 if the file could not be read at all.
    pub column: usize,
    /// The workflow at the location.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow: Option<String>,
    /// The task of that workflow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The step of that task or workflow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// What is wrong, what was expected, and what to do.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    /// Formats `file:line:column: workflow "w", task "t", step "s": message`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        let mut separator = ": ";
        for (noun, name) in
            [("workflow", &self.workflow), ("task", &self.task), ("step", &self.step)]
        {
            if let Some(name) = name {
                write!(f, "{separator}{noun} {}", quote(name))?;
                separator = ", ";
            }
        }
        write!(f, ": {}", self.message)
    }
}

/// How many misspelt words of one file get a suggestion: each is compared with every candidate, and
/// the time is bounded.
const SUGGESTIONS_MAX: usize = 50;

/// The diagnostics of one file, and the workflow, task and step that are being read.
pub(super) struct Diagnostics {
    pub(super) file: String,
    pub(super) workflow: Option<String>,
    pub(super) task: Option<String>,
    pub(super) step: Option<String>,
    pub(super) errors: Vec<Diagnostic>,
    pub(super) warnings: Vec<Diagnostic>,
    pub(super) advice: Vec<Diagnostic>,
    suggestions: usize,
    scopes: Vec<Scope>,
}

/// The part of the file that belongs to a workflow, task or step.
struct Scope {
    at: SourceLocation,
    end: SourceLocation,
    workflow: Option<String>,
    task: Option<String>,
    step: Option<String>,
}

impl Diagnostics {
    pub(super) fn new(file: &str) -> Diagnostics {
        Diagnostics {
            file: file.to_owned(),
            workflow: None,
            task: None,
            step: None,
            errors: Vec::new(),
            warnings: Vec::new(),
            advice: Vec::new(),
            suggestions: 0,
            scopes: Vec::new(),
        }
    }

    pub(super) fn add_error(&mut self, at: SourceLocation, message: impl Into<String>) {
        let problem = self.diagnostic(at, message.into());
        self.errors.push(problem);
    }

    pub(super) fn add_warning(&mut self, at: SourceLocation, message: impl Into<String>) {
        let problem = self.diagnostic(at, message.into());
        self.warnings.push(problem);
    }

    pub(super) fn add_advice(&mut self, at: SourceLocation, message: impl Into<String>) {
        let problem = self.diagnostic(at, message.into());
        self.advice.push(problem);
    }

    /// Records that the current workflow, task and step extend from `at` to `end`.
    pub(super) fn add_scope(&mut self, at: SourceLocation, end: SourceLocation) {
        self.scopes.push(Scope {
            at,
            end,
            workflow: self.workflow.clone(),
            task: self.task.clone(),
            step: self.step.clone(),
        });
    }

    /// Adds errors that were found before the scopes of workflows, tasks and steps were known.
    pub(super) fn add_unscoped_errors(&mut self, mistakes: Vec<LocatedError>) {
        // The sort is stable: of two scopes that begin at the same location, the inner one was
        // added later.
        self.scopes.sort_by_key(|scope| scope.at);
        for mistake in mistakes {
            let started = self.scopes.partition_point(|scope| scope.at <= mistake.at);
            if let Some(scope) =
                self.scopes[..started].iter().rev().find(|scope| mistake.at < scope.end)
            {
                (self.workflow, self.task, self.step) =
                    (scope.workflow.clone(), scope.task.clone(), scope.step.clone());
            }
            self.add_error(mistake.at, mistake.message);
            self.leave_scope();
        }
    }

    /// Returns `; did you mean "x"?`, or an empty text.
    pub(super) fn suggest<'a>(
        &mut self,
        text: &str,
        candidates: impl IntoIterator<Item = &'a str>,
    ) -> String {
        let guess = if self.can_suggest() { did_you_mean(text, candidates) } else { String::new() };
        self.count_suggestion();
        guess
    }

    /// Returns whether another suggestion is allowed.
    pub(super) fn can_suggest(&self) -> bool {
        self.suggestions < SUGGESTIONS_MAX
    }

    pub(super) fn count_suggestion(&mut self) {
        self.suggestions += 1;
    }

    /// Leaves the current workflow, task and step.
    pub(super) fn leave_scope(&mut self) {
        self.workflow = None;
        self.task = None;
        self.step = None;
    }

    /// Sorts the diagnostics by location and removes duplicates (an alias brings the same error to
    /// several places).
    pub(super) fn sort(&mut self) {
        for problems in [&mut self.errors, &mut self.warnings, &mut self.advice] {
            problems.sort_by_key(|problem| (problem.line, problem.column));
            problems.dedup();
        }
    }

    fn diagnostic(&self, at: SourceLocation, message: String) -> Diagnostic {
        Diagnostic {
            file: self.file.clone(),
            line: at.line,
            column: at.column,
            workflow: self.workflow.clone(),
            task: self.task.clone(),
            step: self.step.clone(),
            message,
        }
    }
}
