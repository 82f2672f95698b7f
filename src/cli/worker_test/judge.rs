//! Checks of what a worker did with a message, from the events in the log.

use super::log::{Kind, Reply, Seen, What, replies_in, reply_in};
use serde_json::Value;
use std::time::Duration;

/// A message that is delivered more often than this within a second is in a requeue loop.
const DELIVERIES_A_SECOND_MAX: usize = 3;

const SECOND: Duration = Duration::from_secs(1);

/// How a message ended.
#[derive(Clone, Debug)]
pub(super) enum End {
    Answered(Reply),
    /// Rejected without requeue: the message does not come again.
    Refused,
    Acked,
    /// Requeued again and again, with this many deliveries within a second.
    Circles(usize),
}

/// Returns how a message ended, if it has. With `is_one_way` no reply is expected.
pub(super) fn end(seen: &[Seen], is_mute: bool) -> Option<End> {
    if let Some(count) = circles(seen) {
        return Some(End::Circles(count));
    }
    let has = |wanted: fn(&What) -> bool| seen.iter().any(|seen| wanted(&seen.what));
    let is_acked = has(|what| matches!(what, What::Acked | What::AckedUnseen));
    if let Some(reply) = reply_in(seen).filter(|_| is_acked) {
        return Some(End::Answered(reply.clone()));
    }
    if has(|what| matches!(what, What::Nacked { requeue: false })) {
        return Some(End::Refused);
    }
    (is_acked && is_mute).then_some(End::Acked)
}

/// Returns the highest number of deliveries within a second, if it is above the limit.
pub(super) fn circles(seen: &[Seen]) -> Option<usize> {
    let given: Vec<_> =
        seen.iter().filter(|seen| matches!(seen.what, What::Given)).map(|seen| seen.at).collect();
    let within =
        |from: usize| given[from..].iter().take_while(|at| **at < given[from] + SECOND).count();
    let most = (0..given.len()).map(within).max().unwrap_or_default();
    (most > DELIVERIES_A_SECOND_MAX).then_some(most)
}

/// Describes why a message has no outcome.
pub(super) fn what_is_missing(seen: &[Seen], within: &str) -> String {
    let count = |wanted: fn(&What) -> bool| seen.iter().filter(|seen| wanted(&seen.what)).count();
    let given = count(|what| matches!(what, What::Given));
    let requeued = count(|what| matches!(what, What::Nacked { requeue: true }));
    let acked = count(|what| matches!(what, What::Acked | What::AckedUnseen));
    if given == 0 {
        return format!("it did not take the message within {within}");
    }
    let times =
        if given == 1 { String::new() } else { format!("; it was delivered {given} times") };
    if reply_in(seen).is_some() {
        return format!("it replied, and did not acknowledge within {within}{times}");
    }
    if acked > 0 {
        return format!("it acknowledged, and did not reply within {within}{times}: it is lost");
    }
    if requeued > 0 {
        return format!("it put the message back {requeued} times, and did not reply{times}");
    }
    format!("it took the message, and did not reply within {within}{times}")
}

/// Returns what is wrong with a result, or `None`.
pub(super) fn wrong_result(reply: &Reply) -> Option<String> {
    if reply.kind == Kind::Error {
        return Some(format!("it answered with an error: {}", reply.shown()));
    }
    if reply.body.is_empty() {
        return None;
    }
    match serde_json::from_slice(&reply.body) {
        Ok(Value::Object(_) | Value::Null) => None,
        Ok(_) => Some(format!("the result is no JSON object: {}", reply.shown())),
        Err(error) => Some(format!("the result is not JSON ({error}): {}", reply.shown())),
    }
}

/// Returns the value of a result. An empty body counts as an empty object.
pub(super) fn value(reply: &Reply) -> Value {
    match serde_json::from_slice(&reply.body) {
        Ok(Value::Null) | Err(_) if reply.body.is_empty() || &*reply.body == b"null" => {
            Value::Object(serde_json::Map::new())
        }
        Ok(value) => value,
        Err(_) => Value::Null,
    }
}

/// Returns what differs between the results of one message, or `None`.
pub(super) fn different(seen: &[Seen]) -> Option<String> {
    let mut replies = replies_in(seen);
    let first = replies.next()?;
    let other = replies.find(|reply| reply.kind != first.kind || value(reply) != value(first))?;
    Some(format!("it answered first {}, then {}", first.shown(), other.shown()))
}

/// Returns how a message was acknowledged before its reply was sent, or `None`.
pub(super) fn acked_early(seen: &[Seen]) -> Option<&'static str> {
    for seen in seen {
        match seen.what {
            What::Published | What::Said(_) => return None,
            What::AckedUnseen => {
                return Some("it consumes with automatic acknowledgement (no_ack)");
            }
            What::Acked => return Some("it acknowledged before it replied"),
            What::Given
            | What::Confirmed
            | What::Nacked { .. }
            | What::Extended
            | What::Expired
            | What::Cut
            | What::Stray(_)
            | What::Came => {}
        }
    }
    None
}

