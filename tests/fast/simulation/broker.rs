//! A broker with its workers, and the bus that speaks to it. What is in the broker outlives a crash
//! of the manager; what is in the bus does not.

use super::log::{Log, LogReader};
use super::oracle::{WorkOutcome, work};
use super::world::{World, lock};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use tokio::sync::{mpsc, oneshot};
use workflow_manager::actors::messages::ConfirmTarget;
use workflow_manager::bus::{
    AttemptEnd, Body, Bus, BusEvent, BusNotice, BusState, ConfirmToken, DeadLetter, Delivery,
    Disposition, EventSink, Header, Publication, QueueStatus, ServedQueues, SettleCommand,
    Settlement, TopicOffset,
};
use workflow_manager::engine::{CorrelationId, JobId, StepIndex, Timestamp};

/// The queue that callers wait at, and one that is not there.
pub(crate) const CALLERS: &str = "callers";
pub(crate) const NOWHERE: &str = "nowhere";

/// What a message on a workflow's queue has beside those on the reply queue.
#[derive(Clone)]
pub(crate) struct CallProperties {
    /// The queue.
    pub(crate) queue: Arc<str>,
    pub(crate) message_id: String,
    pub(crate) reply_to: Option<String>,
}

/// An attempt of a job's step. Its job is named by its id and its beginning.
pub(crate) type Attempt = (JobId, Timestamp, u16, u32);

/// The message of a step, as it lies in the broker.
#[derive(Clone)]
pub(crate) struct StepMessage {
    pub(crate) id: String,
    pub(crate) correlation_id: Arc<str>,
    pub(crate) job: JobId,
    /// When the job was created: its id may be used again.
    pub(crate) created: Timestamp,
    pub(crate) root: JobId,
    pub(crate) step: StepIndex,
    pub(crate) step_name: String,
    pub(crate) attempt: u32,
    /// The number of the entry that dispatched it.
    pub(crate) dispatch: u64,
    pub(crate) queue: Arc<str>,
    pub(crate) body: Body,
}

impl StepMessage {
    /// None: it is no step's.
    pub(crate) fn from_publication(message: Publication) -> Option<StepMessage> {
        let root = Header::find_text(&message.headers, "job")?.parse().ok()?;
        let ConfirmTarget::Step { job, created, step, attempt, dispatch } =
            message.confirm_token.downcast()?
        else {
            return None;
        };
        let correlation_id = message.correlation_id?;
        let place: CorrelationId = correlation_id.parse().ok()?;
        Some(StepMessage {
            id: message.id,
            job,
            created,
            root,
            step,
            step_name: place.step,
            attempt,
            dispatch,
            queue: message.address.queue,
            body: message.body,
            correlation_id,
        })
    }

    /// The attempt that it begins.
    pub(crate) fn attempt_key(&self) -> Attempt {
        (self.job, self.created, self.step.0, self.attempt)
    }

    /// What the broker tells once it has the message.
    pub(crate) fn to_confirm(&self) -> BusEvent {
        let StepMessage { job, created, step, attempt, dispatch, .. } = *self;
        BusEvent::Confirmed(ConfirmToken::new(ConfirmTarget::Step {
            job,
            created,
            step,
            attempt,
            dispatch,
        }))
    }
}

/// What a caller was told.
pub(crate) struct CallerReply {
    pub(crate) is_error: bool,
    pub(crate) body: Bytes,
}

/// A message on the reply queue, or on a workflow's queue.
#[derive(Clone)]
pub(crate) struct Reply {
    pub(crate) correlation_id: Option<String>,
    pub(crate) attempt: Option<u32>,
    pub(crate) kind: Option<String>,
    pub(crate) dead_letter: Option<DeadLetter>,
    pub(crate) body: Bytes,
    pub(crate) redelivered: bool,
    pub(crate) call: Option<CallProperties>,
    /// Its place, if it lies in a log.
    pub(crate) offset: Option<usize>,
}

/// Verdicts on what was read of a log hold over any number of connections.
const OF_LOG: u64 = u64::MAX;

