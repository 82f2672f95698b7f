//! Checks of what a worker did with a message, by the events in the log.

use super::event_log::{
    LoggedEvent, ObservedEvent, Reply, ReplyKind, find_reply, settling_replies,
};
use serde_json::Value;
use std::time::Duration;

/// The maximum number of deliveries of a message within a second. With more, the message is in a
/// requeue loop.
const DELIVERIES_PER_SECOND_MAX: usize = 3;

const SECOND: Duration = Duration::from_secs(1);

/// How the worker finished a message.
#[derive(Clone, Debug)]
pub(super) enum MessageOutcome {
    /// It was acknowledged, with this reply.
    Answered(Reply),
    /// It was rejected without requeue, so it is not delivered again.
    Refused,
    /// It was acknowledged, and needs no reply.
    Acked,
    /// It is in a requeue loop, with this number of deliveries within a second.
    RequeueLoop(usize),
}

/// Returns how a message was finished, if it was. With `is_one_way` it needs no reply.
pub(super) fn find_outcome(events: &[LoggedEvent], is_one_way: bool) -> Option<MessageOutcome> {
    if let Some(count) = find_requeue_loop(events) {
        return Some(MessageOutcome::RequeueLoop(count));
    }
    let has_event =
        |matches: fn(&ObservedEvent) -> bool| events.iter().any(|logged| matches(&logged.event));
    let is_acked =
        has_event(|event| matches!(event, ObservedEvent::Acked | ObservedEvent::AutoAcked));
    if let Some(reply) = find_reply(events).filter(|_| is_acked) {
        return Some(MessageOutcome::Answered(reply.clone()));
    }
    if has_event(|event| matches!(event, ObservedEvent::Nacked { requeue: false })) {
        return Some(MessageOutcome::Refused);
    }
    (is_acked && is_one_way).then_some(MessageOutcome::Acked)
}

/// Returns the highest number of deliveries within a second, if it is above the limit.
pub(super) fn find_requeue_loop(events: &[LoggedEvent]) -> Option<usize> {
    let delivery_times: Vec<_> = events
        .iter()
        .filter(|logged| matches!(logged.event, ObservedEvent::Delivered))
        .map(|logged| logged.time)
        .collect();
    let count_within_second = |first: usize| {
        let end = delivery_times[first] + SECOND;
        delivery_times[first..].iter().take_while(|time| **time < end).count()
    };
    let count = (0..delivery_times.len()).map(count_within_second).max()?;
    (count > DELIVERIES_PER_SECOND_MAX).then_some(count)
}

/// Describes what is missing from the events of a message that has no outcome. `timeout` is the
/// formatted duration of the wait.
pub(super) fn describe_missing(events: &[LoggedEvent], timeout: &str) -> String {
    let count = |matches: fn(&ObservedEvent) -> bool| {
        events.iter().filter(|logged| matches(&logged.event)).count()
    };
    let delivery_count = count(|event| matches!(event, ObservedEvent::Delivered));
    let requeue_count = count(|event| matches!(event, ObservedEvent::Nacked { requeue: true }));
    let ack_count = count(|event| matches!(event, ObservedEvent::Acked | ObservedEvent::AutoAcked));
    if delivery_count == 0 {
        return format!("it did not take the message within {timeout}");
    }
    let redeliveries = if delivery_count == 1 {
        String::new()
    } else {
        format!("; it was delivered {delivery_count} times")
    };
    if find_reply(events).is_some() {
        return format!("it replied, and did not acknowledge within {timeout}{redeliveries}");
    }
    if ack_count > 0 {
        return format!(
            "it acknowledged, and did not reply within {timeout}{redeliveries}: it is lost"
        );
    }
    if requeue_count > 0 {
        return format!(
            "it put the message back {requeue_count} times, and did not reply{redeliveries}"
        );
    }
    format!("it took the message, and did not reply within {timeout}{redeliveries}")
}

/// Returns what is wrong with a reply, if anything is. It must be a result whose body is a JSON
/// object, `null` or empty.
pub(super) fn check_result(reply: &Reply) -> Option<String> {
    if reply.kind == ReplyKind::Error {
        return Some(format!("it answered with an error: {}", reply.render()));
    }
    if reply.body.is_empty() {
        return None;
    }
    match serde_json::from_slice(&reply.body) {
        Ok(Value::Object(_) | Value::Null) => None,
        Ok(_) => Some(format!("the result is not a JSON object: {}", reply.render())),
        Err(error) => Some(format!("the result is not JSON ({error}): {}", reply.render())),
    }
}

