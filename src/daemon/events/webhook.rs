//! The webhook: posts the end of each top-level job, signed, until the receiver accepts it.
//!
//! Each end is delivered at least once, whatever happens to the process: the notices are rows of
//! the journal, written with the ends, and deleted after their delivery. They wait on the disk, and
//! a few of them in memory. A task on a thread of its own makes the calls, and nothing else waits
//! for them. [`DeliveryQueue`] decides what is due: while calls fail there is only one call at a
//! time, after a growing pause. Failed notices are tried again after a pause of their own, so that
//! one notice that is never accepted does not hold up the others.

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
use reqwest::Client;
use reqwest::header::CONTENT_TYPE as CONTENT_TYPE_HEADER;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

/// How many notices are deleted at once; fewer when there is nothing else to do.
const DELETED_MAX: usize = 100;

/// How much of a response is read, in bytes.
const RESPONSE_BYTES_MAX: usize = 64 * 1024;

/// How long a stop waits for calls under way.
const STOP_WAIT: Duration = Duration::from_secs(1);

/// The longest pause that the receiver can demand with `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// The webhook of a process.
pub struct Webhook {
    settings: WebhookSettings,
    authorities: Authorities,
    metrics: Metrics,
    inputs: OnceLock<UnboundedSender<WebhookInput>>,
}

enum WebhookInput {
    /// A notice was committed.
    Committed,
    /// Make no more calls, and answer when none is under way.
    Close(oneshot::Sender<()>),
}

/// What the webhook needs of its manager.
pub struct WebhookEnv {
    /// Reads the notices.
    pub reader: Arc<dyn Records>,
    /// Deletes delivered notices from the journal.
    pub delete_notices: Box<dyn Fn(Vec<NoticeNumber>) + Send + Sync>,
    /// Ends the process in an orderly way, for the given reason.
    pub fail_process: Arc<dyn Fn(String) + Send + Sync>,
}

