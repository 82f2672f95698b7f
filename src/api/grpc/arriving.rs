//! Reads the messages of a call before memory is allocated for them: each within its size and time
//! limit, and all within the budget for bodies, as requests over HTTP.
//!
//! A gRPC message is a flag, its length in four bytes, and that many bytes. A message on a stream
//! that is too large is skipped: it costs only itself.

use super::super::problem::Problem;
use super::status::status;
use crate::actors::common::Common;
use crate::room::{Room, SMALL_BODY_BYTES_MAX, Taken};
use bytes::{Buf, Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http_body::{Body as HttpBody, Frame};
use prost::encoding::{WireType, decode_key, decode_varint};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc;
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;

/// The bytes before a message: a flag and its length.
const HEAD_BYTES: usize = 5;

/// How many bytes of a message that is too large are kept, to find its receipt.
const START_BYTES_MAX: usize = 4096;

/// What a call receives besides its messages.
pub(super) struct Arrivals {
    /// The permits of the messages, in their order.
    pub(super) rooms: mpsc::UnboundedReceiver<Taken>,
    /// Events that are no message.
    pub(super) others: mpsc::UnboundedReceiver<Other>,
}

/// An event of a call's body that is no message.
pub(super) enum Other {
    /// A message of so many bytes was too large and was skipped; its receipt, if that could be
    /// read.
    TooLarge(usize, Option<String>),
    /// The stream was aborted instead of ended.
    Broken,
}

/// Passes the signals of a call to its handler.
#[derive(Clone)]
pub(super) struct Slot(Arc<Mutex<Option<Arrivals>>>);

impl Slot {
    pub(super) fn of(arrivals: Arrivals) -> Slot {
        Slot(Arc::new(Mutex::new(Some(arrivals))))
    }

    /// Takes the signals, once.
    pub(super) fn take(&self) -> Option<Arrivals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The body of a call.
pub(super) struct Arriving {
    body: Body,
    common: Arc<Common>,
    bytes_max: usize,
    /// Whether messages that are too large are skipped.
    passes_over: bool,
    rooms: mpsc::UnboundedSender<Taken>,
    others: mpsc::UnboundedSender<Other>,
    /// Bytes that were received and not parsed.
    come: Bytes,
    state: State,
}

enum State {
    /// Between two messages, or within the head of one.
    Head(BytesMut),
    /// A message waits for its permit.
    Waiting {
        head: Bytes,
        length: usize,
        room: BoxFuture<'static, Option<Taken>>,
        until: Pin<Box<Sleep>>,
    },
    /// Within a message that has its permit.
    Message { left: usize, taken: Taken, until: Pin<Box<Sleep>> },
    /// Within a message that is skipped.
    PassedOver { length: usize, left: usize, start: BytesMut, until: Pin<Box<Sleep>> },
}

impl Arriving {
    /// Creates the body of a call by a worker, with its signals.
    pub(super) fn of_worker(
        body: Body,
        common: Arc<Common>,
        passes_over: bool,
    ) -> (Arriving, Arrivals) {
        let bytes_max = common.settings.http.body_bytes_max;
        let (rooms, taken) = mpsc::unbounded_channel();
        let (others, other) = mpsc::unbounded_channel();
        let come = Bytes::new();
        let state = State::Head(BytesMut::new());
        let arriving =
            Arriving { body, common, bytes_max, passes_over, rooms, others, come, state };
        (arriving, Arrivals { rooms: taken, others: other })
    }

    /// Creates the body of a call with small messages.
    pub(super) fn small(body: Body, common: Arc<Common>) -> Arriving {
        let (arriving, _) = Arriving::of_worker(body, common, false);
        Arriving { bytes_max: SMALL_BODY_BYTES_MAX, ..arriving }
    }

    fn patience(&self) -> Pin<Box<Sleep>> {
        Box::pin(tokio::time::sleep(self.common.settings.http.body_timeout.0))
    }

    /// Begins a message, and returns what can be forwarded of it now.
    fn begin(&mut self, head: Bytes, length: usize) -> Result<Option<Bytes>, Status> {
        if length > self.bytes_max {
            if !self.passes_over {
                let max = self.bytes_max;
                return Err(status(&Problem::too_large(format!(
                    "the message has {length} bytes, more than {max} (setting http.body_bytes_max)"
                ))));
            }
            let until = self.patience();
            let start = BytesMut::new();
            self.state = State::PassedOver { length, left: length, start, until };
            return Ok(None);
        }
        match room(&self.common, length).take(length) {
            Some(taken) => Ok(Some(self.within(head, length, taken))),
            None => {
                let common = self.common.clone();
                let room = Box::pin(async move { room(&common, length).wait(length).await });
                self.state = State::Waiting { head, length, room, until: self.patience() };
                Ok(None)
            }
        }
    }

    /// Begins the payload of a message that has its permit, and returns what can be forwarded of it
    /// now.
    fn within(&mut self, head: Bytes, length: usize, taken: Taken) -> Bytes {
        let there = self.come.split_to(length.min(self.come.len()));
        if there.len() == length {
            self.whole(taken);
        } else {
            let (left, until) = (length - there.len(), self.patience());
            self.state = State::Message { left, taken, until };
        }
        if there.is_empty() {
            return head;
        }
        let mut passed = BytesMut::with_capacity(head.len() + there.len());
        passed.extend_from_slice(&head);
        passed.extend_from_slice(&there);
        passed.freeze()
    }

    fn whole(&mut self, taken: Taken) {
        self.state = State::Head(BytesMut::new());
        // An error means that the receiver of the messages is gone.
        let _ = self.rooms.send(taken);
    }

    /// Polls for bytes to forward among those received; `None`: more must be received first.
    fn pass_on(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        loop {
            match std::mem::replace(&mut self.state, State::Head(BytesMut::new())) {
                State::Head(mut head) => {
                    let missing = HEAD_BYTES - head.len();
                    head.extend_from_slice(&self.come.split_to(missing.min(self.come.len())));
                    if head.len() < HEAD_BYTES {
                        self.state = State::Head(head);
                        return Poll::Ready(Ok(None));
                    }
                    let head = head.freeze();
                    let length = (&head[1..]).get_u32() as usize;
                    if let Some(passed) = self.begin(head, length)? {
                        return Poll::Ready(Ok(Some(passed)));
                    }
                }
                State::Waiting { head, length, mut room, mut until } => {
                    if let Poll::Ready(taken) = room.as_mut().poll(context) {
                        let taken = taken.ok_or_else(full)?;
                        return Poll::Ready(Ok(Some(self.within(head, length, taken))));
                    }
                    let is_late = until.as_mut().poll(context).is_ready();
                    self.state = State::Waiting { head, length, room, until };
                    return if is_late { Poll::Ready(Err(full())) } else { Poll::Pending };
                }
                State::Message { left, taken, until } => {
                    let there = self.come.split_to(left.min(self.come.len()));
                    if there.len() == left {
                        self.whole(taken);
                    } else {
                        self.state = State::Message { left: left - there.len(), taken, until };
                    }
                    return Poll::Ready(Ok((!there.is_empty()).then_some(there)));
                }
                State::PassedOver { length, left, mut start, until } => {
                    let there = self.come.split_to(left.min(self.come.len()));
                    let room = START_BYTES_MAX - start.len();
                    start.extend_from_slice(&there[..room.min(there.len())]);
                    if there.len() < left {
                        let left = left - there.len();
                        self.state = State::PassedOver { length, left, start, until };
                        return Poll::Ready(Ok(None));
                    }
                    // An error means that the receiver of the messages is gone.
                    let _ = self.others.send(Other::TooLarge(length, receipt(&start)));
                }
            }
        }
    }

    /// Polls whether a message takes too long.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        match &mut self.state {
            State::Message { until, .. } | State::PassedOver { until, .. } => {
                until.as_mut().poll(context).is_ready()
            }
            State::Head(_) | State::Waiting { .. } => false,
        }
    }
}

