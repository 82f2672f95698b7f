//! Parses replies to steps: to an output, to progress, or to the reason why the attempt failed
//! (docs/reference/workflow-data.md, docs/reference/worker-protocol.md).

use super::definition::Step;
use super::entry::{Failure, Progress};
use super::input::{Limits, Rejected, Reply, Sender};
use super::json::{Json, JsonKind, Message, StringError};
use super::text::{truncate, truncate_beginning};
use std::fmt;
use std::sync::Arc;

/// The maximum size of the excerpt of an invalid reply, and of each text from a worker or broker,
/// in bytes (docs/reference/workflow-data.md, docs/reference/worker-protocol.md).
pub(super) const REPLY_EXCERPT_BYTES_MAX: usize = 4096;

/// The maximum size to which a reported status is truncated, in bytes.
pub(super) const STATUS_BYTES_MAX: usize = 255;

/// A failed attempt.
pub(super) struct AttemptFailure {
    /// Why it failed.
    pub(super) failure: Failure,
    /// Whether another attempt may succeed. If not, the step fails at once.
    pub(super) is_retryable: bool,
}

/// Who sent a reply.
#[derive(Clone, Copy)]
pub(super) enum Author<'a> {
    Worker,
    /// A client of the API, with the name of its token; `None`: no token was required.
    Operator(Option<&'a str>),
}

impl fmt::Display for Author<'_> {
    /// Formats the beginning of the reason of an attempt that failed by an error reply.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Author::Worker => f.write_str("the worker reported an error"),
            Author::Operator(None) => f.write_str("failed by hand"),
            Author::Operator(Some(name)) => write!(f, "failed by hand, by {name}"),
        }
    }
}

/// Parses the output of a reply (docs/reference/workflow-data.md).
///
/// # Errors
///
/// Returns why the attempt failed: the reply reports an error, or is not a valid result.
pub(super) fn parse_reply(
    step: &Step,
    reply: &Reply,
    author: Author<'_>,
    limits: &Limits,
) -> Result<Message, AttemptFailure> {
    match reply {
        Reply::Result(body) if body.len() > limits.reply_bytes_max => {
            Err(retryable_failure(size_error(body, limits), Some(body)))
        }
        Reply::Result(body) => {
            let output = Message::parse(body).map_err(|error| {
                retryable_failure(format!("the reply is not a JSON object: {error}"), Some(body))
            })?;
            reported_status(step, &output)
                .map_err(|reason| retryable_failure(reason, Some(body)))?;
            Ok(output)
        }
        Reply::Error(body) if body.len() > limits.reply_bytes_max => {
            let reason = format!("{author} of {} bytes, which is not read", body.len());
            Err(retryable_failure(reason, Some(body)))
        }
        Reply::Error(body) => Err(parse_error_reply(body, author)),
        Reply::DeadLettered { queue, reason } => {
            let (queue, reason) = (
                truncate(queue, REPLY_EXCERPT_BYTES_MAX),
                truncate(reason, REPLY_EXCERPT_BYTES_MAX),
            );
            Err(retryable_failure(
                format!("the broker dead-lettered its message in queue \"{queue}\": {reason}"),
                None,
            ))
        }
        // Unreachable: the caller handles progress before.
        Reply::Progress(_) => {
            Err(retryable_failure("a progress message is not a result".to_owned(), None))
        }
    }
}

/// Parses an error reply: its string under `error`, and whether it allows another attempt. A body
/// without such a string is kept with the failure.
fn parse_error_reply(body: &[u8], author: Author<'_>) -> AttemptFailure {
    let message = Message::parse(body).ok();
    let get = |key: &str| message.as_ref().and_then(|message| message.get(key));
    let is_retryable = get("retryable").is_none_or(|value| value.text() != "false");
    let (reason, raw) = match get("error").map(Json::read_string) {
        Some(Ok(text)) => (format!("{author}: {}", truncate(&text, REPLY_EXCERPT_BYTES_MAX)), None),
        Some(Err(error @ StringError::LoneSurrogate)) => {
            (format!("{author}, and \"error\" is {error}"), Some(body))
        }
        Some(Err(StringError::Kind(_))) | None => {
            (format!("{author} without a string under \"error\""), Some(body))
        }
    };
    AttemptFailure { is_retryable, ..retryable_failure(reason, raw) }
}

/// Creates the failure of an attempt that another one may follow. `raw`: the reply, of which the
/// beginning is kept.
fn retryable_failure(reason: String, raw: Option<&[u8]>) -> AttemptFailure {
    let failure = Failure { reason: reason.into(), raw: raw.map(excerpt), cause: None };
    AttemptFailure { failure, is_retryable: true }
}

/// Returns the reason for which a reply above the size limit is refused.
fn size_error(body: &[u8], limits: &Limits) -> String {
    let (size, limit) = (body.len(), limits.reply_bytes_max);
    format!(
        "the reply has {size} bytes, the limit is {limit} (setting limits.reply_bytes_max): pass \
         large data by reference"
    )
}

