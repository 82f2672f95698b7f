//! The task that reads the records of ended jobs and exports their spans, on its own thread.
//!
//! Reading and exporting alternate. While the receiver accepts nothing, nothing is read
//! (back-pressure). So memory is bounded by the waiting jobs, one batch, the spans of one job, and
//! one export.

use super::ended_job::EndedJob;
use super::otlp::{
    Request, Resource, ResourceSpans, Response, Scope, ScopeSpans, Span, text_attribute,
};
use super::span_builder::{SpanBuilder, Trace};
use crate::settings::{Settings, TraceSettings};
use crate::telemetry::Metrics;
use base::clock;
use base::http_client::{self, Answer, backoff};
use bytes::Bytes;
use futures_util::FutureExt;
use journal::{JournalError, Records};
use prost::Message;
use reqwest::Client;
use reqwest::header::CONTENT_TYPE;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

/// The size limit of an export, in bytes of encoded spans. Most receivers and proxies accept this
/// size. A single larger span is sent alone.
const EXPORT_BYTES_MAX: usize = 1 << 20;

/// How much of a response is read, in bytes.
const RESPONSE_BYTES_MAX: usize = 64 * 1024;

/// How much of a response is logged, in characters.
const RESPONSE_CHARS_MAX: usize = 300;

/// The content type of an export.
const PROTOBUF_CONTENT_TYPE: &str = "application/x-protobuf";

/// How long an idle task waits for a message before it looks for work again.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// The longest pause that the receiver can demand with `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// A message to the exporter's task.
pub(super) enum ExporterMessage {
    /// A root job has ended.
    Ended(EndedJob),
    /// Send the remaining spans, reply, and end.
    Close(oneshot::Sender<()>),
}

/// The state of the task.
pub(super) struct Exporter {
    settings: TraceSettings,
    url: String,
    /// The names and values of the configured request headers.
    headers: Vec<(String, String)>,
    /// The description of this process, which is part of each export.
    resource: Resource,
    builder: SpanBuilder,
    client: Client,
    reader: Arc<dyn Records>,
    metrics: Metrics,
    inbox: UnboundedReceiver<ExporterMessage>,
    /// Ended jobs, each with the time at which its record is to be read.
    jobs: VecDeque<(Instant, EndedJob)>,
    /// The batch: spans that wait for their export.
    spans: Vec<Span>,
    /// Since when `spans` is not empty.
    spans_since: Option<Instant>,
    /// An export that has failed and is to be retried.
    failed_export: Option<Export>,
    /// How many exports have failed in a row.
    failures: u32,
    /// Until when no export is tried after a failure.
    paused_until: Option<Instant>,
    /// Where to reply when everything is sent; set when the process stops.
    close_reply: Option<oneshot::Sender<()>>,
}

/// Encoded spans, which are sent in one request.
struct Export {
    body: Bytes,
    span_count: u64,
    /// When the spans were encoded. An export is given up some time after that.
    created: Instant,
}

/// What the task does next.
enum ExporterAction {
    /// Send an export.
    Send,
    /// Read the record of the next job.
    Read,
    /// Wait for a message, but no longer than this duration.
    Wait(Duration),
    /// End the task.
    End,
}

/// The outcome of an export.
enum ExportOutcome {
    /// The export was accepted, except for `rejected_spans` (OTLP's partial success).
    Accepted {
        rejected_spans: u64,
        /// Why spans were rejected; empty if the receiver gave no reason.
        reason: String,
    },
    /// The receiver rejects the export permanently, for this reason.
    Rejected(String),
    /// The export failed, and is retried.
    Failed {
        reason: String,
        /// The pause that the receiver demands, if any.
        retry_after: Option<Duration>,
    },
}

