//! Jobs whose ids their clients choose.

use super::{book, job_count};
use crate::amqp::Vhost;
use serde_json::json;
use std::thread;
use uuid::Uuid;

#[test]
fn a_job_may_bring_its_id() {
    let vhost = Vhost::new();
    let daemon = book(&vhost);
    let api = &daemon.api;
    let (query, body, both) = (Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4());

    assert_eq!(api.post(&format!("/api/workflow/other?id={query}"), "{}").expect(201).id(), query);
    assert_eq!(
        api.post("/api/workflow/other", format!(r#"{{"id":"{body}","k":1}}"#)).expect(201).id(),
        body
    );
    assert_eq!(
        api.job(body).message_of("__start__"),
        format!(r#"{{"id":"{body}","k":1}}"#),
        "the id stays in the message"
    );
    let upper = both.to_string().to_uppercase();
    assert_eq!(
        api.post(&format!("/api/workflow/other?id={upper}"), format!(r#"{{"id":"{both}"}}"#))
            .expect(201)
            .id(),
        both,
        "case is not a difference"
    );
    assert_eq!(api.get(&format!("/api/job/{upper}")).expect(200).json()["uuid"], json!(both));

    let different = format!("/api/workflow/other?id={}", Uuid::new_v4());
    api.post(&different, format!(r#"{{"id":"{}"}}"#, Uuid::new_v4()))
        .expect_problem(400, &["id", "query", "body"]);
    api.post("/api/workflow/other?id=zzz", "{}").expect_problem(400, &["zzz"]);
    assert_eq!(
        api.get("/api/workflow/other").expect(200).ids("running").len(),
        3,
        "nothing of what was refused runs"
    );
    // What other systems call an id is data.
    for foreign in [r#""evt_1NG8Du2eZvKYlo2CUI79vXWy""#, "7", "null", r#"{"id":"x"}"#, r#""""#] {
        let message = format!(r#"{{"id":{foreign}}}"#);
        let named = Uuid::new_v4();
        let path = format!("/api/workflow/other?id={named}");
        assert_eq!(api.post(&path, message.clone()).expect(201).id(), named, "{foreign}");
        let id = api.post("/api/workflow/other", message.clone()).expect(201).id();
        for id in [named, id] {
            assert_eq!(api.job(id).message_of("__start__"), message);
        }
    }
}

#[test]
fn the_same_creation_is_answered_as_before_and_another_one_is_a_conflict() {
    let vhost = Vhost::new();
    let daemon = book(&vhost);
    let api = &daemon.api;
    let client = vhost.client();
    let id = Uuid::new_v4();
    let path = format!("/api/workflow/other?id={id}");

    let first = api.post(&path, r#"{"k":1}"#).expect(201);
    let again = api.post(&path, r#"{"k":1}"#);
    assert_eq!((again.status, again.json()), (first.status, first.json()), "{again}");
    api.post(&path, r#"{"k":2}"#).expect_problem(409, &[&id.to_string()]);
    api.post(&format!("/api/workflow/book-word-counts?id={id}"), r#"{"k":1}"#)
        .expect_problem(409, &[&id.to_string()]);

    let message = client.take("other-step");
    client.reply(&message, r#"{"done":true}"#);
    assert_eq!(api.await_result(id), r#"{"done":true}"#);
    let ended = api.post(&path, r#"{"k":1}"#);
    assert_eq!(
        (ended.status, ended.json()),
        (first.status, first.json()),
        "also when it has ended: {ended}"
    );
    api.post(&path, r#"{"k":2}"#).expect_problem(409, &[&id.to_string()]);

    // Any message dispatched by then would lie before this one's.
    let marker = api.create("other", r#"{"marker":true}"#);
    assert_eq!(client.take("other-step").job(), marker, "the repeated creation started nothing");
}

#[test]
fn creations_at_the_same_time_with_the_same_id_start_one_job() {
    let vhost = Vhost::new();
    let daemon = book(&vhost);
    let id = Uuid::new_v4();
    let path = format!("/api/workflow/other?id={id}");
    thread::scope(|scope| {
        let posts: Vec<_> =
            (0..20).map(|_| scope.spawn(|| daemon.api.post(&path, r#"{"k":1}"#))).collect();
        for post in posts {
            assert_eq!(post.join().unwrap().expect(201).id(), id);
        }
    });
    let client = vhost.client();
    assert_eq!(client.take("other-step").job(), id);
    let marker = daemon.api.create("other", "{}");
    assert_eq!(client.take("other-step").job(), marker);
    assert_eq!(job_count(&daemon.api, "other"), 2);
}