/// Returns the value of a result. An empty body and `null` count as an empty object. A body that is
/// not JSON counts as `Value::Null`.
pub(super) fn result_value(reply: &Reply) -> Value {
    match serde_json::from_slice(&reply.body) {
        Ok(Value::Null) | Err(_) if reply.body.is_empty() || &*reply.body == b"null" => {
            Value::Object(serde_json::Map::new())
        }
        Ok(value) => value,
        Err(_) => Value::Null,
    }
}

/// Returns how the results of one message differ, if they do.
pub(super) fn check_same_results(events: &[LoggedEvent]) -> Option<String> {
    let mut replies = settling_replies(events);
    let first_reply = replies.next()?;
    let other_reply = replies.find(|reply| {
        reply.kind != first_reply.kind || result_value(reply) != result_value(first_reply)
    })?;
    Some(format!("it answered first {}, then {}", first_reply.render(), other_reply.render()))
}

/// Returns what is wrong if a message was acknowledged before its reply was sent. `None` if it was
/// not.
pub(super) fn check_ack_after_reply(events: &[LoggedEvent]) -> Option<&'static str> {
    for logged in events {
        match logged.event {
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

/// Returns whether the broker confirmed the reply before the message was acknowledged. False if
/// either did not happen.
pub(super) fn is_confirmed_before_ack(events: &[LoggedEvent]) -> bool {
    let position = |matches: fn(&ObservedEvent) -> bool| {
        events.iter().position(|logged| matches(&logged.event))
    };
    let confirm = position(|event| matches!(event, ObservedEvent::Confirmed));
    let ack = position(|event| matches!(event, ObservedEvent::Acked | ObservedEvent::AutoAcked));
    matches!((confirm, ack), (Some(confirm), Some(ack)) if confirm < ack)
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
        let start = clock::timer_now();
        let logged = events.iter().map(|(ms, event)| LoggedEvent {
            time: start + Duration::from_millis(*ms),
            message_number: Some(0),
            event: event.clone(),
        });
        logged.collect()
    }

    #[test]
    fn four_deliveries_within_a_second_are_a_requeue_loop() {
        let deliveries = |times: &[u64]| {
            log_events(&times.iter().map(|ms| (*ms, ObservedEvent::Delivered)).collect::<Vec<_>>())
        };
        assert_eq!(find_requeue_loop(&deliveries(&[0, 10, 20])), None);
        assert_eq!(find_requeue_loop(&deliveries(&[0, 500, 1000, 1500, 2000])), None);
        assert_eq!(find_requeue_loop(&deliveries(&[0, 5000, 5001, 5002, 5900])), Some(4));
    }

    #[test]
    fn an_outcome_is_a_reply_with_an_ack_or_a_refusal() {
        let outcome_of = |events: &[ObservedEvent], is_one_way| {
            let timed_events: Vec<_> = events.iter().map(|event| (0, event.clone())).collect();
            find_outcome(&log_events(&timed_events), is_one_way)
                .map(|outcome| format!("{outcome:?}"))
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
            let logged =
                log_events(&events.iter().map(|event| (0, event.clone())).collect::<Vec<_>>());
            (check_ack_after_reply(&logged).is_some(), is_confirmed_before_ack(&logged))
        };
        let (published, confirmed, acked) =
            (ObservedEvent::Published, ObservedEvent::Confirmed, ObservedEvent::Acked);
        assert_eq!(
            check_order(&[
                ObservedEvent::Delivered,
                published.clone(),
                confirmed.clone(),
                acked.clone()
            ]),
            (false, true)
        );
        assert_eq!(
            check_order(&[
                ObservedEvent::Delivered,
                published.clone(),
                acked.clone(),
                confirmed.clone()
            ]),
            (false, false)
        );
        assert_eq!(
            check_order(&[ObservedEvent::Delivered, acked, published.clone(), confirmed]),
            (true, false)
        );
        assert_eq!(
            check_order(&[ObservedEvent::AutoAcked, ObservedEvent::Delivered, published]),
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
