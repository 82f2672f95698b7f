//! The notifier hands events, after their commit, to the open streams and to the topic. Neither can
//! hold up jobs: events that they cannot take are dropped and counted, and the subscribers are
//! notified of the loss.

use super::inputs::NotifierInput;
use super::mailbox::{Envelope, MailboxActor};
use crate::events::{CONTENT_TYPE, Event, EventHub};
use crate::telemetry::Metrics;
use actix::{Actor, AsyncContext, Context, Handler, WrapFuture};
use base::times;
use bus::event_topic::{EventMessage, EventTopic, EventTopicFactory, PublishOutcome};
use std::sync::Arc;

/// The most decisions whose events may wait in the notifier's mailbox.
pub const NOTIFIER_MAILBOX_MAX: usize = 16_384;

/// The longest routing key that AMQP can carry, in bytes.
const KEY_BYTES_MAX: usize = 255;

/// Hands events to streams and to the topic.
pub struct Notifier {
    feeds: Arc<EventHub>,
    metrics: Metrics,
    maker: Option<EventTopicFactory>,
    topic: Option<Box<dyn EventTopic>>,
}

impl Notifier {
    /// Creates the actor; `maker` makes the topic, if there is to be one.
    pub fn new(
        feeds: Arc<EventHub>,
        metrics: Metrics,
        maker: Option<EventTopicFactory>,
    ) -> Notifier {
        Notifier { feeds, metrics, maker, topic: None }
    }

    fn handle_input(&mut self, input: NotifierInput, ctx: &mut Context<Self>) {
        match input {
            NotifierInput::Events(events) => {
                self.feeds.publish(&events);
                if let Some(topic) = &self.topic {
                    let refused = events
                        .iter()
                        .filter(|event| !topic.publish(to_announcement(event)))
                        .count();
                    self.metrics
                        .events_dropped
                        .with_label_values(&["exchange"])
                        .inc_by(refused as u64);
                }
            }
            NotifierInput::Close(answer) => {
                // A dropped answer means the same.
                let Some(closing) = self.topic.take().map(|topic| topic.close()) else { return };
                let closed = async move {
                    let mut answer = answer;
                    tokio::select! {
                        () = closing => { let _ = answer.send(()); }
                        () = answer.closed() => {}
                    }
                };
                ctx.spawn(closed.into_actor(self));
            }
        }
    }
}

fn to_announcement(event: &Event) -> EventMessage {
    EventMessage {
        key: routing_key(event),
        id: event.id.clone(),
        kind: event.cloud_event_type(),
        content_type: CONTENT_TYPE,
        timestamp_s: times::unix_seconds(event.at),
        body: event.body.clone(),
    }
}

/// Returns the routing key `<workflow>.<job|step>.<what happened>`. Names have no dots, but virtual
/// hosts may: their dots become `_`. A key that is too long loses its beginning.
fn routing_key(event: &Event) -> String {
    let end = format!(".{}", event.name());
    let workflow = event.workflow.replace('.', "_");
    let from = (workflow.len() + end.len()).saturating_sub(KEY_BYTES_MAX);
    let from =
        (from..=workflow.len()).find(|at| workflow.is_char_boundary(*at)).unwrap_or_default();
    format!("{}{end}", &workflow[from..])
}

impl Actor for Notifier {
    type Context = Context<Self>;

    fn started(&mut self, _: &mut Self::Context) {
        let metrics = self.metrics.clone();
        self.topic = self.maker.take().map(|make| {
            make(Box::new(move |event| match event {
                PublishOutcome::Published => {
                    metrics.events_published.with_label_values(&["exchange"]).inc()
                }
                PublishOutcome::Dropped(count) => {
                    metrics.events_dropped.with_label_values(&["exchange"]).inc_by(count)
                }
            }))
        });
    }
}

impl MailboxActor for Notifier {
    type Input = NotifierInput;
    const KIND: &'static str = "announcer";
}

impl Handler<Envelope<NotifierInput>> for Notifier {
    type Result = ();

    fn handle(&mut self, envelope: Envelope<NotifierInput>, ctx: &mut Self::Context) {
        envelope.handle(|input| self.handle_input(input, ctx));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::events::Subject;
    use engine::{JobId, Timestamp};

    #[test]
    fn a_routing_key_has_three_segments_and_fits() {
        let id = JobId(uuid::Uuid::nil());
        let event = |workflow: &str| Event {
            id: String::new(),
            workflow: workflow.into(),
            subject: Subject::Step,
            action: "attempt-failed",
            job: id,
            parent: None,
            root: id,
            at: Timestamp(0),
            is_end: false,
            body: bytes::Bytes::new(),
        };
        assert_eq!(routing_key(&event("chain")), "chain.step.attempt-failed");
        assert_eq!(routing_key(&event("a.b/chain")), "a_b/chain.step.attempt-failed");
        let long = routing_key(&event(&format!("{}/chain", "ä".repeat(150))));
        assert!(
            long.len() <= KEY_BYTES_MAX && long.ends_with("/chain.step.attempt-failed"),
            "{long}"
        );
    }
}
