//! Wrong wiring: relays between the actors that lose mail, change it, or let effects leave before
//! the commit that they are to follow.

use super::limits::wrong_gate;
use actix::{Actor, Context, Handler};
use tokio::sync::oneshot::{self, error::TryRecvError};
use workflow_manager::actors::completion_latch::CompletionLatch;
use workflow_manager::actors::inputs::{
    Append, ArchiveInput, CommitBarrier, JournalInput, Lookup, LookupResult, Outgoing, RouterInput,
};
use workflow_manager::actors::mailbox::{
    ActorMetrics, Envelope, Mailbox, MailboxActor, new_mailbox,
};
use workflow_manager::actors::mailboxes::Mailboxes;
use workflow_manager::actors::manager_core::ManagerCore;
use workflow_manager::actors::outbox::Outbox;
use workflow_manager::actors::routes::Routes;
use workflow_manager::bus::{Addressee, Delivery};
use workflow_manager::engine::CorrelationId;
use workflow_manager::journal::JobNumber;
use workflow_manager::telemetry::Metrics;

/// The ways to the actors, with a relay that has the bug before one of them.
#[allow(clippy::too_many_lines, reason = "one match over the bugs")]
pub(crate) fn wrong_wiring(
    bug: Option<&'static str>,
    mailboxes: Mailboxes,
    core: &ManagerCore,
) -> Mailboxes {
    let metrics = &core.metrics;
    match bug {
        Some("known ids not looked up") => {
            let router = mailboxes.router.clone();
            let archive =
                relay(mailboxes.archive, metrics, move |input| answer_not_found(&router, input));
            Mailboxes { archive, ..mailboxes }
        }
        Some("panicked actors not rebuilt") => {
            let archive = relay(mailboxes.archive, metrics, |input| match input {
                ArchiveInput::Rebuild(_) => None,
                ArchiveInput::LookUp(..) | ArchiveInput::Activate(_) => Some(input),
            });
            Mailboxes { archive, ..mailboxes }
        }
        Some("jobs at rest not brought back") => {
            let archive = relay(mailboxes.archive, metrics, |input| match input {
                ArchiveInput::Activate(_) => None,
                ArchiveInput::LookUp(..) | ArchiveInput::Rebuild(_) => Some(input),
            });
            Mailboxes { archive, ..mailboxes }
        }
        Some("what is due in jobs at rest forgotten") => {
            let router = relay(mailboxes.router, metrics, |mut input| {
                if let RouterInput::Passivate(rest) = &mut input {
                    rest.tree.due = None;
                }
                Some(input)
            });
            Mailboxes { router, ..mailboxes }
        }
        Some("unknown replies sent back") => {
            let routes = core.routes.clone();
            let router = relay(mailboxes.router, metrics, move |input| {
                let is_unknown = matches!(
                    &input,
                    RouterInput::ReplyDelivered(delivery) if !is_for_live_job(&routes, delivery)
                );
                (!is_unknown).then_some(input)
            });
            Mailboxes { router, ..mailboxes }
        }
        Some("positions not written") => {
            let journal = relay(mailboxes.journal, metrics, |input| {
                (!matches!(input, JournalInput::StoreOffset(_))).then_some(input)
            });
            Mailboxes { journal, ..mailboxes }
        }
        Some("unknown replies acknowledged at once") => {
            let journal = relay(mailboxes.journal, metrics, |input| {
                let JournalInput::CommitBarrier(CommitBarrier::AckRejected(ack)) = input else {
                    return Some(input);
                };
                ack.ack();
                None
            });
            Mailboxes { journal, ..mailboxes }
        }
        Some("missing queues declared before the commit") => {
            let journal = relay(mailboxes.journal, metrics, |input| {
                let JournalInput::CommitBarrier(CommitBarrier::Answer(answer)) = input else {
                    return Some(input);
                };
                // Whoever asked may have gone.
                let _ = answer.send(());
                None
            });
            Mailboxes { journal, ..mailboxes }
        }
        Some(bug) if let Some(wrong) = wrong_gate(bug, &mailboxes, metrics) => wrong,
        Some(bug) => match wrong_append(bug, Outbox::new(core, &mailboxes)) {
            Some(mut change) => {
                let journal = relay(mailboxes.journal, metrics, move |input| {
                    let JournalInput::Append(append) = input else { return Some(input) };
                    Some(JournalInput::Append(change(append)))
                });
                Mailboxes { journal, ..mailboxes }
            }
            None => mailboxes,
        },
        None => mailboxes,
    }
}

type Change = Box<dyn FnMut(Append) -> Append>;

