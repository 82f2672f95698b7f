//! Text for errors and terminals: escaping, truncation, and suggestions for misspelt words.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// The maximum length of a quoted text in an error, in characters.
const SHORTENED_CHARACTERS_MAX: usize = 80;

/// The maximum length of a word for which a correction is suggested, in bytes. Comparing two words
/// takes O(n²).
const CORRECTED_BYTES_MAX: usize = 40;

/// Returns whether a character is unsafe to print: it could move a terminal's cursor, start a new
/// line, or change the direction of the text.
pub fn is_unsafe_to_print(character: char) -> bool {
    let is_line_break = matches!(character, '\u{2028}' | '\u{2029}');
    let is_bidi_control = matches!(
        character,
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{206f}'
    );
    character.is_control() || is_line_break || is_bidi_control
}

/// Escapes an untrusted text for printing on one line: control characters, line breaks and
/// bidirectional controls become `\n`, `\u{1b}` and the like. Text output uses it, JSON does not: a
/// JSON log has its own escapes for these characters.
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe_to_print) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    // Writing to a string cannot fail.
    let _ = EscapingWriter(&mut escaped).write_str(text);
    Cow::Owned(escaped)
}

/// Escapes each line as [`escape`] does, for a text with trusted line breaks.
pub fn escape_lines(text: &str) -> String {
    text.split('\n').map(escape).collect::<Vec<_>>().join("\n")
}

/// Returns the encoding whose byte-order mark is at the beginning of `text`; `None`: there is no
/// such mark.
pub fn find_byte_order_mark(text: &[u8]) -> Option<&'static str> {
    match text {
        [0xef, 0xbb, 0xbf, ..] => Some("UTF-8"),
        [0xff, 0xfe, ..] => Some("UTF-16 LE"),
        [0xfe, 0xff, ..] => Some("UTF-16 BE"),
        _ => None,
    }
}

/// Explains a JSON syntax error in words that users understand.
pub(crate) fn explain_json_error(error: &serde_json::Error) -> String {
    // The start of the parser's message for a word such as `nope` or `None`.
    const UNKNOWN_WORD: &str = "expected ident";
    // The starts of its messages for half of a surrogate pair.
    const LONE_SURROGATE: [&str; 2] =
        ["lone leading surrogate in hex escape", "unexpected end of hex escape"];
    let message = error.to_string();
    if let Some(position) = message.strip_prefix(UNKNOWN_WORD) {
        return format!(
            "expected null, true, false, a number, or a string in double quotes{position}"
        );
    }
    LONE_SURROGATE.iter().find_map(|prefix| message.strip_prefix(prefix)).map_or_else(
        || message.clone(),
        |position| format!("half a surrogate pair, such as \\ud800, is not a character{position}"),
    )
}

/// A writer that escapes everything that is written to it, as [`escape`] does.
pub struct EscapingWriter<'w, W>(pub &'w mut W);

impl<W: Write> Write for EscapingWriter<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.split_inclusive(is_unsafe_to_print) {
            match part.chars().next_back().filter(|last| is_unsafe_to_print(*last)) {
                Some(last) => write!(
                    self.0,
                    "{}{}",
                    &part[..part.len() - last.len_utf8()],
                    last.escape_default()
                )?,
                None => self.0.write_str(part)?,
            }
        }
        Ok(())
    }
}

/// Returns `text`, truncated to `bytes_max` bytes. A truncated text ends with a mark that contains
/// its original size.
pub fn truncate(text: &str, bytes_max: usize) -> Cow<'_, str> {
    truncate_beginning(text, bytes_max, text.len())
}

/// Truncates as [`truncate`] does, where `text` is only the beginning of a text of `original_bytes`
/// bytes.
pub(crate) fn truncate_beginning(
    text: &str,
    bytes_max: usize,
    original_bytes: usize,
) -> Cow<'_, str> {
    if text.len().max(original_bytes) <= bytes_max {
        return Cow::Borrowed(text);
    }
    let mark = format!("… (cut, {original_bytes} bytes)");
    let end = (0..=bytes_max.saturating_sub(mark.len()).min(text.len()))
        .rfind(|index| text.is_char_boundary(*index))
        .unwrap_or(0);
    Cow::Owned(format!("{}{mark}", &text[..end]))
}

/// Returns the line and the column of the position after the text `before`. Both begin with 1, and
/// the column counts characters.
pub fn position_after(before: &str) -> (usize, usize) {
    let line = before.rsplit_once('\n').map_or(before, |(_, line)| line);
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}

/// Returns `text` in double quotes, escaped, and shortened if it is long.
pub fn quote(text: &str) -> String {
    format!("\"{}\"", shorten(text))
}

