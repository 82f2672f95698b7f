//! The topic offsets that buses have reached and the journal has not stored yet.

use journal::StoredOffset;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The newest offset of each partition that the journal has not stored yet. An offset that is
/// stored late does no harm: after a crash, the messages since the stored one are read again.
#[derive(Default)]
pub(super) struct PendingOffsets {
    offsets: BTreeMap<PartitionKey, i64>,
}

/// A partition of a topic on a bus.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct PartitionKey {
    bus: Arc<str>,
    topic: Arc<str>,
    partition: i32,
}

impl PendingOffsets {
    /// Replaces the offset of a partition by the one that its bus has reached. It can be lower than
    /// before if the topic was recreated.
    pub(super) fn set(&mut self, reached_offset: StoredOffset) {
        let StoredOffset { bus, topic, partition, offset } = reached_offset;
        self.offsets.insert(PartitionKey { bus, topic, partition }, offset);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// Returns all offsets.
    pub(super) fn to_vec(&self) -> Vec<StoredOffset> {
        let to_stored_offset = |(key, offset): (&PartitionKey, &i64)| {
            let PartitionKey { bus, topic, partition } = key.clone();
            StoredOffset { bus, topic, partition, offset: *offset }
        };
        self.offsets.iter().map(to_stored_offset).collect()
    }

    /// Removes all offsets, after the journal has stored them.
    pub(super) fn clear(&mut self) {
        self.offsets.clear();
    }
}
