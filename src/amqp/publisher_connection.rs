//! A connection for publishing: the messages published on it, their confirms, and the queues known
//! to exist.

use super::connection::channel_error;
use super::policy_lock::PolicyLock;
use super::queue_properties::QueueProperties;
use super::queues::{CheckedQueue, QueueCheck, QueueDeclarer, short_string};
use super::state::AmqpState;
use super::wire::burst::Burst;
use super::wire::filtered_stream::ConnectionHooks;
use base::clock;
use bus::{Addressee, HeaderValue, Publication};
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{BoxStream, FuturesUnordered};
use futures_util::{FutureExt, Stream, StreamExt};
use lapin::options::{BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Connection, Event};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How long to wait for the broker's reason for closing a channel.
const CLOSE_REASON_TIMEOUT: Duration = Duration::from_secs(5);

/// The delay before a queue is checked again whose state the broker could not tell.
pub(super) const QUEUE_RECHECK_DELAY: Duration = Duration::from_secs(5);

/// How long a broker may confirm none of its unconfirmed messages before it counts as unresponsive.
pub(super) const UNRESPONSIVE_AFTER: Duration = Duration::from_secs(10);

const DELIVERY_MODE_PERSISTENT: u8 = 2;

/// A publication that is not confirmed.
pub(super) struct PendingPublication {
    pub(super) message: Publication,
    /// It was published before, on a channel that is closed.
    pub(super) is_resend: bool,
    /// How often the broker negatively confirmed it.
    pub(super) nacks: u32,
    /// How often it closed its channel. After the first time it gets a channel of its own.
    pub(super) channel_closures: u32,
    /// It was withdrawn, and is not sent again.
    pub(super) is_withdrawn: bool,
}

impl PendingPublication {
    pub(super) fn new(message: Publication) -> PendingPublication {
        PendingPublication {
            message,
            is_resend: false,
            nacks: 0,
            channel_closures: 0,
            is_withdrawn: false,
        }
    }
}

/// A message that was published on this connection.
pub(super) struct PublishedMessage {
    pub(super) pending: PendingPublication,
    /// The generation of its queue (see [`QueueState::Exists`]) when it was published.
    pub(super) queue_generation: u64,
    /// Whether its queue was found missing since: its confirm is then worthless.
    pub(super) is_queue_lost: bool,
    /// Whether it has a channel of its own.
    pub(super) has_own_channel: bool,
    /// The length of its body.
    pub(super) body_bytes: usize,
}

/// What is known of a queue on this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueState {
    /// It is being checked or declared.
    Checking,
    /// It exists. The generation counts how often a queue was found or declared.
    Exists(u64),
    /// It cannot be used now, and is checked again later.
    Unusable,
}

/// The confirm of the message with this number.
pub(super) type NumberedConfirm = (u64, lapin::Result<Confirm>);

/// The content of a confirm; see [`PublisherConnection::start_barrier`] for when it is valid.
pub(super) struct Confirm {
    is_ack: bool,
    /// The id of a returned message, which need not be the one that is confirmed.
    returned: Option<String>,
}

impl From<Confirmation> for Confirm {
    fn from(confirmation: Confirmation) -> Confirm {
        let is_ack = confirmation.is_ack();
        let returned = confirmation.take_message().map(|message| {
            message.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default()
        });
        Confirm { is_ack, returned }
    }
}

/// A connection for publishing.
pub(super) struct PublisherConnection {
    pub(super) connection: Rc<Connection>,
    pub(super) events: BoxStream<'static, Event>,
    pub(super) is_blocked: bool,
    /// Whether the broker is reported as unresponsive.
    pub(super) is_unresponsive: bool,
    /// When the broker confirmed last, or was given a message while it owed no confirm.
    last_activity: Instant,
    /// The largest body that does not close its channel; known once one has closed it.
    pub(super) body_bytes_max: Option<usize>,
    /// The published messages, in the order of publishing.
    pub(super) published: BTreeMap<u64, PublishedMessage>,
    /// The total length of their bodies.
    pub(super) published_bytes: usize,
    pub(super) pending_confirms: FuturesUnordered<LocalBoxFuture<'static, NumberedConfirm>>,
    /// At most one barrier; see [`PublisherConnection::start_barrier`].
    pub(super) barrier: FuturesUnordered<LocalBoxFuture<'static, lapin::Result<()>>>,
    pub(super) queue_states: HashMap<Arc<str>, QueueState>,
    pub(super) queue_checks: FuturesUnordered<LocalBoxFuture<'static, CheckedQueue>>,
    /// Repeated checks of queues that existed, each with the generation of its queue; see
    /// [`PublisherConnection::recheck_queue`].
    pub(super) queue_rechecks: FuturesUnordered<LocalBoxFuture<'static, (u64, CheckedQueue)>>,
    pub(super) scheduled_checks: BTreeMap<(Instant, u64), Arc<str>>,
    channel: Rc<Channel>,
    queues: Rc<QueueDeclarer>,
    policy_lock: PolicyLock,
    last_generation: u64,
    /// Confirms that are valid after the next barrier, each with whether it is an ack.
    noted_confirms: Vec<(u64, bool)>,
    confirms_before_barrier: Vec<(u64, bool)>,
    /// How often each message id was returned and not dealt with yet.
    unhandled_returns: HashMap<String, usize>,
    /// How many returns were seen in confirms.
    returns_seen: u64,
    hooks: ConnectionHooks,
}

