//! Serves the stream of a worker. One stream is one session. The worker sends credit and replies,
//! and receives messages and revocations. When the stream ends, its messages return to their
//! queues.

mod backlog;
mod leasing;
mod pacing;
mod requests;

use super::connection::Peer;
use super::incoming::{IncomingEvent, IncomingSignals};
use super::outbound::{OutboundPermit, OutboundTracker};
use super::phase::ServerPhase;
use super::session::{Session, expect_hello};
use super::session_messages::{SentMark, SessionMessage, SessionMessages};
use super::status::to_status;
use super::stream_action::{StreamAction, server_stopping, suspended};
use super::wire::to_worker::Say as ToWorkerMessage;
use super::wire::{Batches, Drain, FromWorker, Gone, ToWorker};
use backlog::{Outbound, OutboundQueue};
use base::clock;
use bus::AttemptEnd;
use bus::lease_queue::{LeaseRevocation, LeasedMessage, RevokeReason};
use daemon::api::attempts::{AttemptStatus, find_attempt_status};
use daemon::api::leases::{Receipt, find_lease_queue};
use daemon::api::state::ApiState;
use daemon::api::token::Authenticated;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, FuturesUnordered};
use futures_util::{FutureExt, StreamExt};
use pacing::ReplyPacer;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::Instant;
use tonic::{Status, Streaming};

/// How long the backlog may be full before the stream stops receiving more messages.
const STALL_TIMEOUT: Duration = Duration::from_millis(50);

/// How many messages at most are given to HTTP/2 together, which sends them in one write. All
/// others wait in the backlog, whose size limits how many are leased.
const SENT_TOGETHER_MAX: usize = 4;

/// What a stream needs to start.
pub(super) struct StreamStart {
    pub(super) api: Arc<ApiState>,
    pub(super) principal: Authenticated,
    pub(super) signals: IncomingSignals,
    pub(super) phases: watch::Receiver<ServerPhase>,
    /// Counts the stream towards the setting `grpc.streams_max` until it is dropped.
    pub(super) permit: OwnedSemaphorePermit,
    /// Tracks the step messages that have not been sent yet.
    pub(super) tracker: OutboundTracker,
    /// The worker's connection; `None` if it is unknown.
    pub(super) peer: Option<Peer>,
}

/// A message to the worker; or the status that ends the stream.
type OutboundItem = Result<OutboundMessage, Status>;
/// A message to the worker, with what is set and released once it was sent, for each step message
/// in it.
struct OutboundMessage {
    message: ToWorker,
    marks: Vec<SentMark>,
    permits: Vec<OutboundPermit>,
}

type OutboundSender = mpsc::Sender<OutboundItem>;

/// Starts a stream on a task of its own. Returns the messages to its worker.
pub(super) fn start(
    start: StreamStart,
    inbound: Streaming<FromWorker>,
) -> BoxStream<'static, Result<ToWorker, Status>> {
    let (sender, receiver) = mpsc::channel::<OutboundItem>(SENT_TOGETHER_MAX);
    let tracker = start.tracker.clone();
    tokio::spawn(serve_worker(start, inbound, sender));
    let messages =
        futures_util::stream::unfold((receiver, tracker), |(mut outbound, tracker)| async move {
            let item = outbound.recv().await?;
            let result = item.map(|OutboundMessage { message, marks, permits }| {
                marks.iter().for_each(SentMark::set);
                permits.into_iter().for_each(|permit| tracker.add_to_next_chunk(permit));
                message
            });
            Some((result, (outbound, tracker)))
        });
    messages.boxed()
}

/// How a stream ends.
enum StreamEnd {
    /// The worker has closed its half and all its requests are answered, or a draining session has
    /// no messages left.
    Done,
    /// The worker has disconnected.
    Disconnected,
    /// The stream ends with this status.
    Error(Status),
}

