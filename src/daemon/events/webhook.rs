//! The webhook: posts a signed notice of the end of each root job until the receiver accepts it.
//!
//! Delivery is at-least-once, even across restarts: the notices are rows of the journal, committed
//! with the ends of the jobs and deleted after delivery. Only one page of them, and those of the
//! active calls, are in memory. A task on its own thread makes the calls, and no job waits for it.
//! [`DeliveryQueue`] decides what is due. While calls fail, there is one call at a time, with
//! backoff. Each failed notice has its own backoff, so that a notice that is never accepted does
//! not delay the others.

use super::delivery_queue::{
    DeliveryOutcome, DeliveryQueue, DueNotice, NextAction, PAGE_ROWS, add_duration,
};
use super::event::CONTENT_TYPE;
use crate::settings::{Settings, WebhookSettings};
use crate::telemetry::Metrics;
use actix_rt::Arbiter;
use base::clock;
use base::http_client::{self, Answer};
use base::signature::{SIGNATURE_HEADER, TIMESTAMP_HEADER, sign};
use base::times;
use base::trust::Authorities;
use engine::Timestamp;
use futures_util::future::{BoxFuture, OptionFuture};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use journal::{JournalError, Notice, NoticeNumber, Records};
use reqwest::header::CONTENT_TYPE as CONTENT_TYPE_HEADER;
use reqwest::{Client, StatusCode};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

/// How many finished notices are deleted together while calls are active. A waiting task deletes
/// fewer.
const DELETION_BATCH: usize = 100;

/// How much of a response is read, in bytes.
const RESPONSE_BYTES_MAX: usize = 64 * 1024;

/// How long closing waits for active calls.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest pause that the receiver can demand with `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// The webhook of a process.
pub struct Webhook {
    settings: WebhookSettings,
    authorities: Authorities,
    metrics: Metrics,
    /// The inputs of the delivery task, once it is started.
    inputs: OnceLock<UnboundedSender<WebhookInput>>,
}

/// A message to the delivery task.
enum WebhookInput {
    /// A notice was committed.
    Committed,
    /// Start no more calls, and reply when none is active.
    Close(oneshot::Sender<()>),
}

/// What the webhook needs from its manager.
pub struct WebhookEnv {
    /// Reads the notices.
    pub reader: Arc<dyn Records>,
    /// Deletes delivered notices from the journal.
    pub delete_notices: Box<dyn Fn(Vec<NoticeNumber>) + Send + Sync>,
    /// Stops the process gracefully, for the given reason.
    pub fail_process: Arc<dyn Fn(String) + Send + Sync>,
}

/// Delivers the notices of the journal.
struct DeliveryTask {
    settings: WebhookSettings,
    client: Client,
    metrics: Metrics,
    env: WebhookEnv,
    /// A wall-clock time, and the instant at which it was read. From there, the time of the task
    /// follows the monotonic clock, so that changes of the wall clock do not affect backoffs.
    clock_origin: (Timestamp, Instant),
    queue: DeliveryQueue,
    calls: FuturesUnordered<BoxFuture<'static, (DueNotice, DeliveryOutcome)>>,
    /// Where to reply once no call is active; set when the webhook is closed.
    close_reply: Option<oneshot::Sender<()>>,
}

