//! What the tests, the fuzz targets and the benches share.

pub mod api;
pub mod fuzz_targets;
pub mod grpc;
pub mod manager;
pub mod service;
pub mod waits;
pub mod world;
