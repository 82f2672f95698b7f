//! Lossless JSON (docs/reference/workflow-data.md): a message is an ordered map from keys to raw
//! JSON texts.
//!
//! Values are validated and not interpreted: they keep every digit, every escape and the order of
//! their keys. Only the message's own keys are parsed, which normalises their escapes.

use super::text::{explain_json_error, find_byte_order_mark};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// The maximum nesting depth of a message, including its own braces
/// (docs/reference/workflow-data.md).
pub const NESTING_MAX: usize = 127;

/// The text of a valid JSON value. Clones share it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Json(Arc<str>);

/// The kind of a JSON value, for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonKind {
    /// The value `null`.
    Null,
    /// The values `true` and `false`.
    Boolean,
    /// A number.
    Number,
    /// A string.
    String,
    /// An array.
    Array,
    /// An object.
    Object,
}

impl fmt::Display for JsonKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JsonKind::Null => "null",
            JsonKind::Boolean => "a boolean",
            JsonKind::Number => "a number",
            JsonKind::String => "a string",
            JsonKind::Array => "an array",
            JsonKind::Object => "an object",
        })
    }
}

impl Json {
    /// Returns the value `null`.
    pub fn null() -> Json {
        Json(Arc::from("null"))
    }

    /// Returns the JSON text, as it was received.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Returns the content of a string; `None`: see the errors of [`Json::read_string`].
    pub(crate) fn as_string(&self) -> Option<String> {
        self.read_string().ok()
    }

    /// Returns the content of a string.
    ///
    /// # Errors
    ///
    /// Returns an error if the value is of another kind, or contains half a surrogate pair, which
    /// is valid JSON but not valid Unicode.
    pub(crate) fn read_string(&self) -> Result<String, StringError> {
        let kind = self.kind();
        if kind != JsonKind::String {
            return Err(StringError::Kind(kind));
        }
        serde_json::from_str(&self.0).map_err(|_| StringError::LoneSurrogate)
    }

    /// Returns the kind of this value.
    pub fn kind(&self) -> JsonKind {
        match self.0.as_bytes().first() {
            Some(b'{') => JsonKind::Object,
            Some(b'[') => JsonKind::Array,
            Some(b'"') => JsonKind::String,
            Some(b't' | b'f') => JsonKind::Boolean,
            Some(b'n') => JsonKind::Null,
            Some(_) => JsonKind::Number,
            // Unreachable: a valid JSON text is not empty.
            None => JsonKind::Null,
        }
    }

    /// Creates a JSON array of `items`; `None` becomes `null`.
    pub fn array<'a>(items: impl Iterator<Item = Option<&'a Json>>) -> Json {
        let mut text = String::from("[");
        for (index, item) in items.enumerate() {
            if index > 0 {
                text.push(',');
            }
            text.push_str(item.map_or("null", Json::text));
        }
        text.push(']');
        Json(text.into())
    }

    fn from_raw(raw: &RawValue) -> Json {
        Json(Arc::from(raw.get()))
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw: Box<RawValue> = Deserialize::deserialize(deserializer)?;
        Ok(Json::from_raw(&raw))
    }
}

/// Why a JSON value has no string content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StringError {
    /// The value is of another kind.
    #[error("{0}, expected a string")]
    Kind(JsonKind),
    /// An escape in the string is half a surrogate pair.
    #[error("a string with half a surrogate pair (such as \\ud800), which is not a character")]
    LoneSurrogate,
}

/// Why bytes are not a valid message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The bytes are not JSON text.
    #[error("not JSON: {0}")]
    Syntax(String),
    /// The text begins with a byte-order mark of this encoding.
    #[error(
        "it begins with a byte-order mark of {0}, which JSON does not have: write it as UTF-8 \
         without one"
    )]
    ByteOrderMark(&'static str),
    /// The JSON value is not an object.
    #[error("expected a JSON object, found {0}")]
    NotAnObject(JsonKind),
    /// The value nests deeper than [`NESTING_MAX`].
    #[error("nested deeper than {NESTING_MAX} levels")]
    TooDeep,
}

/// A JSON object: an ordered map from keys to raw values. Clones share it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Message(Arc<[(Arc<str>, Json)]>);

