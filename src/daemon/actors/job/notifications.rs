//! What subscribers, the webhook and traces get of a decision.

use super::JobActor;
use crate::actors::inputs::Outgoing;
use crate::events::Event;
use crate::traces::EndedJob;
use engine::{Entry, Job, JobState, Recorded};
use journal::Notice;
use std::sync::Arc;

impl JobActor {
    /// Returns what an applied decision causes outside: what is sent to subscribers after the
    /// commit, and the notice for the webhook, which is committed with the decision. Nothing is
    /// built while nobody subscribes.
    pub(super) fn notifications(&self, recorded: &Recorded) -> (Vec<Outgoing>, Option<Notice>) {
        let Some(job) = self.job() else { return (Vec::new(), None) };
        let (env, traced) = (&self.env, self.trace_of_end(job, recorded));
        let is_announced = env.has_subscribers(job);
        let is_noticed = self.parent.is_none()
            && env.events.webhook.is_enabled()
            && recorded
                .entries
                .iter()
                .any(|entry| entry.job_state().is_some_and(JobState::is_ended));
        if !is_announced && !is_noticed {
            return (traced.into_iter().collect(), None);
        }
        let events = Event::from_decision(job, recorded, &env.events.source);
        let end = events.iter().rev().find(|event| event.is_end).filter(|_| is_noticed);
        let notice = end.map(|event| Notice {
            at: event.at,
            body: String::from_utf8_lossy(&event.body).into(),
        });
        let announced = (is_announced && !events.is_empty())
            .then(|| Outgoing::PublishEvents(events.into_iter().map(Arc::new).collect()));
        let noticed = notice.is_some().then_some(Outgoing::WebhookNotice);
        (announced.into_iter().chain(noticed).chain(traced).collect(), notice)
    }

    /// Returns the end of a root job, for its trace.
    fn trace_of_end(&self, job: &Job, recorded: &Recorded) -> Option<Outgoing> {
        let share = self.env.sampling_rate?;
        if self.parent.is_some() || !job.origin().is_sampled(share) {
            return None;
        }
        let mut entries = (recorded.first + 1..).zip(&recorded.entries);
        let is_end = |entry: &Entry| entry.job_state().is_some_and(JobState::is_ended);
        let (entry, _) = entries.find(|(_, entry)| is_end(entry))?;
        let (id, created, at) = (job.id(), job.origin().created, recorded.at);
        Some(Outgoing::SendTrace(EndedJob { id, created, entry, at }))
    }

    /// Returns an update for those who watch the counts of its child jobs, if these have changed.
    pub(super) fn child_counts_update(&self, recorded: &Recorded) -> Option<Outgoing> {
        let is_counted = recorded.entries.iter().any(|entry| matches!(entry, Entry::FanOut(..)));
        (is_counted && self.env.feeds.has_counting_subscribers(self.id))
            .then(|| Outgoing::ChildCountsChanged(self.id))
    }
}
