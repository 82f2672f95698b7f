//! The metrics of the process (docs/reference/metrics.md), and its [`log`]. The names of metrics
//! have the prefix `workflow_`, and their values are in base units. No label is an id, so the
//! number of series is bounded.

pub mod cluster;
pub mod limits;
mod line_queue;
pub mod log;
#[cfg(target_os = "linux")]
mod process;
pub mod rates;
mod registrar;
pub mod series;
pub mod trends;

use prometheus::core::Collector;
use prometheus::{
    Encoder, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
    TextEncoder,
};
pub use registrar::MetricDescription;
use registrar::{MetricRegistrar, count_buckets, seconds_buckets};
use serde::Serialize;
use series::{Definitions, OTHER, SeriesOverflow, StepSeries, collect_labels};
use std::collections::HashMap;
use std::sync::Arc;
use utoipa::ToSchema;

/// The metrics of a process. Clones share their values.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    /// The workflows and steps that have series of their own.
    pub series: Arc<StepSeries>,
    /// `workflow_actor_mailbox_depth{actor}`: messages waiting.
    pub mailbox_depth: IntGaugeVec,
    /// `workflow_actor_mailbox_high_water{actor}`: the most that ever waited in one mailbox.
    pub mailbox_high_water: IntGaugeVec,
    /// `workflow_actor_messages_total{actor}`: messages handled.
    pub messages: IntCounterVec,
    /// `workflow_actor_handling_seconds{actor}`: time to handle one message.
    pub handling: HistogramVec,
    /// `workflow_actor_restarts_total{actor}`: restarts after a panic.
    pub restarts: IntCounterVec,
    /// `workflow_journal_batch_records`: records in one commit.
    pub batch_records: Histogram,
    /// `workflow_journal_commit_seconds`: time of one commit.
    pub commit: Histogram,
    /// `workflow_journal_queue_seconds`: from a record's arrival to its commit.
    pub journal_queue: Histogram,
    /// `workflow_journal_synchronous_standby`: whether the server of the journal waits for a
    /// synchronous standby at each commit, 1 or 0. Absent for a file.
    pub journal_synchronous_standby: IntGaugeVec,
    /// `workflow_journal_failures_total{kind}`: commits that failed and were tried again.
    pub journal_failures: IntCounterVec,
    /// `workflow_journal_file_bytes{file}`: the sizes of the main file and the `-wal`.
    pub journal_bytes: IntGaugeVec,
    /// `workflow_journal_free_bytes`: the free bytes within the main file.
    pub journal_free_bytes: IntGauge,
    /// `workflow_clock_set_by_seconds`: by how much the wall clock was set since the start.
    pub clock_set_by: IntGauge,
    /// `workflow_journal_deleted_total{why}`: root jobs deleted by retention or by a client.
    pub deleted: IntCounterVec,
    /// `workflow_journal_deletion_seconds`: time of one part of a deletion.
    pub deletion: Histogram,
    /// `workflow_schedule_slots_total{schedule,judgement}`: slots of loaded schedules by what
    /// became of them.
    pub schedule_slots: IntCounterVec,
    /// `workflow_schedule_failures_total{schedule}`: attempts to start the jobs of due slots, or to
    /// store what became of the slots, that failed and are repeated.
    pub schedule_failures: IntCounterVec,
    /// `workflow_steps_dispatched_total{workflow,step}`: step messages given to the bus.
    pub dispatched: IntCounterVec,
    /// `workflow_steps_redispatched_total{workflow,step}`: dispatches that repeated a message of
    /// the same attempt.
    pub redispatched: IntCounterVec,
    /// `workflow_steps_confirmed_total{workflow,step}`: step messages that the broker confirmed.
    pub confirmed: IntCounterVec,
    /// `workflow_steps_replied_total{workflow,step}`: steps that a reply ended.
    pub replied: IntCounterVec,
    /// `workflow_steps_failed_total{workflow,step}`: steps that failed.
    pub failed: IntCounterVec,
    /// `workflow_steps_retried_total{workflow,step}`: failed attempts that a retry follows.
    pub retried: IntCounterVec,
    /// `workflow_step_duration_seconds{workflow,step}`: from the first dispatch to the end.
    pub step_duration: HistogramVec,
    /// `workflow_job_duration_seconds{workflow,state}`: of root jobs, from creation to the end.
    pub job_duration: HistogramVec,
    /// `workflow_replies_rejected_total{reason}`: replies that changed nothing.
    pub replies_rejected: IntCounterVec,
    /// `workflow_calls_refused_total{workflow,reason}`: messages on workflows' queues that were
    /// rejected.
    pub calls_refused: IntCounterVec,
    /// `workflow_jobs_created_total{workflow}`: root jobs created.
    pub jobs_created: IntCounterVec,
    /// `workflow_column_errors_total{workflow}`: cells that could not be computed.
    pub column_errors: IntCounterVec,
    /// `workflow_jobs_ended_total{workflow,state}`: root jobs ended.
    pub jobs_ended: IntCounterVec,
    /// `workflow_jobs{workflow,state}`: root jobs that have not ended.
    pub jobs: IntGaugeVec,
    /// `workflow_child_jobs`: child jobs that have not ended.
    pub child_jobs: IntGauge,
    /// `workflow_jobs_bytes`: the bytes that jobs hold in memory.
    pub jobs_bytes: IntGauge,
    /// `workflow_jobs_bytes_max`: the limit of `workflow_jobs_bytes`.
    pub jobs_bytes_max: IntGauge,
    /// `workflow_jobs_at_rest`: jobs and child jobs that are passivated.
    pub jobs_passivated: IntGauge,
    /// `workflow_jobs_pending`: passivated job trees that wait for memory.
    pub job_trees_waiting: IntGauge,
    /// `workflow_jobs_brought_back_total`: passivated job trees that were activated.
    pub jobs_activated: IntCounter,
    /// `workflow_look_ups_waiting`: creations, operations, calls and orders that wait for a lookup
    /// in the journal.
    pub lookups_waiting: IntGauge,
    /// `workflow_bus_connected{bus,vhost}`: 1 or 0.
    pub bus_connected: IntGaugeVec,
    /// `workflow_bus_blocked{bus,vhost}`: 1 while the broker blocks publishers, or confirms
    /// nothing.
    pub bus_blocked: IntGaugeVec,
    /// `workflow_bus_unconfirmed{bus,vhost}`: messages handed to the bus and not yet confirmed.
    pub bus_unconfirmed: IntGaugeVec,
    /// `workflow_service_call_seconds{bus,service,outcome}`: calls of web services.
    pub service_calls: HistogramVec,
    /// `workflow_queue_messages_lost{bus,vhost,queue}`: the least number of messages that the
    /// queue must have lost.
    pub queue_messages_lost: IntGaugeVec,
    /// `workflow_bus_notices_total{bus,vhost,kind}`: returned, rejected and resent messages.
    pub bus_notices: IntCounterVec,
    /// `workflow_messages_unreadable_total{bus,vhost,queue,outcome}`: messages that could not be
    /// read, quarantined or dropped.
    pub messages_unreadable: IntCounterVec,
    /// `workflow_api_logins_failed_total{reason}`: calls without a token, or with a wrong one.
    pub logins_failed: IntCounterVec,
    /// `workflow_api_requests_total{code}`: HTTP requests answered.
    pub requests: IntCounterVec,
    /// `workflow_connections_ended_total{reason}`: connections of clients that the manager has
    /// closed.
    pub connections_ended: IntCounterVec,
    /// `workflow_certificate_not_after_seconds`: when the certificate of the API expires, in
    /// seconds since 1970. Present only with TLS.
    pub certificate_not_after: IntGaugeVec,
    /// Those of a process that shares its journal.
    pub cluster: cluster::ClusterMetrics,
    /// Those of the limits of rate and concurrency.
    pub limits: limits::LimitMetrics,
    /// `workflow_grpc_calls_total{method,code}`: calls over gRPC that have ended.
    pub grpc_calls: IntCounterVec,
    /// `workflow_messages_sending_bytes`: step messages on their way to workers over HTTP and gRPC.
    pub messages_sending: IntGauge,
    /// `workflow_event_streams`: open streams of events.
    pub event_streams: IntGauge,
    /// `workflow_events_published_total{sink}`: events that the exchange has confirmed.
    pub events_published: IntCounterVec,
    /// `workflow_events_dropped_total{sink}`: events that a sink could not accept.
    pub events_dropped: IntCounterVec,
    /// `workflow_webhook_deliveries_total{outcome}`: calls of the webhook.
    pub webhook_deliveries: IntCounterVec,
    /// `workflow_webhook_waiting`: notices that are not delivered yet.
    pub webhook_waiting: IntGauge,
    /// `workflow_traces_jobs_waiting`: ended jobs whose spans are not sent yet.
    pub traces_jobs_waiting: IntGauge,
    /// `workflow_traces_jobs_dropped_total{reason}`: ended jobs of which no span is sent.
    pub traces_jobs_dropped: IntCounterVec,
    /// `workflow_traces_spans_sent_total`: spans that the receiver accepted.
    pub traces_spans_sent: IntCounter,
    /// `workflow_traces_spans_dropped_total{reason}`: spans that the receiver did not get.
    pub traces_spans_dropped: IntCounterVec,
    /// `workflow_traces_exports_total{outcome}`: exports to the receiver.
    pub traces_exports: IntCounterVec,
}

