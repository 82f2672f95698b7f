//! The outbox: it sends the effects of decisions. The journal actor sends them after the commit, in
//! order, with the publications of a commit batched by bus. Effects that follow from no decision,
//! such as a refusal, are sent at once.

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

/// The receivers of effects.
pub struct Outbox {
    router: Mailbox<RouterInput>,
    notifier: Mailbox<NotifierInput>,
    routes: Routes,
    buses: Arc<Buses>,
    event_hub: Arc<EventHub>,
    webhook: Option<Arc<Webhook>>,
    traces: Option<Arc<Traces>>,
    metrics: Metrics,
    /// Whether events are also published to an exchange.
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
            event_hub: core.event_hub.clone(),
            webhook: core.webhook.clone(),
            traces: core.traces.clone(),
            metrics: core.metrics.clone(),
            has_exchange: core.settings.events.has_exchange(),
        }
    }

    /// Sends events to the notifier, with best effort: if its mailbox is full, the events are
    /// dropped, so that the journal is not blocked.
    fn publish_events(&self, events: Vec<Arc<Event>>) {
        if let Err(rejected) = self.notifier.try_send(NotifierInput::Events(events)) {
            let NotifierInput::Events(events) = rejected else { return };
            self.event_hub.record_lost(events.len());
            let exchange = self.has_exchange.then_some("exchange");
            for receiver in ["streams"].into_iter().chain(exchange) {
                let dropped = self.metrics.events_dropped.with_label_values(&[receiver]);
                dropped.inc_by(events.len() as u64);
            }
        }
    }
}

impl Outgoing {
    /// Converts the effect to the one to send if the job was deleted before the commit; `None`:
    /// none is sent. The decision is not in the journal, so it must have no effects. Only earlier
    /// messages are still withdrawn, and clients get their responses. `is_replaced`: another job
    /// has the id by now.
    pub fn after_deletion(self, is_replaced: bool) -> Option<Outgoing> {
        match self {
            Outgoing::ReleaseLatch(_) => Some(self),
            // The messages of a new job with the same id have the same message ids.
            Outgoing::Withdraw(..) => (!is_replaced).then_some(self),
            // The delivery is requeued. When it is redelivered, a reply finds no job, and a call
            // starts a new one.
            Outgoing::Ack(_) => None,
            Outgoing::Respond(response) => Some(Outgoing::Respond(response.after_deletion())),
            Outgoing::Publish(..)
            | Outgoing::StartChild(_)
            | Outgoing::OrderChild(_)
            | Outgoing::NotifyParent(..)
            | Outgoing::PublishEvents(_)
            | Outgoing::WebhookNotice
            | Outgoing::SendTrace(_)
            | Outgoing::ChildCountsChanged(_)
            | Outgoing::List(..) => None,
        }
    }

    /// Sends the effect to its receiver.
    pub fn send(self, outbox: &Outbox) {
        match self {
            Outgoing::Ack(ack) => {
                faults::hit("outbox::ack");
                ack.ack();
            }
            Outgoing::Publish(publication) => {
                let mut batch = PublicationBatch::default();
                batch.add(publication);
                batch.send(outbox);
            }
            Outgoing::Withdraw(address, id, end) => {
                if let Some(bus) = outbox.buses.find(&address.bus) {
                    bus.send(BusInput::Withdraw(address.queue, id, end));
                }
            }
            Outgoing::StartChild(child) => outbox.router.send(RouterInput::StartChild(child)),
            // The router handles the order after the start of the child job.
            Outgoing::OrderChild(order) => outbox.router.send(RouterInput::OrderChild(order)),
            Outgoing::NotifyParent(parent, ended) => {
                let input = Input::ChildEnded { step: parent.step, index: parent.index, ended };
                match outbox.routes.find(parent.job) {
                    Some(job) => job.send(JobInput::Engine { input, ack: None }),
                    // The parent may be passivated.
                    None => outbox.router.send(RouterInput::InputForJob(parent.job, input)),
                }
            }
            Outgoing::Respond(response) => {
                if let ClientResponse::Create(_, Ok(created)) = &response {
                    faults::observe("outbox::answer", || *created);
                }
                faults::hit("outbox::answer");
                response.send();
            }
            Outgoing::ReleaseLatch(latch) => drop(latch),
            Outgoing::PublishEvents(events) => outbox.publish_events(events),
            Outgoing::ChildCountsChanged(job) => outbox.event_hub.notify_counts_changed(job),
            Outgoing::List(shared, state) => shared.set(state),
            Outgoing::SendTrace(job) => {
                outbox.traces.iter().for_each(|traces| traces.notify_ended(job))
            }
            Outgoing::WebhookNotice => {
                outbox.webhook.iter().for_each(|webhook| webhook.notify_committed())
            }
        }
    }
}

/// The publications of a commit, by bus. Each bus receives its publications in one input.
#[derive(Default)]
pub struct PublicationBatch(Vec<(BusKey, Vec<Publication>)>);

impl PublicationBatch {
    /// Adds a publication after the others for its bus.
    pub fn add(&mut self, publication: Publication) {
        faults::hit("outbox::dispatch");
        match self.0.iter_mut().find(|(bus, _)| *bus == publication.address.bus) {
            Some((_, publications)) => publications.push(publication),
            None => self.0.push((publication.address.bus.clone(), vec![publication])),
        }
    }

    /// Sends the publications to their buses.
    pub fn send(self, outbox: &Outbox) {
        for (key, publications) in self.0 {
            match outbox.buses.find(&key) {
                Some(bus) => bus.send(BusInput::Publish(publications)),
                None => tracing::error!(bus = %key, messages = publications.len(), "no such bus"),
            }
        }
    }
}
