//! Who asked for a job by a message on its workflow's queue (SPEC §4).

use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Who waits for a job's end.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Caller {
    /// The queue that the answer goes to.
    pub reply_to: Arc<str>,
    /// The bus that it called over, and that the answer goes out on; none: that of the workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<Arc<str>>,
    /// The answer carries it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<Arc<str>>,
    /// The attempt that the answer is for, if the caller named one. The answer carries it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
}
