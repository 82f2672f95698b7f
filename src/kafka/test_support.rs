//! Fixtures for tests without brokers. A client tries to connect as soon as it is created. That
//! fails, which tests do not notice unless they request something.

use super::client::EventContext;
use base::values::{DurationSetting, Names};
use bus::{
    Address, Addressee, BusEvent, BusKey, ConfirmPayload, ConfirmToken, EventSink, Header,
    Lifetime, Publication, TopicOffset,
};
use bus::{KafkaSection, Properties};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Returns settings with an unavailable broker.
pub(super) fn section() -> KafkaSection {
    let seconds = |seconds| DurationSetting(Duration::from_secs(seconds));
    let mebibytes = |count: usize| count << 20;
    KafkaSection {
        servers: Names(vec!["127.0.0.1:1".to_owned()]),
        reply_topic: "workflow-manager".to_owned(),
        prefix: String::new(),
        group: "{topic}".to_owned(),
        partitions: 12,
        replication: -1,
        retention: seconds(7 * 24 * 3_600),
        message_bytes_max: mebibytes(1),
        prefetch: 2_000,
        replies_bytes_max: mebibytes(16),
        unconfirmed_max: 5_000,
        unconfirmed_bytes_max: mebibytes(64),
        reconnect_min: seconds(1),
        reconnect_max: seconds(30),
        request_timeout: seconds(10),
        checked_every: seconds(30),
        properties: Properties::default(),
    }
}

/// The events that were reported to the manager.
pub(super) struct RecordedEvents(mpsc::UnboundedReceiver<BusEvent>);

impl RecordedEvents {
    /// Returns a sink, and the events that it receives.
    pub(super) fn channel() -> (EventSink, RecordedEvents) {
        let (sender, receiver) = mpsc::unbounded_channel();
        // An error means that the test has ended.
        let sink: EventSink = Arc::new(move |event| drop(sender.send(event)));
        (sink, RecordedEvents(receiver))
    }

    /// Returns the events since the last call.
    pub(super) fn take_all(&mut self) -> Vec<BusEvent> {
        std::iter::from_fn(|| self.0.try_recv().ok()).collect()
    }
}

/// Returns the context of clients whose events are ignored.
pub(super) fn context() -> EventContext {
    EventContext::without_listener()
}

/// Returns an offset in the only partition of a topic.
pub(super) fn offset(topic: &str, offset: i64) -> TopicOffset {
    TopicOffset { topic: topic.into(), partition: 0, offset }
}

/// The payload of a confirm token that no test reads.
struct NoPayload;

impl ConfirmPayload for NoPayload {
    fn try_clone(&self) -> Option<ConfirmToken> {
        None
    }
}

/// Creates a step message for this queue.
pub(super) fn step_message(queue: &str) -> Publication {
    Publication {
        address: Address {
            bus: BusKey { name: "kafka".into(), vhost: "".into() },
            queue: queue.into(),
        },
        addressee: Addressee::Worker,
        id: "an id".to_owned(),
        correlation_id: Some("the step of a job".into()),
        kind: None,
        priority: None,
        timestamp_s: 1_700_000_000,
        headers: vec![Header::from_number("attempt", 1)],
        body: Bytes::from_static(b"{}").into(),
        lease: None,
        sets_user_id: false,
        lifetime: Lifetime::default(),
        confirm_token: ConfirmToken::new(NoPayload),
    }
}
