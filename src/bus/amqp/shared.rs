//! The state that the tasks of an AMQP bus share: the phase of its shutdown, the queues that it
//! serves, and the connection state that it reports.

use super::aside_room::AsideRoom;
use super::connection::{BrokerAddress, LastReason, millis};
use super::management::{Management, QueueCounts};
use super::received::AsideSender;
use super::settings::AmqpSettings;
use super::shapes::{Said, Shape, Shapes};
use super::turns::Turns;
use super::wire::room::DeliveryRoom;
use crate::bus::{BusEvent, BusState, EventSink, Served};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How far the shutdown of the bus has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Open,
    EndConsuming,
    EndPublishing,
}

/// Waits until the shutdown has come to the phase `wanted`, or the bus is gone.
pub(super) async fn reached(phases: &mut watch::Receiver<Phase>, wanted: Phase) {
    let _ = phases.wait_for(|phase| *phase >= wanted).await;
}

/// The queues that are served now.
#[derive(Clone, Debug)]
pub(super) struct Serving {
    /// Queues of workers: those of the loaded definitions, of earlier ones, and those published to
    /// since.
    pub(super) workers: BTreeSet<Arc<str>>,
    pub(super) calls: Vec<Arc<str>>,
    /// The declarations that workflow files specify.
    pub(super) declared: Said,
}

impl Serving {
    pub(super) fn of(served: Served) -> Serving {
        Serving {
            workers: served.workers.into_iter().collect(),
            calls: served.calls,
            declared: served.declared,
        }
    }
}

/// The state that the tasks of a bus share.
pub(super) struct Shared {
    pub(super) serving: watch::Sender<Serving>,
    pub(super) shapes: Shapes,
    /// Queues that are full: the broker nacked the last message to them.
    pub(super) full: RefCell<HashSet<Arc<str>>>,
    pub(super) settings: AmqpSettings,
    pub(super) address: BrokerAddress,
    pub(super) management: Option<Management>,
    pub(super) sink: EventSink,
    pub(super) board: Rc<Board>,
    pub(super) aside: AsideSender,
    pub(super) aside_room: AsideRoom,
    pub(super) turns: Turns,
    pub(super) room: Arc<DeliveryRoom>,
}

impl Shared {
    /// Returns how a queue is declared if it is missing.
    pub(super) fn shape_of(&self, queue: &str) -> Shape {
        let serving = self.serving.borrow();
        self.shapes.of(queue, serving.declared.get(queue), &self.settings.declaration)
    }

    /// Remembers how the served queues among these are declared at the broker.
    pub(super) fn see(&self, listed: &[QueueCounts]) {
        let serving = self.serving.borrow();
        let calls = |name: &str| serving.calls.iter().any(|queue| **queue == *name);
        self.shapes.see(listed, |name| serving.workers.contains(name) || calls(name));
    }

    /// Reports that a side is down and retries after `pause`. Logs each reason once.
    pub(super) fn down(&self, side: Side, reason: &str, pause: Duration) {
        let (server, retry_in_ms) = (&self.address, millis(pause));
        if self.board.is_news(side, reason) {
            tracing::warn!(
                %server,
                reason,
                retry_in_ms,
                "not connected to the broker (logged once for each reason)"
            );
        } else {
            tracing::debug!(%server, ?side, reason, retry_in_ms, "not connected to the broker");
        }
        self.board.down(side, reason);
    }
}

/// One of the two connections on which the state of the bus depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Publisher,
    Consumer,
}

/// Combines the states of both sides into the state of the bus, and reports its changes.
pub(super) struct Board {
    sink: EventSink,
    sides: RefCell<Sides>,
}

struct Sides {
    /// Why each side is down; `None`: it is up.
    down: [Option<String>; 2],
    blocked: Option<String>,
    /// How long the broker has confirmed nothing.
    silent: Option<Duration>,
    reported: BusState,
    last_reasons: [LastReason; 2],
}

impl Board {
    pub(super) fn new(sink: EventSink) -> Board {
        let reported = BusState::Disconnected { reason: String::new() };
        Board {
            sink,
            sides: RefCell::new(Sides {
                down: [Some(String::new()), Some(String::new())],
                blocked: None,
                silent: None,
                reported,
                last_reasons: Default::default(),
            }),
        }
    }

    pub(super) fn up(&self, side: Side) {
        self.change(|sides| {
            sides.down[side as usize] = None;
            sides.last_reasons[side as usize] = LastReason::default();
        });
    }

    pub(super) fn down(&self, side: Side, reason: &str) {
        self.change(|sides| {
            sides.down[side as usize] = Some(reason.to_owned());
            if side == Side::Publisher {
                sides.blocked = None;
                sides.silent = None;
            }
        });
    }

    /// Returns whether this reason is not logged yet. Both sides fail for the same reason, at each
    /// attempt.
    pub(super) fn is_news(&self, side: Side, reason: &str) -> bool {
        let mut sides = self.sides.borrow_mut();
        let is_known = sides.last_reasons.iter().any(|last| last.has(reason));
        sides.last_reasons[side as usize].is_news(reason) && !is_known
    }

    pub(super) fn blocked(&self, reason: Option<String>) {
        self.change(|sides| sides.blocked = reason);
    }

    pub(super) fn silent(&self, span: Option<Duration>) {
        self.change(|sides| sides.silent = span);
    }

    fn change(&self, change: impl FnOnce(&mut Sides)) {
        let mut sides = self.sides.borrow_mut();
        change(&mut sides);
        // A side that has not tried yet has no reason. The other's reason is reported then.
        let reasons = || sides.down.iter().flatten();
        let state = match (
            reasons().find(|reason| !reason.is_empty()).or_else(|| reasons().next()),
            &sides.blocked,
            sides.silent,
        ) {
            (Some(reason), ..) => BusState::Disconnected { reason: reason.clone() },
            (None, Some(reason), _) => BusState::Blocked { reason: reason.clone() },
            (None, None, Some(span)) => BusState::Silent { span },
            (None, None, None) => BusState::Connected,
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
        board.silent(Some(Duration::from_secs(10)));
        board.blocked(Some("low on memory".to_owned()));
        board.down(Side::Consumer, "gone");
        board.down(Side::Publisher, "gone");
        board.up(Side::Publisher);
        board.up(Side::Consumer);
        let expected = [
            "connected",
            "connected, but the broker has confirmed nothing for 10s although messages wait for \
             that: has the network stopped, or the broker?",
            "publishing blocked by the broker: low on memory",
            "not connected: gone",
            "connected",
        ];
        assert_eq!(*seen.lock().unwrap(), expected);
    }
}
