//! The state that the tasks of an AMQP bus share: its shutdown phase, the queues that it serves,
//! and the connection state that it reports.

use super::addresses::BrokerAddresses;
use super::connection::{BrokerAddress, LastReason, millis};
use super::management::{ListedQueue, ManagementApi};
use super::policy_lock::PolicyLock;
use super::quarantine_budget::QuarantineBudget;
use super::queue_properties::{Declarations, KnownProperties, QueueProperties};
use super::received::QuarantineSender;
use super::settings::AmqpSettings;
use super::wire::delivery_budget::DeliveryBudget;
use bus::{BusEvent, BusState, EventSink, ServedQueues};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The phases of the shutdown of a bus, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ShutdownPhase {
    /// The bus is not shutting down.
    Open,
    /// No further deliveries are consumed. Those that are not settled within a short time are
    /// redelivered.
    StopConsuming,
    /// Waiting messages are still published. Then the bus is closed.
    StopPublishing,
}

/// Waits until the shutdown has reached `phase`, or the bus was dropped.
pub(super) async fn wait_for_phase(
    phases: &mut watch::Receiver<ShutdownPhase>,
    phase: ShutdownPhase,
) {
    // An error means that the bus was dropped.
    let _ = phases.wait_for(|current_phase| *current_phase >= phase).await;
}

/// The queues that a bus serves now.
#[derive(Clone, Debug)]
pub(super) struct ActiveQueues {
    /// The worker queues of the loaded and of earlier definitions, and all others to which messages
    /// were published.
    pub(super) worker_queues: BTreeSet<Arc<str>>,
    /// The workflow queues, on which calls arrive.
    pub(super) workflow_queues: Vec<Arc<str>>,
    /// The declarations in the workflow files.
    pub(super) declarations: Declarations,
}

impl ActiveQueues {
    pub(super) fn from_served(served: ServedQueues) -> ActiveQueues {
        ActiveQueues {
            worker_queues: served.worker_queues.into_iter().collect(),
            workflow_queues: served.workflow_queues,
            declarations: served.declarations,
        }
    }
}

/// The state that the tasks of a bus share.
pub(super) struct AmqpState {
    /// The queues that the bus serves now; the tasks watch its changes.
    pub(super) active_queues: watch::Sender<ActiveQueues>,
    /// Whether the bus consumes. While it does not, other processes get the deliveries.
    pub(super) is_consuming: watch::Sender<bool>,
    pub(super) known_properties: KnownProperties,
    /// The queues that count as full, because the broker nacked the last message to them.
    pub(super) full_queues: RefCell<HashSet<Arc<str>>>,
    pub(super) settings: AmqpSettings,
    pub(super) addresses: BrokerAddresses,
    /// The client of the management API; `None` if that is not configured.
    pub(super) management: Option<ManagementApi>,
    pub(super) sink: EventSink,
    pub(super) state_reporter: Rc<StateReporter>,
    pub(super) quarantine_sender: QuarantineSender,
    pub(super) quarantine_budget: QuarantineBudget,
    pub(super) policy_lock: PolicyLock,
    pub(super) delivery_budget: Arc<DeliveryBudget>,
}

impl AmqpState {
    /// Returns the properties with which a missing queue is declared.
    pub(super) fn properties_for(&self, queue: &str) -> QueueProperties {
        let active_queues = self.active_queues.borrow();
        self.known_properties.properties_for(
            queue,
            active_queues.declarations.get(queue),
            &self.settings.declaration,
        )
    }

    /// Records the properties of the listed queues that the bus serves.
    pub(super) fn record_properties(&self, listed_queues: &[ListedQueue]) {
        let active_queues = self.active_queues.borrow();
        let is_served = |name: &str| {
            active_queues.worker_queues.contains(name)
                || active_queues.workflow_queues.iter().any(|queue| **queue == *name)
        };
        self.known_properties.record(listed_queues, is_served);
    }

    /// Reports that a side is connected to the node at this address.
    pub(super) fn report_up(&self, side: Side, address: &BrokerAddress) {
        // With one address there is nothing to tell.
        let node = self.addresses.are_several().then(|| address.authority());
        self.state_reporter.set_up(side, node);
    }

    /// Reports that a side is down and reconnects after `delay`. Logs each reason once.
    pub(super) fn report_down(
        &self,
        side: Side,
        address: &BrokerAddress,
        reason: &str,
        delay: Duration,
    ) {
        let (server, retry_in_ms) = (address, millis(delay));
        if self.state_reporter.record_if_new(side, &address.authority(), reason) {
            tracing::warn!(
                %server,
                reason,
                retry_in_ms,
                "not connected to the broker (logged once for each reason)"
            );
        } else {
            tracing::debug!(%server, ?side, reason, retry_in_ms, "not connected to the broker");
        }
        self.state_reporter.set_unreachable(side);
    }
}

/// One of the two connections on which the state of the bus depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Publisher,
    Consumer,
}

/// Combines the states of both sides into the state of the bus, and reports its changes.
pub(super) struct StateReporter {
    sink: EventSink,
    sides: RefCell<SideStates>,
}

/// The states of both sides, and what was reported of them. Arrays are indexed by [`Side`].
struct SideStates {
    /// Why each [`Side`] is down: an empty text before its first attempt, `None` if it is up.
    down_reasons: [Option<String>; 2],
    /// Why the broker blocks publishers; `None` if it does not.
    blocked_reason: Option<String>,
    /// How long the broker has confirmed nothing; `None` if it is responsive.
    unresponsive_for: Option<Duration>,
    /// The last state that was reported.
    reported_state: BusState,
    /// The last reasons for which each [`Side`] was down since it was last connected, by node.
    last_reasons: [BTreeMap<String, LastReason>; 2],
    /// The node to which each [`Side`] is connected; `None` if there is only one address.
    nodes: [Option<String>; 2],
}

