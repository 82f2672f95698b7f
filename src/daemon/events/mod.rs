//! Events about jobs for clients and other systems. They are built from committed entries,
//! published to event streams, and posted to the webhook. No receiver can delay a job.

mod delivery_queue;
mod event;
mod hub;
mod webhook;

pub use event::{CONTENT_TYPE, Event, Subject};
pub use hub::{Batch, EventFilter, EventHub, Subscription};
pub use webhook::{Webhook, WebhookEnv};
