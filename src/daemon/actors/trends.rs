//! Records trends: once a minute, adds what happened in it to the buckets in the journal.
//!
//! The journal has everything: a bucket is read, added to and written again, so that a restart, a
//! takeover and a clock that was set are nothing special. The figures of a minute are the
//! difference of the metrics since the last minute that was stored. If a minute cannot be stored,
//! it is a gap, and the next one counts what happened in it. (If only the answer to a commit was
//! lost, that is counted twice.) A clean stop records what has happened since the last minute. A
//! process that is killed loses at most the minute that had not ended.

use super::buses::Buses;
use super::inputs::{JournalInput, TrendWrite};
use super::mailbox::Mailbox;
use super::mailboxes::Mailboxes;
use super::manager_core::ManagerCore;
use super::manager_handle::ManagerHandle;
use crate::telemetry::Metrics;
use crate::telemetry::trends::{
    ALL_WORKFLOWS, Figures, FiguresByWorkflow, MINUTE_NS, MetricValues, TrendSpan, WORKFLOWS_MAX,
};
use base::clock;
use bus::QueueStatus;
use engine::Timestamp;
use journal::{JournalError, Records, StoredTrend};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a stop waits for the last minute to be recorded.
const LAST_MINUTE_MAX: Duration = Duration::from_secs(1);

/// Asks the recorder of a manager for the last minute.
pub(super) struct LastMinute(oneshot::Sender<oneshot::Sender<()>>);

impl LastMinute {
    /// Creates what asks a recorder, and what the recorder is asked by.
    pub(super) fn new() -> (LastMinute, LastMinuteAsked) {
        let (sender, receiver) = oneshot::channel();
        (LastMinute(sender), receiver)
    }

    /// Has what happened since the last minute recorded, if that does not take long, and ends the
    /// recorder. `timeout`: how long it may take at most.
    pub(super) async fn record(self, timeout: Duration) {
        let (recorded, answer) = oneshot::channel();
        // An error means that the recorder has ended.
        if self.0.send(recorded).is_ok() {
            let _ = tokio::time::timeout(timeout.min(LAST_MINUTE_MAX), answer).await;
        }
    }
}

/// What a recorder is asked by for the last minute.
pub(super) type LastMinuteAsked = oneshot::Receiver<oneshot::Sender<()>>;

/// Records the trends of a manager.
pub struct TrendRecorder {
    reader: Arc<dyn Records>,
    journal: Mailbox<JournalInput>,
    handle: ManagerHandle,
    buses: Arc<Buses>,
    metrics: Metrics,
    /// The metrics at the end of the last minute that was stored.
    stored_values: MetricValues,
    /// The workflows that have trends; `None`: not read yet.
    workflows: Option<BTreeSet<Arc<str>>>,
}

impl TrendRecorder {
    /// Creates the recorder of a manager. It counts what happens from now on.
    pub fn new(core: &ManagerCore, mailboxes: &Mailboxes, handle: ManagerHandle) -> TrendRecorder {
        TrendRecorder {
            reader: core.reader.clone(),
            journal: mailboxes.journal.clone(),
            handle,
            buses: core.buses.clone(),
            metrics: core.metrics.clone(),
            stored_values: MetricValues::read(&core.metrics),
            workflows: None,
        }
    }

    /// Records each minute at its end, until it is asked for the last one.
    pub(super) async fn run(mut self, mut last_asked: LastMinuteAsked) {
        loop {
            let end = tokio::time::sleep(until_minute_end(clock::now()));
            let asked = tokio::select! {
                () = end => None,
                asked = &mut last_asked => Some(asked),
            };
            let start = ended_minute(clock::now());
            let is_recorded = match &asked {
                None => self.record_minute(start).await,
                Some(Ok(_)) => self.record_rest(start).await,
                // The manager is dropped, and has not stopped.
                Some(Err(_)) => return,
            };
            if !is_recorded {
                tracing::debug!("a minute is missing in the trends");
            }
            if asked.is_some() {
                return;
            }
        }
    }

