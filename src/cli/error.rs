//! Why a command failed.

/// Why a client command failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The manager cannot be reached: exit code 3.
    #[error(
        "cannot reach the manager at {server}: {error}. Does it run (workflow-manager serve)? \
         Give its address with --server, WORKFLOW_MANAGER_URL or a context (--context)"
    )]
    Unreachable {
        /// The address.
        server: String,
        /// Why.
        error: String,
    },
    /// The manager refused: exit code 1.
    #[error("{0}")]
    Refused(String),
    /// The arguments do not make sense: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// What was waited for did not come in time: exit code 4.
    #[error("{0}")]
    Late(String),
    /// Standard output is closed or full.
    #[error("cannot write: {0}")]
    Output(#[from] std::io::Error),
}

/// Whether the output was closed because its reader has what it wanted, as `head` does.
pub fn is_closed_pipe(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::BrokenPipe
}
