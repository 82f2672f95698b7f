//! Parses single values of a file: names, texts, numbers, durations, choices. For an invalid value,
//! each parser returns `None` and reports an error, unless the YAML parser has reported it already.

use super::diagnostics::Diagnostics;
use super::duration::{self, DURATION_MAX};
use super::limits::{NAME_BYTES_MAX, TEXT_BYTES_MAX};
use super::location::SourceLocation;
use super::scalars::ScalarKind;
use super::yaml::{Entry, Node, Value};
use engine::id::is_valid_name;
use engine::text::{enumerate_quoted, quote, shorten};
use engine::{Millis, Tolerate};

/// How many decimals a percentage may have.
const PERCENTAGE_DECIMALS: u32 = 2;

/// The largest share, 100 %, in hundredths of a percent.
const SHARE_MAX: u64 = 10_000;

/// How many decimals a factor may have.
const FACTOR_DECIMALS: u32 = 3;

/// The factor 1, as [`parse_factor`] returns it: in thousandths.
const FACTOR_ONE: u64 = 10_u64.pow(FACTOR_DECIMALS);

/// A text of the file with its location.
#[derive(Clone, Debug)]
pub(super) struct LocatedText {
    pub(super) location: SourceLocation,
    pub(super) text: String,
}

/// Parses a name, or a reference to one, without checking its characters. `expected` describes the
/// value in messages: "a name".
pub(super) fn parse_reference(
    node: &Node,
    location: SourceLocation,
    expected: &str,
    report: &mut Diagnostics,
) -> Option<LocatedText> {
    match &node.value {
        Value::Scalar(ScalarKind::Text, text) => Some(LocatedText { location, text: text.clone() }),
        Value::Scalar(ScalarKind::Boolean, text) => {
            report.add_error(
                location,
                format!(
                    "expected {expected}, found {text}, which YAML may take for a boolean; put it \
                     into quotes: \"{text}\""
                ),
            );
            None
        }
        Value::Scalar(ScalarKind::Number, text) => {
            report.add_error(
                location,
                format!(
                    "expected {expected}, found the number {}; a name starts with a letter",
                    shorten(text)
                ),
            );
            None
        }
        Value::Invalid => None,
        Value::Scalar(ScalarKind::Null, _) | Value::Map(_) | Value::List(_) => {
            report.add_error(location, format!("expected {expected}, found {}", describe(node)));
            None
        }
    }
}

/// Returns why a text cannot be the name of a workflow, task or step; `None` if it can.
pub(super) fn name_error(name: &str) -> Option<String> {
    if name == "__start__" || name == "__end__" {
        return Some(format!("{} is reserved: every workflow has it already", quote(name)));
    }
    if !is_valid_name(name) {
        return Some(format!(
            "{} is not a name: a letter, then letters, digits, `_` or `-`",
            quote(name)
        ));
    }
    if name.len() > NAME_BYTES_MAX {
        return Some(format!(
            "the name has {} characters, more than the {NAME_BYTES_MAX} that fit into a message's \
             properties",
            name.len()
        ));
    }
    None
}

/// Parses a text of 1 to [`TEXT_BYTES_MAX`] bytes without control characters.
pub(super) fn parse_nonempty_text(
    node: &Node,
    location: SourceLocation,
    expected: &str,
    report: &mut Diagnostics,
) -> Option<LocatedText> {
    let located = parse_short_text(node, location, expected, report)?;
    if located.text.is_empty() {
        report.add_error(location, format!("expected {expected}, found an empty text"));
        return None;
    }
    Some(located)
}

/// Parses a text of at most [`TEXT_BYTES_MAX`] bytes without control characters.
pub(super) fn parse_short_text(
    node: &Node,
    location: SourceLocation,
    expected: &str,
    report: &mut Diagnostics,
) -> Option<LocatedText> {
    let text = parse_text(node, location, expected, report)?;
    if text.len() > TEXT_BYTES_MAX {
        report.add_error(
            location,
            format!("expected {expected} of at most {TEXT_BYTES_MAX} bytes, found {}", text.len()),
        );
        return None;
    }
    if text.chars().any(char::is_control) {
        report.add_error(
            location,
            format!(
                "expected {expected}, found {}, with a line break or another control character in \
                 it",
                quote(text)
            ),
        );
        return None;
    }
    Some(LocatedText { location, text: text.to_owned() })
}

