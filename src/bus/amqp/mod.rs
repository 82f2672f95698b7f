//! The bus over AMQP 0-9-1, for RabbitMQ: the only user of lapin.
//!
//! Two loops, each with a connection of its own, so that a broker that blocks publishers cannot
//! stop the acks: the [`publisher`] sends step messages and waits for confirms, the [`consumer`]
//! takes deliveries and returns verdicts. Each reconnects by itself, for ever. Both run on the
//! arbiter on which [`Connector::connect`] was called. Beside them [`aside`] takes messages that
//! cannot be read; [`wire`] sees to it that such a message costs no connection.

mod acks;
mod aside;
mod calls;
mod connection;
mod consumer;
mod inspect;
mod lane;
mod link;
mod management;
mod pace;
mod publisher;
mod queues;
mod received;
mod topic;
pub mod wire;

use super::{
    Addressee, Bus, BusEvent, BusState, EventSink, Publication, QueueDepth, QueueLook, Served,
};
use crate::settings::{REPLY_QUEUE_BYTES_MAX, ReplyQueueType, UnreadableMessages};
use aside::AsideSender;
use connection::{Address, Told};
use futures_util::future::LocalBoxFuture;
use management::Management;
pub use received::dead_letter;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
pub use topic::TopicConnector;
use wire::room::Room;

/// What a bus over AMQP needs to know.
#[derive(Clone)]
pub struct AmqpSettings {
    /// `amqp://user:password@host:port/vhost`, or `amqps://`.
    pub server: String,
    /// A virtual host in place of the address's own.
    pub vhost: Option<String>,
    /// The broker's management API, `http://user:password@host:port`; empty: none.
    pub management: String,
    /// The queue that workers reply to.
    pub reply_queue: String,
    /// What kind of queue that becomes if it is not there yet.
    pub reply_queue_type: ReplyQueueType,
    /// What becomes of messages that cannot be read.
    pub unreadable: UnreadableMessages,
    /// The most deliveries without a verdict.
    pub prefetch: u16,
    /// Under load, how long deliveries wait for more of them.
    pub linger: Duration,
    /// How large the replies without a verdict may be together, in bytes; one more is taken than
    /// have room.
    pub replies_bytes_max: usize,
    /// The most messages published and not yet confirmed.
    pub unconfirmed_max: usize,
    /// How long the bodies of these may be together, in bytes; one message more is published than
    /// they have room for.
    pub unconfirmed_bytes_max: usize,
    /// The pause before the first attempt to reconnect.
    pub reconnect_min: Duration,
    /// The longest pause between two attempts.
    pub reconnect_max: Duration,
    /// Both sides' sign of life; whole seconds.
    pub heartbeat: Duration,
    /// The queues that it serves. Those of workers are looked at after each connecting, besides
    /// those published to.
    pub served: Served,
    /// Whether the process ran without this bus before: then a reply queue that somebody else
    /// consumes is no reason to end.
    pub joins: bool,
}

impl fmt::Debug for AmqpSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpSettings")
            .field("server", &connection::masked(&self.server))
            .field("vhost", &self.vhost)
            .field("management", &connection::masked(&self.management))
            .field("reply_queue", &self.reply_queue)
            .field("reply_queue_type", &self.reply_queue_type)
            .field("unreadable", &self.unreadable)
            .field("prefetch", &self.prefetch)
            .field("linger", &self.linger)
            .field("replies_bytes_max", &self.replies_bytes_max)
            .field("unconfirmed_max", &self.unconfirmed_max)
            .field("unconfirmed_bytes_max", &self.unconfirmed_bytes_max)
            .field("reconnect_min", &self.reconnect_min)
            .field("reconnect_max", &self.reconnect_max)
            .field("heartbeat", &self.heartbeat)
            .field("served", &self.served)
            .field("joins", &self.joins)
            .finish()
    }
}

impl AmqpSettings {
    fn management(&self) -> Result<Option<Management>, AmqpError> {
        if self.management.is_empty() {
            Ok(None)
        } else {
            Management::parse(&self.management).map(Some)
        }
    }
}

