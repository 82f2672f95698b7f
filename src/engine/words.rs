//! Words in errors: shown safely, and guessed at when misspelt.

/// How much of a file's text an error repeats, in characters.
const SHOWN_CHARACTERS_MAX: usize = 80;

/// The longest word that is guessed at, in bytes; comparing takes time with the square of it.
const GUESSED_BYTES_MAX: usize = 40;

/// `text` in double quotes, without control characters, cut when long.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", shortened(text))
}

/// `text` without control characters, cut when long.
pub(crate) fn shortened(text: &str) -> String {
    let mut shown = String::new();
    for (count, character) in text.chars().enumerate() {
        if count == SHOWN_CHARACTERS_MAX {
            shown.push('…');
            break;
        }
        if character.is_control() { shown.extend(character.escape_default()) } else { shown.push(character) }
    }
    shown
}

/// The candidate that `word` most likely meant, if any is near.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.is_empty() || word.len() > GUESSED_BYTES_MAX {
        return None;
    }
    let plain = without_style(word);
    let allowed = ((word.chars().count() + 1) / 3).min(3);
    let mut best: Option<(usize, &str)> = None;
    for candidate in candidates {
        if candidate == word || candidate.len().abs_diff(word.len()) > allowed + 2 {
            continue;
        }
        let distance = if without_style(candidate) == plain { 0 } else { strsim::osa_distance(word, candidate) };
        if distance <= allowed && best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// `; did you mean "x"?`, or nothing.
pub(crate) fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, candidates).map_or_else(String::new, |meant| format!("; did you mean {}?", quoted(meant)))
}

/// `"a", "b" and "c"`.
pub(crate) fn enumerated<'a>(words: impl IntoIterator<Item = &'a str>, last: &str) -> String {
    let mut shown: Vec<String> = words.into_iter().map(quoted).collect();
    match shown.pop() {
        None => String::new(),
        Some(only) if shown.is_empty() => only,
        Some(end) => format!("{} {last} {end}", shown.join(", ")),
    }
}

/// `item_list_key`, `item-list-key` and `itemlistkey` are one word to whoever mistypes `itemListKey`.
fn without_style(word: &str) -> String {
    word.chars().filter(|c| *c != '_' && *c != '-' && *c != ' ').map(|c| c.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_word_is_found_and_a_far_one_is_not() {
        let keys = ["name", "queue", "depends", "itemListKey"];
        assert_eq!(nearest("depend", keys), Some("depends"));
        assert_eq!(nearest("quue", keys), Some("queue"));
        assert_eq!(nearest("eman", keys), None);
        assert_eq!(nearest("item_list_key", keys), Some("itemListKey"));
        assert_eq!(nearest("ItemListkey", keys), Some("itemListKey"));
        assert_eq!(nearest("colour", keys), None);
        assert_eq!(nearest("", keys), None);
        assert_eq!(nearest("a", ["b"]), None);
    }

    #[test]
    fn shown_text_is_cut_and_has_no_control_characters() {
        assert_eq!(quoted("a\u{1b}[31m\n"), "\"a\\u{1b}[31m\\n\"");
        assert_eq!(shortened(&"x".repeat(200)).chars().count(), SHOWN_CHARACTERS_MAX + 1);
        assert_eq!(enumerated(["a", "b", "c"], "and"), r#""a", "b" and "c""#);
    }
}