/// Opens the session of a stream and serves it until it ends.
async fn serve_worker(
    start: StreamStart,
    mut inbound: Streaming<FromWorker>,
    outbound: OutboundSender,
) {
    let StreamStart { api, principal, mut signals, phases, permit, tracker, peer } = start;
    let handshake_timeout = api.settings.grpc.handshake_timeout;
    let answer_timeout = api.settings.http.answer_timeout;
    let hello = async {
        match tokio::time::timeout(handshake_timeout.0, inbound.message()).await {
            Ok(Ok(message)) => expect_hello(message).map_err(|problem| to_status(&problem)),
            Ok(Err(status)) => Err(status),
            Err(_) => Err(Status::deadline_exceeded(format!(
                "no Hello came within {handshake_timeout} (setting grpc.handshake_timeout)"
            ))),
        }
    };
    let session_result = match hello.await {
        Ok(hello) => {
            Session::open(&api, &principal, hello).await.map_err(|problem| to_status(&problem))
        }
        Err(status) => Err(status),
    };
    // Releases the permit of the Hello, which was handled.
    drop(signals.permits.try_recv());
    let (session, revocations) = match session_result {
        Ok(parts) => parts,
        Err(status) => {
            // An error means that the worker has disconnected.
            let _ = outbound.send(Err(status)).await;
            return;
        }
    };
    let worker = session.options.worker.as_deref().unwrap_or_default().to_owned();
    let stream = WorkerStream::new(api, principal, session, outbound.clone(), tracker.clone());
    let end = stream.run(inbound, signals, revocations, phases).await;
    tracing::debug!(worker, how = end.as_str(), "a worker's stream has ended");
    drop(permit);
    if let StreamEnd::Error(status) = end {
        // Errors mean that the worker has disconnected, or does not read.
        let _ = tokio::time::timeout(handshake_timeout.0, outbound.send(Err(status))).await;
    }
    drop(outbound);
    tracker.wait_until_sent(peer, answer_timeout.0).await;
}

