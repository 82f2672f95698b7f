//! The errors of client commands.

use journal::JournalError;

/// Why a client command failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The manager cannot be reached. The exit code is 3.
    #[error(
        "cannot reach the manager at {server}: {error}. Does it run (workflow-manager dev, \
         or serve)? Give its address with --server, WORKFLOW_MANAGER_URL or a context (--context)"
    )]
    Unreachable {
        /// The address of the manager.
        server: String,
        /// The error of the connection.
        error: String,
    },
    /// The manager refused the request, or the command failed for another reason. The exit code is
    /// 1.
    #[error("{0}")]
    Refused(String),
    /// The arguments are not valid. The exit code is 2.
    #[error("{0}")]
    Usage(String),
    /// The awaited state was not reached in time. The exit code is 4.
    #[error("{0}")]
    TimedOut(String),
    /// The output cannot be written. The exit code is 1, or 0 if the reader has closed the pipe.
    #[error("cannot write: {0}")]
    Output(#[from] std::io::Error),
}

impl From<JournalError> for ClientError {
    fn from(error: JournalError) -> ClientError {
        ClientError::Refused(error.to_string())
    }
}
