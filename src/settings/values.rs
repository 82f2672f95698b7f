//! The kinds of values that settings have: spans of time, secrets, addresses, words.

use super::spelling;
use crate::engine::Millis;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// A duration written `500ms`, `30s`, `5m`, `2h`, `3d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Millis::whole(self.0) {
            Some(millis) => millis.fmt(f),
            None => humantime::format_duration(self.0).fmt(f),
        }
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_duration(&text).map(Span).map_err(|error| {
            serde::de::Error::custom(format!(
                "{text:?} is no duration ({error}); write for example 500ms, 30s, 5m, 2h, 3d"
            ))
        })
    }
}

/// A text that is never shown.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "\"\"" } else { "\"***\"" })
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if self.0.is_empty() { "" } else { "***" })
    }
}

/// A broker's address; its password is never shown.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct ServerAddress(pub String);

impl ServerAddress {
    fn masked(&self) -> String {
        let Some((scheme, rest)) = self.0.split_once("://") else {
            return if self.0.is_empty() { String::new() } else { "***".to_owned() };
        };
        // What a web service is asked may be a secret as well.
        let rest = match rest.split_once('?') {
            Some((place, query)) if scheme.starts_with("http") && !query.is_empty() => {
                &format!("{place}?***")
            }
            Some(_) | None => rest,
        };
        match rest.rsplit_once('@') {
            Some((credentials, host)) => format!(
                "{scheme}://{}:***@{host}",
                credentials.split(':').next().unwrap_or_default()
            ),
            None => format!("{scheme}://{rest}"),
        }
    }
}

impl fmt::Debug for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.masked())
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.masked())
    }
}

impl Serialize for ServerAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.masked())
    }
}

/// One of these words.
pub(super) fn one_of<'de, D: Deserializer<'de>, T: Copy>(
    deserializer: D,
    words: &[(&str, T)],
    expected: &str,
) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    found.ok_or_else(|| serde::de::Error::custom(format!("found {text:?}, expected {expected}")))
}

/// An address to listen on, as a setting.
pub(super) fn address_to_listen_on<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<SocketAddr, D::Error> {
    parsed_address(&String::deserialize(deserializer)?)
}

/// An address to listen on, from its text.
pub(super) fn parsed_address<E: serde::de::Error>(text: &str) -> Result<SocketAddr, E> {
    let wrong = || E::custom(format!("found {text:?}, expected {}", spelling::LISTEN_EXPECTED));
    spelling::listen(text).ok_or_else(wrong)
}
