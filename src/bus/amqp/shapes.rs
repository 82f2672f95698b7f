//! The properties with which missing queues are declared: those in the workflow file, else those
//! that the queue had before, else those in the settings of the bus.
//!
//! Whoever declares an existing queue must give the same properties, or the broker refuses (406).
//! So a queue that its worker had declared, and that was deleted, is declared as it was: otherwise
//! its worker could not return. Only the management API reports the properties of a queue.

use super::management::{ListedShape, QueueCounts};
use crate::engine::{QUEUE_TYPE, QueueArgument, QueueDeclaration, QueueType};
use lapin::types::{AMQPValue, FieldTable, LongString};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The parameters of a queue's declaration besides its name.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shape {
    pub(super) durable: bool,
    pub(super) auto_delete: bool,
    pub(super) arguments: FieldTable,
}

impl Default for Shape {
    /// Returns the properties of a durable queue without arguments.
    fn default() -> Shape {
        Shape { durable: true, auto_delete: false, arguments: FieldTable::default() }
    }
}

/// The last known properties of queues, by name.
#[derive(Default)]
pub(super) struct Shapes(RefCell<HashMap<String, Shape>>);

impl Shapes {
    /// Records the properties of the served queues among these.
    pub(super) fn see(&self, listed: &[QueueCounts], is_served: impl Fn(&str) -> bool) {
        let mut seen = self.0.borrow_mut();
        for queue in listed.iter().filter(|queue| is_served(&queue.name)) {
            if let Some(shape) = Shape::of(&queue.shape) {
                seen.insert(queue.name.clone(), shape);
            }
        }
    }

    /// Returns the properties to declare a queue with: those in `declared` (by the workflow file),
    /// else the known ones, else those in `default`.
    pub(super) fn of(
        &self,
        queue: &str,
        said: Option<&QueueDeclaration>,
        default: &QueueDeclaration,
    ) -> Shape {
        let shape = match self.0.borrow().get(queue) {
            Some(seen) => seen.clone(),
            None => Shape::default().with(default),
        };
        match said {
            Some(said) => shape.with(said),
            None => shape,
        }
    }
}

impl Shape {
    /// Converts what the API lists. Returns `None` if that is incomplete, or if the queue is
    /// exclusive to a connection.
    fn of(listed: &ListedShape) -> Option<Shape> {
        let ListedShape { durable, auto_delete, exclusive, arguments } = listed;
        if *exclusive == Some(true) {
            return None;
        }
        let mut table = FieldTable::default();
        for (name, value) in arguments.iter().flatten() {
            let value = match value {
                Value::Bool(flag) => AMQPValue::Boolean(*flag),
                Value::Number(number) => AMQPValue::LongLongInt(number.as_i64()?),
                Value::String(text) => AMQPValue::LongString(LongString::from(text.as_str())),
                Value::Null | Value::Array(_) | Value::Object(_) => return None,
            };
            table.insert(name.as_str().into(), value);
        }
        Some(Shape { durable: (*durable)?, auto_delete: (*auto_delete)?, arguments: table })
    }

    /// Returns these properties, with those of the workflow file in their place where it has some.
    fn with(self, said: &QueueDeclaration) -> Shape {
        let before = self.arguments.inner().get(QUEUE_TYPE).cloned();
        let kind = said.kind.map(|kind| text(kind.name()));
        let is_other = kind.as_ref().is_some_and(|kind| {
            *kind != before.clone().unwrap_or_else(|| text(QueueType::Classic.name()))
        });
        let mut arguments = FieldTable::default();
        match &said.arguments {
            Some(said) => {
                for (name, value) in said {
                    arguments.insert((&**name).into(), argument(value));
                }
            }
            // The arguments of one type may be wrong for another.
            None if is_other => {}
            None => arguments = self.arguments,
        }
        if let Some(kind) = kind.or(before) {
            arguments.insert(QUEUE_TYPE.into(), kind);
        }
        match said.kind {
            // A quorum queue is always durable, and is never deleted with its last consumer.
            Some(QueueType::Quorum) => Shape { durable: true, auto_delete: false, arguments },
            Some(QueueType::Classic) | None => Shape { arguments, ..self },
        }
    }
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(text))
}

