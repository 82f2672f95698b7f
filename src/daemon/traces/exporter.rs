//! The task that reads the records of ended jobs and exports their spans, on a thread of its own.
//! It does one thing at a time: while the receiver accepts nothing, it reads nothing. So its memory
//! is bounded by the jobs that wait, the spans of one job, and one export.

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

/// The largest export, in bytes: what most receivers and proxies accept. A span that is larger is
/// sent alone.
const EXPORT_BYTES_MAX: usize = 1 << 20;

/// How much of a response is read, in bytes.
const RESPONSE_BYTES_MAX: usize = 64 * 1024;

/// How much of a response the log contains, in characters.
const RESPONSE_CHARS_MAX: usize = 300;

/// The content type of an export.
const PROTOBUF: &str = "application/x-protobuf";

/// The longest wait of the task before it checks again what is due.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// The longest pause that a receiver can ask for. Spans are seldom kept for longer than that.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// A message to the exporter's task.
pub(super) enum ExporterMessage {
    /// A root job has ended.
    Ended(EndedJob),
    /// Send what is left, then end.
    Close(oneshot::Sender<()>),
}

pub(super) struct Exporter {
    settings: TraceSettings,
    url: String,
    headers: Vec<(String, String)>,
    resource: Resource,
    builder: SpanBuilder,
    client: Client,
    reader: Arc<dyn Records>,
    metrics: Metrics,
    inbox: UnboundedReceiver<ExporterMessage>,
    /// Ended jobs, each with the time at which its record is to be read.
    jobs: VecDeque<(Instant, EndedJob)>,
    /// Spans that wait for others, and since when the first of them does.
    spans: Vec<Span>,
    spans_since: Option<Instant>,
    /// The export that is being sent.
    export: Option<Export>,
    /// How often exports have failed in a row, and until when none is tried.
    failures: u32,
    paused_until: Option<Instant>,
    close_reply: Option<oneshot::Sender<()>>,
}

/// Encoded spans that are being sent.
struct Export {
    body: Bytes,
    spans: u64,
    started: Instant,
}

/// What the task does next.
enum ExporterAction {
    Send,
    Read,
    Wait(Duration),
    End,
}

/// The outcome of an export.
enum ExportOutcome {
    /// The spans were accepted, but for this number of them, which were rejected for this reason.
    Accepted(u64, String),
    /// The receiver rejects the export for good.
    Rejected(String),
    Failed {
        reason: String,
        retry_after: Option<Duration>,
    },
}

