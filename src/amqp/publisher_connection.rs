//! A connection for publishing: the messages published on it, their confirms, and the state of
//! their queues.

use super::connection::{self, BrokerAddress, channel_error};
use super::policy_lock::PolicyLock;
use super::queue_properties::QueueProperties;
use super::queues::{
    CheckedQueue, QueueCheck, QueueDeclarer, reply_queue_unavailable, short_string,
};
use super::state::AmqpState;
use super::wire::burst::Burst;
use super::wire::filtered_stream::ConnectionHooks;
use base::clock;
use bus::Publication;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{BoxStream, FuturesUnordered};
use futures_util::{FutureExt, Stream, StreamExt};
use lapin::options::{BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions};
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

/// How long to wait for the reason for which the broker closed a channel.
const CLOSE_REASON_TIMEOUT: Duration = Duration::from_secs(5);

/// The delay before an unusable queue is checked again.
pub(super) const QUEUE_RECHECK_DELAY: Duration = Duration::from_secs(5);

/// How long a broker may confirm nothing, while messages are unconfirmed, before it counts as
/// unresponsive.
pub(super) const UNRESPONSIVE_AFTER: Duration = Duration::from_secs(10);

/// How long a message may wait for its confirm before another node is tried.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(30);

/// A publication that is not confirmed.
pub(super) struct PendingPublication {
    pub(super) message: Publication,
    /// Whether it was published before, on a channel that was closed or lost.
    pub(super) is_resend: bool,
    /// How often the broker nacked it.
    pub(super) nacks: u32,
    /// How often the broker closed a channel because of it. Once it has, the message is published
    /// on its own channel.
    pub(super) channel_closures: u32,
    /// Whether it was withdrawn. If so, it is not sent again.
    pub(super) is_withdrawn: bool,
}

impl PendingPublication {
    /// Wraps a message that was not published yet.
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
    /// Whether its queue was found missing after it was published. Its confirm then proves nothing.
    pub(super) is_queue_lost: bool,
    /// Whether it was published on its own channel.
    pub(super) has_own_channel: bool,
    /// The length of its body, in bytes.
    pub(super) body_bytes: usize,
    published_at: Instant,
}

/// A published message without a trusted confirm.
pub(super) struct UnsettledMessage {
    pub(super) pending: PendingPublication,
    /// Whether the broker returned it although its queue existed at the last check. Then the queue
    /// is missing now.
    pub(super) is_queue_missing: bool,
}

/// The state of a queue, as far as this connection knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueState {
    /// It is being checked or declared.
    Checking,
    /// It exists. The generation increases whenever any queue is found or declared.
    Exists(u64),
    /// It cannot be used for now, and is checked again later.
    Unusable,
}

/// The number of a published message, with its confirm or the error of its channel.
pub(super) type NumberedConfirm = (u64, lapin::Result<Confirm>);

/// A confirm that was recorded, without the return that was attached to it.
pub(super) struct RecordedConfirm {
    /// The number of the published message.
    pub(super) number: u64,
    /// Whether the broker acked the message; otherwise it nacked it.
    pub(super) is_ack: bool,
}

/// The content of a confirm; see [`PublisherConnection::start_barrier`] for when it can be trusted.
pub(super) struct Confirm {
    is_ack: bool,
    /// The id of a returned message, which may be another message than the confirmed one.
    returned_id: Option<String>,
}

impl From<Confirmation> for Confirm {
    fn from(confirmation: Confirmation) -> Confirm {
        let is_ack = confirmation.is_ack();
        let returned_id = confirmation.take_message().map(|message| {
            message.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default()
        });
        Confirm { is_ack, returned_id }
    }
}

