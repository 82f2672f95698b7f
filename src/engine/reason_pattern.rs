//! The pattern of a reason: what reasons of the same kind have in common. Reasons are grouped by it
//! over jobs and child jobs.

use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;

/// The maximum length of a pattern, in characters, without the `…` that follows then.
const PATTERN_CHARS_MAX: usize = 200;

/// How many characters of a reason are read. More could not be in a pattern, unless most of them
/// are taken out.
const READ_CHARS_MAX: usize = 4_000;

/// The begin of what a parent appends to the reason of a child job.
const CHILD_JOB: &str = " (child job ";

/// The boilerplate before what a worker says.
const BY_WORKER: &str = "the worker reported an error: ";

/// What stands between a step and why it failed.
const AFTER_STEP: &str = ": ";

/// The longest name of a step that is kept, in bytes.
const NAME_BYTES_MAX: usize = 100;

/// What stands for an id, a number or a time.
const NUMBER: char = '#';

/// What stands for a quoted value.
const QUOTED: &str = "\"…\"";

/// The longest quoted value that is taken out, in characters.
const QUOTED_CHARS_MAX: usize = 400;

/// From this length on, digits and letters that are mixed are an id, as `8f3a…` is.
const HEX_CHARS_MIN: usize = 8;

/// From this length on, any mixture of digits and letters is an id.
const MIXED_CHARS_MIN: usize = 16;

/// From this many groups of digits on, a mixture of digits and letters is an id.
const DIGIT_GROUPS_MIN: usize = 3;

/// The groups of a UUID: their numbers of digits.
const UUID_GROUPS: [usize; 5] = [8, 4, 4, 4, 12];

/// The pattern of a reason: the reason without ids, numbers, times and quoted values, and without
/// the way from a child job up. So a child job and its parents have the same one. Journals store
/// [`ReasonPattern::id`]: whoever changes how a pattern is made has to migrate them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasonPattern(String);

impl ReasonPattern {
    /// Returns the pattern of a reason.
    pub fn from_reason(reason: &str) -> ReasonPattern {
        let (step, rest) = split_step(cut_path(reason));
        let mut pattern = Pattern::default();
        if let Some(step) = step {
            pattern.text.push_str(step);
            pattern.text.push_str(AFTER_STEP);
        }
        pattern.add(rest.strip_prefix(BY_WORKER).unwrap_or(rest));
        ReasonPattern(pattern.finish())
    }

    /// Returns its text.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Returns its id.
    pub fn id(&self) -> ReasonId {
        let digest = Sha256::digest(self.0.as_bytes());
        let (first, _) = digest.split_first_chunk().expect("a digest has 32 bytes");
        ReasonId(i64::from_be_bytes(*first))
    }
}

/// The id of a reason's pattern: a part of its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReasonId(pub i64);

