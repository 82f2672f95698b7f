//! Streams of events (docs/http-api.md) as server-sent events.

use super::active_jobs;
use super::connection_slots::RequestSlot;
use super::problem::Problem;
use super::query::{self, Query};
use super::reads;
use super::resolve::{parse_job_id, resolve_workflow};
use super::route::*;
use super::token::Authenticated;
use crate::api::state::ApiState;
use crate::events::{Batch, Event, EventFilter, Subject, Subscription};
use actix_web::{HttpRequest, HttpResponse, web};
use base::budget::Permit;
use base::clock;
use bytes::Bytes;
use engine::{ItemCounts, JobId, StepIndex};
use futures_util::stream::{self, Stream};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

pub(super) const ROUTES: &[ApiRoute] = &[
    ApiRoute::get("/api/events", || web::to(stream_all)).operation(|_| {
        let parameters = [WORKFLOW, VHOST_OF_WORKFLOW, EVENT_KIND];
        describe_stream("followAll", "What happens to all jobs, from now on")
            .with_parameters(&parameters)
    }),
    ApiRoute::get("/api/job/{id}/events", || web::to(stream_job)).operation(|_| {
        describe_stream("followJob", "What happens to a job, until it has ended")
            .with_parameters(&[EVENTS_OF_CHILDREN])
            .with_empty_response(204, "It has ended, and the client has its last event")
    }),
];

fn describe_stream(id: &str, summary: &str) -> OperationSpec {
    let meaning = "Server-sent events, each a CloudEvent";
    OperationSpec::new(id, "events", summary)
        .with_response(200, meaning, "text/event-stream", text_schema())
        .with_problems(&[404])
}

/// The least time between two counts of child jobs for a stream.
const COUNT_INTERVAL: Duration = Duration::from_millis(250);

async fn stream_all(
    api: web::Data<ApiState>,
    query: Query,
    principal: Authenticated,
    slot: RequestSlot,
) -> Result<HttpResponse, Problem> {
    let [workflow, vhost, kind] = query.extract(["workflow", "vhost", "kind"])?;
    let subject = match kind.as_deref() {
        None => None,
        Some("job") => Some(Subject::Job),
        Some("step") => Some(Subject::Step),
        Some(other) => {
            return Err(Problem::malformed(format!("kind is {other:?}, expected job or step")));
        }
    };
    query::check_requires("vhost", vhost.is_some(), "workflow", workflow.is_some())?;
    let workflow = match &workflow {
        Some(name) => Some(resolve_workflow(&api, name, vhost.as_deref()).await?),
        None => None,
    };
    let subscription = open_subscription(&api, &slot, EventFilter::All { workflow, subject })?;
    Ok(respond_stream(&api, principal, String::new(), Some(subscription), None, None))
}

/// Streams the events of a job and its child jobs. For a job that has already ended it sends the
/// last event at once.
async fn stream_job(
    api: web::Data<ApiState>,
    path: web::Path<String>,
    query: Query,
    principal: Authenticated,
    slot: RequestSlot,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let [children] = query.extract(["children"])?;
    let id = parse_job_id(&path)?;
    let filter = match children.as_deref() {
        None | Some("all") => EventFilter::JobTree(id),
        Some("none") => EventFilter::JobOnly(id),
        Some("counts") => EventFilter::JobWithCounts(id),
        Some(other) => {
            return Err(Problem::malformed(format!(
                "children is {other:?}, expected all, none or counts"
            )));
        }
    };
    let count = (filter == EventFilter::JobWithCounts(id)).then(|| ChildCounter::new(&api, id));
    let subscription = open_subscription(&api, &slot, filter)?;
    api.manager.wait_until_committed(id).await;
    let source = api.settings.events.source.clone();
    // What is decided from now on is in the subscription, what was decided before is in the
    // journal: no end gets lost in between.
    let end = reads::with_job(&api, id, move |stored, _| {
        Ok(stored.job.state().is_ended().then(|| Event::from_state(&stored.job, &source)))
    });
    let (end, _) = end.await?;
    let Some(end) = end else {
        return Ok(respond_stream(
            &api,
            principal,
            String::new(),
            Some(subscription),
            Some(id),
            count,
        ));
    };
    // Nothing more will come for a client that returns after the end: 204 stops browsers from
    // reconnecting.
    let last = request.headers().get("Last-Event-ID").and_then(|value| value.to_str().ok());
    if last == Some(&*end.id) {
        return Ok(HttpResponse::NoContent().finish());
    }
    let mut text = String::new();
    write_event(&mut text, &end);
    Ok(respond_stream(&api, principal, text, None, None, None))
}

/// A subscription, with the permit for the connection that it occupies.
struct OpenSubscription {
    subscription: Subscription,
    _permit: Option<Permit>,
}

fn open_subscription(
    api: &ApiState,
    slot: &RequestSlot,
    filter: EventFilter,
) -> Result<OpenSubscription, Problem> {
    let permit = slot.acquire_long_poll()?;
    let max = api.settings.http.event_streams_max;
    let subscription = api.feeds.subscribe(filter, max).ok_or_else(|| {
        Problem::overloaded(format!(
            "{max} streams of events are open (setting http.event_streams_max)"
        ))
    })?;
    Ok(OpenSubscription { subscription, _permit: permit })
}

