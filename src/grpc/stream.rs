//! The stream of a worker: one stream is one session. Credit, messages, replies and revocations go
//! over the stream; its end ends all of it.

mod backlog;
mod requests;

use super::connection::Peer;
use super::conversions::to_step_message;
use super::incoming::{IncomingEvent, IncomingSignals};
use super::outbound::{OutboundPermit, OutboundTracker};
use super::phase::ServerPhase;
use super::session::{Session, expect_hello};
use super::session_messages::{SessionMessage, SessionMessages};
use super::status::to_status;
use super::stream_action::{StreamAction, server_stopping};
use super::wire::to_worker::Say as ToWorkerMessage;
use super::wire::{Drain, FromWorker, Gone, ToWorker};
use backlog::{LeasedAhead, Outbound, OutboundQueue};
use base::clock;
use bus::AttemptEnd;
use bus::lease_queue::{LeaseRevocation, LeasedMessage, RevokeReason};
use daemon::api::leases::{Receipt, find_attempt_end, find_lease_queue, receive_next};
use daemon::api::state::ApiState;
use daemon::api::token::Authenticated;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, FuturesUnordered};
use futures_util::{FutureExt, StreamExt};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::Instant;
use tonic::{Status, Streaming};

/// How long leased messages may take to be sent before the stream stops receiving more.
const STALL_TIMEOUT: Duration = Duration::from_millis(50);

/// How long one wait for a message lasts before it is renewed.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// What a stream starts with.
pub(super) struct StreamStart {
    pub(super) api: Arc<ApiState>,
    pub(super) caller: Authenticated,
    pub(super) signals: IncomingSignals,
    pub(super) phases: watch::Receiver<ServerPhase>,
    /// Its permit among the streams.
    pub(super) permit: OwnedSemaphorePermit,
    /// Tracks what is sent to the worker.
    pub(super) tracker: OutboundTracker,
    /// The connection of the worker.
    pub(super) peer: Option<Peer>,
}

/// A message to the worker, with the permit of a step message; or the status that ends the stream.
type OutboundItem = Result<(ToWorker, Option<OutboundPermit>), Status>;
type OutboundSender = mpsc::Sender<OutboundItem>;

/// Starts a stream, and returns the messages to its worker.
pub(super) fn start(
    start: StreamStart,
    from: Streaming<FromWorker>,
) -> BoxStream<'static, Result<ToWorker, Status>> {
    // With one place, what leaves the stream's own queue is sent at once.
    let (sender, receiver) = mpsc::channel::<OutboundItem>(1);
    let tracker = start.tracker.clone();
    tokio::spawn(serve_worker(start, from, sender));
    let messages =
        futures_util::stream::unfold((receiver, tracker), |(mut outbound, tracker)| async move {
            let item = outbound.recv().await?;
            let sent = item.map(|(message, permit)| {
                if let Some(outbound_permit) = permit {
                    tracker.add_to_next_chunk(outbound_permit);
                }
                message
            });
            Some((sent, (outbound, tracker)))
        });
    messages.boxed()
}

/// How a stream ends.
enum StreamEnd {
    /// The worker has closed its half and everything is answered, or nothing is left at a shutdown.
    Done,
    /// The worker has disconnected.
    Disconnected,
    /// The stream ends with this status.
    Error(Status),
}

