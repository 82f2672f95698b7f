//! Explains errors of deserialization in one sentence, for YAML files that are not workflow files.

use engine::text::{did_you_mean, enumerate_quoted, quote, shorten};
use serde_yaml::{DefaultMessageFormatter, Error, MessageFormatter};

/// Returns the message for an error, without its location.
#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "the parser's own messages serve for the other errors"
)]
pub(super) fn explain(error: &Error) -> String {
    match error.without_snippet() {
        Error::SerdeUnknownField { field, expected, .. } => {
            let hint = did_you_mean(field, expected.iter().copied());
            format!(
                "unknown key {}{hint}; known are {}",
                quote(field),
                enumerate_quoted(expected.iter().copied(), "and")
            )
        }
        Error::SerdeMissingField { field, .. } => format!("the key {} is missing", quote(field)),
        error => join_lines(&DefaultMessageFormatter.format_message(error)),
    }
}

/// The longest line of a parser's message that is not shortened, in bytes.
const LINE_BYTES_MAX: usize = 400;

/// Joins the lines of a text to a single one, and shortens long lines.
fn join_lines(text: &str) -> String {
    text.lines()
        .map(|line| if line.len() > LINE_BYTES_MAX { shorten(line) } else { line.to_owned() })
        .collect::<Vec<_>>()
        .join(" ")
}
