//! Locations in a workflow file, and errors at them.

use super::limits::NESTING_MAX;
use serde_yaml::granit_parser::Marker;
use std::fmt;

/// A location in a text. Line and column are counted from 1, the column in characters; both are 0
/// in [`SourceLocation::WHOLE_FILE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SourceLocation {
    pub(super) line: usize,
    pub(super) column: usize,
}

impl SourceLocation {
    /// The first character of a file.
    pub(super) const START: SourceLocation = SourceLocation { line: 1, column: 1 };

    /// The location of an error that concerns the whole file.
    pub(super) const WHOLE_FILE: SourceLocation = SourceLocation { line: 0, column: 0 };
}

impl From<Marker> for SourceLocation {
    /// Converts a location of the parser, which counts columns from 0.
    fn from(marker: Marker) -> SourceLocation {
        SourceLocation { line: marker.line().max(1), column: marker.col() + 1 }
    }
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// An error with its location. Its workflow, task and step are determined later, by
/// `Diagnostics::add_unscoped_errors`.
#[derive(Debug)]
pub(super) struct LocatedError {
    pub(super) location: SourceLocation,
    pub(super) message: String,
}

impl LocatedError {
    pub(super) fn new(location: SourceLocation, message: impl Into<String>) -> LocatedError {
        LocatedError { location, message: message.into() }
    }
}

/// Returns the error for a list or mapping that is nested too deep.
pub(super) fn nesting_error(location: SourceLocation) -> LocatedError {
    LocatedError::new(
        location,
        format!(
            "lists and mappings nest deeper than {NESTING_MAX} levels here; a workflow file needs \
             seven"
        ),
    )
}