async fn serve_worker(start: StreamStart, mut from: Streaming<FromWorker>, out: OutboundSender) {
    let StreamStart { api, caller, mut signals, phases, permit, tracker, peer } = start;
    let handshake_timeout = api.settings.grpc.handshake_timeout;
    let answer_timeout = api.settings.http.answer_timeout;
    let hello = async {
        match tokio::time::timeout(handshake_timeout.0, from.message()).await {
            Ok(Ok(first)) => expect_hello(first).map_err(|problem| to_status(&problem)),
            Ok(Err(broken)) => Err(broken),
            Err(_) => Err(Status::deadline_exceeded(format!(
                "no Hello came within {handshake_timeout} (setting grpc.handshake_timeout)"
            ))),
        }
    };
    let opened = match hello.await {
        Ok(hello) => {
            Session::open(&api, &caller, hello).await.map_err(|problem| to_status(&problem))
        }
        Err(refused) => Err(refused),
    };
    // The permit of the Hello is released.
    drop(signals.permits.try_recv());
    let (session, revoked) = match opened {
        Ok(parts) => parts,
        Err(refused) => {
            // An error means that the worker has disconnected.
            let _ = out.send(Err(refused)).await;
            return;
        }
    };
    let worker = session.options.worker.as_deref().unwrap_or_default().to_owned();
    let stream = WorkerStream::new(api, caller, session, out.clone(), tracker.clone());
    let end = stream.run(from, signals, revoked, phases).await;
    tracing::debug!(worker, how = end.as_str(), "a worker's stream has ended");
    drop(permit);
    if let StreamEnd::Error(status) = end {
        // Errors mean that the worker has disconnected, or does not read.
        let _ = tokio::time::timeout(handshake_timeout.0, out.send(Err(status))).await;
    }
    drop(out);
    tracker.wait_until_sent(peer, answer_timeout.0).await;
}

impl StreamEnd {
    fn as_str(&self) -> &str {
        match self {
            StreamEnd::Done => "done",
            StreamEnd::Disconnected => "gone",
            StreamEnd::Error(status) => status.message(),
        }
    }
}

/// A wait for a message of a queue; it returns no message once the lease queue is closed.
type PendingReceive = BoxFuture<'static, (Arc<str>, Option<LeasedMessage>)>;

struct WorkerStream {
    api: Arc<ApiState>,
    caller: Authenticated,
    session: Session,
    outbound: OutboundSender,
    /// How many more messages the worker wants.
    credit: u32,
    /// A wait for each queue, while there is credit.
    receives: FuturesUnordered<PendingReceive>,
    messages: SessionMessages,
    /// Requests under way that settle a message. They complete even if the stream ends.
    settlements: FuturesUnordered<BoxFuture<'static, StreamAction>>,
    /// Other requests under way, and checks by the stream itself. They end with the stream.
    actions: FuturesUnordered<BoxFuture<'static, StreamAction>>,
    /// What waits to be sent to the worker.
    backlog: OutboundQueue,
    /// Tracks what was not sent yet.
    tracker: OutboundTracker,
    /// How much of it was sent at the last look.
    released_count: usize,
    /// When the next message must have been sent, if the worker reads at all.
    read_deadline: Instant,
    /// When the stream stops receiving, unless leased messages were sent by then.
    stall_at: Instant,
    /// Whether the worker has closed its half.
    is_closed: bool,
    /// Whether the manager is shutting down: no more messages are leased.
    is_draining: bool,
    /// Whether a check of attempts is under way.
    is_checking: bool,
}

impl WorkerStream {
    fn new(
        api: Arc<ApiState>,
        caller: Authenticated,
        session: Session,
        outbound: OutboundSender,
        tracker: OutboundTracker,
    ) -> WorkerStream {
        WorkerStream {
            api,
            caller,
            session,
            outbound,
            credit: 0,
            receives: FuturesUnordered::new(),
            messages: SessionMessages::default(),
            settlements: FuturesUnordered::new(),
            actions: FuturesUnordered::new(),
            backlog: OutboundQueue::default(),
            tracker,
            released_count: 0,
            read_deadline: clock::timer_now(),
            stall_at: clock::timer_now(),
            is_closed: false,
            is_draining: false,
            is_checking: false,
        }
    }

