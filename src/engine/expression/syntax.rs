//! Explains syntax errors: what is wrong with a text that is not CEL, and what to write instead.

use super::source::{DEPTH_MAX, ExpressionError};
use crate::text::{quote, shorten};
use cel::ParseErrors;

/// The prefix of the parser's errors about violations of the grammar.
const GRAMMAR_PREFIX: &str = "Syntax error: ";

/// Explains the first of the parser's errors, with a suggestion if possible.
pub(super) fn explain_errors(errors: &ParseErrors, text: &str) -> ExpressionError {
    // A violation of the grammar is the cause of the other errors, so it is explained first.
    let grammar_error = errors.errors.iter().find(|error| error.msg.starts_with(GRAMMAR_PREFIX));
    let Some(first) = grammar_error.or(errors.errors.first()) else {
        return ExpressionError { line: 1, column: 1, message: "is not CEL".to_owned() };
    };
    let (line, column) = (first.pos.0.max(1).unsigned_abs(), first.pos.1.max(1).unsigned_abs());
    ExpressionError { line, column, message: explain_error(&first.msg, text, line, column) }
}

/// Explains the parser's message about the position at a line and a column of `text`, from 1.
fn explain_error(parser_message: &str, text: &str, line: usize, column: usize) -> String {
    let error_line = text.split('\n').nth(line - 1).unwrap_or("");
    let error_offset =
        error_line.char_indices().nth(column - 1).map_or(error_line.len(), |(offset, _)| offset);
    let (before, after) = error_line.split_at(error_offset);
    let found_word = first_word(after);
    if text.trim().is_empty() {
        return "is empty; expected a condition, such as `input.count > 0`".to_owned();
    }
    if let Some(message) = suggest_operator(found_word)
        .or_else(|| before.split_whitespace().next_back().and_then(suggest_operator))
    {
        return message;
    }
    let Some(grammar_message) = parser_message.strip_prefix(GRAMMAR_PREFIX) else {
        return explain_other_error(parser_message);
    };
    if grammar_message.starts_with("token recognition error") {
        return explain_unknown_character(after);
    }
    if grammar_message.contains("Recursion limit") {
        return format!("nests deeper than {DEPTH_MAX} levels");
    }
    if after.is_empty() && text.split('\n').skip(line).all(|line| line.trim().is_empty()) {
        return "ends too early; a value, a bracket or a `:` is missing".to_owned();
    }
    // Where the end would be allowed, a value has just ended.
    let is_after_value =
        grammar_message.contains("{<EOF>") || grammar_message.ends_with("expecting <EOF>");
    let expected =
        if is_after_value { "an operator such as `&&` or `==`, or the end" } else { "a value" };
    format!("expected {expected}, found {}", quote(found_word))
}

/// Returns the word with which `text` begins, or its first character if that is in no word.
fn first_word(text: &str) -> &str {
    let is_in_word = |c: char| c.is_alphanumeric() || c == '_';
    let end = match text.find(|c| !is_in_word(c)) {
        Some(0) => text.chars().next().map_or(0, char::len_utf8),
        Some(end) => end,
        None => text.len(),
    };
    &text[..end]
}

/// Suggests the CEL operator for a word operator of another language.
fn suggest_operator(word: &str) -> Option<String> {
    let operator = match word.to_ascii_lowercase().as_str() {
        "and" => "&&",
        "or" => "||",
        "not" => "!",
        "is" => "==",
        _ => return None,
    };
    Some(format!("`{word}` is written `{operator}`"))
}

/// Explains why the lexer does not accept the first character of `text`.
fn explain_unknown_character(text: &str) -> String {
    match text.chars().next() {
        Some('=') => "`=` is not an operator; `==` compares".to_owned(),
        Some(sign @ ('&' | '|')) => format!("`{sign}` is not an operator; write `{sign}{sign}`"),
        Some('"' | '\'') => "this text has no closing quote in its line, or an unknown escape; \
                             write `\\\\` for a backslash"
            .to_owned(),
        Some(letter) if letter.is_alphabetic() => {
            format!(
                "`{letter}` cannot stand in a name; a key of other characters than a-z, 0-9 and \
                 `_` goes into brackets: [\"..\"]"
            )
        }
        Some(character) => format!("`{}` means nothing here", shorten(&character.to_string())),
        None => "this means nothing here".to_owned(),
    }
}

/// Explains an error that is not about the grammar, in clearer words than the parser.
fn explain_other_error(parser_message: &str) -> String {
    // The beginnings of the parser's messages, with their explanations.
    let explanations = [
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
    let explanation = explanations.iter().find(|(prefix, _)| parser_message.starts_with(prefix));
    if let Some((_, explanation)) = explanation {
        return (*explanation).to_owned();
    }
    match parser_message.strip_prefix("reserved identifier: ") {
        Some(word) => format!(
            "{} is a reserved word; a key of that name goes into brackets: [\"{word}\"]",
            quote(word)
        ),
        None => shorten(parser_message),
    }
}