/// What the broker and the workers have.
#[derive(Default)]
pub(crate) struct Broker {
    pub(crate) queues: BTreeMap<Arc<str>, VecDeque<StepMessage>>,
    pub(crate) working: Vec<StepMessage>,
    pub(crate) replies: VecDeque<Reply>,
    /// Where workers reply to instead, in some runs.
    pub(crate) log: Option<Log>,
    /// What callers were told, by correlation id.
    pub(crate) caller_replies: BTreeMap<String, Vec<CallerReply>>,
}

impl Broker {
    pub(crate) fn is_idle(&self) -> bool {
        self.queues.values().all(VecDeque::is_empty)
            && self.working.is_empty()
            && self.replies.is_empty()
    }

    /// Somebody replies.
    pub(crate) fn take(&mut self, reply: Reply) {
        match &mut self.log {
            Some(log) if reply.call.is_none() && reply.dead_letter.is_none() => log.write(reply),
            Some(_) | None => self.replies.push_back(reply),
        }
    }

    /// Whether a reply like this one is still to be read.
    pub(crate) fn has(&self, is_meant: impl Fn(&Reply) -> bool) -> bool {
        self.replies.iter().any(&is_meant) || self.log.as_ref().is_some_and(|log| log.has(is_meant))
    }

    /// What a worker says of a step message, if anything.
    pub(crate) fn reply(message: &StepMessage) -> Option<Reply> {
        let answer =
            work(&message.queue, &message.step_name, message.attempt, &message.body.to_bytes());
        let (kind, body) = match &answer {
            WorkOutcome::Result(text) => (None, Bytes::from(text.clone())),
            WorkOutcome::Error(text) => (Some("error".to_owned()), Bytes::from(text.clone())),
            WorkOutcome::DeadLettered => (None, message.body.to_bytes()),
            WorkOutcome::Nothing => return None,
        };
        let dead = DeadLetter { queue: message.queue.to_string(), reason: "rejected".to_owned() };
        let dead_letter = (answer == WorkOutcome::DeadLettered).then_some(dead);
        let attempt = Some(message.attempt);
        Some(Reply {
            correlation_id: Some(message.correlation_id.to_string()),
            attempt,
            kind,
            dead_letter,
            body,
            redelivered: false,
            call: None,
            offset: None,
        })
    }
}

/// The manager's side of the transport, of one incarnation.
pub(crate) struct Link {
    pub(crate) sink: EventSink,
    settle: mpsc::UnboundedSender<SettleCommand>,
    dispositions: mpsc::UnboundedReceiver<SettleCommand>,
    epoch: u64,
    tag: u64,
    pub(crate) is_connected: bool,
    pub(crate) is_blocked: bool,
    known: BTreeSet<Arc<str>>,
    /// Taken from the manager, not yet sent.
    pub(crate) outbox: VecDeque<StepMessage>,
    /// Sent, not yet confirmed to the manager.
    pub(crate) sent: Vec<StepMessage>,
    /// Answers to callers: taken from the manager, not yet sent; and sent, not yet confirmed.
    pub(crate) answers: VecDeque<Publication>,
    pub(crate) answers_sent: Vec<Publication>,
    /// Delivered to the manager, not yet acknowledged.
    pub(crate) unacked: BTreeMap<u64, Reply>,
    /// Acknowledged by the manager; the broker does not know it yet.
    pub(crate) acks: Vec<u64>,
    /// How far it has read the log.
    pub(crate) log_reader: LogReader,
    /// The bus that it is of.
    pub(crate) bus: Arc<str>,
    /// Queues that are declared once their answer has come.
    checking: Vec<(Arc<str>, oneshot::Receiver<()>)>,
}

impl Link {
    pub(crate) fn is_idle(&self, broker: &Broker) -> bool {
        let answers = self.answers.len() + self.answers_sent.len();
        answers == 0
            && self.outbox.is_empty()
            && self.sent.is_empty()
            && self.unacked.is_empty()
            && self.acks.is_empty()
            && self.checking.is_empty()
            && broker.log.as_ref().is_none_or(|log| self.log_reader.is_idle(log))
    }

