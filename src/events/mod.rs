//! Events: what others hear of jobs. The mapping from entries, the streams that clients have open,
//! and the webhook. All of it follows from what is committed, and none of it can hold up a job.

mod event;
mod feeds;
mod webhook;

pub use event::{CONTENT_TYPE, Counts, Event, Subject};
pub use feeds::{Batch, Feed, Feeds, Wanted};
pub use webhook::{Surroundings, Webhook};
