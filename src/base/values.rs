//! The types of values of settings: durations, secrets, addresses, choices.

use engine::Millis;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::time::Duration;

/// A duration written `500ms`, `30s`, `5m`, `2h`, `3d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationSetting(pub Duration);

impl fmt::Display for DurationSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Millis::from_whole_millis(self.0) {
            Some(millis) => millis.fmt(f),
            None => humantime::format_duration(self.0).fmt(f),
        }
    }
}

impl Serialize for DurationSetting {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DurationSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_duration(&text).map(DurationSetting).map_err(|error| {
            serde::de::Error::custom(format!(
                "{text:?} is no duration ({error}); write for example 500ms, 30s, 5m, 2h, 3d"
            ))
        })
    }
}

/// Names, as a list or as a text with commas between them, as in the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Names(pub Vec<String>);

impl Names {
    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameListVisitor;
        impl<'de> Visitor<'de> for NameListVisitor {
            type Value = Names;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of names, or names with commas between them")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Names, E> {
                let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
                Ok(Names(names.map(str::to_owned).collect()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Names, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = list.next_element()? {
                    names.push(name);
                }
                Ok(Names(names))
            }
        }
        deserializer.deserialize_any(NameListVisitor)
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

/// A broker's address, whose password is never shown.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct ServerAddress(pub String);

impl ServerAddress {
    fn masked(&self) -> String {
        mask_address(&self.0)
    }
}

/// Parameters in the query of a broker's address that are no secrets.
const PUBLIC_PARAMETERS: [&str; 8] = [
    "auth_mechanism",
    "channel_max",
    "connection_timeout",
    "frame_max",
    "heartbeat",
    "locale",
    "recovery",
    "verify",
];

/// The fewest characters of a part of a path that counts as a token, if it has letters and digits.
const TOKEN_CHARS_MIN: usize = 16;

/// Masks what may be a secret in an address: the password, the query, a token in the path. A text
/// that is not an address may be a secret as a whole.
pub(crate) fn mask_address(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else {
        return if address.is_empty() { String::new() } else { "***".to_owned() };
    };
    // A password may contain a `/`, `?` or `#` that should have been escaped.
    let (credentials, rest) = match rest.rsplit_once('@') {
        Some((credentials, rest)) => (Some(credentials), rest),
        None => (None, rest),
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (host, rest) = rest.split_at(end);
    let user = match credentials.map(|credentials| credentials.split_once(':')) {
        None => String::new(),
        Some(Some((user, _))) => format!("{user}:***@"),
        // A user name alone may be a token.
        Some(None) => "***@".to_owned(),
    };
    // If the host is missing, the password is where a port would be.
    let host = match host.rsplit_once(':') {
        Some((name, port)) if !host.ends_with(']') && !is_port(port) => {
            format!("{name}:***")
        }
        Some(_) | None => host.to_owned(),
    };
    let (rest, fragment) = match rest.split_once('#') {
        Some((rest, _)) => (rest, "#***"),
        None => (rest, ""),
    };
    let (path, query) = match rest.split_once('?') {
        Some((path, query)) => (path, Some(query).filter(|query| !query.is_empty())),
        None => (rest, None),
    };
    // The query of a web service's address may be a secret too.
    let (query, fragment) = match query {
        Some(_) if scheme.starts_with("http") => (Some("***"), ""),
        _ => (query, fragment),
    };
    let path: Vec<&str> =
        path.split('/').map(|part| if is_token(part) { "***" } else { part }).collect();
    let query = query.map_or_else(String::new, |query| {
        let parts = query.split('&').map(|part| match part.split_once('=') {
            Some((name, _)) if PUBLIC_PARAMETERS.contains(&name) => part.to_owned(),
            Some((name, _)) => format!("{name}=***"),
            None => "***".to_owned(),
        });
        format!("?{}", parts.collect::<Vec<_>>().join("&"))
    });
    format!("{scheme}://{user}{host}{}{query}{fragment}", path.join("/"))
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok()
}

/// Returns whether a part of a path looks like a token rather than a name.
fn is_token(part: &str) -> bool {
    part.len() >= TOKEN_CHARS_MIN
        && part.bytes().any(|byte| byte.is_ascii_digit())
        && part.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// Checks that none of these settings is 0. Their names stand behind `prefix`.
///
/// # Errors
///
/// Names the first that is 0.
pub fn check_at_least_one<N: Default + PartialEq>(
    prefix: &str,
    numbers: &[(&str, N)],
) -> Result<(), String> {
    match numbers.iter().find(|(_, number)| *number == N::default()) {
        Some((name, _)) => Err(format!("{prefix}{name} is 0, expected at least 1")),
        None => Ok(()),
    }
}

/// Masks every address in a JSON value.
pub fn mask_addresses(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::String(text) if text.contains("://") => *text = mask_address(text),
        serde_json::Value::Array(list) => list.iter_mut().for_each(mask_addresses),
        serde_json::Value::Object(keys) => keys.values_mut().for_each(mask_addresses),
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::String(_) => {}
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

/// Deserializes one of the given words.
pub fn deserialize_choice<'de, D: Deserializer<'de>, T: Copy>(
    deserializer: D,
    choices: &[(&str, T)],
    expected: &str,
) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    let found = choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.ok_or_else(|| serde::de::Error::custom(format!("found {text:?}, expected {expected}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What settings, queries and options accept: a number is never taken for another unit, and
    /// months and years have a fixed length (30.44 and 365.25 days).
    #[test]
    fn durations_are_numbers_with_units_in_any_order() {
        let parse = |text: &str| {
            let read = serde_json::from_value::<DurationSetting>(serde_json::json!(text));
            read.map(|span| span.0.as_nanos())
        };
        const SECOND: u128 = 1_000_000_000;
        const DAY: u128 = 86_400 * SECOND;
        for (written, nanoseconds) in [
            ("0", 0),
            ("0s", 0),
            ("17ns", 17),
            ("500us", 500_000),
            ("500µs", 500_000),
            ("500ms", SECOND / 2),
            ("0.5s", SECOND / 2),
            ("30 seconds", 30 * SECOND),
            ("1 0 s", 10 * SECOND),
            (" 1s ", SECOND),
            ("12m", 720 * SECOND),
            ("1h30m", 5_400 * SECOND),
            ("1h 30m", 5_400 * SECOND),
            ("30min 1hr", 5_400 * SECOND),
            ("1h 1h", 7_200 * SECOND),
            ("1.5h 30m", 7_200 * SECOND),
            ("1day", DAY),
            ("0.5d", DAY / 2),
            ("15days 2min", 15 * DAY + 120 * SECOND),
            ("1week", 7 * DAY),
            ("3months", 3 * 2_630_016 * SECOND),
            ("12M", 12 * 2_630_016 * SECOND),
            ("2years", 2 * 31_557_600 * SECOND),
            ("18446744073709551615s", 18_446_744_073_709_551_615 * SECOND),
        ] {
            assert_eq!(parse(written).map_err(|error| error.to_string()), Ok(nanoseconds));
        }
        for wrong in [
            "",
            " ",
            "5",
            "-1s",
            "+1s",
            "1h -30m",
            "1h, 30m",
            "1h ago",
            "1:30:00",
            "PT1H",
            "P1D",
            "1S",
            "1H",
            "1e3s",
            ".5s",
            "1.s",
            "1.5ns",
            "１s",
            "18446744073709551616s",
            "584542046091y",
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn durations_are_printed_in_the_units_of_workflow_files_where_they_fit() {
        for (nanoseconds, printed) in [
            (0, "0s"),
            (5_400_000_000_000, "1h30m"),
            (3_456_000_000_000_000, "40d"),
            (1_500_000, "1ms 500us"),
        ] {
            let span = DurationSetting(Duration::from_nanos(nanoseconds));
            assert_eq!(span.to_string(), printed);
        }
    }
}
