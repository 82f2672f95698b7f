//! How a queue of a broker is declared where it is missing: its type and its arguments, as RabbitMQ
//! names them (docs/workflow-file.md).

use super::text::{enumerate_quoted, find_nearest, quote};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The declaration of a queue. What is not set is taken from elsewhere: from how the queue was
/// seen, or from the settings of its bus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueDeclaration {
    /// The type of the queue.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<QueueType>,
    /// All arguments but the type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<QueueArguments>,
}

/// Arguments of a queue, by their names.
pub type QueueArguments = BTreeMap<Arc<str>, QueueArgument>;

/// A type of queues that lose a message when it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueType {
    /// The queue is on one node.
    Classic,
    /// The queue is on several nodes.
    Quorum,
}

impl QueueType {
    /// All types, with their names.
    pub const ALL: [(&str, QueueType); 2] =
        [("classic", QueueType::Classic), ("quorum", QueueType::Quorum)];

    /// Returns its name in `x-queue-type`.
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

/// The argument that is the type.
pub const QUEUE_TYPE: &str = "x-queue-type";

/// What values an argument takes.
enum ArgumentKind {
    /// A whole number within these bounds.
    Number(i64, i64),
    Flag,
    Text,
    OneOf(&'static [&'static str]),
}

/// The arguments that RabbitMQ knows, and the type of queue to which each is limited, if it is.
const KNOWN_ARGUMENTS: &[(&str, ArgumentKind, Option<QueueType>)] = &[
    ("x-consumer-timeout", ArgumentKind::Number(1, i64::MAX), None),
    ("x-dead-letter-exchange", ArgumentKind::Text, None),
    ("x-dead-letter-routing-key", ArgumentKind::Text, None),
    (
        "x-dead-letter-strategy",
        ArgumentKind::OneOf(&["at-most-once", "at-least-once"]),
        Some(QueueType::Quorum),
    ),
    ("x-delivery-limit", ArgumentKind::Number(-1, i64::MAX), Some(QueueType::Quorum)),
    ("x-expires", ArgumentKind::Number(1, i64::MAX), None),
    ("x-max-length", ArgumentKind::Number(0, i64::MAX), None),
    ("x-max-length-bytes", ArgumentKind::Number(0, i64::MAX), None),
    ("x-max-priority", ArgumentKind::Number(1, 255), Some(QueueType::Classic)),
    ("x-message-ttl", ArgumentKind::Number(0, i64::MAX), None),
    (
        "x-overflow",
        ArgumentKind::OneOf(&["drop-head", "reject-publish", "reject-publish-dlx"]),
        None,
    ),
    ("x-queue-leader-locator", ArgumentKind::Text, None),
    ("x-queue-mode", ArgumentKind::OneOf(&["default", "lazy"]), Some(QueueType::Classic)),
    ("x-queue-version", ArgumentKind::Number(1, 2), Some(QueueType::Classic)),
    ("x-quorum-initial-group-size", ArgumentKind::Number(1, i64::MAX), Some(QueueType::Quorum)),
    ("x-quorum-target-group-size", ArgumentKind::Number(1, i64::MAX), Some(QueueType::Quorum)),
    ("x-single-active-consumer", ArgumentKind::Flag, None),
];

impl QueueDeclaration {
    /// Returns whether nothing is set.
    pub fn is_default(&self) -> bool {
        *self == QueueDeclaration::default()
    }

    /// Returns this declaration; what it does not set is taken from the other.
    pub fn or(&self, other: &QueueDeclaration) -> QueueDeclaration {
        QueueDeclaration {
            kind: self.kind.or(other.kind),
            arguments: self.arguments.clone().or_else(|| other.arguments.clone()),
        }
    }

    /// Returns what no broker accepts together, if there is anything.
    pub fn check_consistency(&self) -> Option<String> {
        let kind = self.kind?;
        let mut names = self.arguments.iter().flatten().map(|(name, _)| name);
        names.find_map(|name| {
            let (_, _, of) = KNOWN_ARGUMENTS.iter().find(|(known, ..)| **known == **name)?;
            let of = of.filter(|of| *of != kind)?;
            let (kind, of) = (kind.name(), of.name());
            Some(format!("{} is for {of} queues alone, and this one is {kind}", quote(name)))
        })
    }
}

