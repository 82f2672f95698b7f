//! Decides when the webhook delivers which notice: the order, the number of concurrent calls,
//! retries and backoff. Nothing here does I/O or reads a clock.

use crate::settings::WebhookSettings;
use base::http_client;
use engine::Timestamp;
use journal::{Notice, NoticeNumber};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How many notices are read from the journal at once.
pub(super) const PAGE_ROWS: u32 = 100;

/// How many failed notices may wait for a retry. At this limit no new notices are read, which
/// bounds the memory of the queue.
const RETRIES_MAX: usize = 10_000;

/// The notices that are to be delivered, and the state of the receiver.
#[derive(Default)]
pub(super) struct DeliveryQueue {
    /// The last notice that was read from the journal.
    cursor: NoticeNumber,
    /// The notices that were read, and for which no call was made yet.
    page: VecDeque<(NoticeNumber, Notice)>,
    /// Whether the journal may have notices after the cursor.
    pub(super) has_more: bool,
    /// The number of failed calls of each notice that waits for a retry, by the time of the retry.
    retries: BTreeMap<(Timestamp, NoticeNumber), u32>,
    /// Whether the notice of the last call was a retry. Retries and new notices alternate.
    was_retry: bool,
    /// How many failures followed each other without a success. Concurrent calls that fail together
    /// count as one.
    pub(super) failures: u32,
    /// While calls fail, no call is made before this time.
    paused_until: Timestamp,
    /// The number of active calls, including retries whose notices are still to be read.
    pub(super) in_flight: usize,
    /// The notices that were delivered, rejected or given up. The webhook deletes them from the
    /// journal.
    pub(super) finished: Vec<NoticeNumber>,
    /// Whether no more calls are started.
    pub(super) is_closing: bool,
}

/// What the webhook does next.
pub(super) enum NextAction {
    /// Call the receiver.
    Deliver(DueNotice),
    /// Wait for an input or the end of a call, but no longer than this duration if there is one.
    Wait(Option<Duration>),
    /// Wait for the end of a call, since the limit of concurrent calls is reached.
    WaitForCall,
    /// Read the notices after this one.
    Read(NoticeNumber),
    /// Read this notice, whose calls have failed this number of times, and deliver it.
    ReadRetry(NoticeNumber, u32),
}

/// A notice to deliver now.
pub(super) struct DueNotice {
    pub(super) number: NoticeNumber,
    pub(super) notice: Notice,
    /// How many calls with it have failed.
    pub(super) failures: u32,
}

/// The outcome of a call.
pub(super) enum DeliveryOutcome {
    /// The receiver has accepted the notice.
    Delivered,
    /// The receiver rejects the notice permanently, for this reason.
    Rejected(String),
    /// The call failed, and is retried.
    Failed {
        reason: String,
        /// The pause that the receiver demands, if any.
        retry_after: Option<Duration>,
    },
}

impl DeliveryQueue {
    /// Creates a queue that begins with the first notice of the journal.
    pub(super) fn new() -> DeliveryQueue {
        DeliveryQueue { has_more: true, ..DeliveryQueue::default() }
    }

    /// Decides what to do next. A notice to deliver is taken out of the queue and counted as in
    /// flight.
    pub(super) fn next_action(&mut self, now: Timestamp, settings: &WebhookSettings) -> NextAction {
        if self.is_closing {
            return NextAction::Wait(None);
        }
        // While calls fail, a single call at a time probes whether the receiver works again.
        if self.failures > 0 {
            if self.in_flight > 0 {
                return NextAction::Wait(None);
            }
            if now < self.paused_until {
                return NextAction::Wait(Some(duration_until(now, self.paused_until)));
            }
            self.expire_page(now, settings);
        }
        if self.in_flight >= settings.concurrency {
            return NextAction::WaitForCall;
        }
        let next_retry = self
            .retries
            .first_key_value()
            .map(|((retry_at, number), failures)| (*retry_at, *number, *failures));
        let due_retry = next_retry
            .filter(|(retry_at, ..)| *retry_at <= now && (!self.was_retry || self.page.is_empty()));
        if let Some((retry_at, number, failures)) = due_retry {
            self.retries.remove(&(retry_at, number));
            self.was_retry = true;
            self.in_flight += 1;
            return NextAction::ReadRetry(number, failures);
        }
        if let Some((number, notice)) = self.page.pop_front() {
            self.was_retry = false;
            self.in_flight += 1;
            return NextAction::Deliver(DueNotice { number, notice, failures: 0 });
        }
        if self.has_more && self.retries.len() < RETRIES_MAX {
            self.has_more = false;
            return NextAction::Read(self.cursor);
        }
        NextAction::Wait(next_retry.map(|(retry_at, ..)| duration_until(now, retry_at)))
    }

