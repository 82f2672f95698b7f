//! Checks of what a worker did with a message, from the events in the log.

use super::event_log::{
    LoggedEvent, ObservedEvent, Reply, ReplyKind, find_reply, settling_replies,
};
use serde_json::Value;
use std::time::Duration;

/// A message that is delivered more often than this within a second is in a requeue loop.
const DELIVERIES_PER_SECOND_MAX: usize = 3;

const SECOND: Duration = Duration::from_secs(1);

/// How a message ended.
#[derive(Clone, Debug)]
pub(super) enum MessageOutcome {
    Answered(Reply),
    /// Rejected without requeue: the message does not come again.
    Refused,
    Acked,
    /// Requeued again and again, with this many deliveries within a second.
    RequeueLoop(usize),
}

/// Returns how a message ended, if it has. With `is_one_way` no reply is expected.
pub(super) fn find_outcome(seen: &[LoggedEvent], is_one_way: bool) -> Option<MessageOutcome> {
    if let Some(count) = find_requeue_loop(seen) {
        return Some(MessageOutcome::RequeueLoop(count));
    }
    let has = |wanted: fn(&ObservedEvent) -> bool| seen.iter().any(|seen| wanted(&seen.event));
    let is_acked = has(|what| matches!(what, ObservedEvent::Acked | ObservedEvent::AutoAcked));
    if let Some(reply) = find_reply(seen).filter(|_| is_acked) {
        return Some(MessageOutcome::Answered(reply.clone()));
    }
    if has(|what| matches!(what, ObservedEvent::Nacked { requeue: false })) {
        return Some(MessageOutcome::Refused);
    }
    (is_acked && is_one_way).then_some(MessageOutcome::Acked)
}

/// Returns the highest number of deliveries within a second, if it is above the limit.
pub(super) fn find_requeue_loop(seen: &[LoggedEvent]) -> Option<usize> {
    let given: Vec<_> = seen
        .iter()
        .filter(|seen| matches!(seen.event, ObservedEvent::Delivered))
        .map(|seen| seen.at)
        .collect();
    let within =
        |from: usize| given[from..].iter().take_while(|at| **at < given[from] + SECOND).count();
    let most = (0..given.len()).map(within).max()?;
    (most > DELIVERIES_PER_SECOND_MAX).then_some(most)
}

/// Describes why a message has no outcome.
pub(super) fn describe_missing(seen: &[LoggedEvent], timeout: &str) -> String {
    let count =
        |wanted: fn(&ObservedEvent) -> bool| seen.iter().filter(|seen| wanted(&seen.event)).count();
    let given = count(|what| matches!(what, ObservedEvent::Delivered));
    let requeued = count(|what| matches!(what, ObservedEvent::Nacked { requeue: true }));
    let acked = count(|what| matches!(what, ObservedEvent::Acked | ObservedEvent::AutoAcked));
    if given == 0 {
        return format!("it did not take the message within {timeout}");
    }
    let times =
        if given == 1 { String::new() } else { format!("; it was delivered {given} times") };
    if find_reply(seen).is_some() {
        return format!("it replied, and did not acknowledge within {timeout}{times}");
    }
    if acked > 0 {
        return format!("it acknowledged, and did not reply within {timeout}{times}: it is lost");
    }
    if requeued > 0 {
        return format!("it put the message back {requeued} times, and did not reply{times}");
    }
    format!("it took the message, and did not reply within {timeout}{times}")
}

/// Returns what is wrong with a result, or `None`.
pub(super) fn check_result(reply: &Reply) -> Option<String> {
    if reply.kind == ReplyKind::Error {
        return Some(format!("it answered with an error: {}", reply.render()));
    }
    if reply.body.is_empty() {
        return None;
    }
    match serde_json::from_slice(&reply.body) {
        Ok(Value::Object(_) | Value::Null) => None,
        Ok(_) => Some(format!("the result is no JSON object: {}", reply.render())),
        Err(error) => Some(format!("the result is not JSON ({error}): {}", reply.render())),
    }
}

/// Returns the value of a result. An empty body counts as an empty object.
pub(super) fn result_value(reply: &Reply) -> Value {
    match serde_json::from_slice(&reply.body) {
        Ok(Value::Null) | Err(_) if reply.body.is_empty() || &*reply.body == b"null" => {
            Value::Object(serde_json::Map::new())
        }
        Ok(value) => value,
        Err(_) => Value::Null,
    }
}

/// Returns what differs between the results of one message, or `None`.
pub(super) fn check_same_results(seen: &[LoggedEvent]) -> Option<String> {
    let mut replies = settling_replies(seen);
    let first = replies.next()?;
    let other = replies
        .find(|reply| reply.kind != first.kind || result_value(reply) != result_value(first))?;
    Some(format!("it answered first {}, then {}", first.render(), other.render()))
}

/// Returns how a message was acknowledged before its reply was sent, or `None`.
pub(super) fn check_ack_after_reply(seen: &[LoggedEvent]) -> Option<&'static str> {
    for seen in seen {
        match seen.event {
            ObservedEvent::Published | ObservedEvent::Replied(_) => return None,
            ObservedEvent::AutoAcked => {
                return Some("it consumes with automatic acknowledgement (no_ack)");
            }
            ObservedEvent::Acked => return Some("it acknowledged before it replied"),
            ObservedEvent::Delivered
            | ObservedEvent::Confirmed
            | ObservedEvent::Nacked { .. }
            | ObservedEvent::LeaseExtended
            | ObservedEvent::LeaseExpired
            | ObservedEvent::ConnectionCut
            | ObservedEvent::Unexpected(_)
            | ObservedEvent::Connected => {}
        }
    }
    None
}

