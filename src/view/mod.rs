//! How a job is shown: plain data that serialises to JSON. The API answers with it; the command
//! line prints it where it reads a journal itself.

mod job;
mod record;

pub use job::JobView;
pub use record::{EntryView, PAYLOAD_BYTES_MAX};
