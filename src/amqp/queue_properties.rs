//! The properties with which missing queues are declared: those in the workflow file, or else those
//! that the queue had before, or else those in the settings of the bus.
//!
//! The broker rejects the declaration of an existing queue with other properties (406). So a queue
//! that was deleted is declared with the properties that its worker had given it. Otherwise the
//! worker could not declare it again. Only the management API reports the properties of a queue, so
//! without it they are not known, and the settings apply.

use super::management::{ListedDeclaration, ListedQueue};
use engine::{QUEUE_TYPE, QueueArgument, QueueDeclaration, QueueType};
use lapin::types::{AMQPValue, FieldTable, LongString};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The properties with which a queue is declared.
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

/// The declarations in the workflow files, by queue.
pub(super) type Declarations = BTreeMap<Arc<str>, QueueDeclaration>;

/// The last known properties of queues, by name.
#[derive(Default)]
pub(super) struct KnownProperties(RefCell<HashMap<String, QueueProperties>>);

impl KnownProperties {
    /// Records the properties of the listed queues for which `is_served` returns true.
    pub(super) fn record(&self, listed_queues: &[ListedQueue], is_served: impl Fn(&str) -> bool) {
        let mut properties_by_queue = self.0.borrow_mut();
        for queue in listed_queues.iter().filter(|queue| is_served(&queue.name)) {
            if let Some(properties) = QueueProperties::from_listed(&queue.declaration) {
                properties_by_queue.insert(queue.name.clone(), properties);
            }
        }
    }

    /// Returns the properties to declare a queue with: the known ones, or else those of the
    /// settings, each overridden by the declaration in the workflow file, if there is one.
    pub(super) fn properties_for(
        &self,
        queue: &str,
        file_declaration: Option<&QueueDeclaration>,
        settings_declaration: &QueueDeclaration,
    ) -> QueueProperties {
        let properties = match self.0.borrow().get(queue) {
            Some(known_properties) => known_properties.clone(),
            None => QueueProperties::default().overridden_by(settings_declaration),
        };
        match file_declaration {
            Some(declaration) => properties.overridden_by(declaration),
            None => properties,
        }
    }
}

impl QueueProperties {
    /// Converts a listed declaration. Returns `None` if it is incomplete or has an argument that
    /// cannot be converted, or if the queue is exclusive.
    fn from_listed(listed: &ListedDeclaration) -> Option<QueueProperties> {
        let ListedDeclaration { durable, auto_delete, exclusive, arguments } = listed;
        if *exclusive == Some(true) {
            return None;
        }
        let mut table = FieldTable::default();
        for (name, json_value) in arguments.iter().flatten() {
            let value = match json_value {
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

    /// Overrides these properties with those that a declaration sets. The arguments of a
    /// declaration replace all earlier ones, except for the type if it sets none.
    fn overridden_by(self, declaration: &QueueDeclaration) -> QueueProperties {
        let previous_type = self.arguments.inner().get(QUEUE_TYPE).cloned();
        let declared_type = declaration.kind.map(|kind| long_string(kind.name()));
        // A queue that was declared without a type is a classic queue.
        let is_type_changed = declared_type.as_ref().is_some_and(|queue_type| {
            *queue_type
                != previous_type.clone().unwrap_or_else(|| long_string(QueueType::Classic.name()))
        });
        let mut arguments = FieldTable::default();
        match &declaration.arguments {
            Some(declared_arguments) => {
                for (name, value) in declared_arguments {
                    arguments.insert((&**name).into(), to_amqp_value(value));
                }
            }
            // The arguments of one type may be invalid for another.
            None if is_type_changed => {}
            None => arguments = self.arguments,
        }
        if let Some(queue_type) = declared_type.or(previous_type) {
            arguments.insert(QUEUE_TYPE.into(), queue_type);
        }
        match declaration.kind {
            // A quorum queue is always durable and never auto-deleted.
            Some(QueueType::Quorum) => {
                QueueProperties { durable: true, auto_delete: false, arguments }
            }
            Some(QueueType::Classic) | None => QueueProperties { arguments, ..self },
        }
    }
}

fn long_string(text: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(text))
}

fn to_amqp_value(argument: &QueueArgument) -> AMQPValue {
    match argument {
        QueueArgument::Flag(flag) => AMQPValue::Boolean(*flag),
        QueueArgument::Number(number) => AMQPValue::LongLongInt(*number),
        QueueArgument::Text(text) => long_string(text),
    }
}

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
        let known_properties = KnownProperties::default();
        let default = QueueDeclaration { kind: Some(QueueType::Classic), arguments: None };
        let properties_for = |queue: &str, file_declaration: Option<&QueueDeclaration>| {
            known_properties.properties_for(queue, file_declaration, &default)
        };
        let classic = QueueProperties {
            arguments: table(&[("x-queue-type", long_string("classic"))]),
            ..QueueProperties::default()
        };
        assert_eq!(properties_for("q", None), classic, "without a known queue the settings apply");
        let queues = listed(
            r#"[{"name":"q","durable":true,"auto_delete":false,"exclusive":false,
                 "arguments":{"x-queue-type":"quorum","x-delivery-limit":5}},
                {"name":"plain","durable":true,"auto_delete":false,"arguments":{}},
                {"name":"brief","durable":false,"auto_delete":true,"arguments":{"x-expires":5000,
                 "x-single-active-consumer":true}},
                {"name":"exclusive","durable":false,"auto_delete":true,"exclusive":true,
                 "arguments":{}},
                {"name":"old-api"},
                {"name":"another's","durable":true,"auto_delete":false,"arguments":{}}]"#,
        );
        known_properties.record(&queues, |name| name != "another's");
        assert_eq!(properties_for("another's", None), classic);
        let quorum = long_string("quorum");
        let arguments = table(&[
            ("x-queue-type", quorum.clone()),
            ("x-delivery-limit", AMQPValue::LongLongInt(5)),
        ]);
        assert_eq!(
            properties_for("q", None),
            QueueProperties { arguments, ..QueueProperties::default() }
        );
        assert_eq!(
            properties_for("plain", None),
            QueueProperties::default(),
            "its worker declares it without a type"
        );
        let arguments = table(&[
            ("x-expires", AMQPValue::LongLongInt(5000)),
            ("x-single-active-consumer", AMQPValue::Boolean(true)),
        ]);
        assert_eq!(
            properties_for("brief", None),
            QueueProperties { durable: false, auto_delete: true, arguments }
        );
        assert_eq!(
            (properties_for("exclusive", None), properties_for("old-api", None)),
            (classic.clone(), classic)
        );
        let declared_arguments = [("x-max-length".into(), QueueArgument::Number(9))].into();
        let declaration = QueueDeclaration { kind: None, arguments: Some(declared_arguments) };
        let arguments =
            table(&[("x-queue-type", quorum.clone()), ("x-max-length", AMQPValue::LongLongInt(9))]);
        assert_eq!(
            properties_for("q", Some(&declaration)),
            QueueProperties { arguments, ..QueueProperties::default() }
        );
        let declaration = QueueDeclaration { kind: Some(QueueType::Quorum), arguments: None };
        let properties = properties_for("brief", Some(&declaration));
        assert!(properties.durable && !properties.auto_delete, "{properties:?}");
        assert_eq!(
            properties.arguments,
            table(&[("x-queue-type", quorum)]),
            "the arguments of the other type are dropped"
        );
    }
}
