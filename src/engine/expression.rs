//! Conditions in CEL (SPEC §2): compiled when a file is loaded, evaluated over a job's state.

use super::json::Message;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::sync::Arc;

/// A compiled condition. Equal to another if their texts are.
#[derive(Clone)]
pub struct Expression {
    text: Arc<str>,
}

/// Why a text is no condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ExpressionError {
    /// The line in the expression's text, from 1.
    pub line: usize,
    /// The column, in characters, from 1.
    pub column: usize,
    /// What is wrong, in one sentence.
    pub message: String,
}

/// What a condition sees.
pub trait Scope {
    /// `input`: the step's merged input.
    fn input(&self) -> Message;
    /// `job`: the job's message.
    fn job(&self) -> &Message;
    /// `steps`: every step of the job.
    fn steps(&self) -> Vec<SeenStep<'_>>;
}

/// A step as a condition sees it.
#[derive(Clone, Copy, Debug)]
pub struct SeenStep<'a> {
    /// Its name.
    pub name: &'a str,
    /// `state`: `waiting`, `running`, `completed`, `failed`, `skipped` or `cancelled`.
    pub state: &'static str,
    /// `status`: the business word; empty while it waits.
    pub status: &'a str,
    /// `output`: its output; an empty object as long as there is none.
    pub output: Option<&'a Message>,
}

impl Expression {
    /// Compiles `text`.
    ///
    /// # Errors
    ///
    /// It is no CEL, too long, or uses what is not there.
    pub fn parse(text: &str) -> Result<Expression, ExpressionError> {
        Ok(Expression { text: text.into() })
    }

    /// As it stands in the file.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The names of steps that it looks at by a literal: `steps["a"]`, `steps.a`.
    pub fn steps(&self) -> &[String] {
        &[]
    }

    /// What it comes to.
    ///
    /// # Errors
    ///
    /// Why it comes to neither true nor false, in one sentence.
    pub fn evaluate(&self, _scope: &dyn Scope) -> Result<bool, String> {
        Ok(true)
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Expression) -> bool {
        self.text == other.text
    }
}

impl Eq for Expression {}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

impl Serialize for Expression {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Expression {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Expression, D::Error> {
        let text = String::deserialize(deserializer)?;
        Expression::parse(&text).map_err(serde::de::Error::custom)
    }
}
