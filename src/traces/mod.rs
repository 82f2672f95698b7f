//! Traces: when a top-level job ends, its record and those of its child jobs become spans, which
//! are sent to a receiver of OTLP. A span is never alive in this process, so a trace is whole
//! however often the process was restarted. None of it can hold up a job: what a slow receiver
//! leaves no room for is dropped and counted.

mod build;
mod exporter;
mod life;
mod wire;

use crate::engine::{JobId, Timestamp};
use crate::journal::Records;
use crate::settings::Settings;
use crate::telemetry::Metrics;
use exporter::{Exporter, Mail};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a stop waits for what is not sent yet.
const STOP_WAIT: Duration = Duration::from_secs(1);

/// The traces of a process.
pub struct Traces {
    waiting_max: i64,
    metrics: Metrics,
    exporter: OnceLock<Sender<Mail>>,
}

/// A top-level job that has come to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedJob {
    /// Its id.
    pub id: JobId,
    /// When it was created: another job may have its id by now.
    pub created: Timestamp,
    /// The number of the entry that ended it, from 1.
    pub entry: u64,
    /// When that was decided.
    pub at: Timestamp,
}

impl Traces {
    /// The traces in the settings, if they are to be sent.
    pub fn new(settings: &Settings, metrics: &Metrics) -> Option<Traces> {
        let traces = &settings.traces;
        traces.is_on().then(|| Traces {
            waiting_max: i64::try_from(traces.jobs_waiting_max).unwrap_or(i64::MAX),
            metrics: metrics.clone(),
            exporter: OnceLock::new(),
        })
    }

    /// Starts the thread that reads records and sends spans.
    ///
    /// # Errors
    ///
    /// What of the settings cannot be used.
    pub fn start(&self, settings: &Settings, reader: Arc<dyn Records>) -> Result<(), String> {
        let (mail, inbox): (Sender<Mail>, Receiver<Mail>) = channel();
        let exporter = Exporter::new(settings, &self.metrics, reader, inbox)?;
        // A second start changes nothing: its exporter ends at once.
        let _ = self.exporter.set(mail);
        std::thread::spawn(move || exporter.run());
        Ok(())
    }

    /// The end of a job is committed.
    pub fn ended(&self, job: EndedJob) {
        if self.metrics.traces_jobs_waiting.get() >= self.waiting_max {
            return self.metrics.traces_jobs_dropped.with_label_values(&["full"]).inc();
        }
        self.metrics.traces_jobs_waiting.inc();
        // An exporter that is gone takes nothing: the process ends.
        let _ = self.exporter.get().map(|exporter| exporter.send(Mail::Ended(job)));
    }

    /// Sends what is left, if that takes a moment only. The rest is dropped.
    pub async fn close(&self) {
        let (answer, closed) = oneshot::channel();
        if self.exporter.get().is_some_and(|exporter| exporter.send(Mail::Close(answer)).is_ok()) {
            // Too late, or it has ended before.
            let _ = tokio::time::timeout(STOP_WAIT, closed).await;
        }
    }
}
