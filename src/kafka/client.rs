//! Configures the clients of the library (librdkafka), and forwards the events of their threads.

use bus::KafkaSection;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::{BaseProducer, ProducerContext};
use std::thread;
use tokio::sync::mpsc;

/// The size limit of a batch of messages in bytes. A larger message is sent alone.
pub(super) const BATCH_BYTES: usize = 128 * 1024;

/// How long the library waits for a missing topic, which may just have been created.
const TOPIC_WAIT_MS: u32 = 5_000;

/// The longest time between two polls of a consumer: a day, the most that the library accepts. The
/// bus does not poll while its limit of unsettled records is reached, however long that takes.
const POLL_INTERVAL_MAX_MS: u32 = 86_400_000;

/// The smallest `message.max.bytes` that the library accepts.
const LIBRARY_MESSAGE_BYTES_MIN: usize = 1_000;

/// The largest `queued.min.messages` that the library accepts.
const LIBRARY_PREFETCH_MAX: usize = 10_000_000;

/// The largest `queued.max.messages.kbytes` that the library accepts.
const LIBRARY_PREFETCH_KIB_MAX: usize = 2_097_151;

/// An event from a thread of the library.
pub(super) enum ClientEvent {
    /// The delivery report of the message with this number: the partition and the offset to which
    /// it was written, or the error.
    Delivered { number: usize, result: Result<(i32, i64), RDKafkaErrorCode> },
    /// A producer was closed. No delivery report of a message up to this number follows.
    ProducerClosed { last_number: usize },
    /// No broker can be reached.
    AllBrokersDown,
    /// An error message of the library. It may be transient or permanent.
    Error(String),
}

/// Forwards the events of a client's threads.
#[derive(Clone)]
pub(super) struct EventContext(pub(super) mpsc::UnboundedSender<ClientEvent>);

impl EventContext {
    /// Creates the context of a client whose events are dropped. Its calls still return errors.
    pub(super) fn without_listener() -> EventContext {
        EventContext(mpsc::unbounded_channel().0)
    }
}

impl ClientContext for EventContext {
    /// Logs a line of the library. The bus reports errors in its state; these lines give details.
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        match level {
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
                tracing::warn!(target: "librdkafka", facility, "{line}");
            }
            RDKafkaLogLevel::Error
            | RDKafkaLogLevel::Warning
            | RDKafkaLogLevel::Notice
            | RDKafkaLogLevel::Info
            | RDKafkaLogLevel::Debug => tracing::debug!(target: "librdkafka", facility, "{line}"),
        }
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "the library has more than a hundred codes")]
    fn error(&self, error: KafkaError, reason: &str) {
        let event = match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::AllBrokersDown) => ClientEvent::AllBrokersDown,
            _ => ClientEvent::Error(reason.to_owned()),
        };
        // Sending fails if there is no listener, or once the event loop has ended.
        let _ = self.0.send(event);
    }
}

impl ConsumerContext for EventContext {}

impl ProducerContext for EventContext {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, number: usize) {
        let result = match result {
            Ok(record) => Ok((record.partition(), record.offset())),
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail)),
        };
        // Sending fails if there is no listener, or once the event loop has ended.
        let _ = self.0.send(ClientEvent::Delivered { number, result });
    }
}

/// Builds the properties of each client.
pub(super) struct ClientConfigs<'s>(&'s KafkaSection);

impl ClientConfigs<'_> {
    pub(super) fn new(section: &KafkaSection) -> ClientConfigs<'_> {
        ClientConfigs(section)
    }

    /// Checks whether the library accepts the properties.
    pub(super) fn check(&self) -> Result<(), String> {
        for config in
            [self.producer_config(), self.consumer_config(&self.0.reply_topic), self.admin_config()]
        {
            // The library begins to connect in the background, but the client is dropped at once.
            config.create::<BaseProducer>().map(drop).map_err(|error| explain(&error))?;
        }
        Ok(())
    }

    /// Returns the properties of all clients. Properties from the settings are set first, so they
    /// cannot override those that the bus depends on.
    fn common_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        let is_debug_enabled = self.0.properties.0.contains_key("debug");
        config.set_log_level(if is_debug_enabled {
            RDKafkaLogLevel::Debug
        } else {
            RDKafkaLogLevel::Info
        });
        config.set("client.id", "workflow-manager");
        for (name, value) in &self.0.properties.0 {
            config.set(name, value);
        }
        config.set("bootstrap.servers", self.0.servers.0.join(","));
        // A topic that a broker creates itself would have the broker's default retention.
        config.set("allow.auto.create.topics", "false");
        config
    }

    /// Returns the properties of a producer. It retries until all in-sync replicas have a message,
    /// without a timeout, and is idempotent: no retry duplicates or reorders messages. Its own
    /// buffer has no limit, because the publisher limits the messages in flight.
    pub(super) fn producer_config(&self) -> ClientConfig {
        let message_bytes = self.0.message_bytes_max.max(LIBRARY_MESSAGE_BYTES_MIN);
        let mut config = self.common_config();
        config
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("message.timeout.ms", "0")
            .set("message.max.bytes", message_bytes.to_string())
            .set("batch.size", BATCH_BYTES.to_string())
            .set("queue.buffering.max.messages", "0")
            .set("queue.buffering.max.kbytes", i32::MAX.to_string())
            .set("topic.metadata.propagation.max.ms", TOPIC_WAIT_MS.to_string());
        if !self.0.properties.0.contains_key("linger.ms") {
            config.set("linger.ms", "1");
        }
        config
    }

    /// Returns the properties of a consumer. It reads its assigned partitions, commits no offsets,
    /// and skips records of aborted transactions. The library requires the name of a group, which
    /// the consumer does not join.
    pub(super) fn consumer_config(&self, group: &str) -> ClientConfig {
        let prefetch = self.0.prefetch.clamp(1, LIBRARY_PREFETCH_MAX);
        let prefetch_kib = (self.0.replies_bytes_max / 1024).clamp(1, LIBRARY_PREFETCH_KIB_MAX);
        let mut config = self.common_config();
        config
            .set("group.id", group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "error")
            .set("enable.partition.eof", "true")
            .set("isolation.level", "read_committed")
            .set("queued.min.messages", prefetch.to_string())
            .set("queued.max.messages.kbytes", prefetch_kib.to_string())
            .set("max.poll.interval.ms", POLL_INTERVAL_MAX_MS.to_string());
        config
    }

    /// Returns the properties of the client that inspects and creates topics.
    pub(super) fn admin_config(&self) -> ClientConfig {
        self.common_config()
    }
}