/// Settings with which no connection can ever be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AmqpError {
    /// The broker's address.
    #[error(
        "amqp.server {shown:?} is no address of a broker: {why}; expected amqp://user:password@host:port/vhost or amqps://…, \
         with the characters / ? # @ : of a user name or password written %2F %3F %23 %40 %3A"
    )]
    Address {
        /// The address, without credentials.
        shown: String,
        /// What is wrong with it.
        why: String,
    },
    /// The address of the management API.
    #[error(
        "amqp.management {shown:?} is no address of a management API: {why}; expected http://user:password@host:15672"
    )]
    Management {
        /// The address, without credentials.
        shown: String,
        /// What is wrong with it.
        why: String,
    },
    /// The reply queue's name.
    #[error(
        "amqp.reply_queue has {0} bytes, expected 1 to {REPLY_QUEUE_BYTES_MAX}: with .unreadable behind it it names a queue too"
    )]
    ReplyQueue(usize),
}

/// Checked settings, ready to connect.
#[derive(Debug)]
pub struct Connector {
    settings: AmqpSettings,
}

impl Connector {
    /// Checks the settings; connects to nothing yet.
    pub fn new(settings: AmqpSettings) -> Result<Connector, AmqpError> {
        Address::parse(&settings)?;
        settings.management()?;
        Ok(Connector { settings })
    }

    /// Starts to connect, without waiting for it, and reports to `sink`. Must be called on an
    /// arbiter.
    pub fn connect(self, sink: EventSink) -> AmqpBus {
        let (outbox, inbox) = mpsc::unbounded_channel();
        let (phase, phases) = watch::channel(Phase::Open);
        let unconfirmed = Rc::new(Cell::new(0));
        // The settings were checked when this was made.
        let Ok(address) = Address::parse(&self.settings) else {
            return AmqpBus { outbox, unconfirmed, phase, loops: None, common: None };
        };
        let board = Rc::new(Board::new(sink.clone()));
        let management = self.settings.management().ok().flatten();
        let serving = watch::channel(Serving::of(self.settings.served.clone())).0;
        let (aside, put_aside) = mpsc::unbounded_channel();
        let common = Rc::new(Common {
            room: Room::new(self.settings.replies_bytes_max),
            settings: self.settings,
            address,
            management,
            sink,
            board,
            serving,
            aside,
        });
        let publishing = watched(
            common.sink.clone(),
            publisher::run(common.clone(), inbox, unconfirmed.clone(), phases.clone()),
        );
        let consuming = watched(common.sink.clone(), consumer::run(common.clone(), phases));
        let putting_aside = watched(common.sink.clone(), aside::run(common.clone(), put_aside));
        let loops = Loops {
            consumer: actix_rt::spawn(consuming),
            publisher: actix_rt::spawn(publishing),
            aside: actix_rt::spawn(putting_aside),
        };
        AmqpBus { outbox, unconfirmed, phase, loops: Some(loops), common: Some(common) }
    }
}

/// The bus over AMQP. Dropped without having been closed it breaks off.
pub struct AmqpBus {
    outbox: mpsc::UnboundedSender<Publication>,
    unconfirmed: Rc<Cell<usize>>,
    phase: watch::Sender<Phase>,
    loops: Option<Loops>,
    common: Option<Rc<Common>>,
}

impl Bus for AmqpBus {
    fn publish(&mut self, message: Publication) {
        self.unconfirmed.set(self.unconfirmed.get() + 1);
        if let (Addressee::Worker, Some(common)) = (message.addressee, &self.common)
            && !common.serving.borrow().workers.contains(&message.to.queue)
        {
            // Of a job that goes on after its definition was replaced.
            common.serving.send_modify(|serving| {
                serving.workers.insert(message.to.queue.clone());
            });
        }
        // Refused only once it is closed: the message is journaled as unconfirmed, the next start
        // sends it.
        let _ = self.outbox.send(message);
    }

    fn unconfirmed(&self) -> usize {
        self.unconfirmed.get()
    }

