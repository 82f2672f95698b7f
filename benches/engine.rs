//! The pure engine: the time per reply in a chain, and per end of a child job in fan-outs of
//! growing size, which must not grow.

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;
use workflow_manager::engine::{
    ChildEnd, ChildOutcome, Context, Definition, Dependency, FanOutKeys, Graph, Input, Job, JobId,
    JobState, Limits, Message, Origin, Reply, Sender, Step, StepIndex, Timestamp,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const LIMITS: Limits = Limits {
    step_message_bytes_max: 1 << 30,
    reply_bytes_max: 1 << 30,
    depth_max: 32,
    window: 10_000,
    window_bytes: 1 << 26,
};
const CHAINS: u32 = 20_000;
const BODY: &[u8] = concat!(
    r#"{"filename":"/data/book.txt","title":"De finibus","sections":[1,2,3],"#,
    r#""n":12345678901234567890}"#,
)
.as_bytes();

fn context() -> Context<'static> {
    Context { now: Timestamp(1), limits: &LIMITS, pauses: None, spare: None }
}

fn step(name: &str, depends: Vec<Dependency>, task: Option<u16>) -> Step {
    Step { depends, task, ..Step::with_name(name) }
}

fn origin(definition: &Arc<Definition>) -> Origin {
    let id = JobId(uuid::Uuid::from_u128(7));
    Origin::for_root_job(id, definition.clone(), Timestamp(1))
}

fn measure_chain() -> f64 {
    let steps = vec![
        step("a", vec![], None),
        step("b", vec![Dependency::Step(StepIndex(0))], None),
        step("c", vec![Dependency::Step(StepIndex(1))], None),
    ];
    let definition = Arc::new(Definition::new("w", vec![Graph::new("w".into(), None, steps)]));
    let started = Instant::now();
    for _ in 0..CHAINS {
        let (mut job, _) = Job::create(origin(&definition), Message::default(), &context());
        for name in ["a", "b", "c"] {
            let input = Input::Reply {
                step: name.to_owned(),
                attempt: None,
                reply: Reply::Result(BODY.into()),
                from: Sender::Unknown,
            };
            job.handle_input(input, &context()).expect("taken");
        }
        assert_eq!(job.state(), JobState::Completed);
    }
    started.elapsed().as_nanos() as f64 / f64::from(CHAINS * 3)
}

fn measure_fan_out(items: u32) -> f64 {
    let keys = FanOutKeys::new("items", "item");
    let graphs = vec![
        Graph::new("w".into(), None, vec![step("each", vec![], Some(1))]),
        Graph::new("t".into(), Some(keys), vec![step("work", vec![], None)]),
    ];
    let definition = Arc::new(Definition::new("w", graphs));
    let list: Vec<u32> = (0..items).collect();
    let message = Message::parse(serde_json::json!({ "items": list }).to_string().as_bytes())
        .expect("a message");
    let (mut job, _) = Job::create(origin(&definition), message, &context());
    let result = Message::parse(br#"{"item":1}"#).expect("a message");
    let started = Instant::now();
    for index in 0..items {
        let child = job.child_id(StepIndex(0), index).expect("a child");
        let ended = ChildEnd { child, round: 0, outcome: ChildOutcome::Completed(result.clone()) };
        let input = Input::ChildEnded { step: StepIndex(0), index, ended };
        job.handle_input(input, &context()).expect("taken");
    }
    assert_eq!(job.state(), JobState::Completed);
    started.elapsed().as_nanos() as f64 / f64::from(items)
}

fn main() {
    let out = &mut std::io::stdout();
    writeln!(out, "a reply in a chain of three steps   {:>8.0} ns", measure_chain())
        .expect("written");
    for items in [1_000, 10_000, 100_000, 1_000_000] {
        writeln!(out, "a child's end among {items:>9}       {:>8.0} ns", measure_fan_out(items))
            .expect("written");
    }
}
