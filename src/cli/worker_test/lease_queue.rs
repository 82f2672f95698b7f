//! The lease queue of the stub manager: leases messages as a manager does, and logs what the worker
//! does with them. To cut a connection, it stops its server without a response and starts it again
//! on the same port, as if a manager had been killed.

use super::super::error::ClientError;
use super::super::text::Text;
use super::calls::{
    CallAnswer, CallSender, DeliveredMessage, PendingCall, StreamNumber, WorkerCall, time_after,
};
use super::cut::CutTiming;
use super::event_log::{EventLog, ObservedEvent, Properties, Reply, ReplyKind};
use super::face::{Face, StubServer};
use super::messages::TestMessage;
use base::clock;
use daemon::telemetry::log::print;
use engine::text::{quote, shorten};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// A stub manager that serves the calls of workers for one queue.
pub(super) struct LeaseStub {
    address: SocketAddr,
    face: Face,
    commands: mpsc::UnboundedSender<QueueCommand>,
    queue_task: actix_rt::task::JoinHandle<()>,
}

impl LeaseStub {
    /// Listens on a free port of the loopback interface.
    pub(super) fn open(face: Face, queue: &str, log: EventLog) -> Result<LeaseStub, ClientError> {
        let (calls, pending_calls) = CallSender::channel();
        let (server, address) = face.serve(([127, 0, 0, 1], 0).into(), calls.clone())?;
        let (commands, command_receiver) = mpsc::unbounded_channel();
        let lease_queue = LeaseQueue {
            queue: queue.to_owned(),
            log,
            face,
            address,
            calls,
            server: Some(server),
            entries: Vec::new(),
            long_polls: VecDeque::new(),
            cut: None,
            cancel_when_leased: None,
        };
        let queue_task = actix_rt::spawn(lease_queue.run(pending_calls, command_receiver));
        Ok(LeaseStub { address, face, commands, queue_task })
    }

    /// Returns the base URL of the server.
    pub(super) fn url(&self) -> String {
        format!("{}://{}", self.face.scheme(), self.address)
    }

    /// Enqueues a message.
    pub(super) fn send(&self, message: &TestMessage) {
        self.send_command(QueueCommand::Put(message.clone()));
    }

    /// Cuts the worker's connection once, at this message.
    pub(super) fn cut(&self, number: usize, timing: CutTiming) {
        self.send_command(QueueCommand::Cut(number, timing));
    }

    /// Ends the attempt of this message.
    pub(super) fn end_attempt(&self, number: usize) {
        self.send_command(QueueCommand::EndAttempt(number));
    }

    /// Ends the attempt as soon as the message is leased.
    pub(super) fn cancel_when_leased(&self, number: usize) {
        self.send_command(QueueCommand::CancelWhenLeased(number));
    }

    /// Removes all messages that are not settled.
    pub(super) fn clear(&self) {
        self.send_command(QueueCommand::Clear);
    }

    fn send_command(&self, command: QueueCommand) {
        // Sending fails only after the queue was closed.
        let _ = self.commands.send(command);
    }

    /// Stops the server and the lease queue.
    pub(super) async fn close(self) {
        self.send_command(QueueCommand::Close);
        // An error means that the task panicked, so it has ended, too.
        let _ = self.queue_task.await;
    }
}

/// The duration of a lease if the request names none: the default of a manager.
const LEASE_DEFAULT: Duration = Duration::from_secs(300);

/// Why a worker no longer has a message whose lease has ended.
const LEASE_EXPIRED: &str = "lease expired";

/// How long to retry before giving up on binding the port again.
const REBIND_TIMEOUT: Duration = Duration::from_secs(10);

/// The delay between two tries to bind the port.
const REBIND_DELAY: Duration = Duration::from_millis(20);

/// A command of the harness. A `usize` is the number of a message.
enum QueueCommand {
    /// Enqueues a message.
    Put(TestMessage),
    /// Cuts the connection once, at the message.
    Cut(usize, CutTiming),
    /// Ends the attempt of the message.
    EndAttempt(usize),
    /// Ends the attempt of the message as soon as it is leased.
    CancelWhenLeased(usize),
    /// Removes all messages that are not settled.
    Clear,
    /// Stops the server and the queue.
    Close,
}

/// The state of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageState {
    /// It may be leased from this time on.
    Waiting(Instant),
    /// It is leased until this time.
    Leased(Instant),
    /// It is settled.
    Settled,
    /// Its attempt is over, and it is not settled.
    AttemptOver,
}

