//! Reads one mapping of a file, allowing only its valid keys; its lists and its name.

use super::place::Position;
use super::report::Report;
use super::schema::{self, Section};
use super::values::{Word, found, objection_to_name, reference};
use super::yaml::{Entry, Node, Scalar, Value};
use crate::engine::words::{quoted, shortened};

/// The entries of a mapping whose keys are checked.
pub(super) struct Fields<'n> {
    at: Position,
    place: Section,
    entries: &'n [Entry],
    /// The keys that misspelt ones probably stand for.
    meant: Vec<&'static str>,
}

impl<'n> Fields<'n> {
    pub(super) fn of(node: &'n Node, place: Section, report: &mut Report) -> Option<Fields<'n>> {
        match &node.value {
            Value::Map(entries) => {
                let mut meant = Vec::new();
                for entry in entries {
                    if let Some(objection) =
                        schema::objection(place, &entry.key.text, report.may_guess())
                    {
                        report.guessed();
                        report.error(entry.key.at, objection.message);
                        meant.extend(objection.meant);
                    }
                }
                Some(Fields { at: node.at, place, entries, meant })
            }
            Value::Broken => None,
            Value::List(_) | Value::Scalar(..) => {
                report.error(
                    node.at,
                    format!(
                        "expected {}, such as `{}`, found {}",
                        place.of(),
                        place.example(),
                        found(node)
                    ),
                );
                None
            }
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&'n Entry> {
        self.entries.iter().find(|entry| entry.key.text == key)
    }

    /// Reports that `key` is missing, unless a misspelling of it was reported.
    pub(super) fn missing(&self, key: &str, reason: &str, report: &mut Report) {
        if !self.meant.contains(&key) {
            report.error(self.at, format!("the key {} is missing; {reason}", quoted(key)));
        }
    }

    pub(super) fn name(&self, report: &mut Report) -> Option<Word> {
        let Some(entry) = self.get("name") else {
            self.missing("name", &format!("{} has a name", self.place.of()), report);
            return None;
        };
        let at = entry.place();
        if let Some(word) = reference(&entry.value, at, "a name", report)
            && let Some(objection) = objection_to_name(&word.text)
        {
            report.error(at, objection);
        }
        // An invalid name is kept anyway, so that references to it are not reported too.
        match &entry.value.value {
            Value::Scalar(Scalar::Text | Scalar::Boolean | Scalar::Number, text) => {
                Some(Word { at, text: text.clone() })
            }
            Value::Scalar(Scalar::Null, _) | Value::Map(_) | Value::List(_) | Value::Broken => None,
        }
    }

    /// Returns the items under `key`; a missing list counts as an empty one.
    pub(super) fn list(&self, key: &str, limit: usize, report: &mut Report) -> Vec<&'n Node> {
        let Some(entry) = self.get(key) else { return Vec::new() };
        match &entry.value.value {
            Value::List(items) => {
                if let Some(extra) = items.get(limit) {
                    report.error(
                        extra.at,
                        format!(
                            "{} has {} {key}, more than the {limit} allowed",
                            self.place.of(),
                            items.len()
                        ),
                    );
                }
                items.iter().take(limit).map(|item| &**item).collect()
            }
            Value::Scalar(Scalar::Null, _) | Value::Broken => Vec::new(),
            Value::Scalar(_, text) => {
                let message = format!(
                    "{} takes a list, found {}; write [ {} ]",
                    quoted(key),
                    found(&entry.value),
                    shortened(text)
                );
                report.error(entry.value.at, message);
                Vec::new()
            }
            Value::Map(_) => {
                report.error(
                    entry.value.at,
                    format!(
                        "{} takes a list, found a mapping; is a `-` missing before {}?",
                        quoted(key),
                        quoted(first_key(&entry.value))
                    ),
                );
                Vec::new()
            }
        }
    }

    /// Returns the items under `key`, at least one; `None` if an error was reported.
    pub(super) fn required_list(
        &self,
        key: &str,
        limit: usize,
        report: &mut Report,
    ) -> Option<Vec<&'n Node>> {
        let Some(entry) = self.get(key) else {
            self.missing(
                key,
                &format!("{} has at least one {}", self.place.of(), key.trim_end_matches('s')),
                report,
            );
            return None;
        };
        let items = self.list(key, limit, report);
        if items.is_empty()
            && matches!(&entry.value.value, Value::List(_) | Value::Scalar(Scalar::Null, _))
        {
            report.error(
                entry.place(),
                format!(
                    "the list {} is empty; {} has at least one {}",
                    quoted(key),
                    self.place.of(),
                    key.trim_end_matches('s')
                ),
            );
        }
        if items.is_empty() { None } else { Some(items) }
    }
}

impl Entry {
    /// Returns the location to report: that of the value, or of the key if the value is empty.
    pub(super) fn place(&self) -> Position {
        match &self.value.value {
            Value::Scalar(Scalar::Null, text) if text.is_empty() => self.key.at,
            Value::Scalar(..) | Value::Map(_) | Value::List(_) | Value::Broken => self.value.at,
        }
    }
}

/// Returns the name of a workflow, task or step for diagnostics, before it is known to be valid.
pub(super) fn label(node: &Node) -> Option<String> {
    let Value::Map(entries) = &node.value else { return None };
    let name = entries.iter().find(|entry| entry.key.text == "name")?;
    match &name.value.value {
        Value::Scalar(Scalar::Text | Scalar::Boolean | Scalar::Number, text) => {
            Some(shortened(text))
        }
        Value::Scalar(Scalar::Null, _) | Value::Map(_) | Value::List(_) | Value::Broken => None,
    }
}

fn first_key(node: &Node) -> &str {
    match &node.value {
        Value::Map(entries) => entries.first().map_or("", |entry| entry.key.text.as_str()),
        Value::List(_) | Value::Scalar(..) | Value::Broken => "",
    }
}
