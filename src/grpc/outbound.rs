//! Tracks the outbound messages of a call. Each holds its memory permit until its last byte has
//! been sent to the worker. Handing the message over to HTTP/2 is not enough, because HTTP/2
//! buffers what a worker does not read.

use super::connection::Peer;
use base::budget::Permit;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::Notify;
use tonic::Status;
use tonic::body::Body;

/// Tracks the messages that a call sends. Clones share their state.
#[derive(Clone, Default)]
pub(super) struct OutboundTracker(Arc<OutboundState>);

#[derive(Default)]
struct OutboundState {
    /// The permits of the messages that tonic encodes into its next chunk.
    next_chunk: Mutex<Vec<OutboundPermit>>,
    /// How many messages have not been sent yet.
    pending: AtomicUsize,
    /// How many permits were released so far: their messages were sent, or dropped with the call.
    released: AtomicUsize,
    /// Notified when the last pending permit is released.
    all_released: Notify,
}

/// The permit of a message until it has been sent.
pub(super) struct OutboundPermit {
    state: Arc<OutboundState>,
    /// Held until this is dropped.
    _permit: Permit,
}

impl Drop for OutboundPermit {
    fn drop(&mut self) {
        self.state.released.fetch_add(1, Ordering::Relaxed);
        if self.state.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.state.all_released.notify_one();
        }
    }
}

impl OutboundTracker {
    /// Tracks a message from now on, until its permit is dropped.
    pub(super) fn track(&self, permit: Permit) -> OutboundPermit {
        self.0.pending.fetch_add(1, Ordering::AcqRel);
        OutboundPermit { state: self.0.clone(), _permit: permit }
    }

    /// Adds the permit of a message that tonic encodes next.
    pub(super) fn add_to_next_chunk(&self, permit: OutboundPermit) {
        self.0.next_chunk.lock().unwrap_or_else(PoisonError::into_inner).push(permit);
    }

    /// Takes the permits of the messages in the next chunk.
    fn take_next_chunk(&self) -> Vec<OutboundPermit> {
        let mut permits = self.0.next_chunk.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *permits)
    }

    /// Returns whether a message has not been sent yet.
    pub(super) fn is_pending(&self) -> bool {
        self.0.pending.load(Ordering::Acquire) > 0
    }

    /// Returns how many permits were released so far. While the number rises, the worker reads.
    pub(super) fn released_count(&self) -> usize {
        self.0.released.load(Ordering::Relaxed)
    }

    /// Waits until all messages have been sent. Closes the connection, if it is known, once none
    /// was sent for `timeout`.
    pub(super) async fn wait_until_sent(self, peer: Option<Peer>, timeout: Duration) {
        while self.is_pending() {
            let released_before = self.released_count();
            tokio::select! {
                () = self.0.all_released.notified() => {}
                () = tokio::time::sleep(timeout) => {
                    if let Some(peer) = &peer
                        && self.released_count() == released_before
                        // The last message may just have been sent.
                        && self.is_pending()
                    {
                        return peer.close();
                    }
                }
            }
        }
    }

    /// Wraps the body of the call's response, so that each permit is released as its bytes are
    /// sent.
    pub(super) fn wrap_body(self, body: Body) -> Body {
        Body::new(OutboundBody { body, tracker: self })
    }
}

/// A response body that ties the permits of messages to the chunks that contain them.
struct OutboundBody {
    body: Body,
    tracker: OutboundTracker,
}

/// Releases the permits of messages that are never encoded.
impl Drop for OutboundBody {
    fn drop(&mut self) {
        drop(self.tracker.take_next_chunk());
    }
}

/// A chunk of whole messages, with their permits.
struct OutboundChunk {
    bytes: Bytes,
    /// Held until the chunk is dropped.
    _permits: Vec<OutboundPermit>,
}

impl AsRef<[u8]> for OutboundChunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for OutboundBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let next = ready!(Pin::new(&mut self.body).poll_frame(context));
        // tonic encodes all messages that were added until now into one chunk.
        let permits = self.tracker.take_next_chunk();
        if permits.is_empty() {
            return Poll::Ready(next);
        }
        let to_chunk = |bytes| Bytes::from_owner(OutboundChunk { bytes, _permits: permits });
        Poll::Ready(next.map(|result| result.map(|frame| frame.map_data(to_chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
