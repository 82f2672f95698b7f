//! Bounds the bytes of unsettled replies in memory. The broker bounds only their number, by the
//! prefetch. So the connection is not read while they are too large together; further replies then
//! wait in the broker.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// The budget for the replies of a bus, over all its connections, which follow one another.
#[derive(Debug)]
pub(in crate::bus::amqp) struct DeliveryRoom {
    bytes_max: usize,
    held: AtomicUsize,
    waiting: Mutex<Vec<Waker>>,
}

impl DeliveryRoom {
    pub(in crate::bus::amqp) fn new(bytes_max: usize) -> Arc<DeliveryRoom> {
        Arc::new(DeliveryRoom { bytes_max, held: AtomicUsize::new(0), waiting: Mutex::default() })
    }

    /// Returns whether the unsettled replies of the manager leave room for more.
    pub(in crate::bus::amqp) fn has_room(&self) -> bool {
        self.held.load(Ordering::Acquire) <= self.bytes_max
    }

    fn wake(&self) {
        let waiting =
            std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// The replies that arrive over one connection.
#[derive(Debug)]
pub(in crate::bus::amqp) struct Flow {
    room: Arc<DeliveryRoom>,
    /// The channel of the replies; 0 until it is open.
    channel: AtomicU16,
    /// The bytes of complete bodies that were read and are still in the library.
    read: AtomicUsize,
    /// Whether a reply was read. Nothing is held up before, because the connection is still being
    /// opened.
    has_begun: AtomicBool,
}

impl Flow {
    pub(in crate::bus::amqp) fn new(room: &Arc<DeliveryRoom>) -> Arc<Flow> {
        Arc::new(Flow {
            room: room.clone(),
            channel: AtomicU16::new(0),
            read: AtomicUsize::new(0),
            has_begun: AtomicBool::new(false),
        })
    }

    /// Counts what arrives over this channel from now on.
    pub(in crate::bus::amqp) fn watch(&self, channel: u16) {
        self.channel.store(channel, Ordering::Release);
    }

    /// Counts a body of `bytes` as the manager's, which the library had until now.
    pub(in crate::bus::amqp) fn take(&self, bytes: usize) -> Hold {
        self.room.held.fetch_add(bytes, Ordering::AcqRel);
        let left = |read: usize| Some(read.saturating_sub(bytes));
        // The update never fails, for the closure always returns `Some`.
        let _ = self.read.fetch_update(Ordering::AcqRel, Ordering::Acquire, left);
        Hold { room: self.room.clone(), bytes }
    }

    pub(super) fn channel(&self) -> u16 {
        self.channel.load(Ordering::Acquire)
    }

    /// Records that complete bodies of `bytes` were read.
    pub(super) fn has_read(&self, bytes: usize) {
        if bytes > 0 {
            self.read.fetch_add(bytes, Ordering::AcqRel);
            self.has_begun.store(true, Ordering::Release);
        }
    }

    /// Returns ready when more may be read.
    pub(super) fn poll_room(&self, context: &Context<'_>) -> Poll<()> {
        if self.has_room() {
            return Poll::Ready(());
        }
        {
            let mut waiting = self.room.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
        }
        // Bytes that were released before the waker was registered would not wake it.
        if self.has_room() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn has_room(&self) -> bool {
        let read = self.read.load(Ordering::Acquire);
        !self.has_begun.load(Ordering::Acquire)
            || self.room.held.load(Ordering::Acquire).saturating_add(read) <= self.room.bytes_max
    }
}

/// A reply that the manager has not settled. Dropping it releases its bytes.
#[derive(Debug)]
pub(in crate::bus) struct Hold {
    room: Arc<DeliveryRoom>,
    bytes: usize,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.room.held.fetch_sub(self.bytes, Ordering::AcqRel);
        self.room.wake();
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
    fn a_connection_is_read_as_long_as_there_is_room_and_woken_when_there_is_again() {
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count.clone());
        let context = Context::from_waker(&waker);
        let room = DeliveryRoom::new(100);
        let flow = Flow::new(&room);
        assert!(flow.poll_room(&context).is_ready());
        flow.has_read(60);
        flow.has_read(60);
        assert!(flow.poll_room(&context).is_pending() && flow.poll_room(&context).is_pending());
        let holds = [flow.take(60), flow.take(60)];
        assert!(
            flow.poll_room(&context).is_pending() && !room.has_room(),
            "the library's are the manager's now"
        );
        // Another connection of the same bus may be opened, but nothing more.
        let next = Flow::new(&room);
        assert!(next.poll_room(&context).is_ready());
        next.has_read(1);
        assert!(next.poll_room(&context).is_pending());
        drop(holds);
        assert_eq!(count.0.load(Ordering::SeqCst), 1, "once for both that wait, which are one");
        assert!(
            flow.poll_room(&context).is_ready()
                && next.poll_room(&context).is_ready()
                && room.has_room()
        );
    }
}
