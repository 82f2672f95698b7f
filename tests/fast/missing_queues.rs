//! A missing queue is declared only once the journal has all that jobs have decided about the
//! messages that were in it: a crash behind that must not find one of them confirmed.

use crate::alone::alone;
use crate::waits::DEADLINE;
use std::path::Path;
use std::time::Duration;
use tokio::sync::oneshot;
use workflow_manager::actors::completion_latch::CompletionLatch;
use workflow_manager::actors::inputs::{Inspection, JobInput, RouterInput};
use workflow_manager::actors::manager::{self, Manager};
use workflow_manager::actors::{handles::ActorHandles, manager_handle};
use workflow_manager::bus::Address;
use workflow_manager::bus::embedded::Workers;
use workflow_manager::engine::{Input, JobId, Message, Operation, StepIndex};
use workflow_manager::journal::{JobRecords, Reader};
use workflow_manager::load::load_text;
use workflow_manager::settings::Settings;

const WORKFLOW: &str = "workflows: [{name: w, steps: [{name: q}]}]";

async fn start(folder: &Path) -> Manager {
    let mut settings = Settings::defaults().expect("defaults");
    settings.journal.file = folder.join("j.db");
    let definitions = load_text("test.yaml", WORKFLOW).expect("valid").definitions;
    manager::start(settings, definitions, Workers::new()).await.expect("starts")
}

/// Whether the job has its message as confirmed, committed or not.
async fn is_confirmed(ways: &ActorHandles, id: JobId) -> bool {
    let (answer, seen) = oneshot::channel();
    let see = move |job: &workflow_manager::engine::Job| {
        let _ = answer.send(job.step(StepIndex(0)).confirmed);
    };
    let look = Inspection::new(see, CompletionLatch::new(oneshot::channel().0));
    ways.routes.find(id).expect("it is under way").send(JobInput::Inspect(look));
    seen.await.expect("seen")
}

async fn until_it_is(confirmed: bool, ways: &ActorHandles, id: JobId) {
    let waited = tokio::time::timeout(DEADLINE, async {
        while is_confirmed(ways, id).await != confirmed {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.expect("in time");
}

async fn full_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let manager = start(folder.path()).await;
    let ways = manager.handles();
    let message = Message::parse(b"{}").expect("a message");
    let id = manager.create("w", None, message).await.expect("created").id();
    // The embedded bus confirms nothing: the test does.
    let confirmed = Input::Confirmed { step: StepIndex(0), attempt: 1, dispatch: None };
    ways.mailboxes().router.send(RouterInput::InputForJob(id, confirmed));
    manager_handle::inspect_job(ways, id, |_| ()).await.expect("the confirm is committed");
    until_it_is(true, ways, id).await;

    fail::cfg("journal::write", "return(full)").expect("the disk is full");
    let again = Operation::Redispatch { step: "q".to_owned() };
    let sent_again = actix_rt::spawn(manager.operate(id, again));
    until_it_is(false, ways, id).await;
    let (taken, is_taken) = oneshot::channel();
    let queue = Address { bus: ways.buses.resolve(None, ""), queue: "q".into() };
    ways.mailboxes().router.send(RouterInput::QueueMissing { queue, handled: taken });
    let file = folder.path().join("j.db");
    let kept = actix_rt::spawn(async move {
        is_taken.await.expect("taken");
        Reader::new(&file)
            .load_job(id)
            .expect("read")
            .expect("there")
            .job
            .step(StepIndex(0))
            .confirmed
    });
    // Whoever answers before there is room does so by now, or soon.
    manager_handle::wait_for_router(ways).await;
    until_it_is(false, ways, id).await;
    manager_handle::probe_liveness(ways).await;

    fail::remove("journal::write");
    let kept = tokio::time::timeout(DEADLINE, kept).await.expect("in time").expect("no panic");
    assert!(!kept, "the queue is declared while the journal has its message as confirmed");
    tokio::time::timeout(DEADLINE, sent_again)
        .await
        .expect("in time")
        .expect("no panic")
        .expect("ok");
    manager.stop().await;
}

#[test]
fn a_queue_is_declared_after_the_commit_of_what_was_decided_before_it_was_missed() {
    let name = "missing_queues::a_queue_is_declared_after_the_commit_of_what_was_decided_before_\
                it_was_missed";
    alone(name, full_disk());
}
