//! What `proto/workers.proto` says, generated from it; `tests/fast/grpc/generated.rs` holds it to
//! that.

#[allow(clippy::all, missing_docs, reason = "generated")]
#[rustfmt::skip]
mod messages;
#[allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated")]
#[rustfmt::skip]
mod service;

pub use messages::*;
pub use service::workers_server;

/// The descriptions of the file and of those that it imports, as reflection tells them.
pub const DESCRIPTORS: &[u8] = include_bytes!("wire/workers.bin");
