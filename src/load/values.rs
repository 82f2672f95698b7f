//! Parses single values of a file: names, texts, numbers, durations, choices.

use super::duration::{self, DURATION_MAX};
use super::limits::NAME_BYTES_MAX;
use super::limits::TEXT_BYTES_MAX;
use super::place::Position;
use super::report::Report;
use super::yaml::{Entry, Node, Scalar, Value};
use crate::engine::id::is_name;
use crate::engine::words::{enumerated, quoted, shortened};
use crate::engine::{Millis, Tolerate};

/// A text of the file with its location.
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub(super) at: Position,
    pub(super) text: String,
}

/// Parses a name, or a reference to one.
pub(super) fn reference(
    node: &Node,
    at: Position,
    expected: &str,
    report: &mut Report,
) -> Option<Word> {
    match &node.value {
        Value::Scalar(Scalar::Text, text) => Some(Word { at, text: text.clone() }),
        Value::Scalar(Scalar::Boolean, text) => {
            report.error(
                at,
                format!(
                    "expected {expected}, found {text}, which YAML may take for a boolean; put it \
                     into quotes: \"{text}\""
                ),
            );
            None
        }
        Value::Scalar(Scalar::Number, text) => {
            report.error(
                at,
                format!(
                    "expected {expected}, found the number {}; a name starts with a letter",
                    shortened(text)
                ),
            );
            None
        }
        Value::Broken => None,
        Value::Scalar(Scalar::Null, _) | Value::Map(_) | Value::List(_) => {
            report.error(at, format!("expected {expected}, found {}", found(node)));
            None
        }
    }
}

