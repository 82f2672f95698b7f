//! The limit of the jobs of a workflow, as its file defines it.

use super::time::Millis;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The limit of a workflow: a job holds a place of it from its admission until its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobLimit {
    /// The name of the limit.
    #[serde(rename = "use")]
    pub name: Arc<str>,
    /// What happens to a job for which there is no place.
    #[serde(default, skip_serializing_if = "Then::is_wait")]
    pub then: Then,
    /// How long a new job waits before it claims its place, with [`Then::Latest`]; `None`: not at
    /// all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Millis>,
    /// How long a job may wait for its place before it fails; `None`: no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_at_most: Option<Millis>,
}

/// What happens to a job for which there is no place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Then {
    /// It waits.
    #[default]
    Wait,
    /// It is not created.
    Refuse,
    /// The oldest jobs of the workflow that claim the place are cancelled for it.
    Replace,
    /// It waits, and the other jobs of the workflow that wait are cancelled.
    Latest,
}

impl Then {
    /// The words of workflow files.
    pub const WORDS: [(&'static str, Then); 4] = [
        ("wait", Then::Wait),
        ("refuse", Then::Refuse),
        ("replace", Then::Replace),
        ("latest", Then::Latest),
    ];

    fn is_wait(&self) -> bool {
        *self == Then::Wait
    }

    /// Returns the word of workflow files.
    pub fn as_str(self) -> &'static str {
        Then::WORDS.iter().find(|(_, then)| *then == self).map_or("wait", |(word, _)| word)
    }
}
