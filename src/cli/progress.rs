//! The progress bar of a job, with its rate and remaining time. It is shown only on a terminal.
//! Without a terminal, no requests are made for it.

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

/// The time over which the rate is measured (a moving window).
const RATE_WINDOW: Duration = Duration::from_secs(15);

/// The progress bar of a job.
pub(super) struct JobProgressBar {
    bar: ProgressBar,
    /// Whether there was an event since the last update.
    is_stale: bool,
    /// Whether child jobs are running. The stream may not report their events, so the bar is
    /// updated even without events.
    has_running_children: bool,
    /// The time of the last update. `None` before the first one.
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
            has_running_children: false,
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

    /// Updates the bar after an event, at most every `PROGRESS_INTERVAL`. An update fetches the
    /// job.
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
        if !is_due || !(self.is_stale || self.has_running_children) {
            return Ok(());
        }
        let job = follower.fetch_job()?;
        let now = clock::timer_now();
        self.is_stale = false;
        self.has_running_children =
            job.steps.iter().any(|step| step.state == "running" && step.children.is_some());
        self.last_update = Some(now);
        let Progress { ended_count, total_count, running_steps } = Progress::from_job(&job);
        self.rate.record(now, ended_count);
        self.bar.set_length(total_count);
        self.bar.set_position(ended_count);
        let remaining_text = if self.has_running_children {
            self.rate.format_remaining(total_count.saturating_sub(ended_count))
        } else {
            None
        };
        let message: Vec<String> = remaining_text.into_iter().chain([running_steps]).collect();
        self.bar.set_message(message.join("  "));
        Ok(())
    }
}

/// The progress of a job, in steps and items of fan-outs.
struct Progress {
    /// How many steps and child jobs have ended.
    ended_count: u64,
    /// The number of all steps and items.
    total_count: u64,
    /// The names of the running steps, as one text.
    running_steps: String,
}

impl Progress {
    fn from_job(job: &JobResponse) -> Progress {
        let (mut ended_count, mut total_count) = (0, 0);
        for step in &job.steps {
            if let Some(children) = &step.children {
                ended_count += u64::from(children.ended);
                total_count += u64::from(children.items);
            }
            ended_count += u64::from(step.state != "waiting" && step.state != "running");
            total_count += 1;
        }
        let running_steps: Vec<&str> = job
            .steps
            .iter()
            .filter(|step| step.state == "running")
            .map(|step| &*step.name)
            .collect();
        Progress { ended_count, total_count, running_steps: running_steps.join(", ") }
    }
}

/// Estimates a rate from samples in a moving window.
#[derive(Default)]
struct RateEstimator {
    /// The samples, oldest first.
    samples: VecDeque<Sample>,
}

/// How many steps and child jobs had ended at a time.
struct Sample {
    time: Instant,
    ended_count: u64,
}

impl RateEstimator {
    /// Adds a sample.
    fn record(&mut self, now: Instant, ended_count: u64) {
        self.samples.push_back(Sample { time: now, ended_count });
        // The oldest sample is removed once the next one covers the window.
        while self
            .samples
            .get(1)
            .is_some_and(|sample| now.duration_since(sample.time) >= RATE_WINDOW)
        {
            self.samples.pop_front();
        }
    }

    /// Returns how many steps and child jobs end per second. `None` if that is unknown.
    fn per_second(&self) -> Option<f64> {
        let (oldest, newest) = (self.samples.front()?, self.samples.back()?);
        let seconds = newest.time.duration_since(oldest.time).as_secs_f64();
        #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
        let ended_count = newest.ended_count.saturating_sub(oldest.ended_count) as f64;
        (seconds > 0.0 && ended_count > 0.0).then_some(ended_count / seconds)
    }

    /// Formats the rate, and the time until `remaining_count` more have ended: `480/s, 35s left`.
    /// Returns `None` if the rate is unknown, or the time is too long.
    fn format_remaining(&self, remaining_count: u64) -> Option<String> {
        let rate = self.per_second()?;
        #[allow(clippy::cast_precision_loss, reason = "a time for people")]
        let seconds = remaining_count as f64 / rate;
        let duration = Duration::try_from_secs_f64(seconds.ceil()).ok()?;
        Some(format!("{}, {} left", format_rate(rate), humantime::format_duration(duration)))
    }
}

/// Formats a rate per second. Only a small one has a decimal place.
fn format_rate(rate: f64) -> String {
    if rate >= 10.0 { format!("{rate:.0}/s") } else { format!("{rate:.1}/s") }
}

/// The shortest duration of a job from which its rate is computed, in seconds. It avoids a division
/// by zero.
const ELAPSED_S_MIN: f64 = 0.001;

/// Summarizes an ended job with child jobs in one line. Returns `None` if no child job has ended,
/// or the job has not.
pub(super) fn summarize_children(job: &JobResponse) -> Option<String> {
    let children = job.steps.iter().filter_map(|step| step.children.as_ref());
    let (ended, failed) = children.fold((0, 0), |(ended, failed), children| {
        (ended + u64::from(children.ended), failed + u64::from(children.failed))
    });
    let created_at = times::parse_rfc3339(&job.created)?;
    let ended_at = times::parse_rfc3339(job.ended.as_ref()?)?;
    let elapsed =
        Duration::from_nanos(u64::try_from(ended_at.0.saturating_sub(created_at.0)).ok()?);
    #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = format_rate(ended as f64 / elapsed.as_secs_f64().max(ELAPSED_S_MIN));
    let failed_text = if failed > 0 { format!(", {failed} failed") } else { String::new() };
    (ended > 0).then(|| {
        format!(
            "job {} is {} after {:.1}s: {ended} child jobs{failed_text}, {rate}",
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
        assert_eq!(rate.format_remaining(100), None, "there is only one sample");
        rate.record(start + Duration::from_secs(1), 0);
        assert_eq!(rate.format_remaining(100), None, "nothing has ended yet");
        rate.record(start + Duration::from_secs(10), 1_000);
        assert_eq!(rate.format_remaining(12_345).as_deref(), Some("100/s, 2m 4s left"));
        // Old samples do not count.
        rate.record(start + Duration::from_secs(40), 1_060);
        assert_eq!(rate.format_remaining(60).as_deref(), Some("2.0/s, 30s left"));
        rate.record(start + Duration::from_secs(41), 1_060);
        assert!(rate.samples.len() <= 3, "old samples are removed");
    }

    #[test]
    fn a_fan_out_is_summarized_in_one_line() {
        let summarize = |children: &str| {
            let text = format!(
                r#"{{"uuid":"c92f","workflow":"w","state":"failed","created":"2026-01-01T00:00:00Z",
                "ended":"2026-01-01T00:00:02.5Z","steps":[{{"name":"each","state":"failed",
                "attempt":1,"status":""{children}}}]}}"#
            );
            summarize_children(&serde_json::from_str(&text).expect("a job"))
        };
        let children = r#","children":{"items":100,"started":100,"ended":100,"failed":3}"#;
        let line = "job c92f is failed after 2.5s: 100 child jobs, 3 failed, 40/s";
        assert_eq!(summarize(children).as_deref(), Some(line));
        assert_eq!(summarize(""), None);
    }
}
