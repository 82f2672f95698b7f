//! Explains errors of deserializing a file in a sentence, without the location.

use engine::text::{did_you_mean, enumerate_quoted, quote, shorten};
use serde_yaml::{DefaultMessageFormatter, Error, MessageFormatter};

#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "the parser's other errors have words of their own"
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
        other => shortened_lines(&DefaultMessageFormatter.format_message(other)),
    }
}

/// Joins the lines of a text to one, shortening long ones.
fn shortened_lines(text: &str) -> String {
    text.lines()
        .map(|line| if line.len() > 400 { shorten(line) } else { line.to_owned() })
        .collect::<Vec<_>>()
        .join(" ")
}