/// Delivers the notices of the journal.
struct DeliveryTask {
    settings: WebhookSettings,
    client: Client,
    metrics: Metrics,
    env: WebhookEnv,
    /// Pauses are measured by a monotonic clock: the wall-clock time and the instant of its first
    /// reading.
    clock_origin: (Timestamp, Instant),
    queue: DeliveryQueue,
    calls: FuturesUnordered<BoxFuture<'static, (DueNotice, DeliveryOutcome)>>,
    close_reply: Option<oneshot::Sender<()>>,
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
            inputs: OnceLock::new(),
        }))
    }

    /// Starts to deliver the notices of the journal.
    ///
    /// # Errors
    ///
    /// The journal cannot be read.
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
        // A second start changes nothing: its task ends at once.
        let _ = self.inputs.set(inputs);
        Arbiter::new().spawn_fn(move || {
            let fail_process = task.env.fail_process.clone();
            let run = AssertUnwindSafe(task.run(inbox)).catch_unwind();
            actix_rt::spawn(run.then(async move |ended| {
                if ended.is_err() {
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
        // Without a task the process is about to end.
        let _ = self.inputs.get().map(|inputs| inputs.send(WebhookInput::Committed));
    }

    /// Stops calling, and waits a moment for the calls under way. Notices that are not delivered by
    /// then are delivered after the next start.
    pub async fn close(&self) {
        let (reply_sender, closed) = oneshot::channel();
        let close = WebhookInput::Close(reply_sender);
        if self.inputs.get().is_some_and(|inputs| inputs.send(close).is_ok()) {
            // After a timeout the notices of these calls are delivered once more.
            let _ = tokio::time::timeout(STOP_WAIT, closed).await;
        }
    }
}

impl DeliveryTask {
    async fn run(mut self, mut inbox: UnboundedReceiver<WebhookInput>) {
        while let Ok(pause) = self.start_calls() {
            if self.calls.is_empty()
                && let Some(reply_sender) = self.close_reply.take()
            {
                // Whoever stops the process may have given up waiting.
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
                Some((delivery, outcome)) = self.calls.next() => self.settle(delivery, &outcome),
                Some(()) = OptionFuture::from(pause.map(tokio::time::sleep)) => {}
            }
        }
    }

    /// Starts the calls that are due. Returns how long to wait for the next ones; without an end if
    /// something else must happen first. An error means that no notices can be read.
    fn start_calls(&mut self) -> Result<Option<Duration>, ()> {
        loop {
            match self.queue.next_action(self.now(), &self.settings) {
                NextAction::Wait(pause) => {
                    self.delete_done(1);
                    return Ok(pause);
                }
                NextAction::WaitForCall => return Ok(None),
                NextAction::Read(after) => {
                    let read = self.env.reader.load_notices(after, PAGE_ROWS);
                    self.queue.add_page(self.check_read(read)?);
                }
                NextAction::ReadRetry(number, failures) => {
                    let read = self.env.reader.load_notice(number);
                    match self.check_read(read)? {
                        Some(notice) => self.call(DueNotice { number, notice, failures }),
                        None => self.queue.in_flight -= 1,
                    }
                }
                NextAction::Deliver(delivery) => self.call(delivery),
            }
        }
    }

    /// Ends the process if the journal cannot be read, unless it is closed: then it ends anyway.
    fn check_read<T>(&self, read: Result<T, JournalError>) -> Result<T, ()> {
        read.map_err(|error| {
            if !matches!(error, JournalError::Closed { .. }) {
                (self.env.fail_process)(format!("the webhook cannot read its notices: {error}"));
            }
        })
    }

    fn now(&self) -> Timestamp {
        add_duration(self.clock_origin.0, self.clock_origin.1.elapsed())
    }

    fn call(&self, delivery: DueNotice) {
        let (client, timeout) = (self.client.clone(), self.settings.timeout.0);
        let request = self.build_request(&delivery.notice);
        let sent =
            async move { http_client::send(&client, request?, timeout, RESPONSE_BYTES_MAX).await };
        let call = AssertUnwindSafe(sent).catch_unwind().map(|called| {
            // A panic in the client costs this call alone.
            let panicked = "the call panicked; the log has the panic";
            let outcome = match called.unwrap_or_else(|_| Err(panicked.to_owned())) {
                Ok(answer) => judge(&answer),
                Err(reason) => DeliveryOutcome::Failed { reason, retry_after: None },
            };
            (delivery, outcome)
        });
        self.calls.push(call.boxed());
    }

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
    fn settle(&mut self, delivery: DueNotice, outcome: &DeliveryOutcome) {
        let label = match outcome {
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
                if self.queue.failures == 0 {
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
        let was_failing = self.queue.failures > 0;
        if self.queue.settle(delivery, outcome, self.now(), &self.settings) {
            self.metrics.webhook_deliveries.with_label_values(&["expired"]).inc();
        }
        if was_failing && self.queue.failures == 0 {
            tracing::info!("the webhook takes calls again");
        }
        self.delete_done(DELETED_MAX);
    }

    /// Deletes the finished notices, once there are at least `least` of them.
    fn delete_done(&mut self, least: usize) {
        if self.queue.done.len() >= least {
            let done = std::mem::take(&mut self.queue.done);
            self.metrics.webhook_waiting.sub(i64::try_from(done.len()).unwrap_or(i64::MAX));
            (self.env.delete_notices)(done);
        }
    }
}

fn judge(answer: &Answer) -> DeliveryOutcome {
    let status = answer.status;
    if status.is_success() {
        DeliveryOutcome::Delivered
    } else if status.is_client_error() && status.as_u16() != 429 {
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
    fn an_answer_demands_a_pause_of_an_hour_at_most() {
        let pause = |seconds| {
            let answer = Answer {
                status: reqwest::StatusCode::SERVICE_UNAVAILABLE,
                retry_after: Some(Duration::from_secs(seconds)),
                body: Ok(bytes::Bytes::new()),
            };
            let DeliveryOutcome::Failed { retry_after, .. } = judge(&answer) else {
                panic!("no failure")
            };
            retry_after
        };
        assert_eq!(pause(7), Some(Duration::from_secs(7)));
        assert_eq!(pause(100_000), Some(RETRY_AFTER_MAX));
    }
}