/// Parses a text of any length. An unquoted scalar that YAML reads as another type is an error.
pub(super) fn parse_text<'n>(
    node: &'n Node,
    location: SourceLocation,
    expected: &str,
    report: &mut Diagnostics,
) -> Option<&'n str> {
    match &node.value {
        Value::Scalar(ScalarKind::Text, text) => return Some(text),
        Value::Scalar(kind @ (ScalarKind::Boolean | ScalarKind::Number), text) => {
            let type_name = if *kind == ScalarKind::Number { "number" } else { "boolean" };
            report.add_error(
                location,
                format!(
                    "expected {expected}, found {text}, which YAML may take for a {type_name}; put \
                     it into quotes: \"{text}\"",
                    text = shorten(text)
                ),
            );
        }
        Value::Invalid => (),
        Value::Scalar(ScalarKind::Null, _) | Value::Map(_) | Value::List(_) => {
            report.add_error(location, format!("expected {expected}, found {}", describe(node)))
        }
    }
    None
}

/// Parses a whole number from `min` to `max`, both included.
pub(super) fn parse_integer(
    entry: &Entry,
    min: u64,
    max: u64,
    report: &mut Diagnostics,
) -> Option<u64> {
    let node = &entry.value;
    let number = match &node.value {
        Value::Scalar(ScalarKind::Number, text) => {
            text.parse::<u64>().ok().filter(|number| (min..=max).contains(number))
        }
        Value::Invalid => return None,
        Value::Scalar(ScalarKind::Text | ScalarKind::Boolean | ScalarKind::Null, _)
        | Value::Map(_)
        | Value::List(_) => None,
    };
    if number.is_none() {
        // This maximum only stands for the range of the type, not for a limit.
        let range = if max == u64::from(u32::MAX) {
            format!("of at least {min}")
        } else {
            format!("from {min} to {max}")
        };
        let advice = advise_quotes(node, |text| text.parse::<u64>().is_ok());
        report.add_error(
            entry.location(),
            format!(
                "{} takes a whole number {range}, found {}{advice}",
                quote(&entry.key.text),
                describe(node)
            ),
        );
    }
    number
}

/// Returns advice to remove the quotes of a text that would be valid without them, or an empty
/// text.
fn advise_quotes(node: &Node, is_valid: impl Fn(&str) -> bool) -> &'static str {
    match &node.value {
        Value::Scalar(ScalarKind::Text, text) if is_valid(text) => "; remove the quotes",
        Value::Scalar(..) | Value::Map(_) | Value::List(_) | Value::Invalid => "",
    }
}

/// Describes an unexpected value, for messages: "the number 5".
pub(super) fn describe(node: &Node) -> String {
    match &node.value {
        Value::Map(_) => "a mapping".to_owned(),
        Value::List(_) => "a list".to_owned(),
        Value::Scalar(ScalarKind::Text, text) => format!("the text {}", quote(text)),
        Value::Scalar(ScalarKind::Number, text) => format!("the number {}", shorten(text)),
        Value::Scalar(ScalarKind::Boolean, text) => format!("the boolean {}", shorten(text)),
        Value::Scalar(ScalarKind::Null, _) | Value::Invalid => "nothing".to_owned(),
    }
}

/// Parses `true` or `false`, in this spelling only.
pub(super) fn parse_boolean(entry: &Entry, report: &mut Diagnostics) -> Option<bool> {
    match &entry.value.value {
        Value::Scalar(ScalarKind::Boolean, text) if text == "true" => return Some(true),
        Value::Scalar(ScalarKind::Boolean, text) if text == "false" => return Some(false),
        Value::Invalid => return None,
        Value::Scalar(..) | Value::Map(_) | Value::List(_) => (),
    }
    let advice = advise_quotes(&entry.value, |text| text == "true" || text == "false");
    report.add_error(
        entry.location(),
        format!(
            "{} takes true or false, found {}{advice}",
            quote(&entry.key.text),
            describe(&entry.value)
        ),
    );
    None
}

/// Parses one of the words of `choices`, and returns the value that is paired with it.
pub(super) fn parse_choice<T: Copy>(
    entry: &Entry,
    choices: &[(&str, T)],
    report: &mut Diagnostics,
) -> Option<T> {
    let names = || choices.iter().map(|(name, _)| *name);
    let suggestion = match &entry.value.value {
        Value::Scalar(ScalarKind::Text, text) => {
            match choices.iter().find(|(name, _)| name == text) {
                Some((_, value)) => return Some(*value),
                None => report.suggest(text, names()),
            }
        }
        Value::Invalid => return None,
        Value::Scalar(..) | Value::Map(_) | Value::List(_) => String::new(),
    };
    report.add_error(
        entry.location(),
        format!(
            "{} takes {}, found {}{suggestion}",
            quote(&entry.key.text),
            enumerate_quoted(names(), "or"),
            describe(&entry.value)
        ),
    );
    None
}

