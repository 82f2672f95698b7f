//! Formats phrases of the sentences that explain why a job does not progress.

use base::clock;
use base::times::format_rfc3339;
use engine::text::quote;
use engine::{Millis, Step, StepClaim, StepRun, Timestamp, WaitView};
use std::time::Duration;

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

/// What a rate alone makes a step wait at least, so that it is said although holders are waited for
/// too.
const LONG_WAIT: Duration = Duration::from_secs(1);

/// Describes for which limit a step waits: what it allows, who holds it, who is before the step.
pub(super) fn describe_limit_wait(wait: &WaitView, now: Timestamp) -> String {
    if let Some(keys_max) = wait.keys_max {
        return format!(
            "waits for a free key of limit {}, for {}: {keys_max} may be in use at once (setting \
             limits.keys_max), {} before it",
            wait.limit,
            quote(&wait.key),
            wait.before
        );
    }
    let mut facts = Vec::new();
    if wait.setting.is_paused {
        facts.push("it is paused".to_owned());
    }
    if let Some(max) = wait.setting.concurrency {
        facts.push(format!("{} of {max} held", wait.held));
    }
    facts.extend(wait.setting.rate.map(|rate| rate.to_string()));
    facts.push(format!("{} before it", wait.before));
    if let (Some(rate), false) = (wait.setting.rate, wait.setting.is_paused) {
        let first = wait.next.map_or(Duration::ZERO, |next| now.duration_until(next));
        let interval = Duration::from_nanos(rate.interval_ns().unsigned_abs());
        let others = interval.saturating_mul(u32::try_from(wait.before).unwrap_or(u32::MAX));
        let by_rate = first.saturating_add(others);
        // Only of a rate alone it is known how long those before it take.
        if wait.setting.concurrency.is_none() {
            facts.push(format!("some {}", format_some(by_rate)));
        } else if by_rate >= LONG_WAIT {
            facts.push(format!("at least {}", format_some(by_rate)));
        }
    }
    let key =
        if wait.key.is_empty() { String::new() } else { format!(" for {}", quote(&wait.key)) };
    format!("waits for a place of limit {}{key}: {}", wait.limit, facts.join(", "))
}

/// Describes for which limits a step waits, of which nothing else is known here.
pub(super) fn describe_claim(claim: &StepClaim) -> String {
    if claim.places.is_empty() {
        return "waits because its queue or its workflow is paused, or was until now".to_owned();
    }
    let names: Vec<&str> = claim.places.iter().map(|place| &*place.limit).collect();
    let noun = if names.len() == 1 { "limit" } else { "limits" };
    format!("waits for a place of {noun} {}", names.join(", "))
}

/// Formats an estimated duration: tenths of a second up to ten seconds, then whole seconds.
fn format_some(duration: Duration) -> String {
    if duration < Duration::from_secs(10) {
        format!("{:.1} s", duration.as_secs_f64())
    } else {
        Millis(duration.as_secs().saturating_mul(1_000)).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{LimitSetting, Rate};

    fn wait(setting: LimitSetting, key: &str) -> WaitView {
        let next = Some(Timestamp(30_000_000));
        let (limit, key) = ("bank".into(), key.into());
        WaitView { limit, key, setting, before: 37, held: 5, next, keys_max: None }
    }

    #[test]
    fn a_wait_for_a_limit_names_what_it_allows_and_who_is_before() {
        let rate = Some(Rate { count: 100, per: Millis(1_000), burst: 20 });
        let only_rate = LimitSetting { rate, ..LimitSetting::default() };
        assert_eq!(
            describe_limit_wait(&wait(only_rate, ""), Timestamp(0)),
            "waits for a place of limit bank: 100/s, 37 before it, some 0.4 s"
        );
        let both = LimitSetting { concurrency: Some(5), ..only_rate };
        assert_eq!(
            describe_limit_wait(&wait(both, "c1"), Timestamp(0)),
            "waits for a place of limit bank for \"c1\": 5 of 5 held, 100/s, 37 before it"
        );
        let paused = LimitSetting { is_paused: true, ..only_rate };
        assert_eq!(
            describe_limit_wait(&wait(paused, ""), Timestamp(0)),
            "waits for a place of limit bank: it is paused, 100/s, 37 before it"
        );
        let slow = Some(Rate { count: 1, per: Millis(900_000), burst: 1 });
        let slow = LimitSetting { rate: slow, ..LimitSetting::default() };
        assert_eq!(
            describe_limit_wait(&wait(slow, ""), Timestamp(0)),
            "waits for a place of limit bank: 1/15m, 37 before it, some 9h15m"
        );
        let outside = WaitView { keys_max: Some(100), ..wait(both, "c1") };
        assert_eq!(
            describe_limit_wait(&outside, Timestamp(0)),
            "waits for a free key of limit bank, for \"c1\": 100 may be in use at once (setting \
             limits.keys_max), 37 before it"
        );
    }
}
