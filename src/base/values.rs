//! Types for the values of settings: durations, lists of names, secrets, addresses, choices.

use engine::Millis;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::time::Duration;

/// A duration, written for example as `500ms`, `30s`, `5m`, `2h`, `3d`, `1h30m`.
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
                "{text:?} is not a duration ({error}); write for example 500ms, 30s, 5m, 2h, 3d"
            ))
        })
    }
}

/// A list of names. A setting gives it as a list, or as one comma-separated text, as environment
/// variables do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Names(pub Vec<String>);

impl Names {
    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NamesVisitor;
        impl<'de> Visitor<'de> for NamesVisitor {
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
        deserializer.deserialize_any(NamesVisitor)
    }
}

/// A secret: its text is replaced by `***` wherever it is serialized or printed for debugging.
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

/// The address of a broker, whose password and other secrets are masked wherever it is shown.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct ServerAddress(pub String);

impl ServerAddress {
    /// Returns the address with its secrets masked.
    fn to_masked(&self) -> String {
        mask_address(&self.0)
    }
}

impl fmt::Debug for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_masked())
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_masked())
    }
}

impl Serialize for ServerAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_masked())
    }
}

/// The addresses of a broker's nodes. A setting gives them as a list, or as one text with commas
/// between them, as environment variables do. It has no address if the text is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerAddresses(pub Vec<ServerAddress>);

impl ServerAddresses {
    /// Returns whether there is no address.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the addresses as they are, with their secrets.
    pub fn to_texts(&self) -> Vec<String> {
        self.0.iter().map(|address| address.0.clone()).collect()
    }
}

impl From<&str> for ServerAddresses {
    /// Divides the text at each comma after which another address begins, with its scheme: a
    /// password may have a comma.
    fn from(text: &str) -> ServerAddresses {
        let mut addresses: Vec<String> = Vec::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let is_scheme = |scheme: &str| {
                !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_lowercase())
            };
            let begins = part.split_once("://").is_some_and(|(scheme, _)| is_scheme(scheme.trim()));
            match addresses.last_mut() {
                Some(last) if !begins => {
                    last.push(',');
                    last.push_str(part);
                }
                Some(last) => {
                    last.truncate(last.trim_end().len());
                    addresses.push(part.trim_start().to_owned());
                }
                None => addresses.push(part.to_owned()),
            }
        }
        ServerAddresses(addresses.into_iter().map(ServerAddress).collect())
    }
}

impl From<String> for ServerAddresses {
    fn from(text: String) -> ServerAddresses {
        text.as_str().into()
    }
}

impl fmt::Display for ServerAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let masked: Vec<String> = self.0.iter().map(ServerAddress::to_masked).collect();
        f.write_str(&masked.join(","))
    }
}

impl Serialize for ServerAddresses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [] => serializer.serialize_str(""),
            [address] => address.serialize(serializer),
            addresses => addresses.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ServerAddresses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AddressesVisitor;
        impl<'de> Visitor<'de> for AddressesVisitor {
            type Value = ServerAddresses;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address, a list of them, or addresses with commas between them")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ServerAddresses, E> {
                Ok(text.into())
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> Result<ServerAddresses, A::Error> {
                let mut addresses = Vec::new();
                while let Some(address) = list.next_element()? {
                    addresses.push(ServerAddress(address));
                }
                Ok(ServerAddresses(addresses))
            }
        }
        deserializer.deserialize_any(AddressesVisitor)
    }
}

/// The query parameters of a broker's address that are not secret. All others are masked.
const PUBLIC_PARAMETERS: [&str; 10] = [
    "auth_mechanism",
    "channel_max",
    "connection_timeout",
    "frame_max",
    "heartbeat",
    "locale",
    "recovery",
    "sslmode",
    "target_session_attrs",
    "verify",
];

/// The minimum length of a path segment, in bytes, to be masked as a token.
const TOKEN_BYTES_MIN: usize = 16;

/// Masks everything in an address that may be a secret: the password, the query, the fragment, and
/// tokens in the path. A text that is not an address is masked completely.
pub(crate) fn mask_address(address: &str) -> String {
    let Some((scheme, after_scheme)) = address.split_once("://") else {
        return if address.is_empty() { String::new() } else { "***".to_owned() };
    };
    // A password may contain a `/`, `?` or `#` that should have been escaped.
    let (credentials, location) = match after_scheme.rsplit_once('@') {
        Some((credentials, location)) => (Some(credentials), location),
        None => (None, after_scheme),
    };
    let host_end = location.find(['/', '?', '#']).unwrap_or(location.len());
    let (host, resource) = location.split_at(host_end);
    let user = match credentials.map(|credentials| credentials.split_once(':')) {
        None => String::new(),
        Some(Some((user, _))) => format!("{user}:***@"),
        // A user name alone may be a token.
        Some(None) => "***@".to_owned(),
    };
    // If the `@host` part was forgotten, the password is in the position of the port.
    let host = match host.rsplit_once(':') {
        Some((name, port)) if !host.ends_with(']') && !is_port(port) => {
            format!("{name}:***")
        }
        Some(_) | None => host.to_owned(),
    };
    let (resource, fragment) = match resource.split_once('#') {
        Some((resource, _)) => (resource, "#***"),
        None => (resource, ""),
    };
    let (path, query) = match resource.split_once('?') {
        Some((path, query)) => (path, Some(query).filter(|query| !query.is_empty())),
        None => (resource, None),
    };
    // In the address of a web service, every query parameter may be a secret.
    let (query, fragment) = match query {
        Some(_) if scheme.starts_with("http") => (Some("***"), ""),
        _ => (query, fragment),
    };
    let masked_path: Vec<&str> =
        path.split('/').map(|segment| if is_token(segment) { "***" } else { segment }).collect();
    let masked_query = query.map_or_else(String::new, |query| {
        let parameters = query.split('&').map(|parameter| match parameter.split_once('=') {
            Some((name, _)) if PUBLIC_PARAMETERS.contains(&name) => parameter.to_owned(),
            Some((name, _)) => format!("{name}=***"),
            None => "***".to_owned(),
        });
        format!("?{}", parameters.collect::<Vec<_>>().join("&"))
    });
    format!("{scheme}://{user}{host}{}{masked_query}{fragment}", masked_path.join("/"))
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok()
}

