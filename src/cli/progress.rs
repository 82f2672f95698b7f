//! The progress bar of a job, with rate and remaining time. It is shown on a terminal only. Without
//! one, no request is made for it.

use super::error::ClientError;
use super::follow::{FollowEvent, JobFollower};
use super::responses::JobResponse;
use base::clock;
use base::times;
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// The shortest time between two updates of the bar.
pub(super) const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// The time over which the rate is measured.
const RATE_WINDOW: Duration = Duration::from_secs(15);

/// The progress bar of a job.
pub(super) struct JobProgressBar {
    bar: ProgressBar,
    /// Whether there was an event since the last update.
    is_stale: bool,
    /// Whether child jobs run. Their events are not in the stream of this job.
    has_children: bool,
    last_update: Option<Instant>,
    rate: RateEstimator,
}

impl JobProgressBar {
    /// Makes a bar, which is visible if standard error is a terminal.
    pub(super) fn new() -> JobProgressBar {
        let bar = ProgressBar::new(0);
        let template = "{spinner} {elapsed_precise} [{bar:30}] {pos}/{len} {wide_msg}";
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        JobProgressBar {
            bar,
            is_stale: true,
            has_children: false,
            last_update: None,
            rate: RateEstimator::default(),
        }
    }

    /// Returns whether there is a terminal to show the bar on.
    pub(super) fn is_visible(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Removes the bar.
    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }

    /// Calls `print` while the bar is hidden.
    pub(super) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// Updates the bar after an event, at most every `PROGRESS_INTERVAL`.
    pub(super) fn handle_event(
        &mut self,
        follower: &mut JobFollower<'_>,
        event: &FollowEvent<'_>,
    ) -> Result<(), ClientError> {
        if !self.is_visible() {
            return Ok(());
        }
        match event {
            FollowEvent::Event(_) => self.is_stale = true,
            FollowEvent::Idle => self.bar.tick(),
            FollowEvent::Disconnected(reason) => {
                self.bar.set_message(format!("connecting again: {reason}"));
                self.is_stale = true;
                return Ok(());
            }
        }
        let is_due = self.last_update.is_none_or(|time| time.elapsed() >= PROGRESS_INTERVAL);
        if !is_due || !(self.is_stale || self.has_children) {
            return Ok(());
        }
        let job = follower.fetch_job()?;
        let now = clock::timer_now();
        self.is_stale = false;
        self.has_children =
            job.steps.iter().any(|step| step.state == "running" && step.children.is_some());
        self.last_update = Some(now);
        let Progress { done, total, running } = Progress::from_job(&job);
        self.rate.record(now, done);
        self.bar.set_length(total);
        self.bar.set_position(done);
        let rate = if self.has_children {
            self.rate.format_remaining(total.saturating_sub(done))
        } else {
            None
        };
        let message: Vec<String> = rate.into_iter().chain([running]).collect();
        self.bar.set_message(message.join("  "));
        Ok(())
    }
}

/// The progress of a job, in steps and child jobs.
struct Progress {
    /// How many have ended.
    done: u64,
    total: u64,
    /// The names of the running steps.
    running: String,
}

impl Progress {
    fn from_job(job: &JobResponse) -> Progress {
        let (mut done, mut total) = (0, 0);
        for step in &job.steps {
            let (ended, items) = step
                .children
                .as_ref()
                .map_or((0, 0), |children| (u64::from(children.ended), u64::from(children.items)));
            done += ended + u64::from(step.state != "waiting" && step.state != "running");
            total += items + 1;
        }
        let running: Vec<&str> = job
            .steps
            .iter()
            .filter(|step| step.state == "running")
            .map(|step| &*step.name)
            .collect();
        Progress { done, total, running: running.join(", ") }
    }
}

/// Estimates a rate from samples in a moving window: times, each with the number of steps and child
/// jobs that had ended.
#[derive(Default)]
struct RateEstimator(VecDeque<(Instant, u64)>);

