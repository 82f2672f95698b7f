//! The webhook: posts the end of each top-level job, signed, until the receiver accepts it.
//!
//! Each end is delivered at least once, whatever happens to the process: the notices are rows of
//! the journal, written with the ends, and deleted after their delivery. They wait on the disk, and
//! a few of them in memory. Threads of the webhook's own make the calls, and nothing else waits for
//! them. While calls fail there is only one call at a time, after a growing pause. Failed notices
//! are tried again after a pause of their own, so that one notice that is never accepted does not
//! hold up the others.

use super::event::CONTENT_TYPE;
use crate::settings::{Settings, WebhookSettings};
use crate::telemetry::Metrics;
use base::clock;
use base::signature::{SIGNATURE_HEADER, TIMESTAMP_HEADER, sign};
use base::times;
use base::trust::Authorities;
use engine::Timestamp;
use journal::{JournalError, Notice, NoticeNumber, Records};
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
const DELETED_MAX: usize = 100;

/// How much of a response is read, in bytes.
const RESPONSE_BYTES_MAX: u64 = 64 * 1024;

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
    clock_origin: (Timestamp, Instant),
    queue: Mutex<DeliveryQueue>,
    wake: Condvar,
    idle: Notify,
}

/// What the webhook needs of its manager.
pub struct WebhookEnv {
    /// Reads the notices.
    pub reader: Arc<dyn Records>,
    /// Deletes delivered notices from the journal.
    pub delete_notices: Box<dyn Fn(Vec<NoticeNumber>) + Send + Sync>,
    /// Ends the process in an orderly way, for the given reason.
    pub fail_process: Box<dyn Fn(String) + Send + Sync>,
}

/// The notices that are to be delivered, and when.
#[derive(Default)]
struct DeliveryQueue {
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
enum NextAction {
    Deliver(DueNotice),
    Wait(Option<Duration>),
    Read(NoticeNumber),
    ReadRetry(NoticeNumber, u32),
    End,
}

struct DueNotice {
    number: NoticeNumber,
    notice: Notice,
    failures: u32,
}

/// The outcome of a call.
enum DeliveryOutcome {
    Delivered,
    /// The receiver rejects the notice for good.
    Rejected(String),
    Failed {
        reason: String,
        retry_after: Option<Duration>,
    },
}

impl Webhook {
    /// Makes the webhook of the settings. Returns `None` if they have none.
    ///
    /// # Errors
    ///
    /// Returns an error if the file of the setting `tls.authorities` cannot be used.
    pub fn new(settings: &Settings, metrics: &Metrics) -> Result<Option<Webhook>, String> {
        let webhook = &settings.events.webhook;
        if !webhook.is_enabled() {
            return Ok(None);
        }
        Ok(Some(Webhook {
            settings: webhook.clone(),
            authorities: settings.authorities()?,
            metrics: metrics.clone(),
            clock_origin: (clock::now(), clock::instant()),
            queue: Mutex::new(DeliveryQueue { has_more: true, ..DeliveryQueue::default() }),
            wake: Condvar::new(),
            idle: Notify::new(),
        }))
    }

    /// Starts to deliver the notices of the journal.
    ///
    /// # Errors
    ///
    /// The journal cannot be read.
    pub fn start(self: &Arc<Self>, env: WebhookEnv) -> Result<(), JournalError> {
        self.metrics.webhook_waiting.set(env.reader.count_notices()?);
        let agent = self.authorities.http_agent(self.settings.timeout.0);
        let around = Arc::new(env);
        for _ in 0..self.settings.concurrency {
            let (webhook, agent, around) = (self.clone(), agent.clone(), around.clone());
            std::thread::spawn(move || webhook.run_worker(&around, &agent));
        }
        Ok(())
    }

    /// Reports that a notice was committed.
    pub fn notify_committed(&self) {
        self.metrics.webhook_waiting.inc();
        self.lock_queue().has_more = true;
        self.wake.notify_one();
    }

