//! Formats parts of the sentences that explain why a job does not move.

use base::clock;
use base::times::format_rfc3339;
use engine::{Millis, Step, StepRun, Timestamp};

pub(super) fn describe_condition(step: &str, condition: &str) -> String {
    format!(
        "condition: step \"{step}\" was skipped, its `when: {condition}` came to false; the job \
         is completed"
    )
}

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

pub(super) fn format_count_u64(count: u64, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

pub(super) fn format_count(count: u32, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

pub(super) fn format_time_left(at: Timestamp) -> String {
    Millis::from_duration(clock::now().duration_until(at)).to_string()
}

/// Describes when the running attempt of a step fails for lack of a reply.
pub(super) fn describe_timeout(step: &Step, run: &StepRun) -> String {
    let start = run
        .start_by()
        .map_or_else(String::new, |at| format!("; it fails at {}", format_rfc3339(at)));
    match (run.deadline(), step.timeout) {
        (Some(at), _) => format!("its timeout is {}", format_rfc3339(at)),
        (None, Some(span)) if run.is_waiting_for_start() => {
            format!("its timeout of {span} has not begun, because nobody has taken it{start}")
        }
        (None, _) => format!(
            "it has no timeout, so a worker that died after its ack would not be noticed{start}"
        ),
    }
}
