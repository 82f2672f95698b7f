//! The code generated from `proto/workers.proto`. `tests/fast/grpc/generated.rs` checks that it is
//! up to date.

#[allow(clippy::all, missing_docs, reason = "generated")]
#[rustfmt::skip]
mod messages;
#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    reason = "generated"
)]
#[rustfmt::skip]
mod service;

pub use messages::*;
pub use service::workers_server;

/// The encoded descriptors of `proto/workers.proto` and its imports, for the reflection service.
pub const DESCRIPTORS: &[u8] = include_bytes!("wire/workers.bin");
