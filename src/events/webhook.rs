//! The webhook: posts the end of each top-level job, signed, until the receiver accepts it.
//!
//! Each end is delivered at least once, whatever happens to the process: the notices are rows of
//! the journal, written with the ends, and deleted after their delivery. They wait on the disk, and
//! a few of them in memory. Threads of the webhook's own make the calls, and nothing else waits for
//! them. While calls fail there is only one call at a time, after a growing pause. Failed notices
//! are tried again after a pause of their own, so that one notice that is never accepted does not
//! hold up the others.

use super::event::CONTENT_TYPE;
use crate::clock;
use crate::engine::Timestamp;
use crate::journal::{JournalError, Notice, NoticeNumber, Records};
use crate::settings::{Settings, WebhookSettings};
use crate::signature::{SIGNATURE, TIMESTAMP, signature};
use crate::telemetry::Metrics;
use crate::times;
use crate::trust::Authorities;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use ureq::http::Response;
use ureq::{Agent, Body};

/// How many notices are read from the journal at once.
const PAGE_ROWS: u32 = 100;

/// The most failed notices that wait for another try. While there are that many, no new ones are
/// read.
const RETRIES_MAX: usize = 10_000;

/// How many notices are deleted at once; fewer when there is nothing else to do.
const FORGOTTEN_MAX: usize = 100;

/// How much of a response is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// How long a stop waits for calls under way.
const STOP_WAIT: Duration = Duration::from_secs(1);

/// The longest pause that the receiver can demand with `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// The webhook of a process.
pub struct Webhook {
    settings: WebhookSettings,
    authorities: Authorities,
    metrics: Metrics,
    /// Pauses are measured by a monotonic clock: the wall-clock time and the instant of its first
    /// reading.
    since: (Timestamp, Instant),
    desk: Mutex<Desk>,
    wake: Condvar,
    idle: Notify,
}

/// What the webhook needs of its manager.
pub struct Surroundings {
    /// Reads the notices.
    pub reader: Arc<dyn Records>,
    /// Deletes delivered notices from the journal.
    pub forget: Box<dyn Fn(Vec<NoticeNumber>) + Send + Sync>,
    /// Ends the process in an orderly way, for the given reason.
    pub fail: Box<dyn Fn(String) + Send + Sync>,
}

/// The notices that are to be delivered, and when.
#[derive(Default)]
struct Desk {
    /// The last notice that was read from the journal.
    cursor: NoticeNumber,
    page: VecDeque<(NoticeNumber, Notice)>,
    /// Whether there may be notices beyond the cursor.
    has_more: bool,
    is_reading: bool,
    /// The failed notices: when each is due, and how often it has failed.
    retries: BTreeMap<(Timestamp, NoticeNumber), u32>,
    /// Whether the last notice was a retry. Retries and new notices take turns.
    was_retry: bool,
    /// How often calls have failed in a row, and until when no call is made.
    failures: u32,
    paused_until: Timestamp,
    in_flight: usize,
    done: Vec<NoticeNumber>,
    is_closing: bool,
}

/// What a thread does next.
enum Next {
    Deliver(DueNotice),
    Wait(Option<Duration>),
    Read(NoticeNumber),
    ReadRetry(NoticeNumber, u32),
    End,
}

struct DueNotice {
    number: NoticeNumber,
    notice: Notice,
    failed: u32,
}

/// The outcome of a call.
enum Outcome {
    Delivered,
    /// The receiver rejects the notice for good.
    Refused(String),
    Failed {
        reason: String,
        retry_after: Option<Duration>,
    },
}

impl Webhook {
    /// Makes the webhook of the settings. Returns `None` if they have none.
    pub fn new(settings: &Settings, metrics: &Metrics) -> Option<Webhook> {
        let webhook = &settings.events.webhook;
        webhook.is_on().then(|| Webhook {
            settings: webhook.clone(),
            // The file of authorities was read when the settings were.
            authorities: settings.authorities().unwrap_or_default(),
            metrics: metrics.clone(),
            since: (clock::now(), clock::instant()),
            desk: Mutex::new(Desk { has_more: true, ..Desk::default() }),
            wake: Condvar::new(),
            idle: Notify::new(),
        })
    }

