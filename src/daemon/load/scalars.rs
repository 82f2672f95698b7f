//! Determines the types of YAML scalars, and where their characters are in the file.

use super::location::SourceLocation;
use serde_yaml::granit_parser::ScalarStyle;

/// How the characters of a scalar are laid out in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScalarLayout {
    /// On one line. The text begins this number of columns after the scalar's location: 1 after a
    /// quote, otherwise 0.
    Line(usize),
    /// A literal block (`|`): each line begins at the column of the scalar's location.
    Block,
    /// With escapes or folded lines, so that locations within the text are unknown; or not a
    /// scalar.
    Other,
}

/// The type that YAML gives to a scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScalarKind {
    Text,
    /// Includes `yes`, `no`, `on` and `off`, which are booleans in YAML 1.1.
    Boolean,
    Number,
    Null,
}

/// Returns how a scalar is laid out between its location and its end.
pub(super) fn find_layout(
    text: &str,
    style: ScalarStyle,
    location: SourceLocation,
    end: SourceLocation,
) -> ScalarLayout {
    if style == ScalarStyle::Literal && !text.starts_with(char::is_whitespace) {
        return ScalarLayout::Block;
    }
    let quote_columns = if style == ScalarStyle::Plain { 0 } else { 1 };
    let source_columns = quote_columns + text.chars().count() + quote_columns;
    // With an escape, the source is longer than the text.
    if location.line == end.line && location.column + source_columns == end.column {
        ScalarLayout::Line(quote_columns)
    } else {
        ScalarLayout::Other
    }
}

/// Returns the type of a scalar without quotes: that of the core schema of YAML 1.2, with two
/// exceptions. The words that are booleans in YAML 1.1 (except `y` and `n`) are booleans in any mix
/// of upper and lower case. The check for numbers is lenient: it accepts `-0x1` and `0o9`.
pub(super) fn plain_scalar_kind(text: &str) -> ScalarKind {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return ScalarKind::Null,
        ".inf" | ".Inf" | ".INF" | "+.inf" | "-.inf" | ".nan" | ".NaN" | ".NAN" => {
            return ScalarKind::Number;
        }
        _ => (),
    }
    if ["true", "false", "yes", "no", "on", "off"]
        .iter()
        .any(|word| text.eq_ignore_ascii_case(word))
    {
        return ScalarKind::Boolean;
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_number = match unsigned.as_bytes() {
        [b'0', b'x' | b'o', radix_digits @ ..] => {
            !radix_digits.is_empty() && radix_digits.iter().all(u8::is_ascii_hexdigit)
        }
        [b'0'..=b'9' | b'.', ..] => unsigned.parse::<f64>().is_ok(),
        _ => false,
    };
    if is_number { ScalarKind::Number } else { ScalarKind::Text }
}
