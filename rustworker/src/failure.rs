//! The failure of an attempt, which a function returns as its error.

use std::fmt;

/// The maximum length of a reason in an error reply, in characters. The log has the full reason.
const REASON_CHARS_MAX: usize = 4_000;

/// Why a function failed. The operator `?` turns any error into a retryable failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    reason: String,
    is_retryable: bool,
}

impl Failure {
    /// Makes a failure that is final: another attempt would fail, too, so the step's `retry` is not
    /// used.
    pub fn last(reason: impl fmt::Display) -> Failure {
        Failure { reason: reason.to_string(), is_retryable: false }
    }

    /// Makes a failure after which another attempt may succeed. The step's `retry` decides whether
    /// there is one.
    pub fn retryable(reason: impl fmt::Display) -> Failure {
        Failure { reason: reason.to_string(), is_retryable: true }
    }

    /// Returns the full reason.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns whether another attempt may succeed.
    pub fn is_retryable(&self) -> bool {
        self.is_retryable
    }

    /// Makes a retryable failure from an error and its causes, joined by colons.
    pub(crate) fn from_error(error: &dyn std::error::Error) -> Failure {
        let mut reason = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            reason.push_str(": ");
            reason.push_str(&error.to_string());
            cause = error.source();
        }
        Failure::retryable(reason)
    }

    /// Returns the body of the error reply.
    pub(crate) fn to_body(&self) -> Vec<u8> {
        let mut reason = self.reason.as_str();
        if let Some((end, _)) = reason.char_indices().nth(REASON_CHARS_MAX) {
            reason = &reason[..end];
        }
        serde_json::json!({ "error": reason, "retryable": self.is_retryable }).to_string().into()
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::from_error(&error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_reported_with_its_causes_and_is_retryable() {
        #[derive(Debug, thiserror::Error)]
        #[error("no price")]
        struct Outer(#[source] std::io::Error);
        let failure = Failure::from(Outer(std::io::Error::other("the disk is gone")));
        assert_eq!(failure, Failure::retryable("no price: the disk is gone"));
    }

    #[test]
    fn a_long_reason_is_truncated_between_characters() {
        let body = Failure::last("é".repeat(REASON_CHARS_MAX + 1)).to_body();
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        assert_eq!(
            json["error"].as_str().map(|reason| reason.chars().count()),
            Some(REASON_CHARS_MAX)
        );
        assert_eq!(json["retryable"], false);
    }
}