/// A message of the queue. It stays in the queue after it is settled.
struct QueuedMessage {
    message: TestMessage,
    state: MessageState,
    /// The number of its latest delivery, from 1. 0 before the first one, and after a restart of
    /// the server ended its lease.
    delivery: u32,
    /// The duration of its latest lease.
    lease: Duration,
    /// The stream that has it; `None`: none has.
    stream: Option<StreamNumber>,
}

/// A long poll that waits for messages.
struct PendingReceive {
    /// When it is answered even without a message.
    deadline: Instant,
    /// The duration of the leases that it takes.
    lease: Duration,
    /// The maximum number of messages in the answer.
    max: usize,
    /// The stream that takes them.
    stream: Option<StreamNumber>,
    responder: oneshot::Sender<CallAnswer>,
}

/// The lease queue. It owns the server, and restarts it to cut connections.
struct LeaseQueue {
    queue: String,
    log: EventLog,
    face: Face,
    /// The address of the server. A restarted server binds it again.
    address: SocketAddr,
    /// Passed to each server, so that its calls arrive here.
    calls: CallSender,
    /// `None` if it could not be started again.
    server: Option<StubServer>,
    /// All messages in the order in which they were sent, including the settled ones.
    entries: Vec<QueuedMessage>,
    long_polls: VecDeque<PendingReceive>,
    /// The number of the message at which to cut the connection, and when. `None` after the cut.
    cut: Option<(usize, CutTiming)>,
    /// The number of the message whose attempt ends as soon as it is leased.
    cancel_when_leased: Option<usize>,
}

impl LeaseQueue {
    /// Handles commands, calls and timers, until it is closed.
    async fn run(
        mut self,
        mut calls: mpsc::Receiver<PendingCall>,
        mut commands: mpsc::UnboundedReceiver<QueueCommand>,
    ) {
        loop {
            self.lease_ready_messages();
            let next_timer = self.next_timer();
            tokio::select! {
                biased;
                command = commands.recv() => match command {
                    Some(QueueCommand::Put(message)) => self.enqueue(message),
                    Some(QueueCommand::Cut(number, timing)) => self.cut = Some((number, timing)),
                    Some(QueueCommand::EndAttempt(number)) => {
                        if let Some(entry) = self.find_message(number) {
                            entry.state = MessageState::AttemptOver;
                        }
                    }
                    Some(QueueCommand::CancelWhenLeased(number)) => {
                        self.cancel_when_leased = Some(number)
                    }
                    Some(QueueCommand::Clear) => {
                        (self.cut, self.cancel_when_leased) = (None, None);
                        for entry in &mut self.entries {
                            entry.state = MessageState::Settled;
                        }
                    }
                    Some(QueueCommand::Close) | None => {
                        if let Some(server) = self.server {
                            server.stop().await;
                        }
                        return;
                    }
                },
                pending = calls.recv() => {
                    let Some(pending) = pending else { return };
                    if let Some(responder) = self.handle_call(pending) {
                        self.restart().await;
                        // Dropped only now: dropping it while the connection is open would answer
                        // the call.
                        drop(responder);
                    }
                }
                () = sleep_until(next_timer) => self.handle_timers(),
            }
        }
    }

    fn enqueue(&mut self, message: TestMessage) {
        let state = MessageState::Waiting(clock::timer_now());
        let lease = LEASE_DEFAULT;
        self.entries.push(QueuedMessage { message, state, delivery: 0, lease, stream: None });
    }

    fn find_message(&mut self, number: usize) -> Option<&mut QueuedMessage> {
        self.entries.iter_mut().find(|entry| entry.message.number == number)
    }

    /// Returns when the next lease or long poll ends, or the next message may be leased to a long
    /// poll. `None` if there is nothing to wait for.
    fn next_timer(&self) -> Option<Instant> {
        let entry_timers = self.entries.iter().filter_map(|entry| match entry.state {
            MessageState::Waiting(time) if !self.long_polls.is_empty() => Some(time),
            MessageState::Leased(time) => Some(time),
            MessageState::Waiting(_) | MessageState::Settled | MessageState::AttemptOver => None,
        });
        entry_timers.chain(self.long_polls.iter().map(|long_poll| long_poll.deadline)).min()
    }

    /// Ends the leases and long polls whose time is over.
    fn handle_timers(&mut self) {
        let now = clock::timer_now();
        for entry in &mut self.entries {
            if matches!(entry.state, MessageState::Leased(until) if until <= now) {
                entry.state = MessageState::Waiting(now);
                self.log.add(Some(entry.message.number), ObservedEvent::LeaseExpired);
            }
        }
        let (expired, open): (Vec<PendingReceive>, Vec<PendingReceive>) =
            std::mem::take(&mut self.long_polls)
                .into_iter()
                .partition(|long_poll| long_poll.deadline <= now);
        self.long_polls = open.into();
        for long_poll in expired {
            // Sending fails if the worker has disconnected.
            let _ = long_poll.responder.send(CallAnswer::Messages(Vec::new()));
        }
    }

