//! Many replies in one call to the stub manager: parses them, and renders their verdicts.

use super::server::StubResponse;
use bytes::Bytes;
use daemon::api::leases::{MESSAGES_MAX, Receipt};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

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

/// One of many replies, as it stands in the body.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplyText {
    reply_to: String,
    #[serde(rename = "type")]
    kind: Option<String>,
    body: Option<Box<RawValue>>,
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
    let ReplyText { reply_to, kind, body } =
        serde_json::from_str(reply.get()).map_err(|error| format!("the reply: {error}"))?;
    let receipt = Receipt::parse(&reply_to).map_err(|problem| problem.detail().to_owned())?;
    let body = body.map_or_else(Bytes::new, |body| Bytes::copy_from_slice(body.get().as_bytes()));
    Ok(StubReply {
        queue: receipt.queue.to_string(),
        delivery: (receipt.id, receipt.delivery),
        kind,
        body,
    })
}

/// Renders the verdicts: what each reply would have been answered alone, with its status.
pub(super) fn render_verdicts(responses: &[StubResponse]) -> StubResponse {
    let verdicts = responses.iter().map(|response| {
        let body: Value = serde_json::from_slice(&response.body).unwrap_or_default();
        let mut verdict = json!({ "status": response.status });
        for key in ["taken", "reason", "detail"] {
            if let Some(value) = body.get(key) {
                verdict[key] = value.clone();
            }
        }
        verdict
    });
    StubResponse::json(&verdicts.collect())
}
