//! Limits the messages of a call before memory is allocated for them. The size of each message and
//! the time until it has arrived are limited, and the budget for bodies limits the bytes of all, as
//! for requests over HTTP.
//!
//! A gRPC message consists of a compression flag, its length in four bytes, and its payload. On a
//! stream, a message that is too large is skipped, and the stream continues.

use super::status::to_status;
use base::budget::{Permit, ResourceBudget, SMALL_BODY_BYTES_MAX};
use bytes::{Buf, Bytes, BytesMut};
use daemon::api::problem::Problem;
use daemon::api::state::ApiState;
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

/// The size of the prefix of a gRPC message: the compression flag and the length of the payload.
const HEAD_BYTES: usize = 5;

/// How many bytes of a message that is too large are kept, so that its receipt can be parsed.
const PAYLOAD_START_BYTES_MAX: usize = 4096;

/// What the handler of a call receives besides the messages.
pub(super) struct IncomingSignals {
    /// The permits of the messages, in the order of the messages.
    pub(super) permits: mpsc::UnboundedReceiver<Permit>,
    /// The events of the body that are not messages.
    pub(super) events: mpsc::UnboundedReceiver<IncomingEvent>,
}

/// An event of a call's body that is not a message.
pub(super) enum IncomingEvent {
    /// A message was too large and was skipped: its length in bytes, and its receipt, if that could
    /// be parsed.
    TooLarge(usize, Option<String>),
    /// The stream was aborted by an error, and not ended by the client.
    Aborted,
}

/// Passes the signals of a call to its handler, as an extension of the request.
#[derive(Clone)]
pub(super) struct SignalsSlot(Arc<Mutex<Option<IncomingSignals>>>);

impl SignalsSlot {
    pub(super) fn new(signals: IncomingSignals) -> SignalsSlot {
        SignalsSlot(Arc::new(Mutex::new(Some(signals))))
    }

    /// Takes the signals, once.
    pub(super) fn take(&self) -> Option<IncomingSignals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The body of a call, which forwards its messages within their limits.
pub(super) struct IncomingBody {
    body: Body,
    api: Arc<ApiState>,
    /// The largest payload of a message, in bytes.
    bytes_max: usize,
    /// Whether messages that are too large are skipped. Otherwise they end the call.
    skips_too_large: bool,
    permits: mpsc::UnboundedSender<Permit>,
    events: mpsc::UnboundedSender<IncomingEvent>,
    /// The bytes that were received and not parsed yet.
    unparsed: Bytes,
    state: IncomingState,
}

/// The parser's position in the body.
enum IncomingState {
    /// Between two messages, or within the prefix of one, which has these bytes so far.
    Head(BytesMut),
    /// A message of `length` bytes waits for its permit.
    WaitingForPermit {
        head: Bytes,
        length: usize,
        acquire: BoxFuture<'static, Option<Permit>>,
        timeout: Pin<Box<Sleep>>,
    },
    /// Within a message that has its permit. `remaining` bytes were not received yet.
    Message { remaining: usize, permit: Permit, timeout: Pin<Box<Sleep>> },
    /// Within a message that is skipped. `payload_start` has the first bytes of its payload, and
    /// `remaining` bytes were not received yet.
    Skipping { length: usize, remaining: usize, payload_start: BytesMut, timeout: Pin<Box<Sleep>> },
}

impl IncomingBody {
    /// Creates the body of a call by a worker, with its signals.
    pub(super) fn for_worker(
        body: Body,
        api: Arc<ApiState>,
        skips_too_large: bool,
    ) -> (IncomingBody, IncomingSignals) {
        let bytes_max = api.settings.http.body_bytes_max;
        let (permit_sender, permit_receiver) = mpsc::unbounded_channel();
        let (event_sender, event_receiver) = mpsc::unbounded_channel();
        let unparsed = Bytes::new();
        let state = IncomingState::Head(BytesMut::new());
        let incoming = IncomingBody {
            body,
            api,
            bytes_max,
            skips_too_large,
            permits: permit_sender,
            events: event_sender,
            unparsed,
            state,
        };
        (incoming, IncomingSignals { permits: permit_receiver, events: event_receiver })
    }

    /// Creates the body of a call to another service, whose messages are small.
    pub(super) fn for_small_call(body: Body, api: Arc<ApiState>) -> IncomingBody {
        let (incoming, _) = IncomingBody::for_worker(body, api, false);
        IncomingBody { bytes_max: SMALL_BODY_BYTES_MAX, ..incoming }
    }