impl Exporter {
    /// Creates the exporter of the settings. Returns an error if a setting cannot be used.
    pub(super) fn new(
        settings: &Settings,
        metrics: &Metrics,
        reader: Arc<dyn Records>,
        inbox: UnboundedReceiver<ExporterMessage>,
    ) -> Result<Exporter, String> {
        let traces = &settings.traces;
        let mut attributes = vec![
            text_attribute("service.name", &*traces.service_name),
            text_attribute("service.version", env!("CARGO_PKG_VERSION")),
            text_attribute("service.instance.id", clock::new_id().to_string()),
        ];
        // Attributes from the settings replace the default ones.
        let configured_attributes = traces.resource()?;
        attributes
            .retain(|default| configured_attributes.iter().all(|(name, _)| *name != default.key));
        attributes
            .extend(configured_attributes.iter().map(|(name, value)| text_attribute(name, value)));
        Ok(Exporter {
            url: traces.url()?,
            headers: traces.headers()?,
            resource: Resource { attributes },
            builder: SpanBuilder::new(settings),
            client: http_client::builder(&settings.authorities()?)
                .build()
                .map_err(|error| format!("no traces can be sent: {error}"))?,
            settings: traces.clone(),
            reader,
            metrics: metrics.clone(),
            inbox,
            jobs: VecDeque::new(),
            spans: Vec::new(),
            spans_since: None,
            failed_export: None,
            failures: 0,
            paused_until: None,
            close_reply: None,
        })
    }

    /// Reads and exports until the process stops or the journal is closed.
    pub(super) async fn run(mut self) {
        loop {
            while let Ok(message) = self.inbox.try_recv() {
                self.handle_message(message);
            }
            match self.next_action() {
                ExporterAction::Send => self.send_export().await,
                ExporterAction::Read => {
                    if self.read_next_job().is_err() {
                        return self.finish();
                    }
                }
                ExporterAction::Wait(wait) => {
                    match tokio::time::timeout(wait, self.inbox.recv()).await {
                        Ok(Some(message)) => self.handle_message(message),
                        Ok(None) => return self.finish(),
                        Err(_) => {}
                    }
                }
                ExporterAction::End => return self.finish(),
            }
        }
    }

    /// Queues an ended job, which is read after the configured delay, or begins to close.
    fn handle_message(&mut self, message: ExporterMessage) {
        match message {
            ExporterMessage::Ended(job) => {
                self.jobs.push_back((clock::instant() + self.settings.delay.0, job))
            }
            ExporterMessage::Close(reply_sender) => self.close_reply = Some(reply_sender),
        }
    }

    /// Decides what to do next. A due export takes precedence over reading, which bounds
    /// the memory.
    fn next_action(&self) -> ExporterAction {
        let (now, is_closing) = (clock::instant(), self.close_reply.is_some());
        if let Some(paused_until) = self.paused_until.filter(|paused_until| *paused_until > now) {
            // After a failure, closing does not wait for the end of the pause.
            return if is_closing {
                ExporterAction::End
            } else {
                ExporterAction::Wait(paused_until - now)
            };
        }
        if self.failed_export.is_some() {
            return ExporterAction::Send;
        }
        let is_full = self.spans.len() >= self.settings.batch_spans_max;
        let export_time = self.spans_since.map(|since| since + self.settings.interval.0);
        if is_full || export_time.is_some_and(|time| time <= now) {
            return ExporterAction::Send;
        }
        let read_time = self.jobs.front().map(|(time, _)| *time);
        if read_time.is_some_and(|time| time <= now || is_closing) {
            return ExporterAction::Read;
        }
        if is_closing {
            return if self.spans.is_empty() { ExporterAction::End } else { ExporterAction::Send };
        }
        let next_time = export_time.into_iter().chain(read_time).min();
        let wait = next_time.map(|time| time.saturating_duration_since(now));
        ExporterAction::Wait(wait.unwrap_or(WAIT_MAX))
    }

