//! Tests of lossless JSON: parsing, merging, and the elements of lists.

use super::*;

/// Parses a message that must be valid.
fn message(text: &str) -> Message {
    Message::parse(text.as_bytes()).expect(text)
}

/// Creates a JSON string.
fn string(text: &str) -> Json {
    Json(serde_json::Value::from(text).to_string().into())
}

#[test]
fn values_are_kept_byte_for_byte() {
    let text = concat!(
        r#"{"z":12345678901234567890123,"a":0.10,"m":1e400,"q":-0.0,"#,
        r#""b":{"y": 1, "x":"\ud83d\u00e9"}}"#,
    );
    assert_eq!(message(text).to_text(), text);
    assert_eq!(message(text).encoded_len(), text.len());
}

#[test]
fn a_message_is_unchanged_by_serialization() {
    let text = r#"{"k":1e400,"l":[{"b":1,"a":2}],"é\n":"\u0000"}"#;
    let stored = serde_json::to_string(&message(text)).expect("serialises");
    let loaded: Message = serde_json::from_str(&stored).expect("parses");
    assert_eq!(loaded, message(text));
}

#[test]
fn an_empty_body_and_null_are_the_empty_object() {
    for body in ["", " \n", "null", " null "] {
        assert_eq!(message(body), Message::default());
    }
    assert_eq!(Message::default().to_text(), "{}");
}

#[test]
fn a_body_that_is_no_object_is_refused_with_its_kind() {
    let error = |body: &str| Message::parse(body.as_bytes()).expect_err(body);
    assert_eq!(error("[1]"), MessageError::NotAnObject(JsonKind::Array));
    assert_eq!(error("\"x\""), MessageError::NotAnObject(JsonKind::String));
    assert_eq!(error("7"), MessageError::NotAnObject(JsonKind::Number));
    assert!(matches!(error("{\"k\": nope"), MessageError::Syntax(_)));
    assert!(matches!(error("{} {}"), MessageError::Syntax(_)));
    assert!(matches!(Message::parse(b"{\"k\":\"\xff\"}"), Err(MessageError::Syntax(_))));
}