impl Webhook {
    /// Creates the webhook of the settings. Returns `None` if they have none.
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
            inputs: OnceLock::new(),
        }))
    }

    /// Starts the task that delivers the notices of the journal. If no HTTP client can be built,
    /// the process is stopped instead.
    ///
    /// # Errors
    ///
    /// Returns an error if the journal cannot be read.
    pub fn start(&self, env: WebhookEnv) -> Result<(), JournalError> {
        self.metrics.webhook_waiting.set(env.reader.count_notices()?);
        let client = match http_client::builder(&self.authorities).build() {
            Ok(client) => client,
            Err(error) => {
                (env.fail_process)(format!("the webhook cannot be called: {error}"));
                return Ok(());
            }
        };
        let task = DeliveryTask {
            settings: self.settings.clone(),
            client,
            metrics: self.metrics.clone(),
            env,
            clock_origin: (clock::now(), clock::instant()),
            queue: DeliveryQueue::new(),
            calls: FuturesUnordered::new(),
            close_reply: None,
        };
        let (inputs, inbox) = unbounded_channel();
        // The webhook is started once. The task of a second start would find its inbox closed.
        let _ = self.inputs.set(inputs);
        Arbiter::new().spawn_fn(move || {
            let fail_process = task.env.fail_process.clone();
            let run = AssertUnwindSafe(task.run(inbox)).catch_unwind();
            actix_rt::spawn(run.then(async move |result| {
                if result.is_err() {
                    fail_process("the webhook panicked; the log has the panic".to_owned());
                }
                Arbiter::current().stop();
            }));
        });
        Ok(())
    }

    /// Reports that a notice was committed.
    pub(crate) fn notify_committed(&self) {
        self.metrics.webhook_waiting.inc();
        // A task that is missing or has ended means that the process is about to end.
        let _ = self.inputs.get().map(|inputs| inputs.send(WebhookInput::Committed));
    }

    /// Stops the task, and waits a bounded time for active calls. Notices that are not delivered by
    /// then are delivered after the next start.
    pub async fn close(&self) {
        let (reply_sender, reply) = oneshot::channel();
        let close = WebhookInput::Close(reply_sender);
        if self.inputs.get().is_some_and(|inputs| inputs.send(close).is_ok()) {
            // After a timeout, the notices of the active calls are delivered again at the next
            // start.
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, reply).await;
        }
    }
}

impl DeliveryTask {
    /// Delivers notices until the webhook is closed.
    async fn run(mut self, mut inbox: UnboundedReceiver<WebhookInput>) {
        while let Ok(pause) = self.start_calls() {
            if self.calls.is_empty()
                && let Some(reply_sender) = self.close_reply.take()
            {
                // An error means that the wait for the reply has timed out.
                let _ = reply_sender.send(());
                return;
            }
            tokio::select! {
                input = inbox.recv() => match input {
                    Some(WebhookInput::Committed) => self.queue.has_more = true,
                    Some(WebhookInput::Close(reply_sender)) => {
                        self.close_reply = Some(reply_sender);
                        self.queue.is_closing = true;
                    }
                    None => return,
                },
                Some((due_notice, outcome)) = self.calls.next() => {
                    self.settle(due_notice, &outcome);
                }
                Some(()) = OptionFuture::from(pause.map(tokio::time::sleep)) => {}
            }
        }
    }

    /// Starts the calls that are due. Returns when the next one is due; `None` if that depends on
    /// an input or on an active call. Returns an error if no notices can be read.
    fn start_calls(&mut self) -> Result<Option<Duration>, ()> {
        loop {
            match self.queue.next_action(self.now(), &self.settings) {
                NextAction::Wait(pause) => {
                    self.delete_finished(1);
                    return Ok(pause);
                }
                NextAction::WaitForCall => return Ok(None),
                NextAction::Read(after) => {
                    let page = self.env.reader.load_notices(after, PAGE_ROWS);
                    self.queue.add_page(self.handle_read_error(page)?);
                }
                NextAction::ReadRetry(number, failures) => {
                    let notice = self.env.reader.load_notice(number);
                    match self.handle_read_error(notice)? {
                        Some(notice) => self.call(DueNotice { number, notice, failures }),
                        None => self.queue.in_flight -= 1,
                    }
                }
                NextAction::Deliver(due_notice) => self.call(due_notice),
            }
        }
    }

    /// Stops the process if the journal cannot be read. A closed journal means that the process is
    /// already stopping.
    fn handle_read_error<T>(&self, result: Result<T, JournalError>) -> Result<T, ()> {
        result.map_err(|error| {
            if !matches!(error, JournalError::Closed { .. }) {
                (self.env.fail_process)(format!("the webhook cannot read its notices: {error}"));
            }
        })
    }

    /// Returns the time of the task, which never goes back.
    fn now(&self) -> Timestamp {
        add_duration(self.clock_origin.0, self.clock_origin.1.elapsed())
    }

