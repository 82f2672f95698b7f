//! Explains YAML syntax errors: adds to the parser's message a hint at how to fix the file.

use super::location::{LocatedError, SourceLocation, nesting_error};
use serde_yaml::granit_parser::{ErrorKind, ScanError};

/// Returns the parser's error with a hint. An error about a tab gets the location of the tab, other
/// errors keep the parser's.
pub(super) fn explain(error: &ScanError, text: &str) -> LocatedError {
    let mut location = SourceLocation::from(*error.marker());
    let kind = error.kind();
    if matches!(kind, ErrorKind::RecursionLimitExceeded) {
        return nesting_error(location);
    }
    let hint = if matches!(
        kind,
        ErrorKind::TabInBlockIndentation
            | ErrorKind::TabInIndentation
            | ErrorKind::TabNotAllowed
            | ErrorKind::TabInPlainScalar
    ) {
        location = find_tab(text, location).unwrap_or(location);
        "; indent with spaces"
    } else if matches!(kind, ErrorKind::MappingValueNotAllowed | ErrorKind::InvalidColonPlacement) {
        "; check the indentation and whether the line above lacks its `:`; a string that contains \
         `: ` needs quotes"
    } else if matches!(
        kind,
        ErrorKind::ExpectedBlockMappingKey
            | ErrorKind::ExpectedBlockSequenceEntry
            | ErrorKind::InvalidIndentation
            | ErrorKind::BlockSequenceEntryNotAllowed
    ) {
        "; check the indentation of this line against the lines above"
    } else if matches!(kind, ErrorKind::SimpleKeyExpected | ErrorKind::InvalidSimpleKey) {
        "; a line within a mapping reads `key: value`"
    } else if matches!(
        kind,
        ErrorKind::UnexpectedCharacter { .. } | ErrorKind::UnexpectedEndOfPlainScalar
    ) {
        "; put a string with special characters into quotes"
    } else if matches!(
        kind,
        ErrorKind::UnclosedFlowCollection { .. }
            | ErrorKind::UnexpectedEofFlowSequence
            | ErrorKind::UnexpectedEofFlowMapping
    ) {
        "; close it with `]` or `}`"
    } else if matches!(
        kind,
        ErrorKind::UnclosedQuotedScalar
            | ErrorKind::InvalidQuotedScalarIndent
            | ErrorKind::DocumentIndicatorInQuotedScalar
            | ErrorKind::UnexpectedEof
    ) {
        "; is a closing quote missing in a line above?"
    } else {
        ""
    };
    LocatedError::new(location, format!("this is not valid YAML: {}{hint}", error.info()))
}

/// Finds the first tab in an indentation, on the line of `location` or below. The parser reports
/// where its token began, which may be before the tab.
fn find_tab(text: &str, location: SourceLocation) -> Option<SourceLocation> {
    text.split('\n').enumerate().skip(location.line - 1).find_map(|(line_index, line)| {
        let indentation_bytes = line.len() - line.trim_start_matches([' ', '\t']).len();
        let tab_index = line[..indentation_bytes].find('\t')?;
        Some(SourceLocation { line: line_index + 1, column: tab_index + 1 })
    })
}