impl Message {
    /// Parses a body (docs/reference/workflow-data.md). An empty body and `null` are the empty
    /// object. If a key is duplicated, its last value counts, at its first position.
    ///
    /// # Errors
    ///
    /// Returns an error if the body is not a JSON object in UTF-8, or nests too deeply.
    pub fn parse(body: &[u8]) -> Result<Message, MessageError> {
        if let Some(encoding) = find_byte_order_mark(body) {
            return Err(MessageError::ByteOrderMark(encoding));
        }
        let text = std::str::from_utf8(body).map_err(|error| {
            MessageError::Syntax(format!("invalid UTF-8 at byte {}", error.valid_up_to()))
        })?;
        let trimmed = text.trim_matches([' ', '\t', '\n', '\r']);
        if trimmed.is_empty() || trimmed == "null" {
            return Ok(Message::default());
        }
        if is_too_deep(trimmed) {
            return Err(MessageError::TooDeep);
        }
        match serde_json::from_str::<Message>(trimmed) {
            Ok(message) => Ok(message),
            Err(object_error) => match serde_json::from_str::<&RawValue>(trimmed) {
                Ok(raw) if !trimmed.starts_with('{') => {
                    Err(MessageError::NotAnObject(Json::from_raw(raw).kind()))
                }
                _ => Err(MessageError::Syntax(explain_json_error(&object_error))),
            },
        }
    }

    /// Returns the value under `key`. The search is linear.
    pub fn get(&self, key: &str) -> Option<&Json> {
        self.0.iter().find(|(entry_key, _)| &**entry_key == key).map(|(_, value)| value)
    }

    /// Returns the keys and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Json)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the object has no keys.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the JSON text, without whitespace between keys and values.
    pub fn to_text(&self) -> String {
        let mut text = String::with_capacity(self.encoded_len());
        text.push('{');
        for (index, (key, value)) in self.0.iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            text.push_str(&quote(key));
            text.push(':');
            text.push_str(value.text());
        }
        text.push('}');
        text
    }

    /// Returns the length of [`Message::to_text`] in bytes.
    pub fn encoded_len(&self) -> usize {
        let pair_bytes: usize = self
            .0
            .iter()
            .map(|(key, value)| quoted_len(key) + ":".len() + value.text().len())
            .sum();
        let comma_bytes = self.0.len().saturating_sub(1);
        "{}".len() + pair_bytes + comma_bytes
    }

    /// Merges `parts`, not recursively (docs/reference/workflow-data.md). If several parts have the
    /// same key, the first value counts.
    pub fn merge<'a>(parts: impl IntoIterator<Item = &'a Message>) -> Message {
        let mut parts = parts.into_iter().filter(|part| !part.is_empty());
        // A single part is shared, not copied.
        let Some(first) = parts.next() else { return Message::default() };
        let Some(second) = parts.next() else { return first.clone() };
        let builder = MessageBuilder::default().merge_missing(first).merge_missing(second);
        parts.fold(builder, MessageBuilder::merge_missing).build()
    }

    /// Returns a copy with `value` under `new_key` in the position of `key`. Another entry under
    /// `new_key` is removed (docs/reference/workflow-data.md). If `key` is missing, `value` is not
    /// added.
    pub fn with_replaced(&self, key: &str, new_key: &str, value: Json) -> Message {
        let mut entries: Vec<(Arc<str>, Json)> = Vec::with_capacity(self.0.len());
        for (old_key, old_value) in self.0.iter() {
            if &**old_key == key {
                entries.push((Arc::from(new_key), value.clone()));
            } else if &**old_key != new_key {
                entries.push((old_key.clone(), old_value.clone()));
            }
        }
        Message(entries.into())
    }
}

impl FromIterator<(Arc<str>, Json)> for Message {
    /// Builds a message from pairs with distinct keys.
    fn from_iter<I: IntoIterator<Item = (Arc<str>, Json)>>(pairs: I) -> Self {
        Message(pairs.into_iter().collect())
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text())
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in self.0.iter() {
            map.serialize_entry(&**key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MessageVisitor;
        impl<'de> Visitor<'de> for MessageVisitor {
            type Value = Message;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Message, A::Error> {
                let mut builder = MessageBuilder::default();
                while let Some((key, raw)) = map.next_entry::<String, Box<RawValue>>()? {
                    builder.set(key.into(), Json(Arc::from(Box::<str>::from(raw))));
                }
                Ok(builder.build())
            }
        }
        deserializer.deserialize_map(MessageVisitor)
    }
}

/// The maximum number of keys that a builder searches linearly. With more it uses a hash map.
const LINEAR_KEYS_MAX: usize = 16;

/// Builds a message with distinct keys. For n keys it takes O(n).
#[derive(Default)]
struct MessageBuilder {
    entries: Vec<(Arc<str>, Json)>,
    /// The positions of the keys in `entries`; `None` up to [`LINEAR_KEYS_MAX`] entries.
    positions: Option<HashMap<Arc<str>, usize>>,
}

impl MessageBuilder {
    /// Sets the value of a key. A key that exists keeps its position, a new one is the last.
    fn set(&mut self, key: Arc<str>, value: Json) {
        match self.position(&key) {
            Some(position) => self.entries[position].1 = value,
            None => self.push(key, value),
        }
    }