pub(super) fn objection_to_name(name: &str) -> Option<String> {
    if name == "__start__" || name == "__end__" {
        return Some(format!("{} is reserved: every workflow has it already", quoted(name)));
    }
    if !is_name(name) {
        return Some(format!(
            "{} is not a name: a letter, then letters, digits, `_` or `-`",
            quoted(name)
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
pub(super) fn bounded_text(
    node: &Node,
    at: Position,
    expected: &str,
    report: &mut Report,
) -> Option<Word> {
    let word = short_text(node, at, expected, report)?;
    if word.text.is_empty() {
        report.error(at, format!("expected {expected}, found an empty text"));
        return None;
    }
    Some(word)
}

/// Parses a text of at most [`TEXT_BYTES_MAX`] bytes without control characters.
pub(super) fn short_text(
    node: &Node,
    at: Position,
    expected: &str,
    report: &mut Report,
) -> Option<Word> {
    let text = text(node, at, expected, report)?;
    if text.len() > TEXT_BYTES_MAX {
        report.error(
            at,
            format!("expected {expected} of at most {TEXT_BYTES_MAX} bytes, found {}", text.len()),
        );
        return None;
    }
    if text.chars().any(char::is_control) {
        report.error(
            at,
            format!(
                "expected {expected}, found {}, with a line break or another control character in \
                 it",
                quoted(text)
            ),
        );
        return None;
    }
    Some(Word { at, text: text.to_owned() })
}

/// Parses a text that YAML does not read as another type.
pub(super) fn text<'n>(
    node: &'n Node,
    at: Position,
    expected: &str,
    report: &mut Report,
) -> Option<&'n str> {
    match &node.value {
        Value::Scalar(Scalar::Text, text) => return Some(text),
        Value::Scalar(kind @ (Scalar::Boolean | Scalar::Number), text) => {
            let kind = if *kind == Scalar::Number { "number" } else { "boolean" };
            report.error(
                at,
                format!(
                    "expected {expected}, found {text}, which YAML may take for a {kind}; put it \
                     into quotes: \"{text}\"",
                    text = shortened(text)
                ),
            );
        }
        Value::Broken => (),
        Value::Scalar(Scalar::Null, _) | Value::Map(_) | Value::List(_) => {
            report.error(at, format!("expected {expected}, found {}", found(node)))
        }
    }
    None
}

pub(super) fn whole_number(
    entry: &Entry,
    least: u64,
    most: u64,
    report: &mut Report,
) -> Option<u64> {
    let node = &entry.value;
    let parsed = match &node.value {
        Value::Scalar(Scalar::Number, text) => {
            text.parse::<u64>().ok().filter(|number| (least..=most).contains(number))
        }
        Value::Broken => return None,
        Value::Scalar(Scalar::Text | Scalar::Boolean | Scalar::Null, _)
        | Value::Map(_)
        | Value::List(_) => None,
    };
    if parsed.is_none() {
        let range = if most == u64::from(u32::MAX) {
            format!("of at least {least}")
        } else {
            format!("from {least} to {most}")
        };
        let quotes = match &node.value {
            Value::Scalar(Scalar::Text, text) if text.parse::<u64>().is_ok() => {
                "; remove the quotes"
            }
            Value::Scalar(..) | Value::Map(_) | Value::List(_) | Value::Broken => "",
        };
        report.error(
            entry.place(),
            format!(
                "{} takes a whole number {range}, found {}{quotes}",
                quoted(&entry.key.text),
                found(node)
            ),
        );
    }
    parsed
}

/// Describes the value that was found instead of the expected one.
pub(super) fn found(node: &Node) -> String {
    match &node.value {
        Value::Map(_) => "a mapping".to_owned(),
        Value::List(_) => "a list".to_owned(),
        Value::Scalar(Scalar::Text, text) => format!("the text {}", quoted(text)),
        Value::Scalar(Scalar::Number, text) => format!("the number {}", shortened(text)),
        Value::Scalar(Scalar::Boolean, text) => format!("the boolean {}", shortened(text)),
        Value::Scalar(Scalar::Null, _) | Value::Broken => "nothing".to_owned(),
    }
}

/// Parses `true` or `false`.
pub(super) fn boolean(entry: &Entry, report: &mut Report) -> Option<bool> {
    match &entry.value.value {
        Value::Scalar(Scalar::Boolean, text) if text == "true" => return Some(true),
        Value::Scalar(Scalar::Boolean, text) if text == "false" => return Some(false),
        Value::Broken => return None,
        Value::Scalar(..) | Value::Map(_) | Value::List(_) => (),
    }
    let quotes = match &entry.value.value {
        Value::Scalar(Scalar::Text, text) if text == "true" || text == "false" => {
            "; remove the quotes"
        }
        Value::Scalar(..) | Value::Map(_) | Value::List(_) | Value::Broken => "",
    };
    report.error(
        entry.place(),
        format!(
            "{} takes true or false, found {}{quotes}",
            quoted(&entry.key.text),
            found(&entry.value)
        ),
    );
    None
}

/// Parses one of the given words.
pub(super) fn choice<T: Copy>(
    entry: &Entry,
    choices: &[(&str, T)],
    report: &mut Report,
) -> Option<T> {
    let words = || choices.iter().map(|(word, _)| *word);
    let guess = match &entry.value.value {
        Value::Scalar(Scalar::Text, text) => match choices.iter().find(|(word, _)| word == text) {
            Some((_, chosen)) => return Some(*chosen),
            None => report.guess(text, words()),
        },
        Value::Broken => return None,
        Value::Scalar(..) | Value::Map(_) | Value::List(_) => String::new(),
    };
    report.error(
        entry.place(),
        format!(
            "{} takes {}, found {}{guess}",
            quoted(&entry.key.text),
            enumerated(words(), "or"),
            found(&entry.value)
        ),
    );
    None
}

/// Parses a duration of at least `least`, which is 1 ms where 0 has no meaning.
pub(super) fn span(entry: &Entry, least: Millis, report: &mut Report) -> Option<Millis> {
    let objection = match &entry.value.value {
        Value::Scalar(Scalar::Text, text) => match duration::parse(text) {
            Some(span) if span < least => "; it must be more than 0".to_owned(),
            Some(span) if span > DURATION_MAX => format!("; the longest is {DURATION_MAX}"),
            Some(span) => return Some(span),
            None => "; write whole numbers with the units d, h, m, s or ms, the larger unit first"
                .to_owned(),
        },
        Value::Scalar(Scalar::Number, text) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("; write its unit: {text}s, {text}m or {text}h", text = shortened(text))
        }
        Value::Broken => return None,
        Value::Scalar(..) | Value::Map(_) | Value::List(_) => String::new(),
    };
    report.error(
        entry.place(),
        format!(
            "{} takes a duration, such as 30s or 1h30m, found {}{objection}",
            quoted(&entry.key.text),
            found(&entry.value)
        ),
    );
    None
}

/// Parses how many child jobs may fail: `5` or `2.5%`.
pub(super) fn tolerance(entry: &Entry, report: &mut Report) -> Option<Tolerate> {
    let parsed = match &entry.value.value {
        Value::Scalar(Scalar::Number, text) => text.parse().ok().map(Tolerate::Count),
        Value::Scalar(Scalar::Text, text) => text
            .strip_suffix('%')
            .and_then(|percent| decimal(percent, SHARE_DIGITS))
            .filter(|share| *share <= SHARE_MAX)
            .and_then(|share| u32::try_from(share).ok())
            .map(Tolerate::Share),
        Value::Broken => return None,
        Value::Scalar(..) | Value::Map(_) | Value::List(_) => None,
    };
    if parsed.is_none() {
        let message = format!(
            "{} takes a number of child jobs, such as 5, or a share of them, such as 10% or 2.5%, \
             at most 100%; found {}",
            quoted(&entry.key.text),
            found(&entry.value)
        );
        report.error(entry.place(), message);
    }
    parsed
}

/// The decimals of a percentage.
const SHARE_DIGITS: u32 = 2;

/// The share of all child jobs, in hundredths of a percent.
const SHARE_MAX: u64 = 10_000;

/// The decimals of a factor.
const FACTOR_DIGITS: u32 = 3;

/// Parses a number from 1 to `most` with at most three decimals, in thousandths.
pub(super) fn factor(entry: &Entry, most: u32, report: &mut Report) -> Option<u32> {
    let range = 1_000..=u64::from(most) * 1_000;
    let parsed = match &entry.value.value {
        Value::Scalar(Scalar::Number, text) => {
            decimal(text, FACTOR_DIGITS).filter(|milli| range.contains(milli))
        }
        Value::Broken => return None,
        Value::Scalar(..) | Value::Map(_) | Value::List(_) => None,
    };
    if parsed.is_none() {
        let message = format!(
            "{} takes a number from 1 to {most} with at most three decimals, found {}",
            quoted(&entry.key.text),
            found(&entry.value)
        );
        report.error(entry.place(), message);
    }
    parsed.and_then(|milli| u32::try_from(milli).ok())
}

/// Parses a decimal number with up to `digits` decimals: `2.5` with two digits is 250.
fn decimal(text: &str, digits: u32) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let places = u32::try_from(fraction.len()).ok()?;
    if places == 0
        || places > digits
        || ![whole, fraction]
            .iter()
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
    {
        return None;
    }
    let fraction = fraction.parse::<u64>().ok()? * 10_u64.pow(digits - places);
    whole.parse::<u64>().ok()?.checked_mul(10_u64.pow(digits))?.checked_add(fraction)
}