fn argument(value: &QueueArgument) -> AMQPValue {
    match value {
        QueueArgument::Flag(flag) => AMQPValue::Boolean(*flag),
        QueueArgument::Number(number) => AMQPValue::LongLongInt(*number),
        QueueArgument::Text(words) => text(words),
    }
}

/// The declarations in workflow files, by queue.
pub(super) type Said = BTreeMap<Arc<str>, QueueDeclaration>;

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(json: &str) -> Vec<QueueCounts> {
        serde_json::from_str(json).expect("queues")
    }

    fn table(pairs: &[(&str, AMQPValue)]) -> FieldTable {
        let mut table = FieldTable::default();
        for (name, value) in pairs {
            table.insert((*name).into(), value.clone());
        }
        table
    }

    #[test]
    fn a_queue_is_declared_as_it_was_seen_and_what_the_file_says_counts_more() {
        let shapes = Shapes::default();
        let bus = QueueDeclaration { kind: Some(QueueType::Classic), arguments: None };
        let of = |queue: &str, said: Option<&QueueDeclaration>| shapes.of(queue, said, &bus);
        let classic =
            Shape { arguments: table(&[("x-queue-type", text("classic"))]), ..Shape::default() };
        assert_eq!(of("q", None), classic, "nobody knows more than the settings");
        let queues = listed(
            r#"[{"name":"q","durable":true,"auto_delete":false,"exclusive":false,
                 "arguments":{"x-queue-type":"quorum","x-delivery-limit":5}},
                {"name":"plain","durable":true,"auto_delete":false,"arguments":{}},
                {"name":"brief","durable":false,"auto_delete":true,"arguments":{"x-expires":5000,
                 "x-single-active-consumer":true}},
                {"name":"own","durable":false,"auto_delete":true,"exclusive":true,"arguments":{}},
                {"name":"old-api"},
                {"name":"another's","durable":true,"auto_delete":false,"arguments":{}}]"#,
        );
        shapes.see(&queues, |name| name != "another's");
        assert_eq!(of("another's", None), classic);
        let (quorum, five) = (text("quorum"), AMQPValue::LongLongInt(5));
        let seen = table(&[("x-queue-type", quorum.clone()), ("x-delivery-limit", five)]);
        assert_eq!(of("q", None), Shape { arguments: seen, ..Shape::default() });
        assert_eq!(of("plain", None), Shape::default(), "its worker declares it without a type");
        let brief = table(&[
            ("x-expires", AMQPValue::LongLongInt(5000)),
            ("x-single-active-consumer", AMQPValue::Boolean(true)),
        ]);
        let brief = Shape { durable: false, auto_delete: true, arguments: brief };
        assert_eq!(of("brief", None), brief);
        assert_eq!((of("own", None), of("old-api", None)), (classic.clone(), classic));
        let arguments = [("x-max-length".into(), QueueArgument::Number(9))].into();
        let said = QueueDeclaration { kind: None, arguments: Some(arguments) };
        let nine = ("x-max-length", AMQPValue::LongLongInt(9));
        let kept = table(&[("x-queue-type", quorum.clone()), nine.clone()]);
        assert_eq!(of("q", Some(&said)), Shape { arguments: kept, ..Shape::default() });
        let said = QueueDeclaration { kind: Some(QueueType::Quorum), arguments: None };
        let turned = of("brief", Some(&said));
        assert!(turned.durable && !turned.auto_delete, "{turned:?}");
        assert_eq!(turned.arguments, table(&[("x-queue-type", quorum)]), "of another type");
    }
}