/// Renders the declaration as `quorum, x-delivery-limit 5`.
impl fmt::Display for QueueDeclaration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.map(|kind| kind.name().to_owned());
        let arguments = self.arguments.iter().flatten();
        let arguments = arguments.map(|(name, value)| format!("{name} {value}"));
        let parts: Vec<String> = kind.into_iter().chain(arguments).collect();
        if parts.is_empty() {
            f.write_str("without arguments")
        } else {
            f.write_str(&parts.join(", "))
        }
    }
}

/// Returns what is wrong with an argument of a queue; `key`: where the type is set. A name that
/// resembles no known one is left to the broker: it may be newer, or have plugins.
pub fn check_argument(name: &str, value: &QueueArgument, key: &str) -> Option<String> {
    if name == QUEUE_TYPE {
        return Some(format!("the type of a queue is said by {}", quote(key)));
    }
    let Some((_, takes, _)) = KNOWN_ARGUMENTS.iter().find(|(known, ..)| *known == name) else {
        let guess = find_nearest(name, KNOWN_ARGUMENTS.iter().map(|(known, ..)| *known));
        return match guess {
            Some(meant) => Some(format!(
                "unknown argument {} of a queue; did you mean {}?",
                quote(name),
                quote(meant)
            )),
            None if !name.starts_with("x-") => Some(format!(
                "unknown argument {} of a queue: their names begin with x-, such as x-max-length",
                quote(name)
            )),
            None => None,
        };
    };
    let expected = match (takes, value) {
        (ArgumentKind::Flag, QueueArgument::Flag(_))
        | (ArgumentKind::Text, QueueArgument::Text(_)) => {
            return None;
        }
        (ArgumentKind::Number(least, most), QueueArgument::Number(number))
            if (least..=most).contains(&number) =>
        {
            return None;
        }
        (ArgumentKind::OneOf(allowed), QueueArgument::Text(text)) if allowed.contains(&&**text) => {
            return None;
        }
        (ArgumentKind::Flag, _) => "true or false".to_owned(),
        (ArgumentKind::Text, _) => "a text".to_owned(),
        (ArgumentKind::Number(least, i64::MAX), _) => format!("a whole number of at least {least}"),
        (ArgumentKind::Number(least, most), _) => format!("a whole number from {least} to {most}"),
        (ArgumentKind::OneOf(allowed), _) => enumerate_quoted(allowed.iter().copied(), "or"),
    };
    let found = match value {
        QueueArgument::Flag(flag) => format!("the boolean {flag}"),
        QueueArgument::Number(number) => format!("the number {number}"),
        QueueArgument::Text(text) => format!("the text {}", quote(text)),
    };
    Some(format!("{} takes {expected}, found {found}", quote(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> QueueArgument {
        QueueArgument::Text(text.into())
    }

    #[test]
    fn an_error_of_an_argument_names_what_is_expected() {
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
            ("x-queue-type", text("quorum"), Some("is said by \"queueType\"")),
            ("of-a-plugin", number(1), Some("their names begin with x-")),
            ("x-something-of-a-plugin", number(1), None),
        ] {
            let error = check_argument(name, &value, "queueType");
            let fits = match expected {
                None => error.is_none(),
                Some(part) => error.as_ref().is_some_and(|message| message.contains(part)),
            };
            assert!(fits, "{name}: {value}: {error:?}");
        }
    }

    #[test]
    fn each_part_comes_from_the_first_declaration_that_has_it() {
        let quorum = QueueDeclaration { kind: Some(QueueType::Quorum), arguments: None };
        let short = QueueDeclaration {
            kind: None,
            arguments: Some([("x-max-length".into(), QueueArgument::Number(10))].into()),
        };
        let both = short.or(&quorum);
        assert_eq!(both.to_string(), "quorum, x-max-length 10");
        assert_eq!((quorum.or(&short), both.check_consistency()), (both, None));
        let wrong = QueueDeclaration {
            kind: Some(QueueType::Quorum),
            arguments: Some([("x-max-priority".into(), QueueArgument::Number(10))].into()),
        };
        let expected = "\"x-max-priority\" is for classic queues alone, and this one is quorum";
        assert_eq!(wrong.check_consistency().as_deref(), Some(expected));
        assert_eq!(QueueDeclaration::default().to_string(), "without arguments");
    }
}
