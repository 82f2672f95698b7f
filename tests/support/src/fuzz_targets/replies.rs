//! Fuzzes the parsing and merging of reply bodies, compared with the naive implementation in
//! `plain_json`. The input is a list of bodies, separated by `SEPARATOR`.

use super::plain_json::{self, Pairs};
use workflow_manager::engine::json::{
    Elements, JsonKind, MessageError, NESTING_MAX, find_item_uuid,
};
use workflow_manager::engine::{Entry, Json, Message, StepEntry, StepIndex};

/// The byte between two bodies, which no JSON text contains: the ASCII record separator.
const SEPARATOR: u8 = 0x1e;

/// Parses and merges bodies.
pub fn run(data: &[u8]) {
    let parsed: Vec<(Message, Pairs)> =
        data.split(|byte| *byte == SEPARATOR).filter_map(check_body).collect();
    let (messages, objects): (Vec<Message>, Vec<Pairs>) = parsed.into_iter().unzip();
    let merged = Message::merge(&messages);
    check_equal(&merged, &plain_json::merged(&objects));
    // Merging is associative and idempotent.
    if let Some((first, others)) = messages.split_first() {
        assert_eq!(Message::merge([first, &Message::merge(others)]), merged);
        assert_eq!(Message::merge([&merged, first]), merged);
        assert_eq!(Message::merge([&merged, &merged]), merged);
    }
    check_storage(&merged);
}

/// Checks that a body is accepted or refused like by the naive implementation. Returns what it is
/// parsed as by both, if it is accepted.
fn check_body(body: &[u8]) -> Option<(Message, Pairs)> {
    let expected = std::str::from_utf8(body).ok().and_then(|text| match plain_json::trim(text) {
        "" | "null" => Some(Pairs::new()),
        text => plain_json::pairs(text).filter(|_| plain_json::depth(text) <= NESTING_MAX),
    });
    match (Message::parse(body), expected) {
        (Ok(message), Some(pairs)) => {
            check_equal(&message, &pairs);
            check_storage(&message);
            message.iter().for_each(|(_, value)| check_elements(value));
            check_replacements(&message, &pairs);
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

/// Checks that a message has exactly these members, by all ways to read it.
fn check_equal(message: &Message, pairs: &Pairs) {
    let members: Pairs =
        message.iter().map(|(key, value)| (key.to_string(), value.text().to_owned())).collect();
    assert_eq!(members, *pairs);
    assert_eq!(message.to_text(), plain_json::text(pairs));
    assert_eq!(message.encoded_len(), message.to_text().len());
    for (key, value) in pairs {
        assert_eq!(message.get(key).map(Json::text), Some(value.as_str()));
    }
}

/// Checks that a message is unchanged after it was stored, also inside an entry of the journal.
fn check_storage(message: &Message) {
    let text = message.to_text();
    let reparsed = Message::parse(text.as_bytes()).expect("its own text");
    assert_eq!(reparsed, *message);
    assert_eq!(reparsed.to_text(), text);
    let entry = vec![Entry::Step(StepIndex(0), StepEntry::Completed(message.clone()))];
    let row = serde_json::to_string(&entry).expect("an entry serializes");
    assert_eq!(serde_json::from_str::<Vec<Entry>>(&row).expect("a stored entry parses"), entry);
}

/// Checks the elements of a value that is an array. For other values the engine must say their
/// kind.
fn check_elements(value: &Json) {
    // Any value is valid. It must only not panic.
    let _ = find_item_uuid(value);
    match Elements::parse(value) {
        Ok(elements) => {
            let texts: Vec<String> =
                (0..elements.count()).map(|index| elements.get(index).text().to_owned()).collect();
            assert_eq!(texts, plain_json::elements(value.text()));
        }
        Err(kind) => assert!(kind == value.kind() && kind != JsonKind::Array),
    }
}

/// Checks the replacement of a member by one with a new key, as for the item of a fan-out. The new
/// member has the position of the old one. Another member with the new key is removed.
fn check_replacements(message: &Message, pairs: &Pairs) {
    // The number of combinations is quadratic, so only a few keys are tried.
    let keys: Vec<&str> =
        pairs.iter().map(|(key, _)| key.as_str()).chain(["other"]).take(4).collect();
    for (key, new_key) in
        keys.iter().flat_map(|key| keys.iter().map(move |new_key| (*key, *new_key)))
    {
        let expected = pairs
            .iter()
            .filter(|(pair_key, _)| pair_key != new_key || pair_key == key)
            .map(|(pair_key, value)| {
                if pair_key == key {
                    (new_key.to_owned(), "null".to_owned())
                } else {
                    (pair_key.clone(), value.clone())
                }
            })
            .collect();
        check_equal(&message.with_replaced(key, new_key, Json::null()), &expected);
    }
}
