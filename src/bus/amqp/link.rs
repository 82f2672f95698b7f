//! A connection for publishing: the messages published on it, their confirms, and the queues known
//! to exist.

use super::connection::channel_error;
use super::queues::{Found, Looked, Queues, short};
use super::shapes::Shape;
use super::shared::Shared;
use super::turns::Turns;
use super::wire::burst::Burst;
use super::wire::guard::Ties;
use crate::bus::{Addressee, HeaderValue, Publication};
use crate::clock;
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
const REASON_WITHIN: Duration = Duration::from_secs(5);

/// How long a broker may confirm none of its unconfirmed messages before it counts as unresponsive.
pub(super) const SILENT_AFTER: Duration = Duration::from_secs(10);

const DELIVERY_MODE_PERSISTENT: u8 = 2;

/// A publication that is not confirmed.
pub(super) struct Held {
    pub(super) message: Publication,
    /// It was published before, on a channel that is closed.
    pub(super) again: bool,
    /// How often the broker negatively confirmed it.
    pub(super) refusals: u32,
    /// How often it closed its channel. After the first time it gets a channel of its own.
    pub(super) kills: u32,
    /// It was withdrawn, and is not sent again.
    pub(super) is_void: bool,
}

impl Held {
    pub(super) fn new(message: Publication) -> Held {
        Held { message, again: false, refusals: 0, kills: 0, is_void: false }
    }
}

/// A message that was published on this connection.
pub(super) struct Published {
    pub(super) held: Held,
    /// The generation of its queue (see [`QueueState::Exists`]) when it was published.
    pub(super) generation: u64,
    /// Whether its queue was found missing since: its confirm is then worthless.
    pub(super) lost: bool,
    /// Whether it has a channel of its own.
    pub(super) alone: bool,
    /// The length of its body.
    pub(super) bytes: usize,
}

/// What is known of a queue on this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueState {
    /// It is being checked or declared.
    Looking,
    /// It exists. The generation counts how often a queue was found or declared.
    There(u64),
    /// It cannot be used now, and is checked again later.
    Refused,
}

/// The confirm of the message with this number.
pub(super) type Answered = (u64, lapin::Result<ConfirmAnswer>);

/// The content of a confirm; see [`PublisherConnection::start_barrier`] for when it is valid.
pub(super) struct ConfirmAnswer {
    is_taken: bool,
    /// The id of a returned message, which need not be the one that is confirmed.
    returned: Option<String>,
}

impl From<Confirmation> for ConfirmAnswer {
    fn from(confirmation: Confirmation) -> ConfirmAnswer {
        let is_taken = confirmation.is_ack();
        let returned = confirmation.take_message().map(|message| {
            message.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default()
        });
        ConfirmAnswer { is_taken, returned }
    }
}

/// A connection for publishing.
pub(super) struct Link {
    pub(super) connection: Rc<Connection>,
    pub(super) events: BoxStream<'static, Event>,
    pub(super) is_blocked: bool,
    /// Whether the broker is reported as unresponsive.
    pub(super) is_silent: bool,
    /// When the broker confirmed last, or was given a message while it owed no confirm.
    heard: Instant,
    /// The largest body that does not close its channel; known once one has closed it.
    pub(super) body_bytes_max: Option<usize>,
    /// The published messages, in the order of publishing.
    pub(super) published: BTreeMap<u64, Published>,
    /// The total length of their bodies.
    pub(super) published_bytes: usize,
    pub(super) flight: FuturesUnordered<LocalBoxFuture<'static, Answered>>,
    /// At most one barrier; see [`PublisherConnection::start_barrier`].
    pub(super) barrier: FuturesUnordered<LocalBoxFuture<'static, lapin::Result<()>>>,
    pub(super) states: HashMap<Arc<str>, QueueState>,
    pub(super) looks: FuturesUnordered<LocalBoxFuture<'static, Looked>>,
    /// Repeated checks of queues that existed, each with the generation of its queue; see
    /// [`PublisherConnection::recheck_queue`].
    pub(super) probes: FuturesUnordered<LocalBoxFuture<'static, (u64, Looked)>>,
    pub(super) looks_again: BTreeMap<(Instant, u64), Arc<str>>,
    channel: Rc<Channel>,
    queues: Rc<Queues>,
    turns: Turns,
    finds: u64,
    /// Confirms that are valid after the next barrier, each with whether it is an ack.
    answered: Vec<(u64, bool)>,
    settling: Vec<(u64, bool)>,
    /// How often each message id was returned and not dealt with yet.
    returned: HashMap<String, usize>,
    /// How many returns were seen in confirms.
    returns_known: u64,
    ties: Ties,
}

