//! Reply bodies and merging: the input is bodies, divided by the byte 0x1E, which no JSON text has.

use super::plain_json::{self, Pairs};
use workflow_manager::engine::json::{
    Elements, JsonKind, MessageError, NESTING_MAX, find_item_uuid,
};
use workflow_manager::engine::{Entry, Json, Message, StepEntry, StepIndex};

/// Some bodies.
pub fn run(data: &[u8]) {
    let bodies: Vec<&[u8]> = data.split(|byte| *byte == 0x1e).collect();
    let read: Vec<(Message, Pairs)> = bodies.into_iter().filter_map(one).collect();
    let messages: Vec<Message> = read.iter().map(|(message, _)| message.clone()).collect();
    let parts: Vec<Pairs> = read.iter().map(|(_, pairs)| pairs.clone()).collect();
    let merged = Message::merge(&messages);
    same(&merged, &plain_json::merged(&parts));
    // Merging is the same in portions, and again.
    if let Some((first, rest)) = messages.split_first() {
        assert_eq!(Message::merge([first, &Message::merge(rest)]), merged);
        assert_eq!(Message::merge([&merged, first]), merged);
        assert_eq!(Message::merge([&merged, &merged]), merged);
    }
    stored(&merged);
}

fn one(body: &[u8]) -> Option<(Message, Pairs)> {
    let expected = std::str::from_utf8(body).ok().and_then(|text| match plain_json::trim(text) {
        "" | "null" => Some(Pairs::new()),
        text => plain_json::pairs(text).filter(|_| plain_json::depth(text) <= NESTING_MAX),
    });
    match (Message::parse(body), expected) {
        (Ok(message), Some(pairs)) => {
            same(&message, &pairs);
            stored(&message);
            message.iter().for_each(|(_, value)| parts(value));
            replaced(&message, &pairs);
            Some((message, pairs))
        }
        (Err(error), None) => {
            if let (MessageError::NotAnObject(kind), Ok(text)) = (&error, std::str::from_utf8(body))
            {
                assert_ne!(*kind, JsonKind::Object);
                assert!(serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok(), "{error}");
            }
            None
        }
        (parsed, expected) => panic!("{parsed:?} but {expected:?} of {body:?}"),
    }
}

fn same(message: &Message, pairs: &Pairs) {
    let found: Pairs =
        message.iter().map(|(key, value)| (key.to_string(), value.text().to_owned())).collect();
    assert_eq!(found, *pairs);
    assert_eq!(message.to_text(), plain_json::text(pairs));
    assert_eq!(message.encoded_len(), message.to_text().len());
    for (key, value) in pairs {
        assert_eq!(message.get(key).map(Json::text), Some(value.as_str()));
    }
}

/// The text is read as the same message, also inside an entry of the journal.
fn stored(message: &Message) {
    let text = message.to_text();
    let again = Message::parse(text.as_bytes()).expect("what was written is read");
    assert_eq!(again, *message);
    assert_eq!(again.to_text(), text);
    let entry = vec![Entry::Step(StepIndex(0), StepEntry::Completed(message.clone()))];
    let row = serde_json::to_string(&entry).expect("an entry serialises");
    assert_eq!(serde_json::from_str::<Vec<Entry>>(&row).expect("a stored entry parses"), entry);
}

fn parts(value: &Json) {
    let _ = find_item_uuid(value);
    match Elements::parse(value) {
        Ok(elements) => {
            let found: Vec<String> =
                (0..elements.count()).map(|index| elements.get(index).text().to_owned()).collect();
            assert_eq!(found, plain_json::elements(value.text()));
        }
        Err(kind) => assert!(kind == value.kind() && kind != JsonKind::Array),
    }
}

/// SPEC §3.3: a key in its place under another name, which goes from where it was.
fn replaced(message: &Message, pairs: &Pairs) {
    let keys: Vec<&str> =
        pairs.iter().map(|(key, _)| key.as_str()).chain(["other"]).take(4).collect();
    for (key, new_key) in
        keys.iter().flat_map(|key| keys.iter().map(move |new_key| (*key, *new_key)))
    {
        let expected = pairs
            .iter()
            .filter(|(known, _)| known != new_key || known == key)
            .map(|(known, value)| {
                if known == key {
                    (new_key.to_owned(), "null".to_owned())
                } else {
                    (known.clone(), value.clone())
                }
            })
            .collect();
        same(&message.with_replaced(key, new_key, Json::null()), &expected);
    }
}