    fn inspect(&mut self, queue: Arc<str>) -> LocalBoxFuture<'static, QueueLook> {
        match self.common.clone() {
            Some(common) => Box::pin(inspect::inspect(common, queue)),
            None => Box::pin(std::future::ready(QueueLook::Unknown(
                "the bus is not connected".to_owned(),
            ))),
        }
    }

    fn depths(&mut self) -> LocalBoxFuture<'static, Result<Vec<QueueDepth>, String>> {
        match self.common.clone() {
            Some(common) => Box::pin(inspect::depths(common)),
            None => Box::pin(std::future::ready(Err("the bus is not connected".to_owned()))),
        }
    }

    fn serve(&mut self, served: Served) {
        if let Some(common) = &self.common {
            // Running jobs, and those that are retried, still use the queues of earlier
            // definitions.
            common.serving.send_modify(|serving| {
                serving.workers.extend(served.workers);
                serving.calls = served.calls;
            });
        }
    }

    /// First the deliveries under way get their verdicts, then the messages that follow from them
    /// go out. A broker that is not connected is not waited for.
    fn close(&mut self) -> LocalBoxFuture<'static, ()> {
        let (loops, phase) = (self.loops.take(), self.phase.clone());
        Box::pin(async move {
            // Dropped with this future at the caller's deadline: that ends both loops.
            let Some(mut loops) = loops else { return };
            phase.send_replace(Phase::EndConsuming);
            // An error means that the loop panicked; it has ended in any case.
            let _ = (&mut loops.consumer).await;
            phase.send_replace(Phase::EndPublishing);
            let _ = (&mut loops.publisher).await;
        })
    }
}

/// A loop whose panic is told: a bus that is half dead must not look alive.
async fn watched(sink: EventSink, run: impl Future<Output = ()>) {
    let _watch = Watch(sink);
    run.await;
}

struct Watch(EventSink);

impl Drop for Watch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)(BusEvent::Refused("the bus panicked; the log has the panic".to_owned()));
        }
    }
}

/// The loops; dropped they break off.
struct Loops {
    consumer: actix_rt::task::JoinHandle<()>,
    publisher: actix_rt::task::JoinHandle<()>,
    /// It ends with the others: what it has not put aside comes again.
    aside: actix_rt::task::JoinHandle<()>,
}

impl Drop for Loops {
    fn drop(&mut self) {
        self.aside.abort();
        self.consumer.abort();
        self.publisher.abort();
    }
}

/// How far the closing of the bus has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Open,
    EndConsuming,
    EndPublishing,
}

/// Waits until the closing has come to `wanted`, or the bus is gone.
async fn reached(phases: &mut watch::Receiver<Phase>, wanted: Phase) {
    let _ = phases.wait_for(|phase| *phase >= wanted).await;
}

/// The queues that are served now.
#[derive(Clone, Debug)]
struct Serving {
    /// The workers': of the definitions that are loaded, of earlier ones, and those published to
    /// since.
    workers: BTreeSet<Arc<str>>,
    calls: Vec<Arc<str>>,
}

impl Serving {
    fn of(served: Served) -> Serving {
        Serving { workers: served.workers.into_iter().collect(), calls: served.calls }
    }
}

/// A span as the log has it, in whole milliseconds.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// What both loops share.
struct Common {
    serving: watch::Sender<Serving>,
    settings: AmqpSettings,
    address: Address,
    management: Option<Management>,
    sink: EventSink,
    board: Rc<Board>,
    aside: AsideSender,
    room: Arc<Room>,
}

impl Common {
    /// Tells that a side is down and tries again after `pause`: in the log once for each reason.
    fn down(&self, side: Side, reason: &str, pause: Duration) {
        let (server, retry_in_ms) = (&self.address, millis(pause));
        if self.board.is_news(side, reason) {
            tracing::warn!(%server, reason, retry_in_ms, "not connected to the broker (logged once for each reason)");
        } else {
            tracing::debug!(%server, ?side, reason, retry_in_ms, "not connected to the broker");
        }
        self.board.down(side, reason);
    }
}

/// One of the two loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Publisher,
    Consumer,
}

