//! One step of a job, and what a reply makes of it.

use super::definition::{Retry, Step};
use super::entry::{Failure, Progress, REPLY_KEPT_BYTES_MAX, STATUS_BYTES_MAX, Timestamp};
use super::fanout::FanOut;
use super::id::{JobId, retry_chance};
use super::input::{Limits, Rejected, Reply};
use super::json::{Json, JsonKind, Message};
use super::words::{cut, cut_of};
use serde::Serialize;
use std::sync::Arc;

/// The states of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StepState {
    /// A step that it depends on is not done.
    #[default]
    Waiting,
    /// Its message, or its child jobs, are out; or it waits for its next attempt, or for a call of
    /// the API.
    Running,
    /// Its reply came.
    Completed,
    /// Its attempts are spent.
    Failed,
    /// Its condition `when` came to false.
    Skipped,
    /// Its condition `cancelWhen` came to true, or its job was ended while it ran.
    Cancelled,
}

impl StepState {
    /// All of them.
    pub const ALL: [StepState; 6] = [
        StepState::Waiting,
        StepState::Running,
        StepState::Completed,
        StepState::Failed,
        StepState::Skipped,
        StepState::Cancelled,
    ];

    /// The word for users.
    pub fn word(self) -> &'static str {
        match self {
            StepState::Waiting => "waiting",
            StepState::Running => "running",
            StepState::Completed => "completed",
            StepState::Failed => "failed",
            StepState::Skipped => "skipped",
            StepState::Cancelled => "cancelled",
        }
    }
}

/// One step of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepRun {
    /// Its state.
    pub state: StepState,
    /// Dispatches so far; of a step with a task, beginnings.
    pub attempt: u32,
    /// Those of them before the last retry or rerun, which do not count among the attempts allowed.
    pub(super) attempts_before: u32,
    /// Those that a rerun has undone: their results count no more.
    pub(super) attempts_undone: u32,
    /// How often the step's child jobs were begun anew by a rerun.
    pub(super) reruns: u32,
    /// Whether the broker confirmed the last dispatch.
    pub confirmed: bool,
    /// Which of the job's entries, counted from 1, dispatched it last: no two dispatches have the
    /// same.
    pub dispatch: u64,
    /// When that was, where the entry tells.
    pub sent: Option<Timestamp>,
    /// When it started first; a rerun begins anew.
    pub started: Option<Timestamp>,
    /// When the last attempt began.
    pub attempt_started: Option<Timestamp>,
    /// When it was settled.
    pub ended: Option<Timestamp>,
    /// Its output, once completed.
    pub output: Option<Message>,
    /// Why it, or its last attempt, failed.
    pub failure: Option<Failure>,
    /// When the attempt that runs fails.
    pub deadline: Option<Timestamp>,
    /// When the next attempt is due; the one before has failed.
    pub retry_at: Option<Timestamp>,
    /// What its worker told last.
    pub progress: Option<Progress>,
    /// The status that its worker has reported.
    pub(super) status: Option<Arc<str>>,
    /// What the reader should know about its input.
    pub warning: Option<Arc<str>>,
    /// Its child jobs, for a step with a task that has started.
    pub fan_out: Option<Box<FanOut>>,
    /// Steps that it depends on and that are not done.
    pub(super) waits_for: u16,
}

impl StepRun {
    pub(super) fn waiting(step: &Step) -> StepRun {
        StepRun {
            waits_for: u16::try_from(step.depended_on().len()).unwrap_or(u16::MAX),
            ..StepRun::default()
        }
    }

    /// Back to waiting; its attempts are counted on, and those allowed are counted anew. When it
    /// started first is kept.
    pub(super) fn reset(&mut self) {
        *self = StepRun {
            attempt: self.attempt,
            attempts_before: self.attempt,
            attempts_undone: self.attempts_undone,
            reruns: self.reruns,
            started: self.started,
            warning: self.warning.take(),
            fan_out: self.fan_out.take(),
            ..StepRun::default()
        };
    }

    /// Whether an attempt is under way, rather than waited for.
    pub fn is_under_way(&self) -> bool {
        self.state == StepState::Running && self.retry_at.is_none()
    }

