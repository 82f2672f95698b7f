//! The topic offsets that buses have reached and the journal has not stored yet.

use journal::StoredOffset;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The newest offset of each partition that the journal has not stored yet. An offset that is
/// stored late does no harm: after a crash, the messages since the stored one are read again.
#[derive(Default)]
pub(super) struct PendingOffsets {
    /// The offsets, by bus, topic and partition.
    offsets: BTreeMap<(Arc<str>, Arc<str>, i32), i64>,
}

impl PendingOffsets {
    /// Sets the offset that a bus has reached. It can be lower than before if the topic was
    /// recreated.
    pub(super) fn set(&mut self, reached: StoredOffset) {
        let StoredOffset { bus, topic, partition, offset } = reached;
        self.offsets.insert((bus, topic, partition), offset);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// Returns all offsets.
    pub(super) fn to_vec(&self) -> Vec<StoredOffset> {
        let to_stored = |(key, offset): (&(Arc<str>, Arc<str>, i32), &i64)| {
            let (bus, topic, partition) = key.clone();
            StoredOffset { bus, topic, partition, offset: *offset }
        };
        self.offsets.iter().map(to_stored).collect()
    }

    /// Removes all offsets, after the journal has stored them.
    pub(super) fn clear(&mut self) {
        self.offsets.clear();
    }
}