    /// Records the minute that begins at `start`. Returns whether it is stored.
    pub async fn record_minute(&mut self, start: Timestamp) -> bool {
        match self.load(start).await {
            Some(loaded) => self.record(start, 1, loaded).await,
            None => false,
        }
    }

    /// Records what happened since the last minute was recorded, in the minute that begins at
    /// `start`, which may be recorded already. Returns whether it is stored.
    pub async fn record_rest(&mut self, start: Timestamp) -> bool {
        let Some(loaded) = self.load(start).await else { return false };
        let minute = loaded.1.get(&TrendSpan::Hour).and_then(|bucket| bucket.get(ALL_WORKFLOWS));
        let is_counted = minute.is_some_and(|figures| figures.minutes > 0);
        self.record(start, u64::from(!is_counted), loaded).await
    }

    /// Adds what happened since the last minute to what is loaded, and stores it. `minutes`: how
    /// many minutes it counts as. Returns whether it is stored.
    async fn record(
        &mut self,
        start: Timestamp,
        minutes: u64,
        (workflows, buckets): (BTreeSet<Arc<str>>, Buckets),
    ) -> bool {
        let values = MetricValues::read(&self.metrics);
        let mut figures = values.since(&self.stored_values);
        self.add_depths(&mut figures).await;
        figures.entry(ALL_WORKFLOWS.into()).or_default().minutes = minutes;
        let (workflows, forgotten) = self.select_workflows(workflows, &mut figures);
        let (stored, answer) = oneshot::channel();
        let trends = to_rows(start, buckets, &figures);
        let write = TrendWrite { trends, forgotten, stored };
        self.journal.send(JournalInput::StoreTrends(Box::new(write)));
        let is_stored = answer.await.is_ok();
        if is_stored {
            self.stored_values = values;
            self.workflows = Some(workflows);
        }
        is_stored
    }

    /// Loads the workflows that have trends, and the buckets to which a minute belongs; `None`: the
    /// journal cannot be read now.
    async fn load(&self, start: Timestamp) -> Option<(BTreeSet<Arc<str>>, Buckets)> {
        let (reader, workflows) = (self.reader.clone(), self.workflows.clone());
        let load = move || -> Result<_, JournalError> {
            let workflows = match workflows {
                Some(workflows) => workflows,
                None => reader.load_trend_workflows()?.into_iter().collect(),
            };
            let mut buckets = Buckets::new();
            for span in TrendSpan::ALL {
                let rows = reader.load_trends_at(span.ring(), span.position(start))?;
                // The position may still have the bucket that was there a round before.
                let current = rows.into_iter().filter(|row| row.start == span.bucket_start(start));
                let parse = |row: StoredTrend| {
                    Some((row.workflow.clone(), serde_json::from_str(&row.body).ok()?))
                };
                buckets.insert(span, current.filter_map(parse).collect());
            }
            Ok((workflows, buckets))
        };
        match tokio::task::spawn_blocking(load).await.ok()? {
            Ok(loaded) => Some(loaded),
            Err(error) => {
                tracing::debug!(%error, "trends cannot be read now");
                None
            }
        }
    }

    /// Adds how many messages wait in the queues of each loaded workflow, and in all queues.
    async fn add_depths(&self, figures: &mut FiguresByWorkflow) {
        let statuses = self.handle.inspect_each_queue().await;
        let depths: BTreeMap<_, _> =
            statuses.iter().map(|(queue, status)| (queue, depth(status))).collect();
        set_depth(figures, ALL_WORKFLOWS, depths.values().copied().sum());
        for (name, definition) in &*self.handle.definitions() {
            let queues: BTreeSet<_> = definition
                .sending_steps()
                .map(|step| (self.buses.bus_of_step(definition, step), step.queue.clone()))
                .collect();
            let depths = queues.iter().map(|queue| depths.get(queue).copied().flatten());
            set_depth(figures, name, depths.sum());
        }
    }

