//! A second, naive implementation of JSON objects, with which the fuzz targets compare the engine.

use serde_json::value::RawValue;

/// The members of an object: unescaped keys, with the raw texts of their values.
pub(crate) type Pairs = Vec<(String, String)>;

/// Parses an object. Of members with the same key the last value counts, at the position of the
/// first member. `None` if the text is not a JSON object.
pub(crate) fn pairs(text: &str) -> Option<Pairs> {
    let text = trim(text);
    serde_json::from_str::<&RawValue>(text).ok()?;
    let inner = text.strip_prefix('{')?.strip_suffix('}')?;
    let mut pairs: Pairs = Vec::new();
    for member in split(inner, b',') {
        let (key_text, value_text) = member.split_at(split(member, b':').first()?.len());
        let key: String = serde_json::from_str(trim(key_text)).ok()?;
        let value = trim(value_text.strip_prefix(':')?).to_owned();
        match pairs.iter_mut().find(|(earlier_key, _)| *earlier_key == key) {
            Some((_, earlier_value)) => *earlier_value = value,
            None => pairs.push((key, value)),
        }
    }
    Some(pairs)
}

/// Returns the raw texts of an array's elements. The text must be an array.
pub(crate) fn elements(text: &str) -> Vec<String> {
    let inner = text
        .strip_prefix('[')
        .and_then(|after_bracket| after_bracket.strip_suffix(']'))
        .expect("an array");
    split(inner, b',').into_iter().map(|element| trim(element).to_owned()).collect()
}

/// Returns the nesting depth of objects and arrays in valid JSON.
pub(crate) fn depth(text: &str) -> usize {
    let (mut depth, mut depth_max) = (0_usize, 0);
    walk(text, |byte, _| {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth_max = depth_max.max(depth);
    });
    depth_max
}

/// Merges objects (docs/reference/workflow-data.md, "How JSON flows"): of members with the same key
/// the first counts.
pub(crate) fn merged(objects: &[Pairs]) -> Pairs {
    let mut merged: Pairs = Vec::new();
    for (key, value) in objects.iter().flatten() {
        if !merged.iter().any(|(earlier_key, _)| earlier_key == key) {
            merged.push((key.clone(), value.clone()));
        }
    }
    merged
}

/// Returns the raw value of a key.
pub(crate) fn get<'a>(pairs: &'a Pairs, key: &str) -> Option<&'a str> {
    pairs.iter().find(|(pair_key, _)| pair_key == key).map(|(_, value)| value.as_str())
}

/// Returns the text of an object, without whitespace between its members.
pub(crate) fn text(pairs: &Pairs) -> String {
    let pair = |(key, value): &(String, String)| {
        format!("{}:{value}", serde_json::Value::from(key.as_str()))
    };
    format!("{{{}}}", pairs.iter().map(pair).collect::<Vec<_>>().join(","))
}

/// Removes the whitespace of JSON at both ends.
pub(crate) fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t', '\n', '\r'])
}

/// Splits a text at separators outside strings and brackets. A text of only whitespace has no
/// parts.
fn split(text: &str, separator: u8) -> Vec<&str> {
    let (mut depth, mut part_start, mut parts) = (0_usize, 0, Vec::new());
    walk(text, |byte, index| match byte {
        b'{' | b'[' => depth += 1,
        b'}' | b']' => depth = depth.saturating_sub(1),
        _ if byte == separator && depth == 0 => {
            parts.push(&text[part_start..index]);
            part_start = index + 1;
        }
        _ => {}
    });
    if !parts.is_empty() || !trim(text).is_empty() {
        parts.push(&text[part_start..]);
    }
    parts
}

/// Calls `visit` with each byte outside strings, and with its index.
fn walk(text: &str, mut visit: impl FnMut(u8, usize)) {
    let (mut is_in_string, mut is_escaped) = (false, false);
    for (index, byte) in text.bytes().enumerate() {
        if is_in_string {
            is_in_string = is_escaped || byte != b'"';
            is_escaped = !is_escaped && byte == b'\\';
        } else if byte == b'"' {
            is_in_string = true;
        } else {
            visit(byte, index);
        }
    }
}