    /// Leases the messages that are ready to the long polls, in order.
    fn lease_ready_messages(&mut self) {
        self.long_polls.retain(|long_poll| !long_poll.responder.is_closed());
        loop {
            let now = clock::timer_now();
            // Without a long poll the limit is 0, so no message is ready.
            let message_limit = self.long_polls.front().map_or(0, |long_poll| long_poll.max);
            let is_ready = |entry: &&mut QueuedMessage| match entry.state {
                MessageState::Waiting(time) => time <= now,
                MessageState::Leased(_) | MessageState::Settled | MessageState::AttemptOver => {
                    false
                }
            };
            let ready: Vec<&mut QueuedMessage> =
                self.entries.iter_mut().filter(is_ready).take(message_limit).collect();
            if ready.is_empty() {
                return;
            }
            let Some(long_poll) = self.long_polls.pop_front() else { return };
            let mut delivered = Vec::new();
            for entry in ready {
                entry.lease = long_poll.lease;
                entry.state = if self.cancel_when_leased == Some(entry.message.number) {
                    MessageState::AttemptOver
                } else {
                    MessageState::Leased(now + long_poll.lease)
                };
                entry.stream = long_poll.stream;
                entry.delivery += 1;
                self.log.add(Some(entry.message.number), ObservedEvent::Delivered);
                delivered.push(DeliveredMessage {
                    message: entry.message.clone(),
                    delivery: entry.delivery,
                    until: time_after(entry.lease),
                });
            }
            // Sending fails if the worker has disconnected.
            let _ = long_poll.responder.send(CallAnswer::Messages(delivered));
        }
    }

    /// Handles a call of a worker, and answers it unless it is a long poll. Returns the responder
    /// if the connection is to be cut instead of answering.
    fn handle_call(&mut self, pending: PendingCall) -> Option<oneshot::Sender<CallAnswer>> {
        let PendingCall { queue, delivery, call, stream, responder } = pending;
        let respond = |answer: CallAnswer, responder: oneshot::Sender<CallAnswer>| {
            // Sending fails if the worker has disconnected.
            let _ = responder.send(answer);
            None
        };
        if queue != self.queue {
            let detail = format!(
                "no loaded workflow has a queue {}; did you mean {}?",
                quote(&queue),
                quote(&self.queue)
            );
            return respond(CallAnswer::UnknownQueue(detail), responder);
        }
        let Some((id, delivery)) = delivery else {
            match call {
                WorkerCall::Receive { wait, lease, max } => {
                    self.log.add(None, ObservedEvent::Connected);
                    let deadline = clock::timer_now() + wait;
                    let lease = lease.unwrap_or(LEASE_DEFAULT);
                    let long_poll = PendingReceive { deadline, lease, max, stream, responder };
                    self.long_polls.push_back(long_poll);
                }
                WorkerCall::OpenStream => {
                    self.log.add(None, ObservedEvent::Connected);
                    return respond(CallAnswer::Taken(Ok(())), responder);
                }
                WorkerCall::EndStream => self.end_stream(stream),
                WorkerCall::Reply { .. } | WorkerCall::Extend { .. } | WorkerCall::Nack { .. } => {}
            }
            return None;
        };
        let Some(index) = self.entries.iter().position(|entry| entry.message.id() == id) else {
            let description = format!("a call about the message {}", shorten(&id));
            self.log.add(None, ObservedEvent::Unexpected(Text::new(&description)));
            return respond(CallAnswer::Taken(Err("unknown_job")), responder);
        };
        let number = self.entries[index].message.number;
        match call {
            WorkerCall::Receive { .. } | WorkerCall::OpenStream | WorkerCall::EndStream => None,
            WorkerCall::Reply { kind, body } => {
                let is_progress = kind == ReplyKind::Progress;
                if let Some(entry) = self.entries.get_mut(index).filter(|_| is_progress) {
                    entry.stream = stream.or(entry.stream);
                }
                self.handle_reply(index, kind, body, responder)
            }
            WorkerCall::Extend { lease } => {
                self.log.add(Some(number), ObservedEvent::LeaseExtended);
                let entry = &mut self.entries[index];
                respond(extend_lease(entry, delivery, lease, stream), responder)
            }
            WorkerCall::Nack { requeue, delay } => {
                let entry = &mut self.entries[index];
                if !matches!(entry.state, MessageState::Leased(_)) || entry.delivery != delivery {
                    let consequence = "this delivery is not yours any more";
                    let gone = CallAnswer::Gone { reason: LEASE_EXPIRED, consequence };
                    return respond(gone, responder);
                }
                entry.state = if requeue {
                    MessageState::Waiting(clock::timer_now() + delay)
                } else {
                    MessageState::Settled
                };
                self.log.add(Some(number), ObservedEvent::Nacked { requeue });
                respond(CallAnswer::Taken(Ok(())), responder)
            }
        }
    }

