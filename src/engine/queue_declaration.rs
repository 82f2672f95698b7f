//! How a broker's queue is declared if it does not exist: its type and its arguments, with the
//! names of RabbitMQ (docs/reference/workflow-file.md).

use super::text::{enumerate_quoted, find_nearest, quote};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The declaration of a queue. A part that is not set is taken from the declaration last observed
/// at the broker, or from the settings of the bus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueDeclaration {
    /// The type of the queue; `None`: not set.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<QueueType>,
    /// All arguments except the type; `None`: not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<QueueArguments>,
}

/// The arguments of a queue by their names.
pub type QueueArguments = BTreeMap<Arc<str>, QueueArgument>;

/// The type of a queue. Streams are not supported: they keep acknowledged messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueType {
    /// A queue on one node.
    Classic,
    /// A queue that is replicated to several nodes.
    Quorum,
}

impl QueueType {
    /// All types, with their names.
    pub const ALL: [(&str, QueueType); 2] =
        [("classic", QueueType::Classic), ("quorum", QueueType::Quorum)];

    /// Returns the type's name in `x-queue-type`.
    pub const fn name(self) -> &'static str {
        match self {
            QueueType::Classic => "classic",
            QueueType::Quorum => "quorum",
        }
    }
}

/// The value of an argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum QueueArgument {
    /// `true` or `false`.
    Flag(bool),
    /// A whole number.
    Number(i64),
    /// A text.
    Text(Arc<str>),
}

impl fmt::Display for QueueArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueueArgument::Flag(flag) => write!(f, "{flag}"),
            QueueArgument::Number(number) => write!(f, "{number}"),
            QueueArgument::Text(text) => f.write_str(text),
        }
    }
}

/// The argument that sets the type of the queue.
pub const QUEUE_TYPE: &str = "x-queue-type";

/// The values that an argument accepts.
enum ArgumentKind {
    /// A whole number from a minimum to a maximum, both included.
    Number(i64, i64),
    Flag,
    /// Any text.
    Text,
    /// One of these texts.
    OneOf(&'static [&'static str]),
}

/// An argument that RabbitMQ knows.
struct KnownArgument {
    name: &'static str,
    accepted: ArgumentKind,
    /// The only type of queue that may have the argument; `None`: any type may.
    only_type: Option<QueueType>,
}

const fn argument(
    name: &'static str,
    accepted: ArgumentKind,
    only_type: Option<QueueType>,
) -> KnownArgument {
    KnownArgument { name, accepted, only_type }
}

/// The arguments that RabbitMQ knows.
const KNOWN_ARGUMENTS: &[KnownArgument] = &[
    argument("x-consumer-timeout", ArgumentKind::Number(1, i64::MAX), None),
    argument("x-dead-letter-exchange", ArgumentKind::Text, None),
    argument("x-dead-letter-routing-key", ArgumentKind::Text, None),
    argument(
        "x-dead-letter-strategy",
        ArgumentKind::OneOf(&["at-most-once", "at-least-once"]),
        Some(QueueType::Quorum),
    ),
    argument("x-delivery-limit", ArgumentKind::Number(-1, i64::MAX), Some(QueueType::Quorum)),
    argument("x-expires", ArgumentKind::Number(1, i64::MAX), None),
    argument("x-max-length", ArgumentKind::Number(0, i64::MAX), None),
    argument("x-max-length-bytes", ArgumentKind::Number(0, i64::MAX), None),
    argument("x-max-priority", ArgumentKind::Number(1, 255), Some(QueueType::Classic)),
    argument("x-message-ttl", ArgumentKind::Number(0, i64::MAX), None),
    argument(
        "x-overflow",
        ArgumentKind::OneOf(&["drop-head", "reject-publish", "reject-publish-dlx"]),
        None,
    ),
    argument("x-queue-leader-locator", ArgumentKind::Text, None),
    argument("x-queue-mode", ArgumentKind::OneOf(&["default", "lazy"]), Some(QueueType::Classic)),
    argument("x-queue-version", ArgumentKind::Number(1, 2), Some(QueueType::Classic)),
    argument(
        "x-quorum-initial-group-size",
        ArgumentKind::Number(1, i64::MAX),
        Some(QueueType::Quorum),
    ),
    argument(
        "x-quorum-target-group-size",
        ArgumentKind::Number(1, i64::MAX),
        Some(QueueType::Quorum),
    ),
    argument("x-single-active-consumer", ArgumentKind::Flag, None),
];

fn find_known_argument(name: &str) -> Option<&'static KnownArgument> {
    KNOWN_ARGUMENTS.iter().find(|argument| argument.name == name)
}

impl QueueDeclaration {
    /// Returns whether nothing is set.
    pub fn is_default(&self) -> bool {
        *self == QueueDeclaration::default()
    }

    /// Returns this declaration, where the parts that it does not set are taken from `other`.
    pub fn or(&self, other: &QueueDeclaration) -> QueueDeclaration {
        QueueDeclaration {
            kind: self.kind.or(other.kind),
            arguments: self.arguments.clone().or_else(|| other.arguments.clone()),
        }
    }

    /// Returns which argument is not allowed for the type of the queue; `None`: all are allowed, or
    /// the type is not set.
    pub fn check_consistency(&self) -> Option<String> {
        let kind = self.kind?;
        let mut names = self.arguments.iter().flatten().map(|(name, _)| name);
        names.find_map(|name| {
            let only_type = find_known_argument(name)?.only_type.filter(|only| *only != kind)?;
            Some(format!(
                "{} is for {} queues alone, and this one is {}",
                quote(name),
                only_type.name(),
                kind.name()
            ))
        })
    }
}