    /// Starts a call of the receiver.
    fn call(&self, due_notice: DueNotice) {
        let (client, timeout) = (self.client.clone(), self.settings.timeout.0);
        let request = self.build_request(&due_notice.notice);
        let response =
            async move { http_client::send(&client, request?, timeout, RESPONSE_BYTES_MAX).await };
        let call = AssertUnwindSafe(response).catch_unwind().map(|result| {
            // A panic in the HTTP client fails this call, and not the task.
            let panicked = "the call panicked; the log has the panic";
            let outcome = match result.unwrap_or_else(|_| Err(panicked.to_owned())) {
                Ok(answer) => to_outcome(&answer),
                Err(reason) => DeliveryOutcome::Failed { reason, retry_after: None },
            };
            (due_notice, outcome)
        });
        self.calls.push(call.boxed());
    }

    /// Builds the signed request for a notice.
    fn build_request(&self, notice: &Notice) -> Result<reqwest::Request, String> {
        let timestamp = times::unix_seconds(clock::now()).to_string();
        let mut request = self
            .client
            .post(&self.settings.url.0)
            .header(CONTENT_TYPE_HEADER, CONTENT_TYPE)
            .header(TIMESTAMP_HEADER, &timestamp);
        if !self.settings.secret.0.is_empty() {
            let signature = sign(&self.settings.secret.0, &timestamp, notice.body.as_bytes());
            request = request.header(SIGNATURE_HEADER, signature);
        }
        let request = request.body(notice.body.to_string()).build();
        request.map_err(|error| http_client::root_cause(&error))
    }

    /// Applies and reports the outcome of a call.
    fn settle(&mut self, due_notice: DueNotice, outcome: &DeliveryOutcome) {
        let label = match outcome {
            DeliveryOutcome::Delivered => "delivered",
            DeliveryOutcome::Rejected(reason) => {
                tracing::error!(
                    notice = due_notice.number,
                    reason,
                    "the webhook refuses the end of a job: it is not sent again"
                );
                "refused"
            }
            DeliveryOutcome::Failed { reason, .. } => {
                if self.queue.failures == 0 {
                    tracing::warn!(
                        notice = due_notice.number,
                        reason,
                        "calls of the webhook fail: they are retried until one succeeds"
                    );
                }
                "failed"
            }
        };
        self.metrics.webhook_deliveries.with_label_values(&[label]).inc();
        let was_failing = self.queue.failures > 0;
        if self.queue.settle(due_notice, outcome, self.now(), &self.settings) {
            self.metrics.webhook_deliveries.with_label_values(&["expired"]).inc();
        }
        if was_failing && self.queue.failures == 0 {
            tracing::info!("calls of the webhook succeed again");
        }
        self.delete_finished(DELETION_BATCH);
    }

    /// Deletes the finished notices from the journal if there are at least `count_min`.
    fn delete_finished(&mut self, count_min: usize) {
        if self.queue.finished.len() >= count_min {
            let finished = std::mem::take(&mut self.queue.finished);
            self.metrics.webhook_waiting.sub(i64::try_from(finished.len()).unwrap_or(i64::MAX));
            (self.env.delete_notices)(finished);
        }
    }
}

/// Returns what the response of the receiver means for the notice. Client errors are permanent,
/// except 429.
fn to_outcome(answer: &Answer) -> DeliveryOutcome {
    let status = answer.status;
    if status.is_success() {
        DeliveryOutcome::Delivered
    } else if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS {
        DeliveryOutcome::Rejected(format!("it answered {status}"))
    } else {
        let retry_after = answer.retry_after.map(|pause| pause.min(RETRY_AFTER_MAX));
        DeliveryOutcome::Failed { reason: format!("it answered {status}"), retry_after }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_limited_to_one_hour() {
        let pause_for = |seconds| {
            let answer = Answer {
                status: StatusCode::SERVICE_UNAVAILABLE,
                retry_after: Some(Duration::from_secs(seconds)),
                body: Ok(bytes::Bytes::new()),
            };
            let DeliveryOutcome::Failed { retry_after, .. } = to_outcome(&answer) else {
                panic!("the outcome is a failure")
            };
            retry_after
        };
        assert_eq!(pause_for(7), Some(Duration::from_secs(7)));
        assert_eq!(pause_for(100_000), Some(RETRY_AFTER_MAX));
    }
}