    /// Serves the worker until the stream ends.
    async fn run(
        mut self,
        from: Streaming<FromWorker>,
        signals: IncomingSignals,
        revoked: mpsc::UnboundedReceiver<LeaseRevocation>,
        phases: watch::Receiver<ServerPhase>,
    ) -> StreamEnd {
        let end = self.serve(from, signals, revoked, phases).await;
        // The worker does not receive the results of these.
        let settlements = std::mem::take(&mut self.settlements);
        tokio::spawn(settlements.for_each(|_| std::future::ready(())));
        end
    }

    #[allow(clippy::too_many_lines, reason = "one select over what a stream waits for")]
    async fn serve(
        &mut self,
        mut from: Streaming<FromWorker>,
        mut signals: IncomingSignals,
        mut revoked: mpsc::UnboundedReceiver<LeaseRevocation>,
        mut phases: watch::Receiver<ServerPhase>,
    ) -> StreamEnd {
        let requests_max = self.api.settings.grpc.credit_max as usize;
        let mut check_interval = tokio::time::interval(self.api.settings.grpc.keep_alive.0);
        check_interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        check_interval.reset();
        let (api, caller) = (self.api.clone(), self.caller.clone());
        let mut token_revoked = std::pin::pin!(caller.wait_revoked(&api));
        loop {
            if let Some(end) = self.find_end() {
                return end;
            }
            let (has_backlog, open) = (!self.backlog.is_empty(), self.outbound.clone());
            let unanswered = self.settlements.len() + self.actions.len();
            let can_read = !self.is_closed && unanswered + self.backlog.len() < requests_max;
            let (can_lease, is_waiting) = (self.backlog.has_capacity(), !self.receives.is_empty());
            let is_sending = has_backlog || self.tracker.is_pending();
            // These are copied before the select, which borrows `self`.
            let (read_until, stalls_at) = (self.read_deadline, self.stall_at);
            tokio::select! {
                permit = open.reserve(), if has_backlog => match permit {
                    Ok(permit) => self.send_next(permit),
                    Err(_) => return StreamEnd::Disconnected,
                },
                () = tokio::time::sleep_until(read_until), if is_sending => {
                    let released = self.tracker.released_count();
                    if released != std::mem::replace(&mut self.released_count, released) {
                        self.read_deadline = self.next_read_deadline();
                        continue;
                    }
                    let limit = self.api.settings.http.answer_timeout;
                    return StreamEnd::Error(Status::deadline_exceeded(format!(
                        "nothing was read for {limit} (setting http.answer_timeout)"
                    )));
                }
                Some((queue, received)) = self.receives.next(), if can_lease && is_waiting =>
                    match received {
                    Some(leased) => self.enqueue_message(queue, leased),
                    None if self.session.lease_queue.is_closed() => {
                        return StreamEnd::Error(server_stopping())
                    }
                    None => self.receive_from(queue),
                },
                // A wait that is not polled must neither be notified of messages nor keep permits:
                // others could use them.
                () = tokio::time::sleep_until(stalls_at), if !can_lease && is_waiting => {
                    self.receives.clear();
                }
                Some(answer) = self.settlements.next() => {
                    if let Some(end) = self.apply(answer) {
                        return end;
                    }
                }
                Some(answer) = self.actions.next() => {
                    if let Some(end) = self.apply(answer) {
                        return end;
                    }
                }
                incoming = from.message(), if can_read => match incoming {
                    Ok(Some(FromWorker { say: request })) => {
                        // Each message has its permit.
                        let permit = signals.permits.try_recv().ok();
                        let problem = request.and_then(|say| self.handle_request(say, permit));
                        if let Some(problem) = problem {
                            return StreamEnd::Error(to_status(&problem));
                        }
                    }
                    // A stream that was reset also looks like this.
                    Ok(None) => match signals.events.try_recv() {
                        Ok(IncomingEvent::Aborted) => return StreamEnd::Disconnected,
                        Ok(other) => self.handle_incoming_event(other),
                        Err(_) => self.close_inbound(),
                    },
                    Err(broken) => return StreamEnd::Error(broken),
                },
                Some(other) = signals.events.recv() => match other {
                    IncomingEvent::Aborted => return StreamEnd::Disconnected,
                    other => self.handle_incoming_event(other),
                },
                Some(ended) = revoked.recv() => self.handle_revocation(&ended),
                _ = check_interval.tick() => self.check_attempts(),
                () = &mut token_revoked => {
                    let reason = "the token is not good any more";
                    return StreamEnd::Error(Status::unauthenticated(reason));
                }
                changed = phases.changed() => {
                    let phase = *phases.borrow_and_update();
                    if changed.is_err() || phase == ServerPhase::Stopping {
                        return StreamEnd::Error(server_stopping());
                    }
                    self.start_drain();
                }
                () = self.outbound.closed() => return StreamEnd::Disconnected,
            }
        }
    }