/// Returns whether the broker had confirmed the reply before the message was acknowledged.
pub(super) fn is_confirmed_before_ack(seen: &[LoggedEvent]) -> bool {
    let at = |wanted: fn(&ObservedEvent) -> bool| seen.iter().position(|seen| wanted(&seen.event));
    let confirmed = at(|what| matches!(what, ObservedEvent::Confirmed));
    let acked = at(|what| matches!(what, ObservedEvent::Acked | ObservedEvent::AutoAcked));
    matches!((confirmed, acked), (Some(confirmed), Some(acked)) if confirmed < acked)
}

#[cfg(test)]
mod tests {
    use super::super::event_log::Properties;
    use super::*;
    use base::clock;
    use bytes::Bytes;

    fn reply(kind: ReplyKind, body: &'static str) -> ObservedEvent {
        let body = Bytes::from_static(body.as_bytes());
        ObservedEvent::Replied(Reply { kind, body, properties: Properties::default() })
    }

    fn log_events(events: &[(u64, ObservedEvent)]) -> Vec<LoggedEvent> {
        let begun = clock::timer_now();
        let seen = events.iter().map(|(ms, event)| LoggedEvent {
            at: begun + Duration::from_millis(*ms),
            message_number: Some(0),
            event: event.clone(),
        });
        seen.collect()
    }

    #[test]
    fn four_deliveries_within_a_second_are_a_requeue_loop() {
        let given = |times: &[u64]| {
            log_events(&times.iter().map(|ms| (*ms, ObservedEvent::Delivered)).collect::<Vec<_>>())
        };
        assert_eq!(find_requeue_loop(&given(&[0, 10, 20])), None);
        assert_eq!(find_requeue_loop(&given(&[0, 500, 1000, 1500, 2000])), None);
        assert_eq!(find_requeue_loop(&given(&[0, 5000, 5001, 5002, 5900])), Some(4));
    }

    #[test]
    fn an_outcome_is_a_reply_with_an_ack_or_a_refusal() {
        let outcome_of = |events: &[ObservedEvent], is_mute| {
            let timed_events: Vec<_> = events.iter().map(|event| (0, event.clone())).collect();
            find_outcome(&log_events(&timed_events), is_mute).map(|end| format!("{end:?}"))
        };
        let result = reply(ReplyKind::Result, "{}");
        assert!(outcome_of(&[ObservedEvent::Delivered, result.clone()], false).is_none());
        assert!(outcome_of(&[ObservedEvent::Delivered, ObservedEvent::Acked], false).is_none());
        assert!(
            outcome_of(
                &[ObservedEvent::Delivered, reply(ReplyKind::Progress, "{}"), ObservedEvent::Acked],
                false
            )
            .is_none()
        );
        assert!(
            outcome_of(&[ObservedEvent::Delivered, ObservedEvent::Acked, result], false)
                .unwrap()
                .starts_with("Answered")
        );
        assert_eq!(
            outcome_of(&[ObservedEvent::Delivered, ObservedEvent::Acked], true).unwrap(),
            "Acked"
        );
        let nacked = |requeue| ObservedEvent::Nacked { requeue };
        assert!(outcome_of(&[ObservedEvent::Delivered, nacked(true)], false).is_none());
        assert_eq!(
            outcome_of(&[ObservedEvent::Delivered, nacked(false)], false).unwrap(),
            "Refused"
        );
    }

    #[test]
    fn a_result_is_an_object_or_nothing() {
        let check = |kind, body| {
            let ObservedEvent::Replied(reply) = reply(kind, body) else { unreachable!() };
            check_result(&reply)
        };
        for body in ["{}", "{\"a\":1}", "", "null"] {
            assert_eq!(check(ReplyKind::Result, body), None);
        }
        for body in ["[]", "1", "{", "\u{1b}"] {
            assert!(check(ReplyKind::Result, body).unwrap().contains("JSON"));
        }
        assert!(check(ReplyKind::Error, "{}").is_some());
    }

    #[test]
    fn the_order_of_reply_confirm_and_ack_is_checked() {
        let check_order = |events: &[ObservedEvent]| {
            let seen = log_events(&events.iter().map(|what| (0, what.clone())).collect::<Vec<_>>());
            (check_ack_after_reply(&seen).is_some(), is_confirmed_before_ack(&seen))
        };
        let (out, yes, ack) =
            (ObservedEvent::Published, ObservedEvent::Confirmed, ObservedEvent::Acked);
        assert_eq!(
            check_order(&[ObservedEvent::Delivered, out.clone(), yes.clone(), ack.clone()]),
            (false, true)
        );
        assert_eq!(
            check_order(&[ObservedEvent::Delivered, out.clone(), ack.clone(), yes.clone()]),
            (false, false)
        );
        assert_eq!(check_order(&[ObservedEvent::Delivered, ack, out.clone(), yes]), (true, false));
        assert_eq!(
            check_order(&[ObservedEvent::AutoAcked, ObservedEvent::Delivered, out]),
            (true, false)
        );
    }

    #[test]
    fn different_results_are_reported() {
        let compare = |first, second| {
            check_same_results(&log_events(&[
                (0, reply(ReplyKind::Result, first)),
                (1, reply(ReplyKind::Result, second)),
            ]))
        };
        assert_eq!(compare("{\"a\":1,\"b\":2}", "{\"b\":2, \"a\":1}"), None);
        assert_eq!(compare("", "{}"), None);
        assert!(compare("{\"a\":1}", "{\"a\":2}").unwrap().contains("then result {\"a\":2}"));
    }
}
