//! Properties over random graphs: whatever the order of replies, the duplicates and the window, a
//! job ends as a naive oracle says, each step settles once, and the rebuilt job equals the live one
//! at every prefix (the world compares).

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use support::world::{Dispatched, World};
use workflow_manager::engine::{
    Definition, Dependency, FanOutKeys, Graph, Input, Job, JobId, JobState, Limits, Message,
    Operation, Rejected, Step, StepIndex,
};

/// A random graph: each step depends on a subset of the earlier ones, in any order; some fan out.
#[derive(Clone, Debug)]
struct Plan {
    depends: Vec<Vec<u16>>,
    fan_out: Vec<bool>,
    items: Vec<u32>,
    picks: Vec<u16>,
    duplicate: Vec<bool>,
    window: u32,
}

fn plans() -> impl Strategy<Value = Plan> {
    (1usize..7).prop_flat_map(|steps| {
        let depends: Vec<_> = (0..steps)
            .map(|at| {
                prop::collection::vec(0..u16::try_from(at.max(1)).expect("small"), 0..=at.min(3))
            })
            .collect();
        (
            depends,
            prop::collection::vec(prop::bool::weighted(0.3), steps),
            prop::collection::vec(0u32..5, 3),
            prop::collection::vec(any::<u16>(), 64),
            prop::collection::vec(prop::bool::weighted(0.2), 64),
            1u32..4,
        )
            .prop_map(|(depends, fan_out, items, picks, duplicate, window)| Plan {
                depends,
                fan_out,
                items,
                picks,
                duplicate,
                window,
            })
    })
}

fn step(name: String, depends: Vec<Dependency>, task: Option<u16>) -> Step {
    Step { depends, task, ..Step::with_name(&name) }
}

fn definition(plan: &Plan) -> Arc<Definition> {
    let steps =
        plan.depends.iter().zip(&plan.fan_out).enumerate().map(|(at, (depends, fan_out))| {
            let mut unique: Vec<u16> = Vec::new();
            depends.iter().filter(|on| usize::from(**on) < at).for_each(|on| {
                if !unique.contains(on) {
                    unique.push(*on);
                }
            });
            let depends = unique.into_iter().map(|on| Dependency::Step(StepIndex(on))).collect();
            step(format!("s{at}"), depends, fan_out.then_some(1))
        });
    let own = Graph::new("w".to_owned(), None, steps.collect());
    let keys = FanOutKeys::new("items", "item");
    let child = vec![
        step("c0".to_owned(), vec![], None),
        step("c1".to_owned(), vec![Dependency::Step(StepIndex(0))], None),
    ];
    Arc::new(Definition::new("w", vec![own, Graph::new("t".to_owned(), Some(keys), child)]))
}

/// What a worker replies: its input, marked with its name, so that every merge shows.
fn work(
    name: &str,
    input: &BTreeMap<String, serde_json::Value>,
) -> BTreeMap<String, serde_json::Value> {
    let mut output = input.clone();
    output.insert(format!("by_{name}"), 1.into());
    output.insert("last".to_owned(), name.into());
    if name.starts_with('c')
        && let Some(item) = output.get_mut("item")
    {
        *item = format!("{}{name}", item.as_str().unwrap_or_default()).into();
    }
    output
}

fn merged(parts: &[BTreeMap<String, serde_json::Value>]) -> BTreeMap<String, serde_json::Value> {
    let mut all = BTreeMap::new();
    for part in parts.iter().rev() {
        all.extend(part.clone());
    }
    all
}

/// The outcome by the rules of docs/reference/workflow-data.md, written as plainly as can be and
/// without the engine.
fn oracle(
    graph: &Graph,
    definition: &Definition,
    message: &BTreeMap<String, serde_json::Value>,
) -> BTreeMap<String, serde_json::Value> {
    let mut outputs: Vec<BTreeMap<String, serde_json::Value>> = Vec::new();
    for step in &graph.steps {
        let parts: Vec<_> =
            step.step_dependencies().iter().map(|on| outputs[on.as_usize()].clone()).collect();
        let input = if step.depends.is_empty() { message.clone() } else { merged(&parts) };
        let output = match step.task {
            None => work(&step.name, &input),
            Some(task) => gather(&definition.graphs[usize::from(task)], definition, &input),
        };
        outputs.push(output);
    }
    let last: Vec<_> =
        graph.last_steps().iter().map(|step| outputs[step.as_usize()].clone()).collect();
    merged(&last)
}

