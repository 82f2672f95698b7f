//! What the fuzz targets do with an input. Each target is a function `run` that panics if it finds
//! a defect. The fuzzers in `fuzz/` run them, and `tests/fast/fuzzed.rs` runs them over the
//! committed corpora, with stable Rust and without a fuzzer.

mod bytes_in;
pub mod correlation_ids;
pub mod fan_outs;
pub mod frames;
pub mod http_requests;
pub mod journal_rows;
mod plain_json;
pub mod replies;
pub mod workflow_files;
