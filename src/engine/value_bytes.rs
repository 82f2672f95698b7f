//! Counts the bytes of the values that a job holds: its message, the outputs of its steps, and the
//! results of its child jobs.
//!
//! Values that a job shares with its parent count for the parent. Only the JSON texts are counted,
//! not the memory around them.

use super::json::{Json, Message};
use super::origin::Origin;
use std::sync::Arc;

/// Returns the bytes of a job's message that the job does not share. A child job shares all but its
/// item with its parent.
pub fn own_bytes(origin: &Origin, message: &Message) -> usize {
    if origin.parent.is_none() {
        return message.encoded_len();
    }
    let fan_out_keys = origin.definition.graphs[usize::from(origin.graph)].fan_out.as_ref();
    let item = fan_out_keys.and_then(|keys| message.get(&keys.item_key));
    item.map_or(0, |item| item.text().len())
}

/// Returns the bytes that a child job's result adds to its parent: its item, and its other keys
/// with their values.
pub(super) fn result_bytes(item: Option<&(u16, Json)>, others: &[(u16, Arc<str>, Json)]) -> usize {
    let item_bytes = item.map_or(0, |(_, value)| value.text().len());
    item_bytes + others.iter().map(|(_, key, value)| key.len() + value.text().len()).sum::<usize>()
}
