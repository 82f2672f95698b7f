//! The outbox: the only way out for the effects of decisions. The journal actor sends them after
//! the commit, in order; messages are collected, and each bus gets its own at the end. What follows
//! from no decision, such as a refusal, leaves at once.

use super::buses::Buses;
use super::client_response::ClientResponse;
use super::inputs::{BusInput, JobInput, NotifierInput, Outgoing, RouterInput};
use super::mailbox::Mailbox;
use super::mailboxes::Mailboxes;
use super::manager_core::ManagerCore;
use super::routes::Routes;
use crate::events::{Event, EventHub, Webhook};
use crate::telemetry::Metrics;
use crate::traces::Traces;
use base::faults;
use bus::{BusKey, Publication};
use engine::Input;
use std::sync::Arc;

/// Where effects go.
pub struct Outbox {
    router: Mailbox<RouterInput>,
    notifier: Mailbox<NotifierInput>,
    routes: Routes,
    buses: Arc<Buses>,
    feeds: Arc<EventHub>,
    webhook: Option<Arc<Webhook>>,
    traces: Option<Arc<Traces>>,
    metrics: Metrics,
    /// Whether events also go to an exchange.
    has_exchange: bool,
}

impl Outbox {
    /// Creates the outbox of a manager.
    pub fn new(core: &ManagerCore, mailboxes: &Mailboxes) -> Outbox {
        Outbox {
            router: mailboxes.router.clone(),
            notifier: mailboxes.notifier.clone(),
            routes: core.routes.clone(),
            buses: core.buses.clone(),
            feeds: core.feeds.clone(),
            webhook: core.webhook.clone(),
            traces: core.traces.clone(),
            metrics: core.metrics.clone(),
            has_exchange: core.settings.events.has_exchange(),
        }
    }

    /// Sends events to the notifier, as best effort: one that is behind does not hold up the
    /// journal.
    fn publish_events(&self, events: Vec<Arc<Event>>) {
        if let Err(refused) = self.notifier.try_send(NotifierInput::Events(events)) {
            let NotifierInput::Events(events) = refused else { return };
            self.feeds.record_lost(events.len());
            let exchange = self.has_exchange.then_some("exchange");
            for lost_by in ["streams"].into_iter().chain(exchange) {
                let dropped = self.metrics.events_dropped.with_label_values(&[lost_by]);
                dropped.inc_by(events.len() as u64);
            }
        }
    }
}

impl Outgoing {
    /// Returns what is still sent if the job turns out to be deleted. What was decided is not kept,
    /// so no effects follow; but its messages must be withdrawn. `is_replaced`: another job has its
    /// id by now.
    pub fn after_deletion(self, is_replaced: bool) -> Option<Outgoing> {
        match self {
            Outgoing::ReleaseLatch(_) => Some(self),
            // The messages of the job that has the id now have the same ids.
            Outgoing::Withdraw(..) => (!is_replaced).then_some(self),
            // The delivery goes back to its queue. When it comes again, a reply finds no job, and a
            // call finds the id free.
            Outgoing::Ack(_) => None,
            Outgoing::Respond(answer) => Some(Outgoing::Respond(answer.after_deletion())),
            Outgoing::Publish(..)
            | Outgoing::StartChild(_)
            | Outgoing::OrderChild(_)
            | Outgoing::NotifyParent(..)
            | Outgoing::PublishEvents(_)
            | Outgoing::WebhookNotice
            | Outgoing::SendTrace(_)
            | Outgoing::ChildCountsChanged(_)
            | Outgoing::StepsDone(..) => None,
        }
    }

    /// Sends it.
    pub fn send(self, outbox: &Outbox) {
        match self {
            Outgoing::Ack(acknowledge) => {
                faults::hit("outbox::ack");
                acknowledge.ack();
            }
            Outgoing::Publish(message) => {
                let mut messages = PublicationBatch::default();
                messages.add(message);
                messages.send(outbox);
            }
            Outgoing::Withdraw(address, id, over) => {
                if let Some(bus) = outbox.buses.find(&address.bus) {
                    bus.send(BusInput::Withdraw(address.queue, id, over));
                }
            }
            Outgoing::StartChild(child) => outbox.router.send(RouterInput::StartChild(child)),
            // Through the router, so that it follows the start of the child job.
            Outgoing::OrderChild(to_child) => outbox.router.send(RouterInput::OrderChild(to_child)),
            Outgoing::NotifyParent(parent, ended) => {
                let input = Input::ChildEnded { step: parent.step, index: parent.index, ended };
                match outbox.routes.find(parent.job) {
                    Some(job) => job.send(JobInput::Engine { input, ack: None }),
                    // It may be passivated.
                    None => outbox.router.send(RouterInput::InputForJob(parent.job, input)),
                }
            }
            Outgoing::Respond(answer) => {
                if let ClientResponse::Create(_, Ok(created)) = &answer {
                    faults::observe("outbox::answer", || *created);
                }
                faults::hit("outbox::answer");
                answer.send();
            }
            Outgoing::ReleaseLatch(done) => drop(done),
            Outgoing::PublishEvents(events) => outbox.publish_events(events),
            Outgoing::ChildCountsChanged(job) => outbox.feeds.notify_counts_changed(job),
            Outgoing::StepsDone(steps_done, steps) => steps_done.set(steps),
            Outgoing::SendTrace(job) => {
                outbox.traces.iter().for_each(|traces| traces.notify_ended(job))
            }
            Outgoing::WebhookNotice => {
                outbox.webhook.iter().for_each(|webhook| webhook.notify_committed())
            }
        }
    }
}

/// The messages that follow from one commit: each bus gets its own in one input.
#[derive(Default)]
pub struct PublicationBatch(Vec<(BusKey, Vec<Publication>)>);

impl PublicationBatch {
    /// Adds a message behind the others for its bus.
    pub fn add(&mut self, message: Publication) {
        faults::hit("outbox::dispatch");
        match self.0.iter_mut().find(|(bus, _)| *bus == message.address.bus) {
            Some((_, messages)) => messages.push(message),
            None => self.0.push((message.address.bus.clone(), vec![message])),
        }
    }

    /// Hands the messages to their buses.
    pub fn send(self, outbox: &Outbox) {
        for (key, messages) in self.0 {
            match outbox.buses.find(&key) {
                Some(bus) => bus.send(BusInput::Publish(messages)),
                None => tracing::error!(bus = %key, messages = messages.len(), "no such bus"),
            }
        }
    }
}
