//! Reads one mapping of a file: refuses unknown keys, and returns its values, lists and name.

use super::diagnostics::Diagnostics;
use super::location::SourceLocation;
use super::scalars::ScalarKind;
use super::schema::{self, Section};
use super::values::{LocatedText, describe, name_error, parse_reference};
use super::yaml::{Entry, Node, Value};
use engine::text::{quote, shorten};

/// The entries of a mapping whose keys are checked.
pub(super) struct Fields<'n> {
    location: SourceLocation,
    section: Section,
    entries: &'n [Entry],
    /// The keys that were suggested for misspelt ones.
    suggested: Vec<&'static str>,
}

impl<'n> Fields<'n> {
    /// Reads a node as a mapping of this section. Returns `None`, after an error was reported, if
    /// it is no mapping.
    pub(super) fn from_node(
        node: &'n Node,
        section: Section,
        report: &mut Diagnostics,
    ) -> Option<Fields<'n>> {
        match &node.value {
            Value::Map(entries) => {
                let mut suggested = Vec::new();
                for entry in entries {
                    if let Some(error) =
                        schema::key_error(section, &entry.key.text, report.can_suggest())
                    {
                        report.count_suggestion();
                        report.add_error(entry.key.location, error.message);
                        suggested.extend(error.suggestion);
                    }
                }
                Some(Fields { location: node.location, section, entries, suggested })
            }
            Value::Invalid => None,
            Value::List(_) | Value::Scalar(..) => {
                report.add_error(
                    node.location,
                    format!(
                        "expected {}, such as `{}`, found {}",
                        section.noun(),
                        section.example(),
                        describe(node)
                    ),
                );
                None
            }
        }
    }

    /// Returns the entry with this key.
    pub(super) fn get(&self, key: &str) -> Option<&'n Entry> {
        self.entries.iter().find(|entry| entry.key.text == key)
    }

    /// Reports that `key` is missing, unless a misspelling of it was reported.
    pub(super) fn report_missing(&self, key: &str, reason: &str, report: &mut Diagnostics) {
        if !self.suggested.contains(&key) {
            report.add_error(self.location, format!("the key {} is missing; {reason}", quote(key)));
        }
    }

    /// Parses the required key `name`. Reports an invalid name, but returns it.
    pub(super) fn parse_name(&self, report: &mut Diagnostics) -> Option<LocatedText> {
        let Some(entry) = self.get("name") else {
            self.report_missing("name", &format!("{} has a name", self.section.noun()), report);
            return None;
        };
        let location = entry.location();
        if let Some(name) = parse_reference(&entry.value, location, "a name", report)
            && let Some(error) = name_error(&name.text)
        {
            report.add_error(location, error);
        }
        // References to an invalid name must not be reported too.
        match &entry.value.value {
            Value::Scalar(ScalarKind::Text | ScalarKind::Boolean | ScalarKind::Number, text) => {
                Some(LocatedText { location, text: text.clone() })
            }
            Value::Scalar(ScalarKind::Null, _)
            | Value::Map(_)
            | Value::List(_)
            | Value::Invalid => None,
        }
    }

    /// Returns the items of the list `key`, at most `limit`; a missing list is an empty one.
    pub(super) fn list(&self, key: &str, limit: usize, report: &mut Diagnostics) -> Vec<&'n Node> {
        let Some(entry) = self.get(key) else { return Vec::new() };
        match &entry.value.value {
            Value::List(items) => {
                if let Some(extra) = items.get(limit) {
                    report.add_error(
                        extra.location,
                        format!(
                            "{} has {} {key}, more than the {limit} allowed",
                            self.section.noun(),
                            items.len()
                        ),
                    );
                }
                items.iter().take(limit).map(|item| &**item).collect()
            }
            Value::Scalar(ScalarKind::Null, _) | Value::Invalid => Vec::new(),
            Value::Scalar(_, text) => {
                let message = format!(
                    "{} takes a list, found {}; write [ {} ]",
                    quote(key),
                    describe(&entry.value),
                    shorten(text)
                );
                report.add_error(entry.value.location, message);
                Vec::new()
            }
            Value::Map(_) => {
                report.add_error(
                    entry.value.location,
                    format!(
                        "{} takes a list, found a mapping; is a `-` missing before {}?",
                        quote(key),
                        quote(first_key(&entry.value))
                    ),
                );
                Vec::new()
            }
        }
    }

    /// Returns the items of the list `key`, at least one. `None` if there are none; then an error
    /// was reported.
    pub(super) fn required_list(
        &self,
        key: &str,
        limit: usize,
        report: &mut Diagnostics,
    ) -> Option<Vec<&'n Node>> {
        let Some(entry) = self.get(key) else {
            self.report_missing(
                key,
                &format!("{} has at least one {}", self.section.noun(), key.trim_end_matches('s')),
                report,
            );
            return None;
        };
        let items = self.list(key, limit, report);
        if items.is_empty()
            && matches!(&entry.value.value, Value::List(_) | Value::Scalar(ScalarKind::Null, _))
        {
            report.add_error(
                entry.location(),
                format!(
                    "the list {} is empty; {} has at least one {}",
                    quote(key),
                    self.section.noun(),
                    key.trim_end_matches('s')
                ),
            );
        }
        if items.is_empty() { None } else { Some(items) }
    }
}

impl Entry {
    /// Returns the location for diagnostics: the value's, or the key's if the value is empty.
    pub(super) fn location(&self) -> SourceLocation {
        match &self.value.value {
            Value::Scalar(ScalarKind::Null, text) if text.is_empty() => self.key.location,
            Value::Scalar(..) | Value::Map(_) | Value::List(_) | Value::Invalid => {
                self.value.location
            }
        }
    }
}

/// Returns the name of a workflow, task or step for diagnostics, before it is known to be valid.
pub(super) fn label(node: &Node) -> Option<String> {
    let Value::Map(entries) = &node.value else { return None };
    let name = entries.iter().find(|entry| entry.key.text == "name")?;
    match &name.value.value {
        Value::Scalar(ScalarKind::Text | ScalarKind::Boolean | ScalarKind::Number, text) => {
            Some(shorten(text))
        }
        Value::Scalar(ScalarKind::Null, _) | Value::Map(_) | Value::List(_) | Value::Invalid => {
            None
        }
    }
}

/// Returns the first key of a mapping, or an empty text.
fn first_key(node: &Node) -> &str {
    match &node.value {
        Value::Map(entries) => entries.first().map_or("", |entry| entry.key.text.as_str()),
        Value::List(_) | Value::Scalar(..) | Value::Invalid => "",
    }
}