/// Formats the declaration as `quorum, x-delivery-limit 5`.
impl fmt::Display for QueueDeclaration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.map(|kind| kind.name().to_owned());
        let pairs = self.arguments.iter().flatten();
        let arguments = pairs.map(|(name, value)| format!("{name} {value}"));
        let parts: Vec<String> = kind.into_iter().chain(arguments).collect();
        if parts.is_empty() {
            f.write_str("without arguments")
        } else {
            f.write_str(&parts.join(", "))
        }
    }
}

/// Returns what is wrong with an argument of a queue; `None`: nothing is. `type_key`: the key of
/// the file that sets the type of a queue. An unknown name that begins with `x-` and resembles no
/// known one is accepted: the broker may be newer, or have plugins.
pub fn check_argument(name: &str, value: &QueueArgument, type_key: &str) -> Option<String> {
    if name == QUEUE_TYPE {
        return Some(format!("the type of a queue is set by {}", quote(type_key)));
    }
    let Some(argument) = find_known_argument(name) else { return check_unknown_argument(name) };
    let expected = match (&argument.accepted, value) {
        (ArgumentKind::Flag, QueueArgument::Flag(_))
        | (ArgumentKind::Text, QueueArgument::Text(_)) => {
            return None;
        }
        (ArgumentKind::Number(min, max), QueueArgument::Number(number))
            if (min..=max).contains(&number) =>
        {
            return None;
        }
        (ArgumentKind::OneOf(allowed), QueueArgument::Text(text)) if allowed.contains(&&**text) => {
            return None;
        }
        (ArgumentKind::Flag, _) => "true or false".to_owned(),
        (ArgumentKind::Text, _) => "a string".to_owned(),
        (ArgumentKind::Number(min, i64::MAX), _) => format!("a whole number of at least {min}"),
        (ArgumentKind::Number(min, max), _) => format!("a whole number from {min} to {max}"),
        (ArgumentKind::OneOf(allowed), _) => enumerate_quoted(allowed.iter().copied(), "or"),
    };
    let actual = match value {
        QueueArgument::Flag(flag) => format!("the boolean {flag}"),
        QueueArgument::Number(number) => format!("the number {number}"),
        QueueArgument::Text(text) => format!("the text {}", quote(text)),
    };
    Some(format!("{} takes {expected}, found {actual}", quote(name)))
}

/// Returns what is wrong with the name of an unknown argument; `None`: it is accepted.
fn check_unknown_argument(name: &str) -> Option<String> {
    match find_nearest(name, KNOWN_ARGUMENTS.iter().map(|argument| argument.name)) {
        Some(suggestion) => Some(format!(
            "unknown argument {} of a queue; did you mean {}?",
            quote(name),
            quote(suggestion)
        )),
        None if !name.starts_with("x-") => Some(format!(
            "unknown argument {} of a queue: their names begin with x-, such as x-max-length",
            quote(name)
        )),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> QueueArgument {
        QueueArgument::Text(text.into())
    }

    #[test]
    fn the_error_for_an_argument_says_what_is_expected() {
        let number = QueueArgument::Number;
        for (name, value, expected) in [
            ("x-max-priority", number(10), None),
            (
                "x-max-priority",
                number(0),
                Some("takes a whole number from 1 to 255, found the number 0"),
            ),
            ("x-max-priority", text("10"), Some("found the text \"10\"")),
            ("x-delivery-limit", number(-1), None),
            ("x-overflow", text("reject-publish"), None),
            ("x-overflow", text("drop"), Some("\"reject-publish\" or \"reject-publish-dlx\"")),
            ("x-single-active-consumer", QueueArgument::Flag(true), None),
            ("x-single-active-consumer", text("true"), Some("takes true or false")),
            ("x-max-lenght", number(1), Some("did you mean \"x-max-length\"?")),
            ("x-queue-type", text("quorum"), Some("is set by \"queueType\"")),
            ("of-a-plugin", number(1), Some("their names begin with x-")),
            ("x-something-of-a-plugin", number(1), None),
        ] {
            let error = check_argument(name, &value, "queueType");
            let is_as_expected = match expected {
                None => error.is_none(),
                Some(part) => error.as_ref().is_some_and(|message| message.contains(part)),
            };
            assert!(is_as_expected, "{name}: {value}: {error:?}");
        }
    }

    #[test]
    fn each_part_comes_from_the_first_declaration_that_has_it() {
        let quorum = QueueDeclaration { kind: Some(QueueType::Quorum), arguments: None };
        let limited = QueueDeclaration {
            kind: None,
            arguments: Some([("x-max-length".into(), QueueArgument::Number(10))].into()),
        };
        let merged = limited.or(&quorum);
        assert_eq!(merged.to_string(), "quorum, x-max-length 10");
        assert_eq!((quorum.or(&limited), merged.check_consistency()), (merged, None));
        let inconsistent = QueueDeclaration {
            kind: Some(QueueType::Quorum),
            arguments: Some([("x-max-priority".into(), QueueArgument::Number(10))].into()),
        };
        let expected = "\"x-max-priority\" is for classic queues alone, and this one is quorum";
        assert_eq!(inconsistent.check_consistency().as_deref(), Some(expected));
        assert_eq!(QueueDeclaration::default().to_string(), "without arguments");
    }
}