impl Metrics {
    /// Creates and registers all metrics.
    pub fn new() -> Metrics {
        Metrics::with_registrar(&MetricRegistrar::default())
    }

    /// Describes all metrics but those of the operating system.
    pub fn describe() -> Vec<MetricDescription> {
        let register = MetricRegistrar::default();
        Metrics::with_registrar(&register);
        register.descriptions.into_inner()
    }

    #[allow(clippy::too_many_lines, reason = "one list of metrics")]
    fn with_registrar(register: &MetricRegistrar) -> Metrics {
        let metrics = Metrics {
            mailbox_depth: register.gauge_vec(
                "actor_mailbox_depth",
                "messages waiting in the mailboxes of a kind of actor: job, router, journal, \
                 archive, bus, supervisor, scheduler, announcer",
                &["actor"],
            ),
            mailbox_high_water: register.gauge_vec(
                "actor_mailbox_high_water",
                "the most messages that ever waited in one mailbox of the kind",
                &["actor"],
            ),
            messages: register.counter_vec("actor_messages_total", "messages handled", &["actor"]),
            handling: register.histogram_vec(
                "actor_handling_seconds",
                "time to handle a message",
                &["actor"],
            ),
            restarts: register.counter_vec(
                "actor_restarts_total",
                "job actors rebuilt from the journal after a panic",
                &["actor"],
            ),
            batch_records: register.histogram(
                "journal_batch_records",
                "records in one commit",
                count_buckets(),
            ),
            commit: register.histogram(
                "journal_commit_seconds",
                "time of one commit, its fsync included",
                seconds_buckets(),
            ),
            journal_queue: register.histogram(
                "journal_queue_seconds",
                "time from a record's arrival at the journal to its commit",
                seconds_buckets(),
            ),
            journal_synchronous_standby: register.gauge_vec(
                "journal_synchronous_standby",
                "whether the database server waits for a synchronous standby at each commit",
                &[],
            ),
            journal_failures: register.counter_vec(
                "journal_failures_total",
                "commits that failed and are tried again",
                &["kind"],
            ),
            journal_bytes: register.gauge_vec(
                "journal_file_bytes",
                "the size of the journal's main file and of its wal, as of the last second",
                &["file"],
            ),
            journal_free_bytes: register.gauge(
                "journal_free_bytes",
                "what is free within the journal's main file, and used again",
            ),
            clock_set_by: register.gauge(
                "clock_set_by_seconds",
                "by how much somebody has set the clock since the start",
            ),
            deleted: register.counter_vec(
                "journal_deleted_total",
                "top-level jobs deleted, by retention or by a client",
                &["why"],
            ),
            deletion: register.histogram(
                "journal_deletion_seconds",
                "time of one part of a deletion: what comes meanwhile waits for it",
                seconds_buckets(),
            ),
            schedule_slots: register.counter_vec(
                "schedule_slots_total",
                "slots of the loaded schedules: started, waits, skipped, missed",
                &["schedule", "judgement"],
            ),
            schedule_failures: register.counter_vec(
                "schedule_failures_total",
                "attempts to start the jobs of due slots, or to store what became of the \
                 slots, that failed, without those that a limit refused; they are repeated each \
                 second",
                &["schedule"],
            ),
            dispatched: register.counter_vec(
                "steps_dispatched_total",
                "step messages given to the bus",
                &["workflow", "step"],
            ),
            redispatched: register.counter_vec(
                "steps_redispatched_total",
                "step messages that were sent once more as the same attempt: their queue was \
                 missing, or somebody asked for it",
                &["workflow", "step"],
            ),
            confirmed: register.counter_vec(
                "steps_confirmed_total",
                "step messages confirmed by the broker before their reply came",
                &["workflow", "step"],
            ),
            replied: register.counter_vec(
                "steps_replied_total",
                "steps completed; of a step with a task: when all its child jobs have ended",
                &["workflow", "step"],
            ),
            failed: register.counter_vec(
                "steps_failed_total",
                "steps failed",
                &["workflow", "step"],
            ),
            retried: register.counter_vec(
                "steps_retried_total",
                "attempts that failed and are followed by another",
                &["workflow", "step"],
            ),
            step_duration: register.histogram_vec(
                "step_duration_seconds",
                "time from a step's first dispatch to its completion",
                &["workflow", "step"],
            ),
            job_duration: register.histogram_vec(
                "job_duration_seconds",
                "time from a top-level job's creation to its end",
                &["workflow", "state"],
            ),
            replies_rejected: register.counter_vec(
                "replies_rejected_total",
                "replies that changed nothing",
                &["reason"],
            ),
            calls_refused: register.counter_vec(
                "calls_refused_total",
                "messages on a workflow's queue that got no job",
                &["workflow", "reason"],
            ),
            column_errors: register.counter_vec(
                "column_errors_total",
                "labels and columns of jobs that are empty because they could not be computed",
                &["workflow"],
            ),
            jobs_created: register.counter_vec(
                "jobs_created_total",
                "top-level jobs created",
                &["workflow"],
            ),
            jobs_ended: register.counter_vec(
                "jobs_ended_total",
                "top-level jobs ended: completed, failed, cancelled",
                &["workflow", "state"],
            ),
            jobs: register.gauge_vec("jobs", "top-level jobs in progress", &["workflow", "state"]),
            child_jobs: register.gauge("child_jobs", "child jobs in progress"),
            jobs_bytes: register
                .gauge("jobs_bytes", "bytes that jobs and child jobs in progress hold in memory"),
            jobs_bytes_max: register.gauge(
                "jobs_bytes_max",
                "bytes that jobs and child jobs in progress may hold; the setting \
                 limits.jobs_bytes_max",
            ),
            jobs_passivated: register.gauge(
                "jobs_at_rest",
                "jobs and child jobs in progress that are in the journal alone; workflow_jobs \
                 and workflow_child_jobs count them with the others",
            ),
            job_trees_waiting: register.gauge(
                "jobs_pending",
                "jobs at rest, each top-level job with its child jobs as one, that are still \
                 to be activated, as memory becomes free",
            ),
            jobs_activated: register.counter(
                "jobs_brought_back_total",
                "passivated jobs, with their child jobs as one, that were activated",
            ),
            lookups_waiting: register.gauge(
                "look_ups_waiting",
                "creations under an id that the client chose, operations, calls and orders to \
                 child jobs that wait for a look-up in the journal: the job takes no input",
            ),
            bus_connected: register.gauge_vec(
                "bus_connected",
                "1 while the bus can publish and consume",
                &["bus", "vhost"],
            ),
            bus_blocked: register.gauge_vec(
                "bus_blocked",
                "1 while the broker blocks publishers, or confirms nothing",
                &["bus", "vhost"],
            ),
            bus_unconfirmed: register.gauge_vec(
                "bus_unconfirmed",
                "step messages given to the bus and not yet confirmed",
                &["bus", "vhost"],
            ),
            service_calls: register.histogram_vec(
                "service_call_seconds",
                "time of one call of a web service",
                &["bus", "service", "outcome"],
            ),
            queue_messages_lost: register.gauge_vec(
                "queue_messages_lost",
                "with amqp.management: how many messages, at least, a queue lacks for the \
                 steps that wait on it",
                &["bus", "vhost", "queue"],
            ),
            bus_notices: register.counter_vec(
                "bus_notices_total",
                "messages that came back or were sent once more",
                &["bus", "vhost", "kind"],
            ),
            messages_unreadable: register.counter_vec(
                "messages_unreadable_total",
                "messages that could not be read, by the queue that they came on: kept, or \
                 dropped",
                &["bus", "vhost", "queue", "outcome"],
            ),
            logins_failed: register.counter_vec(
                "api_logins_failed_total",
                "calls without a token (missing) or with a wrong one (wrong)",
                &["reason"],
            ),
            requests: register.counter_vec(
                "api_requests_total",
                "HTTP requests answered, also those that are refused for their token (401)",
                &["code"],
            ),
            connections_ended: register.counter_vec(
                "connections_ended_total",
                "connections of clients that the manager has ended, over HTTP and gRPC: room \
                 (idle, for a newcomer), address (refused: its address has as many as it \
                 may), head (the head of a request, or the handshake, did not come in time)",
                &["reason"],
            ),
            certificate_not_after: register.gauge_vec(
                "certificate_not_after_seconds",
                "when the certificate of the API ends, in seconds since 1970; there with TLS \
                 alone",
                &[],
            ),
            cluster: cluster::ClusterMetrics::new(register),
            limits: limits::LimitMetrics::new(register),
            grpc_calls: register.counter_vec(
                "grpc_calls_total",
                "calls over gRPC that have ended, also refused ones: Work (a stream), \
                 Receive, Reply, Extend, Nack, other (health, reflection, unknown)",
                &["method", "code"],
            ),
            messages_sending: register.gauge(
                "messages_sending_bytes",
                "memory that step messages on their way to workers take, over HTTP and gRPC; \
                 at embedded.sending_bytes_max further ones wait in their queues",
            ),
            event_streams: register.gauge("event_streams", "streams of events that are open"),
            events_published: register.counter_vec(
                "events_published_total",
                "events that the broker has confirmed; sink is exchange",
                &["sink"],
            ),
            events_dropped: register.counter_vec(
                "events_dropped_total",
                "events that were lost on their way: exchange (the buffer was full, the \
                 broker refused them, or the process ended), streams (the process could not \
                 keep up)",
                &["sink"],
            ),
            webhook_deliveries: register.counter_vec(
                "webhook_deliveries_total",
                "calls of the webhook: delivered, failed (tried again), refused; and ends \
                 that were given up: expired",
                &["outcome"],
            ),
            webhook_waiting: register
                .gauge("webhook_waiting", "ends that the webhook has not taken yet"),
            traces_jobs_waiting: register.gauge(
                "traces_jobs_waiting",
                "ended jobs whose record is not read yet, for their traces",
            ),
            traces_jobs_dropped: register.counter_vec(
                "traces_jobs_dropped_total",
                "ended jobs of which no span is sent: full (traces.jobs_waiting_max), gone \
                 (deleted before it was read), unreadable, stopped (the process ended)",
                &["reason"],
            ),
            traces_spans_sent: register
                .counter("traces_spans_sent_total", "spans that the receiver took"),
            traces_spans_dropped: register.counter_vec(
                "traces_spans_dropped_total",
                "spans that the receiver did not get: limit (traces.job_spans_max), expired \
                 (traces.age_max), refused (it answered 4xx or 500), rejected (it took the \
                 export, but not these), stopped",
                &["reason"],
            ),
            traces_exports: register.counter_vec(
                "traces_exports_total",
                "exports to the receiver",
                &["outcome"],
            ),
            registry: register.registry.clone(),
            series: Arc::default(),
        };
        register
            .gauge_vec("build_info", "always 1", &["version"])
            .with_label_values(&[env!("CARGO_PKG_VERSION")])
            .set(1);
        // The metrics of the log are statics: they exist before the others, once per process.
        register.register("counter", log::LINES_DROPPED.clone());
        register.register("counter", log::CONNECTION_ERRORS.clone());
        #[cfg(target_os = "linux")]
        register.register_process();
        metrics
    }

