//! The settings of Kafka buses. They are in this crate because builds without Kafka read and check
//! them too.

use base::values::{DurationSetting, Names, check_at_least_one};
use engine::text::quote;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// The longest name of a topic that a broker accepts, in bytes.
const TOPIC_BYTES_MAX: usize = 249;

/// The most partitions of a new topic: each costs the brokers files and memory.
const PARTITIONS_MAX: i32 = 10_000;

/// The smallest `message_bytes_max`. The headers of a step message alone have several hundred
/// bytes.
const MESSAGE_BYTES_MIN: usize = 4_096;

/// The largest `message_bytes_max` that the client library can hold.
const MESSAGE_BYTES_MAX: usize = 1_000_000_000;

/// The placeholder for the topic in the setting `group`.
const TOPIC_PLACEHOLDER: &str = "{topic}";

/// The properties of the client library (librdkafka) that may be set: for the connection,
/// authentication, and the size of requests. A name that ends with a dot is a prefix.
const ALLOWED_PROPERTIES: [&str; 22] = [
    "api.version.",
    "batch.num.messages",
    "broker.address.",
    "broker.version.fallback",
    "client.",
    "compression.",
    "connections.max.idle.ms",
    "debug",
    "enable.ssl.certificate.verification",
    "fetch.error.backoff.ms",
    "fetch.wait.max.ms",
    "https.",
    "linger.ms",
    "max.in.flight",
    "max.in.flight.requests.per.connection",
    "metadata.",
    "receive.message.max.bytes",
    "reconnect.backoff.",
    "retry.backoff.",
    "sasl.",
    "security.protocol",
    "socket.",
];

/// The prefix of the properties for TLS, which may be set too.
const TLS_PREFIX: &str = "ssl.";

/// The prefixes of properties that could load a shared library. They are refused.
const CODE_LOADING_PREFIXES: [&str; 2] = ["ssl.engine.", "ssl.providers"];

/// The properties that the guarantees depend on, or that other settings of this program determine,
/// each with the setting to use instead; empty: there is none. A name that ends with a dot is a
/// prefix.
const RESERVED_PROPERTIES: [(&str, &str); 28] = [
    ("acks", ""),
    ("allow.auto.create.topics", ""),
    ("auto.commit.", ""),
    ("auto.offset.reset", ""),
    ("batch.size", ""),
    ("bootstrap.servers", "servers"),
    ("delivery.timeout.ms", ""),
    ("enable.auto.", ""),
    ("enable.gapless.guarantee", ""),
    ("enable.idempotence", ""),
    ("enable.partition.eof", ""),
    ("fetch.max.bytes", "replies_bytes_max"),
    ("fetch.message.max.bytes", "replies_bytes_max"),
    ("fetch.min.bytes", ""),
    ("group.", "group"),
    ("isolation.level", ""),
    ("max.poll.interval.ms", ""),
    ("message.max.bytes", "message_bytes_max"),
    ("message.send.max.retries", ""),
    ("message.timeout.ms", ""),
    ("metadata.broker.list", "servers"),
    ("partitioner", ""),
    ("queue.buffering.", "unconfirmed_max"),
    ("queued.", "prefetch"),
    ("request.required.acks", ""),
    ("retries", ""),
    ("session.timeout.ms", ""),
    ("transactional.id", ""),
];

/// Parts of the names of properties whose values are masked.
const SECRET_PARTS: [&str; 8] =
    ["assertion", "config", "jaas", "key", "password", "pem", "secret", "token"];

/// The settings of section `kafka`, or of a bus of this kind in section `buses`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct KafkaSection {
    pub servers: Names,
    pub reply_topic: String,
    pub prefix: String,
    pub group: String,
    pub partitions: i32,
    pub replication: i32,
    pub retention: DurationSetting,
    pub message_bytes_max: usize,
    pub prefetch: usize,
    pub replies_bytes_max: usize,
    pub unconfirmed_max: usize,
    pub unconfirmed_bytes_max: usize,
    pub reconnect_min: DurationSetting,
    pub reconnect_max: DurationSetting,
    pub request_timeout: DurationSetting,
    pub checked_every: DurationSetting,
    pub properties: Properties,
}

