//! A stub manager over AMQP: a real broker, with a proxy between it and the worker.

use super::super::error::ClientError;
use super::super::text::Text;
use super::cut::CutAt;
use super::log::{Kind, Log, Properties, Reply, What};
use super::messages::{Message, WORKFLOW};
use crate::bus::QueueLook;
use crate::bus::amqp::{self, Heard, Trial, TrialMessage};
use crate::engine::words::shortened;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use tokio::sync::mpsc;

/// Maps correlation ids to the numbers of their messages.
type Numbers = Rc<RefCell<HashMap<String, usize>>>;

/// A stub manager that uses one queue of a broker.
pub(super) struct Amqp {
    trial: Trial,
    numbers: Numbers,
}

impl Amqp {
    pub(super) async fn open(server: &str, queue: &str, log: Log) -> Result<Amqp, ClientError> {
        let (tell, mut heard) = mpsc::unbounded_channel();
        let trial = Trial::open(server, queue, tell).await.map_err(ClientError::Refused)?;
        let numbers = Numbers::default();
        let known = numbers.clone();
        actix_rt::spawn(async move {
            while let Some(what) = heard.recv().await {
                note(what, &known.borrow(), &log);
            }
        });
        Ok(Amqp { trial, numbers })
    }

    pub(super) fn address_for_worker(&self, server: &str) -> String {
        self.trial.address_for_worker(server)
    }

    pub(super) async fn send(&self, message: &Message) -> Result<(), ClientError> {
        let correlation_id = message.correlation_id();
        self.numbers.borrow_mut().insert(correlation_id.clone(), message.number);
        let message = TrialMessage {
            id: message.id(),
            correlation_id,
            workflow: WORKFLOW.to_owned(),
            job: message.job.to_string(),
            attempt: message.attempt,
            traceparent: message.traceparent(),
            has_reply_to: message.has_reply_to,
            is_adorned: message.is_adorned,
            body: message.body.clone(),
        };
        self.trial.send(message).await.map_err(ClientError::Refused)
    }

    pub(super) fn cut(&self, message: &Message, at: CutAt) {
        let at = match at {
            CutAt::Reply => amqp::CutAt::Reply,
            CutAt::Ack => amqp::CutAt::Ack,
        };
        self.trial.cut(&message.correlation_id(), at);
    }

    pub(super) fn tame(&self, message: &Message) {
        self.trial.tame(&message.correlation_id());
    }

    pub(super) async fn clear(&self) -> Result<(), ClientError> {
        self.trial.clear().await.map_err(ClientError::Refused)
    }

    /// Deletes the queue if that does no harm. Returns whether it did.
    pub(super) async fn delete(&self) -> Result<bool, ClientError> {
        if self.trial.is_queue_ours() {
            self.trial.delete().await.map_err(ClientError::Refused)?;
        }
        Ok(self.trial.is_queue_ours())
    }

    /// Returns how many workers consume from the queue, or `None` if it is missing or unknown.
    pub(super) async fn consumers(&self) -> Option<u32> {
        match self.trial.look().await {
            QueueLook::There { consumers, .. } => Some(consumers),
            QueueLook::Missing | QueueLook::Unknown(_) | QueueLook::Service { .. } => None,
        }
    }

    pub(super) async fn close(self) {
        self.trial.close().await;
    }
}

/// Writes one event of the proxy to the log.
fn note(heard: Heard, known: &HashMap<String, usize>, log: &Log) {
    let (of, what) = match heard {
        Heard::Came => return log.add(None, What::Came),
        Heard::Strange(what) => return log.add(None, What::Stray(Text::new(&what))),
        Heard::Given(of) => (of, What::Given),
        Heard::Published(of) => (of, What::Published),
        Heard::Confirmed(of) => (of, What::Confirmed),
        Heard::Acked(of) => (of, What::Acked),
        Heard::AckedUnseen(of) => (of, What::AckedUnseen),
        Heard::Nacked { of, requeue } => (of, What::Nacked { requeue }),
        Heard::Cut(of) => (of, What::Cut),
        Heard::Replied(of, reply) => {
            let kind = Kind::of(reply.kind.as_deref().unwrap_or_default());
            let properties = Properties {
                attempt: reply.attempt.map(i64::from),
                is_persistent: reply.is_persistent,
                content_type: reply.content_type.as_deref().map(Text::new),
            };
            if !known.contains_key(&of) {
                let stray = format!("a reply with the correlation_id {:?}", shortened(&of));
                return log.add(None, What::Stray(Text::new(&stray)));
            }
            (of, What::Said(Reply { kind, body: reply.body, properties }))
        }
    };
    if let Some(number) = known.get(&of) {
        log.add(Some(*number), what);
    }
}