    /// Starts to deliver the notices of the journal.
    ///
    /// # Errors
    ///
    /// The journal cannot be read.
    pub fn start(self: &Arc<Self>, around: Surroundings) -> Result<(), JournalError> {
        self.metrics.webhook_waiting.set(around.reader.notice_count()?);
        let agent = self.authorities.agent(self.settings.timeout.0);
        let around = Arc::new(around);
        for _ in 0..self.settings.concurrency {
            let (webhook, agent, around) = (self.clone(), agent.clone(), around.clone());
            std::thread::spawn(move || webhook.deliver_all(&around, &agent));
        }
        Ok(())
    }

    /// Reports that a notice was committed.
    pub fn noticed(&self) {
        self.metrics.webhook_waiting.inc();
        self.desk().has_more = true;
        self.wake.notify_one();
    }

    /// Stops calling, and waits a moment for the calls under way. Notices that are not delivered by
    /// then are delivered after the next start.
    pub async fn close(&self) {
        self.desk().is_closing = true;
        self.wake.notify_all();
        let ended = async {
            while self.desk().in_flight > 0 {
                self.idle.notified().await;
            }
        };
        // After a timeout the notices of these calls are delivered once more.
        let _ = tokio::time::timeout(STOP_WAIT, ended).await;
    }

