//! What people may reply in a worker's place, and what is refused because they can correct it.

use std::sync::Arc;
use support::world::World;
use workflow_manager::engine::{
    Definition, Graph, Input, JobId, JobState, Limits, Message, Millis, Operation, OperationError,
    OperationRequest, Rejected, Reply, Retry, StatusWords, Step, StepIndex, StepState,
};

fn decision() -> Arc<Definition> {
    let words = ["OPEN", "APPROVED", "DENIED"].map(Arc::from).to_vec();
    let status = StatusWords { key: Some("decision".into()), words, ..StatusWords::default() };
    let retry = Retry { attempts: 2, backoff: Millis(60_000), ..Retry::default() };
    let decide = Step { external: true, status, retry: Some(retry), ..Step::with_name("decide") };
    Arc::new(Definition::new(
        "w",
        vec![Graph::new("w".to_owned(), None, vec![decide, Step::with_name("free")])],
    ))
}

fn say(step: &str, reply: fn(bytes::Bytes) -> Reply, body: &str) -> Operation {
    Operation::Reply { step: step.to_owned(), reply: reply(body.to_owned().into()) }
}

/// The reply is refused with these words, before and in the decision, and nothing is changed.
#[track_caller]
fn refused(world: &mut World, id: JobId, operation: Operation, words: &[&str]) {
    let before = world.job(id).clone();
    let Some(OperationError::Invalid(text)) = before.check_operation(&operation, &world.limits)
    else {
        panic!("{operation:?} is no mistake")
    };
    assert!(
        text.starts_with("nothing was changed: ") && words.iter().all(|word| text.contains(word)),
        "{text}"
    );
    assert_eq!(world.take(id, Input::from_request(operation)), Err(Rejected::Void));
    assert!(*world.job(id) == before, "something was changed");
}

#[test]
fn what_a_worker_would_fail_for_is_refused_by_hand_and_changes_nothing() {
    let mut world = World::new();
    world.limits = Limits { reply_bytes_max: 100, ..world.limits };
    let id = world.create(&decision(), Message::default());
    let long = format!("{{\"decision\":\"APPROVED\",\"text\":\"{}\"}}", "x".repeat(100));
    for (body, words) in [
        (
            r#"{"decision":"APROVED"}"#,
            &["APROVED", "OPEN, APPROVED, DENIED", "step \"decide\""][..],
        ),
        (r#"{"decision":7}"#, &["a number", "expected a string"]),
        (r#"{"decision":null}"#, &["no status under \"decision\"", "OPEN, APPROVED, DENIED"]),
        ("{}", &["no status under \"decision\"", "OPEN, APPROVED, DENIED"]),
        ("", &["no status under \"decision\""]),
        ("[1]", &["not a JSON object"]),
        ("{\"decision\":", &["not a JSON object"]),
        (&long, &["the limit is 100", "limits.reply_bytes_max"]),
    ] {
        refused(&mut world, id, say("decide", Reply::Result, body), words);
    }
    for (body, words) in [
        ("[1]", &["not a JSON object"][..]),
        (r#"{"eror":"no"}"#, &["no string under \"error\""]),
        (r#"{"error":"no","retryable":"false"}"#, &["\"retryable\"", "true or false"]),
        (&long, &["the limit is 100"]),
    ] {
        refused(&mut world, id, say("decide", Reply::Error, body), words);
    }
    for (body, words) in [
        (r#"{"status":"APROVED"}"#, &["not among", "DENIED"][..]),
        (r#"{"progress":2}"#, &["from 0 to 1"]),
        (r#"{"message":1}"#, &["\"message\""]),
    ] {
        refused(&mut world, id, say("decide", Reply::Progress, body), words);
    }
    // A step without a list takes any object, and its mistakes are refused as well.
    refused(
        &mut world,
        id,
        say("free", Reply::Result, "[1]"),
        &["not a JSON object", "step \"free\""],
    );
    world.take(id, Input::from_request(say("free", Reply::Result, "{}"))).expect("taken");

    world
        .take(id, Input::from_request(say("decide", Reply::Progress, r#"{"status":"DENIED"}"#)))
        .expect("taken");
    world
        .take(id, Input::from_request(say("decide", Reply::Result, r#"{"decision":"APPROVED"}"#)))
        .expect("taken");
    let job = world.job(id);
    assert_eq!((job.state(), job.status(StepIndex(0))), (JobState::Completed, "APPROVED"));
}

#[test]
fn a_failure_by_hand_says_so_and_by_whom() {
    for (by, reason) in
        [(None, "failed by hand: no pen"), (Some("ops"), "failed by hand, by ops: no pen")]
    {
        let mut world = World::new();
        let id = world.create(&decision(), Message::default());
        for step in ["decide", "free"] {
            let body = r#"{"error":"no pen","retryable":false}"#;
            let operation = say(step, Reply::Error, body);
            let request =
                OperationRequest { operation, reason: None, principal: by.map(Arc::from) };
            world.take(id, Input::from_request(request)).expect("taken");
        }
        let job = world.job(id);
        for step in [0, 1].map(StepIndex) {
            assert_eq!(job.step(step).failure.as_ref().map(|why| &*why.reason), Some(reason));
        }
        assert_eq!(*job.reason_text(), *format!("step \"decide\": {reason}"));
    }
}

#[test]
fn a_step_that_cannot_take_anything_now_is_a_conflict_whatever_is_said_of_it() {
    let mut world = World::new();
    let id = world.create(&decision(), Message::default());
    world
        .take(id, Input::from_request(say("decide", Reply::Error, r#"{"error":"not today"}"#)))
        .expect("taken");
    assert_eq!(
        world.job(id).step(StepIndex(0)).state,
        StepState::Running,
        "the next attempt follows"
    );
    let error = say("decide", Reply::Error, "[1]");
    assert!(matches!(
        world.job(id).check_operation(&error, &world.limits),
        Some(OperationError::Conflict(_))
    ));
    refused(&mut world, id, say("decide", Reply::Result, "{}"), &["no status"]);
    world
        .take(id, Input::from_request(Operation::Cancel { reason: "a test".into() }))
        .expect("cancelled");
    assert!(matches!(
        world.job(id).check_operation(&say("free", Reply::Result, "[1]"), &world.limits),
        Some(OperationError::Conflict(_))
    ));
}