    /// Starts the timeout for one message to arrive.
    fn new_timeout(&self) -> Pin<Box<Sleep>> {
        Box::pin(tokio::time::sleep(self.api.settings.http.body_timeout.0))
    }

    /// Starts a message, whose prefix is `head`. Returns the bytes of it that can be forwarded now;
    /// `None`: it waits for a permit, or is skipped.
    ///
    /// # Errors
    ///
    /// Returns an error that ends the call if the message is too large.
    fn begin_message(&mut self, head: Bytes, length: usize) -> Result<Option<Bytes>, Status> {
        if length > self.bytes_max {
            if !self.skips_too_large {
                let bytes_max = self.bytes_max;
                return Err(to_status(&Problem::too_large(format!(
                    "the message has {length} bytes, more than {bytes_max} \
                     (setting http.body_bytes_max)"
                ))));
            }
            self.state = IncomingState::Skipping {
                length,
                remaining: length,
                payload_start: BytesMut::new(),
                timeout: self.new_timeout(),
            };
            return Ok(None);
        }
        match body_budget(&self.api, length).try_acquire(length) {
            Some(permit) => Ok(Some(self.begin_payload(head, length, permit))),
            None => {
                let api = self.api.clone();
                let acquire =
                    Box::pin(async move { body_budget(&api, length).acquire(length).await });
                self.state = IncomingState::WaitingForPermit {
                    head,
                    length,
                    acquire,
                    timeout: self.new_timeout(),
                };
                Ok(None)
            }
        }
    }

    /// Starts the payload of a message that has its permit. Returns the bytes of the message that
    /// can be forwarded now.
    fn begin_payload(&mut self, head: Bytes, length: usize, permit: Permit) -> Bytes {
        let available = self.unparsed.split_to(length.min(self.unparsed.len()));
        if available.len() == length {
            self.finish_message(permit);
        } else {
            let (remaining, timeout) = (length - available.len(), self.new_timeout());
            self.state = IncomingState::Message { remaining, permit, timeout };
        }
        if available.is_empty() {
            return head;
        }
        let mut chunk = BytesMut::with_capacity(head.len() + available.len());
        chunk.extend_from_slice(&head);
        chunk.extend_from_slice(&available);
        chunk.freeze()
    }

    /// Finishes a message, and passes its permit to the handler of the call.
    fn finish_message(&mut self, permit: Permit) {
        self.state = IncomingState::Head(BytesMut::new());
        // An error means that the handler of the call has ended.
        let _ = self.permits.send(permit);
    }

    /// Polls for bytes that were received and can be forwarded. Returns `None` if more bytes must
    /// be received first.
    fn poll_forward(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        loop {
            match std::mem::replace(&mut self.state, IncomingState::Head(BytesMut::new())) {
                IncomingState::Head(mut head) => {
                    let remaining = HEAD_BYTES - head.len();
                    head.extend_from_slice(
                        &self.unparsed.split_to(remaining.min(self.unparsed.len())),
                    );
                    if head.len() < HEAD_BYTES {
                        self.state = IncomingState::Head(head);
                        return Poll::Ready(Ok(None));
                    }
                    let head = head.freeze();
                    let length = (&head[1..]).get_u32() as usize;
                    if let Some(chunk) = self.begin_message(head, length)? {
                        return Poll::Ready(Ok(Some(chunk)));
                    }
                }
                IncomingState::WaitingForPermit { head, length, mut acquire, mut timeout } => {
                    if let Poll::Ready(permit) = acquire.as_mut().poll(context) {
                        let permit = permit.ok_or_else(over_budget)?;
                        return Poll::Ready(Ok(Some(self.begin_payload(head, length, permit))));
                    }
                    let has_timed_out = timeout.as_mut().poll(context).is_ready();
                    self.state = IncomingState::WaitingForPermit { head, length, acquire, timeout };
                    return if has_timed_out {
                        Poll::Ready(Err(over_budget()))
                    } else {
                        Poll::Pending
                    };
                }
                IncomingState::Message { remaining, permit, timeout } => {
                    let available = self.unparsed.split_to(remaining.min(self.unparsed.len()));
                    if available.len() == remaining {
                        self.finish_message(permit);
                    } else {
                        self.state = IncomingState::Message {
                            remaining: remaining - available.len(),
                            permit,
                            timeout,
                        };
                    }
                    return Poll::Ready(Ok((!available.is_empty()).then_some(available)));
                }
                IncomingState::Skipping { length, remaining, mut payload_start, timeout } => {
                    let available = self.unparsed.split_to(remaining.min(self.unparsed.len()));
                    let capacity = PAYLOAD_START_BYTES_MAX - payload_start.len();
                    payload_start.extend_from_slice(&available[..capacity.min(available.len())]);
                    if available.len() < remaining {
                        self.state = IncomingState::Skipping {
                            length,
                            remaining: remaining - available.len(),
                            payload_start,
                            timeout,
                        };
                        return Poll::Ready(Ok(None));
                    }
                    let receipt = parse_receipt(&payload_start);
                    // An error means that the handler of the call has ended.
                    let _ = self.events.send(IncomingEvent::TooLarge(length, receipt));
                }
            }
        }
    }

