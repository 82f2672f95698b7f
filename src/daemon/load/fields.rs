//! Reads one mapping of a file. Reports unknown and missing keys, and returns values by their keys.

use super::diagnostics::Diagnostics;
use super::known_keys;
use super::location::SourceLocation;
use super::scalars::ScalarKind;
use super::schema::Section;
use super::values::{LocatedText, describe, name_error, parse_reference};
use super::yaml::{Entry, Node, Value};
use engine::text::{quote, shorten};

/// The entries of a mapping whose keys were checked.
pub(super) struct Fields<'n> {
    location: SourceLocation,
    section: Section,
    entries: &'n [Entry],
    /// The known keys that were suggested in place of misspelt ones.
    suggested_keys: Vec<&'static str>,
}

impl<'n> Fields<'n> {
    /// Checks that a node is a mapping with known keys of this section, and reports unknown ones.
    /// If the node is not a mapping, reports an error and returns `None`.
    pub(super) fn from_node(
        node: &'n Node,
        section: Section,
        report: &mut Diagnostics,
    ) -> Option<Fields<'n>> {
        match &node.value {
            Value::Map(entries) => {
                let mut suggested_keys = Vec::new();
                for entry in entries {
                    if let Some(error) =
                        known_keys::key_error(section, &entry.key.text, report.can_suggest())
                    {
                        report.count_suggestion();
                        report.add_error(entry.key.location, error.message);
                        suggested_keys.extend(error.suggestion);
                    }
                }
                Some(Fields { location: node.location, section, entries, suggested_keys })
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

    /// Returns the entry with this key; `None` if the mapping does not have the key.
    pub(super) fn get(&self, key: &str) -> Option<&'n Entry> {
        self.entries.iter().find(|entry| entry.key.text == key)
    }

    /// Reports that `key` is missing, unless an error about another key has suggested it.
    pub(super) fn report_missing(&self, key: &str, reason: &str, report: &mut Diagnostics) {
        if !self.suggested_keys.contains(&key) {
            report.add_error(self.location, format!("the key {} is missing; {reason}", quote(key)));
        }
    }

    /// Parses the required key `name`. An invalid name is reported, but returned too, so that
    /// references to it are not reported as well.
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

    /// Returns the items of the list `key`, at most `limit` of them. Reports further items, and a
    /// value that is not a list. Returns no items if the key is missing or has no value.
    pub(super) fn parse_list(
        &self,
        key: &str,
        limit: usize,
        report: &mut Diagnostics,
    ) -> Vec<&'n Node> {
        let Some(entry) = self.get(key) else { return Vec::new() };
        match &entry.value.value {
            Value::List(items) => {
                if let Some(first_excess_item) = items.get(limit) {
                    report.add_error(
                        first_excess_item.location,
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

    /// Returns the items of the list `key`, at least one. If there are none, reports an error
    /// unless that was done already, and returns `None`.
    pub(super) fn parse_required_list(
        &self,
        key: &str,
        limit: usize,
        report: &mut Diagnostics,
    ) -> Option<Vec<&'n Node>> {
        // All required lists have regular plurals as keys: `workflows`, `steps`.
        let item_noun = key.trim_end_matches('s');
        let Some(entry) = self.get(key) else {
            self.report_missing(
                key,
                &format!("{} has at least one {item_noun}", self.section.noun()),
                report,
            );
            return None;
        };
        let items = self.parse_list(key, limit, report);
        if items.is_empty()
            && matches!(&entry.value.value, Value::List(_) | Value::Scalar(ScalarKind::Null, _))
        {
            report.add_error(
                entry.location(),
                format!(
                    "the list {} is empty; {} has at least one {item_noun}",
                    quote(key),
                    self.section.noun()
                ),
            );
        }
        if items.is_empty() { None } else { Some(items) }
    }
}

impl Entry {
    /// Returns the location for diagnostics: the value's, or the key's if the value is omitted.
    pub(super) fn location(&self) -> SourceLocation {
        match &self.value.value {
            Value::Scalar(ScalarKind::Null, text) if text.is_empty() => self.key.location,
            Value::Scalar(..) | Value::Map(_) | Value::List(_) | Value::Invalid => {
                self.value.location
            }
        }
    }
}

/// Returns the name of a workflow, task or step for diagnostics, even if it is not a valid name.
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

/// Returns the first key of a mapping; an empty text for an empty mapping and any other value.
fn first_key(node: &Node) -> &str {
    match &node.value {
        Value::Map(entries) => entries.first().map_or("", |entry| entry.key.text.as_str()),
        Value::List(_) | Value::Scalar(..) | Value::Invalid => "",
    }
}
