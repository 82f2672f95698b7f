//! How many bytes of values a job holds: its message, the outputs of its steps, what its child jobs
//! have returned. Values that a job shares with its parent count for the parent. The texts count,
//! not how they are kept.

use super::json::{Json, Message};
use super::origin::Origin;
use std::sync::Arc;

/// The bytes of a message of its own that a job begins with. A child job shares all but its item
/// with its parent.
pub fn own_bytes(origin: &Origin, message: &Message) -> usize {
    if origin.parent.is_none() {
        return message.encoded_len();
    }
    let keys = origin.definition.graphs[usize::from(origin.graph)].fan_out.as_ref();
    let item = keys.and_then(|keys| message.get(&keys.item_key));
    item.map_or(0, |item| item.text().len())
}

/// The bytes of what a child job's result adds to its parent.
pub(super) fn gathered(item: Option<&(u16, Json)>, others: &[(u16, Arc<str>, Json)]) -> usize {
    let item = item.map_or(0, |(_, value)| value.text().len());
    item + others.iter().map(|(_, key, value)| key.len() + value.text().len()).sum::<usize>()
}
