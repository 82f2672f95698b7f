//! Collects the diagnostics of a file. Loading continues after an error, so that one error does not
//! hide others.

use super::location::{LocatedError, SourceLocation};
use engine::text::{did_you_mean, quote};
use serde::Serialize;
use std::fmt;
use utoipa::ToSchema;

/// An error, a warning or advice, with its location.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Diagnostic {
    /// The name of the file, as it was given.
    pub file: String,
    /// The line, counted from 1; 0 if the diagnostic concerns the whole file.
    pub line: usize,
    /// The column in characters, counted from 1; 0 if the diagnostic concerns the whole file.
    pub column: usize,
    /// The workflow at the location; `None` outside of the workflows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow: Option<String>,
    /// The task of that workflow; `None` outside of tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The step of that task or workflow; `None` outside of steps.
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

/// For how many misspelt words of one file similar words are searched. Each word is compared with
/// all candidates, so this bounds the time.
const SUGGESTIONS_MAX: usize = 50;

/// The diagnostics of one file. The fields `workflow`, `task` and `step` are the current scope: the
/// checks set them to what they work on, and each new diagnostic gets them.
pub(super) struct Diagnostics {
    /// The name of the file, as it was given.
    pub(super) file: String,
    pub(super) workflow: Option<String>,
    pub(super) task: Option<String>,
    pub(super) step: Option<String>,
    pub(super) errors: Vec<Diagnostic>,
    pub(super) warnings: Vec<Diagnostic>,
    pub(super) advice: Vec<Diagnostic>,
    /// How many searches for similar words counted towards [`SUGGESTIONS_MAX`].
    suggestion_count: usize,
    scopes: Vec<Scope>,
}

/// The part of the file that belongs to a workflow, task or step.
struct Scope {
    start: SourceLocation,
    /// The location just after the part.
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
            suggestion_count: 0,
            scopes: Vec::new(),
        }
    }

    pub(super) fn add_error(&mut self, location: SourceLocation, message: impl Into<String>) {
        let diagnostic = self.build_diagnostic(location, message.into());
        self.errors.push(diagnostic);
    }

    pub(super) fn add_warning(&mut self, location: SourceLocation, message: impl Into<String>) {
        let diagnostic = self.build_diagnostic(location, message.into());
        self.warnings.push(diagnostic);
    }

    pub(super) fn add_advice(&mut self, location: SourceLocation, message: impl Into<String>) {
        let diagnostic = self.build_diagnostic(location, message.into());
        self.advice.push(diagnostic);
    }

    /// Records that the current workflow, task or step extends from `start` to `end`.
    pub(super) fn add_scope(&mut self, start: SourceLocation, end: SourceLocation) {
        self.scopes.push(Scope {
            start,
            end,
            workflow: self.workflow.clone(),
            task: self.task.clone(),
            step: self.step.clone(),
        });
    }

    /// Adds errors that occurred before the scopes were known, such as those of the YAML parser.
    /// Each gets the workflow, task and step of the innermost scope that contains it.
    pub(super) fn add_unscoped_errors(&mut self, errors: Vec<LocatedError>) {
        // The sort is stable, so of two scopes that begin at the same location, the inner one is
        // last: it was added later.
        self.scopes.sort_by_key(|scope| scope.start);
        for error in errors {
            let scopes_before = self.scopes.partition_point(|scope| scope.start <= error.location);
            if let Some(scope) =
                self.scopes[..scopes_before].iter().rev().find(|scope| error.location < scope.end)
            {
                (self.workflow, self.task, self.step) =
                    (scope.workflow.clone(), scope.task.clone(), scope.step.clone());
            }
            self.add_error(error.location, error.message);
            self.leave_scope();
        }
    }

    /// Returns `; did you mean "x"?`, or an empty text if no candidate is similar or
    /// [`SUGGESTIONS_MAX`] is reached. Counts towards that limit.
    pub(super) fn suggest<'a>(
        &mut self,
        text: &str,
        candidates: impl IntoIterator<Item = &'a str>,
    ) -> String {
        let suggestion =
            if self.can_suggest() { did_you_mean(text, candidates) } else { String::new() };
        self.count_suggestion();
        suggestion
    }

    /// Returns whether another search for similar words is allowed.
    pub(super) fn can_suggest(&self) -> bool {
        self.suggestion_count < SUGGESTIONS_MAX
    }

    /// Counts a search for similar words towards [`SUGGESTIONS_MAX`].
    pub(super) fn count_suggestion(&mut self) {
        self.suggestion_count += 1;
    }

    /// Leaves the current workflow, task and step.
    pub(super) fn leave_scope(&mut self) {
        self.workflow = None;
        self.task = None;
        self.step = None;
    }

    /// Sorts the diagnostics by location and removes duplicates. There are duplicates because the
    /// value of an alias is checked at each use, and gives the same error each time.
    pub(super) fn sort(&mut self) {
        for diagnostics in [&mut self.errors, &mut self.warnings, &mut self.advice] {
            diagnostics.sort_by_key(|diagnostic| (diagnostic.line, diagnostic.column));
            diagnostics.dedup();
        }
    }

    /// Returns a diagnostic in the current workflow, task and step.
    fn build_diagnostic(&self, location: SourceLocation, message: String) -> Diagnostic {
        Diagnostic {
            file: self.file.clone(),
            line: location.line,
            column: location.column,
            workflow: self.workflow.clone(),
            task: self.task.clone(),
            step: self.step.clone(),
            message,
        }
    }
}