/// Properties of the client library, by their names with dots. Values that may be secrets are
/// masked when they are formatted or serialized.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Properties(pub BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Properties {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let properties = BTreeMap::<String, String>::deserialize(deserializer)?;
        // Environment variables cannot have dots in their names, and properties have no
        // underscores.
        let properties = properties.into_iter();
        Ok(Properties(properties.map(|(name, value)| (name.replace('_', "."), value)).collect()))
    }
}

impl Properties {
    /// Returns the properties, with masked values where they may be secrets.
    fn masked(&self) -> impl Iterator<Item = (&str, &str)> {
        let is_secret = |name: &str| SECRET_PARTS.iter().any(|part| name.contains(part));
        self.0.iter().map(move |(name, value)| {
            let is_masked = is_secret(name) && !value.is_empty();
            (name.as_str(), if is_masked { "***" } else { value.as_str() })
        })
    }
}

impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.masked()).finish()
    }
}

impl Serialize for Properties {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.masked())
    }
}

impl KafkaSection {
    /// Returns the topic of a queue.
    pub fn topic(&self, queue: &str) -> String {
        format!("{}{queue}", self.prefix)
    }

    /// Returns the consumer group of the workers of a queue.
    pub fn group(&self, queue: &str) -> String {
        self.group.replace(TOPIC_PLACEHOLDER, &self.topic(queue))
    }

    /// Checks the section, which is at `path` in the settings file.
    ///
    /// # Errors
    ///
    /// Returns an error that says which setting is wrong, and what was expected.
    pub fn check(&self, path: &str) -> Result<(), String> {
        for server in &self.servers.0 {
            check_server(server).map_err(|error| format!("{path}.servers: {error}"))?;
        }
        check_topic(&self.reply_topic).map_err(|error| format!("{path}.reply_topic: {error}"))?;
        if !self.prefix.is_empty() {
            check_topic(&self.prefix).map_err(|error| format!("{path}.prefix: {error}"))?;
        }
        if !self.group.contains(TOPIC_PLACEHOLDER) {
            return Err(format!(
                "{path}.group is {}, expected a string with {TOPIC_PLACEHOLDER} in it, which \
                 stands for the topic: each topic has a group of its own",
                quote(&self.group)
            ));
        }
        if !(1..=PARTITIONS_MAX).contains(&self.partitions) {
            return Err(format!(
                "{path}.partitions is {}, expected 1 to {PARTITIONS_MAX}",
                self.partitions
            ));
        }
        if self.replication != -1 && !(1..=i32::from(i16::MAX)).contains(&self.replication) {
            return Err(format!(
                "{path}.replication is {}, expected the number of copies of each partition, or -1 \
                 for what the broker chooses",
                self.replication
            ));
        }
        if !(MESSAGE_BYTES_MIN..=MESSAGE_BYTES_MAX).contains(&self.message_bytes_max) {
            return Err(format!(
                "{path}.message_bytes_max is {}, expected {MESSAGE_BYTES_MIN} to \
                 {MESSAGE_BYTES_MAX}",
                self.message_bytes_max
            ));
        }
        if self.reconnect_min.0 > self.reconnect_max.0 {
            return Err(format!(
                "{path}.reconnect_min is {}, expected at most {path}.reconnect_max, which is {}",
                self.reconnect_min, self.reconnect_max
            ));
        }
        for (name, duration) in [
            ("retention", self.retention),
            ("request_timeout", self.request_timeout),
            ("checked_every", self.checked_every),
        ] {
            if duration.0 < Duration::from_millis(1)
                || duration.0.as_millis() > i32::MAX as u128 * 1_000
            {
                return Err(format!(
                    "{path}.{name} is {duration}, expected some time, such as 10s"
                ));
            }
        }
        let numbers = [
            (".prefetch", self.prefetch),
            (".replies_bytes_max", self.replies_bytes_max),
            (".unconfirmed_max", self.unconfirmed_max),
            (".unconfirmed_bytes_max", self.unconfirmed_bytes_max),
        ];
        check_at_least_one(path, &numbers)?;
        self.properties.0.keys().try_for_each(|name| {
            check_property(name).map_err(|error| format!("{path}.properties: {error}"))
        })
    }
}