/// Returns `text` with unsafe characters escaped, shortened to [`SHORTENED_CHARACTERS_MAX`]
/// characters if it is longer.
pub fn shorten(text: &str) -> String {
    let mut shortened = String::new();
    for (count, character) in text.chars().enumerate() {
        if count == SHORTENED_CHARACTERS_MAX {
            shortened.push('…');
            break;
        }
        if is_unsafe_to_print(character) {
            shortened.extend(character.escape_default())
        } else {
            shortened.push(character)
        }
    }
    shortened
}

/// Returns the candidate that is most similar to the misspelt `word`; `None`: none is similar
/// enough. Candidates that differ only in naming style are the most similar.
pub fn find_nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    if word.is_empty() || word.len() > CORRECTED_BYTES_MAX {
        return None;
    }
    let normalized = normalize(word);
    // One edit for about three characters, and at most three.
    let distance_max = ((word.chars().count() + 1) / 3).min(3);
    let mut best: Option<(usize, &str)> = None;
    for candidate in candidates {
        // Two bytes more than the distance, because another naming style may add separators.
        if candidate == word || candidate.len().abs_diff(word.len()) > distance_max + 2 {
            continue;
        }
        let distance = if normalize(candidate) == normalized {
            0
        } else {
            strsim::osa_distance(word, candidate)
        };
        if distance <= distance_max
            && best.is_none_or(|(best_distance, _)| distance < best_distance)
        {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// Returns `; did you mean "x"?` for the most similar candidate, or an empty text.
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    find_nearest(word, candidates)
        .map_or_else(String::new, |nearest| format!("; did you mean {}?", quote(nearest)))
}

/// Formats words as `"a", "b" and "c"`, here with the conjunction `and`.
pub fn enumerate_quoted<'a>(words: impl IntoIterator<Item = &'a str>, conjunction: &str) -> String {
    let mut quoted: Vec<String> = words.into_iter().map(quote).collect();
    match quoted.pop() {
        None => String::new(),
        Some(only) if quoted.is_empty() => only,
        Some(last) => format!("{} {conjunction} {last}", quoted.join(", ")),
    }
}

/// Removes the naming style from a word: `item_list_key`, `item-list-key` and `itemListKey` all
/// become `itemlistkey`.
fn normalize(word: &str) -> String {
    word.chars()
        .filter(|character| !matches!(character, '_' | '-' | ' '))
        .map(|character| character.to_ascii_lowercase())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_similar_candidate_is_found_and_a_dissimilar_one_is_not() {
        let keys = ["name", "queue", "depends", "itemListKey"];
        assert_eq!(find_nearest("depend", keys), Some("depends"));
        assert_eq!(find_nearest("quue", keys), Some("queue"));
        assert_eq!(find_nearest("eman", keys), None);
        assert_eq!(find_nearest("item_list_key", keys), Some("itemListKey"));
        assert_eq!(find_nearest("ItemListkey", keys), Some("itemListKey"));
        assert_eq!(find_nearest("colour", keys), None);
        assert_eq!(find_nearest("", keys), None);
        assert_eq!(find_nearest("a", ["b"]), None);
    }

    #[test]
    fn escaped_text_stays_on_one_line() {
        assert!(matches!(escape("Zoë, \\n, 日本 👩‍👧"), Cow::Borrowed("Zoë, \\n, 日本 👩‍👧")));
        assert_eq!(escape("\u{1b}[2J\nforged\r\tline\u{7f}"), r"\u{1b}[2J\nforged\r\tline\u{7f}");
        let unsafe_characters = [
            '\u{0}', '\u{85}', '\u{9b}', '\u{2028}', '\u{2029}', '\u{61c}', '\u{200e}', '\u{200f}',
            '\u{202a}', '\u{202e}', '\u{2066}',
        ];
        for character in unsafe_characters {
            assert_eq!(
                escape(&format!("a{character}{character}b")),
                format!("a{0}{0}b", character.escape_default())
            );
        }
        assert_eq!(escape_lines("one\n\u{1b}two\r\n"), "one\n\\u{1b}two\\r\n");
    }

    #[test]
    fn a_truncated_text_is_within_the_limit_and_marked() {
        assert_eq!(truncate("short", 5), "short");
        let truncated = truncate(&"é".repeat(3_000), 4_096).into_owned();
        assert!((4_091..=4_096).contains(&truncated.len()), "{} bytes", truncated.len());
        assert!(truncated.ends_with("é… (cut, 6000 bytes)"), "{truncated}");
        assert_eq!(truncate(&"x".repeat(30), 22), "xxx… (cut, 30 bytes)");
    }

    #[test]
    fn shortened_text_is_truncated_and_escaped() {
        assert_eq!(quote("a\u{1b}[31m\n"), "\"a\\u{1b}[31m\\n\"");
        assert_eq!(shorten(&"x".repeat(200)).chars().count(), SHORTENED_CHARACTERS_MAX + 1);
        assert_eq!(enumerate_quoted(["a", "b", "c"], "and"), r#""a", "b" and "c""#);
    }
}