impl PublisherConnection {
    /// Connects.
    ///
    /// # Errors
    ///
    /// A sentence for the user says why there is no connection.
    pub(super) async fn open(state: &AmqpState) -> Result<PublisherConnection, String> {
        let hooks = ConnectionHooks::default();
        let opening = state.address.open_with_hooks("step messages", hooks.clone());
        let connection = Rc::new(opening.await?);
        let events = connection.events_listener().boxed();
        let channel = open_confirm_channel(&connection)
            .await
            .map_err(|error| state.address.explain(&error))?;
        let queues = QueueDeclarer::new(connection.clone());
        // This must come before the first message: the broker silently drops a reply to a queue
        // that does not exist.
        match queues.ensure_reply_queue(&state.settings).await {
            QueueCheck::Exists { .. } => {}
            QueueCheck::Lost(error) => return Err(state.address.explain(&error)),
            QueueCheck::Missing | QueueCheck::Exclusive => {
                return Err(format!(
                    "the reply queue \"{}\" cannot be used",
                    state.settings.reply_queue
                ));
            }
            QueueCheck::Refused(broker_text) => {
                return Err(format!(
                    "the broker refuses the reply queue \"{}\": {broker_text}",
                    state.settings.reply_queue
                ));
            }
        }
        Ok(PublisherConnection {
            events,
            is_blocked: connection.status().blocked(),
            is_unresponsive: false,
            last_activity: clock::timer_now(),
            body_bytes_max: None,
            published: BTreeMap::new(),
            published_bytes: 0,
            pending_confirms: FuturesUnordered::new(),
            barrier: FuturesUnordered::new(),
            queue_states: HashMap::new(),
            queue_checks: FuturesUnordered::new(),
            queue_rechecks: FuturesUnordered::new(),
            scheduled_checks: BTreeMap::new(),
            channel: Rc::new(channel),
            queues,
            policy_lock: state.policy_lock.clone(),
            last_generation: 0,
            noted_confirms: Vec::new(),
            confirms_before_barrier: Vec::new(),
            unhandled_returns: HashMap::new(),
            returns_seen: 0,
            hooks,
            connection,
        })
    }

    /// Opens a new channel in place of the one that the broker closed.
    pub(super) async fn reopen_channel(&mut self) -> lapin::Result<()> {
        self.channel = Rc::new(open_confirm_channel(&self.connection).await?);
        Ok(())
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.status().connected()
    }

    // ---- queues

    /// Starts to check whether `queue` exists.
    pub(super) fn check_queue(&mut self, queue: &Arc<str>) {
        if self.queue_states.insert(queue.clone(), QueueState::Checking)
            != Some(QueueState::Checking)
        {
            let (queues, queue) = (self.queues.clone(), queue.clone());
            self.queue_checks.push(Box::pin(async move {
                let found = queues.check(&queue).await;
                (queue, found)
            }));
        }
    }

    /// Starts to check whether a queue that existed still does. Nothing waits for the result.
    pub(super) fn recheck_queue(&mut self, queue: &Arc<str>) {
        if let Some(QueueState::Exists(generation)) = self.queue_states.get(queue).copied() {
            let (queues, queue) = (self.queues.clone(), queue.clone());
            self.queue_rechecks.push(Box::pin(async move {
                let found = queues.check(&queue).await;
                (generation, (queue, found))
            }));
        }
    }

    /// Declares `queue` as soon as `journaled` is answered or dropped.
    pub(super) fn declare_after(
        &mut self,
        queue: Arc<str>,
        queue_properties: QueueProperties,
        journaled: oneshot::Receiver<()>,
    ) {
        let (queues, policy_lock) = (self.queues.clone(), self.policy_lock.clone());
        self.queue_checks.push(Box::pin(async move {
            let found =
                queues.declare_after(&queue, queue_properties, journaled, &policy_lock).await;
            (queue, found)
        }));
    }