    /// Adds the notices that were read after the cursor, and advances the cursor.
    pub(super) fn add_page(&mut self, page: Vec<(NoticeNumber, Notice)>) {
        self.has_more |= page.len() == PAGE_ROWS as usize;
        self.cursor = page.last().map_or(self.cursor, |(number, _)| *number);
        self.page.extend(page);
    }

    /// Gives up the next notices that are too old, without a call. This bounds the work after a
    /// long outage of the receiver.
    fn expire_page(&mut self, now: Timestamp, settings: &WebhookSettings) {
        while let Some((number, notice)) = self.page.front()
            && is_expired(notice, now, settings)
        {
            self.give_up(*number);
            self.page.pop_front();
        }
    }

    /// Logs that a notice is given up, and adds it to the finished ones.
    fn give_up(&mut self, number: NoticeNumber) {
        tracing::error!(
            notice = number,
            "the end of a job could not be delivered to the webhook within \
             events.webhook.age_max: given up"
        );
        self.finished.push(number);
    }

    /// Applies the outcome of a call. Returns whether the notice was given up.
    pub(super) fn settle(
        &mut self,
        due_notice: DueNotice,
        outcome: &DeliveryOutcome,
        now: Timestamp,
        settings: &WebhookSettings,
    ) -> bool {
        let DueNotice { number, notice, failures: previous_failures } = due_notice;
        self.in_flight -= 1;
        let DeliveryOutcome::Failed { retry_after, .. } = outcome else {
            self.failures = 0;
            self.finished.push(number);
            return false;
        };
        // Concurrent calls that fail together count as one failure.
        if self.failures == 0 || now >= self.paused_until {
            self.failures += 1;
            let demanded_pause = retry_after.unwrap_or(Duration::ZERO);
            self.paused_until =
                add_duration(now, backoff(self.failures, settings).max(demanded_pause));
        }
        if is_expired(&notice, now, settings) {
            self.give_up(number);
            return true;
        }
        let failures = previous_failures + 1;
        self.retries.insert((add_duration(now, backoff(failures, settings)), number), failures);
        false
    }
}

/// Returns whether a notice is older than the settings allow.
fn is_expired(notice: &Notice, now: Timestamp, settings: &WebhookSettings) -> bool {
    now > add_duration(notice.at, settings.age_max.0)
}

/// Returns the pause after a number of failures, by exponential backoff.
fn backoff(failures: u32, settings: &WebhookSettings) -> Duration {
    http_client::backoff(failures, (settings.backoff_min.0, settings.backoff_max.0))
}

/// Adds a duration to a time, up to the latest time that can be represented.
pub(super) fn add_duration(time: Timestamp, duration: Duration) -> Timestamp {
    Timestamp(time.0.saturating_add(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)))
}