    /// When the next attempt is due after the one that runs has failed; none: that was the last.
    pub(super) fn next_attempt(
        &self,
        job: JobId,
        step: &Step,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let retry = step.retry.unwrap_or_default();
        let used = self.attempt - self.attempts_before;
        (used < retry.attempts).then(|| {
            Timestamp(now.0.saturating_add(pause_ns(
                &retry,
                used,
                retry_chance(job, &step.name, self.attempt),
            )))
        })
    }
}

/// The pause after the attempt number `used`: exponential with full jitter, `chance` of 2^64 of the
/// longest one.
fn pause_ns(retry: &Retry, used: u32, chance: u64) -> i64 {
    let most = u128::from(retry.max_backoff.0);
    let mut longest = u128::from(retry.backoff.0);
    for _ in 1..used {
        if longest >= most {
            break;
        }
        longest = longest * u128::from(retry.factor_milli) / 1_000;
    }
    let longest_ns = longest.min(most) * 1_000_000;
    i64::try_from((longest_ns * u128::from(chance)) >> 64).unwrap_or(i64::MAX)
}

/// Why an attempt failed, and whether another may do better.
pub(super) struct Failed {
    pub(super) failure: Failure,
    pub(super) retryable: bool,
}

/// A reply's output, or why the attempt failed (SPEC §3.2).
pub(super) fn parse_reply(step: &Step, reply: &Reply, limits: &Limits) -> Result<Message, Failed> {
    let failed = |reason: String, raw: Option<&[u8]>| Failed {
        failure: Failure { reason: reason.into(), raw: raw.map(kept), cause: None },
        retryable: true,
    };
    match reply {
        Reply::Result(body) if body.len() > limits.reply_bytes_max => {
            Err(failed(too_large(body, limits), Some(body)))
        }
        Reply::Result(body) => {
            let output = Message::parse(body).map_err(|error| {
                failed(format!("the reply is no JSON object: {error}"), Some(body))
            })?;
            reported_status(step, &output).map_err(|reason| failed(reason, Some(body)))?;
            Ok(output)
        }
        Reply::Error(body) if body.len() > limits.reply_bytes_max => Err(failed(
            format!("the worker reported an error of {} bytes, which is not read", body.len()),
            Some(body),
        )),
        Reply::Error(body) => {
            let stated = Message::parse(body).ok();
            let text = stated.as_ref().and_then(|message| message.get("error")?.as_string());
            let retryable = stated
                .as_ref()
                .and_then(|message| message.get("retryable"))
                .is_none_or(|value| value.text() != "false");
            let (reason, raw) = match text {
                Some(text) => (
                    format!("the worker reported an error: {}", cut(&text, REPLY_KEPT_BYTES_MAX)),
                    None,
                ),
                None => (
                    "the worker reported an error without a text under \"error\"".to_owned(),
                    Some(&**body),
                ),
            };
            Err(Failed { retryable, ..failed(reason, raw) })
        }
        Reply::DeadLettered { queue, reason } => {
            let (queue, reason) =
                (cut(queue, REPLY_KEPT_BYTES_MAX), cut(reason, REPLY_KEPT_BYTES_MAX));
            Err(failed(
                format!("the broker dead-lettered its message in queue \"{queue}\": {reason}"),
                None,
            ))
        }
        // Progress settles nothing; it is decided upon before.
        Reply::Progress(_) => Err(failed("a progress message is no result".to_owned(), None)),
    }
}

fn too_large(body: &[u8], limits: &Limits) -> String {
    let (size, limit) = (body.len(), limits.reply_bytes_max);
    format!(
        "the reply has {size} bytes, the limit is {limit} (setting limits.reply_bytes_max): pass large data by reference"
    )
}

