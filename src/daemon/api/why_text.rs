//! Formats phrases of the sentences that explain why a job does not progress.

use base::clock;
use base::times::format_rfc3339;
use engine::{Millis, Step, StepRun, Timestamp};

/// Describes that a step was skipped because of its condition.
pub(super) fn describe_condition(step: &str, condition: &str) -> String {
    format!(
        "condition: step \"{step}\" was skipped, its `when: {condition}` was false; the job \
         is completed"
    )
}

/// Describes that messages wait on a queue because all its consumers are busy.
pub(super) fn describe_all_busy(
    step: &str,
    queue: &str,
    messages: u32,
    consumers: u32,
    timeout: &str,
) -> String {
    format!(
        "all busy: {} on queue \"{queue}\" for its {}, most likely the message of step \"{step}\" \
         is among them or with a worker; {timeout}",
        format_count(messages, "message waits", "messages wait"),
        format_count(consumers, "consumer", "consumers")
    )
}

/// Formats a count with the singular or plural of its noun.
pub(super) fn format_count(count: impl Into<u64>, singular: &str, plural: &str) -> String {
    let count = count.into();
    format!("{count} {}", if count == 1 { singular } else { plural })
}

/// Formats the time from now until `time`; it is 0 if that time has passed.
pub(super) fn format_time_left(time: Timestamp) -> String {
    Millis::from_duration(clock::now().duration_until(time)).to_string()
}

/// Describes when the running attempt of a step times out. An attempt whose timeout starts with its
/// first lease also has a time by which it must be leased.
pub(super) fn describe_timeout(step: &Step, run: &StepRun) -> String {
    let start_limit = run
        .start_by()
        .map_or_else(String::new, |time| format!("; it fails at {}", format_rfc3339(time)));
    match (run.timeout_at(), step.timeout) {
        (Some(deadline), _) => format!("its timeout is {}", format_rfc3339(deadline)),
        (None, Some(timeout)) if run.is_timeout_pending() => {
            format!(
                "its timeout of {timeout} has not begun, because nobody has taken it{start_limit}"
            )
        }
        (None, _) => format!(
            "it has no timeout, so a worker that died after its ack would not be \
             noticed{start_limit}"
        ),
    }
}
