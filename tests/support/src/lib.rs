//! What the tests, the fuzz targets and the benches share.
//!
//! - `manager`, `api`, `grpc`: a manager in this process, its HTTP API, and a gRPC worker for it
//! - `world`: jobs on the engine alone, without a manager
//! - `service`: a web service that steps and webhooks call
//! - `tcp_proxy`: a network that a test breaks
//! - `waits`: waiting for conditions
//! - `fuzz_targets`: what each fuzz target does with an input

pub mod api;
pub mod fuzz_targets;
pub mod grpc;
pub mod journal_rules;
pub mod manager;
pub mod service;
pub mod tcp_proxy;
pub mod waits;
pub mod world;