impl RateEstimator {
    fn record(&mut self, now: Instant, done: u64) {
        self.0.push_back((now, done));
        // The oldest sample is removed once the next one is as old as the window.
        while self.0.get(1).is_some_and(|(time, _)| now.duration_since(*time) >= RATE_WINDOW) {
            self.0.pop_front();
        }
    }

    /// Returns how many end per second. `None` if that is unknown.
    fn per_second(&self) -> Option<f64> {
        let ((start, done_before), (end, done_after)) = (self.0.front()?, self.0.back()?);
        let seconds = end.duration_since(*start).as_secs_f64();
        #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
        let done = done_after.saturating_sub(*done_before) as f64;
        (seconds > 0.0 && done > 0.0).then_some(done / seconds)
    }

    /// Formats the rate and the remaining time: `480/s, 35s left`.
    fn format_remaining(&self, remaining: u64) -> Option<String> {
        let rate = self.per_second()?;
        #[allow(clippy::cast_precision_loss, reason = "a time for people")]
        let seconds = remaining as f64 / rate;
        let duration = Duration::try_from_secs_f64(seconds.ceil()).ok()?;
        Some(format!("{}, {} left", format_rate(rate), humantime::format_duration(duration)))
    }
}

fn format_rate(rate: f64) -> String {
    if rate >= 10.0 { format!("{rate:.0}/s") } else { format!("{rate:.1}/s") }
}

/// Summarizes an ended job with child jobs in one line. Returns `None` if no child job has ended.
pub(super) fn summarize_children(job: &JobResponse) -> Option<String> {
    let children = job.steps.iter().filter_map(|step| step.children.as_ref());
    let (ended, failed) = children.fold((0, 0), |(ended, failed), children| {
        (ended + u64::from(children.ended), failed + u64::from(children.failed))
    });
    let (created, end) =
        (times::parse_rfc3339(&job.created)?, times::parse_rfc3339(job.ended.as_ref()?)?);
    let elapsed = Duration::from_nanos(u64::try_from(end.0.saturating_sub(created.0)).ok()?);
    #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = format_rate(ended as f64 / elapsed.as_secs_f64().max(0.001));
    let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
    (ended > 0).then(|| {
        format!(
            "job {} is {} after {:.1}s: {ended} child jobs{failed}, {rate}",
            job.uuid,
            job.state,
            elapsed.as_secs_f64()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_covers_the_last_seconds_and_gives_the_remaining_time() {
        let start = clock::timer_now();
        let mut rate = RateEstimator::default();
        rate.record(start, 0);
        assert_eq!(rate.format_remaining(100), None, "nothing is known yet");
        rate.record(start + Duration::from_secs(1), 0);
        assert_eq!(rate.format_remaining(100), None, "nothing was done yet");
        rate.record(start + Duration::from_secs(10), 1_000);
        assert_eq!(rate.format_remaining(12_345).as_deref(), Some("100/s, 2m 4s left"));
        // Old samples do not count.
        rate.record(start + Duration::from_secs(40), 1_060);
        assert_eq!(rate.format_remaining(60).as_deref(), Some("2.0/s, 30s left"));
        rate.record(start + Duration::from_secs(41), 1_060);
        assert!(rate.0.len() <= 3, "old samples are removed");
    }

    #[test]
    fn a_fan_out_is_summarized_in_one_line() {
        let job = |children: &str| {
            let text = format!(
                r#"{{"uuid":"c92f","workflow":"w","state":"failed","created":"2026-01-01T00:00:00Z",
                "ended":"2026-01-01T00:00:02.5Z","steps":[{{"name":"each","state":"failed",
                "attempt":1,"status":""{children}}}]}}"#
            );
            summarize_children(&serde_json::from_str(&text).expect("a job"))
        };
        let children = r#","children":{"items":100,"started":100,"ended":100,"failed":3}"#;
        let line = "job c92f is failed after 2.5s: 100 child jobs, 3 failed, 40/s";
        assert_eq!(job(children).as_deref(), Some(line));
        assert_eq!(job(""), None);
    }
}