    pub(super) fn mark_queue_found(&mut self, queue: &Arc<str>) {
        self.last_generation += 1;
        self.queue_states.insert(queue.clone(), QueueState::Exists(self.last_generation));
    }

    /// Returns whether `generation` is still the last that is known of `queue`.
    pub(super) fn is_current_generation(&self, generation: u64, queue: &Arc<str>) -> bool {
        self.queue_states.get(queue) == Some(&QueueState::Exists(generation))
    }

    // ---- messages

    /// Publishes a message with these [`properties`]; with `alone`, on a channel of its own.
    pub(super) fn publish(
        &mut self,
        id: u64,
        pending: PendingPublication,
        generation: u64,
        on_own_channel: bool,
        properties: BasicProperties,
    ) {
        let queue = short_string(&*pending.message.address.queue);
        // The body is built here. lapin takes the text at once, and until the confirm only the
        // source of the text is kept.
        let body = pending.message.body.to_bytes();
        let bytes = body.len();
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let (channel, connection) = (self.channel.clone(), self.connection.clone());
        self.pending_confirms.push(if on_own_channel {
            let answer = async move {
                let channel = open_confirm_channel(&connection).await?;
                let sent =
                    channel.basic_publish("".into(), queue, options, &body, properties).await?;
                drop(body);
                sent.await
            };
            Box::pin(answer.map(move |answer| (id, answer.map(Confirm::from))))
        } else {
            let answer = async move {
                let sent =
                    channel.basic_publish("".into(), queue, options, &body, properties).await?;
                drop(body);
                sent.await
            };
            Box::pin(answer.map(move |answer| (id, answer.map(Confirm::from))))
        });
        self.published_bytes += bytes;
        if self.published.is_empty() {
            self.last_activity = clock::timer_now();
        }
        self.published.insert(
            id,
            PublishedMessage {
                pending,
                queue_generation: generation,
                is_queue_lost: false,
                has_own_channel: on_own_channel,
                body_bytes: bytes,
            },
        );
    }

    /// Marks published messages with these ids as withdrawn, so that they are not sent again.
    pub(super) fn mark_withdrawn(&mut self, ids: &HashSet<String>) {
        let is_match = |pending: &PendingPublication| ids.contains(&pending.message.id);
        let published = self.published.values_mut().map(|published| &mut published.pending);
        published
            .filter(|pending| is_match(pending))
            .for_each(|withdrawn| withdrawn.is_withdrawn = true);
    }

    /// Removes and returns the message that was published under this number.
    pub(super) fn remove(&mut self, id: u64) -> Option<PublishedMessage> {
        let published = self.published.remove(&id)?;
        self.published_bytes = self.published_bytes.saturating_sub(published.body_bytes);
        Some(published)
    }

    /// Collects every confirm that is ready. Unlike a single poll, which may give up early, this
    /// stops only when nothing is ready; the barrier relies on that.
    pub(super) fn drain_confirms(&mut self, confirms: &mut Vec<NumberedConfirm>) {
        let woken = Arc::new(WakeFlag(AtomicBool::new(true)));
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        while woken.0.swap(false, Ordering::AcqRel) {
            while let Poll::Ready(Some(answer)) =
                Pin::new(&mut self.pending_confirms).poll_next(&mut context)
            {
                confirms.push(answer);
            }
        }
    }

    /// Returns when the broker counts as unresponsive; `None`: it owes no confirm, or is reported
    /// already.
    pub(super) fn unresponsive_at(&self) -> Option<Instant> {
        let is_owed_confirms =
            !self.is_unresponsive && !self.is_blocked && !self.published.is_empty();
        is_owed_confirms.then(|| self.last_activity + UNRESPONSIVE_AFTER)
    }

    /// Notes a confirm until it is valid.
    pub(super) fn note_confirm(&mut self, id: u64, answer: Confirm) {
        self.last_activity = clock::timer_now();
        self.noted_confirms.push((id, answer.is_ack));
        if let Some(message_id) = answer.returned {
            *self.unhandled_returns.entry(message_id).or_default() += 1;
            self.returns_seen += 1;
        }
    }

    /// Returns the burst: while it is held, publications are buffered and then go out in one write.
    pub(super) fn burst(&self) -> Arc<Burst> {
        self.hooks.burst.clone()
    }

    /// Returns the noted confirms if they are valid already, because every return that preceded
    /// them is known. They need no barrier then.
    pub(super) fn take_unambiguous(&mut self) -> Vec<(u64, bool)> {
        if self.hooks.returns.load(Ordering::Acquire) == self.returns_seen {
            std::mem::take(&mut self.noted_confirms)
        } else {
            Vec::new()
        }
    }