/// Parses a duration from `min` to [`DURATION_MAX`]. `min` is 1 ms where a duration of 0 has no
/// meaning, otherwise 0.
pub(super) fn parse_duration(
    entry: &Entry,
    min: Millis,
    report: &mut Diagnostics,
) -> Option<Millis> {
    let hint = match &entry.value.value {
        Value::Scalar(ScalarKind::Text, text) => match duration::parse(text) {
            Some(duration) if duration < min => "; it must be more than 0".to_owned(),
            Some(duration) if duration > DURATION_MAX => format!("; the longest is {DURATION_MAX}"),
            Some(duration) => return Some(duration),
            None => "; write whole numbers with the units d, h, m, s or ms, the larger unit first"
                .to_owned(),
        },
        Value::Scalar(ScalarKind::Number, text)
            if text.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            format!("; write its unit: {text}s, {text}m or {text}h", text = shorten(text))
        }
        Value::Invalid => return None,
        Value::Scalar(..) | Value::Map(_) | Value::List(_) => String::new(),
    };
    report.add_error(
        entry.location(),
        format!(
            "{} takes a duration, such as 30s or 1h30m, found {}{hint}",
            quote(&entry.key.text),
            describe(&entry.value)
        ),
    );
    None
}

/// Parses how many child jobs may fail: `5` or `2.5%`.
pub(super) fn parse_tolerance(entry: &Entry, report: &mut Diagnostics) -> Option<Tolerate> {
    let tolerance = match &entry.value.value {
        Value::Scalar(ScalarKind::Number, text) => text.parse().ok().map(Tolerate::Count),
        Value::Scalar(ScalarKind::Text, text) => text
            .strip_suffix('%')
            .and_then(|percentage| parse_decimal(percentage, PERCENTAGE_DECIMALS))
            .filter(|share| *share <= SHARE_MAX)
            .and_then(|share| u32::try_from(share).ok())
            .map(Tolerate::Share),
        Value::Invalid => return None,
        Value::Scalar(..) | Value::Map(_) | Value::List(_) => None,
    };
    if tolerance.is_none() {
        let message = format!(
            "{} takes a number of child jobs, such as 5, or a share of them, such as 10% or 2.5%, \
             at most 100%; found {}",
            quote(&entry.key.text),
            describe(&entry.value)
        );
        report.add_error(entry.location(), message);
    }
    tolerance
}

/// Parses a number from 1 to `max` with at most three decimals. Returns it in thousandths.
pub(super) fn parse_factor(entry: &Entry, max: u32, report: &mut Diagnostics) -> Option<u32> {
    let range = FACTOR_ONE..=u64::from(max) * FACTOR_ONE;
    let factor = match &entry.value.value {
        Value::Scalar(ScalarKind::Number, text) => {
            parse_decimal(text, FACTOR_DECIMALS).filter(|thousandths| range.contains(thousandths))
        }
        Value::Invalid => return None,
        Value::Scalar(..) | Value::Map(_) | Value::List(_) => None,
    };
    if factor.is_none() {
        let message = format!(
            "{} takes a number from 1 to {max} with at most three decimals, found {}",
            quote(&entry.key.text),
            describe(&entry.value)
        );
        report.add_error(entry.location(), message);
    }
    factor.and_then(|thousandths| u32::try_from(thousandths).ok())
}

/// Parses a decimal number as a fixed-point number: `2.5` with `decimals_max` 2 is 250. Returns
/// `None` if the text is malformed, has more decimals, or is too large.
fn parse_decimal(text: &str, decimals_max: u32) -> Option<u64> {
    let (integer, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let decimals = u32::try_from(fraction.len()).ok()?;
    if decimals > decimals_max
        || ![integer, fraction]
            .iter()
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
    {
        return None;
    }
    let fraction_units = fraction.parse::<u64>().ok()? * 10_u64.pow(decimals_max - decimals);
    let integer_units = integer.parse::<u64>().ok()?.checked_mul(10_u64.pow(decimals_max))?;
    integer_units.checked_add(fraction_units)
}
