//! Exports traces to an OTLP receiver.
//!
//! When a root job ends, spans are built from its record and from those of the child jobs in its
//! job tree. This process holds no open spans, so a trace is complete even after restarts. A slow
//! receiver cannot delay a job: traces beyond a limit are dropped and counted.

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

/// How long closing waits for the remaining traces to be sent.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The traces of a process.
pub struct Traces {
    /// How many ended jobs may wait for their export. It is signed like the gauge it is compared
    /// to.
    jobs_waiting_max: i64,
    metrics: Metrics,
    /// The inbox of the exporter, once it is started.
    exporter: OnceLock<UnboundedSender<ExporterMessage>>,
}

impl Traces {
    /// Creates the traces of the settings. Returns `None` if they are disabled.
    pub fn new(settings: &Settings, metrics: &Metrics) -> Option<Traces> {
        let traces = &settings.traces;
        traces.is_enabled().then(|| Traces {
            jobs_waiting_max: i64::try_from(traces.jobs_waiting_max).unwrap_or(i64::MAX),
            metrics: metrics.clone(),
            exporter: OnceLock::new(),
        })
    }

    /// Starts the thread that reads records and exports spans.
    ///
    /// # Errors
    ///
    /// Returns an error if a setting cannot be used.
    pub fn start(&self, settings: &Settings, reader: Arc<dyn Records>) -> Result<(), String> {
        let (messages, inbox) = unbounded_channel();
        let exporter = Exporter::new(settings, &self.metrics, reader, inbox)?;
        // Traces are started once. The exporter of a second start would find its inbox closed.
        let _ = self.exporter.set(messages);
        Arbiter::new().spawn_fn(move || {
            actix_rt::spawn(exporter.run().then(|()| async { Arbiter::current().stop() }));
        });
        Ok(())
    }

    /// Reports that the end of a root job was committed. If too many jobs wait, its trace is
    /// dropped.
    pub(crate) fn notify_ended(&self, job: EndedJob) {
        if self.metrics.traces_jobs_waiting.get() >= self.jobs_waiting_max {
            return self.metrics.traces_jobs_dropped.with_label_values(&["full"]).inc();
        }
        self.metrics.traces_jobs_waiting.inc();
        // An exporter that is missing or has ended means that the process is about to end.
        let _ = self.exporter.get().map(|exporter| exporter.send(ExporterMessage::Ended(job)));
    }

    /// Sends the remaining traces for a bounded time. Those that are not sent by then are dropped.
    pub async fn close(&self) {
        let (reply_sender, reply) = oneshot::channel();
        if self
            .exporter
            .get()
            .is_some_and(|exporter| exporter.send(ExporterMessage::Close(reply_sender)).is_ok())
        {
            // An error means a timeout, or an exporter that has ended.
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, reply).await;
        }
    }
}