    /// Stops calling, and waits a moment for the calls under way. Notices that are not delivered by
    /// then are delivered after the next start.
    pub async fn close(&self) {
        self.lock_queue().is_closing = true;
        self.wake.notify_all();
        let ended = async {
            while self.lock_queue().in_flight > 0 {
                self.idle.notified().await;
            }
        };
        // After a timeout the notices of these calls are delivered once more.
        let _ = tokio::time::timeout(STOP_WAIT, ended).await;
    }

    fn now(&self) -> Timestamp {
        add_duration(self.clock_origin.0, self.clock_origin.1.elapsed())
    }

    fn lock_queue(&self) -> MutexGuard<'_, DeliveryQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run_worker(&self, env: &WebhookEnv, agent: &Agent) {
        let mut queue = self.lock_queue();
        loop {
            match queue.next_action(self.now(), &self.settings) {
                NextAction::End => return,
                NextAction::Wait(time) => {
                    self.delete_done(&mut queue, env, 1);
                    queue = match time {
                        Some(time) => self
                            .wake
                            .wait_timeout(queue, time)
                            .map_or_else(|error| error.into_inner().0, |(guard, _)| guard),
                        None => self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner),
                    };
                }
                NextAction::Read(after) => {
                    drop(queue);
                    let read = env.reader.load_notices(after, PAGE_ROWS);
                    queue = self.lock_queue();
                    queue.is_reading = false;
                    match read {
                        Ok(page) => queue.add_page(page),
                        Err(JournalError::Closed { .. }) => return,
                        Err(error) => self.report_read_failure(env, &error),
                    }
                    self.wake.notify_all();
                }
                NextAction::ReadRetry(number, failed) => {
                    drop(queue);
                    let read = env.reader.load_notice(number);
                    queue = self.lock_queue();
                    match read {
                        Ok(Some(notice)) => {
                            queue = self.deliver(
                                queue,
                                env,
                                agent,
                                DueNotice { number, notice, failures: failed },
                            )
                        }
                        Ok(None) => queue.in_flight -= 1,
                        Err(JournalError::Closed { .. }) => {
                            queue.in_flight -= 1;
                            return;
                        }
                        Err(error) => {
                            queue.in_flight -= 1;
                            self.report_read_failure(env, &error);
                        }
                    }
                }
                NextAction::Deliver(delivery) => queue = self.deliver(queue, env, agent, delivery),
            }
        }
    }

    fn report_read_failure(&self, env: &WebhookEnv, error: &JournalError) {
        (env.fail_process)(format!("the webhook cannot read its notices: {error}"));
    }

    fn deliver<'a>(
        &'a self,
        queue: MutexGuard<'a, DeliveryQueue>,
        env: &WebhookEnv,
        agent: &Agent,
        delivery: DueNotice,
    ) -> MutexGuard<'a, DeliveryQueue> {
        drop(queue);
        // A panic in the client costs this call alone, not the thread.
        let called = catch_unwind(AssertUnwindSafe(|| self.post(agent, &delivery.notice)));
        let outcome = called.unwrap_or_else(|_| DeliveryOutcome::Failed {
            reason: "the call panicked; the log has the panic".to_owned(),
            retry_after: None,
        });
        let mut queue = self.lock_queue();
        let label = match &outcome {
            DeliveryOutcome::Delivered => "delivered",
            DeliveryOutcome::Rejected(reason) => {
                tracing::error!(
                    notice = delivery.number,
                    reason,
                    "the webhook refuses the end of a job: it is not sent again"
                );
                "refused"
            }
            DeliveryOutcome::Failed { reason, .. } => {
                if queue.failures == 0 {
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
        let was_failing = queue.failures > 0;
        let expired = queue.settle(delivery, &outcome, self.now(), &self.settings);
        if expired {
            self.metrics.webhook_deliveries.with_label_values(&["expired"]).inc();
        }
        if was_failing && queue.failures == 0 {
            tracing::info!("the webhook takes calls again");
        }
        self.delete_done(&mut queue, env, DELETED_MAX);
        if queue.in_flight == 0 {
            self.idle.notify_one();
        }
        if queue.is_closing {
            self.delete_done(&mut queue, env, 1);
        }
        self.wake.notify_all();
        queue
    }

    /// Deletes the finished notices, once there are at least `least` of them.
    fn delete_done(&self, queue: &mut DeliveryQueue, env: &WebhookEnv, least: usize) {
        if queue.done.len() >= least {
            let done = std::mem::take(&mut queue.done);
            self.metrics.webhook_waiting.sub(i64::try_from(done.len()).unwrap_or_default());
            (env.delete_notices)(done);
        }
    }

    fn post(&self, agent: &Agent, notice: &Notice) -> DeliveryOutcome {
        let timestamp = times::unix_seconds(clock::now()).to_string();
        let mut request = agent
            .post(self.settings.url.0.as_str())
            .header("Content-Type", CONTENT_TYPE)
            .header(TIMESTAMP_HEADER, &timestamp);
        if !self.settings.secret.0.is_empty() {
            let signature = sign(&self.settings.secret.0, &timestamp, notice.body.as_bytes());
            request = request.header(SIGNATURE_HEADER, signature);
        }
        match request.send(&*notice.body) {
            Ok(response) => parse_response(response),
            Err(error) => DeliveryOutcome::Failed { reason: error.to_string(), retry_after: None },
        }
    }
}

fn parse_response(mut response: Response<Body>) -> DeliveryOutcome {
    let status = response.status();
    let retry_after = response.headers().get("Retry-After");
    let retry_after =
        retry_after.and_then(|value| times::parse_retry_after(value.to_str().ok()?, clock::now()));
    let retry_after = retry_after.map(|pause| pause.min(RETRY_AFTER_MAX));
    // Read to its end, so that the connection can be used again. Its content does not matter.
    let _ = response.body_mut().with_config().limit(RESPONSE_BYTES_MAX).read_to_vec();
    if status.is_success() {
        DeliveryOutcome::Delivered
    } else if status.is_client_error() && status.as_u16() != 429 {
        DeliveryOutcome::Rejected(format!("it answered {status}"))
    } else {
        DeliveryOutcome::Failed { reason: format!("it answered {status}"), retry_after }
    }
}

impl DeliveryQueue {
    fn next_action(&mut self, now: Timestamp, settings: &WebhookSettings) -> NextAction {
        if self.is_closing {
            return NextAction::End;
        }
        if self.failures > 0 {
            if self.in_flight > 0 {
                return NextAction::Wait(None);
            }
            if now < self.paused_until {
                return NextAction::Wait(Some(now.duration_until(self.paused_until)));
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
            return NextAction::ReadRetry(number, failed);
        }
        if let Some((number, notice)) = self.page.pop_front() {
            self.was_retry = false;
            self.in_flight += 1;
            return NextAction::Deliver(DueNotice { number, notice, failures: 0 });
        }
        if self.has_more && !self.is_reading && self.retries.len() < RETRIES_MAX {
            self.has_more = false;
            self.is_reading = true;
            return NextAction::Read(self.cursor);
        }
        NextAction::Wait(due.map(|(due, ..)| now.duration_until(due)))
    }

    fn add_page(&mut self, page: Vec<(NoticeNumber, Notice)>) {
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
        outcome: &DeliveryOutcome,
        now: Timestamp,
        settings: &WebhookSettings,
    ) -> bool {
        let DueNotice { number, notice, failures: failed } = delivery;
        self.in_flight -= 1;
        let DeliveryOutcome::Failed { retry_after, .. } = outcome else {
            self.failures = 0;
            self.done.push(number);
            return false;
        };
        // Calls that were made together have failed together.
        if self.failures == 0 || now >= self.paused_until {
            self.failures += 1;
            self.paused_until = add_duration(
                now,
                backoff(self.failures, settings).max(retry_after.unwrap_or_default()),
            );
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
        self.retries.insert((add_duration(now, backoff(failed + 1, settings)), number), failed + 1);
        false
    }
}

fn is_expired(notice: &Notice, now: Timestamp, settings: &WebhookSettings) -> bool {
    now > add_duration(notice.at, settings.age_max.0)
}

/// Returns the pause after this many failures in a row.
fn backoff(failures: u32, settings: &WebhookSettings) -> Duration {
    let doubled =
        settings.backoff_min.0.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1)));
    doubled.min(settings.backoff_max.0.max(settings.backoff_min.0))
}

