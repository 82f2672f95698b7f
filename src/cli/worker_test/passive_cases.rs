//! The passive cases: they send no message, but check what the other cases have logged.

use super::checks;
use super::event_log::{LoggedEvent, ObservedEvent, Reply, find_reply};
use super::harness::WorkerHarness;
use super::messages::attempt_of;
use super::report::CaseOutcome;

impl WorkerHarness {
    /// Returns the events of each valid message that the worker has answered.
    fn answered_messages(&self) -> Vec<Vec<LoggedEvent>> {
        let messages = self.valid_messages.iter().map(|number| self.log.events_of(*number));
        messages.filter(|events| find_reply(events).is_some()).collect()
    }

    /// Checks that no message was acknowledged before its reply was sent.
    pub(super) fn check_ack_order(&self) -> CaseOutcome {
        let answered = self.answered_messages();
        match answered.iter().find_map(|events| checks::check_ack_after_reply(events)) {
            Some(problem) => CaseOutcome::failed(problem),
            None => CaseOutcome::passed(format!("{} replies, each before its ack", answered.len())),
        }
    }

    /// Checks that no message was acknowledged before its reply was confirmed.
    pub(super) fn check_confirms(&self) -> CaseOutcome {
        let answered = self.answered_messages();
        let confirmed_count =
            answered.iter().filter(|events| checks::is_confirmed_before_ack(events)).count();
        let summary =
            format!("{confirmed_count} of {} acks came after the confirm", answered.len());
        if confirmed_count == answered.len() {
            CaseOutcome::passed(summary)
        } else {
            CaseOutcome::failed(summary)
        }
    }

    /// Applies a check to the reply of each answered message. The check returns what is wrong, if
    /// anything is. `property` completes "N replies …" in the outcome of a case that passes.
    fn check_each_reply(
        &self,
        property: &str,
        check: impl Fn(&Reply) -> Option<String>,
    ) -> CaseOutcome {
        let answered = self.answered_messages();
        match answered.iter().filter_map(|events| find_reply(events)).find_map(check) {
            Some(problem) => CaseOutcome::failed(problem),
            None => CaseOutcome::passed(format!("{} replies {property}", answered.len())),
        }
    }

    /// Checks that each reply has the attempt of its message.
    pub(super) fn check_attempt_header(&self) -> CaseOutcome {
        for number in &self.valid_messages {
            let events = self.log.events_of(*number);
            let Some(reply) = find_reply(&events) else { continue };
            let expected = i64::from(attempt_of(*number));
            match reply.properties.attempt {
                None => return CaseOutcome::failed("its replies have no header attempt"),
                Some(attempt) if attempt != expected => {
                    return CaseOutcome::failed(format!(
                        "attempt {expected} came back as {attempt}"
                    ));
                }
                Some(_) => {}
            }
        }
        CaseOutcome::passed("each reply has it")
    }

    /// Checks that replies are persistent.
    pub(super) fn check_persistent(&self) -> CaseOutcome {
        self.check_each_reply("are persistent", |reply| {
            (!reply.properties.is_persistent).then(|| "delivery_mode is not 2".to_owned())
        })
    }

    /// Checks that replies have the content type of JSON.
    pub(super) fn check_content_type(&self) -> CaseOutcome {
        self.check_each_reply("are application/json", |reply| {
            match &reply.properties.content_type {
                None => Some("its replies have no content_type".to_owned()),
                Some(name) if name.starts_with("application/json") => None,
                Some(name) => Some(format!("content_type is {name}")),
            }
        })
    }

    /// Checks that no lease expired. Skipped if the worker extended none, either.
    pub(super) fn check_lease(&self) -> CaseOutcome {
        let (extension_count, expiry_count) = self.log.with_events(|events| {
            let count = |matches: fn(&ObservedEvent) -> bool| {
                events.iter().filter(|logged| matches(&logged.event)).count()
            };
            (
                count(|event| matches!(event, ObservedEvent::LeaseExtended)),
                count(|event| matches!(event, ObservedEvent::LeaseExpired)),
            )
        });
        match (extension_count, expiry_count) {
            (0, 0) => CaseOutcome::skipped("no work took as long as its lease"),
            (_, 0) => CaseOutcome::passed(format!("it extended {extension_count} times, in time")),
            _ => CaseOutcome::failed(format!("{expiry_count} leases ended while it worked")),
        }
    }
}
