//! Interprets the answers of web services, without I/O.

use crate::body::Body;
use crate::event::CallOutcome;
use crate::publication::ERROR_KIND;
use bytes::Bytes;
use serde::Deserialize;
use std::time::Duration;

/// The maximum length of a service's own text in a reason, in characters.
const DETAIL_CHARS_MAX: usize = 500;

/// A complete answer of a web service.
#[derive(Debug)]
pub(super) struct Answer {
    /// The status code.
    pub(super) status: u16,
    /// The delay that the header `Retry-After` demands; `None`: there is no valid one.
    pub(super) retry_after: Option<Duration>,
    /// The body.
    pub(super) body: Bytes,
}

/// The result of a call.
#[derive(Debug)]
pub(super) enum CallResult {
    /// A reply like a worker's.
    Reply {
        /// The kind `error`; `None`: a result.
        kind: Option<&'static str>,
        /// The body of the reply.
        body: Bytes,
    },
    /// The service accepted the message, and replies later.
    Deferred,
    /// The service did not receive the message, or rejected it for now.
    NotDelivered {
        /// The reason in one line.
        reason: String,
        /// The delay that the service asked for, if any.
        retry_after: Option<Duration>,
    },
}

impl CallResult {
    /// Creates the result of a failed attempt. `is_retryable` says whether another attempt may
    /// succeed.
    pub(super) fn from_failure(reason: &str, is_retryable: bool) -> CallResult {
        let body = Body::from_reason(reason, is_retryable).to_bytes();
        CallResult::Reply { kind: Some(ERROR_KIND), body }
    }

    /// Returns the outcome that is reported for this result.
    pub(super) fn outcome(&self) -> CallOutcome {
        match self {
            CallResult::Reply { kind: None, .. } => CallOutcome::Result,
            CallResult::Reply { kind: Some(_), .. } => CallOutcome::Error,
            CallResult::Deferred => CallOutcome::Deferred,
            CallResult::NotDelivered { .. } => CallOutcome::NotDelivered,
        }
    }

    /// Creates the result of a message that was not delivered.
    pub(super) fn not_delivered(reason: String) -> CallResult {
        CallResult::NotDelivered { reason, retry_after: None }
    }
}

/// Interprets an answer. `can_reply_later` says whether the request had an address for a later
/// reply.
pub(super) fn interpret(answer: Answer, can_reply_later: bool) -> CallResult {
    let Answer { status, retry_after, body } = answer;
    let describe_answer =
        || format!("the web service answered {}{}", status_text(status), error_detail(&body));
    match status {
        202 if can_reply_later => CallResult::Deferred,
        202 => CallResult::from_failure(
            "the web service answered 202 to reply later, but has no address for the reply: set \
             http.public_url to the address at which it reaches the manager",
            false,
        ),
        200..=299 => CallResult::Reply { kind: None, body },
        300..=399 => {
            let answer = describe_answer();
            let reason = format!("{answer}; redirects are never followed: name the new address");
            CallResult::from_failure(&reason, false)
        }
        400.. if is_error(&body) => CallResult::Reply { kind: Some(ERROR_KIND), body },
        429 | 503 => CallResult::NotDelivered { reason: describe_answer(), retry_after },
        400..=499 => CallResult::from_failure(&describe_answer(), false),
        // Server errors: an answer never ends with a 1xx status.
        _ => CallResult::from_failure(&describe_answer(), true),
    }
}

/// Returns whether this is the body of a reply of kind `error`.
fn is_error(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Error {
        #[serde(rename = "error")]
        _error: String,
        #[serde(rename = "retryable")]
        _retryable: bool,
    }
    serde_json::from_slice::<Error>(body).is_ok()
}

/// Returns the explanation in the body of a failure, after a colon: a string `detail` or `title`
/// (problem details, RFC 9457) or `error`. Returns an empty string if there is none.
fn error_detail(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Problem {
        #[serde(default)]
        detail: serde_json::Value,
        #[serde(default)]
        title: serde_json::Value,
        #[serde(default)]
        error: serde_json::Value,
    }
    let Ok(Problem { detail, title, error }) = serde_json::from_slice(body) else {
        return String::new();
    };
    let texts = [&detail, &title, &error].into_iter().filter_map(serde_json::Value::as_str);
    let Some(text) = texts.map(str::trim).find(|text| !text.is_empty()) else {
        return String::new();
    };
    let is_printable = |c: &char| !c.is_control();
    format!(": {}", text.chars().filter(is_printable).take(DETAIL_CHARS_MAX).collect::<String>())
}