/// A connection for publishing.
pub(super) struct PublisherConnection {
    connection: Rc<Connection>,
    /// The node that it is connected to.
    pub(super) address: Arc<BrokerAddress>,
    /// The events of the connection, as lapin reports them.
    pub(super) events: BoxStream<'static, Event>,
    /// Whether the broker blocks publishing.
    pub(super) is_blocked: bool,
    /// Whether the broker was reported as unresponsive.
    pub(super) is_unresponsive: bool,
    /// When the broker last confirmed a message, or was sent one while no confirm was pending.
    last_activity: Instant,
    /// The largest body that the broker accepts; `None` until it has closed a channel because of
    /// one.
    pub(super) body_bytes_max: Option<usize>,
    /// The published messages by number, in the order of publishing.
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
    /// Unusable queues to check again, by time and a unique number.
    pub(super) scheduled_checks: BTreeMap<(Instant, u64), Arc<str>>,
    /// The channel that messages share unless they need their own one.
    channel: Rc<Channel>,
    /// When it was opened.
    pub(super) channel_opened_at: Instant,
    /// Whether the broker has nacked a message on it again and again.
    pub(super) is_channel_refused: bool,
    /// When the broker last stopped to block publishing, or the connection was opened.
    pub(super) unblocked_at: Instant,
    queues: Rc<QueueDeclarer>,
    policy_lock: PolicyLock,
    /// The generation of the queue that was found or declared last.
    last_generation: u64,
    /// Confirms that cannot be trusted before the next barrier.
    untrusted_confirms: Vec<RecordedConfirm>,
    /// Confirms that can be trusted once the current barrier has passed.
    confirms_before_barrier: Vec<RecordedConfirm>,
    /// How many returns of each message id have not been handled yet.
    unhandled_returns: HashMap<String, usize>,
    /// How many returns were attached to recorded confirms.
    returns_received: u64,
    hooks: ConnectionHooks,
}

impl PublisherConnection {
    /// Connects, and makes sure that the reply queue exists.
    ///
    /// # Errors
    ///
    /// Returns the reason, as a sentence for the user, if either fails.
    pub(super) async fn open(
        state: &AmqpState,
        address: Arc<BrokerAddress>,
    ) -> Result<PublisherConnection, String> {
        let hooks = ConnectionHooks::default();
        let opening = address.open_with_hooks("step messages", hooks.clone());
        let connection = Rc::new(opening.await?);
        let events = connection.events_listener().boxed();
        let channel =
            open_confirm_channel(&connection).await.map_err(|error| address.explain(&error))?;
        let queues = QueueDeclarer::new(connection.clone());
        // The reply queue must exist before the first message: the broker silently drops a reply
        // to a missing queue.
        match queues.ensure_reply_queue(&state.settings).await {
            QueueCheck::Exists { .. } => {}
            QueueCheck::Lost(error) => return Err(address.explain(&error)),
            QueueCheck::Missing | QueueCheck::Exclusive => {
                return Err(format!(
                    "the reply queue \"{}\" cannot be used",
                    state.settings.reply_queue
                ));
            }
            QueueCheck::Unavailable(broker_text) => {
                return Err(reply_queue_unavailable(&state.settings.reply_queue, &broker_text));
            }
            QueueCheck::Refused(broker_text) => {
                return Err(format!(
                    "the broker refuses the reply queue \"{}\": {broker_text}",
                    state.settings.reply_queue
                ));
            }
        }
        Ok(PublisherConnection {
            address,
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
            channel_opened_at: clock::timer_now(),
            is_channel_refused: false,
            unblocked_at: clock::timer_now(),
            queues,
            policy_lock: state.policy_lock.clone(),
            last_generation: 0,
            untrusted_confirms: Vec::new(),
            confirms_before_barrier: Vec::new(),
            unhandled_returns: HashMap::new(),
            returns_received: 0,
            hooks,
            connection,
        })
    }

    /// Replaces the shared channel. The messages on the former one keep it open until their
    /// confirms.
    pub(super) async fn reopen_channel(&mut self) -> lapin::Result<()> {
        self.channel = Rc::new(open_confirm_channel(&self.connection).await?);
        self.channel_opened_at = clock::timer_now();
        self.is_channel_refused = false;
        Ok(())
    }

    /// Closes the connection gracefully.
    pub(super) async fn close(&self) {
        connection::close(&self.connection).await;
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.status().connected()
    }

    // ---- queues

    /// Starts to check whether `queue` exists, unless a check is running.
    pub(super) fn check_queue(&mut self, queue: &Arc<str>) {
        if self.queue_states.insert(queue.clone(), QueueState::Checking)
            != Some(QueueState::Checking)
        {
            let (queues, queue) = (self.queues.clone(), queue.clone());
            self.queue_checks.push(Box::pin(async move {
                let check = queues.check(&queue).await;
                (queue, check)
            }));
        }
    }

    /// Starts to check whether a queue that existed still exists. Its messages do not wait for the
    /// result.
    pub(super) fn recheck_queue(&mut self, queue: &Arc<str>) {
        if let Some(QueueState::Exists(generation)) = self.queue_states.get(queue).copied() {
            let (queues, queue) = (self.queues.clone(), queue.clone());
            self.queue_rechecks.push(Box::pin(async move {
                let check = queues.check(&queue).await;
                (generation, (queue, check))
            }));
        }
    }

