//! Orders of a parent to its child jobs that were kept up on their way.

use crate::world::World;
use std::sync::Arc;
use workflow_manager::engine::{Definition, FanOutKeys, Graph, Input, Instruction, JobState, Message, Operation, Order, Rejected, Reply, Step};

#[test]
fn orders_of_before_a_retry_reach_no_retried_child_job() {
    let each = Step { task: Some(1), ..Step::named("each") };
    let task = Graph::new("t".to_owned(), Some(FanOutKeys::new("items", "item")), vec![Step::named("work")]);
    let definition = Arc::new(Definition::new("w", vec![Graph::new("w".to_owned(), None, vec![each]), task]));
    let mut world = World::new();
    let parent = world.create(&definition, Message::parse(br#"{"items":[1]}"#).expect("an object"));
    let first = world.dispatched.pop_front().expect("dispatched");
    let error = Reply::Error(br#"{"error":"broken"}"#.as_slice().into());
    world.take(first.job, Input::Reply { step: first.name, attempt: Some(1), reply: error }).expect("taken");
    assert_eq!(world.job(parent).state(), JobState::Failed);

    world.take(parent, Input::Operate(Operation::Retry)).expect("retried");
    let second = world.dispatched.pop_front().expect("dispatched again");
    assert_eq!((second.job, second.attempt, world.job(second.job).round()), (first.job, 2, 1));
    let late = || "late".into();
    for what in [Instruction::Halt(late()), Instruction::Cancel(late()), Instruction::Expire(late()), Instruction::Pause, Instruction::Retry] {
        let order = Order { round: 0, what: what.clone() };
        assert_eq!(world.take(second.job, Input::Order(order)), Err(Rejected::Late), "{what:?}");
        assert_eq!(world.job(second.job).state(), JobState::Running);
    }
    world.reply(&second, r#"{"item":2}"#).expect("taken");
    assert_eq!(world.job(parent).result().to_text(), r#"{"items":[2]}"#);
}
