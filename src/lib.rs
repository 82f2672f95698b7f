//! map comes later
#![allow(missing_docs, reason = "x")]
pub mod actors;
pub mod api;
pub mod bus;
pub mod cli;
pub mod engine;
pub mod journal;
pub mod load;
pub mod settings;
pub mod telemetry;
