//! Builds the notifications of a decision, for the subscribers of events, the webhook and traces.

use super::JobActor;
use crate::actors::inputs::Outgoing;
use crate::events::Event;
use crate::traces::EndedJob;
use engine::{Entry, Job, JobState, Recorded};
use journal::Notice;
use std::sync::Arc;

impl JobActor {
    /// Returns the notifications of a decision that are sent after its commit, and the notice for
    /// the webhook, which is committed with the decision; `None`: it needs no notice. Events are
    /// built only if there is a subscriber or a notice.
    pub(super) fn notifications(&self, recorded: &Recorded) -> (Vec<Outgoing>, Option<Notice>) {
        let Some(job) = self.job() else { return (Vec::new(), None) };
        let (env, send_trace) = (&self.env, self.trace_of_end(job, recorded));
        let has_subscribers = env.has_subscribers(job);
        let needs_notice = self.parent.is_none()
            && env.event_settings.webhook.is_enabled()
            && recorded
                .entries
                .iter()
                .any(|entry| entry.job_state().is_some_and(JobState::is_ended));
        if !has_subscribers && !needs_notice {
            return (send_trace.into_iter().collect(), None);
        }
        let events = Event::from_decision(job, recorded, &env.event_settings.source);
        let end_event = events.iter().rev().find(|event| event.is_end).filter(|_| needs_notice);
        let notice = end_event.map(|event| Notice {
            at: event.at,
            body: String::from_utf8_lossy(&event.body).into(),
        });
        let publish_events = (has_subscribers && !events.is_empty())
            .then(|| Outgoing::PublishEvents(events.into_iter().map(Arc::new).collect()));
        let notify_webhook = notice.is_some().then_some(Outgoing::WebhookNotice);
        (publish_events.into_iter().chain(notify_webhook).chain(send_trace).collect(), notice)
    }

    /// Returns the effect that sends the trace of a root job; `None`: the decision does not end the
    /// job, or the job is not sampled.
    fn trace_of_end(&self, job: &Job, recorded: &Recorded) -> Option<Outgoing> {
        let sampling_ratio = self.env.sampling_ratio?;
        if self.parent.is_some() || !job.origin().is_sampled(sampling_ratio) {
            return None;
        }
        // `first` is the number of entries before the decision, and entries are numbered from 1.
        let mut entries = (recorded.first + 1..).zip(&recorded.entries);
        let is_end = |entry: &Entry| entry.job_state().is_some_and(JobState::is_ended);
        let (entry, _) = entries.find(|(_, entry)| is_end(entry))?;
        let (id, created, at) = (job.id(), job.origin().created, recorded.at);
        Some(Outgoing::SendTrace(EndedJob { id, created, entry, at }))
    }

    /// Returns the notification that the counts of the job's child jobs may have changed; `None`:
    /// they have not, or they have no subscriber.
    pub(super) fn child_counts_update(&self, recorded: &Recorded) -> Option<Outgoing> {
        let has_changed = recorded.entries.iter().any(|entry| matches!(entry, Entry::FanOut(..)));
        (has_changed && self.env.event_hub.has_counting_subscribers(self.id))
            .then(|| Outgoing::ChildCountsChanged(self.id))
    }
}
