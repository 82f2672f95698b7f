//! Bounds the bytes of unsettled replies in memory.
//!
//! The broker bounds only their number, by the prefetch. So the connection is not read while the
//! budget is exhausted. This back-pressure keeps further replies in the broker.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// The budget of the unsettled replies of a bus. It outlives the bus's connections.
#[derive(Debug)]
pub(crate) struct DeliveryBudget {
    bytes_max: usize,
    /// The bytes of replies that were delivered to the manager and are not settled.
    used_bytes: AtomicUsize,
    /// The tasks that wait to read a connection.
    waiting_readers: Mutex<Vec<Waker>>,
}

impl DeliveryBudget {
    pub(crate) fn new(bytes_max: usize) -> Arc<DeliveryBudget> {
        Arc::new(DeliveryBudget {
            bytes_max,
            used_bytes: AtomicUsize::new(0),
            waiting_readers: Mutex::default(),
        })
    }

    /// Returns whether the replies that were delivered and are not settled fit into the budget.
    /// Those that lapin still buffers belong to one connection, and only that connection counts
    /// them.
    pub(crate) fn has_capacity(&self) -> bool {
        self.used_bytes.load(Ordering::Acquire) <= self.bytes_max
    }

    fn wake_readers(&self) {
        let wakers = std::mem::take(
            &mut *self.waiting_readers.lock().unwrap_or_else(PoisonError::into_inner),
        );
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Counts the replies that arrive over one connection, and blocks reading while the budget is
/// exhausted.
#[derive(Debug)]
pub(crate) struct DeliveryFlow {
    budget: Arc<DeliveryBudget>,
    /// The channel that consumes the replies; 0 until it is open.
    channel: AtomicU16,
    /// The bytes of complete bodies that `FilteredStream::poll_read` has passed to lapin, and lapin
    /// has not delivered yet.
    buffered_bytes: AtomicUsize,
    /// Whether a reply was read. Before that, reading is never blocked, because the connection may
    /// still be opening.
    has_read_reply: AtomicBool,
}

impl DeliveryFlow {
    pub(crate) fn new(budget: &Arc<DeliveryBudget>) -> Arc<DeliveryFlow> {
        Arc::new(DeliveryFlow {
            budget: budget.clone(),
            channel: AtomicU16::new(0),
            buffered_bytes: AtomicUsize::new(0),
            has_read_reply: AtomicBool::new(false),
        })
    }

    /// Sets the channel whose bodies are counted from now on.
    pub(crate) fn set_channel(&self, channel: u16) {
        self.channel.store(channel, Ordering::Release);
    }

    /// Acquires a permit for a body of `bytes` that lapin has delivered. Never waits: the body is
    /// in memory already, and the budget limits what is read next.
    pub(crate) fn acquire(&self, bytes: usize) -> DeliveryPermit {
        self.budget.used_bytes.fetch_add(bytes, Ordering::AcqRel);
        let subtract = |buffered: usize| Some(buffered.saturating_sub(bytes));
        // The update never fails, because the closure always returns `Some`.
        let _ = self.buffered_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, subtract);
        DeliveryPermit { budget: self.budget.clone(), bytes }
    }

    /// Returns the channel whose bodies are counted; 0 for none.
    pub(super) fn channel(&self) -> u16 {
        self.channel.load(Ordering::Acquire)
    }

    /// Records that complete bodies of `bytes` were read.
    pub(super) fn record_read(&self, bytes: usize) {
        if bytes > 0 {
            self.buffered_bytes.fetch_add(bytes, Ordering::AcqRel);
            self.has_read_reply.store(true, Ordering::Release);
        }
    }

    /// Returns `Ready` if the connection may be read. Otherwise wakes the task when a permit is
    /// released, so that it asks again.
    pub(super) fn poll_read_allowed(&self, context: &Context<'_>) -> Poll<()> {
        if self.can_read() {
            return Poll::Ready(());
        }
        {
            let mut wakers =
                self.budget.waiting_readers.lock().unwrap_or_else(PoisonError::into_inner);
            if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                wakers.push(context.waker().clone());
            }
        }
        // A permit that was released before the waker was registered does not wake it.
        if self.can_read() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Returns whether the connection may be read. Unlike [`DeliveryBudget::has_capacity`], this
    /// counts what lapin buffers, which is about to be delivered.
    fn can_read(&self) -> bool {
        let buffered_bytes = self.buffered_bytes.load(Ordering::Acquire);
        !self.has_read_reply.load(Ordering::Acquire)
            || self.budget.used_bytes.load(Ordering::Acquire).saturating_add(buffered_bytes)
                <= self.budget.bytes_max
    }
}

/// The permit of a reply that the manager has not settled. Dropping it releases its bytes.
#[derive(Debug)]
pub(crate) struct DeliveryPermit {
    budget: Arc<DeliveryBudget>,
    bytes: usize,
}

impl Drop for DeliveryPermit {
    fn drop(&mut self) {
        self.budget.used_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        self.budget.wake_readers();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Wake;

    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn reading_stops_while_the_budget_is_exhausted() {
        let wakes = Arc::new(WakeCounter(AtomicUsize::new(0)));
        let waker = Waker::from(wakes.clone());
        let context = Context::from_waker(&waker);
        let budget = DeliveryBudget::new(100);
        let flow = DeliveryFlow::new(&budget);
        assert!(flow.poll_read_allowed(&context).is_ready());
        flow.record_read(60);
        flow.record_read(60);
        assert!(
            flow.poll_read_allowed(&context).is_pending()
                && flow.poll_read_allowed(&context).is_pending()
        );
        let permits = [flow.acquire(60), flow.acquire(60)];
        assert!(
            flow.poll_read_allowed(&context).is_pending() && !budget.has_capacity(),
            "delivered bodies stay in the budget"
        );
        // Another connection of the same bus can be opened, but is not read after its first reply.
        let next_flow = DeliveryFlow::new(&budget);
        assert!(next_flow.poll_read_allowed(&context).is_ready());
        next_flow.record_read(1);
        assert!(next_flow.poll_read_allowed(&context).is_pending());
        drop(permits);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1, "both flows registered the same waker once");
        assert!(
            flow.poll_read_allowed(&context).is_ready()
                && next_flow.poll_read_allowed(&context).is_ready()
                && budget.has_capacity()
        );
    }
}