    /// Connects, and looks whether all queues are there.
    pub(crate) fn connect(&mut self, broker: &Broker) -> Vec<BusEvent> {
        self.is_connected = true;
        self.epoch += 1;
        let mut events = vec![BusEvent::State(BusState::CONNECTED)];
        for queue in self.known.clone() {
            events.extend(self.check_queue(broker, &queue));
        }
        events
    }

    /// If the queue is missing it is declared after the manager knows of it; what was sent
    /// there is sent again.
    fn check_queue(&mut self, broker: &Broker, queue: &Arc<str>) -> Option<BusEvent> {
        if broker.queues.contains_key(queue)
            || self.checking.iter().any(|(other, _)| other == queue)
        {
            return None;
        }
        let (lost, kept) = std::mem::take(&mut self.sent)
            .into_iter()
            .partition(|message: &StepMessage| message.queue == *queue);
        self.sent = kept;
        self.outbox.extend::<Vec<_>>(lost);
        let (taken, answered) = oneshot::channel();
        self.checking.push((queue.clone(), answered));
        Some(BusEvent::QueueMissing { queue: queue.clone(), journaled: taken })
    }

    /// Declares the queues that the manager has journaled as missing. Returns which ones are new.
    pub(crate) fn declare(&mut self, broker: &mut Broker) -> Vec<Arc<str>> {
        let is_journaled = |(_, answered): &mut (_, oneshot::Receiver<()>)| {
            !matches!(answered.try_recv(), Err(oneshot::error::TryRecvError::Empty))
        };
        let journaled = self.checking.extract_if(.., is_journaled).map(|(queue, _)| queue);
        // A queue that another process has declared meanwhile keeps what is in it.
        let missing: Vec<Arc<str>> =
            journaled.filter(|queue| !broker.queues.contains_key(queue)).collect();
        broker.queues.extend(missing.iter().map(|queue| (queue.clone(), VecDeque::new())));
        missing
    }

    /// The connection is gone: what the broker did not hear of comes again, and so does what it did
    /// not confirm.
    pub(crate) fn disconnect(&mut self, broker: &mut Broker) -> Vec<BusEvent> {
        self.is_connected = false;
        self.is_blocked = false;
        self.requeue_all(broker);
        let sent = std::mem::take(&mut self.sent);
        let mut events: Vec<BusEvent> =
            sent.iter().map(|_| BusEvent::Notice(BusNotice::Resent)).collect();
        sent.into_iter().rev().for_each(|message| self.outbox.push_front(message));
        self.answers.extend(std::mem::take(&mut self.answers_sent));
        events.push(BusEvent::State(BusState::Disconnected { reason: "simulated".to_owned() }));
        events
    }

