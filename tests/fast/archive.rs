//! Look-ups in the journal: whoever asks for a job that takes no input waits for the archive, and
//! nobody else does.

use std::cell::Cell;
use std::process::Command;
use std::time::Duration;
use support::manager::{Setup, TestManager};
use support::waits::{until, within};
use tokio::sync::oneshot;
use workflow_manager::actors::client_response::{
    CreateResponse, Erased, OperationResponse, RequestError,
};
use workflow_manager::actors::inputs::{CreateJob, RouterInput};
use workflow_manager::clock;
use workflow_manager::engine::{JobId, JobState, Message, Operation};

const WORKFLOW: &str = "workflows: [{name: chain, steps: [{name: a}, {name: b, depends: [a]}, \
                        {name: sign, external: true}]}]";
const BRIEF: &str = "workflows: [{name: chain, steps: [{name: a}, {name: b, depends: [a]}]}]";

/// What the archive's reads take in the process of the slow test.
const SLOW_READS: &str = "archive::read=sleep(5000)";

/// How long a job may take meanwhile, from its creation to its end: far less than a read, and far
/// more than the disk and the processors of a machine with much else to do need.
const JOB_MAX: Duration = Duration::from_millis(2_500);

fn setup(workflow: &str, waiting_max: usize) -> Setup {
    let setup = TestManager::with(workflow).echo(["a", "b"]);
    setup.set(|settings| settings.limits.creations_waiting_max = waiting_max)
}

/// A job that has ended, and takes no more input.
async fn over(manager: &TestManager) -> JobId {
    let id = manager.create_job("chain", "{}").await;
    manager.until_closed(id).await;
    id
}

async fn told<T: std::fmt::Debug>(answer: impl Future<Output = T>) -> String {
    format!("{:?}", answer.await)
}

async fn slow_reads() {
    let manager = setup(BRIEF, 3).await;
    let ended = [over(&manager).await, over(&manager).await];
    // Each needs a read of its own.
    let [first, second] = ended;
    // One after the other: the router's mailbox refuses what comes faster than it is read.
    let lookups = &manager.core().metrics.lookups_waiting;
    let held = |count: i64| until("they wait", move || lookups.get() >= count);
    let mut waiting =
        vec![actix_rt::spawn(told(manager.handle().operate(first, Operation::Retry)))];
    held(1).await;
    waiting.push(actix_rt::spawn(told(manager.handle().erase(first))));
    held(2).await;
    waiting.push(actix_rt::spawn(told(manager.handle().cancel(second, None))));
    held(3).await;
    let refused = manager.handle().cancel(second, None).await;
    assert!(
        matches!(
            &refused,
            Err(RequestError::Overloaded(why)) if why.contains("creations_waiting_max")
        ),
        "{refused:?}"
    );
    let is_read = Cell::new(true);
    // Several at once, so that each read begins and ends while replies are under way.
    let jobs = async || {
        let mut spans = Vec::new();
        while is_read.get() {
            let begun = clock::instant();
            over(&manager).await;
            spans.push(begun.elapsed());
        }
        spans
    };
    let answers = async {
        let mut answers = Vec::new();
        for answer in waiting {
            answers.push(answer.await.expect("answered"));
        }
        is_read.set(false);
        answers
    };
    // As many as may be created at once.
    let (answers, some, others, rest) = tokio::join!(answers, jobs(), jobs(), jobs());
    let spans = [some, others, rest].concat();
    assert!(answers[0].starts_with("Err(Conflict("), "{answers:?}");
    let done = [
        format!("{:?}", Ok::<_, RequestError>(Erased)),
        format!("{:?}", Ok::<_, RequestError>(OperationResponse::Job(JobState::Completed))),
    ];
    assert_eq!(answers[1..], done);
    let (count, longest) = (spans.len(), spans.iter().max().expect("jobs"));
    assert!(count >= 30, "only {count} jobs ran through while the journal was read for seconds");
    assert!(*longest < JOB_MAX, "a job took {longest:?} while the journal was read");
    manager.stop().await;
}

/// In a process of its own: a failpoint affects all threads of a process.
#[test]
fn replies_of_other_jobs_do_not_wait_for_a_slow_read() {
    if std::env::var("FAILPOINTS").is_ok_and(|points| points == SLOW_READS) {
        let _failpoints = fail::FailScenario::setup();
        return actix_rt::System::new().block_on(slow_reads());
    }
    let name = "archive::replies_of_other_jobs_do_not_wait_for_a_slow_read";
    let own = std::env::current_exe().expect("this program");
    let output = Command::new(own)
        .args(["--exact", name, "--nocapture"])
        .env("FAILPOINTS", SLOW_READS)
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// Requests for an id wait while it is looked up, and are taken in the order in which they came.
#[test]
fn what_is_asked_of_one_id_keeps_its_order() {
    actix_rt::System::new().block_on(async {
        let manager = setup(WORKFLOW, 1_000).await;
        let definition = manager.core().definitions.current()["chain"].clone();
        for round in 0..50_u128 {
            let id = JobId(uuid::Uuid::from_u128(round + 1));
            // Not through the manager's own method, which waits for the answer.
            let create = || {
                let (definition, message) = (definition.clone(), Message::default());
                let (answer, answered) = oneshot::channel();
                let router = &manager.mailboxes().router;
                router.send(RouterInput::Create(CreateJob {
                    id: Some(id),
                    definition,
                    message,
                    trace: None,
                    starts_at: None,
                    slot: None,
                    response: answer,
                }));
                answered
            };
            let operate = |operation| manager.handle().operate(id, operation);
            let cancel = || Operation::Cancel { reason: "a test".into() };
            let before = operate(Operation::Pause);
            let created = [create(), create()];
            let asked = [operate(Operation::Pause), operate(Operation::Resume), operate(cancel())];
            let again = create();
            let behind = manager.handle().cancel(id, None);
            let late = operate(cancel());
            let answers = async {
                assert_eq!(before.await, Err(RequestError::NotFound));
                let [created, known] = created;
                assert_eq!(created.await, Ok(Ok(CreateResponse::New(id))));
                assert_eq!(known.await, Ok(Ok(CreateResponse::Existing(id))));
                let [paused, resumed, cancelled] = asked;
                assert_eq!(paused.await, Ok(OperationResponse::Job(JobState::Paused)));
                assert_eq!(resumed.await, Ok(OperationResponse::Job(JobState::Running)));
                assert_eq!(cancelled.await, Ok(OperationResponse::Job(JobState::Cancelled)));
                assert_eq!(again.await, Ok(Ok(CreateResponse::Existing(id))));
                assert_eq!(behind.await, Ok(OperationResponse::Job(JobState::Cancelled)));
                assert!(matches!(late.await, Err(RequestError::Conflict(_))));
            };
            within("in time", answers).await;
        }
        manager.stop().await;
    });
}
