//! The offsets that buses have reached and the journal does not have yet: the newest of each
//! partition.

use crate::journal::Position;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Offsets that the journal does not have yet. They follow the commits of what they count as done,
/// so they may wait.
#[derive(Default)]
pub(super) struct Positions {
    reached: BTreeMap<(Arc<str>, Arc<str>, i32), i64>,
}

impl Positions {
    /// Sets the offset that a bus has reached. It may be lower than before: then the topic was
    /// created anew.
    pub(super) fn reached(&mut self, position: Position) {
        let Position { bus, topic, partition, offset } = position;
        self.reached.insert((bus, topic, partition), offset);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.reached.is_empty()
    }

    /// Returns all offsets.
    pub(super) fn all(&self) -> Vec<Position> {
        let position = |(key, offset): (&(Arc<str>, Arc<str>, i32), &i64)| {
            let (bus, topic, partition) = key.clone();
            Position { bus, topic, partition, offset: *offset }
        };
        self.reached.iter().map(position).collect()
    }

    /// Forgets the offsets, which the journal has now.
    pub(super) fn written(&mut self) {
        self.reached.clear();
    }
}