/// What a bug does to what is on its way to the journal; none: it is a bug of something else.
fn wrong_append(bug: &str, outbox: Outbox) -> Option<Change> {
    let is_ack = |outgoing: &Outgoing| matches!(outgoing, Outgoing::Ack(_));
    let is_answer = |outgoing: &Outgoing| matches!(outgoing, Outgoing::Respond(_));
    Some(match bug {
        "ack before commit" => Box::new(move |append| {
            let is_meant = append.record.is_some() && !creates_job(&append);
            send_ahead(append, &outbox, |outgoing| is_meant && is_ack(outgoing))
        }),
        "answer before commit" => Box::new(move |append| {
            let is_meant = creates_job(&append);
            send_ahead(append, &outbox, |outgoing| {
                is_meant && (is_answer(outgoing) || is_ack(outgoing))
            })
        }),
        "effects before commit" => Box::new(move |append| {
            let is_meant = append.record.is_some();
            send_ahead(append, &outbox, |outgoing| is_meant && is_effect(outgoing))
        }),
        "caller answered before commit" => {
            Box::new(move |append| send_ahead(append, &outbox, is_for_caller))
        }
        "rejected replies acknowledged at once" => Box::new(move |append| {
            let is_meant = append.record.is_none();
            send_ahead(append, &outbox, |outgoing| is_meant && is_ack(outgoing))
        }),
        "rejected replies not acknowledged" => Box::new(move |mut append| {
            let is_meant = append.record.is_none();
            append.outgoing.retain(|outgoing| !(is_meant && is_ack(outgoing)));
            append
        }),
        "last record of a group left out" => {
            let mut pending = PendingAppends::default();
            Box::new(move |mut append| {
                let is_behind = pending.is_behind(|_| true);
                pending.add(&mut append);
                if is_behind {
                    append.record = None;
                }
                append
            })
        }
        "only the first statuses of a group written" => {
            let mut pending = PendingAppends::default();
            Box::new(move |mut append| {
                let is_behind = pending.is_behind(|other| other == append.job);
                let Some(record) = &mut append.record else { return append };
                if is_behind {
                    record.statuses.clear();
                } else if !record.statuses.is_empty() {
                    pending.add(&mut append);
                }
                append
            })
        }
        _ => return None,
    })
}

/// What is on its way to the journal and not committed yet.
#[derive(Default)]
struct PendingAppends(Vec<(JobNumber, oneshot::Receiver<()>)>);

impl PendingAppends {
    /// Whether anything of such a job is in it.
    fn is_behind(&mut self, is_meant: impl Fn(JobNumber) -> bool) -> bool {
        self.0.retain_mut(|(_, committed)| committed.try_recv() == Err(TryRecvError::Empty));
        self.0.iter().any(|(job, _)| is_meant(*job))
    }

    fn add(&mut self, append: &mut Append) {
        let (notifier, committed) = oneshot::channel();
        append.outgoing.push(Outgoing::ReleaseLatch(CompletionLatch::new(notifier)));
        self.0.push((append.job, committed));
    }
}

/// Lets what is meant leave now, and the rest after the commit.
fn send_ahead(mut append: Append, outbox: &Outbox, is_meant: impl Fn(&Outgoing) -> bool) -> Append {
    let (early, late): (Vec<Outgoing>, Vec<Outgoing>) =
        append.outgoing.into_iter().partition(is_meant);
    append.outgoing = late;
    early.into_iter().for_each(|outgoing| outgoing.send(outbox));
    append
}

fn creates_job(append: &Append) -> bool {
    append.record.as_ref().is_some_and(|record| record.created.is_some())
}

fn is_for_caller(outgoing: &Outgoing) -> bool {
    matches!(outgoing, Outgoing::Publish(message) if message.addressee == Addressee::Caller)
}

fn is_effect(outgoing: &Outgoing) -> bool {
    match outgoing {
        Outgoing::Publish(_) => !is_for_caller(outgoing),
        Outgoing::StartChild(_) | Outgoing::OrderChild(_) | Outgoing::NotifyParent(..) => true,
        Outgoing::Ack(_)
        | Outgoing::Respond(_)
        | Outgoing::ReleaseLatch(_)
        | Outgoing::PublishEvents(_)
        | Outgoing::Withdraw(..)
        | Outgoing::WebhookNotice
        | Outgoing::ChildCountsChanged(_)
        | Outgoing::SendTrace(_)
        | Outgoing::List(..) => false,
    }
}

/// An archive that knows no job that was created.
fn answer_not_found(router: &Mailbox<RouterInput>, input: ArchiveInput) -> Option<ArchiveInput> {
    let ArchiveInput::LookUp(id, Lookup::Creation) = input else { return Some(input) };
    let found = RouterInput::LookupFinished(id, Ok(LookupResult::Creation(None)));
    router.send(found);
    None
}

fn is_for_live_job(routes: &Routes, delivery: &Delivery) -> bool {
    let place = delivery.correlation_id.as_deref().and_then(|text| text.parse().ok());
    place.is_some_and(|CorrelationId { job, .. }| routes.is_active(job))
}

/// Stands before an actor, and hands on what `change` makes of its mail.
struct Relay<I: Send + 'static> {
    to: Mailbox<I>,
    change: Box<dyn FnMut(I) -> Option<I>>,
}

/// A mailbox before `to` that hands on what `change` gives.
pub(crate) fn relay<I: Send + 'static>(
    to: Mailbox<I>,
    metrics: &Metrics,
    change: impl FnMut(I) -> Option<I> + 'static,
) -> Mailbox<I> {
    let kind = ActorMetrics::new(metrics, Relay::<I>::KIND);
    let (mailbox, inbox) = new_mailbox::<Relay<I>>(usize::MAX, kind);
    inbox.start_here(Relay { to, change: Box::new(change) });
    mailbox
}

impl<I: Send + 'static> Actor for Relay<I> {
    type Context = Context<Self>;
}

impl<I: Send + 'static> MailboxActor for Relay<I> {
    type Input = I;
    const KIND: &'static str = "relay";
}

impl<I: Send + 'static> Handler<Envelope<I>> for Relay<I> {
    type Result = ();

    fn handle(&mut self, envelope: Envelope<I>, _: &mut Self::Context) {
        envelope.handle(|input| {
            if let Some(input) = (self.change)(input) {
                self.to.send(input);
            }
        });
    }
}