/// Checks that a property of the client library may be set.
fn check_property(name: &str) -> Result<(), String> {
    let matches =
        |pattern: &str| name == pattern || (pattern.ends_with('.') && name.starts_with(pattern));
    if let Some((_, setting)) = RESERVED_PROPERTIES.iter().find(|(pattern, _)| matches(pattern)) {
        let instead = if setting.is_empty() {
            "leave it out".to_owned()
        } else {
            format!("set {setting} instead")
        };
        return Err(format!(
            "{} is set by the manager itself, because its guarantees depend on it: {instead}",
            quote(name)
        ));
    }
    let is_allowed =
        ALLOWED_PROPERTIES.iter().any(|pattern| matches(pattern)) || name.starts_with(TLS_PREFIX);
    if is_allowed && !CODE_LOADING_PREFIXES.iter().any(|pattern| name.starts_with(pattern)) {
        return Ok(());
    }
    Err(format!(
        "{} is not a property that can be set here; expected properties of librdkafka for the \
         connection and authentication, such as security.protocol, sasl.username or \
         ssl.ca.location",
        quote(name)
    ))
}

/// Checks that the address of a broker is a host and a port.
fn check_server(server: &str) -> Result<(), String> {
    let host_and_port = server.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
    match host_and_port {
        Some((host, Ok(1..))) if !host.is_empty() && !server.contains("://") => Ok(()),
        Some(_) | None => Err(format!(
            "{} is not an address of a broker, expected host:port, such as kafka-1:9092; TLS is \
             set by \
             properties: {{ security.protocol: SSL }}",
            quote(server)
        )),
    }
}

/// Checks that a broker accepts this name for a topic.
///
/// # Errors
///
/// Returns an error that says why it does not.
pub fn check_topic(name: &str) -> Result<(), String> {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if name.is_empty() || name.len() > TOPIC_BYTES_MAX {
        return Err(format!(
            "the name of a topic has 1 to {TOPIC_BYTES_MAX} bytes, this one has {}",
            name.len()
        ));
    }
    if !name.bytes().all(is_legal) || matches!(name, "." | "..") {
        return Err(format!(
            "{} cannot be the name of a topic: expected only letters, digits, . _ and -",
            quote(name)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_that_break_guarantees_or_load_code_are_rejected() {
        for name in [
            "acks",
            "enable.idempotence",
            "enable.auto.commit",
            "auto.commit.interval.ms",
            "group.id",
            "group.instance.id",
            "message.timeout.ms",
            "transactional.id",
            "bootstrap.servers",
            "fetch.max.bytes",
        ] {
            let error = check_property(name).expect_err(name);
            assert!(error.contains("set by the manager itself"), "{error}");
        }
        assert!(
            check_property("bootstrap.servers")
                .expect_err("the property is reserved")
                .contains("set servers instead")
        );
        for name in [
            "plugin.library.paths",
            "ssl.engine.location",
            "ssl.providers",
            "test.mock.num.brokers",
            "",
            "x",
        ] {
            let error = check_property(name).expect_err(name);
            assert!(error.contains("not a property that can be set here"), "{error}");
        }
        for name in [
            "security.protocol",
            "sasl.mechanism",
            "sasl.password",
            "ssl.ca.location",
            "ssl.key.password",
            "client.id",
            "linger.ms",
            "compression.type",
            "metadata.max.age.ms",
            "enable.ssl.certificate.verification",
        ] {
            assert_eq!(check_property(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn values_that_may_be_secrets_are_masked() {
        let secrets = [
            "sasl.password",
            "ssl.key.password",
            "ssl.key.pem",
            "ssl.keystore.password",
            "sasl.oauthbearer.client.secret",
            "sasl.oauthbearer.config",
            "sasl.oauthbearer.assertion.private.key.passphrase",
        ];
        let with_secret = |name: &str| (name.to_owned(), "hidden".to_owned());
        let mut properties: BTreeMap<String, String> = secrets.map(with_secret).into();
        properties.insert("security.protocol".into(), "SASL_SSL".into());
        let properties = Properties(properties);
        let rendered =
            format!("{properties:?}{}", serde_json::to_string(&properties).expect("serializes"));
        assert!(!rendered.contains("hidden") && rendered.contains("SASL_SSL"), "{rendered}");
    }

    #[test]
    fn topic_names_are_those_that_brokers_accept() {
        for name in ["a", "workflow-manager", "A.b_c-9"] {
            assert_eq!(check_topic(name), Ok(()));
        }
        for name in ["", ".", "..", "a b", "a/b", "é", &"x".repeat(250)] {
            assert!(check_topic(name).is_err(), "{name}");
        }
    }
}
