//! Streams of events (docs/http-api.md) as server-sent events.

use super::live;
use super::named::{job_id, with_jobs};
use super::places::Placed;
use super::problem::Problem;
use super::query::{self, Query};
use super::reads;
use super::token::Caller;
use crate::actors::common::Common;
use crate::actors::door;
use crate::actors::ways::Ways;
use crate::clock;
use crate::engine::{JobId, StepIndex};
use crate::events::{Batch, Counts, Event, Feed, Subject, Wanted};
use crate::room::Taken;
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use futures_util::stream::{self, Stream};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The least time between two counts of child jobs for a stream.
const COUNTED_EVERY: Duration = Duration::from_millis(250);

/// Handles `GET /api/events[?workflow=W][&vhost=V][&kind=job|step]`: streams the events of all jobs
/// from now on.
pub(super) async fn all(
    common: web::Data<Common>,
    query: Query,
    caller: Caller,
    placed: Placed,
) -> Result<HttpResponse, Problem> {
    let [workflow, vhost, kind] = query.of(["workflow", "vhost", "kind"])?;
    let subject = match kind.as_deref() {
        None => None,
        Some("job") => Some(Subject::Job),
        Some("step") => Some(Subject::Step),
        Some(other) => {
            return Err(Problem::malformed(format!("kind is {other:?}, expected job or step")));
        }
    };
    query::refuse_alone("vhost", vhost.is_some(), "workflow", workflow.is_some())?;
    let workflow = match &workflow {
        Some(name) => Some(with_jobs(&common, name, vhost.as_deref()).await?),
        None => None,
    };
    let feed = open(&common, &placed, Wanted::All { workflow, subject })?;
    Ok(streamed(&common, caller, String::new(), Some(feed), None, None))
}

/// Handles `GET /api/job/{id}/events[?children=all|none|counts]`: streams the events of a job and
/// its child jobs until the job has ended. For a job that has already ended it sends the last event
/// at once.
pub(super) async fn of_job(
    ways: web::Data<Ways>,
    path: web::Path<String>,
    query: Query,
    caller: Caller,
    placed: Placed,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let common = &ways.common;
    let [children] = query.of(["children"])?;
    let id = job_id(&path)?;
    let wanted = match children.as_deref() {
        None | Some("all") => Wanted::Job(id),
        Some("none") => Wanted::Own(id),
        Some("counts") => Wanted::Counts(id),
        Some(other) => {
            return Err(Problem::malformed(format!(
                "children is {other:?}, expected all, none or counts"
            )));
        }
    };
    let count = (wanted == Wanted::Counts(id)).then(|| Counting::new(&ways, id));
    let feed = open(common, &placed, wanted)?;
    door::settled(&ways, id).await;
    let source = common.settings.events.source.clone();
    // What is decided from now on is in the subscription, what was decided before is in the
    // journal: no end gets lost in between.
    let end = reads::job(common, id, move |found, _| {
        Ok(found.job.state().is_ended().then(|| Event::of_state(&found.job, &source)))
    });
    let (end, _) = end.await?;
    let Some(end) = end else {
        return Ok(streamed(common, caller, String::new(), Some(feed), Some(id), count));
    };
    // Nothing more will come for a client that returns after the end: 204 stops browsers from
    // reconnecting.
    let last = request.headers().get("Last-Event-ID").and_then(|value| value.to_str().ok());
    if last == Some(&*end.id) {
        return Ok(HttpResponse::NoContent().finish());
    }
    let mut text = String::new();
    write_event(&mut text, &end);
    Ok(streamed(common, caller, text, None, None, None))
}

/// A subscription, with the permit for the connection that it occupies.
struct Reading {
    feed: Feed,
    _lasting: Option<Taken>,
}

fn open(common: &Common, placed: &Placed, wanted: Wanted) -> Result<Reading, Problem> {
    let lasting = placed.lasts()?;
    let max = common.settings.http.event_streams_max;
    let feed = common.feeds.open(wanted, max).ok_or_else(|| {
        Problem::overloaded(format!(
            "{max} streams of events are open (setting http.event_streams_max)"
        ))
    })?;
    Ok(Reading { feed, _lasting: lasting })
}

/// The state of an open stream.
struct Streaming {
    common: Arc<Common>,
    /// Who reads the stream.
    caller: Caller,
    /// Written before anything else.
    first: Option<String>,
    feed: Option<Reading>,
    /// The job with whose end the stream ends.
    until: Option<JobId>,
    count: Option<Counting>,
    heartbeat: Duration,
}