    fn now(&self) -> Timestamp {
        later(self.since.0, self.since.1.elapsed())
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deliver_all(&self, around: &Surroundings, agent: &Agent) {
        let mut desk = self.desk();
        loop {
            match desk.next(self.now(), &self.settings) {
                Next::End => return,
                Next::Wait(time) => {
                    self.forget(&mut desk, around, 1);
                    desk = match time {
                        Some(time) => self
                            .wake
                            .wait_timeout(desk, time)
                            .map_or_else(|error| error.into_inner().0, |(desk, _)| desk),
                        None => self.wake.wait(desk).unwrap_or_else(PoisonError::into_inner),
                    };
                }
                Next::Read(after) => {
                    drop(desk);
                    let read = around.reader.notices(after, PAGE_ROWS);
                    desk = self.desk();
                    desk.is_reading = false;
                    match read {
                        Ok(page) => desk.take_page(page),
                        Err(JournalError::Closed { .. }) => return,
                        Err(error) => self.broken(around, &error),
                    }
                    self.wake.notify_all();
                }
                Next::ReadRetry(number, failed) => {
                    drop(desk);
                    let read = around.reader.notice(number);
                    desk = self.desk();
                    match read {
                        Ok(Some(notice)) => {
                            desk = self.deliver(
                                desk,
                                around,
                                agent,
                                DueNotice { number, notice, failed },
                            )
                        }
                        Ok(None) => desk.in_flight -= 1,
                        Err(JournalError::Closed { .. }) => {
                            desk.in_flight -= 1;
                            return;
                        }
                        Err(error) => {
                            desk.in_flight -= 1;
                            self.broken(around, &error);
                        }
                    }
                }
                Next::Deliver(delivery) => desk = self.deliver(desk, around, agent, delivery),
            }
        }
    }

    fn broken(&self, around: &Surroundings, error: &JournalError) {
        (around.fail)(format!("the webhook cannot read its notices: {error}"));
    }

    fn deliver<'a>(
        &'a self,
        desk: MutexGuard<'a, Desk>,
        around: &Surroundings,
        agent: &Agent,
        delivery: DueNotice,
    ) -> MutexGuard<'a, Desk> {
        drop(desk);
        // A panic in the client costs this call alone, not the thread.
        let called = catch_unwind(AssertUnwindSafe(|| self.call(agent, &delivery.notice)));
        let outcome = called.unwrap_or_else(|_| Outcome::Failed {
            reason: "the call panicked; the log has the panic".to_owned(),
            retry_after: None,
        });
        let mut desk = self.desk();
        let label = match &outcome {
            Outcome::Delivered => "delivered",
            Outcome::Refused(reason) => {
                tracing::error!(
                    notice = delivery.number,
                    reason,
                    "the webhook refuses the end of a job: it is not sent again"
                );
                "refused"
            }
            Outcome::Failed { reason, .. } => {
                if desk.failures == 0 {
                    tracing::warn!(
                        notice = delivery.number,
                        reason,
                        "the webhook cannot be told: tried again until it can"
                    );
                }
                "failed"
            }
        };
        self.metrics.webhook_deliveries.with_label_values(&[label]).inc();
        let was_failing = desk.failures > 0;
        let expired = desk.settle(delivery, &outcome, self.now(), &self.settings);
        if expired {
            self.metrics.webhook_deliveries.with_label_values(&["expired"]).inc();
        }
        if was_failing && desk.failures == 0 {
            tracing::info!("the webhook takes calls again");
        }
        self.forget(&mut desk, around, FORGOTTEN_MAX);
        if desk.in_flight == 0 {
            self.idle.notify_one();
        }
        if desk.is_closing {
            self.forget(&mut desk, around, 1);
        }
        self.wake.notify_all();
        desk
    }

    /// Deletes the finished notices, once there are at least `least` of them.
    fn forget(&self, desk: &mut Desk, around: &Surroundings, least: usize) {
        if desk.done.len() >= least {
            let done = std::mem::take(&mut desk.done);
            self.metrics.webhook_waiting.sub(i64::try_from(done.len()).unwrap_or_default());
            (around.forget)(done);
        }
    }

    fn call(&self, agent: &Agent, notice: &Notice) -> Outcome {
        let timestamp = times::seconds(clock::now()).to_string();
        let mut request = agent
            .post(self.settings.url.0.as_str())
            .header("Content-Type", CONTENT_TYPE)
            .header(TIMESTAMP, &timestamp);
        if !self.settings.secret.0.is_empty() {
            let signature = signature(&self.settings.secret.0, &timestamp, notice.body.as_bytes());
            request = request.header(SIGNATURE, signature);
        }
        match request.send(&*notice.body) {
            Ok(response) => outcome(response),
            Err(error) => Outcome::Failed { reason: error.to_string(), retry_after: None },
        }
    }
}

fn outcome(mut response: Response<Body>) -> Outcome {
    let status = response.status();
    let retry_after = response.headers().get("Retry-After");
    let retry_after =
        retry_after.and_then(|value| times::retry_after(value.to_str().ok()?, clock::now()));
    let retry_after = retry_after.map(|pause| pause.min(RETRY_AFTER_MAX));
    // Read to its end, so that the connection can be used again. Its content does not matter.
    let _ = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
    if status.is_success() {
        Outcome::Delivered
    } else if status.is_client_error() && status.as_u16() != 429 {
        Outcome::Refused(format!("it answered {status}"))
    } else {
        Outcome::Failed { reason: format!("it answered {status}"), retry_after }
    }
}

impl Desk {
    fn next(&mut self, now: Timestamp, settings: &WebhookSettings) -> Next {
        if self.is_closing {
            return Next::End;
        }
        if self.failures > 0 {
            if self.in_flight > 0 {
                return Next::Wait(None);
            }
            if now < self.paused_until {
                return Next::Wait(Some(until(now, self.paused_until)));
            }
            self.expire_page(now, settings);
        }
        let due =
            self.retries.first_key_value().map(|((due, number), failed)| (*due, *number, *failed));
        let retry =
            due.filter(|(due, ..)| *due <= now && (!self.was_retry || self.page.is_empty()));
        if let Some((due, number, failed)) = retry {
            self.retries.remove(&(due, number));
            self.was_retry = true;
            self.in_flight += 1;
            return Next::ReadRetry(number, failed);
        }
        if let Some((number, notice)) = self.page.pop_front() {
            self.was_retry = false;
            self.in_flight += 1;
            return Next::Deliver(DueNotice { number, notice, failed: 0 });
        }
        if self.has_more && !self.is_reading && self.retries.len() < RETRIES_MAX {
            self.has_more = false;
            self.is_reading = true;
            return Next::Read(self.cursor);
        }
        Next::Wait(due.map(|(due, ..)| until(now, due)))
    }

