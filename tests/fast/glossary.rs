//! One word for one thing: names use the words of `docs/reference/glossary.md`, and none that it
//! has replaced.

use crate::floors;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Words that no name may have as a part, each with what to say instead.
const RETIRED: &[(&str, &str)] = &[
    ("aside", "quarantine, or stash"),
    ("borrower", "receive options"),
    ("census", "scan"),
    ("desk", "lease queue"),
    ("desks", "lease queues"),
    ("hands", "session"),
    ("hear", "handle"),
    ("hears", "handles"),
    ("lane", "queue consumer"),
    ("loan", "in flight, or leased message"),
    ("mail", "input, or envelope"),
    ("seat", "session, or slot"),
    ("seldom", "rate limiter"),
    ("surroundings", "environment"),
    ("teller", "event builder"),
    ("ways", "environment (`…Env`)"),
];

/// Names that no function may have: they are no verbs, or say too little.
const RETIRED_FUNCTIONS: &[&str] = &[
    "ask", "heard", "kept", "look", "looked", "of", "said", "say", "shown", "taken", "tell", "told",
];

/// Returns the code of a file: comments and the insides of strings are blank, lines stay.
fn without_comments_and_strings(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    let blank = |code: &mut String, part: &str| {
        code.extend(part.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
    };
    while at < bytes.len() {
        let rest = &text[at..];
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(raw) = raw_string(rest) {
            raw
        } else if rest.starts_with('"') {
            quoted(rest)
        } else if let Some(length) = character(rest) {
            length
        } else {
            let next = rest.chars().next().expect("not at the end");
            code.push(next);
            at += next.len_utf8();
            continue;
        };
        blank(&mut code, &rest[..length]);
        at += length;
    }
    code
}

/// Returns the length of a raw string that begins here.
fn raw_string(rest: &str) -> Option<usize> {
    let hashes = rest.strip_prefix('r')?.chars().take_while(|c| *c == '#').count();
    rest[1 + hashes..].starts_with('"').then_some(())?;
    let end = format!("\"{}", "#".repeat(hashes));
    let inside = 2 + hashes;
    Some(rest[inside..].find(&end).map_or(rest.len(), |at| inside + at + end.len()))
}

/// Returns the length of a string that begins here.
fn quoted(rest: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Returns the length of a character literal that begins here; a lifetime is none.
fn character(rest: &str) -> Option<usize> {
    let inside = rest.strip_prefix('\'')?;
    if let Some(escaped) = inside.strip_prefix('\\') {
        return escaped[1..].find('\'').map(|end| end + 4);
    }
    let first = inside.chars().next()?;
    inside[first.len_utf8()..].starts_with('\'').then_some(first.len_utf8() + 2)
}

/// Returns the identifiers of a line of code.
fn identifiers(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty())
}

/// Returns the words of a name, in lower case: `LeaseQueue` and `lease_queue` have the same.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && was_lower) {
            words.push(String::new());
        }
        was_lower = c.is_lowercase() || c.is_numeric();
        if c != '_' {
            words.last_mut().expect("one at least").extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn no_name_has_a_word_that_the_glossary_has_replaced() {
    let retired: BTreeMap<&str, &str> = RETIRED.iter().copied().collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    floors::files(&root.join("src"), &mut files);
    let mut found = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("readable");
        let place = file.strip_prefix(root).expect("below the root").display().to_string();
        for (number, line) in without_comments_and_strings(&text).lines().enumerate() {
            for name in identifiers(line) {
                for word in words(name) {
                    if let Some(instead) = retired.get(word.as_str()) {
                        let number = number + 1;
                        found.push(format!("{place}:{number}: {name}: say {instead}"));
                    }
                }
            }
            for name in line.split("fn ").skip(1).filter_map(|rest| identifiers(rest).next()) {
                if RETIRED_FUNCTIONS.contains(&name) {
                    found.push(format!("{place}:{}: fn {name}", number + 1));
                }
            }
        }
    }
    assert!(found.is_empty(), "see docs/reference/glossary.md:\n{}", found.join("\n"));
}

#[test]
fn names_are_found_in_code_alone() {
    let code = without_comments_and_strings(
        "let a = 'x'; // told\nlet b = \"told \\\" told\"; \
         fn c<'a>(r#in: &'a str) { r#\"told\"# }",
    );
    let names: Vec<&str> = code.lines().flat_map(identifiers).collect();
    assert_eq!(names, ["let", "a", "let", "b", "fn", "c", "a", "r", "in", "a", "str"]);
    assert_eq!(words("LeaseQueue_of2Told"), ["lease", "queue", "of2", "told"]);
}
