//! The offsets that buses have reached and the journal does not have yet: the newest of each
//! partition.

use journal::StoredOffset;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Offsets that the journal does not have yet. They follow the commits of what they count as done,
/// so they may wait.
#[derive(Default)]
pub(super) struct PendingOffsets {
    offsets: BTreeMap<(Arc<str>, Arc<str>, i32), i64>,
}

impl PendingOffsets {
    /// Sets the offset that a bus has reached. It may be lower than before: then the topic was
    /// created anew.
    pub(super) fn set(&mut self, position: StoredOffset) {
        let StoredOffset { bus, topic, partition, offset } = position;
        self.offsets.insert((bus, topic, partition), offset);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// Returns all offsets.
    pub(super) fn to_vec(&self) -> Vec<StoredOffset> {
        let position = |(key, offset): (&(Arc<str>, Arc<str>, i32), &i64)| {
            let (bus, topic, partition) = key.clone();
            StoredOffset { bus, topic, partition, offset: *offset }
        };
        self.offsets.iter().map(position).collect()
    }

    /// Forgets the offsets, which the journal has now.
    pub(super) fn clear(&mut self) {
        self.offsets.clear();
    }
}