/// Returns a status code with its standard reason phrase.
fn status_text(status: u16) -> String {
    let status = reqwest::StatusCode::from_u16(status).map(|status| status.to_string());
    status.unwrap_or_else(|_| "no status".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interpret_status(status: u16, body: &'static str) -> CallResult {
        let answer =
            Answer { status, retry_after: None, body: Bytes::from_static(body.as_bytes()) };
        interpret(answer, true)
    }

    /// Describes the result in a few words.
    fn describe(result: CallResult) -> String {
        match result {
            CallResult::Reply { kind, body } => {
                format!("{} {}", kind.unwrap_or("result"), String::from_utf8_lossy(&body))
            }
            CallResult::Deferred => "taken over".to_owned(),
            CallResult::NotDelivered { reason, retry_after } => {
                format!("not delivered, {retry_after:?}: {reason}")
            }
        }
    }

    #[test]
    #[allow(clippy::too_many_lines, reason = "one list of cases")]
    fn each_answer_is_interpreted_by_the_table() {
        for (status, body, expected) in [
            (200, r#"{"a":1.50}"#, r#"result {"a":1.50}"#),
            (200, "", "result "),
            (204, "", "result "),
            (201, r#"{"a":1}"#, r#"result {"a":1}"#),
            (200, "[1]", "result [1]"),
            (202, r#"{"a":1}"#, "taken over"),
            (202, "", "taken over"),
            (
                400,
                r#"{"error":"no such product","retryable":false}"#,
                r#"error {"error":"no such product","retryable":false}"#,
            ),
            (
                503,
                r#"{"error":"later","retryable":true,"code":7}"#,
                r#"error {"error":"later","retryable":true,"code":7}"#,
            ),
            (
                429,
                r#"{"error":"later","retryable":true}"#,
                r#"error {"error":"later","retryable":true}"#,
            ),
            (
                404,
                r#"{"title":"Not found","detail":"no order 7"}"#,
                concat!(
                    r#"error {"error":"the web service answered 404 Not Found: no order 7","#,
                    r#""retryable":false}"#,
                ),
            ),
            (
                422,
                r#"{"title":"Wrong shape"}"#,
                concat!(
                    r#"error {"error":"the web service answered 422 Unprocessable Entity: "#,
                    r#"Wrong shape","retryable":false}"#,
                ),
            ),
            (
                400,
                r#"{"error":"bad"}"#,
                concat!(
                    r#"error {"error":"the web service answered 400 Bad Request: bad","#,
                    r#""retryable":false}"#,
                ),
            ),
            (
                400,
                "<html>",
                r#"error {"error":"the web service answered 400 Bad Request","retryable":false}"#,
            ),
            (
                500,
                "",
                concat!(
                    r#"error {"error":"the web service answered 500 Internal Server Error","#,
                    r#""retryable":true}"#,
                ),
            ),
            (
                502,
                "",
                r#"error {"error":"the web service answered 502 Bad Gateway","retryable":true}"#,
            ),
            (
                504,
                r#"{"detail":7}"#,
                concat!(
                    r#"error {"error":"the web service answered 504 Gateway Timeout","#,
                    r#""retryable":true}"#,
                ),
            ),
            (
                302,
                "",
                concat!(
                    r#"error {"error":"the web service answered 302 Found; redirects are never "#,
                    r#"followed: name the new address","retryable":false}"#,
                ),
            ),
            (429, "", "not delivered, None: the web service answered 429 Too Many Requests"),
            (
                503,
                r#"{"detail":"draining"}"#,
                "not delivered, None: the web service answered 503 Service Unavailable: draining",
            ),
        ] {
            assert_eq!(describe(interpret_status(status, body)), expected, "{status} {body}");
        }
    }

    #[test]
    fn a_service_without_a_reply_address_cannot_defer() {
        let answer = Answer { status: 202, retry_after: None, body: Bytes::new() };
        let text = describe(interpret(answer, false));
        assert!(text.starts_with("error") && text.contains("http.public_url"), "{text}");
        assert!(text.contains(r#""retryable":false"#), "{text}");
    }

    #[test]
    fn a_long_detail_is_truncated_to_one_line() {
        let long = format!(r#"{{"detail":"a\nb{}"}}"#, "x".repeat(10_000));
        let text = error_detail(long.as_bytes());
        assert!(text.starts_with(": abx") && text.chars().count() == DETAIL_CHARS_MAX + 2);
    }
}