    /// Starts to declare `queue` once `journaled` has resolved.
    pub(super) fn declare_after(
        &mut self,
        queue: Arc<str>,
        queue_properties: QueueProperties,
        journaled: oneshot::Receiver<()>,
    ) {
        let (queues, policy_lock) = (self.queues.clone(), self.policy_lock.clone());
        self.queue_checks.push(Box::pin(async move {
            let check =
                queues.declare_after(&queue, queue_properties, journaled, &policy_lock).await;
            (queue, check)
        }));
    }

    /// Marks a queue as existing, with a new generation.
    pub(super) fn mark_queue_found(&mut self, queue: &Arc<str>) {
        self.last_generation += 1;
        self.queue_states.insert(queue.clone(), QueueState::Exists(self.last_generation));
    }

    /// Returns whether `queue` exists with this generation.
    pub(super) fn is_current_generation(&self, generation: u64, queue: &Arc<str>) -> bool {
        self.queue_states.get(queue) == Some(&QueueState::Exists(generation))
    }

    // ---- messages

    /// Publishes a message under this number, to a queue of this generation.
    pub(super) fn publish(
        &mut self,
        number: u64,
        pending: PendingPublication,
        queue_generation: u64,
        needs_own_channel: bool,
        properties: BasicProperties,
    ) {
        let queue = short_string(&*pending.message.address.queue);
        // The encoded body is dropped once lapin has copied it. Until the confirm, only the message
        // is kept, which can be encoded again.
        let body = pending.message.body.to_bytes();
        let body_bytes = body.len();
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let (channel, connection) = (self.channel.clone(), self.connection.clone());
        self.pending_confirms.push(if needs_own_channel {
            let confirm = async move {
                let channel = open_confirm_channel(&connection).await?;
                let confirm =
                    channel.basic_publish("".into(), queue, options, &body, properties).await?;
                drop(body);
                confirm.await
            };
            Box::pin(confirm.map(move |result| (number, result.map(Confirm::from))))
        } else {
            let confirm = async move {
                let confirm =
                    channel.basic_publish("".into(), queue, options, &body, properties).await?;
                drop(body);
                confirm.await
            };
            Box::pin(confirm.map(move |result| (number, result.map(Confirm::from))))
        });
        self.published_bytes += body_bytes;
        let published_at = clock::timer_now();
        if self.published.is_empty() {
            self.last_activity = published_at;
        }
        self.published.insert(
            number,
            PublishedMessage {
                pending,
                queue_generation,
                is_queue_lost: false,
                has_own_channel: needs_own_channel,
                body_bytes,
                published_at,
            },
        );
    }

    /// Marks published messages with these ids as withdrawn, so that they are not sent again.
    pub(super) fn mark_withdrawn(&mut self, ids: &HashSet<String>) {
        let pending = self.published.values_mut().map(|published| &mut published.pending);
        pending
            .filter(|pending| ids.contains(&pending.message.id))
            .for_each(|pending| pending.is_withdrawn = true);
    }

    /// Removes and returns the message that was published under this number.
    pub(super) fn remove(&mut self, number: u64) -> Option<PublishedMessage> {
        let published = self.published.remove(&number)?;
        self.published_bytes = self.published_bytes.saturating_sub(published.body_bytes);
        Some(published)
    }

    /// Collects all confirms that are ready. It polls until none is ready, because a single poll
    /// may return early. The barrier relies on that.
    pub(super) fn drain_confirms(&mut self, confirms: &mut Vec<NumberedConfirm>) {
        let wake_flag = Arc::new(WakeFlag(AtomicBool::new(true)));
        let waker = Waker::from(wake_flag.clone());
        let mut context = Context::from_waker(&waker);
        while wake_flag.0.swap(false, Ordering::AcqRel) {
            while let Poll::Ready(Some(confirm)) =
                Pin::new(&mut self.pending_confirms).poll_next(&mut context)
            {
                confirms.push(confirm);
            }
        }
    }

    /// Returns when the broker will count as unresponsive; `None` if no confirm is pending, or if
    /// the broker blocks publishing or is reported as unresponsive already.
    pub(super) fn unresponsive_at(&self) -> Option<Instant> {
        let is_confirm_pending =
            !self.is_unresponsive && !self.is_blocked && !self.published.is_empty();
        is_confirm_pending.then(|| self.last_activity + UNRESPONSIVE_AFTER)
    }