    fn take_page(&mut self, page: Vec<(NoticeNumber, Notice)>) {
        self.has_more |= page.len() == PAGE_ROWS as usize;
        self.cursor = page.last().map_or(self.cursor, |(number, _)| *number);
        self.page.extend(page);
    }

    /// Gives up notices that are too old without a call. Done while the receiver accepts nothing.
    fn expire_page(&mut self, now: Timestamp, settings: &WebhookSettings) {
        while self.page.front().is_some_and(|(_, notice)| is_expired(notice, now, settings)) {
            let number = self.page.pop_front().map(|(number, _)| number);
            tracing::error!(
                notice = number,
                "the end of a job could not be told to the webhook within events.webhook.age_max: \
                 given up"
            );
            self.done.extend(number);
        }
    }

    /// Applies the outcome of a call. Returns whether the notice is given up.
    fn settle(
        &mut self,
        delivery: DueNotice,
        outcome: &Outcome,
        now: Timestamp,
        settings: &WebhookSettings,
    ) -> bool {
        let DueNotice { number, notice, failed } = delivery;
        self.in_flight -= 1;
        let Outcome::Failed { retry_after, .. } = outcome else {
            self.failures = 0;
            self.done.push(number);
            return false;
        };
        // Calls that were made together have failed together.
        if self.failures == 0 || now >= self.paused_until {
            self.failures += 1;
            self.paused_until =
                later(now, pause(self.failures, settings).max(retry_after.unwrap_or_default()));
        }
        if is_expired(&notice, now, settings) {
            tracing::error!(
                notice = number,
                "the end of a job could not be told to the webhook within events.webhook.age_max: \
                 given up"
            );
            self.done.push(number);
            return true;
        }
        self.retries.insert((later(now, pause(failed + 1, settings)), number), failed + 1);
        false
    }
}

fn is_expired(notice: &Notice, now: Timestamp, settings: &WebhookSettings) -> bool {
    now > later(notice.at, settings.age_max.0)
}

/// Returns the pause after this many failures in a row.
fn pause(failures: u32, settings: &WebhookSettings) -> Duration {
    let doubled =
        settings.backoff_min.0.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1)));
    doubled.min(settings.backoff_max.0.max(settings.backoff_min.0))
}

fn later(at: Timestamp, span: Duration) -> Timestamp {
    Timestamp(at.0.saturating_add(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)))
}