/// Returns whether a path segment looks like a token rather than a name: it is long, and has both
/// letters and digits.
fn is_token(segment: &str) -> bool {
    segment.len() >= TOKEN_BYTES_MIN
        && segment.bytes().any(|byte| byte.is_ascii_digit())
        && segment.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// Checks that none of these settings is 0. Each is a name and a value. `prefix` is prepended to
/// the name in the error.
///
/// # Errors
///
/// Returns an error that names the first setting that is 0.
pub fn check_at_least_one<N: Default + PartialEq>(
    prefix: &str,
    settings: &[(&str, N)],
) -> Result<(), String> {
    match settings.iter().find(|(_, value)| *value == N::default()) {
        Some((name, _)) => Err(format!("{prefix}{name} is 0, expected at least 1")),
        None => Ok(()),
    }
}

/// Masks every address in a JSON value, at any depth.
pub fn mask_addresses(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::String(text) if text.contains("://") => *text = mask_address(text),
        serde_json::Value::Array(items) => items.iter_mut().for_each(mask_addresses),
        serde_json::Value::Object(object) => object.values_mut().for_each(mask_addresses),
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::String(_) => {}
    }
}

/// Deserializes one of `choices`, pairs of a word and the value that it stands for.
///
/// # Errors
///
/// Returns an error if the text is none of the words; `expected` lists them.
pub fn deserialize_choice<'de, D: Deserializer<'de>, T: Copy>(
    deserializer: D,
    choices: &[(&str, T)],
    expected: &str,
) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    let choice = choices.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    choice.ok_or_else(|| serde::de::Error::custom(format!("found {text:?}, expected {expected}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings, queries and command-line options share this parser. A number needs a unit, and
    /// months and years have a fixed length (30.44 and 365.25 days).
    #[test]
    fn durations_are_numbers_with_units_in_any_order() {
        let parse = |text: &str| {
            let setting = serde_json::from_value::<DurationSetting>(serde_json::json!(text));
            setting.map(|duration| duration.0.as_nanos())
        };
        const SECOND: u128 = 1_000_000_000;
        const DAY: u128 = 86_400 * SECOND;
        for (text, nanoseconds) in [
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
            assert_eq!(parse(text).map_err(|error| error.to_string()), Ok(nanoseconds));
        }
        for invalid in [
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
            assert!(parse(invalid).is_err(), "{invalid:?}");
        }
    }

    #[test]
    fn addresses_are_a_list_or_a_text_with_commas() {
        let texts = |value: serde_json::Value| {
            serde_json::from_value::<ServerAddresses>(value).map(|list| list.to_texts())
        };
        let both = ["amqp://me:a,b@one/v", "amqps://two"].map(str::to_owned).to_vec();
        let joined = "amqp://me:a,b@one/v , amqps://two";
        assert_eq!(texts(serde_json::json!(joined)).expect("a text"), both);
        assert_eq!(texts(serde_json::json!(both)).expect("a list"), both);
        assert_eq!(texts(serde_json::json!("")).expect("no address"), Vec::<String>::new());
        // What is no address of its own stays with the one before it, whose check rejects it.
        for text in ["amqp://a,b:5672", "amqp://a,", " amqp://a", "amqp://a ,b"] {
            assert_eq!(texts(serde_json::json!(text)).expect("a text"), [text]);
        }
        assert!(texts(serde_json::json!(7)).is_err());
        let shown = |text: &str| {
            let addresses = ServerAddresses::from(text);
            let json = serde_json::to_value(&addresses).expect("JSON");
            (addresses.to_string(), json, format!("{addresses:?}"))
        };
        let (text, json, debug) = shown("amqp://me:secret@one,amqp://me:secret@two");
        assert_eq!(text, "amqp://me:***@one,amqp://me:***@two");
        assert_eq!(json, serde_json::json!(["amqp://me:***@one", "amqp://me:***@two"]));
        assert!(!debug.contains("secret"), "{debug}");
        assert_eq!(shown("amqp://me:secret@one").1, serde_json::json!("amqp://me:***@one"));
    }

    #[test]
    fn durations_are_printed_in_the_units_of_workflow_files_where_they_fit() {
        for (nanoseconds, printed) in [
            (0, "0s"),
            (5_400_000_000_000, "1h30m"),
            (3_456_000_000_000_000, "40d"),
            (1_500_000, "1ms 500us"),
        ] {
            let duration = DurationSetting(Duration::from_nanos(nanoseconds));
            assert_eq!(duration.to_string(), printed);
        }
    }
}