/// What is wrong with what is said of a step in its worker's place (SPEC §6). More is asked of
/// people than of workers: a status where there is a list, the text of an error.
pub(super) fn fault_by_hand(step: &Step, reply: &Reply, limits: &Limits) -> Option<String> {
    let words = || step.status.words.join(", ");
    match reply {
        Reply::Result(_) => match (parse_reply(step, reply, limits), &step.status.key) {
            (Err(failed), _) => Some(failed.failure.reason.to_string()),
            (Ok(output), Some(key))
                if !step.status.words.is_empty()
                    && !matches!(reported_status(step, &output), Ok(Some(_))) =>
            {
                Some(format!("there is no status under \"{key}\", expected one of {}", words()))
            }
            (Ok(_), _) => None,
        },
        Reply::Error(body) if body.len() > limits.reply_bytes_max => Some(too_large(body, limits)),
        Reply::Error(body) => match Message::parse(body) {
            Err(error) => Some(format!("the error is no JSON object: {error}")),
            Ok(stated) if stated.get("error").and_then(Json::as_string).is_none() => Some(
                "there is no text under \"error\", expected {\"error\":\"why\",\"retryable\":true}"
                    .to_owned(),
            ),
            Ok(stated) => {
                let retryable = stated
                    .get("retryable")
                    .filter(|value| !matches!(value.text(), "true" | "false"))?;
                Some(format!("\"retryable\" is {:.40}, expected true or false", retryable.text()))
            }
        },
        Reply::Progress(body) => match parse_progress(step, body, limits) {
            Err(Rejected::BadProgress(fault)) if step.status.words.is_empty() => {
                Some(format!("the progress message: {fault}"))
            }
            Err(Rejected::BadProgress(fault)) => {
                Some(format!("the progress message: {fault}; its statuses are {}", words()))
            }
            Err(_) | Ok(_) => None,
        },
        Reply::DeadLettered { .. } => None,
    }
}

/// The status that an output reports under the step's `statusKey`; none without that key.
pub(super) fn reported_status(step: &Step, output: &Message) -> Result<Option<Arc<str>>, String> {
    let Some(key) = &step.status.key else { return Ok(None) };
    let Some(value) = output.get(key).filter(|value| value.kind() != JsonKind::Null) else {
        return Ok(None);
    };
    let Some(word) = value.as_string() else {
        return Err(format!("the status under \"{key}\" is {}, expected a string", value.kind()));
    };
    if step.status.allows(&word) {
        Ok(Some(status(&word)))
    } else {
        Err(unknown_status(step, &word))
    }
}

fn unknown_status(step: &Step, word: &str) -> String {
    format!(
        "the status \"{}\" is not among the step's statuses ({})",
        shortened(word),
        step.status.words.join(", ")
    )
}

/// What a progress message tells.
pub(super) fn parse_progress(
    step: &Step,
    body: &[u8],
    limits: &Limits,
) -> Result<Progress, Rejected> {
    if body.len() > limits.reply_bytes_max {
        return Err(Rejected::BadProgress("it is larger than limits.reply_bytes_max"));
    }
    let told = Message::parse(body).map_err(|_| Rejected::BadProgress("it is no JSON object"))?;
    let there = |key: &str| told.get(key).filter(|value| value.kind() != JsonKind::Null);
    let text = |key: &str, fault| {
        there(key).map(|value| value.as_string().ok_or(Rejected::BadProgress(fault))).transpose()
    };
    let word = text("status", "\"status\" is no string")?;
    if word.as_ref().is_some_and(|word| !step.status.allows(word)) {
        return Err(Rejected::BadProgress("\"status\" is not among the step's statuses"));
    }
    let share = there("progress");
    let is_share = |text: &str| {
        text.len() <= SHARE_BYTES_MAX
            && text.parse::<f64>().is_ok_and(|share| (0.0..=1.0).contains(&share))
    };
    if share.is_some_and(|share| share.kind() != JsonKind::Number || !is_share(share.text())) {
        return Err(Rejected::BadProgress("\"progress\" is no number from 0 to 1"));
    }
    let message = text("message", "\"message\" is no string")?
        .map(|text| cut(&text, REPLY_KEPT_BYTES_MAX).into());
    Ok(Progress { status: word.as_deref().map(status), share: share.cloned(), message })
}

/// The longest number that tells how far a worker has come, in bytes.
const SHARE_BYTES_MAX: usize = 64;

fn status(word: &str) -> Arc<str> {
    cut(word, STATUS_BYTES_MAX).into()
}

fn shortened(word: &str) -> String {
    word.chars().take(100).collect()
}

