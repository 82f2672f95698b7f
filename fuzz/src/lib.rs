//! What the fuzz targets do with an input. Each is a plain function that panics on a finding; the
//! main package runs the same functions over the committed corpora (`tests/fast/fuzzed.rs`), on
//! stable and without a fuzzer.

pub mod bytes_in;
pub mod correlation_ids;
pub mod fan_outs;
pub mod frames;
pub mod http_requests;
pub mod journal_rows;
pub mod plain_json;
pub mod replies;
pub mod workflow_files;
#[allow(dead_code, reason = "the fast suite uses more of it")]
#[path = "../../tests/fast/world.rs"]
pub(crate) mod world;
