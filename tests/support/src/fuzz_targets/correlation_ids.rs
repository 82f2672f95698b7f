//! Fuzzes the properties of messages on the reply queue: the correlation id, the kind of the reply,
//! and the broker's headers of dead letters.

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

/// Parses a correlation id and headers, and applies the reply to a job.
pub fn run(data: &[u8]) {
    let mut choices = Choices { bytes: data };
    let text = choices.text();
    let parsed: Option<CorrelationId> =
        text.parse().map_err(|error| assert!(format!("{error}").len() < 2_000)).ok();
    if let Some(id) = &parsed {
        assert!(is_valid_name(&id.step));
        let reparsed: CorrelationId = id.to_string().parse().expect("its own text");
        assert_eq!(reparsed, *id);
        assert!(id.to_string().eq_ignore_ascii_case(&text), "only the case of the UUID may differ");
    }
    let headers = table(&mut choices, 0);
    let dead_letter = parse_dead_letter(&headers);
    if let Some(dead_letter) = &dead_letter {
        assert!(headers.inner().contains_key("x-death"), "{dead_letter:?}");
    }
    let reply = match (dead_letter, choices.below(3)) {
        (Some(dead_letter), _) => {
            Reply::DeadLettered { queue: dead_letter.queue, reason: dead_letter.reason }
        }
        (None, 0) => Reply::Error(Bytes::copy_from_slice(choices.bytes)),
        (None, _) => Reply::Result(Bytes::copy_from_slice(choices.bytes)),
    };
    // The world compares the job with one that is rebuilt from its entries.
    let mut world = World::new();
    let job = world.create(&two_steps(), Message::default());
    let step = parsed.map_or(text, |id| id.step);
    for name in [step, "first".to_owned(), "second".to_owned(), "first".to_owned()] {
        // A rejected reply is no defect.
        let _ = world.take(
            job,
            Input::Reply { step: name, attempt: None, reply: reply.clone(), from: Sender::Unknown },
        );
    }
}

/// Returns a workflow of two steps, of which `second` depends on `first`.
fn two_steps() -> Arc<Definition> {
    let step = |name: &str, depends| Step { depends, ..Step::with_name(name) };
    let steps =
        vec![step("first", Vec::new()), step("second", vec![Dependency::Step(StepIndex(0))])];
    Arc::new(Definition::new("w", vec![Graph::new("w".to_owned(), None, steps)]))
}

/// Keys of generated tables: the ones that are read in dead letters, and others of the broker.
const KEYS: [&str; 5] = ["x-death", "queue", "reason", "count", "x-first-death-queue"];

/// The maximum nesting depth of generated tables and lists.
const NESTING_MAX: usize = 4;

/// Generates a table of headers. `depth` is its nesting depth, from 0.
fn table(choices: &mut Choices<'_>, depth: usize) -> FieldTable {
    let mut table = FieldTable::default();
    for _ in 0..choices.below(4) {
        let key = KEYS[choices.below(KEYS.len())];
        table.insert(short_string(key), value(choices, depth));
    }
    table
}

/// Generates a value in a table of this depth.
fn value(choices: &mut Choices<'_>, depth: usize) -> AMQPValue {
    match choices.below(8) {
        0 => AMQPValue::LongString(LongString::from(choices.text().into_bytes())),
        1 => {
            let length = usize::from(choices.byte());
            AMQPValue::LongString(LongString::from(choices.take(length).to_vec()))
        }
        2 => AMQPValue::ShortString(short_string(&choices.text())),
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

/// Returns a short string. Empty if the text has more than the 255 bytes that AMQP allows.
fn short_string(text: &str) -> ShortString {
    ShortString::try_new(text).unwrap_or_default()
}
