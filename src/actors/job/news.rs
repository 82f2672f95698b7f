//! What listeners and the webhook are told of a decision.

use super::JobActor;
use crate::actors::mail::Outgoing;
use crate::engine::{Entry, JobState, Recorded};
use crate::events::Event;
use crate::journal::Notice;
use std::sync::Arc;

impl JobActor {
    /// The events of an applied decision for all who listen, after the commit; and the notice for
    /// the webhook, which is committed with the decision. Nothing is built while nobody listens.
    pub(super) fn news(&self, recorded: &Recorded) -> (Option<Outgoing>, Option<Notice>) {
        let Some(job) = self.job() else { return (None, None) };
        let ways = &self.ways;
        let is_announced = ways.common.announces(job);
        let is_noticed = self.parent.is_none()
            && ways.common.settings.events.webhook.is_on()
            && recorded
                .entries
                .iter()
                .any(|entry| entry.job_state().is_some_and(JobState::is_ended));
        if !is_announced && !is_noticed {
            return (None, None);
        }
        let events = Event::of_decision(job, recorded, &ways.common.settings.events.source);
        let end = events.iter().rev().find(|event| event.is_end).filter(|_| is_noticed);
        let notice = end.map(|event| Notice {
            at: event.at,
            body: String::from_utf8_lossy(&event.body).into(),
        });
        let announced = (is_announced && !events.is_empty())
            .then(|| Outgoing::Announce(events.into_iter().map(Arc::new).collect()));
        (announced, notice)
    }

    /// Those who count its child jobs hear that there is something new, after the commit.
    pub(super) fn counts_now(&self, recorded: &Recorded) -> Option<Outgoing> {
        let is_counted = recorded.entries.iter().any(|entry| matches!(entry, Entry::FanOut(..)));
        (is_counted && self.ways.common.feeds.counts(self.id)).then(|| Outgoing::Counted(self.id))
    }
}
