//! Views of the label and the columns of a job.

use engine::{Cell, LABEL, NamedCell};
use serde::{Serialize, Serializer};
use std::sync::Arc;

/// The columns of a job that have a value, by their names, in the order of the workflow file.
/// Clones share them.
#[derive(Clone, Default)]
pub struct CellsView(Arc<[(Arc<str>, Cell)]>);

impl CellsView {
    /// Splits cells into the label and the view of the columns.
    pub fn from_cells(cells: Vec<NamedCell>) -> (Option<Arc<str>>, CellsView) {
        let cells = cells.into_iter().filter_map(|(name, cell)| Some((name, cell?)));
        let (mut label, mut columns) = (None, Vec::new());
        for (name, cell) in cells {
            if *name == *LABEL {
                label = Some(cell.text);
            } else {
                columns.push((name, cell));
            }
        }
        (label, CellsView(columns.into()))
    }

    /// Returns whether no column has a value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for CellsView {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, cell)| (&**name, cell)))
    }
}