    /// Reads the record of the next job and adds its spans to the batch. Returns an error only if
    /// the journal is closed. Any other failure drops the job's trace.
    fn read_next_job(&mut self) -> Result<(), JournalError> {
        let Some((_, job)) = self.jobs.pop_front() else { return Ok(()) };
        self.metrics.traces_jobs_waiting.dec();
        // A panic drops the spans of this job, but does not end the task.
        let result =
            catch_unwind(AssertUnwindSafe(|| self.builder.build_trace(&*self.reader, job)));
        let reason = match result {
            Ok(Ok(Some(Trace { spans, omitted, .. }))) => {
                self.count_dropped_spans("limit", omitted);
                self.spans.extend(spans);
                self.spans_since.get_or_insert_with(clock::instant);
                return Ok(());
            }
            Ok(Ok(None)) => "gone",
            Ok(Err(error @ JournalError::Closed { .. })) => return Err(error),
            Ok(Err(error)) => {
                tracing::warn!(
                    job = %job.id,
                    %error,
                    "the record of an ended job cannot be read: its trace is not sent"
                );
                "unreadable"
            }
            Err(_) => {
                tracing::error!(
                    job = %job.id,
                    "reading the record of an ended job panicked: its trace is not sent"
                );
                "unreadable"
            }
        };
        self.metrics.traces_jobs_dropped.with_label_values(&[reason]).inc();
        Ok(())
    }

    /// Sends the export that is retried, or the next one, and handles its outcome.
    async fn send_export(&mut self) {
        let export = self.failed_export.take().unwrap_or_else(|| self.take_export());
        let result = AssertUnwindSafe(self.post(export.body.clone())).catch_unwind().await;
        let outcome = result.unwrap_or_else(|_| ExportOutcome::Failed {
            reason: "the call panicked; the log has the panic".to_owned(),
            retry_after: None,
        });
        let label = match outcome {
            ExportOutcome::Accepted { rejected_spans, reason } => {
                let rejected_spans = rejected_spans.min(export.span_count);
                self.metrics.traces_spans_sent.inc_by(export.span_count - rejected_spans);
                self.count_dropped_spans("rejected", rejected_spans);
                if rejected_spans > 0 {
                    tracing::warn!(
                        spans = rejected_spans,
                        reason,
                        "the receiver of traces rejects spans"
                    );
                }
                self.handle_success();
                "taken"
            }
            ExportOutcome::Rejected(reason) => {
                tracing::error!(
                    spans = export.span_count,
                    reason,
                    "the receiver of traces refuses spans: they are not sent again"
                );
                self.count_dropped_spans("refused", export.span_count);
                self.handle_success();
                "refused"
            }
            ExportOutcome::Failed { reason, retry_after } => {
                self.handle_failure(export, &reason, retry_after);
                "failed"
            }
        };
        self.metrics.traces_exports.with_label_values(&[label]).inc();
    }

    /// Takes the next spans that fit into an export, and encodes them.
    fn take_export(&mut self) -> Export {
        let mut encoded_bytes = 0;
        let fits = |span: &&Span| {
            encoded_bytes += span.encoded_len();
            encoded_bytes <= EXPORT_BYTES_MAX
        };
        let candidates = self.spans.iter().take(self.settings.batch_spans_max);
        let count = candidates.take_while(fits).count().max(1).min(self.spans.len());
        let spans: Vec<Span> = self.spans.drain(..count).collect();
        self.spans_since = self.spans_since.filter(|_| !self.spans.is_empty());
        let scope = Scope {
            name: "workflow-manager".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let request = Request {
            resource_spans: vec![ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![ScopeSpans { scope: Some(scope), spans }],
            }],
        };
        Export {
            body: request.encode_to_vec().into(),
            span_count: count as u64,
            created: clock::instant(),
        }
    }

    /// Resets the backoff after an export that the receiver has answered.
    fn handle_success(&mut self) {
        self.paused_until = None;
        if std::mem::take(&mut self.failures) > 0 {
            tracing::info!("the receiver of traces accepts spans again");
        }
    }

    /// Pauses exports with exponential backoff. Keeps the export for a retry, unless it is too old.
    fn handle_failure(&mut self, export: Export, reason: &str, retry_after: Option<Duration>) {
        if self.failures == 0 {
            tracing::warn!(reason, "traces cannot be sent: they are retried up to traces.age_max");
        }
        let demanded_pause = retry_after.map(|pause| pause.min(RETRY_AFTER_MAX));
        self.failures = self.failures.saturating_add(1);
        let bounds = (self.settings.backoff_min.0, self.settings.backoff_max.0);
        let pause = backoff(self.failures, bounds);
        self.paused_until =
            Some(clock::instant() + pause.max(demanded_pause.unwrap_or(Duration::ZERO)));
        if export.created.elapsed() < self.settings.age_max.0 {
            self.failed_export = Some(export);
        } else {
            self.count_dropped_spans("expired", export.span_count);
        }
    }