/// Returns whether the broker had confirmed the reply before the message was acknowledged.
pub(super) fn is_confirmed_first(seen: &[Seen]) -> bool {
    let at = |wanted: fn(&What) -> bool| seen.iter().position(|seen| wanted(&seen.what));
    let confirmed = at(|what| matches!(what, What::Confirmed));
    let acked = at(|what| matches!(what, What::Acked | What::AckedUnseen));
    matches!((confirmed, acked), (Some(confirmed), Some(acked)) if confirmed < acked)
}

#[cfg(test)]
mod tests {
    use super::super::log::Properties;
    use super::*;
    use crate::clock;
    use bytes::Bytes;

    fn reply(kind: Kind, body: &'static str) -> What {
        let body = Bytes::from_static(body.as_bytes());
        What::Said(Reply { kind, body, properties: Properties::default() })
    }

    fn seen(whats: &[(u64, What)]) -> Vec<Seen> {
        let begun = clock::ticks();
        let seen = whats.iter().map(|(ms, what)| Seen {
            at: begun + Duration::from_millis(*ms),
            of: Some(0),
            what: what.clone(),
        });
        seen.collect()
    }

    #[test]
    fn four_deliveries_within_a_second_are_a_circle() {
        let given =
            |times: &[u64]| seen(&times.iter().map(|ms| (*ms, What::Given)).collect::<Vec<_>>());
        assert_eq!(circles(&given(&[0, 10, 20])), None);
        assert_eq!(circles(&given(&[0, 500, 1000, 1500, 2000])), None);
        assert_eq!(circles(&given(&[0, 5000, 5001, 5002, 5900])), Some(4));
    }

    #[test]
    fn an_end_is_a_reply_with_an_ack_or_a_refusal() {
        let told = |whats: &[What], is_mute| {
            let whats: Vec<_> = whats.iter().map(|what| (0, what.clone())).collect();
            end(&seen(&whats), is_mute).map(|end| format!("{end:?}"))
        };
        let result = reply(Kind::Result, "{}");
        assert!(told(&[What::Given, result.clone()], false).is_none());
        assert!(told(&[What::Given, What::Acked], false).is_none());
        assert!(told(&[What::Given, reply(Kind::Progress, "{}"), What::Acked], false).is_none());
        assert!(told(&[What::Given, What::Acked, result], false).unwrap().starts_with("Answered"));
        assert_eq!(told(&[What::Given, What::Acked], true).unwrap(), "Acked");
        let nacked = |requeue| What::Nacked { requeue };
        assert!(told(&[What::Given, nacked(true)], false).is_none());
        assert_eq!(told(&[What::Given, nacked(false)], false).unwrap(), "Refused");
    }

    #[test]
    fn a_result_is_an_object_or_nothing() {
        let wrong = |kind, body| {
            let What::Said(reply) = reply(kind, body) else { unreachable!() };
            wrong_result(&reply)
        };
        for body in ["{}", "{\"a\":1}", "", "null"] {
            assert_eq!(wrong(Kind::Result, body), None);
        }
        for body in ["[]", "1", "{", "\u{1b}"] {
            assert!(wrong(Kind::Result, body).unwrap().contains("JSON"));
        }
        assert!(wrong(Kind::Error, "{}").is_some());
    }

    #[test]
    fn the_order_of_reply_confirm_and_ack_is_told() {
        let told = |whats: &[What]| {
            let seen = seen(&whats.iter().map(|what| (0, what.clone())).collect::<Vec<_>>());
            (acked_early(&seen).is_some(), is_confirmed_first(&seen))
        };
        let (out, yes, ack) = (What::Published, What::Confirmed, What::Acked);
        assert_eq!(told(&[What::Given, out.clone(), yes.clone(), ack.clone()]), (false, true));
        assert_eq!(told(&[What::Given, out.clone(), ack.clone(), yes.clone()]), (false, false));
        assert_eq!(told(&[What::Given, ack, out.clone(), yes]), (true, false));
        assert_eq!(told(&[What::AckedUnseen, What::Given, out]), (true, false));
    }

    #[test]
    fn results_that_differ_are_told() {
        let told = |first, second| {
            different(&seen(&[(0, reply(Kind::Result, first)), (1, reply(Kind::Result, second))]))
        };
        assert_eq!(told("{\"a\":1,\"b\":2}", "{\"b\":2, \"a\":1}"), None);
        assert_eq!(told("", "{}"), None);
        assert!(told("{\"a\":1}", "{\"a\":2}").unwrap().contains("then result {\"a\":2}"));
    }
}
