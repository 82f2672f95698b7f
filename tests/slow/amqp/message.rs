//! A message as a worker sees it, and the parts that messages are made of.

use lapin::{
    Acker, BasicProperties,
    message::Delivery,
    types::{AMQPValue, FieldTable, LongString},
};
use serde_json::Value;
use uuid::Uuid;

/// A message as a worker sees it.
#[derive(Clone, Debug)]
pub(crate) struct StepMessage {
    pub(crate) queue: String,
    pub(crate) body: Vec<u8>,
    pub(crate) properties: BasicProperties,
    pub(crate) redelivered: bool,
    pub(super) acker: Acker,
}

impl StepMessage {
    pub(super) fn new(delivery: Delivery) -> StepMessage {
        let Delivery { routing_key, redelivered, properties, data, acker, .. } = delivery;
        StepMessage { queue: routing_key.to_string(), body: data, properties, redelivered, acker }
    }

    #[track_caller]
    pub(crate) fn correlation_id(&self) -> String {
        self.properties
            .correlation_id()
            .as_ref()
            .unwrap_or_else(|| panic!("no correlation id: {self:?}"))
            .to_string()
    }

    #[track_caller]
    pub(crate) fn job(&self) -> Uuid {
        let id = self.correlation_id();
        let job = id.split_once(':').and_then(|(job, _)| job.parse().ok());
        job.unwrap_or_else(|| panic!("the correlation id {id:?} is not <UUID>:<step>"))
    }

    #[track_caller]
    pub(crate) fn step(&self) -> String {
        let id = self.correlation_id();
        id.split_once(':')
            .unwrap_or_else(|| panic!("the correlation id {id:?} is not <UUID>:<step>"))
            .1
            .to_owned()
    }

    #[track_caller]
    pub(crate) fn message_id(&self) -> String {
        self.properties
            .message_id()
            .as_ref()
            .unwrap_or_else(|| panic!("no message id: {self:?}"))
            .to_string()
    }

    #[track_caller]
    pub(crate) fn reply_to(&self) -> String {
        self.properties
            .reply_to()
            .as_ref()
            .unwrap_or_else(|| panic!("no reply_to: {self:?}"))
            .to_string()
    }

    #[track_caller]
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a step message is UTF-8")
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("a step message that is not JSON ({error}): {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<AMQPValue> {
        self.properties.headers().as_ref().and_then(|headers| headers.inner().get(name)).cloned()
    }

    /// A header that is text.
    #[track_caller]
    pub(crate) fn header_text(&self, name: &str) -> String {
        match self.header(name) {
            Some(AMQPValue::LongString(text)) => {
                String::from_utf8(text.as_bytes().to_vec()).unwrap()
            }
            other => panic!("the header {name} is not a text but {other:?}"),
        }
    }
}

/// What an ordinary worker's reply says besides its body.
pub(crate) fn json_properties() -> BasicProperties {
    BasicProperties::default().with_content_type("application/json".into()).with_delivery_mode(2)
}

/// The arguments of a queue.
pub(crate) fn arguments<const N: usize>(pairs: [(&str, AMQPValue); N]) -> FieldTable {
    let mut table = FieldTable::default();
    for (key, value) in pairs {
        table.insert(key.into(), value);
    }
    table
}

pub(crate) fn text_argument(text: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(text))
}
