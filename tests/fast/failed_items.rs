//! A rerun of the failed items alone: what had completed is kept, and all that follows is done
//! again, as if no item had failed.

use support::world::{Dispatched, World};
use workflow_manager::engine::{
    Context, Input, JobId, JobState, Message, Operation, OperationError, Reply, Sender, StepIndex,
    Timestamp,
};
use workflow_manager::load::load_text;

const FAN: &str = r#"
workflows:
  - name: fan
    steps:
      - {name: before}
      - {name: each, task: item, depends: [before]}
      - {name: after, depends: [each]}
      - {name: beside}
    tasks:
      - {name: item, itemListKey: items, tolerate: 3, steps: [{name: work}]}"#;

const NESTED: &str = r#"
workflows:
  - name: nest
    steps:
      - {name: each, task: box}
      - {name: plain, onFailure: continue}
    tasks:
      - {name: box, itemListKey: boxes, tolerate: 1, steps: [{name: open, task: pen}]}
      - {name: pen, itemListKey: pens, steps: [{name: write}]}"#;

const EACH: StepIndex = StepIndex(1);

fn created(definition: &str, message: &str) -> (World, JobId) {
    let definition = load_text("test.yaml", definition).expect("valid").definitions.remove(0);
    let mut world = World::new();
    let message = Message::parse(message.as_bytes()).expect("an object");
    let id = world.create(&definition, message);
    (world, id)
}

/// Returns the messages that were dispatched, which must all be of this step.
#[track_caller]
fn taken(world: &mut World, step: &str) -> Vec<Dispatched> {
    let sent: Vec<Dispatched> = world.dispatched.drain(..).collect();
    assert!(sent.iter().all(|message| message.name == step), "{sent:?}");
    sent
}

