//! Parts for tests without brokers. A client makes no connection before it is used.

use super::client::Context;
use crate::bus::{
    Address, Addressee, BusEvent, BusKey, EventSink, Header, Issued, Lifetime, Position,
    Publication, Receipt,
};
use crate::settings::{KafkaSection, Settings};
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Returns settings with an unavailable broker.
pub(super) fn section() -> KafkaSection {
    let mut section = Settings::defaults().expect("valid").kafka;
    section.servers.0 = vec!["127.0.0.1:1".to_owned()];
    section
}

/// Records the events that are reported to the manager.
pub(super) struct Heard(mpsc::UnboundedReceiver<BusEvent>);

impl Heard {
    pub(super) fn sink() -> (EventSink, Heard) {
        let (tell, told) = mpsc::unbounded_channel();
        // The receiver is gone once the test has ended.
        let sink: EventSink = Arc::new(move |event| drop(tell.send(event)));
        (sink, Heard(told))
    }

    /// Returns the events since the last call.
    pub(super) fn all(&mut self) -> Vec<BusEvent> {
        std::iter::from_fn(|| self.0.try_recv().ok()).collect()
    }
}

/// Returns the context of clients whose events are ignored.
pub(super) fn context() -> Context {
    Context::of_nobody()
}

/// Returns an offset in the only partition of a topic.
pub(super) fn position(topic: &str, offset: i64) -> Position {
    Position { topic: topic.into(), partition: 0, offset }
}

struct Nothing;

impl Issued for Nothing {
    fn again(&self) -> Option<Receipt> {
        None
    }
}

/// Creates a step message for this queue.
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
