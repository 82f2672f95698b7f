//! The values of the label and the columns of a job.

use serde::{Serialize, Serializer};
use std::sync::Arc;

/// The longest text of a cell, in bytes. A label that is longer is cut; any other cell is empty.
pub const CELL_BYTES_MAX: usize = 256;

/// The type of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellKind {
    /// A text.
    Text,
    /// A number.
    Number,
    /// `true` or `false`.
    Boolean,
}

impl CellKind {
    const ALL: [CellKind; 3] = [CellKind::Text, CellKind::Number, CellKind::Boolean];

    /// Returns its name in the journal.
    pub fn as_str(self) -> &'static str {
        match self {
            CellKind::Text => "text",
            CellKind::Number => "number",
            CellKind::Boolean => "boolean",
        }
    }

    /// Returns the type of this name; `None`: there is none.
    pub fn from_name(name: &str) -> Option<CellKind> {
        CellKind::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// The value of a column in a job that has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The type of the value.
    pub kind: CellKind,
    /// The value as text, of at most [`CELL_BYTES_MAX`] bytes.
    pub text: Arc<str>,
}

impl Serialize for Cell {
    /// Serializes the value in its type.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let number = || serde_json::from_str::<serde_json::Number>(&self.text).ok();
        match self.kind {
            CellKind::Boolean => serializer.serialize_bool(&*self.text == "true"),
            CellKind::Number => match number() {
                Some(number) => number.serialize(serializer),
                None => serializer.serialize_str(&self.text),
            },
            CellKind::Text => serializer.serialize_str(&self.text),
        }
    }
}

/// A cell with the name of its column; `None`: it is empty.
pub type NamedCell = (Arc<str>, Option<Cell>);