    /// Removes the figures of workflows that are too many. A new workflow takes the place of one
    /// that is no longer loaded. Returns the workflows that have trends now, and those that no
    /// longer do.
    fn select_workflows(
        &self,
        mut workflows: BTreeSet<Arc<str>>,
        figures: &mut FiguresByWorkflow,
    ) -> (BTreeSet<Arc<str>>, Vec<Arc<str>>) {
        let definitions = self.handle.definitions();
        let mut forgotten = Vec::new();
        // A workflow of which there is nothing to tell takes no place.
        let is_new = |(name, own): &(&Arc<str>, &Figures)| {
            &***name != ALL_WORKFLOWS && !workflows.contains(*name) && !own.is_nothing()
        };
        let new = figures.iter().filter(is_new);
        let new: Vec<Arc<str>> = new.map(|(name, _)| name.clone()).collect();
        for name in new {
            if workflows.len() >= WORKFLOWS_MAX {
                let is_idle = |name: &&Arc<str>| {
                    !definitions.contains_key(&***name) && !figures.contains_key(*name)
                };
                let Some(idle) = workflows.iter().find(is_idle).cloned() else {
                    figures.remove(&name);
                    continue;
                };
                workflows.remove(&idle);
                forgotten.push(idle);
            }
            workflows.insert(name);
        }
        (workflows, forgotten)
    }
}

/// The buckets to which a minute belongs, by the full names of workflows.
type Buckets = BTreeMap<TrendSpan, FiguresByWorkflow>;

/// Adds the figures of the minute that begins at `start` to its buckets. Returns the rows that are
/// to be stored.
fn to_rows(start: Timestamp, buckets: Buckets, figures: &FiguresByWorkflow) -> Vec<StoredTrend> {
    let mut rows = Vec::new();
    for (span, mut bucket) in buckets {
        for (workflow, figures) in figures {
            let sum = bucket.entry(workflow.clone()).or_default();
            sum.add(figures);
            if sum.is_nothing() {
                continue;
            }
            rows.push(StoredTrend {
                ring: span.ring(),
                position: span.position(start),
                workflow: workflow.clone(),
                start: span.bucket_start(start),
                body: serde_json::to_string(sum).unwrap_or_default().into(),
            });
        }
    }
    rows
}

/// Sets how many messages wait at the end of a minute.
fn set_depth(figures: &mut FiguresByWorkflow, workflow: &str, depth: Option<u64>) {
    let figures: &mut Figures = figures.entry(workflow.into()).or_default();
    (figures.queued, figures.queued_max) = (depth, depth);
}

/// Returns how many messages wait in a queue; `None`: not known.
fn depth(status: &QueueStatus) -> Option<u64> {
    match status {
        QueueStatus::Exists { messages, .. } => Some((*messages).into()),
        QueueStatus::Endpoint { waiting, .. } => Some(*waiting as u64),
        QueueStatus::Missing => Some(0),
        QueueStatus::Unknown(_) => None,
    }
}

/// Returns the beginning of the minute that ends nearest to a time. A timer may be early or late.
fn ended_minute(now: Timestamp) -> Timestamp {
    Timestamp(nearest_minute(now).saturating_sub(MINUTE_NS))
}

/// Returns how long it is until the next minute ends, at least half a minute.
fn until_minute_end(now: Timestamp) -> Duration {
    let nanos = nearest_minute(now).saturating_add(MINUTE_NS).saturating_sub(now.0);
    Duration::from_nanos(nanos.unsigned_abs())
}

/// Returns the beginning of a minute that is nearest to a time.
fn nearest_minute(time: Timestamp) -> i64 {
    time.0.saturating_add(MINUTE_NS / 2).div_euclid(MINUTE_NS).saturating_mul(MINUTE_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_that_is_early_or_late_ends_the_same_minute() {
        let minute = |minutes: i64| Timestamp(minutes * MINUTE_NS);
        for offset_ms in [-29_000, -1, 0, 1, 29_000] {
            let now = Timestamp(7 * MINUTE_NS + offset_ms * 1_000_000);
            assert_eq!(ended_minute(now), minute(6));
            let next = Timestamp(now.0 + until_minute_end(now).as_nanos() as i64);
            assert_eq!(next, minute(8), "no minute is recorded twice");
        }
    }
}
