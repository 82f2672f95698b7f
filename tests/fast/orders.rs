//! What a retry and a rerun do with what was under way before: orders to child jobs, their
//! failures, replies.

use crate::world::{Dispatched, World};
use std::sync::Arc;
use workflow_manager::engine::{
    Definition, FanOutKeys, Graph, Input, Instruction, JobState, Message, OnFailure, Operation,
    Order, Rejected, Reply, Sender, Step,
};

fn fan_out_of_one() -> Arc<Definition> {
    let each = Step { task: Some(1), ..Step::named("each") };
    let task = Graph::new(
        "t".to_owned(),
        Some(FanOutKeys::new("items", "item")),
        vec![Step::named("work")],
    );
    Arc::new(Definition::new("w", vec![Graph::new("w".to_owned(), None, vec![each]), task]))
}

fn error(to: &Dispatched, attempt: u32) -> Input {
    let reply = Reply::Error(br#"{"error":"broken"}"#.as_slice().into());
    Input::Reply { step: to.name.clone(), attempt: Some(attempt), reply, from: Sender::Unknown }
}

#[test]
fn orders_of_before_a_retry_reach_no_retried_child_job() {
    let mut world = World::new();
    let parent =
        world.create(&fan_out_of_one(), Message::parse(br#"{"items":[1]}"#).expect("an object"));
    let first = world.dispatched.pop_front().expect("dispatched");
    world.take(first.job, error(&first, 1)).expect("taken");
    assert_eq!(world.job(parent).state(), JobState::Failed);

    world.take(parent, Input::operate(Operation::Retry)).expect("retried");
    let second = world.dispatched.pop_front().expect("dispatched again");
    assert_eq!((second.job, second.attempt, world.job(second.job).round()), (first.job, 2, 1));
    let late = || "late".into();
    for what in [
        Instruction::Halt(late()),
        Instruction::Cancel(late()),
        Instruction::Expire(late()),
        Instruction::Pause,
        Instruction::Retry,
    ] {
        let order = Order { round: 0, what: what.clone() };
        assert_eq!(world.take(second.job, Input::Order(order)), Err(Rejected::Late), "{what:?}");
        assert_eq!(world.job(second.job).state(), JobState::Running);
    }
    world.reply(&second, r#"{"item":2}"#).expect("taken");
    assert_eq!(world.job(parent).result().to_text(), r#"{"items":[2]}"#);
}

/// A fan-out over four items whose failure the job bears, beside a step that fails it.
fn beside_a_failure() -> Arc<Definition> {
    let each = Step { task: Some(1), on_failure: OnFailure::Continue, ..Step::named("each") };
    let task = Graph::new(
        "t".to_owned(),
        Some(FanOutKeys::new("items", "item")),
        vec![Step::named("work")],
    );
    Arc::new(Definition::new(
        "w",
        vec![Graph::new("w".to_owned(), None, vec![each, Step::named("other")]), task],
    ))
}

#[test]
fn a_step_whose_child_jobs_were_halted_goes_on_at_a_retry_though_its_failure_would_be_borne() {
    let mut world = World::new();
    let id = world
        .create(&beside_a_failure(), Message::parse(br#"{"items":[1,2,3,4]}"#).expect("an object"));
    let mut sent: Vec<Dispatched> = world.dispatched.drain(..).collect();
    let other =
        sent.remove(sent.iter().position(|message| message.name == "other").expect("dispatched"));
    world.take(other.job, error(&other, 1)).expect("taken");
    assert_eq!(world.job(id).state(), JobState::Failed);
    assert!(
        sent.iter().all(|message| world.job(message.job).state() == JobState::Failed),
        "the child jobs are halted"
    );
    world.take(id, Input::operate(Operation::Retry)).expect("retried");
    assert_eq!(world.job(id).state(), JobState::Running);
    // The messages from before the failure are still with their workers.
    for message in &sent {
        world.reply(message, &message.input.to_text()).expect("taken");
    }
    let other = world.dispatched.pop_back().expect("dispatched again");
    world.reply(&other, r#"{"done":true}"#).expect("taken");
    assert_eq!(world.job(id).result().to_text(), r#"{"items":[1,2,3,4],"done":true}"#);
}

#[test]
fn a_result_of_before_a_rerun_settles_nothing_unless_it_does_not_say_so() {
    let definition = Arc::new(Definition::new(
        "w",
        vec![Graph::new("w".to_owned(), None, vec![Step::named("a")])],
    ));
    let mut world = World::new();
    let id = world.create(&definition, Message::default());
    let first = world.dispatched.pop_front().expect("dispatched");
    world
        .take(id, Input::operate(Operation::Cancel { reason: "a test".into() }))
        .expect("cancelled");
    world.take(id, Input::operate(Operation::Rerun { step: "a".to_owned() })).expect("rerun");
    let result = |attempt| Input::Reply {
        step: "a".to_owned(),
        attempt,
        reply: Reply::Result(br#"{"old":1}"#.as_slice().into()),
        from: Sender::Unknown,
    };
    assert_eq!(world.take(id, result(Some(first.attempt))), Err(Rejected::Late));
    assert_eq!(world.job(id).state(), JobState::Running);
    world.take(id, result(Some(2))).expect("taken");
    assert_eq!(world.job(id).state(), JobState::Completed);
}

#[test]
fn child_jobs_of_a_rerun_have_new_ids_even_where_their_items_bring_some() {
    let mut world = World::new();
    let definition = fan_out_of_one();
    let id = world.create(
        &definition,
        Message::parse(br#"{"items":["6f0d1c9e-58a4-4e0e-8d0a-3f4a0f0f7b11"]}"#)
            .expect("an object"),
    );
    let first = world.dispatched.pop_front().expect("dispatched");
    assert_eq!(first.job.to_string(), "6f0d1c9e-58a4-4e0e-8d0a-3f4a0f0f7b11");
    world.reply(&first, &first.input.to_text()).expect("taken");
    world.take(id, Input::operate(Operation::Rerun { step: "each".to_owned() })).expect("rerun");
    let second = world.dispatched.pop_front().expect("dispatched");
    assert_ne!(second.job, first.job);
}
