//! Text from a manager's responses. It may contain untrusted input, such as terminal escape codes,
//! so it is escaped before it is printed.

use engine::text::escape;
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

/// A text that is safe to print: one line, with control characters escaped. It dereferences to, and
/// compares as, the escaped text. The command line prints texts of responses only as this type
/// (`tests/fast/floors.rs`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Text {
    printable: String,
    /// The original text; `None` if it equals `printable`.
    raw: Option<String>,
}

impl Text {
    /// Makes a printable text, with control characters escaped.
    pub(super) fn new(text: &str) -> Text {
        match escape(text) {
            Cow::Borrowed(unchanged) => Text { printable: unchanged.to_owned(), raw: None },
            Cow::Owned(escaped) => Text { printable: escaped, raw: Some(text.to_owned()) },
        }
    }

    /// Returns the original text, for requests and JSON. It must not be printed on a terminal.
    pub(super) fn raw(&self) -> &str {
        self.raw.as_deref().unwrap_or(&self.printable)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        String::deserialize(deserializer).map(|text| Text::new(&text))
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.printable
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.printable)
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.printable == other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.printable == *other
    }
}
