//! Streams events to subscribers as server-sent events (docs/reference/http-api-operations.md).

use super::active_jobs;
use super::compression::EVENT_STREAM_TYPE;
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
    ApiRoute::get("/api/events", || web::to(stream_all)).by_active().operation(|_| {
        let parameters = [WORKFLOW, VHOST_OF_WORKFLOW, EVENT_KIND];
        describe_stream("followAll", "The events of all jobs, from now on")
            .with_parameters(&parameters)
    }),
    ApiRoute::get("/api/job/{id}/events", || web::to(stream_job)).by_active().operation(|_| {
        describe_stream("followJob", "The events of a job, until it has ended")
            .with_parameters(&[EVENTS_OF_CHILDREN])
            .with_empty_response(204, "The job has ended, and the client has its last event")
    }),
];

/// Describes an operation that responds with a stream of events.
fn describe_stream(id: &str, summary: &str) -> OperationSpec {
    let meaning = "Server-sent events, each a CloudEvent";
    OperationSpec::new(id, "events", summary)
        .with_response(200, meaning, EVENT_STREAM_TYPE, text_schema())
        .with_problems(&[404])
}

/// The shortest time between two counts of the child jobs for a stream.
const COUNT_INTERVAL: Duration = Duration::from_millis(250);

/// Streams the events of all jobs, or of the jobs of one workflow.
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
    let content = StreamContent { subscription: Some(subscription), ..StreamContent::default() };
    Ok(respond_stream(&api, principal, content))
}

/// Streams the events of a job and its child jobs. For a job that has already ended, sends only its
/// last event.
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
    let counter = (filter == EventFilter::JobWithCounts(id)).then(|| ChildCounter::new(&api, id));
    let subscription = open_subscription(&api, &slot, filter)?;
    api.active()?.wait_until_committed(id).await;
    let source = api.settings.events.source.clone();
    // The journal has everything that was decided before the subscription began, and the
    // subscription has everything that is decided from now on. So the end cannot be missed.
    let read = reads::with_job(&api, id, move |stored, _| {
        Ok(stored.job.state().is_ended().then(|| Event::from_state(&stored.job, &source)))
    });
    let (last_event, _) = read.await?;
    let Some(last_event) = last_event else {
        let content = StreamContent {
            first_events: String::new(),
            subscription: Some(subscription),
            job: Some(id),
            counter,
        };
        return Ok(respond_stream(&api, principal, content));
    };
    // The client reconnects although it has the last event. 204 stops browsers from doing so again.
    let last_event_id =
        request.headers().get("Last-Event-ID").and_then(|value| value.to_str().ok());
    if last_event_id == Some(&*last_event.id) {
        return Ok(HttpResponse::NoContent().finish());
    }
    let mut first_events = String::new();
    write_event(&mut first_events, &last_event);
    let content = StreamContent { first_events, ..StreamContent::default() };
    Ok(respond_stream(&api, principal, content))
}

/// What a stream sends.
#[derive(Default)]
struct StreamContent {
    /// The events at the start of the stream, formatted.
    first_events: String,
    /// The events that follow. `None`: the stream ends after the first events.
    subscription: Option<OpenSubscription>,
    /// The stream ends with the end of this job. `None`: it does not end with a job.
    job: Option<JobId>,
    /// `None`: the stream has no counts of child jobs.
    counter: Option<ChildCounter>,
}

/// A subscription, with the permit for its long poll.
struct OpenSubscription {
    subscription: Subscription,
    _permit: Option<Permit>,
}

/// Acquires the permit for a long poll, and subscribes to events. Returns a 503 if there are too
/// many long polls or streams.
fn open_subscription(
    api: &ApiState,
    slot: &RequestSlot,
    filter: EventFilter,
) -> Result<OpenSubscription, Problem> {
    let permit = slot.acquire_long_poll()?;
    let max = api.settings.http.event_streams_max;
    let subscription = api.event_hub.subscribe(filter, max).ok_or_else(|| {
        Problem::overloaded(format!(
            "{max} streams of events are open (setting http.event_streams_max)"
        ))
    })?;
    Ok(OpenSubscription { subscription, _permit: permit })
}

/// The state of an open stream.
struct EventStream {
    api: Arc<ApiState>,
    /// The client of the stream. The stream ends when its token is revoked.
    principal: Authenticated,
    /// The first chunk, until it is sent.
    first_chunk: Option<String>,
    /// `None`: the stream ends after the chunks so far.
    subscription: Option<OpenSubscription>,
    /// See [`StreamContent::job`].
    job: Option<JobId>,
    /// See [`StreamContent::counter`].
    counter: Option<ChildCounter>,
    /// How long the stream may be silent before a comment is sent.
    heartbeat: Duration,
}