fn add_duration(at: Timestamp, span: Duration) -> Timestamp {
    Timestamp(at.0.saturating_add(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)))
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

    /// Returns the notice that is delivered next at that time. Retries are read from a stub.
    fn next_delivery(queue: &mut DeliveryQueue, at_s: i64) -> Option<DueNotice> {
        match queue.next_action(seconds(at_s), &settings()) {
            NextAction::Deliver(delivery) => Some(delivery),
            NextAction::ReadRetry(number, failed) => {
                Some(DueNotice { number, notice: notice(0), failures: failed })
            }
            NextAction::Wait(_) | NextAction::Read(_) | NextAction::End => None,
        }
    }

    #[test]
    fn while_calls_fail_there_is_one_at_a_time_after_pauses_that_grow() {
        let mut queue = DeliveryQueue::default();
        queue.add_page((1..=5).map(|number| (number, notice(0))).collect());
        let (first, second) =
            (next_delivery(&mut queue, 10).unwrap(), next_delivery(&mut queue, 10).unwrap());
        assert!(!queue.settle(first, &failed(), seconds(10), &settings()));
        assert!(next_delivery(&mut queue, 10).is_none(), "the other one is still under way");
        queue.settle(second, &failed(), seconds(10), &settings());
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
        assert_eq!(queue.done.len(), 1);
        let rest: Vec<NoticeNumber> = std::iter::from_fn(|| next_delivery(&mut queue, 60))
            .map(|delivery| delivery.number)
            .collect();
        assert_eq!(rest.len(), 4, "{rest:?}");
    }

    #[test]
    fn one_notice_that_is_never_accepted_does_not_delay_the_others() {
        let mut queue = DeliveryQueue::default();
        queue.add_page((1..=50).map(|number| (number, notice(0))).collect());
        let mut at_s = 0;
        let mut delivered = 0;
        while delivered < 49 {
            at_s += 1;
            assert!(at_s < 200, "{delivered} delivered");
            while let Some(delivery) = next_delivery(&mut queue, at_s) {
                let outcome =
                    if delivery.number == 1 { failed() } else { DeliveryOutcome::Delivered };
                delivered += usize::from(delivery.number != 1);
                queue.settle(delivery, &outcome, seconds(at_s), &settings());
            }
        }
    }

    #[test]
    fn what_is_too_old_is_given_up() {
        let day_s = 24 * 3600;
        let mut queue = DeliveryQueue::default();
        queue.add_page(vec![(1, notice(0)), (2, notice(0)), (3, notice(10 * day_s))]);
        let first = next_delivery(&mut queue, 10 * day_s).unwrap();
        assert!(
            queue.settle(first, &failed(), seconds(10 * day_s), &settings()),
            "tried once all the same"
        );
        assert_eq!(next_delivery(&mut queue, 11 * day_s).map(|delivery| delivery.number), Some(3));
        assert_eq!(queue.done, [1, 2]);
    }

    #[test]
    fn retry_after_may_be_a_date() {
        let pause = |after: &str| {
            let response = Response::builder().status(503).header("Retry-After", after);
            let response = response.body(Body::builder().data("later")).expect("a response");
            let DeliveryOutcome::Failed { retry_after, .. } = parse_response(response) else {
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
        let demanded = pause(&until(600)).expect("a pause");
        assert!((500..=600).contains(&demanded.as_secs()), "{demanded:?}");
        assert_eq!(pause(&until(100_000)), Some(RETRY_AFTER_MAX));
        assert_eq!(pause(&until(-100)), Some(Duration::ZERO));
        assert_eq!((pause("7"), pause("soon")), (Some(Duration::from_secs(7)), None));
    }

    #[test]
    fn a_response_may_demand_a_longer_pause() {
        let mut queue = DeliveryQueue::default();
        queue.add_page(vec![(1, notice(0))]);
        let first = next_delivery(&mut queue, 0).unwrap();
        queue.settle(
            first,
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
