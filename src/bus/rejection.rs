//! The reasons why an acknowledged reply changed nothing.

use engine::Rejected;

/// Why a reply changed nothing. The reply is acknowledged nevertheless, because a redelivery would
/// change nothing either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// It has no correlation id.
    NoCorrelationId,
    /// Its correlation id is not that of an attempt.
    MalformedCorrelationId,
    /// The job does not exist, or takes no input.
    UnknownJob,
    /// The job rejected it.
    ByJob(Rejected),
}

impl Rejection {
    /// Returns whether the attempt continues, so that the worker keeps its message. A reply that
    /// names no attempt ends none.
    pub fn keeps_attempt(self) -> bool {
        match self {
            Rejection::NoCorrelationId | Rejection::MalformedCorrelationId => true,
            Rejection::UnknownJob => false,
            Rejection::ByJob(rejected) => rejected.keeps_attempt(),
        }
    }

    /// Returns the name of the reason, for workers and as a metric label.
    pub fn label(self) -> &'static str {
        match self {
            Rejection::NoCorrelationId => "no_correlation_id",
            Rejection::MalformedCorrelationId => "malformed_correlation_id",
            Rejection::UnknownJob => "unknown_job",
            Rejection::ByJob(rejected) => rejected.label(),
        }
    }
}