impl fmt::Display for ReasonId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The error of a text that is no [`ReasonId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidReasonId;

impl FromStr for ReasonId {
    type Err = InvalidReasonId;

    fn from_str(text: &str) -> Result<ReasonId, InvalidReasonId> {
        let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = is_hex.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        id.map(|id| ReasonId(id.cast_signed())).ok_or(InvalidReasonId)
    }
}

/// Returns the reason without what its parents have appended: which child job it was, by which way.
fn cut_path(reason: &str) -> &str {
    match reason.rfind(CHILD_JOB) {
        Some(start) if reason.ends_with(')') => &reason[..start],
        Some(_) | None => reason,
    }
}

/// Splits a reason into `step "NAME"`, which is kept if it is there, and the text after it. The
/// number of an item is left out.
fn split_step(reason: &str) -> (Option<&str>, &str) {
    if let Some(after_item) = reason.strip_prefix("item ").and_then(strip_number) {
        return (None, after_item.strip_prefix(AFTER_STEP).unwrap_or(reason));
    }
    let Some(after) = reason.strip_prefix("step \"") else { return (None, reason) };
    let Some(name_end) = after.find('"').filter(|bytes| *bytes <= NAME_BYTES_MAX) else {
        return (None, reason);
    };
    let (step, rest) = reason.split_at(reason.len() - after.len() + name_end + 1);
    let rest = rest.strip_prefix(" of item ").and_then(strip_number).unwrap_or(rest);
    match rest.strip_prefix(AFTER_STEP) {
        Some(rest) => (Some(step), rest),
        None => (None, reason),
    }
}

/// Returns the text after the number with which it begins.
fn strip_number(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches(|character: char| character.is_ascii_digit());
    (rest.len() < text.len()).then_some(rest)
}

/// A pattern that is being made.
#[derive(Default)]
struct Pattern {
    text: String,
}

impl Pattern {
    /// Adds a text, without what differs from reason to reason.
    fn add(&mut self, text: &str) {
        let characters: Vec<char> = text.chars().take(READ_CHARS_MAX).collect();
        let mut at = 0;
        while let Some(character) = characters.get(at).copied() {
            let rest = &characters[at..];
            let before = at.checked_sub(1).map(|before| characters[before]);
            let length = if character.is_alphanumeric() {
                self.add_word(rest)
            } else if let Some(length) = quoted_length(before, rest) {
                self.text.push_str(QUOTED);
                length
            } else {
                self.add_sign(character);
                1
            };
            at += length;
        }
    }

    /// Adds the word with which the characters begin, and returns its length.
    fn add_word(&mut self, characters: &[char]) -> usize {
        if let Some(length) = uuid_length(characters) {
            self.add_number();
            return length;
        }
        let word_end = characters.iter().position(|character| !character.is_alphanumeric());
        let word = &characters[..word_end.unwrap_or(characters.len())];
        if is_id(word) || is_time(word) {
            self.add_number();
        } else {
            let mut was_digit = false;
            for character in word {
                let is_digit = character.is_numeric();
                match (is_digit, was_digit) {
                    (true, true) => {}
                    (true, false) => self.add_number(),
                    (false, _) => self.text.push(*character),
                }
                was_digit = is_digit;
            }
        }
        word.len()
    }

    /// Adds what stands for a number. Numbers that are joined, as in a date or in a list, are one.
    fn add_number(&mut self) {
        let joined = self.text.trim_end_matches(['-', ':', '.', ',', '/', '+', ' ']);
        if joined.ends_with(NUMBER) {
            self.text.truncate(joined.len());
        } else {
            self.text.push(NUMBER);
        }
    }

    /// Adds a character that belongs to no word. White space and what cannot be seen are one blank.
    fn add_sign(&mut self, character: char) {
        if character == NUMBER {
            self.add_number();
        } else if !character.is_whitespace() && !character.is_control() {
            self.text.push(character);
        } else if !self.text.is_empty() && !self.text.ends_with(' ') {
            self.text.push(' ');
        }
    }

    /// Returns the pattern, truncated if it is too long.
    fn finish(self) -> String {
        let text = self.text.trim_end();
        match text.char_indices().nth(PATTERN_CHARS_MAX) {
            None => text.to_owned(),
            Some((end, _)) => format!("{}…", &text[..end]),
        }
    }
}

/// Returns the length of the quoted value with which the characters begin, with its quotes; `None`:
/// they begin with no such value. A `'` within a word is none.
fn quoted_length(before: Option<char>, characters: &[char]) -> Option<usize> {
    let is_word = |character: Option<&char>| character.is_some_and(|c| c.is_alphanumeric());
    let end_quote = match characters.first()? {
        '\'' if is_word(before.as_ref()) => return None,
        quote @ ('"' | '\'' | '`') => *quote,
        '“' => '”',
        '‘' => '’',
        '«' => '»',
        _ => return None,
    };
    let is_end = |at: usize| {
        characters[at] == end_quote && (end_quote != '\'' || !is_word(characters.get(at + 1)))
    };
    (1..characters.len().min(QUOTED_CHARS_MAX)).find(|at| is_end(*at)).map(|at| at + 1)
}

/// Returns the length of the UUID with which the characters begin; `None`: with none.
fn uuid_length(characters: &[char]) -> Option<usize> {
    let mut at = 0;
    for (index, digits) in UUID_GROUPS.into_iter().enumerate() {
        if index > 0 {
            characters.get(at).filter(|character| **character == '-')?;
            at += 1;
        }
        let group = characters.get(at..at + digits)?;
        group.iter().all(char::is_ascii_hexdigit).then_some(())?;
        at += digits;
    }
    characters.get(at).is_none_or(|character| !character.is_alphanumeric()).then_some(at)
}

/// Returns whether a word with digits is an id rather than a name or a measure.
fn is_id(word: &[char]) -> bool {
    let is_start = |at: usize| word[at].is_numeric() && (at == 0 || !word[at - 1].is_numeric());
    let digit_groups = (0..word.len()).filter(|at| is_start(*at)).count();
    let is_hex = word.len() >= HEX_CHARS_MIN && word.iter().all(char::is_ascii_hexdigit);
    match digit_groups {
        0 => false,
        1 | 2 => is_hex || word.len() >= MIXED_CHARS_MIN,
        DIGIT_GROUPS_MIN.. => true,
    }
}

/// Returns whether a word is the middle or the end of a time, as `28T21` and `44Z` are.
fn is_time(word: &[char]) -> bool {
    let is_number = |part: &[char]| !part.is_empty() && part.iter().all(char::is_ascii_digit);
    match word.iter().position(|character| matches!(character, 'T' | 'Z')) {
        None => false,
        Some(at) => {
            let (before, after) = (&word[..at], &word[at + 1..]);
            is_number(before) && if word[at] == 'Z' { after.is_empty() } else { is_number(after) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs of a reason and its pattern.
    const PATTERNS: [(&str, &str); 30] = [
        ("", ""),
        ("no pen", "no pen"),
        ("step \"b2\": no pen", "step \"b2\": no pen"),
        ("step \"b2\": the worker reported an error: no pen", "step \"b2\": no pen"),
        ("the worker reported an error: no pen", "no pen"),
        (
            "step \"price\" of item 17: the worker reported an error: no article 4711 (child job \
             00000000-0000-0000-0000-000000000001 of step \"lines\")",
            "step \"price\": no article #",
        ),
        (
            "step \"price\" of item 3: gone (child job 00000000-0000-0000-0000-000000000001, by \
             way of item 17 of step \"orders\", item 3 of step \"lines\")",
            "step \"price\": gone",
        ),
        ("item 0: cancelled: by a user (child job 7 of step \"a\")", "cancelled: by a user"),
        ("(child job 7 of step", "(child job # of step"),
        ("order 4711 of 5000", "order # of #"),
        ("order-4711/12.50", "order-#"),
        ("took 250ms, at most 10s", "took #ms, at most #s"),
        ("at 2026-11-28T21:14:44.123Z in UTC", "at # in UTC"),
        ("at 2026-11-28 21:14:44+01:00 here", "at # here"),
        ("job 94641893-7a6b-4c2d-8e1f-0123456789ab failed", "job # failed"),
        ("job 94641893-7A6B-4C2D-8E1F-0123456789AB failed", "job # failed"),
        ("commit 8f3a91bc is not there", "commit # is not there"),
        ("defaced facade", "defaced facade"),
        ("request x7Kq93ZaP0 and a1b2c3", "request # and #"),
        ("sha256 and utf8 of v2", "sha# and utf# of v#"),
        ("connect 10.0.0.1:5432: refused", "connect #: refused"),
        ("no file \"a b.txt\" in 'x y' or `z`", "no file \"…\" in \"…\" or \"…\""),
        ("no “a” or ‘b’ or «c»", "no \"…\" or \"…\" or \"…\""),
        ("can't read user's 'file'", "can't read user's \"…\""),
        ("an open \"quote", "an open \"quote"),
        ("[1, 2, 3] or (4)", "[#] or (#)"),
        ("line\r\n\t two\u{0} ", "line two"),
        ("step \"a\" waits", "step \"…\" waits"),
        ("item 7 waits", "item # waits"),
        ("Größe ٣٤ ½ zu groß", "Größe # zu groß"),
    ];

    #[test]
    fn what_differs_from_reason_to_reason_is_taken_out() {
        for (reason, pattern) in PATTERNS {
            assert_eq!(ReasonPattern::from_reason(reason).text(), pattern, "{reason}");
        }
    }

    #[test]
    fn the_pattern_of_a_pattern_is_itself() {
        let long = format!("{} 17", "word ".repeat(1_000));
        for reason in PATTERNS.into_iter().map(|(reason, _)| reason).chain([&*long]) {
            let pattern = ReasonPattern::from_reason(reason);
            assert_eq!(ReasonPattern::from_reason(pattern.text()), pattern, "{reason}");
        }
    }

    #[test]
    fn a_pattern_is_bounded_however_long_the_reason_is() {
        let pattern = ReasonPattern::from_reason(&"ü ".repeat(1_000_000));
        assert_eq!(pattern.text().chars().count(), PATTERN_CHARS_MAX + 1);
        assert!(pattern.text().ends_with("ü …"), "{}", pattern.text());
        let digits = ReasonPattern::from_reason(&"1 ".repeat(1_000_000));
        assert_eq!(digits.text(), "#");
        let quotes = ReasonPattern::from_reason(&"\"".repeat(1_000_001));
        assert!(quotes.text().chars().count() <= PATTERN_CHARS_MAX + 1);
    }

    #[test]
    fn an_id_follows_from_the_pattern_alone_and_is_read_as_it_is_written() {
        let id = |reason: &str| ReasonPattern::from_reason(reason).id();
        assert_eq!(id("order 1"), id("order 2"));
        assert_ne!(id("order 1"), id("orders 1"));
        // Journals have it: another value needs a migration.
        assert_eq!(id("order 1").to_string(), "1e4fe7db95307bfd");
        for id in [ReasonId(-1), ReasonId(0), ReasonId(i64::MIN), id("order 1")] {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        for text in ["", "1", "+000000000000001", "00000000000000g1", "00000000000000001"] {
            assert_eq!(text.parse::<ReasonId>(), Err(InvalidReasonId), "{text}");
        }
    }
}