impl Link {
    /// Connects.
    ///
    /// # Errors
    ///
    /// A sentence for the user says why there is no connection.
    pub(super) async fn open(shared: &Shared) -> Result<Link, String> {
        let ties = Ties::default();
        let opening = shared.address.open_with("step messages", ties.clone());
        let connection = Rc::new(opening.await?);
        let events = connection.events_listener().boxed();
        let channel =
            confirming(&connection).await.map_err(|error| shared.address.explain(&error))?;
        let queues = Queues::new(connection.clone());
        // This must come before the first message: the broker silently drops a reply to a queue
        // that does not exist.
        match queues.reply_queue(&shared.settings).await {
            Found::There { .. } => {}
            Found::Lost(error) => return Err(shared.address.explain(&error)),
            Found::Missing | Found::Locked => {
                return Err(format!(
                    "the reply queue \"{}\" cannot be used",
                    shared.settings.reply_queue
                ));
            }
            Found::Refused(said) => {
                return Err(format!(
                    "the broker refuses the reply queue \"{}\": {said}",
                    shared.settings.reply_queue
                ));
            }
        }
        Ok(Link {
            events,
            is_blocked: connection.status().blocked(),
            is_silent: false,
            heard: clock::ticks(),
            body_bytes_max: None,
            published: BTreeMap::new(),
            published_bytes: 0,
            flight: FuturesUnordered::new(),
            barrier: FuturesUnordered::new(),
            states: HashMap::new(),
            looks: FuturesUnordered::new(),
            probes: FuturesUnordered::new(),
            looks_again: BTreeMap::new(),
            channel: Rc::new(channel),
            queues,
            turns: shared.turns.clone(),
            finds: 0,
            answered: Vec::new(),
            settling: Vec::new(),
            returned: HashMap::new(),
            returns_known: 0,
            ties,
            connection,
        })
    }

    /// Opens a new channel in place of the one that the broker closed.
    pub(super) async fn reopen(&mut self) -> lapin::Result<()> {
        self.channel = Rc::new(confirming(&self.connection).await?);
        Ok(())
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.status().connected()
    }

    // ---- queues

    /// Starts to check whether `queue` exists.
    pub(super) fn look(&mut self, queue: &Arc<str>) {
        if self.states.insert(queue.clone(), QueueState::Looking) != Some(QueueState::Looking) {
            let (queues, queue) = (self.queues.clone(), queue.clone());
            self.looks.push(Box::pin(async move {
                let found = queues.look(&queue).await;
                (queue, found)
            }));
        }
    }

    /// Starts to check whether a queue that existed still does. Nothing waits for the result.
    pub(super) fn look_for(&mut self, queue: &Arc<str>) {
        if let Some(QueueState::There(generation)) = self.states.get(queue).copied() {
            let (queues, queue) = (self.queues.clone(), queue.clone());
            self.probes.push(Box::pin(async move {
                let found = queues.look(&queue).await;
                (generation, (queue, found))
            }));
        }
    }