/// The state of an open stream.
struct EventStream {
    api: Arc<ApiState>,
    /// Who reads the stream.
    principal: Authenticated,
    /// Written before anything else.
    first: Option<String>,
    subscription: Option<OpenSubscription>,
    /// The job with whose end the stream ends.
    last_job: Option<JobId>,
    counter: Option<ChildCounter>,
    heartbeat: Duration,
}

/// Counts child jobs for a stream.
struct ChildCounter {
    api: Arc<ApiState>,
    job: JobId,
    /// The counts that were sent last.
    last_counts: BTreeMap<StepIndex, ItemCounts>,
    /// When to count next. `None`: nothing has changed since the last count.
    next_due: Option<Instant>,
    /// When the child jobs were counted last.
    last_counted: Instant,
}

impl ChildCounter {
    fn new(api: &Arc<ApiState>, job: JobId) -> ChildCounter {
        let now = clock::timer_now();
        // The current counts are sent first.
        ChildCounter {
            api: api.clone(),
            job,
            last_counts: BTreeMap::new(),
            next_due: Some(now),
            last_counted: now,
        }
    }

    /// Waits until the counts may have changed, and the time of the next count has come.
    /// Cancellation-safe.
    async fn wait_due(&mut self, changed: impl Future<Output = ()>) {
        if self.next_due.is_none() {
            changed.await;
            self.next_due = Some(self.last_counted + COUNT_INTERVAL);
        }
        if let Some(due) = self.next_due {
            tokio::time::sleep_until(due).await;
        }
    }

    /// Counts, and returns events for the counts that have changed. Returns none if the job's actor
    /// does not answer now.
    async fn collect_changes(&mut self) -> Vec<Event> {
        (self.next_due, self.last_counted) = (None, clock::timer_now());
        let source = self.api.settings.events.source.clone();
        let (mut counts, now) = (std::mem::take(&mut self.last_counts), clock::now());
        let before = counts.clone();
        let found = active_jobs::inspect_job(&self.api, self.job, move |job| {
            let events = Event::from_counts(job, &source, now, &mut counts);
            (counts, events)
        });
        let (counts, events) = found.await.unwrap_or((before, Vec::new()));
        self.last_counts = counts;
        events
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.api.metrics.event_streams.dec();
    }
}

fn respond_stream(
    api: &Arc<ApiState>,
    principal: Authenticated,
    first: String,
    subscription: Option<OpenSubscription>,
    last_job: Option<JobId>,
    counter: Option<ChildCounter>,
) -> HttpResponse {
    api.metrics.event_streams.inc();
    // The comment opens the stream for clients that wait for a first byte.
    let first = Some(format!(": events\n\n{first}"));
    let heartbeat = api.settings.http.event_heartbeat.0;
    let api = api.clone();
    let streaming =
        EventStream { api, principal, first, subscription, last_job, counter, heartbeat };
    HttpResponse::Ok()
        .content_type("text/event-stream")
        .insert_header(("X-Accel-Buffering", "no"))
        .streaming(to_chunks(streaming))
}

fn to_chunks(streaming: EventStream) -> impl Stream<Item = Result<Bytes, actix_web::Error>> {
    stream::unfold(streaming, |mut streaming| async move {
        if let Some(first) = streaming.first.take() {
            return Some((Ok(first.into()), streaming));
        }
        let text = streaming.next_chunk().await?;
        Some((Ok(text.into()), streaming))
    })
}

impl EventStream {
    /// Returns what is written next. `None`: the stream ends.
    async fn next_chunk(&mut self) -> Option<String> {
        loop {
            let OpenSubscription { subscription, .. } = self.subscription.as_mut()?;
            let (counted, count) = (subscription.counts_changed(), self.counter.as_mut());
            let is_due = async {
                match count {
                    Some(count) => count.wait_due(counted).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                next = tokio::time::timeout(self.heartbeat, subscription.next()) =>
                    return match next {
                    Ok(Some(batch)) => Some(self.format_batch(batch)),
                    // The process is about to stop.
                    Ok(None) => None,
                    Err(_) => Some(": still here\n\n".to_owned()),
                },
                () = is_due => {}
                () = self.principal.wait_revoked(&self.api) => return None,
            }
            // Not within the `select!`: counts that were taken must not be cancelled.
            let Some(count) = &mut self.counter else { continue };
            let mut text = String::new();
            count.collect_changes().await.iter().for_each(|event| write_event(&mut text, event));
            // An empty chunk would end the response.
            if !text.is_empty() {
                return Some(text);
            }
        }
    }

    fn format_batch(&mut self, batch: Batch) -> String {
        let mut text = String::new();
        if batch.missed > 0 {
            // Writing to a string cannot fail.
            let _ = write!(text, "event: lagged\ndata: {{\"missed\":{}}}\n\n", batch.missed);
        }
        for event in batch.events {
            write_event(&mut text, &event);
            if event.is_end && self.last_job == Some(event.job) {
                self.subscription = None;
                break;
            }
        }
        text
    }
}

fn write_event(text: &mut String, event: &Event) {
    // JSON has no raw line breaks. Writing to a string cannot fail.
    let _ = write!(
        text,
        "id: {}\nevent: {}\ndata: {}\n\n",
        event.id,
        event.name(),
        String::from_utf8_lossy(&event.body)
    );
}