#[test]
fn errors_of_invalid_json_use_words_that_users_understand() {
    let error = |body: &[u8]| Message::parse(body).expect_err("no message").to_string();
    for (body, encoding) in [
        (&b"\xef\xbb\xbf{}"[..], "UTF-8"),
        (b"\xff\xfe{\0}\0", "UTF-16 LE"),
        (b"\xfe\xff\0{\0}", "UTF-16 BE"),
    ] {
        let message = error(body);
        assert!(message.contains(&format!("a byte-order mark of {encoding}")), "{message}");
    }
    for text in ["nope", "None", "trux", "{\"a\": nil}", "{\"a\":[True]}"] {
        let message = error(text.as_bytes());
        assert!(message.contains("expected") && !message.contains("ident"), "{message}");
    }
    for text in [r#"{"\ud800":1}"#, r#"{"\udc00":1}"#, r#"{"\ud800x":1}"#, r#"{"\ud800\u0041":1}"#]
    {
        let message = error(text.as_bytes());
        assert!(message.contains("half a surrogate pair"), "{text}: {message}");
    }
}

#[test]
fn half_a_surrogate_pair_is_kept_in_values_but_cannot_be_read_as_a_string() {
    for text in [
        r#"{"k":"\ud800"}"#,
        r#"{"k":["\udfff","a\ud83d"]}"#,
        r#"{"k":{"\ud800":{"n":"\udc00\ud800"}}}"#,
    ] {
        let parsed = message(text);
        assert_eq!(parsed.to_text(), text);
        let stored = serde_json::to_string(&parsed).expect("serialises");
        assert_eq!(serde_json::from_str::<Message>(&stored).expect("parses"), parsed);
        assert_eq!(Message::merge([&parsed, &message(r#"{"l":1}"#)]).get("k"), parsed.get("k"));
    }
    let read = |text: &str| message(text).get("k").expect("the key exists").read_string();
    assert_eq!(read(r#"{"k":"\ud83d\ude00"}"#), Ok("😀".to_owned()));
    assert_eq!(read(r#"{"k":"x\ud83d"}"#), Err(StringError::LoneSurrogate));
    assert_eq!(read(r#"{"k":7}"#), Err(StringError::Kind(JsonKind::Number)));
    let with_list = message(r#"{"l":["\ud800",{"id":"\udc00"}]}"#);
    let items = Elements::parse(with_list.get("l").expect("the key exists")).expect("an array");
    assert_eq!(items.get(0).text(), r#""\ud800""#);
    assert!(find_item_uuid(&items.get(0)).is_none() && find_item_uuid(&items.get(1)).is_none());
}

#[test]
fn the_nesting_limit_is_exact() {
    let nested =
        |levels: usize| format!("{{\"k\":{}{}}}", "[".repeat(levels - 1), "]".repeat(levels - 1));
    assert!(Message::parse(nested(NESTING_MAX).as_bytes()).is_ok());
    assert_eq!(Message::parse(nested(NESTING_MAX + 1).as_bytes()), Err(MessageError::TooDeep));
    assert_eq!(Message::parse(nested(1_000_000).as_bytes()), Err(MessageError::TooDeep));
    let brackets_in_a_string = format!("{{\"k\":\"\\\"{}\"}}", "[".repeat(500));
    assert!(Message::parse(brackets_in_a_string.as_bytes()).is_ok());
}

#[test]
fn the_last_value_of_a_duplicate_key_counts_in_small_and_large_messages() {
    assert_eq!(message(r#"{"k":1,"l":0,"k":2}"#).to_text(), r#"{"k":2,"l":0}"#);
    // 20 keys, each of them twice: more than LINEAR_KEYS_MAX.
    let pairs: Vec<String> = (0..40).map(|n| format!("\"k{}\":{n}", n % 20)).collect();
    let large = message(&format!("{{{}}}", pairs.join(",")));
    assert_eq!(large.len(), 20);
    assert_eq!(large.get("k3").map(Json::text), Some("23"));
}

#[test]
fn merging_keeps_the_first_value_and_is_shallow() {
    let merged = Message::merge([
        &message(r#"{"a":{"x":1}}"#),
        &message("{}"),
        &message(r#"{"a":{"y":1},"b":null}"#),
        &message(r#"{"b":5}"#),
    ]);
    assert_eq!(merged.to_text(), r#"{"a":{"x":1},"b":null}"#);
}

#[test]
fn a_replacement_keeps_the_position_and_removes_the_other_entry() {
    let input = message(r#"{"item":"old","t":1,"items":[7],"u":2}"#);
    assert_eq!(
        input.with_replaced("items", "item", string("x")).to_text(),
        r#"{"t":1,"item":"x","u":2}"#
    );
}

#[test]
fn elements_are_slices_of_the_text() {
    let input = message(r#"{"l":[ 1 , "a,b" ,{"x": [2]},null]}"#);
    let elements = Elements::parse(input.get("l").expect("the key exists")).expect("an array");
    let texts: Vec<String> =
        (0..elements.count()).map(|index| elements.get(index).text().to_owned()).collect();
    assert_eq!(texts, ["1", "\"a,b\"", "{\"x\": [2]}", "null"]);
    assert_eq!(Elements::parse(&string("abc")), Err(JsonKind::String));
}

#[test]
fn the_uuid_of_an_item_is_found() {
    let item = |text: &str| {
        let parsed = message(&format!(r#"{{"item":{text}}}"#));
        parsed.get("item").expect("the key exists").clone()
    };
    let id = "f557697b-f911-401c-86b7-6d9b62f1f2bb";
    assert!(find_item_uuid(&string(id)).is_some());
    assert!(find_item_uuid(&item(&format!(r#"{{"a":1,"id":"{id}"}}"#))).is_some());
    assert!(find_item_uuid(&string("no")).is_none());
    assert!(find_item_uuid(&item(r#"{"id":7}"#)).is_none());
}
