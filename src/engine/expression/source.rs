//! The source text of an expression, and errors with a position in it.

use crate::text::position_after;
use cel::common::ast::{IdedExpr, SourceInfo};

/// The maximum depth of a syntax tree, over which the evaluation recurses. An operand is one level
/// below its operator: both `a && (b || c)` and `a + b + c` have the depth 3.
pub const DEPTH_MAX: usize = 64;

/// The error for a text that is not a valid condition.
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

/// The text of an expression, and the positions of its syntax nodes.
pub(super) struct Source<'t> {
    pub(super) text: &'t str,
    /// The positions of the nodes, by their ids.
    pub(super) info: &'t SourceInfo,
}

impl Source<'_> {
    /// Creates an error at the position of a node.
    pub(super) fn error(&self, node: &IdedExpr, message: impl Into<String>) -> ExpressionError {
        let before = self.text.get(..self.offset(node)).unwrap_or_default();
        let (line, column) = position_after(before);
        ExpressionError { line, column, message: message.into() }
    }

    /// Returns the byte offset at which a node begins; 0: it has no position. A binary operation
    /// begins at its operator.
    pub(super) fn offset(&self, node: &IdedExpr) -> usize {
        self.info
            .offset_for(node.id)
            .and_then(|(start, _)| usize::try_from(start).ok())
            .unwrap_or_default()
    }
}
