//! What a retry and a rerun do with what was under way before: orders to child jobs, their
//! failures, replies. And orders that a restart makes up for.

use std::sync::Arc;
use support::world::{Dispatched, LIMITS, World};
use workflow_manager::engine::{
    Context, Definition, FanOutKeys, Graph, Input, Instruction, Job, JobId, JobState, Message,
    OnFailure, Operation, Order, Rejected, Reply, Sender, Step, Timestamp,
};
use workflow_manager::load::load_text;

fn fan_out_of_one() -> Arc<Definition> {
    let each = Step { task: Some(1), ..Step::with_name("each") };
    let task = Graph::new(
        "t".to_owned(),
        Some(FanOutKeys::new("items", "item")),
        vec![Step::with_name("work")],
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

    world.take(parent, Input::from_request(Operation::Retry)).expect("retried");
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
        let order = Order { round: 0, instruction: what.clone() };
        assert_eq!(world.take(second.job, Input::Order(order)), Err(Rejected::Late), "{what:?}");
        assert_eq!(world.job(second.job).state(), JobState::Running);
    }
    world.reply(&second, r#"{"item":2}"#).expect("taken");
    assert_eq!(world.job(parent).result().to_text(), r#"{"items":[2]}"#);
}

/// A fan-out over four items whose failure the job bears, beside a step that fails it.
fn beside_a_failure() -> Arc<Definition> {
    let each = Step { task: Some(1), on_failure: OnFailure::Continue, ..Step::with_name("each") };
    let task = Graph::new(
        "t".to_owned(),
        Some(FanOutKeys::new("items", "item")),
        vec![Step::with_name("work")],
    );
    Arc::new(Definition::new(
        "w",
        vec![Graph::new("w".to_owned(), None, vec![each, Step::with_name("other")]), task],
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
    world.take(id, Input::from_request(Operation::Retry)).expect("retried");
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
        vec![Graph::new("w".to_owned(), None, vec![Step::with_name("a")])],
    ));
    let mut world = World::new();
    let id = world.create(&definition, Message::default());
    let first = world.dispatched.pop_front().expect("dispatched");
    world
        .take(id, Input::from_request(Operation::Cancel { reason: "a test".into() }))
        .expect("cancelled");
    world
        .take(
            id,
            Input::from_request(Operation::Rerun {
                step: "a".to_owned(),
                only_failed_items: false,
            }),
        )
        .expect("rerun");
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
    world
        .take(
            id,
            Input::from_request(Operation::Rerun {
                step: "each".to_owned(),
                only_failed_items: false,
            }),
        )
        .expect("rerun");
    let second = world.dispatched.pop_front().expect("dispatched");
    assert_ne!(second.job, first.job);
}

const STOPPED: &str = r#"
workflows:
  - name: w
    steps:
      - {name: each, task: t, onFailure: continue, cancelWhen: 'steps["stop"].state == "completed"'}
      - {name: stop}
      - {name: other}
    tasks:
      - {name: t, itemListKey: items, steps: [{name: work}]}"#;

/// A job with two child jobs, its steps' messages, and the child jobs as they are before anything
/// has happened.
fn stopped() -> (World, JobId, Vec<Dispatched>, Vec<Job>) {
    let definition = load_text("test.yaml", STOPPED).expect("valid").definitions.remove(0);
    let mut world = World::new();
    let id = world.create(&definition, Message::parse(br#"{"items":[1,2]}"#).expect("an object"));
    let sent: Vec<Dispatched> = world.dispatched.drain(..).collect();
    let children = sent.iter().filter(|message| message.name == "work");
    let children = children.map(|message| world.job(message.job).clone()).collect();
    (world, id, sent, children)
}

/// A child job that has missed its orders is as it would be if it had heard them.
#[track_caller]
fn assert_made_up(what: &str, world: &World, parent: JobId, before: &Job) {
    let mut rebuilt = before.clone();
    for order in world.job(parent).missed_orders(before) {
        let context = Context { now: Timestamp(1_000), limits: &LIMITS, pauses: None, spare: None };
        rebuilt.handle_input(Input::Order(order), &context).expect("taken");
    }
    let live = world.job(before.id());
    assert!(live.state().is_ended(), "{what}: it was told to end");
    assert_eq!((rebuilt.state(), rebuilt.reason()), (live.state(), live.reason()), "{what}");
}

#[test]
fn an_order_that_a_restart_makes_up_for_is_the_one_that_was_missed() {
    let sent_to = |sent: &[Dispatched], name: &str| {
        sent.iter().find(|message| message.name == name).expect("dispatched").clone()
    };
    let completes = |name: &'static str| {
        move |world: &mut World, sent: &[Dispatched]| {
            world.reply(&sent_to(sent, name), "{}").expect("taken");
        }
    };
    let fails = |name: &'static str| {
        move |world: &mut World, sent: &[Dispatched]| {
            let message = sent_to(sent, name);
            world.take(message.job, error(&message, 1)).expect("taken");
        }
    };
    type Act<'a> = &'a dyn Fn(&mut World, &[Dispatched]);
    let (stop, work_fails) = (completes("stop"), fails("work"));
    let (other, other_fails) = (completes("other"), fails("other"));
    let cases: [(&str, &[Act<'_>]); 7] = [
        ("the job failed", &[&other_fails]),
        ("the step was cancelled", &[&stop]),
        ("the step was cancelled, and the job completed", &[&stop, &other]),
        ("the step was cancelled, and the job failed", &[&stop, &other_fails]),
        ("the step failed", &[&work_fails]),
        ("the step failed, and the job completed", &[&work_fails, &stop, &other]),
        ("the step failed, and the job failed", &[&work_fails, &other_fails]),
    ];
    for (what, acts) in cases {
        let (mut world, id, sent, children) = stopped();
        acts.iter().for_each(|act| act(&mut world, &sent));
        assert_made_up(what, &world, id, &children[1]);
    }
    let (mut world, id, _, children) = stopped();
    world
        .take(id, Input::from_request(Operation::Cancel { reason: "no more".into() }))
        .expect("taken");
    children.iter().for_each(|child| assert_made_up("the job was cancelled", &world, id, child));
}