    /// Returns how the stream ends, if nothing is left to do on it.
    fn find_end(&mut self) -> Option<StreamEnd> {
        let is_answered = self.settlements.is_empty() && self.actions.is_empty();
        if !is_answered || !self.backlog.is_empty() {
            return None;
        }
        if self.is_closed {
            self.messages.release_on_drop();
            return Some(StreamEnd::Done);
        }
        (self.is_draining && self.messages.is_empty()).then_some(StreamEnd::Done)
    }

    fn enqueue(&mut self, message: ToWorkerMessage) {
        self.enqueue_outbound(Outbound { message, leased: None });
    }

    fn enqueue_outbound(&mut self, outbound: Outbound) {
        if self.backlog.is_empty() {
            self.read_deadline = self.next_read_deadline();
        }
        self.backlog.push(outbound);
    }

    fn next_read_deadline(&self) -> Instant {
        clock::timer_now() + self.api.settings.http.answer_timeout.0
    }

    fn send_next(&mut self, permit: mpsc::Permit<'_, OutboundItem>) {
        let Some(Outbound { message, leased }) = self.backlog.pop() else { return };
        let outbound_permit = leased.and_then(|leased_ahead| {
            self.messages.mark_sent(&leased_ahead.id);
            leased_ahead.permit
        });
        permit.send(Ok((ToWorker { say: Some(message) }, outbound_permit)));
        self.read_deadline = self.next_read_deadline();
        if self.receives.is_empty()
            && self.credit > 0
            && !self.is_draining
            && self.backlog.has_capacity()
        {
            self.receive_from_all();
        }
    }

    /// Waits for the next message of each queue.
    fn receive_from_all(&mut self) {
        for queue in self.session.queues.clone() {
            self.receive_from(queue);
        }
    }

    /// Waits for the next message of a queue.
    fn receive_from(&mut self, queue: Arc<str>) {
        let (api, lease_queue) = (self.api.clone(), self.session.lease_queue.clone());
        let options = self.session.options.clone();
        self.receives.push(
            async move {
                let until = clock::timer_now() + RECEIVE_TIMEOUT;
                let leased = receive_next(&api, &lease_queue, &queue, &options, until).await;
                (queue, leased)
            }
            .boxed(),
        );
    }

    fn enqueue_message(&mut self, queue: Arc<str>, mut leased: LeasedMessage) {
        let permit = leased.permit.take().map(|acquired| self.tracker.track(acquired));
        let message = to_step_message(&queue, &self.session.vhost, &leased);
        let (id, receipt) = (leased.id.clone(), message.receipt.clone());
        let lease_owner = (self.session.lease_queue.clone(), self.session.revocations.clone());
        self.messages.insert(SessionMessage::new((id, leased.delivery), lease_owner, receipt));
        let leased_ahead = Some(LeasedAhead { id: leased.id, bytes: message.body.len(), permit });
        self.stall_at = clock::timer_now() + STALL_TIMEOUT;
        self.enqueue_outbound(Outbound {
            message: ToWorkerMessage::Message(message),
            leased: leased_ahead,
        });
        self.credit -= 1;
        if self.credit > 0 {
            self.receive_from(queue);
        } else {
            self.receives.clear();
        }
    }

