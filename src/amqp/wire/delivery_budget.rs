//! Bounds the bytes of unsettled replies in memory. The broker bounds only their number, by the
//! prefetch. So the connection is not read while they are too large together; further replies then
//! wait in the broker.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// The budget for the replies of a bus, over all its connections, which follow one another.
#[derive(Debug)]
pub(crate) struct DeliveryBudget {
    bytes_max: usize,
    used_bytes: AtomicUsize,
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

    /// Returns whether the unsettled replies of the manager leave room for more.
    pub(crate) fn has_capacity(&self) -> bool {
        self.used_bytes.load(Ordering::Acquire) <= self.bytes_max
    }

    fn wake(&self) {
        let waiting = std::mem::take(
            &mut *self.waiting_readers.lock().unwrap_or_else(PoisonError::into_inner),
        );
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// The replies that arrive over one connection.
#[derive(Debug)]
pub(crate) struct DeliveryFlow {
    budget: Arc<DeliveryBudget>,
    /// The channel of the replies; 0 until it is open.
    channel: AtomicU16,
    /// The bytes of complete bodies that were read and are still in the library.
    library_bytes: AtomicUsize,
    /// Whether a reply was read. Nothing is held up before, because the connection is still being
    /// opened.
    has_started: AtomicBool,
}

impl DeliveryFlow {
    pub(crate) fn new(budget: &Arc<DeliveryBudget>) -> Arc<DeliveryFlow> {
        Arc::new(DeliveryFlow {
            budget: budget.clone(),
            channel: AtomicU16::new(0),
            library_bytes: AtomicUsize::new(0),
            has_started: AtomicBool::new(false),
        })
    }

    /// Counts what arrives over this channel from now on.
    pub(crate) fn set_channel(&self, channel: u16) {
        self.channel.store(channel, Ordering::Release);
    }

    /// Counts a body of `bytes` as the manager's, which the library had until now.
    pub(crate) fn acquire(&self, bytes: usize) -> DeliveryPermit {
        self.budget.used_bytes.fetch_add(bytes, Ordering::AcqRel);
        let left = |read: usize| Some(read.saturating_sub(bytes));
        // The update never fails, for the closure always returns `Some`.
        let _ = self.library_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, left);
        DeliveryPermit { budget: self.budget.clone(), bytes }
    }

    pub(super) fn channel(&self) -> u16 {
        self.channel.load(Ordering::Acquire)
    }

    /// Records that complete bodies of `bytes` were read.
    pub(super) fn record_read(&self, bytes: usize) {
        if bytes > 0 {
            self.library_bytes.fetch_add(bytes, Ordering::AcqRel);
            self.has_started.store(true, Ordering::Release);
        }
    }

    /// Returns ready when more may be read.
    pub(super) fn poll_read_allowed(&self, context: &Context<'_>) -> Poll<()> {
        if self.can_read() {
            return Poll::Ready(());
        }
        {
            let mut waiting =
                self.budget.waiting_readers.lock().unwrap_or_else(PoisonError::into_inner);
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
        }
        // Bytes that were released before the waker was registered would not wake it.
        if self.can_read() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn can_read(&self) -> bool {
        let read = self.library_bytes.load(Ordering::Acquire);
        !self.has_started.load(Ordering::Acquire)
            || self.budget.used_bytes.load(Ordering::Acquire).saturating_add(read)
                <= self.budget.bytes_max
    }
}

/// A reply that the manager has not settled. Dropping it releases its bytes.
#[derive(Debug)]
pub(crate) struct DeliveryPermit {
    budget: Arc<DeliveryBudget>,
    bytes: usize,
}

impl Drop for DeliveryPermit {
    fn drop(&mut self) {
        self.budget.used_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        self.budget.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Wake;

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn reading_stops_when_the_budget_is_used_up_and_resumes_when_it_is_not() {
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count.clone());
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
            "the library's are the manager's now"
        );
        // Another connection of the same bus may be opened, but nothing more.
        let next = DeliveryFlow::new(&budget);
        assert!(next.poll_read_allowed(&context).is_ready());
        next.record_read(1);
        assert!(next.poll_read_allowed(&context).is_pending());
        drop(permits);
        assert_eq!(count.0.load(Ordering::SeqCst), 1, "once for both that wait, which are one");
        assert!(
            flow.poll_read_allowed(&context).is_ready()
                && next.poll_read_allowed(&context).is_ready()
                && budget.has_capacity()
        );
    }
}
