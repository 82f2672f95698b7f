//! Collects the diagnostics of a file, so that one error does not hide the next.

use super::place::{Mistake, Position};
use crate::engine::words::{did_you_mean, quoted};
use serde::Serialize;
use std::fmt;

/// An error, a warning or advice, with its location.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
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

impl fmt::Display for Problem {
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
                write!(f, "{separator}{noun} {}", quoted(name))?;
                separator = ", ";
            }
        }
        write!(f, ": {}", self.message)
    }
}

/// How many misspelt words of one file get a suggestion: each is compared with every candidate, and
/// the time is bounded.
const GUESSES_MAX: usize = 50;

/// The diagnostics of one file, and the workflow, task and step that are being read.
pub(super) struct Report {
    pub(super) file: String,
    pub(super) workflow: Option<String>,
    pub(super) task: Option<String>,
    pub(super) step: Option<String>,
    pub(super) errors: Vec<Problem>,
    pub(super) warnings: Vec<Problem>,
    pub(super) advice: Vec<Problem>,
    guesses: usize,
    scopes: Vec<Scope>,
}

/// The part of the file that belongs to a workflow, task or step.
struct Scope {
    at: Position,
    end: Position,
    workflow: Option<String>,
    task: Option<String>,
    step: Option<String>,
}

impl Report {
    pub(super) fn new(file: &str) -> Report {
        Report {
            file: file.to_owned(),
            workflow: None,
            task: None,
            step: None,
            errors: Vec::new(),
            warnings: Vec::new(),
            advice: Vec::new(),
            guesses: 0,
            scopes: Vec::new(),
        }
    }

    pub(super) fn error(&mut self, at: Position, message: impl Into<String>) {
        let problem = self.problem(at, message.into());
        self.errors.push(problem);
    }

    pub(super) fn warn(&mut self, at: Position, message: impl Into<String>) {
        let problem = self.problem(at, message.into());
        self.warnings.push(problem);
    }

    pub(super) fn advise(&mut self, at: Position, message: impl Into<String>) {
        let problem = self.problem(at, message.into());
        self.advice.push(problem);
    }

    /// Records that the current workflow, task and step extend from `at` to `end`.
    pub(super) fn entered(&mut self, at: Position, end: Position) {
        self.scopes.push(Scope {
            at,
            end,
            workflow: self.workflow.clone(),
            task: self.task.clone(),
            step: self.step.clone(),
        });
    }

    /// Adds errors that were found before the scopes of workflows, tasks and steps were known.
    pub(super) fn mistakes(&mut self, mistakes: Vec<Mistake>) {
        // The sort is stable: of two scopes that begin at the same location, the inner one was
        // added later.
        self.scopes.sort_by_key(|scope| scope.at);
        for mistake in mistakes {
            let begun = self.scopes.partition_point(|scope| scope.at <= mistake.at);
            if let Some(scope) =
                self.scopes[..begun].iter().rev().find(|scope| mistake.at < scope.end)
            {
                (self.workflow, self.task, self.step) =
                    (scope.workflow.clone(), scope.task.clone(), scope.step.clone());
            }
            self.error(mistake.at, mistake.message);
            self.leave();
        }
    }

    /// Returns `; did you mean "x"?`, or an empty text.
    pub(super) fn guess<'a>(
        &mut self,
        word: &str,
        candidates: impl IntoIterator<Item = &'a str>,
    ) -> String {
        let guess = if self.may_guess() { did_you_mean(word, candidates) } else { String::new() };
        self.guessed();
        guess
    }

    /// Returns whether another suggestion is allowed.
    pub(super) fn may_guess(&self) -> bool {
        self.guesses < GUESSES_MAX
    }

    pub(super) fn guessed(&mut self) {
        self.guesses += 1;
    }

    /// Leaves the current workflow, task and step.
    pub(super) fn leave(&mut self) {
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

    fn problem(&self, at: Position, message: String) -> Problem {
        Problem {
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