    /// Adds the entries of `part` whose keys are missing.
    fn merge_missing(mut self, part: &Message) -> Self {
        for (key, value) in part.iter() {
            if self.position(key).is_none() {
                self.push(key.clone(), value.clone());
            }
        }
        self
    }

    fn position(&self, key: &str) -> Option<usize> {
        match &self.positions {
            Some(positions) => positions.get(key).copied(),
            None => self.entries.iter().position(|(entry_key, _)| &**entry_key == key),
        }
    }

    /// Adds an entry under a new key.
    fn push(&mut self, key: Arc<str>, value: Json) {
        if let Some(positions) = &mut self.positions {
            positions.insert(key.clone(), self.entries.len());
        }
        self.entries.push((key, value));
        if self.positions.is_none() && self.entries.len() > LINEAR_KEYS_MAX {
            let keys = self.entries.iter().map(|(key, _)| key.clone());
            self.positions = Some(keys.zip(0..).collect());
        }
    }

    fn build(self) -> Message {
        Message(self.entries.into())
    }
}

/// The elements of a JSON array, as byte ranges of its text. Besides the text, an element takes
/// eight bytes until it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elements {
    list: Json,
    /// The start and the end of each element in the text of `list`, in bytes.
    ranges: Vec<(u32, u32)>,
}

impl Elements {
    /// Parses the elements of `list`.
    ///
    /// # Errors
    ///
    /// Returns the kind of the value if it is not an array.
    pub fn parse(list: &Json) -> Result<Elements, JsonKind> {
        let kind = list.kind();
        if kind != JsonKind::Array {
            return Err(kind);
        }
        let raw_elements: Vec<&RawValue> = serde_json::from_str(list.text()).map_err(|_| kind)?;
        // The raw elements are slices of the list's text: their addresses give the offsets.
        let list_address = list.text().as_ptr() as usize;
        let to_offset = |address: usize| u32::try_from(address - list_address).unwrap_or(u32::MAX);
        let ranges = raw_elements
            .iter()
            .map(|raw| {
                let address = raw.get().as_ptr() as usize;
                (to_offset(address), to_offset(address + raw.get().len()))
            })
            .collect();
        Ok(Elements { list: list.clone(), ranges })
    }

    /// Returns the number of elements.
    pub fn count(&self) -> u32 {
        u32::try_from(self.ranges.len()).unwrap_or(u32::MAX)
    }

    /// Returns the length of the text of the element at `index`, in bytes; 0 beyond the end.
    pub(crate) fn element_len(&self, index: u32) -> usize {
        self.ranges.get(index as usize).map_or(0, |(start, end)| (end - start) as usize)
    }

    /// Returns the element at `index`.
    ///
    /// # Panics
    ///
    /// Panics if `index` is beyond the end.
    pub fn get(&self, index: u32) -> Json {
        let (start, end) = self.ranges[index as usize];
        Json(Arc::from(&self.list.text()[start as usize..end as usize]))
    }
}

/// Returns the UUID that an item contains (docs/reference/workflow-data.md); `None`: the item is
/// neither a UUID nor an object with a UUID under `id`.
pub fn find_item_uuid(item: &Json) -> Option<super::id::JobId> {
    #[derive(serde::Deserialize)]
    struct WithId<'a> {
        #[serde(borrow)]
        id: Cow<'a, str>,
    }
    match item.kind() {
        JsonKind::String => serde_json::from_str::<Cow<'_, str>>(item.text()).ok()?.parse().ok(),
        JsonKind::Object => serde_json::from_str::<WithId<'_>>(item.text()).ok()?.id.parse().ok(),
        JsonKind::Null | JsonKind::Boolean | JsonKind::Number | JsonKind::Array => None,
    }
}

/// Returns a key as a JSON string.
fn quote(key: &str) -> String {
    serde_json::Value::from(key).to_string()
}

/// Returns the length of a key as a JSON string, in bytes.
fn quoted_len(key: &str) -> usize {
    let needs_no_escape = key.bytes().all(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\');
    if needs_no_escape { key.len() + 2 } else { quote(key).len() }
}

/// Returns whether brackets outside strings nest deeper than [`NESTING_MAX`]. The parser does not
/// limit the depth of raw values. For invalid JSON the result is meaningless.
fn is_too_deep(text: &str) -> bool {
    let (mut depth, mut is_in_string, mut is_escaped) = (0usize, false, false);
    for byte in text.bytes() {
        if is_in_string {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = true,
                b'"' => is_in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => is_in_string = true,
            b'{' | b'[' => {
                depth += 1;
                if depth > NESTING_MAX {
                    return true;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests;
