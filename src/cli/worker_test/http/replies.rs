//! Many replies in one call to the stub manager: parses them, and renders their verdicts.

use super::super::calls::parse_reply_path;
use bytes::Bytes;
use daemon::api::leases::MESSAGES_MAX;
use serde_json::{Value, json, value::RawValue};
use std::collections::BTreeMap;

/// The most replies in one call.
const REPLIES_MAX: usize = MESSAGES_MAX as usize;

/// One of many replies.
pub(super) struct StubReply {
    pub(super) queue: String,
    /// The id of the message and the number of its delivery.
    pub(super) delivery: (String, u32),
    pub(super) kind: Option<String>,
    pub(super) body: Bytes,
}

/// Parses the replies of one call: each is an error of its own. The outer error refuses the call.
pub(super) fn parse_replies(body: &[u8]) -> Result<Vec<Result<StubReply, String>>, String> {
    let replies: Vec<&RawValue> = serde_json::from_slice(body)
        .map_err(|error| format!("the body: {error}; expected a JSON array of replies"))?;
    if (1..=REPLIES_MAX).contains(&replies.len()) {
        return Ok(replies.into_iter().map(parse_reply).collect());
    }
    Err(format!("the body has {} replies, expected 1 to {REPLIES_MAX}", replies.len()))
}

fn parse_reply(reply: &RawValue) -> Result<StubReply, String> {
    let mut parts: BTreeMap<&str, &RawValue> =
        serde_json::from_str(reply.get()).map_err(|error| format!("the reply: {error}"))?;
    let mut take_text = |name| parts.remove(name).map(|part| serde_json::from_str(part.get()));
    let reply_to: Option<String> =
        take_text("reply_to").transpose().map_err(|error| format!("reply_to: {error}"))?;
    let kind = take_text("type").transpose().map_err(|error| format!("type: {error}"))?;
    let body = parts.remove("body");
    if let Some(name) = parts.keys().next() {
        return Err(format!("the reply: unknown field {name:?}"));
    }
    let reply_to = reply_to.ok_or("the reply: missing field reply_to")?;
    let (queue, delivery) = parse_reply_path(&reply_to)?;
    let body = body.map_or_else(Bytes::new, |body| Bytes::copy_from_slice(body.get().as_bytes()));
    Ok(StubReply { queue, delivery, kind, body })
}

/// Renders the verdicts: what each reply would have been answered alone, with its status.
pub(super) fn render_verdicts<'r>(responses: impl Iterator<Item = (u16, &'r [u8])>) -> Value {
    let verdicts = responses.map(|(status, body)| {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let mut verdict = json!({ "status": status });
        for key in ["taken", "reason", "detail"] {
            if let Some(value) = body.get(key) {
                verdict[key] = value.clone();
            }
        }
        verdict
    });
    verdicts.collect()
}