/// Returns whether a reply is from a user whose replies the step accepts.
pub(super) fn is_from_allowed_user(step: &Step, sender: &Sender) -> bool {
    step.reply_users.is_empty()
        || match sender {
            Sender::Manager => true,
            Sender::User(name) => step.reply_users.contains(name),
            Sender::Unknown => false,
        }
}

/// Returns what is wrong with a manual reply (docs/reference/http-api-operations.md), if anything.
/// More is required than of workers: a status if the step lists statuses, and the text of an error.
pub(super) fn check_manual_reply(step: &Step, reply: &Reply, limits: &Limits) -> Option<String> {
    let statuses = || step.status.words.join(", ");
    match reply {
        Reply::Result(_) => {
            match (parse_reply(step, reply, Author::Operator(None), limits), &step.status.key) {
                (Err(error), _) => Some(error.failure.reason.to_string()),
                (Ok(output), Some(key))
                    if !step.status.words.is_empty()
                        && !matches!(reported_status(step, &output), Ok(Some(_))) =>
                {
                    Some(format!(
                        "there is no status under \"{key}\", expected one of {}",
                        statuses()
                    ))
                }
                (Ok(_), _) => None,
            }
        }
        Reply::Error(body) if body.len() > limits.reply_bytes_max => Some(size_error(body, limits)),
        Reply::Error(body) => match Message::parse(body) {
            Err(error) => Some(format!("the error is not a JSON object: {error}")),
            Ok(message)
                if message.get("error").map(Json::read_string)
                    == Some(Err(StringError::LoneSurrogate)) =>
            {
                Some(format!("\"error\" is {}", StringError::LoneSurrogate))
            }
            Ok(message) if message.get("error").and_then(Json::as_string).is_none() => Some(
                "there is no string under \"error\", expected \
                 {\"error\":\"why\",\"retryable\":true}"
                    .to_owned(),
            ),
            Ok(message) => {
                let value = message
                    .get("retryable")
                    .filter(|value| !matches!(value.text(), "true" | "false"))?;
                let text = value.text();
                Some(format!(
                    "\"retryable\" is {text:.UNKNOWN_VALUE_CHARS_MAX$}, expected true or false"
                ))
            }
        },
        Reply::Progress(body) => match parse_progress(step, body, limits) {
            Err(Rejected::BadProgress(fault)) if step.status.words.is_empty() => {
                Some(format!("the progress message: {fault}"))
            }
            Err(Rejected::BadProgress(fault)) => {
                Some(format!("the progress message: {fault}; its statuses are {}", statuses()))
            }
            Err(_) | Ok(_) => None,
        },
        Reply::DeadLettered { .. } => None,
    }
}

/// Returns the status that an output reports under the step's `statusKey`; `None`: the step has no
/// such key, or the output has no value under it.
///
/// # Errors
///
/// Returns an error if the value is not a string, or not a status that the step allows.
pub(super) fn reported_status(step: &Step, output: &Message) -> Result<Option<Arc<str>>, String> {
    let Some(key) = &step.status.key else { return Ok(None) };
    let Some(value) = output.get(key).filter(|value| value.kind() != JsonKind::Null) else {
        return Ok(None);
    };
    let status =
        value.read_string().map_err(|error| format!("the status under \"{key}\" is {error}"))?;
    if step.status.allows(&status) {
        Ok(Some(truncate_status(&status)))
    } else {
        Err(unknown_status_error(step, &status))
    }
}

/// The maximum length of an unknown status in an error, in characters.
const UNKNOWN_STATUS_CHARS_MAX: usize = 100;

/// The maximum length of another unknown value in an error, in characters.
const UNKNOWN_VALUE_CHARS_MAX: usize = 40;

fn unknown_status_error(step: &Step, status: &str) -> String {
    format!(
        "the status \"{status:.UNKNOWN_STATUS_CHARS_MAX$}\" is not among the step's statuses ({})",
        step.status.words.join(", ")
    )
}

/// Parses a progress message.
///
/// # Errors
///
/// Returns [`Rejected::BadProgress`] if the message is too large, is not a JSON object, or has an
/// invalid value.
pub(super) fn parse_progress(
    step: &Step,
    body: &[u8],
    limits: &Limits,
) -> Result<Progress, Rejected> {
    if body.len() > limits.reply_bytes_max {
        return Err(Rejected::BadProgress("it is larger than limits.reply_bytes_max"));
    }
    let report =
        Message::parse(body).map_err(|_| Rejected::BadProgress("it is not a JSON object"))?;
    let get_non_null = |key: &str| report.get(key).filter(|value| value.kind() != JsonKind::Null);
    let parse_text = |key: &str, kind_fault, surrogate_fault| {
        let parse = |value: &Json| match value.read_string() {
            Ok(text) => Ok(text),
            Err(StringError::Kind(_)) => Err(Rejected::BadProgress(kind_fault)),
            Err(StringError::LoneSurrogate) => Err(Rejected::BadProgress(surrogate_fault)),
        };
        get_non_null(key).map(parse).transpose()
    };
    let status = parse_text(
        "status",
        "\"status\" is not a string",
        "\"status\" has half a surrogate pair, which is not a character",
    )?;
    if status.as_ref().is_some_and(|status| !step.status.allows(status)) {
        return Err(Rejected::BadProgress("\"status\" is not among the step's statuses"));
    }
    let share = get_non_null("progress");
    let is_fraction = |text: &str| {
        text.len() <= SHARE_BYTES_MAX
            && text.parse::<f64>().is_ok_and(|share| (0.0..=1.0).contains(&share))
    };
    if share.is_some_and(|share| share.kind() != JsonKind::Number || !is_fraction(share.text())) {
        return Err(Rejected::BadProgress("\"progress\" is not a number from 0 to 1"));
    }
    let message = parse_text(
        "message",
        "\"message\" is not a string",
        "\"message\" has half a surrogate pair, which is not a character",
    )?
    .map(|text| truncate(&text, REPLY_EXCERPT_BYTES_MAX).into());
    Ok(Progress { status: status.as_deref().map(truncate_status), share: share.cloned(), message })
}