/// Counts child jobs for a stream.
struct Counting {
    ways: Arc<Ways>,
    job: JobId,
    /// The counts that were sent last.
    told: BTreeMap<StepIndex, Counts>,
    /// When to count next. `None`: nothing has changed since the last count.
    due: Option<Instant>,
    /// When the child jobs were counted last.
    last: Instant,
}

impl Counting {
    fn new(ways: &Arc<Ways>, job: JobId) -> Counting {
        let now = clock::ticks();
        // The current counts are sent first.
        Counting { ways: ways.clone(), job, told: BTreeMap::new(), due: Some(now), last: now }
    }

    /// Waits until the counts may have changed, and the time of the next count has come.
    /// Cancellation-safe.
    async fn is_due(&mut self, counted: impl Future<Output = ()>) {
        if self.due.is_none() {
            counted.await;
            self.due = Some(self.last + COUNTED_EVERY);
        }
        if let Some(due) = self.due {
            tokio::time::sleep_until(due).await;
        }
    }

    /// Counts, and returns events for the counts that have changed. Returns none if the job's actor
    /// does not answer now.
    async fn count(&mut self) -> Vec<Event> {
        (self.due, self.last) = (None, clock::ticks());
        let source = self.ways.common.settings.events.source.clone();
        let (mut told, now) = (std::mem::take(&mut self.told), clock::now());
        let before = told.clone();
        let seen = live::look(&self.ways, self.job, move |job| {
            let events = Event::of_counts(job, &source, now, &mut told);
            (told, events)
        });
        let (told, events) = seen.await.unwrap_or((before, Vec::new()));
        self.told = told;
        events
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.common.metrics.event_streams.dec();
    }
}

fn streamed(
    common: &Arc<Common>,
    caller: Caller,
    first: String,
    feed: Option<Reading>,
    until: Option<JobId>,
    count: Option<Counting>,
) -> HttpResponse {
    common.metrics.event_streams.inc();
    // The comment opens the stream for clients that wait for a first byte.
    let first = Some(format!(": events\n\n{first}"));
    let heartbeat = common.settings.http.event_heartbeat.0;
    let common = common.clone();
    let streaming = Streaming { common, caller, first, feed, until, count, heartbeat };
    HttpResponse::Ok()
        .content_type("text/event-stream")
        .insert_header(("X-Accel-Buffering", "no"))
        .streaming(pieces(streaming))
}

fn pieces(streaming: Streaming) -> impl Stream<Item = Result<Bytes, actix_web::Error>> {
    stream::unfold(streaming, |mut streaming| async move {
        if let Some(first) = streaming.first.take() {
            return Some((Ok(first.into()), streaming));
        }
        let text = streaming.next().await?;
        Some((Ok(text.into()), streaming))
    })
}

impl Streaming {
    /// Returns what is written next. `None`: the stream ends.
    async fn next(&mut self) -> Option<String> {
        loop {
            let Reading { feed, .. } = self.feed.as_mut()?;
            let (counted, count) = (feed.counted(), self.count.as_mut());
            let is_due = async {
                match count {
                    Some(count) => count.is_due(counted).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                next = tokio::time::timeout(self.heartbeat, feed.next()) => return match next {
                    Ok(Some(batch)) => Some(self.text(batch)),
                    // The process is about to stop.
                    Ok(None) => None,
                    Err(_) => Some(": still here\n\n".to_owned()),
                },
                () = is_due => {}
                () = self.caller.taken_away(&self.common) => return None,
            }
            // Not within the `select!`: counts that were taken must not be cancelled.
            let Some(count) = &mut self.count else { continue };
            let mut text = String::new();
            count.count().await.iter().for_each(|event| write_event(&mut text, event));
            // An empty chunk would end the response.
            if !text.is_empty() {
                return Some(text);
            }
        }
    }

    fn text(&mut self, batch: Batch) -> String {
        let mut text = String::new();
        if batch.missed > 0 {
            // Writing to a string cannot fail.
            let _ = write!(text, "event: lagged\ndata: {{\"missed\":{}}}\n\n", batch.missed);
        }
        for event in batch.events {
            write_event(&mut text, &event);
            if event.is_end && self.until == Some(event.job) {
                self.feed = None;
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
