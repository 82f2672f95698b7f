//! Streams of events (SPEC §8): server-sent events, as they happen.

use super::named::{job_id, with_jobs};
use super::problem::Problem;
use super::query::{self, Query};
use super::reads;
use crate::actors::common::Common;
use crate::actors::door;
use crate::actors::ways::Ways;
use crate::engine::JobId;
use crate::events::{Batch, Event, Feed, Subject, Wanted};
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use futures_util::stream::{self, Stream};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

/// `GET /api/events[?workflow=W][&vhost=V][&kind=job|step]`: what happens to all jobs, from now on.
pub async fn all(common: web::Data<Common>, query: Query) -> Result<HttpResponse, Problem> {
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
    let feed = open(&common, Wanted::All { workflow, subject })?;
    Ok(streamed(&common, String::new(), Some(feed), None))
}

/// `GET /api/job/{id}/events[?children=all|none]`: what happens to a job and its child jobs, until
/// it has ended. For a job that has already ended: its end, at once.
pub async fn of_job(
    ways: web::Data<Ways>,
    path: web::Path<String>,
    query: Query,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let common = &ways.common;
    let [children] = query.of(["children"])?;
    let id = job_id(&path)?;
    let wanted = match children.as_deref() {
        None | Some("all") => Wanted::Job(id),
        Some("none") => Wanted::Own(id),
        Some(other) => {
            return Err(Problem::malformed(format!("children is {other:?}, expected all or none")));
        }
    };
    let feed = open(common, wanted)?;
    door::settled(&ways, id).await;
    let source = common.settings.events.source.clone();
    // What is decided from now on is in the feed, what was decided before is in the journal: no end
    // gets lost in between.
    let end = reads::job(common, id, move |found, _| {
        Ok(found.job.state().is_ended().then(|| Event::of_state(&found.job, &source)))
    });
    let (end, _) = end.await?;
    let Some(end) = end else { return Ok(streamed(common, String::new(), Some(feed), Some(id))) };
    // Nothing more will come for a reader that returns after the end: 204 stops browsers from
    // reconnecting.
    let last = request.headers().get("Last-Event-ID").and_then(|value| value.to_str().ok());
    if last == Some(&*end.id) {
        return Ok(HttpResponse::NoContent().finish());
    }
    let mut text = String::new();
    write_event(&mut text, &end);
    Ok(streamed(common, text, None, None))
}

fn open(common: &Common, wanted: Wanted) -> Result<Feed, Problem> {
    let max = common.settings.http.event_streams_max;
    let feed = common.feeds.open(wanted, max);
    feed.ok_or_else(|| {
        Problem::overloaded(format!(
            "{max} streams of events are open (setting http.event_streams_max)"
        ))
    })
}

/// A stream under way.
struct Streaming {
    common: Arc<Common>,
    /// Written before anything else.
    first: Option<String>,
    feed: Option<Feed>,
    /// The stream ends with this job.
    until: Option<JobId>,
    heartbeat: Duration,
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.common.metrics.event_streams.dec();
    }
}

fn streamed(
    common: &Arc<Common>,
    first: String,
    feed: Option<Feed>,
    until: Option<JobId>,
) -> HttpResponse {
    common.metrics.event_streams.inc();
    // The comment opens the stream for readers that wait for a first byte.
    let first = Some(format!(": events\n\n{first}"));
    let heartbeat = common.settings.http.event_heartbeat.0;
    let streaming = Streaming { common: common.clone(), first, feed, until, heartbeat };
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
        let feed = streaming.feed.as_mut()?;
        let text = match tokio::time::timeout(streaming.heartbeat, feed.next()).await {
            Ok(Some(batch)) => streaming.text(batch),
            // The process is about to stop.
            Ok(None) => return None,
            Err(_) => ": still here\n\n".to_owned(),
        };
        Some((Ok(text.into()), streaming))
    })
}

impl Streaming {
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
