//! Why an acknowledged reply changed nothing.

use engine::Rejected;

/// Why a reply changed nothing. It is acknowledged all the same: sent again it would change nothing
/// either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// It has no correlation id.
    NoCorrelationId,
    /// Its correlation id is none of a step.
    MalformedCorrelationId,
    /// There is no such job under way.
    UnknownJob,
    /// The job rejected it.
    ByJob(Rejected),
}

impl Rejection {
    /// Returns whether the attempt goes on: then the worker still has its message.
    pub fn keeps_attempt(self) -> bool {
        matches!(self, Rejection::ByJob(rejected) if rejected.keeps_attempt())
    }

    /// Returns the reason as workers are told it, and as a metric label.
    pub fn label(self) -> &'static str {
        match self {
            Rejection::NoCorrelationId => "no_correlation_id",
            Rejection::MalformedCorrelationId => "malformed_correlation_id",
            Rejection::UnknownJob => "unknown_job",
            Rejection::ByJob(rejected) => rejected.label(),
        }
    }
}