/// Formats an error of the library for people.
#[allow(clippy::wildcard_enum_match_arm, reason = "the library's errors are non-exhaustive")]
pub(super) fn explain(error: &KafkaError) -> String {
    match error {
        KafkaError::ClientConfig(_, reason, name, _) => format!("the property {name}: {reason}"),
        KafkaError::ClientCreation(reason) | KafkaError::AdminOpCreation(reason) => reason.clone(),
        other => match other.rdkafka_error_code() {
            Some(code) => code.to_string(),
            None => other.to_string(),
        },
    }
}

/// A client that is closed on a new thread, because closing it may block.
pub(super) struct ClosedOnThread<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> ClosedOnThread<T> {
    pub(super) fn new(client: T) -> ClosedOnThread<T> {
        ClosedOnThread(Some(client))
    }

    /// Returns the client; `None` once it is being closed.
    pub(super) fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }

    /// Closes the client on a new thread, which then calls `on_closed`.
    pub(super) fn close_on_thread(&mut self, on_closed: impl FnOnce() + Send + 'static) {
        if let Some(client) = self.0.take() {
            thread::spawn(move || {
                drop(client);
                on_closed();
            });
        }
    }
}

impl<T: Send + 'static> Drop for ClosedOnThread<T> {
    fn drop(&mut self) {
        self.close_on_thread(|| ());
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support;
    use super::*;

    /// Tests these properties one by one, because most tests with brokers would pass without them.
    #[test]
    fn guarantees_are_configured_whatever_the_settings_say() {
        let mut section = test_support::section();
        for (name, _) in PRODUCER.into_iter().chain(CONSUMER) {
            section.properties.0.insert(name.to_owned(), "other".to_owned());
        }
        let configs = ClientConfigs::new(&section);
        for (config, expected) in [
            (configs.producer_config(), &PRODUCER[..]),
            (configs.consumer_config("g"), &CONSUMER[..]),
        ] {
            for (name, value) in expected {
                assert_eq!(config.get(name), Some(*value), "{name}");
            }
            assert_eq!(config.get("allow.auto.create.topics"), Some("false"));
            assert_eq!(config.get("bootstrap.servers"), Some("127.0.0.1:1"));
        }
        assert!(configs.producer_config().get("transactional.id").is_none());
    }

    const PRODUCER: [(&str, &str); 4] = [
        ("acks", "all"),
        ("enable.idempotence", "true"),
        ("message.timeout.ms", "0"),
        ("message.max.bytes", "1048576"),
    ];

    const CONSUMER: [(&str, &str); 6] = [
        ("enable.auto.commit", "false"),
        ("enable.auto.offset.store", "false"),
        ("auto.offset.reset", "error"),
        ("enable.partition.eof", "true"),
        ("isolation.level", "read_committed"),
        ("group.id", "g"),
    ];

    #[test]
    fn unknown_properties_are_reported() {
        let mut section = test_support::section();
        assert_eq!(ClientConfigs::new(&section).check(), Ok(()));
        section.properties.0.insert("sasl.mechanism".to_owned(), "GUESSING".to_owned());
        section.properties.0.insert("security.protocol".to_owned(), "SASL_SSL".to_owned());
        let reason = ClientConfigs::new(&section).check().expect_err("an unknown mechanism");
        assert!(reason.contains("GUESSING") || reason.contains("sasl"), "{reason}");
    }
}
