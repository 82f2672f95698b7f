//! Locations in a workflow file, and errors at them.

use super::limits::NESTING_MAX;
use serde_yaml::granit_parser::Marker;
use std::fmt;

/// A location in a text: line and column, both counted from 1, the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) line: usize,
    pub(super) column: usize,
}

impl Position {
    pub(super) const START: Position = Position { line: 1, column: 1 };

    /// The location of an error that concerns the whole file.
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

/// An error in the YAML itself, with its location.
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
