//! Places in a workflow file, and the mistakes that are made there.

use super::limits::NESTING_MAX;
use serde_yaml::granit_parser::Marker;
use std::fmt;

/// A place in a text; lines and columns count from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) line: usize,
    pub(super) column: usize,
}

impl Position {
    pub(super) const START: Position = Position { line: 1, column: 1 };

    /// The place of what is wrong with a file as a whole.
    pub(super) const NOWHERE: Position = Position { line: 0, column: 0 };
}

impl From<Marker> for Position {
    fn from(marker: Marker) -> Position {
        Position { line: marker.line().max(1), column: marker.col() + 1 }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A mistake in the YAML itself.
#[derive(Debug)]
pub(super) struct Mistake {
    pub(super) at: Position,
    pub(super) message: String,
}

impl Mistake {
    pub(super) fn new(at: Position, message: impl Into<String>) -> Mistake {
        Mistake { at, message: message.into() }
    }
}

pub(super) fn too_deep(at: Position) -> Mistake {
    Mistake::new(
        at,
        format!(
            "lists and mappings nest deeper than {NESTING_MAX} levels here; a workflow file needs \
             seven"
        ),
    )
}