fn gather(
    task: &Graph,
    definition: &Definition,
    input: &BTreeMap<String, serde_json::Value>,
) -> BTreeMap<String, serde_json::Value> {
    let items = input.get("items").and_then(|list| list.as_array()).cloned().unwrap_or_default();
    if items.is_empty() {
        return input.clone();
    }
    let results = items.iter().map(|item| {
        let mut child = input.clone();
        child.remove("items");
        child.insert("item".to_owned(), item.clone());
        oracle(task, definition, &child)
    });
    let results: Vec<BTreeMap<String, serde_json::Value>> = results.collect();
    let mut output = merged(&results);
    let list: Vec<serde_json::Value> =
        results.iter().map(|result| result.get("item").cloned().unwrap_or_default()).collect();
    output.remove("item");
    output.insert("items".to_owned(), list.into());
    output
}

fn object(message: &Message) -> BTreeMap<String, serde_json::Value> {
    serde_json::from_str(&message.to_text()).expect("an object")
}

fn settled_once(job: &Job, seen: &mut BTreeMap<(String, u16), u32>, message: &Dispatched) {
    let count = seen.entry((job.id().to_string(), message.step.0)).or_default();
    *count += 1;
    assert_eq!(*count, 1, "step {} settled twice", message.name);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_order_of_replies_ends_as_the_oracle_says(plan in plans()) {
        let definition = definition(&plan);
        let mut world = World::new();
        world.limits = Limits {
            window: plan.window,
            window_bytes: if plan.window % 2 == 0 { 60 } else { u64::MAX },
            ..world.limits
        };
        let items: Vec<String> = plan.items.iter().map(|n| format!("i{n}")).collect();
        let message = serde_json::json!({ "items": items, "top": 1 }).to_string();
        let id = world.create(&definition, Message::parse(message.as_bytes()).expect("a message"));
        let mut seen = BTreeMap::new();
        let mut turn = 0usize;
        while !world.dispatched.is_empty() {
            let at = usize::from(plan.picks[turn % plan.picks.len()]) % world.dispatched.len();
            let next = world.dispatched.remove(at).expect("in range");
            let body =
                serde_json::to_string(&work(&next.name, &object(&next.input))).expect("JSON");
            // A confirm may come before the reply, after it, or never.
            if turn.is_multiple_of(3) {
                let (step, attempt) = (next.step, next.attempt);
                let _ = world.take(next.job, Input::Confirmed { step, attempt, dispatch: None });
            }
            prop_assert!(world.reply(&next, &body).is_ok());
            settled_once(world.job(next.job), &mut seen, &next);
            if plan.duplicate[turn % plan.duplicate.len()] {
                let again = world.reply(&next, "{\"forged\":true}");
                prop_assert!(
                    matches!(again, Err(Rejected::Duplicate | Rejected::Ended)),
                    "{again:?}"
                );
            }
            turn += 1;
        }
        let job = world.job(id);
        prop_assert_eq!(job.state(), JobState::Completed);
        let start: BTreeMap<String, serde_json::Value> =
            serde_json::from_str(&message).expect("an object");
        prop_assert_eq!(object(&job.result()), oracle(definition.graph(), &definition, &start));
        for other in world.jobs() {
            prop_assert_eq!(other.state(), JobState::Completed);
        }
    }

    #[test]
    fn a_failure_stops_all_that_is_new(plan in plans(), fail_at in 0usize..8) {
        let definition = definition(&plan);
        let mut world = World::new();
        let id = world.create(
            &definition,
            Message::parse(br#"{"items":["a","b","c"]}"#).expect("a message"),
        );
        let mut turn = 0usize;
        let mut failed = false;
        while let Some(next) = world.dispatched.pop_front() {
            if failed {
                // Replies of steps still running are taken and kept, and dispatch nothing.
                let waiting = world.dispatched.len();
                let _ = world.reply(&next, &next.input.to_text());
                prop_assert_eq!(world.dispatched.len(), waiting);
                continue;
            }
            failed = turn == fail_at;
            let body = if failed { "not json".to_owned() } else { next.input.to_text() };
            prop_assert!(world.reply(&next, &body).is_ok());
            turn += 1;
        }
        let expected = if failed { JobState::Failed } else { JobState::Completed };
        prop_assert_eq!(world.job(id).state(), expected);
        prop_assert!(
            world.jobs().all(|job| job.is_closed()),
            "nothing stays open once every reply came"
        );
    }

    #[test]
    fn cancelling_reaches_all_children(plan in plans(), cancel_at in 0usize..8) {
        let definition = definition(&plan);
        let mut world = World::new();
        let id = world.create(
            &definition,
            Message::parse(br#"{"items":["a","b","c"]}"#).expect("a message"),
        );
        for _ in 0..cancel_at {
            if let Some(next) = world.dispatched.pop_front() {
                prop_assert!(world.reply(&next, &next.input.to_text()).is_ok());
            }
        }
        let was_running = world.job(id).state() == JobState::Running;
        prop_assert_eq!(
            world
                .take(id, Input::from_request(Operation::Cancel { reason: "test".into() }))
                .is_ok(),
            was_running
        );
        if was_running {
            for next in std::mem::take(&mut world.dispatched) {
                prop_assert_eq!(world.reply(&next, "{}"), Err(Rejected::Ended));
            }
            prop_assert!(
                world
                    .jobs()
                    .all(|job| matches!(job.state(), JobState::Cancelled | JobState::Completed))
            );
        }
    }
}

#[test]
fn an_id_that_items_bring_twice_is_given_once() {
    let keys = FanOutKeys { max_concurrency: Some(1), ..FanOutKeys::new("items", "item") };
    let own = Graph::new("w".to_owned(), None, vec![step("each".to_owned(), vec![], Some(1))]);
    let child = Graph::new("t".to_owned(), Some(keys), vec![step("work".to_owned(), vec![], None)]);
    let definition = Arc::new(Definition::new("w", vec![own, child]));
    let mut world = World::new();
    let brought = "6f1c1f0e-9a30-4c1f-8d3a-0b8d2a52c1aa";
    let message = format!(r#"{{"items":["{brought}",{{"id":"{brought}","n":2}},"{brought}"]}}"#);
    let id = world.create(&definition, Message::parse(message.as_bytes()).expect("a message"));
    let mut ids = Vec::new();
    while let Some(next) = world.dispatched.pop_front() {
        ids.push(next.job.to_string());
        let reply = next.input.to_text();
        assert!(world.reply(&next, &reply).is_ok());
        // The first child job has ended when the second starts: a second reply to the first belongs
        // to nobody.
        assert_eq!(world.reply(&next, &reply), Err(Rejected::Ended));
    }
    assert_eq!(ids[0], brought);
    assert!(ids.len() == 3 && ids[1] != ids[0] && ids[2] != ids[0] && ids[1] != ids[2], "{ids:?}");
    assert_eq!(world.job(id).result().to_text(), message);
}

/// Jobs whose ids items bring: another job's, that of a child job of another step, their own.
#[test]
fn a_child_job_whose_id_another_job_has_gets_another_one() {
    let step = |name: &str| Step { task: Some(1), ..Step::with_name(name) };
    let task = Graph::new(
        "t".to_owned(),
        Some(FanOutKeys::new("items", "item")),
        vec![Step::with_name("work")],
    );
    let own = Graph::new("w".to_owned(), None, vec![step("first"), step("second")]);
    let definition = Arc::new(Definition::new("w", vec![own, task]));
    let mut world = World::new();
    let taken =
        world.create(&definition, Message::parse(br#"{"items":["x"]}"#).expect("a message"));
    let shared = "3a0e4a55-9b39-4c6e-8b55-0d4f2a1c9e77";
    let message = format!(r#"{{"items":["{taken}","{shared}"]}}"#);
    let id = world.create(&definition, Message::parse(message.as_bytes()).expect("a message"));
    let ids: Vec<(StepIndex, u32, JobId)> = [0, 1]
        .into_iter()
        .flat_map(|step| [0, 1].map(|item| (StepIndex(step), item)))
        .map(|(step, item)| (step, item, world.job(id).child_id(step, item).expect("started")))
        .collect();
    let names = ["first", "second"];
    for (step, item, child) in &ids {
        let is_first_to_ask = (step.0, *item) == (0, 1);
        let wanted = if is_first_to_ask {
            shared.parse().expect("an id")
        } else {
            id.derive_child(names[step.as_usize()], *item, 0)
        };
        assert_eq!(*child, wanted, "item {item} of step {step:?}");
    }
    // The derived id may be taken, too: then it is salted.
    let (step, item) = (StepIndex(0), 0);
    let again = Input::IdConflict { step, index: item, id: id.derive_child("first", 0, 0) };
    world.take(id, again.clone()).expect("it is tried under another");
    assert_eq!(world.job(id).child_id(step, item), Some(id.derive_child("first", 0, 1)));
    assert!(world.take(id, again).is_err(), "it has another id by now");
    while let Some(next) = world.dispatched.pop_front() {
        let text = next.input.to_text();
        // The renamed child job exists twice in this world: its first start is void.
        let _ = world.reply(&next, &text);
    }
    assert_eq!(world.job(id).state(), JobState::Completed);
    assert_eq!(world.job(id).result().to_text(), message);
    assert_eq!(world.job(taken).state(), JobState::Completed);
}
