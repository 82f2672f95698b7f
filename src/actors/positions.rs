//! How far buses have come, until the journal has it: the newest position of each partition.

use crate::journal::Position;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Positions that the journal does not have yet. They follow the commits of what they count as
/// done, so they may wait.
#[derive(Default)]
pub(super) struct Positions {
    reached: BTreeMap<(Arc<str>, Arc<str>, i32), i64>,
}

impl Positions {
    /// A bus has come this far. It may also have gone back: its topic was made anew.
    pub(super) fn reached(&mut self, position: Position) {
        let Position { bus, topic, partition, offset } = position;
        self.reached.insert((bus, topic, partition), offset);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.reached.is_empty()
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<Position> {
        let position = |(key, offset): (&(Arc<str>, Arc<str>, i32), &i64)| {
            let (bus, topic, partition) = key.clone();
            Position { bus, topic, partition, offset: *offset }
        };
        self.reached.iter().map(position).collect()
    }

    /// The journal has them.
    pub(super) fn written(&mut self) {
        self.reached.clear();
    }
}