impl StateReporter {
    pub(super) fn new(sink: EventSink) -> StateReporter {
        StateReporter {
            sink,
            sides: RefCell::new(SideStates {
                down_reasons: [Some(String::new()), Some(String::new())],
                blocked_reason: None,
                unresponsive_for: None,
                reported_state: BusState::Disconnected { reason: String::new() },
                last_reasons: Default::default(),
                nodes: Default::default(),
            }),
        }
    }

    /// Marks a side as connected to this node; `None` if there is only one address.
    pub(super) fn set_up(&self, side: Side, node: Option<String>) {
        self.update(|sides| {
            sides.down_reasons[side as usize] = None;
            sides.last_reasons[side as usize] = BTreeMap::default();
            sides.nodes[side as usize] = node;
        });
    }

    /// Marks a side as not connected.
    pub(super) fn set_down(&self, side: Side, reason: &str) {
        self.update(|sides| {
            sides.down_reasons[side as usize] = Some(reason.to_owned());
            if side == Side::Publisher {
                sides.blocked_reason = None;
                sides.unresponsive_for = None;
            }
        });
    }

    /// Records why a side is not connected to this node. Returns whether the reason is new for both
    /// sides, because usually both fail for the same reason.
    pub(super) fn record_if_new(&self, side: Side, node: &str, reason: &str) -> bool {
        let mut sides = self.sides.borrow_mut();
        let is_logged = sides.last_reasons.iter().any(|reasons| {
            reasons.get(node).is_some_and(|last_reason| last_reason.is_last(reason))
        });
        let last_reason = sides.last_reasons[side as usize].entry(node.to_owned()).or_default();
        last_reason.record_if_new(reason) && !is_logged
    }

    /// Marks a side as not connected, for the reasons that are recorded of all nodes.
    pub(super) fn set_unreachable(&self, side: Side) {
        let reasons: Vec<String> = {
            let sides = self.sides.borrow();
            let last_reasons = sides.last_reasons[side as usize].values();
            last_reasons.filter_map(LastReason::text).map(str::to_owned).collect()
        };
        self.set_down(side, &reasons.join("; "));
    }

    /// Records whether the broker blocks publishers, and why.
    pub(super) fn set_blocked(&self, reason: Option<String>) {
        self.update(|sides| sides.blocked_reason = reason);
    }

    /// Records for how long the broker has confirmed nothing; `None` if it is responsive.
    pub(super) fn set_unresponsive(&self, elapsed: Option<Duration>) {
        self.update(|sides| sides.unresponsive_for = elapsed);
    }

    /// Applies a change, and reports the state of the bus if it differs from the last one.
    fn update(&self, change: impl FnOnce(&mut SideStates)) {
        let mut sides = self.sides.borrow_mut();
        change(&mut sides);
        // A side has an empty reason before its first attempt. A reason of the other side is
        // preferred to that.
        let reasons = || sides.down_reasons.iter().flatten();
        let state = match (
            reasons().find(|reason| !reason.is_empty()).or_else(|| reasons().next()),
            &sides.blocked_reason,
            sides.unresponsive_for,
        ) {
            (Some(reason), ..) => BusState::Disconnected { reason: reason.clone() },
            (None, Some(reason), _) => BusState::Blocked { reason: reason.clone() },
            (None, None, Some(elapsed)) => BusState::Unresponsive { elapsed },
            (None, None, None) => {
                let mut nodes: Vec<String> = sides.nodes.iter().flatten().cloned().collect();
                nodes.dedup();
                BusState::Connected { nodes }
            }
        };
        if state != sides.reported_state {
            sides.reported_state = state.clone();
            // The borrow ends before the sink runs, which is foreign code.
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
        let states = Arc::new(Mutex::new(Vec::new()));
        let sink_states = states.clone();
        let sink: EventSink = Arc::new(move |event| {
            if let (BusEvent::State(state), Ok(mut states)) = (event, sink_states.lock()) {
                states.push(state.to_string());
            }
        });
        let reporter = StateReporter::new(sink);
        reporter.set_up(Side::Consumer, None);
        reporter.set_up(Side::Publisher, None);
        reporter.set_unresponsive(Some(Duration::from_secs(10)));
        reporter.set_blocked(Some("low on memory".to_owned()));
        reporter.set_down(Side::Consumer, "gone");
        reporter.set_down(Side::Publisher, "gone");
        reporter.set_up(Side::Publisher, None);
        reporter.set_up(Side::Consumer, None);
        let set_unreachable = |node: &str, reason: &str| {
            reporter.record_if_new(Side::Consumer, node, reason);
            reporter.set_unreachable(Side::Consumer);
        };
        set_unreachable("a:1", "a refuses");
        set_unreachable("b:1", "b is silent");
        set_unreachable("a:1", "a is silent");
        reporter.set_up(Side::Consumer, Some("c:1".to_owned()));
        reporter.set_up(Side::Publisher, Some("c:1".to_owned()));
        reporter.set_up(Side::Publisher, Some("a:1".to_owned()));
        let expected = [
            "connected",
            "connected, but the broker has confirmed nothing for 10s although messages wait for \
             that: has the network stopped, or the broker?",
            "publishing blocked by the broker: low on memory",
            "not connected: gone",
            "connected",
            "not connected: a refuses",
            "not connected: a refuses; b is silent",
            "not connected: a is silent; b is silent",
            "connected to c:1",
            "connected to a:1 and c:1",
        ];
        assert_eq!(*states.lock().unwrap(), expected);
    }
}