/// Counts the child jobs of a job for a stream, at most once per [`COUNT_INTERVAL`].
struct ChildCounter {
    api: Arc<ApiState>,
    job: JobId,
    /// The counts that were sent last.
    last_counts: BTreeMap<StepIndex, ItemCounts>,
    /// When to count next. `None`: nothing has changed since the last count.
    next_count_at: Option<Instant>,
    /// When the child jobs were counted last.
    last_counted_at: Instant,
}

impl ChildCounter {
    /// Makes a counter that has sent no counts yet.
    fn new(api: &Arc<ApiState>, job: JobId) -> ChildCounter {
        let now = clock::timer_now();
        // The first count is due at once, so that the stream begins with the current counts.
        ChildCounter {
            api: api.clone(),
            job,
            last_counts: BTreeMap::new(),
            next_count_at: Some(now),
            last_counted_at: now,
        }
    }

    /// Waits until the counts may have changed, as `changed` reports, and the next count is due.
    /// This is cancellation-safe.
    async fn wait_until_due(&mut self, changed: impl Future<Output = ()>) {
        if self.next_count_at.is_none() {
            changed.await;
            self.next_count_at = Some(self.last_counted_at + COUNT_INTERVAL);
        }
        if let Some(next_count_at) = self.next_count_at {
            tokio::time::sleep_until(next_count_at).await;
        }
    }

    /// Counts the child jobs. Returns an event for each count that has changed. If the job cannot
    /// be inspected in time, there is none, and the next count is due after an interval.
    async fn collect_changes(&mut self) -> Vec<Event> {
        (self.next_count_at, self.last_counted_at) = (None, clock::timer_now());
        let source = self.api.settings.events.source.clone();
        let (mut counts, now) = (self.last_counts.clone(), clock::now());
        let inspection = active_jobs::inspect_job(&self.api, self.job, move |job| {
            let events = Event::from_counts(job, &source, now, &mut counts);
            (counts, events)
        });
        match inspection.await {
            Some((counts, events)) => {
                self.last_counts = counts;
                events
            }
            None => {
                // Of a job that is not active, no count changes until it is.
                let is_active = self.api.routes.is_active(self.job);
                self.next_count_at = is_active.then(|| clock::timer_now() + COUNT_INTERVAL);
                Vec::new()
            }
        }
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.api.metrics.event_streams.dec();
    }
}

/// Responds with a stream of events.
fn respond_stream(
    api: &Arc<ApiState>,
    principal: Authenticated,
    content: StreamContent,
) -> HttpResponse {
    let StreamContent { first_events, subscription, job, counter } = content;
    api.metrics.event_streams.inc();
    // The comment opens the stream for clients that wait for a first byte.
    let first_chunk = Some(format!(": events\n\n{first_events}"));
    let heartbeat = api.settings.http.event_heartbeat.0;
    let api = api.clone();
    let event_stream =
        EventStream { api, principal, first_chunk, subscription, job, counter, heartbeat };
    HttpResponse::Ok()
        .content_type(EVENT_STREAM_TYPE)
        .insert_header(("X-Accel-Buffering", "no"))
        .streaming(into_chunks(event_stream))
}

/// Converts a stream of events to the chunks of a response.
fn into_chunks(event_stream: EventStream) -> impl Stream<Item = Result<Bytes, actix_web::Error>> {
    stream::unfold(event_stream, |mut event_stream| async move {
        let chunk = match event_stream.first_chunk.take() {
            Some(first_chunk) => first_chunk,
            None => event_stream.next_chunk().await?,
        };
        Some((Ok(chunk.into()), event_stream))
    })
}

impl EventStream {
    /// Returns the next chunk. Returns `None` at the end of the stream.
    async fn next_chunk(&mut self) -> Option<String> {
        loop {
            let OpenSubscription { subscription, .. } = self.subscription.as_mut()?;
            let (counts_changed, counter) = (subscription.counts_changed(), self.counter.as_mut());
            let count_due = async {
                match counter {
                    Some(counter) => counter.wait_until_due(counts_changed).await,
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
                () = count_due => {}
                () = self.principal.wait_revoked(&self.api) => return None,
            }
            // This is outside of the `select!`, because a count must not be cancelled.
            let Some(counter) = &mut self.counter else { continue };
            let mut text = String::new();
            counter.collect_changes().await.iter().for_each(|event| write_event(&mut text, event));
            // An empty chunk would end the response.
            if !text.is_empty() {
                return Some(text);
            }
        }
    }

    /// Formats a batch of events. Ends the subscription after the last event of the stream's job.
    fn format_batch(&mut self, batch: Batch) -> String {
        let mut text = String::new();
        if batch.missed > 0 {
            // Writing to a string cannot fail.
            let _ = write!(text, "event: lagged\ndata: {{\"missed\":{}}}\n\n", batch.missed);
        }
        for event in batch.events {
            write_event(&mut text, &event);
            if event.is_end && self.job == Some(event.job) {
                self.subscription = None;
                break;
            }
        }
        text
    }
}

/// Appends an event in the format of server-sent events.
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