/// Sleeps until the next burst of replies is taken.
async fn sleep_until_burst(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
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

/// A receive that waits for a message of a queue. It resolves to the queue and the leased message;
/// `None`: it has timed out, or the lease queue is closed.
type PendingReceive = BoxFuture<'static, (Arc<str>, Option<LeasedMessage>)>;

/// The state of a stream.
struct WorkerStream {
    api: Arc<ApiState>,
    principal: Authenticated,
    session: Session,
    outbound: OutboundSender,
    /// How many more messages may be leased for the worker.
    credit: u32,
    /// One receive for each queue, while the worker has credit and the backlog is not full for
    /// long.
    receives: FuturesUnordered<PendingReceive>,
    messages: SessionMessages,
    /// The active requests that settle a message. They complete even if the stream ends.
    settlements: FuturesUnordered<BoxFuture<'static, StreamAction>>,
    /// The other active requests, and the active check of attempts. They are cancelled when the
    /// stream ends.
    actions: FuturesUnordered<BoxFuture<'static, StreamAction>>,
    /// The messages that wait to be sent to the worker.
    backlog: OutboundQueue,
    /// Tracks the step messages that have not been sent yet.
    tracker: OutboundTracker,
    /// How many permits the tracker had released when `read_deadline` was last checked.
    released_count: usize,
    /// When the stream ends if messages wait to be sent and the worker has read none by then.
    read_deadline: Instant,
    /// When the stream stops receiving if the backlog is still full by then.
    stall_deadline: Instant,
    /// Decides whether replies are taken in bursts.
    pacer: ReplyPacer,
    /// When the next burst of replies is taken; `None`: whatever comes is taken at once.
    next_burst: Option<Instant>,
    /// Whether the worker has closed its half, so that it sends no more requests.
    is_closed: bool,
    /// Whether the manager is shutting down: no more messages are leased.
    is_draining: bool,
    /// Whether a check of attempts is active.
    is_checking: bool,
}

impl WorkerStream {
    fn new(
        api: Arc<ApiState>,
        principal: Authenticated,
        session: Session,
        outbound: OutboundSender,
        tracker: OutboundTracker,
    ) -> WorkerStream {
        let backlog = OutboundQueue::new(session.batches);
        WorkerStream {
            api,
            principal,
            session,
            outbound,
            credit: 0,
            receives: FuturesUnordered::new(),
            messages: SessionMessages::default(),
            settlements: FuturesUnordered::new(),
            actions: FuturesUnordered::new(),
            backlog,
            tracker,
            released_count: 0,
            read_deadline: clock::timer_now(),
            stall_deadline: clock::timer_now(),
            pacer: ReplyPacer::new(clock::timer_now()),
            next_burst: None,
            is_closed: false,
            is_draining: false,
            is_checking: false,
        }
    }

    /// Serves the worker until the stream ends.
    async fn run(
        mut self,
        inbound: Streaming<FromWorker>,
        signals: IncomingSignals,
        revocations: mpsc::UnboundedReceiver<LeaseRevocation>,
        phases: watch::Receiver<ServerPhase>,
    ) -> StreamEnd {
        let end = self.serve(inbound, signals, revocations, phases).await;
        // The settlements are completed, but the worker no longer receives their results.
        let settlements = std::mem::take(&mut self.settlements);
        tokio::spawn(settlements.for_each(|_| std::future::ready(())));
        end
    }

    /// Handles the events of the stream until one ends it.
    #[allow(clippy::too_many_lines, reason = "one select over what a stream waits for")]
    async fn serve(
        &mut self,
        mut inbound: Streaming<FromWorker>,
        mut signals: IncomingSignals,
        mut revocations: mpsc::UnboundedReceiver<LeaseRevocation>,
        mut phases: watch::Receiver<ServerPhase>,
    ) -> StreamEnd {
        let requests_max = self.api.settings.grpc.credit_max as usize;
        let mut check_interval = tokio::time::interval(self.api.settings.grpc.keep_alive.0);
        check_interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        check_interval.reset();
        let (api, principal) = (self.api.clone(), self.principal.clone());
        let mut token_revoked = std::pin::pin!(principal.wait_revoked(&api));
        let mut lost_touch = std::pin::pin!(api.health.wait_until_out_of_touch());
        if self.session.batches {
            let batches = Batches::with_bytes_max(api.settings.http.body_bytes_max);
            self.enqueue(ToWorkerMessage::Batches(batches));
        }
        loop {
            if let Some(end) = self.take_ready() {
                return end;
            }
            if let Some(end) = self.finish_if_idle() {
                return end;
            }
            let (has_backlog, sender) = (!self.backlog.is_empty(), self.outbound.clone());
            let active_requests = self.settlements.len() + self.actions.len();
            let has_room = active_requests + self.backlog.len() < requests_max;
            let can_read = !self.is_closed && self.next_burst.is_none() && has_room;
            let can_lease = self.backlog.has_capacity();
            let is_receiving = !self.receives.is_empty();
            let is_sending = has_backlog || self.tracker.is_pending();
            // These are copied before the select, which borrows `self`.
            let (read_deadline, stall_deadline) = (self.read_deadline, self.stall_deadline);
            let next_burst = self.next_burst;
            tokio::select! {
                permit = sender.reserve(), if has_backlog => match permit {
                    Ok(permit) => self.send_next(permit),
                    Err(_) => return StreamEnd::Disconnected,
                },
                () = tokio::time::sleep_until(read_deadline), if is_sending => {
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
                Some((queue, received)) = self.receives.next(), if can_lease && is_receiving => {
                    if let Some(end) = self.handle_received(queue, received) {
                        return end;
                    }
                }
                // While the backlog is full, the receives are not polled. They would hold
                // notifications and permits that other workers could use.
                () = tokio::time::sleep_until(stall_deadline), if !can_lease && is_receiving => {
                    self.receives.clear();
                }
                Some(action) = self.settlements.next() => {
                    if let Some(end) = self.apply(action) {
                        return end;
                    }
                }
                Some(action) = self.actions.next() => {
                    if let Some(end) = self.apply(action) {
                        return end;
                    }
                }
                incoming = inbound.message(), if can_read => {
                    let burst = self.take_burst(incoming, &mut inbound, &mut signals);
                    if let Some(end) = burst {
                        return end;
                    }
                }
                () = sleep_until_burst(next_burst), if next_burst.is_some() => {
                    self.next_burst = None;
                }
                Some(event) = signals.events.recv() => match event {
                    IncomingEvent::Aborted => return StreamEnd::Disconnected,
                    IncomingEvent::TooLarge(..) => self.handle_incoming_event(event),
                },
                Some(revocation) = revocations.recv() => self.handle_revocation(&revocation),
                _ = check_interval.tick() => self.check_attempts(),
                () = &mut token_revoked => {
                    let reason = "the token is no longer valid";
                    return StreamEnd::Error(Status::unauthenticated(reason));
                }
                // What it has in hand is settled with the process that may be active.
                reason = &mut lost_touch => return StreamEnd::Error(suspended(Some(reason))),
                result = phases.changed() => {
                    let phase = *phases.borrow_and_update();
                    if result.is_err() || phase == ServerPhase::Stopping {
                        return StreamEnd::Error(server_stopping());
                    }
                    self.start_drain();
                }
                () = self.outbound.closed() => return StreamEnd::Disconnected,
            }
        }
    }

    /// Applies all actions that are ready, and leases all messages that are, as far as there is
    /// room, so that they go out together. Returns how the stream ends, if one of them closes it.
    fn take_ready(&mut self) -> Option<StreamEnd> {
        // What a worker says of its messages before it settles them comes first.
        while let Some(Some(action)) = self.actions.next().now_or_never() {
            if let Some(end) = self.apply(action) {
                return Some(end);
            }
        }
        while let Some(Some(action)) = self.settlements.next().now_or_never() {
            if let Some(end) = self.apply(action) {
                return Some(end);
            }
        }
        while self.backlog.has_capacity()
            && let Some(Some((queue, received))) = self.receives.next().now_or_never()
        {
            if let Some(end) = self.handle_received(queue, received) {
                return Some(end);
            }
        }
        None
    }

    /// Returns how the stream ends, if no work is left on it. If the worker closed its half, its
    /// messages are to be released: the deliveries do not count, because none made it crash.
    fn finish_if_idle(&mut self) -> Option<StreamEnd> {
        let has_requests = !self.settlements.is_empty() || !self.actions.is_empty();
        if has_requests || !self.backlog.is_empty() {
            return None;
        }
        if self.is_closed {
            self.messages.release_on_drop();
            return Some(StreamEnd::Done);
        }
        (self.is_draining && self.messages.is_empty()).then_some(StreamEnd::Done)
    }

    /// Enqueues a message that is not a step message.
    fn enqueue(&mut self, message: ToWorkerMessage) {
        self.enqueue_outbound(Outbound { message, leased: None });
    }

    fn enqueue_outbound(&mut self, outbound: Outbound) {
        if self.backlog.is_empty() {
            self.read_deadline = self.next_read_deadline();
        }
        self.backlog.push(outbound);
    }

    /// Returns the read deadline if the worker reads something now.
    fn next_read_deadline(&self) -> Instant {
        clock::timer_now() + self.api.settings.http.answer_timeout.0
    }

    /// Sends the next message of the backlog, or batch of them, and resumes receiving if it had
    /// stopped.
    fn send_next(&mut self, permit: mpsc::Permit<'_, OutboundItem>) {
        let (mut marks, mut permits) = (Vec::new(), Vec::new());
        let popped = self.backlog.pop(|leased| {
            marks.extend(self.messages.sent_mark(&leased.id));
            permits.extend(leased.permit);
        });
        let Some(message) = popped else { return };
        let message = ToWorker { say: Some(message) };
        permit.send(Ok(OutboundMessage { message, marks, permits }));
        self.read_deadline = self.next_read_deadline();
        if self.receives.is_empty()
            && self.credit > 0
            && !self.is_draining
            && self.backlog.has_capacity()
        {
            self.receive_from_all();
        }
    }

    /// Applies an action. Returns how the stream ends, if the action closes it.
    fn apply(&mut self, action: StreamAction) -> Option<StreamEnd> {
        match action {
            StreamAction::Send(message) => self.enqueue(message),
            StreamAction::Rejected(session_message, rejection) => {
                if let Some(session_message) = session_message {
                    self.messages.restore(session_message);
                }
                self.enqueue(ToWorkerMessage::Taken(rejection));
            }
            StreamAction::Extended { receipt, receipt_text, confirmation } => {
                self.adopt_message(&receipt, receipt_text);
                self.enqueue(confirmation);
            }
            StreamAction::Revoked(receipt, notice) => {
                self.messages.remove(&receipt.id, receipt.delivery).map(SessionMessage::disarm);
                self.enqueue(ToWorkerMessage::Gone(notice));
            }
            StreamAction::AttemptsChecked(ended_attempts) => {
                self.is_checking = false;
                for (receipt, notice) in ended_attempts {
                    if let Some(message) = self.messages.remove(&receipt.id, receipt.delivery) {
                        message.disarm();
                        self.enqueue(ToWorkerMessage::Gone(notice));
                    }
                }
            }
            StreamAction::Close(status) => return Some(StreamEnd::Error(status)),
        }
        None
    }

    /// Adds a message to this session whose lease it has just extended, for example one that the
    /// worker has from an earlier session. Does nothing if the session has it already.
    fn adopt_message(&mut self, receipt: &Receipt, receipt_text: String) {
        let (id, delivery, revocations) =
            (receipt.id.as_str(), receipt.delivery, &self.session.revocations);
        let Ok(lease_queue) = find_lease_queue(&self.api, &receipt.vhost) else { return };
        // The lease may have ended meanwhile.
        if !self.messages.has(id, delivery) && lease_queue.is_leased_to(id, delivery, revocations) {
            let message = SessionMessage::new(
                id.into(),
                delivery,
                lease_queue,
                revocations.clone(),
                receipt_text,
            );
            message.sent_mark().set();
            self.messages.insert(message);
        }
    }

    /// Handles the revocation of a lease by the lease queue: removes the message, and notifies the
    /// worker.
    fn handle_revocation(&mut self, revocation: &LeaseRevocation) {
        let LeaseRevocation { id, delivery, reason } = revocation;
        let Some(message) = self.messages.remove(id, *delivery) else { return };
        let reason_text = match reason {
            RevokeReason::LeaseEnded => "lease expired",
            RevokeReason::AttemptEnded(AttemptEnd::Answered) => "settled",
            RevokeReason::AttemptEnded(AttemptEnd::Cancelled) => "cancelled",
            RevokeReason::AttemptEnded(AttemptEnd::Failed) => "timed out",
        };
        self.enqueue(ToWorkerMessage::Gone(Gone {
            receipt: message.disarm(),
            reason: reason_text.to_owned(),
        }));
    }

    /// Starts a check whether the attempts of the worker's messages have ended. The lease queue
    /// revokes most of these messages at once, but not after a reply that an operator gives.
    fn check_attempts(&mut self) {
        if self.is_checking || self.messages.is_empty() {
            return;
        }
        self.is_checking = true;
        let (api, receipt_texts) = (self.api.clone(), self.messages.receipts());
        self.actions.push(
            async move {
                let mut ended_attempts = Vec::new();
                for receipt_text in receipt_texts {
                    let Ok(receipt) = Receipt::parse(&receipt_text) else { continue };
                    let status = find_attempt_status(&api, &receipt.id).await;
                    if let AttemptStatus::Ended(reason) = status {
                        let reason = reason.as_str().to_owned();
                        let notice = Gone { receipt: receipt_text, reason };
                        ended_attempts.push((receipt, notice));
                    }
                }
                StreamAction::AttemptsChecked(ended_attempts)
            }
            .boxed(),
        );
    }

    /// Stops receiving messages, because the worker closed its half and can send no more replies.
    fn close_inbound(&mut self) {
        self.is_closed = true;
        self.credit = 0;
        self.receives.clear();
    }

    /// Stops receiving messages, and notifies the worker that the manager stops.
    fn start_drain(&mut self) {
        if !self.is_draining {
            self.is_draining = true;
            self.receives.clear();
            self.enqueue(ToWorkerMessage::Drain(Drain {}));
        }
    }
}
