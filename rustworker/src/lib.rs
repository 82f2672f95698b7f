//! A worker of workflow-manager is a function and one line:
//!
//! ```no_run
//! use serde::{Deserialize, Serialize};
//! use workflow_worker::{Failure, Step};
//!
//! #[derive(Deserialize)]
//! struct Text { words: Vec<String> }
//!
//! #[derive(Serialize)]
//! struct Count { words: usize }
//!
//! async fn count(text: Text, _step: Step) -> Result<Count, Failure> {
//!     Ok(Count { words: text.words.len() })
//! }
//!
//! # async fn example() -> Result<(), workflow_worker::Error> {
//! workflow_worker::run("count", count).await
//! # }
//! ```
//!
//! The worker receives step messages from the queue `count`, calls the function with each, and
//! replies with what the function returns. The rules are in the crate's `README.md`, and the
//! protocol in workflow-manager's `docs/reference/worker-protocol.md`.

mod addresses;
mod amqp;
mod backoff;
mod failure;
mod http;
mod processing;
mod step;
mod tls;
mod worker;

pub use failure::Failure;
pub use processing::RawJson;
pub use step::{Progress, Step};
pub use worker::{Error, Worker, run};