/// Returns the duration from `now` to a time; zero if the time has passed.
fn duration_until(now: Timestamp, time: Timestamp) -> Duration {
    Duration::from_nanos(u64::try_from(time.0.saturating_sub(now.0)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    fn settings() -> WebhookSettings {
        Settings::defaults().unwrap().events.webhook
    }

    fn notice(at_s: i64) -> Notice {
        Notice { at: seconds(at_s), body: "{}".into() }
    }

    fn seconds(at_s: i64) -> Timestamp {
        Timestamp(at_s * 1_000_000_000)
    }

    fn failed() -> DeliveryOutcome {
        DeliveryOutcome::Failed { reason: "down".to_owned(), retry_after: None }
    }

    /// Takes the notice that is due at a time, if any. The notice of a retry is a stub.
    fn next_delivery(queue: &mut DeliveryQueue, at_s: i64) -> Option<DueNotice> {
        match queue.next_action(seconds(at_s), &settings()) {
            NextAction::Deliver(due_notice) => Some(due_notice),
            NextAction::ReadRetry(number, failures) => {
                Some(DueNotice { number, notice: notice(0), failures })
            }
            NextAction::Wait(_) | NextAction::WaitForCall | NextAction::Read(_) => None,
        }
    }

    #[test]
    fn while_calls_fail_one_at_a_time_probes_the_receiver_with_growing_pauses() {
        let mut queue = DeliveryQueue::default();
        queue.add_page((1..=5).map(|number| (number, notice(0))).collect());
        let first_notice = next_delivery(&mut queue, 10).unwrap();
        let second_notice = next_delivery(&mut queue, 10).unwrap();
        assert!(!queue.settle(first_notice, &failed(), seconds(10), &settings()));
        assert!(next_delivery(&mut queue, 10).is_none(), "the other call is still active");
        queue.settle(second_notice, &failed(), seconds(10), &settings());
        assert!(
            next_delivery(&mut queue, 10).is_none() && queue.failures == 1,
            "both failed at once"
        );
        let probe = next_delivery(&mut queue, 11).unwrap();
        assert!(next_delivery(&mut queue, 11).is_none());
        queue.settle(probe, &failed(), seconds(11), &settings());
        assert!(next_delivery(&mut queue, 12).is_none());
        let probe = next_delivery(&mut queue, 13).unwrap();
        queue.settle(probe, &DeliveryOutcome::Delivered, seconds(13), &settings());
        assert_eq!(queue.finished.len(), 1);
        let remaining: Vec<NoticeNumber> = std::iter::from_fn(|| next_delivery(&mut queue, 60))
            .map(|due_notice| due_notice.number)
            .collect();
        assert_eq!(remaining.len(), 4, "{remaining:?}");
    }

    #[test]
    fn a_notice_that_is_never_accepted_does_not_delay_the_others() {
        let mut queue = DeliveryQueue::default();
        queue.add_page((1..=50).map(|number| (number, notice(0))).collect());
        let mut at_s = 0;
        let mut delivered = 0;
        while delivered < 49 {
            at_s += 1;
            assert!(at_s < 200, "{delivered} delivered");
            while let Some(due_notice) = next_delivery(&mut queue, at_s) {
                let outcome =
                    if due_notice.number == 1 { failed() } else { DeliveryOutcome::Delivered };
                delivered += usize::from(due_notice.number != 1);
                queue.settle(due_notice, &outcome, seconds(at_s), &settings());
            }
        }
    }

    #[test]
    fn notices_that_are_too_old_are_given_up() {
        let day_s = 24 * 3600;
        let mut queue = DeliveryQueue::default();
        queue.add_page(vec![(1, notice(0)), (2, notice(0)), (3, notice(10 * day_s))]);
        let first_notice = next_delivery(&mut queue, 10 * day_s).unwrap();
        assert!(
            queue.settle(first_notice, &failed(), seconds(10 * day_s), &settings()),
            "an old notice is tried once"
        );
        assert_eq!(
            next_delivery(&mut queue, 11 * day_s).map(|due_notice| due_notice.number),
            Some(3)
        );
        assert_eq!(queue.finished, [1, 2]);
    }

    #[test]
    fn concurrent_calls_are_limited_by_the_settings() {
        let mut queue = DeliveryQueue::default();
        queue.add_page((1..=9).map(|number| (number, notice(0))).collect());
        let calls: Vec<DueNotice> = std::iter::from_fn(|| next_delivery(&mut queue, 10)).collect();
        assert_eq!(calls.len(), settings().concurrency);
        assert!(matches!(queue.next_action(seconds(10), &settings()), NextAction::WaitForCall));
        for call in calls {
            queue.settle(call, &DeliveryOutcome::Delivered, seconds(10), &settings());
            let next = next_delivery(&mut queue, 10).map(|due_notice| due_notice.number);
            assert!(
                next.is_some_and(|number| number > 4),
                "a finished call makes way for another: {next:?}"
            );
        }
    }

    #[test]
    fn a_response_may_demand_a_longer_pause() {
        let mut queue = DeliveryQueue::default();
        queue.add_page(vec![(1, notice(0))]);
        let due_notice = next_delivery(&mut queue, 0).unwrap();
        queue.settle(
            due_notice,
            &DeliveryOutcome::Failed {
                reason: String::new(),
                retry_after: Some(Duration::from_secs(30)),
            },
            seconds(0),
            &settings(),
        );
        assert!(next_delivery(&mut queue, 29).is_none() && next_delivery(&mut queue, 30).is_some());
    }
}
