//! Message buses: they send messages to workers, and receive the replies.
//!
//! The trait [`Bus`] has several implementations. The crate `amqp` speaks AMQP 0-9-1 to RabbitMQ.
//! The crate `kafka` (a build feature) produces to the topics of queues and consumes a reply topic.
//! The module [`embedded`] keeps the queues in this process, and [`push`] calls web services.
//!
//! A bus knows nothing of jobs and steps, and makes no decisions about them. It accepts
//! publications until it is closed, keeps each until the broker has confirmed it, and then returns
//! the publication's confirm token. It reports all events through one [`EventSink`].

mod body;
mod confirm_token;
mod delivery;
pub mod embedded;
pub mod event;
pub mod event_topic;
mod kafka_section;
mod key;
mod kind;
pub mod lease_queue;
mod lease_queues;
mod publication;
pub mod push;
mod queue_status;
mod rejection;
mod transport;

pub use body::Body;
pub use confirm_token::{ConfirmPayload, ConfirmToken};
pub use delivery::{Acknowledger, DeadLetter, Delivery, Disposition, SettleCommand, Settlement};
pub use event::{BusEvent, BusNotice, BusState, CallOutcome, EventSink, TopicOffset};
pub use kafka_section::{KafkaSection, Properties, check_topic};
pub use key::{Address, BusKey};
pub use kind::{BusCapabilities, BusKind, EMBEDDED_REPLY_QUEUE, Withdrawal};
pub use lease_queues::LeaseQueues;
pub use publication::{
    Addressee, ERROR_KIND, Header, HeaderValue, Lifetime, Publication, RemainingLease,
};
pub use queue_status::{EndpointFailure, QueueDepth, QueueStatus};
pub use rejection::Rejection;
pub use transport::{AttemptEnd, Bus, ServedQueues};