    /// Declares `queue` as soon as `journaled` is answered or dropped.
    pub(super) fn declare_after(
        &mut self,
        queue: Arc<str>,
        shape: Shape,
        taken: oneshot::Receiver<()>,
    ) {
        let (queues, turns) = (self.queues.clone(), self.turns.clone());
        self.looks.push(Box::pin(async move {
            let found = queues.declare_after(&queue, shape, taken, &turns).await;
            (queue, found)
        }));
    }

    pub(super) fn found(&mut self, queue: &Arc<str>) {
        self.finds += 1;
        self.states.insert(queue.clone(), QueueState::There(self.finds));
    }

    /// Returns whether `generation` is still the last that is known of `queue`.
    pub(super) fn is_of(&self, generation: u64, queue: &Arc<str>) -> bool {
        self.states.get(queue) == Some(&QueueState::There(generation))
    }

    // ---- messages

    /// Publishes a message with these [`properties`]; with `alone`, on a channel of its own.
    pub(super) fn publish(
        &mut self,
        id: u64,
        held: Held,
        generation: u64,
        alone: bool,
        properties: BasicProperties,
    ) {
        let queue = short(&*held.message.to.queue);
        // The body is built here. lapin takes the text at once, and until the confirm only the
        // source of the text is kept.
        let body = held.message.body.to_bytes();
        let bytes = body.len();
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let (channel, connection) = (self.channel.clone(), self.connection.clone());
        self.flight.push(if alone {
            let answer = async move {
                let channel = confirming(&connection).await?;
                let sent =
                    channel.basic_publish("".into(), queue, options, &body, properties).await?;
                drop(body);
                sent.await
            };
            Box::pin(answer.map(move |answer| (id, answer.map(ConfirmAnswer::from))))
        } else {
            let answer = async move {
                let sent =
                    channel.basic_publish("".into(), queue, options, &body, properties).await?;
                drop(body);
                sent.await
            };
            Box::pin(answer.map(move |answer| (id, answer.map(ConfirmAnswer::from))))
        });
        self.published_bytes += bytes;
        if self.published.is_empty() {
            self.heard = clock::ticks();
        }
        self.published.insert(id, Published { held, generation, lost: false, alone, bytes });
    }

    /// Marks published messages with these ids as withdrawn, so that they are not sent again.
    pub(super) fn void(&mut self, ids: &HashSet<String>) {
        let is_meant = |held: &Held| ids.contains(&held.message.id);
        let published = self.published.values_mut().map(|published| &mut published.held);
        published.filter(|held| is_meant(held)).for_each(|held| held.is_void = true);
    }

    /// Removes and returns the message that was published under this number.
    pub(super) fn remove(&mut self, id: u64) -> Option<Published> {
        let published = self.published.remove(&id)?;
        self.published_bytes = self.published_bytes.saturating_sub(published.bytes);
        Some(published)
    }

    /// Collects every confirm that is ready. Unlike a single poll, which may give up early, this
    /// stops only when nothing is ready; the barrier relies on that.
    pub(super) fn drain(&mut self, answers: &mut Vec<Answered>) {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        while woken.0.swap(false, Ordering::AcqRel) {
            while let Poll::Ready(Some(answer)) = Pin::new(&mut self.flight).poll_next(&mut context)
            {
                answers.push(answer);
            }
        }
    }

    /// Returns when the broker counts as unresponsive; `None`: it owes no confirm, or is reported
    /// already.
    pub(super) fn silent_at(&self) -> Option<Instant> {
        let owes = !self.is_silent && !self.is_blocked && !self.published.is_empty();
        owes.then(|| self.heard + SILENT_AFTER)
    }

    /// Notes a confirm until it is valid.
    pub(super) fn note(&mut self, id: u64, answer: ConfirmAnswer) {
        self.heard = clock::ticks();
        self.answered.push((id, answer.is_taken));
        if let Some(message_id) = answer.returned {
            *self.returned.entry(message_id).or_default() += 1;
            self.returns_known += 1;
        }
    }