fn fail(world: &mut World, message: &Dispatched) {
    let reply = Reply::Error(br#"{"error":"broken","retryable":false}"#.as_slice().into());
    let (step, attempt) = (message.name.clone(), Some(message.attempt));
    world
        .take(message.job, Input::Reply { step, attempt, reply, from: Sender::Unknown })
        .expect("taken");
}

fn rerun(step: &str) -> Operation {
    Operation::Rerun { step: step.to_owned(), only_failed_items: true }
}

fn run_failed_items(world: &mut World, id: JobId, step: &str) {
    world.take(id, Input::from_request(rerun(step))).expect("it is rerun");
}

/// Item `n` gives ten times as much, and keys of its own.
fn result(message: &Dispatched) -> String {
    let n: u32 = message.input.get("item").expect("an item").text().parse().expect("a number");
    match n {
        4 => r#"{"total":4}"#.to_owned(),
        _ => format!(r#"{{"k{n}":{n},"item":{}0,"total":{n}}}"#, n),
    }
}

/// Runs the job to its end; the workers of these items fail.
fn run(world: &mut World, failing: &[u32]) {
    let first: Vec<Dispatched> = world.dispatched.drain(..).collect();
    for message in &first {
        let reply = if message.name == "before" { r#"{"items":[1,2,3,4]}"# } else { "{}" };
        world.reply(message, reply).expect("taken");
    }
    let work = taken(world, "work");
    for (n, message) in (1..).zip(&work) {
        if failing.contains(&n) {
            fail(world, message);
        } else {
            world.reply(message, &result(message)).expect("taken");
        }
    }
    let after = taken(world, "after");
    world.reply(&after[0], &after[0].input.to_text()).expect("taken");
}

#[test]
fn failed_items_run_again_alone_and_the_result_is_as_if_none_had_failed() {
    for failing in [&[2][..], &[1, 3], &[4], &[1, 2, 4]] {
        let (mut unharmed, unharmed_id) = created(FAN, "{}");
        run(&mut unharmed, &[]);
        let (mut world, id) = created(FAN, "{}");
        run(&mut world, failing);
        let job = world.job(id);
        assert!(job.has_failed_items() && job.state() == JobState::Completed, "{failing:?}");
        let failed: Vec<JobId> =
            failing.iter().map(|n| job.child_id(EACH, n - 1).expect("a child job")).collect();

        run_failed_items(&mut world, id, "each");
        assert_eq!(world.job(id).state(), JobState::Running);
        assert!(!world.job(id).has_failed_items());
        let work = taken(&mut world, "work");
        let again: Vec<(JobId, u32)> =
            work.iter().map(|message| (message.job, message.attempt)).collect();
        let expected: Vec<(JobId, u32)> = failed.iter().map(|id| (*id, 2)).collect();
        assert_eq!(again, expected, "the same child jobs, and no others");
        let counts = world.job(id).item_counts(EACH).expect("counts");
        assert_eq!(counts.completed as usize, 4 - failing.len(), "what had completed is kept");
        for message in &work {
            world.reply(message, &result(message)).expect("taken");
        }
        let after = taken(&mut world, "after");
        world.reply(&after[0], &after[0].input.to_text()).expect("taken");
        let job = world.job(id);
        assert_eq!(job.result().to_text(), unharmed.job(unharmed_id).result().to_text());
        assert!(!job.has_failed_items() && job.state() == JobState::Completed);
        assert_eq!(job.step(StepIndex(3)).attempt, 1, "what does not depend on it is kept");
    }
}

#[test]
fn items_that_fail_again_are_tolerated_again_and_can_run_again() {
    let (mut world, id) = created(FAN, "{}");
    run(&mut world, &[1, 2, 4]);
    for left in [2, 1, 0] {
        run_failed_items(&mut world, id, "each");
        let work = taken(&mut world, "work");
        assert_eq!(work.len(), left + 1);
        world.reply(&work[0], &result(&work[0])).expect("taken");
        work[1..].iter().for_each(|message| fail(&mut world, message));
        let after = taken(&mut world, "after");
        world.reply(&after[0], &after[0].input.to_text()).expect("taken");
        let counts = world.job(id).item_counts(EACH).expect("counts");
        assert_eq!((counts.failed as usize, counts.items), (left, 4));
        assert_eq!(world.job(id).has_failed_items(), left > 0);
    }
    assert!(world.job(id).result().to_text().contains(r#""items":[10,20,30,null]"#));
}

/// A job whose items ran again can be rerun, cancelled and retried as any other.
#[test]
fn a_rerun_of_failed_items_that_is_cut_off_goes_on_with_them() {
    let (mut world, id) = created(FAN, "{}");
    run(&mut world, &[2, 3]);
    run_failed_items(&mut world, id, "each");
    assert_eq!(taken(&mut world, "work").len(), 2);
    let cancel = Operation::Cancel { reason: "a test".into() };
    world.take(id, Input::from_request(cancel)).expect("cancelled");
    let refused = check(&world, id, "each");
    assert!(refused.contains("is cancelled"), "{refused}");
    let whole = Operation::Rerun { step: "after".to_owned(), only_failed_items: false };
    world.take(id, Input::from_request(whole)).expect_err("it has not started");
    let whole = Operation::Rerun { step: "beside".to_owned(), only_failed_items: false };
    world.take(id, Input::from_request(whole)).expect("it is rerun");
    let sent: Vec<Dispatched> = world.dispatched.drain(..).collect();
    for message in &sent {
        let reply = if message.name == "work" { result(message) } else { "{}".to_owned() };
        world.reply(message, &reply).expect("taken");
    }
    assert_eq!(sent.len(), 3, "the step, and the items that were under way");
    let after = taken(&mut world, "after");
    assert!(after[0].input.to_text().contains(r#""items":[10,20,30,null]"#), "{:?}", after[0]);
}

#[test]
fn a_failed_child_job_goes_on_from_its_own_failed_items() {
    let (mut world, id) = created(NESTED, r#"{"boxes":[{"pens":1},{"pens":2}]}"#);
    // The child jobs have no list: each takes it as empty.
    let plain = taken(&mut world, "plain");
    fail(&mut world, &plain[0]);
    assert_eq!(world.job(id).state(), JobState::Completed);
    assert!(!world.job(id).has_failed_items(), "a step that failed has no items");
    let refused = check(&world, id, "plain");
    assert!(refused.contains("runs no child jobs"), "{refused}");

    let message = r#"{"boxes":[1,2],"pens":["a","b"]}"#;
    let (mut world, id) = created(NESTED, message);
    let sent: Vec<Dispatched> = world.dispatched.drain(..).collect();
    let write = || sent.iter().filter(|message| message.name == "write");
    assert_eq!(write().count(), 4);
    world
        .reply(sent.iter().find(|message| message.name == "plain").expect("sent"), "{}")
        .expect("taken");
    let (first_box, second_box): (Vec<&Dispatched>, Vec<&Dispatched>) = write()
        .partition(|message| message.input.get("box").is_some_and(|item| item.text() == "1"));
    for message in second_box {
        world.reply(message, r#"{"pen":7}"#).expect("taken");
    }
    world.reply(first_box[0], r#"{"pen":"kept"}"#).expect("taken");
    fail(&mut world, first_box[1]);
    assert_eq!(world.job(id).state(), JobState::Completed);
    run_failed_items(&mut world, id, "each");
    let again = taken(&mut world, "write");
    assert_eq!(again.iter().map(|message| message.job).collect::<Vec<_>>(), [first_box[1].job]);
    world.reply(&again[0], r#"{"pen":"again"}"#).expect("taken");
    assert_eq!(world.job(id).state(), JobState::Completed);
    let text = world.job(id).result().to_text();
    assert!(text.contains(r#""pens":["kept","again"]"#), "{text}");
    assert!(!world.job(id).has_failed_items());
}

/// Returns why running the failed items of a step again is refused.
#[track_caller]
fn check(world: &World, id: JobId, step: &str) -> String {
    match world.job(id).check_operation(&rerun(step), &world.limits) {
        Some(OperationError::Conflict(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_step_without_failed_items_is_refused_and_the_refusal_says_what_helps() {
    let (mut world, id) = created(FAN, "{}");
    assert!(check(&world, id, "each").contains("only an ended job can be rerun"));
    run(&mut world, &[]);
    let refused = check(&world, id, "each");
    assert!(refused.contains("no item of step \"each\"") && refused.contains("items=failed"));
    assert!(check(&world, id, "after").contains("runs no child jobs"));
    let rejected = world.take(id, Input::from_request(rerun("each")));
    assert!(rejected.is_err(), "{rejected:?}");
    assert!(world.dispatched.is_empty());
}

/// Four of four fail: the step fails, and with it the job. Its retry runs them again, and so does
/// this.
#[test]
fn a_step_that_failed_runs_its_items_again_too() {
    let (mut world, id) = created(FAN, "{}");
    let first: Vec<Dispatched> = world.dispatched.drain(..).collect();
    for message in &first {
        world.reply(message, r#"{"items":[1,2,3,4,5]}"#).expect("taken");
    }
    let work = taken(&mut world, "work");
    world.reply(&work[0], &result(&work[0])).expect("taken");
    work[1..].iter().for_each(|message| fail(&mut world, message));
    assert_eq!(world.job(id).state(), JobState::Failed);
    run_failed_items(&mut world, id, "each");
    assert_eq!(taken(&mut world, "work").len(), 4);
}

/// Conditions may read what came after the step.
const CONDITIONAL: &str = r#"
workflows:
  - name: fan
    steps:
      - {name: each, task: item, CONDITION}
      - {name: beside}
    tasks:
      - {name: item, itemListKey: items, tolerate: 3, steps: [{name: work}]}"#;

#[test]
fn results_that_a_condition_would_lose_are_kept_and_the_refusal_names_it() {
    for (key, condition) in [
        ("cancelWhen", "cancelWhen: steps.beside.output.stop"),
        ("when", r#"when: steps.beside.state != "completed""#),
    ] {
        let (mut world, id) =
            created(&CONDITIONAL.replace("CONDITION", condition), r#"{"items":[1,2]}"#);
        let sent: Vec<Dispatched> = world.dispatched.drain(..).collect();
        let (work, beside): (Vec<_>, Vec<_>) =
            sent.iter().partition(|message| message.name == "work");
        world.reply(work[0], &result(work[0])).expect("taken");
        fail(&mut world, work[1]);
        world.reply(beside[0], r#"{"stop":true}"#).expect("taken");
        assert!(world.job(id).has_failed_items());
        let refused = check(&world, id, "each");
        assert!(refused.contains(&format!("the `{key}` of step \"each\"")), "{refused}");
        world.take(id, Input::from_request(rerun("each"))).expect_err("it is refused");

        // A rerun of the whole step ends at once, and the job with it: its failed items are gone.
        let whole = Operation::Rerun { step: "each".to_owned(), only_failed_items: false };
        let ctx = Context { now: Timestamp(9), limits: &world.limits, pauses: None, spare: None };
        let mut job = world.job(id).clone();
        let decision = job.handle_input(Input::from_request(whole), &ctx).expect("it is rerun");
        assert_eq!(decision.state, Some(JobState::Completed), "it has ended once more");
        assert!(!decision.has_failed_items);
    }
}