/// The maximum length of the number under `progress`, in bytes.
const SHARE_BYTES_MAX: usize = 64;

fn truncate_status(status: &str) -> Arc<str> {
    truncate(status, STATUS_BYTES_MAX).into()
}

/// Returns the beginning of an invalid reply, which users see with the failure. Bytes that are not
/// UTF-8 become replacement characters.
fn excerpt(raw: &[u8]) -> Arc<str> {
    let text = String::from_utf8_lossy(&raw[..raw.len().min(REPLY_EXCERPT_BYTES_MAX)]);
    truncate_beginning(&text, REPLY_EXCERPT_BYTES_MAX, raw.len()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const LIMITS: Limits = Limits {
        step_message_bytes_max: 1 << 20,
        reply_bytes_max: 1 << 20,
        depth_max: 3,
        window: 3,
        window_bytes: 1 << 26,
    };

    fn failure(reply: &Reply) -> Failure {
        let Err(error) = parse_reply(&Step::with_name("s"), reply, Author::Worker, &LIMITS) else {
            panic!("expected a failed attempt")
        };
        error.failure
    }

    #[test]
    fn texts_from_workers_and_brokers_are_truncated() {
        let long = "é".repeat(100_000);
        let long_body = |key: &str| Bytes::from(format!("{{\"{key}\":\"{long}\"}}"));
        let reason = failure(&Reply::Error(long_body("error"))).reason;
        let text = reason.strip_prefix("the worker reported an error: ").expect("its text");
        assert!(
            text.len() <= REPLY_EXCERPT_BYTES_MAX && text.ends_with("é… (cut, 200000 bytes)"),
            "{text}"
        );

        let raw = failure(&Reply::Error(Bytes::from(vec![0xff; 200_000])))
            .raw
            .expect("the beginning is kept");
        assert!(
            raw.len() <= REPLY_EXCERPT_BYTES_MAX && raw.ends_with("\u{fffd}… (cut, 200000 bytes)"),
            "{raw}"
        );
        let raw = failure(&Reply::Result(Bytes::from(vec![0xff; 3_000])))
            .raw
            .expect("the beginning is kept");
        assert!(
            raw.len() <= REPLY_EXCERPT_BYTES_MAX && raw.ends_with("… (cut, 3000 bytes)"),
            "{raw}"
        );
        assert_eq!(
            failure(&Reply::Result("x".repeat(REPLY_EXCERPT_BYTES_MAX).into()))
                .raw
                .expect("the beginning is kept")
                .len(),
            REPLY_EXCERPT_BYTES_MAX
        );

        let too_large = Bytes::from(vec![b' '; LIMITS.reply_bytes_max + 1]);
        let size_failure = failure(&Reply::Error(too_large.clone()));
        assert!(
            size_failure.reason.contains("1048577 bytes")
                && size_failure.raw.is_some_and(|raw| raw.len() <= REPLY_EXCERPT_BYTES_MAX)
        );
        let dead_letter = Reply::DeadLettered { queue: long.clone(), reason: long.clone() };
        assert!(failure(&dead_letter).reason.len() <= 2 * REPLY_EXCERPT_BYTES_MAX + 100);

        let parse = |body: &[u8]| parse_progress(&Step::with_name("s"), body, &LIMITS);
        let progress = parse(&long_body("message")).expect("valid progress");
        assert!(progress.message.is_some_and(|text| text.len() <= REPLY_EXCERPT_BYTES_MAX
            && text.ends_with("é… (cut, 200000 bytes)")));
        let progress = parse(&long_body("status")).expect("valid progress");
        assert!(progress.status.is_some_and(
            |word| word.len() <= STATUS_BYTES_MAX && word.ends_with("é… (cut, 200000 bytes)")
        ));
        assert!(parse(format!("{{\"progress\":0.{}}}", "1".repeat(1_000)).as_bytes()).is_err());
        assert!(parse(&too_large).is_err());

        let mut step = Step::with_name("s");
        step.status.key = Some("status".into());
        let output = Message::parse(&long_body("status")).expect("an object");
        let status = reported_status(&step, &output).expect("allowed").expect("a status");
        assert!(status.len() <= STATUS_BYTES_MAX && status.starts_with("éé"), "{status}");
    }
}
