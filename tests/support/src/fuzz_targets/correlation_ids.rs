//! What comes with a message on the reply queue: the correlation id, the kind of reply, the
//! broker's headers.

use super::bytes_in::Choices;
use crate::world::World;
use bytes::Bytes;
use lapin::types::{AMQPValue, FieldArray, FieldTable, LongString, ShortString};
use std::sync::Arc;
use workflow_manager::amqp::parse_dead_letter;
use workflow_manager::engine::id::is_valid_name;
use workflow_manager::engine::{
    CorrelationId, Definition, Dependency, Graph, Input, Message, Reply, Sender, Step, StepIndex,
};

/// A correlation id, then what comes with it.
pub fn run(data: &[u8]) {
    let mut choices = Choices(data);
    let text = choices.text();
    let parsed: Option<CorrelationId> =
        text.parse().map_err(|error| assert!(format!("{error}").len() < 2_000)).ok();
    if let Some(id) = &parsed {
        assert!(is_valid_name(&id.step));
        let again: CorrelationId = id.to_string().parse().expect("its text is one");
        assert_eq!(again, *id);
        assert!(
            id.to_string().eq_ignore_ascii_case(&text),
            "only digits of the UUID may change their case"
        );
    }
    let headers = table(&mut choices, 0);
    let dead = parse_dead_letter(&headers);
    if let Some(dead) = &dead {
        assert!(headers.inner().contains_key("x-death"), "{dead:?}");
    }
    let reply = match (dead, choices.below(3)) {
        (Some(dead), _) => Reply::DeadLettered { queue: dead.queue, reason: dead.reason },
        (None, 0) => Reply::Error(Bytes::copy_from_slice(choices.0)),
        (None, _) => Reply::Result(Bytes::copy_from_slice(choices.0)),
    };
    // The world compares the job with the one rebuilt from its entries.
    let mut world = World::new();
    let job = world.create(&two_steps(), Message::default());
    let name = parsed.map_or(text, |id| id.step);
    for name in [name, "first".to_owned(), "second".to_owned(), "first".to_owned()] {
        let _ = world.take(
            job,
            Input::Reply { step: name, attempt: None, reply: reply.clone(), from: Sender::Unknown },
        );
    }
}

fn two_steps() -> Arc<Definition> {
    let step = |name: &str, depends| Step { depends, ..Step::with_name(name) };
    let steps =
        vec![step("first", Vec::new()), step("second", vec![Dependency::Step(StepIndex(0))])];
    Arc::new(Definition::new("w", vec![Graph::new("w".to_owned(), None, steps)]))
}

/// Keys that the broker uses, and others.
const KEYS: [&str; 5] = ["x-death", "queue", "reason", "count", "x-first-death-queue"];

/// How deep generated tables nest.
const NESTING_MAX: usize = 4;

fn table(choices: &mut Choices<'_>, depth: usize) -> FieldTable {
    let mut table = FieldTable::default();
    for _ in 0..choices.below(4) {
        let key = KEYS[choices.below(KEYS.len())];
        table.insert(short(key), value(choices, depth));
    }
    table
}

fn value(choices: &mut Choices<'_>, depth: usize) -> AMQPValue {
    match choices.below(8) {
        0 => AMQPValue::LongString(LongString::from(choices.text().into_bytes())),
        1 => {
            let length = usize::from(choices.byte());
            AMQPValue::LongString(LongString::from(choices.take(length).to_vec()))
        }
        2 => AMQPValue::ShortString(short(&choices.text())),
        3 => AMQPValue::LongLongInt(i64::from(choices.byte())),
        4 | 5 if depth < NESTING_MAX => {
            let mut list = FieldArray::default();
            (0..choices.below(4)).for_each(|_| list.push(value(choices, depth + 1)));
            AMQPValue::FieldArray(list)
        }
        6 if depth < NESTING_MAX => AMQPValue::FieldTable(table(choices, depth + 1)),
        _ => AMQPValue::Void,
    }
}

/// A short string has at most 255 bytes.
fn short(text: &str) -> ShortString {
    ShortString::try_new(text).unwrap_or_default()
}
