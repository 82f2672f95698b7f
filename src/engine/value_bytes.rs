//! Counts the bytes of the values that a job holds: its message, the outputs of its steps, the
//! results of its child jobs. Values that a job shares with its parent count for the parent. Only
//! the JSON texts are counted, not the memory that holds them.

use super::json::{Json, Message};
use super::origin::Origin;
use std::sync::Arc;

/// Returns the bytes of a job's message. A child job shares all but its item with its parent, so
/// only the item counts.
pub fn own_bytes(origin: &Origin, message: &Message) -> usize {
    if origin.parent.is_none() {
        return message.encoded_len();
    }
    let keys = origin.definition.graphs[usize::from(origin.graph)].fan_out.as_ref();
    let item = keys.and_then(|keys| message.get(&keys.item_key));
    item.map_or(0, |item| item.text().len())
}

/// Returns the bytes that a child job's result adds to its parent.
pub(super) fn result_bytes(item: Option<&(u16, Json)>, others: &[(u16, Arc<str>, Json)]) -> usize {
    let item = item.map_or(0, |(_, value)| value.text().len());
    item + others.iter().map(|(_, key, value)| key.len() + value.text().len()).sum::<usize>()
}
