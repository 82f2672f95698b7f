//! Counts of child jobs that could not be made in time: they are made later.

use crate::alone::alone;
use actix_web::body::MessageBody;
use actix_web::dev::Service;
use actix_web::test::{TestRequest, init_service};
use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;
use support::api::Api;
use support::manager::{TestManager, message};
use support::waits::{until_async, within};
use tokio::sync::oneshot;
use workflow_manager::actors::completion_latch::CompletionLatch;
use workflow_manager::actors::inputs::{Inspection, JobInput};
use workflow_manager::api;
use workflow_manager::engine::{Job, JobState};

const WORKFLOWS: &str = "
workflows:
  - name: fan
    steps: [ { name: each, task: piece } ]
    tasks: [ { name: piece, itemListKey: items, steps: [ { name: work } ] } ]";

/// Reads a stream up to these words.
async fn read_to(body: &mut Pin<Box<impl MessageBody>>, words: &str) {
    let mut text = String::new();
    while !text.contains(words) {
        let chunk = poll_fn(|context| body.as_mut().poll_next(context)).await;
        let Some(Ok(chunk)) = chunk else { panic!("the stream has ended: {text}") };
        text.push_str(std::str::from_utf8(&chunk).expect("text"));
    }
}

async fn a_count_waits_for_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let manager = TestManager::with(WORKFLOWS).journal(&folder.path().join("j.db")).await;
    let client = Api::new(&manager).await;
    let id = manager.handle().create("fan", None, message(r#"{"items":["one"]}"#)).await;
    let id = id.expect("created").id();
    let children = format!("/api/job/{id}/children");
    client.until(&children, |page| page["children"].as_array().is_some_and(|c| c.len() == 1)).await;

    // The stream makes its first count when it is first read.
    let service = init_service(api::app(client.state().clone())).await;
    let request = TestRequest::with_uri(&format!("/api/job/{id}/events?children=counts"))
        .insert_header(("host", "127.0.0.1:8088"));
    let response = service.call(request.to_request()).await.expect("an answer");
    let mut body = Box::pin(response.into_body());

    // What nobody can commit now: a count waits for it in vain.
    fail::cfg("journal::write", "return(full)").expect("a failpoint");
    let pauses = actix_rt::spawn({
        let client = client.clone();
        async move { client.post(&format!("/api/job/{id}/pause"), "").await }
    });
    until_async("the job is paused", async || {
        let (sender, seen) = oneshot::channel();
        let see = move |job: &Job| {
            let _ = sender.send(job.state());
        };
        let look = Inspection::new(see, CompletionLatch::new(oneshot::channel().0));
        manager.core().routes.find(id).expect("it is under way").send(JobInput::Inspect(look));
        seen.await == Ok(JobState::Paused)
    })
    .await;
    // Longer than a count waits for a commit.
    let early =
        tokio::time::timeout(Duration::from_millis(1_500), read_to(&mut body, "step.counted"));
    assert!(early.await.is_err(), "nothing of it is committed");

    // No child job changes any more, and the count comes all the same.
    fail::remove("journal::write");
    within("the count comes", read_to(&mut body, "step.counted")).await;
    drop(body);
    pauses.await.expect("an answer");
    manager.stop().await;
}

#[test]
fn a_count_that_was_not_made_in_time_is_made_later() {
    alone("late_counts::a_count_that_was_not_made_in_time_is_made_later", a_count_waits_for_room());
}
