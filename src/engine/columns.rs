//! The label and the columns of a workflow: values by which people know and find its jobs.

use super::expression::Expression;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The name of the column that holds the label.
pub const LABEL: &str = "label";

/// The names of the columns that hold the schedule and the slot for which a job was started.
pub const SLOT_COLUMNS: [&str; 2] = ["schedule", "slot"];

/// The most columns of a workflow, without the label.
pub const COLUMNS_MAX: usize = 16;

/// The label and the columns of a workflow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Columns {
    /// What people call a job; `None`: by its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<Expression>,
    /// The values by which people find jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub list: Vec<Column>,
}

/// A column of a workflow: a value of each of its jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// The name, unique in the workflow.
    pub name: Arc<str>,
    /// What computes its cells.
    pub value: Expression,
}

impl Columns {
    /// Returns whether there is neither a label nor a column.
    pub fn is_empty(&self) -> bool {
        self.label.is_none() && self.list.is_empty()
    }

    /// Returns the names of all columns that a job has in SQL: those of [`Columns::names`], and
    /// after them [`SLOT_COLUMNS`].
    pub fn sql_names(&self) -> impl Iterator<Item = &str> {
        self.names().chain(SLOT_COLUMNS)
    }

    /// Returns the name of the label, if there is one, and those of the columns.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(name, _)| name)
    }

    /// Returns the names and the expressions, the label first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Expression)> {
        let label = self.label.iter().map(|value| (LABEL, value));
        label.chain(self.list.iter().map(|column| (&*column.name, &column.value)))
    }
}