    /// Returns the messages of a stream that has ended to the queue.
    fn end_stream(&mut self, stream: Option<StreamNumber>) {
        for entry in &mut self.entries {
            if stream.is_some()
                && entry.stream == stream
                && matches!(entry.state, MessageState::Leased(_))
            {
                entry.state = MessageState::Waiting(clock::timer_now());
            }
        }
    }

    /// Handles a reply, and answers it. Returns the responder if the connection is to be cut
    /// instead of answering.
    fn handle_reply(
        &mut self,
        index: usize,
        kind: ReplyKind,
        body: bytes::Bytes,
        responder: oneshot::Sender<CallAnswer>,
    ) -> Option<oneshot::Sender<CallAnswer>> {
        let entry = &mut self.entries[index];
        let number = entry.message.number;
        let is_settling = kind != ReplyKind::Progress;
        let cut = self
            .cut
            .take_if(|(cut_number, _)| is_settling && *cut_number == number)
            .map(|(_, timing)| timing);
        if cut == Some(CutTiming::Reply) {
            self.log.add(Some(number), ObservedEvent::ConnectionCut);
            return Some(responder);
        }
        self.log.add(
            Some(number),
            ObservedEvent::Replied(Reply { kind, body, properties: Properties::default() }),
        );
        let is_open = matches!(entry.state, MessageState::Waiting(_) | MessageState::Leased(_));
        if !is_settling {
            if let MessageState::Leased(_) = entry.state {
                entry.state = MessageState::Leased(clock::timer_now() + entry.lease);
            }
        } else if is_open {
            entry.state = MessageState::Settled;
            self.log.add(Some(number), ObservedEvent::Acked);
        }
        if cut.is_some() {
            self.log.add(Some(number), ObservedEvent::ConnectionCut);
            return Some(responder);
        }
        let outcome = if is_open { Ok(()) } else { Err("duplicate") };
        // Sending fails if the worker has disconnected.
        let _ = responder.send(CallAnswer::Taken(outcome));
        None
    }

    /// Stops the server, which closes all connections, and starts it again. Leased messages become
    /// available again, because a manager keeps leases in memory only.
    async fn restart(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop().await;
        }
        self.long_polls.clear();
        let now = clock::timer_now();
        for entry in &mut self.entries {
            if matches!(entry.state, MessageState::Leased(_)) {
                entry.state = MessageState::Waiting(now);
                entry.delivery = 0;
            }
        }
        loop {
            match self.face.serve(self.address, self.calls.clone()) {
                Ok((server, _)) => {
                    self.server = Some(server);
                    return;
                }
                Err(_) if clock::timer_now() < now + REBIND_TIMEOUT => {
                    tokio::time::sleep(REBIND_DELAY).await;
                }
                Err(error) => {
                    print(&format!("cannot listen at {} again: {error}", self.address));
                    return;
                }
            }
        }
    }
}

/// Sleeps until a time. Never returns if there is none.
async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Extends the lease of a delivery. A message whose lease has ended is leased again. The stream
/// that extends it has it from then on. It is gone if the attempt is over, or another delivery has
/// the lease.
fn extend_lease(
    entry: &mut QueuedMessage,
    delivery: u32,
    lease: Option<Duration>,
    stream: Option<StreamNumber>,
) -> CallAnswer {
    match entry.state {
        MessageState::Settled | MessageState::AttemptOver => {
            let reason = if entry.state == MessageState::Settled { "settled" } else { "cancelled" };
            let consequence = "the attempt is over, stop working on it";
            return CallAnswer::Gone { reason, consequence };
        }
        MessageState::Leased(_) if entry.delivery != delivery => {
            let consequence = "another worker has the message";
            return CallAnswer::Gone { reason: LEASE_EXPIRED, consequence };
        }
        MessageState::Waiting(_) => entry.delivery = delivery,
        MessageState::Leased(_) => {}
    }
    entry.stream = stream.or(entry.stream);
    entry.lease = lease.unwrap_or(entry.lease);
    entry.state = MessageState::Leased(clock::timer_now() + entry.lease);
    CallAnswer::Extended(time_after(entry.lease))
}
