//! The notifier: it publishes committed events to the open streams and to the topic, which is an
//! exchange of an AMQP broker. Neither can block jobs: events beyond their capacity are dropped and
//! counted, and the subscribers of streams are notified of the loss.

use super::inputs::NotifierInput;
use super::mailbox::{Envelope, MailboxActor};
use crate::events::{CONTENT_TYPE, Event, EventHub};
use crate::telemetry::Metrics;
use actix::{Actor, AsyncContext, Context, Handler, WrapFuture};
use base::times;
use bus::event_topic::{EventMessage, EventTopic, EventTopicFactory, PublishOutcome};
use std::sync::Arc;

/// The capacity of the notifier's mailbox. Each input has the events of one decision.
pub const NOTIFIER_MAILBOX_MAX: usize = 16_384;

/// The longest routing key in AMQP, in bytes.
const ROUTING_KEY_BYTES_MAX: usize = 255;

/// The actor that publishes events to streams and to the topic.
pub struct Notifier {
    event_hub: Arc<EventHub>,
    metrics: Metrics,
    /// The factory of the topic; `None`: there is no topic, or the actor has started.
    topic_factory: Option<EventTopicFactory>,
    /// The topic; `None`: there is none, the actor has not started, or it was closed.
    topic: Option<Box<dyn EventTopic>>,
}

impl Notifier {
    /// Creates the actor. It creates the topic when it starts, on its own thread. If
    /// `topic_factory` is `None`, there is no topic.
    pub fn new(
        event_hub: Arc<EventHub>,
        metrics: Metrics,
        topic_factory: Option<EventTopicFactory>,
    ) -> Notifier {
        Notifier { event_hub, metrics, topic_factory, topic: None }
    }

    fn handle_input(&mut self, input: NotifierInput, ctx: &mut Context<Self>) {
        match input {
            NotifierInput::Events(events) => {
                self.event_hub.publish(&events);
                if let Some(topic) = &self.topic {
                    let dropped =
                        events.iter().filter(|event| !topic.publish(to_message(event))).count();
                    self.metrics
                        .events_dropped
                        .with_label_values(&["exchange"])
                        .inc_by(dropped as u64);
                }
            }
            NotifierInput::Close(mut answer) => {
                // Without a topic there is nothing to wait for. Dropping the sender wakes the
                // receiver.
                let Some(topic) = self.topic.take() else { return };
                let close = topic.close();
                let close_until_dropped = async move {
                    tokio::select! {
                        () = close => { let _ = answer.send(()); }
                        () = answer.closed() => {}
                    }
                };
                ctx.spawn(close_until_dropped.into_actor(self));
            }
        }
    }
}

fn to_message(event: &Event) -> EventMessage {
    EventMessage {
        key: routing_key(event),
        id: event.id.clone(),
        kind: event.cloud_event_type(),
        content_type: CONTENT_TYPE,
        timestamp_s: times::unix_seconds(event.at),
        body: event.body.clone(),
    }
}

/// Returns the routing key `<workflow>.<job|step>.<action>`. Dots in the workflow's full name,
/// which come from a virtual host, are replaced by `_`. A key that is too long loses its beginning.
fn routing_key(event: &Event) -> String {
    let suffix = format!(".{}", event.name());
    let workflow = event.workflow.replace('.', "_");
    let excess_bytes = (workflow.len() + suffix.len()).saturating_sub(ROUTING_KEY_BYTES_MAX);
    let start = (excess_bytes..=workflow.len())
        .find(|index| workflow.is_char_boundary(*index))
        .unwrap_or_default();
    format!("{}{suffix}", &workflow[start..])
}

impl Actor for Notifier {
    type Context = Context<Self>;

    fn started(&mut self, _: &mut Self::Context) {
        let metrics = self.metrics.clone();
        self.topic = self.topic_factory.take().map(|create_topic| {
            create_topic(Box::new(move |outcome| match outcome {
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
    // The label is older than the name of the actor. Metrics keep their labels.
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
    fn a_routing_key_has_three_segments_and_at_most_the_bytes_of_amqp() {
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
            long.len() <= ROUTING_KEY_BYTES_MAX && long.ends_with("/chain.step.attempt-failed"),
            "{long}"
        );
    }
}
