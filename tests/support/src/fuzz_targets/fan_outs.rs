//! Fan-out and fan-in: a random graph with nested tasks, random replies in a random order, against
//! the rules of SPEC §3 written as plainly as can be. The world compares each job with the one
//! rebuilt from its entries, at every prefix.

use super::bytes_in::Choices;
use super::plain_json::{self, Pairs};
use crate::world::World;
use std::collections::HashSet;
use std::sync::Arc;
use workflow_manager::engine::{
    Definition, Dependency, FanOutKeys, Graph, Input, JobState, Limits, Message, Rejected, Step,
    StepIndex, Tolerate,
};

/// Keys of messages; each may also be a task's list or item.
const KEYS: [&str; 4] = ["x", "xs", "y", "z\\\"ä"];

/// Values, some of them lists of lists, for nested tasks; the numbers and escapes must come back as
/// they are.
const VALUES: [&str; 12] = [
    r#"["a", 1.50 ]"#,
    "[]",
    r#"[[1e400,[2]],[],["\u0061"]]"#,
    concat!(
        r#"["00000000-0000-4000-8000-00000000000a","#,
        r#"{"id":"00000000-0000-4000-8000-00000000000a"},{"id":1}]"#,
    ),
    "null",
    "[null]",
    "0.10",
    r#""text""#,
    r#"{"id":"abcd0000-0000-4000-8000-000000000000", "k":[ ]}"#,
    r#"[{"x":[1]},{"y":"abcd0000-0000-4000-8000-000000000000"}]"#,
    "-0",
    r#"[["b","c"],["d"]]"#,
];

/// The most step messages of a run: graphs that fan out to more are left alone.
const DISPATCHED_MAX: usize = 400;

/// A plan: graphs, a message, what workers do, in which order.
pub fn run(data: &[u8]) {
    let mut choices = Choices(data);
    let definition = definition(&mut choices);
    let message: Pairs = (0..1 + choices.below(3)).map(|_| pair(&mut choices)).collect();
    let message = plain_json::merged(&[message]);
    let mut work =
        Work { styles: choices.take(8).to_vec(), extra: pair(&mut choices), left: DISPATCHED_MAX };
    let expected = outcome(&definition.graphs[0], &definition, &message, &mut work);
    if work.left == 0 {
        return;
    }

    let mut world = World::new();
    world.limits = Limits { window: 1 + u32::from(choices.byte() % 4), ..world.limits };
    let text = plain_json::text(&message);
    let id = world.create(&definition, Message::parse(text.as_bytes()).expect("a message"));
    // An item's UUID may come back as another child's once the first has ended; ids are then no
    // identities.
    let ids_come_back = text.contains("-4000-8000-") || work.extra.1.contains("-4000-8000-");
    let mut settled = HashSet::new();
    while !world.dispatched.is_empty() {
        let at = choices.below(world.dispatched.len());
        let next = world.dispatched.remove(at).expect("in range");
        let more = choices.byte();
        if more & 1 == 1 {
            let _ = world.take(
                next.job,
                Input::Confirmed { step: next.step, attempt: next.attempt, dispatch: None },
            );
        }
        let input = plain_json::pairs(&next.input.to_text()).expect("an object");
        let body = work
            .reply(&next.name, &input)
            .map_or("[no object".to_owned(), |output| spaced(&output, more & 2 == 2));
        let taken = world.reply(&next, &body);
        if expected.is_some() {
            assert_eq!(taken, Ok(()), "step {}", next.name);
        }
        if taken.is_ok() && !ids_come_back {
            assert!(settled.insert((next.job, next.step)), "step {} settled twice", next.name);
        }
        if more & 4 == 4 && !ids_come_back {
            let again = world.reply(&next, "{}");
            assert!(
                matches!(again, Err(Rejected::Duplicate | Rejected::Ended)),
                "{again:?} after {taken:?}"
            );
        }
    }
    let job = world.job(id);
    let Some(expected) = expected else {
        assert_eq!(job.state(), JobState::Failed);
        return assert!(
            world.jobs().all(|job| job.is_closed()),
            "nothing stays open once every reply came"
        );
    };
    assert_eq!(job.state(), JobState::Completed, "{:?}", job.reason());
    assert_eq!(job.result().to_text(), plain_json::text(&expected));
    assert!(world.jobs().all(|job| job.state() == JobState::Completed));
}

fn pair(choices: &mut Choices<'_>) -> (String, String) {
    (KEYS[choices.below(KEYS.len())].to_owned(), VALUES[choices.below(VALUES.len())].to_owned())
}

fn definition(choices: &mut Choices<'_>) -> Arc<Definition> {
    let tasks = choices.below(3);
    let graphs = (0..=tasks).map(|at| {
        let steps = (0..1 + choices.below(3)).map(|step| {
            // A task's steps start only tasks declared behind it: none without end.
            let task = if at < tasks && choices.below(2) == 1 {
                u16::try_from(at + 1 + choices.below(tasks - at)).ok()
            } else {
                None
            };
            let name = format!("g{at}s{step}");
            Step { depends: depends(choices, step), task, ..Step::with_name(&name) }
        });
        let steps = steps.collect();
        let window = choices.byte();
        let mut key = || Arc::from(KEYS[choices.below(KEYS.len())]);
        let keys = FanOutKeys {
            list_key: key(),
            item_key: key(),
            tolerate: Tolerate::default(),
            max_concurrency: (window & 1 == 1).then(|| u32::from(window / 64)),
        };
        Graph::new(format!("g{at}"), (at > 0).then_some(keys), steps)
    });
    Arc::new(Definition::new("g0", graphs.collect()))
}

