//! A stub manager over AMQP: a real broker, with a proxy between it and the worker.

use super::super::error::ClientError;
use super::super::text::Text;
use super::cut::CutTiming;
use super::event_log::{EventLog, ObservedEvent, Properties, Reply, ReplyKind};
use super::messages::{TestMessage, WORKFLOW};
use amqp::{self, StubManager, StubMessage, WorkerEvent};
use bus::QueueStatus;
use engine::text::shorten;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use tokio::sync::mpsc;

/// The longest name of the queue, in bytes: `message_id` is `<UUID>:<queue>:<attempt>`, and AMQP
/// allows 255 bytes.
const QUEUE_BYTES_MAX: usize = 255 - 36 - 3;

/// Maps correlation ids to the numbers of their messages.
type MessageNumbers = Rc<RefCell<HashMap<String, usize>>>;

/// A stub manager that uses one queue of a broker.
pub(super) struct AmqpStub {
    stub: StubManager,
    numbers: MessageNumbers,
}

impl AmqpStub {
    pub(super) async fn open(
        server: &str,
        queue: &str,
        log: EventLog,
    ) -> Result<AmqpStub, ClientError> {
        if queue.len() > QUEUE_BYTES_MAX {
            let why = format!("the queue's name has more than {QUEUE_BYTES_MAX} bytes");
            return Err(ClientError::Usage(why));
        }
        let (event_sender, mut events) = mpsc::unbounded_channel();
        let run =
            StubManager::open(server, queue, event_sender).await.map_err(ClientError::Refused)?;
        let numbers = MessageNumbers::default();
        let task_numbers = numbers.clone();
        actix_rt::spawn(async move {
            while let Some(what) = events.recv().await {
                log_event(what, &task_numbers.borrow(), &log);
            }
        });
        Ok(AmqpStub { stub: run, numbers })
    }

    pub(super) fn address_for_worker(&self, server: &str) -> String {
        self.stub.address_for_worker(server)
    }

    pub(super) async fn send(&self, message: &TestMessage) -> Result<(), ClientError> {
        let correlation_id = message.correlation_id();
        self.numbers.borrow_mut().insert(correlation_id.clone(), message.number);
        let message = StubMessage {
            id: message.id(),
            correlation_id,
            workflow: WORKFLOW.to_owned(),
            job: message.job.to_string(),
            attempt: message.attempt,
            traceparent: message.traceparent(),
            has_reply_to: message.has_reply_to,
            has_extra_headers: message.has_extra_headers,
            body: message.body.clone(),
        };
        self.stub.send(message).await.map_err(ClientError::Refused)
    }

    pub(super) fn cut(&self, message: &TestMessage, at: CutTiming) {
        let at = match at {
            CutTiming::Reply => amqp::CutPoint::Reply,
            CutTiming::Ack => amqp::CutPoint::Ack,
        };
        self.stub.cut_at(&message.correlation_id(), at);
    }

    pub(super) fn stop_requeues(&self, message: &TestMessage) {
        self.stub.prevent_requeue(&message.correlation_id());
    }

    pub(super) async fn clear(&self) -> Result<(), ClientError> {
        self.stub.clear().await.map_err(ClientError::Refused)
    }

    /// Deletes the queue if that does no harm. Returns whether it did.
    pub(super) async fn delete(&self) -> Result<bool, ClientError> {
        if self.stub.is_queue_ours() {
            self.stub.delete().await.map_err(ClientError::Refused)?;
        }
        Ok(self.stub.is_queue_ours())
    }

    /// Returns how many workers consume from the queue, or `None` if it is missing or unknown.
    pub(super) async fn consumers(&self) -> Option<u32> {
        match self.stub.inspect().await {
            QueueStatus::Exists { consumers, .. } => Some(consumers),
            QueueStatus::Missing | QueueStatus::Unknown(_) | QueueStatus::Endpoint { .. } => None,
        }
    }

    pub(super) async fn close(self) {
        self.stub.close().await;
    }
}

/// Writes one event of the proxy to the log.
fn log_event(event: WorkerEvent, numbers: &HashMap<String, usize>, log: &EventLog) {
    let (correlation_id, event) = match event {
        WorkerEvent::Consuming => return log.add(None, ObservedEvent::Connected),
        WorkerEvent::Violation(what) => {
            return log.add(None, ObservedEvent::Unexpected(Text::new(&what)));
        }
        WorkerEvent::Delivered(of) => (of, ObservedEvent::Delivered),
        WorkerEvent::Published(of) => (of, ObservedEvent::Published),
        WorkerEvent::Confirmed(of) => (of, ObservedEvent::Confirmed),
        WorkerEvent::Acked(of) => (of, ObservedEvent::Acked),
        WorkerEvent::AutoAcked(of) => (of, ObservedEvent::AutoAcked),
        WorkerEvent::Nacked { correlation_id: of, requeue } => {
            (of, ObservedEvent::Nacked { requeue })
        }
        WorkerEvent::ConnectionCut(of) => (of, ObservedEvent::ConnectionCut),
        WorkerEvent::ReplyReceived(of, reply) => {
            let kind = reply.kind.as_deref().map_or(ReplyKind::Result, ReplyKind::from_name);
            let properties = Properties {
                attempt: reply.attempt.map(i64::from),
                is_persistent: reply.is_persistent,
                content_type: reply.content_type.as_deref().map(Text::new),
            };
            if !numbers.contains_key(&of) {
                let stray = format!("a reply with the correlation_id {:?}", shorten(&of));
                return log.add(None, ObservedEvent::Unexpected(Text::new(&stray)));
            }
            (of, ObservedEvent::Replied(Reply { kind, body: reply.body, properties }))
        }
    };
    if let Some(number) = numbers.get(&correlation_id) {
        log.add(Some(*number), event);
    }
}
