//! Tracks the outbound messages of a call. Each keeps its permit until its last byte was sent to
//! the worker, not only until HTTP/2 has it, which buffers what the other end does not read.

use super::connection::Peer;
use crate::room::Taken;
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
pub(super) struct Sending(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// The permits of the messages in the chunk that is written next.
    written: Mutex<Vec<Departure>>,
    /// How many messages were not sent yet.
    left: AtomicUsize,
    /// How many messages were sent.
    gone: AtomicUsize,
    changed: Notify,
}

/// The permit of a message until it was sent.
pub(super) struct Departure {
    of: Arc<Shared>,
    _taken: Taken,
}

impl Drop for Departure {
    fn drop(&mut self) {
        self.of.gone.fetch_add(1, Ordering::Relaxed);
        if self.of.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.of.changed.notify_one();
        }
    }
}

impl Sending {
    /// Tracks a message from now on, until its permit is dropped.
    pub(super) fn departure(&self, taken: Taken) -> Departure {
        self.0.left.fetch_add(1, Ordering::AcqRel);
        Departure { of: self.0.clone(), _taken: taken }
    }

    /// Records that a message was handed over to be written.
    pub(super) fn written(&self, departure: Departure) {
        self.0.written.lock().unwrap_or_else(PoisonError::into_inner).push(departure);
    }

    /// Takes the permits of the messages that were handed over.
    fn take_written(&self) -> Vec<Departure> {
        let mut written = self.0.written.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *written)
    }

    /// Returns whether a message was not sent yet.
    pub(super) fn is_under_way(&self) -> bool {
        self.0.left.load(Ordering::Acquire) > 0
    }

    /// Returns how many messages were sent.
    pub(super) fn gone(&self) -> usize {
        self.0.gone.load(Ordering::Relaxed)
    }

    /// Waits until all messages were sent. Aborts the connection if none was sent for `timeout`.
    pub(super) async fn all_gone(self, peer: Option<Peer>, patience: Duration) {
        while self.is_under_way() {
            let gone = self.gone();
            tokio::select! {
                () = self.0.changed.notified() => {}
                () = tokio::time::sleep(patience) => {
                    if let Some(peer) = &peer
                        && self.gone() == gone
                        && self.is_under_way()
                    {
                        return peer.break_off();
                    }
                }
            }
        }
    }

    /// Wraps the body of the call's response, so that each permit is released as its bytes are
    /// sent.
    pub(super) fn body(self, body: Body) -> Body {
        Body::new(Leaving { body, sending: self })
    }
}

/// The body of a response.
struct Leaving {
    body: Body,
    sending: Sending,
}

/// Releases the permits of what is never written.
impl Drop for Leaving {
    fn drop(&mut self) {
        drop(self.sending.take_written());
    }
}

/// A chunk of whole messages, with their permits.
struct Piece {
    bytes: Bytes,
    _rooms: Vec<Departure>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for Leaving {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let next = ready!(Pin::new(&mut self.body).poll_frame(context));
        // A chunk contains all messages that were handed over until now.
        let rooms = self.sending.take_written();
        Poll::Ready(next.map(|frame| {
            frame.map(|frame| match rooms.is_empty() {
                true => frame,
                false => frame.map_data(|bytes| Bytes::from_owner(Piece { bytes, _rooms: rooms })),
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