fn kept(raw: &[u8]) -> Arc<str> {
    let beginning = String::from_utf8_lossy(&raw[..raw.len().min(REPLY_KEPT_BYTES_MAX)]);
    cut_of(&beginning, REPLY_KEPT_BYTES_MAX, raw.len()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::definition::Millis;
    use bytes::Bytes;

    const LIMITS: Limits = Limits {
        step_message_bytes_max: 1 << 20,
        reply_bytes_max: 1 << 20,
        depth_max: 3,
        window: 3,
        window_bytes: 1 << 26,
    };

    fn failure(reply: &Reply) -> Failure {
        let Err(failed) = parse_reply(&Step::named("s"), reply, &LIMITS) else {
            panic!("taken for a result")
        };
        failed.failure
    }

    #[test]
    fn what_a_worker_says_is_cut() {
        let long = "é".repeat(100_000);
        let said = |key: &str| Bytes::from(format!("{{\"{key}\":\"{long}\"}}"));
        let reason = failure(&Reply::Error(said("error"))).reason;
        let text = reason.strip_prefix("the worker reported an error: ").expect("its text");
        assert!(
            text.len() <= REPLY_KEPT_BYTES_MAX && text.ends_with("é… (cut, 200000 bytes)"),
            "{text}"
        );

        let raw = failure(&Reply::Error(Bytes::from(vec![0xff; 200_000]))).raw.expect("kept");
        assert!(
            raw.len() <= REPLY_KEPT_BYTES_MAX && raw.ends_with("\u{fffd}… (cut, 200000 bytes)"),
            "{raw}"
        );
        let raw = failure(&Reply::Result(Bytes::from(vec![0xff; 3_000]))).raw.expect("kept");
        assert!(raw.len() <= REPLY_KEPT_BYTES_MAX && raw.ends_with("… (cut, 3000 bytes)"), "{raw}");
        assert_eq!(
            failure(&Reply::Result("x".repeat(REPLY_KEPT_BYTES_MAX).into()))
                .raw
                .expect("kept")
                .len(),
            REPLY_KEPT_BYTES_MAX
        );

        let too_large = Bytes::from(vec![b' '; LIMITS.reply_bytes_max + 1]);
        let failure_of_it = failure(&Reply::Error(too_large.clone()));
        assert!(
            failure_of_it.reason.contains("1048577 bytes")
                && failure_of_it.raw.is_some_and(|raw| raw.len() <= REPLY_KEPT_BYTES_MAX)
        );
        let dead = Reply::DeadLettered { queue: long.clone(), reason: long.clone() };
        assert!(failure(&dead).reason.len() <= 2 * REPLY_KEPT_BYTES_MAX + 100);

        let progress = |body: &[u8]| parse_progress(&Step::named("s"), body, &LIMITS);
        let told = progress(&said("message")).expect("progress");
        assert!(
            told.message.is_some_and(|text| text.len() <= REPLY_KEPT_BYTES_MAX
                && text.ends_with("é… (cut, 200000 bytes)"))
        );
        let told = progress(&said("status")).expect("progress");
        assert!(told.status.is_some_and(
            |word| word.len() <= STATUS_BYTES_MAX && word.ends_with("é… (cut, 200000 bytes)")
        ));
        assert!(progress(format!("{{\"progress\":0.{}}}", "1".repeat(1_000)).as_bytes()).is_err());
        assert!(progress(&too_large).is_err());

        let mut step = Step::named("s");
        step.status.key = Some("status".into());
        let output = Message::parse(&said("status")).expect("an object");
        let word = reported_status(&step, &output).expect("allowed").expect("there");
        assert!(word.len() <= STATUS_BYTES_MAX && word.starts_with("éé"), "{word}");
    }

    #[test]
    fn pauses_grow_to_their_longest_and_jitter_is_full_and_repeatable() {
        let retry = Retry {
            attempts: 9,
            backoff: Millis(100),
            factor_milli: 3_000,
            max_backoff: Millis(1_000),
        };
        let longest = |used| pause_ns(&retry, used, u64::MAX) / 1_000_000;
        assert_eq!([1, 2, 3, 4, 1_000].map(longest), [99, 299, 899, 999, 999]);
        assert_eq!(pause_ns(&retry, 3, 0), 0);
        assert_eq!(pause_ns(&retry, 3, 1 << 63) / 1_000_000, 450);
        let job = |n: u128| JobId(uuid::Uuid::from_u128(n));
        let chances: Vec<u64> = (0..1_000).map(|n| retry_chance(job(n), "a", 1) >> 62).collect();
        for quarter in 0..4 {
            let share = chances.iter().filter(|chance| **chance == quarter).count();
            assert!((150..350).contains(&share), "{share} of 1000 in quarter {quarter}");
        }
        assert_eq!(retry_chance(job(1), "a", 1), retry_chance(job(1), "a", 1));
        assert_ne!(retry_chance(job(1), "a", 1), retry_chance(job(1), "a", 2));
    }
}