    /// Starts a barrier that makes the noted confirms valid.
    ///
    /// It is needed when a message was returned and it is unknown which one; see
    /// [`PublisherConnection::take_unambiguous`]. lapin attaches a returned message to whichever
    /// confirm comes next, and it completes the confirms of one frame in any order, on a thread of
    /// its own. So a confirm is valid only once that thread has provably finished with the frame:
    /// when it has handled the reply to a later request.
    pub(super) fn start_barrier(&mut self) {
        if self.barrier.is_empty() && !self.noted_confirms.is_empty() {
            self.confirms_before_barrier = std::mem::take(&mut self.noted_confirms);
            let channel = self.channel.clone();
            self.barrier.push(Box::pin(async move {
                channel.basic_qos(0, BasicQosOptions::default()).await
            }));
        }
    }

    /// Returns the confirms that are valid now that the barrier has passed.
    pub(super) fn take_before_barrier(&mut self) -> Vec<(u64, bool)> {
        std::mem::take(&mut self.confirms_before_barrier)
    }

    /// Returns whether the message was returned. Each return is counted down, so ask once for each.
    pub(super) fn take_return(&mut self, message: &Publication) -> bool {
        if self.unhandled_returns.is_empty() {
            return false;
        }
        match self.unhandled_returns.get_mut(&message.id) {
            Some(1) => self.unhandled_returns.remove(&message.id).is_some(),
            Some(times) => {
                *times -= 1;
                true
            }
            None => false,
        }
    }

    /// Removes and returns all messages without a valid confirm, in order, each with whether its
    /// queue is known to be gone. The channel is abandoned.
    pub(super) fn take_unsettled(&mut self) -> Vec<(PendingPublication, bool)> {
        self.pending_confirms = FuturesUnordered::new();
        self.barrier = FuturesUnordered::new();
        self.noted_confirms.clear();
        self.confirms_before_barrier.clear();
        self.published_bytes = 0;
        let published = std::mem::take(&mut self.published).into_values();
        let unsettled =
            published.map(|PublishedMessage { pending, queue_generation: generation, .. }| {
                let is_gone = self.take_return(&pending.message)
                    && self.is_current_generation(generation, &pending.message.address.queue);
                (pending, is_gone)
            });
        let messages = unsettled.collect();
        self.unhandled_returns.clear();
        messages
    }

    /// Returns why the broker closed the channel. Messages that were published just after that fail
    /// without the reason.
    pub(super) async fn closing_reason(&mut self, first: lapin::Error) -> lapin::Error {
        let reason = async {
            let mut error = first.clone();
            while channel_error(&error).is_none() {
                match self.pending_confirms.next().await {
                    Some((_, Err(next))) => error = next,
                    Some((_, Ok(_))) => {}
                    None => break,
                }
            }
            error
        };
        tokio::time::timeout(CLOSE_REASON_TIMEOUT, reason).await.unwrap_or(first)
    }
}

struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

async fn open_confirm_channel(connection: &Connection) -> lapin::Result<Channel> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

/// Returns the property `expiration`, in milliseconds; `None`: the time is longer than the broker
/// accepts.
fn expiration(remaining: Duration) -> Option<ShortString> {
    let left_ms = u32::try_from(remaining.as_millis()).ok()?;
    // A message with the expiration 0 would be gone before a worker could have it.
    Some(short_string(left_ms.max(1).to_string()))
}

/// Returns the properties of a message (docs/worker-protocol.md); `user` is the manager's own.
pub(super) fn properties(message: &Publication, reply_queue: &str, user: &str) -> BasicProperties {
    let mut headers = FieldTable::default();
    for header in &message.headers {
        let value = match &header.value {
            HeaderValue::Text(text) => AMQPValue::LongString(LongString::from(&**text)),
            HeaderValue::Number(number) => AMQPValue::LongLongInt(*number),
        };
        headers.insert(header.name.into(), value);
    }
    let mut properties = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_delivery_mode(DELIVERY_MODE_PERSISTENT)
        .with_message_id(short_string(&*message.id))
        .with_app_id("workflow-manager".into())
        .with_timestamp(message.timestamp_s)
        .with_headers(headers);
    if let Some(id) = &message.correlation_id {
        properties = properties.with_correlation_id(short_string(&**id));
    }
    if message.addressee == Addressee::Worker {
        properties = properties.with_reply_to(short_string(reply_queue));
    }
    if message.sets_user_id {
        properties = properties.with_user_id(short_string(user));
    }
    if let Some(kind) = message.kind {
        properties = properties.with_type(kind.into());
    }
    if let Some(priority) = message.priority {
        properties = properties.with_priority(priority);
    }
    if let Some(left) = message.lifetime.remaining(clock::timer_now()).and_then(expiration) {
        properties = properties.with_expiration(left);
    }
    properties
}
