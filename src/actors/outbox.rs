//! The outbox: the only way out for the effects of decisions. The journal actor sends them after
//! the commit, in order; messages are collected, and each bus gets its own at the end. What follows
//! from no decision, such as a refusal, leaves at once.

use super::answer::Answer;
use super::mail::{AnnouncerInput, BusInput, JobInput, Outgoing, RouterInput};
use super::ways::Ways;
use crate::bus::{BusKey, Publication};
use crate::engine::Input;
use crate::events::Event;
use crate::faults;
use std::sync::Arc;

impl Outgoing {
    /// Returns what is still sent if the job turns out to be deleted. What was decided is not kept,
    /// so no effects follow; but its messages must be withdrawn. `is_replaced`: another job has its
    /// id by now.
    pub fn of_deleted(self, is_replaced: bool) -> Option<Outgoing> {
        match self {
            Outgoing::Hold(_) => Some(self),
            // The messages of the job that has the id now have the same ids.
            Outgoing::Withdraw(..) => (!is_replaced).then_some(self),
            // The delivery goes back to its queue. When it comes again, a reply finds no job, and a
            // call finds the id free.
            Outgoing::Ack(_) => None,
            Outgoing::Answer(answer) => Some(Outgoing::Answer(answer.of_deleted())),
            Outgoing::Send(..)
            | Outgoing::StartChild(_)
            | Outgoing::ToChild(_)
            | Outgoing::ToParent(..)
            | Outgoing::Announce(_)
            | Outgoing::Noticed
            | Outgoing::Ended(_)
            | Outgoing::Counted(_)
            | Outgoing::StepsDone(..) => None,
        }
    }

    /// Sends it.
    pub fn release(self, ways: &Ways) {
        match self {
            Outgoing::Ack(acknowledge) => {
                faults::hit("outbox::ack");
                acknowledge.ack();
            }
            Outgoing::Send(message) => {
                let mut messages = Messages::default();
                messages.add(message);
                messages.send(ways);
            }
            Outgoing::Withdraw(address, id, over) => {
                if let Some(bus) = ways.buses.find(&address.bus) {
                    bus.post(BusInput::Withdraw(address.queue, id, over));
                }
            }
            Outgoing::StartChild(child) => {
                ways.mailboxes().router.post(RouterInput::StartChild(child))
            }
            // Through the router, so that it follows the start of the child job.
            Outgoing::ToChild(to_child) => {
                ways.mailboxes().router.post(RouterInput::ToChild(to_child))
            }
            Outgoing::ToParent(parent, ended) => {
                let input = Input::ChildEnded { step: parent.step, index: parent.index, ended };
                match ways.routes.find(parent.job) {
                    Some(job) => job.post(JobInput::Take { input, ack: None }),
                    // It may be passivated.
                    None => ways.mailboxes().router.post(RouterInput::ToJob(parent.job, input)),
                }
            }
            Outgoing::Answer(answer) => {
                if let Answer::Created(_, Ok(created)) = &answer {
                    faults::observe("outbox::answer", || *created);
                }
                faults::hit("outbox::answer");
                answer.tell();
            }
            Outgoing::Hold(done) => drop(done),
            Outgoing::Announce(events) => announce(events, ways),
            Outgoing::Counted(job) => ways.common.feeds.counted(job),
            Outgoing::StepsDone(steps_done, steps) => steps_done.set(steps),
            Outgoing::Ended(job) => ways.common.traces.iter().for_each(|traces| traces.ended(job)),
            Outgoing::Noticed => ways.common.webhook.iter().for_each(|webhook| webhook.noticed()),
        }
    }
}

/// The messages that follow from one commit: each bus gets its own in one input.
#[derive(Default)]
pub struct Messages(Vec<(BusKey, Vec<Publication>)>);

impl Messages {
    /// Adds a message behind the others for its bus.
    pub fn add(&mut self, message: Publication) {
        faults::hit("outbox::dispatch");
        match self.0.iter_mut().find(|(bus, _)| *bus == message.to.bus) {
            Some((_, messages)) => messages.push(message),
            None => self.0.push((message.to.bus.clone(), vec![message])),
        }
    }

    /// Hands the messages to their buses.
    pub fn send(self, ways: &Ways) {
        for (key, messages) in self.0 {
            match ways.buses.find(&key) {
                Some(bus) => bus.post(BusInput::Publish(messages)),
                None => tracing::error!(bus = %key, messages = messages.len(), "no such bus"),
            }
        }
    }
}

/// Sends events to the notifier, as best effort: one that is behind does not hold up the journal.
fn announce(events: Vec<Arc<Event>>, ways: &Ways) {
    if let Err(refused) = ways.mailboxes().announcer.offer(AnnouncerInput::Happened(events)) {
        let AnnouncerInput::Happened(events) = refused else { return };
        ways.common.feeds.lose(events.len());
        ways.common
            .metrics
            .events_dropped
            .with_label_values(&["streams"])
            .inc_by(events.len() as u64);
        if ways.common.settings.events.has_topic() {
            ways.common
                .metrics
                .events_dropped
                .with_label_values(&["exchange"])
                .inc_by(events.len() as u64);
        }
    }
}
