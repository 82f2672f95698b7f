//! Fuzzes fan-outs: runs a random workflow with nested tasks, with random replies in a random
//! order, and compares the result with that of a naive implementation of the rules in
//! docs/reference/workflow-data.md ("How JSON flows"). The world compares each job with one that is
//! rebuilt from its entries, after each decision.

use super::bytes_in::Choices;
use super::plain_json::{self, Pairs};
use crate::world::{Dispatched, World};
use std::collections::HashSet;
use std::sync::Arc;
use workflow_manager::engine::{
    Definition, Dependency, FanOutKeys, Graph, Input, JobState, Limits, Message, Rejected, Step,
    StepIndex, Tolerate,
};

/// The keys of messages. Each may also be the list key or the item key of a task.
const KEYS: [&str; 4] = ["x", "xs", "y", "z\\\"ä"];

/// The values of messages, as raw texts. Some are lists of lists, for nested tasks. Numbers,
/// escapes and whitespace must be returned unchanged.
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

/// The maximum number of step messages of a run. Workflows with more are not run.
const DISPATCHED_MAX: usize = 400;

/// How many styles of replies are chosen for a run.
const STYLE_COUNT: usize = 8;

/// Chooses a workflow, a message and the replies, and runs the job in a chosen order.
pub fn run(data: &[u8]) {
    let mut choices = Choices { bytes: data };
    let definition = definition(&mut choices);
    let pairs: Pairs = (0..1 + choices.below(3)).map(|_| pair(&mut choices)).collect();
    let message = plain_json::merged(&[pairs]);
    let mut workers = Workers {
        styles: choices.take(STYLE_COUNT).to_vec(),
        extra: pair(&mut choices),
        messages_left: DISPATCHED_MAX,
    };
    let expected = expected_result(&definition.graphs[0], &definition, &message, &mut workers);
    if workers.messages_left == 0 {
        return;
    }

    let mut world = World::new();
    world.limits = Limits { window: 1 + u32::from(choices.byte() % 4), ..world.limits };
    let text = plain_json::text(&message);
    let id = world.create(&definition, Message::parse(text.as_bytes()).expect("a message"));
    // A UUID in an item becomes the id of its child job. Once that has ended, another child job may
    // get the same id, so an id may refer to several jobs.
    let can_reuse_ids = text.contains("-4000-8000-") || workers.extra.1.contains("-4000-8000-");
    let mut settled_steps = HashSet::new();
    while !world.dispatched.is_empty() {
        let index = choices.below(world.dispatched.len());
        let dispatched = world.dispatched.remove(index).expect("in range");
        let flags = choices.byte();
        let (is_confirmed, has_whitespace, is_repeated) =
            (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
        if is_confirmed {
            let Dispatched { job, step, attempt, .. } = dispatched;
            // A confirm may be rejected, for example because the job has failed.
            let _ = world.take(job, Input::Confirmed { step, attempt, dispatch: None });
        }
        let input = plain_json::pairs(&dispatched.input.to_text()).expect("an object");
        let body = workers
            .reply(&dispatched.name, &input)
            .map_or("[no object".to_owned(), |output| render(&output, has_whitespace));
        let result = world.reply(&dispatched, &body);
        if expected.is_some() {
            assert_eq!(result, Ok(()), "step {}", dispatched.name);
        }
        if result.is_ok() && !can_reuse_ids {
            let is_first = settled_steps.insert((dispatched.job, dispatched.step));
            assert!(is_first, "step {} settled twice", dispatched.name);
        }
        if is_repeated && !can_reuse_ids {
            let repeated = world.reply(&dispatched, "{}");
            assert!(
                matches!(repeated, Err(Rejected::Duplicate | Rejected::Ended)),
                "{repeated:?} after {result:?}"
            );
        }
    }
    let job = world.job(id);
    let Some(expected) = expected else {
        assert_eq!(job.state(), JobState::Failed);
        return assert!(
            world.jobs().all(|job| job.is_closed()),
            "no job is open after all replies"
        );
    };
    assert_eq!(job.state(), JobState::Completed, "{:?}", job.reason());
    assert_eq!(job.result().to_text(), plain_json::text(&expected));
    assert!(world.jobs().all(|job| job.state() == JobState::Completed));
}

/// Chooses a member of a message.
fn pair(choices: &mut Choices<'_>) -> (String, String) {
    (KEYS[choices.below(KEYS.len())].to_owned(), VALUES[choices.below(VALUES.len())].to_owned())
}

/// Chooses a workflow with up to two tasks, each graph with up to three steps.
fn definition(choices: &mut Choices<'_>) -> Arc<Definition> {
    let task_count = choices.below(3);
    let graphs = (0..=task_count).map(|graph| {
        let steps = (0..1 + choices.below(3)).map(|step| {
            // The steps of a graph start only later tasks, so the nesting ends.
            let task = if graph < task_count && choices.below(2) == 1 {
                u16::try_from(graph + 1 + choices.below(task_count - graph)).ok()
            } else {
                None
            };
            let name = format!("g{graph}s{step}");
            Step { depends: dependencies(choices, step), task, ..Step::with_name(&name) }
        });
        let steps = steps.collect();
        let window_choice = choices.byte();
        let mut key = || Arc::from(KEYS[choices.below(KEYS.len())]);
        let keys = FanOutKeys {
            list_key: key(),
            item_key: key(),
            tolerate: Tolerate::default(),
            max_concurrency: (window_choice & 1 == 1).then(|| u32::from(window_choice / 64)),
        };
        // The first graph is the workflow itself.
        Graph::new(format!("g{graph}"), (graph > 0).then_some(keys), steps)
    });
    Arc::new(Definition::new("g0", graphs.collect()))
}

/// Chooses up to three dependencies of a step: earlier steps and the start, in any order.
fn dependencies(choices: &mut Choices<'_>, step: usize) -> Vec<Dependency> {
    let mut dependencies = Vec::new();
    for _ in 0..choices.below(4) {
        let dependency = match choices.below(step + 1) {
            0 => Dependency::Start,
            number => Dependency::Step(StepIndex(u16::try_from(number - 1).unwrap_or_default())),
        };
        if !dependencies.contains(&dependency) {
            dependencies.push(dependency);
        }
    }
    dependencies
}

/// The simulated workers. Their replies depend only on the step and its input, so the order of the
/// messages makes no difference.
struct Workers {
    /// How replies differ from their inputs. The hash of a message chooses one.
    styles: Vec<u8>,
    /// A member that some styles add.
    extra: (String, String),
    /// How many step messages the expected run may still have. 0 if it has too many.
    messages_left: usize,
}

impl Workers {
    /// Returns the output for an input. `None` stands for a reply that fails the attempt.
    fn reply(&self, step: &str, input: &Pairs) -> Option<Pairs> {
        let hash = step
            .bytes()
            .chain(plain_json::text(input).into_bytes())
            .fold(7_usize, |hash, byte| hash.wrapping_mul(31) ^ usize::from(byte));
        let style = self.styles.get(hash % STYLE_COUNT).copied().unwrap_or_default();
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

/// Renders an object, with whitespace in all places if it is wanted.
fn render(pairs: &Pairs, has_whitespace: bool) -> String {
    if !has_whitespace {
        return plain_json::text(pairs);
    }
    let pair = |(key, value): &(String, String)| {
        format!(" {} : {value}\n", serde_json::Value::from(key.as_str()))
    };
    format!(" {{{}}} ", pairs.iter().map(pair).collect::<Vec<_>>().join("\t,"))
}

/// Returns the expected result of a job. `None` if a step fails, or if there are too many messages.
fn expected_result(
    graph: &Graph,
    definition: &Definition,
    message: &Pairs,
    workers: &mut Workers,
) -> Option<Pairs> {
    let mut outputs: Vec<Pairs> = Vec::new();
    for step in &graph.steps {
        let dependency_outputs = step.depends.iter().map(|dependency| match dependency {
            Dependency::Start => message.clone(),
            Dependency::Step(index) => outputs[index.as_usize()].clone(),
        });
        let input = if step.depends.is_empty() {
            message.clone()
        } else {
            plain_json::merged(&dependency_outputs.collect::<Vec<_>>())
        };
        let output = match step.task {
            Some(task) => {
                let task = &definition.graphs[usize::from(task)];
                expected_fan_out_output(task, definition, &input, workers)?
            }
            None => {
                workers.messages_left = workers.messages_left.saturating_sub(1);
                if workers.messages_left == 0 {
                    return None;
                }
                workers.reply(&step.name, &input)?
            }
        };
        outputs.push(output);
    }
    let steps_with_dependents: HashSet<usize> = graph
        .steps
        .iter()
        .flat_map(|step| step.step_dependencies())
        .map(|index| index.as_usize())
        .collect();
    let final_outputs: Vec<Pairs> = (0..outputs.len())
        .filter(|index| !steps_with_dependents.contains(index))
        .map(|index| outputs[index].clone())
        .collect();
    Some(plain_json::merged(&final_outputs))
}

/// Returns the expected output of a fan-out step. `None` if a child job fails, if the list is no
/// list, or if there are too many messages.
fn expected_fan_out_output(
    task: &Graph,
    definition: &Definition,
    input: &Pairs,
    workers: &mut Workers,
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
        // The item replaces the list. Another member with the item key is removed.
        let message = input.iter().filter_map(|(key, value)| match key.as_str() {
            key if key == list_key => Some((item_key.to_owned(), item.clone())),
            key if key == item_key => None,
            _ => Some((key.clone(), value.clone())),
        });
        results.push(expected_result(task, definition, &message.collect(), workers)?);
    }
    let gathered_values: Vec<&str> =
        results.iter().map(|result| plain_json::get(result, item_key).unwrap_or("null")).collect();
    let gathered_list = (list_key.to_owned(), format!("[{}]", gathered_values.join(",")));
    // The list has the position of the first item key in a result. Of other members with the same
    // key the first counts.
    let mut output = Pairs::new();
    for (key, value) in results.iter().flatten() {
        let is_item = key == item_key;
        let has_key = |key: &str| output.iter().any(|(output_key, _)| output_key == key);
        if is_item && !has_key(list_key) {
            output.push(gathered_list.clone());
        } else if !is_item && key != list_key && !has_key(key) {
            output.push((key.clone(), value.clone()));
        }
    }
    if !output.contains(&gathered_list) {
        output.push(gathered_list);
    }
    Some(output)
}
