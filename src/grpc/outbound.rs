//! Tracks the outbound messages of a call. Each keeps its permit until its last byte was sent to
//! the worker, not only until HTTP/2 has it, which buffers what the other end does not read.

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

/// Tracks what a call sends. Clones share it.
#[derive(Clone, Default)]
pub(super) struct OutboundTracker(Arc<OutboundState>);

#[derive(Default)]
struct OutboundState {
    /// The permits of the messages in the chunk that is written next.
    handed_over: Mutex<Vec<OutboundPermit>>,
    /// How many messages were not sent yet.
    pending: AtomicUsize,
    /// How many messages were sent.
    sent: AtomicUsize,
    all_sent: Notify,
}

/// The permit of a message until it was sent.
pub(super) struct OutboundPermit {
    state: Arc<OutboundState>,
    _permit: Permit,
}

impl Drop for OutboundPermit {
    fn drop(&mut self) {
        self.state.sent.fetch_add(1, Ordering::Relaxed);
        if self.state.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.state.all_sent.notify_one();
        }
    }
}

impl OutboundTracker {
    /// Tracks a message from now on, until its permit is dropped.
    pub(super) fn track(&self, permit: Permit) -> OutboundPermit {
        self.0.pending.fetch_add(1, Ordering::AcqRel);
        OutboundPermit { state: self.0.clone(), _permit: permit }
    }

    /// Records that a message was handed over to be written.
    pub(super) fn hand_over(&self, permit: OutboundPermit) {
        self.0.handed_over.lock().unwrap_or_else(PoisonError::into_inner).push(permit);
    }

    /// Takes the permits of the messages that were handed over.
    fn take_handed_over(&self) -> Vec<OutboundPermit> {
        let mut written = self.0.handed_over.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *written)
    }

    /// Returns whether a message was not sent yet.
    pub(super) fn is_pending(&self) -> bool {
        self.0.pending.load(Ordering::Acquire) > 0
    }

    /// Returns how many messages were sent.
    pub(super) fn sent_count(&self) -> usize {
        self.0.sent.load(Ordering::Relaxed)
    }

    /// Waits until all messages were sent. Aborts the connection if none was sent for `timeout`.
    pub(super) async fn wait_until_sent(self, peer: Option<Peer>, timeout: Duration) {
        while self.is_pending() {
            let sent_before = self.sent_count();
            tokio::select! {
                () = self.0.all_sent.notified() => {}
                () = tokio::time::sleep(timeout) => {
                    if let Some(peer) = &peer
                        && self.sent_count() == sent_before
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

/// The body of a response.
struct OutboundBody {
    body: Body,
    tracker: OutboundTracker,
}

/// Releases the permits of what is never written.
impl Drop for OutboundBody {
    fn drop(&mut self) {
        drop(self.tracker.take_handed_over());
    }
}

/// A chunk of whole messages, with their permits.
struct OutboundChunk {
    bytes: Bytes,
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
        // A chunk contains all messages that were handed over until now.
        let permits = self.tracker.take_handed_over();
        Poll::Ready(next.map(|frame| {
            frame.map(|frame| match permits.is_empty() {
                true => frame,
                false => frame.map_data(|bytes| {
                    Bytes::from_owner(OutboundChunk { bytes, _permits: permits })
                }),
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
