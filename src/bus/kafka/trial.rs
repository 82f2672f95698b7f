//! Parts for tests without brokers: a client connects to nothing before something is asked of it.

use super::client::Context;
use crate::bus::{
    Address, Addressee, BusEvent, BusKey, EventSink, Header, Issued, Lifetime, Position,
    Publication, Receipt,
};
use crate::settings::{KafkaSection, Settings};
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Settings of brokers that are not there.
pub(super) fn section() -> KafkaSection {
    let mut section = Settings::defaults().expect("valid").kafka;
    section.servers.0 = vec!["127.0.0.1:1".to_owned()];
    section
}

/// What the manager is told.
pub(super) struct Heard(mpsc::UnboundedReceiver<BusEvent>);

impl Heard {
    pub(super) fn sink() -> (EventSink, Heard) {
        let (tell, told) = mpsc::unbounded_channel();
        // Nobody hears it once the test has ended.
        let sink: EventSink = Arc::new(move |event| drop(tell.send(event)));
        (sink, Heard(told))
    }

    /// All that was told since the last question.
    pub(super) fn all(&mut self) -> Vec<BusEvent> {
        std::iter::from_fn(|| self.0.try_recv().ok()).collect()
    }
}

/// The context of clients whose threads nobody listens to.
pub(super) fn context() -> Context {
    Context::of_nobody()
}

/// A position in the only partition of a topic.
pub(super) fn position(topic: &str, offset: i64) -> Position {
    Position { topic: topic.into(), partition: 0, offset }
}

struct Nothing;

impl Issued for Nothing {
    fn again(&self) -> Option<Receipt> {
        None
    }
}

/// A step message for this queue.
pub(super) fn message(queue: &str) -> Publication {
    Publication {
        to: Address { bus: BusKey { bus: "kafka".into(), vhost: "".into() }, queue: queue.into() },
        addressee: Addressee::Worker,
        id: "an id".to_owned(),
        correlation_id: Some("the step of a job".into()),
        kind: None,
        priority: None,
        timestamp_s: 1_700_000_000,
        headers: vec![Header::number("attempt", 1)],
        body: Bytes::from_static(b"{}").into(),
        lease: None,
        names_sender: false,
        lifetime: Lifetime::default(),
        receipt: Receipt::new(Nothing),
    }
}