impl Exporter {
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
        // Attributes from the settings take precedence.
        let configured = traces.resource()?;
        attributes.retain(|own| configured.iter().all(|(name, _)| *name != own.key));
        attributes.extend(configured.iter().map(|(name, value)| text_attribute(name, value)));
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
            export: None,
            failures: 0,
            paused_until: None,
            close_reply: None,
        })
    }

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
                ExporterAction::Wait(time) => {
                    match tokio::time::timeout(time, self.inbox.recv()).await {
                        Ok(Some(message)) => self.handle_message(message),
                        Ok(None) => return self.finish(),
                        Err(_) => {}
                    }
                }
                ExporterAction::End => return self.finish(),
            }
        }
    }

    fn handle_message(&mut self, message: ExporterMessage) {
        match message {
            ExporterMessage::Ended(job) => {
                self.jobs.push_back((clock::instant() + self.settings.delay.0, job))
            }
            ExporterMessage::Close(answer) => self.close_reply = Some(answer),
        }
    }

    fn next_action(&self) -> ExporterAction {
        let (now, is_closing) = (clock::instant(), self.close_reply.is_some());
        if let Some(until) = self.paused_until.filter(|until| *until > now) {
            // An export that failed before the stop is not tried again.
            return if is_closing {
                ExporterAction::End
            } else {
                ExporterAction::Wait(until - now)
            };
        }
        if self.export.is_some() {
            return ExporterAction::Send;
        }
        let is_full = self.spans.len() >= self.settings.batch_spans_max;
        let due = self.spans_since.map(|since| since + self.settings.interval.0);
        if is_full || due.is_some_and(|due| due <= now) {
            return ExporterAction::Send;
        }
        let ready = self.jobs.front().map(|(ready, _)| *ready);
        if ready.is_some_and(|ready| ready <= now || is_closing) {
            return ExporterAction::Read;
        }
        if is_closing {
            return if self.spans.is_empty() { ExporterAction::End } else { ExporterAction::Send };
        }
        let wait = due.into_iter().chain(ready).min().map(|at| at.saturating_duration_since(now));
        ExporterAction::Wait(wait.unwrap_or(WAIT_MAX))
    }

    /// Reads the next job's spans. An error means that nothing can be read any more.
    fn read_next_job(&mut self) -> Result<(), JournalError> {
        let Some((_, job)) = self.jobs.pop_front() else { return Ok(()) };
        self.metrics.traces_jobs_waiting.dec();
        // A panic costs the spans of this job alone, not the task.
        let read = catch_unwind(AssertUnwindSafe(|| self.builder.build_trace(&*self.reader, job)));
        let reason = match read {
            Ok(Ok(Some(Trace { spans, omitted, .. }))) => {
                self.drop_spans("limit", omitted);
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

    async fn send_export(&mut self) {
        let export = self.export.take().unwrap_or_else(|| self.next_export());
        let called = AssertUnwindSafe(self.post(export.body.clone())).catch_unwind().await;
        let outcome = called.unwrap_or_else(|_| ExportOutcome::Failed {
            reason: "the call panicked; the log has the panic".to_owned(),
            retry_after: None,
        });
        let label = match outcome {
            ExportOutcome::Accepted(rejected, reason) => {
                let rejected = rejected.min(export.spans);
                self.metrics.traces_spans_sent.inc_by(export.spans - rejected);
                self.drop_spans("rejected", rejected);
                if rejected > 0 {
                    tracing::warn!(
                        spans = rejected,
                        reason,
                        "the receiver of traces rejects spans"
                    );
                }
                self.handle_success();
                "taken"
            }
            ExportOutcome::Rejected(reason) => {
                tracing::error!(
                    spans = export.spans,
                    reason,
                    "the receiver of traces refuses spans: they are not sent again"
                );
                self.drop_spans("refused", export.spans);
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

    /// Encodes the next spans that fit into an export.
    fn next_export(&mut self) -> Export {
        let mut bytes = 0;
        let fits = |span: &&Span| {
            bytes += span.encoded_len();
            bytes <= EXPORT_BYTES_MAX
        };
        let waiting = self.spans.iter().take(self.settings.batch_spans_max);
        let count = waiting.take_while(fits).count().max(1).min(self.spans.len());
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
            spans: count as u64,
            started: clock::instant(),
        }
    }

    fn handle_success(&mut self) {
        self.paused_until = None;
        if std::mem::take(&mut self.failures) > 0 {
            tracing::info!("the receiver of traces takes spans again");
        }
    }

    fn handle_failure(&mut self, export: Export, reason: &str, retry_after: Option<Duration>) {
        if self.failures == 0 {
            tracing::warn!(reason, "traces cannot be sent: tried again for a while");
        }
        let demanded = retry_after.map(|requested| requested.min(RETRY_AFTER_MAX));
        self.failures = self.failures.saturating_add(1);
        let bounds = (self.settings.backoff_min.0, self.settings.backoff_max.0);
        let pause = backoff(self.failures, bounds);
        self.paused_until = Some(clock::instant() + pause.max(demanded.unwrap_or(Duration::ZERO)));
        if export.started.elapsed() < self.settings.age_max.0 {
            self.export = Some(export);
        } else {
            self.drop_spans("expired", export.spans);
        }
    }

    async fn post(&self, body: Bytes) -> ExportOutcome {
        let mut request = self.client.post(&self.url).header(CONTENT_TYPE, PROTOBUF);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let timeout = self.settings.timeout.0;
        let request = request.body(body).build().map_err(|error| http_client::root_cause(&error));
        let sent = match request {
            Ok(request) => {
                http_client::send(&self.client, request, timeout, RESPONSE_BYTES_MAX).await
            }
            Err(reason) => Err(reason),
        };
        match sent {
            Ok(answer) => parse_answer(answer, |text| self.sanitize(text)),
            Err(reason) => ExportOutcome::Failed { reason, retry_after: None },
        }
    }

    /// Ends the exporter, and counts what was not sent.
    fn finish(mut self) {
        let left = self.spans.len() as u64 + self.export.as_ref().map_or(0, |export| export.spans);
        self.drop_spans("stopped", left);
        let mut jobs = self.jobs.len() as u64;
        while let Ok(message) = self.inbox.try_recv() {
            jobs += u64::from(matches!(message, ExporterMessage::Ended(_)));
        }
        self.metrics.traces_jobs_dropped.with_label_values(&["stopped"]).inc_by(jobs);
        if left + jobs > 0 {
            tracing::warn!(
                spans = left,
                jobs,
                "traces that were not sent before the stop are dropped"
            );
        }
        if let Some(reply_sender) = self.close_reply {
            // Whoever stops the process may have given up waiting.
            let _ = reply_sender.send(());
        }
    }

    /// Prepares a text of the receiver for the log. It masks the values of the request's headers,
    /// which the receiver may have echoed.
    fn sanitize(&self, text: &str) -> String {
        let values = self.headers.iter().map(|(_, value)| value).filter(|value| !value.is_empty());
        let masked = values.fold(text.to_owned(), |text, value| text.replace(&**value, "***"));
        masked.chars().filter(|c| !c.is_control()).take(RESPONSE_CHARS_MAX).collect()
    }

    fn drop_spans(&self, reason: &str, count: u64) {
        if count > 0 {
            self.metrics.traces_spans_dropped.with_label_values(&[reason]).inc_by(count);
        }
    }
}

fn parse_answer(answer: Answer, sanitize: impl Fn(&str) -> String) -> ExportOutcome {
    let Answer { status, retry_after, body } = answer;
    let body = body.unwrap_or_default();
    if status.is_success() {
        // Whatever the response contains, the receiver has accepted the spans.
        let partial = Response::decode(&*body).ok().and_then(|response| response.partial_success);
        let partial = partial.unwrap_or_default();
        let rejected = u64::try_from(partial.rejected_spans).unwrap_or_default();
        return ExportOutcome::Accepted(rejected, sanitize(&partial.error_message));
    }
    // The statuses that the protocol lets clients try again.
    if matches!(status.as_u16(), 429 | 502 | 503 | 504) {
        return ExportOutcome::Failed { reason: format!("it answered {status}"), retry_after };
    }
    let text = sanitize(&String::from_utf8_lossy(&body));
    ExportOutcome::Rejected(format!("it answered {status}: {text}"))
}