    pub(crate) fn requeue_all(&mut self, broker: &mut Broker) {
        self.acks.clear();
        // What was read of a log stays where it is.
        let (of_queues, of_log): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.unacked)
                .into_iter()
                .partition(|(_, reply)| reply.offset.is_none());
        self.unacked = of_log;
        for (_, reply) in of_queues.into_iter().rev() {
            broker.replies.push_front(Reply { redelivered: true, ..reply });
        }
    }

    /// Sends the first message whose queue is there; looks for the queue of the first whose is not.
    pub(crate) fn send(&mut self, broker: &mut Broker) -> Vec<BusEvent> {
        let there =
            self.outbox.iter().position(|message| broker.queues.contains_key(&message.queue));
        let Some(message) = there.and_then(|at| self.outbox.remove(at)) else {
            let queue = self.outbox.front().map(|message| message.queue.clone());
            return queue
                .into_iter()
                .filter_map(|queue| self.check_queue(broker, &queue))
                .collect();
        };
        if let Some(queue) = broker.queues.get_mut(&message.queue) {
            queue.push_back(message.clone());
        }
        self.sent.push(message);
        Vec::new()
    }

    /// Sends the first answer to a caller.
    pub(crate) fn answer(&mut self, broker: &mut Broker) {
        let Some(answer) = self.answers.pop_front() else { return };
        if *answer.address.queue == *CALLERS {
            let caller = answer.correlation_id.as_deref().unwrap_or_default().to_owned();
            broker.caller_replies.entry(caller).or_default().push(CallerReply {
                is_error: answer.kind.is_some(),
                body: answer.body.to_bytes(),
            });
        }
        self.answers_sent.push(answer);
    }

    /// Confirms an answer that was sent.
    pub(crate) fn confirm_answer(&mut self, at: usize) -> BusEvent {
        let Publication { address: to, confirm_token: receipt, .. } = self.answers_sent.remove(at);
        if *to.queue == *NOWHERE {
            BusEvent::Unroutable(receipt)
        } else {
            BusEvent::Confirmed(receipt)
        }
    }

    pub(crate) fn deliver(&mut self, reply: Reply) -> BusEvent {
        self.tag += 1;
        // A connection means nothing for a log.
        let epoch = if reply.offset.is_some() { OF_LOG } else { self.epoch };
        let settlement = Settlement::new(self.tag, epoch, self.settle.clone());
        let mut delivery =
            Delivery::new(reply.correlation_id.clone(), reply.body.clone(), settlement);
        delivery.attempt = reply.attempt;
        delivery.kind.clone_from(&reply.kind);
        delivery.dead_letter.clone_from(&reply.dead_letter);
        delivery.redelivered = reply.redelivered;
        let call = reply.call.clone();
        self.unacked.insert(self.tag, reply);
        match call {
            None => BusEvent::Reply(delivery),
            Some(CallProperties { queue, message_id, reply_to }) => {
                (delivery.message_id, delivery.reply_to) = (Some(message_id), reply_to);
                BusEvent::Call { queue, delivery }
            }
        }
    }

    /// The manager's next verdict on a delivery of this connection: its tag, and whether it is an
    /// ack.
    pub(crate) fn next_disposition(&mut self) -> Option<(u64, bool)> {
        while let Ok(settled) = self.dispositions.try_recv() {
            if settled.epoch == OF_LOG || (settled.epoch == self.epoch && self.is_connected) {
                return Some((settled.tag, settled.disposition == Disposition::Ack));
            }
        }
        None
    }
}

/// The bus that the manager holds.
pub(crate) struct SimulatedBus(Arc<Mutex<World>>);

impl SimulatedBus {
    pub(crate) fn open(
        world: Arc<Mutex<World>>,
        bus: Arc<str>,
        (served, positions): (ServedQueues, &[TopicOffset]),
        sink: EventSink,
    ) -> SimulatedBus {
        let (settle, dispositions) = mpsc::unbounded_channel();
        let log_reader = lock(&world).resume_at(positions);
        let link = Link {
            sink,
            settle,
            dispositions,
            epoch: 0,
            tag: 0,
            is_connected: false,
            is_blocked: false,
            known: served.worker_queues.into_iter().collect(),
            outbox: VecDeque::new(),
            sent: Vec::new(),
            answers: VecDeque::new(),
            answers_sent: Vec::new(),
            unacked: BTreeMap::new(),
            acks: Vec::new(),
            log_reader,
            bus,
            checking: Vec::new(),
        };
        lock(&world).link = Some(link);
        SimulatedBus(world)
    }
}

impl Bus for SimulatedBus {
    fn publish(&mut self, message: Publication) {
        lock(&self.0).publish(message);
    }

    fn withdraw(&mut self, _: &Arc<str>, id: &str, _: AttemptEnd) {
        if let Some(link) = &mut lock(&self.0).link {
            link.outbox.retain(|message| message.id != id);
        }
    }

    fn unconfirmed(&self) -> usize {
        lock(&self.0).link.as_ref().map_or(0, |link| {
            link.outbox.len() + link.sent.len() + link.answers.len() + link.answers_sent.len()
        })
    }

    fn set_served(&mut self, _: ServedQueues) {}

    fn inspect(&mut self, queues: Vec<Arc<str>>) -> LocalBoxFuture<'static, Vec<QueueStatus>> {
        let unknown = QueueStatus::Unknown("nobody asks in the simulation".to_owned());
        std::future::ready(vec![unknown; queues.len()]).boxed_local()
    }

    fn close(&mut self) -> LocalBoxFuture<'static, ()> {
        std::future::ready(()).boxed_local()
    }
}
