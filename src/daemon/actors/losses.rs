//! The registry of queues that have lost messages.

use crate::telemetry::Metrics;
use bus::{Address, BusKey};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The loss of messages on a queue: more steps wait than the queue can have messages for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLoss {
    /// How many steps have waited on the queue for the whole observation time.
    pub waiting: u64,
    /// The largest number of messages in any sample: those that wait in the queue, are
    /// unacknowledged, or are in the reply queue.
    pub messages: u64,
}

impl QueueLoss {
    /// Returns a lower bound of the number of lost messages.
    pub fn missing(self) -> u64 {
        self.waiting.saturating_sub(self.messages)
    }
}

/// The current losses, by queue.
#[derive(Default)]
pub struct QueueLosses(Mutex<BTreeMap<Address, QueueLoss>>);

impl QueueLosses {
    /// Finds the loss of a queue.
    pub fn find(&self, queue: &Address) -> Option<QueueLoss> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(queue).copied()
    }

    /// Replaces the losses of a bus, and updates their metrics. Returns the queues that have a loss
    /// now and had none before.
    pub(super) fn replace(
        &self,
        metrics: &Metrics,
        bus: &BusKey,
        bus_losses: &BTreeMap<Arc<str>, QueueLoss>,
    ) -> Vec<Arc<str>> {
        let mut losses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let gauge = |queue: &str| {
            metrics.queue_messages_lost.with_label_values(&[&*bus.name, &*bus.vhost, queue])
        };
        losses.retain(|address, _| {
            let must_keep = address.bus != *bus || bus_losses.contains_key(&address.queue);
            if !must_keep {
                gauge(&address.queue).set(0);
            }
            must_keep
        });
        let mut new_queues = Vec::new();
        for (queue, loss) in bus_losses {
            gauge(queue).set(i64::try_from(loss.missing()).unwrap_or(i64::MAX));
            let address = Address { bus: bus.clone(), queue: queue.clone() };
            if losses.insert(address, *loss).is_none() {
                new_queues.push(queue.clone());
            }
        }
        new_queues
    }
}
