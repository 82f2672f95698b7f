//! The calls of workers that take their messages from the manager, and their answers. Each face of
//! the stub manager, HTTP and gRPC, turns what a worker says into them.

use super::event_log::ReplyKind;
use super::messages::TestMessage;
use base::clock;
use bytes::Bytes;
use engine::Timestamp;
use engine::text::quote;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// The capacity of the channel from a face to the lease queue, in calls.
pub(super) const PENDING_CALLS_MAX: usize = 256;

/// The maximum number of open connections over HTTP, and of open streams and calls over gRPC.
pub(super) const CONNECTIONS_MAX: usize = 256;

/// The maximum size of a reply, in bytes: a manager's default (`limits.reply_bytes_max`).
pub(super) const BODY_BYTES_MAX: usize = 16 << 20;

/// The maximum number of messages in the answer to one call.
pub(super) const MESSAGES_MAX: usize = 100;

/// The wait of a long poll if the call names none: the default of a manager.
pub(super) const WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// The maximum wait of a long poll.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(50);

/// The minimum and the maximum lease.
pub(super) const LEASE_RANGE: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(12 * 60 * 60));

/// The maximum delay of a requeued message.
pub(super) const DELAY_MAX: Duration = Duration::from_secs(60 * 60);

/// Identifies a stream. Its end returns the messages that it has.
pub(super) type StreamNumber = u64;

/// A call of a worker.
pub(super) enum WorkerCall {
    /// A long poll for up to `max` messages.
    Receive { wait: Duration, lease: Option<Duration>, max: usize },
    /// A reply.
    Reply { kind: ReplyKind, body: Bytes },
    /// An extension of the lease. Without `lease` its duration stays as it was.
    Extend { lease: Option<Duration> },
    /// A rejection. A requeued message is not delivered again before the delay has passed.
    Nack { requeue: bool, delay: Duration },
    /// The start of a stream for this queue.
    OpenStream,
    /// The end of a stream: the messages that it has return to the queue.
    EndStream,
}

/// A call with the delivery that it is about, and the channel for the answer.
pub(super) struct PendingCall {
    pub(super) queue: String,
    /// The id of the message and the number of its delivery. `None` for a call about no message.
    pub(super) delivery: Option<(String, u32)>,
    pub(super) call: WorkerCall,
    /// The stream on which the worker has made the call; `None`: it was not made on a stream.
    pub(super) stream: Option<StreamNumber>,
    pub(super) responder: oneshot::Sender<CallAnswer>,
}

/// The answer to a call.
pub(super) enum CallAnswer {
    /// The leased messages. Empty: none was ready in time.
    Messages(Vec<DeliveredMessage>),
    /// The reply or the rejection was handled; or the reason why it changed nothing.
    Taken(Result<(), &'static str>),
    /// The lease ends at this time.
    Extended(Timestamp),
    /// The worker no longer has the message.
    Gone {
        reason: &'static str,
        /// What follows from it for the worker.
        consequence: &'static str,
    },
    /// There is no such queue.
    UnknownQueue(String),
}

/// A delivery of a message.
pub(super) struct DeliveredMessage {
    pub(super) message: TestMessage,
    /// The number of the delivery, from 1.
    pub(super) delivery: u32,
    /// When the lease ends.
    pub(super) until: Timestamp,
}

impl DeliveredMessage {
    /// Returns the path for the reply, which is the receipt over gRPC.
    pub(super) fn reply_path(&self, vhost: &str) -> String {
        let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let vhost = match vhost {
            "" => String::new(),
            vhost => format!("?vhost={}", encode(vhost)),
        };
        let (queue, id) = (encode(&self.message.queue), encode(&self.message.id()));
        format!("/api/queue/{queue}/message/{id}/{}/reply{vhost}", self.delivery)
    }
}

/// Parses what [`DeliveredMessage::reply_path`] has made: the queue, the id of the message, and the
/// number of the delivery. Whatever the queue is named, the worker is judged; so the id need not be
/// one of a manager.
pub(super) fn parse_reply_path(text: &str) -> Result<(String, (String, u32)), String> {
    let error = || format!("the receipt is {}, expected the one of the message", quote(text));
    let path = text.split_once('?').map_or(text, |(path, _)| path);
    let parts: Vec<&str> = path.split('/').collect();
    let ["", "api", "queue", queue, "message", id, delivery, "reply"] = parts[..] else {
        return Err(error());
    };
    let decode =
        |part: &str| percent_decode_str(part).decode_utf8().map(String::from).map_err(|_| error());
    Ok((decode(queue)?, (decode(id)?, delivery.parse().map_err(|_| error())?)))
}

/// The lease queue did not answer, because it restarts or is closed.
pub(super) struct NoAnswer;

/// Sends calls to the lease queue.
#[derive(Clone)]
pub(super) struct CallSender(mpsc::Sender<PendingCall>);

impl CallSender {
    /// Creates the channel from the faces to the lease queue.
    pub(super) fn channel() -> (CallSender, mpsc::Receiver<PendingCall>) {
        let (sender, receiver) = mpsc::channel(PENDING_CALLS_MAX);
        (CallSender(sender), receiver)
    }

    /// Sends a call, and waits for its answer. Dropping the future withdraws a long poll.
    pub(super) async fn send(
        &self,
        queue: String,
        delivery: Option<(String, u32)>,
        stream: Option<StreamNumber>,
        call: WorkerCall,
    ) -> Result<CallAnswer, NoAnswer> {
        let (responder, answer) = oneshot::channel();
        let pending = PendingCall { queue, delivery, call, stream, responder };
        self.0.send(pending).await.map_err(|_| NoAnswer)?;
        answer.await.map_err(|_| NoAnswer)
    }
}

/// Returns the time that is this duration from now.
pub(super) fn time_after(duration: Duration) -> Timestamp {
    let nanoseconds = i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    Timestamp(clock::now().0.saturating_add(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::super::messages::MessageFactory;
    use super::*;

    #[test]
    fn the_path_of_a_reply_is_read_back_whatever_the_queue_is_named() {
        for queue in ["price", "a/b.c d?e", "ä"] {
            let message = MessageFactory::new(queue, "{}").unwrap().valid();
            let id = message.id();
            let delivered = DeliveredMessage { message, delivery: 3, until: clock::now() };
            for vhost in ["", "v/h"] {
                let parsed = parse_reply_path(&delivered.reply_path(vhost)).unwrap();
                assert_eq!(parsed, (queue.to_owned(), (id.clone(), 3)));
            }
        }
        for text in ["", "/api/queue/q/message/m/x/reply", "/api/queue/q/message/m/1/nack"] {
            assert!(parse_reply_path(text).is_err(), "{text}");
        }
    }
}
