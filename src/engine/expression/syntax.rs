//! Explains text that is not CEL: what is wrong, and what to write instead.

use super::source::{DEPTH_MAX, ExpressionError};
use crate::text::{quote, shorten};
use cel::ParseErrors;

/// How the parser's errors begin when a text does not follow the grammar.
const GRAMMAR: &str = "Syntax error: ";

/// Explains the first error, with what to do where possible.
pub(super) fn explain_errors(errors: &ParseErrors, text: &str) -> ExpressionError {
    // The other errors of a text that does not follow the grammar are consequences.
    let grammar = errors.errors.iter().find(|error| error.msg.starts_with(GRAMMAR));
    let Some(first) = grammar.or(errors.errors.first()) else {
        return ExpressionError { line: 1, column: 1, message: "is no CEL".to_owned() };
    };
    let (line, column) = (first.pos.0.max(1).unsigned_abs(), first.pos.1.max(1).unsigned_abs());
    ExpressionError { line, column, message: explain_error(&first.msg, text, line, column) }
}

fn explain_error(parser_message: &str, text: &str, line: usize, column: usize) -> String {
    let error_line = text.split('\n').nth(line - 1).unwrap_or("");
    let (before, rest) = error_line
        .split_at(error_line.char_indices().nth(column - 1).map_or(error_line.len(), |(at, _)| at));
    let word = word_at(rest);
    if text.trim().is_empty() {
        return "is empty; expected a condition, such as `input.count > 0`".to_owned();
    }
    if let Some(message) =
        suggest_sign(word).or_else(|| before.split_whitespace().next_back().and_then(suggest_sign))
    {
        return message;
    }
    let Some(syntax) = parser_message.strip_prefix(GRAMMAR) else {
        return explain_other(parser_message);
    };
    if syntax.starts_with("token recognition error") {
        return explain_unknown_sign(rest);
    }
    if syntax.contains("Recursion limit") {
        return format!("nests deeper than {DEPTH_MAX} levels");
    }
    if rest.is_empty() && !text.split('\n').skip(line).any(|later| !later.trim().is_empty()) {
        return "ends too early; a value, a bracket or a `:` is missing".to_owned();
    }
    let expected = if syntax.contains("{<EOF>") || syntax.ends_with("expecting <EOF>") {
        "an operator such as `&&` or `==`, or the end"
    } else {
        "a value"
    };
    format!("expected {expected}, found {}", quote(word))
}

/// Returns the word or sign that `rest` begins with.
fn word_at(rest: &str) -> &str {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    let end = match rest.find(|c| !in_word(c)) {
        Some(0) => rest.chars().next().map_or(0, char::len_utf8),
        Some(end) => end,
        None => rest.len(),
    };
    &rest[..end]
}

/// Returns the CEL sign for a word of other languages.
fn suggest_sign(word: &str) -> Option<String> {
    let sign = match word.to_ascii_lowercase().as_str() {
        "and" => "&&",
        "or" => "||",
        "not" => "!",
        "is" => "==",
        _ => return None,
    };
    Some(format!("`{word}` is written `{sign}`"))
}

fn explain_unknown_sign(rest: &str) -> String {
    match rest.chars().next() {
        Some('=') => "`=` is no operator; `==` compares".to_owned(),
        Some(sign @ ('&' | '|')) => format!("`{sign}` is no operator; write `{sign}{sign}`"),
        Some('"' | '\'') => "this text has no closing quote in its line, or an unknown escape; \
                             write `\\\\` for a backslash"
            .to_owned(),
        Some(letter) if letter.is_alphabetic() => {
            format!(
                "`{letter}` cannot stand in a name; a key of other characters than a-z, 0-9 and \
                 `_` goes into brackets: [\"..\"]"
            )
        }
        Some(sign) => format!("`{}` means nothing here", shorten(&sign.to_string())),
        None => "this means nothing here".to_owned(),
    }
}

/// Explains the parser's other errors in clearer words.
fn explain_other(parser_message: &str) -> String {
    let known = [
        ("invalid argument to has()", "has() asks for a key, as in has(input.count)"),
        (
            "argument must be a simple name",
            "the first argument names the variable of the loop, as in list.all(item, item > 0)",
        ),
        ("unsupported syntax: '`'", "a key goes into brackets with quotes: [\"..\"]"),
        (
            "unsupported syntax '",
            "`?` behind a dot or bracket is not available; ask with has(), as in has(input.count)",
        ),
        ("invalid int literal", "this number is too large for an int"),
        ("invalid uint literal", "this number is too large for a uint"),
        ("invalid double literal", "this number is too large for a double"),
    ];
    if let Some((_, better)) = known.iter().find(|(start, _)| parser_message.starts_with(start)) {
        return (*better).to_owned();
    }
    match parser_message.strip_prefix("reserved identifier: ") {
        Some(word) => format!(
            "{} is a reserved word; a key of that name goes into brackets: [\"{word}\"]",
            quote(word)
        ),
        None => shorten(parser_message),
    }
}
