//! Traces: when a root job ends, its record and those of its child jobs become spans, which are
//! exported to an OTLP receiver. Spans are made only from records, never held open in this process,
//! so a trace is complete however often the process was restarted. No trace can hold up a job: what
//! a slow receiver leaves no room for is dropped and counted.

mod ended_job;
mod exporter;
mod otlp;
mod run_history;
mod span_builder;

use crate::settings::Settings;
use crate::telemetry::Metrics;
use actix_rt::Arbiter;
pub use ended_job::EndedJob;
use exporter::{Exporter, ExporterMessage};
use futures_util::FutureExt;
use journal::Records;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

/// How long a stop waits until the rest is sent.
const STOP_WAIT: Duration = Duration::from_secs(1);

/// The traces of a process.
pub struct Traces {
    waiting_max: i64,
    metrics: Metrics,
    exporter: OnceLock<UnboundedSender<ExporterMessage>>,
}

impl Traces {
    /// Makes the traces of the settings. Returns `None` if none are to be sent.
    pub fn new(settings: &Settings, metrics: &Metrics) -> Option<Traces> {
        let traces = &settings.traces;
        traces.is_enabled().then(|| Traces {
            waiting_max: i64::try_from(traces.jobs_waiting_max).unwrap_or(i64::MAX),
            metrics: metrics.clone(),
            exporter: OnceLock::new(),
        })
    }

    /// Starts the thread that reads records and exports spans.
    ///
    /// # Errors
    ///
    /// Says which of the settings cannot be used.
    pub fn start(&self, settings: &Settings, reader: Arc<dyn Records>) -> Result<(), String> {
        let (messages, inbox) = unbounded_channel();
        let exporter = Exporter::new(settings, &self.metrics, reader, inbox)?;
        // A second start changes nothing: its exporter ends at once.
        let _ = self.exporter.set(messages);
        Arbiter::new().spawn_fn(move || {
            actix_rt::spawn(exporter.run().then(|()| async { Arbiter::current().stop() }));
        });
        Ok(())
    }

    /// Reports that the end of a job was committed.
    pub(crate) fn notify_ended(&self, job: EndedJob) {
        if self.metrics.traces_jobs_waiting.get() >= self.waiting_max {
            return self.metrics.traces_jobs_dropped.with_label_values(&["full"]).inc();
        }
        self.metrics.traces_jobs_waiting.inc();
        // If the exporter is gone, the process is about to end.
        let _ = self.exporter.get().map(|exporter| exporter.send(ExporterMessage::Ended(job)));
    }

    /// Sends what is left, if that takes only a moment. The rest is dropped.
    pub async fn close(&self) {
        let (reply_sender, closed) = oneshot::channel();
        if self
            .exporter
            .get()
            .is_some_and(|exporter| exporter.send(ExporterMessage::Close(reply_sender)).is_ok())
        {
            // An error means that the time was over, or that the exporter had ended before.
            let _ = tokio::time::timeout(STOP_WAIT, closed).await;
        }
    }
}