    fn apply(&mut self, action: StreamAction) -> Option<StreamEnd> {
        match action {
            StreamAction::Send(message) => self.enqueue(message),
            StreamAction::Rejected(session_message, rejection) => {
                if let Some(restored) = session_message {
                    self.messages.restore(restored);
                }
                self.enqueue(ToWorkerMessage::Taken(rejection));
            }
            StreamAction::Extended(receipt, text, confirmation) => {
                self.adopt_message(&receipt, text);
                self.enqueue(confirmation);
            }
            StreamAction::Revoked(receipt, gone) => {
                self.messages.remove(&receipt.id, receipt.delivery).map(SessionMessage::disarm);
                self.enqueue(ToWorkerMessage::Gone(gone));
            }
            StreamAction::AttemptsChecked(gone) => {
                self.is_checking = false;
                for (receipt, gone) in gone {
                    if let Some(removed) = self.messages.remove(&receipt.id, receipt.delivery) {
                        removed.disarm();
                        self.enqueue(ToWorkerMessage::Gone(gone));
                    }
                }
            }
            StreamAction::Close(status) => return Some(StreamEnd::Error(status)),
        }
        None
    }

    /// Adopts a message that the worker may have received before, for example in another session.
    fn adopt_message(&mut self, receipt: &Receipt, text: String) {
        let (id, delivery, revocations) =
            (receipt.id.as_str(), receipt.delivery, &self.session.revocations);
        let Ok(lease_queue) = find_lease_queue(&self.api, &receipt.vhost) else { return };
        // Its lease may have ended again by now.
        if !self.messages.has(id, delivery) && lease_queue.is_leased_to(id, delivery, revocations) {
            let message = SessionMessage::new(
                (id.into(), delivery),
                (lease_queue, revocations.clone()),
                text,
            );
            self.messages.insert(message.into_delivered());
        }
    }

    /// Handles the revocation of a lease by the lease queue.
    fn handle_revocation(&mut self, revocation: &LeaseRevocation) {
        let LeaseRevocation { id, delivery, reason: why } = revocation;
        let Some(message) = self.messages.remove(id, *delivery) else { return };
        let reason = match why {
            RevokeReason::LeaseEnded => "lease expired",
            RevokeReason::AttemptEnded(AttemptEnd::Answered) => "settled",
            RevokeReason::AttemptEnded(AttemptEnd::Cancelled) => "cancelled",
            RevokeReason::AttemptEnded(AttemptEnd::Failed) => "timed out",
        };
        self.enqueue(ToWorkerMessage::Gone(Gone {
            receipt: message.disarm(),
            reason: reason.to_owned(),
        }));
    }

    /// Checks whether the attempts of the worker's messages have ended. The lease queue is notified
    /// of most ends at once, but not of a reply by hand.
    fn check_attempts(&mut self) {
        if self.is_checking || self.messages.is_empty() {
            return;
        }
        self.is_checking = true;
        let (api, texts) = (self.api.clone(), self.messages.receipts());
        self.actions.push(
            async move {
                let mut gone = Vec::new();
                for text in texts {
                    let Ok(receipt) = Receipt::parse(&text) else { continue };
                    if let Some(why) = find_attempt_end(&api, &receipt.id).await {
                        gone.push((receipt, Gone { receipt: text, reason: why.to_owned() }));
                    }
                }
                StreamAction::AttemptsChecked(gone)
            }
            .boxed(),
        );
    }

    /// Handles that the worker closed its half: it can reply to no more messages on this stream.
    fn close_inbound(&mut self) {
        self.is_closed = true;
        self.credit = 0;
        self.receives.clear();
    }

    fn start_drain(&mut self) {
        if !self.is_draining {
            self.is_draining = true;
            self.receives.clear();
            self.enqueue(ToWorkerMessage::Drain(Drain {}));
        }
    }
}