    /// Polls whether the current message has timed out while its bytes arrive.
    fn poll_timeout(&mut self, context: &mut Context<'_>) -> bool {
        match &mut self.state {
            IncomingState::Message { timeout, .. } | IncomingState::Skipping { timeout, .. } => {
                timeout.as_mut().poll(context).is_ready()
            }
            IncomingState::Head(_) | IncomingState::WaitingForPermit { .. } => false,
        }
    }
}

/// Returns the budget for a message of this length.
fn body_budget(api: &ApiState, length: usize) -> &ResourceBudget {
    if length <= SMALL_BODY_BYTES_MAX {
        &api.budgets.small_bodies
    } else {
        &api.budgets.large_bodies
    }
}

/// Builds the status of a call whose message got no permit from the budget in time.
fn over_budget() -> Status {
    Status::unavailable(
        "too many bytes of messages at once (setting http.bodies_bytes_max): send it again later",
    )
}

/// Parses the receipt of a reply from the first bytes of its message; `None`: it is not a reply, or
/// the receipt is not within these bytes.
fn parse_receipt(payload_start: &[u8]) -> Option<String> {
    // The field numbers in `proto/workers.proto`.
    const REPLY: u32 = 3;
    const RECEIPT: u32 = 1;
    let mut input = payload_start;
    let (field, wire_type) = decode_key(&mut input).ok()?;
    if field != REPLY || wire_type != WireType::LengthDelimited {
        return None;
    }
    // The length of the reply, which is not needed.
    decode_varint(&mut input).ok()?;
    loop {
        match decode_key(&mut input).ok()? {
            (RECEIPT, WireType::LengthDelimited) => {
                let length = usize::try_from(decode_varint(&mut input).ok()?).ok()?;
                return Some(std::str::from_utf8(input.get(..length)?).ok()?.to_owned());
            }
            (_, WireType::Varint) => drop(decode_varint(&mut input).ok()?),
            // Any other field is the body, which does not end within these bytes.
            _ => return None,
        }
    }
}

impl HttpBody for IncomingBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some(chunk) = ready!(self.poll_forward(context))? {
                return Poll::Ready(Some(Ok(Frame::data(chunk))));
            }
            let Poll::Ready(next) = Pin::new(&mut self.body).poll_frame(context) else {
                if self.poll_timeout(context) {
                    let limit = self.api.settings.http.body_timeout;
                    return Poll::Ready(Some(Err(Status::deadline_exceeded(format!(
                        "a message did not arrive whole within {limit} (setting http.body_timeout)"
                    )))));
                }
                return Poll::Pending;
            };
            match next {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.unparsed = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                Some(Err(error)) => {
                    // An error means that the handler of the call has ended.
                    let _ = self.events.send(IncomingEvent::Aborted);
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
    fn the_receipt_of_a_reply_is_parsed_from_the_first_bytes() {
        use wire::from_worker::Say;
        let encode = |request: Say| wire::FromWorker { say: Some(request) }.encode_to_vec();
        let body = Bytes::from(vec![b'x'; 10_000]);
        let reply = |kind: i32| {
            let receipt = "/api/queue/a/message/b/1/reply".to_owned();
            Say::Reply(wire::ReplyRequest { receipt, kind, body: body.clone() })
        };
        for kind in [0, 2] {
            let bytes = encode(reply(kind));
            let receipt = parse_receipt(&bytes[..PAYLOAD_START_BYTES_MAX]);
            assert_eq!(receipt.as_deref(), Some("/api/queue/a/message/b/1/reply"));
            for length in 0..40 {
                // A truncated receipt is not returned.
                let receipt = parse_receipt(&bytes[..length]);
                assert!(receipt.is_none_or(|receipt| receipt.ends_with("/reply")), "{length}");
            }
        }
        let extend = wire::ExtendRequest { receipt: "x".to_owned(), lease: None };
        assert_eq!(parse_receipt(&encode(Say::Extend(extend))), None);
    }
}
