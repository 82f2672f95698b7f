//! Events about jobs, as others receive them: made from entries, published to open streams, and
//! sent to the webhook. All of them follow from what is committed, and none can hold up a job.

mod delivery_queue;
mod event;
mod hub;
mod webhook;

pub use event::{CONTENT_TYPE, Event, Subject};
pub use hub::{Batch, EventFilter, EventHub, Subscription};
pub use webhook::{Webhook, WebhookEnv};