    /// Posts an encoded export, and returns the outcome.
    async fn post(&self, body: Bytes) -> ExportOutcome {
        let mut request = self.client.post(&self.url).header(CONTENT_TYPE, PROTOBUF_CONTENT_TYPE);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let timeout = self.settings.timeout.0;
        let request = request.body(body).build().map_err(|error| http_client::root_cause(&error));
        let response = match request {
            Ok(request) => {
                http_client::send(&self.client, request, timeout, RESPONSE_BYTES_MAX).await
            }
            Err(reason) => Err(reason),
        };
        match response {
            Ok(answer) => to_outcome(answer, |text| self.sanitize(text)),
            Err(reason) => ExportOutcome::Failed { reason, retry_after: None },
        }
    }

    /// Counts what was not sent as dropped, and confirms the end of the task to [`Traces::close`].
    ///
    /// [`Traces::close`]: super::Traces::close
    fn finish(mut self) {
        let failed_spans = self.failed_export.as_ref().map_or(0, |export| export.span_count);
        let unsent_spans = self.spans.len() as u64 + failed_spans;
        self.count_dropped_spans("stopped", unsent_spans);
        let mut unread_jobs = self.jobs.len() as u64;
        while let Ok(message) = self.inbox.try_recv() {
            unread_jobs += u64::from(matches!(message, ExporterMessage::Ended(_)));
        }
        self.metrics.traces_jobs_dropped.with_label_values(&["stopped"]).inc_by(unread_jobs);
        if unsent_spans + unread_jobs > 0 {
            tracing::warn!(
                spans = unsent_spans,
                jobs = unread_jobs,
                "traces that were not sent before the stop are dropped"
            );
        }
        if let Some(reply_sender) = self.close_reply {
            // An error means that the wait for the reply has timed out.
            let _ = reply_sender.send(());
        }
    }

    /// Prepares a text of the receiver for the log: truncates it, removes control characters, and
    /// masks the values of the request's headers, which the receiver may echo.
    fn sanitize(&self, text: &str) -> String {
        let values = self.headers.iter().map(|(_, value)| value).filter(|value| !value.is_empty());
        let masked = values.fold(text.to_owned(), |text, value| text.replace(&**value, "***"));
        masked.chars().filter(|c| !c.is_control()).take(RESPONSE_CHARS_MAX).collect()
    }

    /// Counts dropped spans under the metric's label `reason`.
    fn count_dropped_spans(&self, reason: &str, count: u64) {
        if count > 0 {
            self.metrics.traces_spans_dropped.with_label_values(&[reason]).inc_by(count);
        }
    }
}

/// Returns what the response of the receiver means for the export.
fn to_outcome(answer: Answer, sanitize: impl Fn(&str) -> String) -> ExportOutcome {
    let Answer { status, retry_after, body } = answer;
    let body = body.unwrap_or_default();
    if status.is_success() {
        // Even if the response cannot be decoded, the receiver has accepted the spans.
        let partial_success =
            Response::decode(&*body).ok().and_then(|response| response.partial_success);
        let partial_success = partial_success.unwrap_or_default();
        return ExportOutcome::Accepted {
            rejected_spans: u64::try_from(partial_success.rejected_spans).unwrap_or_default(),
            reason: sanitize(&partial_success.error_message),
        };
    }
    // The statuses that are retryable in OTLP over HTTP.
    if matches!(status.as_u16(), 429 | 502 | 503 | 504) {
        return ExportOutcome::Failed { reason: format!("it answered {status}"), retry_after };
    }
    let text = sanitize(&String::from_utf8_lossy(&body));
    ExportOutcome::Rejected(format!("it answered {status}: {text}"))
}