    /// Returns the burst: while it is held, publications are buffered and then go out in one write.
    pub(super) fn burst(&self) -> Arc<Burst> {
        self.ties.burst.clone()
    }

    /// Returns the noted confirms if they are valid already, because every return that preceded
    /// them is known. They need no barrier then.
    pub(super) fn certain(&mut self) -> Vec<(u64, bool)> {
        if self.ties.returns.load(Ordering::Acquire) == self.returns_known {
            std::mem::take(&mut self.answered)
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
    pub(super) fn raise_barrier(&mut self) {
        if self.barrier.is_empty() && !self.answered.is_empty() {
            self.settling = std::mem::take(&mut self.answered);
            let channel = self.channel.clone();
            self.barrier.push(Box::pin(async move {
                channel.basic_qos(0, BasicQosOptions::default()).await
            }));
        }
    }

    /// Returns the confirms that are valid now that the barrier has passed.
    pub(super) fn settled(&mut self) -> Vec<(u64, bool)> {
        std::mem::take(&mut self.settling)
    }

    /// Returns whether the message was returned. Each return is counted down, so ask once for each.
    pub(super) fn was_returned(&mut self, message: &Publication) -> bool {
        if self.returned.is_empty() {
            return false;
        }
        match self.returned.get_mut(&message.id) {
            Some(1) => self.returned.remove(&message.id).is_some(),
            Some(times) => {
                *times -= 1;
                true
            }
            None => false,
        }
    }

    /// Removes and returns all messages without a valid confirm, in order, each with whether its
    /// queue is known to be gone. The channel is abandoned.
    pub(super) fn take_back(&mut self) -> Vec<(Held, bool)> {
        self.flight = FuturesUnordered::new();
        self.barrier = FuturesUnordered::new();
        self.answered.clear();
        self.settling.clear();
        self.published_bytes = 0;
        let published = std::mem::take(&mut self.published).into_values();
        let taken = published.map(|Published { held, generation, .. }| {
            let is_gone =
                self.was_returned(&held.message) && self.is_of(generation, &held.message.to.queue);
            (held, is_gone)
        });
        let taken = taken.collect();
        self.returned.clear();
        taken
    }

    /// Returns why the broker closed the channel. Messages that were published just after that fail
    /// without the reason.
    pub(super) async fn closing_reason(&mut self, first: lapin::Error) -> lapin::Error {
        let reason = async {
            let mut error = first.clone();
            while channel_error(&error).is_none() {
                match self.flight.next().await {
                    Some((_, Err(next))) => error = next,
                    Some((_, Ok(_))) => {}
                    None => break,
                }
            }
            error
        };
        tokio::time::timeout(REASON_WITHIN, reason).await.unwrap_or(first)
    }
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

async fn confirming(connection: &Connection) -> lapin::Result<Channel> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

/// Returns the property `expiration`, in milliseconds; `None`: the time is longer than the broker
/// accepts.
fn expiration(left: Duration) -> Option<ShortString> {
    let left_ms = u32::try_from(left.as_millis()).ok()?;
    // A message with the expiration 0 would be gone before a worker could have it.
    Some(short(left_ms.max(1).to_string()))
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
        .with_message_id(short(&*message.id))
        .with_app_id("workflow-manager".into())
        .with_timestamp(message.timestamp_s)
        .with_headers(headers);
    if let Some(id) = &message.correlation_id {
        properties = properties.with_correlation_id(short(&**id));
    }
    if message.addressee == Addressee::Worker {
        properties = properties.with_reply_to(short(reply_queue));
    }
    if message.names_sender {
        properties = properties.with_user_id(short(user));
    }
    if let Some(kind) = message.kind {
        properties = properties.with_type(kind.into());
    }
    if let Some(priority) = message.priority {
        properties = properties.with_priority(priority);
    }
    if let Some(left) = message.lifetime.left(clock::ticks()).and_then(expiration) {
        properties = properties.with_expiration(left);
    }
    properties
}
