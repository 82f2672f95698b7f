//! The text of an expression, and errors at a position in it.

use crate::text::position_after;
use cel::common::ast::{IdedExpr, SourceInfo};

/// How deep an expression may nest: `a && (b || c)` nests two levels, `a + b + c` too. The
/// evaluation recurses over it.
pub const DEPTH_MAX: usize = 64;

/// Why a text is not a condition.
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

/// The text of an expression and the positions of its parts.
pub(super) struct Source<'t> {
    pub(super) text: &'t str,
    pub(super) source: &'t SourceInfo,
}

impl Source<'_> {
    /// Returns an error at a part of the expression.
    pub(super) fn error(&self, part: &IdedExpr, message: impl Into<String>) -> ExpressionError {
        let before = self.text.get(..self.offset(part)).unwrap_or_default();
        let (line, column) = position_after(before);
        ExpressionError { line, column, message: message.into() }
    }

    /// Returns where a part begins, in bytes. An operator begins at its sign.
    pub(super) fn offset(&self, part: &IdedExpr) -> usize {
        self.source
            .offset_for(part.id)
            .and_then(|(start, _)| usize::try_from(start).ok())
            .unwrap_or_default()
    }
}