    /// Returns the counts of each kind of actor.
    pub(crate) fn actor_counts(&self) -> Vec<ActorCounts> {
        let families = self.mailbox_depth.collect();
        let depths = families.iter().flat_map(|family| family.get_metric());
        // The only label of this metric is the kind of actor.
        let kinds = depths.flat_map(|depth| depth.get_label()).map(|label| label.value());
        kinds
            .map(|kind| ActorCounts {
                kind: kind.to_owned(),
                mailbox: self.mailbox_depth.with_label_values(&[kind]).get(),
                mailbox_max: self.mailbox_high_water.with_label_values(&[kind]).get(),
                handled: self.messages.with_label_values(&[kind]).get(),
                restarts: self.restarts.with_label_values(&[kind]).get(),
            })
            .collect()
    }

    /// Renders the metrics in the Prometheus text exposition format.
    pub fn render(&self) -> String {
        self.remove_unused_series();
        let mut text = Vec::new();
        // Encoding to memory fails only for malformed families, which registration rejects.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Replaces the definitions of the workflow files. Logs a warning if they have more steps than
    /// may have series of their own.
    pub(crate) fn set_definitions(&self, definitions: &Definitions, steps_max: usize) {
        if let Some(SeriesOverflow { untracked, steps }) =
            self.series.replace_definitions(definitions, steps_max)
        {
            tracing::warn!(
                steps,
                untracked,
                "metrics.steps_max is {steps_max}: steps of the largest workflows have no series \
                 of their own, and are counted together as step=\"{OTHER}\""
            );
        }
        self.limits.set_definitions(definitions, steps_max);
        self.remove_unused_series();
    }

    /// Removes the series of workflows and steps that are neither in the files nor in running jobs.
    pub(crate) fn remove_unused_series(&self) {
        let Some(used) = self.series.remove_unused() else { return };
        macro_rules! remove_unused {
            ($($family:ident),*) => {$(
                for labels in collect_labels(&self.$family) {
                    let find_label = |label: &str| {
                        labels.iter().find(|(name, _)| name == label).map(|(_, value)| &**value)
                    };
                    if find_label("workflow")
                        .is_some_and(|workflow| !used.has(workflow, find_label("step")))
                    {
                        let labels: HashMap<&str, &str> =
                            labels.iter().map(|(name, value)| (&**name, &**value)).collect();
                        // An error means that another thread has removed the series.
                        let _ = self.$family.remove(&labels);
                    }
                }
            )*};
        }
        remove_unused!(
            dispatched,
            redispatched,
            confirmed,
            replied,
            failed,
            retried,
            step_duration
        );
        remove_unused!(job_duration, calls_refused, column_errors, jobs_created, jobs_ended, jobs);
    }
}

/// The counts of one kind of actor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActorCounts {
    /// The kind of actor.
    pub kind: String,
    /// Messages that wait in its mailboxes.
    pub mailbox: i64,
    /// The most messages that ever waited in one mailbox.
    pub mailbox_max: i64,
    /// Messages that were handled.
    pub handled: u64,
    /// Restarts after a panic.
    pub restarts: u64,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}