    /// Returns when the oldest message will have waited too long for its confirm; `None` if no
    /// confirm is pending or the broker blocks publishing.
    pub(super) fn overdue_at(&self) -> Option<Instant> {
        let oldest = self.published.values().next().filter(|_| !self.is_blocked)?;
        Some(oldest.published_at.max(self.unblocked_at) + CONFIRM_TIMEOUT)
    }

    /// Records a confirm, and the return that is attached to it.
    pub(super) fn record_confirm(&mut self, number: u64, confirm: Confirm) {
        self.last_activity = clock::timer_now();
        self.untrusted_confirms.push(RecordedConfirm { number, is_ack: confirm.is_ack });
        if let Some(message_id) = confirm.returned_id {
            *self.unhandled_returns.entry(message_id).or_default() += 1;
            self.returns_received += 1;
        }
    }

    /// Returns the burst of the connection. While it is held, publications are queued. They are
    /// then sent in one write.
    pub(super) fn burst(&self) -> Arc<Burst> {
        self.hooks.burst.clone()
    }

    /// Takes the recorded confirms if they can be trusted without a barrier, because all returns
    /// that the broker has sent were received.
    pub(super) fn take_unambiguous_confirms(&mut self) -> Vec<RecordedConfirm> {
        if self.hooks.returns.load(Ordering::Acquire) == self.returns_received {
            std::mem::take(&mut self.untrusted_confirms)
        } else {
            Vec::new()
        }
    }

    /// Starts a barrier after which the recorded confirms can be trusted, unless one is running.
    ///
    /// It is needed if a message was returned and it is unknown which one; see
    /// [`PublisherConnection::take_unambiguous_confirms`]. lapin attaches a returned message to
    /// whichever confirm follows, and it completes the confirms of one frame in any order, on a
    /// thread of its own. So a confirm can be trusted only once that thread has processed the whole
    /// frame. The reply to a later request, `basic.qos`, proves that.
    pub(super) fn start_barrier(&mut self) {
        if self.barrier.is_empty() && !self.untrusted_confirms.is_empty() {
            self.confirms_before_barrier = std::mem::take(&mut self.untrusted_confirms);
            let channel = self.channel.clone();
            self.barrier.push(Box::pin(async move {
                channel.basic_qos(0, BasicQosOptions::default()).await
            }));
        }
    }

    /// Takes the confirms that can be trusted now that the barrier has passed.
    pub(super) fn take_confirms_before_barrier(&mut self) -> Vec<RecordedConfirm> {
        std::mem::take(&mut self.confirms_before_barrier)
    }

    /// Takes one return of the message. Returns whether there was one.
    pub(super) fn take_return(&mut self, message: &Publication) -> bool {
        if self.unhandled_returns.is_empty() {
            return false;
        }
        match self.unhandled_returns.get_mut(&message.id) {
            Some(1) => self.unhandled_returns.remove(&message.id).is_some(),
            Some(count) => {
                *count -= 1;
                true
            }
            None => false,
        }
    }

    /// Takes all messages without a trusted confirm, in order, and discards their confirms.
    pub(super) fn take_unsettled(&mut self) -> Vec<UnsettledMessage> {
        self.pending_confirms = FuturesUnordered::new();
        self.barrier = FuturesUnordered::new();
        self.untrusted_confirms.clear();
        self.confirms_before_barrier.clear();
        self.published_bytes = 0;
        let published = std::mem::take(&mut self.published).into_values();
        let unsettled = published.map(|PublishedMessage { pending, queue_generation, .. }| {
            let queue = &pending.message.address.queue;
            let is_queue_missing = self.take_return(&pending.message)
                && self.is_current_generation(queue_generation, queue);
            UnsettledMessage { pending, is_queue_missing }
        });
        let messages = unsettled.collect();
        self.unhandled_returns.clear();
        messages
    }

    /// Waits for the error that says why the broker closed the channel. Messages that were
    /// published just after the close may fail first, without the reason. Returns `first_error` if
    /// no error has the reason.
    pub(super) async fn wait_for_closing_error(
        &mut self,
        first_error: lapin::Error,
    ) -> lapin::Error {
        let closing_error = async {
            let mut error = first_error.clone();
            while channel_error(&error).is_none() {
                match self.pending_confirms.next().await {
                    Some((_, Err(next_error))) => error = next_error,
                    Some((_, Ok(_))) => {}
                    None => break,
                }
            }
            error
        };
        tokio::time::timeout(CLOSE_REASON_TIMEOUT, closing_error).await.unwrap_or(first_error)
    }
}

/// A waker that records whether it was woken.
struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Opens a channel with publisher confirms.
async fn open_confirm_channel(connection: &Connection) -> lapin::Result<Channel> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}