/// Returns the budget for a message of this length.
fn room(common: &Common, length: usize) -> &Room {
    if length <= SMALL_BODY_BYTES_MAX {
        &common.rooms.small_bodies
    } else {
        &common.rooms.large_bodies
    }
}

fn full() -> Status {
    Status::unavailable(
        "too many bytes of messages at once (setting http.bodies_bytes_max): send it again later",
    )
}

/// Parses the receipt of a message of which only the start is known, if it is a reply.
fn receipt(start: &[u8]) -> Option<String> {
    const REPLY: u32 = 3;
    const RECEIPT: u32 = 1;
    let mut rest = start;
    let (field, kind) = decode_key(&mut rest).ok()?;
    if field != REPLY || kind != WireType::LengthDelimited {
        return None;
    }
    decode_varint(&mut rest).ok()?;
    loop {
        match decode_key(&mut rest).ok()? {
            (RECEIPT, WireType::LengthDelimited) => {
                let length = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
                return Some(std::str::from_utf8(rest.get(..length)?).ok()?.to_owned());
            }
            (_, WireType::Varint) => drop(decode_varint(&mut rest).ok()?),
            // The start ends within the body.
            _ => return None,
        }
    }
}

impl HttpBody for Arriving {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some(passed) = ready!(self.pass_on(context))? {
                return Poll::Ready(Some(Ok(Frame::data(passed))));
            }
            let Poll::Ready(next) = Pin::new(&mut self.body).poll_frame(context) else {
                if self.is_late(context) {
                    let limit = self.common.settings.http.body_timeout;
                    return Poll::Ready(Some(Err(Status::deadline_exceeded(format!(
                        "a message did not arrive whole within {limit} (setting http.body_timeout)"
                    )))));
                }
                return Poll::Pending;
            };
            match next {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.come = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                Some(Err(error)) => {
                    // An error means that the receiver of the messages is gone.
                    let _ = self.others.send(Other::Broken);
                    return Poll::Ready(Some(Err(error)));
                }
                None => return Poll::Ready(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire;
    use super::*;
    use prost::Message;

    #[test]
    fn the_receipt_of_a_reply_is_read_from_its_start() {
        use wire::from_worker::Say;
        let of = |say: Say| wire::FromWorker { say: Some(say) }.encode_to_vec();
        let body = Bytes::from(vec![b'x'; 10_000]);
        let reply = |kind: i32| {
            let receipt = "/api/queue/a/message/b/1/reply".to_owned();
            Say::Reply(wire::ReplyRequest { receipt, kind, body: body.clone() })
        };
        for kind in [0, 2] {
            let bytes = of(reply(kind));
            let read = receipt(&bytes[..START_BYTES_MAX]);
            assert_eq!(read.as_deref(), Some("/api/queue/a/message/b/1/reply"));
            for cut in 0..40 {
                // A part of it, or all of it, but never a wrong receipt.
                let read = receipt(&bytes[..cut]);
                assert!(read.is_none_or(|read| read.ends_with("/reply")), "{cut}");
            }
        }
        let extend = wire::ExtendRequest { receipt: "x".to_owned(), lease: None };
        assert_eq!(receipt(&of(Say::Extend(extend))), None);
    }
}
