//! Locations in a workflow file, and errors at them.

use super::limits::NESTING_MAX;
use serde_yaml::granit_parser::Marker;
use std::fmt;

/// A location in a text: line and column, both counted from 1, the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SourceLocation {
    pub(super) line: usize,
    pub(super) column: usize,
}

impl SourceLocation {
    pub(super) const START: SourceLocation = SourceLocation { line: 1, column: 1 };

    /// The location of an error that concerns the whole file.
    pub(super) const WHOLE_FILE: SourceLocation = SourceLocation { line: 0, column: 0 };
}

impl From<Marker> for SourceLocation {
    fn from(marker: Marker) -> SourceLocation {
        SourceLocation { line: marker.line().max(1), column: marker.col() + 1 }
    }
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// An error in the YAML itself, with its location.
#[derive(Debug)]
pub(super) struct LocatedError {
    pub(super) at: SourceLocation,
    pub(super) message: String,
}

impl LocatedError {
    pub(super) fn new(at: SourceLocation, message: impl Into<String>) -> LocatedError {
        LocatedError { at, message: message.into() }
    }
}

pub(super) fn nesting_error(at: SourceLocation) -> LocatedError {
    LocatedError::new(
        at,
        format!(
            "lists and mappings nest deeper than {NESTING_MAX} levels here; a workflow file needs \
             seven"
        ),
    )
}
