//! Look-ups in the journal: whoever asks for a job that takes no input waits for the archive, and
//! nobody else does.

use bytes::Bytes;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tokio::sync::oneshot;
use workflow_manager::actors::outbox::Answer;
use workflow_manager::actors::router::{Ending, RouterInput};
use workflow_manager::actors::supervisor::{self, Manager};
use workflow_manager::bus::Publication;
use workflow_manager::bus::embedded::{WorkerError, Workers};
use workflow_manager::engine::{JobId, JobState, Message, Operation};
use workflow_manager::load::load_text;
use workflow_manager::settings::Settings;

const WORKFLOW: &str = "workflows: [{name: chain, steps: [{name: a}, {name: b, depends: [a]}, {name: sign, external: true}]}]";
const BRIEF: &str = "workflows: [{name: chain, steps: [{name: a}, {name: b, depends: [a]}]}]";

/// What the archive's reads take in the process of the slow test.
const SLOW_READS: &str = "archive::read=delay(2000)";

/// How long a condition is waited for before the test fails.
const DEADLINE: Duration = Duration::from_secs(60);

fn echo(message: &Publication) -> Result<Bytes, WorkerError> {
    Ok(message.body.to_bytes())
}

async fn start(folder: &Path, workflow: &str, waiting_max: usize) -> Manager {
    let mut settings = Settings::defaults().expect("defaults");
    settings.journal.file = folder.join("j.db");
    settings.limits.creations_waiting_max = waiting_max;
    let definitions = load_text("test.yaml", workflow).expect("valid").definitions;
    let workers = Workers::new().with("a", 1, echo).with("b", 1, echo);
    supervisor::start(settings, definitions, workers).await.expect("starts")
}

fn ask(
    manager: &Manager,
    input: impl FnOnce(oneshot::Sender<Answer>) -> RouterInput,
) -> oneshot::Receiver<Answer> {
    let (answer, answered) = oneshot::channel();
    manager.shared().wiring().router.post(input(answer));
    answered
}

fn message() -> Message {
    Message::parse(b"{}").expect("a message")
}

/// A job that has run through, and takes no more input.
async fn over(manager: &Manager) -> JobId {
    let answer = manager.create("chain", None, message()).await;
    let Answer::Created(id) = answer else { panic!("not created: {answer:?}") };
    let closed = async {
        while manager.shared().routes.is_live(id) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(DEADLINE, closed).await.expect("the job ends");
    id
}

async fn slow_reads() {
    let folder = tempfile::tempdir().expect("a folder");
    let manager = start(folder.path(), BRIEF, 3).await;
    let ended = [over(&manager).await, over(&manager).await];
    // Each needs a read of its own.
    let mut waiting = vec![
        ask(&manager, |answer| RouterInput::Operate(ended[0], Operation::Retry, answer)),
        ask(&manager, |answer| RouterInput::End(ended[0], Ending::Erase, answer)),
        ask(&manager, |answer| RouterInput::End(ended[1], Ending::Cancel, answer)),
    ];
    let one_more = ask(&manager, |answer| RouterInput::End(ended[1], Ending::Cancel, answer));
    let refused = one_more.await.expect("answered");
    assert!(
        matches!(&refused, Answer::Overloaded(reason) if reason.contains("creations_waiting_max")),
        "{refused:?}"
    );
    let mut jobs = 0;
    let mut answers = Vec::new();
    while !waiting.is_empty() {
        over(&manager).await;
        jobs += 1;
        let answered = waiting[0].try_recv();
        if let Ok(answer) = answered {
            answers.push(answer);
            waiting.remove(0);
        }
    }
    assert!(matches!(answers[0], Answer::Conflict(_)), "{answers:?}");
    assert_eq!(answers[1..], [Answer::Deleted, Answer::Changed(JobState::Completed)]);
    assert!(jobs >= 30, "only {jobs} jobs ran through while the journal was looked up for seconds");
    manager.stop().await;
}

/// In a process of its own: a failpoint holds for all threads of one.
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

/// What is asked of an id while it is looked up waits, and is taken in the order in which it came.
#[test]
fn what_is_asked_of_one_id_keeps_its_order() {
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let manager = start(folder.path(), WORKFLOW, 1_000).await;
        let definition = manager.shared().definitions()["chain"].clone();
        for round in 0..50_u128 {
            let id = JobId(uuid::Uuid::from_u128(round + 1));
            let create = || {
                ask(&manager, |answer| {
                    RouterInput::Create(workflow_manager::actors::router::NewJob {
                        id: Some(id),
                        definition: definition.clone(),
                        message: message(),
                        answer,
                    })
                })
            };
            let operate =
                |operation| ask(&manager, |answer| RouterInput::Operate(id, operation, answer));
            let cancel = || Operation::Cancel { reason: "a test".into() };
            let asked = [
                operate(Operation::Pause),
                create(),
                create(),
                operate(Operation::Pause),
                operate(Operation::Resume),
                operate(cancel()),
                create(),
                operate(cancel()),
            ];
            let mut answers = Vec::new();
            for answered in asked {
                let answered = tokio::time::timeout(DEADLINE, answered).await.expect("in time");
                answers.push(answered.expect("answered"));
            }
            let conflict = answers.pop();
            assert!(matches!(conflict, Some(Answer::Conflict(_))), "{conflict:?}");
            assert_eq!(
                answers,
                [
                    Answer::Unknown,
                    Answer::Created(id),
                    Answer::Existing(id),
                    Answer::Changed(JobState::Paused),
                    Answer::Changed(JobState::Running),
                    Answer::Changed(JobState::Cancelled),
                    Answer::Existing(id),
                ]
            );
        }
        manager.stop().await;
    });
}
