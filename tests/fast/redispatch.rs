//! Redispatch: the message of a running step goes out once more, as the same attempt, and nothing
//! else changes.

use std::sync::Arc;
use support::world::{Dispatched, World};
use workflow_manager::engine::{
    Definition, Effect, FanOutKeys, Graph, Input, JobId, JobState, Message, Millis, Operation,
    OperationError, Rejected, Reply, Retry, Sender, Step, StepIndex,
};

fn again(step: &str) -> Operation {
    Operation::Redispatch { step: step.to_owned() }
}

fn one_step() -> Arc<Definition> {
    Arc::new(Definition::new(
        "w",
        vec![Graph::new("w".to_owned(), None, vec![Step::with_name("a")])],
    ))
}

fn confirm(world: &mut World, message: &Dispatched) {
    world
        .take(
            message.job,
            Input::Confirmed { step: message.step, attempt: message.attempt, dispatch: None },
        )
        .expect("confirmed");
}

#[track_caller]
fn refused(world: &mut World, id: JobId, step: &str, words: &[&str]) {
    let operation = again(step);
    let before = world.job(id).clone();
    match before.check_operation(&operation, &world.limits) {
        Some(OperationError::Conflict(text) | OperationError::UnknownStep(text)) => {
            assert!(words.iter().all(|word| text.contains(word)), "{text}")
        }
        other => panic!("{step}: {other:?}"),
    }
    assert!(matches!(
        world.take(id, Input::from_request(operation)),
        Err(Rejected::Void | Rejected::UnknownStep)
    ));
    assert!(*world.job(id) == before && world.dispatched.is_empty());
}

#[test]
fn the_late_confirm_of_an_earlier_copy_says_nothing_of_the_later_one() {
    let mut world = World::new();
    let id = world.create(&one_step(), Message::parse(b"{}").expect("an object"));
    let confirm = |world: &mut World, dispatch| {
        let confirmed = Input::Confirmed { step: StepIndex(0), attempt: 1, dispatch };
        world.take(id, confirmed).map(|_| ())
    };
    let first = Some(world.job(id).step(StepIndex(0)).dispatch);
    confirm(&mut world, first).expect("confirmed");
    world.take(id, Input::from_request(again("a"))).expect("sent again");
    let second = Some(world.job(id).step(StepIndex(0)).dispatch);
    assert_ne!(first, second);
    // The first copy went out over two connections: its second confirm comes late.
    assert!(matches!(confirm(&mut world, first), Err(Rejected::Void)));
    assert!(!world.job(id).open_effects().is_empty(), "a crash would lose the second copy");
    confirm(&mut world, second).expect("confirmed");
    assert!(world.job(id).open_effects().is_empty());
}

#[test]
fn the_message_goes_out_once_more_as_the_same_attempt_and_survives_a_crash() {
    let mut world = World::new();
    let id = world.create(&one_step(), Message::parse(br#"{"k":1.0}"#).expect("an object"));
    let first = world.dispatched.pop_front().expect("dispatched");
    refused(&mut world, id, "a", &["no broker has confirmed it", "by itself"]);
    confirm(&mut world, &first);
    assert!(world.job(id).open_effects().is_empty(), "it lies in the broker");

    world.take(id, Input::from_request(again("a"))).expect("sent again");
    let second = world.dispatched.pop_front().expect("dispatched again");
    assert_eq!(
        (second.attempt, second.input.to_text()),
        (first.attempt, r#"{"k":1.0}"#.to_owned())
    );
    let open = world.job(id).open_effects();
    assert!(
        matches!(open.as_slice(), [Effect::Dispatch { attempt: 1, .. }]),
        "until it is confirmed a crash would lose it: {open:?}"
    );
    refused(&mut world, id, "a", &["no broker has confirmed it"]);
    confirm(&mut world, &second);
    assert!(world.job(id).open_effects().is_empty());
    assert_ne!(world.job(id).confirmed_steps().count(), 0);

    // Both copies may be answered; the first answer counts.
    world.reply(&second, r#"{"by":2}"#).expect("taken");
    assert!(world.reply(&first, r#"{"by":1}"#).is_err());
    assert_eq!(
        (world.job(id).state(), world.job(id).result().to_text()),
        (JobState::Completed, r#"{"by":2}"#.to_owned())
    );
    refused(&mut world, id, "a", &["is completed", "take no replies"]);
}

#[test]
fn what_has_no_message_under_way_is_refused_with_the_reason() {
    let retry = Retry { attempts: 2, backoff: Millis(60_000), ..Retry::default() };
    let steps = vec![
        Step { retry: Some(retry), ..Step::with_name("fails") },
        Step { external: true, ..Step::with_name("sign") },
        Step { task: Some(1), ..Step::with_name("each") },
        Step {
            depends: vec![workflow_manager::engine::Dependency::Step(StepIndex(1))],
            ..Step::with_name("later")
        },
    ];
    let task = Graph::new(
        "t".to_owned(),
        Some(FanOutKeys::new("items", "item")),
        vec![Step::with_name("work")],
    );
    let definition =
        Arc::new(Definition::new("w", vec![Graph::new("w".to_owned(), None, steps), task]));
    let mut world = World::new();
    let id = world.create(&definition, Message::parse(br#"{"items":[1]}"#).expect("an object"));
    let sent: Vec<Dispatched> = world.dispatched.drain(..).collect();
    for message in &sent {
        confirm(&mut world, message);
    }
    let error = Input::Reply {
        step: "fails".to_owned(),
        attempt: Some(1),
        reply: Reply::Error(br#"{"error":"x"}"#.as_slice().into()),
        from: Sender::Unknown,
    };
    world.take(id, error).expect("taken");
    refused(&mut world, id, "fails", &["no attempt", "by itself"]);
    refused(&mut world, id, "sign", &["is external", "no message"]);
    refused(&mut world, id, "each", &["runs child jobs", "by their queue"]);
    refused(&mut world, id, "later", &["is waiting", "only a running step"]);
    refused(&mut world, id, "nope", &["no step \"nope\"", "fails, sign, each, later"]);
    // A child job's step by the child's id.
    let child = sent.iter().find(|message| message.name == "work").expect("dispatched").job;
    world.take(child, Input::from_request(again("work"))).expect("sent again");
    assert_eq!(
        world.dispatched.pop_front().map(|message| (message.job, message.attempt)),
        Some((child, 1))
    );
    world.take(id, Input::from_request(Operation::Pause)).expect("paused");
    world
        .take(id, Input::from_request(Operation::Cancel { reason: "a test".into() }))
        .expect("cancelled");
    refused(&mut world, child, "work", &["is cancelled", "take no replies"]);
}
