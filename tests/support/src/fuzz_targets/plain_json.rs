//! A second, naive reading of JSON objects: what the targets compare the engine with.

use serde_json::value::RawValue;

/// Keys, unescaped, and the raw texts of their values.
pub(crate) type Pairs = Vec<(String, String)>;

/// The pairs of an object; of equal keys the last value, at the place of the first. None: it is no
/// JSON object.
pub(crate) fn pairs(text: &str) -> Option<Pairs> {
    let text = trim(text);
    serde_json::from_str::<&RawValue>(text).ok()?;
    let inner = text.strip_prefix('{')?.strip_suffix('}')?;
    let mut found: Pairs = Vec::new();
    for part in split(inner, b',') {
        let (key, value) = part.split_at(split(part, b':').first()?.len());
        let (key, value): (String, _) =
            (serde_json::from_str(trim(key)).ok()?, trim(value.strip_prefix(':')?).to_owned());
        match found.iter_mut().find(|(known, _)| *known == key) {
            Some(known) => known.1 = value,
            None => found.push((key, value)),
        }
    }
    Some(found)
}

/// The raw texts of an array's elements; the text must be an array.
pub(crate) fn elements(text: &str) -> Vec<String> {
    let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).expect("an array");
    split(inner, b',').into_iter().map(|element| trim(element).to_owned()).collect()
}

/// How deep brackets nest, of valid JSON.
pub(crate) fn depth(text: &str) -> usize {
    let (mut now, mut deepest) = (0_usize, 0);
    walk(text, |byte, _| {
        match byte {
            b'{' | b'[' => now += 1,
            b'}' | b']' => now = now.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(now);
    });
    deepest
}

/// The merge of SPEC §3.1.
pub(crate) fn merged(parts: &[Pairs]) -> Pairs {
    let mut all: Pairs = Vec::new();
    for (key, value) in parts.iter().flatten() {
        if !all.iter().any(|(known, _)| known == key) {
            all.push((key.clone(), value.clone()));
        }
    }
    all
}

/// The value under a key.
pub(crate) fn get<'a>(pairs: &'a Pairs, key: &str) -> Option<&'a str> {
    pairs.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
}

/// The object's text.
pub(crate) fn text(pairs: &Pairs) -> String {
    let pair = |(key, value): &(String, String)| {
        format!("{}:{value}", serde_json::Value::from(key.as_str()))
    };
    format!("{{{}}}", pairs.iter().map(pair).collect::<Vec<_>>().join(","))
}

/// JSON's own white space.
pub(crate) fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t', '\n', '\r'])
}

/// Parts between separators that are in no string and no bracket; nothing of nothing but white
/// space.
fn split(text: &str, separator: u8) -> Vec<&str> {
    let (mut depth, mut from, mut parts) = (0_usize, 0, Vec::new());
    walk(text, |byte, at| match byte {
        b'{' | b'[' => depth += 1,
        b'}' | b']' => depth = depth.saturating_sub(1),
        _ if byte == separator && depth == 0 => {
            parts.push(&text[from..at]);
            from = at + 1;
        }
        _ => {}
    });
    if !parts.is_empty() || !trim(text).is_empty() {
        parts.push(&text[from..]);
    }
    parts
}

/// Visits the bytes outside strings.
fn walk(text: &str, mut visit: impl FnMut(u8, usize)) {
    let (mut in_string, mut escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        if in_string {
            in_string = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
        } else if byte == b'"' {
            in_string = true;
        } else {
            visit(byte, at);
        }
    }
}