fn until(now: Timestamp, due: Timestamp) -> Duration {
    Duration::from_nanos(u64::try_from(due.0.saturating_sub(now.0)).unwrap_or_default())
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

    fn failed() -> Outcome {
        Outcome::Failed { reason: "down".to_owned(), retry_after: None }
    }

    /// Returns the notice that is delivered next at that time. Retries are read from a stub.
    fn called(desk: &mut Desk, at_s: i64) -> Option<DueNotice> {
        match desk.next(seconds(at_s), &settings()) {
            Next::Deliver(delivery) => Some(delivery),
            Next::ReadRetry(number, failed) => {
                Some(DueNotice { number, notice: notice(0), failed })
            }
            Next::Wait(_) | Next::Read(_) | Next::End => None,
        }
    }

    #[test]
    fn while_calls_fail_there_is_one_at_a_time_after_pauses_that_grow() {
        let mut desk = Desk::default();
        desk.take_page((1..=5).map(|number| (number, notice(0))).collect());
        let (first, second) = (called(&mut desk, 10).unwrap(), called(&mut desk, 10).unwrap());
        assert!(!desk.settle(first, &failed(), seconds(10), &settings()));
        assert!(called(&mut desk, 10).is_none(), "the other one is still under way");
        desk.settle(second, &failed(), seconds(10), &settings());
        assert!(called(&mut desk, 10).is_none() && desk.failures == 1, "both failed at once");
        let probe = called(&mut desk, 11).unwrap();
        assert!(called(&mut desk, 11).is_none());
        desk.settle(probe, &failed(), seconds(11), &settings());
        assert!(called(&mut desk, 12).is_none());
        let probe = called(&mut desk, 13).unwrap();
        desk.settle(probe, &Outcome::Delivered, seconds(13), &settings());
        assert_eq!(desk.done.len(), 1);
        let rest: Vec<NoticeNumber> =
            std::iter::from_fn(|| called(&mut desk, 60)).map(|delivery| delivery.number).collect();
        assert_eq!(rest.len(), 4, "{rest:?}");
    }

    #[test]
    fn one_notice_that_is_never_taken_does_not_keep_the_others_back() {
        let mut desk = Desk::default();
        desk.take_page((1..=50).map(|number| (number, notice(0))).collect());
        let mut at_s = 0;
        let mut delivered = 0;
        while delivered < 49 {
            at_s += 1;
            assert!(at_s < 200, "{delivered} delivered");
            while let Some(delivery) = called(&mut desk, at_s) {
                let outcome = if delivery.number == 1 { failed() } else { Outcome::Delivered };
                delivered += usize::from(delivery.number != 1);
                desk.settle(delivery, &outcome, seconds(at_s), &settings());
            }
        }
    }

    #[test]
    fn what_is_too_old_is_given_up() {
        let day_s = 24 * 3600;
        let mut desk = Desk::default();
        desk.take_page(vec![(1, notice(0)), (2, notice(0)), (3, notice(10 * day_s))]);
        let first = called(&mut desk, 10 * day_s).unwrap();
        assert!(
            desk.settle(first, &failed(), seconds(10 * day_s), &settings()),
            "tried once all the same"
        );
        assert_eq!(called(&mut desk, 11 * day_s).map(|delivery| delivery.number), Some(3));
        assert_eq!(desk.done, [1, 2]);
    }

    #[test]
    fn a_pause_may_be_asked_for_until_a_time() {
        let pause = |after: &str| {
            let response = Response::builder().status(503).header("Retry-After", after);
            let response = response.body(Body::builder().data("later")).expect("a response");
            let Outcome::Failed { retry_after, .. } = outcome(response) else {
                panic!("no failure")
            };
            retry_after
        };
        let until = |seconds: i64| {
            let at = jiff::Timestamp::from_nanosecond(i128::from(clock::now().0)).expect("a time");
            let at = at + jiff::SignedDuration::from_secs(seconds);
            jiff::fmt::rfc2822::DateTimePrinter::new()
                .timestamp_to_rfc9110_string(&at)
                .expect("a date")
        };
        let asked = pause(&until(600)).expect("a pause");
        assert!((500..=600).contains(&asked.as_secs()), "{asked:?}");
        assert_eq!(pause(&until(100_000)), Some(RETRY_AFTER_MAX));
        assert_eq!(pause(&until(-100)), Some(Duration::ZERO));
        assert_eq!((pause("7"), pause("soon")), (Some(Duration::from_secs(7)), None));
    }

    #[test]
    fn the_other_side_may_ask_for_a_longer_pause() {
        let mut desk = Desk::default();
        desk.take_page(vec![(1, notice(0))]);
        let first = called(&mut desk, 0).unwrap();
        desk.settle(
            first,
            &Outcome::Failed { reason: String::new(), retry_after: Some(Duration::from_secs(30)) },
            seconds(0),
            &settings(),
        );
        assert!(called(&mut desk, 29).is_none() && called(&mut desk, 30).is_some());
    }
}