/// Combines the states of both loops into the bus's state, and reports its changes.
struct Board {
    sink: EventSink,
    sides: RefCell<Sides>,
}

struct Sides {
    /// Why it is down, for each side; none: it is up.
    down: [Option<String>; 2],
    blocked: Option<String>,
    reported: BusState,
    told: [Told; 2],
}

impl Board {
    fn new(sink: EventSink) -> Board {
        let reported = BusState::Disconnected { reason: String::new() };
        Board {
            sink,
            sides: RefCell::new(Sides {
                down: [Some(String::new()), Some(String::new())],
                blocked: None,
                reported,
                told: Default::default(),
            }),
        }
    }

    fn up(&self, side: Side) {
        self.change(|sides| {
            sides.down[side as usize] = None;
            sides.told[side as usize] = Told::default();
        });
    }

    fn down(&self, side: Side, reason: &str) {
        self.change(|sides| {
            sides.down[side as usize] = Some(reason.to_owned());
            if side == Side::Publisher {
                sides.blocked = None;
            }
        });
    }

    /// Whether this reason is not in the log yet: both sides fail for the same one, at each
    /// attempt.
    fn is_news(&self, side: Side, reason: &str) -> bool {
        let mut sides = self.sides.borrow_mut();
        let is_known = sides.told.iter().any(|told| told.has(reason));
        sides.told[side as usize].is_news(reason) && !is_known
    }

    fn blocked(&self, reason: Option<String>) {
        self.change(|sides| sides.blocked = reason);
    }

    fn change(&self, change: impl FnOnce(&mut Sides)) {
        let mut sides = self.sides.borrow_mut();
        change(&mut sides);
        // A side that has not tried yet knows no reason: the other's is told.
        let reasons = || sides.down.iter().flatten();
        let state = match (
            reasons().find(|reason| !reason.is_empty()).or_else(|| reasons().next()),
            &sides.blocked,
        ) {
            (Some(reason), _) => BusState::Disconnected { reason: reason.clone() },
            (None, Some(reason)) => BusState::Blocked { reason: reason.clone() },
            (None, None) => BusState::Connected,
        };
        if state != sides.reported {
            sides.reported = state.clone();
            drop(sides);
            (self.sink)(BusEvent::State(state));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    pub(super) fn settings() -> AmqpSettings {
        AmqpSettings {
            server: "amqp://me:secret@host:5672/v".to_owned(),
            vhost: None,
            management: "http://me:secret@host:15672".to_owned(),
            reply_queue: "replies".to_owned(),
            reply_queue_type: ReplyQueueType::Classic,
            unreadable: UnreadableMessages::Keep,
            prefetch: 100,
            linger: Duration::from_millis(5),
            replies_bytes_max: 1 << 20,
            unconfirmed_max: 100,
            unconfirmed_bytes_max: 1 << 20,
            reconnect_min: Duration::from_secs(1),
            reconnect_max: Duration::from_secs(30),
            heartbeat: Duration::from_secs(30),
            served: Served::default(),
            joins: false,
        }
    }

    #[test]
    fn settings_are_shown_without_the_password() {
        let shown = format!("{:?} {:?}", settings(), Connector::new(settings()));
        assert!(shown.contains("amqp://***@host:5672/v") && !shown.contains("secret"), "{shown}");
    }

    #[test]
    fn the_state_is_connected_only_when_both_sides_are() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = seen.clone();
        let sink: EventSink = Arc::new(move |event| {
            if let (BusEvent::State(state), Ok(mut seen)) = (event, kept.lock()) {
                seen.push(state.to_string());
            }
        });
        let board = Board::new(sink);
        board.up(Side::Consumer);
        board.up(Side::Publisher);
        board.blocked(Some("low on memory".to_owned()));
        board.down(Side::Consumer, "gone");
        board.down(Side::Publisher, "gone");
        board.up(Side::Publisher);
        board.up(Side::Consumer);
        let expected = [
            "connected",
            "publishing blocked by the broker: low on memory",
            "not connected: gone",
            "connected",
        ];
        assert_eq!(*seen.lock().unwrap(), expected);
    }
}
