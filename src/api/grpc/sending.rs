//! The messages of a call as they go out: each keeps its room until its last byte has left for the
//! worker, not only until it is handed to HTTP/2, which keeps what the other end does not read yet.

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

/// What is on its way of one call. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Sending(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Of the messages that are in the piece that is written next.
    written: Mutex<Vec<Departure>>,
    /// How many have not left.
    left: AtomicUsize,
    /// How many have left.
    gone: AtomicUsize,
    changed: Notify,
}

/// The room of a message, until it has left.
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
    /// A message that is on its way from now on.
    pub(super) fn departure(&self, taken: Taken) -> Departure {
        self.0.left.fetch_add(1, Ordering::AcqRel);
        Departure { of: self.0.clone(), _taken: taken }
    }

    /// A message is handed over to be written.
    pub(super) fn written(&self, departure: Departure) {
        self.0.written.lock().unwrap_or_else(PoisonError::into_inner).push(departure);
    }

    /// Takes out what was handed over to be written.
    fn take_written(&self) -> Vec<Departure> {
        let mut written = self.0.written.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *written)
    }

    /// Whether something has not left.
    pub(super) fn is_under_way(&self) -> bool {
        self.0.left.load(Ordering::Acquire) > 0
    }

    /// How many messages have left.
    pub(super) fn gone(&self) -> usize {
        self.0.gone.load(Ordering::Relaxed)
    }

    /// Waits until all has left; breaks the connection off if nothing leaves for so long.
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

    /// The body of this call's answer, which gives each room back as the bytes leave.
    pub(super) fn body(self, body: Body) -> Body {
        Body::new(Leaving { body, sending: self })
    }
}

/// The body of an answer.
struct Leaving {
    body: Body,
    sending: Sending,
}

/// What is not written goes nowhere any more: its room is free.
impl Drop for Leaving {
    fn drop(&mut self) {
        drop(self.sending.take_written());
    }
}

/// A piece of whole messages, and their rooms.
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
        // A piece has all messages that were taken until now.
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
