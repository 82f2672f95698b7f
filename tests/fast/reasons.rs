//! What a failure says, and when a step began: for nested child jobs the cause comes first; a retry
//! keeps when a step began.

use std::sync::Arc;
use support::world::{Dispatched, World};
use workflow_manager::engine::{
    ChildOutcome, Definition, Dependency, Effect, Entry, FanOutKeys, Graph, Input, Job, JobId,
    JobState, Message, Operation, Origin, ParentItem, Recorded, Reply, Sender, Step, StepIndex,
    StepState, Timestamp,
};

fn error(to: &Dispatched, text: &str) -> Input {
    let body = serde_json::json!({ "error": text, "retryable": false }).to_string();
    Input::Reply {
        step: to.name.clone(),
        attempt: Some(to.attempt),
        reply: Reply::Error(body.into()),
        from: Sender::Unknown,
    }
}

/// `orders` over a list of orders, each with `lines`, of which each has the step `price`.
fn two_levels() -> Arc<Definition> {
    let graphs = vec![
        Graph::new("w".to_owned(), None, vec![Step { task: Some(1), ..Step::with_name("orders") }]),
        Graph::new(
            "order".to_owned(),
            Some(FanOutKeys::new("orders", "order")),
            vec![Step { task: Some(2), ..Step::with_name("lines") }],
        ),
        Graph::new(
            "line".to_owned(),
            Some(FanOutKeys::new("lines", "line")),
            vec![Step::with_name("price")],
        ),
    ];
    Arc::new(Definition::new("w", graphs))
}

fn failed_line(world: &mut World, text: &str) -> (JobId, JobId) {
    let job = world.create(
        &two_levels(),
        Message::parse(br#"{"orders":[1,2],"lines":[1,2,3]}"#).expect("an object"),
    );
    let is_it = |world: &World, message: &Dispatched| {
        let line = world.job(message.job).origin().parent.expect("a child job");
        line.index == 2 && world.job(line.job).origin().parent.is_some_and(|order| order.index == 1)
    };
    let message =
        world.dispatched.iter().find(|message| is_it(world, message)).cloned().expect("dispatched");
    world.take(message.job, error(&message, text)).expect("taken");
    (job, message.job)
}

#[test]
fn a_nested_failure_names_the_cause_first_and_then_the_way() {
    let mut world = World::new();
    let (job, line) = failed_line(&mut world, "no such article");
    let job = world.job(job);
    let cause = "the worker reported an error: no such article";
    let wanted = format!(
        "step \"price\" of item 2: {cause} (child job {line}, by way of item 1 of step \"orders\", \
         item 2 of step \"lines\")"
    );
    assert_eq!(job.reason().map(|reason| &**reason), Some(&*wanted));
    assert_eq!(
        job.step(StepIndex(0)).failure.as_ref().map(|failure| &*failure.reason),
        Some(&*wanted),
        "its step says the same"
    );
    let order =
        world.job(line).origin().parent.map(|parent| world.job(parent.job)).expect("a parent");
    let wanted = format!("step \"price\" of item 2: {cause} (child job {line} of step \"lines\")");
    assert_eq!(order.reason().map(|reason| &**reason), Some(&*wanted));
    assert_eq!(
        world.job(line).reason().map(|reason| &**reason),
        Some(&*format!("step \"price\": {cause}"))
    );
}

#[test]
fn a_nested_failure_is_bounded() {
    let mut world = World::new();
    let (job, line) = failed_line(&mut world, &"x".repeat(4_000));
    let reason = world.job(job).reason().expect("a reason");
    assert!(reason.chars().count() < 1_300, "{} characters", reason.chars().count());
    assert!(reason.contains(&line.to_string()), "the way is not cut off: {reason}");
    assert!(
        world.job(line).reason().expect("a reason").len() > 4_000,
        "the child job has all of it"
    );
}

#[test]
fn a_child_job_that_failed_under_the_version_before_tells_its_parent_what_it_knows() {
    let definition = two_levels();
    let (id, above) = (JobId(uuid::Uuid::from_u128(2)), JobId(uuid::Uuid::from_u128(1)));
    let parent = Some(ParentItem { job: above, step: StepIndex(0), index: 0 });
    let origin = Origin {
        id,
        definition,
        graph: 2,
        parent,
        root: above,
        depth: 1,
        created: Timestamp(1),
        trace: None,
        starts_at: None,
        slot: None,
    };
    let stored = r#"[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]},
        {"step":[0,{"failed":{"reason":"why"}}]},
        {"job":{"failed":{"reason":"step \"price\": why"}}}]"#;
    let entries: Vec<Entry> = serde_json::from_str(stored).expect("entries without a cause");
    let entries = [Recorded { first: 0, at: Timestamp(2), entries }];
    let job = Job::recover(origin, Some(Message::default()), entries);
    let told = job.open_effects();
    let [Effect::NotifyParent(_, ended)] = &told[..] else { panic!("{told:?}") };
    let ChildOutcome::Failed(cause) = &ended.outcome else { panic!("{ended:?}") };
    assert_eq!(cause.to_string(), "step \"price\": why");
}

#[test]
fn a_retry_keeps_when_a_step_began_and_a_rerun_does_not() {
    let second =
        Step { depends: vec![Dependency::Step(StepIndex(0))], ..Step::with_name("second") };
    let graph = Graph::new("w".to_owned(), None, vec![Step::with_name("first"), second]);
    let mut world = World::new();
    let id = world.create(&Arc::new(Definition::new("w", vec![graph])), Message::default());
    let times = |world: &World| {
        let run = world.job(id).step(StepIndex(0));
        (
            run.started.expect("it has started"),
            run.attempt_started.expect("so has its attempt"),
            run.ended,
        )
    };
    let (begun, same, _) = times(&world);
    assert_eq!(begun, same);
    let message = world.dispatched.pop_front().expect("dispatched");
    world.take(id, error(&message, "broken")).expect("taken");
    world.take(id, Input::from_request(Operation::Retry)).expect("retried");
    let (started, attempt, ended) = times(&world);
    assert_eq!((started, ended), (begun, None));
    assert!(attempt > begun);
    let message = world.dispatched.pop_front().expect("dispatched again");
    world.reply(&message, "{}").expect("taken");
    let message = world.dispatched.pop_front().expect("the second step");
    world.reply(&message, "{}").expect("taken");
    assert_eq!((world.job(id).state(), times(&world).0), (JobState::Completed, begun));

    world
        .take(
            id,
            Input::from_request(Operation::Rerun {
                step: "first".to_owned(),
                only_failed_items: false,
            }),
        )
        .expect("rerun");
    let (started, anew, _) = times(&world);
    assert!(started > begun && started == anew, "a rerun begins from nothing");
    let waits = world.job(id).step(StepIndex(1));
    assert_eq!((waits.state, waits.started), (StepState::Waiting, None));
}
