//! The messages that queues have lost, as far as is known now.

use crate::telemetry::Metrics;
use bus::{Address, BusKey};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The loss of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLoss {
    /// How many steps have waited on it for the whole span.
    pub waiting: u64,
    /// The most messages seen meanwhile: waiting, with a worker, or answered.
    pub messages: u64,
}

impl QueueLoss {
    /// Returns how many messages are gone, at least.
    pub fn missing(self) -> u64 {
        self.waiting.saturating_sub(self.messages)
    }
}

/// The losses known now, by queue.
#[derive(Default)]
pub struct QueueLosses(Mutex<BTreeMap<Address, QueueLoss>>);

impl QueueLosses {
    /// Returns what the queue has lost, if anything.
    pub fn find(&self, queue: &Address) -> Option<QueueLoss> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(queue).copied()
    }

    /// Replaces what is known of a bus; returns the queues that are new.
    pub(super) fn replace(
        &self,
        metrics: &Metrics,
        bus: &BusKey,
        found: &BTreeMap<Arc<str>, QueueLoss>,
    ) -> Vec<Arc<str>> {
        let mut losses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let gauge = |queue: &str| {
            metrics.queue_messages_lost.with_label_values(&[&*bus.name, &*bus.vhost, queue])
        };
        losses.retain(|Address { bus: of, queue }, _| {
            let stays = of != bus || found.contains_key(queue);
            if !stays {
                gauge(queue).set(0);
            }
            stays
        });
        let mut new = Vec::new();
        for (queue, loss) in found {
            gauge(queue).set(i64::try_from(loss.missing()).unwrap_or(i64::MAX));
            let address = Address { bus: bus.clone(), queue: queue.clone() };
            if losses.insert(address, *loss).is_none() {
                new.push(queue.clone());
            }
        }
        new
    }
}