/// Some of the earlier steps, and the start, in any order.
fn depends(choices: &mut Choices<'_>, step: usize) -> Vec<Dependency> {
    let mut depends = Vec::new();
    for _ in 0..choices.below(4) {
        let on = match choices.below(step + 1) {
            0 => Dependency::Start,
            earlier => Dependency::Step(StepIndex(u16::try_from(earlier - 1).unwrap_or_default())),
        };
        if !depends.contains(&on) {
            depends.push(on);
        }
    }
    depends
}

/// What workers reply: it follows from the step and its input, whatever the order.
struct Work {
    styles: Vec<u8>,
    extra: (String, String),
    /// Replies that the oracle may still ask for.
    left: usize,
}

impl Work {
    fn reply(&self, step: &str, input: &Pairs) -> Option<Pairs> {
        let hash = step
            .bytes()
            .chain(plain_json::text(input).into_bytes())
            .fold(7_usize, |hash, byte| hash.wrapping_mul(31) ^ usize::from(byte));
        let style = self.styles.get(hash % 8).copied().unwrap_or_default();
        let mut output = input.clone();
        match style % 8 {
            1 => output = plain_json::merged(&[vec![self.extra.clone()], output]),
            2 => output = plain_json::merged(&[output, vec![self.extra.clone()]]),
            3 => drop(output.pop()),
            4 => output.reverse(),
            5 => output.clear(),
            6 => {
                output = plain_json::merged(&[output, vec![(format!("by {step}"), "1".to_owned())]])
            }
            7 if style > 200 => return None,
            _ => {}
        }
        Some(output)
    }
}

fn spaced(pairs: &Pairs, spaced: bool) -> String {
    if !spaced {
        return plain_json::text(pairs);
    }
    let pair = |(key, value): &(String, String)| {
        format!(" {} : {value}\n", serde_json::Value::from(key.as_str()))
    };
    format!(" {{{}}} ", pairs.iter().map(pair).collect::<Vec<_>>().join("\t,"))
}

/// A job's result; none if a step fails.
fn outcome(
    graph: &Graph,
    definition: &Definition,
    message: &Pairs,
    work: &mut Work,
) -> Option<Pairs> {
    let mut outputs: Vec<Pairs> = Vec::new();
    for step in &graph.steps {
        let parts = step.depends.iter().map(|dependency| match dependency {
            Dependency::Start => message.clone(),
            Dependency::Step(on) => outputs[on.as_usize()].clone(),
        });
        let input = if step.depends.is_empty() {
            message.clone()
        } else {
            plain_json::merged(&parts.collect::<Vec<_>>())
        };
        let output = match step.task {
            Some(task) => {
                gathered(&definition.graphs[usize::from(task)], definition, &input, work)?
            }
            None => {
                work.left = work.left.saturating_sub(1);
                if work.left == 0 {
                    return None;
                }
                work.reply(&step.name, &input)?
            }
        };
        outputs.push(output);
    }
    let depended: HashSet<usize> = graph
        .steps
        .iter()
        .flat_map(|step| step.step_dependencies())
        .map(|on| on.as_usize())
        .collect();
    let last: Vec<Pairs> = (0..outputs.len())
        .filter(|at| !depended.contains(at))
        .map(|at| outputs[at].clone())
        .collect();
    Some(plain_json::merged(&last))
}

fn gathered(
    task: &Graph,
    definition: &Definition,
    input: &Pairs,
    work: &mut Work,
) -> Option<Pairs> {
    let keys = task.fan_out.as_ref().expect("a task");
    let (list_key, item_key) = (&*keys.list_key, &*keys.item_key);
    let items = match plain_json::get(input, list_key) {
        None | Some("null") => Vec::new(),
        Some(list) if list.starts_with('[') => plain_json::elements(list),
        Some(_) => return None,
    };
    if items.is_empty() {
        return Some(input.clone());
    }
    let mut results = Vec::new();
    for item in &items {
        let message = input.iter().filter_map(|(key, value)| match key.as_str() {
            key if key == list_key => Some((item_key.to_owned(), item.clone())),
            key if key == item_key => None,
            _ => Some((key.clone(), value.clone())),
        });
        results.push(outcome(task, definition, &message.collect(), work)?);
    }
    let list: Vec<&str> =
        results.iter().map(|result| plain_json::get(result, item_key).unwrap_or("null")).collect();
    let list = (list_key.to_owned(), format!("[{}]", list.join(",")));
    let mut output = Pairs::new();
    for (key, value) in results.iter().flatten() {
        let gathers = key == item_key;
        let known = |wanted: &str| output.iter().any(|(key, _)| key == wanted);
        if gathers && !known(list_key) {
            output.push(list.clone());
        } else if !gathers && key != list_key && !known(key) {
            output.push((key.clone(), value.clone()));
        }
    }
    if !output.contains(&list) {
        output.push(list);
    }
    Some(output)
}
