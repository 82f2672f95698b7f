//! The properties with which missing queues are declared: those in the workflow file, else those
//! that the queue had before, else those in the settings of the bus.
//!
//! Whoever declares an existing queue must give the same properties, or the broker refuses (406).
//! So a queue that its worker had declared, and that was deleted, is declared as it was: otherwise
//! its worker could not return. Only the management API reports the properties of a queue.

use super::management::{ListedDeclaration, ListedQueue};
use engine::{QUEUE_TYPE, QueueArgument, QueueDeclaration, QueueType};
use lapin::types::{AMQPValue, FieldTable, LongString};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The parameters of a queue's declaration besides its name.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueProperties {
    pub(super) durable: bool,
    pub(super) auto_delete: bool,
    pub(super) arguments: FieldTable,
}

impl Default for QueueProperties {
    /// Returns the properties of a durable queue without arguments.
    fn default() -> QueueProperties {
        QueueProperties { durable: true, auto_delete: false, arguments: FieldTable::default() }
    }
}

/// The last known properties of queues, by name.
#[derive(Default)]
pub(super) struct KnownProperties(RefCell<HashMap<String, QueueProperties>>);

impl KnownProperties {
    /// Records the properties of the served queues among these.
    pub(super) fn record(&self, listed: &[ListedQueue], is_served: impl Fn(&str) -> bool) {
        let mut seen = self.0.borrow_mut();
        for queue in listed.iter().filter(|queue| is_served(&queue.name)) {
            if let Some(properties) = QueueProperties::from_listed(&queue.declaration) {
                seen.insert(queue.name.clone(), properties);
            }
        }
    }

    /// Returns the properties to declare a queue with: those in `declared` (by the workflow file),
    /// else the known ones, else those in `default`.
    pub(super) fn properties_for(
        &self,
        queue: &str,
        declared: Option<&QueueDeclaration>,
        default: &QueueDeclaration,
    ) -> QueueProperties {
        let properties = match self.0.borrow().get(queue) {
            Some(seen) => seen.clone(),
            None => QueueProperties::default().overridden_by(default),
        };
        match declared {
            Some(declaration) => properties.overridden_by(declaration),
            None => properties,
        }
    }
}

impl QueueProperties {
    /// Converts what the API lists. Returns `None` if that is incomplete, or if the queue is
    /// exclusive to a connection.
    fn from_listed(listed: &ListedDeclaration) -> Option<QueueProperties> {
        let ListedDeclaration { durable, auto_delete, exclusive, arguments } = listed;
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
        Some(QueueProperties {
            durable: (*durable)?,
            auto_delete: (*auto_delete)?,
            arguments: table,
        })
    }

    /// Returns these properties, with those of the workflow file in their place where it has some.
    fn overridden_by(self, declared: &QueueDeclaration) -> QueueProperties {
        let previous = self.arguments.inner().get(QUEUE_TYPE).cloned();
        let kind = declared.kind.map(|kind| text(kind.name()));
        let is_other = kind.as_ref().is_some_and(|kind| {
            *kind != previous.clone().unwrap_or_else(|| text(QueueType::Classic.name()))
        });
        let mut arguments = FieldTable::default();
        match &declared.arguments {
            Some(declared_arguments) => {
                for (name, value) in declared_arguments {
                    arguments.insert((&**name).into(), argument(value));
                }
            }
            // The arguments of one type may be wrong for another.
            None if is_other => {}
            None => arguments = self.arguments,
        }
        if let Some(kind) = kind.or(previous) {
            arguments.insert(QUEUE_TYPE.into(), kind);
        }
        match declared.kind {
            // A quorum queue is always durable, and is never deleted with its last consumer.
            Some(QueueType::Quorum) => {
                QueueProperties { durable: true, auto_delete: false, arguments }
            }
            Some(QueueType::Classic) | None => QueueProperties { arguments, ..self },
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
        QueueArgument::Text(string) => text(string),
    }
}

/// The declarations in workflow files, by queue.
pub(super) type Declarations = BTreeMap<Arc<str>, QueueDeclaration>;

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(json: &str) -> Vec<ListedQueue> {
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
    fn a_queue_is_declared_with_its_known_properties_unless_the_file_overrides_them() {
        let known = KnownProperties::default();
        let bus = QueueDeclaration { kind: Some(QueueType::Classic), arguments: None };
        let of = |queue: &str, declared_queue: Option<&QueueDeclaration>| {
            known.properties_for(queue, declared_queue, &bus)
        };
        let classic = QueueProperties {
            arguments: table(&[("x-queue-type", text("classic"))]),
            ..QueueProperties::default()
        };
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
        known.record(&queues, |name| name != "another's");
        assert_eq!(of("another's", None), classic);
        let (quorum, five) = (text("quorum"), AMQPValue::LongLongInt(5));
        let seen = table(&[("x-queue-type", quorum.clone()), ("x-delivery-limit", five)]);
        assert_eq!(
            of("q", None),
            QueueProperties { arguments: seen, ..QueueProperties::default() }
        );
        assert_eq!(
            of("plain", None),
            QueueProperties::default(),
            "its worker declares it without a type"
        );
        let brief = table(&[
            ("x-expires", AMQPValue::LongLongInt(5000)),
            ("x-single-active-consumer", AMQPValue::Boolean(true)),
        ]);
        let brief = QueueProperties { durable: false, auto_delete: true, arguments: brief };
        assert_eq!(of("brief", None), brief);
        assert_eq!((of("own", None), of("old-api", None)), (classic.clone(), classic));
        let arguments = [("x-max-length".into(), QueueArgument::Number(9))].into();
        let declared = QueueDeclaration { kind: None, arguments: Some(arguments) };
        let nine = ("x-max-length", AMQPValue::LongLongInt(9));
        let merged = table(&[("x-queue-type", quorum.clone()), nine.clone()]);
        assert_eq!(
            of("q", Some(&declared)),
            QueueProperties { arguments: merged, ..QueueProperties::default() }
        );
        let declared = QueueDeclaration { kind: Some(QueueType::Quorum), arguments: None };
        let changed = of("brief", Some(&declared));
        assert!(changed.durable && !changed.auto_delete, "{changed:?}");
        assert_eq!(changed.arguments, table(&[("x-queue-type", quorum)]), "of another type");
    }
}
